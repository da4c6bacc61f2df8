//! The bucket, counted in whole units: the funnel by its free space, the token bucket by its tokens.
//!
//! Both are one algorithm seen from two sides. A funnel of `capacity` units leaks one unit every *emission
//! interval* `T = period / count`, which frees room for one more; a bucket of `capacity` tokens gains a token
//! every `T`. Either way there are units *free*, and a call takes some of them. The state is the number of
//! whole units free, and the instant from which the next one is counted: the end of the last whole leak. At
//! the instant `now`:
//!
//! ```text
//! cost(q) = floor(T * q)                      the time that q leaks take
//! n     = the largest n with cost(n) <= now - since; none when `since` lies ahead of the clock
//! free' = min(capacity, free + n)
//! since'= since + cost(n), or now when full   the begun leak goes on; a full bucket has none
//! admitted, free := free' - quantity, since := since',   when quantity <= free'
//! refused, wait since + cost(quantity - free) - now,     otherwise
//! ```
//!
//! # What becomes of fractions
//! `since'` moves by whole leaks only, so no fraction of a unit is lost and none has to be stored. Where `T`
//! is a whole number of nanoseconds, nothing is rounded, and a thousand small steps end where one large step
//! does.
//!
//! Otherwise a leak ends between two nanoseconds, and an instant can hold only one of them. It holds the
//! earlier one: rounded up, each call that finds a leak would lose up to a nanosecond of it, and a busy
//! bucket would be stricter than its limit. Rounded down, each call gains less than a nanosecond, as in GCRA:
//! in a time `W` with `n` admitted calls, at most `capacity + (W + n) * count / period` units are admitted.
//! Refusals and checks store nothing, so their rounding does not add up; for the same reason, their waits are
//! counted from the stored instant.
//!
//! While all units are free, nothing leaks: the first unit taken starts the first leak.
//!
//! The capacity of a bucket is in the call, not in the state. A smaller capacity cuts off what exceeds it; a
//! larger one adds units that become free at the same rate as all others.
//!
//! Apart from these nanoseconds, [`gcra`](crate::gcra) decides the same, and stores the bucket as a single
//! instant. The difference is that this state shows the numbers that the textbooks name.
//!
//! Every decision is O(1) and allocates nothing.
//!
//! Source: the leaky bucket as a meter (ITU-T Recommendation I.371, Annex A), and the token bucket of RFC
//! 2697.

use crate::args::{Arity, Grammar, Range, parse_field, parse_integer};
use crate::limiter::limiter;
use crate::{Answer, Decision, Error, Instant, Rate, Span, Taken, Unit, Verdict};

/// The syntax of a funnel among several limiters: `FUNNEL capacity count period quantity`.
pub const FUNNEL: Grammar = Grammar { word: b"FUNNEL", arguments: Arity::Always(4) };

/// The syntax of a bucket among several limiters: `BUCKET capacity count period quantity`.
pub const BUCKET: Grammar = Grammar { word: b"BUCKET", arguments: Arity::Always(4) };

/// The first number of a limit: the units that the bucket holds.
pub const CAPACITY: Range = Range { name: "capacity", min: 1, max: i64::MAX };

/// A limit: `capacity` at once, `count` per `period` in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    capacity: i64,
    rate: Rate,
}

limiter!(Level, take);

/// The state: whole units free, and the instant from which the next one is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Units that can be taken, not counting units that became free after [`since`](Self::since).
    pub free: i64,
    /// The instant of the last whole leak, or of the first call on a full bucket.
    pub since: Instant,
}

impl Limit {
    /// The limit in the three arguments of a call, with `period` in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is not an integer, that is out of range on its own, or
    /// that takes the emission interval below a nanosecond (`count`) or the time to fill the whole bucket
    /// above 292 years (`capacity`).
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::{Unit, bucket::Limit};
    /// let leaks_every_two_seconds = Limit::parse([b"15", b"30", b"60"], Unit::Seconds)?;
    /// assert_eq!(leaks_every_two_seconds.rate().per_second().to_string(), "0.5");
    /// assert!(Limit::parse([b"0", b"30", b"60"], Unit::Seconds).is_err());
    /// # Ok::<(), redis_cell_core::Error>(())
    /// ```
    #[inline]
    pub fn parse([capacity, count, period]: [&[u8]; 3], unit: Unit) -> Result<Self, Error> {
        Self::with(CAPACITY.parse(capacity)?, Rate::parse([count, period], unit)?)
    }

