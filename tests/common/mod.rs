//! What every test stands on: servers, clients, the contract's arithmetic, and waiting by condition.

mod client;
mod model;
mod server;
mod stream;
mod wait;
mod waiter;

pub use client::{Client, Snapshot, Words, ints};
pub use model::{Throttle, ceil_div};
pub use server::{BINARY, Options, Server, faulty_module_path, has_fault, module_path, with_fault};
pub use stream::{Effect, ReplicaStream, aof_path, read_aof};
pub use wait::wait_until;
pub use waiter::{Waiter, wait_for_blocked};

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since the epoch, by the wall clock that the server on this machine reads too.
pub fn wall_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

/// Says on the terminal that a test does not apply here. Written to the stream itself, because the test
/// runner swallows what `eprintln!` prints in a test that passes.
pub fn report_skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let line = format!("live: SKIPPED {test}: {why} ({} {})\n", BINARY.name, BINARY.version_text);
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Leaves the test, visibly, when the server at hand lacks what the test is about.
macro_rules! requires {
    ($condition:expr, $why:expr) => {
        if !$condition {
            $crate::common::report_skip($why);
            return;
        }
    };
}
pub(crate) use requires;
