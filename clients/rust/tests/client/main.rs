//! The client against real servers. `REDIS_CELL_MODULE` names the module and `REDIS_CELL_SERVER` the server
//! binary; `make test` sets both, and `REDIS_CELL_URL` for the examples in the documentation.

// A test should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

#[path = "../../../../tests/common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the other test programs use the rest
mod common;

use common::{Client, until, wait_for_blocked as until_waiting};

mod account;
mod blocking;
mod cancelled;
mod cluster;
mod commands;
mod functions;
mod grpc;
mod hostile;
mod http;
mod leased;
mod merged;
mod messages;
mod readme;
mod refusals;
mod repeated;
mod replies;
mod settle;
mod tls;
mod turns;
mod unavailable;

/// A client of the server on this port.
fn client(port: u16) -> redis::Client {
    redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap()
}

/// How often the server has run a command.
fn calls(client: &mut Client, command: &str) -> u64 {
    let text = client.text("INFO commandstats");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// A number of the module's section of INFO.
fn counted(inspector: &mut Client, name: &str) -> u32 {
    let text = inspector.text("INFO redis-cell");
    let number =
        |line: &str| line.strip_prefix("redis-cell_")?.strip_prefix(name)?.strip_prefix(':')?.parse().ok();
    text.lines().find_map(number).unwrap_or_else(|| panic!("no {name}: {text}"))
}
