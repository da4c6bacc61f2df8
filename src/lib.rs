//! redis-cell: rate limiters inside Redis and Valkey.
//!
//! This file is the table of commands. A call takes one way through the module: its bytes become arguments
//! (`redis_cell_core::Tail` and the limits beside the algorithms), its key becomes a state (`store`), the core decides,
//! and the decision is written, propagated and answered (`store`, `ffi`).

mod commands;
mod config;
#[cfg(feature = "faults")]
mod faults;
mod ffi;
mod info;
mod outcome;
mod store;
mod top;
mod waiting;

use config::Settings;
use ffi::{Row, row};

#[global_allocator]
static ALLOCATOR: ffi::ServerMemory = ffi::ServerMemory;

/// The table of commands.
static COMMANDS: [Row; 16] = [
    row::<commands::Throttle>(),
    row::<commands::Peek>(),
    row::<commands::Refund>(),
    row::<commands::Charge>(),
    row::<commands::Reserve>(),
    row::<commands::Bthrottle>(),
    row::<commands::Mthrottle>(),
    row::<commands::Funnel>(),
    row::<commands::Bucket>(),
    row::<commands::Fixed>(),
    row::<commands::Window>(),
    row::<commands::Log>(),
    row::<commands::Acquire>(),
    row::<commands::Renew>(),
    row::<commands::Release>(),
    row::<commands::MostRefused>(),
];

/// Registers the commands, and what else the server may ask for.
fn load(server: &ffi::Loading) -> Result<(), String> {
    let settings = Settings::parse(server.arguments())?;
    for command in &COMMANDS {
        command.spec.tally.reset();
        server.register(command)?;
    }
    server.register_info();
    server.configure(settings)?;
    server.announce();
    Ok(())
}

/// Fills the module's section of INFO.
fn info(section: &ffi::Section) {
    info::fill(section, COMMANDS.iter().map(|command| &command.spec));
}

/// Forgets what the server ends when it unloads the module.
fn unload() {
    waiting::unload();
    store::unload();
    config::set_top_size(0);
}
