//! The module's clock: the wall clock, except that it never moves back while the process lives.
//!
//! `now = max(wall, anchor + monotonic time since the anchor)`. If the wall clock moves back, clients would
//! be refused for the length of the step; instead, this clock continues at the pace of the monotonic clock
//! until the wall clock has caught up. If the wall clock moves forward, this clock follows at once. The
//! anchor is the last reading of the wall clock, so the rule holds however often the wall clock is set.
//!
//! The *lead* is how far this clock is ahead of the wall clock. The server expires keys by the wall clock, so
//! a key lives until the instant of its state minus the lead. States that follow only the wall clock, such as
//! calendar windows, are decided at [`wall`].
//!
//! Reading a clock costs a few percent of a whole call, and under load there are many calls within the time
//! that setting a clock takes. So while the wall clock shows less than 20 microseconds after its last
//! reading, only the wall clock is read: this clock moves on by as much. It is read in every call, so no call
//! is decided at an instant before the one at which the server began it: the server would take what such a
//! call stores for expired.
//!
//! Both clocks are read through libc's symbols, so that a test can replace them.

use core::mem;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use redis_cell_core::{Instant, Span, Stretch};

use crate::faults;

/// The module's clock and the monotonic clock when both were last read.
///
/// Commands run one after the other, so these are atomic for the compiler only.
static ANCHOR: AtomicU64 = AtomicU64::new(0);
static ANCHOR_MONOTONIC: AtomicU64 = AtomicU64::new(0);

/// The last instant returned, and the wall clock then.
static LAST: AtomicU64 = AtomicU64::new(0);
static LAST_WALL: AtomicU64 = AtomicU64::new(0);

/// The lead, in nanoseconds, rounded down to a whole millisecond. So a key lives up to two milliseconds
/// longer than its state needs, and never shorter.
static LEAD: AtomicU64 = AtomicU64::new(0);

/// The latest leads, each with the instant from which it applied, in nanoseconds. [`LEADS`] is the number of
/// leads so far, and thereby the place of the next one.
static PAST: [[AtomicU64; 2]; REMEMBERED] = [const { [const { AtomicU64::new(0) }; 2] }; REMEMBERED];

/// The number of leads so far. The first lead is zero.
static LEADS: AtomicUsize = AtomicUsize::new(1);

/// The number of latest leads that are remembered. Each step of the wall clock adds one.
const REMEMBERED: usize = 32;

const MILLISECOND: u64 = 1_000_000;

/// The last second that an [`Instant`] can represent, in the year 2262.
const LAST_SECOND: u64 = 9_223_372_036;

/// The number of nanoseconds for which the monotonic clock is not read again.
const FRESH: u64 = 20_000;

/// The present instant, never earlier than one returned before.
pub fn now() -> Instant {
    let wall = read(libc::CLOCK_REALTIME);
    // A step back makes the difference huge.
    let elapsed = wall.wrapping_sub(LAST_WALL.load(Relaxed));
    // If the wall clock does not advance, as in a test, it does not show the time since its last reading.
    let now = if (1..FRESH).contains(&elapsed) && !faults::has_raw_clock() {
        LAST.load(Relaxed).wrapping_add(elapsed) // far from the end of 64 bits
    } else {
        anchor_again(wall)
    };
    LAST.store(now, Relaxed);
    LAST_WALL.store(wall, Relaxed);
    Instant::saturating_from_nanos(now)
}

/// Moves the anchor to `wall`, which has just been read.
fn anchor_again(wall: u64) -> u64 {
    // The wall clock is read first: otherwise this clock would be ahead by the time between the two readings.
    let monotonic = read(libc::CLOCK_MONOTONIC);
    let elapsed = monotonic.saturating_sub(ANCHOR_MONOTONIC.load(Relaxed));
    let anchor = ANCHOR.load(Relaxed);
    // Before the first reading there is no anchor to count from.
    let first = anchor == 0 || faults::has_raw_clock();
    let lead =
        if first { 0 } else { anchor.saturating_add(elapsed).max(LAST.load(Relaxed)).saturating_sub(wall) };
    let now = wall.saturating_add(lead);
    ANCHOR.store(now, Relaxed);
    ANCHOR_MONOTONIC.store(monotonic, Relaxed);
    if lead | LEAD.load(Relaxed) >= MILLISECOND {
        follow_lead(now, lead);
    }
    now
}

