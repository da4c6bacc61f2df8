//! The real Envoy, asked by HTTP, in front of a real upstream. Rules and routes are those of the example.

use crate::common::{Server, wait_until};
use crate::harness::{Process, Service, get, number};
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
struct Front {
    service: Service,
    envoy: Process,
    port: u16,
    /// The requests that have reached the upstream.
    reached: Arc<AtomicU64>,
    server: Server,
}

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("example").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Front {
    async fn start(rules: &str, settings: &[(&str, &str)]) -> Self {
        let reached = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&reached);
        let upstream = Router::new().fallback(async move |_: Request| {
            counter.fetch_add(1, Ordering::Relaxed);
            "from the upstream"
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream_port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, upstream).await.unwrap() });

        let server = Server::start();
        let service = Service::with(&server, rules, settings);
        let grpc_port = service.grpc.rsplit(':').next().unwrap();
        let local = |name: &str, port: &str| (format!("address: {name}, port_value: {port}"), String::new());
        let mut text = example("envoy.yaml");
        for ((from, _), to) in [
            (local("ratelimit", "8081"), grpc_port.to_owned()),
            (local("upstream", "80"), upstream_port.to_string()),
            (local("0.0.0.0", "8000"), "0".to_owned()),
            (local("127.0.0.1", "9901"), "0".to_owned()),
        ] {
            assert!(text.contains(&from), "{from}");
            text = text.replace(&from, &format!("address: 127.0.0.1, port_value: {to}"));
        }
        // The machine may be busy.
        text = text
            .replace("timeout: 0.1s", "timeout: 60s")
            .replace("connect_timeout: 1s", "connect_timeout: 60s");
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
            let listeners = get(admin, "/listeners", &[]).1;
            let line = listeners.lines().find_map(|line| line.strip_prefix("front::127.0.0.1:"));
            line.map(|port| port.trim().parse().unwrap()).ok_or(listeners)
        });
        Self { service, envoy, port, reached, server }
    }

    /// The status of a request, and the text of the response.
    fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        get(self.port, path, headers)
    }

    /// Sends requests on so many connections at the same time, one after the other on each, until `next` says
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
    // What was refused has not been charged to the other limit of the user.
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
    let ends = Arc::new(AtomicBool::new(false));
    let next = {
        let ends = Arc::clone(&ends);
        move || !ends.load(Ordering::Relaxed)
    };
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
            wait_until("the limit to be used up", || {
                let (_, text) = front.get("/", &[("x-user", "load")]);
                if text.contains("x-ratelimit-remaining: 0\r\n") { Ok(()) } else { Err(text) }
            });
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
