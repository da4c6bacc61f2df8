//! The replies, as types. All times are in microseconds, because every call is sent with `US`.

use redis::{FromRedisValue, ParsingError, Value};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whether a call was admitted, and if not, whether waiting helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Decision {
    /// The call was admitted.
    Admitted,
    /// The call was refused. The same call will be admitted after this time, if no other client takes the
    /// units in the meantime.
    RefusedFor(Duration),
    /// The call was refused, and no wait helps: its quantity exceeds the limit, or what is left of a total
    /// that does not expire.
    RefusedForever,
}

/// The reply to a command that admits or refuses.
///
/// The implementation of [`FromRedisValue`] reads a reply in microseconds, that is, to a call with the option
/// `US`, which all commands of this crate have.
///
/// # Errors
/// Returns a [`ParsingError`] that shows the reply if the reply is not five or six integers in their ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Answer {
    /// Whether the call was admitted.
    pub decision: Decision,
    /// The largest quantity that can be admitted at once.
    pub limit: u64,
    /// The quantity that could be admitted now, after this call.
    pub remaining: u64,
    /// The time until the limiter is fully replenished; [`Duration::MAX`] for a total without an expiry.
    pub reset_after: Duration,
    /// The units that a call with [`Saturate`](crate::Saturate) has taken, or those that a call with pools in
    /// order has taken from this limiter; `None` for other calls.
    pub taken: Option<u64>,
}

impl Answer {
    /// Returns whether the call was admitted.
    pub const fn admitted(&self) -> bool {
        matches!(self.decision, Decision::Admitted)
    }

    /// Returns the time to wait before the same call can be admitted. `None` if the call was admitted, or if
    /// it can never be admitted.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.decision {
            Decision::RefusedFor(wait) => Some(wait),
            Decision::Admitted | Decision::RefusedForever => None,
        }
    }
}

/// The reply to a command that is never refused, such as [`cl_charge`](crate::CellCommands::cl_charge): the
/// state after the command.
///
/// # Errors
/// See [`Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Balance {
    /// Whether more units are taken, after this call, than the limit allows.
    ///
    /// In the row of a lease: whether the call was to renew the lease and the holder has no place.
    pub over_limit: bool,
    /// The largest quantity that can be admitted at once.
    pub limit: u64,
    /// The quantity that could be admitted now.
    pub remaining: u64,
    /// While `over_limit`, the time until one more unit would be admitted, or until a place is free.
    pub retry_after: Option<Duration>,
    /// The time until the limiter is fully replenished; [`Duration::MAX`] for a total without an expiry.
    pub reset_after: Duration,
    /// The part of the used units that is charged to this limiter, in a settlement of pools in order; `None`
    /// for other calls.
    pub taken: Option<u64>,
}

/// The outcome of a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BookingDecision {
    /// The units are booked. Wait for this time before you use them; zero means now.
    Booked(Duration),
    /// Nothing was booked, because the wait would be this long, and the call accepts only a shorter one.
    TooLate(Duration),
    /// Nothing was booked, and no wait helps: the quantity exceeds the limit.
    Never,
}

/// The reply to [`cl_reserve`](crate::CellCommands::cl_reserve).
///
/// # Errors
/// See [`Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Booking {
    /// Whether the units are booked, and how long to wait for them.
    pub decision: BookingDecision,
    /// The largest quantity that can be admitted at once.
    pub limit: u64,
    /// The quantity that could be booked now without a wait, after this call.
    pub remaining: u64,
    /// The time until the limiter is fully replenished; [`Duration::MAX`] for a total without an expiry.
    pub reset_after: Duration,
}

/// The reply to a command on several limiters.
///
/// # Errors
/// Returns the errors of [`Answer`], and an error if the reply has no row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Together<T> {
    /// The result for the limiters as one.
    pub combined: T,
    /// The result for each limiter, in the order of the call.
    pub each: Vec<T>,
}

/// A row of [`cl_top`](crate::CellCommands::cl_top).
///
/// # Errors
/// Returns a [`ParsingError`] if the row is not a string and three integers in their ranges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TopKey {
    /// The key as text, in which unreadable bytes are written as `\xHH`.
    pub key: String,
    /// A lower bound on the number of refusals.
    pub refusals: u64,
    /// The largest number of refusals that `refusals` may have missed.
    pub error: u64,
    /// The instant of the last refusal, to the millisecond.
    pub last_refusal: SystemTime,
}

