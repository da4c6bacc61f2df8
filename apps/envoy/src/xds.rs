//! Rules from a control plane, such as a gateway's, by xDS: the service asks for all configurations, and gets
//! all of them whenever one changes. It acknowledges those that it applies, and returns the errors of others.
//! While there is no control plane, the rules stay as they are.
//!
//! Source: `envoy/service/discovery/v3/discovery.proto` of Envoy's API, and
//! `api/ratelimit/config/ratelimit/v3/rls_conf.proto` of envoyproxy/ratelimit.

use crate::decide::Decider;
use crate::json::structure;
use crate::proto::Unit;
use crate::settings::Xds;
use crate::watch::apply;
use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value};
use serde_json::{Map, json};
use std::error::Error;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Extensions, Request};
use tonic_prost::ProstCodec;

/// The service that the control plane has.
pub const SERVICE: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";

/// The path of the method that is called.
pub const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// The type of the configurations.
pub const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `google.rpc.Code.INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;

/// How long a connection may take, and how long a control plane may be silent before it is asked whether it
/// is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shortest wait before the control plane is called again.
const LEAST: Duration = Duration::from_millis(50);

/// The pause before a version is refused again.
const PAUSE: Duration = Duration::from_secs(1);

/// A request for configurations, which also acknowledges those that came last.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryRequest {
    /// The version that is applied. Empty if there is none.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The node that asks.
    #[prost(message, optional, tag = "2")]
    pub node: Option<NodeOfService>,
    /// The type of the configurations.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The response that this answers. Empty in the first request of a stream.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why the response is not applied.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<ErrorDetail>,
}

/// The name of this service, and what else a control plane is told of it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeOfService {
    /// The name.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Names and values.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ErrorDetail {
    /// The kind of the error.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// Its description.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// All configurations.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryResponse {
    /// The version.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The configurations, each a [`RateLimitConfig`].
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// The type of the configurations.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The name of the response.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// A domain and its rules.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitConfig {
    /// The name of the configuration.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// The descriptors.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<Descriptor>,
}

/// A descriptor, with those below it.
#[derive(Clone, PartialEq, prost::Message)]
#[allow(missing_docs)] // the keys of the YAML files, which README.md explains
pub struct Descriptor {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<Policy>,
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<Self>,
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// The limit of a descriptor.
#[derive(Clone, PartialEq, prost::Message)]
#[allow(missing_docs)] // as above
pub struct Policy {
    #[prost(enumeration = "Unit", tag = "1")]
    pub unit: i32,
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    #[prost(string, tag = "4")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<Replaced>,
}

/// A policy that another one replaces.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Replaced {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Applies what the control plane sends, until the process ends. `loaded` becomes true with the first rules.
pub async fn watch(decider: Arc<Decider>, xds: Xds, merge: bool, loaded: watch::Sender<bool>) {
    // How many streams have ended without a response since the last one that had one.
    let mut failures = 0_i32;
    loop {
        let pause = match connect(&xds).await {
            Ok(channel) => {
                let mut failed = failures.saturating_add(1);
                let error = follow(channel, &xds, |response| {
                    failed = 1;
                    received(&decider, response, merge).inspect(|()| _ = loaded.send_replace(true))
                });
                let error = error.await;
                failures = failed;
                tracing::error!("the rules stay as they are: {}: {error}", xds.address);
                backoff(&xds, failures)
            }
            Err(error) => {
                let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
                tracing::error!("the rules stay as they are: {}: {error}{cause}", xds.address);
                xds.retry
            }
        };
        tokio::time::sleep(pause.max(LEAST)).await;
    }
}

/// Returns the wait after this many streams that have failed.
fn backoff(xds: &Xds, failures: i32) -> Duration {
    let (least, most) = xds.waits;
    let times = xds.factor.powi(failures.saturating_sub(1));
    let wait = Duration::try_from_secs_f64(least.as_secs_f64() * times).unwrap_or(most).min(most);
    let beyond = wait.saturating_sub(least);
    if !xds.jitter || beyond.is_zero() {
        return wait.max(least);
    }
    let random = RandomState::new().build_hasher().finish().checked_rem(1_001).unwrap_or_default();
    let part = beyond.checked_div(1_000).unwrap_or_default();
    least.saturating_add(part.saturating_mul(u32::try_from(random).unwrap_or_default()))
}

/// Connects, with the certificates as they are now.
async fn connect(xds: &Xds) -> Result<Channel, Box<dyn Error + Send + Sync>> {
    let scheme = if xds.tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", xds.address))?
        .connect_timeout(PATIENCE)
        .http2_keep_alive_interval(PATIENCE)
        .keep_alive_timeout(PATIENCE)
        .keep_alive_while_idle(true);
    if let Some(tls) = &xds.tls {
        let (pems, mut config) = (tls.read()?, ClientTlsConfig::new());
        config = match pems.authority {
            Some(authority) => config.ca_certificate(Certificate::from_pem(authority)),
            None => config.with_native_roots(),
        };
        if let Some((certificate, key)) = pems.own {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        if let Some(name) = &xds.name {
            config = config.domain_name(name);
        }
        endpoint = endpoint.tls_config(config)?;
    }
    Ok(endpoint.connect().await?)
}

/// Follows a stream, and returns why it has ended.
async fn follow(
    channel: Channel,
    xds: &Xds,
    mut received: impl FnMut(&DiscoveryResponse) -> Result<(), String>,
) -> String {
    let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields = xds.metadata.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    // Without a version, so that the control plane sends what it has: one that was started again may count
    // its versions from the beginning.
    let mut request = DiscoveryRequest {
        node: Some(NodeOfService { id: xds.node.clone(), metadata: Some(Struct { fields }) }),
        type_url: TYPE.to_owned(),
        ..DiscoveryRequest::default()
    };
    let (requests, sent) = mpsc::channel(1);
    // The stream has not begun, so that nothing is in the channel.
    let _: Result<(), mpsc::error::TrySendError<_>> = requests.try_send(request.clone());
    let headers = MetadataMap::from_headers(xds.headers.clone());
    let call = Request::from_parts(headers, Extensions::default(), ReceiverStream::new(sent));
    let mut grpc = Grpc::new(channel).max_decoding_message_size(xds.most_bytes);
    if let Err(error) = grpc.ready().await {
        return error.to_string();
    }
    let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
    let mut responses =
        match grpc.streaming(call, axum::http::uri::PathAndQuery::from_static(METHOD), codec).await {
            Ok(responses) => responses.into_inner(),
            Err(status) => return status.to_string(),
        };
    tracing::info!("the control plane is {}", xds.address);
    let mut refused = None;
    loop {
        let response = match responses.message().await {
            Ok(Some(response)) => response,
            Ok(None) => return "the control plane has ended the stream".to_owned(),
            Err(status) => return status.to_string(),
        };
        request.response_nonce.clone_from(&response.nonce);
        request.error_detail = match received(&response) {
            Ok(()) => {
                request.version_info = response.version_info;
                None
            }
            Err(message) => {
                // Some control planes answer a refusal by what was refused, at once.
                let version = Some(response.version_info);
                if refused == version {
                    tokio::time::sleep(PAUSE).await;
                }
                refused = version;
                Some(ErrorDetail { code: INVALID_ARGUMENT, message })
            }
        };
        if requests.send(request.clone()).await.is_err() {
            return "the control plane has ended the stream".to_owned();
        }
    }
}

/// Applies a response, or returns why not.
fn received(decider: &Decider, response: &DiscoveryResponse, merge: bool) -> Result<(), String> {
    let file = |resource: &Any| {
        if resource.type_url != TYPE {
            return Err(format!("a resource is of the type '{}', and not '{TYPE}'", resource.type_url));
        }
        let config = RateLimitConfig::decode(resource.value.as_slice())
            .map_err(|error| format!("a resource cannot be read: {error}"))?;
        Ok((config.name.clone(), yaml(&config)))
    };
    let files = response.resources.iter().map(file).collect::<Result<Vec<_>, _>>();
    let files = files.inspect_err(|error| tracing::error!("the rules stay as they are: {error}"))?;
    apply(decider, &files, merge)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

/// Writes a configuration as the text of a file. Its rules cannot say `overdraft`: hits that a request names,
/// such as the costs of a response, are charged as the reference charges them, and others only if they are
/// admitted.
fn yaml(config: &RateLimitConfig) -> String {
    let descriptors: Vec<_> = config.descriptors.iter().map(descriptor).collect();
    let file = json!({ "domain": config.domain, "descriptors": descriptors });
    format!("{file:#}")
}

fn descriptor(from: &Descriptor) -> serde_json::Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: serde_json::Value| _ = fields.insert(name.to_owned(), value);
    set("key", json!(from.key));
    set("value", json!(from.value));
    set("shadow_mode", json!(from.shadow_mode));
    set("detailed_metric", json!(from.detailed_metric));
    set("quota_mode", json!(from.quota_mode));
    if let Some(metadata) = &from.metadata {
        set("metadata", structure(metadata));
    }
    if let Some(policy) = &from.rate_limit {
        set("rate_limit", rate_limit(policy));
    }
    if !from.descriptors.is_empty() {
        set("descriptors", from.descriptors.iter().map(descriptor).collect());
    }
    serde_json::Value::Object(fields)
}

fn rate_limit(from: &Policy) -> serde_json::Value {
    let replaces: Vec<_> = from.replaces.iter().map(|policy| json!({ "name": policy.name })).collect();
    let unit = Unit::try_from(from.unit).unwrap_or(Unit::Unknown).name();
    if from.unlimited {
        return json!({ "unlimited": true, "name": from.name, "replaces": replaces });
    }
    json!({
        "unit": unit,
        "requests_per_unit": from.requests_per_unit,
        "name": from.name,
        "replaces": replaces,
        "overdraft": "named",
    })
}
