//! The connection to the server of the limiters: Redis or Valkey with the module or with the function
//! library.

use crate::lock;
use crate::metrics::Metrics;
use crate::settings::{Auth, Deployment, Pems, Servers, Tls};
use redis::aio::{ConnectionLike, MultiplexedConnection, SendError};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    Arg, AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, RedisFuture, RedisResult,
    ServerErrorKind, TlsCertificates, TlsMode, Value,
};
use redis_cell_client::{Backend, CellConnection, is_unavailable};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// A connection that determines whether the server has the module or the function library.
pub type Server = CellConnection<Connection>;

/// A connection to servers of any kind. All clones share it, and it reconnects automatically.
#[derive(Clone)]
pub enum Connection {
    /// To one server, or to the primary that Sentinels name.
    Primary(Arc<Primary>),
    /// To a cluster.
    Cluster(Arc<Nodes>),
}

/// The connections to the nodes of a cluster. A node that answers redirects calls, and one that freezes does
/// not: then the connections are made again, by what the other nodes say.
pub struct Nodes {
    client: Fresh<ClusterClient>,
    shared: Shared<ClusterConnection>,
    /// For each hash tag: when the first call was sent that was not answered, if no call was answered since.
    silent: Mutex<HashMap<Vec<u8>, Instant>>,
}

/// The connection to a primary. It is made again after a failure, because the primary may have changed.
pub struct Primary {
    source: Arc<Source>,
    shared: Shared<MultiplexedConnection>,
    /// When the first call was sent that was not answered, if no call was answered since.
    silent: Mutex<Option<Instant>>,
    db: i64,
}

/// Where the primary is.
enum Source {
    /// At an address.
    Address(Box<Fresh<Client>>),
    /// Where the Sentinels say.
    Sentinels(Box<Fresh<Arc<tokio::sync::Mutex<SentinelClient>>>>),
}

/// The factory of connections, which is replaced when a file of its certificates has changed.
struct Fresh<C> {
    servers: Servers,
    make: Make<C>,
    last: Mutex<Last<C>>,
}

type Make<C> = fn(&Servers, Option<TlsCertificates>) -> RedisResult<C>;

struct Last<C> {
    client: C,
    pems: Option<Pems>,
    /// When the files were read.
    read: Instant,
}

/// A connection that all calls share. It is made in a task of its own: a call may wait for a shorter time
/// than a connection takes.
pub struct Shared<C> {
    state: Arc<Mutex<State<C>>>,
    metrics: Arc<Metrics>,
}

enum State<C> {
    /// There is none.
    Absent,
    /// It is being made. All calls wait for the same outcome.
    Coming(watch::Receiver<Option<RedisResult<C>>>),
    /// It was made at this instant.
    Present(C, Instant),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Primary(_) => "Primary",
            Self::Cluster(_) => "Cluster",
        })
    }
}

/// How long to wait for a new connection to a server.
const CONNECT: Duration = Duration::from_secs(1);

/// How long to wait for all connections that lead to the server: to Sentinels, or to the nodes of a cluster.
const CONNECT_ALL: Duration = Duration::from_secs(10);

/// A connection is replaced when it has answered no call for this time. A single call is not enough, because
/// its caller may have given it up. A connection of this age is also replaced if it does not lead to a
/// primary.
const TRIED: Duration = Duration::from_secs(1);

/// Creates a connection to these servers. Nothing is sent yet.
///
/// # Errors
/// Returns an error if an address or a certificate cannot be read.
pub fn connect(servers: &Servers, metrics: &Arc<Metrics>) -> RedisResult<Server> {
    let primary = |source, db| {
        let (shared, silent) = (Shared::new(metrics), Mutex::default());
        Connection::Primary(Arc::new(Primary { source: Arc::new(source), shared, silent, db }))
    };
    let connection = match servers.deployment {
        Deployment::Single => {
            let client = Fresh::new(servers, single)?;
            let db = client.present().get_connection_info().redis_settings().db();
            primary(Source::Address(Box::new(client)), db)
        }
        Deployment::Sentinel => primary(Source::Sentinels(Box::new(Fresh::new(servers, sentinels)?)), 0),
        Deployment::Cluster => {
            let (shared, silent) = (Shared::new(metrics), Mutex::default());
            Connection::Cluster(Arc::new(Nodes { client: Fresh::new(servers, cluster)?, shared, silent }))
        }
    };
    Ok(CellConnection::new(connection, Backend::Auto))
}

