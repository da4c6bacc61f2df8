//! The server's log.

use core::ffi::CStr;

use redis_module::raw::RedisModuleCtx;

use super::api;
use super::string::text;

/// Logs `line` at the level `notice`.
pub(super) fn notice(ctx: *mut RedisModuleCtx, line: &str) {
    write(ctx, c"notice", line);
}

/// Logs `line` at the level `warning`.
pub(super) fn warning(ctx: *mut RedisModuleCtx, line: &str) {
    write(ctx, c"warning", line);
}

/// Logs `line`, after the module's name if there is a context.
fn write(ctx: *mut RedisModuleCtx, level: &CStr, line: &str) {
    let Some(api) = api::get() else { return };
    let line = text(line);
    // SAFETY: the server takes any context, also none; the format takes one C string, which is the line.
    unsafe { (api.log)(ctx, level.as_ptr(), c"%s".as_ptr(), line.as_ptr()) };
}
