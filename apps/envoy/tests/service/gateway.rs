//! Rules by xDS. The test is the control plane.

use crate::common::{Server, wait_until};
use crate::harness::{Process, Service, command, is_ok, until_contains, with_hits};
use crate::servers::certificate;
use prost::Message as _;
use prost_types::Any;
use prost_types::value::Kind;
use redis_cell_envoy::proto::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use redis_cell_envoy::proto::config::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use redis_cell_envoy::proto::{DiscoveryRequest, DiscoveryResponse, Unit};
use redis_cell_envoy::xds::TYPE;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server as GrpcServer, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming, async_trait};

type Responses = mpsc::Sender<Result<DiscoveryResponse, Status>>;

/// The requests of a stream with the header `x-token` of each stream, and the way to answer it.
#[derive(Clone)]
struct Streams {
    requests: mpsc::UnboundedSender<(String, DiscoveryRequest)>,
    responses: Arc<Mutex<Option<Responses>>>,
}

#[async_trait]
impl AggregatedDiscoveryService for Streams {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let token = request.metadata().get("x-token").map_or("", |token| token.to_str().unwrap()).to_owned();
        let (responses, answers) = mpsc::channel(1);
        *self.responses.lock().unwrap() = Some(responses);
        let requests = self.requests.clone();
        let mut incoming = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(request)) = incoming.message().await {
                if requests.send((token.clone(), request)).is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// A control plane, which ends when it is dropped.
struct ControlPlane {
    requests: mpsc::UnboundedReceiver<(String, DiscoveryRequest)>,
    streams: Streams,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.server.abort();
        *self.streams.responses.lock().unwrap() = None;
    }
}

impl ControlPlane {
    fn at(socket: TcpSocket, tls: Option<ServerTlsConfig>) -> Self {
        let (requests, received) = mpsc::unbounded_channel();
        let streams = Streams { requests, responses: Arc::default() };
        let mut server = GrpcServer::builder();
        if let Some(tls) = tls {
            server = server.tls_config(tls).unwrap();
        }
        let incoming = TcpIncoming::from(socket.listen(8).unwrap());
        let served = server
            .add_service(AggregatedDiscoveryServiceServer::new(streams.clone()))
            .serve_with_incoming(incoming);
        let server = tokio::spawn(async move { served.await.unwrap() });
        Self { requests: received, streams, server }
    }

    async fn request(&mut self) -> (String, DiscoveryRequest) {
        let wait = Duration::from_secs(60);
        tokio::time::timeout(wait, self.requests.recv()).await.expect("no request").unwrap()
    }

    /// Sends a response, and returns what answers it: the version, the nonce, and the error.
    async fn send(&mut self, version: &str, resources: Vec<Any>) -> (String, String, String) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: TYPE.to_owned(),
            nonce: format!("nonce {version}"),
        };
        let responses = self.streams.responses.lock().unwrap().clone().unwrap();
        responses.send(Ok(response)).await.unwrap();
        let answer = self.request().await.1;
        let error = answer.error_detail.map_or_else(String::new, |error| error.message);
        (answer.version_info, answer.response_nonce, error)
    }
}

/// A configuration of the domain `d`: `k` with this many requests a year, and `tokens` with 100.
fn limits(count: u32, unit: Unit) -> Any {
    let policy = |requests_per_unit, unit: Unit| {
        Some(RateLimitPolicy { unit: unit.into(), requests_per_unit, ..Default::default() })
    };
    let descriptor =
        |key: &str, rate_limit| RateLimitDescriptor { key: key.into(), rate_limit, ..Default::default() };
    let below = RateLimitDescriptor { value: "a b".into(), ..descriptor("below", policy(1, Unit::Day)) };
    let config = RateLimitConfig {
        name: "of the gateway".into(),
        domain: "d".into(),
        descriptors: vec![
            RateLimitDescriptor { descriptors: vec![below], ..descriptor("k", policy(count, unit)) },
            descriptor("tokens", policy(100, Unit::Year)),
            descriptor("free", Some(RateLimitPolicy { unlimited: true, ..Default::default() })),
        ],
    };
    Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() }
}

fn start(server: &Server, address: &str, settings: &[(&str, &str)]) -> Process {
    let folder = tempfile::Builder::new().prefix("redis-cell-envoy-").tempdir().unwrap();
    let own = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", address),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "100ms"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
    ];
    let settings: Vec<_> = own.iter().chain(settings).copied().collect();
    let mut command = command(folder.path(), &format!("127.0.0.1:{}", server.port()), &settings);
    Process::start(&mut command, folder)
}

