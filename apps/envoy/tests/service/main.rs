//! The configuration reader, the service with a real server of the limiters, and the real Envoy in front of a
//! real upstream.
//!
//! `REDIS_CELL_MODULE` names the module, `REDIS_CELL_SERVER` the server, `REDIS_CELL_PROXY` Envoy, and
//! `REDIS_CELL_PROMETHEUS` Prometheus; `make test-apps` sets all four. `image` needs a Docker engine and the
//! image.

// A test should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

#[path = "../../../../tests/common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the other test programs use the rest
mod common;

mod batches;
mod config;
mod dashboard;
mod decisions;
mod gateway;
mod harness;
mod image;
mod operation;
mod proxy;
mod servers;
mod settings;
