//! GCRA, the generic cell rate algorithm: a bucket that leaks, kept as a single instant.
//!
//! A limit of `count` per `period` serves one unit every *emission interval* `T = period / count`. The
//! limiter keeps one number, the *theoretical arrival time* (TAT): the instant at which everything admitted
//! so far would have been served, had it been served one unit per `T`. A TAT that has passed means an idle
//! limiter, and no state at all means the same. To take `quantity` units at the instant `now`:
//!
//! ```text
//! cost(q) = floor(T * q)                      the time that serving q units takes
//! debt = max(TAT - now, 0)                    the time until everything admitted is served
//! need = debt + cost(quantity)                the same, with this call
//! D    = cost(max_burst + 1)                  the tolerance: how far the TAT may run ahead of the clock
//! admitted, TAT := now + need,   when need <= D
//! refused, wait need - D,        otherwise
//! remaining = the largest r with cost(r) <= D - debt
//! ```
//!
//! Seen as a bucket of `max_burst + 1` units that leaks one unit every `T`, `debt` is the level of the bucket
//! measured in time. That is why one instant is the whole state, why a refusal has nothing to write, and why
//! the comparison that refuses also gives the exact wait.
//!
//! # What is admitted
//! `T` is an exact fraction and each call's cost is rounded once, so a call is forgiven less than a
//! nanosecond. Take `n` admitted calls within a time `W`. Before the first, the TAT was not behind the clock,
//! and after the last it was at most `D` ahead. So the sum of their costs is at most `D + W`, the sum of
//! their quantities times `T` is less than `D + W + n`, and the sum of their quantities is less than
//!
//! ```text
//! max_burst + 1  +  W * count / period  +  n * count / period
//! ```
//!
//! with periods in nanoseconds. The last term is the units of one nanosecond per call, and it is zero where
//! `count` divides the period.
//!
//! Proved for all inputs in `verify/proofs`: `no_stretch_admits_more_than_it_may`, `a_wait_is_exact`,
//! `a_call_is_forgiven_less_than_a_nanosecond` and `remaining_is_exact`.
//!
//! Products and sums that exceed 63 bits are errors, not wrong answers.
//!
//! Every decision is O(1) and allocates nothing.
//!
//! Source: ITU-T Recommendation I.371, the virtual scheduling form of GCRA, with the units of `CL.THROTTLE`
//! as brandur/redis-cell defined them.

use crate::args::{Arity, Grammar, Range, parse_integer};
use crate::limiter::limiter;
use crate::{Answer, Decision, Error, Instant, Rate, Span, Taken, Unit, Verdict};

/// The syntax among several limiters: `THROTTLE max_burst count period quantity`.
pub const GRAMMAR: Grammar = Grammar { word: b"THROTTLE", arguments: Arity::Always(4) };

/// The first number of a limit: the units that may be taken at once in addition to one.
pub const MAX_BURST: Range = Range { name: "max_burst", min: 0, max: i64::MAX - 1 };

/// The length of a pause, in the unit of the call.
pub const WAIT: Range = Range { name: "wait", min: 0, max: i64::MAX };

/// A limit: `count` per `period` sustained, `max_burst` on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// `count` per `period`, and thereby `T`.
    rate: Rate,
    /// `D = cost(capacity)`.
    pub(crate) tolerance: Span,
    /// `max_burst + 1`, at least 1: the most that can be admitted at once.
    pub(crate) capacity: i64,
}

impl Limit {
    /// The limit in the three arguments of a call, with `period` in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is not an integer, that is out of range on its own, or
    /// that takes the emission interval below a nanosecond (`count`) or the tolerance above 292 years
    /// (`period`, `max_burst`).
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::{Unit, gcra::Limit};
    /// let one_every_two_seconds = Limit::parse([b"15", b"30", b"60"], Unit::Seconds)?;
    /// assert!(Limit::parse([b"15", b"30", b"0"], Unit::Seconds).is_err());
    /// # Ok::<(), redis_cell_core::Error>(())
    /// ```
    #[inline(always)]
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

    #[inline(always)]
    fn with(max_burst: i64, rate: Rate) -> Result<Self, Error> {
        let limit = max_burst.checked_add(1).filter(|&capacity| capacity >= 1).and_then(|capacity| {
            let tolerance = rate.time(capacity)?;
            Some(Self { rate, tolerance, capacity })
        });
        limit.ok_or_else(|| MAX_BURST.up_to(rate.most().saturating_sub(1)).error())
    }

