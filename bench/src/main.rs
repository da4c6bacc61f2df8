//! `make bench`: the table of targets, measured on a real server.

// A tool should fail at the first unexpected value. The lints against panics are for code inside a server.
#![allow(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing)]
// Counts become floating-point numbers for divisions. They are far below 2^53.
#![allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

mod curves;
mod decisions;
mod instructions;
mod lines;
mod load;
mod report;
mod results;
mod scale;
mod server;
mod stalls;
mod waiting;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;
use std::{env, fs, slice};

use lines::{AGAINST, LINES, Line, Measure, Side};
use load::{Load, PIPELINED, Shape, UNPIPELINED};
use report::{Compared, Measured, Ratio, Report};
use server::{Binaries, Cores, Server, Setup};

/// The folder for results: one file for each server.
const RESULTS: &str = "target/bench";

fn main() -> Result<(), Box<dyn Error>> {
    let filters: Vec<String> = env::args().skip(1).collect();
    if filters == ["publish"] {
        return publish();
    }
    if filters == ["scale", "publish"] {
        return scale::publish();
    }
    let module =
        |path: OsString| fs::canonicalize(&path).map_err(|error| format!("{}: {error}", path.display()));
    let binaries = Binaries {
        server: env::var("REDIS_CELL_SERVER").unwrap_or_else(|_| "redis-server".to_owned()),
        module: module(
            env::var_os("REDIS_CELL_MODULE").unwrap_or_else(|| "target/release/libredis_cell.so".into()),
        )?,
        peer: env::var_os("PEER").filter(|peer| !peer.is_empty()).map(module).transpose()?,
    };
    match filters.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["instructions", "record"] => return instructions::record(&binaries),
        ["instructions", "check"] => {
            results::Results::read()?.check()?;
            return instructions::check(&binaries);
        }
        ["scale", "kinds"] => return scale::run(&binaries),
        ["waiting", "events"] => return waiting::events(&binaries),
        ["waiting", "memory"] => return waiting::only_memory(&binaries),
        ["waiting"] => return waiting::run(&binaries, number("ROUNDS", 5)? as usize),
        ["curves"] => return curves::run(&binaries, number("ROUNDS", 15)? as usize),
        _ => {}
    }
    let rounds = number("ROUNDS", 15)?;
    let length = Duration::from_millis(number("ROUND_MS", 300)?);
    run(&binaries, &filters, rounds as usize, length)
}

/// Reads a number from the environment.
fn number(name: &str, default: u64) -> Result<u64, Box<dyn Error>> {
    env::var(name).map_or(Ok(default), |text| Ok(text.parse()?))
}

