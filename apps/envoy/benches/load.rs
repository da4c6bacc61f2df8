//! What the service adds to Envoy: latency at a fixed rate of arrivals, requests for a second of processor
//! time, memory with a million keys. `make bench-envoy` runs it.
//!
//! Arguments, in this order: arrivals a second (5,000), seconds of a round (10), rounds (5), keys
//! (1,000,000). With `LIMITADOR=limitador-server`, the same for that program, with its counters in a server
//! and in its memory.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

#[path = "../../../tests/common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)]
mod common;
#[path = "../tests/service/config.rs"]
#[allow(dead_code, unused_imports)]
mod config;
#[path = "../tests/service/harness.rs"]
#[allow(dead_code, unused_imports)]
mod harness;
#[path = "../tests/service/proxy.rs"]
#[allow(dead_code, unused_imports)]
mod proxy;

use crate::common::Server;
use crate::harness::{Process, Service, descriptor};
use crate::proxy::{envoy, route, upstream, with_routes};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Connections of the load. More than are ever busy at once.
const CONNECTIONS: usize = 64;

/// Limits that refuse nothing, so that all requests cost the same.
const RULES: &str = "
domain: gateway
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 4000000000}}
  - {key: c, rate_limit: {unit: month, requests_per_unit: 4000000000}}
  - {key: d, rate_limit: {unit: second, requests_per_unit: 1000000000, algorithm: gcra}}
  - {key: e, rate_limit: {unit: minute, requests_per_unit: 1000000000, algorithm: bucket}}
";

const ALL: [&str; 5] = ["a", "b", "c", "d", "e"];

#[tokio::main]
async fn main() {
    // cargo adds `--bench`.
    let numbers = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let numbers: Vec<u64> = numbers.map(|word| word.parse().expect("a number")).collect();
    let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let (rate, seconds, rounds) = (number(0, 5_000), number(1, 10), number(2, 5));
    added_latency(rate, Duration::from_secs(seconds), rounds).await;
    throughput(Duration::from_secs(seconds), rounds).await;
    memory(number(3, 1_000_000)).await;
}

/// A rate limit service with its server.
struct Limiter {
    name: &'static str,
    process: Process,
    grpc_port: u16,
    server: Server,
}

impl Limiter {
    /// The service of this folder, and limitador if there is one, each with a server of its own.
    fn all() -> Vec<Self> {
        let server = Server::start();
        let service = Service::start(&server, RULES);
        let grpc_port = service.grpc_port();
        let mut all = vec![Self { name: "redis-cell-envoy", process: service.process, grpc_port, server }];
        if let Ok(program) = std::env::var("LIMITADOR") {
            for (name, storage) in [("limitador, Redis", "redis"), ("limitador, memory", "memory")] {
                let server = Server::start();
                let folder = tempfile::tempdir().unwrap();
                let file = folder.path().join("limits.yaml");
                fs::write(&file, limits()).unwrap();
                let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
                let (grpc_port, http_port) = (free(), free());
                let mut command = Command::new(&program);
                command.args(["--rls-ip", "127.0.0.1", "--rls-port", &grpc_port.to_string()]);
                command.args(["--http-ip", "127.0.0.1", "--http-port", &http_port.to_string()]);
                command.arg(&file).arg(storage);
                if storage == "redis" {
                    command.arg(format!("redis://127.0.0.1:{}", server.port()));
                }
                all.push(Self { name, process: Process::start(&mut command, folder), grpc_port, server });
            }
        }
        all
    }

    /// The number of the server's process.
    fn server_process(&self) -> u32 {
        let text = self.server.connect().text("INFO server");
        text.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim().parse().unwrap()
    }
}

/// The limits of limitador that are those of the rules: a counter for each descriptor of a request.
fn limits() -> String {
    let limit = |(index, seconds): (usize, u64)| {
        let entry = format!("descriptors[{index}]['{}']", ALL[index]);
        format!(
            "- {{namespace: gateway, max_value: 4000000000, seconds: {seconds}, conditions: [\"{index} < \
             size(descriptors)\"], variables: [\"{entry}\"]}}\n"
        )
    };
    [3_600, 86_400, 2_592_000, 1, 60].into_iter().enumerate().map(limit).collect()
}

