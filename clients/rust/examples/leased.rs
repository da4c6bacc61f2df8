//! Direct calls beside leases of units, on one key. `make bench-scale` runs it.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --release --example leased --features aio -- tasks
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --release --example leased --features aio -- processes 200 10
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --release --example leased --features aio -- rungs FILE
//! ```
//!
//! `tasks` are 50 of one process, on one core. `processes` are so many, each with one connection, for so many
//! seconds: they record when each unit was admitted, and every stretch of time is held against the bound. It
//! ends with an error if one has more units than the bound allows. `rungs` compares with merged calls
//! and remembered refusals as well, over a proxy that makes a round trip last half a millisecond.

// It ends at the first error.
#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]
// Counts become floating-point numbers for divisions. They are far below 2^53.
#![allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

#[path = "leased/processes.rs"]
mod processes;
#[path = "leased/rungs.rs"]
mod rungs;
#[path = "leased/stretches.rs"]
mod stretches;

use redis::aio::MultiplexedConnection;
use redis_cell_client::{AsyncCellCommands, Decision, Gcra, Leased, Rate, Units};
use std::env::{args, var};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TASKS: u64 = 50;
const TIME: Duration = Duration::from_secs(5);
const HOLD: Duration = Duration::from_millis(300);

/// Requests and admissions.
#[derive(Default)]
struct Counts {
    asked: AtomicU64,
    admitted: AtomicU64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = redis::Client::open(var("REDIS_URL")?)?;
    // On a busy machine, an answer may take longer than the half second of a connection by default.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(rungs::PATIENCE));
    let connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
    let arguments: Vec<String> = args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] | ["tasks"] => tasks(connection).await,
        ["rungs", file] => rungs::run(connection, file).await,
        ["processes", count, seconds] => processes::run(connection, count.parse()?, seconds.parse()?).await,
        ["process", way, seconds] => processes::hammer(connection, way.parse()?, seconds.parse()?).await,
        _ => Err("usage: leased tasks, leased rungs FILE, or leased processes COUNT SECONDS".into()),
    }
}

/// Compares direct calls with leases, of tasks of this process.
async fn tasks(mut connection: MultiplexedConnection) -> Result<(), Box<dyn Error>> {
    let limits =
        [("nearly all refused", 10_000, 1_000, 1_000), ("all admitted", 100_000_000, 10_000_000, 10_000)];
    println!("| requests | way | decisions/s | calls/s | decisions per call | admitted | the bound |");
    println!("|---|---|--:|--:|--:|--:|--:|");
    for (name, rate, at_once, most) in limits {
        let limit = Rate::per_second(rate).burst(at_once - 1);
        for leased in [false, true] {
            let key = format!("bench:{leased}:{name}");
            let before = calls(&mut connection).await?;
            let counts = Arc::new(Counts::default());
            let started = Instant::now();
            run(&connection, &key, limit, leased.then_some(most), &counts).await?;
            let elapsed = started.elapsed().as_secs_f64();
            let calls = (calls(&mut connection).await? - before) as f64;
            let asked = counts.asked.load(Relaxed);
            // Leases of one process: at most the units that it holds are added.
            let more = if leased { most } else { 0 };
            let bound = at_once as f64 + elapsed * rate as f64 + more as f64;
            let way =
                if leased { format!("leases of at most {}", count(most)) } else { "direct calls".to_owned() };
            println!(
                "| {name} | {way} | {} | {} | {} | {} | {} |",
                count((asked as f64 / elapsed) as u64),
                count((calls / elapsed) as u64),
                count((asked as f64 / calls) as u64),
                count(counts.admitted.load(Relaxed)),
                count(bound as u64),
            );
        }
    }
    Ok(())
}

/// Lets all tasks take units of one key until the time is over.
async fn run(
    connection: &MultiplexedConnection,
    key: &str,
    limit: Gcra,
    most: Option<u64>,
    counts: &Arc<Counts>,
) -> Result<(), Box<dyn Error>> {
    let leases = Leased::new(connection.clone(), limit, 100..=most.unwrap_or(100), HOLD)?;
    let end = Instant::now() + TIME;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (leases, mut connection) = (leases.clone(), connection.clone());
            let (key, counts) = (key.to_owned(), Arc::clone(counts));
            tokio::spawn(async move {
                let mut round = 0_u64;
                // The clock is looked at now and then, and the other tasks get their turn.
                while !round.is_multiple_of(64) || Instant::now() < end {
                    let admitted = if most.is_some() {
                        if round % 64 == 63 {
                            tokio::task::yield_now().await;
                        }
                        leases.take(&key, Units(1)).await? == Decision::Admitted
                    } else {
                        connection.cl_throttle(&key, limit, Units(1)).await?.admitted()
                    };
                    round += 1;
                    counts.asked.fetch_add(1, Relaxed);
                    counts.admitted.fetch_add(u64::from(admitted), Relaxed);
                }
                redis::RedisResult::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    leases.give_back().await?;
    Ok(())
}

/// How many calls of this project's commands the server has run.
async fn calls(connection: &mut MultiplexedConnection) -> redis::RedisResult<u64> {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await?;
    let count = |line: &str| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok();
    let ours = info.lines().filter(|line| line.starts_with("cmdstat_cl."));
    Ok(ours.filter_map(count).sum())
}

/// The number with commas between groups of three digits.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