    /// The time that serving `quantity` units takes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a quantity that is negative or takes longer than 292 years to serve.
    #[inline]
    pub fn cost(&self, quantity: i64) -> Result<Span, Error> {
        self.rate.cost(quantity)
    }

    /// How many whole units fit on top of `debt`.
    fn room(&self, debt: Span) -> i64 {
        self.rate.units(self.tolerance.saturating_sub(debt))
    }

    /// The most that may be owed at once: the time that `max_burst + 1` units take.
    pub const fn tolerance(&self) -> Span {
        self.tolerance
    }

    /// The most that may be owed for one more unit to be admitted.
    fn room_for_one(&self) -> Span {
        self.tolerance.saturating_sub(self.rate.of_one())
    }

    /// The debt at the beginning of a [`pause`] of the length `wait`; `None` above 292 years.
    pub fn debt_of_pause(&self, wait: Span) -> Option<Span> {
        wait.checked_add(self.room_for_one())
    }

    /// How late a client may be admitted to a place that was stored for it ([`queue`](crate::queue)): a tenth
    /// of the time that one unit takes.
    pub(crate) fn lateness(&self) -> Span {
        Span::from_nanos(self.rate.of_one().as_nanos() / 10).unwrap_or(Span::ZERO)
    }

    /// The verdict on a call that costs `cost`, with `debt` owed before it.
    fn verdict(&self, debt: Span, cost: Span) -> Verdict {
        // The most that may be owed before this call; a cost above the tolerance is a quantity above the
        // limit.
        match self.tolerance.checked_sub(cost) {
            None => Verdict::Never,
            Some(most) if debt > most => Verdict::Later(debt.saturating_sub(most)),
            Some(_) => Verdict::Admitted,
        }
    }

    /// The answer of a call that is served, with `debt` owed after it.
    fn admitted(&self, debt: Span) -> Answer {
        Answer {
            verdict: Verdict::Admitted,
            limit: self.capacity,
            remaining: self.room(debt),
            reset_after: debt,
            taken: None,
        }
    }

    /// The answer with this verdict, with `debt` owed after the call.
    fn answer(&self, debt: Span, verdict: Verdict) -> Answer {
        Answer { verdict, ..self.admitted(debt) }
    }
}

/// The state: the theoretical arrival time. It is stored as decimal nanoseconds since the epoch, as
/// brandur/redis-cell does.
pub type Tat = Instant;

/// The content of a key of this limiter, for the error of a key that holds something else.
pub const EXPECTED: &str = "a TAT in nanoseconds since the epoch";

/// How far a TAT may lie from the clock.
///
/// A key that has lost its expiry, or got another, by `PERSIST`, `RESTORE` or `EXPIRE`, is a limiter as
/// before: for a year after its TAT has passed, and however far that is ahead up to a year. A year leaves no
/// room for counters, for times in other units, and hardly any for identifiers of 19 digits.
const NEAR_THE_CLOCK: Span = Span::from_nanos(365 * 86_400_000_000_000).unwrap();

/// How far a TAT further ahead may lie from its key's expiry. A day leaves room for clocks that disagree.
const NEAR_THE_EXPIRY: Span = Span::from_nanos(86_400_000_000_000).unwrap();

/// Reads the stored bytes of a key. `expiry` is called only if the number alone does not decide.
///
/// The bytes are a TAT if they are a decimal integer from 0 to 2^63 - 1, written exactly as the server would,
/// and within a year of `now` or a day of the key's expiry.
///
/// # Errors
/// [`Error::Foreign`] when they are anything else.
#[inline(always)]
pub fn decode(bytes: &[u8], now: Instant, expiry: impl FnOnce() -> Option<Instant>) -> Result<Tat, Error> {
    let near = |tat: Tat, other: Instant, stray| tat.since(other) <= stray && other.since(tat) <= stray;
    let near_the_expiry = |tat| expiry().is_some_and(|expiry| near(tat, expiry, NEAR_THE_EXPIRY));
    parse_integer(bytes)
        .and_then(|nanos| u64::try_from(nanos).ok())
        .and_then(Tat::from_nanos)
        .filter(|&tat| near(tat, now, NEAR_THE_CLOCK) || near_the_expiry(tat))
        .ok_or(Error::Foreign { expected: EXPECTED })
}

