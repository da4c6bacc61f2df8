//! The ways to fewer calls beside direct calls, over a connection with a round trip of half a millisecond.
//! `make bench-scale` runs it:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --release --example rungs --features aio -- FILE
//! ```

// It ends at the first error.
#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]
// Counts become floating-point numbers for divisions. They are far below 2^53.
#![allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

use redis::aio::MultiplexedConnection;
use redis::{IntoConnectionInfo, io::tcp::TcpSettings};
use redis_cell_client::{
    Answer, Decision, Gcra, Guard, Leased, MTake, Merged, Rate, Refusals, Together, Units, WhenUnavailable,
    ask, call,
};
use std::env::{args, var};
use std::error::Error;
use std::fs::{File, read_link};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// The median round trip of a caller that is alone.
const ROUND_TRIP: Duration = Duration::from_micros(500);
/// How long the proxy holds everything in each direction, in nanoseconds: [`adjust`] sets it.
static TRIP: AtomicU64 = AtomicU64::new(0);
const TIME: Duration = Duration::from_millis(800);
/// How often each way is measured in turns. The round with the median number of decisions is written.
const ROUNDS: usize = 3;
const HOLD: Duration = Duration::from_millis(300);
/// How long an answer may take. It is of no interest here what happens without one.
const PATIENCE: Duration = Duration::from_secs(10);
const AT_ONCE: u64 = 100;
/// The keys of the cases with many keys. Of 100 keys, so many are used up as calls are refused.
const KEYS: u64 = 10_000;
/// The keys of a flood, all of which are used up.
const FLOODED: u64 = 1_000;
const PLENTY: Gcra = Rate::per_second(100_000_000).burst(9_999_999);
const USED_UP: Gcra = Rate::per_day(1).burst(0);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    Refusals,
    Merged,
    Leased,
    Mix,
    MergedMix,
}

/// The last two are for a single key.
const WAYS: [(Way, &str); 6] = [
    (Way::Direct, "direct calls"),
    (Way::Refusals, "remembered refusals"),
    (Way::Merged, "merged calls"),
    (Way::Leased, "leases"),
    (Way::Mix, "direct calls of three limiters"),
    (Way::MergedMix, "merged calls of three limiters"),
];

/// Which calls are made.
#[derive(Clone, Copy)]
struct Case {
    callers: u64,
    keys: u64,
    /// How many of 100 direct calls are refused.
    refused: u64,
    /// The limit of a single key.
    limit: Gcra,
    /// The units of `limit` in a second.
    rate: f64,
}

impl Case {
    /// Returns the smallest batch and the most units that are leased: a small part of the burst.
    const fn batch(self) -> (u64, u64) {
        if self.keys == 1 && self.refused > 0 { (5, AT_ONCE / 5) } else { (100, 1_000) }
    }

    /// Returns the name and the limit of a key.
    fn key(&self, place: u64) -> (u64, Gcra) {
        let key = place % self.keys;
        let of_many = if key % 100 < self.refused { USED_UP } else { PLENTY };
        (key, if self.keys == 1 { self.limit } else { of_many })
    }
}

/// Measures each way with 1, 8 and 64 callers, 1 and 10,000 keys, and limits that refuse 0, 50 and 99 of 100
/// direct calls; also with 128 callers of a key that refuses none, and with a flood of calls for 1,000 keys
/// that are all refused. Writes the numbers to a file.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = args().nth(1).ok_or("usage: rungs FILE")?;
    let direct = connect(&redis::Client::open(var("REDIS_URL")?)?).await?;
    // A call does not wait until the server has acknowledged the one before.
    let settings = TcpSettings::default().set_nodelay(true);
    let slow = format!("redis://{}", slow()?).into_connection_info()?.set_tcp_settings(settings);
    let slow = redis::Client::open(slow)?;
    adjust(&slow).await?;
    let mut raw = File::create(file)?;
    writeln!(
        raw,
        "keys\trefused\tcallers\tway\tdecisions_per_s\tper_core_s\tcalls_per_s\trefused_share\tp50_ms\tp99_ms\tabove\tbound\tunused_share"
    )?;
    let of_keys = |keys| [1, 8, 64].map(|callers| (keys, callers, &[0, 50, 99][..]));
    let (one, many) = (of_keys(1), of_keys(KEYS));
    let mut most = 0.0;
    // The keys of the cases with many keep the server and the clients busy for a while after their end.
    for (keys, callers, refused) in
        one.into_iter().chain([(1, 128, &[0][..])]).chain(many).chain([(FLOODED, 64, &[100][..])])
    {
        for &refused in refused {
            // What is available in a second, of what direct calls ask for.
            let rate = if refused == 0 { 1e8 } else { f64::max(most * (100 - refused) as f64 / 100.0, 1.0) };
            let limit = if refused == 0 { PLENTY } else { Rate::per_second(rate as u64).burst(AT_ONCE - 1) };
            let case = Case { callers, keys, refused, limit, rate: rate.floor() };
            let ways = if keys == 1 { WAYS.len() } else { WAYS.len() - 2 };
            let mut rows = vec![Vec::new(); ways];
            for _ in 0..ROUNDS {
                for ((way, name), own) in WAYS.into_iter().zip(&mut rows) {
                    own.push(measure(&direct, &slow, case, way, name).await?);
                }
            }
            for ((way, name), own) in WAYS.into_iter().zip(&mut rows) {
                own.sort_by(|a, b| a.0.total_cmp(&b.0));
                let (decisions, row) = &own[ROUNDS / 2];
                if refused == 0 && way == Way::Direct {
                    most = *decisions;
                }
                writeln!(raw, "{keys}\t{refused}\t{callers}\t{name}\t{row}")?;
            }
        }
    }
    Ok(())
}

