//! The sliding window: a number of units in any period, estimated from two counters.
//!
//! Keeps two counts: one of the present window and one of the window before. Windows start at multiples of
//! the period since the epoch. The last `period` before now covers the elapsed part of the present window,
//! and the end of the previous one. The previous window counts in proportion to the part of it that is still
//! covered, to the nearest unit:
//!
//! ```text
//! ahead    = period - elapsed                              the part of the previous window that is covered
//! weight   = floor(previous * ahead / period + 1/2)        to the nearest unit, half a unit counting as one
//! estimate = current + weight
//! admitted, current := current + quantity,   when estimate + quantity <= limit
//! refused until the estimate has fallen far enough, otherwise
//! ```
//!
//! Everything is an integer: `weight` is the quotient of `2 * previous * ahead + period` and `2 * period`,
//! both below 2^128.
//!
//! # Why to the nearest unit
//! Rounded up, a fraction of a unit would count as one, and steady callers would never reach a small limit:
//! with a limit of 1, a call would have to wait for a whole window without calls. Rounded down, a fraction
//! would count as nothing, and the true weighted value could exceed the limit by a whole unit. To the nearest
//! unit, the estimate is never off by more than half a unit, and callers that wait for `retry_after` get the
//! whole limit in every window.
//!
//! # How far the estimate is off
//! The estimate differs from the weighted value `v = current + previous * ahead / period` by at most half a
//! unit, in either direction: that is what rounding to the nearest unit means. As no call is admitted past
//! `estimate = limit`, `v` never exceeds `limit + 1/2`.
//!
//! The weighted value assumes that the calls of the previous window were evenly spread. Of its `previous`
//! units, the true number in the last period is any number from 0, if all of them came early, to `previous`,
//! if all came late. `current` is counted exactly. Hence the estimate is
//!
//! - too high by at most `weight`: callers wait longer than an exact log would make them wait
//! - too low by at most `previous - weight`, which is `previous * elapsed / period` to the nearest unit, half
//!   a unit counting as nothing
//!
//! Take any period, and the last call that was admitted in it. After that call `current <= limit - weight`,
//! and at most `previous` units of the period lie in the previous window. So the period holds at most
//! `limit + previous - weight` units. While the limit is not lowered, that is never more than `2 * limit`,
//! and `2 * limit` only for a caller that spends a whole limit at the very end of a window and another at the
//! very end of the next one, when the weight has fallen below half a unit. A window itself never holds more
//! than `limit`, nor does the long run: `n` whole windows admit at most `n * limit`.
//!
//! # The exact wait
//! The estimate only falls while nothing is admitted, also across the end of a window: there the previous
//! count is dropped, and the present count becomes the previous one, still with its full weight. So a call is
//! refused until one instant and admitted from then on. `count` units weigh at most `left` when
//!
//! ```text
//! floor(count * ahead / period + 1/2) <= left
//!   <=>  2 * count * ahead < (2 * left + 1) * period
//!   <=>  ahead <= floor(((2 * left + 1) * period - 1) / (2 * count))
//! ```
//!
//! and the first instant at which that holds, in this window or else in the next, is the end of the wait.
//!
//! Proved for all inputs in `verify/proofs`: `a_weight_is_to_the_nearest_unit`, `an_estimate_only_falls`,
//! `a_window_fades_exactly_then`, `a_wait_of_a_window_is_exact`, `no_period_holds_more_than_twice_the_limit`
//! and `no_window_wraps`.
//!
//! Every decision is O(1) and allocates nothing.
//!
//! Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains" (2017), which
//! measured the estimate against an exact log; here in integers.

use core::cmp::Ordering;
use core::num::NonZeroU64;

use crate::args::{Arity, Grammar, Range, parse_field};
use crate::limiter::limiter;
use crate::rate::period_of;
use crate::{Answer, DIFFERENCE, Decision, Error, Instant, PERIOD, Span, Taken, Unit, Verdict};

