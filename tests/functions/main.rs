//! The function library, held to the module: both on one server, whose clock stands still, so that replies,
//! states and expiries must be equal. The environment variables are those of the live suite.

// A test should fail at the first unexpected value. The lints against panics are for code inside a server.
#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

#[path = "../common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the other suites use the rest
mod common;

mod both;
mod calls;
mod differential;
mod edges;
mod faults;
