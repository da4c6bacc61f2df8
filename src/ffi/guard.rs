//! What happens if the impossible does: a panic becomes an error reply and a log line.
//!
//! A panic that reaches `extern "C"` aborts the process, which here is somebody's database. Nothing in this module can
//! panic by the lints in the manifest; this is the net below them.

use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::panic::{self, AssertUnwindSafe};

use redis_cell_core::{Change, Instant, Unit, gcra};
use redis_module::raw::RedisModuleCtx;

use super::{clock, load};

thread_local! {
    /// What the last panic on this thread said.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the text of panics for the server's log, instead of printing it to the server's standard error.
pub fn install() {
    panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        LAST_PANIC.with(|last| {
            if let Ok(mut last) = last.try_borrow_mut() {
                *last = Some(text);
            }
        });
    }));
}

/// Runs `work`; the error is the text of the panic that ended it.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // Whatever `work` leaves behind is the server's, which has no notion of unwinding, or dropped on the way.
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        let last = LAST_PANIC.with(|last| last.try_borrow_mut().ok().and_then(|mut last| last.take()));
        last.unwrap_or_else(|| String::from("panic"))
    })
}

/// Writes to the server's log that `what` has panicked: five times at once and every ten seconds, by our own algorithm.
///
/// Whoever knows how to cause one could cause a million, and fill the disk.
pub fn report(ctx: *mut RedisModuleCtx, what: &str, panic: &str) {
    static TAT: AtomicU64 = AtomicU64::new(0);
    static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

    let tat = Instant::from_nanos(TAT.load(Relaxed));
    let decision = gcra::Limit::new(4, 1, 10, Unit::Seconds)
        .and_then(|limit| gcra::throttle(tat, &limit, clock::now(), 1));
    if let Ok(Change::Store(tat)) = decision.map(|decision| decision.change) {
        TAT.store(tat.as_nanos(), Relaxed);
        let left_out = LEFT_OUT.swap(0, Relaxed);
        load::log(ctx, &format!("{what}: {panic} ({left_out} more were not logged)"));
    } else {
        LEFT_OUT.fetch_add(1, Relaxed);
    }
}