/// The syntax among several limiters: `WINDOW limit period quantity`.
pub const GRAMMAR: Grammar = Grammar { word: b"WINDOW", arguments: Arity::Always(3) };

/// The first number of a limit: units per period.
pub const LIMIT: Range = Range { name: "limit", min: 1, max: i64::MAX };

/// A limit: a number of units per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    most: i64,
    period: NonZeroU64,
    unit: Unit,
}

impl Limit {
    /// The limit given by the two arguments of a call, with `period` in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is not an integer or is out of range.
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::{Unit, window::Limit};
    /// assert!(Limit::parse([b"5", b"60"], Unit::Seconds).is_ok());
    /// assert!(Limit::parse([b"0", b"60"], Unit::Seconds).is_err());
    /// ```
    #[inline(always)]
    pub fn parse([limit, period]: [&[u8]; 2], unit: Unit) -> Result<Self, Error> {
        Self::new(LIMIT.parse(limit)?, PERIOD.up_to(unit.max()).parse(period)?, unit)
    }

    /// The limit of `limit` units per `period` units of time.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn new(limit: i64, period: i64, unit: Unit) -> Result<Self, Error> {
        if limit < LIMIT.min {
            return Err(LIMIT.error());
        }
        Ok(Self { most: limit, period: period_of(period, unit)?, unit })
    }

    fn period(&self) -> Span {
        // The period was made from a Span.
        Span::from_nanos(self.period.get()).unwrap_or_default()
    }

    /// The start of the window that `instant` lies in.
    fn window_of(&self, instant: Instant) -> Instant {
        let into = Span::from_nanos(instant.as_nanos() % self.period).unwrap_or_default();
        instant.saturating_sub(into)
    }

    /// The weight of `count` units if the part `ahead` of their window is in the last period, to the nearest
    /// unit.
    fn weight(&self, count: i64, ahead: Span) -> u64 {
        // `ahead` is at most the period, so the weight is at most `count`.
        let (count, ahead, period) = (count.unsigned_abs(), ahead.as_nanos(), self.period.get());
        let twice = |number: u64| number.checked_mul(2);
        let weight = match count.checked_mul(ahead).and_then(twice).and_then(|sum| sum.checked_add(period)) {
            Some(sum) => sum.checked_div(period.saturating_mul(2)),
            None => wide_weight(count, ahead, period),
        };
        weight.unwrap_or(count)
    }

    /// How long the present window lasts at least, after a call that was admitted and has taken units: from
    /// the `remaining` and the `reset_after` of its answer.
    ///
    /// What was taken in the window weighs nothing at `reset_after`. The more it is, the later after the end
    /// of the window that is. It is at most all that counts, so the result is exact if nothing is left of the
    /// window before.
    pub fn lasts(&self, remaining: i64, reset_after: Span) -> Span {
        let used = self.most.saturating_sub(remaining).max(1);
        reset_after.saturating_sub(self.faded(used, 0))
    }

    /// How long after the start of the present window `count` units of the previous one weigh at most `left`.
    fn faded(&self, count: i64, left: i64) -> Span {
        // Both counts are below 2^63, so twice a count and one fits.
        let (count, period) = (count.unsigned_abs().saturating_mul(2), self.period.get());
        let odd = left.unsigned_abs().saturating_mul(2).saturating_add(1);
        let ahead = match odd.checked_mul(period) {
            Some(product) => product.saturating_sub(1).checked_div(count),
            None => wide_quotient(odd, period, count),
        };
        Span::from_nanos(period.saturating_sub(ahead.unwrap_or(period))).unwrap_or_default()
    }

    /// The units of the limit that are left after `used`; negative if these exceed it.
    fn room(&self, used: u64) -> i64 {
        self.most.saturating_sub_unsigned(used)
    }

    /// The answer of a call that is served, with the estimate `used` after it.
    fn admitted(&self, used: u64, reset_after: Span) -> Answer {
        Answer {
            verdict: Verdict::Admitted,
            limit: self.most,
            remaining: self.room(used).max(0),
            reset_after,
            taken: None,
        }
    }
}

