//! The settings: environment variables of envoyproxy/ratelimit that apply here, and a few others.

use crate::duration;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::error::Error;
use std::fmt::{self, Display};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use std::{fs, io};

/// All settings except the rules.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // independent settings of users
pub struct Settings {
    /// The address of the gRPC server.
    pub grpc: Address,
    /// The certificates for gRPC, if it is encrypted. With an authority, it must have signed Envoy's.
    pub grpc_tls: Option<Tls>,
    /// The address of the HTTP server for health, rules and metrics.
    pub http: String,
    /// Another address and path for metrics.
    pub prometheus: Option<(String, String)>,
    /// The age at which a connection from Envoy is closed, so that connections spread to new instances.
    /// `None` means never.
    pub max_connection_age: Option<Duration>,
    /// How long the calls of such a connection may still take.
    pub max_connection_age_grace: Duration,
    /// The time for which requests are still accepted after a signal to end, while the process reports that
    /// it is not healthy.
    pub drain: Duration,
    /// The folder with the rules.
    pub folder: PathBuf,
    /// The control plane that has the rules in place of the folder.
    pub xds: Option<Xds>,
    /// Whether several files may define the same domain.
    pub merge_domains: bool,
    /// The servers of the limiters.
    pub servers: Servers,
    /// How long to wait for the server.
    pub timeout: Duration,
    /// The answer while the server is unavailable.
    pub unavailable: Unavailable,
    /// The prefix of each key.
    pub prefix: String,
    /// The share of a limit above which hits count as near the limit.
    pub near_limit_ratio: f64,
    /// The names of the headers for the limit, the remaining hits and the seconds until the reset.
    pub headers: Option<[String; 3]>,
    /// The name of the header for the seconds until a refused request would be admitted.
    pub retry_after_header: Option<String>,
    /// Whether nothing is refused.
    pub shadow: bool,
    /// Whether all rules have `quota_mode`.
    pub quota: bool,
    /// Whether responses have dynamic metadata.
    pub metadata: bool,
    /// Whether the service is unhealthy without a domain.
    pub healthy_with_a_domain: bool,
    /// Whether the service is unhealthy without the server.
    pub healthy_with_server: bool,
    /// The level of the log.
    pub log_level: tracing::Level,
    /// Whether the log is in JSON.
    pub log_json: bool,
    /// The variables that are set but have no effect here.
    pub warnings: Vec<String>,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// The servers of the limiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// How the servers work together.
    pub deployment: Deployment,
    /// For each server, `host:port`, a URL, or the path of a socket.
    pub urls: Vec<String>,
    /// The user and the password of the servers.
    pub auth: Option<Auth>,
    /// The user and the password of the Sentinels.
    pub sentinel_auth: Option<Auth>,
    /// The certificates, if connections are encrypted.
    pub tls: Option<Tls>,
}

/// A user, or none for the default user, and a password.
pub type Auth = (Option<String>, String);

/// Certificates, as PEM files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authority of the other side. `None` means the system's authorities, or no check of clients.
    pub authority: Option<File>,
    /// The certificate of this side, and its key.
    pub own: Option<(File, File)>,
}

/// A file, and the variable that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The name of the variable.
    pub variable: &'static str,
    /// The path of the file.
    pub path: PathBuf,
}

/// The contents of the files of certificates.
#[derive(PartialEq, Eq)]
#[allow(missing_debug_implementations)] // a key is not for logs
pub struct Pems {
    /// The authority of the other side.
    pub authority: Option<Vec<u8>>,
    /// The certificate of this side, and its key.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.path.display())
    }
}

impl File {
    fn read(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.path).map_err(named(self))
    }

    fn certificates(&self, pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
        let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        match found.map_err(|error| invalid(self, error))? {
            none if none.is_empty() => Err(invalid(self, "has no certificate in PEM form")),
            found => Ok(found),
        }
    }
}

fn invalid(name: impl Display, error: impl Display) -> io::Error {
    named(name)(io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
}

impl Tls {
    /// Reads the files as they are now, and checks them: the libraries would report some errors only when
    /// they connect.
    ///
    /// # Errors
    /// Returns an error that names the variable and the file.
    pub fn read(&self) -> io::Result<Pems> {
        let mut pems = Pems { authority: None, own: None };
        if let Some(file) = &self.authority {
            let pem = file.read()?;
            for certificate in file.certificates(&pem)? {
                RootCertStore::empty().add(certificate).map_err(|error| invalid(file, error))?;
            }
            pems.authority = Some(pem);
        }
        if let Some((certificate, key)) = &self.own {
            let (chain, secret) = (certificate.read()?, key.read()?);
            let read = PrivateKeyDer::from_pem_slice(&secret).map_err(|error| match error {
                pem::Error::NoItemsFound => invalid(key, "has no private key in PEM form without a password"),
                error => invalid(key, error),
            })?;
            let pair = CertifiedKey::from_der(certificate.certificates(&chain)?, read, &default_provider());
            pair.map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    invalid(key, format_args!("is not the key of {certificate}"))
                }
                error => invalid(format_args!("{certificate}, {key}"), error),
            })?;
            pems.own = Some((chain, secret));
        }
        Ok(pems)
    }
}

