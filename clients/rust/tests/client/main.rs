//! The client against real servers. `REDIS_CELL_MODULE` names the module and `REDIS_CELL_SERVER` the server
//! binary; `make test` sets both, and `REDIS_CELL_URL` for the examples in the documentation.

// A test should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

#[path = "../../../../tests/common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the other test programs use the rest
mod common;

mod account;
mod blocking;
mod cancelled;
mod cluster;
mod commands;
mod functions;
mod grpc;
mod hostile;
mod http;
mod leased;
mod merged;
mod messages;
mod readme;
mod refusals;
mod repeated;
mod replies;
mod settle;
mod tls;
mod turns;
mod unavailable;
