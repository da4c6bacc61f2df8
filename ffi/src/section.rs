//! The section of the module in `INFO`.

use core::ffi::c_int;

use redis_module::raw::{RedisModuleCtx, RedisModuleInfoCtx};

use super::api::{self, Api};
use super::panic;
use super::string::text;

/// Fills the section.
pub trait Report {
    /// Adds the fields. A crash report contains them too, so this must not wait for a lock.
    fn fill(section: &Section);
}

/// The section while it is being filled. The server prefixes each field's name with the module's.
pub struct Section {
    api: &'static Api,
    ctx: *mut RedisModuleInfoCtx,
}

impl Section {
    /// Adds a field that is a text.
    pub fn text(&self, name: &str, value: &str) {
        // SAFETY: `ctx` is the callback's; the server copies the texts.
        unsafe { (self.api.info_add_text)(self.ctx, text(name).as_ptr(), text(value).as_ptr()) };
    }

    /// Adds a field that is a number.
    pub fn number(&self, name: &str, value: impl TryInto<u64>) {
        let value = value.try_into().unwrap_or(u64::MAX);
        // SAFETY: `ctx` is the callback's; the server copies the name.
        unsafe { (self.api.info_add_number)(self.ctx, text(name).as_ptr(), value) };
    }
}

/// Registers `R`, which the server then runs for each `INFO` that requests the section.
pub(super) fn register<R: Report>(api: &Api, ctx: *mut RedisModuleCtx) {
    // SAFETY: `ctx` is the load's; the callback has the required type.
    unsafe { (api.register_info_func)(ctx, Some(fill::<R>)) };
}

unsafe extern "C" fn fill<R: Report>(ctx: *mut RedisModuleInfoCtx, _for_crash_report: c_int) {
    let Some(api) = api::get() else { return };
    // SAFETY: `ctx` is the callback's. Without a name of its own, the section has the module's name.
    if unsafe { (api.info_add_section)(ctx, c"".as_ptr()) } != 0 {
        return; // this INFO does not ask for the section
    }
    // A panic leaves the section incomplete; there is no reply for an error.
    let _ = panic::catch(|| R::fill(&Section { api, ctx }));
}
