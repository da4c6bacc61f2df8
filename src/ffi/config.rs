//! Settings that the server knows of, for `CONFIG GET`, `CONFIG SET`, `CONFIG REWRITE` and its configuration file.

use core::ffi::{c_char, c_int, c_longlong, c_void};
use core::ptr;

use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};

use super::api::Api;
use super::guard;
use crate::config::{self, NOTIFY_REFUSALS, Settings, TOP_SIZE};

/// Registers the settings, and has the server set them: to what its configuration says, else to `defaults`.
///
/// # Errors
/// When the server's configuration has a value that cannot be; it has said so in its log.
pub fn register(api: &Api, ctx: *mut RedisModuleCtx, defaults: Settings) -> Result<(), String> {
    let (Some(register_number), Some(register_bool), Some(load)) =
        (api.register_numeric_config, api.register_bool_config, api.load_configs)
    else {
        return Ok(());
    };
    let plain = raw::REDISMODULE_CONFIG_DEFAULT;
    let notify = c_int::from(defaults.notify_refusals);
    // SAFETY: `ctx` is the load's; the server copies the names; the callbacks have the types asked for.
    let status = unsafe {
        register_number(
            ctx,
            TOP_SIZE.name.as_ptr(),
            defaults.top_size,
            plain,
            TOP_SIZE.min,
            TOP_SIZE.max,
            Some(top_size),
            Some(set_top_size),
            None,
            ptr::null_mut(),
        ) | register_bool(
            ctx,
            NOTIFY_REFUSALS.as_ptr(),
            notify,
            plain,
            Some(notify_refusals),
            Some(set_notify_refusals),
            None,
            ptr::null_mut(),
        ) | load(ctx)
    };
    if status == 0 {
        Ok(())
    } else {
        Err(String::from("a setting in the server's configuration is wrong, see above"))
    }
}

unsafe extern "C" fn top_size(_: *const c_char, _: *mut c_void) -> c_longlong {
    Settings::current().top_size
}

unsafe extern "C" fn set_top_size(
    _: *const c_char,
    size: c_longlong,
    _: *mut c_void,
    _: *mut *mut RedisModuleString,
) -> c_int {
    // A panic has nobody to answer to here; the setting stays as it was.
    c_int::from(guard::catch(|| config::set_top_size(size)).is_err())
}

unsafe extern "C" fn notify_refusals(_: *const c_char, _: *mut c_void) -> c_int {
    c_int::from(Settings::current().notify_refusals)
}

unsafe extern "C" fn set_notify_refusals(
    _: *const c_char,
    notify: c_int,
    _: *mut c_void,
    _: *mut *mut RedisModuleString,
) -> c_int {
    config::set_notify_refusals(notify != 0);
    0
}