/// A control plane, and the settings of requests to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Xds {
    /// `host:port`.
    pub address: String,
    /// The certificates, if the connection is encrypted.
    pub tls: Option<Tls>,
    /// The name in its certificate, if it is not the host.
    pub name: Option<String>,
    /// The name of this service for the control plane.
    pub node: String,
    /// Further attributes of this service for the control plane.
    pub metadata: Vec<(String, String)>,
    /// The headers of the request.
    pub headers: HeaderMap,
    /// How long to wait after a connection that could not be made.
    pub retry: Duration,
    /// The shortest and the longest wait after a stream that has ended.
    pub waits: (Duration, Duration),
    /// How many times longer each such wait is than the one before it.
    pub factor: f64,
    /// Whether a wait is shortened at random, though not below the shortest.
    pub jitter: bool,
    /// The most bytes of a message.
    pub most_bytes: usize,
    /// Whether requests are decided before there are rules.
    pub is_optional: bool,
}

/// How the servers work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// One server.
    Single,
    /// A cluster.
    Cluster,
    /// The primary that the Sentinels name. The first URL is its name, and the others are the Sentinels.
    Sentinel,
}

/// The answer while the server is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// An error, so that `failure_mode_deny` of Envoy's filter decides.
    Error,
    /// Every request is within its limits.
    Open,
    /// Every request is over its limits.
    Closed,
    /// Limiters in this process decide, with the share of one of this many instances.
    Local(NonZeroU32),
}

/// The variables of envoyproxy/ratelimit that have no effect here, and why.
const WITHOUT_MEANING: [(&str, &str); 11] = [
    (
        "REDIS_POOL_SIZE REDIS_POOL_ON_EMPTY_BEHAVIOR REDIS_POOL_ON_EMPTY_WAIT_DURATION",
        "one connection carries all calls",
    ),
    (
        "REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT",
        "a request is one call",
    ),
    (
        "REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME",
        "the service starts without the server",
    ),
    (
        "REDIS_PERSECOND REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL \
         REDIS_PERSECOND_AUTH REDIS_PERSECOND_SENTINEL_AUTH REDIS_PERSECOND_TLS \
         REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR \
         REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_PIPELINE_WINDOW \
         REDIS_PERSECOND_PIPELINE_LIMIT REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
        "all limits of a request are one call, to one server",
    ),
    ("EXPIRATION_JITTER_MAX_SECONDS", "a key expires when its limiter is full again"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "refusals are not cached"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "a refused request is never charged"),
    (
        "USE_STATSD USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS STATSD_HOST STATSD_PORT \
         STATS_FLUSH_INTERVAL DISABLE_STATS EXTRA_TAGS PROMETHEUS_MAPPER_YAML \
         PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        "metrics are those of Prometheus, with the reference's names, in seconds, counted when they are read",
    ),
    (
        "TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID \
         TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE",
        "there are no traces",
    ),
    ("DEBUG_HOST DEBUG_PORT", "/rlconfig is at PORT"),
    (
        "MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS \
         MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT \
         MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
        "the limiters are in Redis or Valkey",
    ),
];

/// Those that have no effect if the rules are in files.
const WITH_FILES: [(&str, &str); 2] = [
    (
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "the service starts without rules, but not with rules that have errors",
    ),
    (
        "CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL \
         CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS \
         CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_GRPC_XDS_CLIENT_TLS_CERT \
         CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT \
         CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL \
         XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER \
         XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        "with CONFIG_TYPE=FILE rules are read from files",
    ),
];

/// Those that have no effect if a control plane has the rules.
const WITH_XDS: [(&str, &str); 1] = [(
    "RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY RUNTIME_WATCH_ROOT",
    "with CONFIG_TYPE=GRPC_XDS_SOTW rules come from the control plane",
)];

/// The variable that encrypts connections, and those that have no effect unless it is true: the authority of
/// the other side, the certificate of this side and its key, and others.
type Encryption = &'static [&'static str];