/// The quotient of `2 * count * ahead + period` and `2 * period`, where the former takes 128 bits.
#[cold]
fn wide_weight(count: u64, ahead: u64, period: u64) -> Option<u64> {
    // All three are below 2^63.
    let product = u128::from(count).saturating_mul(ahead.into()).saturating_mul(2);
    let sum = product.saturating_add(period.into());
    sum.checked_div(u128::from(period).saturating_mul(2)).and_then(|weight| u64::try_from(weight).ok())
}

/// The quotient of `odd * period - 1` and `count`, where the former takes 128 bits; `None` above 64 bits.
#[cold]
fn wide_quotient(odd: u64, period: u64, count: u64) -> Option<u64> {
    let product = u128::from(odd).saturating_mul(period.into()).saturating_sub(1);
    product.checked_div(count.into()).and_then(|ahead| u64::try_from(ahead).ok())
}

/// The last whole millisecond, the last at which a key can expire.
pub(crate) const LAST_MILLISECOND: Instant = Instant::from_nanos(9_223_372_036_854_000_000).unwrap();

/// Checks that `periods` fit between `now` and [`LAST_MILLISECOND`].
pub(crate) fn fits(period: NonZeroU64, unit: Unit, now: Instant, periods: u64) -> Result<(), Error> {
    let left = LAST_MILLISECOND.since(now).as_nanos();
    let longest = left.checked_div(periods).unwrap_or(left);
    if period.get() <= longest {
        return Ok(());
    }
    Err(PERIOD.up_to((longest / unit.nanos()).cast_signed()).error())
}

limiter!(Sliding, take);

/// The state: the units admitted in the present window and in the window before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// The instant at which the present window began.
    pub start: Instant,
    /// Units admitted since.
    pub current: i64,
    /// Units admitted in the window before.
    pub previous: i64,
}

impl Sliding {
    /// The content of a key of this limiter, for the error of a key that holds something else.
    pub const EXPECTED: &str = "a hash with the fields window, current and previous";

    /// Reads the fields of a hash; `None` stands for a missing field.
    ///
    /// # Errors
    /// [`Error::Foreign`] when a field is missing or is not a decimal integer from 0 to 2^63 - 1.
    pub fn decode(
        window: Option<&[u8]>,
        current: Option<&[u8]>,
        previous: Option<&[u8]>,
    ) -> Result<Self, Error> {
        let read = || {
            let start = Instant::from_nanos(parse_field(window)?.unsigned_abs())?;
            Some(Self { start, current: parse_field(current)?, previous: parse_field(previous)? })
        };
        read().ok_or(Error::Foreign { expected: Self::EXPECTED })
    }

    /// The end of the last window in which any of it counts, an instant that stays the same until a window
    /// opens; [`Instant::MAX`] if that is later, which [`take`] prevents.
    pub fn gone_at(&self, limit: &Limit) -> Instant {
        self.end(limit).and_then(|end| self.counts_until(limit, end)).unwrap_or(Instant::MAX)
    }

    /// This window, moved back so far that it is gone at `end`, a multiple of the period; unchanged if it is
    /// gone by then.
    #[must_use]
    pub fn gone_by(self, limit: &Limit, end: Instant) -> Self {
        let too_late = self.gone_at(limit).since(end).as_nanos();
        let periods = too_late.div_ceil(limit.period.get()).saturating_mul(limit.period.get());
        let back = Span::from_nanos(periods).unwrap_or(Span::MAX);
        Self { start: self.start.saturating_sub(back), ..self }
    }

    /// The same, with the end of the present window as `end`.
    fn counts_until(&self, limit: &Limit, end: Instant) -> Result<Instant, Error> {
        if self.current > 0 { end.checked_add(limit.period()).ok_or(Error::BeyondTime) } else { Ok(end) }
    }

