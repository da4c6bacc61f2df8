//! The real Envoy, with requests by HTTP and a real upstream. Its configuration is that of the example, with
//! the same routes, or with others.

use crate::common::{Server, until, wait_until};
use crate::harness::{Process, Service, get, number, until_contains};
use axum::Router;
use axum::extract::Request;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Envoy, the service and the upstream.
pub struct Front {
    service: Service,
    /// Other instances of the service.
    others: Vec<Service>,
    envoy: Process,
    pub port: u16,
    /// The requests that have reached the upstream.
    reached: Arc<AtomicU64>,
    server: Server,
}

pub fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("example").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The configuration of the example, with these routes in place of its own, for the domain `gateway`.
pub fn with_routes(routes: &[String]) -> String {
    let text = example("envoy.yaml").replace("domain: shop", "domain: gateway");
    let (begin, rest) = text.split_once("                      routes:\n").unwrap();
    let (_, end) = rest.split_once("  clusters:\n").unwrap();
    format!("{begin}                      routes:\n{}  clusters:\n{end}", routes.concat())
}

/// A route with a descriptor for each pair: its keys, each of which has its value from the header `x-KEY`,
/// and options. A descriptor of which a header is missing is not sent.
pub fn route(prefix: &str, descriptors: &[(&str, &str)]) -> String {
    let action = |key: &str| format!("{{request_headers: {{header_name: x-{key}, descriptor_key: {key}}}}}");
    let limit = |(keys, options): &(&str, &str)| {
        let actions: Vec<String> = keys.split(',').map(action).collect();
        format!("{{actions: [{}], {options}}}", actions.join(", "))
    };
    let limits: Vec<String> = descriptors.iter().map(limit).collect();
    // Envoy ignores the options of limits that are in the route itself.
    let filter = format!(
        "{{\"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, \
         rate_limits: [{}]}}",
        limits.join(", ")
    );
    format!(
        "                        - match: {{prefix: {prefix}}}\n\
         \x20                         route: {{cluster: upstream}}\n\
         \x20                         typed_per_filter_config: {{envoy.filters.http.ratelimit: {filter}}}\n"
    )
}

/// A server that answers every request: its port, and how many requests there were.
pub async fn upstream() -> (u16, Arc<AtomicU64>) {
    let reached = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reached);
    let upstream = Router::new().fallback(async move |_: Request| {
        counter.fetch_add(1, Ordering::Relaxed);
        "from the upstream"
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, upstream).await.unwrap() });
    (port, reached)
}

/// Envoy with this configuration in front of the instances of a service and an upstream, and its port.
pub fn envoy(mut text: String, grpc_ports: &[u16], upstream_port: u16) -> (Process, u16) {
    let endpoint = text.lines().find(|line| line.contains("address: ratelimit")).unwrap().to_owned();
    let of = |port: &u16| {
        endpoint.replace("ratelimit, port_value: 8081", &format!("127.0.0.1, port_value: {port}"))
    };
    text = text.replace(&endpoint, &grpc_ports.iter().map(of).collect::<Vec<_>>().join("\n"));
    for (name, port, to) in [("upstream", 80, upstream_port), ("0.0.0.0", 8000, 0), ("127.0.0.1", 9901, 0)] {
        let from = format!("address: {name}, port_value: {port}");
        assert!(text.contains(&from), "{from}");
        text = text.replace(&from, &format!("address: 127.0.0.1, port_value: {to}"));
    }
    // The machine may be busy.
    text =
        text.replace("timeout: 0.1s", "timeout: 60s").replace("connect_timeout: 1s", "connect_timeout: 60s");
    let folder = tempfile::Builder::new().prefix("redis-cell-proxy-").tempdir().unwrap();
    let (config, admin) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
    fs::write(&config, text).unwrap();
    let program = std::env::var("REDIS_CELL_PROXY").expect("`make test-apps` sets it");
    let mut command = Command::new(program);
    command.args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"]);
    command.arg("-c").arg(&config).arg("--admin-address-path").arg(&admin);
    let envoy = Process::start(&mut command, folder);
    let port = wait_until("Envoy's listener", || {
        let address = fs::read_to_string(&admin).map_err(|_| envoy.log())?;
        let admin = address.rsplit(':').next().unwrap().parse().map_err(|_| address.clone())?;
        // It is listed before it accepts connections, which waits for the first health checks.
        match get(admin, "/ready", &[]) {
            (200, _) => {}
            (_, text) => return Err(text),
        }
        let listeners = get(admin, "/listeners", &[]).1;
        let line = listeners.lines().find_map(|line| line.strip_prefix("front::127.0.0.1:"));
        line.map(|port| port.trim().parse().unwrap()).ok_or(listeners)
    });
    (envoy, port)
}

