//! Limits, quantities and fixed windows, and the arguments that are sent for them.

use redis::{Cmd, ErrorKind, RedisError, RedisResult};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A number of units: to take, all or nothing, or to give back.
///
/// Range: 0 or more. A call with `Units(0)` takes nothing and returns the state.
///
/// # Example
/// ```
/// use redis_cell_client::Units;
/// assert_eq!(Units::default(), Units(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Units(pub u64);

impl Default for Units {
    /// One unit, the default quantity.
    fn default() -> Self {
        Self(1)
    }
}

/// The largest number of units to take: the call takes as many of them as are available (`SATURATE`).
///
/// The call is refused only if no unit is available. [`Answer::taken`](crate::Answer::taken) is the number of
/// units taken.
///
/// # Example
/// ```
/// use redis_cell_client::{Quantity, Saturate};
/// let quantity: Quantity = Saturate(20).into();
/// # assert_ne!(quantity, redis_cell_client::Units(20).into());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Saturate(pub u64);

/// The quantity to take: [`Units`], all or nothing, or [`Saturate`], as many as are available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Quantity {
    /// All or none.
    Units(Units),
    /// As many as are available.
    Saturate(Saturate),
}

impl From<Units> for Quantity {
    fn from(units: Units) -> Self {
        Self::Units(units)
    }
}

impl From<Saturate> for Quantity {
    fn from(most: Saturate) -> Self {
        Self::Saturate(most)
    }
}

/// The difference between the units needed and the units taken, for `CL.MSETTLE`, or all units used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Difference {
    /// Takes more units, even if they are not available, as `CL.CHARGE` does.
    Charge(Units),
    /// Gives units back, as `CL.REFUND` does.
    Refund(Units),
    /// The whole usage of held units: with [`MSettle::hold`](crate::MSettle::hold).
    Used(Units),
}

/// A number of units per period.
///
/// Range: a count of 1 or more, a period of whole microseconds from 1 us to 292 years, and at most one unit
/// per nanosecond. Nothing is rounded: a call with a rate out of range returns an error.
///
/// # Example
/// ```
/// use redis_cell_client::Rate;
/// use std::time::Duration;
/// assert_eq!(Rate::per_minute(30), Rate::new(30, Duration::from_secs(60)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    pub(crate) count: u64,
    pub(crate) period: Duration,
}

impl Rate {
    /// `count` units per `period`.
    pub const fn new(count: u64, period: Duration) -> Self {
        Self { count, period }
    }

    /// `count` units per second.
    pub const fn per_second(count: u64) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// `count` units per minute.
    pub const fn per_minute(count: u64) -> Self {
        Self::new(count, Duration::from_secs(60))
    }

    /// `count` units per hour.
    pub const fn per_hour(count: u64) -> Self {
        Self::new(count, Duration::from_secs(3_600))
    }

    /// `count` units per 24 hours.
    pub const fn per_day(count: u64) -> Self {
        Self::new(count, Duration::from_secs(86_400))
    }

    /// Returns a limit of this rate: `max_burst` units can be taken at once in addition to the first one.
    ///
    /// Range: 0 or more. A rate without a burst means `burst(count - 1)`: `count` units can be taken at once.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::Rate;
    /// let limit = Rate::per_minute(30).burst(15); // 16 at once, then one every two seconds
    /// assert_eq!(limit.at_once(), 16);
    /// assert_eq!(redis_cell_client::Gcra::from(Rate::per_minute(30)).at_once(), 30);
    /// ```
    pub const fn burst(self, max_burst: u64) -> Gcra {
        Gcra { rate: self, max_burst }
    }

    /// Returns a limit of this rate of which `units` units can be taken at once: `burst(units - 1)`.
    ///
    /// Range: 1 or more.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::Rate;
    /// assert_eq!(Rate::per_minute(30).at_once(16), Rate::per_minute(30).burst(15));
    /// ```
    pub const fn at_once(self, units: u64) -> Gcra {
        self.burst(units.wrapping_sub(1)) // of 0, out of the range that the command accepts
    }

    /// Returns the limit of a funnel or a bucket of `capacity` units that leaks or is refilled at this rate.
    ///
    /// Range: 1 or more.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::Rate;
    /// let limit = Rate::per_second(20).capacity(30); // 30 at once, then 20 per second
    /// ```
    pub const fn capacity(self, capacity: u64) -> Bucket {
        Bucket { rate: self, capacity }
    }

    /// Returns the time in which `units` units become available, rounded down to a nanosecond.
    #[cfg(feature = "tower")]
    pub(crate) fn time_of(self, units: u64) -> Duration {
        let nanos = self.period.as_nanos().saturating_mul(units.into());
        let nanos = nanos.checked_div(self.count.into()).unwrap_or_default();
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(crate) fn write(self, cmd: &mut Cmd) -> RedisResult<()> {
        cmd.arg(self.count).arg(exact(self.period, "the period of a rate")?);
        Ok(())
    }
}

/// A limit of `CL.THROTTLE` and its companions: a [`Rate`] and the largest burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    pub(crate) rate: Rate,
    pub(crate) max_burst: u64,
}

