//! A limiter with an answer for every call, also when the server is away.

use crate::{Limit, Ruling, Take, WhenAway, call};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ToSingleRedisArg};
use std::time::Duration;

/// Limits calls by a [`Limit`] of any kind, and by [`WhenAway`] when the server does not answer.
///
/// [`BlockingLimiter`](crate::BlockingLimiter) is the same for code that does not run in tokio.
///
/// `connection` is a connection that can be cloned: a `ConnectionManager`, which connects again when the
/// server comes back, a cluster's connection, or a `MultiplexedConnection`, which stays broken once it is.
/// Every error is a reason for [`WhenAway`]: no connection, no answer within the [timeout](Self::timeout),
/// and an error reply, such as that of a server without the module or of a replica. [`Ruling::error`] has it;
/// log it.
///
/// A call is sent once. After a timeout or a broken connection, the server may have counted the call
/// nevertheless.
///
/// # Example
/// ```
/// use redis::aio::{ConnectionManager, ConnectionManagerConfig};
/// use redis_cell_client::{Limiter, LocalLimiter, Rate, Units, WhenAway};
/// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let client = redis::Client::open(url)?;
/// let connection = ConnectionManager::new_lazy_with_config(client, ConnectionManagerConfig::new())?;
/// let four_processes = std::num::NonZeroU32::new(4).unwrap();
/// let limiter = Limiter::new(connection, WhenAway::Local(LocalLimiter::new(four_processes)));
/// let ruling = limiter.take("doc:limiter", Rate::per_second(100).burst(99), Units(1)).await?;
/// assert!(ruling.admitted());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter<C> {
    connection: C,
    when_away: WhenAway,
    timeout: Duration,
}

impl<C: ConnectionLike + Clone + Send> Limiter<C> {
    /// The timeout of a limiter that sets none: 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// A limiter that asks the server of `connection`.
    pub const fn new(connection: C, when_away: WhenAway) -> Self {
        Self { connection, when_away, timeout: Self::TIMEOUT }
    }

    /// How long to wait for an answer of the server, including the time in which the connection is made.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Takes units, or says why not.
    ///
    /// # Errors
    /// Only if the arguments cannot be sent: see [`call::take`]. A server that is away is no error.
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
        let cmd = call::take(key, limit, take)?;
        let answer = ask(&self.connection, self.timeout, &cmd).await;
        self.when_away.rule(answer, &bytes, limit, take)
    }
}

/// Sends a command once, and waits for its answer for `timeout` at most.
pub async fn ask<C: ConnectionLike + Clone + Send, T: FromRedisValue>(
    connection: &C,
    timeout: Duration,
    cmd: &Cmd,
) -> RedisResult<T> {
    let mut connection = connection.clone();
    match tokio::time::timeout(timeout, cmd.query_async(&mut connection)).await {
        Ok(answer) => answer,
        Err(_) => Err((ErrorKind::Io, "the server has not answered in time").into()),
    }
}