impl Front {
    async fn start(rules: &str, settings: &[(&str, &str)]) -> Self {
        Self::of(1, example("envoy.yaml"), rules, settings).await
    }

    /// With this many instances of the service, which Envoy asks in turn.
    async fn of(instances: usize, text: String, rules: &str, settings: &[(&str, &str)]) -> Self {
        let (upstream_port, reached) = upstream().await;
        let server = Server::start();
        let service = Service::with(&server, rules, settings);
        let others: Vec<_> = (1..instances).map(|_| Service::with(&server, rules, settings)).collect();
        let ports: Vec<u16> = std::iter::once(&service).chain(&others).map(Service::grpc_port).collect();
        let (envoy, port) = envoy(text, &ports, upstream_port);
        Self { service, others, envoy, port, reached, server }
    }

    /// The sum of a metric of all instances, which not all of them may have.
    fn sum(&self, name: &str) -> u64 {
        let of = |service: &Service| {
            let metrics = service.get("/metrics").1;
            let value = metrics.lines().find_map(|line| line.strip_prefix(name));
            value.map_or(0, |value| value.trim().parse().unwrap())
        };
        std::iter::once(&self.service).chain(&self.others).map(of).sum()
    }

    /// The status of a request, and the text of the response.
    fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        get(self.port, path, headers)
    }

    /// How many of `requests` with these headers get the status 200. All others get 429.
    fn admitted(&self, requests: usize, path: &str, headers: &[(&str, &str)]) -> usize {
        let statuses: Vec<u16> = (0..requests).map(|_| self.get(path, headers).0).collect();
        assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count()
    }

    /// Sends requests on this many connections at a time, one after the other on each, until `next` says
    /// that there are enough. How many got each of the statuses 200, 429 and others.
    async fn load(
        &self,
        connections: usize,
        path: &'static str,
        next: impl Fn() -> bool + Send + Sync + 'static,
    ) -> [u64; 3] {
        let next = Arc::new(next);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..connections {
            let (port, next) = (self.port, Arc::clone(&next));
            tasks.spawn(async move {
                let mut counts = [0; 3];
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                while next() {
                    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-user: load\r\n\r\n");
                    stream.write_all(request.as_bytes()).await.unwrap();
                    counts[match response(&mut stream).await {
                        200 => 0,
                        429 => 1,
                        _ => 2,
                    }] += 1;
                }
                counts
            });
        }
        let mut sum = [0; 3];
        while let Some(counts) = tasks.join_next().await {
            for (sum, count) in sum.iter_mut().zip(counts.unwrap()) {
                *sum += count;
            }
        }
        sum
    }
}

/// Reads a response to its end, and returns its status.
async fn response(stream: &mut TcpStream) -> u16 {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4_096];
        let length = stream.read(&mut part).await.unwrap();
        assert!(length > 0, "the connection has ended: {}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let header = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let expected: usize = header.map_or(0, |length| length.parse().unwrap());
        if body.len() >= expected {
            return head.split(' ').nth(1).unwrap().parse().unwrap();
        }
    }
}

/// Whether there are more requests: until the flag is set.
fn until_told() -> (Arc<AtomicBool>, impl Fn() -> bool + Send + Sync + 'static) {
    let ends = Arc::new(AtomicBool::new(false));
    (Arc::clone(&ends), move || !ends.load(Ordering::Relaxed))
}

