//! The blocking counterpart of `Guard`.

#[cfg(feature = "aio")]
use crate::Refusals;
use crate::once::Attempts;
use crate::unavailable::Outage;
use crate::{CellConnection, DecidedBy, Limit, Once, Quantity, WhenUnavailable, call, late, local, lock};
use redis::{
    Client, Cmd, Connection, ConnectionLike, ErrorKind, FromRedisValue, RedisError, RedisResult,
    ServerErrorKind, ToSingleRedisArg,
};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A blocking connection with a timeout that can be set.
pub trait TimedConnection: ConnectionLike {
    /// Sets the time after which a call returns an error if nothing was received or sent.
    ///
    /// # Errors
    /// Returns an error if the time is zero, or if the connection rejects it.
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

/// Limits calls of blocking code with a [`Limit`] of any kind. While the server is unavailable,
/// [`WhenUnavailable`] decides.
///
/// The guard opens its own connections: one for each concurrent call, and up to twice as many if calls end
/// while others wait for a new connection. It keeps them for later calls, replaces connections that were not
/// used for [a minute](Self::IDLE), and closes a connection that has returned an error. All clones share
/// them. [`WhenUnavailable`] decides after an error that [`is_unavailable`](crate::is_unavailable)
/// recognizes, such as no connection, no answer within the [timeout](Self::timeout), or the error of a
/// replica. [`DecidedBy::error`] returns this error: log it. [`take`](Self::take) returns all other errors.
///
/// While the server is unavailable, one call [a second](Self::ask_again) is sent to it, and the others are
/// decided immediately. All clones share this knowledge of the server.
///
/// A call is sent once. It is sent again only if a node of a cluster did not run it because the slot has
/// moved. After a timeout or a broken connection, the server may still have counted the call.
///
/// # Example
/// ```
/// use redis_cell_client::{BlockingGuard, LocalLimiter, Rate, Units, WhenUnavailable};
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let four_processes = std::num::NonZeroU32::new(4).unwrap();
/// let local = WhenUnavailable::Local(LocalLimiter::new(four_processes));
/// let guard = BlockingGuard::new(redis::Client::open(url)?, local);
/// let decided = guard.take("doc:blocking", Rate::per_second(100).burst(99), Units(1))?;
/// assert!(decided.admitted());
/// # redis::RedisResult::Ok(())
/// ```
pub struct BlockingGuard<C = Connection> {
    connections: Arc<Connections<C>>,
    outage: Outage,
    timeout: Duration,
    #[cfg(feature = "aio")]
    refusals: Option<Refusals>,
}

impl<C> Clone for BlockingGuard<C> {
    fn clone(&self) -> Self {
        Self {
            connections: Arc::clone(&self.connections),
            outage: self.outage.clone(),
            timeout: self.timeout,
            #[cfg(feature = "aio")]
            refusals: self.refusals.clone(),
        }
    }
}

impl<C> fmt::Debug for BlockingGuard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingGuard")
            .field("when_unavailable", self.outage.choice())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl BlockingGuard {
    /// Creates a guard that calls the server of `client`. No connection is made before the first call.
    pub fn new(client: Client, when_unavailable: WhenUnavailable) -> Self {
        Self::with_connections(move |timeout| client.get_connection_with_timeout(timeout), when_unavailable)
    }
}

impl<C: TimedConnection + Send + 'static> BlockingGuard<C> {
    /// The default of [`timeout`](Self::timeout): 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// The default of [`ask_again`](Self::ask_again): one second.
    pub const ASK_AGAIN: Duration = Outage::ASK_AGAIN;

    /// How long a connection may be unused before it is replaced: one minute. Servers and firewalls close
    /// unused connections, usually after several minutes, and the next call on such a connection would fail.
    pub const IDLE: Duration = Duration::from_secs(60);

    /// Creates a guard on connections that `connect` makes, such as connections to a cluster (with the
    /// feature `cluster`) or a [`CellConnection`].
    ///
    /// `connect` is called in its own thread with the time that is left of the call's timeout. If it takes
    /// longer, the call stops waiting, and a later call uses the connection. At most 64 such threads run at a
    /// time; further calls wait for a connection within their timeout.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::{Backend, BlockingGuard, CellConnection, WhenUnavailable};
    /// let client = redis::Client::open("redis://127.0.0.1:6379")?;
    /// let connect = move |timeout| {
    ///     let connection = client.get_connection_with_timeout(timeout)?;
    ///     Ok(CellConnection::new(connection, Backend::Functions))
    /// };
    /// let guard = BlockingGuard::with_connections(connect, WhenUnavailable::FailOpen);
    /// # redis::RedisResult::Ok(())
    /// ```
    pub fn with_connections(
        connect: impl Fn(Duration) -> RedisResult<C> + Send + Sync + 'static,
        when_unavailable: WhenUnavailable,
    ) -> Self {
        let pool = Mutex::new(Pool { unused: Vec::new(), attempts: 0 });
        let connections = Connections { connect: Box::new(connect), pool, changed: Condvar::new() };
        Self {
            connections: Arc::new(connections),
            outage: Outage::new(when_unavailable),
            timeout: Self::TIMEOUT,
            #[cfg(feature = "aio")]
            refusals: None,
        }
    }

