//! A limiter that decides also when the server is unavailable.

use crate::away::Outage;
use crate::{Limit, Ruling, Take, WhenAway, call, local};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, ToSingleRedisArg};
use std::time::Duration;

/// Limits calls by a [`Limit`] of any kind, and by [`WhenAway`] when the server is unavailable.
///
/// [`BlockingLimiter`](crate::BlockingLimiter) is the same for code that does not run in tokio.
///
/// `connection` is a connection that can be cloned: a `ConnectionManager`, which connects again when the
/// server comes back, a cluster's connection, or a `MultiplexedConnection`, which stays broken once it is.
/// Switch the retries of a `ConnectionManager` off. They last longer than the timeout, so that the limiter
/// would not learn why no connection can be made, and would take a wrong password for an unavailable server.
/// Reasons for [`WhenAway`] are the errors of [`is_unavailable`](crate::is_unavailable), among them no
/// connection, no answer within the [timeout](Self::timeout), and the error of a replica. [`Ruling::error`]
/// has it; log it. All other errors are those of [`take`](Self::take), whatever the choice.
///
/// While the server is unavailable, one call [a second](Self::ask_again) asks it, and the others are decided
/// at once. All clones share what they know of the server.
///
/// A call is sent once, and again only if a node of a cluster has not run it, because its slot has moved.
/// After a timeout or a broken connection, the server may have counted the call nevertheless.
///
/// # Example
/// ```
/// use redis::aio::{ConnectionManager, ConnectionManagerConfig};
/// use redis_cell_client::{Limiter, LocalLimiter, Rate, Units, WhenAway};
/// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let client = redis::Client::open(url)?;
/// let once = ConnectionManagerConfig::new().set_number_of_retries(0); // of connecting
/// let connection = ConnectionManager::new_lazy_with_config(client, once)?;
/// let four_processes = std::num::NonZeroU32::new(4).unwrap();
/// let limiter = Limiter::new(connection, WhenAway::Local(LocalLimiter::new(four_processes)));
/// let ruling = limiter.take("doc:limiter", Rate::per_second(100).burst(99), Units(1)).await?;
/// assert!(ruling.admitted());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter<C> {
    connection: C,
    outage: Outage,
    timeout: Duration,
}

impl<C: ConnectionLike + Clone + Send> Limiter<C> {
    /// The timeout of a limiter that sets none: 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// How long a limiter that sets no other time decides without an unavailable server before a call asks it
    /// again: one second.
    pub const ASK_AGAIN: Duration = Outage::ASK_AGAIN;

    /// A limiter that asks the server of `connection`.
    pub fn new(connection: C, when_away: WhenAway) -> Self {
        Self { connection, outage: Outage::new(when_away), timeout: Self::TIMEOUT }
    }

    /// How long to wait for an answer of the server, including the time in which the connection is made.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// For how long after a failure calls are decided without the server. Then one call asks again, and the
    /// others follow if it is answered. With zero each call asks, and waits for the timeout.
    #[must_use]
    pub fn ask_again(mut self, pause: Duration) -> Self {
        self.outage.ask_again = pause;
        self
    }

    /// Takes units, or says why not.
    ///
    /// # Errors
    /// If the limit or the quantity is out of the range that the command accepts, before anything is sent and
    /// whether the server is available or not: these have the kind [`ErrorKind::Client`]. And any other error
    /// of the call or of the set-up, such as a key of another type or a server without the module. An
    /// unavailable server is not an error.
    ///
    /// # Panics
    /// Outside of a tokio runtime with a timer.
    pub async fn take(
        &self,
        key: impl ToSingleRedisArg + AsRef<[u8]>,
        limit: impl Into<Limit>,
        take: impl Into<Take>,
    ) -> RedisResult<Ruling> {
        let (limit, take) = (limit.into(), take.into());
        let bytes = key.as_ref().to_vec();
        local::check(limit, take)?;
        let cmd = call::take(key, limit, take)?;
        let answer = match self.outage.asks() {
            Ok(()) => self.outage.learn(ask(&self.connection, self.timeout, &cmd).await),
            Err(error) => Err(error),
        };
        self.outage.rule(answer, &bytes, limit, take)
    }
}

/// Sends a command once, and waits for its answer for `timeout` at most.
///
/// A node of a cluster whose slot has moved has not run the call. It is sent again, within the timeout,
/// because the cluster's connection reads the slots again.
///
/// # Example
/// ```
/// use redis_cell_client::{Answer, MTake, Rate, Together, Units, ask, call};
/// use std::time::Duration;
/// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
/// let limiters = MTake::new().throttle("doc:ask", Rate::per_second(5), Units(1));
/// let answer: Together<Answer> =
///     ask(&connection, Duration::from_millis(50), &call::mtake(limiters)?).await?;
/// assert!(answer.combined.admitted());
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of the call, and one of the kind [`ErrorKind::Io`] if the answer does not come in time.
///
/// # Panics
/// Outside of a tokio runtime with a timer.
pub async fn ask<C: ConnectionLike + Clone + Send, T: FromRedisValue>(
    connection: &C,
    timeout: Duration,
    cmd: &Cmd,
) -> RedisResult<T> {
    let mut connection = connection.clone();
    let mut unanswered = (ErrorKind::Io, "the server has not answered in time").into();
    let answer = async {
        let mut pause = Duration::from_millis(1);
        loop {
            match cmd.query_async(&mut connection).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => unanswered = error,
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2);
        }
    };
    match tokio::time::timeout(timeout, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(unanswered),
    }
}