/// Whether there is one more of `count` requests.
fn counted(count: u64) -> impl Fn() -> bool + Send + Sync + 'static {
    let sent = AtomicU64::new(0);
    move || sent.fetch_add(1, Ordering::Relaxed) < count
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_limits_as_it_says() {
    let front = Front::start(&example("config/rules.yaml"), &[("RETRY_AFTER_HEADER", "retry-after")]).await;
    let reached = || front.reached.load(Ordering::Relaxed);
    let (status, text) = front.get("/", &[("x-user", "ann"), ("x-plan", "gold")]);
    assert!(status == 200 && text.contains("x-ratelimit-limit: 100, 100;w=60"), "{text}");
    assert!(
        text.contains("x-ratelimit-remaining: 99\r\n") && text.contains("x-ratelimit-reset: 60\r\n"),
        "{text}"
    );
    // Orders: five at once.
    let statuses: Vec<u16> = (0..8).map(|_| front.get("/orders/1", &[("x-user", "ann")]).0).collect();
    assert_eq!(statuses[..5], [200; 5]);
    assert!(statuses[5..].contains(&429), "{statuses:?}");
    // Refused requests have not been charged to the other limit of the user.
    let admitted = reached();
    let (_, text) = front.get("/", &[("x-user", "ann")]);
    assert!(text.contains(&format!("x-ratelimit-remaining: {}\r\n", 99 - admitted)), "{admitted} {text}");
    // Logins: ten, and then none for a day.
    let before = reached();
    for _ in 0..10 {
        assert_eq!(front.get("/login", &[("x-user", "eve")]).0, 200);
    }
    for _ in 0..3 {
        let (status, text) = front.get("/login", &[("x-user", "eve")]);
        assert!(status == 429 && text.contains("x-reason: too many logins\r\n"), "{text}");
        let wait = text.split("retry-after: ").nth(1).unwrap().split('\r').next().unwrap();
        assert!((86_000..=86_400).contains(&wait.parse::<u64>().unwrap()), "{text}");
    }
    assert_eq!(reached() - before, 10);
    // A request without a descriptor is not limited.
    assert_eq!(front.get("/", &[]).0, 200);
}

