//! GCRA, the generic cell rate algorithm: a bucket that leaks, kept as a single instant.
//!
//! A limit of `count` per `period` lets one unit through every *emission interval* `T = period / count`. The limiter
//! keeps one number, the *theoretical arrival time* (TAT): the instant at which everything admitted so far would have
//! been served, had it been served one unit per `T`. A TAT that has passed means an idle limiter, and no state at all
//! means the same. To take `quantity` units at the instant `now`:
//!
//! ```text
//! debt = max(TAT - now, 0)                    what is still being served
//! need = debt + T * quantity                  what would be, with this call
//! D    = T * (max_burst + 1)                  the tolerance: how far the TAT may run ahead of the clock
//! admitted, TAT := now + need,   when need <= D
//! refused, wait need - D,        otherwise
//! ```
//!
//! Seen as a bucket of `max_burst + 1` units that leaks one unit every `T`, `debt` is the level of the bucket measured
//! in time. That is why one instant is all the state there is, why a refusal has nothing to write, and why the exact
//! wait falls out of the comparison that refuses.
//!
//! Everything is an integer number of nanoseconds; `T` is rounded down, so that a limit is never stricter than asked.
//! Products and sums that leave 63 bits are errors, not wrong answers.
//!
//! Source: ITU-T Recommendation I.371, the virtual scheduling form of GCRA, with the units of `CL.THROTTLE` as
//! redis-cell defined them.

use crate::{Answer, Decision, Error, Instant, Range, Rate, Retry, Span, Unit, parse_integer};

/// The first number of a limit: what may come at once on top of one unit.
pub const MAX_BURST: Range = Range { name: "max_burst", min: 0, max: i64::MAX - 1 };

/// A limit: `count` per `period` sustained, `max_burst` on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// `count` per `period`, and thereby `T`.
    rate: Rate,
    /// `D = T * capacity`.
    pub(crate) tolerance: Span,
    /// `max_burst + 1`, at least 1: the most that can be admitted at once.
    pub(crate) capacity: i64,
}

impl Limit {
    /// The limit that the three arguments of a call spell, `period` being in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is no integer, that is out of range on its own, or that takes
    /// the emission interval below a nanosecond (`count`) or the tolerance above 292 years (`period`, `max_burst`).
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::{Unit, gcra::Limit};
    /// let one_every_two_seconds = Limit::parse([b"15", b"30", b"60"], Unit::Seconds)?;
    /// assert!(Limit::parse([b"15", b"30", b"0"], Unit::Seconds).is_err());
    /// # Ok::<(), redis_cell_core::Error>(())
    /// ```
    pub fn parse([max_burst, count, period]: [&[u8]; 3], unit: Unit) -> Result<Self, Error> {
        Self::with(MAX_BURST.parse(max_burst)?, Rate::parse([count, period], unit)?)
    }

    /// The limit of `count` per `period` units of time, with `max_burst` on top.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn new(max_burst: i64, count: i64, period: i64, unit: Unit) -> Result<Self, Error> {
        Self::with(max_burst, Rate::new(count, period, unit)?)
    }

    fn with(max_burst: i64, rate: Rate) -> Result<Self, Error> {
        let limit = max_burst.checked_add(1).filter(|&capacity| capacity >= 1).and_then(|capacity| {
            let tolerance = rate.time(capacity)?;
            Some(Self { rate, tolerance, capacity })
        });
        limit.ok_or_else(|| MAX_BURST.up_to(rate.most().saturating_sub(1)).error())
    }

    /// `T * quantity`, the time that serving `quantity` units takes.
    pub(crate) fn cost(&self, quantity: i64) -> Result<Span, Error> {
        self.rate.cost(quantity)
    }

    /// How many whole units fit on top of `debt`.
    fn room(&self, debt: Span) -> i64 {
        self.rate.units(self.tolerance.saturating_sub(debt))
    }

    /// The answer of a call that is served, `debt` being what is owed after it.
    fn admitted(&self, debt: Span) -> Answer {
        Answer {
            limited: false,
            limit: self.capacity,
            remaining: self.room(debt),
            retry_after: Retry::Never,
            reset_after: debt,
            taken: None,
        }
    }

    /// The answer of a call that is not served, `debt` being what is owed without it.
    fn refused(&self, debt: Span, retry_after: Retry) -> Answer {
        Answer { limited: true, retry_after, ..self.admitted(debt) }
    }
}

