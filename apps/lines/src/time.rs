//! The times of log lines.

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::Offset;
use redis_cell_core::{Instant, parse_integer};

/// Reads times, and remembers the last one, because consecutive lines often have the same time.
#[derive(Clone, Debug)]
pub struct Times {
    /// The zone of times without one.
    zone: Offset,
    latest: Vec<u8>,
    instant: Option<Instant>,
    /// Whether any time had a fraction of a second.
    fraction: bool,
}

impl Times {
    /// Creates a reader that takes times without a zone as this many minutes ahead of UTC.
    pub fn new(minutes: i32) -> Self {
        let zone = Offset::from_seconds(minutes.saturating_mul(60)).unwrap_or(Offset::UTC);
        Self { zone, latest: Vec::new(), instant: None, fraction: false }
    }

    /// Reads an instant: Unix time in seconds, milliseconds, microseconds or nanoseconds, ISO 8601, or the
    /// format of Apache, nginx and `HAProxy`.
    pub fn parse(&mut self, text: &[u8]) -> Option<Instant> {
        if text != self.latest {
            self.instant = self.parse_new(text);
            self.latest.clear();
            self.latest.extend_from_slice(text);
            let nanos = self.instant.map_or(0, Instant::as_nanos);
            self.fraction |= !nanos.is_multiple_of(1_000_000_000);
        }
        self.instant
    }

    /// Returns whether all times so far were whole seconds.
    pub fn are_whole_seconds(&self) -> bool {
        !self.fraction
    }

    fn parse_new(&self, text: &[u8]) -> Option<Instant> {
        if text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.') {
            return unix(text);
        }
        let nanos = match text.get(2) {
            Some(b'/') => self.parse_common(text)?,
            _ => self.parse_iso(text)?,
        };
        Instant::from_nanos(u64::try_from(nanos).ok()?)
    }

    /// Reads `22/Nov/2026:21:00:00 +0000`, with or without a fraction and a zone.
    fn parse_common(&self, text: &[u8]) -> Option<i128> {
        if text.contains(&b' ') {
            let time = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S%.f %z", text).ok()?;
            return Some(time.to_timestamp().ok()?.as_nanosecond());
        }
        let time = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S%.f", text).ok()?;
        self.local(time.to_datetime().ok()?)
    }

    fn parse_iso(&self, text: &[u8]) -> Option<i128> {
        static PARSER: DateTimeParser = DateTimeParser::new();
        if let Ok(time) = PARSER.parse_timestamp(text) {
            return Some(time.as_nanosecond());
        }
        self.local(PARSER.parse_datetime(text).ok()?)
    }

    fn local(&self, time: DateTime) -> Option<i128> {
        Some(self.zone.to_timestamp(time).ok()?.as_nanosecond())
    }
}

/// Reads a Unix time. Its size tells the unit: 12 digits of seconds are past the year 5138.
fn unix(text: &[u8]) -> Option<Instant> {
    let dot = memchr::memchr(b'.', text).unwrap_or(text.len());
    let (whole, fraction) = text.split_at_checked(dot)?;
    let fraction = fraction.strip_prefix(b".").unwrap_or_default();
    let unit: u64 = match whole.len() {
        ..12 => 1_000_000_000,
        12..15 => 1_000_000,
        15..18 => 1_000,
        _ => 1,
    };
    let mut nanos = parse_integer(whole)?.unsigned_abs().checked_mul(unit)?;
    let mut weight = unit;
    for digit in fraction {
        weight /= 10;
        // Rejects other characters, also a second dot.
        let digit = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        nanos = nanos.checked_add(weight.checked_mul(digit.into())?)?;
    }
    Instant::from_nanos(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_gives_the_same_instant() {
        let expected = Instant::from_nanos(1_795_381_200_250_000_000);
        for text in [
            "1795381200.25",
            "1795381200.250000000000",
            "1795381200250",
            "1795381200250000",
            "1795381200250000000",
            "2026-11-22T21:00:00.250Z",
            "2026-11-22T22:00:00.25+01:00",
            "22/Nov/2026:21:00:00.250 +0000",
            "22/Nov/2026:21:00:00.250",
            "2026-11-22 21:00:00.250",
        ] {
            assert_eq!(Times::new(0).parse(text.as_bytes()), expected, "{text}");
        }
        let mut an_hour_ahead = Times::new(60);
        assert_eq!(an_hour_ahead.parse(b"22/Nov/2026:22:00:00.250"), expected);
        assert!(!an_hour_ahead.are_whole_seconds());
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in
            ["", ".", "-", "1.2.3", "99/Nov/2026:21:00:00 +0000", "yesterday", "99999999999999999999999"]
        {
            assert_eq!(Times::new(0).parse(text.as_bytes()), None, "{text}");
        }
    }
}
