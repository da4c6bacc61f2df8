//! The blocking counterpart of `Limiter`.

use crate::away::Outage;
use crate::{Answer, CellConnection, Limit, Ruling, Take, WhenAway, call, local};
use redis::{
    Client, Cmd, Connection, ConnectionLike, ErrorKind, RedisError, RedisResult, ServerErrorKind,
    ToSingleRedisArg,
};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
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

/// Limits calls by a [`Limit`] of any kind, and by [`WhenAway`] when the server is unavailable, for code that
/// blocks.
///
/// The limiter makes its connections itself: as many as there are calls at the same time, and up to twice as
/// many when calls end while others wait for a new connection. It keeps them for later calls, replaces those
/// that were not used for [a minute](Self::IDLE), and closes one that has returned an error. All clones share
/// them. Reasons for [`WhenAway`] are the errors of [`is_unavailable`](crate::is_unavailable), among them no
/// connection, no answer within the [timeout](Self::timeout), and the error of a replica.
/// [`Ruling::error`] has it; log it. All other errors are those of [`take`](Self::take), whatever the choice.
///
/// While the server is unavailable, one call [a second](Self::ask_again) asks it, and the others are decided
/// at once. All clones share what they know of the server.
///
/// A call is sent once, and again only if a node of a cluster has not run it, because its slot has moved.
/// After a timeout or a broken connection, the server may have counted the call nevertheless.
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
    outage: Outage,
    timeout: Duration,
}

impl<C> Clone for BlockingLimiter<C> {
    fn clone(&self) -> Self {
        let (connections, outage) = (Arc::clone(&self.connections), self.outage.clone());
        Self { connections, outage, timeout: self.timeout }
    }
}

impl<C> fmt::Debug for BlockingLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingLimiter")
            .field("when_away", self.outage.choice())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl BlockingLimiter {
    /// A limiter that calls the server of `client`. No connection is made before the first call.
    pub fn new(client: Client, when_away: WhenAway) -> Self {
        Self::with_connections(move |timeout| client.get_connection_with_timeout(timeout), when_away)
    }
}

impl<C: TimedConnection + Send + 'static> BlockingLimiter<C> {
    /// The timeout of a limiter that sets none: 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// How long a limiter that sets no other time decides without an unavailable server before a call asks it
    /// again: one second.
    pub const ASK_AGAIN: Duration = Outage::ASK_AGAIN;

    /// How long a connection may be unused before it is replaced: one minute. Servers and firewalls close
    /// unused connections, mostly after several minutes, and the next call on such a connection would fail.
    pub const IDLE: Duration = Duration::from_secs(60);

    /// A limiter on connections that `connect` makes: those of a cluster (with the feature `cluster`), or
    /// those of a [`CellConnection`].
    ///
    /// `connect` is given the timeout of the call, and runs in a thread of its own. If it takes longer, the
    /// call does not wait for it, and a later one has the connection. At most 64 of these threads run at the
    /// same time; further calls wait for a connection within their timeout.
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
        let pool = Mutex::new(Pool { unused: Vec::new(), attempts: 0 });
        let connections = Connections { connect: Box::new(connect), pool, changed: Condvar::new() };
        Self { connections: Arc::new(connections), outage: Outage::new(when_away), timeout: Self::TIMEOUT }
    }

    /// How long a call waits for the server in all: for the look-up of its name, the connection, and the
    /// answer.
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
    pub fn take(
        &self,
        key: impl ToSingleRedisArg + AsRef<[u8]>,
        limit: impl Into<Limit>,
        take: impl Into<Take>,
    ) -> RedisResult<Ruling> {
        let (limit, take) = (limit.into(), take.into());
        let bytes = key.as_ref().to_vec();
        local::check(limit, take)?;
        let cmd = call::take(key, limit, take)?;
        let answer = self.outage.asks().and_then(|()| self.outage.learn(self.ask(&cmd)));
        self.outage.rule(answer, &bytes, limit, take)
    }

    /// Sends a command once, and waits for its answer for the timeout at most.
    fn ask(&self, cmd: &Cmd) -> RedisResult<Answer> {
        let start = Instant::now();
        let kind = |answer: &RedisResult<_>| answer.as_ref().err().map(RedisError::kind);
        let mut answer = self.ask_once(cmd, start);
        // No node has run the call. A new connection knows the cluster's nodes.
        if matches!(
            kind(&answer),
            Some(ErrorKind::Server(ServerErrorKind::Moved) | ErrorKind::ClusterConnectionNotFound)
        ) {
            self.connections.pool().unused.clear();
            answer = self.ask_once(cmd, start);
        }
        match kind(&answer) {
            Some(ErrorKind::ClusterConnectionNotFound) => Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "the server is reached, but names no node of a cluster that is: is it one?",
            ))),
            _ => answer,
        }
    }

    fn ask_once(&self, cmd: &Cmd, start: Instant) -> RedisResult<Answer> {
        let mut connection = self.connections.get(start, self.timeout, Self::IDLE)?;
        let left = self.timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            self.connections.put(connection); // nothing was sent
            return Err(late());
        }
        connection.set_timeout(left)?;
        let answer = cmd.query(&mut connection);
        match &answer {
            Ok(_) => self.connections.put(connection),
            // The server has replied. It may be a replica since then: another connection may lead elsewhere.
            Err(error) if error.code().is_some() => {}
            // What has broken this connection has probably broken those that are not used.
            Err(_) => self.connections.pool().unused.clear(),
        }
        answer
    }
}

