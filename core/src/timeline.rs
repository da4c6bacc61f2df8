//! A sorted set seen as a series of instants: the state of the limiters that keep one entry per thing they
//! count.
//!
//! Each entry's score is an instant in microseconds since the epoch. The limiters look entries up by rank and
//! count them from an instant on, which a sorted set does in logarithmic time, so that no decision walks
//! along the set. An expired entry stays where it is and is not counted, until an admitted call removes it.
//!
//! # The clock ticks in microseconds
//! A score cannot hold more than a microsecond, so these limiters do not look closer: an instant is [rounded
//! up](tick) to the next tick before anything is decided, and the tick is what is stored. Both ends of every
//! span are ticks then, and a limit's period is exactly its period: a log that has just admitted a call is
//! fully replenished after `period`, not after `period` and a fraction that would round up to another second.
//!
//! # How far a score reaches
//! Scores are doubles, which hold every integer below 2^53 and share none of them with another: in
//! microseconds, up to the year 2255.

use crate::{Error, Instant};

/// Instants in the order of time, with ranks from 0.
pub trait Timeline {
    /// The errors of the store, and of this crate.
    type Error: From<Error>;

    /// The number of instants.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The instant with `rank`, the earliest having 0; `None` behind the latest.
    ///
    /// # Errors
    /// [`Error::Foreign`] when there is something else, and those of the store.
    fn at(&self, rank: u64) -> Result<Option<Instant>, Self::Error>;

    /// The number of instants later than `instant`.
    ///
    /// # Errors
    /// Those of the store.
    fn later_than(&self, instant: Instant) -> Result<u64, Self::Error>;

    /// The latest instant.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    fn latest(&self) -> Result<Option<Instant>, Self::Error> {
        self.len().checked_sub(1).map_or(Ok(None), |rank| self.at(rank))
    }
}

/// A sorted slice, which is what a sorted set is but for its speed. For examples and tests.
impl Timeline for [Instant] {
    type Error = Error;

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

/// The last instant of which no other shares the score: 2^53 - 1 microseconds, in the year 2255.
pub const LAST: Instant = Instant::from_micros((1 << 53) - 1).unwrap();

/// The most expired entries that one call removes, unless it adds more than half as many.
///
/// Removing one costs up to a microsecond, so a million at once would stall the server for a second; this
/// many take a few milliseconds. As each call may remove twice as many as it adds, the rest does not grow.
pub const PRUNED_AT_MOST: u64 = 10_000;

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
