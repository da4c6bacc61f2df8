//! Windows: so many units in a stretch of time, counted.
//!
//! # The fixed window
//! Opens with the first admitted call, lasts for the period, and admits `limit` units until it ends. The state is a
//! count and the end. Keys expire at whole milliseconds, and so windows end there: a window opens at the beginning of the
//! millisecond in which it is first used, and a period that is no whole number of milliseconds is rounded up to one. Nothing is carried over: a caller who spends one window's units at its end and the next one's at
//! its beginning gets up to `2 * limit` within less than a period.
//!
//! # The sliding window
//! Keeps two counts, that of the present window and that of the one before. Windows start at multiples of the period
//! since the epoch. The last `period` before now covers the present window as far as it has passed, and the end of the
//! previous one; what the latter weighs is its count in proportion to that part:
//!
//! ```text
//! estimate = current + ceil(previous * (period - elapsed) / period)
//! admitted, current := current + quantity,   when estimate + quantity <= limit
//! refused until the estimate has fallen far enough, otherwise
//! ```
//!
//! The estimate takes the previous window's calls for evenly spread. Where they were, it is exact but for rounding up.
//! Where they were not, it errs, at the most:
//!
//! - by `ceil(previous * (period - elapsed) / period)`, too high, when all of them came early and none is in the last
//!   period any more: callers wait for longer than an exact log would let them
//! - by `floor(previous * elapsed / period)`, too low, when all of them came late and all still are in it
//!
//! From the latter follows what is really admitted. `current` is at most `limit - ceil(previous * (period - elapsed) /
//! period)`, so any period that reaches into the previous window holds at most
//! `limit + floor(previous * elapsed / period)` units: never `2 * limit`, and `2 * limit - 1` only for a caller who
//! spends one whole limit at the very end of a window and the next at the very end of the next. A window itself never
//! holds more than `limit`, nor does the long run: `n` whole windows admit at most `n * limit`.
//!
//! The estimate only falls while nobody is admitted, also across the end of a window: there the previous count goes,
//! and the present one becomes the previous with its full weight, which it had before. That is why the exact wait is a
//! closed form: the first instant at which the weight that may remain is not exceeded, in this window or else in the
//! next.
//!
//! Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains" (2017), which measured
//! the estimate against an exact log; here in integers and rounded up.

use core::num::NonZeroU64;

use crate::args::parse_field;
use crate::rate::period_of;
use crate::{Answer, Decision, Error, Instant, PERIOD, Range, Retry, Span, Unit, gcra};

/// The first number of a limit: units per window.
pub const LIMIT: Range = Range { name: "limit", min: 1, max: i64::MAX };

/// A limit: so many units per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    most: i64,
    period: NonZeroU64,
    unit: Unit,
}

impl Limit {
    /// The limit that the two arguments of a call spell, `period` being in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is no integer or that is out of range.
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::{Unit, window::Limit};
    /// assert!(Limit::parse([b"5", b"60"], Unit::Seconds).is_ok());
    /// assert!(Limit::parse([b"0", b"60"], Unit::Seconds).is_err());
    /// ```
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
        // It came from a Span.
        Span::from_nanos(self.period.get()).unwrap_or_default()
    }

    /// Checks that `periods` of them fit between `now` and the last millisecond that there is.
    fn fits(&self, now: Instant, periods: u64) -> Result<(), Error> {
        let left = LAST.since(now).as_nanos();
        let longest = left.checked_div(periods).unwrap_or(left);
        if self.period.get() <= longest {
            return Ok(());
        }
        Err(PERIOD.up_to((longest / self.unit.nanos()).cast_signed()).error())
    }

    /// The answer of a call that is served, `used` being what counts after it.
    fn admitted(&self, used: i64, reset_after: Span) -> Answer {
        Answer {
            limited: false,
            limit: self.most,
            remaining: self.most.saturating_sub(used).max(0),
            retry_after: Retry::Never,
            reset_after,
            taken: None,
        }
    }

    /// The answer of a call for `quantity` that is not served.
    fn refused(&self, used: i64, reset_after: Span, quantity: i64, wait: Span) -> Answer {
        let retry_after = if quantity > self.most { Retry::Never } else { Retry::After(wait) };
        Answer { limited: true, retry_after, ..self.admitted(used, reset_after) }
    }
}