/// Stores the lead, which was `lead` when the clock showed `now`.
#[cold]
fn follow_lead(now: u64, lead: u64) {
    // The process may have been stopped between the readings of the two clocks, which is not a lead.
    let lead = lead.min(now.saturating_sub(read(libc::CLOCK_REALTIME)));
    let (before, lead) = (LEAD.load(Relaxed), lead.div_euclid(MILLISECOND).saturating_mul(MILLISECOND));
    // The two clocks are not read at the same instant, so a lead that stays the same may seem to grow to the
    // next millisecond.
    if lead < before || lead > before.saturating_add(MILLISECOND) {
        LEAD.store(lead, Relaxed);
        let place = LEADS.fetch_add(1, Relaxed) % REMEMBERED;
        if let Some([from, of]) = PAST.get(place) {
            from.store(now, Relaxed);
            of.store(lead, Relaxed);
        }
    }
}

/// The last instant that [`now`] returned, at which the decision was made.
pub fn last_now() -> Instant {
    Instant::saturating_from_nanos(LAST.load(Relaxed))
}

/// How far the module's clock was ahead of the wall clock, which had been set back, when [`now`] was last
/// called: whole milliseconds, rounded down.
#[inline]
pub fn lead() -> Span {
    Span::from_nanos(LEAD.load(Relaxed)).unwrap_or(Span::ZERO)
}

/// The stretches of time between the steps of the wall clock, the latest first, at instants of the present
/// wall clock. Stretches after which it was set forward by more than it was set back are left out.
pub fn stretches() -> impl Iterator<Item = Stretch> {
    let (leads, lead) = (LEADS.load(Relaxed), LEAD.load(Relaxed));
    let by_wall = |nanos: u64| wall(Instant::saturating_from_nanos(nanos));
    let mut until = LAST.load(Relaxed);
    let latest = (0..leads).rev().take(REMEMBERED);
    latest
        .filter_map(|place| PAST.get(place % REMEMBERED))
        .map(move |[from, of]| {
            let (from, of) = (from.load(Relaxed), of.load(Relaxed));
            (from, mem::replace(&mut until, from), of)
        })
        .filter_map(move |(from, until, of)| {
            let step = Span::from_nanos(lead.checked_sub(of)?)?;
            Some(Stretch { from: by_wall(from), until: by_wall(until), step })
        })
}

/// Whether there is a [`lead`].
#[inline]
pub fn is_ahead() -> bool {
    LEAD.load(Relaxed) != 0
}

/// The time on the wall clock when the module's clock shows `instant`.
#[inline]
pub fn wall(instant: Instant) -> Instant {
    if faults::ignores_lead() { instant } else { instant.saturating_sub(lead()) }
}

/// The Unix time in milliseconds, rounded up, at which a key expires whose state ends at `instant`.
#[inline]
pub fn expiry_at(instant: Instant) -> i64 {
    wall(instant).as_millis_ceil().cast_signed()
}

/// Whether the wall clock shows `expire_at`, a Unix time in milliseconds, or a later time.
pub fn has_passed(expire_at: i64) -> bool {
    u64::try_from(expire_at).is_ok_and(|at| at <= read(libc::CLOCK_REALTIME) / 1_000_000)
}

/// Runs `work` within a single millisecond of the wall clock, and passes it that millisecond: for values that
/// the server computes from its own reading of the clock.
pub fn between_ticks<T>(work: impl Fn(u64) -> T) -> T {
    let millis = || read(libc::CLOCK_REALTIME) / 1_000_000;
    let mut before = millis();
    let mut result = work(before);
    // A clock that ticks at every reading must not hang the server, and then no result is better than
    // another.
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
    // Below 2^63, and so is the other addend: neither the product nor the sum wraps.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0).min(LAST_SECOND);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
