//! Timers of the server.

use core::ffi::c_void;
use core::ptr;

use redis_cell_core::{Span, Unit};
use redis_module::raw::{RedisModuleCtx, RedisModuleTimerID};

use super::call::Call;
use super::panic::callback;

/// The longest wait of one timer: half an hour. Redis 7.0 keeps the time of the next timer in microseconds in
/// an `int`, so that the server's loop never sleeps while the next timer is 36 minutes away or more.
const LONGEST: Span = Span::from_nanos(1_800_000_000_000).unwrap();

/// The action of a timer that fires.
pub trait Rings {
    /// The timer has fired.
    fn rings(call: &Call);
}

/// A timer that has not fired yet.
pub struct Timer(RedisModuleTimerID);

impl Call<'_> {
    /// Sets a timer, which fires after `wait`, or after half an hour if that is earlier. It follows the
    /// server's wall clock, in milliseconds.
    pub fn set_timer<R: Rings>(&self, wait: Span) -> Timer {
        let wait = wait.min(LONGEST).ceil_to(Unit::Milliseconds);
        // SAFETY: `ctx` is this call's; the callback has the required type, and no data.
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
