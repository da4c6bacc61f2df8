//! The entry points: the functions that the server looks for in the file, and calls to load and to unload the
//! module.
//!
//! The crate of the module exports them with [`entry_points`](crate::entry_points), which names the functions
//! that load and unload the module.

use core::ffi::c_int;
use core::ptr::NonNull;

use redis_module::raw;
pub use redis_module::raw::{RedisModuleCtx, RedisModuleString};

use super::api::NAME;
use super::call::Call;
use super::load::LoadContext;
use super::{api, events, panic, server_log};

/// The version in `MODULE LIST`: two digits each for minor and patch level.
const VERSION: c_int = match (
    c_int::from_str_radix(env!("CARGO_PKG_VERSION_MAJOR"), 10),
    c_int::from_str_radix(env!("CARGO_PKG_VERSION_MINOR"), 10),
    c_int::from_str_radix(env!("CARGO_PKG_VERSION_PATCH"), 10),
) {
    (Ok(major), Ok(minor), Ok(patch)) => (major * 100 + minor) * 100 + patch,
    _ => panic!("the package's version is three numbers"),
};

const OK: c_int = 0;
const ERR: c_int = 1;

/// Exports the functions that the server calls to load and to unload the module.
///
/// `load` is a `fn(&LoadContext) -> Result<(), String>`, whose error is logged. `unload` is a `fn()`, which
/// is also called after a load that has failed.
#[macro_export]
macro_rules! entry_points {
    (load: $load:path, unload: $unload:path) => {
        /// Loads the module.
        ///
        /// # Safety
        /// `ctx` and the `argc` strings at `argv` are valid during the call. The server guarantees it.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)] // the server's name for it
        unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut $crate::entry::RedisModuleCtx,
            argv: *mut *mut $crate::entry::RedisModuleString,
            argc: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int {
            // SAFETY: the caller vouches for `ctx` and `argv`.
            unsafe { $crate::entry::load(ctx, argv, argc, $load, $unload) }
        }

        /// Unloads the module. The server has made sure that no client is blocked by it.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)] // the server's name for it
        extern "C" fn RedisModule_OnUnload(_ctx: *mut $crate::entry::RedisModuleCtx) -> ::core::ffi::c_int {
            $unload();
            0
        }
    };
}

/// Loads the module.
///
/// # Safety
/// `ctx` and the `argc` strings at `argv` are valid during the call.
pub unsafe fn load(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
    load: fn(&LoadContext) -> Result<(), String>,
    unload: fn(),
) -> c_int {
    // This comes first, because Rust allocates with the functions that the server hands out here. SAFETY:
    // `ctx` is the server's, the name is a C string.
    let fresh = unsafe { raw::Export_RedisModule_Init(ctx, NAME.as_ptr(), VERSION, 1) } == OK;
    panic::install();
    let loaded = panic::catch(|| {
        let api = api::resolve().map_err(|name| format!("this server is too old: it has no {name}"))?;
        let ctx = NonNull::new(ctx).ok_or("the server gave no context")?;
        if !fresh {
            return Err(String::from("a module called redis-cell is loaded already; unload it first"));
        }
        // SAFETY: the caller vouches for `ctx` and `argv`.
        let call = unsafe { Call::new(api, ctx.as_ptr(), argv, argc) };
        // Without arguments there is no array of them either.
        let call = call.unwrap_or_else(|| Call::without_arguments(api, ctx));
        load(&LoadContext::new(call))
    });
    match loaded.unwrap_or_else(Err) {
        Ok(()) => OK,
        Err(reason) => {
            server_log::warning(ctx, &format!("not loaded: {reason}"));
            // A module that was loaded before keeps working: it is the same file, with the same statics.
            if fresh && let Some(api) = api::get() {
                events::unfollow(api, ctx);
                unload();
            }
            ERR
        }
    }
}