/// The debt at `now`: the time that the admitted units still need to be served.
fn debt_at(now: Instant, tat: Option<Tat>) -> Span {
    tat.map_or(Span::ZERO, |tat| tat.since(now))
}

/// The TAT of a limiter that owes `debt` at `now`.
fn tat_at(now: Instant, debt: Span) -> Result<Tat, Error> {
    now.checked_add(debt).ok_or(Error::BeyondTime)
}

/// `CL.THROTTLE`: takes `quantity` units, all or nothing.
///
/// A quantity of 0 checks without taking. One above the limit is never admitted.
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
#[inline(always)]
pub fn throttle(
    state: Option<Tat>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Tat>, Error> {
    let (debt, cost) = (debt_at(now, state), limit.cost(quantity)?);
    let verdict = limit.verdict(debt, cost);
    if verdict.is_limited() || quantity == 0 {
        return Ok(Decision::keep(Answer { verdict, ..limit.admitted(debt) }));
    }
    let need = debt.checked_add(cost).ok_or(Error::BeyondTime)?;
    Ok(Decision::store(limit.admitted(need), tat_at(now, need)?))
}

/// `CL.THROTTLE ... SATURATE`: [takes as much as fits](crate::limiter::Limiter::saturate).
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
    Decision::saturate(quantity, room, |fits| throttle(state, limit, now, fits))
}

/// `CL.PEEK`: the answer that [`throttle`] would give, with `remaining` and `reset_after` of the state as it
/// is.
///
/// # Errors
/// As [`throttle`].
pub fn peek(state: Option<Tat>, limit: &Limit, now: Instant, quantity: i64) -> Result<Answer, Error> {
    let (debt, cost) = (debt_at(now, state), limit.cost(quantity)?);
    let verdict = limit.verdict(debt, cost);
    if !verdict.is_limited() && quantity > 0 {
        // A state that cannot be stored is not admitted.
        tat_at(now, debt.checked_add(cost).ok_or(Error::BeyondTime)?)?;
    }
    Ok(Answer { verdict, ..limit.admitted(debt) })
}

/// `CL.REFUND`: gives `quantity` units back.
///
/// Never gives back more than was taken and never creates a state: a limiter that is full, or becomes full,
/// has none. The answer is [`standing`] after the call.
///
/// # Errors
/// As [`throttle`].
pub fn refund(
    state: Option<Tat>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Tat>, Error> {
    give_back(state, limit, now, limit.cost(quantity)?)
}

/// Gives back the time `back`, at most what is owed.
fn give_back(state: Option<Tat>, limit: &Limit, now: Instant, back: Span) -> Result<Decision<Tat>, Error> {
    let after = debt_at(now, state).saturating_sub(back);
    let answer = standing(limit, after);
    Ok(match state {
        None => Decision::keep(answer),
        Some(_) if back == Span::ZERO => Decision::keep(answer),
        Some(_) if after == Span::ZERO => Decision::delete(answer),
        Some(_) => Decision::store(answer, tat_at(now, after)?),
    })
}

/// `CL.CHARGE`: takes `quantity` units whatever the limit, into debt if necessary.
///
/// For costs that are known only afterwards. The answer is [`standing`] after the call.
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

/// The answer of a call that is never refused. While `debt` is above the tolerance, it is `limited`, and the
/// wait is that of a call for one unit.
#[inline]
fn standing(limit: &Limit, debt: Span) -> Answer {
    let verdict = if debt <= limit.tolerance {
        Verdict::Admitted
    } else {
        Verdict::Later(debt.saturating_sub(limit.room_for_one()))
    };
    limit.answer(debt, verdict)
}

/// `CL.MSETTLE`: settles the `difference` between the units that a call took and the units that it needed.
///
/// A positive difference is charged, a negative one is given back, 0 changes nothing. Where the caller says
/// when the units were `taken`, no more is given back than is [still owed](Taken::still_owed) for them. The
/// answer describes the state after the call, as for [`charge`].
///
/// # Errors
/// [`Error::OutOfRange`] for -2^63 and for a difference that takes longer than 292 years to serve;
/// [`Error::BeyondTime`] as [`throttle`].
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, gcra};
/// let limit = gcra::Limit::new(9, 10, 3600, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let owes_five = now.checked_add(limit.cost(5)?);
/// let settled = gcra::settle(owes_five, &limit, now, -2, None)?;
/// assert_eq!(settled.answer.reply(Unit::Seconds).five, [0, 10, 7, -1, 1080]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn settle(
    state: Option<Tat>,
    limit: &Limit,
    now: Instant,
    difference: i64,
    taken: Option<&Taken>,
) -> Result<Decision<Tat>, Error> {
    if difference >= 0 {
        let out_of_range = |_| crate::DIFFERENCE.up_to(limit.rate.most()).error();
        limit.cost(difference).map_err(out_of_range)?;
        return charge(state, limit, now, difference);
    }
    let quantity = difference.checked_neg().ok_or_else(|| crate::DIFFERENCE.error())?;
    let cost = limit.rate.time(quantity).unwrap_or(Span::MAX);
    let back = taken.map_or(cost, |taken| taken.still_owed(cost).min(cost));
    give_back(state, limit, now, back)
}