    /// The state `stored`, brought forward to `now`.
    fn at(stored: Option<Self>, limit: &Limit, now: Instant) -> Self {
        let start = limit.window_of(now);
        let fresh = Self { start, current: 0, previous: 0 };
        match stored {
            // Also a window in the future, after the clock was set back: it was counted last.
            Some(window) if window.start >= start => window,
            Some(window) if start.since(window.start) <= limit.period() => {
                Self { previous: window.current, ..fresh }
            }
            _ => fresh,
        }
    }

    /// When the present window ends: at a multiple of the period, also where another period has begun it.
    fn end(&self, limit: &Limit) -> Result<Instant, Error> {
        limit.window_of(self.start).checked_add(limit.period()).ok_or(Error::BeyondTime)
    }

    /// The units that count at `now`, from both windows, which may be more than any limit.
    fn estimate(&self, limit: &Limit, now: Instant) -> u64 {
        let ahead = limit.period().saturating_sub(now.since(self.start));
        self.current.unsigned_abs().saturating_add(limit.weight(self.previous, ahead))
    }

    /// The first instant at which `quantity` units, at most the limit, are admitted if no others are taken
    /// before. `end` is the end of the present window.
    fn admits_at(&self, limit: &Limit, quantity: i64, end: Instant) -> Result<Instant, Error> {
        let room = limit.most.saturating_sub(quantity);
        // In this window, once the previous count weighs no more than the present count leaves it ...
        if let Some(left) = room.checked_sub(self.current).filter(|&left| left >= 0)
            && let Some(at) = self.start.checked_add(limit.faded(self.previous, left)).filter(|&at| at < end)
        {
            return Ok(at);
        }
        // ... or in the next, where the present count is the previous one.
        end.checked_add(limit.faded(self.current, room)).ok_or(Error::BeyondTime)
    }

    /// The time until nothing counts any more, `used` being the units that count at `now`, and `end` the end
    /// of the present window.
    fn reset_after(&self, limit: &Limit, now: Instant, used: u64, end: Instant) -> Result<Span, Error> {
        // The whole limit is admitted then; where nothing counts, it is admitted already.
        if used == 0 { Ok(Span::ZERO) } else { Ok(self.admits_at(limit, limit.most, end)?.since(now)) }
    }

    /// Takes `quantity` from this window, of which `used` units count at `now`.
    #[inline]
    fn take(self, limit: &Limit, now: Instant, used: u64, quantity: i64) -> Result<Decision<Self>, Error> {
        let end = self.end(limit)?;
        let fits = |used: &u64| *used <= limit.most.unsigned_abs();
        let Some(used_after) = used.checked_add(quantity.unsigned_abs()).filter(fits) else {
            let reset_after = self.reset_after(limit, now, used, end)?;
            let verdict = match quantity.cmp(&limit.most) {
                Ordering::Greater => Verdict::Never,
                Ordering::Equal => Verdict::Later(reset_after),
                Ordering::Less => Verdict::Later(self.admits_at(limit, quantity, end)?.since(now)),
            };
            let answer = limit.admitted(used, reset_after);
            return Ok(Decision::keep(Answer { verdict, ..answer }));
        };
        if quantity == 0 {
            return Ok(Decision::keep(limit.admitted(used, self.reset_after(limit, now, used, end)?)));
        }
        let window = Self { current: self.current.saturating_add(quantity), ..self };
        window.counts_until(limit, end)?;
        let reset_after = window.reset_after(limit, now, used_after, end)?;
        Ok(Decision::store(limit.admitted(used_after, reset_after), window))
    }

    /// The answer that describes this window, of which `used` units count at `now`.
    fn standing(&self, limit: &Limit, now: Instant, used: u64) -> Result<Answer, Error> {
        let end = self.end(limit)?;
        let answer = limit.admitted(used, self.reset_after(limit, now, used, end)?);
        if limit.room(used) >= 0 {
            return Ok(answer);
        }
        let wait = self.admits_at(limit, 1, end)?.since(now);
        Ok(Answer { verdict: Verdict::Later(wait), ..answer })
    }
}

