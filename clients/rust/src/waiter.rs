//! Connections for calls that wait.

use crate::call::{explained, giving_back};
use crate::once::{self, Attempts};
use crate::{Answer, MTake, Taken, Together, Wait, late, lock};
use redis::aio::MultiplexedConnection;
#[cfg(feature = "cluster")]
use redis::cluster_routing::Slot;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::time::timeout;

#[cfg(feature = "cluster")]
mod cluster;

/// Takes units from several limiters, and waits in the server until all admit the call, fairly among flows
/// (`CL.BMTAKE`).
///
/// Each call that waits needs its own connection. A `Waiter` makes these connections, keeps unused ones for
/// later calls, and replaces broken ones. All clones share them. If the future of a call is dropped, the call
/// leaves the queue (`CLIENT UNBLOCK`), and what it has taken meanwhile is given back. So a web server that
/// drops the handler of a disconnected client also frees its place in the queue. Without the permission for
/// `CLIENT UNBLOCK`, the connection is closed instead; then units that the server takes at that very moment
/// are lost. What a call with [`Once`](crate::Once) has taken stays taken, because it may be repeated.
///
/// No call waits longer than its time and a [margin](Self::margin), even if the server is frozen; a call with
/// [`Once`](crate::Once) is repeated then, and its last attempt has a margin of its own. Only a call with
/// [`Wait::forever`] has no such end: drop its future, as `tokio::time::timeout` does.
///
/// # Example
/// ```
/// use redis_cell_client::{Flow, MTake, Rate, Units, Wait, Waiter};
/// use std::time::{Duration, Instant};
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
    unused: Mutex<Vec<Own>>,
}

/// A connection for one call at a time, with its number in the server.
struct Own {
    connection: MultiplexedConnection,
    id: Option<i64>,
}

type Waited = RedisResult<Option<Together<Answer>>>;

impl Node {
    fn new(client: Client) -> Arc<Self> {
        Arc::new(Self { client, unused: Mutex::default() })
    }

    async fn connection(&self, config: &AsyncConnectionConfig) -> RedisResult<Own> {
        let unused = lock(&self.unused).pop();
        if let Some(own) = unused {
            return Ok(own);
        }
        let mut connection = self.client.get_multiplexed_async_connection_with_config(config).await?;
        let id = redis::cmd("CLIENT").arg("ID").query_async(&mut connection).await.ok();
        Ok(Own { connection, id })
    }

    /// Sends a call over a connection of this server. `asking` is for a server that is importing the call's
    /// slot. If the future is dropped, the call leaves its queue, and what it has taken is given back.
    async fn send(
        self: &Arc<Self>,
        own: Own,
        asking: bool,
        cmd: Cmd,
        config: &AsyncConnectionConfig,
    ) -> Waited {
        let ((sender, answer), begun) = (channel(), Instant::now());
        let mut sent = Sent { node: Arc::clone(self), cmd, config: config.clone(), begun, answer };
        tokio::spawn(Arc::clone(self).run(own, asking, sent.cmd.clone(), config.clone(), begun, sender));
        let gone = |_| Err((ErrorKind::Io, "the runtime that has sent the call is gone").into());
        let answer = (&mut sent.answer).await.unwrap_or_else(gone);
        answer.map_err(|error| explained(&sent.cmd, error))
    }

    /// Waits for the answer, or until its caller is dropped.
    async fn run(
        self: Arc<Self>,
        mut own: Own,
        asking: bool,
        cmd: Cmd,
        config: AsyncConnectionConfig,
        begun: Instant,
        mut sender: Sender<Waited>,
    ) {
        let (mut connection, call) = (own.connection.clone(), cmd.clone());
        let mut call = Box::pin(async move {
            if asking {
                let mut pipeline = redis::pipe();
                let pipeline = pipeline.cmd("ASKING").ignore().add_command(call);
                pipeline.query_async(&mut connection).await.map(|(answer,)| answer)
            } else {
                call.query_async(&mut connection).await
            }
        });
        let first = poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => sender.poll_closed(context).map(|()| None),
        });
        let answer: Waited = match first.await {
            Some(answer) => answer,
            // Without an answer, the connection is closed, and the call leaves the queue.
            None => match timeout(Waiter::MARGIN, self.unblocked(own.id, &config, call)).await {
                Ok(Some(answer)) => answer,
                _ => return,
            },
        };
        if sender.is_closed()
            && let Ok(Some(answer)) = answer
        {
            give_back(&mut own, &cmd, &answer, begun).await;
            lock(&self.unused).push(own);
            return;
        }
        // The server may also have replied with an error of the call.
        let replied = answer.as_ref().err().is_none_or(|error: &RedisError| error.code().is_some());
        if replied {
            lock(&self.unused).push(own);
        } else {
            // The unused connections are probably broken too.
            lock(&self.unused).clear();
        }
        // If the caller has been dropped, `Sent` gives the units back.
        let _: Result<(), _> = sender.send(answer);
    }

    /// Ends the wait of a call, and returns its answer, if the server allows `CLIENT UNBLOCK`.
    async fn unblocked(
        &self,
        id: Option<i64>,
        config: &AsyncConnectionConfig,
        mut call: Pin<Box<impl Future<Output = Waited>>>,
    ) -> Option<Waited> {
        let (id, mut other) = (id?, self.connection(config).await.ok()?);
        loop {
            // The call may not have arrived yet, so this is repeated until it is answered.
            let mut unblock = redis::cmd("CLIENT");
            unblock.arg("UNBLOCK").arg(id).exec_async(&mut other.connection).await.ok()?;
            if let Ok(answer) = timeout(Duration::from_millis(10), &mut call).await {
                lock(&self.unused).push(other);
                return Some(answer);
            }
        }
    }
}