fn single(servers: &Servers, certificates: Option<TlsCertificates>) -> RedisResult<Client> {
    let url = servers.urls.first().map_or("", String::as_str);
    let info = with_auth(address(url, servers)?, servers.auth.as_ref()).set_tcp_settings(tcp());
    // Only with this protocol does redis-rs report that a connection is closed.
    let protocol = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(protocol);
    match certificates {
        Some(_) if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => Err((
            ErrorKind::InvalidClientConfig,
            "REDIS_URL: must begin with rediss://, as REDIS_TLS is true",
        )
            .into()),
        Some(certificates) => Client::build_with_tls(info, certificates),
        None => Client::open(info),
    }
}

fn cluster(servers: &Servers, certificates: Option<TlsCertificates>) -> RedisResult<ClusterClient> {
    let nodes = servers.urls.iter().map(|url| Ok(with_auth(address(url, servers)?, servers.auth.as_ref())));
    let nodes = nodes.collect::<RedisResult<Vec<_>>>()?;
    // A call that is sent again could be counted twice, unless it was redirected: see `follow`.
    let mut builder = ClusterClientBuilder::new(nodes)
        .retries(0)
        .connection_timeout(CONNECT)
        .tcp_settings(tcp())
        .use_protocol(ProtocolVersion::RESP3); // as above
    if let Some(certificates) = certificates {
        builder = builder.tls(TlsMode::Secure).certs(certificates);
    }
    builder.build()
}

/// All requests share a connection: a request must not wait until the server acknowledges the previous one. A
/// machine that is down acknowledges nothing, and the operating system would wait for a quarter of an hour.
fn tcp() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(5));
    settings
}

fn sentinels(
    servers: &Servers,
    certificates: Option<TlsCertificates>,
) -> RedisResult<Arc<tokio::sync::Mutex<SentinelClient>>> {
    let (name, urls) =
        servers.urls.split_first().ok_or((ErrorKind::InvalidClientConfig, "no primary is named"))?;
    let addresses = urls.iter().map(|url| Ok(address(url, servers)?.addr().clone()));
    let addresses = addresses.collect::<RedisResult<Vec<ConnectionAddr>>>()?;
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?
        .set_client_to_redis_tcp_settings(tcp())
        .set_client_to_redis_protocol(ProtocolVersion::RESP3); // as above
    if let Some((user, password)) = &servers.auth {
        builder = builder.set_client_to_redis_password(password);
        if let Some(user) = user {
            builder = builder.set_client_to_redis_username(user);
        }
    }
    if let Some((user, password)) = &servers.sentinel_auth {
        builder = builder.set_client_to_sentinel_password(password);
        if let Some(user) = user {
            builder = builder.set_client_to_sentinel_username(user);
        }
    }
    if let Some(certificates) = certificates {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_certificates(certificates);
    }
    Ok(Arc::new(tokio::sync::Mutex::new(builder.build()?)))
}

/// Reads `host:port`, the path of a socket, or a URL.
fn address(text: &str, servers: &Servers) -> RedisResult<ConnectionInfo> {
    let info = if text.contains("://") {
        text.into_connection_info()
    } else if text.starts_with('/') {
        ConnectionAddr::Unix(text.into()).into_connection_info()
    } else {
        let scheme = if servers.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{text}").into_connection_info()
    };
    info.map_err(|error| {
        let words = "REDIS_URL: must be host:port, the path of a socket, or a URL";
        (ErrorKind::InvalidClientConfig, words, error.to_string()).into()
    })
}

/// Says where the servers are, without their passwords.
pub fn place(servers: &Servers) -> String {
    let (name, urls) = match servers.urls.split_first() {
        Some((name, urls)) if servers.deployment == Deployment::Sentinel => {
            (format!("{name} of the Sentinels "), urls)
        }
        _ => (String::new(), servers.urls.as_slice()),
    };
    let addresses = urls.iter().filter_map(|url| Some(address(url, servers).ok()?.addr().to_string()));
    format!("{name}at {}", addresses.collect::<Vec<_>>().join(", "))
}

