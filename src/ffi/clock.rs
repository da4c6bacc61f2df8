//! The module's clock: the wall clock, never going back while the process lives.
//!
//! `now = max(wall, anchor + monotonic time since the anchor)`. A wall clock that is set back would lock callers out
//! for as long as the step; this one goes on at the pace of the monotonic clock until the wall has caught up. A wall
//! clock that is set forward is followed at once. The anchor is the last look at the wall, so that the rule holds however
//! often that jumps.
//!
//! Reading a clock costs a few percent of a whole call, and under load there are many calls in the time in which nobody
//! could set one. So for 20 microseconds after a look at the wall the monotonic clock alone is asked; a step forward is
//! followed that much later at the most, and a step back is not noticed at all, which is the rule anyway.
//!
//! The clocks are libc's, by their symbols, so that whatever stands in for them in a test stands in for them here.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_cell_core::{Instant, Span};

/// The module's clock at the last look at the wall, and the monotonic clock then.
///
/// Commands run on the server's main thread, one after the other; the atomics only say so to the compiler.
static ANCHOR: AtomicU64 = AtomicU64::new(0);
static ANCHOR_MONOTONIC: AtomicU64 = AtomicU64::new(0);

/// The last answer.
static LAST: AtomicU64 = AtomicU64::new(0);

/// For how many nanoseconds after a look at the wall it is not looked at again.
const FRESH: u64 = 20_000;

/// The present instant. Never earlier than an answer already given.
pub fn now() -> Instant {
    let anchor = ANCHOR.load(Relaxed);
    let elapsed = read(libc::CLOCK_MONOTONIC).saturating_sub(ANCHOR_MONOTONIC.load(Relaxed));
    // A monotonic clock that stands still, as in a test, says nothing of how old the look at the wall is.
    let fresh = anchor != 0 && (1..FRESH).contains(&elapsed);
    #[cfg(feature = "faults")]
    let fresh = fresh && !crate::faults::is(crate::faults::Fault::RawClock);
    let now = if fresh { anchor.saturating_add(elapsed) } else { look() };
    LAST.store(now, Relaxed);
    Instant::saturating_from_nanos(now)
}

/// Looks at the wall, and moves the anchor there.
fn look() -> u64 {
    // In this order: were the monotonic clock read first, the clock would run ahead by whatever comes between the two.
    let (wall, monotonic) = (read(libc::CLOCK_REALTIME), read(libc::CLOCK_MONOTONIC));
    let elapsed = monotonic.saturating_sub(ANCHOR_MONOTONIC.load(Relaxed));
    let anchor = ANCHOR.load(Relaxed);
    // Before the first look there is no anchor to count from.
    let now = if anchor == 0 { wall } else { wall.max(anchor.saturating_add(elapsed)) };
    #[cfg(feature = "faults")]
    let now = if crate::faults::is(crate::faults::Fault::RawClock) { wall } else { now };
    ANCHOR.store(now, Relaxed);
    ANCHOR_MONOTONIC.store(monotonic, Relaxed);
    now
}

/// The last instant that [`now`] has told: that of the decision just made.
pub fn last_now() -> Instant {
    Instant::saturating_from_nanos(LAST.load(Relaxed))
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