/// Sets the delay of the proxy so that a round trip takes [`ROUND_TRIP`] with what the proxy itself, the
/// client and the server need.
async fn adjust(slow: &redis::Client) -> Result<(), Box<dyn Error>> {
    let mut connection = connect(slow).await?;
    for _ in 0..5 {
        let mut times = Vec::new();
        for _ in 0..1_000 {
            let sent = Instant::now();
            redis::cmd("PING").exec_async(&mut connection).await?;
            times.push(sent.elapsed());
        }
        times.sort_unstable();
        let (trip, median) = (TRIP.load(Ordering::Relaxed), times[times.len() / 2]);
        eprintln!("a round trip of {median:?} with a delay of {trip} ns in each direction");
        let missing = ROUND_TRIP.as_nanos() as i64 - median.as_nanos() as i64;
        TRIP.store(trip.saturating_add_signed(missing / 2), Ordering::Relaxed);
    }
    Ok(())
}

/// On a busy machine, a connection or an answer may take longer than the time that they have by default.
async fn connect(client: &redis::Client) -> redis::RedisResult<MultiplexedConnection> {
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let patient = patient.set_connection_timeout(Some(PATIENCE));
    client.get_multiplexed_async_connection_with_config(&patient).await
}

/// Measures a way in a round. Returns the decisions per second, and the columns from there on.
async fn measure(
    direct: &MultiplexedConnection,
    slow: &redis::Client,
    case: Case,
    way: Way,
    name: &str,
) -> Result<(f64, String), Box<dyn Error>> {
    let mut direct = direct.clone();
    let mut used_up = redis::pipe();
    // Nothing that the way before has left behind is counted as calls of this one.
    used_up.cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes").ignore();
    used_up.cmd("FLUSHALL").ignore();
    for key in (0..case.keys).filter(|&key| case.keys > 1 && key % 100 < case.refused) {
        used_up.add_command(call::throttle(key.to_string(), USED_UP, Units(1))?).ignore();
    }
    used_up.exec_async(&mut direct).await?;
    let before = (calls(&mut direct).await?, core(&mut direct).await?);
    let started = Instant::now();
    let mut run = hammer(slow, case, way).await?;
    let elapsed = started.elapsed().as_secs_f64();
    let (calls, core) = (calls(&mut direct).await? - before.0, core(&mut direct).await? - before.1);
    let mut times = run.times;
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    let is_limited = case.keys == 1 && case.refused > 0;
    let available = AT_ONCE as f64 + elapsed * case.rate;
    let above = match (case.keys, is_limited) {
        (1, true) => (most_beyond(case.rate, &mut run.units) - AT_ONCE as f64).max(0.0),
        (1, false) => 0.0,
        _ => run.beyond as f64,
    };
    let bound = if is_limited && way == Way::Leased {
        (HOLD.as_secs_f64() * case.rate).min(case.batch().1 as f64)
    } else {
        0.0
    };
    if above > bound + 1.0 {
        return Err(format!("{name}: {above} units above the limit, and the bound is {bound}").into());
    }
    if !matches!(way, Way::Refusals | Way::Leased) && calls > times.len() as u64 {
        return Err(format!("{name}: {calls} calls for {} decisions", times.len()).into());
    }
    let all = times.len() as f64;
    let (decisions, per_core, calls) = (all / elapsed, all / core.max(1e-6), calls as f64 / elapsed);
    let (refused, p50, p99) = (run.refused as f64 / all, at(0.5), at(0.99));
    // The share of the available units that was not used, if the limit was reached.
    let unused = ((available - run.units.len() as f64) / available).max(0.0);
    let unused = if is_limited { format!("{unused:.4}") } else { String::new() };
    let row = format!(
        "{decisions:.0}\t{per_core:.0}\t{calls:.0}\t{refused:.4}\t{p50:.4}\t{p99:.4}\t{above:.0}\t{bound:.0}\t{unused}"
    );
    Ok((decisions, row))
}

/// How many calls of this project's commands the server has run.
async fn calls(connection: &mut MultiplexedConnection) -> redis::RedisResult<u64> {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await?;
    let count = |line: &str| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok();
    let ours = info.lines().filter(|line| line.starts_with("cmdstat_cl."));
    Ok(ours.filter_map(count).sum())
}

