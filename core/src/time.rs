//! Instants, spans and units of time: integer nanoseconds, checked arithmetic only.

use core::num::NonZeroU64;

/// The last representable nanosecond: the maximum of redis-cell's signed 64-bit state, in the year 2262.
const MAX_NANOS: u64 = i64::MAX.unsigned_abs();

/// A point in time by the wall clock.
///
/// Nanoseconds since the Unix epoch, from 0 to 2^63 - 1 (the year 2262).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

/// A length of time.
///
/// Nanoseconds, from 0 to 2^63 - 1 (292 years).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

/// A stretch of time between two steps of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When it began, by the clock as it is now.
    pub from: Instant,
    /// When it ended, by the clock as it is now.
    pub until: Instant,
    /// By how much the clock was set back since: a whole number of milliseconds.
    pub step: Span,
}

/// The unit of the times in a call and in its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Unit {
    /// `S`, the default.
    #[default]
    Seconds,
    /// `MS`
    Milliseconds,
    /// `US`
    Microseconds,
}

impl Instant {
    /// The last instant that can be represented, in the year 2262.
    pub const MAX: Self = Self(MAX_NANOS);

    /// The instant `nanos` nanoseconds after the Unix epoch, or `None` past the year 2262.
    pub const fn from_nanos(nanos: u64) -> Option<Self> {
        if nanos <= MAX_NANOS { Some(Self(nanos)) } else { None }
    }

    /// The instant nearest to `nanos` nanoseconds after the Unix epoch.
    ///
    /// For readings of a clock, which may show any time but must not stop the limiter.
    pub const fn saturating_from_nanos(nanos: u64) -> Self {
        if nanos <= MAX_NANOS { Self(nanos) } else { Self(MAX_NANOS) }
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded up: the first expiry time not before this instant.
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The last whole millisecond not after this instant.
    #[must_use]
    pub const fn floor_to_millis(self) -> Self {
        Self(self.0.div_euclid(1_000_000).saturating_mul(1_000_000))
    }

    /// The first whole millisecond not before this instant, or `None` past the year 2262.
    pub const fn ceil_to_millis(self) -> Option<Self> {
        match self.as_millis_ceil().checked_mul(1_000_000) {
            Some(nanos) => Self::from_nanos(nanos),
            None => None,
        }
    }

    /// The instant `micros` microseconds after the Unix epoch, or `None` past the year 2262.
    pub const fn from_micros(micros: u64) -> Option<Self> {
        match micros.checked_mul(1_000) {
            Some(nanos) => Self::from_nanos(nanos),
            None => None,
        }
    }

    /// Microseconds since the Unix epoch, rounded down.
    pub const fn as_micros(self) -> u64 {
        self.0.div_euclid(1_000)
    }

    /// Microseconds since the Unix epoch, rounded up.
    pub const fn as_micros_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// The time from `earlier` to `self`, zero when `earlier` is the later one.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The time from `self` to the last instant that can be represented, in the year 2262.
    pub const fn left(self) -> Span {
        Span(MAX_NANOS.saturating_sub(self.0))
    }

    /// The instant `span` later, or `None` past the year 2262.
    pub const fn checked_add(self, span: Span) -> Option<Self> {
        match self.0.checked_add(span.0) {
            Some(nanos) => Self::from_nanos(nanos),
            None => None,
        }
    }

    /// The instant `span` earlier, or `None` before the epoch.
    pub const fn checked_sub(self, span: Span) -> Option<Self> {
        match self.0.checked_sub(span.0) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// The instant `span` earlier, the epoch at the earliest.
    #[must_use]
    pub const fn saturating_sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Span {
    /// The span of length zero.
    pub const ZERO: Self = Self(0);

    /// The shortest span above zero.
    pub const NANOSECOND: Self = Self(1);

    /// The longest span that can be represented, 292 years.
    pub const MAX: Self = Self(MAX_NANOS);

    /// A span of `nanos` nanoseconds, or `None` above 292 years.
    pub const fn from_nanos(nanos: u64) -> Option<Self> {
        if nanos <= MAX_NANOS { Some(Self(nanos)) } else { None }
    }

    /// A span of `count` units, or `None` above 292 years.
    pub const fn from_units(count: u64, unit: Unit) -> Option<Self> {
        match count.checked_mul(unit.nanos().get()) {
            Some(nanos) => Self::from_nanos(nanos),
            None => None,
        }
    }

    /// The length in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The length in whole units, rounded up: a remainder of a single nanosecond counts as a unit.
    ///
    /// Proved for all inputs in `verify/proofs`: `rounded_waits_are_long_enough`.
    pub const fn ceil_to(self, unit: Unit) -> i64 {
        // At most 2^63 - 1, so the sign bit is free.
        match unit {
            Unit::Seconds => self.0.div_ceil(const { Unit::Seconds.nanos().get() }),
            Unit::Milliseconds => self.0.div_ceil(const { Unit::Milliseconds.nanos().get() }),
            Unit::Microseconds => self.0.div_ceil(const { Unit::Microseconds.nanos().get() }),
        }
        .cast_signed()
    }

    /// `self + other`, or `None` above 292 years.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(nanos) => Self::from_nanos(nanos),
            None => None,
        }
    }

    /// `self - other`, or `None` when `other` is the longer one.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// `self - other`, zero when `other` is the longer one.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Unit {
    /// The unit that `token` stands for, in upper or lower case.
    pub const fn parse(token: &[u8]) -> Option<Self> {
        match token {
            [b'S' | b's'] => Some(Self::Seconds),
            [b'M' | b'm', b'S' | b's'] => Some(Self::Milliseconds),
            [b'U' | b'u', b'S' | b's'] => Some(Self::Microseconds),
            _ => None,
        }
    }

    /// Nanoseconds in one unit.
    pub const fn nanos(self) -> NonZeroU64 {
        const SECOND: NonZeroU64 = NonZeroU64::new(1_000_000_000).unwrap();
        const MILLISECOND: NonZeroU64 = NonZeroU64::new(1_000_000).unwrap();
        const MICROSECOND: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
        match self {
            Self::Seconds => SECOND,
            Self::Milliseconds => MILLISECOND,
            Self::Microseconds => MICROSECOND,
        }
    }

    /// The most whole units that a [`Span`] can hold.
    pub const fn max(self) -> i64 {
        // 2^63 - 1 divided by at least 1000. Here and in `ceil_to`, each divisor is a constant, so that no
        // division instruction is needed.
        match self {
            Self::Seconds => const { MAX_NANOS.div_euclid(Self::Seconds.nanos().get()) },
            Self::Milliseconds => const { MAX_NANOS.div_euclid(Self::Milliseconds.nanos().get()) },
            Self::Microseconds => const { MAX_NANOS.div_euclid(Self::Microseconds.nanos().get()) },
        }
        .cast_signed()
    }
}
