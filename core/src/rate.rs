//! Rates: units per period, an exact fraction.
//!
//! A unit takes the *emission interval* `T = period / count`, which need not be a whole number of
//! nanoseconds: at 600 million a second it is 5/3 of one. So `T` itself is never rounded. Only the time that
//! a whole quantity takes is rounded, to a whole nanosecond and once for each call:
//!
//! ```text
//! cost(q) = floor(q * period / count)
//! ```
//!
//! Because this is rounded down, a limit is never stricter than requested, and a call is forgiven less than a
//! nanosecond. If `T` were rounded, each unit would be forgiven that much: 600 million a second would become
//! a billion.
//!
//! As `T` is at least a nanosecond, a larger quantity takes longer. So there is a largest quantity that fits
//! into a given time, and it is the inverse of the cost:
//!
//! ```text
//! units(t) = max { q : cost(q) <= t } = floor(((t + 1) * count - 1) / period)
//! ```
//!
//! Proved for all inputs in `verify/proofs`: `cost_and_units_are_inverse`, `nothing_wraps` and
//! `a_whole_interval_is_the_same`.
//!
//! Nearly every limit has a whole `T`: then both are computed with 64 bits, as a product and a quotient.
//! Otherwise they take up to 127 bits.

use core::fmt;
use core::num::{NonZeroU64, NonZeroU128};

use crate::args::{QUANTITY, Range};
use crate::error::Error;
use crate::time::{Span, Unit};

/// The number of units that become available in a period.
pub const COUNT: Range = Range { name: "count", min: 1, max: i64::MAX };
/// The length of the period, in the unit of the call.
pub const PERIOD: Range = Range { name: "period", min: 1, max: i64::MAX };

/// `count` units per `period`, one every *emission interval* `T = period / count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: NonZeroU64,
    period: NonZeroU64,
    /// `T`, where it is a whole number of nanoseconds.
    whole_interval: Option<NonZeroU64>,
}

impl Rate {
    /// The rate given by two arguments of a call, with `period` in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is not an integer, that is out of range on its own, or
    /// that takes the emission interval below a nanosecond (`count`).
    #[inline(always)]
    pub fn parse([count, period]: [&[u8]; 2], unit: Unit) -> Result<Self, Error> {
        Self::new(COUNT.parse(count)?, PERIOD.up_to(unit.max()).parse(period)?, unit)
    }

    /// `count` units per `period` units of time.
    ///
    /// # Errors
    /// As [`Rate::parse`].
    #[inline(always)]
    pub fn new(count: i64, period: i64, unit: Unit) -> Result<Self, Error> {
        let period = period_of(period, unit)?;
        let fastest = COUNT.up_to(period.get().cast_signed());
        let count = u64::try_from(count).ok().and_then(NonZeroU64::new).ok_or_else(|| fastest.error())?;
        let (interval, rest) = (period.get() / count, period.get() % count);
        let interval = NonZeroU64::new(interval).ok_or_else(|| fastest.error())?;
        Ok(Self { count, period, whole_interval: Some(interval).filter(|_| rest == 0) })
    }

    /// The time that `units` take, rounded down to a nanosecond, or `None` if `units` is negative or they
    /// take longer than 292 years.
    #[inline]
    pub fn time(&self, units: i64) -> Option<Span> {
        let units = u64::try_from(units).ok()?;
        let nanos = match self.whole_interval {
            Some(interval) => units.checked_mul(interval.get())?,
            None => scale(units, self.period, self.count)?,
        };
        Span::from_nanos(nanos)
    }

    /// The most units that take no longer than `time`.
    #[inline]
    pub fn units(&self, time: Span) -> i64 {
        let time = time.as_nanos();
        let units = match self.whole_interval {
            Some(interval) => time / interval,
            None => self.fractional_units(time),
        };
        // At most a unit per nanosecond of at most 2^63 - 1, so the sign bit is free.
        units.cast_signed()
    }

