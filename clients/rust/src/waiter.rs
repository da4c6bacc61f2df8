//! Connections for calls that wait.

use crate::once::Attempts;
use crate::{MTake, Taken, Wait};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Takes units from several limiters, and waits in the server until all admit the call, fairly among flows
/// (`CL.BMTAKE`).
///
/// Each call that waits needs a connection of its own. A `Waiter` makes them, keeps those that are not used
/// for later calls, and replaces those that are broken. All clones share them. A call whose future is dropped
/// closes its connection, so that the server forgets the client: a web server that drops the handler of a
/// client that has gone frees its place in the queue.
///
/// # Example
/// ```
/// use redis_cell_client::{Flow, MTake, Rate, Units, Wait, Waiter};
/// use std::time::Duration;
/// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let waiter = Waiter::new(redis::Client::open(url)?);
/// let upstream = MTake::new().throttle("doc:waiter", Rate::per_second(100), Units(1));
/// let wait = Wait::at_most(Duration::from_secs(5)).flow(Flow::new("tenant:acme"));
/// match waiter.take(upstream, wait).await? {
///     Some(taken) => assert!(taken.combined.admitted()),
///     None => println!("not within five seconds"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Waiter {
    client: Client,
    config: AsyncConnectionConfig,
    unused: Arc<Mutex<Vec<MultiplexedConnection>>>,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("unused", &self.unused().len()).finish_non_exhaustive()
    }
}

impl Waiter {
    /// How long a connection may take to be made, unless [`connect_timeout`](Self::connect_timeout) says
    /// otherwise: one second.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

    /// Calls wait in the server of `client`. No connection is made before the first call.
    pub fn new(client: Client) -> Self {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Self { client, config, unused: Arc::default() }.connect_timeout(Self::CONNECT_TIMEOUT)
    }

    /// How long a connection may take to be made.
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self { config: self.config.set_connection_timeout(Some(timeout)), ..self }
    }

    fn unused(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes units as soon as all limiters admit the call and it is the turn of its flow. `None` if that is
    /// not within the time of `wait`. A call with [`Once`](crate::Once) is repeated on other connections.
    ///
    /// # Errors
    /// If the limiters or the options cannot be sent, and those of the call and of its connection.
    ///
    /// # Panics
    /// Outside of a tokio runtime with a timer.
    pub async fn take(&self, limiters: MTake, wait: Wait) -> RedisResult<Option<Taken>> {
        let mut attempts = Attempts::new(limiters.is_once());
        loop {
            let error = match self.attempt(&limiters, &wait, &attempts).await {
                Err(error) => error,
                answer => return answer,
            };
            // What has broken this connection has probably broken those that are not used.
            self.unused().clear();
            tokio::time::sleep(attempts.pause(&error).ok_or(error)?).await;
        }
    }

    async fn attempt(
        &self,
        limiters: &MTake,
        wait: &Wait,
        attempts: &Attempts,
    ) -> RedisResult<Option<Taken>> {
        let cmd = limiters.clone().waiting(wait, attempts.begin().elapsed())?;
        let unused = self.unused().pop();
        let mut connection = match unused {
            Some(connection) => connection,
            None => self.client.get_multiplexed_async_connection_with_config(&self.config).await?,
        };
        let answer: RedisResult<Option<_>> = cmd.query_async(&mut connection).await;
        // The server has replied, if only with an error of the call.
        let answered = answer.as_ref().err().is_none_or(|error| error.code().is_some());
        if answered {
            self.unused().push(connection);
        }
        Ok(answer?.map(|answer| Taken::after_wait(answer, limiters, attempts)))
    }
}
