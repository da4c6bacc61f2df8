//! A sorted set seen as a line of instants: the state of the limiters that keep one entry per thing they count.
//!
//! Each entry's score is an instant in microseconds since the epoch. The limiters ask for entries by rank and count
//! them from an instant on, which a sorted set answers in logarithmic time, so that no decision walks along the set.
//! What has expired stays where it is and is not counted, until an admitted call removes it.
//!
//! # The clock ticks in microseconds
//! A score cannot hold more than a microsecond, so these limiters do not look closer: an instant is [rounded
//! up](tick) to the next tick before anything is decided, and the tick is what is stored. Both ends of every span are
//! ticks then, and a limit's period is exactly its period: a log that has just admitted a call is as good as new after
//! `period`, not after `period` and a rest that would round up to another second.
//!
//! # How far a score reaches
//! Scores are doubles, which hold every integer up to 2^53: in microseconds, the year 2255.

use crate::{Error, Instant, Span};

/// Instants in the order of time, with ranks from 0.
pub trait Timeline {
    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one with `rank`, the earliest having 0; `None` behind the latest.
    ///
    /// # Errors
    /// [`Error::Foreign`] when what stands there is no instant, and those of the store.
    fn at(&self, rank: u64) -> Result<Option<Instant>, Error>;

    /// How many are later than `instant`.
    ///
    /// # Errors
    /// Those of the store.
    fn later_than(&self, instant: Instant) -> Result<u64, Error>;

    /// The latest.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    fn latest(&self) -> Result<Option<Instant>, Error> {
        self.len().checked_sub(1).map_or(Ok(None), |rank| self.at(rank))
    }
}

/// A sorted slice, which is what a sorted set is but for its speed. For examples and tests.
impl Timeline for [Instant] {
    fn len(&self) -> u64 {
        u64::try_from(self.len()).unwrap_or(u64::MAX)
    }

    fn at(&self, rank: u64) -> Result<Option<Instant>, Error> {
        Ok(usize::try_from(rank).ok().and_then(|rank| self.get(rank)).copied())
    }

    fn later_than(&self, instant: Instant) -> Result<u64, Error> {
        let later = self.get(self.partition_point(|&entry| entry <= instant)..).unwrap_or_default();
        Ok(Timeline::len(later))
    }
}

/// The last instant up to which a score can hold every one: 2^53 microseconds.
pub const LAST: Instant = Instant::from_micros(1 << 53).unwrap();

/// The most expired entries that one call removes, unless it adds more than half as many.
///
/// Removing one costs up to a microsecond, so that a million at once would stall the server for a second; this many
/// cost a few milliseconds. As each call may remove twice what it adds, what is left over does not grow.
pub const PRUNED_AT_MOST: u64 = 10_000;

/// How far an entry may lie from the clock or from its key's expiry and still be an instant.
///
/// Ten years leave room for long periods and leases, for expired entries that are still there, and for clocks that
/// disagree; and none for scores of a game, for seconds, milliseconds or nanoseconds since the epoch.
const STRAY: Span = Span::from_nanos(10 * 365 * 86_400 * 1_000_000_000).unwrap();

/// What a key of these limiters holds, for the error of one that does not.
pub const EXPECTED: &str = "a sorted set whose scores are instants in microseconds since the epoch";

/// The error for a key that holds something else.
pub const FOREIGN: Error = Error::Foreign { expected: EXPECTED };

/// Makes sure that a sorted set is one of these limiters' own, by its earliest and its latest entry.
///
/// Each must lie within ten years of `now` or of the key's `expiry`, which is asked for only when it matters.
///
/// Cost: that of two entries.
///
/// # Errors
/// [`Error::Foreign`] when it is not.
pub fn check<T: Timeline + ?Sized>(
    state: &T,
    now: Instant,
    expiry: impl Fn() -> Option<Instant>,
) -> Result<(), Error> {
    let near = |entry: Instant, other: Instant| entry.since(other) <= STRAY && other.since(entry) <= STRAY;
    let plausible = |entry: Instant| near(entry, now) || expiry().is_some_and(|expiry| near(entry, expiry));
    let ends = [state.at(0)?, state.latest()?];
    if ends.into_iter().flatten().all(plausible) { Ok(()) } else { Err(FOREIGN) }
}

/// The instant at which a call happens: `now`, rounded up to a microsecond.
///
/// # Errors
/// [`Error::BeyondTime`] after the year 2255.
pub fn tick(now: Instant) -> Result<Instant, Error> {
    Instant::from_micros(now.as_micros_ceil()).filter(|&now| now <= LAST).ok_or(Error::BeyondTime)
}

/// How many of `expired` entries a call removes that adds `added`.
pub fn pruned(expired: u64, added: u64) -> u64 {
    expired.min(PRUNED_AT_MOST.max(added.saturating_mul(2)))
}
