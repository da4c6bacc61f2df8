//! The sliding-window log: an entry for every unit admitted, and never more than `limit` of them in any
//! `period`.
//!
//! An entry made at `t` counts before `t + period`, but not at that instant. To take `quantity` units at the
//! instant `now`:
//!
//! ```text
//! alive = entries later than now - period
//! admitted, quantity entries at now,                                   when alive + quantity <= limit
//! refused until the (alive + quantity - limit)th oldest of them goes,  otherwise
//! ```
//!
//! Why that is exact: take any window of time that is `period` long, and the last entry made in it, at `now`.
//! When it was made, all other entries in the window counted, because none is older than `now - period`; and
//! together they were at most `limit`. The argument only needs entries made at the instant of their call. So
//! it also holds for a log with entries in the future, which a failover to a server whose clock is behind can
//! cause: they count like all others, and leave when their time has come.
//!
//! A settlement is the exception: it adds entries above the limit if necessary, or removes the newest
//! entries. It never removes an entry that no longer counts, because that entry was not taken in this period.
//! If it has the age of the earlier call, it removes only entries that are at least as old. They may belong
//! to other calls, because entries do not name their calls. The limit holds nevertheless: for each entry that
//! should have been removed and remains, an entry is removed that would have left before it, or at the same
//! time.
//!
//! The log needs memory for an entry per unit, up to `limit` entries. A refused call adds none. Admitted
//! calls remove entries that have left, a bounded number each, and the key's expiry removes all of them.
//!
//! # Names
//! Every entry is a separate member, so it needs a name: `<score>-<k>`, where k counts the entries with one
//! score. The name shows that a sorted set is a log and not one of [leases](crate::lease), whose names the
//! callers choose. A set that another program has written can be taken over as a log, whatever its names, if
//! its entries lie in the past, because leases that count end in the future.
//!
//! Source: the sliding-window log of the articles on rate limiting, `ZREMRANGEBYSCORE`, `ZCARD`, `ZADD` on a
//! sorted set, in the variant that counts before it writes.

use crate::args::{Arity, Grammar, Range, parse_integer};
use crate::limiter::behind_units;
use crate::timeline::{Timeline, pruned, tick};
use crate::{Answer, DIFFERENCE, Decision, Error, Instant, PERIOD, Span, Taken, Unit, Verdict};

/// The syntax among several limiters: `LOG limit period quantity`.
pub const GRAMMAR: Grammar = Grammar { word: b"LOG", arguments: Arity::Always(3) };

/// The first number of a limit: the units that may be admitted in any period.
pub const LIMIT: Range = Range { name: "limit", min: 1, max: 1_000_000 };
/// The quantity of a call. Each unit is an entry to be written.
pub const QUANTITY: Range = Range { max: 10_000, ..crate::QUANTITY };

/// The content of a key of this limiter, for the error of a key that holds something else.
pub const EXPECTED: &str = "a sorted set whose scores are past instants in microseconds since the epoch";

/// The error for a key that holds something else.
pub const FOREIGN: Error = Error::Foreign { expected: EXPECTED };

/// A limit: `limit` in any `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    units: u64,
    period: Span,
    /// The unit in which the period was given, for errors about it.
    unit: Unit,
}

/// The entries that a call adds, and the expired ones that it removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries {
    /// The instant of the new entries, a whole microsecond.
    pub at: Instant,
    /// How many entries have this instant already.
    pub there: u64,
    /// How many entries are added.
    pub count: u64,
    /// How many of the earliest are removed.
    pub pruned: u64,
    /// When the log is fully replenished.
    pub until: Instant,
}

/// The change to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Entries are added.
    Add(Entries),
    /// The newest entries are removed, but for some that are newer still.
    Remove {
        /// How many.
        count: u64,
        /// How many entries are newer than the removed ones.
        newer: u64,
        /// Those are the entries that are later than this.
        then: Instant,
        /// When the log is fully replenished without them.
        until: Instant,
    },
}

impl Limit {
    /// The limit given by the two arguments of a call, with `period` in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is not an integer or out of range.
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