    /// [`units`](Self::units) where `T` is not a whole number of nanoseconds.
    #[cold]
    fn fractional_units(&self, time: u64) -> u64 {
        // ((t + 1) * count - 1) / period, where t + 1 is at most 2^63.
        let times = time.saturating_add(1);
        if let Some(product) = times.checked_mul(self.count.get()) {
            return product.saturating_sub(1) / self.period;
        }
        let product = u128::from(times).saturating_mul(self.count.get().into()).saturating_sub(1);
        u64::try_from(product / NonZeroU128::from(self.period)).unwrap_or(u64::MAX)
    }

    /// The time that one unit takes, rounded down to a nanosecond.
    pub fn of_one(&self) -> Span {
        // At most the period.
        self.time(1).unwrap_or_default()
    }

    /// The most units whose time a [`Span`] can hold.
    pub fn most(&self) -> i64 {
        self.units(Span::MAX)
    }

    /// The time that a call's quantity takes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a quantity that is negative or takes longer than 292 years.
    #[inline]
    pub fn cost(&self, quantity: i64) -> Result<Span, Error> {
        self.time(quantity).ok_or_else(|| self.quantity_error())
    }

    #[cold]
    fn quantity_error(&self) -> Error {
        QUANTITY.up_to(self.most()).error()
    }

    /// Units per second, as text for people to read.
    pub fn per_second(&self) -> PerSecond {
        PerSecond::of(self)
    }
}

/// `factor * numerator / denominator`, rounded down; `None` above 2^64 - 1.
#[cold]
fn scale(factor: u64, numerator: NonZeroU64, denominator: NonZeroU64) -> Option<u64> {
    if let Some(product) = factor.checked_mul(numerator.get()) {
        return Some(product / denominator);
    }
    let product = u128::from(factor).saturating_mul(numerator.get().into());
    u64::try_from(product / NonZeroU128::from(denominator)).ok()
}

/// The length of a period in nanoseconds.
pub(crate) fn period_of(units: i64, unit: Unit) -> Result<NonZeroU64, Error> {
    let units = u64::try_from(units).ok();
    let span = units.and_then(|units| Span::from_units(units, unit));
    span.and_then(|span| NonZeroU64::new(span.as_nanos())).ok_or_else(|| PERIOD.up_to(unit.max()).error())
}

/// A rate as a decimal number of units per second, truncated after nine digits. For people to read: nothing
/// is computed from it.
#[derive(Clone, Copy, Debug)]
pub struct PerSecond {
    /// The digits, right-aligned.
    text: [u8; 20],
    start: usize,
}

impl PerSecond {
    /// Formatted by hand, because every call of a funnel writes it and the standard formatter takes five
    /// times as long.
    fn of(rate: &Rate) -> Self {
        const DIGITS: u64 = 1_000_000_000;
        // count < 2^63 and 10^18 < 2^60: 123 bits. At most one unit per nanosecond: 10^18 billionths a
        // second.
        let scaled = u128::from(rate.count.get()).saturating_mul(u128::from(DIGITS).pow(2));
        let billionths = u64::try_from(scaled / NonZeroU128::from(rate.period)).unwrap_or(u64::MAX);
        let (mut whole, mut fraction) = (billionths / DIGITS, billionths % DIGITS);
        // Ten digits, a point, and at most nine more.
        let mut this = Self { text: [b'0'; 20], start: 20 };
        if fraction != 0 {
            let mut width: u32 = 9;
            while fraction % 10 == 0 {
                fraction /= 10;
                width = width.saturating_sub(1);
            }
            for _ in 0..width {
                this.put(digit(&mut fraction));
            }
            this.put(b'.');
        }
        this.put(digit(&mut whole));
        while whole > 0 {
            this.put(digit(&mut whole));
        }
        this
    }

    /// Prepends a byte.
    fn put(&mut self, byte: u8) {
        self.start = self.start.saturating_sub(1);
        if let Some(place) = self.text.get_mut(self.start) {
            *place = byte;
        }
    }

    /// The number as text.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.get(self.start..).unwrap_or_default()
    }
}

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(self.as_bytes()).unwrap_or_default())
    }
}

/// Removes the last decimal digit of a number and returns it.
fn digit(number: &mut u64) -> u8 {
    let digit = u8::try_from(*number % 10).unwrap_or_default();
    *number /= 10;
    b'0'.saturating_add(digit)
}
