//! Shared by all test programs: servers, clients, the contract's arithmetic, and waiting for conditions.

mod client;
mod clock;
mod cluster;
mod commands;
mod docker;
mod entries;
mod footprint;
mod functions;
pub mod model;
mod native;
mod reaper;
mod server;
mod stream;
mod throttle;
mod wait;
mod waiter;

pub use client::{Client, Snapshot, Words, ints};
pub use clock::{Clock, SECOND};
pub use cluster::{certificate, cluster, meet, wait_for_cluster};
pub use commands::{COMMANDS, Command, KINDS, Kind};
pub use docker::{Container, docker, run, unique_name, wait_until_healthy};
pub use entries::{Entry, entries};
pub use footprint::Footprint;
pub use functions::{FUNCTIONS, has_functions, load_functions, to_function};
pub use native::compile_library;
pub use reaper::Reaper;
pub use server::{
    BINARY, Options, Server, faulty_module_path, free_port, has_fault, module_path, with_fault,
};
pub use stream::{Effect, ReplicaStream, aof_path, propagated, read_aof};
pub use throttle::{Throttle, ceil_div};
pub use wait::{until, wait_until};
pub use waiter::{Waiter, wait_for_blocked};

use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The server's own error for a key of another type.
pub const WRONGTYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The folder of the checkout. Tests of several packages use this file.
pub fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("CONTRIBUTING.md").exists()).expect("a package of the checkout")
}

/// Nanoseconds since the epoch, by the wall clock that the server on this machine reads too.
pub fn wall_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

/// Reports on the terminal that a test does not apply here. It writes to the stream itself, because the test
/// runner captures the output of `eprintln!` and drops it when the test passes.
pub fn report_skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let line = format!("SKIPPED {test}: {why} ({} {})\n", BINARY.name, BINARY.version_text);
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Returns from the test, visibly, when the server under test lacks the feature that the test needs.
macro_rules! requires {
    ($condition:expr, $why:expr) => {
        if !$condition {
            $crate::common::report_skip($why);
            return;
        }
    };
}
pub(crate) use requires;