    /// How long an entry counts.
    pub const fn period(&self) -> Span {
        self.period
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
            verdict: Verdict::Admitted,
            limit: self.units.cast_signed(),
            // At most `limit`, so the sign bit is free.
            remaining: self.units.saturating_sub(alive).cast_signed(),
            reset_after,
            taken: None,
        }
    }
}

/// The largest age of entries that another program has written.
///
/// Ten years exclude scores of a game, and times in seconds, milliseconds or nanoseconds.
const STRAY: Span = Span::from_nanos(10 * 365 * 86_400 * 1_000_000_000).unwrap();

/// Whether entries with other names can be a log that another program has written: the latest does not lie
/// ahead of `now`, and the earliest is not older than ten years.
pub fn may_be([first, last]: [Instant; 2], now: Instant) -> bool {
    last <= now && now.since(first) <= STRAY
}

/// Whether an entry of a log with the instant `at` can have this name.
///
/// Cost: nearly every other name is ruled out by the byte where the dash would be.
#[inline]
pub fn is_entry(name: &[u8], at: Instant) -> bool {
    const SIXTEEN_DIGITS: core::ops::Range<u64> = 1_000_000_000_000_000..10_000_000_000_000_000;
    let micros = at.as_micros();
    // From the year 2001 on it is sixteen, so no logarithm is needed.
    let digits = if SIXTEEN_DIGITS.contains(&micros) { 16 } else { digits_of(micros) };
    let Some((score, [b'-', k @ ..])) = name.split_at_checked(digits) else { return false };
    !k.is_empty()
        && k.iter().all(u8::is_ascii_digit)
        && parse_integer(score).map(i64::unsigned_abs) == Some(micros)
}

/// The number of decimal digits of a number.
fn digits_of(number: u64) -> usize {
    let log = number.checked_ilog10().and_then(|log| usize::try_from(log).ok());
    log.map_or(1, |log| log.saturating_add(1))
}

/// A log under a limit, at the instant of a call.
struct View<'a, T: ?Sized> {
    state: &'a T,
    limit: &'a Limit,
    now: Instant,
    /// The entries that count.
    alive: u64,
    /// When the last of them leaves.
    until: Instant,
}

impl<'a, T: Timeline + ?Sized> View<'a, T> {
    fn new(state: &'a T, limit: &'a Limit, now: Instant) -> Result<Self, T::Error> {
        let now = tick(now)?;
        let alive = match now.checked_sub(limit.period) {
            Some(since) => state.later_than(since)?,
            None => state.len(),
        };
        let until = state.latest()?.map_or(Ok(now), |latest| limit.end(latest))?;
        Ok(Self { state, limit, now, alive, until })
    }

    /// The entries that no longer count.
    fn expired(&self) -> u64 {
        self.state.len().saturating_sub(self.alive)
    }

    /// The entries that may still be added.
    fn room(&self) -> u64 {
        self.limit.units.saturating_sub(self.alive)
    }

    /// The answer of a call that leaves the log as it is.
    fn answer(&self, verdict: Verdict) -> Answer {
        Answer { verdict, ..self.limit.admitted(self.alive, self.until.since(self.now)) }
    }

    /// The verdict on a call that would take `quantity` units.
    fn verdict(&self, quantity: u64) -> Result<Verdict, T::Error> {
        let wanted = self.alive.saturating_add(quantity);
        let Some(last) = wanted.checked_sub(self.limit.units).and_then(|too_many| too_many.checked_sub(1))
        else {
            return Ok(Verdict::Admitted);
        };
        if quantity > self.limit.units {
            return Ok(Verdict::Never);
        }
        // There is one: at most `alive` are too many, as the quantity is at most the limit.
        let last_to_go = self.state.at(self.expired().saturating_add(last))?;
        Ok(Verdict::Later(last_to_go.map_or(Ok(self.now), |entry| self.limit.end(entry))?.since(self.now)))
    }

    /// The entries of a call that takes `quantity` units, regardless of the limit.
    fn add(&self, quantity: u64) -> Result<Entries, T::Error> {
        let Self { state, now, .. } = *self;
        let there = match now.checked_sub(TICK) {
            Some(before) => state.later_than(before)?.saturating_sub(state.later_than(now)?),
            None => state.len().saturating_sub(state.later_than(now)?),
        };
        let until = self.until.max(self.limit.end(now)?);
        let pruned = pruned(self.expired(), quantity);
        Ok(Entries { at: now, there, count: quantity, pruned, until })
    }