/// Measures the lines whose names contain one of the words, and writes the results to `target/bench`.
fn run(binaries: &Binaries, words: &[String], rounds: usize, length: Duration) -> Result<(), Box<dyn Error>> {
    let cores = Cores::choose();
    if let Some(cores) = cores {
        cores.pin_load()?;
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let lines: Vec<_> = LINES
        .iter()
        .filter(|line| wanted(line.name) && (binaries.peer.is_some() || line.against.server != Setup::Peer))
        .collect();
    let mut servers = HashMap::new();
    for setup in lines.iter().flat_map(|line| line.sides()).map(|side| side.server) {
        if let Entry::Vacant(free) = servers.entry(setup) {
            free.insert(Server::start(setup, binaries, cores)?);
        }
    }
    let bench = Bench { binaries, cores, servers, length };
    let (mut measured, mut failed) = (Vec::new(), Vec::new());
    for line in lines {
        match bench.measure(line, rounds_of(line, rounds)) {
            Ok(rows) => measured.extend(rows),
            Err(error) => failed.push(format!("{}: {error}", line.name)),
        }
    }
    publish_run(&Report {
        server: report::server(binaries)?,
        when: report::now()?,
        machine: report::machine(binaries, cores)?,
        rounds,
        round_ms: length.as_millis() as u64,
        lines: measured,
    })?;
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

/// A high percentile varies more from round to round than a median.
fn rounds_of(line: &Line, rounds: usize) -> usize {
    if line.measure == Measure::Latency { 3 * rounds } else { rounds }
}

/// Prints the table and writes it to `target/bench`.
fn publish_run(report: &Report) -> Result<(), Box<dyn Error>> {
    print!("{}", report::table(report));
    let folder = Path::new(RESULTS);
    fs::create_dir_all(folder)?;
    let file = folder.join(format!("{}.json", report.server));
    fs::write(&file, serde_json::to_string_pretty(report)?)?;
    println!("\nalso in {}", file.display());
    Ok(())
}

/// A run of the benchmark.
struct Bench<'a> {
    binaries: &'a Binaries,
    cores: Option<Cores>,
    servers: HashMap<Setup, Server>,
    /// The length of a round.
    length: Duration,
}

impl Bench<'_> {
    /// Returns the rows of a line: two for latencies, otherwise one.
    fn measure(&self, line: &'static Line, rounds: usize) -> Result<Vec<Measured>, Box<dyn Error>> {
        eprintln!("{} ...", line.name);
        Ok(match line.measure {
            Measure::Speed => {
                let rounds = self.interleave(line, PIPELINED, rounds, |load| load.round(self.length))?;
                let by_wall = |other| Ratio::of(&rounds, other, |took| took.wall);
                let by_cpu = |other| Some(Ratio::of(&rounds, other, |took| took.cpu));
                vec![row(line, "ns", "", by_wall, by_cpu)]
            }
            Measure::Latency => {
                let rounds =
                    self.interleave(line, UNPIPELINED, rounds, |load| load.latencies(self.length))?;
                [(0.5, "µs p50"), (0.99, "µs p99")]
                    .map(|(q, unit)| {
                        let percentile = |all: &Vec<f64>| report::quantile(all.iter().copied(), q) / 1e3;
                        row(
                            line,
                            unit,
                            ", unpipelined",
                            |other| Ratio::of(&rounds, other, percentile),
                            |_| None,
                        )
                    })
                    .into()
            }
            Measure::Memory => {
                let bytes = vec![self.memory(&line.ours)?, self.memory(&line.against)?];
                let ratio = |other| Ratio::of(slice::from_ref(&bytes), other, |&bytes| bytes);
                vec![row(line, "bytes", ", a million keys", ratio, |_| None)]
            }
        })
    }

    /// Measures all sides in every round, after a short round that does not count.
    fn interleave<T>(
        &self,
        line: &'static Line,
        shape: Shape,
        rounds: usize,
        measure: impl Fn(&mut Load) -> Result<T, Box<dyn Error>>,
    ) -> Result<Vec<Vec<T>>, Box<dyn Error>> {
        let mut loads = Vec::new();
        for (database, side) in line.sides().enumerate() {
            loads.push(Load::prepare(side, &self.servers[&side.server], database, shape)?);
        }
        for load in &mut loads {
            measure(load)?;
        }
        let mut all = Vec::new();
        for _ in 0..rounds {
            // The first side in a round may find warmer or colder caches.
            let mut order: Vec<usize> = (0..loads.len()).collect();
            fastrand::shuffle(&mut order);
            let mut round = BTreeMap::new();
            for side in order {
                round.insert(side, measure(&mut loads[side])?);
            }
            all.push(round.into_values().collect());
        }
        loads.into_iter().try_for_each(Load::finish)?;
        Ok(all)
    }

    /// Returns the bytes per key, for a million keys that were called twice.
    fn memory(&self, side: &Side) -> Result<f64, Box<dyn Error>> {
        const KEYS: usize = 1_000_000;
        let server = Server::start(side.server, self.binaries, self.cores)?;
        let used = || -> Result<f64, Box<dyn Error>> { Ok(server.info("used_memory")?.parse()?) };
        let before = used()?;
        let mut connection = server.connect()?;
        load::fill(&mut connection, side.prepare, KEYS)?;
        load::fill(&mut connection, side.call, KEYS)?;
        drop(connection);
        Ok((used()? - before) / KEYS as f64)
    }
}

/// Creates a row of the report. `shape` describes how the module's calls were sent if that is not obvious.
/// `by_wall` and `by_cpu` compare the module's side with another side of the line.
fn row(
    line: &Line,
    unit: &str,
    shape: &str,
    by_wall: impl Fn(usize) -> Ratio,
    by_cpu: impl Fn(usize) -> Option<Ratio>,
) -> Measured {
    let compare = |other| Compared { wall: by_wall(other), cpu: by_cpu(other) };
    Measured {
        name: line.name.to_owned(),
        ours: format!("{}{}{shape}", line.ours.name, line.ours.server.suffix()),
        against: format!("{}{}", line.against.name, line.against.server.suffix()),
        target: line.target,
        unit: unit.to_owned(),
        other: compare(AGAINST),
    }
}

/// Copies the last results to `bench/results.tsv` and to the pages that quote it, and the core's decisions,
/// curves and waiting clients to `docs/benchmarks.md`. Parts without new results do not change.
fn publish() -> Result<(), Box<dyn Error>> {
    const PAGE: &str = "docs/benchmarks.md";
    let mut kept = results::Results::read()?;
    let mut page = fs::read_to_string(PAGE)?;
    for file in fs::read_dir(RESULTS).into_iter().flatten() {
        let file = file?.path();
        let name = file.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        if file.extension().is_none_or(|extension| extension != "json")
            || ["curves", "waiting"].contains(&name)
        {
            continue;
        }
        kept.take(&serde_json::from_str(&fs::read_to_string(&file)?)?);
    }
    if let Some(table) = decisions::markdown()? {
        page = report::between(&page, "decisions", &table)?;
    }
    if let Ok(text) = fs::read_to_string(Path::new(RESULTS).join("curves.json")) {
        let all: curves::Curves = serde_json::from_str(&text)?;
        page = report::between(&page, "curves", &curves::markdown(&all))?;
    }
    if let Ok(text) = fs::read_to_string(Path::new(RESULTS).join("waiting.json")) {
        let all: waiting::Waits = serde_json::from_str(&text)?;
        page = report::between(&page, "waiting", &waiting::markdown(&all))?;
    }
    fs::write(PAGE, page)?;
    kept.write()
}