const GRPC: Encryption =
    &["GRPC_SERVER_USE_TLS", "GRPC_CLIENT_TLS_CACERT", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"];
const REDIS: Encryption = &["REDIS_TLS", "REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"];
const XDS: Encryption = &[
    "CONFIG_GRPC_XDS_SERVER_USE_TLS",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
];

/// The variables that say what is the case here anyway, if they have this value.
const ALREADY: [(&str, &str, &str); 1] =
    [("RUNTIME_IGNOREDOTFILES", "true", "files whose names begin with a dot are not read")];

/// The variables of the reference whose every value is served here: a socket is known by its path, and
/// changes of the rules are seen wherever they are.
pub const ANY_VALUE: [&str; 3] = ["PROTO", "REDIS_SOCKET_TYPE", "RUNTIME_WATCH_ROOT"];

/// The variables for features that this service does not have. It does not start if one is set.
const UNKNOWN: [(&str, &str, &str); 3] = [
    ("BACKEND_TYPE", "redis", "only redis is known"),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", "the name in a certificate is always verified"),
    ("GRPC_CLIENT_TLS_SAN", "-", "every certificate of the authority is accepted"),
];

struct Variables<F> {
    get: F,
    errors: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|text| !text.is_empty())
    }

    fn text_or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    fn file(&self, variable: &'static str) -> Option<File> {
        self.text(variable).map(|path| File { variable, path: path.into() })
    }

    fn auth(&self, name: &str) -> Option<Auth> {
        self.text(name).map(|auth| match auth.split_once(':') {
            Some((user, password)) => (Some(user.to_owned()), password.to_owned()),
            None => (None, auth),
        })
    }

    fn read<T>(&mut self, name: &str, default: T, what: &str, parse: impl FnOnce(&str) -> Option<T>) -> T {
        let Some(text) = self.text(name) else { return default };
        parse(&text).unwrap_or_else(|| {
            self.errors.push(format!("{name}: must be {what}, and is '{text}'"));
            default
        })
    }

    fn choice<T: Copy>(&mut self, name: &str, default: T, choices: &[(&str, T)]) -> T {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let what = names.split_last().map(|(last, before)| format!("{} or {last}", before.join(", ")));
        self.read(name, default, &what.unwrap_or_default(), |text| {
            choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, value)| *value)
        })
    }

    fn flag(&mut self, name: &str) -> bool {
        self.read(name, false, "true or false", flag)
    }

    fn tls(&mut self, names: Encryption) -> Option<Tls> {
        let &[switch, authority, certificate, key, ..] = names else { return None };
        if !self.flag(switch) {
            return None;
        }
        let (own, secret) = (self.file(certificate), self.file(key));
        if own.is_some() != secret.is_some() {
            self.errors.push(format!("{certificate} and {key}: one of them is missing"));
        }
        Some(Tls { authority: self.file(authority), own: own.zip(secret) })
    }

    fn duration(&mut self, name: &str, default: Duration) -> Duration {
        self.read(name, default, "a duration such as 500ms", duration::parse)
    }

    fn number<N: FromStr>(&mut self, name: &str, default: N, what: &str) -> N {
        self.read(name, default, what, |text| text.parse().ok())
    }
}

/// Adds the file or the address that an error concerns.
pub fn named(name: impl Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{name}: {error}"))
}

/// Says what an error says, and what its causes say that it does not.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

/// The values of a port.
const PORT: &str = "a number from 0 to 65535";

