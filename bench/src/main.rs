//! `make bench`: the table of targets, measured on a real server.

// A tool that meets the unexpected should end, loudly; the rules against that are for code inside a server.
#![allow(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing)]
// Counts become floating-point numbers to be divided; none of them comes near 2^53.
#![allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

mod chart;
mod curves;
mod decisions;
mod instructions;
mod lines;
mod load;
mod report;
mod server;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use indicatif::{ProgressBar, ProgressStyle};

use lines::{LINES, Line, Measure, Side};
use load::{Load, PIPELINED, Shape, UNPIPELINED};
use report::{Measured, Ratio, Report};
use server::{Binaries, Cores, Kind, Server, compile, output};

fn main() -> Result<(), Box<dyn Error>> {
    let filters: Vec<String> = env::args().skip(1).collect();
    if filters == ["publish"] {
        return publish();
    }
    let module =
        |path: OsString| fs::canonicalize(&path).map_err(|error| format!("{}: {error}", path.display()));
    let folder = tempfile::Builder::new().prefix("redis-cell-bench-").tempdir()?;
    let binaries = Binaries {
        floor: compile(include_str!("floor.c"), folder.path(), "floor")?,
        server: env::var("REDIS_CELL_SERVER").unwrap_or_else(|_| "redis-server".to_owned()),
        module: module(
            env::var_os("REDIS_CELL_MODULE").unwrap_or_else(|| "target/release/libredis_cell.so".into()),
        )?,
        peer: env::var_os("PEER").filter(|peer| !peer.is_empty()).map(module).transpose()?,
    };
    match filters.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["instructions", "record"] => return instructions::record(&binaries),
        ["instructions", "check"] => return instructions::check(&binaries),
        ["curves"] => return curves::run(&binaries, number("ROUNDS", 15)? as usize),
        _ => {}
    }
    let rounds = number("ROUNDS", 15)?;
    let length = Duration::from_millis(number("ROUND_MS", 300)?);
    run(&binaries, &filters, rounds as usize, length)
}

/// A number from the environment.
fn number(name: &str, default: u64) -> Result<u64, Box<dyn Error>> {
    env::var(name).map_or(Ok(default), |text| Ok(text.parse()?))
}

/// Measures the lines whose name contains one of the words, and leaves what it found in `target/bench`.
fn run(binaries: &Binaries, words: &[String], rounds: usize, length: Duration) -> Result<(), Box<dyn Error>> {
    let cores = Cores::choose();
    if let Some(cores) = cores {
        cores.pin_load()?;
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let lines: Vec<_> = LINES
        .iter()
        .filter(|line| wanted(line.name) && (binaries.peer.is_some() || line.against.server != Kind::Peer))
        .collect();
    let mut servers = HashMap::new();
    for kind in lines.iter().flat_map(|line| [line.ours.server, line.against.server]) {
        if let Entry::Vacant(free) = servers.entry(kind) {
            free.insert(Server::start(kind, binaries, cores)?);
        }
    }
    // A percentile so far out scatters more than a median of a hundred thousand calls.
    let rounds_of = |line: &Line| if line.measure == Measure::Latency { 3 * rounds } else { rounds };
    let bar = ProgressBar::new(lines.iter().map(|line| rounds_of(line) as u64).sum());
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos:>3}/{len} {eta:>4} left  {msg}")?);
    let mut measured = Vec::new();
    for line in lines {
        bar.set_message(line.name);
        // Where there is no terminal, a line each.
        if bar.is_hidden() {
            eprintln!("{} ...", line.name);
        }
        let row = |unit: &str, ours: &str, wall, cpu| Measured {
            name: line.name.to_owned(),
            ours: format!("{}{}{ours}", line.ours.name, line.ours.server.suffix()),
            against: format!("{}{}", line.against.name, line.against.server.suffix()),
            target: line.target,
            unit: unit.to_owned(),
            wall,
            cpu,
        };
        let (ours, against) = (&servers[&line.ours.server], &servers[&line.against.server]);
        let rounds = rounds_of(line);
        match line.measure {
            Measure::Speed => {
                let took =
                    interleave(line, [ours, against], PIPELINED, rounds, &bar, |load| load.round(length))?;
                let cpu = Ratio::of(&took, |took| took.cpu);
                measured.push(row("ns", "", Ratio::of(&took, |took| took.wall), Some(cpu)));
            }
            Measure::Latency => {
                let took = interleave(line, [ours, against], UNPIPELINED, rounds, &bar, |load| {
                    load.latencies(length)
                })?;
                for (q, name) in [(0.5, "µs p50"), (0.99, "µs p99")] {
                    let ratio = Ratio::of(&took, |all| report::quantile(all.iter().copied(), q) / 1e3);
                    measured.push(row(name, ", unpipelined", ratio, None));
                }
            }
            Measure::Memory => {
                let bytes = (memory(&line.ours, binaries, cores)?, memory(&line.against, binaries, cores)?);
                measured.push(row("bytes", ", a million keys", Ratio::of(&[bytes], |&bytes| bytes), None));
                bar.inc(rounds as u64);
            }
        }
    }
    bar.finish_and_clear();
    let report = Report {
        when: now()?,
        machine: machine(binaries, cores)?,
        rounds,
        round_ms: length.as_millis() as u64,
        lines: measured,
    };
    print!("{}", report::table(&report));
    let folder = Path::new("target/bench");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("latest.json"), serde_json::to_string_pretty(&report)?)?;
    chart::draw(&report, &folder.join("bench.svg"))?;
    println!("\nalso in target/bench: latest.json, bench.svg");
    Ok(())
}

