//! The module against real servers. `REDIS_CELL_MODULE` names the module, `REDIS_CELL_SERVER` the server
//! binary, `REDIS_CELL_FAULTY_MODULE` a build that can be made to panic; `make test` sets all three.

// A test that meets the unexpected should end, loudly; the rules against that are for code inside a server.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

mod common;

mod companions;
mod contexts;
mod effects;
mod foreign;
mod hostile;
mod leases;
mod lifecycle;
mod log;
mod pages;
mod persistence;
mod purity;
mod rate;
mod replication;
mod several;
mod state;
mod throttle;
mod transcripts;
mod waiting;
mod windows;
