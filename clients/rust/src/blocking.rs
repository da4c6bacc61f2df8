//! The blocking counterpart of `Limiter`.

use crate::{Answer, CellConnection, Limit, Ruling, Take, WhenAway, call};
use redis::{Client, Cmd, Connection, ConnectionLike, RedisResult, ToSingleRedisArg};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A blocking connection that can be told how long to wait.
pub trait TimedConnection: ConnectionLike {
    /// Later calls return an error when nothing was received, or sent, for this time.
    ///
    /// # Errors
    /// If the time is zero, or the connection rejects it.
    fn set_timeout(&mut self, timeout: Duration) -> RedisResult<()>;
}

impl TimedConnection for Connection {
    fn set_timeout(&mut self, timeout: Duration) -> RedisResult<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

#[cfg(feature = "cluster")]
impl TimedConnection for redis::cluster::ClusterConnection {
    fn set_timeout(&mut self, timeout: Duration) -> RedisResult<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl<C: TimedConnection> TimedConnection for CellConnection<C> {
    fn set_timeout(&mut self, timeout: Duration) -> RedisResult<()> {
        self.connection_mut().set_timeout(timeout)
    }
}

/// Limits calls by a [`Limit`] of any kind, and by [`WhenAway`] when the server does not answer, for code
/// that blocks.
///
/// The limiter makes its connections itself: as many as there are calls at the same time. It keeps them for
/// later calls, replaces those that were not used for [a minute](Self::IDLE), and closes one that has
/// returned an error. All clones share them. Every error is a reason for [`WhenAway`]: no connection, no
/// answer within the [timeout](Self::timeout), and an error reply, such as that of a server without the
/// module or of a replica. [`Ruling::error`] has it; log it.
///
/// A call is sent once. After a timeout or a broken connection, the server may have counted the call
/// nevertheless.
///
/// # Example
/// ```
/// use redis_cell_client::{BlockingLimiter, LocalLimiter, Rate, Units, WhenAway};
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let four_processes = std::num::NonZeroU32::new(4).unwrap();
/// let local = WhenAway::Local(LocalLimiter::new(four_processes));
/// let limiter = BlockingLimiter::new(redis::Client::open(url)?, local);
/// let ruling = limiter.take("doc:blocking", Rate::per_second(100).burst(99), Units(1))?;
/// assert!(ruling.admitted());
/// # redis::RedisResult::Ok(())
/// ```
pub struct BlockingLimiter<C = Connection> {
    connections: Arc<Connections<C>>,
    when_away: WhenAway,
    timeout: Duration,
}

impl<C> Clone for BlockingLimiter<C> {
    fn clone(&self) -> Self {
        let (connections, when_away) = (Arc::clone(&self.connections), self.when_away.clone());
        Self { connections, when_away, timeout: self.timeout }
    }
}

impl<C> fmt::Debug for BlockingLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingLimiter")
            .field("when_away", &self.when_away)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl BlockingLimiter {
    /// A limiter that asks the server of `client`. No connection is made before the first call.
    pub fn new(client: Client, when_away: WhenAway) -> Self {
        Self::with_connections(move |timeout| client.get_connection_with_timeout(timeout), when_away)
    }
}

impl<C: TimedConnection> BlockingLimiter<C> {
    /// The timeout of a limiter that sets none: 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// How long a connection may be unused before it is replaced: one minute. Servers and firewalls close
    /// unused connections, mostly after several minutes, and the next call on such a connection would fail.
    pub const IDLE: Duration = Duration::from_secs(60);

    /// A limiter on connections that `connect` makes, within the time that it is given: those of a cluster
    /// (with the feature `cluster`), or those of a [`CellConnection`].
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::{Backend, BlockingLimiter, CellConnection, WhenAway};
    /// let client = redis::Client::open("redis://127.0.0.1:6379")?;
    /// let connect = move |timeout| {
    ///     let connection = client.get_connection_with_timeout(timeout)?;
    ///     Ok(CellConnection::new(connection, Backend::Functions))
    /// };
    /// let limiter = BlockingLimiter::with_connections(connect, WhenAway::FailOpen);
    /// # redis::RedisResult::Ok(())
    /// ```
    pub fn with_connections(
        connect: impl Fn(Duration) -> RedisResult<C> + Send + Sync + 'static,
        when_away: WhenAway,
    ) -> Self {
        let connections = Connections { connect: Box::new(connect), unused: Mutex::default() };
        Self { connections: Arc::new(connections), when_away, timeout: Self::TIMEOUT }
    }

    /// How long to wait for an answer of the server, including the time in which a connection is made. Only
    /// the time to look up the server's name is not limited.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Takes units, or says why not.
    ///
    /// # Errors
    /// Only if the arguments cannot be sent: see [`call::take`]. A server that is away is no error.
    pub fn take(
        &self,
        key: impl ToSingleRedisArg + AsRef<[u8]>,
        limit: impl Into<Limit>,
        take: impl Into<Take>,
    ) -> RedisResult<Ruling> {
        let (limit, take) = (limit.into(), take.into());
        let bytes = key.as_ref().to_vec();
        let cmd = call::take(key, limit, take)?;
        self.when_away.rule(self.ask(&cmd), &bytes, limit, take)
    }

    /// Sends a command once, and waits for its answer for the timeout at most.
    fn ask(&self, cmd: &Cmd) -> RedisResult<Answer> {
        let start = Instant::now();
        let mut connection = match self.connections.unused(start.checked_sub(Self::IDLE)) {
            Some(connection) => connection,
            None => (self.connections.connect)(self.timeout)?,
        };
        connection.set_timeout(self.timeout.saturating_sub(start.elapsed()))?;
        let answer = cmd.query(&mut connection);
        match &answer {
            Ok(_) => self.connections.lock().push((connection, Instant::now())),
            // The server has replied. It may be a replica since then: another connection may lead elsewhere.
            Err(error) if error.code().is_some() => {}
            // What has broken this connection has probably broken those that are not used.
            Err(_) => self.connections.lock().clear(),
        }
        answer
    }
}

/// How connections are made, and those that no call uses.
struct Connections<C> {
    connect: Box<dyn Fn(Duration) -> RedisResult<C> + Send + Sync>,
    /// With the instant of their last use, the latest at the end.
    unused: Mutex<Vec<(C, Instant)>>,
}

impl<C> Connections<C> {
    /// The connection that was used last, if that was after `since`.
    fn unused(&self, since: Option<Instant>) -> Option<C> {
        let mut unused = self.lock();
        if let Some(since) = since {
            unused.retain(|&(_, used)| used > since);
        }
        unused.pop().map(|(connection, _)| connection)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(C, Instant)>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
