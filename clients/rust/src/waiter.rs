//! Connections for calls that wait.

use crate::call::explained;
use crate::once::Attempts;
use crate::{Answer, MTake, Taken, Together, Wait};
use redis::aio::MultiplexedConnection;
#[cfg(feature = "cluster")]
use redis::cluster_routing::Slot;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(feature = "cluster")]
mod cluster;

/// Takes units from several limiters, and waits in the server until all admit the call, fairly among flows
/// (`CL.BMTAKE`).
///
/// Each call that waits needs its own connection. A `Waiter` makes these connections, keeps unused ones for
/// later calls, and replaces broken ones. All clones share them. If the future of a call is dropped, its
/// connection is closed and the call leaves the queue. So a web server that drops the handler of a
/// disconnected client also frees its place in the queue.
///
/// No call waits longer than its time and a [margin](Self::margin), even if the server is frozen. Only a call
/// with [`Wait::forever`] has no such end: drop its future, as `tokio::time::timeout` does.
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
    config: AsyncConnectionConfig,
    margin: Duration,
    servers: Servers,
}

/// The servers in which calls wait.
#[derive(Clone)]
enum Servers {
    One(Arc<Node>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Mutex<cluster::Nodes>>),
}

/// A server, and the unused connections to it.
struct Node {
    client: Client,
    unused: Mutex<Vec<MultiplexedConnection>>,
}

impl Node {
    fn new(client: Client) -> Arc<Self> {
        Arc::new(Self { client, unused: Mutex::default() })
    }

    fn unused(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self, config: &AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let unused = self.unused().pop();
        match unused {
            Some(connection) => Ok(connection),
            None => self.client.get_multiplexed_async_connection_with_config(config).await,
        }
    }

    /// Sends a call over a connection of this server. `asking` is for a server that is importing the call's
    /// slot.
    async fn send(
        &self,
        mut connection: MultiplexedConnection,
        asking: bool,
        cmd: Cmd,
    ) -> RedisResult<Option<Together<Answer>>> {
        let answer = if asking {
            let mut pipeline = redis::pipe();
            let pipeline = pipeline.cmd("ASKING").ignore().add_command(cmd.clone());
            pipeline.query_async(&mut connection).await.map(|(answer,)| answer)
        } else {
            cmd.query_async(&mut connection).await
        };
        // The server may also have replied with an error of the call.
        let replied = answer.as_ref().err().is_none_or(|error: &RedisError| error.code().is_some());
        if replied {
            self.unused().push(connection);
        } else {
            // The unused connections are probably broken too.
            self.unused().clear();
        }
        answer.map_err(|error| explained(&cmd, error))
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").finish_non_exhaustive()
    }
}

impl Waiter {
    /// The default of [`connect_timeout`](Self::connect_timeout): one second.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

    /// The default of [`margin`](Self::margin): five seconds, as in the Python client.
    pub const MARGIN: Duration = Duration::from_secs(5);

    /// Creates a waiter for the server of `client`. No connection is made before the first call.
    pub fn new(client: Client) -> Self {
        Self::with(Servers::One(Node::new(client)))
    }

    fn with(servers: Servers) -> Self {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Self { config, margin: Self::MARGIN, servers }.connect_timeout(Self::CONNECT_TIMEOUT)
    }

    /// Sets the longest time in which a connection is made.
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self { config: self.config.set_connection_timeout(Some(timeout)), ..self }
    }

    /// Sets how long after the end of its wait a call ends at the latest, with connections, redirections and
    /// repetitions. A margin that a busy server outlasts loses units: the server may still take them.
    #[must_use]
    pub fn margin(self, margin: Duration) -> Self {
        Self { margin, ..self }
    }

    /// Takes units as soon as all limiters admit the call and its flow has its turn. Returns `None` if the
    /// time of `wait` ends first. A call with [`Once`](crate::Once) is repeated on other connections.
    ///
    /// # Errors
    /// Returns an error if the arguments cannot be sent, and the errors of the call and of its connection.
    /// Returns an error of the kind [`ErrorKind::Io`] if the server has not answered when the time of `wait`
    /// and the [margin](Self::margin) are over.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with a timer.
    pub async fn take(&self, limiters: MTake, wait: Wait) -> RedisResult<Option<Taken>> {
        let answer = self.repeat(&limiters, &wait);
        let Some(time) = wait.longest() else { return answer.await };
        tokio::time::timeout(time.saturating_add(self.margin), answer).await.unwrap_or_else(|_| {
            // The unused connections to a frozen server are frozen too.
            self.server_of(&limiters).unused().clear();
            Err((ErrorKind::Io, "the server has not answered in time").into())
        })
    }

    /// The server in which a call waits, as far as it is known.
    fn server_of(&self, #[cfg_attr(not(feature = "cluster"), allow(unused))] limiters: &MTake) -> Arc<Node> {
        match &self.servers {
            Servers::One(server) => server.clone(),
            #[cfg(feature = "cluster")]
            Servers::Cluster(nodes) => cluster::lock(nodes).of(slot(limiters)),
        }
    }

    async fn repeat(&self, limiters: &MTake, wait: &Wait) -> RedisResult<Option<Taken>> {
        let mut attempts = Attempts::new(limiters.is_once());
        loop {
            let cmd = || limiters.clone().waiting(wait, attempts.begin().elapsed());
            let answer = match &self.servers {
                Servers::One(server) => {
                    let cmd = cmd()?;
                    match server.connection(&self.config).await {
                        Ok(connection) => server.send(connection, false, cmd).await,
                        Err(error) => Err(error),
                    }
                }
                #[cfg(feature = "cluster")]
                Servers::Cluster(nodes) => cluster::follow(nodes, slot(limiters), &self.config, cmd).await,
            };
            match answer {
                Ok(answer) => return Ok(answer.map(|answer| Taken::after_wait(answer, limiters, &attempts))),
                Err(error) => tokio::time::sleep(attempts.pause(&error).ok_or(error)?).await,
            }
        }
    }
}

#[cfg(feature = "cluster")]
fn slot(limiters: &MTake) -> Slot {
    Slot::for_key(limiters.first_key().unwrap_or_default())
}
