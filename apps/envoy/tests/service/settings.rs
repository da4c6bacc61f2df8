//! The environment variables.

use redis_cell_envoy::settings::{ANY_VALUE, Address, Deployment, Settings, Unavailable};
use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

fn read(variables: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
    Settings::read(|name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn the_defaults_are_those_of_the_reference() {
    let settings = read(&[]).unwrap();
    assert_eq!(settings.grpc, Address::Tcp("0.0.0.0:8081".to_owned()));
    assert_eq!(settings.http, "0.0.0.0:8080");
    assert_eq!(settings.folder, Path::new("/srv/runtime_data/current/config"));
    assert_eq!(settings.unavailable, Unavailable::Error);
    assert!(settings.warnings.is_empty() && settings.headers.is_none() && settings.prometheus.is_none());
}

#[test]
fn variables_of_the_reference_are_read() {
    let settings = read(&[
        ("GRPC_UDS", "/run/ratelimit.sock"),
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_TYPE", "CLUSTER"),
        ("REDIS_URL", "one:6379, two:6379"),
        ("REDIS_AUTH", "user:pass:word"),
        ("REDIS_TIMEOUT", "1m30s"),
        ("USE_PROMETHEUS", "true"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RESET_HEADER", "X-Reset"),
        ("LOG_LEVEL", "WARNING"),
        ("REDIS_POOL_SIZE", "5"),
        ("USE_STATSD", "false"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", "/ca.pem"),
    ])
    .unwrap();
    assert_eq!(settings.grpc, Address::Unix("/run/ratelimit.sock".into()));
    assert_eq!(settings.folder, Path::new("/data/ratelimit/config"));
    assert_eq!(settings.servers.deployment, Deployment::Cluster);
    assert_eq!(settings.servers.urls, ["one:6379", "two:6379"]);
    assert_eq!(settings.servers.auth, Some((Some("user".to_owned()), "pass:word".to_owned())));
    let tls = settings.servers.tls.unwrap();
    assert_eq!((tls.authority.unwrap().path, tls.own), ("/ca.pem".into(), None));
    assert_eq!(settings.timeout, Duration::from_secs(90));
    assert_eq!(settings.prometheus, Some(("0.0.0.0:9090".to_owned(), "/metrics".to_owned())));
    assert_eq!(settings.headers.unwrap(), ["ratelimit-limit", "ratelimit-remaining", "x-reset"]);
    assert_eq!(settings.warnings, ["REDIS_POOL_SIZE has no meaning here: one connection carries all calls"]);
}

#[test]
fn what_is_wrong_or_missing_here_is_named() {
    let mut errors = read(&[
        ("GRPC_PORT", "80810"),
        ("SERVER_UNAVAILABLE", "sometimes"),
        ("BACKEND_TYPE", "memcache"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "plane"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a b:c"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/own.key"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "-1"),
        ("REDIS_TIMEOUT", "5"),
        ("CACHE_KEY_PREFIX", "{a}"),
        ("RETRY_AFTER_HEADER", "no header"),
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", "primary"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
        ("NEAR_LIMIT_RATIO", "nan"),
        ("LOG_FORMAT", "xml"),
        ("GRPC_SERVER_USE_TLS", "true"),
    ])
    .unwrap_err();
    errors.sort();
    assert_eq!(
        errors,
        [
            "'no header' is not the name of a header",
            "BACKEND_TYPE: only redis is known, and not 'memcache'",
            "CACHE_KEY_PREFIX: must be a text without braces, and is '{a}'",
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: must be name:value,..., and is 'a b:c'",
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY: one of them is missing",
            "CONFIG_GRPC_XDS_NODE_METADATA: must be name=value,..., and is 'zone'",
            "CONFIG_GRPC_XDS_SERVER_URL: must be host:port, and is 'plane'",
            "GRPC_PORT: must be a number from 0 to 65535, and is '80810'",
            "GRPC_SERVER_USE_TLS: needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY",
            "LOG_FORMAT: must be text or json, and is 'xml'",
            "NEAR_LIMIT_RATIO: must be a number from 0 to 1, and is 'nan'",
            "REDIS_TIMEOUT: must be a duration such as 500ms, and is '5'",
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: the name in a certificate is always verified, and not 'true'",
            "REDIS_URL: must be the name of the primary and the addresses of Sentinels",
            "SERVER_UNAVAILABLE: must be error, open, closed or local, and is 'sometimes'",
            "XDS_CLIENT_BACKOFF_RANDOM_FACTOR: must be a number from 0 to 100, and is '-1'",
        ]
    );
}

/// The variables of envoyproxy/ratelimit: its README.md and src/settings/settings.go.
const REFERENCE: &str = "
    BACKEND_TYPE CACHE_KEY_PREFIX CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_CLIENT_TLS_CERT
    CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA
    CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_SERVER_TLS_CACERT
    CONFIG_GRPC_XDS_SERVER_TLS_SAN CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_USE_TLS CONFIG_TYPE
    DEBUG_HOST DEBUG_PORT DISABLE_STATS EXPIRATION_JITTER_MAX_SECONDS EXTRA_TAGS
    FORCE_START_WITHOUT_INITIAL_CONFIG GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN GRPC_HOST
    GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE GRPC_PORT GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY
    GRPC_SERVER_USE_TLS GRPC_UDS HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED HOST LIMIT_LIMIT_HEADER
    LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER LIMIT_RESPONSE_HEADERS_ENABLED LOCAL_CACHE_SIZE_IN_BYTES LOG_FORMAT
    LOG_LEVEL MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_TLS
    MEMCACHE_TLS_CACERT MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION
    MERGE_DOMAIN_CONFIG NEAR_LIMIT_RATIO PORT PROMETHEUS_ADDR PROMETHEUS_MAPPER_YAML PROMETHEUS_PATH
    PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS PROTO QUOTA_MODE REDIS_AUTH REDIS_CLUSTER_PIPELINE_PARALLELISM
    REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_PERSECOND REDIS_PERSECOND_AUTH
    REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_PIPELINE_LIMIT
    REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR
    REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_POOL_SIZE REDIS_PERSECOND_SENTINEL_AUTH
    REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TIMEOUT REDIS_PERSECOND_TLS REDIS_PERSECOND_TYPE
    REDIS_PERSECOND_URL REDIS_PIPELINE_LIMIT REDIS_PIPELINE_WINDOW REDIS_POOL_ON_EMPTY_BEHAVIOR
    REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_POOL_SIZE REDIS_SENTINEL_AUTH REDIS_SOCKET_TYPE
    REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_ELAPSED_TIME REDIS_STARTUP_MAX_INTERVAL REDIS_TIMEOUT REDIS_TLS
    REDIS_TLS_CACERT REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_TYPE
    REDIS_URL RESPONSE_DYNAMIC_METADATA RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES RUNTIME_ROOT
    RUNTIME_SUBDIRECTORY RUNTIME_WATCH_ROOT SHADOW_MODE STATSD_HOST STATSD_PORT STATS_FLUSH_INTERVAL
    STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT TRACING_ENABLED TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE
    TRACING_SERVICE_INSTANCE_ID TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE USE_DOG_STATSD
    USE_DOG_STATSD_MOGRIFIERS USE_PROMETHEUS USE_STATSD XDS_CLIENT_BACKOFF_INITIAL_INTERVAL
    XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_BACKOFF_MAX_INTERVAL XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";

/// Each is honoured or refused, because it is asked for, or named in the log, or has no other meaning here.
#[test]
fn no_variable_of_the_reference_is_ignored_without_a_word() {
    for source in ["FILE", "GRPC_XDS_SOTW"] {
        let asked = RefCell::new(HashSet::new());
        let _ = Settings::read(|name| {
            asked.borrow_mut().insert(name.to_owned());
            match name {
                "CONFIG_TYPE" => Some(source.to_owned()),
                // Some are read only if these are on.
                "GRPC_SERVER_USE_TLS"
                | "REDIS_TLS"
                | "USE_PROMETHEUS"
                | "LIMIT_RESPONSE_HEADERS_ENABLED"
                | "CONFIG_GRPC_XDS_SERVER_USE_TLS" => Some("true".to_owned()),
                _ => None,
            }
        });
        let asked = asked.into_inner();
        let ignored: Vec<&str> = REFERENCE
            .split_whitespace()
            .filter(|name| !asked.contains(*name) && !ANY_VALUE.contains(name))
            .collect();
        assert!(ignored.is_empty(), "{source}: {ignored:?}");
    }
    let servers = read(&[("REDIS_URL", "one:6379,two:6379")]).unwrap_err();
    assert_eq!(servers, ["REDIS_URL: has several addresses, and REDIS_TYPE is SINGLE"]);
    let dots = read(&[("RUNTIME_IGNOREDOTFILES", "false")]).unwrap().warnings;
    assert!(dots.len() == 1 && dots[0].starts_with("RUNTIME_IGNOREDOTFILES"), "{dots:?}");
}

#[test]
fn each_variable_of_the_reference_that_has_no_meaning_is_named() {
    for (name, value) in [
        ("DEBUG_PORT", "6070"),
        ("DISABLE_STATS", "true"),
        ("EXTRA_TAGS", "a:b"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("PROMETHEUS_MAPPER_YAML", "/mapper.yaml"),
        ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT"),
        ("TRACING_ENABLED", "true"),
        ("STATSD_HOST", "statsd"),
    ] {
        let warnings = read(&[(name, value)]).unwrap().warnings;
        assert!(
            warnings.len() == 1 && warnings[0].starts_with(&format!("{name} has no meaning here: ")),
            "{name}: {warnings:?}"
        );
    }
    // Nor do certificates encrypt anything by themselves.
    for (switch, name) in [
        ("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_KEY"),
        ("REDIS_TLS", "REDIS_TLS_CACERT"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
    ] {
        let settings =
            read(&[("CONFIG_TYPE", "GRPC_XDS_SOTW"), (name, "/a.pem"), (switch, "false")]).unwrap();
        assert_eq!(settings.warnings, [format!("{name} has no meaning here: {switch} is not true")]);
    }
    let warnings = |variables: &[(&str, &str)]| read(variables).unwrap().warnings;
    assert_eq!(warnings(&[("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/a.pem")]).len(), 1);
    assert_eq!(warnings(&[("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/a.pem")]), [""; 0]);
    let settings = read(&[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("RUNTIME_ROOT", "/data")]).unwrap();
    assert!(settings.warnings[0].starts_with("RUNTIME_ROOT has no meaning here"), "{:?}", settings.warnings);
    let xds = settings.xds.unwrap();
    assert_eq!((xds.address.as_str(), xds.node.as_str()), ("localhost:18000", "default"));
    // Zero means the default of the library that the reference has.
    let zero =
        ["XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "XDS_CLIENT_BACKOFF_RANDOM_FACTOR"].map(|name| (name, "0"));
    let zero = read(&[&[("CONFIG_TYPE", "GRPC_XDS_SOTW")], &zero[..]].concat()).unwrap().xds.unwrap();
    assert_eq!((zero.most_bytes, xds.most_bytes, zero.factor), (4 << 20, 4 << 20, 2.0));
    // These say what is the case anyway.
    for (name, value) in [
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("TRACING_ENABLED", "false"),
        ("DISABLE_STATS", "false"),
        ("USE_STATSD", "false"),
    ] {
        assert!(read(&[(name, value)]).unwrap().warnings.is_empty(), "{name}");
    }
}

#[test]
fn times_and_levels_are_read_as_the_reference_reads_them() {
    let age = |text| read(&[("GRPC_MAX_CONNECTION_AGE", text)]).unwrap().max_connection_age;
    assert_eq!(age("1.5h"), Some(Duration::from_secs(5_400)));
    assert_eq!(age("0.25s"), Some(Duration::from_millis(250)));
    // A connection without a limit.
    assert_eq!((age("0"), age("0s")), (None, None));
    let settings = read(&[("GRPC_MAX_CONNECTION_AGE_GRACE", "5m"), ("LOG_LEVEL", "fatal")]).unwrap();
    assert_eq!(settings.max_connection_age_grace, Duration::from_secs(300));
    // A server that is never waited for would never answer.
    for text in ["0", "0s", "1.s", ".5s", "1.5", "1.0000001s"] {
        assert!(read(&[("REDIS_TIMEOUT", text)]).is_err(), "{text}");
    }
}
