//! Envoy's rate limit service on redis-cell: the parts of the program, for its tests. The manual is
//! README.md.
#![forbid(unsafe_code)]

pub mod config;
pub mod decide;
pub mod duration;
pub mod http;
pub mod metrics;
pub mod proto;
pub mod server;
pub mod service;
pub mod settings;
pub mod watch;
pub mod yaml;
