//! The deliverables, as users use them: the image, the compose file, the tarball and the Debian package, the
//! configuration of Prometheus, and the examples. `make test-shipping` builds what these tests need and runs
//! them.
//!
//! All but the Rust example need a Docker engine.

// A test should fail at the first unexpected value. The lints against panics are for code inside a server.
#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

#[path = "../common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the other test programs use the rest
mod common;

mod compose;
mod examples;
mod image;
mod monitoring;
mod packages;

/// The reply to the first call that README.md shows, `CL.THROTTLE visitor 15 30 3600 4`, as redis-cli prints
/// it.
const FIRST_REPLY: &str = "0\n16\n12\n-1\n480";

/// A path in this checkout.
fn path(relative: &str) -> String {
    common::root().join(relative).display().to_string()
}
