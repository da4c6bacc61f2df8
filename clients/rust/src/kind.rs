//! A limit of any kind.

#[cfg(feature = "tower")]
use crate::{Answer, Decision};
use crate::{Bucket, Fixed, Gcra, Quantity, Rate};
use redis::{Cmd, RedisResult};
use redis_cell_core::log;
#[cfg(feature = "tower")]
use std::time::Duration;

/// A limit, and the command that applies it.
///
/// A [`Rate`] or a [`Gcra`] becomes a limit of `CL.THROTTLE`, and a [`Fixed`] a limit of `CL.FIXED`.
///
/// # Example
/// ```
/// use redis_cell_client::{Fixed, FixedWindow, Limit, Rate};
/// let limit: Limit = Rate::per_minute(30).burst(15).into(); // CL.THROTTLE
/// let limit: Limit = Fixed::new(10_000, FixedWindow::month()).into(); // CL.FIXED
/// let limit = Limit::Log(Rate::per_minute(30));
/// let limit = Limit::Bucket(Rate::per_second(20).capacity(30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// `CL.THROTTLE`: a rate and a burst.
    Throttle(Gcra),
    /// `CL.FUNNEL`: a funnel that leaks.
    Funnel(Bucket),
    /// `CL.BUCKET`: a token bucket that is refilled.
    Bucket(Bucket),
    /// `CL.FIXED`: units per window, for a period or a unit of the calendar.
    Fixed(Fixed),
    /// `CL.WINDOW`: a sliding window, estimated from two counters.
    Window(Rate),
    /// `CL.LOG`: an exact sliding window.
    Log(Rate),
}

impl From<Rate> for Limit {
    fn from(rate: Rate) -> Self {
        Self::Throttle(rate.into())
    }
}

impl From<Gcra> for Limit {
    fn from(limit: Gcra) -> Self {
        Self::Throttle(limit)
    }
}

impl From<Fixed> for Limit {
    fn from(limit: Fixed) -> Self {
        Self::Fixed(limit)
    }
}

impl Limit {
    /// Returns the share of one of `processes` processes: at least one unit.
    pub(crate) fn share(self, processes: u32) -> Self {
        let units = |units: u64| units.div_euclid(processes.into()).max(1);
        let slower = |rate: Rate| Rate { period: rate.period.saturating_mul(processes), ..rate };
        let fewer = |rate: Rate| Rate { count: part(rate.count, units), ..rate };
        let bucket = |limit: Bucket| slower(limit.rate).capacity(part(limit.capacity, units));
        match self {
            Self::Throttle(limit) => {
                let at_once = units(limit.max_burst.saturating_add(1));
                Self::Throttle(slower(limit.rate).burst(at_once.saturating_sub(1)))
            }
            Self::Funnel(limit) => Self::Funnel(bucket(limit)),
            Self::Bucket(limit) => Self::Bucket(bucket(limit)),
            Self::Fixed(limit) => Self::Fixed(Fixed { limit: part(limit.limit, units), ..limit }),
            Self::Window(limit) => Self::Window(fewer(limit)),
            Self::Log(limit) => Self::Log(fewer(limit)),
        }
    }

    /// Returns the largest usage that a call can settle: of a rate, its units of 146 years.
    pub(crate) fn most_used(self) -> u64 {
        let (capacity, rate) = match self {
            Self::Throttle(limit) => (limit.max_burst.saturating_add(1), limit.rate),
            Self::Funnel(limit) | Self::Bucket(limit) => (limit.capacity, limit.rate),
            Self::Log(_) => return log::LIMIT.max.unsigned_abs(),
            Self::Fixed(_) | Self::Window(_) => return i64::MAX.unsigned_abs(),
        };
        let nanos = u128::from(i64::MAX.unsigned_abs()).div_euclid(2).saturating_mul(rate.count.into());
        let units = nanos.checked_div(rate.period.as_nanos()).map(u64::try_from);
        units.and_then(Result::ok).unwrap_or(u64::MAX).max(capacity)
    }

    /// Returns the word of the limit in `CL.MTAKE`.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Throttle(_) => "THROTTLE",
            Self::Funnel(_) => "FUNNEL",
            Self::Bucket(_) => "BUCKET",
            Self::Fixed(_) => "FIXED",
            Self::Window(_) => "WINDOW",
            Self::Log(_) => "LOG",
        }
    }

    /// Appends the arguments of the limit, without a quantity.
    pub(crate) fn write(self, cmd: &mut Cmd) -> RedisResult<()> {
        self.write_with(cmd, None)
    }

    /// Appends the arguments of the limit, and a quantity, which precedes the options of a calendar window.
    pub(crate) fn write_with(self, cmd: &mut Cmd, quantity: Option<Quantity>) -> RedisResult<()> {
        match self {
            Self::Throttle(limit) => limit.write(cmd)?,
            Self::Funnel(limit) | Self::Bucket(limit) => limit.write(cmd)?,
            Self::Fixed(limit) => return limit.write(cmd, quantity),
            Self::Window(limit) | Self::Log(limit) => limit.write(cmd)?,
        }
        if let Some(quantity) = quantity {
            quantity.write(cmd);
        }
        Ok(())
    }

    /// Returns the rate at which single units become available, or `None` if they do not.
    #[cfg(feature = "tower")]
    const fn refill(self) -> Option<Rate> {
        match self {
            Self::Throttle(limit) => Some(limit.rate),
            Self::Funnel(limit) | Self::Bucket(limit) => Some(limit.rate),
            Self::Fixed(_) | Self::Window(_) | Self::Log(_) => None,
        }
    }

    /// Returns the time in which all `most` units of the limit become available, or `None` if windows differ
    /// in length.
    #[cfg(feature = "tower")]
    pub(crate) fn window(self, most: u64) -> Option<Duration> {
        match self {
            Self::Fixed(limit) => limit.window.length(),
            Self::Window(rate) | Self::Log(rate) => Some(rate.period),
            Self::Throttle(_) | Self::Funnel(_) | Self::Bucket(_) => {
                self.refill().map(|rate| rate.time_of(most))
            }
        }
    }

    /// Returns the time until more units are available than now, or `None` if it is not known.
    #[cfg(feature = "tower")]
    pub(crate) fn next(self, answer: &Answer) -> Option<Duration> {
        if let Decision::RefusedFor(wait) = answer.decision {
            return Some(wait);
        }
        match (self, self.refill()) {
            (_, Some(rate)) => {
                // The first missing unit is available once the time of all the others is subtracted.
                let missing = answer.limit.saturating_sub(answer.remaining);
                Some(answer.reset_after.saturating_sub(rate.time_of(missing.saturating_sub(1))))
            }
            (Self::Fixed(_), _) => Some(answer.reset_after).filter(|time| *time < Duration::MAX),
            _ => None,
        }
    }
}

/// Returns a part of a number of units. Zero, which no command accepts, stays zero.
fn part(units: u64, part: impl FnOnce(u64) -> u64) -> u64 {
    if units == 0 { 0 } else { part(units) }
}
