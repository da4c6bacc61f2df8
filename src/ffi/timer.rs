//! Timers of the server.

use core::ffi::c_void;
use core::ptr;

use redis_cell_core::{Span, Unit};
use redis_module::raw::{RedisModuleCtx, RedisModuleTimerID};

use super::call::Call;
use super::panic::callback;

/// What a timer does when it fires.
pub trait Rings {
    /// The time has come.
    fn rings(call: &Call);
}

/// A timer that has not fired yet.
pub struct Timer(RedisModuleTimerID);

impl Call<'_> {
    /// Sets a timer. It goes by the server's wall clock, in milliseconds.
    pub fn set_timer<R: Rings>(&self, wait: Span) -> Timer {
        let wait = wait.ceil_to(Unit::Milliseconds);
        // SAFETY: `ctx` is this call's; the callback has the type asked for, and no data.
        Timer(unsafe { (self.api.create_timer)(self.ctx.as_ptr(), wait, Some(fired::<R>), ptr::null_mut()) })
    }

    /// Stops a timer.
    pub fn stop_timer(&self, Timer(timer): Timer) {
        // SAFETY: `ctx` is this call's; the server looks the number up.
        unsafe { (self.api.stop_timer)(self.ctx.as_ptr(), timer, ptr::null_mut()) };
    }
}

unsafe extern "C" fn fired<R: Rings>(ctx: *mut RedisModuleCtx, _: *mut c_void) {
    callback(ctx, c"timer", R::rings);
}
