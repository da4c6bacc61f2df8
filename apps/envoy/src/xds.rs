//! Rules from a control plane, such as a gateway's, by xDS: the service asks for all configurations, and gets
//! all of them whenever one changes. It acknowledges those that it applies, and returns the errors of others.
//! Without a control plane, the rules do not change.
//!
//! Source: `envoy/service/discovery/v3/discovery.proto` of Envoy's API, and
//! `api/ratelimit/config/ratelimit/v3/rls_conf.proto` of envoyproxy/ratelimit.

use crate::decide::Decider;
use crate::json;
use crate::proto::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::proto::config::RateLimitConfig;
use crate::proto::{DiscoveryRequest, DiscoveryResponse, ErrorDetail, Node};
use crate::settings::{Xds, with_causes};
use crate::watch::{apply, unchanged};
use prost::Message as _;
use prost_reflect::SerializeOptions;
use prost_types::{Any, Struct, value};
use serde_json::{Value, json};
use std::error::Error;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Extensions, Request, Status};

/// The type of the configurations.
pub const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `google.rpc.Code.INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i32 = 3;

/// The time limit of a connection, and the time for which a control plane may be silent before it gets a
/// ping.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shortest wait before the control plane is called again.
const LEAST: Duration = Duration::from_millis(50);

/// The pause before a version is refused again.
const PAUSE: Duration = Duration::from_secs(1);

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
                unchanged(&decider, format_args!("{}: {error}", xds.address));
                backoff(&xds, failures)
            }
            Err(error) => {
                let error = with_causes(error.as_ref());
                unchanged(&decider, format_args!("{}: {error}", xds.address));
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
    let text = |text: &String| prost_types::Value { kind: Some(value::Kind::StringValue(text.clone())) };
    let fields = xds.metadata.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    // Without a version, so that the control plane sends what it has: one that was started again may count
    // its versions from the beginning.
    let mut request = DiscoveryRequest {
        node: Some(Node { id: xds.node.clone(), metadata: Some(Struct { fields }) }),
        type_url: TYPE.to_owned(),
        ..DiscoveryRequest::default()
    };
    let (requests, sent) = mpsc::channel(1);
    // The stream has not begun, so that nothing is in the channel.
    let _: Result<(), mpsc::error::TrySendError<_>> = requests.try_send(request.clone());
    let headers = MetadataMap::from_headers(xds.headers.clone());
    let call = Request::from_parts(headers, Extensions::default(), ReceiverStream::new(sent));
    let mut plane = AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(xds.most_bytes);
    let mut responses = match plane.stream_aggregated_resources(call).await {
        Ok(responses) => responses.into_inner(),
        Err(status) => return said(&status),
    };
    tracing::info!("the control plane is {}", xds.address);
    let mut refused = None;
    loop {
        let response = match responses.message().await {
            Ok(Some(response)) => response,
            Ok(None) => return "the control plane has ended the stream".to_owned(),
            Err(status) => return said(&status),
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

/// Says what a status says, in a line without the structures of the libraries.
fn said(status: &Status) -> String {
    let cause = status.source().map_or_else(String::new, |source| format!(": {}", with_causes(source)));
    format!("{:?}: {}{cause}", status.code(), status.message())
}

/// Applies a response, or returns why not.
fn received(decider: &Decider, response: &DiscoveryResponse, merge: bool) -> Result<(), String> {
    let file = |resource: &Any| {
        if resource.type_url != TYPE {
            return Err(format!("a resource is of the type '{}', and not '{TYPE}'", resource.type_url));
        }
        let config = RateLimitConfig::decode(resource.value.as_slice())
            .map_err(|error| format!("a resource cannot be read: {error}"))?;
        Ok((config.name.clone(), yaml(&config)?))
    };
    let files = response.resources.iter().map(file).collect::<Result<Vec<_>, _>>();
    let files = files.inspect_err(|error| {
        decider.metrics().load_errors.fetch_add(1, Relaxed);
        unchanged(decider, error);
    })?;
    apply(decider, &files, merge)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

/// Writes a configuration as the text of a file. Its rules cannot say `overdraft`: hits that a request names,
/// such as the costs of a response, are charged as the reference charges them, and others only if they are
/// admitted.
fn yaml(config: &RateLimitConfig) -> Result<String, String> {
    let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false);
    let mut file = json::written("ratelimit.config.ratelimit.v3.RateLimitConfig", config, &options)?;
    if let Some(fields) = file.as_object_mut() {
        fields.remove("name");
    }
    complete(&mut file);
    Ok(format!("{file:#}"))
}

/// Completes the rules of a domain or of a descriptor.
fn complete(above: &mut Value) {
    for descriptor in above.get_mut("descriptors").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(rule) = descriptor.get_mut("rate_limit").and_then(Value::as_object_mut) {
            if rule.get("unlimited") == Some(&json!(true)) {
                rule.retain(|name, _| !matches!(name.as_str(), "unit" | "requests_per_unit"));
            } else {
                rule.insert("overdraft".to_owned(), json!("named"));
            }
        }
        complete(descriptor);
    }
}