/// The state: the theoretical arrival time. It is stored as decimal nanoseconds since the epoch, as redis-cell does.
pub type Tat = Instant;

/// What a key of this limiter holds, for the error of one that does not.
pub const EXPECTED: &str = "a TAT in nanoseconds since the epoch";

/// How far a TAT may lie from both the clock and its key's expiry and still be one.
///
/// A TAT that lies further back is worth nothing, so its key would have expired; one that lies further ahead has a key
/// that expires then. A day leaves room for clocks that disagree and for expiries that were set by hand, and none for
/// counters and other people's numbers.
const STRAY: Span = Span::from_nanos(86_400_000_000_000).unwrap();

/// Reads the stored bytes of a key, `expiry` being asked only when the number alone cannot tell.
///
/// Bytes are a TAT when they are a decimal integer from 0 to 2^63 - 1, as strictly written as the server writes one,
/// that lies within a day of `now` or of the key's expiry.
///
/// # Errors
/// [`Error::Foreign`] when they are anything else.
pub fn decode(bytes: &[u8], now: Instant, expiry: impl FnOnce() -> Option<Instant>) -> Result<Tat, Error> {
    let near = |tat: Tat, other: Instant| tat.since(other) <= STRAY && other.since(tat) <= STRAY;
    parse_integer(bytes)
        .and_then(|nanos| u64::try_from(nanos).ok())
        .and_then(Tat::from_nanos)
        .filter(|&tat| near(tat, now) || expiry().is_some_and(|expiry| near(tat, expiry)))
        .ok_or(Error::Foreign { expected: EXPECTED })
}

/// What is still being served at `now`.
fn debt_at(now: Instant, tat: Option<Tat>) -> Span {
    tat.map_or(Span::ZERO, |tat| tat.since(now))
}

/// The TAT of a limiter that owes `debt` at `now`.
fn tat_at(now: Instant, debt: Span) -> Result<Tat, Error> {
    now.checked_add(debt).ok_or(Error::BeyondTime)
}

/// `CL.THROTTLE`: takes `quantity` units, all or none.
///
/// A quantity of 0 looks without taking. One above the limit is refused for ever.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a quantity that is negative or takes longer than 292 years to serve,
/// [`Error::BeyondTime`] when the state would lie past the year 2262.
///
/// # Example
/// ```
/// # use redis_cell_core::{Change, Instant, Unit, gcra};
/// let limit = gcra::Limit::new(15, 30, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let first = gcra::throttle(None, &limit, now, 1)?;
/// assert_eq!(first.answer.reply(Unit::Seconds).five, [0, 16, 15, -1, 2]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn throttle(
    state: Option<Tat>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Tat>, Error> {
    let (debt, cost) = (debt_at(now, state), limit.cost(quantity)?);
    // The most that may be owed before this call; a cost above the tolerance is a quantity above the limit.
    let Some(most) = limit.tolerance.checked_sub(cost) else {
        return Ok(Decision::keep(limit.refused(debt, Retry::Never)));
    };
    if debt > most {
        return Ok(Decision::keep(limit.refused(debt, Retry::After(debt.saturating_sub(most)))));
    }
    if quantity == 0 {
        return Ok(Decision::keep(limit.admitted(debt)));
    }
    let need = debt.checked_add(cost).ok_or(Error::BeyondTime)?;
    Ok(Decision::store(limit.admitted(need), tat_at(now, need)?))
}

