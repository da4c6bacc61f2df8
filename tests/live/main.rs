//! The module against real servers. `REDIS_CELL_MODULE` names the module, `REDIS_CELL_SERVER` the server
//! binary, `REDIS_CELL_FAULTY_MODULE` a build that can be made to panic; `make test` sets all three.

// A test should fail at the first unexpected value. The lints against panics are for code inside a server.
#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

#[path = "../common/mod.rs"]
#[allow(dead_code, unused_imports)] // the reliability suite uses the rest
mod common;

mod accounts;
mod acl;
mod arguments;
mod clients;
mod companions;
mod configuration;
mod contexts;
mod effects;
mod events;
mod flows;
mod foreign;
mod functions;
mod holds;
mod info;
mod leases;
mod lifecycle;
mod log;
mod metadata;
mod migrating;
mod once;
mod pages;
mod pause;
mod persistence;
mod purity;
mod rate;
mod renamed;
mod replication;
mod several;
mod state;
mod throttle;
mod top;
mod transcripts;
mod turns;
mod waiting;
mod windows;
