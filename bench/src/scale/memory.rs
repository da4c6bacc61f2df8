//! Millions of limiters: the memory of each, how long the server takes to expire them, and the effect on
//! other clients.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::load::{encode, read_line_ends};
use crate::report::{quantile, thousands};
use crate::scale::{heading, keep};
use crate::server::{Binaries, Cores, Kind, Server};

/// Commands in a pipeline.
const PIPELINE: usize = 1_000;
/// The lines of a reply: the length of the array, and five integers.
const LINES: usize = 6;
/// The time over which the limiters of a run become fully replenished: spread out, like the limiters of many
/// users, or all at the same moment, like calendar windows.
const SPREADS: [Duration; 2] = [Duration::from_secs(30), Duration::ZERO];
/// The number of limiters for an estimate of how long it takes to create them.
const FEW: usize = 200_000;
/// The pause between two calls of the client that measures its waits.
const PAUSE: Duration = Duration::from_millis(1);

/// Measures each number of limiters, and writes a table for each.
pub fn run(binaries: &Binaries, sizes: &[&str]) -> Result<(), Box<dyn Error>> {
    let cores = Cores::choose();
    if let Some(cores) = cores {
        cores.pin_load()?;
    }
    for size in sizes {
        let keys: usize = size.parse().map_err(|_| format!("not a number of limiters: {size}"))?;
        let mut table = format!(
            "{}, {} limiters.\n\n| fully replenished | memory of a limiter | gone after | other clients before, \
             p50 | p99 | meanwhile, p50 | p99 | longest |\n|---|--:|--:|--:|--:|--:|--:|--:|\n",
            heading(binaries)?,
            thousands(keys),
        );
        for spread in SPREADS {
            let row = measure(binaries, cores, keys, spread)?;
            eprintln!("{row}");
            writeln!(table, "{row}")?;
        }
        keep(&format!("memory {keys}"), &table)?;
    }
    Ok(())
}

/// Measures a row of the table.
fn measure(
    binaries: &Binaries,
    cores: Option<Cores>,
    keys: usize,
    spread: Duration,
) -> Result<String, Box<dyn Error>> {
    let server = Server::start(Kind::Module, binaries, cores)?;
    let mut connection = server.connect()?;
    let mut probe = server.stream()?;
    let call = encode("CL.THROTTLE probe 1000000 1000000 1", 0);
    let used = || -> Result<f64, Box<dyn Error>> { Ok(server.info("used_memory")?.parse()?) };

    // All limiters must exist before the first one is replenished. A few show how long creation takes.
    let begun = Instant::now();
    let few = keys.min(FEW);
    create(&mut server.stream()?, few, begun + Duration::from_secs(600), spread)?;
    let needed = begun.elapsed().mul_f64(keys as f64 / few as f64);
    redis::cmd("FLUSHALL").exec(&mut connection)?;
    let before = used()?;
    let begun = Instant::now();
    let due = begun + Duration::from_secs(10) + needed * 2;
    eprintln!("{keys} limiters, {} s ...", spread.as_secs());
    create(&mut server.stream()?, keys, due, spread)?;
    let there: usize = redis::cmd("DBSIZE").query(&mut connection)?;
    if there != keys || Instant::now() > due {
        return Err(format!(
            "{there} of {keys} limiters after {:?}, {:?} planned",
            begun.elapsed(),
            due - begun
        )
        .into());
    }
    let bytes = (used()? - before) / keys as f64;
    let quiet = waits(&mut probe, &call, || Ok(Instant::now() >= due))?;
    // The probe's own limiter also becomes fully replenished from time to time.
    let mut asked = Instant::now();
    let busy = waits(&mut probe, &call, || {
        if asked.elapsed() < Duration::from_millis(100) {
            return Ok(false);
        }
        asked = Instant::now();
        Ok(redis::cmd("DBSIZE").query::<usize>(&mut connection)? <= 1)
    })?;
    let gone = due.elapsed().as_secs_f64();
    let at = |waits: &[f64], q| quantile(waits.iter().copied(), q) / 1e3;
    let how = if spread.is_zero() {
        "at the same moment".to_owned()
    } else {
        format!("over {} s", spread.as_secs())
    };
    Ok(format!(
        "| {how} | {bytes:.0} bytes | {gone:.1} s | {:.0} µs | {:.0} µs | {:.0} µs | {:.0} µs | {:.1} ms |",
        at(&quiet, 0.5),
        at(&quiet, 0.99),
        at(&busy, 0.5),
        at(&busy, 0.99),
        at(&busy, 1.0) / 1e3,
    ))
}

/// Creates limiters that are fully replenished at random moments within `spread` after `due`.
fn create(stream: &mut TcpStream, keys: usize, due: Instant, spread: Duration) -> Result<(), Box<dyn Error>> {
    let mut sent = 0;
    for first in (0..keys).step_by(PIPELINE) {
        // With one unit per millisecond, the quantity is the time.
        let wait = due.saturating_duration_since(Instant::now()).as_millis() as u64;
        let mut pipeline = Vec::with_capacity(PIPELINE * 120);
        for key in first..keys.min(first + PIPELINE) {
            let quantity = wait + fastrand::u64(..=spread.as_millis() as u64);
            write!(
                pipeline,
                "*7\r\n$11\r\nCL.THROTTLE\r\n$16\r\nkey:{key:012}\r\n$10\r\n1000000000\r\n$1\r\n1\r\n$1\r\n1\r\n\
                 ${}\r\n{quantity}\r\n$2\r\nMS\r\n",
                quantity.to_string().len(),
            )?;
        }
        // The server works on one pipeline while the next one is built.
        read_line_ends(stream, sent * LINES)?;
        stream.write_all(&pipeline)?;
        sent = keys.min(first + PIPELINE) - first;
    }
    read_line_ends(stream, sent * LINES)
}

/// Returns the times of calls that are made one after the other, until `over` returns `true`.
fn waits(
    stream: &mut TcpStream,
    call: &[u8],
    mut over: impl FnMut() -> Result<bool, Box<dyn Error>>,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut waits = Vec::new();
    while !over()? {
        let sent = Instant::now();
        stream.write_all(call)?;
        read_line_ends(stream, LINES)?;
        waits.push(sent.elapsed().as_nanos() as f64);
        sleep(PAUSE);
    }
    Ok(waits)
}