/// The last whole millisecond, the last at which a key can expire.
const LAST: Instant = Instant::from_nanos(9_223_372_036_854_000_000).unwrap();

/// A fixed window: what it has admitted, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Units admitted.
    pub count: i64,
    /// The first instant that is not in the window any more: a whole millisecond, when its key expires.
    pub end: Instant,
}

impl Counter {
    /// What a key of this limiter holds, for the error of one that does not.
    pub const EXPECTED: &str = "a count that expires with its window";

    /// Reads the stored bytes of a key that expires at `expiry`.
    ///
    /// # Errors
    /// [`Error::Foreign`] when they are no decimal integer from 0 to 2^63 - 1, when the key does not expire, or when
    /// they are the state of GCRA.
    pub fn decode(bytes: &[u8], now: Instant, expiry: Option<Instant>) -> Result<Self, Error> {
        let is_tat = gcra::decode(bytes, now, || expiry).is_ok();
        let count = parse_field(Some(bytes)).filter(|_| !is_tat);
        count
            .zip(expiry)
            .map(|(count, end)| Self { count, end })
            .ok_or(Error::Foreign { expected: Self::EXPECTED })
    }
}

/// `CL.FIXED`: takes `quantity` units of a fixed window, all or none.
///
/// A quantity of 0 looks without taking and opens no window. One above the limit is refused for ever. Another limit
/// applies at once, another period from the next window on.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a negative quantity, and for a period that reaches past the year 2262.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, window};
/// let limit = window::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let first = window::fixed(None, &limit, now, 3)?;
/// assert_eq!(first.answer.reply(Unit::Seconds).five, [0, 5, 2, -1, 60]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn fixed(
    state: Option<Counter>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Counter>, Error> {
    if quantity < 0 {
        return Err(crate::QUANTITY.error());
    }
    limit.fits(now, 1)?;
    // A window in which nothing was admitted has not been opened.
    let window = state.filter(|window| window.count > 0 && now < window.end);
    let (used, left) = window.map_or((0, Span::ZERO), |window| (window.count, window.end.since(now)));
    if quantity == 0 {
        return Ok(Decision::keep(limit.admitted(used, left)));
    }
    let Some(count) = used.checked_add(quantity).filter(|&count| count <= limit.most) else {
        return Ok(Decision::keep(limit.refused(used, left, quantity, left)));
    };
    let opened = || {
        now.floor_to_millis()
            .checked_add(limit.period())
            .and_then(Instant::ceil_to_millis)
            .ok_or(Error::BeyondTime)
    };
    let end = window.map_or_else(opened, |window| Ok(window.end))?;
    Ok(Decision::store(limit.admitted(count, end.since(now)), Counter { count, end }))
}

/// A sliding window: what was admitted in the present window and in the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// When the present window began.
    pub start: Instant,
    /// Units admitted since.
    pub current: i64,
    /// Units admitted in the window before.
    pub previous: i64,
}

impl Sliding {
    /// What a key of this limiter holds, for the error of one that does not.
    pub const EXPECTED: &str = "a hash with the fields window, current and previous";

    /// Reads the fields of a hash; `None` stands for one that is missing.
    ///
    /// # Errors
    /// [`Error::Foreign`] when a field is missing or no decimal integer from 0 to 2^63 - 1.
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

    /// When nothing of it counts any more; the last instant there is when that is later, which [`sliding`] does not let
    /// happen.
    pub fn gone_at(&self, limit: &Limit) -> Instant {
        self.reset_at(limit, self.start).unwrap_or(Instant::MAX)
    }

