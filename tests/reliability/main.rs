//! Failures around the module, on real servers: failover, cluster, crash, clock, hostile input, and the
//! limits of the machine. `make test-reliability` runs these tests. The environment variables are the same as
//! in the live suite, and `REDIS_CELL_LONG=1` selects the long form of the slow tests.

// A test should fail at the first unexpected value. The lints against panics are for code inside a server.
#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

#[path = "../common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the live suite uses the rest
mod common;

mod bookings;
#[path = "../functions/calls.rs"]
#[allow(dead_code)] // the function library's tests use the rest
mod calls;
mod clock;
mod cluster;
mod crash;
mod failover;
mod faults;
mod figures;
mod histories;
mod holds;
mod hostile;
mod keys;
mod limits;
mod nested;
mod promises;
mod security;