/// Envoy alone, and with one and five descriptors, in turns.
async fn added_latency(rate: u64, time: Duration, rounds: u64) {
    let of_all: Vec<(&str, &str)> = ALL.iter().map(|key| (*key, "")).collect();
    let routes = [route("/one", &of_all[..1]), route("/five", &of_all), route("/", &[])];
    let limiters = Limiter::all();
    let (upstream_port, _) = upstream().await;
    let fronts: Vec<_> = limiters
        .iter()
        .map(|limiter| envoy(with_routes(&routes), &[limiter.grpc_port], upstream_port))
        .collect();
    let mut paths = vec![("Envoy alone".to_owned(), fronts[0].1, "/none")];
    for (limiter, (_, port)) in limiters.iter().zip(&fronts) {
        for (path, what) in [("/one", "one descriptor"), ("/five", "five descriptors")] {
            paths.push((format!("{}, {what}", limiter.name), *port, path));
        }
    }
    println!("## {rate} arrivals a second, {rounds} rounds of {} s; ms\n", time.as_secs());
    println!("| | p50 | p99 | p99.9 | p99 of the rounds |\n|---|---|---|---|---|");
    let mut seen: Vec<Vec<[f64; 3]>> = vec![Vec::new(); paths.len()];
    // What is loaded and connected the first time is not counted.
    for round in 0..=rounds {
        for ((_, port, path), seen) in paths.iter().zip(&mut seen) {
            let (port, path, time) = (*port, *path, if round == 0 { time / 5 } else { time });
            let mut latencies =
                tokio::task::spawn_blocking(move || arrivals(port, path, rate, time)).await.unwrap();
            latencies.sort_unstable();
            let at = |share: f64| {
                let index = (latencies.len() as f64 * share) as usize;
                latencies[index.min(latencies.len() - 1)].as_secs_f64() * 1_000.0
            };
            if round > 0 {
                seen.push([at(0.5), at(0.99), at(0.999)]);
            }
        }
    }
    let medians: Vec<[f64; 3]> = seen
        .iter()
        .map(|rounds| [0, 1, 2].map(|column| median(rounds.iter().map(|row| row[column]))))
        .collect();
    for (index, (name, ..)) in paths.iter().enumerate() {
        let [p50, p99, p999] = medians[index];
        let rounds: Vec<String> = seen[index].iter().map(|row| format!("{:.2}", row[1])).collect();
        println!("| {name} | {p50:.2} | {p99:.2} | {p999:.2} | {} |", rounds.join(", "));
        if index > 0 {
            let [a, b, c] = [0, 1, 2].map(|column| medians[index][column] - medians[0][column]);
            println!("| added | {a:.2} | {b:.2} | {c:.2} | |");
        }
    }
    println!();
}

/// The times from when each request is due until its response is there. A request is sent when it is due,
/// whether the ones before it are answered or not.
fn arrivals(port: u16, path: &'static str, rate: u64, time: Duration) -> Vec<Duration> {
    let (due, queue) = mpsc::channel::<Instant>();
    let queue = Arc::new(Mutex::new(queue));
    let connections: Vec<_> = (0..CONNECTIONS)
        .map(|connection| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let headers = ALL.map(|key| format!("x-{key}: {connection}\r\n")).concat();
                let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                stream.set_nodelay(true).unwrap();
                let mut latencies = Vec::new();
                loop {
                    let next = queue.lock().unwrap().recv();
                    let Ok(due) = next else { return latencies };
                    stream.write_all(request.as_bytes()).unwrap();
                    assert_eq!(response(&mut stream), "200");
                    latencies.push(due.elapsed());
                }
            })
        })
        .collect();
    let begin = Instant::now();
    let count = rate * time.as_secs().max(1);
    for index in 0..count {
        let instant = begin + Duration::from_nanos(index * 1_000_000_000 / rate);
        thread::sleep(instant.saturating_duration_since(Instant::now()));
        due.send(instant).unwrap();
    }
    drop(due);
    connections.into_iter().flat_map(|connection| connection.join().unwrap()).collect()
}

