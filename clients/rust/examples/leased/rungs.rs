//! Direct calls, merged calls and leases of one key, over a connection with a round trip of half a
//! millisecond.

use crate::count;
use redis::aio::MultiplexedConnection;
use redis_cell_client::{AsyncCellCommands, Gcra, Leased, Merged, Rate, Units};
use std::env::var;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const TRIP: Duration = Duration::from_micros(250);
const TIME: Duration = Duration::from_secs(2);
const HOLD: Duration = Duration::from_millis(300);
const MOST: u64 = 1_000;

#[derive(Clone, Copy)]
enum Way {
    Direct,
    Merged,
    Leased,
}

/// Measures each way with 1, 8 and 64 callers, with none refused and with nearly all refused.
pub async fn run(direct: MultiplexedConnection) -> Result<(), Box<dyn Error>> {
    let slow = redis::Client::open(format!("redis://{}", slow()?))?;
    println!(
        "| requests | callers | way | decisions/s | calls/s | decisions per call | p50 | p99 | above the limit |"
    );
    println!("|---|--:|---|--:|--:|--:|--:|--:|--:|");
    for (name, rate, at_once) in [("none refused", 100_000_000, 10_000_000), ("most refused", 1_000, 100)] {
        let limit = Rate::per_second(rate).burst(at_once - 1);
        for callers in [1, 8, 64] {
            for (way, text) in [
                (Way::Direct, "direct calls".to_owned()),
                (Way::Merged, "merged calls".to_owned()),
                (Way::Leased, format!("leases of at most {}", count(MOST))),
            ] {
                let key = format!("rungs:{name}:{callers}:{text}");
                let connection = slow.get_multiplexed_async_connection().await?;
                let before = crate::calls(&mut direct.clone()).await?;
                let started = Instant::now();
                let (mut times, admitted) = hammer(connection, way, callers, &key, limit).await?;
                let elapsed = started.elapsed().as_secs_f64();
                let calls = crate::calls(&mut direct.clone()).await? - before;
                let bound = (at_once as f64 + elapsed * rate as f64) as u64;
                times.sort_unstable();
                let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
                println!(
                    "| {name} | {callers} | {text} | {} | {} | {} | {:.2} ms | {:.2} ms | {} |",
                    count((times.len() as f64 / elapsed) as u64),
                    count((calls as f64 / elapsed) as u64),
                    count(times.len() as u64 / calls.max(1)),
                    at(0.5),
                    at(0.99),
                    count(admitted.saturating_sub(bound)),
                );
            }
        }
    }
    Ok(())
}

/// Lets callers take units of one key until the time is over. Returns how long each call took, and the number
/// of units admitted.
async fn hammer(
    connection: MultiplexedConnection,
    way: Way,
    callers: u64,
    key: &str,
    limit: Gcra,
) -> Result<(Vec<Duration>, u64), Box<dyn Error>> {
    let merged = Merged::new(connection.clone());
    let leases = Leased::new(connection.clone(), limit, 100..=MOST, HOLD)?;
    let end = Instant::now() + TIME;
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (merged, leases, mut connection) = (merged.clone(), leases.clone(), connection.clone());
            let key = key.to_owned();
            tokio::spawn(async move {
                let (mut times, mut admitted) = (Vec::new(), 0);
                loop {
                    let started = Instant::now();
                    if started >= end {
                        return redis::RedisResult::Ok((times, admitted));
                    }
                    admitted += u64::from(match way {
                        Way::Direct => connection.cl_throttle(&key, limit, Units(1)).await?.admitted(),
                        Way::Merged => merged.take(&key, limit, Units(1)).await?.admitted(),
                        Way::Leased => {
                            tokio::task::yield_now().await; // a call that does not wait lets no other task run
                            leases.take(&key, Units(1)).await? == redis_cell_client::Decision::Admitted
                        }
                    });
                    times.push(started.elapsed());
                }
            })
        })
        .collect();
    let (mut times, mut admitted) = (Vec::new(), 0);
    for task in tasks {
        let (own, units) = task.await??;
        times.extend(own);
        admitted += units;
    }
    leases.give_back().await?;
    Ok((times, admitted))
}

/// Starts a proxy that holds everything for half of the round trip in each direction. Returns its address.
fn slow() -> Result<String, Box<dyn Error>> {
    let url = var("REDIS_URL")?;
    let server = url.trim_start_matches("redis://").trim_end_matches('/').to_owned();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(&server) else { return };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
                to.set_nodelay(true).ok();
                late(from, to);
            }
        }
    });
    Ok(address)
}

/// Copies from one stream to the other, each piece after a pause.
fn late(mut from: TcpStream, mut to: TcpStream) {
    let (sender, pieces) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + TRIP, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                return;
            }
        }
    });
}
