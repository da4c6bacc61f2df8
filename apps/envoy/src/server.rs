//! The connection to the server of the limiters: Redis or Valkey with the module or with the function
//! library.

use crate::settings::{Auth, Kind, Servers, Tls};
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, TlsCertificates,
    TlsMode, Value,
};
use redis_cell_client::{Backend, CellConnection, is_unavailable};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OnceCell;

/// A connection that determines whether the server has the module or the function library.
pub type Server = CellConnection<Connection>;

/// A connection to servers of any kind. All clones share it, and it reconnects automatically.
#[derive(Clone)]
pub enum Connection {
    /// To one server.
    Single(ConnectionManager),
    /// To a cluster, once it has answered.
    Cluster(Arc<(ClusterClient, OnceCell<ClusterConnection>)>),
    /// To the primary that the Sentinels name.
    Sentinel(Arc<Primary>),
}

/// The connection to a primary. It is made again after a failure, because the primary may have changed.
pub struct Primary {
    sentinels: tokio::sync::Mutex<SentinelClient>,
    current: Mutex<Option<MultiplexedConnection>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Single(_) => "Single",
            Self::Cluster(_) => "Cluster",
            Self::Sentinel(_) => "Sentinel",
        })
    }
}

/// How long to wait for a new connection.
const CONNECT: Duration = Duration::from_secs(1);

/// Creates a connection to these servers. Nothing is sent yet.
///
/// # Errors
/// Returns an error if an address or a certificate cannot be read.
pub fn connect(servers: &Servers) -> RedisResult<Server> {
    let certificates = servers.tls.as_ref().map(certificates).transpose()?;
    let connection = match servers.kind {
        Kind::Single => {
            let url = servers.urls.first().map_or("", String::as_str);
            let info = with_auth(address(url, servers)?, servers.auth.as_ref()).set_tcp_settings(tcp());
            let client = match certificates {
                Some(certificates) => Client::build_with_tls(info, certificates)?,
                None => Client::open(info)?,
            };
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(CONNECT))
                .set_number_of_retries(0) // the next call reconnects
                .set_response_timeout(None); // each call has its own timeout
            Connection::Single(ConnectionManager::new_lazy_with_config(client, config)?)
        }
        Kind::Cluster => {
            let nodes =
                servers.urls.iter().map(|url| address(url, servers)).collect::<RedisResult<Vec<_>>>()?;
            // A call that is sent again could be counted twice, unless it was redirected: see `follow`.
            let mut builder =
                ClusterClientBuilder::new(nodes).retries(0).connection_timeout(CONNECT).tcp_settings(tcp());
            if let Some((user, password)) = &servers.auth {
                builder = builder.password(password);
                if let Some(user) = user {
                    builder = builder.username(user);
                }
            }
            if let Some(certificates) = certificates {
                builder = builder.tls(TlsMode::Secure).certs(certificates);
            }
            Connection::Cluster(Arc::new((builder.build()?, OnceCell::new())))
        }
        Kind::Sentinel => {
            let sentinels = sentinels(servers, certificates)?;
            let (sentinels, current) = (tokio::sync::Mutex::new(sentinels), Mutex::default());
            Connection::Sentinel(Arc::new(Primary { sentinels, current }))
        }
    };
    Ok(CellConnection::new(connection, Backend::Auto))
}

/// All requests share a connection: a request must not wait until the server acknowledges the previous one.
fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn sentinels(servers: &Servers, certificates: Option<TlsCertificates>) -> RedisResult<SentinelClient> {
    let (name, urls) =
        servers.urls.split_first().ok_or((ErrorKind::InvalidClientConfig, "no primary is named"))?;
    let addresses = urls.iter().map(|url| Ok(address(url, servers)?.addr().clone()));
    let addresses = addresses.collect::<RedisResult<Vec<ConnectionAddr>>>()?;
    let mut builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?
        .set_client_to_redis_tcp_settings(tcp());
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
    builder.build()
}

/// Reads `host:port`, the path of a socket, or a URL.
fn address(text: &str, servers: &Servers) -> RedisResult<ConnectionInfo> {
    if text.contains("://") {
        text.into_connection_info()
    } else if text.starts_with('/') {
        ConnectionAddr::Unix(text.into()).into_connection_info()
    } else {
        let scheme = if servers.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{text}").into_connection_info()
    }
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

fn certificates(tls: &Tls) -> RedisResult<TlsCertificates> {
    let read = |path: &Path| {
        fs::read(path).map_err(|error| {
            let text = format!("{}: {error}", path.display());
            RedisError::from((ErrorKind::InvalidClientConfig, "a certificate cannot be read", text))
        })
    };
    let client_tls = match &tls.own {
        Some((certificate, key)) => {
            Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
        }
        None => None,
    };
    Ok(TlsCertificates { client_tls, root_cert: tls.authority.as_deref().map(read).transpose()? })
}

/// Removes the connection when a call on it fails or is dropped.
struct Call<'a> {
    primary: &'a Primary,
    has_failed: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.has_failed {
            *self.primary.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

impl Primary {
    fn known(&self) -> Option<MultiplexedConnection> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        if let Some(connection) = self.known() {
            return Ok(connection);
        }
        let mut sentinels = self.sentinels.lock().await;
        // Another call may have connected in the meantime.
        if let Some(connection) = self.known() {
            return Ok(connection);
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
        let connection = sentinels.get_async_connection_with_config(&config).await?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        Ok(connection)
    }

    async fn call<T>(
        &self,
        send: impl AsyncFnOnce(MultiplexedConnection) -> RedisResult<T>,
        is_error: impl Fn(&T) -> bool,
    ) -> RedisResult<T> {
        let connection = self.connection().await?;
        let mut call = Call { primary: self, has_failed: true };
        let reply = send(connection).await;
        call.has_failed = match &reply {
            Ok(value) => is_error(value),
            Err(error) => is_unavailable(error),
        };
        reply
    }
}

/// Returns whether a reply is from a server that was demoted or is unavailable for another reason.
fn is_outage(value: &Value) -> bool {
    matches!(value.clone().extract_error(), Err(error) if is_unavailable(&error))
}

async fn cluster(cell: &(ClusterClient, OnceCell<ClusterConnection>)) -> RedisResult<ClusterConnection> {
    let (client, connection) = cell;
    connection.get_or_try_init(async || client.get_async_connection().await).await.cloned()
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
            (ErrorKind::Server(ServerErrorKind::TryAgain), _) => again(&mut connection, cmd).await,
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
            Self::Single(connection) => connection.req_packed_command(cmd),
            Self::Cluster(cell) => Box::pin(async { follow(cluster(cell).await?, cmd).await }),
            Self::Sentinel(primary) => Box::pin(primary.call(
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
            Self::Single(connection) => connection.req_packed_commands(commands, offset, count),
            Self::Cluster(cell) => {
                Box::pin(
                    async move { cluster(cell).await?.req_packed_commands(commands, offset, count).await },
                )
            }
            Self::Sentinel(primary) => Box::pin(primary.call(
                async move |mut connection: MultiplexedConnection| {
                    connection.req_packed_commands(commands, offset, count).await
                },
                |values| values.iter().any(is_outage),
            )),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(_) | Self::Sentinel(_) => 0,
        }
    }
}
