//! The module's clock: the wall clock, which here never moves back while the process lives.
//!
//! `now = max(wall, anchor + monotonic time since the anchor)`. If the wall clock moves back, clients would
//! be locked out for as long as the step; instead, this clock continues at the pace of the monotonic clock
//! until the wall clock has caught up. If the wall clock moves forward, this clock follows at once. The
//! anchor is the last reading of the wall clock, so the rule holds however often that is set.
//!
//! Reading a clock costs a few percent of a whole call, and under load there are many calls within the time
//! that setting a clock takes. So for 20 microseconds after the wall clock was read, only the monotonic clock
//! is. A step forward is followed at most that much later; a step back is not seen, and has no effect anyway.
//!
//! Both clocks are read through libc's symbols, so that a test can replace them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_cell_core::{Instant, Span};

use crate::faults;

/// The module's clock and the monotonic clock when the wall clock was last read.
///
/// Commands run one after the other, so these are atomic for the compiler only.
static ANCHOR: AtomicU64 = AtomicU64::new(0);
static ANCHOR_MONOTONIC: AtomicU64 = AtomicU64::new(0);

/// The last instant returned.
static LAST: AtomicU64 = AtomicU64::new(0);

/// For how many nanoseconds after the wall clock was read it is not read again.
const FRESH: u64 = 20_000;

/// The present instant, never earlier than one returned before.
pub fn now() -> Instant {
    let anchor = ANCHOR.load(Relaxed);
    let elapsed = read(libc::CLOCK_MONOTONIC).saturating_sub(ANCHOR_MONOTONIC.load(Relaxed));
    // A monotonic clock that stands still, as in a test, does not tell how old the last reading is.
    let fresh = anchor != 0 && (1..FRESH).contains(&elapsed) && !faults::has_raw_clock();
    let now = if fresh { anchor.saturating_add(elapsed) } else { anchor_anew() };
    LAST.store(now, Relaxed);
    Instant::saturating_from_nanos(now)
}

/// Reads the wall clock, and moves the anchor there.
fn anchor_anew() -> u64 {
    // In this order: with the monotonic clock read first, this clock would run ahead by the time between the
    // two.
    let (wall, monotonic) = (read(libc::CLOCK_REALTIME), read(libc::CLOCK_MONOTONIC));
    let elapsed = monotonic.saturating_sub(ANCHOR_MONOTONIC.load(Relaxed));
    let anchor = ANCHOR.load(Relaxed);
    // Before the first reading there is no anchor to count from.
    let first = anchor == 0 || faults::has_raw_clock();
    let now = if first { wall } else { wall.max(anchor.saturating_add(elapsed)) };
    ANCHOR.store(now, Relaxed);
    ANCHOR_MONOTONIC.store(monotonic, Relaxed);
    now
}

/// The last instant that [`now`] returned: that of the decision just made.
pub fn last_now() -> Instant {
    Instant::saturating_from_nanos(LAST.load(Relaxed))
}

/// How far the module's clock is ahead of the wall clock, because that was set back.
pub fn lead() -> Span {
    now().since(Instant::saturating_from_nanos(read(libc::CLOCK_REALTIME)))
}

/// Runs `work` within one millisecond of the wall clock, which it is given: for what the server computes from
/// its own reading of the clock.
pub fn between_ticks<T>(work: impl Fn(u64) -> T) -> T {
    let millis = || read(libc::CLOCK_REALTIME) / 1_000_000;
    let mut before = millis();
    let mut result = work(before);
    // A clock that ticks at every reading must not hang the server; any result is as good as another then.
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

/// Nanoseconds of a clock of the operating system; 0 for a clock before its epoch.
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a variable of this function; both clocks exist on every Linux, and a failure leaves
    // zeros.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let nanos = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}
