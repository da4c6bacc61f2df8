//! A sorted set as a series of instants: the state of the limiters that store an entry for each unit or
//! place.
//!
//! Each entry's score is an instant in microseconds since the epoch. The limiters look up entries by rank and
//! count the entries after an instant. A sorted set does both in logarithmic time, so no decision iterates
//! over the set. An expired entry is not counted, and stays until an admitted call removes it.
//!
//! # The clock ticks in microseconds
//! A score cannot be more precise than a microsecond, and neither can these limiters: an instant is [rounded
//! up](tick) to the next tick before anything is decided, and the tick is stored. Both ends of every span are
//! therefore ticks, and a period lasts exactly as long as it says: a log that has just admitted a call is
//! fully replenished after `period`, not after `period` and a fraction that would round up to another second.
//!
//! # How far a score reaches
//! Scores are doubles, which represent every integer below 2^53 exactly: in microseconds, up to the year
//! 2255.

use crate::{Error, Instant};

/// Instants in chronological order, with ranks from 0.
pub trait Timeline {
    /// The errors of the store, and of this crate.
    type Error: From<Error>;

    /// The number of instants.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The instant with this `rank`, counted from 0 for the earliest; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Foreign`] if the entry is not an instant, and the errors of the store.
    fn at(&self, rank: u64) -> Result<Option<Instant>, Self::Error>;

    /// The number of instants later than `instant`.
    ///
    /// # Errors
    /// The errors of the store.
    fn later_than(&self, instant: Instant) -> Result<u64, Self::Error>;

    /// The latest instant.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    fn latest(&self) -> Result<Option<Instant>, Self::Error> {
        self.len().checked_sub(1).map_or(Ok(None), |rank| self.at(rank))
    }
}

/// A sorted slice, which behaves as a sorted set does, except for its speed. For examples and tests.
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

/// The last instant with a score of its own: 2^53 - 1 microseconds, in the year 2255.
pub const LAST: Instant = Instant::from_micros((1 << 53) - 1).unwrap();

/// The largest number of expired entries that one call removes, unless it adds more than half as many.
///
/// Removing one costs up to a microsecond, so a million at once would stall the server for a second; 10,000
/// take a few milliseconds. Each call may remove twice as many entries as it adds, so the number of expired
/// entries does not grow.
pub const PRUNED_AT_MOST: u64 = 10_000;

/// The instant at which a call happens: `now`, rounded up to a microsecond.
///
/// # Errors
/// [`Error::BeyondTime`] after the year 2255.
pub fn tick(now: Instant) -> Result<Instant, Error> {
    Instant::from_micros(now.as_micros_ceil()).filter(|&now| now <= LAST).ok_or(Error::BeyondTime)
}

/// How many of the `expired` entries are removed by a call that adds `added` entries.
pub fn pruned(expired: u64, added: u64) -> u64 {
    expired.min(PRUNED_AT_MOST.max(added.saturating_mul(2)))
}