/// Measures both sides in every round, after a short one that does not count.
fn interleave<T>(
    line: &'static Line,
    [ours, against]: [&Server; 2],
    shape: Shape,
    rounds: usize,
    bar: &ProgressBar,
    measure: impl Fn(&mut Load) -> Result<T, Box<dyn Error>>,
) -> Result<Vec<(T, T)>, Box<dyn Error>> {
    let mut ours = Load::prepare(&line.ours, ours, 0, shape)?;
    let mut against = Load::prepare(&line.against, against, 1, shape)?;
    measure(&mut ours)?;
    measure(&mut against)?;
    let mut took = Vec::new();
    for _ in 0..rounds {
        // Whoever goes first may have it warmer, or colder.
        let first = if fastrand::bool() { Some(measure(&mut against)?) } else { None };
        let mine = measure(&mut ours)?;
        took.push((mine, first.map_or_else(|| measure(&mut against), Ok)?));
        bar.inc(1);
    }
    ours.finish()?;
    against.finish()?;
    Ok(took)
}

/// Bytes per key, of a million keys that have been called twice.
fn memory(side: &Side, binaries: &Binaries, cores: Option<Cores>) -> Result<f64, Box<dyn Error>> {
    const KEYS: usize = 1_000_000;
    let server = Server::start(side.server, binaries, cores)?;
    let used = || -> Result<f64, Box<dyn Error>> { Ok(server.info("used_memory")?.parse()?) };
    let before = used()?;
    let mut connection = server.connect()?;
    load::fill(&mut connection, side.prepare, KEYS)?;
    load::fill(&mut connection, side.call, KEYS)?;
    drop(connection);
    Ok((used()? - before) / KEYS as f64)
}

/// What the figures depend on.
fn machine(binaries: &Binaries, cores: Option<Cores>) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let pinned = cores.map_or("nothing pinned".to_owned(), |cores| {
        format!("server on core {}, load on core {}", cores.server, cores.load)
    });
    let mut rows = vec![
        ("processor", format!("{}, {pinned}", model.map_or("unknown", |(_, model)| model))),
        ("system", output(Command::new("uname").args(["-srm"]))?),
        ("server", output(Command::new(&binaries.server).arg("--version"))?),
        (
            "module",
            format!("commit {}", output(Command::new("git").args(["describe", "--always", "--dirty"]))?),
        ),
        ("compiler", output(Command::new("rustc").arg("--version"))?),
    ];
    if binaries.peer.is_some() {
        rows.push(("peer", "the module named in PEER".to_owned()));
    }
    Ok(rows.into_iter().map(|(what, value)| (what.to_owned(), value)).collect())
}

/// The date of a run.
fn now() -> Result<String, Box<dyn Error>> {
    output(Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"]))
}

/// Puts what was measured last into `docs/benchmarks.md`, each part between its marks. What was not measured stays.
fn publish() -> Result<(), Box<dyn Error>> {
    const PAGE: &str = "docs/benchmarks.md";
    let mut page = fs::read_to_string(PAGE)?;
    if let Ok(text) = fs::read_to_string("target/bench/latest.json") {
        let report: Report = serde_json::from_str(&text)?;
        chart::draw(&report, Path::new("docs/plots/bench.svg"))?;
        page = between(&page, "measured", &report::markdown(&report))?;
    }
    if let Some(table) = decisions::markdown()? {
        page = between(&page, "decisions", &table)?;
    }
    if let Ok(text) = fs::read_to_string("target/bench/curves.json") {
        let all: curves::Curves = serde_json::from_str(&text)?;
        curves::draw(&all, Path::new("docs/plots/curves.svg"))?;
        page = between(&page, "curves", &curves::markdown(&all))?;
    }
    Ok(fs::write(PAGE, page)?)
}

/// The page with another text between the marks of this name.
fn between(page: &str, name: &str, text: &str) -> Result<String, Box<dyn Error>> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let lost = || format!("the page has lost the marks of {name:?}");
    let (head, rest) = page.split_once(&begin).ok_or_else(lost)?;
    let (_, tail) = rest.split_once(&end).ok_or_else(lost)?;
    Ok(format!("{head}{begin}{text}{end}{tail}"))
}