fn with_auth(info: ConnectionInfo, auth: Option<&Auth>) -> ConnectionInfo {
    let Some((user, password)) = auth else { return info };
    let settings = info.redis_settings().clone().set_password(password);
    let settings = match user {
        Some(user) => settings.set_username(user),
        None => settings,
    };
    info.set_redis_settings(settings)
}

fn certificates(pems: &Pems) -> TlsCertificates {
    let own = pems.own.clone();
    let client_tls = own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    TlsCertificates { client_tls, root_cert: pems.authority.clone() }
}

impl<C: Clone> Fresh<C> {
    fn new(servers: &Servers, make: Make<C>) -> RedisResult<Self> {
        let pems = servers.tls.as_ref().map(Tls::read).transpose()?;
        let client = make(servers, pems.as_ref().map(certificates))?;
        let last = Mutex::new(Last { client, pems, read: Instant::now() });
        Ok(Self { servers: servers.clone(), make, last })
    }

    /// Returns the client, with the certificates as they are now.
    fn present(&self) -> C {
        self.refresh();
        lock(&self.last).client.clone()
    }

    /// Creates the client again if its certificates have changed. Returns whether they have. Checks at most
    /// once a second, because every failed call requests it.
    fn refresh(&self) -> bool {
        let mut last = lock(&self.last);
        let Some(tls) = self.servers.tls.as_ref().filter(|_| last.read.elapsed() >= TRIED) else {
            return false;
        };
        last.read = Instant::now();
        let made = tls.read().map_err(RedisError::from).and_then(|pems| {
            if last.pems.as_ref() == Some(&pems) {
                return Ok(None);
            }
            Ok(Some(((self.make)(&self.servers, Some(certificates(&pems)))?, pems)))
        });
        match made {
            Ok(Some((client, pems))) => {
                (last.client, last.pems) = (client, Some(pems));
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::error!("the former certificates for the server are still used: {error}");
                false
            }
        }
    }
}

impl<C> Clone for Shared<C> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), metrics: Arc::clone(&self.metrics) }
    }
}

impl<C: Clone + Send + Sync + 'static> Shared<C> {
    fn new(metrics: &Arc<Metrics>) -> Self {
        Self { state: Arc::new(Mutex::new(State::Absent)), metrics: Arc::clone(metrics) }
    }

    /// Keeps a connection, or notes that it could not be made.
    fn keep(&self, made: &RedisResult<C>) {
        let (state, count) = match made {
            Ok(connection) => (State::Present(connection.clone(), Instant::now()), &self.metrics.connections),
            Err(_) => (State::Absent, &self.metrics.failed_connections),
        };
        count.fetch_add(1, Relaxed);
        self.metrics.is_connected.store(made.is_ok(), Relaxed);
        *lock(&self.state) = state;
    }

    /// Returns the connection and when it was made. Makes it if there is none.
    async fn get<F>(&self, connect: impl FnOnce() -> F) -> RedisResult<(C, Instant)>
    where
        F: Future<Output = RedisResult<C>> + Send + 'static,
    {
        let unmade = |text| RedisError::from((ErrorKind::Io, text));
        let mut coming = match &mut *lock(&self.state) {
            State::Present(connection, made) => return Ok((connection.clone(), *made)),
            State::Coming(coming) if coming.has_changed().is_ok() => coming.clone(),
            // There is none, or the task has ended without an outcome.
            state => {
                let (outcome, coming) = watch::channel(None);
                let (shared, connect) = (self.clone(), connect());
                tokio::spawn(async move {
                    let made = tokio::time::timeout(CONNECT_ALL, connect).await;
                    let made = made.unwrap_or_else(|_| Err(unmade("there is no connection in time")));
                    shared.keep(&made);
                    outcome.send_replace(Some(made));
                });
                *state = State::Coming(coming.clone());
                coming
            }
        };
        let made = coming.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        made.unwrap_or_else(|| Err(unmade("the connection was not made"))).map(|made| (made, Instant::now()))
    }

    /// Makes another connection, unless one was made since. Calls have the former one until then.
    fn renew(&self, of: Instant, connect: impl Future<Output = RedisResult<C>> + Send + 'static) {
        let mut state = lock(&self.state);
        if let State::Present(_, made) = &mut *state
            && *made <= of
            && let Ok(runtime) = Handle::try_current()
        {
            *made = Instant::now();
            let shared = self.clone();
            runtime.spawn(async move {
                match tokio::time::timeout(CONNECT_ALL, connect).await {
                    Ok(Ok(connection)) => shared.keep(&Ok(connection)),
                    _ => _ = shared.metrics.failed_connections.fetch_add(1, Relaxed),
                }
            });
        }
    }

    /// Removes the connection, unless another one was made since.
    fn remove(&self, of: Instant) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Present(_, made) if made <= of) {
            *state = State::Absent;
            self.metrics.is_connected.store(false, Relaxed);
        }
    }
}

