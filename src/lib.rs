//! redis-cell: rate limiters inside Redis and Valkey.
//!
//! A call passes through the module in this order: the server calls its command (`ffi::Served`), its bytes
//! become arguments (`commands`, with the parsers of `redis_cell_core`), its key becomes a state (`calls`,
//! `limiters`, `store`), the core decides, the decision is written and replicated (`store`, `ffi`), and the
//! outcome is counted and replied (`outcome`).

#![forbid(unsafe_code)]

mod calls;
mod commands;
mod config;
mod info;
mod limiters;
mod outcome;
mod refusals;
mod store;
mod tally;
mod waiting;

use ffi::{LoadContext, Report, Section};
use outcome::CommandRow;
use redis_cell_ffi::{self as ffi, error, faults};

#[global_allocator]
static ALLOCATOR: ffi::ServerMemory = ffi::ServerMemory;

ffi::entry_points! { load: load, unload: unload }

/// Loads the module: reads its arguments, and registers its commands, its section of `INFO` and its settings.
fn load(server: &LoadContext) -> Result<(), String> {
    config::parse(server.arguments())?;
    if config::NOTIFY_REFUSALS.get() && !server.has_module_events() {
        return Err(String::from("this server has no module keyspace events, which notify-refusals needs"));
    }
    for CommandRow { command, tally } in commands::COMMANDS {
        tally.reset();
        server.register(command)?;
    }
    for (_, count) in tally::HOLDS {
        count.reset();
    }
    server.register_info::<Info>();
    server.register_settings(&config::SETTINGS)?;
    let settings: Vec<String> = config::values().map(|(name, value)| format!("{name} {value}")).collect();
    server.announce(&settings.join(", "));
    server.follow_modules();
    Ok(())
}

/// The section of `INFO`.
struct Info;

impl Report for Info {
    fn fill(section: &Section) {
        info::fill(section, commands::COMMANDS);
    }
}

/// Frees the memory that the module keeps between calls.
fn unload() {
    waiting::unload();
    refusals::unload();
    ffi::free_shared();
}