fn late() -> RedisError {
    (ErrorKind::Io, "the server has not answered in time").into()
}

/// How connections are made, and those that no call uses.
struct Connections<C> {
    connect: Box<dyn Fn(Duration) -> RedisResult<C> + Send + Sync>,
    pool: Mutex<Pool<C>>,
    /// Notified when a connection is no longer used, and when an attempt to make one has ended.
    changed: Condvar,
}

struct Pool<C> {
    /// With the instant of their last use, the latest at the end.
    unused: Vec<(C, Instant)>,
    /// How many attempts to make a connection have not ended, also those for which no call waits any more.
    attempts: usize,
}

/// The largest number of attempts at the same time.
const ATTEMPTS: usize = 64;

impl<C> Connections<C> {
    fn pool(&self) -> MutexGuard<'_, Pool<C>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, connection: C) {
        self.pool().unused.push((connection, Instant::now()));
        self.changed.notify_one();
    }
}

impl<C: Send + 'static> Connections<C> {
    /// The connection that was used last, if that was within `idle`, or a new one. A connection is made in
    /// another thread: each of its steps has a timeout of its own, and the look-up of a name has none.
    fn get(self: &Arc<Self>, start: Instant, timeout: Duration, idle: Duration) -> RedisResult<C> {
        let mut pool = self.pool();
        if let Some(since) = start.checked_sub(idle) {
            pool.unused.retain(|&(_, used)| used > since);
        }
        let mut own: Option<Arc<OnceLock<RedisResult<()>>>> = None;
        loop {
            if let Some((connection, _)) = pool.unused.pop() {
                return Ok(connection);
            }
            match own.as_ref().and_then(|attempt| attempt.get()) {
                Some(Err(error)) => return Err(error.clone()),
                Some(Ok(())) => own = None, // another call has the connection
                None => {}
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(late());
            }
            if own.is_none() && pool.attempts < ATTEMPTS {
                pool.attempts = pool.attempts.saturating_add(1);
                let outcome = Arc::default();
                let attempt = Attempt { of: Arc::clone(self), made: None, outcome: Arc::clone(&outcome) };
                own = Some(outcome);
                drop(pool); // an attempt that cannot start ends at once
                std::thread::Builder::new().spawn(move || attempt.run(left))?;
                pool = self.pool();
                continue;
            }
            pool = self.changed.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An attempt to make a connection.
struct Attempt<C> {
    of: Arc<Connections<C>>,
    made: Option<RedisResult<C>>,
    outcome: Arc<OnceLock<RedisResult<()>>>,
}

impl<C> Attempt<C> {
    fn run(mut self, timeout: Duration) {
        self.made = Some((self.of.connect)(timeout));
    }
}

impl<C> Drop for Attempt<C> {
    /// Ends the attempt, also one whose thread has panicked or was never started.
    fn drop(&mut self) {
        let mut pool = self.of.pool();
        pool.attempts = pool.attempts.saturating_sub(1);
        let outcome = match self.made.take() {
            Some(Ok(connection)) => {
                pool.unused.push((connection, Instant::now()));
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Err((ErrorKind::Client, "the attempt to connect has panicked").into()),
        };
        let _: Result<(), _> = self.outcome.set(outcome);
        drop(pool);
        self.of.changed.notify_all();
    }
}