/// Reads a response to its end, and returns its status.
fn response(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4_096];
        let length = stream.read(&mut part).unwrap();
        assert!(length > 0, "the connection has ended");
        bytes.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return head.split(' ').nth(1).unwrap().to_owned();
            }
        }
    }
}

/// Requests by gRPC, as many as there can be, and the processor time of the service and of the server for
/// them.
async fn throughput(time: Duration, rounds: u64) {
    println!("## Requests by gRPC for a second of one processor, medians of {rounds} rounds\n");
    println!("| | the service | the server | both | requests a second here |\n|---|---|---|---|---|");
    for limiter in Limiter::all() {
        for (name, keys) in [("one descriptor", &ALL[..1]), ("five descriptors", &ALL[..])] {
            let mut rows = Vec::new();
            for _ in 0..rounds {
                rows.push(requests(&limiter, keys, time).await);
            }
            let [service, server, both, here] =
                [0, 1, 2, 3].map(|column| median(rows.iter().map(|row| row[column])));
            println!("| {}, {name} | {service:.0} | {server:.0} | {both:.0} | {here:.0} |", limiter.name);
        }
    }
    println!();
}

/// Requests for this time, by the processor time of the service, of the server and of both, and by the clock.
async fn requests(limiter: &Limiter, keys: &[&str], time: Duration) -> [f64; 4] {
    let processes = [limiter.process.id(), limiter.server_process()];
    let (begin, sent) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let before = processes.map(processor_time);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..CONNECTIONS {
        let (client, sent) = (
            Service::client_at(&format!("127.0.0.1:{}", limiter.grpc_port)).await.of("gateway"),
            Arc::clone(&sent),
        );
        let descriptors: Vec<String> = keys.iter().map(|key| format!("{key}={task}")).collect();
        tasks.spawn(async move {
            while begin.elapsed() < time {
                let response = client.ask(descriptors.iter().map(|text| descriptor(text)).collect());
                assert!(harness::is_ok(&response.await));
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tasks.join_all().await;
    let sent = sent.load(Ordering::Relaxed) as f64;
    let used = [0, 1].map(|which| processor_time(processes[which]).saturating_sub(before[which]));
    let [service, server] = used.map(|used| used.as_secs_f64());
    [service, server, service + server, begin.elapsed().as_secs_f64()].map(|seconds| sent / seconds)
}

/// One request of each of so many users.
async fn memory(keys: u64) {
    let server = Server::start();
    let service = Service::start(&server, RULES);
    let mut admin = server.connect();
    let used = |text: &str| -> u64 {
        text.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap()
    };
    let empty = used(&admin.text("INFO memory"));
    println!("## Memory\n\n| keys | the service, MB | the server, bytes a key |\n|---|---|---|");
    let (next, mut end) = (Arc::new(AtomicU64::new(0)), 1_000.min(keys));
    loop {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (client, next) = (service.client().await.of("gateway"), Arc::clone(&next));
            tasks.spawn(async move {
                loop {
                    let user = next.fetch_add(1, Ordering::Relaxed);
                    if user >= end {
                        return;
                    }
                    client.ask(vec![descriptor(&format!("a={user}"))]).await;
                }
            });
        }
        tasks.join_all().await;
        let bytes = (used(&admin.text("INFO memory")) - empty) / end;
        println!("| {end} | {:.1} | {bytes} |", resident(service.process.id()) as f64 / 1024.0);
        if end == keys {
            return;
        }
        next.store(end, Ordering::Relaxed);
        end = keys.min(end * 10);
    }
}

/// The time for which a process has used processors: the fields 14 and 15 of its line, in hundredths of a
/// second.
fn processor_time(process: u32) -> Duration {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = line.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<u64>().unwrap();
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}

/// The memory of a process that is in use, in kB.
fn resident(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