impl Gcra {
    /// Returns the largest number of units that can be taken at once: the burst and one more.
    pub const fn at_once(self) -> u64 {
        self.max_burst.saturating_add(1)
    }

    pub(crate) fn write(self, cmd: &mut Cmd) -> RedisResult<()> {
        cmd.arg(self.max_burst);
        self.rate.write(cmd)
    }
}

impl From<Rate> for Gcra {
    fn from(rate: Rate) -> Self {
        rate.burst(rate.count.saturating_sub(1))
    }
}

/// A limit of `CL.FUNNEL` or `CL.BUCKET`: a capacity, and the [`Rate`] at which it becomes available again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    pub(crate) rate: Rate,
    pub(crate) capacity: u64,
}

impl Bucket {
    pub(crate) fn write(self, cmd: &mut Cmd) -> RedisResult<()> {
        cmd.arg(self.capacity);
        self.rate.write(cmd)
    }
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say everything
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// The window of a [`Fixed`] limit: a period, a unit of the calendar, or the time until an instant.
///
/// # Example
/// ```
/// use redis_cell_client::{FixedWindow, Weekday};
/// use std::time::Duration;
/// let minute = FixedWindow::period(Duration::from_secs(60));
/// let billing = FixedWindow::month_from(15).utc_offset_minutes(60);
/// let week = FixedWindow::week_from(Weekday::Sunday);
/// let run = FixedWindow::total().idle(Duration::from_secs(86_400));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    end: End,
    utc_offset_minutes: Option<i16>,
}

/// When a window ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Period(Duration),
    Hour,
    Day,
    Week(Weekday),
    Month(u8),
    Year,
    Until(SystemTime),
    Total(Option<Duration>),
}

impl FixedWindow {
    const fn of(end: End) -> Self {
        Self { end, utc_offset_minutes: None }
    }

    /// A window that opens with the first admitted call and lasts for `period`.
    ///
    /// Range: at least one microsecond, in whole microseconds. The server rounds up to a whole millisecond.
    pub const fn period(period: Duration) -> Self {
        Self::of(End::Period(period))
    }

    /// Calendar hours.
    pub const fn hour() -> Self {
        Self::of(End::Hour)
    }

    /// Calendar days.
    pub const fn day() -> Self {
        Self::of(End::Day)
    }

    /// Calendar weeks, which begin on Monday.
    pub const fn week() -> Self {
        Self::week_from(Weekday::Monday)
    }

    /// Weeks that begin on another day.
    pub const fn week_from(day: Weekday) -> Self {
        Self::of(End::Week(day))
    }

    /// Calendar months.
    pub const fn month() -> Self {
        Self::month_from(1)
    }

    /// Months that begin on `day`, from 1 to 31, or on the month's last day if the month is shorter.
    pub const fn month_from(day: u8) -> Self {
        Self::of(End::Month(day))
    }

    /// Calendar years.
    pub const fn year() -> Self {
        Self::of(End::Year)
    }

    /// A window that ends at `instant`, which is rounded up to a whole microsecond, and by the server to a
    /// whole millisecond.
    ///
    /// Range: 1970 to 2262. An instant that has passed is an error unless a window is open.
    pub const fn until(instant: SystemTime) -> Self {
        Self::of(End::Until(instant))
    }

    /// A window without end: units are counted until the key is deleted or expires.
    pub const fn total() -> Self {
        Self::of(End::Total(None))
    }

    /// Lets the key of a total expire when nothing was taken for this time. It does nothing for other
    /// windows.
    ///
    /// Range: at least one microsecond, in whole microseconds. The server rounds up to a whole millisecond.
    #[must_use]
    pub const fn idle(self, time: Duration) -> Self {
        match self.end {
            End::Total(_) => Self { end: End::Total(Some(time)), ..self },
            _ => self,
        }
    }

    /// Sets how many minutes local time is ahead of UTC, for a calendar window. Range: -840 to 840.
    ///
    /// A call with an offset returns an error if the window is a period or ends at an instant.
    #[must_use]
    pub const fn utc_offset_minutes(self, minutes: i16) -> Self {
        Self { utc_offset_minutes: Some(minutes), ..self }
    }

    /// Returns the length of the window, or `None` if windows differ in length.
    #[cfg(feature = "tower")]
    pub(crate) const fn length(self) -> Option<Duration> {
        const HOUR: u64 = 3_600;
        match self.end {
            End::Period(period) => Some(period),
            End::Hour => Some(Duration::from_secs(HOUR)),
            End::Day => Some(Duration::from_secs(24 * HOUR)),
            End::Week(_) => Some(Duration::from_secs(7 * 24 * HOUR)),
            End::Month(_) | End::Year | End::Until(_) | End::Total(_) => None,
        }
    }

