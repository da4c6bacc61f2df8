//! Settings that the server keeps, for `CONFIG GET`, `CONFIG SET`, `CONFIG REWRITE` and its configuration
//! file.

use core::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use redis_module::raw::{
    self, RedisModuleConfigGetBoolFunc, RedisModuleConfigGetNumericFunc, RedisModuleConfigSetBoolFunc,
    RedisModuleConfigSetNumericFunc, RedisModuleCtx, RedisModuleString,
};

use super::api::Api;

const OK: c_int = 0;

/// A setting.
pub enum Setting {
    /// A setting that is a number.
    Number(&'static Number),
    /// A setting that is `yes` or `no`.
    Switch(&'static Switch),
}

/// A setting that is a number.
pub struct Number {
    /// Its name; in the server's configuration, the module's name and a dot precede it.
    pub name: &'static CStr,
    /// The smallest value.
    pub min: i64,
    /// The largest value.
    pub max: i64,
    /// The default value.
    pub default: i64,
    value: AtomicI64,
}

/// A setting that is `yes` or `no`.
pub struct Switch {
    /// Its name; in the server's configuration, the module's name and a dot precede it.
    pub name: &'static CStr,
    /// The default value.
    pub default: bool,
    value: AtomicBool,
}

impl Number {
    /// A setting from `min` to `max`, which is 0 before the module is loaded.
    pub const fn new(name: &'static CStr, min: i64, max: i64, default: i64) -> Self {
        Self { name, min, max, default, value: AtomicI64::new(0) }
    }

    /// The value.
    pub fn get(&self) -> i64 {
        self.value.load(Relaxed)
    }

    /// Sets the value.
    pub fn set(&self, value: i64) {
        self.value.store(value, Relaxed);
    }

    /// Registers the setting; its default is the value that it has now. False when the server refuses it.
    fn register(&'static self, api: &Api, ctx: *mut RedisModuleCtx) -> bool {
        let Some(register) = api.register_numeric_config else { return true };
        let (name, value, plain) = (self.name.as_ptr(), self.get(), raw::REDISMODULE_CONFIG_DEFAULT);
        let get: RedisModuleConfigGetNumericFunc = Some(number);
        let set: RedisModuleConfigSetNumericFunc = Some(set_number);
        // SAFETY: `ctx` is the load's; the server copies the name; the callbacks cast the last argument back.
        unsafe { register(ctx, name, value, plain, self.min, self.max, get, set, None, private(self)) == OK }
    }
}

impl Switch {
    /// A setting that is off before the module is loaded.
    pub const fn new(name: &'static CStr, default: bool) -> Self {
        Self { name, default, value: AtomicBool::new(false) }
    }

    /// The value.
    pub fn get(&self) -> bool {
        self.value.load(Relaxed)
    }

    /// Sets the value.
    pub fn set(&self, value: bool) {
        self.value.store(value, Relaxed);
    }

    /// Registers the setting; its default is the value that it has now. False when the server refuses it.
    fn register(&'static self, api: &Api, ctx: *mut RedisModuleCtx) -> bool {
        let Some(register) = api.register_bool_config else { return true };
        let (name, value, plain) = (self.name.as_ptr(), self.get().into(), raw::REDISMODULE_CONFIG_DEFAULT);
        let get: RedisModuleConfigGetBoolFunc = Some(switch);
        let set: RedisModuleConfigSetBoolFunc = Some(set_switch);
        // SAFETY: `ctx` is the load's; the server copies the name; the callbacks cast the last argument back.
        unsafe { register(ctx, name, value, plain, get, set, None, private(self)) == OK }
    }
}

/// Registers settings on servers that keep settings of modules (Redis 7.0), and sets them to the values of
/// the server's configuration. False if these are wrong; the server has logged why.
pub(super) fn register(api: &Api, ctx: *mut RedisModuleCtx, settings: &[Setting]) -> bool {
    let Some(load) = api.load_configs else { return true };
    let registered = settings.iter().all(|setting| match setting {
        Setting::Number(number) => number.register(api, ctx),
        Setting::Switch(switch) => switch.register(api, ctx),
    });
    // SAFETY: `ctx` is the load's, and the function is called once during a load.
    registered && unsafe { load(ctx) } == OK
}

/// The pointer to a setting that the server hands to its callbacks.
fn private<T>(setting: &'static T) -> *mut c_void {
    ptr::from_ref(setting).cast_mut().cast()
}

/// The setting that such a pointer refers to.
///
/// # Safety
/// `private` is from [`private`], of a setting of this type.
unsafe fn setting<T>(private: *mut c_void) -> &'static T {
    // SAFETY: the caller vouches for the type; a setting is a static, and is never borrowed mutably.
    unsafe { &*private.cast::<T>() }
}

unsafe extern "C" fn number(_: *const c_char, private: *mut c_void) -> c_longlong {
    // SAFETY: registered with a Number.
    unsafe { setting::<Number>(private) }.get()
}

unsafe extern "C" fn set_number(
    _: *const c_char,
    value: c_longlong,
    private: *mut c_void,
    _: *mut *mut RedisModuleString,
) -> c_int {
    // SAFETY: registered with a Number.
    unsafe { setting::<Number>(private) }.set(value);
    OK
}

unsafe extern "C" fn switch(_: *const c_char, private: *mut c_void) -> c_int {
    // SAFETY: registered with a Switch.
    unsafe { setting::<Switch>(private) }.get().into()
}

unsafe extern "C" fn set_switch(
    _: *const c_char,
    value: c_int,
    private: *mut c_void,
    _: *mut *mut RedisModuleString,
) -> c_int {
    // SAFETY: registered with a Switch.
    unsafe { setting::<Switch>(private) }.set(value != 0);
    OK
}
