//! Calendar windows: the hour, day, week, month or year of an instant.
//!
//! The calendar is the proleptic Gregorian one, without leap seconds, at a fixed offset from UTC. Every
//! boundary is a whole second, and belongs to the window that it begins.
//!
//! Hours, days and weeks have a fixed length, so their boundaries are multiples of it in local time, counted
//! from a known boundary. Months and years are looked up in a calendar: jiff-core converts between dates and
//! days without a loop. Time zones with daylight saving are not fixed offsets; for these, the caller computes
//! the end of the window.
//!
//! Proved for all inputs in `verify/proofs`: `an_instant_lies_in_one_window`, `months_follow_each_other`,
//! `a_date_lies_in_one_month` and `no_window_of_the_calendar_wraps`.

use jiff_core::civil::{Date, UnixEpochDay};

pub use crate::args::UTC;
use crate::{Error, Instant, Range, Span, Unit};

/// The day on which weeks begin, from Monday on.
pub const WEEKDAY: Range = Range { name: "FROM", min: 1, max: 7 };

/// The day of the month on which months begin.
pub const DAY_OF_MONTH: Range = Range { name: "FROM", min: 1, max: 31 };

/// A cycle of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    /// From each full hour to the next.
    Hour,
    /// From midnight to midnight.
    Day,
    /// Seven days.
    Week,
    /// From a day of one month to the same day of the next, or to its last day if it has no such day.
    Month,
    /// From the first of January to the next one.
    Year,
}

impl Cycle {
    /// The days on which windows of this cycle may begin; `None` where they cannot be chosen.
    pub const fn from(self) -> Option<Range> {
        match self {
            Self::Week => Some(WEEKDAY),
            Self::Month => Some(DAY_OF_MONTH),
            Self::Hour | Self::Day | Self::Year => None,
        }
    }
}

/// A calendar: its cycle, its offset from UTC, and the day on which its windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    cycle: Cycle,
    /// Seconds by which local time is ahead of UTC.
    offset: i64,
    /// The day on which a week or a month begins, from 1.
    from: i8,
}

/// Seconds in an hour.
const HOUR: i64 = 3_600;
/// Seconds in a day.
const DAY: i64 = 86_400;
/// The Unix epoch was a Thursday; this is the Monday before it, in days since the epoch.
const MONDAY: i64 = -3;

impl Calendar {
    /// The length of the longest window.
    pub(crate) fn longest(&self) -> Span {
        let seconds = match self.cycle {
            Cycle::Hour => HOUR,
            Cycle::Day => DAY,
            Cycle::Week => const { 7 * DAY },
            Cycle::Month => const { 31 * DAY },
            Cycle::Year => const { 366 * DAY },
        };
        Span::from_units(seconds.unsigned_abs(), Unit::Seconds).unwrap_or(Span::MAX)
    }

    /// A calendar `utc` minutes ahead of UTC, whose weeks or months begin on the day `from`; 1 by default.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for an offset or a day that is out of range, [`Error::Syntax`] for a day if the
    /// cycle has no choice of days.
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::Instant;
    /// # use redis_cell_core::calendar::{Calendar, Cycle};
    /// let billing = Calendar::new(Cycle::Month, 60, Some(31))?;
    /// let now = Instant::from_nanos(1_709_000_000_000_000_000).unwrap(); // 2024-02-27, 02:13:20 UTC
    /// let (start, end) = billing.window_of(now)?;
    /// assert_eq!(start.as_nanos(), 1_706_655_600_000_000_000); // 2024-01-31, 00:00 at +01:00
    /// assert_eq!(end.as_nanos(), 1_709_161_200_000_000_000); // 2024-02-29, 00:00 at +01:00
    /// # Ok::<(), redis_cell_core::Error>(())
    /// ```
    pub fn new(cycle: Cycle, utc: i64, from: Option<i64>) -> Result<Self, Error> {
        let from = match (from, cycle.from()) {
            (None, _) => 1,
            (Some(from), Some(range)) => range.check(from)?,
            (Some(_), None) => return Err(Error::Syntax),
        };
        let from = i8::try_from(from).map_err(|_| DAY_OF_MONTH.error())?;
        Ok(Self { cycle, offset: UTC.check(utc)?.saturating_mul(60), from })
    }

    /// The first instant of the window that `now` lies in, the epoch at the earliest, and the first instant
    /// after it.
    ///
    /// Cost: O(1).
    ///
    /// # Errors
    /// [`Error::BeyondTime`] when the window ends past the year 2262.
    pub fn window_of(&self, now: Instant) -> Result<(Instant, Instant), Error> {
        self.boundaries(now).ok_or(Error::BeyondTime)
    }

    fn boundaries(&self, now: Instant) -> Option<(Instant, Instant)> {
        let seconds = i64::try_from(now.as_nanos().div_euclid(1_000_000_000)).ok()?;
        let local = seconds.checked_add(self.offset)?;
        let (start, end) = match self.cycle {
            Cycle::Hour => multiples(local, 0, HOUR)?,
            Cycle::Day => multiples(local, 0, DAY)?,
            Cycle::Week => {
                let first = MONDAY.checked_add(self.from.into())?.checked_sub(1)?;
                multiples(local, first.checked_mul(DAY)?, DAY.checked_mul(7)?)?
            }
            Cycle::Month => self.month(date_of(local)?)?,
            Cycle::Year => year(date_of(local)?)?,
        };
        let utc = |local: i64| local.checked_sub(self.offset);
        let start = u64::try_from(utc(start)?).unwrap_or_default();
        let end = u64::try_from(utc(end)?).ok()?;
        Some((instant(start)?, instant(end)?))
    }

    /// The month that `date` lies in, if months begin on the day `from`.
    fn month(&self, date: Date) -> Option<(i64, i64)> {
        let begins = |date: Date| Date::new_constrain(date.year(), date.month(), self.from).ok();
        let this = begins(date)?;
        let (start, end) = if date < this {
            (begins(date.first_of_month().yesterday().ok()?)?, this)
        } else {
            (this, begins(date.last_of_month().tomorrow().ok()?)?)
        };
        Some((midnight(start)?, midnight(end)?))
    }
}

/// The year that `date` lies in.
fn year(date: Date) -> Option<(i64, i64)> {
    Some((midnight(date.first_of_year())?, midnight(date.last_of_year().tomorrow().ok()?)?))
}

/// The last instant not after `seconds` that is a multiple of `length` away from `origin`, and the next one.
fn multiples(seconds: i64, origin: i64, length: i64) -> Option<(i64, i64)> {
    let into = seconds.checked_sub(origin)?.checked_rem_euclid(length)?;
    let start = seconds.checked_sub(into)?;
    Some((start, start.checked_add(length)?))
}

/// The date of a second of local time.
fn date_of(local: i64) -> Option<Date> {
    let day = i32::try_from(local.div_euclid(DAY)).ok()?;
    Some(UnixEpochDay::new(day).ok()?.to_date())
}

/// The second of local time at which a date begins.
fn midnight(date: Date) -> Option<i64> {
    i64::from(date.to_unix_epoch_day().day()).checked_mul(DAY)
}

/// The instant `seconds` after the epoch.
fn instant(seconds: u64) -> Option<Instant> {
    seconds.checked_mul(1_000_000_000).and_then(Instant::from_nanos)
}
