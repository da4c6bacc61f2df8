//! Envoy's rate limit service on redis-cell, as a library for the tests of the program. README.md is the
//! manual.
#![forbid(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod config;
pub mod connections;
pub mod decide;
pub mod duration;
pub mod http;
pub mod json;
pub mod metrics;
pub mod process;
pub mod proto;
pub mod server;
pub mod service;
pub mod settings;
pub mod watch;
pub mod xds;
pub mod yaml;

/// Locks a mutex. What a thread that has panicked has left in it is valid.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