/// A socket that has a port, or another one with 0, and refuses connections until it listens.
fn bound(port: u16) -> TcpSocket {
    wait_until("the port", || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], port).into()).map(|()| socket).map_err(|error| error.to_string())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_has_the_rules_and_may_go_and_come() {
    let server = Server::start();
    let socket = bound(0);
    let port = socket.local_addr().unwrap().port();
    let settings = [
        ("CONFIG_GRPC_XDS_NODE_ID", "cell"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,rack=2"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-token:secret"),
    ];
    let mut process = start(&server, &format!("127.0.0.1:{port}"), &settings);
    tokio::task::block_in_place(|| process.logged(&format!("there are still no rules: 127.0.0.1:{port}: ")));
    // Without rules, nothing is served.
    assert!(!process.log().contains("gRPC on"), "{}", process.log());
    let mut plane = ControlPlane::at(socket, None);
    let (token, first) = plane.request().await;
    assert_eq!((token.as_str(), first.type_url.as_str()), ("secret", TYPE));
    assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""));
    let node = first.node.unwrap();
    let mut metadata: Vec<_> = node.metadata.unwrap().fields.into_iter().collect();
    metadata.sort_by(|a, b| a.0.cmp(&b.0));
    let text = |text: &str| Some(Kind::StringValue(text.to_owned()));
    assert_eq!((node.id.as_str(), &metadata[1].0[..], &metadata[1].1.kind), ("cell", "zone", &text("a")));

    // Rules that cannot be applied are refused with the place of each error, also before there are any rules.
    let (version, nonce, error) = plane.send("0", vec![limits(2, Unit::Unknown)]).await;
    assert_eq!((version.as_str(), nonce.as_str()), ("", "nonce 0"));
    assert!(
        error.starts_with("of the gateway:") && error.contains("descriptors[0].rate_limit.unit"),
        "{error}"
    );
    assert_eq!(
        plane.send("1", vec![limits(2, Unit::Year)]).await,
        ("1".into(), "nonce 1".into(), String::new())
    );
    let mut service = tokio::task::block_in_place(|| Service::of(process));
    let client = service.client().await;
    assert_eq!(client.admitted(4, &["k=1"]).await, 2);
    let nested = async |value: &str| client.admitted(3, &[&format!("k=2,below={value}")]).await;
    assert_eq!((nested("a b").await, nested("c").await), (1, 3));
    assert_eq!(client.admitted(3, &["free=1"]).await, 3);
    // The cost of a request is charged when it is known, beyond the limit if necessary. Other hits are not.
    assert!(client.admits(&["tokens=1"]).await);
    for (look, charge) in [(true, true), (true, false), (false, false)] {
        assert_eq!(is_ok(&client.ask(vec![with_hits("tokens=1", 0)]).await), look);
        assert_eq!(is_ok(&client.ask(vec![with_hits("tokens=1", 60)]).await), charge);
    }

    let wrong = Any { type_url: "type.googleapis.com/other".into(), value: Vec::new() };
    let (version, nonce, error) = plane.send("2", vec![limits(9, Unit::Year), wrong]).await;
    assert_eq!((version.as_str(), nonce.as_str()), ("1", "nonce 2"));
    assert!(error.contains("'type.googleapis.com/other'"), "{error}");
    let unreadable = Any { type_url: TYPE.into(), value: b"\xff".to_vec() };
    // If the control plane sends refused rules again, the next refusal follows after a pause.
    let begun = Instant::now();
    assert!(plane.send("2", vec![unreadable]).await.2.contains("cannot be read"));
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(client.admitted(2, &["k=1"]).await, 0);
    assert_eq!(service.loads(), (1, 3), "each that cannot be applied is counted");
    // A limit that is raised continues with what is used.
    assert_eq!(plane.send("3", vec![limits(5, Unit::Year)]).await.0, "3");
    assert_eq!(client.admitted(4, &["k=1"]).await, 3);

    // The rules stay without the control plane, and are those of the next one.
    let responses = plane.streams.responses.lock().unwrap().clone().unwrap();
    responses.send(Err(Status::permission_denied("no token"))).await.unwrap();
    let lost = format!("the rules stay as they are: 127.0.0.1:{port}: PermissionDenied: no token");
    tokio::task::block_in_place(|| service.process.logged(&lost));
    drop(plane);
    assert_eq!(client.admitted(7, &["k=3"]).await, 5);
    let mut plane = ControlPlane::at(bound(port), None);
    assert_eq!(plane.request().await.1.version_info, "", "versions of the former one mean nothing");
    assert_eq!(plane.send("1", vec![limits(6, Unit::Year)]).await.0, "1");
    assert_eq!(client.admitted(4, &["k=1"]).await, 1);
    // Without resources there are no rules.
    assert_eq!(plane.send("2", Vec::new()).await.0, "2");
    assert_eq!(client.admitted(4, &["k=1"]).await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_is_encrypted_and_rules_may_come_late() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    for name in ["plane", "own"] {
        certificate(folder.path(), name);
    }
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (authority, own, key) = (file("plane.pem"), file("own.pem"), file("own.key"));
    let socket = bound(0);
    let port = socket.local_addr().unwrap().port();
    let settings = [
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &authority),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "localhost"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &own),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let mut service = Service::of(start(&server, &format!("127.0.0.1:{port}"), &settings));
    let client = service.client().await;
    assert_eq!(client.admitted(4, &["k=1"]).await, 4);
    // The log says why, with the last of the causes.
    let why = format!("127.0.0.1:{port}: transport error: tcp connect error: Connection refused");
    service.process.logged(&why);
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let tls = || {
        let identity = Identity::from_pem(read("plane.pem"), read("plane.key"));
        let authority = Certificate::from_pem(read("own.pem"));
        Some(ServerTlsConfig::new().identity(identity).client_ca_root(authority))
    };
    let mut plane = ControlPlane::at(socket, tls());
    plane.request().await;
    assert_eq!(plane.send("1", vec![limits(2, Unit::Year)]).await.0, "1");
    assert_eq!(client.admitted(4, &["k=1"]).await, 2);
    until_contains("requests_per_unit=2", || service.get("/rlconfig").1);
    // New certificates hold for the next connection.
    drop(plane);
    for name in ["plane", "own"] {
        certificate(folder.path(), name);
    }
    let mut plane = ControlPlane::at(bound(port), tls());
    plane.request().await;
    assert_eq!(plane.send("2", vec![limits(3, Unit::Year)]).await.0, "2");
}