impl Settings {
    /// Reads the settings from environment variables.
    ///
    /// # Errors
    /// Returns all errors.
    #[allow(clippy::too_many_lines)] // a list
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, Vec<String>> {
        let mut v = Variables { get, errors: Vec::new() };
        let (grpc_host, http_host) = (v.text_or("GRPC_HOST", "0.0.0.0"), v.text_or("HOST", "0.0.0.0"));
        let grpc = match v.text("GRPC_UDS") {
            Some(path) => Address::Unix(path.into()),
            None => Address::Tcp(format!("{grpc_host}:{}", v.number::<u16>("GRPC_PORT", 8081, PORT))),
        };
        let grpc_tls = v.tls(GRPC);
        if grpc_tls.as_ref().is_some_and(|tls| tls.own.is_none()) {
            v.errors
                .push("GRPC_SERVER_USE_TLS: needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY".to_owned());
        }
        let http = format!("{http_host}:{}", v.number::<u16>("PORT", 8080, PORT));
        let prometheus = v.flag("USE_PROMETHEUS").then(|| {
            let address = v.text_or("PROMETHEUS_ADDR", ":9090");
            let address = if address.starts_with(':') { format!("0.0.0.0{address}") } else { address };
            (address, v.text_or("PROMETHEUS_PATH", "/metrics"))
        });
        let folder = [
            v.text_or("RUNTIME_ROOT", "/srv/runtime_data/current"),
            v.text_or("RUNTIME_SUBDIRECTORY", ""),
            v.text_or("RUNTIME_APPDIRECTORY", "config"),
        ];
        let servers = servers(&mut v);
        let instances = v.number("INSTANCES", NonZeroU32::MIN, "a number from 1 to 4294967295");
        let choices = [
            ("error", Unavailable::Error),
            ("open", Unavailable::Open),
            ("closed", Unavailable::Closed),
            ("local", Unavailable::Local(instances)),
        ];
        let unavailable = v.choice("SERVER_UNAVAILABLE", Unavailable::Error, &choices);
        let prefix = v.read("CACHE_KEY_PREFIX", String::new(), "a text without braces", |text| {
            (!text.contains(['{', '}'])).then(|| text.to_owned())
        });
        let headers = v.flag("LIMIT_RESPONSE_HEADERS_ENABLED").then(|| {
            [
                ("LIMIT_LIMIT_HEADER", "ratelimit-limit"),
                ("LIMIT_REMAINING_HEADER", "ratelimit-remaining"),
                ("LIMIT_RESET_HEADER", "ratelimit-reset"),
            ]
            .map(|(name, default)| v.text_or(name, default).to_ascii_lowercase())
        });
        let retry_after_header = v.text("RETRY_AFTER_HEADER").map(|name| name.to_ascii_lowercase());
        let names = headers.iter().flatten().chain(&retry_after_header);
        let wrong = names.filter(|name| HeaderName::from_bytes(name.as_bytes()).is_err());
        let wrong: Vec<String> = wrong.map(|name| format!("'{name}' is not the name of a header")).collect();
        v.errors.extend(wrong);
        let log_level = v.read("LOG_LEVEL", tracing::Level::WARN, "a level such as info", level);
        for (variable, known, why) in UNKNOWN {
            if let Some(text) = v.text(variable).filter(|text| !text.eq_ignore_ascii_case(known)) {
                v.errors.push(format!("{variable}: {why}, and not '{text}'"));
            }
        }
        let timeout = v.duration("REDIS_TIMEOUT", Duration::from_millis(500));
        if timeout.is_zero() {
            v.errors.push("REDIS_TIMEOUT: must be more than 0".to_owned());
        }
        let is_xds = v.choice("CONFIG_TYPE", false, &[("FILE", false), ("GRPC_XDS_SOTW", true)]);
        let xds = is_xds.then(|| xds(&mut v));
        let warnings = warnings(&v, is_xds);
        let settings = Self {
            grpc,
            grpc_tls,
            http,
            prometheus,
            max_connection_age: Some(v.duration("GRPC_MAX_CONNECTION_AGE", Duration::from_secs(86_400)))
                .filter(|age| !age.is_zero()),
            max_connection_age_grace: v.duration("GRPC_MAX_CONNECTION_AGE_GRACE", Duration::from_secs(3_600)),
            drain: v.duration("DRAIN_TIME", Duration::ZERO),
            folder: folder.iter().collect(),
            xds,
            merge_domains: v.flag("MERGE_DOMAIN_CONFIG"),
            servers,
            timeout,
            unavailable,
            prefix,
            near_limit_ratio: v.read("NEAR_LIMIT_RATIO", 0.8, "a number from 0 to 1", |text| {
                text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
            }),
            headers,
            retry_after_header,
            shadow: v.flag("SHADOW_MODE"),
            quota: v.flag("QUOTA_MODE"),
            metadata: v.flag("RESPONSE_DYNAMIC_METADATA"),
            healthy_with_a_domain: v.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
            healthy_with_server: match v.text("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION") {
                Some(_) => v.flag("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
                None => unavailable == Unavailable::Error,
            },
            log_level,
            log_json: v.choice("LOG_FORMAT", false, &[("text", false), ("json", true)]),
            warnings,
        };
        if v.errors.is_empty() { Ok(settings) } else { Err(v.errors) }
    }
}

/// Reads `true` or `false`, as the settings have them.
pub fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "1" => Some(true),
        "false" | "f" | "0" => Some(false),
        _ => None,
    }
}

fn level(text: &str) -> Option<tracing::Level> {
    match text.to_ascii_lowercase().as_str() {
        "warning" => Some(tracing::Level::WARN),
        "fatal" | "panic" => Some(tracing::Level::ERROR),
        text => text.parse().ok(),
    }
}

