//! `make bench-scale`: measures the cost of each kind of limiter, processor time per call and memory per
//! key, and writes the measured tables of `docs/scaling.md` and `bench/scaling.md` into these pages.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::lines::{EXHAUSTED, FOUR_KINDS, REFUSED, Side, THROTTLE, ours, side};
use crate::load::{KEYS, Load, PIPELINED, fill};
use crate::report::{between, machine, now, quantile, thousands, version};
use crate::server::{Binaries, Cores, Server, Setup};

/// The folder for the tables of the parts.
const RESULTS: &str = "target/bench/scale";
/// The pages that contain the tables.
const PAGES: [&str; 2] = ["docs/scaling.md", "bench/scaling.md"];

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(200);

/// The calls, in the order of the table. Keys outlive the run, and the calls of a line are either all
/// admitted or all refused.
static SIDES: [Side; 13] = [
    ours("`CL.THROTTLE`, admitted", THROTTLE, "CL.THROTTLE {a} 1000000 1 1"),
    side("`CL.THROTTLE`, refused", Setup::Module, EXHAUSTED, EXHAUSTED, REFUSED),
    ours("`CL.PEEK`", THROTTLE, "CL.PEEK {a} 1000000 1 1"),
    ours("`CL.RESERVE`", THROTTLE, "CL.RESERVE {a} 1000000 1 1"),
    ours("`CL.FIXED`", "CL.FIXED {a} 1000000 3600", "CL.FIXED {a} 1000000 3600"),
    ours("`CL.WINDOW`", "CL.WINDOW {a} 1000000 3600", "CL.WINDOW {a} 1000000 3600"),
    ours("`CL.BUCKET`", "CL.BUCKET {a} 1000000 1 1 3600", "CL.BUCKET {a} 1000000 1 1"),
    ours("`CL.FUNNEL`", "CL.FUNNEL {a} 1000000 1 1 3600", "CL.FUNNEL {a} 1000000 1 1"),
    ours(
        "`CL.LOG` of 10 to 50 units, admitted (memory: 10)",
        "CL.LOG {a} 1000 36000 10",
        "CL.LOG {a} 1000 36000",
    ),
    side(
        "`CL.LOG` of 100 units, refused",
        Setup::Module,
        "CL.LOG {a} 100 36000 100",
        "CL.LOG {a} 100 36000",
        REFUSED,
    ),
    ours(
        "`CL.ACQUIRE` and `CL.RELEASE`, a pair, one other holder",
        "CL.ACQUIRE {a} 10 36000 first",
        "CL.ACQUIRE {a} 10 36000 holder ; CL.RELEASE {a} holder",
    ),
    side(
        "`CL.MTAKE` of 3 `THROTTLE`",
        Setup::Module,
        THROTTLE,
        "CL.MTAKE {a} THROTTLE 1000000 1 1 1 {b} THROTTLE 1000000 1 1 1 {c} THROTTLE 1000000 1 1 1",
        "*4\r\n*5\r\n:0\r\n",
    ),
    Side { name: "`CL.MTAKE` of 2 `THROTTLE`, `FIXED`, `LEASE`", ..FOUR_KINDS },
];

/// Measures the kinds, prints their table, and writes it to `target/bench/scale`.
pub fn run(binaries: &Binaries) -> Result<(), Box<dyn Error>> {
    let cores = Cores::choose();
    if let Some(cores) = cores {
        cores.pin_load()?;
    }
    let server = Server::start(Setup::Module, binaries, cores)?;
    let mut loads = Vec::new();
    let mut bytes = Vec::new();
    for (database, side) in SIDES.iter().enumerate() {
        eprintln!("{} ...", side.name);
        bytes.push(memory(side, binaries, cores)?);
        loads.push(Load::prepare(side, &server, database, PIPELINED)?);
    }
    let mut took = vec![Vec::new(); loads.len()];
    for round in 0..=ROUNDS {
        let mut order: Vec<usize> = (0..loads.len()).collect();
        fastrand::shuffle(&mut order);
        for place in order {
            let cpu = loads[place].round(ROUND)?.cpu;
            // The first round warms up the caches.
            if round > 0 {
                took[place].push(cpu);
            }
        }
    }
    loads.into_iter().try_for_each(Load::finish)?;
    let mut text = format!(
        "{}: {ROUNDS} rounds of {} ms, {} keys of 16 bytes.\n\n| call | measured: processor time | \
         computed from it: calls/s of one core | measured: memory of a key |\n|---|--:|--:|--:|\n",
        heading(binaries)?,
        ROUND.as_millis(),
        thousands(KEYS),
    );
    let each = |bytes: f64| format!("{} bytes", thousands(bytes.round() as usize));
    for ((side, took), bytes) in SIDES.iter().zip(took).zip(bytes) {
        let nanos = quantile(took.into_iter(), 0.5).round();
        // More digits are not reproducible on a virtual machine.
        let calls = (1e9 / nanos / 1e4).round() * 1e4;
        writeln!(
            text,
            "| {} | {:.2} µs | {} | {} |",
            side.name,
            nanos / 1e3,
            thousands(calls as usize),
            if side.call.starts_with("CL.MTAKE") { "that of its limiters".to_owned() } else { each(bytes) },
        )?;
    }
    print!("{text}");
    fs::create_dir_all(RESULTS)?;
    Ok(fs::write(Path::new(RESULTS).join("kinds.md"), text)?)
}

/// Returns the bytes for each unit of calls that creates a key.
fn memory(side: &Side, binaries: &Binaries, cores: Option<Cores>) -> Result<f64, Box<dyn Error>> {
    let server = Server::start(Setup::Module, binaries, cores)?;
    let used = || -> Result<f64, Box<dyn Error>> { Ok(server.info("used_memory")?.parse()?) };
    let before = used()?;
    fill(&mut server.connect()?, side.prepare, KEYS)?;
    Ok((used()? - before) / KEYS as f64)
}

/// Copies the tables of `target/bench/scale` to the pages, each between the markers with its name.
pub fn publish() -> Result<(), Box<dyn Error>> {
    for page in PAGES {
        let mut text = fs::read_to_string(page)?;
        for file in fs::read_dir(RESULTS)? {
            let file = file?.path();
            // A measurement that was interrupted leaves a file with another extension.
            if file.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let name = file.file_stem().and_then(|name| name.to_str()).ok_or("a file without a name")?;
            let mark = format!("measured: {name}");
            if text.contains(&format!("<!-- {mark} -->")) {
                text = between(&text, &mark, &fs::read_to_string(&file)?)?;
            }
        }
        fs::write(page, text)?;
    }
    Ok(())
}

/// Returns when the table was measured, with which server and module, and on which processor.
fn heading(binaries: &Binaries) -> Result<String, Box<dyn Error>> {
    let about = machine(binaries, None)?;
    let value = |wanted| about.iter().find(|(what, _)| what == wanted).map_or("", |(_, value)| value);
    let processor = value("processor").split(',').next().unwrap_or_default();
    Ok(format!("{}, {}, {processor}, {}", now()?, version(&binaries.server)?, value("module")))
}