const ONE_LIMIT: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1500}}
  - {key: path, value: /orders*, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1200}}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_on_a_thousand_connections_admit_exactly_the_limit() {
    let front = Front::start(ONE_LIMIT, &[]).await;
    let counts = front.load(1_000, "/orders/1", counted(10_000)).await;
    assert_eq!(counts, [1_200, 8_800, 0]);
    assert_eq!(front.reached.load(Ordering::Relaxed), 1_200);
    // The other limit has what was admitted, and nothing else.
    let counts = front.load(100, "/", counted(1_000)).await;
    assert_eq!(counts, [300, 700, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_under_load_lets_nothing_over_the_limit() {
    const LIMIT: u64 = 3_000;
    let rules = ONE_LIMIT.replace("1500", &LIMIT.to_string());
    let settings = [("REDIS_TIMEOUT", "300ms"), ("SERVER_UNAVAILABLE", "closed")];
    let front = Front::start(&rules, &settings).await;
    let (ends, next) = until_told();
    let at_least = |what: &str, least: u64, seen: &dyn Fn() -> u64| {
        tokio::task::block_in_place(|| {
            wait_until(what, || if seen() >= least { Ok(()) } else { Err(seen().to_string()) });
        });
    };
    let without_server =
        || number(&front.service.get("/metrics").1, "ratelimit_service_decided_without_server ");
    let reached = || front.reached.load(Ordering::Relaxed);
    let disturb = async {
        for _ in 0..2 {
            front.server.signal("STOP");
            at_least("decisions without the server", without_server() + 50, &without_server);
            front.server.signal("CONT");
            at_least("decisions of the server", reached() + 100, &reached);
        }
        // Calls that were not answered in time have been charged nevertheless: fewer than the limit get
        // through.
        tokio::task::block_in_place(|| {
            until_contains("x-ratelimit-remaining: 0\r\n", || front.get("/", &[("x-user", "load")]).1);
        });
        ends.store(true, Ordering::Relaxed);
    };
    let (counts, ()) = tokio::join!(front.load(50, "/", next), disturb);
    let [ok, refused, other] = counts;
    assert!(refused > 0 && other == 0, "{counts:?}");
    // Those that the test itself has sent are not in the counts.
    assert!(reached() >= ok && reached() <= LIMIT, "{} {counts:?}", reached());
    assert!(!front.envoy.log().contains("critical"), "{}", front.envoy.log());
}

/// The documented examples of the reference, with other names: the same kinds of rules, and the documented
/// decisions.
const DOCUMENTED: &str = "
domain: gateway
descriptors:
  # To each number five messages of a kind, and eight of any kind.
  - key: kind
    value: marketing
    descriptors:
      - {key: number, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: number, rate_limit: {unit: year, requests_per_unit: 8}}
  # Each address, and one that is banned.
  - {key: address, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: address, value: 50.0.0.5, rate_limit: {unit: year, requests_per_unit: 0}}
  # A descriptor with one entry, and others below the same key.
  - key: foo
    rate_limit: {unit: year, requests_per_unit: 2}
    descriptors:
      - {key: bar, rate_limit: {unit: year, requests_per_unit: 3}}
      - {key: bar, value: banned, rate_limit: {unit: year, requests_per_unit: 0}}
      - {key: baz, rate_limit: {unit: year, requests_per_unit: 1}}
      - {key: baz, value: shady, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
      - {key: bay, rate_limit: {unlimited: true}}
  # A rule that replaces another one.
  - key: first
    value: a
    descriptors:
      - {key: user, rate_limit: {name: narrow, unit: year, requests_per_unit: 5}}
  - key: second
    value: b
    descriptors:
      - {key: user, rate_limit: {replaces: [{name: narrow}], unit: year, requests_per_unit: 10}}
  # Metrics with the values of requests.
  - {key: page, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: page, value: home, rate_limit: {unit: year, requests_per_unit: 4}}
  - key: route
    value_to_metric: true
    descriptors:
      - {key: verb, value: put, rate_limit: {unit: year, requests_per_unit: 2}}
  # Wildcards: with a limiter for each value, and with one for all of them.
  - {key: file, value: own/*, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: file, value: pub/*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: spent, rate_limit: {unit: year, requests_per_unit: 10, overdraft: true}}
";

const SPENT: &str = "ratelimit_service_rate_limit_total_hits{domain=\"gateway\",key1=\"spent\"} ";

async fn documented(instances: usize) -> Front {
    const HITS: &str = "hits_addend: {format: '%REQ(x-hits)%'}";
    const BACK: &str = "hits_addend: {format: '%REQ(x-hits)%', is_negative_hits: true}";
    const DONE: &str = "hits_addend: {format: '%REQ(x-hits)%'}, apply_on_stream_done: true";
    let plain = |prefix, keys: &[&'static str]| {
        let descriptors: Vec<(&str, &str)> = keys.iter().map(|keys| (*keys, "")).collect();
        route(prefix, &descriptors)
    };
    let routes = [
        plain("/messages", &["kind,number", "number"]),
        plain("/address", &["address"]),
        plain("/foo", &["foo"]),
        plain("/both", &["foo,bar", "foo,baz", "foo,bay", "foo,boo"]),
        plain("/replaces", &["first,user", "second,user"]),
        plain("/metrics", &["page", "route,verb"]),
        plain("/file", &["file"]),
        route("/hits", &[("tokens", HITS)]),
        route("/back", &[("tokens", BACK)]),
        route("/stream", &[("spent", "hits_addend: {number: 0}"), ("spent", DONE)]),
    ];
    Front::of(instances, with_routes(&routes), DOCUMENTED, &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_reference_decide_through_envoy_as_it_documents() {
    let front = documented(1).await;
    let admitted = |requests, path, headers: &[(&str, &str)]| front.admitted(requests, path, headers);
    // Nested descriptors, and all of those that a request has.
    assert_eq!(admitted(7, "/messages", &[("x-kind", "marketing"), ("x-number", "1")]), 5);
    assert_eq!(admitted(7, "/messages", &[("x-kind", "marketing"), ("x-number", "2")]), 5);
    // Another kind is not limited by itself; of the eight, refused messages have used none.
    assert_eq!(admitted(7, "/messages", &[("x-kind", "invoice"), ("x-number", "1")]), 3);
    assert_eq!(admitted(9, "/messages", &[("x-number", "3")]), 8);
    // The most specific value.
    assert_eq!(admitted(5, "/address", &[("x-address", "50.0.0.1")]), 3);
    assert_eq!(admitted(5, "/address", &[("x-address", "50.0.0.2")]), 3);
    assert_eq!(admitted(2, "/address", &[("x-address", "50.0.0.5")]), 0);
    // As many entries as levels.
    assert_eq!(admitted(4, "/foo", &[("x-foo", "1")]), 2);
    assert_eq!(admitted(5, "/both", &[("x-foo", "1"), ("x-bar", "1")]), 3);
    assert_eq!(admitted(2, "/both", &[("x-foo", "1"), ("x-bar", "banned")]), 0);
    assert_eq!(admitted(3, "/both", &[("x-foo", "1"), ("x-baz", "1")]), 1);
    assert_eq!(admitted(3, "/both", &[("x-foo", "1"), ("x-baz", "shady")]), 3);
    assert_eq!(admitted(5, "/both", &[("x-foo", "1"), ("x-bay", "1")]), 5);
    assert_eq!(admitted(5, "/both", &[("x-foo", "1"), ("x-boo", "1")]), 5);
    // Ten where the replacing rule applies, which leaves the five of the other one.
    let both = [("x-first", "a"), ("x-second", "b"), ("x-user", "1")];
    assert_eq!(admitted(12, "/replaces", &both), 10);
    assert_eq!(admitted(7, "/replaces", &[both[0], both[2]]), 5);
    assert_eq!(admitted(12, "/replaces", &[both[1], ("x-user", "2")]), 10);
    // Wildcards.
    assert_eq!(admitted(4, "/file", &[("x-file", "own/a")]), 3);
    assert_eq!(admitted(4, "/file", &[("x-file", "own/b")]), 3);
    assert_eq!(admitted(2, "/file", &[("x-file", "pub/a")]), 2);
    assert_eq!(admitted(2, "/file", &[("x-file", "pub/b")]), 1);
    assert_eq!(admitted(4, "/file", &[("x-file", "other/a")]), 4);

    for page in ["one", "one", "one", "two", "home"] {
        admitted(1, "/metrics", &[("x-page", page)]);
    }
    for route in ["books", "films", "films", "films"] {
        admitted(1, "/metrics", &[("x-route", route), ("x-verb", "put")]);
    }
    let counts = r#"
        rate_limit_total_hits{domain="gateway",key1="page_one"} 3
        rate_limit_over_limit{domain="gateway",key1="page_one"} 1
        rate_limit_total_hits{domain="gateway",key1="page_two"} 1
        rate_limit_total_hits{domain="gateway",key1="page_home"} 1
        rate_limit_total_hits{domain="gateway",key1="route_books",key2="verb_put"} 1
        rate_limit_over_limit{domain="gateway",key1="route_films",key2="verb_put"} 1
        rate_limit_shadow_mode{domain="gateway",key1="foo",key2="baz_shady"} 2
        rate_limit_total_hits{domain="gateway",key1="foo",key2="bay"} 5
        rate_limit_total_hits{domain="gateway",key1="file_pub/*"} 4
    "#;
    front.service.assert_counts(counts);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_sends_hits_before_and_after_a_response_and_takes_them_back() {
    let front = documented(2).await; // which charge as one
    let hits = |path, hits| front.get(path, &[("x-tokens", "1"), ("x-hits", hits)]).0;
    // Ten: four, and then seven do not fit, but six do.
    assert_eq!([hits("/hits", "4"), hits("/hits", "7"), hits("/hits", "6")], [200, 429, 200]);
    assert_eq!(hits("/hits", "1"), 429);
    // Hits that are given back can be used again, and no more.
    assert_eq!(hits("/back", "3"), 200);
    assert_eq!([hits("/hits", "4"), hits("/hits", "3"), hits("/hits", "1")], [429, 200, 429]);

    // Hits that are known when the response is complete are charged beyond the limit. The next request is
    // refused.
    let stream = |hits| front.get("/stream", &[("x-spent", "1"), ("x-hits", hits)]).0;
    let charged = |expected: u64| {
        until("the hits of the response", expected, || front.sum(SPENT));
    };
    assert_eq!(stream("6"), 200);
    charged(6);
    assert_eq!(stream("9"), 200);
    charged(15);
    until("a refusal", 429, || stream("0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_under_load_loses_no_request() {
    const LIMIT: u64 = 1_500;
    let front = Front::start(ONE_LIMIT, &[]).await;
    let (ends, next) = until_told();
    let reached = || front.reached.load(Ordering::Relaxed);
    let wait_for = |what: &str, seen: &dyn Fn() -> u64, expected: u64| {
        tokio::task::block_in_place(|| until(what, expected, seen));
    };
    let reload = async {
        for reload in 1..=2 {
            // The same limit, with other rules beside it.
            front.service.write(&format!("{ONE_LIMIT}  - key: new{reload}\n"));
            wait_for("the rules", &|| front.service.loads().0, reload + 1);
        }
        wait_for("the limit to be used up", &reached, LIMIT);
        // Rules with an error change nothing.
        front.service.write(&ONE_LIMIT.replace("requests_per_unit: 1500", "requestsperunit: 9000"));
        wait_for("the error", &|| front.service.loads().1, 1);
        assert_eq!(reached(), LIMIT);
        // A limit that is raised continues with what is used.
        front.service.write(&ONE_LIMIT.replace("1500", "2000"));
        wait_for("the raised limit to be used up", &reached, 2_000);
        ends.store(true, Ordering::Relaxed);
    };
    let (counts, ()) = tokio::join!(front.load(50, "/", next), reload);
    let [ok, refused, other] = counts;
    assert!(ok == 2_000 && refused > 0 && other == 0, "{counts:?}");
    assert_eq!(reached(), 2_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_end_with_their_age_and_an_instance_that_ends_lose_no_request() {
    const LIMIT: u64 = 4_000;
    // A request without a decision would be an error, and not pass.
    let text = example("envoy.yaml").replace("failure_mode_deny: false", "failure_mode_deny: true");
    let rules = ONE_LIMIT.replace("1500", &LIMIT.to_string());
    let settings = [("GRPC_MAX_CONNECTION_AGE", "1s"), ("DRAIN_TIME", "3s")];
    let mut front = Front::of(3, text, &rules, &settings).await;
    let asked = Arc::new(AtomicU64::new(0));
    let (ends, goes_on) = until_told();
    let counts = Arc::clone(&asked);
    let next = move || counts.fetch_add(1, Ordering::Relaxed) < 10_000 || goes_on();
    let mut last = front.others.pop().unwrap();
    let ending = async {
        tokio::task::block_in_place(|| {
            wait_until("the first thousand", || match asked.load(Ordering::Relaxed) {
                1_000.. => Ok(()),
                seen => Err(seen.to_string()),
            });
            // Meanwhile the connections of the other instances end several times.
            last.process.signal("TERM");
            assert!(last.process.wait().success());
        });
        ends.store(true, Ordering::Relaxed);
    };
    let (counts, ()) = tokio::join!(front.load(50, "/", next), ending);
    let [ok, refused, other] = counts;
    assert!(ok == LIMIT && other == 0 && ok + refused >= 10_000, "{counts:?}\n{}", front.envoy.log());
    assert_eq!(front.reached.load(Ordering::Relaxed), LIMIT);
    let admin = fs::read_to_string(front.envoy.folder().join("admin")).unwrap();
    let stats = get(admin.rsplit(':').next().unwrap().parse().unwrap(), "/stats?filter=close_notify", &[]).1;
    let told = number(&stats, "cluster.ratelimit.upstream_cx_close_notify: ");
    assert!(told >= 6, "{told} connections have ended by GOAWAY");
}
