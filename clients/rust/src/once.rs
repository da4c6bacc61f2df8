//! Calls that may be repeated because the server keeps their replies.

use crate::call::explained;
use crate::limit::rounded_up;
use crate::{bytes, is_unavailable};
use redis::{Cmd, ConnectionLike, FromRedisValue, RedisError, RedisResult, ToSingleRedisArg};
use std::time::{Duration, Instant};

/// Allows a call to be repeated: the server keeps the reply under a key for a period, and takes the units
/// once.
///
/// The methods that send the call repeat it if its reply is lost or the server is unavailable
/// ([`is_unavailable`]): five attempts in all, after pauses of 50 ms, 100 ms, and so on. No attempt begins
/// after half of the period, so that none arrives when the reply is no longer stored, and none except the
/// second once the attempts have taken five seconds, not counting the pauses and the longest wait of the
/// call. To leave time for repetitions, choose a period of at least four times that wait. Use a separate key
/// for each piece of work, such as the identifier of a payment. After an error, the call can be made again
/// with the same key.
///
/// A broken `Connection` or `MultiplexedConnection` does not reconnect. A `ConnectionManager`, a `Client` and
/// a cluster's connection reconnect for the next attempt.
///
/// # Example
/// ```
/// use redis_cell_client::{CellCommands, MTake, Once, Rate, Units};
/// use std::time::Duration;
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let mut client = redis::Client::open(url)?; // connects for each call
/// let once = Once::new("{once}:payment-77", Duration::from_secs(600));
/// let paid = MTake::new().throttle("{once}:paid", Rate::per_hour(100), Units(25)).once(once);
/// let first = client.cl_mtake(paid.clone())?;
/// let again = client.cl_mtake(paid)?;
/// assert_eq!((first.combined.remaining, again.combined.remaining), (75, 75));
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Once {
    key: Vec<u8>,
    period: Duration,
    tries: u32,
    pause: Duration,
}

impl Once {
    /// Keeps the reply under `key` for `period`, which is rounded up to a whole microsecond.
    pub fn new(key: impl ToSingleRedisArg, period: Duration) -> Self {
        Self { key: bytes(&key), period, tries: 5, pause: Duration::from_millis(50) }
    }

    /// Sets the largest number of attempts. With 1, the call is not repeated.
    #[must_use]
    pub fn tries(self, tries: u32) -> Self {
        Self { tries, ..self }
    }

    /// Sets the pause before the second attempt. Each later pause is twice as long as the one before.
    #[must_use]
    pub fn pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    pub(crate) fn write(&self, cmd: &mut Cmd) {
        cmd.arg("ONCE").arg(&self.key).arg(rounded_up(self.period).max(1));
    }
}

/// How long after the end of its wait the reply to a call may arrive.
pub(crate) const MARGIN: Duration = Duration::from_secs(5);

/// The attempts at a call: one, or several if the call may be repeated.
pub(crate) struct Attempts {
    begin: Instant,
    last: Duration,
    /// When the attempts have taken too long, without the pauses. `None` if the call waits forever.
    longest: Option<Duration>,
    left: u32,
    pause: Duration,
    pub repeated: bool,
}

impl Attempts {
    /// Starts the attempts at a call that does not wait.
    pub fn new(once: Option<&Once>) -> Self {
        Self::waiting(once, Some(Duration::ZERO), MARGIN)
    }

    /// Starts the attempts at a call that waits in the server for up to `wait`, or forever, and the reply to
    /// which may arrive within the margin after that.
    pub fn waiting(once: Option<&Once>, wait: Option<Duration>, margin: Duration) -> Self {
        let (last, left, pause) = once.map_or((Duration::ZERO, 1, Duration::ZERO), |once| {
            (once.period.checked_div(2).unwrap_or_default(), once.tries, once.pause)
        });
        let longest = wait.map(|wait| wait.saturating_add(margin));
        Self { begin: Instant::now(), last, longest, left, pause, repeated: false }
    }

    /// Returns the instant of the first attempt, which may have taken the units of a repeated call.
    pub const fn begin(&self) -> Instant {
        self.begin
    }

    /// Returns the pause before the next attempt after an error, or `None` if there is no further attempt.
    pub fn pause(&mut self, error: &RedisError) -> Option<Duration> {
        let pause = self.pause;
        self.left = self.left.saturating_sub(1);
        self.longest = self.longest.map(|longest| longest.saturating_add(pause));
        // If a reply is lost without an error, the attempt takes its whole time, and the call is repeated
        // nevertheless.
        let end = self.longest.filter(|_| self.repeated).map_or(self.last, |longest| longest.min(self.last));
        let late = self.begin.elapsed().saturating_add(pause) >= end;
        // The server in which the call waited has become a replica.
        let demoted =
            error.code() == Some("UNBLOCKED") && error.detail().is_some_and(|text| text.starts_with("force"));
        if self.left == 0 || late || !(demoted || is_unavailable(error)) {
            return None;
        }
        self.pause = pause.saturating_mul(2);
        self.repeated = true;
        Some(pause)
    }
}

/// Sends a call, and repeats it if allowed. `build` receives the time since the first attempt.
pub(crate) fn repeat<C: ConnectionLike, T: FromRedisValue>(
    connection: &mut C,
    attempts: &mut Attempts,
    build: impl Fn(Duration) -> RedisResult<Cmd>,
) -> RedisResult<T> {
    loop {
        let cmd = build(attempts.begin.elapsed())?;
        let error = match cmd.query(connection) {
            Err(error) => explained(&cmd, error),
            answer => return answer,
        };
        std::thread::sleep(attempts.pause(&error).ok_or(error)?);
    }
}

/// Sends a call, and repeats it if allowed. `build` receives the time since the first attempt.
#[cfg(feature = "aio")]
pub(crate) async fn repeat_async<C: redis::aio::ConnectionLike + Send, T: FromRedisValue>(
    connection: &mut C,
    attempts: &mut Attempts,
    build: impl Fn(Duration) -> RedisResult<Cmd> + Send,
) -> RedisResult<T> {
    loop {
        let cmd = build(attempts.begin.elapsed())?;
        let error = match cmd.query_async(connection).await {
            Err(error) => explained(&cmd, error),
            answer => return answer,
        };
        tokio::time::sleep(attempts.pause(&error).ok_or(error)?).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::ErrorKind;

    #[test]
    fn only_the_second_attempt_begins_after_the_margin() {
        let once = Once::new("k", Duration::from_secs(600)).pause(Duration::ZERO);
        let lost = (ErrorKind::Io, "lost").into();
        for (wait, margin, attempts) in [
            (Some(Duration::ZERO), Duration::ZERO, 2),
            (Some(Duration::ZERO), Duration::from_secs(60), 5),
            (None, Duration::ZERO, 5),
        ] {
            let mut made = Attempts::waiting(Some(&once), wait, margin);
            assert_eq!(std::iter::from_fn(|| made.pause(&lost)).count() + 1, attempts, "{wait:?} {margin:?}");
        }
    }
}
