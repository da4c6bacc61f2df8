//! The planner's speed in deciding and reading, on one processor, and its memory: `make bench-plan`.
//!
//! `cargo bench -p cell-plan -- decisions log memory large` chooses the parts:
//!
//! - `decisions`: from memory, by the engine with the names of the keys as bytes, so that finding the key is
//!   part of them. The best of five runs.
//! - `log`: a log of nginx, made in a temporary file first. The best of five runs.
//! - `memory`: the largest memory of a process that reads a log of a million lines, by the number of keys.
//! - `large`: a log of `CELL_PLAN_BENCH_GB` (1) with planted bursts and broken lines, all of which must be
//!   found.

// A tool should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used
)]

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use cell_plan::input::Source;
use cell_plan::plan::{Question, run};
use fastrand::Rng;
use redis_cell_core::Instant;
use redis_cell_lines::format::Hints;
use redis_cell_policy::{Fields, Policy, Replay};
use serde_json::Value;
use tempfile::NamedTempFile;

const CALLS: u64 = 2_000_000;

/// The arguments of a process that reads a log: a policy and a file.
const CHILD: &str = "read";

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if let [CHILD, policy, file] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return child(policy, Path::new(file));
    }
    let mut out = io::stdout();
    for (name, part) in [
        ("decisions", decisions as fn(&mut io::Stdout) -> io::Result<()>),
        ("log", log),
        ("memory", memory),
        ("large", large),
    ] {
        if words.is_empty() || words.iter().any(|word| word == name) {
            part(&mut out)?;
        }
    }
    Ok(())
}