    /// The limit of `capacity`, and of `count` per `period` units of time.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn new(capacity: i64, count: i64, period: i64, unit: Unit) -> Result<Self, Error> {
        Self::with(capacity, Rate::new(count, period, unit)?)
    }

    fn with(capacity: i64, rate: Rate) -> Result<Self, Error> {
        if capacity >= CAPACITY.min && rate.time(capacity).is_some() {
            Ok(Self { capacity, rate })
        } else {
            Err(CAPACITY.up_to(rate.most()).error())
        }
    }

    /// The most that the bucket holds.
    pub const fn capacity(&self) -> i64 {
        self.capacity
    }

    /// How fast it leaks or refills.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The instant at which a bucket at `level` is full; [`Instant::MAX`] if that is later, which [`take`]
    /// prevents.
    pub fn full_at(&self, level: &Level) -> Instant {
        self.free_at(level, self.capacity).unwrap_or(Instant::MAX)
    }

    /// When a bucket at `level` has `units` free.
    fn free_at(&self, level: &Level, units: i64) -> Result<Instant, Error> {
        // The difference is negative when there are more than enough.
        let missing = units.saturating_sub(level.free).max(0);
        self.rate.time(missing).and_then(|time| level.since.checked_add(time)).ok_or(Error::BeyondTime)
    }

    /// The leaks between `stored` and `now`; `None` when all units are free after them, or were before.
    fn leaks(&self, stored: Option<Level>, now: Instant) -> Option<(Level, i64)> {
        let level = stored?;
        let leaks = self.rate.units(now.since(level.since));
        (leaks < self.capacity.saturating_sub(level.free)).then_some((level, leaks))
    }

    /// The leaks since the last whole one, whose instant is stored rounded down: so a leak that ends between
    /// this nanosecond and the next may count as ended.
    #[inline]
    fn leaked(&self, since: Instant, now: Instant) -> i64 {
        let begun = now.since(since);
        if begun < self.rate.of_one() { 0 } else { self.rate.units(begun) }
    }

    /// The instant of the last of these `leaks`, which have ended by now.
    fn last_leak(&self, level: &Level, leaks: i64, now: Instant) -> Instant {
        self.rate.time(leaks).and_then(|time| level.since.checked_add(time)).unwrap_or(now)
    }

    /// The answer of a call that leaves the state `level` with `remaining` units free.
    fn answer(&self, verdict: Verdict, remaining: i64, level: &Level, now: Instant) -> Result<Answer, Error> {
        let reset_after = self.free_at(level, self.capacity)?.since(now);
        let remaining = remaining.max(0); // below 0 when in debt
        Ok(Answer { verdict, limit: self.capacity, remaining, reset_after, taken: None })
    }

    /// The answer of a call that is never refused: limited while the bucket is in debt, with the wait until
    /// one more unit would be admitted.
    fn standing(&self, free: i64, level: &Level, now: Instant) -> Result<Answer, Error> {
        let verdict =
            if free < 0 { Verdict::Later(self.free_at(level, 1)?.since(now)) } else { Verdict::Admitted };
        self.answer(verdict, free, level, now)
    }
}

/// Reads the two fields of the hash of a funnel or a bucket.
///
/// Each is a decimal integer as the server would write it; the units are below 0 if the limiter is in debt.
/// `None` stands for a missing field.
///
/// # Errors
/// [`Error::Foreign`] with `expected` if a field is missing or is anything else.
pub fn decode(free: Option<&[u8]>, since: Option<&[u8]>, expected: &'static str) -> Result<Level, Error> {
    let since = parse_field(since).and_then(|nanos| Instant::from_nanos(nanos.unsigned_abs()));
    free.and_then(parse_integer)
        .zip(since)
        .map(|(free, since)| Level { free, since })
        .ok_or(Error::Foreign { expected })
}