/// The processor time of the server in seconds.
async fn core(connection: &mut MultiplexedConnection) -> Result<f64, Box<dyn Error>> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(connection).await?;
    let part = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
    let sum = part("used_cpu_user:").zip(part("used_cpu_sys:")).map(|(user, system)| user + system);
    Ok(sum.ok_or("INFO has no processor time")?)
}

/// The largest number of units that were certainly admitted within any stretch of time, beyond what `rate`
/// units a second bring in it. A unit counts for the stretches that contain both of its instants: before the
/// call, and after its decision.
fn most_beyond(rate: f64, units: &mut [(Duration, Duration)]) -> f64 {
    units.sort_unstable_by_key(|&(_, after)| after);
    let mut most = 0_f64;
    for &(begin, _) in units.iter() {
        let inside = units.iter().filter(|&&(before, _)| before >= begin);
        for (earlier, (_, end)) in inside.enumerate() {
            let length = end.as_secs_f64() - begin.as_secs_f64();
            most = most.max(earlier as f64 + 1.0 - length * rate);
        }
    }
    most
}

/// The measurements of the callers of a case.
#[derive(Default)]
struct Run {
    times: Vec<Duration>,
    refused: u64,
    /// The units admitted, of a single key with a limit.
    units: Vec<(Duration, Duration)>,
    /// The units admitted of keys that were used up.
    beyond: u64,
}

/// Lets callers take single units until the time is over.
async fn hammer(slow: &redis::Client, case: Case, way: Way) -> Result<Run, Box<dyn Error>> {
    let connection = connect(slow).await?;
    let mut guard = Guard::new(connection.clone(), WhenUnavailable::FailClosed).timeout(PATIENCE);
    guard = match way {
        Way::Refusals => guard.refusals(Refusals::new(slow)?),
        Way::Merged => guard.merged(),
        _ => guard,
    };
    let merged = Merged::new(connection.clone()).timeout(PATIENCE);
    let (least, most) = case.batch();
    let lease =
        |limit| Leased::new(connection.clone(), limit, least..=most, HOLD).map(|all| all.timeout(PATIENCE));
    let (leases, used_up) = (lease(case.key(case.keys - 1).1)?, lease(USED_UP)?);
    let begun = Instant::now();
    let tasks: Vec<_> = (0..case.callers)
        .map(|caller| {
            let (guard, leases, used_up) = (guard.clone(), leases.clone(), used_up.clone());
            let (merged, connection) = (merged.clone(), connection.clone());
            tokio::spawn(async move {
                let (mut run, mut place) = (Run::default(), caller);
                loop {
                    place =
                        place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (key, limit) = case.key(place >> 33);
                    let key = key.to_string();
                    let before = begun.elapsed();
                    if before >= TIME {
                        return redis::RedisResult::Ok(run);
                    }
                    let admitted = if way == Way::Leased {
                        let leases = if case.keys > 1 && limit == USED_UP { &used_up } else { &leases };
                        leases.take(&key, Units(1)).await? == Decision::Admitted
                    } else if matches!(way, Way::Mix | Way::MergedMix) {
                        let mix = MTake::new()
                            .throttle("{k}:limit", limit, Units(1))
                            .throttle("{k}:second", PLENTY, Units(1))
                            .bucket("{k}:third", Rate::per_second(1_000_000).capacity(10_000_000), Units(1));
                        if way == Way::Mix {
                            let cmd = call::mtake(mix)?;
                            ask::<_, Together<Answer>>(&connection, PATIENCE, &cmd).await?.combined.admitted()
                        } else {
                            merged.mtake(mix).await?.combined.admitted()
                        }
                    } else {
                        let decided = guard.take(&key, limit, Units(1)).await?;
                        decided.error().cloned().map_or(Ok(()), Err)?;
                        decided.admitted()
                    };
                    let after = begun.elapsed();
                    run.times.push(after.saturating_sub(before));
                    run.refused += u64::from(!admitted);
                    if admitted && case.keys == 1 && case.refused > 0 {
                        run.units.push((before, after));
                    }
                    run.beyond += u64::from(admitted && limit == USED_UP);
                    tokio::task::yield_now().await; // a call that does not wait lets no other task run
                }
            })
        })
        .collect();
    let mut run = Run::default();
    for task in tasks {
        let own = task.await??;
        run.times.extend(own.times);
        run.refused += own.refused;
        run.units.extend(own.units);
        run.beyond += own.beyond;
    }
    Ok(run)
}

/// Starts a proxy that holds everything for [`TRIP`] in each direction. Returns its address.
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
        go_first();
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let trip = Duration::from_nanos(TRIP.load(Ordering::Relaxed));
            if sender.send((Instant::now() + trip, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        go_first();
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                return;
            }
        }
    });
}

/// Lets this thread of the proxy run as soon as it is ready, because a network does not wait for a processor.
/// Without the permission to do so, delays vary more.
fn go_first() {
    let Ok(thread) = read_link("/proc/thread-self") else { return };
    let done = Command::new("chrt").args(["--fifo", "--pid", "1"]).args(thread.file_name()).status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("the proxy has no real-time priority: its delays vary more");
    }
}