/// Names the variables that are set and have no effect.
fn warnings(v: &Variables<impl Fn(&str) -> Option<String>>, is_xds: bool) -> Vec<String> {
    let is_set = |name: &str| {
        v.text(name).is_some_and(|text| !matches!(text.to_ascii_lowercase().as_str(), "0" | "false"))
    };
    let other =
        |(name, known, _): &&(&str, &str, &str)| v.text(name).is_some_and(|text| flag(&text) != flag(known));
    let others =
        ALREADY.iter().filter(other).map(|(name, _, why)| format!("{name} has no meaning here: {why}"));
    let by_source = if is_xds { WITH_XDS.iter() } else { WITH_FILES.iter() };
    let all = WITHOUT_MEANING.iter().chain(by_source);
    let all = all.flat_map(|(names, why)| names.split_whitespace().map(move |name| (name, why)));
    let set = all.filter(|(name, _)| is_set(name));
    let mut warnings: Vec<String> =
        others.chain(set.map(|(name, why)| format!("{name} has no meaning here: {why}"))).collect();
    for (switch, names) in [GRPC, REDIS, XDS].into_iter().filter_map(<[_]>::split_first) {
        if is_set(switch) || (!is_xds && switch.starts_with("CONFIG_")) {
            continue; // it is on, or named above
        }
        let set = names.iter().filter(|name| is_set(name));
        warnings.extend(set.map(|name| format!("{name} has no meaning here: {switch} is not true")));
    }
    warnings
}

fn xds(v: &mut Variables<impl Fn(&str) -> Option<String>>) -> Xds {
    let default = "localhost:18000".to_owned();
    let address = v.read("CONFIG_GRPC_XDS_SERVER_URL", default, "host:port", |text| {
        let text = text.strip_prefix("dns:///").unwrap_or(text);
        let address: Authority = text.parse().ok()?;
        address.port().map(|_| address.to_string())
    });
    let tls = v.tls(XDS);
    let pairs = |text: &str, between| {
        let pair = |pair: &str| pair.split_once(between).map(|(a, b)| (a.to_owned(), b.to_owned()));
        text.split(',').map(|text| pair(text.trim())).collect::<Option<Vec<_>>>()
    };
    let headers =
        v.read("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", HeaderMap::new(), "name:value,...", |text| {
            let header = |(name, value): (String, String)| {
                Some((name.trim().parse::<HeaderName>().ok()?, value.trim().parse::<HeaderValue>().ok()?))
            };
            pairs(text, ':')?.into_iter().map(header).collect()
        });
    let waits = (
        v.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Duration::from_secs(10)),
        v.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Duration::from_secs(60)),
    );
    Xds {
        address,
        tls,
        name: v.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
        node: v.text_or("CONFIG_GRPC_XDS_NODE_ID", "default"),
        metadata: v
            .read("CONFIG_GRPC_XDS_NODE_METADATA", Vec::new(), "name=value,...", |text| pairs(text, '=')),
        headers,
        retry: v.duration("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", Duration::from_secs(3)),
        waits,
        factor: v.read("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", 0.5, "a number from 0 to 100", |text| {
            let factor = text.parse().ok().filter(|factor| (0.0..=100.0).contains(factor))?;
            Some(if factor > 0.0 { factor } else { 2.0 }) // as the library of the reference
        }),
        jitter: v.read("XDS_CLIENT_BACKOFF_JITTER", true, "true or false", flag),
        most_bytes: match v.number("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", 0, "a number of bytes") {
            0 => 4 << 20, // that of gRPC
            most => most,
        },
        is_optional: v.flag("FORCE_START_WITHOUT_INITIAL_CONFIG"),
    }
}

fn servers(v: &mut Variables<impl Fn(&str) -> Option<String>>) -> Servers {
    let choices = [
        ("SINGLE", Deployment::Single),
        ("CLUSTER", Deployment::Cluster),
        ("SENTINEL", Deployment::Sentinel),
    ];
    let deployment = v.choice("REDIS_TYPE", Deployment::Single, &choices);
    let url = v.text_or("REDIS_URL", "127.0.0.1:6379");
    let urls: Vec<String> = url.split(',').map(|url| url.trim().to_owned()).collect();
    if deployment == Deployment::Sentinel && urls.len() < 2 {
        v.errors.push("REDIS_URL: must be the name of the primary and the addresses of Sentinels".to_owned());
    }
    if deployment == Deployment::Single && urls.len() > 1 {
        v.errors.push("REDIS_URL: has several addresses, and REDIS_TYPE is SINGLE".to_owned());
    }
    Servers {
        deployment,
        urls,
        auth: v.auth("REDIS_AUTH"),
        sentinel_auth: v.auth("REDIS_SENTINEL_AUTH"),
        tls: v.tls(REDIS),
    }
}
