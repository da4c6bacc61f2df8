//! What the tests of the core share: one fixed instant, and times relative to it.

#![allow(dead_code, reason = "each test binary takes what it needs")]

use redis_cell_core::{Instant, Span};

/// The instant that the tests call now: some moment of November 2023.
pub const NOW: i64 = 1_700_000_000_123_456_789;

/// A microsecond in nanoseconds.
pub const US: i64 = 1_000;
/// A millisecond in nanoseconds.
pub const MS: i64 = 1_000_000;
/// A second in nanoseconds.
pub const S: i64 = 1_000_000_000;
/// A day in nanoseconds.
pub const DAY: i64 = 86_400 * S;

/// The instant `offset` nanoseconds from [`NOW`].
pub fn at(offset: i64) -> Instant {
    instant(i128::from(NOW) + i128::from(offset))
}

/// The instant `nanos` nanoseconds after the epoch.
pub fn instant(nanos: i128) -> Instant {
    Instant::from_nanos(u64::try_from(nanos).unwrap()).unwrap()
}

/// A span of `nanos` nanoseconds.
pub fn span(nanos: i64) -> Span {
    Span::from_nanos(u64::try_from(nanos).unwrap()).unwrap()
}

/// An instant as nanoseconds from [`NOW`].
pub fn offset(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap() - NOW
}

/// The length of a span in nanoseconds.
pub fn nanos(span: Span) -> i64 {
    i64::try_from(span.as_nanos()).unwrap()
}
