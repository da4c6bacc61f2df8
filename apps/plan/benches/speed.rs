//! How fast the planner decides and reads, on one processor: `make bench-plan`.
//!
//! Decisions from memory are those of the engine with the names of the keys as bytes, so that finding the key
//! is part of them. The log of nginx is made in a temporary file first. Times are the best of five runs.

// A tool should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use cell_plan::input::Source;
use cell_plan::plan::{Question, run};
use fastrand::Rng;
use redis_cell_core::Instant;
use redis_cell_lines::format::Hints;
use redis_cell_policy::{Fields, Policy, Replay};

const CALLS: u64 = 2_000_000;

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    for (keys, policy) in [
        (1_000, "<address> THROTTLE 15 30 60 1"),
        (100_000, "<address> THROTTLE 15 30 60 1"),
        (100_000, "<address> WINDOW 30 60 1"),
        (100_000, "<address> FIXED 1000 DAY 1"),
        (100_000, "<address> LOG 30 60 1"),
        (100_000, "a:<address> THROTTLE 15 30 60 1 b:<address> FIXED 1000 DAY 1"),
    ] {
        // One behind the other, as in a log.
        let mut rng = Rng::with_seed(1);
        let calls = (0..CALLS).map(|_| rng.u32(0..keys));
        let names: Vec<[u8; 12]> = calls
            .map(|key| format!("10.{:03}.{:03}.1", key / 256, key % 256).into_bytes())
            .map(|name| name.try_into().unwrap())
            .collect();
        let seconds = best(|| {
            let mut replay = Replay::new([Policy::parse(policy, &mut Fields::default()).unwrap()]);
            let mut refused = 0_u64;
            for (call, name) in (0..CALLS).zip(&names) {
                let now = Instant::from_nanos(1_760_000_000_000_000_000 + call * 100_000).unwrap();
                replay.call(now, &[name]).unwrap();
                refused += replay.decide(0).unwrap().iter().filter(|row| row.refuses()).count() as u64;
            }
            assert!(refused < CALLS);
        });
        writeln!(out, "{:6.2} million decisions/s, {keys:>6} keys: {policy}", CALLS as f64 / seconds / 1e6)?;
    }

    let file = tempfile::NamedTempFile::new()?;
    let mut rng = Rng::with_seed(2);
    let mut writer = BufWriter::new(&file);
    for call in 0..CALLS {
        let time = jiff::Timestamp::from_second((1_760_000_000 + call / 500).cast_signed()).unwrap();
        writeln!(
            writer,
            "10.1.{}.{} - - [{}] \"GET /api/items/{call}?page=2&sort=name HTTP/1.1\" 200 {} \"https://example.org/shop\" \
             \"Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0\"",
            rng.u8(..),
            rng.u8(..),
            time.strftime("%d/%b/%Y:%H:%M:%S +0000"),
            rng.u16(..)
        )?;
    }
    writer.flush()?;
    let bytes = file.as_file().metadata()?.len();
    for policy in [
        "<address> THROTTLE 15 30 60 1",
        "<address> THROTTLE 15 30 60 1 b:<address> FIXED 9999999 DAY <bytes>",
    ] {
        let question = Question {
            policies: vec![policy.to_owned()],
            check: None,
            sources: vec![Source::File(PathBuf::from(file.path()))],
            hints: Hints::default(),
            zone: 0,
            top: 10,
        };
        let seconds = best(|| assert_eq!(run(&question).unwrap().log.read, CALLS));
        let (rate, lines) = (bytes as f64 / seconds / 1e6, CALLS as f64 / seconds / 1e6);
        writeln!(out, "{rate:6.0} MB/s of nginx's log, {lines:.2} million lines/s: {policy}")?;
    }
    Ok(())
}

/// The shortest of five runs, in seconds of the processor: others may use the machine, too.
fn best(mut work: impl FnMut()) -> f64 {
    let runs = (0..5).map(|_| {
        let start = processor_seconds();
        work();
        processor_seconds() - start
    });
    runs.fold(f64::INFINITY, f64::min)
}

/// How long this thread has run so far.
fn processor_seconds() -> f64 {
    let times = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanos: u64 = times.split(' ').next().unwrap().parse().unwrap();
    nanos as f64 / 1e9
}
