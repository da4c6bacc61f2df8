//! The sliding-window log: an entry for every unit admitted, and never more than `limit` of them in any `period`.
//!
//! An entry made at `t` counts until `t + period`, that instant excluded. To take `quantity` units at the instant `now`:
//!
//! ```text
//! alive = entries later than now - period
//! admitted, quantity entries at now,                                   when alive + quantity <= limit
//! refused until the (alive + quantity - limit)th oldest of them goes,  otherwise
//! ```
//!
//! Why that is exact: take any `period` long window of time and the entry in it that was made last, at `now`. When it
//! was made, everything else in the window was alive, since nothing in it is older than `now - period`; and all of it
//! together was at most `limit`. The argument asks for nothing but entries made at the instant of their call, so it
//! holds as well for a log that has entries from the future, as one can after a failover to a server whose clock is
//! behind: they count like all others, and leave when their time has come.
//!
//! The price is memory: an entry per unit, up to `limit` of them. A refused call makes none. The entries that have
//! left are removed by admitted calls, a bounded number by each, and all of them by the key's expiry.
//!
//! Source: the sliding-window log of the articles on rate limiting, `ZREMRANGEBYSCORE`, `ZCARD`, `ZADD` on a sorted
//! set, in the variant that counts before it writes.

use crate::timeline::{Timeline, pruned, tick};
use crate::{Answer, Decision, Error, Instant, PERIOD, Range, Retry, Span, Unit};

/// The first number of a limit: what may be admitted in any period.
pub const LIMIT: Range = Range { name: "limit", min: 1, max: 1_000_000 };
/// What a call may take. Each unit is an entry to be written.
pub const QUANTITY: Range = Range { max: 10_000, ..crate::QUANTITY };

/// A limit: `limit` in any `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    units: u64,
    period: Span,
    /// The unit in which the period was given, for errors about it.
    unit: Unit,
}

/// What an admitted call changes: entries come, others go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// The instant of the new entries, a whole microsecond.
    pub at: Instant,
    /// How many there are at this instant already.
    pub there: u64,
    /// How many come.
    pub count: u64,
    /// How many of the earliest go.
    pub pruned: u64,
    /// When the log is as good as new.
    pub until: Instant,
}

impl Limit {
    /// The limit that the two arguments of a call spell, `period` being in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is no integer or out of range.
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::{Unit, log::Limit};
    /// let five_a_minute = Limit::parse([b"5", b"60"], Unit::Seconds)?;
    /// assert!(Limit::parse([b"5", b"0"], Unit::Seconds).is_err());
    /// # Ok::<(), redis_cell_core::Error>(())
    /// ```
    pub fn parse([limit, period]: [&[u8]; 2], unit: Unit) -> Result<Self, Error> {
        Self::new(LIMIT.parse(limit)?, PERIOD.up_to(unit.max()).parse(period)?, unit)
    }

    /// The limit of `limit` in any `period` units of time.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn new(limit: i64, period: i64, unit: Unit) -> Result<Self, Error> {
        let within = (LIMIT.min..=LIMIT.max).contains(&limit);
        let units = u64::try_from(limit).ok().filter(|_| within).ok_or_else(|| LIMIT.error())?;
        let period = u64::try_from(period).ok().filter(|&period| period >= 1);
        let period = period.and_then(|period| Span::from_units(period, unit));
        let period = period.ok_or_else(|| PERIOD.up_to(unit.max()).error())?;
        Ok(Self { units, period, unit })
    }

    /// When an entry leaves.
    fn end(&self, entry: Instant) -> Result<Instant, Error> {
        entry.checked_add(self.period).ok_or_else(|| {
            let left = entry.left().as_nanos() / self.unit.nanos();
            PERIOD.up_to(left.cast_signed()).error()
        })
    }

    /// The answer of a call that is admitted, with `alive` entries after it, the last of which leaves after
    /// `reset_after`.
    fn admitted(&self, alive: u64, reset_after: Span) -> Answer {
        Answer {
            limited: false,
            limit: self.units.cast_signed(),
            // At most `limit`, so the sign bit is free.
            remaining: self.units.saturating_sub(alive).cast_signed(),
            retry_after: Retry::Never,
            reset_after,
            taken: None,
        }
    }

    /// The answer to a quantity above the limit when the key holds no log: refused for ever all the same.
    ///
    /// # Errors
    /// `error`, when the quantity is not above the limit.
    pub fn never(&self, quantity: i64, error: Error) -> Result<Answer, Error> {
        let above = u64::try_from(quantity).is_ok_and(|quantity| quantity > self.units);
        let no_log = matches!(error, Error::WrongType | Error::Foreign { .. });
        if above && no_log {
            return Ok(Answer { limited: true, remaining: 0, ..self.admitted(0, Span::ZERO) });
        }
        Err(error)
    }
}

/// `CL.LOG`: takes `quantity` units, all or none.
///
/// A quantity of 0, up to 10,000, looks without taking. One above the limit is refused for ever.
///
/// Cost: three entries of the state are looked up and two ranges of it counted, no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a quantity outside its range, or a period that reaches past the year 2262;
/// [`Error::BeyondTime`] after the year 2255; those of the state.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, log, timeline::Timeline};
/// let limit = log::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let first = log::take(&[][..], &limit, now, 1)?;
/// assert_eq!(first.answer.reply(Unit::Seconds).five, [0, 5, 4, -1, 60]);
/// let sixth = log::take(&[now; 5][..], &limit, now, 1)?;
/// assert_eq!(sixth.answer.reply(Unit::Seconds).five, [1, 5, 0, 60, 60]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn take<T: Timeline + ?Sized>(
    state: &T,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Entries>, Error> {
    let within = (QUANTITY.min..=QUANTITY.max).contains(&quantity);
    let quantity = u64::try_from(quantity).ok().filter(|_| within).ok_or_else(|| QUANTITY.error())?;
    let now = tick(now)?;

    let alive = match now.checked_sub(limit.period) {
        Some(since) => state.later_than(since)?,
        None => state.len(),
    };
    let latest = state.latest()?;
    let until = latest.map_or(Ok(now), |latest| limit.end(latest))?;
    let wanted = alive.saturating_add(quantity);

    if let Some(too_many) = wanted.checked_sub(limit.units).filter(|&too_many| too_many > 0) {
        let answer = Answer { limited: true, ..limit.admitted(alive, until.since(now)) };
        if quantity > limit.units {
            return Ok(Decision::keep(answer));
        }
        let expired = state.len().saturating_sub(alive);
        let last_to_go = state.at(expired.saturating_add(too_many).saturating_sub(1))?;
        // There is one: too_many is at most alive, as quantity is at most the limit.
        let wait = last_to_go.map_or(Ok(now), |entry| limit.end(entry))?.since(now);
        return Ok(Decision::keep(Answer { retry_after: Retry::After(wait), ..answer }));
    }
    if quantity == 0 {
        return Ok(Decision::keep(limit.admitted(alive, until.since(now))));
    }

    let there = match now.checked_sub(TICK) {
        Some(before) => state.later_than(before)?.saturating_sub(state.later_than(now)?),
        None => state.len().saturating_sub(state.later_than(now)?),
    };
    let until = until.max(limit.end(now)?);
    let entries = Entries {
        at: now,
        there,
        count: quantity,
        pruned: pruned(state.len().saturating_sub(alive), quantity),
        until,
    };
    Ok(Decision::store(limit.admitted(wanted, until.since(now)), entries))
}

/// The distance of neighbouring entries, at the least.
const TICK: Span = Span::from_nanos(1_000).unwrap();
