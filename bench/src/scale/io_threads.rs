//! Servers with one and with two I/O threads.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use crate::lines::{Side, admitted};
use crate::load::{Load, PIPELINED, UNPIPELINED};
use crate::report::{now, quantile, thousands, version};
use crate::server::{Binaries, Kind, Server};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(500);
const THREADS: [&str; 2] = ["1", "2"];

static ADMITTED: Side = admitted(Kind::Module);

/// The measurements of a round.
#[derive(Clone, Copy)]
struct Round {
    calls: f64,
    p50: f64,
    p99: f64,
    pipelined: f64,
    main_thread: f64,
    all_threads: f64,
}

/// Measures the servers with the paths `servers`. Nothing is pinned to a core, and rounds alternate between
/// the numbers of threads.
pub fn run(binaries: &Binaries, servers: &[&str]) -> Result<String, Box<dyn Error>> {
    let mut text = format!(
        "{}: {ROUNDS} rounds of {} ms for each line.\n\n| server | `io-threads` | 50 clients, unpipelined: calls/s \
         | p50 | p99 | 4 clients, pipelined: calls/s | processor time of a call, main thread | all threads |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
        now()?,
        ROUND.as_millis()
    );
    for server in servers {
        let binaries = Binaries { server: (*server).to_owned(), ..binaries.clone() };
        let version = version(server)?;
        eprintln!("{version} ...");
        // Newer servers use these threads for reads by default.
        let reads: &[&str] = if version.starts_with("Redis 7") || version.starts_with("Redis 6") {
            &["--io-threads-do-reads", "yes"]
        } else {
            &[]
        };
        let started = THREADS
            .map(|threads| [&["--io-threads", threads], reads].concat())
            .map(|options| Server::start_under(&[], Kind::Module, &binaries, &options));
        let started = started.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut loads = Vec::new();
        for server in &started {
            let unpipelined = Load::prepare(&ADMITTED, server, 0, UNPIPELINED)?;
            loads.push((server, unpipelined, Load::prepare(&ADMITTED, server, 1, PIPELINED)?));
        }
        let mut rounds = vec![Vec::new(); loads.len()];
        for number in 0..=ROUNDS {
            for ((server, unpipelined, pipelined), rounds) in loads.iter_mut().zip(&mut rounds) {
                let round = measure(server, unpipelined, pipelined)?;
                if number > 0 {
                    rounds.push(round);
                }
            }
        }
        for (_, unpipelined, pipelined) in loads {
            unpipelined.finish()?;
            pipelined.finish()?;
        }
        for (threads, rounds) in THREADS.iter().zip(rounds) {
            let median = |of: fn(&Round) -> f64| quantile(rounds.iter().map(of), 0.5);
            writeln!(
                text,
                "| {version} | {threads} | {} | {:.0} µs | {:.0} µs | {} | {:.2} µs | {:.2} µs |",
                thousands(median(|round| round.calls) as usize),
                median(|round| round.p50),
                median(|round| round.p99),
                thousands(median(|round| round.pipelined) as usize),
                median(|round| round.main_thread),
                median(|round| round.all_threads),
            )?;
        }
    }
    Ok(text)
}

fn measure(server: &Server, unpipelined: &mut Load, pipelined: &mut Load) -> Result<Round, Box<dyn Error>> {
    let latencies = unpipelined.latencies(ROUND)?;
    let before = server.cpu_of_all_threads()?;
    let took = pipelined.round(ROUND)?;
    let after = server.cpu_of_all_threads()?;
    let calls = ROUND.as_nanos() as f64 / took.wall;
    Ok(Round {
        calls: latencies.len() as f64 / ROUND.as_secs_f64(),
        p50: quantile(latencies.iter().copied(), 0.5) / 1e3,
        p99: quantile(latencies.iter().copied(), 0.99) / 1e3,
        pipelined: 1e9 / took.wall,
        main_thread: took.cpu / 1e3,
        all_threads: (after - before) / calls / 1e3,
    })
}