    /// What `stored` has become by `now`.
    fn at(stored: Option<Self>, limit: &Limit, now: Instant) -> Self {
        let start = limit.window_of(now);
        let fresh = Self { start, current: 0, previous: 0 };
        match stored {
            // Also one that lies ahead, after trouble with the clock: it is what was counted last.
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

    /// What counts at `now`.
    fn estimate(&self, limit: &Limit, now: Instant) -> i64 {
        let ahead = limit.period().saturating_sub(now.since(self.start));
        self.current.saturating_add(limit.weight(self.previous, ahead))
    }

    /// When nothing counts any more.
    fn reset_at(&self, limit: &Limit, now: Instant) -> Result<Instant, Error> {
        match self {
            Self { current: 1.., .. } => {
                self.end(limit)?.checked_add(limit.period()).ok_or(Error::BeyondTime)
            }
            Self { previous: 1.., .. } => self.end(limit),
            _ => Ok(now),
        }
    }

    /// The first instant at which `quantity`, at most the limit, is admitted if nobody else is.
    fn admits_at(&self, limit: &Limit, quantity: i64) -> Result<Instant, Error> {
        let room = limit.most.saturating_sub(quantity);
        let end = self.end(limit)?;
        // In this window, once what is previous weighs no more than the present count leaves it ...
        if let Some(left) = room.checked_sub(self.current).filter(|&left| left >= 0)
            && let Some(at) = self.start.checked_add(limit.faded(self.previous, left)).filter(|&at| at < end)
        {
            return Ok(at);
        }
        // ... or in the next, where the present count is the previous one.
        end.checked_add(limit.faded(self.current, room)).ok_or(Error::BeyondTime)
    }
}

impl Limit {
    /// The start of the window that `instant` lies in.
    fn window_of(&self, instant: Instant) -> Instant {
        let into = Span::from_nanos(instant.as_nanos() % self.period).unwrap_or_default();
        instant.saturating_sub(into)
    }

    /// What `count` units weigh of whose window the part `ahead` is in the last period, rounded up.
    fn weight(&self, count: i64, ahead: Span) -> i64 {
        // Both factors are below 2^63, and a period is not zero. `ahead` is at most the period, so the quotient at most
        // `count`.
        let product = u128::from(count.unsigned_abs()).saturating_mul(ahead.as_nanos().into());
        i64::try_from(product.div_ceil(self.period.get().into())).unwrap_or(count)
    }

    /// How long after the start of the present window `count` units of the previous one weigh no more than `left`.
    fn faded(&self, count: i64, left: i64) -> Span {
        // ceil(count * ahead / period) <= left, that is, ahead <= left * period / count.
        let product = u128::from(left.unsigned_abs()).saturating_mul(self.period.get().into());
        let ahead =
            product.checked_div(count.unsigned_abs().into()).and_then(|ahead| u64::try_from(ahead).ok());
        let ahead = ahead.and_then(Span::from_nanos).unwrap_or(self.period());
        self.period().saturating_sub(ahead)
    }
}

/// `CL.WINDOW`: takes `quantity` units of a sliding window, all or none.
///
/// A quantity of 0 looks without taking. One above the limit is refused for ever. Another limit applies at once;
/// another period too, with the counts as they stand.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a negative quantity, and for a period two of which reach past the year 2262;
/// [`Error::BeyondTime`] when a stored window lies that far ahead.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, window};
/// let limit = window::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_040_000_000_000).unwrap(); // a multiple of 60 s
/// let first = window::sliding(None, &limit, now, 5)?;
/// assert_eq!(first.answer.reply(Unit::Seconds).five, [0, 5, 0, -1, 120]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn sliding(
    state: Option<Sliding>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Sliding>, Error> {
    if quantity < 0 {
        return Err(crate::QUANTITY.error());
    }
    limit.fits(now, 2)?;
    let window = Sliding::at(state, limit, now);
    let used = window.estimate(limit, now);
    let reset_after = window.reset_at(limit, now)?.since(now);
    if quantity == 0 {
        return Ok(Decision::keep(limit.admitted(used, reset_after)));
    }
    let Some(used_after) = used.checked_add(quantity).filter(|&used| used <= limit.most) else {
        let wait =
            if quantity > limit.most { Span::ZERO } else { window.admits_at(limit, quantity)?.since(now) };
        return Ok(Decision::keep(limit.refused(used, reset_after, quantity, wait)));
    };
    let window = Sliding { current: window.current.saturating_add(quantity), ..window };
    let reset_after = window.reset_at(limit, now)?.since(now);
    Ok(Decision::store(limit.admitted(used_after, reset_after), window))
}
