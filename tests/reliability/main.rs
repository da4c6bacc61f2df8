//! What goes wrong around the module, done to real servers: failover, cluster, crash, clock, hostile input, and the limits
//! of the machine. `make test-reliability` runs it; the environment variables are those of the live suite, and
//! `REDIS_CELL_LONG=1` chooses the long form of what takes long.

// A test that meets the unexpected should end, loudly; the rules against that are for code inside a server.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

#[path = "../common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the live suite uses the rest
mod common;

mod clock;
mod cluster;
mod containers;
mod crash;
mod failover;
mod faults;
mod figures;
mod hostile;
mod limits;
mod load;
mod native;
mod promises;
mod random;
mod security;