/// `CL.PAUSE`: admits nobody before `wait` is over, exactly one unit at its end, and then units at the rate.
///
/// A pause never shortens another: of several, the one that ends last applies. The answer describes the state
/// after the call, as for [`charge`].
///
/// # Errors
/// [`Error::BeyondTime`] when the state would lie past the year 2262.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Span, Unit, gcra};
/// let limit = gcra::Limit::new(9, 10, 3600, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let paused = gcra::pause(None, &limit, now, Span::from_nanos(600_000_000_000).unwrap())?;
/// assert_eq!(paused.answer.reply(Unit::Seconds).five, [1, 10, 0, 600, 3840]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn pause(state: Option<Tat>, limit: &Limit, now: Instant, wait: Span) -> Result<Decision<Tat>, Error> {
    let end = limit.debt_of_pause(wait).ok_or(Error::BeyondTime)?;
    let debt = debt_at(now, state);
    if end <= debt {
        return Ok(Decision::keep(standing(limit, debt)));
    }
    Ok(Decision::store(standing(limit, end), tat_at(now, end)?))
}

/// The lengths of a pause that begins now, in `unit`s: those for which [`pause`] is not an error.
pub fn waits(limit: &Limit, now: Instant, unit: Unit) -> Range {
    let longest = now.left().saturating_sub(limit.room_for_one());
    WAIT.up_to((longest.as_nanos() / unit.nanos()).cast_signed())
}

limiter!(
    Tat,
    throttle,
    fn peek(&self, state: Option<Tat>, now: Instant, quantity: i64) -> Result<Answer, Error> {
        peek(state, self, now, quantity)
    },
    // In nanoseconds, because clients may wait by different limits.
    fn cost(&self, quantity: i64) -> Result<u64, Error> {
        Ok(Self::cost(self, quantity)?.as_nanos())
    },
    fn charged(&self, state: Option<Tat>, now: Instant, costs: u64) -> Result<Option<Tat>, Error> {
        let costs = Span::from_nanos(costs).ok_or(Error::BeyondTime)?;
        state.unwrap_or(now).max(now).checked_add(costs).map(Some).ok_or(Error::BeyondTime)
    }
);

/// How a reservation is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Booking {
    /// The longest acceptable wait; `None` for any.
    pub max_wait: Option<Span>,
    /// Wait as a single unit would, and let the next caller wait for the rest.
    pub prepay: bool,
}

/// `CL.RESERVE`: books `quantity` units and tells how long to wait before acting on them.
///
/// The leaky bucket as a queue. The verdict is [`Booked`](Verdict::Booked) with the wait, zero to act at
/// once. Refused, with nothing booked: when the wait would exceed `max_wait`, [`Later`](Verdict::Later) with
/// that wait; and without `prepay` a quantity above the limit, forever. A quantity of 0 books nothing.
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
        return Ok(Decision::keep(limit.answer(debt, Verdict::Never)));
    }
    let awaited = if booking.prepay { limit.cost(quantity.min(1))? } else { cost };
    let wait = debt.saturating_sub(limit.tolerance.saturating_sub(awaited));
    if booking.max_wait.is_some_and(|max_wait| wait > max_wait) {
        return Ok(Decision::keep(limit.answer(debt, Verdict::Later(wait))));
    }
    let need = debt.checked_add(cost).ok_or(Error::BeyondTime)?;
    let answer = Answer { verdict: Verdict::Booked(wait), ..limit.admitted(need) };
    Ok(if quantity == 0 { Decision::keep(answer) } else { Decision::store(answer, tat_at(now, need)?) })
}
