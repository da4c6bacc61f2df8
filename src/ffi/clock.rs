//! The module's clock: the wall clock, never going back while the process lives.
//!
//! `now = max(wall, anchor + monotonic time since the anchor)`. A wall clock that is set back would lock callers out
//! for as long as the step; this one goes on at the pace of the monotonic clock until the wall has caught up. A wall
//! clock that is set forward is followed at once. The anchor is the last reading, so that the rule holds however often
//! the wall jumps.
//!
//! The clocks are libc's, by their symbols, so that whatever stands in for them in a test stands in for them here.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_cell_core::{Instant, Span};

/// The last answer, and the monotonic clock when it was given.
///
/// Commands run on the server's main thread, one after the other; the atomics only say so to the compiler.
static ANCHOR: AtomicU64 = AtomicU64::new(0);
static ANCHOR_MONOTONIC: AtomicU64 = AtomicU64::new(0);

/// The present instant. Never earlier than an answer already given.
pub fn now() -> Instant {
    let (wall, monotonic) = (read(libc::CLOCK_REALTIME), read(libc::CLOCK_MONOTONIC));
    let elapsed = monotonic.saturating_sub(ANCHOR_MONOTONIC.load(Relaxed));
    let anchor = ANCHOR.load(Relaxed);
    // Before the first reading there is no anchor to count from.
    let now = if anchor == 0 { wall } else { wall.max(anchor.saturating_add(elapsed)) };
    ANCHOR.store(now, Relaxed);
    ANCHOR_MONOTONIC.store(monotonic, Relaxed);
    Instant::saturating_from_nanos(now)
}

/// How far the module's clock is ahead of the wall: what the wall has been set back by.
pub fn lead() -> Span {
    now().since(Instant::saturating_from_nanos(read(libc::CLOCK_REALTIME)))
}

/// Does `work` within one millisecond of the wall clock, which it is given.
///
/// For what the server tells in relation to its own reading of the clock.
pub fn between_ticks<T>(work: impl Fn(u64) -> T) -> T {
    let millis = || read(libc::CLOCK_REALTIME) / 1_000_000;
    let mut before = millis();
    let mut result = work(before);
    // A clock that ticks on every reading is no reason to hang: any answer is as good as another then.
    for _ in 0..10 {
        let after = millis();
        if before == after {
            break;
        }
        before = after;
        result = work(before);
    }
    result
}

/// Nanoseconds of a clock of the operating system; 0 for one that stands before its epoch.
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec of ours; both clocks exist on every Linux, and a failure leaves zeros.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