/// The assumed longest time from a turn until the client knows of it, if nobody waits for it any more.
const LATE: Duration = Duration::from_secs(1);

/// Gives back the units of a call whose caller was dropped, and whose answer has just come.
async fn give_back(own: &mut Own, cmd: &Cmd, answer: &Together<Answer>, begun: Instant) {
    let age = begun.elapsed().min(LATE);
    for (logs, age) in [(false, age), (true, Duration::ZERO)] {
        let back = giving_back(cmd, &answer.each, logs, age).filter(|_| answer.combined.admitted());
        if let Some(back) = back {
            // Units whose settlement does not arrive are lost, as after a crash of the process.
            let sent = back.exec_async(&mut own.connection);
            let _: Result<RedisResult<()>, _> = timeout(Waiter::MARGIN, sent).await;
        }
    }
}

/// A call with a caller that waits for its answer.
struct Sent {
    node: Arc<Node>,
    cmd: Cmd,
    config: AsyncConnectionConfig,
    begun: Instant,
    answer: Receiver<Waited>,
}

impl Drop for Sent {
    /// Gives back what was taken if the answer was not read.
    fn drop(&mut self) {
        self.answer.close();
        if let (Ok(Ok(Some(answer))), Ok(runtime)) = (self.answer.try_recv(), Handle::try_current()) {
            let (node, cmd, config) = (Arc::clone(&self.node), self.cmd.clone(), self.config.clone());
            let begun = self.begun;
            runtime.spawn(async move {
                if let Ok(mut own) = node.connection(&config).await {
                    give_back(&mut own, &cmd, &answer, begun).await;
                    lock(&node.unused).push(own);
                }
            });
        }
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
    pub const MARGIN: Duration = once::MARGIN;

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

    /// Sets how long after the end of its wait an attempt at a call ends at the latest, with connections and
    /// redirections. A margin that a busy server outlasts loses units: the server may still take them.
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
        let mut attempts = Attempts::waiting(limiters.is_once(), wait.longest(), self.margin);
        loop {
            let passed = attempts.begin().elapsed();
            let answer = self.attempt(&limiters, &wait, passed);
            let answer = match wait.longest() {
                None => answer.await,
                Some(time) => {
                    let left = time.saturating_sub(passed).saturating_add(self.margin);
                    timeout(left, answer).await.unwrap_or_else(|_| {
                        // The unused connections to a frozen server are frozen too.
                        lock(&self.server_of(&limiters).unused).clear();
                        Err(late())
                    })
                }
            };
            match answer {
                Ok(answer) => return Ok(answer.map(|answer| Taken::after_wait(answer, &limiters, &attempts))),
                Err(error) => tokio::time::sleep(attempts.pause(&error).ok_or(error)?).await,
            }
        }
    }

    /// The server in which a call waits, as far as it is known.
    fn server_of(&self, #[cfg_attr(not(feature = "cluster"), allow(unused))] limiters: &MTake) -> Arc<Node> {
        match &self.servers {
            Servers::One(server) => server.clone(),
            #[cfg(feature = "cluster")]
            Servers::Cluster(nodes) => lock(nodes).of(slot(limiters)),
        }
    }

    /// Sends the call once, for the rest of its wait.
    async fn attempt(
        &self,
        limiters: &MTake,
        wait: &Wait,
        passed: Duration,
    ) -> RedisResult<Option<Together<Answer>>> {
        let begin = Instant::now();
        let cmd = || limiters.clone().waiting(wait, passed.saturating_add(begin.elapsed()));
        match &self.servers {
            Servers::One(server) => {
                let cmd = cmd()?;
                let connection = server.connection(&self.config).await?;
                server.send(connection, false, cmd, &self.config).await
            }
            #[cfg(feature = "cluster")]
            Servers::Cluster(nodes) => cluster::follow(nodes, slot(limiters), &self.config, cmd).await,
        }
    }
}

#[cfg(feature = "cluster")]
fn slot(limiters: &MTake) -> Slot {
    Slot::for_key(limiters.first_key().unwrap_or_default())
}
