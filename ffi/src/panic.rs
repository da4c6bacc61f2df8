//! Panics: each is caught, logged, and replied as an error.
//!
//! A panic that reaches `extern "C"` aborts the process, which here is a database. The lints in the manifest
//! deny all code that can panic; this file is for a panic that happens nevertheless.

use core::cell::RefCell;
use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::panic::{self, AssertUnwindSafe};

use redis_cell_core::{Change, Instant, Unit, gcra};
use redis_module::raw::RedisModuleCtx;

use super::call::Call;
use super::{api, clock, server_log};

thread_local! {
    /// The message of the last panic on this thread.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the messages of panics for the server's log, instead of printing them to standard error.
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

/// Runs `work`. The error is the message of a panic in it.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // All values of `work` are dropped during unwinding, or belong to the server, which a panic does not
    // affect.
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        let last = LAST_PANIC.with(|last| last.try_borrow_mut().ok().and_then(|mut last| last.take()));
        last.unwrap_or_else(|| String::from("panic"))
    })
}

/// Logs a panic in `what`: at most five times at once, and once every ten seconds in the long run.
///
/// A client that can cause one panic could cause a million, and fill the disk. The limit on log lines is a
/// GCRA of the module's own core.
pub fn report(ctx: *mut RedisModuleCtx, what: &str, panic: &str) {
    static TAT: AtomicU64 = AtomicU64::new(0);
    static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

    let tat = Instant::from_nanos(TAT.load(Relaxed));
    let decision = gcra::Limit::new(4, 1, 10, Unit::Seconds)
        .and_then(|limit| gcra::throttle(tat, &limit, clock::now(), 1));
    if let Ok(Change::Store(tat)) = decision.map(|decision| decision.change) {
        TAT.store(tat.as_nanos(), Relaxed);
        let left_out = LEFT_OUT.swap(0, Relaxed);
        server_log::warning(ctx, &format!("{what}: {panic} ({left_out} more were not logged)"));
    } else {
        LEFT_OUT.fetch_add(1, Relaxed);
    }
}

/// Runs a callback of the server with its context; a panic is caught and logged, as in a command.
pub fn callback(ctx: *mut RedisModuleCtx, what: &CStr, work: impl FnOnce(&Call)) {
    let Some(api) = api::get() else { return };
    let Some(ctx) = NonNull::new(ctx) else { return };
    if let Err(panic) = catch(|| work(&Call::without_arguments(api, ctx))) {
        report(ctx.as_ptr(), &what.to_string_lossy(), &panic);
    }
}
