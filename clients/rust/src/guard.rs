//! The guard, which also decides while the server is unavailable.

use crate::once::Attempts;
use crate::unavailable::Outage;
use crate::{DecidedBy, Limit, Merged, Once, Quantity, Refusals, WhenUnavailable, call, late, local};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, ToSingleRedisArg};
use std::time::Duration;

/// Limits calls with a [`Limit`] of any kind. While the server is unavailable, [`WhenUnavailable`] decides.
///
/// [`BlockingGuard`](crate::BlockingGuard) does the same in code that does not run in tokio.
///
/// The connection can be cloned: it is a `ConnectionManager`, which reconnects when the server is back, a
/// cluster's connection, or a `MultiplexedConnection`, which never reconnects. Turn off the retries of a
/// `ConnectionManager`: they take longer than the timeout, so that a wrong password would look like an
/// unavailable server. [`WhenUnavailable`] decides after an error that
/// [`is_unavailable`](crate::is_unavailable) recognizes, such as no connection, no answer within the
/// [timeout](Self::timeout), or the error of a replica. [`DecidedBy::error`] returns this error: log it.
/// [`take`](Self::take) returns all other errors.
///
/// While the server is unavailable, one call [a second](Self::ask_again) is sent to it, and the others are
/// decided immediately. All clones share this knowledge of the server.
///
/// A call is sent once. It is sent again only if a node of a cluster did not run it because the slot has
/// moved. After a timeout or a broken connection, the server may still have counted the call.
///
/// # Example
/// ```
/// use redis::aio::{ConnectionManager, ConnectionManagerConfig};
/// use redis_cell_client::{Guard, LocalLimiter, Rate, Units, WhenUnavailable};
/// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let client = redis::Client::open(url)?;
/// let once = ConnectionManagerConfig::new().set_number_of_retries(0); // of connecting
/// let connection = ConnectionManager::new_lazy_with_config(client, once)?;
/// let four_processes = std::num::NonZeroU32::new(4).unwrap();
/// let guard = Guard::new(connection, WhenUnavailable::Local(LocalLimiter::new(four_processes)));
/// let decided = guard.take("doc:guard", Rate::per_second(100).burst(99), Units(1)).await?;
/// assert!(decided.admitted());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Guard<C> {
    connection: C,
    outage: Outage,
    timeout: Duration,
    refusals: Option<Refusals>,
    merged: Option<Merged<C>>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Guard<C> {
    /// The default of [`timeout`](Self::timeout): 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// The default of [`ask_again`](Self::ask_again): one second.
    pub const ASK_AGAIN: Duration = Outage::ASK_AGAIN;

    /// Creates a guard that sends its calls over `connection`.
    pub fn new(connection: C, when_unavailable: WhenUnavailable) -> Self {
        let outage = Outage::new(when_unavailable);
        Self { connection, outage, timeout: Self::TIMEOUT, refusals: None, merged: None }
    }

    /// Sets how long a call waits for the server's answer, including the time to connect.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        let merged = self.merged.map(|merged| merged.timeout(timeout));
        Self { timeout, merged, ..self }
    }

    /// Sends calls for the same key and limit as one call, while another one is on its way: see [`Merged`].
    ///
    /// Only calls of [`take`](Self::take) are merged. The calls of an [`Account`](crate::Account) hold units
    /// for their own blocks, so they cannot be merged. For several limiters without a hold, use
    /// [`Merged::mtake`]; [`is_unavailable`](crate::is_unavailable) recognizes the errors that need a choice.
    #[must_use]
    pub fn merged(self) -> Self {
        let merged = Merged::new(self.connection.clone()).timeout(self.timeout);
        Self { merged: Some(merged), ..self }
    }

    /// Sets how long after a failure calls are decided without the server. Then one call is sent to it, and
    /// the others follow if it is answered. With zero, every call is sent, and waits for the timeout.
    #[must_use]
    pub fn ask_again(mut self, pause: Duration) -> Self {
        self.outage.ask_again = pause;
        self
    }

    /// Remembers the refusals of the server, so that calls for refused keys rarely reach it.
    #[must_use]
    pub fn refusals(self, refusals: Refusals) -> Self {
        Self { refusals: Some(refusals), ..self }
    }

    /// Takes units or refuses the call, as the server decides, or without the server while it is unavailable.
    ///
    /// # Errors
    /// Returns an error of the kind [`ErrorKind::Client`] if the limit or the quantity is out of the range
    /// that the command accepts. It is found before anything is sent, even while the server is unavailable.
    /// Also returns any other error of the call or of the setup, such as a key of another type or a server
    /// without the module. An unavailable server is not an error.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with a timer.
    pub async fn take(
        &self,
        key: impl ToSingleRedisArg + AsRef<[u8]>,
        limit: impl Into<Limit>,
        quantity: impl Into<Quantity>,
    ) -> RedisResult<DecidedBy> {
        let (limit, quantity) = (limit.into(), quantity.into());
        let bytes = key.as_ref().to_vec();
        if self.merged.is_none() {
            local::check(limit, quantity)?;
        }
        let recalled = self.refusals.as_ref().and_then(|all| all.recall_call(&bytes, limit, quantity));
        if let Some(refusal) = recalled {
            return Ok(DecidedBy::Server(refusal));
        }
        let answer = match (self.outage.asks(), &self.merged) {
            (Ok(()), Some(merged)) => self.outage.learn(merged.take(&bytes, limit, quantity).await),
            (Ok(()), None) => {
                let cmd = call::take(key, limit, quantity)?;
                self.outage.learn(ask(&self.connection, self.timeout, &cmd).await)
            }
            (Err(error), merged) => {
                if merged.is_some() {
                    local::check(limit, quantity)?; // a merged call checks it when it is sent
                }
                Err(error)
            }
        };
        if let (Some(refusals), Ok(answer)) = (&self.refusals, &answer) {
            refusals.learn(&bytes, limit, quantity, answer);
        }
        self.outage.decide(answer, &bytes, limit, quantity)
    }

    /// Sends a command, and repeats it if it may be, unless the server is known to be unavailable.
    pub(crate) async fn call<T: FromRedisValue>(&self, cmd: &Cmd, once: Option<&Once>) -> RedisResult<T> {
        self.outage.asks()?;
        let mut attempts = Attempts::new(once);
        loop {
            match self.outage.learn(ask(&self.connection, self.timeout, cmd).await) {
                Err(error) => tokio::time::sleep(attempts.pause(&error).ok_or(error)?).await,
                answer => return answer,
            }
        }
    }

    pub(crate) const fn when_unavailable(&self) -> &WhenUnavailable {
        self.outage.choice()
    }
}

/// Sends a command once, and waits for its answer at most for `timeout`.
///
/// If a node of a cluster did not run the call because the slot has moved, the call is sent again within the
/// timeout: the cluster's connection then knows the new node.
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
/// Returns the errors of the call, and an error of the kind [`ErrorKind::Io`] if no answer arrives in time.
///
/// # Panics
/// Panics outside a tokio runtime with a timer.
pub async fn ask<C: ConnectionLike + Clone + Send, T: FromRedisValue>(
    connection: &C,
    timeout: Duration,
    cmd: &Cmd,
) -> RedisResult<T> {
    let mut connection = connection.clone();
    let mut unanswered = late();
    let answer = async {
        let mut pause = Duration::from_millis(1);
        loop {
            match cmd.query_async(&mut connection).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) => unanswered = error,
                answer => return answer.map_err(|error| call::explained(cmd, error)),
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