/// Removes the connection when a call on it fails or is dropped.
struct Call<'a> {
    primary: &'a Primary,
    /// When the connection was made.
    of: Instant,
    sent: Instant,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The server has answered as a primary.
    Answered,
    /// There is no answer yet.
    Unanswered,
    /// The answer is not that of a primary.
    Demoted,
    /// The connection is broken.
    Broken,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut silent = lock(&self.primary.silent);
        let ends = match self.outcome {
            Outcome::Answered => false,
            Outcome::Unanswered => silent.get_or_insert(self.sent).elapsed() >= TRIED,
            Outcome::Demoted => self.of.elapsed() >= TRIED,
            Outcome::Broken => true,
        };
        if ends {
            self.primary.shared.remove(self.of);
        }
        if ends || self.outcome != Outcome::Unanswered {
            *silent = None;
        }
    }
}

impl Source {
    /// Connects. When the server closes the connection, `shared` has none, so that the next call makes one.
    async fn connect(
        self: Arc<Self>,
        shared: Shared<MultiplexedConnection>,
    ) -> RedisResult<MultiplexedConnection> {
        let closed = move |push: PushInfo| -> Result<(), SendError> {
            if push.kind == PushKind::Disconnection {
                shared.remove(Instant::now());
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(None)
            .set_push_sender(closed);
        match &*self {
            Self::Address(client) => {
                client.present().get_multiplexed_async_connection_with_config(&config).await
            }
            Self::Sentinels(sentinels) => {
                sentinels.present().lock().await.get_async_connection_with_config(&config).await
            }
        }
    }
}

impl Primary {
    async fn call<T>(
        &self,
        send: impl AsyncFnOnce(MultiplexedConnection) -> RedisResult<T>,
        is_error: impl Fn(&T) -> bool,
    ) -> RedisResult<T> {
        let shared = self.shared.clone();
        let (connection, of) = self.shared.get(|| Arc::clone(&self.source).connect(shared)).await?;
        let mut call = Call { primary: self, of, sent: Instant::now(), outcome: Outcome::Unanswered };
        let reply = send(connection).await;
        call.outcome = match &reply {
            Ok(value) if is_error(value) => Outcome::Demoted,
            Err(error) if error.is_unrecoverable_error() => Outcome::Broken,
            Err(error) if is_unavailable(error) => Outcome::Demoted,
            Ok(_) | Err(_) => Outcome::Answered,
        };
        reply
    }
}

/// Returns whether a reply is from a server that was demoted or is unavailable for another reason.
fn is_outage(value: &Value) -> bool {
    matches!(value.clone().extract_error(), Err(error) if is_unavailable(&error))
}

/// A call to a node of a cluster, which may be dropped before it is answered.
struct ClusterCall<'a> {
    nodes: &'a Nodes,
    cmd: &'a Cmd,
    of: Instant,
    sent: Instant,
    is_answered: bool,
}

impl Drop for ClusterCall<'_> {
    fn drop(&mut self) {
        let mut silent = lock(&self.nodes.silent);
        if self.is_answered {
            if !silent.is_empty() {
                silent.remove(tag(self.cmd));
            }
            return;
        }
        let since = *silent.entry(tag(self.cmd).to_owned()).or_insert(self.sent);
        if since.elapsed() >= TRIED {
            self.nodes.shared.renew(self.of, self.nodes.connect());
        }
        if since.elapsed() >= TRIED || silent.len() > MOST_SILENT {
            silent.clear();
        }
    }
}

