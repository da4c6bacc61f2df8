//! Rates: so many units per period, as one whole number of nanoseconds per unit.

use core::fmt;
use core::num::{NonZeroU64, NonZeroU128};

use crate::{Error, Range, Span, Unit};

/// The number of a limit that says how many units a period brings.
pub const COUNT: Range = Range { name: "count", min: 1, max: i64::MAX };
/// The number of a limit that says how long the period is, in the unit of the call.
pub const PERIOD: Range = Range { name: "period", min: 1, max: i64::MAX };

/// `count` units per `period`, one every *emission interval* `T = period / count`.
///
/// `T` is rounded down to whole nanoseconds, so that a limit is never stricter than asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: NonZeroU64,
    period: NonZeroU64,
    emission_interval: NonZeroU64,
}

impl Rate {
    /// The rate that two arguments of a call spell, `period` being in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is no integer, that is out of range on its own, or that takes
    /// the emission interval below a nanosecond (`count`).
    pub fn parse([count, period]: [&[u8]; 2], unit: Unit) -> Result<Self, Error> {
        Self::new(COUNT.parse(count)?, PERIOD.up_to(unit.max()).parse(period)?, unit)
    }

    /// `count` units per `period` units of time.
    ///
    /// # Errors
    /// As [`Rate::parse`].
    pub fn new(count: i64, period: i64, unit: Unit) -> Result<Self, Error> {
        let period = period_of(period, unit)?;
        let fastest = COUNT.up_to(period.get().cast_signed());
        let count = u64::try_from(count).ok().and_then(NonZeroU64::new).ok_or_else(|| fastest.error())?;
        let emission_interval = NonZeroU64::new(period.get() / count).ok_or_else(|| fastest.error())?;
        Ok(Self { count, period, emission_interval })
    }

    /// The time that one unit takes.
    pub fn of_one(&self) -> Span {
        // A period is at most 2^63 - 1 nanoseconds, so a part of it is no more.
        Span::from_nanos(self.emission_interval.get()).unwrap_or_default()
    }

    /// The time that `units` take, or `None` when they are fewer than none or take longer than 292 years.
    pub fn time(&self, units: i64) -> Option<Span> {
        let units = u64::try_from(units).ok()?;
        units.checked_mul(self.emission_interval.get()).and_then(Span::from_nanos)
    }

    /// How many whole units `time` brings.
    pub fn units(&self, time: Span) -> i64 {
        // At most 2^63 - 1, so the sign bit is free.
        (time.as_nanos() / self.emission_interval).cast_signed()
    }

    /// The most units whose time a [`Span`] can hold.
    pub fn most(&self) -> i64 {
        (i64::MAX.unsigned_abs() / self.emission_interval).cast_signed()
    }

    /// The time that a call's quantity takes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a quantity that is negative or takes longer than 292 years.
    pub fn cost(&self, quantity: i64) -> Result<Span, Error> {
        self.time(quantity).ok_or_else(|| crate::QUANTITY.up_to(self.most()).error())
    }

    /// Units per second, as text for people.
    pub fn per_second(&self) -> PerSecond {
        PerSecond::of(self)
    }
}

/// The length of a period in nanoseconds.
pub(crate) fn period_of(units: i64, unit: Unit) -> Result<NonZeroU64, Error> {
    let units = u64::try_from(units).ok();
    let span = units.and_then(|units| Span::from_units(units, unit));
    span.and_then(|span| NonZeroU64::new(span.as_nanos())).ok_or_else(|| PERIOD.up_to(unit.max()).error())
}

/// A rate as a decimal number of units per second, cut off behind nine digits. For people: nothing is computed from it.
#[derive(Clone, Copy, Debug)]
pub struct PerSecond {
    /// The digits, from the back.
    text: [u8; 20],
    start: usize,
}

impl PerSecond {
    /// By hand, because every call on a funnel writes it: the formatter takes five times as long.
    fn of(rate: &Rate) -> Self {
        const DIGITS: u64 = 1_000_000_000;
        // count < 2^63 and 10^18 < 2^60: 123 bits. At most one unit per nanosecond: 10^18 billionths a second.
        let scaled = u128::from(rate.count.get()).saturating_mul(u128::from(DIGITS).pow(2));
        let billionths = u64::try_from(scaled / NonZeroU128::from(rate.period)).unwrap_or(u64::MAX);
        let (mut whole, mut fraction) = (billionths / DIGITS, billionths % DIGITS);
        // Ten digits, a point, and nine more at the most.
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

    /// Puts a byte before the others.
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

/// Takes the last decimal digit off a number.
fn digit(number: &mut u64) -> u8 {
    let digit = u8::try_from(*number % 10).unwrap_or_default();
    *number /= 10;
    b'0'.saturating_add(digit)
}
