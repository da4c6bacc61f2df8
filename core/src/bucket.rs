//! The bucket, counted in whole units: the funnel by its free space, the token bucket by its tokens.
//!
//! Both are one algorithm seen from two sides. A funnel of `capacity` units leaks one unit every *emission interval*
//! `T = period / count`, which frees room for one more; a bucket of `capacity` tokens gains a token every `T`. Either
//! way there are units *free*, and a call takes some of them. The state is the number of whole units free, and the
//! instant from which the next one is counted: that of the last whole leak. At the instant `now`:
//!
//! ```text
//! n     = floor((now - since) / T)            whole leaks since then; none when `since` lies ahead of the clock
//! free' = min(capacity, free + n)
//! since'= since + n * T, or now when full     the begun leak goes on; a full bucket has none
//! admitted, free := free' - quantity,   when quantity <= free'
//! refused, wait since' + (quantity - free') * T - now,   otherwise
//! ```
//!
//! `since'` moves by whole leaks only. So no fraction of a unit is lost, none has to be stored, and a thousand small
//! steps end where one large step does. While a bucket is full nothing leaks: the first unit taken starts the first
//! leak.
//!
//! How much a bucket holds is in the call, not in the state. A smaller capacity cuts what exceeds it; a larger one adds
//! room that comes as all room does, by leaking.
//!
//! This decides as [`gcra`](crate::gcra) does, where the same bucket is a single instant; what differs is that a
//! reader of this state finds the numbers that the textbooks name.
//!
//! Source: the leaky bucket as a meter (ITU-T Recommendation I.371, Annex A), and the token bucket of RFC 2697.

use crate::args::parse_field;
use crate::{Answer, Decision, Error, Instant, Range, Rate, Retry, Unit};

/// The first number of a limit: what the bucket holds.
pub const CAPACITY: Range = Range { name: "capacity", min: 1, max: i64::MAX };

/// A limit: `capacity` at once, `count` per `period` in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    capacity: i64,
    rate: Rate,
}

/// The state: whole units free, and the instant from which the next one is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Units that can be taken, without those that have come since [`since`](Self::since).
    pub free: i64,
    /// The instant of the last whole leak, or of the first call on a full bucket.
    pub since: Instant,
}

impl Limit {
    /// The limit that the three arguments of a call spell, `period` being in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is no integer, that is out of range on its own, or that takes
    /// the emission interval below a nanosecond (`count`) or the time to fill the whole bucket above 292 years
    /// (`capacity`).
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::{Unit, bucket::Limit};
    /// let leaks_every_two_seconds = Limit::parse([b"15", b"30", b"60"], Unit::Seconds)?;
    /// assert_eq!(leaks_every_two_seconds.rate().per_second().to_string(), "0.5");
    /// assert!(Limit::parse([b"0", b"30", b"60"], Unit::Seconds).is_err());
    /// # Ok::<(), redis_cell_core::Error>(())
    /// ```
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
        let held = CAPACITY.up_to(rate.most());
        if capacity < held.min || capacity > held.max {
            Err(held.error())
        } else {
            Ok(Self { capacity, rate })
        }
    }

    /// What the bucket holds.
    pub const fn capacity(&self) -> i64 {
        self.capacity
    }

    /// How fast it leaks or refills.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// When a bucket that stands at `level` is full; the last instant there is when that is later, which [`take`] does
    /// not let happen.
    pub fn full_at(&self, level: &Level) -> Instant {
        self.free_at(level, self.capacity).unwrap_or(Instant::MAX)
    }

    /// When a bucket that stands at `level` has `units` free.
    fn free_at(&self, level: &Level, units: i64) -> Result<Instant, Error> {
        // Fewer than none are missing when there are more than enough.
        let missing = units.saturating_sub(level.free).max(0);
        self.rate.time(missing).and_then(|time| level.since.checked_add(time)).ok_or(Error::BeyondTime)
    }

    /// What `stored` has become by `now`.
    fn level(&self, stored: Option<Level>, now: Instant) -> Level {
        let full = Level { free: self.capacity, since: now };
        let Some(Level { free, since }) = stored else { return full };
        let leaked = self.rate.units(now.since(since));
        if leaked >= self.capacity.saturating_sub(free) {
            return full;
        }
        // As many whole leaks as fit between `since` and `now`: the sum is not past `now`.
        let since = self.rate.time(leaked).and_then(|time| since.checked_add(time)).unwrap_or(now);
        Level { free: free.saturating_add(leaked), since }
    }

    /// The answer of a call that is served, the bucket standing at `level` after it.
    fn admitted(&self, level: &Level, now: Instant) -> Result<Answer, Error> {
        Ok(Answer {
            limited: false,
            limit: self.capacity,
            remaining: level.free,
            retry_after: Retry::Never,
            reset_after: self.free_at(level, self.capacity)?.since(now),
            taken: None,
        })
    }
}

/// What a hash of a funnel or a bucket holds: its two fields.
///
/// Each is the decimal integer from 0 to 2^63 - 1 that the server would write; `None` stands for a missing field.
///
/// # Errors
/// [`Error::Foreign`], saying that `expected` was expected, when a field is missing or anything else.
pub fn decode(free: Option<&[u8]>, since: Option<&[u8]>, expected: &'static str) -> Result<Level, Error> {
    let since = parse_field(since).and_then(|nanos| Instant::from_nanos(nanos.unsigned_abs()));
    parse_field(free).zip(since).map(|(free, since)| Level { free, since }).ok_or(Error::Foreign { expected })
}

/// `CL.FUNNEL`, `CL.BUCKET`: takes `quantity` units, all or none.
///
/// A quantity of 0 looks without taking. One above the capacity is refused for ever.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a negative quantity, [`Error::BeyondTime`] when the bucket would be full past the year
/// 2262 only.
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
    let level = limit.level(state, now);
    if quantity > level.free {
        let retry_after = if quantity > limit.capacity {
            Retry::Never
        } else {
            Retry::After(limit.free_at(&level, quantity)?.since(now))
        };
        return Ok(Decision::keep(Answer { limited: true, retry_after, ..limit.admitted(&level, now)? }));
    }
    if quantity == 0 {
        return Ok(Decision::keep(limit.admitted(&level, now)?));
    }
    let level = Level { free: level.free.saturating_sub(quantity), ..level };
    Ok(Decision::store(limit.admitted(&level, now)?, level))
}
