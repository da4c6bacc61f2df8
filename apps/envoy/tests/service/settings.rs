//! The environment variables.

use redis_cell_envoy::settings::{Address, Kind, Settings, Unavailable};
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
    assert_eq!(settings.servers.kind, Kind::Cluster);
    assert_eq!(settings.servers.urls, ["one:6379", "two:6379"]);
    assert_eq!(settings.servers.auth, Some((Some("user".to_owned()), "pass:word".to_owned())));
    let tls = settings.servers.tls.unwrap();
    assert_eq!((tls.authority.as_deref(), tls.own), (Some(Path::new("/ca.pem")), None));
    assert_eq!(settings.timeout, Duration::from_secs(90));
    assert_eq!(settings.prometheus, Some(("0.0.0.0:9090".to_owned(), "/metrics".to_owned())));
    assert_eq!(settings.headers.unwrap(), ["ratelimit-limit", "ratelimit-remaining", "x-reset"]);
    assert_eq!(settings.warnings, ["REDIS_POOL_SIZE has no meaning here: one connection carries all calls"]);
}

#[test]
fn what_is_wrong_or_missing_here_is_named() {
    let mut errors = read(&[
        ("GRPC_PORT", "many"),
        ("SERVER_UNAVAILABLE", "sometimes"),
        ("BACKEND_TYPE", "memcache"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("REDIS_TIMEOUT", "5"),
        ("CACHE_KEY_PREFIX", "{a}"),
        ("RETRY_AFTER_HEADER", "no header"),
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", "primary"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
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
            "CONFIG_TYPE: only FILE is known, and not 'GRPC_XDS_SOTW'",
            "GRPC_PORT: must be a number, and is 'many'",
            "GRPC_SERVER_USE_TLS: needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY",
            "REDIS_TIMEOUT: must be a duration such as 500ms, and is '5'",
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: the name in a certificate is always verified, and not 'true'",
            "REDIS_URL: must be the name of the primary and the addresses of Sentinels",
            "SERVER_UNAVAILABLE: must be error, open, closed or local, and is 'sometimes'",
        ]
    );
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