/// `CL.WINDOW`: takes `quantity` units of a sliding window, all or nothing.
///
/// A quantity of 0 checks without taking; it is refused while the estimate is above the limit, as it may be
/// after the limit was lowered. A quantity above the limit is never admitted. A new limit or a new period
/// applies at once, with the counts as they are.
///
/// # Errors
/// [`Error::OutOfRange`] for a negative quantity, and if two periods from now end after the year 2262;
/// [`Error::BeyondTime`] when a stored window lies that far ahead.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, window};
/// let limit = window::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_040_000_000_000).unwrap(); // a multiple of 60 s
/// let first = window::take(None, &limit, now, 5)?;
/// // The last unit weighs less than half a unit once nine tenths of the next window have passed.
/// assert_eq!(first.answer.reply(Unit::Seconds).five, [0, 5, 0, -1, 115]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
#[inline(always)]
pub fn take(
    state: Option<Sliding>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Sliding>, Error> {
    if quantity < 0 {
        return Err(crate::QUANTITY.error());
    }
    fits(limit.period, limit.unit, now, 2)?;
    let window = Sliding::at(state, limit, now);
    let used = window.estimate(limit, now);
    window.take(limit, now, used, quantity)
}

/// `CL.WINDOW ... SATURATE`: [takes as much as fits](crate::limiter::Limiter::saturate).
///
/// # Errors
/// As [`take`].
#[inline(never)]
pub fn saturate(
    state: Option<Sliding>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Sliding>, Error> {
    if quantity < 0 {
        return Err(crate::QUANTITY.error());
    }
    fits(limit.period, limit.unit, now, 2)?;
    let window = Sliding::at(state, limit, now);
    let used = window.estimate(limit, now);
    let room = limit.room(used);
    Decision::saturate(quantity, room, |fits| window.take(limit, now, used, fits))
}

/// `CL.MSETTLE`: settles the `difference` between the units that a call took and the units that it needed.
///
/// A positive difference is taken, above the limit if need be. A negative one is given back from the present
/// window only, at most what it has admitted; 0 changes nothing. If nothing counts after giving back,
/// there is no state. If the caller says when the units were `taken`, a window that has begun since gets
/// nothing back. The answer describes the state after the call: limited while the estimate is above the
/// limit, with the wait for one unit.
///
/// # Errors
/// [`Error::OutOfRange`] for -2^63 and for a count above 2^63 - 1, and the errors of [`take`].
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, window};
/// let limit = window::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_040_000_000_000).unwrap(); // a multiple of 60 s
/// let settled = window::settle(None, &limit, now, 6, None)?;
/// // In the next window, the six units weigh four when three quarters of it are left.
/// assert_eq!(settled.answer.reply(Unit::Seconds).five, [1, 5, 0, 76, 116]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn settle(
    state: Option<Sliding>,
    limit: &Limit,
    now: Instant,
    difference: i64,
    taken: Option<&Taken>,
) -> Result<Decision<Sliding>, Error> {
    if difference < DIFFERENCE.min {
        return Err(DIFFERENCE.error());
    }
    fits(limit.period, limit.unit, now, 2)?;
    let before = Sliding::at(state, limit, now);
    // A window that began when the units were taken, or earlier, can have admitted them.
    let holds = taken.is_none_or(|taken| before.start.checked_add(taken.age).is_some_and(|then| then <= now));
    let current = if difference > 0 {
        let most = DIFFERENCE.up_to(i64::MAX.saturating_sub(before.current));
        before.current.checked_add(difference).ok_or_else(|| most.error())?
    } else if holds {
        before.current.saturating_add(difference).max(0)
    } else {
        before.current
    };
    let after = Sliding { current, ..before };
    let used = after.estimate(limit, now);
    let answer = after.standing(limit, now, used)?;
    if current == before.current {
        return Ok(Decision::keep(answer));
    }
    if used == 0 {
        return Ok(Decision::delete(answer));
    }
    after.counts_until(limit, after.end(limit)?)?;
    Ok(Decision::store(answer, after))
}
