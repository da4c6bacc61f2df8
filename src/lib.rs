//! redis-cell: rate limiters inside Redis and Valkey.
//!
//! This file is the table of commands. A call takes one way through the module: its bytes become arguments
//! (`redis_cell_core::Tail` and the limits beside the algorithms), its key becomes a state (`store`), the core decides,
//! and the decision is written, propagated and answered (`store`, `ffi`).

mod commands;
#[cfg(feature = "faults")]
mod faults;
mod ffi;
mod store;
mod waiting;

use redis_module::alloc::RedisAlloc;

/// Rust's memory is the server's, so that `used_memory` and `maxmemory` count it.
#[global_allocator]
static ALLOCATOR: RedisAlloc = RedisAlloc;

/// Registers the commands.
fn load(server: &ffi::Loading) -> Result<(), String> {
    if server.arguments() > 0 {
        return Err(String::from("the module takes no arguments"));
    }
    server.register::<commands::Throttle>()?;
    server.register::<commands::Peek>()?;
    server.register::<commands::Refund>()?;
    server.register::<commands::Charge>()?;
    server.register::<commands::Reserve>()?;
    server.register::<commands::Bthrottle>()?;
    server.register::<commands::Mthrottle>()?;
    server.register::<commands::Funnel>()?;
    server.register::<commands::Bucket>()?;
    server.register::<commands::Fixed>()?;
    server.register::<commands::Window>()?;
    server.register::<commands::Log>()?;
    server.register::<commands::Acquire>()?;
    server.register::<commands::Renew>()?;
    server.register::<commands::Release>()?;
    Ok(())
}

/// Forgets what the server ends when it unloads the module.
fn unload() {
    waiting::unload();
}
