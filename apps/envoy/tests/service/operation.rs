//! The service in operation: reloads, health, reflection, and its end.

use crate::common::{Server, until};
use crate::harness::{Service, command, descriptor, is_ok, limits, number, rules, start};
use crate::servers::certificate;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::Request;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

fn rule(key: &str, count: u32) -> String {
    rules(&limits(&format!("{key} => {count}")))
}

fn wait_for_loads(service: &Service, loaded: u64, failed: u64) {
    until("a reload", (loaded, failed), || service.loads());
}

/// A request for `k=1` in JSON.
const REQUEST: &str = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "1"}]}]}"#;

/// A request of Envoy with the bytes of a header, which need not be UTF-8.
#[derive(Clone, PartialEq, prost::Message)]
struct RawRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RawDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<RawEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawEntry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_are_no_utf_8_are_limited_each_by_itself() {
    let (_server, _service, client) = start(&limits("k => 2"), &[]).await;
    for value in [&b"\xff"[..], b"\xfe", b"a\x80b", b"\xc3", "\u{fffd}".as_bytes()] {
        let mut admitted = 0;
        for _ in 0..4 {
            let entries = vec![RawEntry { key: b"k".to_vec(), value: value.to_vec() }];
            let request = RawRequest { domain: "d".to_owned(), descriptors: vec![RawDescriptor { entries }] };
            admitted += usize::from(is_ok(&client.send(request).await.unwrap()));
        }
        assert_eq!(admitted, 2, "{}", value.escape_ascii());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_replaces_the_rules_and_a_wrong_one_does_not() {
    let (_server, mut service, client) = start(&limits("k => 2"), &[]).await;
    assert_eq!(client.admitted(3, &["k=1"]).await, 2);
    service.write(&rule("k", 5));
    wait_for_loads(&service, 2, 0);
    // The state is the same: two of the five are used.
    assert_eq!(client.admitted(5, &["k=1"]).await, 3);
    service.write(&rule("k", 7).replace("requests_per_unit", "requestsperunit"));
    wait_for_loads(&service, 2, 1);
    let logged = service.process.logged("rules.yaml:3: descriptors[0].rate_limit.requestsperunit: ");
    assert!(logged.starts_with("unknown key 'requestsperunit'"), "{logged}");
    assert_eq!(client.admitted(7, &["k=2"]).await, 5);
    assert!(service.get("/rlconfig").1.contains("d.k: unit=YEAR requests_per_unit=5"));
    // Another kind of limiter has another key, so no state of the old kind is in its way.
    service.write(&rule("k", 5).replace("year", "year, algorithm: gcra"));
    wait_for_loads(&service, 3, 1);
    assert_eq!(client.admitted(7, &["k=2"]).await, 5);
    // A second file, and a file less.
    let folder = service.process.folder().join("config");
    fs::write(folder.join("more.yml"), rule("k", 1).replace("domain: d", "domain: e")).unwrap();
    fs::write(folder.join(".hidden.yaml"), "typo").unwrap();
    fs::write(folder.join("notes.txt"), "typo").unwrap();
    wait_for_loads(&service, 4, 1);
    assert_eq!(client.of("e").admitted(3, &["k=1"]).await, 1);
    fs::remove_file(folder.join("more.yml")).unwrap();
    wait_for_loads(&service, 5, 1);
    assert_eq!(client.of("e").admitted(3, &["k=1"]).await, 3);
    service.write("domain: d\n");
    service.process.logged("WARN redis_cell_envoy::watch: there are no rules: all requests are admitted");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_stay_while_their_file_or_folder_is_gone() {
    let server = Server::start();
    let mut service = Service::start(&server, "domain: other\n");
    let folder = service.process.folder().join("config");
    // As Kubernetes mounts them: links to a link that it swaps.
    let swap = |to: &str| {
        symlink(to, folder.join("..next")).unwrap();
        fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
    };
    for (version, count) in [("..1", 1), ("..2", 2)] {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("k.yaml"), rule("k", count)).unwrap();
    }
    swap("..1");
    symlink("..data/k.yaml", folder.join("k.yaml")).unwrap();
    wait_for_loads(&service, 2, 0);
    let client = service.client().await;
    assert_eq!(client.admitted(3, &["k=1"]).await, 1);
    swap("..2");
    wait_for_loads(&service, 3, 0);
    assert_eq!(client.admitted(3, &["k=2"]).await, 2);
    swap("..3");
    service.process.logged("the rules stay as they are: ");
    assert_eq!(client.admitted(3, &["k=3"]).await, 2);
    fs::rename(&folder, folder.with_extension("gone")).unwrap();
    wait_for_loads(&service, 3, 2);
    assert_eq!(client.admitted(3, &["k=4"]).await, 2);
    fs::rename(folder.with_extension("gone"), &folder).unwrap();
    fs::remove_file(folder.join("k.yaml")).unwrap();
    wait_for_loads(&service, 4, 2);
    assert_eq!(client.admitted(3, &["k=5"]).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_by_http_and_grpc() {
    let mut server = Server::start();
    let settings = [("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"), ("REDIS_TIMEOUT", "2s")];
    // A server that cannot decide, with a setting that needs it and with two that do not.
    let bare = crate::common::Options::new().without_module().start();
    for (name, value, expected) in [
        ("SERVER_UNAVAILABLE", "error", 500),
        ("SERVER_UNAVAILABLE", "local", 200),
        ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", 200),
    ] {
        let service = Service::with(&bare, &rule("k", 1), &[(name, value)]);
        assert_eq!(service.get("/healthcheck").0, expected, "{name}={value}");
    }
    let service = Service::with(&server, &rule("k", 1), &settings);
    let wait_for = |status: u16| until("the health", status, || service.get("/healthcheck").0);
    wait_for(200);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", service.grpc)).unwrap();
    let mut health = HealthClient::new(channel.connect().await.unwrap());
    // The reference calls itself `ratelimit`.
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
        let request = HealthCheckRequest { service: name.to_owned() };
        assert_eq!(health.check(Request::new(request)).await.unwrap().into_inner().status, 1, "{name}");
    }
    // A client that watches is told of changes only.
    let watch = health.watch(Request::new(HealthCheckRequest::default()));
    let mut changes = watch.await.unwrap().into_inner();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = |expected: &[i32]| until("the change", expected.to_vec(), || seen.lock().unwrap().clone());
    let sees = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok(Some(change)) = changes.message().await {
            sees.lock().unwrap().push(change.status);
        }
    });
    server.kill();
    wait_for(500);
    told(&[1, 2]);
    // The log says which server has not decided, without the password of its URL.
    let url = format!("redis://ann:secret@127.0.0.1:{}", server.port());
    let mut of_url = Service::at(&url, &rule("k", 1), &[("REDIS_TIMEOUT", "2s")]);
    assert_eq!(of_url.post("/json", REQUEST).0, 500);
    of_url.process.logged(&format!("the server at 127.0.0.1:{} has not decided: ", server.port()));
    assert!(!of_url.process.log().contains("secret"), "{}", of_url.process.log());
    server.restart_here();
    wait_for(200);
    told(&[1, 2, 1]);
    fs::remove_file(service.process.folder().join("config/rules.yaml")).unwrap();
    wait_for(500);
    told(&[1, 2, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_find_the_messages_by_reflection() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let (_server, service, _) = start(&limits("k => 1"), &[]).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", service.grpc)).unwrap();
    let mut client = ServerReflectionClient::new(channel.connect().await.unwrap());
    for symbol in [
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
        "google.protobuf.Struct",
        "grpc.health.v1.Health",
    ] {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
        };
        let requests = tokio_stream::iter([request]);
        let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap().message_response;
        assert!(matches!(answer, Some(MessageResponse::FileDescriptorResponse(_))), "{symbol}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_being_decided_are_answered_before_the_end() {
    let (server, mut service, client) = start(&limits("k => 5"), &[]).await;
    assert!(client.admits(&["k=1"]).await);
    server.signal("STOP");
    let pending = tokio::spawn(async move { client.ask(vec![descriptor("k=1")]).await });
    // The request has arrived once the service counts its hit.
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"k\"} ";
    until("the request", 2, || number(&service.get("/metrics").1, hits));
    service.process.signal("TERM");
    service.process.logged("ending");
    server.signal("CONT");
    assert_eq!(pending.await.unwrap().statuses[0].limit_remaining, 3);
    assert!(service.process.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_signal_that_ends_the_reference_ends_the_service_in_order() {
    for signal in ["HUP", "INT", "TERM"] {
        let (_server, mut service, _) = start(&limits("k => 5"), &[]).await;
        service.process.signal(signal);
        assert!(service.process.wait().success(), "{signal}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_decided_as_json_too() {
    let rules =
        "  - {key: k, rate_limit: {unit: day, requests_per_unit: 2, name: two, headers: {x-why: full}}}
  - {key: free, rate_limit: {unlimited: true}, metadata: {pool: [1, true, null, {name: x}]}}
";
    let settings = [("RESPONSE_DYNAMIC_METADATA", "true"), ("REDIS_TIMEOUT", "2s")];
    let (server, service, _) = start(rules, &settings).await;
    let ask = |body: &str| service.post("/json", body);
    let (status, body) = ask(REQUEST);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    let wait = body["statuses"][0]["durationUntilReset"].take();
    let wait: u32 = wait.as_str().unwrap().strip_suffix('s').unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&wait), "{wait}");
    let limit = json!({"requestsPerUnit": 2, "unit": "DAY", "name": "two"});
    let status_of =
        json!({"code": "OK", "currentLimit": limit, "limitRemaining": 1, "durationUntilReset": null});
    let metadata = json!({"domain": "d", "descriptors": [{"entries": ["k=1"]}]});
    let expected = json!({"overallCode": "OK", "statuses": [status_of], "dynamicMetadata": metadata});
    assert_eq!((status, body), (200, expected));
    // Names in both styles, numbers as texts, and limits of the request.
    let (status, body) = ask(r#"{"domain": "d", "hits_addend": 1, "descriptors": [
            {"entries": [{"key": "k", "value": "1"}], "hitsAddend": "2"},
            {"entries": [{"key": "user"}], "limit": {"requestsPerUnit": 5, "unit": "HOUR"}},
            {"entries": [{"key": "user"}], "limit": {"requests_per_unit": 5, "unit": 4}, "isNegativeHits": false},
            {"entries": [{"key": "free"}], "hits_addend": null}]}"#);
    assert_eq!(status, 429, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["overallCode"], "OVER_LIMIT");
    assert_eq!(body["responseHeadersToAdd"], json!([{"key": "x-why", "value": "full"}]));
    assert_eq!(body["dynamicMetadata"]["metadata"], json!({"pool": [1.0, true, null, {"name": "x"}]}));
    let statuses = body["statuses"].as_array().unwrap();
    for (status, (code, unit, left)) in statuses.iter().zip([
        ("OVER_LIMIT", json!("DAY"), 1),
        ("OK", json!("HOUR"), 5),
        ("OK", json!("DAY"), 5),
        ("OK", Value::Null, u32::MAX),
    ]) {
        assert_eq!((&status["code"], &status["limitRemaining"]), (&json!(code), &json!(left)), "{status}");
        assert_eq!(status["currentLimit"]["unit"], unit, "{status}");
    }
    for wrong in [
        "",
        "[]",
        "{",
        r#"{"domain": 5}"#,
        r#"{"domain": "d"}"#,
        r#"{"domain": "d", "descriptors": {}}"#,
        r#"{"descriptors": [{"entries": [{"key": "k"}]}]}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k"}], "hits": 1}]}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k"}], "hitsAddend": -1}]}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k"}], "limit": {"unit": "FORTNIGHT"}}]}"#,
    ] {
        assert_eq!(ask(wrong).0, 400, "{wrong}");
    }
    assert_eq!(service.get("/json").0, 405);
    drop(server);
    assert_eq!(ask(REQUEST).0, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_listens_on_a_socket_too() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("grpc.sock");
    fs::write(&socket, "left by a former process").unwrap();
    let service = Service::with(&server, &rule("k", 1), &[("GRPC_UDS", socket.to_str().unwrap())]);
    assert_eq!(service.grpc, socket.to_str().unwrap());
    std::os::unix::net::UnixStream::connect(&socket).unwrap();
}

#[test]
fn the_unit_of_systemd_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let unit = format!("{}/../../packaging/redis-cell-envoy.service", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(unit).unwrap();
    assert!(text.contains("\nExecStart=/usr/bin/redis-cell-envoy\n"), "{text}");
    let verify = |text: &str| {
        let path = folder.path().join("redis-cell-envoy.service");
        fs::write(&path, text.replace("/usr/bin/redis-cell-envoy", env!("CARGO_BIN_EXE_redis-cell-envoy")))
            .unwrap();
        let output =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(verify(&text), (true, String::new()));
    // A setting that systemd does not know is a warning.
    let (_, warning) = verify(&text.replace("DynamicUser=", "DynamicUsers="));
    assert!(warning.contains("DynamicUsers"), "{warning}");
}

#[test]
fn wrong_rules_and_settings_end_the_program_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("a.yaml"), "domain: d\nlimits: 1\n").unwrap();
    let output = |command: &mut Command| {
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    let check =
        |folder: &Path| output(Command::new(env!("CARGO_BIN_EXE_redis-cell-envoy")).arg("check").arg(folder));
    let served = |url: &str, settings: &[(&str, &str)]| output(&mut command(folder.path(), url, settings));
    let fails = |(code, text): (Option<i32>, String), why: &str| {
        assert!(code == Some(1) && text.contains(why), "{text}");
    };
    fails(served("127.0.0.1:1", &[]), "a.yaml:2: limits: unknown key");
    fails(check(&config), "a.yaml:2: limits: unknown key");
    fs::write(config.join("a.yaml"), b"domain: d\n# \xff\n").unwrap();
    fails(check(&config), "a.yaml:2: is not text in UTF-8");
    fs::write(config.join("a.yaml"), rule("k", 1)).unwrap();
    assert_eq!(check(&config), (Some(0), "domains: 1, rules: 1\n".to_owned()));
    fails(served("127.0.0.1:1", &[("BACKEND_TYPE", "memcache")]), "BACKEND_TYPE");
    fails(served("http://127.0.0.1", &[]), "REDIS_URL: must be host:port, ");
    for name in ["one", "two"] {
        certificate(folder.path(), name);
    }
    let [own, key] = ["one.pem", "two.key"].map(|name| folder.path().join(name).display().to_string());
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let taken_port = taken.port().to_string();
    // Wrong certificates are seen before there are requests, or rules.
    for [switch, own_name, key_name, authority] in [
        ["GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT"],
        ["REDIS_TLS", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT"],
        [
            "CONFIG_GRPC_XDS_SERVER_USE_TLS",
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        ],
    ] {
        let tls = [
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("PORT", &taken_port), // ends the program otherwise
            (switch, "true"),
            (own_name, &own),
            (key_name, &key),
        ];
        let mismatch = format!("is not the key of {own_name}: {own}");
        for (name, file, error) in [
            (key_name, &*key, &*mismatch),
            (key_name, &own, "has no private key in PEM form without a password"),
            (authority, &key, "has no certificate in PEM form"),
        ] {
            let settings = [&tls[..], &[(name, file)]].concat();
            fails(served("127.0.0.1:1", &settings), &format!("{name}: {file}: {error}\n"));
        }
    }
    let without_tls = "REDIS_URL: must begin with rediss://, as REDIS_TLS is true";
    fails(served("redis://127.0.0.1:1", &[("REDIS_TLS", "true")]), without_tls);
    for port in ["PORT", "GRPC_PORT"] {
        fails(served("127.0.0.1:1", &[(port, &taken_port)]), &format!("{taken}: Address already in use"));
    }
    fails(check(&folder.path().join("nowhere")), "nowhere");
    // The folder above that of the rules.
    fails(check(folder.path()), "has no file whose name ends in .yaml or .yml\n");
}

/// The files for Prometheus and Grafana.
pub fn monitoring(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus");
    fs::read_to_string(folder.join(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_alerts_ask_for_metrics_that_there_are() {
    let (_server, service, client) = start(&limits("k => 5"), &[]).await;
    assert!(client.admits(&["k=1"]).await);
    let metrics = service.get("/metrics").1;
    for (name, least) in [
        ("ratelimit_redis_pool_cx_active ", 1),
        ("ratelimit_redis_pool_cx_total ", 1),
        ("process_resident_memory_bytes ", 1_000_000),
        ("process_virtual_memory_bytes ", 1_000_000),
        ("process_threads ", 2),
        ("process_open_fds ", 5),
        ("process_max_fds ", 5),
    ] {
        assert!(number(&metrics, name) >= least, "{name}{metrics}");
    }
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}{metrics}")).parse::<f64>().unwrap()
    };
    assert!((0.0..60.0).contains(&value("process_cpu_seconds_total ")));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 300.0..=now + 1.0).contains(&value("process_start_time_seconds ")), "{now} {metrics}");

    // The default of REDIS_TIMEOUT: a decision that ends with it would be drawn as one of a second.
    assert!(metrics.contains("_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.5\"} "), "{metrics}");

    let mut known = HashSet::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        known.insert(line.split(['{', ' ']).next().unwrap());
    }
    let mut asked = HashSet::new();
    for word in monitoring("rules.yml").split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        if word.starts_with("ratelimit_") || word.starts_with("process_") {
            assert!(known.contains(word), "{word} is not in\n{metrics}");
            asked.insert(word.to_owned());
        }
    }
    assert!(asked.len() > 5, "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_debug_log_shows_decisions_and_no_frames() {
    let (_server, service, client) = start(&limits("k => 5"), &[("LOG_LEVEL", "debug")]).await;
    assert!(client.admits(&["k=seen"]).await);
    let log = service.process.log();
    assert!(log.contains("seen") && log.contains("limit_remaining: 4"), "{log}");
    assert!(!log.contains("h2::"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_requests_keep_no_rule_from_having_metrics() {
    let rules = limits("k => 5; v, detailed_metric: true => 9");
    let (_server, service, client) = start(&rules, &[]).await;
    for block in 0..110 {
        let descriptors = (0..100).map(|value| descriptor(&format!("v={block}.{value}"))).collect();
        client.ask(descriptors).await;
    }
    assert!(client.admits(&["k=1"]).await);
    let metrics = service.get("/metrics").1;
    let total = |labels: &str| {
        number(&metrics, &format!("ratelimit_service_rate_limit_total_hits{{domain=\"d\"{labels}}} "))
    };
    assert_eq!((total(",key1=\"v_0.0\""), total(""), total(",key1=\"k\"")), (1, 1_000, 1));
}