/// `CL.THROTTLE ... SATURATE`: takes as much of `quantity` as fits, however large it is.
///
/// Refused only when nothing fits, with the wait until one unit would. A quantity of 0 is admitted and takes 0.
/// The answer's [`taken`](Answer::taken) is the quantity taken.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// As [`throttle`].
pub fn saturate(
    state: Option<Tat>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Tat>, Error> {
    let room = limit.room(debt_at(now, state));
    let mut decision = match quantity {
        0 => Decision::keep(limit.admitted(debt_at(now, state))),
        // With no room at all a single unit is refused, and its wait is the one to tell.
        _ => throttle(state, limit, now, quantity.min(room.max(1)))?,
    };
    decision.answer.taken = Some(if decision.answer.limited { 0 } else { quantity.min(room) });
    Ok(decision)
}

/// `CL.PEEK`: what [`throttle`] would answer, with `remaining` and `reset_after` of the state as it is.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// As [`throttle`].
pub fn peek(state: Option<Tat>, limit: &Limit, now: Instant, quantity: i64) -> Result<Answer, Error> {
    let Answer { limited, retry_after, .. } = throttle(state, limit, now, quantity)?.answer;
    Ok(Answer { limited, retry_after, ..limit.admitted(debt_at(now, state)) })
}

/// `CL.REFUND`: gives `quantity` units back.
///
/// Never gives back more than was taken and never creates a state: what is full, or becomes full, has none.
/// The answer is [`standing`] after the call.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// As [`throttle`].
pub fn refund(
    state: Option<Tat>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Tat>, Error> {
    let before = debt_at(now, state);
    let after = before.saturating_sub(limit.cost(quantity)?);
    let answer = standing(limit, after);
    Ok(match state {
        None => Decision::keep(answer),
        Some(_) if quantity == 0 => Decision::keep(answer),
        Some(_) if after == Span::ZERO => Decision::delete(answer),
        Some(_) => Decision::store(answer, tat_at(now, after)?),
    })
}

/// `CL.CHARGE`: takes `quantity` units regardless, into debt if need be.
///
/// For costs that are known only afterwards. The answer is [`standing`] after the call.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// As [`throttle`].
pub fn charge(
    state: Option<Tat>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Tat>, Error> {
    let after = debt_at(now, state).checked_add(limit.cost(quantity)?).ok_or(Error::BeyondTime)?;
    let answer = standing(limit, after);
    Ok(if quantity == 0 { Decision::keep(answer) } else { Decision::store(answer, tat_at(now, after)?) })
}

/// The answer of a call that is never refused: `limited` while `debt` is above the tolerance, and then the time until
/// one more unit would be admitted.
fn standing(limit: &Limit, debt: Span) -> Answer {
    if debt <= limit.tolerance {
        return limit.admitted(debt);
    }
    // One more unit would fit below the tolerance by its own cost.
    let room_for_one = limit.tolerance.saturating_sub(limit.rate.of_one());
    limit.refused(debt, Retry::After(debt.saturating_sub(room_for_one)))
}

/// How a reservation is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Booking {
    /// The longest wait that is acceptable, any when `None`.
    pub max_wait: Option<Span>,
    /// Wait as a single unit would, and let the next caller wait for the rest.
    pub prepay: bool,
}

/// `CL.RESERVE`: books `quantity` units and tells how long to wait before acting on them.
///
/// The leaky bucket as a queue. Booked: not `limited`, [`retry_after`](Answer::retry_after) the wait, zero for now.
/// Refused, with nothing booked: when the wait would exceed `max_wait`, `retry_after` being that wait; and without
/// `prepay` a quantity above the limit, for ever. A quantity of 0 books nothing.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// As [`throttle`].
///
/// Source: `prepay` is the rule of Guava's `RateLimiter`.
pub fn reserve(
    state: Option<Tat>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
    booking: Booking,
) -> Result<Decision<Tat>, Error> {
    let (debt, cost) = (debt_at(now, state), limit.cost(quantity)?);
    if quantity > limit.capacity && !booking.prepay {
        return Ok(Decision::keep(limit.refused(debt, Retry::Never)));
    }
    let awaited = if booking.prepay { limit.cost(quantity.min(1))? } else { cost };
    let wait = debt.saturating_sub(limit.tolerance.saturating_sub(awaited));
    if booking.max_wait.is_some_and(|max_wait| wait > max_wait) {
        return Ok(Decision::keep(limit.refused(debt, Retry::After(wait))));
    }
    let need = debt.checked_add(cost).ok_or(Error::BeyondTime)?;
    let answer = Answer { retry_after: Retry::After(wait), ..limit.admitted(need) };
    Ok(if quantity == 0 { Decision::keep(answer) } else { Decision::store(answer, tat_at(now, need)?) })
}