/// The most hash tags for which it is known that a call was not answered.
const MOST_SILENT: usize = 10_000;

/// Returns the hash tag of a call's keys, which determines its node.
fn tag(cmd: &Cmd) -> &[u8] {
    let tag = |arg| match arg {
        Arg::Simple(text) => {
            let text: &[u8] = text;
            let begin = text.iter().position(|byte| *byte == b'{')?;
            text.get(begin..)?.split(|byte| *byte == b'}').next()
        }
        _ => None,
    };
    cmd.args_iter().find_map(tag).unwrap_or_default()
}

impl Nodes {
    fn connect(&self) -> impl Future<Output = RedisResult<ClusterConnection>> + Send + use<> {
        let client = self.client.present();
        async move { client.get_async_connection().await }
    }

    async fn call(&self, cmd: &Cmd) -> RedisResult<Value> {
        let (connection, of) = self.shared.get(|| self.connect()).await?;
        let mut call = ClusterCall { nodes: self, cmd, of, sent: Instant::now(), is_answered: false };
        let reply = follow(connection, cmd).await;
        call.is_answered = true;
        // The connection goes to each node by the certificates that it was made with.
        if reply.as_ref().is_err_and(is_unavailable) && self.client.refresh() {
            self.shared.renew(of, self.connect());
        }
        reply
    }
}

/// The number of redirections that a call follows before it returns an error, as in other clients.
const MOST_REDIRECTIONS: u32 = 16;

/// The pause before a call is sent again while its slot moves or its node is not yet known.
const PAUSE: Duration = Duration::from_millis(10);

/// Sends a call to the node of its slot. A node that redirects a call has taken nothing, so a call that is
/// sent to the other node counts once. The caller's timeout ends the call.
async fn follow(mut connection: ClusterConnection, cmd: &Cmd) -> RedisResult<Value> {
    let mut redirections = 0..MOST_REDIRECTIONS;
    let mut reply = connection.req_packed_command(cmd).await;
    loop {
        let Err(error) = &reply else { return reply };
        reply = match (error.kind(), node(error)) {
            _ if is_moving(error) => again(&mut connection, cmd).await,
            // A redirection makes the connection read the slots again, which has not ended yet.
            (ErrorKind::ClusterConnectionNotFound, _) if redirections.start > 0 => {
                again(&mut connection, cmd).await
            }
            (kind, Some(node)) if redirections.next().is_some() => {
                if kind == ErrorKind::Server(ServerErrorKind::Ask) {
                    let mut pipeline = redis::pipe();
                    pipeline.cmd("ASKING").add_command(cmd.clone());
                    let values = connection.route_pipeline(pipeline, 1, 1, node).await;
                    values.and_then(|values| values.into_iter().next().unwrap_or(Value::Nil).extract_error())
                } else {
                    connection.route_command(cmd.clone(), RoutingInfo::SingleNode(node)).await
                }
            }
            _ => return reply,
        };
    }
}

/// Whether the slot of a call is on its way to another node. Until all nodes know the new one, a node may
/// know none.
fn is_moving(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::TryAgain) => true,
        ErrorKind::Server(ServerErrorKind::ClusterDown) => error.detail() == Some("Hash slot not served"),
        _ => false,
    }
}

async fn again(connection: &mut ClusterConnection, cmd: &Cmd) -> RedisResult<Value> {
    tokio::time::sleep(PAUSE).await;
    connection.req_packed_command(cmd).await
}

/// Returns the node that a redirection names.
fn node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Cluster(nodes) => Box::pin(nodes.call(cmd)),
            Self::Primary(primary) => Box::pin(primary.call(
                async |mut connection: MultiplexedConnection| connection.req_packed_command(cmd).await,
                is_outage,
            )),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Cluster(nodes) => Box::pin(async move {
                let (mut connection, _) = nodes.shared.get(|| nodes.connect()).await?;
                connection.req_packed_commands(commands, offset, count).await
            }),
            Self::Primary(primary) => Box::pin(primary.call(
                async move |mut connection: MultiplexedConnection| {
                    connection.req_packed_commands(commands, offset, count).await
                },
                |values| values.iter().any(is_outage),
            )),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Primary(primary) => primary.db,
            Self::Cluster(_) => 0,
        }
    }
}