    /// Sets how long a call waits for the server in total: for the name lookup, the connection and the
    /// answer.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets how long after a failure calls are decided without the server. Then one call is sent to it, and
    /// the others follow if it is answered. With zero, every call is sent, and waits for the timeout.
    #[must_use]
    pub fn ask_again(mut self, pause: Duration) -> Self {
        self.outage.ask_again = pause;
        self
    }

    /// Remembers the refusals of the server, so that calls for refused keys rarely reach it. A thread keeps
    /// the connection of `refusals`.
    #[cfg(feature = "aio")]
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
    pub fn take(
        &self,
        key: impl ToSingleRedisArg + AsRef<[u8]>,
        limit: impl Into<Limit>,
        quantity: impl Into<Quantity>,
    ) -> RedisResult<DecidedBy> {
        let (limit, quantity) = (limit.into(), quantity.into());
        let bytes = key.as_ref().to_vec();
        local::check(limit, quantity)?;
        #[cfg(feature = "aio")]
        if let Some(refusal) = self.refusals.as_ref().and_then(|all| all.recall_call(&bytes, limit, quantity))
        {
            return Ok(DecidedBy::Server(refusal));
        }
        let answer = self.call(&call::take(key, limit, quantity)?, None);
        #[cfg(feature = "aio")]
        if let (Some(refusals), Ok(answer)) = (&self.refusals, &answer) {
            refusals.learn(&bytes, limit, quantity, answer);
        }
        self.outage.decide(answer, &bytes, limit, quantity)
    }

    /// Sends a command, and repeats it if it may be, unless the server is known to be unavailable.
    pub(crate) fn call<T: FromRedisValue>(&self, cmd: &Cmd, once: Option<&Once>) -> RedisResult<T> {
        self.outage.asks()?;
        let mut attempts = Attempts::new(once);
        loop {
            match self.outage.learn(self.ask(cmd)) {
                Err(error) => std::thread::sleep(attempts.pause(&error).ok_or(error)?),
                answer => return answer,
            }
        }
    }

    pub(crate) const fn when_unavailable(&self) -> &WhenUnavailable {
        self.outage.choice()
    }

    /// Sends a command once, and waits for its answer at most for the timeout.
    fn ask<T: FromRedisValue>(&self, cmd: &Cmd) -> RedisResult<T> {
        let start = Instant::now();
        let kind = |answer: &RedisResult<T>| answer.as_ref().err().map(RedisError::kind);
        let mut answer = self.ask_once(cmd, start);
        // No node has run the call. A new connection reads the cluster's nodes again.
        if matches!(
            kind(&answer),
            Some(ErrorKind::Server(ServerErrorKind::Moved) | ErrorKind::ClusterConnectionNotFound)
        ) {
            lock(&self.connections.pool).unused.clear();
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

    fn ask_once<T: FromRedisValue>(&self, cmd: &Cmd, start: Instant) -> RedisResult<T> {
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
            // The server has replied. It may be a replica now, and a new connection may reach the new
            // primary.
            Err(error) if error.code().is_some() => {}
            // The unused connections are probably broken too.
            Err(_) => lock(&self.connections.pool).unused.clear(),
        }
        answer.map_err(|error| call::explained(cmd, error))
    }
}

/// The unused connections, and the function that makes new ones.
struct Connections<C> {
    connect: Box<dyn Fn(Duration) -> RedisResult<C> + Send + Sync>,
    pool: Mutex<Pool<C>>,
    /// Notified when a connection is no longer in use, and when an attempt to connect has ended.
    changed: Condvar,
}

struct Pool<C> {
    /// Each with the instant of its last use, the most recently used at the end.
    unused: Vec<(C, Instant)>,
    /// The number of attempts to connect that have not ended, whether or not a call waits for them.
    attempts: usize,
}

/// The largest number of concurrent attempts to connect.
const ATTEMPTS: usize = 64;

impl<C> Connections<C> {
    fn put(&self, connection: C) {
        lock(&self.pool).unused.push((connection, Instant::now()));
        self.changed.notify_one();
    }
}

impl<C: Send + 'static> Connections<C> {
    /// Returns the connection that was used last, if it was used within `idle`, or a new one. A connection is
    /// opened in another thread, because each step of the setup has its own timeout, and the name lookup has
    /// none.
    fn get(self: &Arc<Self>, start: Instant, timeout: Duration, idle: Duration) -> RedisResult<C> {
        let mut pool = lock(&self.pool);
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
                Some(Ok(())) => own = None, // another call took the connection
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
                drop(pool); // because an attempt whose thread cannot start is dropped at once
                std::thread::Builder::new().spawn(move || attempt.run(left))?;
                pool = lock(&self.pool);
                continue;
            }
            pool = self.changed.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An attempt to connect.
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
    /// Ends the attempt, even if its thread has panicked or was never started.
    fn drop(&mut self) {
        let mut pool = lock(&self.of.pool);
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