/// The integers of the reply to a call for units.
struct Row {
    limited: bool,
    limit: u64,
    remaining: u64,
    retry_after: Option<Duration>,
    reset_after: Duration,
    taken: Option<u64>,
}

impl Row {
    fn read(value: &Value) -> Result<Self, ParsingError> {
        let odd =
            || ParsingError::from(format!("expected five or six integers of a rate limiter: {value:?}"));
        let Value::Array(items) = value else { return Err(odd()) };
        let mut numbers = items.iter().map(|item| match item {
            Value::Int(number) => Ok(*number),
            _ => Err(odd()),
        });
        let mut next = || numbers.next().ok_or_else(odd)?;
        let unsigned = |number: i64| u64::try_from(number).map_err(|_| odd());
        let limited = match next()? {
            0 => false,
            1 => true,
            _ => return Err(odd()),
        };
        let (limit, remaining) = (unsigned(next()?)?, unsigned(next()?)?);
        let retry_after = match next()? {
            -1 => None,
            micros => Some(Duration::from_micros(unsigned(micros)?)),
        };
        let reset_after = match next()? {
            -1 => Duration::MAX,
            micros => Duration::from_micros(unsigned(micros)?),
        };
        let taken = numbers.next().transpose()?.map(unsigned).transpose()?;
        if numbers.next().is_some() {
            return Err(odd());
        }
        Ok(Self { limited, limit, remaining, retry_after, reset_after, taken })
    }
}

impl FromRedisValue for Answer {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Row { limited, limit, remaining, retry_after, reset_after, taken } = Row::read(&value)?;
        let decision = match (limited, retry_after) {
            (false, None) => Decision::Admitted,
            (true, Some(wait)) => Decision::RefusedFor(wait),
            (true, None) => Decision::RefusedForever,
            (false, Some(_)) => {
                return Err(
                    format!("expected an answer of a rate limiter, which has no wait: {value:?}").into()
                );
            }
        };
        Ok(Self { decision, limit, remaining, reset_after, taken })
    }
}

impl FromRedisValue for Balance {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Row { limited, limit, remaining, retry_after, reset_after, taken } = Row::read(&value)?;
        Ok(Self { over_limit: limited, limit, remaining, retry_after, reset_after, taken })
    }
}

impl FromRedisValue for Booking {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Row { limited, limit, remaining, retry_after, reset_after, .. } = Row::read(&value)?;
        let decision = match (limited, retry_after) {
            (false, Some(wait)) => BookingDecision::Booked(wait),
            (true, Some(wait)) => BookingDecision::TooLate(wait),
            (true, None) => BookingDecision::Never,
            (false, None) => return Err(format!("expected a booking, which has a wait: {value:?}").into()),
        };
        Ok(Self { decision, limit, remaining, reset_after })
    }
}

impl<T: FromRedisValue> FromRedisValue for Together<T> {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut rows = match value {
            Value::Array(rows) => rows.into_iter(),
            other => return Err(format!("expected rows of rate limiters: {other:?}").into()),
        };
        let combined =
            rows.next().ok_or_else(|| ParsingError::from("expected rows of rate limiters: none"))?;
        Ok(Self {
            combined: T::from_redis_value(combined)?,
            each: rows.map(T::from_redis_value).collect::<Result<_, _>>()?,
        })
    }
}

impl FromRedisValue for TopKey {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let shown = format!("{value:?}");
        let odd = || ParsingError::from(format!("expected a key and three integers: {shown}"));
        // As `i64`, because redis-rs reads a negative integer as a large `u64`.
        let (key, refusals, error, last): (String, i64, i64, i64) =
            FromRedisValue::from_redis_value(value).map_err(|_| odd())?;
        let unsigned = |number: i64| u64::try_from(number).map_err(|_| odd());
        let last_refusal = UNIX_EPOCH.checked_add(Duration::from_millis(unsigned(last)?)).ok_or_else(odd)?;
        Ok(Self { key, refusals: unsigned(refusals)?, error: unsigned(error)?, last_refusal })
    }
}