    /// Returns whether the window ends at an instant of the wall clock.
    pub(crate) const fn is_of_the_calendar(self) -> bool {
        !matches!(self.end, End::Period(_) | End::Total(_))
    }

    /// Returns whether the window has no end, except that its key may expire.
    #[cfg(feature = "aio")]
    pub(crate) const fn is_total(self) -> bool {
        matches!(self.end, End::Total(_))
    }

    /// Returns whether the window ends at an instant that the call names.
    pub(crate) const fn ends_at_an_instant(self) -> bool {
        matches!(self.end, End::Until(_))
    }

    /// Appends the window itself, which precedes the quantity of `CL.FIXED`.
    fn write(self, cmd: &mut Cmd) -> RedisResult<()> {
        match self.end {
            End::Period(period) => cmd.arg(exact(period, "the period of a window")?),
            End::Hour => cmd.arg("HOUR"),
            End::Day => cmd.arg("DAY"),
            End::Week(_) => cmd.arg("WEEK"),
            End::Month(_) => cmd.arg("MONTH"),
            End::Year => cmd.arg("YEAR"),
            End::Until(instant) => {
                let since = instant.duration_since(UNIX_EPOCH);
                let since = since.map_err(|_| invalid("the end of a window must not lie before 1970"))?;
                cmd.arg("UNTIL").arg(rounded_up(since))
            }
            End::Total(None) => cmd.arg("TOTAL"),
            End::Total(Some(idle)) => {
                cmd.arg("TOTAL").arg("IDLE").arg(exact(idle, "the idle time of a total")?)
            }
        };
        Ok(())
    }

    /// Appends `UTC` and `FROM`, which follow the quantity of `CL.FIXED`.
    fn write_options(self, cmd: &mut Cmd) {
        if let Some(minutes) = self.utc_offset_minutes {
            cmd.arg("UTC").arg(minutes);
        }
        match self.end {
            End::Week(Weekday::Monday) | End::Month(1) => {}
            End::Week(day) => {
                cmd.arg("FROM").arg(match day {
                    Weekday::Monday => 1,
                    Weekday::Tuesday => 2,
                    Weekday::Wednesday => 3,
                    Weekday::Thursday => 4,
                    Weekday::Friday => 5,
                    Weekday::Saturday => 6,
                    Weekday::Sunday => 7,
                });
            }
            End::Month(day) => {
                cmd.arg("FROM").arg(day);
            }
            _ => {}
        }
    }
}

/// A limit of `CL.FIXED`: a number of units per [`FixedWindow`].
///
/// # Example
/// ```
/// use redis_cell_client::{Fixed, FixedWindow};
/// let month = Fixed::new(10_000, FixedWindow::month());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fixed {
    pub(crate) limit: u64,
    pub(crate) window: FixedWindow,
}

impl Fixed {
    /// Creates a limit of `limit` units per `window`. Range: 1 or more.
    pub const fn new(limit: u64, window: FixedWindow) -> Self {
        Self { limit, window }
    }

    /// Appends the arguments, with a quantity before the options, as in `CL.FIXED`, or without one.
    pub(crate) fn write(self, cmd: &mut Cmd, quantity: Option<Quantity>) -> RedisResult<()> {
        cmd.arg(self.limit);
        self.window.write(cmd)?;
        if let Some(quantity) = quantity {
            quantity.write(cmd);
        }
        self.window.write_options(cmd);
        Ok(())
    }
}

/// The number of places of `CL.ACQUIRE`: as many holders can have a place at the same time.
///
/// Range: 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Places(pub u64);

impl Quantity {
    pub(crate) fn write(self, cmd: &mut Cmd) {
        match self {
            Self::Units(Units(units)) => cmd.arg(units),
            Self::Saturate(Saturate(most)) => cmd.arg(most).arg("SATURATE"),
        };
    }
}

/// Returns an error in the arguments of a call, which is then not sent.
pub(crate) fn invalid(text: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Client, text))
}

/// Returns the microseconds of a duration that must not be rounded, because it is part of a limit.
pub(crate) fn exact(duration: Duration, what: &'static str) -> RedisResult<u64> {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    if duration.subsec_nanos().is_multiple_of(1_000) {
        return Ok(micros);
    }
    let detail = format!("{what} must be a whole number of microseconds, and {duration:?} is not");
    Err(RedisError::from((ErrorKind::Client, "invalid duration", detail)))
}

/// Returns the microseconds of a duration, rounded up. For waits, leases, ages and instants, which may be
/// read from a clock.
pub(crate) fn rounded_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