/// `CL.FUNNEL`, `CL.BUCKET`: takes `quantity` units, all or nothing.
///
/// A quantity of 0 checks without taking. One above the capacity is never admitted.
///
/// # Errors
/// [`Error::OutOfRange`] for a negative quantity, [`Error::BeyondTime`] if the bucket would not be full
/// before the year 2262.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, bucket};
/// let limit = bucket::Limit::new(15, 30, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let first = bucket::take(None, &limit, now, 15)?;
/// assert_eq!(first.answer.reply(Unit::Seconds).five, [0, 15, 0, -1, 30]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn take(
    state: Option<Level>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Level>, Error> {
    if quantity < 0 {
        return Err(crate::QUANTITY.error());
    }
    let full = Level { free: limit.capacity, since: now };
    let (level, leaks) = limit.leaks(state, now).unwrap_or((full, 0));
    let free = level.free.saturating_add(leaks);
    if quantity > free {
        let verdict = if quantity > limit.capacity {
            Verdict::Never
        } else {
            Verdict::Later(limit.free_at(&level, quantity)?.since(now))
        };
        return Ok(Decision::keep(limit.answer(verdict, free, &level, now)?));
    }
    if quantity == 0 {
        return Ok(Decision::keep(limit.answer(Verdict::Admitted, free, &level, now)?));
    }
    let since = limit.last_leak(&level, leaks, now);
    let level = Level { free: free.saturating_sub(quantity), since };
    let free = level.free.saturating_add(limit.leaked(since, now));
    Ok(Decision::store(limit.answer(Verdict::Admitted, free, &level, now)?, level))
}

/// `CL.FUNNEL ... SATURATE` and `CL.BUCKET ... SATURATE`: [takes as much as
/// fits](crate::limiter::Limiter::saturate).
///
/// # Errors
/// As [`take`].
pub fn saturate(
    state: Option<Level>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Level>, Error> {
    let room =
        limit.leaks(state, now).map_or(limit.capacity, |(level, leaks)| level.free.saturating_add(leaks));
    Decision::saturate(quantity, room, |fits| take(state, limit, now, fits))
}

/// `CL.MSETTLE`: settles the `difference` between the units that a call took and the units that it needed.
///
/// A positive difference is charged, below 0 units if need be; a negative one is given back; 0 changes
/// nothing. If the caller says when the units were `taken`, at most as many are given back as leak in the
/// time that is [still owed](Taken::still_owed) for them. The answer describes the state after the call.
///
/// # Errors
/// [`Error::OutOfRange`] for -2^63 and for a difference that takes longer than 292 years to leak;
/// [`Error::BeyondTime`] as [`take`].
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, bucket};
/// let limit = bucket::Limit::new(10, 10, 3600, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let half_full = bucket::Level { free: 5, since: now };
/// let settled = bucket::settle(Some(half_full), &limit, now, 8, None)?;
/// assert_eq!(settled.answer.reply(Unit::Seconds).five, [1, 10, 0, 1440, 4680]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn settle(
    state: Option<Level>,
    limit: &Limit,
    now: Instant,
    difference: i64,
    taken: Option<&Taken>,
) -> Result<Decision<Level>, Error> {
    if difference < crate::DIFFERENCE.min {
        return Err(crate::DIFFERENCE.error());
    }
    let full = Level { free: limit.capacity, since: now };
    let (level, leaks) = limit.leaks(state, now).unwrap_or((full, 0));
    let free = level.free.saturating_add(leaks);
    let after = if difference > 0 {
        limit.rate.time(difference).ok_or_else(|| crate::DIFFERENCE.up_to(limit.rate.most()).error())?;
        free.checked_sub(difference).ok_or(Error::BeyondTime)?
    } else {
        let quantity = difference.saturating_neg();
        let back = taken.map_or(quantity, |taken| {
            let cost = limit.rate.time(quantity).unwrap_or(Span::MAX);
            limit.rate.units(taken.still_owed(cost)).min(quantity)
        });
        free.saturating_add(back).min(limit.capacity)
    };
    if after == free {
        return Ok(Decision::keep(limit.standing(free, &level, now)?));
    }
    if after == limit.capacity {
        return Ok(Decision::delete(limit.standing(after, &full, now)?));
    }
    let since = limit.last_leak(&level, leaks, now);
    let level = Level { free: after, since };
    let after = after.saturating_add(limit.leaked(since, now));
    if after == limit.capacity {
        return Ok(Decision::delete(limit.standing(after, &full, now)?));
    }
    Ok(Decision::store(limit.standing(after, &level, now)?, level))
}
