//! Sorted sets of instants, which logs and leases share: a score is an instant in microseconds since the
//! epoch.

use redis_cell_core::Instant;
use redis_cell_core::timeline::Timeline;
use redis_cell_core::{lease, log};

use crate::error::Error;
use crate::ffi::{Arg, Key, Kind, Score};

/// A limiter whose state is a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A log, whose entries are named after their scores.
    Log,
    /// Leases, whose entries are named by callers.
    Leases,
}

impl Owner {
    /// The error for a key that holds something else.
    const fn foreign(self) -> redis_cell_core::Error {
        match self {
            Self::Log => log::FOREIGN,
            Self::Leases => lease::FOREIGN,
        }
    }
}

/// The sorted set that an open key holds.
///
/// The ends are read once. Most calls need nothing else, because they show whether a set has no expired
/// entries, or no others.
pub struct Scores<'k, 'c> {
    key: &'k Key<'c>,
    owner: Owner,
    len: u64,
    /// The first and the last, when there are any.
    ends: Option<[Instant; 2]>,
}

impl<'k, 'c> Scores<'k, 'c> {
    /// The sorted set under `key`, empty when there is no such key.
    ///
    /// The two kinds of limiters are told apart by the name of the latest entry. That of another tells
    /// nothing more: a log that was taken over from something else has entries with other names, until one of
    /// its own is the latest.
    ///
    /// # Errors
    /// [`Error::WrongType`], and [`log::FOREIGN`] or [`lease::FOREIGN`], when the key holds something else.
    pub fn load(key: &'k Key<'c>, owner: Owner, now: Instant) -> Result<Self, Error> {
        match key.kind() {
            Kind::Empty => return Ok(Self { key, owner, len: 0, ends: None }),
            Kind::ZSet => {}
            _ => return Err(Error::WrongType),
        }
        let len = key.members();
        let mut named = false;
        let last = key.highest(|name, score| {
            let at = instant(score)?;
            named = log::is_entry(name, at);
            Some(at)
        });
        let last = last.flatten();
        let first = if len == 1 { last } else { key.lowest().and_then(instant) };
        let ends = first.zip(last).map(<[_; 2]>::from).filter(|&ends| match owner {
            Owner::Log => named || log::may_be(ends, now),
            Owner::Leases => !named && lease::may_be(ends, now, || key.expiry()),
        });
        if ends.is_none() {
            return Err(owner.foreign().into());
        }
        Ok(Self { key, owner, len, ends })
    }

    /// The instant that is the score of `member`.
    ///
    /// # Errors
    /// The limiter's own when the score is not an instant.
    pub fn of(&self, member: Arg) -> Result<Option<Instant>, Error> {
        let Some(score) = self.ends.and_then(|_| self.key.score(member)) else { return Ok(None) };
        Ok(Some(instant(score).ok_or_else(|| self.owner.foreign())?))
    }
}

impl Timeline for Scores<'_, '_> {
    type Error = Error;

    fn len(&self) -> u64 {
        self.len
    }

    fn at(&self, rank: u64) -> Result<Option<Instant>, Error> {
        match self.ends {
            Some([first, _]) if rank == 0 => Ok(Some(first)),
            Some([_, last]) if rank == self.len.saturating_sub(1) => Ok(Some(last)),
            Some(_) if rank < self.len => {
                Ok(Some(instant(self.key.score_at(rank)?).ok_or_else(|| self.owner.foreign())?))
            }
            _ => Ok(None),
        }
    }

    fn later_than(&self, instant: Instant) -> Result<u64, Error> {
        match self.ends {
            Some([first, _]) if first > instant => Ok(self.len),
            // Scores are whole microseconds: one is later than an instant if it is than that rounded down.
            Some([_, last]) if last > instant => self.key.count_above(instant.as_micros()),
            _ => Ok(0),
        }
    }
}

/// The instant that a score is.
fn instant(score: Score) -> Option<Instant> {
    score.and_then(Instant::from_micros)
}