fn decisions(out: &mut io::Stdout) -> io::Result<()> {
    for (keys, policy) in [
        (1_000, "<address> THROTTLE 15 30 60 1"),
        (100_000, "<address> THROTTLE 15 30 60 1"),
        (100_000, "<address> WINDOW 30 60 1"),
        (100_000, "<address> FIXED 1000 DAY 1"),
        (100_000, "<address> LOG 30 60 1"),
        (100_000, "a:<address> THROTTLE 15 30 60 1 b:<address> FIXED 1000 DAY 1"),
    ] {
        // One after the other, as in a log.
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
    Ok(())
}

fn log(out: &mut io::Stdout) -> io::Result<()> {
    let file = NamedTempFile::new()?;
    let mut rng = Rng::with_seed(2);
    let mut writer = BufWriter::new(&file);
    for call in 0..CALLS {
        line(&mut writer, format_args!("10.1.{}.{}", rng.u8(..), rng.u8(..)), call, rng.u16(..))?;
    }
    writer.flush()?;
    let bytes = file.as_file().metadata()?.len();
    for policy in [
        "<address> THROTTLE 15 30 60 1",
        "<address> THROTTLE 15 30 60 1 b:<address> FIXED 9999999 DAY <bytes>",
    ] {
        let seconds = best(|| assert_eq!(run(&question(policy, file.path())).unwrap().log.read, CALLS));
        let (rate, lines) = (bytes as f64 / seconds / 1e6, CALLS as f64 / seconds / 1e6);
        writeln!(out, "{rate:6.0} MB/s of nginx's log, {lines:.2} million lines/s: {policy}")?;
    }
    Ok(())
}

fn memory(out: &mut io::Stdout) -> io::Result<()> {
    for keys in [10_000, 100_000, 1_000_000] {
        let file = NamedTempFile::new()?;
        let mut writer = BufWriter::new(&file);
        for call in 0..1_000_000 {
            let [_, high, middle, low] = u32::try_from(call % keys).unwrap().to_be_bytes();
            line(&mut writer, format_args!("10.{high}.{middle}.{low}"), call, 1)?;
        }
        writer.flush()?;
        for policy in [
            "<address> THROTTLE 15 30 60 1",
            "<address> THROTTLE 15 30 60 1 b:<address> FIXED 9999999 DAY <bytes>",
            "<address> LOG 30 60 1",
        ] {
            let (report, bytes) = in_a_process(policy, file.path());
            assert_eq!(report["policies"][0]["limiters"][0]["keys"], keys);
            writeln!(out, "{:6.1} MB of memory, {keys:>7} keys: {policy}", bytes as f64 / 1e6)?;
        }
    }
    Ok(())
}

/// Clients at random, and every 10,000 lines one that calls 40 times in a second: 16 are admitted. Every
/// 100,000 lines one that cannot be read.
fn large(out: &mut io::Stdout) -> io::Result<()> {
    let gigabytes: u64 = env::var("CELL_PLAN_BENCH_GB").map_or(1, |text| text.parse().unwrap());
    let file = NamedTempFile::new()?;
    let mut rng = Rng::with_seed(3);
    let mut writer = BufWriter::new(&file);
    let (mut calls, mut bursts, mut broken, mut bytes) = (0_u64, 0_u64, 0_u64, 0);
    while bytes < gigabytes * 1_000_000_000 {
        let end = calls + 10_000;
        for call in calls..end {
            line(&mut writer, format_args!("10.1.{}.{}", rng.u8(..), rng.u8(..)), call, rng.u16(..))?;
        }
        calls = end;
        for _ in 0..40 {
            line(&mut writer, format_args!("2001:db8::{bursts:x}"), calls, rng.u16(..))?;
        }
        bursts += 1;
        if bursts.is_multiple_of(10) {
            writeln!(writer, "\u{0}\u{fffd} 10.1.1.1 - - [no time] \"GET")?;
            broken += 1;
        }
        writer.flush()?;
        bytes = file.as_file().metadata()?.len();
    }
    let policy = "<address> THROTTLE 15 30 60 1";
    let (report, memory) = in_a_process(policy, file.path());
    assert_eq!(report["log"]["read"], calls + 40 * bursts);
    assert_eq!(report["log"]["unreadable"], broken);
    assert_eq!(report["policies"][0]["refused"], 24 * bursts);
    assert_eq!(report["policies"][0]["keys"], 65_536 + bursts);
    assert_eq!(report["policies"][0]["keys_refused"], bursts);
    writeln!(
        out,
        "{:6.1} MB of memory, a log of {:.1} GB, {} calls, {} keys, {} refused, {broken} broken lines: {policy}",
        memory as f64 / 1e6,
        bytes as f64 / 1e9,
        calls + 40 * bursts,
        65_536 + bursts,
        24 * bursts
    )
}

/// A line of nginx, 500 of them in a second.
fn line(to: &mut impl Write, address: core::fmt::Arguments, call: u64, bytes: u16) -> io::Result<()> {
    let time = jiff::Timestamp::from_second((1_760_000_000 + call / 500).cast_signed()).unwrap();
    writeln!(
        to,
        "{address} - - [{}] \"GET /api/items/{call}?page=2&sort=name HTTP/1.1\" 200 {bytes} \"https://example.org/shop\" \
         \"Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0\"",
        time.strftime("%d/%b/%Y:%H:%M:%S +0000"),
    )
}

fn question(policy: &str, file: &Path) -> Question {
    Question {
        policies: vec![policy.to_owned()],
        check: None,
        sources: vec![Source::File(file.to_owned())],
        hints: Hints::default(),
        zone: 0,
        top: 10,
    }
}

/// The report of a process that does nothing else, and its largest memory, in bytes.
fn in_a_process(policy: &str, file: &Path) -> (Value, u64) {
    let program = env::current_exe().unwrap();
    let output = Command::new(program).args([CHILD, policy]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn child(policy: &str, file: &Path) -> io::Result<()> {
    let report = run(&question(policy, file)).unwrap();
    let status = fs::read_to_string("/proc/self/status")?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
    serde_json::to_writer(io::stdout(), &(report, kilobytes * 1_024))?;
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