    /// Takes `quantity` units, all or nothing.
    fn take(&self, quantity: u64) -> Result<Decision<Entries>, T::Error> {
        let verdict = self.verdict(quantity)?;
        if verdict.is_limited() || quantity == 0 {
            return Ok(Decision::keep(self.answer(verdict)));
        }
        let entries = self.add(quantity)?;
        let alive = self.alive.saturating_add(quantity);
        Ok(Decision::store(self.limit.admitted(alive, entries.until.since(self.now)), entries))
    }

    /// The answer of a call that has settled: `alive` entries count after it, and the last of them leaves at
    /// `until`. It has added or removed entries behind the entry with the rank `place`.
    fn settled(&self, place: u64, edit: Resized, alive: u64, until: Instant) -> Result<Answer, T::Error> {
        let answer = self.limit.admitted(alive, until.since(self.now));
        let Some(beyond) = alive.checked_sub(self.limit.units).filter(|&beyond| beyond > 0) else {
            return Ok(answer);
        };
        // One more unit would be admitted when the entry with this rank has left: one before the place, one
        // that was added there, or one behind it, whose rank has changed.
        let rank = self.expired().saturating_add(beyond);
        let last_to_go = match edit {
            _ if rank < place => self.state.at(rank)?,
            Resized::Added(count) if rank < place.saturating_add(count) => Some(self.now),
            Resized::Added(count) => self.state.at(rank.saturating_sub(count))?,
            Resized::Removed(count) => self.state.at(rank.saturating_add(count))?,
        };
        let end = last_to_go.map_or(Ok(self.now), |entry| self.limit.end(entry))?;
        Ok(Answer { verdict: Verdict::Later(end.since(self.now)), ..answer })
    }
}

/// `CL.LOG`: takes `quantity` units, all or nothing.
///
/// A quantity of 0 checks without taking. One above the limit is never admitted. At most 10,000 are taken by
/// a call.
///
/// Cost: three entries of the state are looked up and two ranges of it counted, no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a quantity outside its range, or a period that reaches past the year 2262;
/// [`Error::BeyondTime`] after the year 2255; the errors of the state.
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
) -> Result<Decision<Entries>, T::Error> {
    let quantity = entries_of(quantity)?;
    let view = View::new(state, limit, now)?;
    view.take(quantity)
}

/// The number of entries for a quantity.
fn entries_of(quantity: i64) -> Result<u64, Error> {
    let within = (QUANTITY.min..=QUANTITY.max).contains(&quantity);
    u64::try_from(quantity).ok().filter(|_| within).ok_or_else(|| QUANTITY.error())
}

