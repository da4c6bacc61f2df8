//! The module's section of `INFO`.

use core::ffi::c_int;

use redis_module::raw::{RedisModuleCtx, RedisModuleInfoCtx};

use super::api::{self, Api};
use super::{guard, load};

/// The section, while it is filled. The server puts the module's name before each field's.
pub struct Section {
    api: &'static Api,
    ctx: *mut RedisModuleInfoCtx,
}

impl Section {
    /// A field that is a text.
    pub fn text(&self, name: &str, value: &str) {
        // SAFETY: `ctx` is the callback's; the server copies the texts.
        unsafe {
            (self.api.info_add_text)(self.ctx, load::text(name).as_ptr(), load::text(value).as_ptr());
        }
    }

    /// A field that is a number.
    pub fn number(&self, name: &str, value: impl TryInto<u64>) {
        let value = value.try_into().unwrap_or(u64::MAX);
        // SAFETY: `ctx` is the callback's; the server copies the name.
        unsafe { (self.api.info_add_number)(self.ctx, load::text(name).as_ptr(), value) };
    }
}

/// Has the server ask for the section.
pub fn register(api: &Api, ctx: *mut RedisModuleCtx) {
    // SAFETY: `ctx` is the load's; the callback has the type asked for.
    unsafe { (api.register_info_func)(ctx, Some(fill)) };
}

unsafe extern "C" fn fill(ctx: *mut RedisModuleInfoCtx, _for_crash_report: c_int) {
    let Some(api) = api::get() else { return };
    // SAFETY: `ctx` is the callback's. No name: the section has the module's.
    if unsafe { (api.info_add_section)(ctx, c"".as_ptr()) } != 0 {
        return; // nobody has asked for it
    }
    // A panic has nobody to answer to here; it leaves the section short.
    let _ = guard::catch(|| crate::info(&Section { api, ctx }));
}
