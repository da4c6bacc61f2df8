//! Sorted sets of instants, which logs and leases share: a score is an instant in microseconds since the
//! epoch.

use core::num::NonZeroU64;

use redis_cell_core::Instant;
use redis_cell_core::timeline::Timeline;
use redis_cell_core::{Span, lease, log};

use crate::error::Error;
use crate::ffi::{Ahead, Arg, Key, Score, ValueType};

/// A limiter whose state is a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A log, whose entries are named after their scores.
    Log {
        /// How long an entry counts.
        period: Span,
    },
    /// Leases, whose entries are named by callers.
    Leases {
        /// How long a lease of this call lasts.
        lease: Span,
    },
}

/// How long a lease lasts for a call that does not say how long.
pub const DAY: Span = Span::from_nanos(86_400_000_000_000).unwrap();

/// The most by which the tick of an instant is later than the instant.
const TICK: Span = Span::from_nanos(1_000).unwrap();

impl Owner {
    /// The error for a key that holds something else.
    const fn foreign(self) -> redis_cell_core::Error {
        match self {
            Self::Log { .. } => log::FOREIGN,
            Self::Leases { .. } => lease::FOREIGN,
        }
    }

    /// The longest time from `now` to the latest entry, if the clock was right all the time.
    fn furthest(self) -> Span {
        match self {
            Self::Log { .. } => TICK,
            Self::Leases { lease } => lease.checked_add(TICK).unwrap_or(Span::MAX),
        }
    }

    /// The entries of a set that lie ahead, judging by the expiry of its key. `last` is the latest one.
    #[cold]
    fn ahead(self, key: &Key, last: Instant, now: Instant) -> Option<Ahead> {
        let gone = match self {
            Self::Log { period } => last.checked_add(period).unwrap_or(Instant::MAX),
            Self::Leases { .. } => last,
        };
        let by = NonZeroU64::new(gone.since(key.lives_until()?).as_nanos().div_ceil(1_000))?;
        let above = last.as_micros().saturating_sub(by.get()).max(now.as_micros_ceil());
        Some(Ahead { above, by })
    }
}

/// The sorted set that an open key holds.
///
/// The ends are read once. Most calls need nothing else, because the ends show whether none or all of the
/// entries have expired.
pub struct Scores<'k, 'c> {
    key: &'k Key<'k, 'c>,
    owner: Owner,
    len: u64,
    /// The first and the last entry, if there are any.
    ends: Option<[Instant; 2]>,
    /// The entries that count as earlier than their scores.
    ahead: Option<Ahead>,
}

impl<'k, 'c> Scores<'k, 'c> {
    /// The sorted set under `key`, empty if the key does not exist.
    ///
    /// The name of the latest entry tells the two kinds of limiters apart. Other entries would not help: a
    /// log that was taken over from another program has entries with other names, until the latest entry is
    /// its own.
    ///
    /// # Errors
    /// [`Error::WrongType`], and [`log::FOREIGN`] or [`lease::FOREIGN`], when the key holds something else.
    pub fn load(key: &'k Key<'k, 'c>, owner: Owner, now: Instant) -> Result<Self, Error> {
        match key.value_type() {
            ValueType::Empty => return Ok(Self { key, owner, len: 0, ends: None, ahead: None }),
            ValueType::ZSet => {}
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
            Owner::Log { .. } => named || log::may_be(ends, now),
            Owner::Leases { .. } => !named && lease::may_be(ends, now, || key.expiry()),
        });
        let Some([first, last]) = ends else { return Err(owner.foreign().into()) };
        let mut this = Self { key, owner, len, ends, ahead: None };
        if last.since(now) > owner.furthest()
            && let Some(ahead) = owner.ahead(key, last, now)
        {
            key.will_move_back(ahead);
            this.ahead = Some(ahead);
            this.ends = Some([this.moved(first), this.moved(last)]);
        }
        Ok(this)
    }

    /// The instant that is the score of `member`.
    ///
    /// # Errors
    /// The limiter's own error if the score is not an instant.
    pub fn of(&self, member: Arg) -> Result<Option<Instant>, Error> {
        let Some(score) = self.ends.and_then(|_| self.key.score(member)) else { return Ok(None) };
        self.entry(score).map(Some)
    }

    /// The instant of this entry.
    fn entry(&self, score: Score) -> Result<Instant, Error> {
        Ok(self.moved(instant(score).ok_or_else(|| self.owner.foreign())?))
    }

    /// An entry's instant, moved back if it lies ahead.
    #[inline]
    fn moved(&self, entry: Instant) -> Instant {
        match self.ahead {
            Some(Ahead { above, by }) if entry.as_micros() > above => {
                Instant::from_micros(entry.as_micros().saturating_sub(by.get())).unwrap_or(entry)
            }
            _ => entry,
        }
    }

    /// How many entries are later than an instant, some of which are moved back.
    #[cold]
    fn moved_later_than(&self, instant: Instant, Ahead { above, by }: Ahead) -> Result<u64, Error> {
        let after = instant.as_micros();
        let moved = self.key.count_above(after.saturating_add(by.get()).max(above))?;
        if after >= above {
            return Ok(moved);
        }
        let others = self.key.count_above(after)?.saturating_sub(self.key.count_above(above)?);
        Ok(moved.saturating_add(others))
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
            Some(_) if rank < self.len => self.entry(self.key.score_at(rank)?).map(Some),
            _ => Ok(None),
        }
    }

    fn later_than(&self, instant: Instant) -> Result<u64, Error> {
        if let Some(ahead) = self.ahead {
            return self.moved_later_than(instant, ahead);
        }
        match self.ends {
            Some([first, _]) if first > instant => Ok(self.len),
            // Scores are whole microseconds: one is later than an instant if it is later than that instant
            // rounded down.
            Some([_, last]) if last > instant => self.key.count_above(instant.as_micros()),
            _ => Ok(0),
        }
    }
}

/// The instant of a score.
fn instant(score: Score) -> Option<Instant> {
    score.and_then(Instant::from_micros)
}
