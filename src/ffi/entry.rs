//! The entry points: what the server looks for in the file and calls to load and to unload the module.
//!
//! They hand over to `load` and `unload` in `lib.rs`, the one place where `src/ffi` names what is built on
//! it.

use core::ffi::c_int;
use core::ptr::NonNull;

use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};

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

/// Loads the module.
///
/// # Safety
/// `ctx` and the `argc` strings at `argv` are valid during the call. The server guarantees it.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // the server's name for it
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // First of all, because Rust allocates by the functions that the server hands out here.
    // SAFETY: `ctx` is the server's, the name is a C string.
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
        crate::load(&LoadContext::new(call))
    });
    match loaded.unwrap_or_else(Err) {
        Ok(()) => OK,
        Err(reason) => {
            server_log::warning(ctx, &format!("not loaded: {reason}"));
            // A module that was loaded before keeps working: it is the same file, with the same statics.
            if fresh && let Some(api) = api::get() {
                events::unfollow(api, ctx);
                crate::unload();
            }
            ERR
        }
    }
}

/// Unloads the module. The server has made sure that no client is blocked by it.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // the server's name for it
extern "C" fn RedisModule_OnUnload(_ctx: *mut RedisModuleCtx) -> c_int {
    crate::unload();
    OK
}
