//! A limiter with an answer for every call, also when the server is away.

use crate::{Answer, Decision, Gcra, LocalLimiter, Take, call};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ToSingleRedisArg};
use std::time::Duration;

/// What to do with a call that the server has not answered. There is no default, because only you know which
/// is worse: too many calls, or none.
#[derive(Clone, Debug)]
pub enum WhenAway {
    /// Admit the call.
    FailOpen,
    /// Refuse the call.
    FailClosed,
    /// Decide by a limiter in this process.
    Local(LocalLimiter),
}

/// The outcome of a call of [`Limiter`].
#[derive(Clone, Debug)]
pub enum Ruling {
    /// The server has answered.
    Server(Answer),
    /// The server has not answered, and this process has decided by its share of the limit.
    Local {
        /// The answer, with the numbers of the share.
        answer: Answer,
        /// The share.
        share: Gcra,
        /// Why there is no answer of the server.
        error: RedisError,
    },
    /// The server has not answered, and the call is admitted.
    FailedOpen(RedisError),
    /// The server has not answered, and the call is refused.
    FailedClosed(RedisError),
}

impl Ruling {
    /// Whether the call may go ahead.
    pub const fn admitted(&self) -> bool {
        match self {
            Self::Server(answer) | Self::Local { answer, .. } => answer.admitted(),
            Self::FailedOpen(_) => true,
            Self::FailedClosed(_) => false,
        }
    }

    /// The answer, whoever gave it. `None` if nobody did.
    pub const fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Server(answer) | Self::Local { answer, .. } => Some(answer),
            Self::FailedOpen(_) | Self::FailedClosed(_) => None,
        }
    }

    /// Why the server has not answered. `None` if it has.
    pub const fn error(&self) -> Option<&RedisError> {
        match self {
            Self::Server(_) => None,
            Self::Local { error, .. } | Self::FailedOpen(error) | Self::FailedClosed(error) => Some(error),
        }
    }

    /// Whether a refused call can never be admitted, because its quantity exceeds the limit.
    pub const fn refused_forever(&self) -> bool {
        matches!(self.answer(), Some(Answer { decision: Decision::RefusedForever, .. }))
    }
}

/// Limits calls by `CL.THROTTLE`, and by [`WhenAway`] when the server does not answer.
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
/// let ruling = limiter.throttle("doc:limiter", Rate::per_second(100).burst(99), Units(1)).await?;
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
    /// Only if the arguments cannot be sent: see [`call::throttle`]. A server that is away is no error.
    ///
    /// # Panics
    /// Outside of a tokio runtime with a timer.
    pub async fn throttle(
        &self,
        key: impl ToSingleRedisArg + AsRef<[u8]>,
        limit: impl Into<Gcra>,
        take: impl Into<Take>,
    ) -> RedisResult<Ruling> {
        let (limit, take) = (limit.into(), take.into());
        let bytes = key.as_ref().to_vec();
        let cmd = call::throttle(key, limit, take)?;
        let error = match ask(&self.connection, self.timeout, &cmd).await {
            Ok(answer) => return Ok(Ruling::Server(answer)),
            Err(error) => error,
        };
        Ok(match &self.when_away {
            WhenAway::FailOpen => Ruling::FailedOpen(error),
            WhenAway::FailClosed => Ruling::FailedClosed(error),
            WhenAway::Local(local) => {
                let (answer, share) = (local.throttle(bytes, limit, take)?, local.share(limit));
                Ruling::Local { answer, share, error }
            }
        })
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