/// `CL.LOG ... SATURATE`: takes as much of `quantity` as fits, at most 10,000, however large it is.
///
/// Refused only when nothing fits, with the wait until one unit would. A quantity of 0 is admitted and takes
/// 0. The answer's [`taken`](Answer::taken) is the quantity taken.
///
/// Cost: the same as [`take`].
///
/// # Errors
/// [`Error::OutOfRange`] for a negative quantity; otherwise the errors of [`take`].
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, log, timeline::Timeline};
/// let limit = log::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let saturated = log::saturate(&[now; 3][..], &limit, now, 9)?;
/// assert_eq!(saturated.answer.taken, Some(2));
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn saturate<T: Timeline + ?Sized>(
    state: &T,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Entries>, T::Error> {
    if quantity < 0 {
        return Err(crate::QUANTITY.error().into());
    }
    let view = View::new(state, limit, now)?;
    // At most 10,000, so the sign bit is free.
    let room = view.room().min(QUANTITY.max.unsigned_abs()).cast_signed();
    Decision::saturate(quantity, room, |fits| view.take(fits.unsigned_abs()))
}

/// `CL.MPEEK`: the answer that [`take`] would give, with `remaining` and `reset_after` of the log as it is.
///
/// Cost: two entries of the state are looked up and a range of it counted, no allocation.
///
/// # Errors
/// The errors of [`take`].
pub fn peek<T: Timeline + ?Sized>(
    state: &T,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Answer, T::Error> {
    let quantity = entries_of(quantity)?;
    let view = View::new(state, limit, now)?;
    let verdict = view.verdict(quantity)?;
    if quantity > 0 && !verdict.is_limited() {
        limit.end(view.now)?; // past the year 2262 it would be an error there
    }
    Ok(view.answer(verdict))
}

/// [`peek`] for a call that comes after clients that wait for `units`, as [`behind_units`] says.
///
/// Cost: three entries of the state are looked up and a range of it counted, no allocation.
///
/// # Errors
/// The errors of [`take`].
pub fn peek_behind<T: Timeline + ?Sized>(
    state: &T,
    limit: &Limit,
    now: Instant,
    quantity: i64,
    units: u64,
) -> Result<Answer, T::Error> {
    peek(state, limit, now, quantity)?;
    let view = View::new(state, limit, now)?;
    // Their sum may be larger than the quantity of a single call may be.
    behind_units(units, quantity, |wanted| Ok(view.answer(view.verdict(wanted.unsigned_abs())?)))
}

/// `CL.MSETTLE`: settles the `difference` between the units that a call took and the units that it needed.
///
/// A positive difference, up to 10,000, is taken regardless of the limit. A negative one removes the newest
/// entries, at most those that still count; of these, where the caller says when the units were `taken`, only
/// entries that are at least as old. 0 changes nothing. The answer describes the log after the call: limited
/// while there are more entries than the limit, and then with the time until one more unit would be admitted.
///
/// Cost: at most four entries of the state are looked up and four ranges of it counted, no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a difference of -2^63 or above 10,000; otherwise the errors of [`take`].
///
/// # Example
/// ```
/// # use redis_cell_core::{Change, Instant, Unit, log, timeline::Timeline};
/// let limit = log::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let settled = log::settle(&[now; 5][..], &limit, now, -2, None)?;
/// assert_eq!(settled.answer.reply(Unit::Seconds).five, [0, 5, 2, -1, 60]);
/// assert!(matches!(settled.change, Change::Store(log::Edit::Remove { count: 2, newer: 0, .. })));
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn settle<T: Timeline + ?Sized>(
    state: &T,
    limit: &Limit,
    now: Instant,
    difference: i64,
    taken: Option<&Taken>,
) -> Result<Decision<Edit>, T::Error> {
    let range = DIFFERENCE.up_to(QUANTITY.max);
    if !(range.min..=range.max).contains(&difference) {
        return Err(range.error().into());
    }
    let view = View::new(state, limit, now)?;
    if difference > 0 {
        let entries = view.add(difference.unsigned_abs())?;
        let alive = view.alive.saturating_add(entries.count);
        let place = state.len().saturating_sub(state.later_than(view.now)?);
        let answer = view.settled(place, Resized::Added(entries.count), alive, entries.until)?;
        return Ok(Decision::store(answer, Edit::Add(entries)));
    }
    let (newer, then) = match taken.map(|taken| view.now.checked_sub(taken.age)) {
        Some(Some(then)) => (state.later_than(then)?.min(view.alive), then),
        Some(None) => (view.alive, view.now), // nothing is older than the epoch
        None => (0, Instant::MAX),
    };
    let count = difference.unsigned_abs().min(view.alive.saturating_sub(newer));
    let place = state.len().saturating_sub(newer).saturating_sub(count);
    let resized = Resized::Removed(count);
    if count == 0 {
        return Ok(Decision::keep(view.settled(place, resized, view.alive, view.until)?));
    }
    let alive = view.alive.saturating_sub(count);
    if alive == 0 {
        return Ok(Decision::delete(limit.admitted(0, Span::ZERO)));
    }
    let until = if newer > 0 {
        view.until
    } else {
        let latest = state.at(place.saturating_sub(1))?;
        latest.map_or(Ok(view.now), |entry| limit.end(entry))?
    };
    Ok(Decision::store(
        view.settled(place, resized, alive, until)?,
        Edit::Remove { count, newer, then, until },
    ))
}

/// How many entries a settlement has added or removed.
#[derive(Clone, Copy)]
enum Resized {
    Added(u64),
    Removed(u64),
}

/// The smallest distance between neighbouring entries.
const TICK: Span = Span::from_nanos(1_000).unwrap();
