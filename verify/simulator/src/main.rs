//! `simulate`: histories from seeds, or from files.
//!
//! ```text
//! simulate [--seeds FROM COUNT]... [--steps N] [--clients N] [--jobs N] [--trace] [--file HISTORY]... MODULE
//! ```
//!
//! `--server VERSION` skips the seeds of other servers.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;

use redis_cell_simulator::boundary::{self, Module};
use redis_cell_simulator::history::History;
use redis_cell_simulator::run::{self, Source};
use redis_cell_simulator::writer::{REAL, Writer};

#[global_allocator]
static MEMORY: boundary::Memory = boundary::Memory;

struct Options {
    module: String,
    /// The first seeds of ranges, and how many each has.
    seeds: Vec<(u64, u64)>,
    /// The version of the server whose seeds are run; without it, all seeds are.
    server: Option<String>,
    steps: u32,
    clients: u64,
    jobs: usize,
    trace: bool,
    shrinks: bool,
    /// Whether the first seed that fails is the last one.
    stops: bool,
    /// The number of a history that a real server can follow, of which a transcript is printed, and the
    /// version of that server.
    real: Option<(u64, String)>,
    /// Whether that server has another module.
    beside: bool,
    files: Vec<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        module: String::new(),
        seeds: vec![],
        server: None,
        steps: 400,
        clients: 0,
        jobs: 2,
        trace: false,
        shrinks: true,
        stops: false,
        real: None,
        beside: false,
        files: vec![],
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|arg| arg.parse().ok()).ok_or(format!("{arg} needs a number"));
        match arg.as_str() {
            "--seeds" => options.seeds.push((number()?, number()?)),
            "--steps" => options.steps = number()? as u32,
            "--clients" => options.clients = number()?,
            "--jobs" => options.jobs = number()? as usize,
            "--trace" => options.trace = true,
            "--no-shrink" => options.shrinks = false,
            "--first" => options.stops = true,
            "--real" => {
                options.real = Some((number()?, args.next().ok_or("--real needs a version")?));
            }
            "--beside" => options.beside = true,
            "--server" => options.server = Some(args.next().ok_or("--server needs a version")?),
            "--file" => options.files.push(args.next().ok_or("--file needs a name")?),
            module => options.module = module.into(),
        }
    }
    if options.seeds.is_empty() {
        options.seeds.push((1, 1));
    }
    if options.module.is_empty() { Err("the file of the module is not named".into()) } else { Ok(options) }
}

fn main() -> ExitCode {
    let work = options().and_then(|options| Module::open(&options.module).map(|module| (options, module)));
    let result = work.and_then(|(options, module)| {
        if let Some((number, version)) = options.real {
            let source = Source::Real(REAL + number, options.steps, version, options.beside);
            print!("{}", run::transcript(&module, &source));
            return Ok(0);
        }
        if options.files.is_empty() { seeds(&options, &module) } else { files(&options, &module) }
    });
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the histories of files; returns how many failed.
fn files(options: &Options, module: &Module) -> Result<u64, String> {
    let mut failed = 0;
    for name in &options.files {
        let text = std::fs::read_to_string(name).map_err(|error| format!("{name}: {error}"))?;
        let source = Source::History(History::parse(&text)?);
        if options.trace {
            boundary::trace();
            let report = run::show(module, &source);
            return Ok(u64::from(report.violation.is_some()));
        }
        let report = run::run(module, &source);
        if report.violation.is_some() {
            failed += 1;
            println!("{name}");
            if options.shrinks {
                println!("{}", run::shown(module, &report));
            }
        }
    }
    println!("{} histories, {failed} failed", options.files.len());
    Ok(failed)
}

/// Runs the histories of seeds; returns how many failed.
fn seeds(options: &Options, module: &Module) -> Result<u64, String> {
    if options.trace {
        boundary::trace();
        let (first, _) = options.seeds[0];
        let report = run::show(module, &Source::Seed(first, options.steps, options.clients));
        println!("{:?}", report.violation);
        return Ok(u64::from(report.violation.is_some()));
    }
    let begin = boundary::real_time();
    let (mut sums, failed) = ([0; 3], Cell::new(0));
    let mut servers = BTreeMap::new();
    let mut running = VecDeque::new();
    let mut ended = |seed: u64, source: Source, child| {
        let report = run::end(module, &source, child);
        sums.iter_mut().zip(report.counts).for_each(|(sum, count)| *sum += count);
        *servers.entry(report.history.settings.version.clone()).or_insert(0) += report.counts[0];
        let Some((oracle, found)) = &report.violation else { return };
        failed.set(failed.get() + 1);
        println!("seed {seed}: {oracle}, after {} steps: {found}", report.history.steps.len());
        if options.shrinks && failed.get() <= 3 {
            let short = run::shrink(module, &report);
            println!("{} steps:\n{}", short.history.steps.len(), run::shown(module, &short));
        }
    };
    let is_meant =
        |seed: &u64| options.server.as_ref().is_none_or(|of| Writer::settings(*seed).version == *of);
    let seeds = options.seeds.iter().flat_map(|(first, count)| *first..first + count).filter(is_meant);
    for seed in seeds.clone() {
        let source = Source::Seed(seed, options.steps, options.clients);
        let child = run::start(module, &source);
        running.push_back((seed, source, child));
        if running.len() >= options.jobs
            && let Some((seed, source, child)) = running.pop_front()
        {
            ended(seed, source, child);
            if options.stops && failed.get() > 0 {
                break;
            }
        }
    }
    for (seed, source, child) in running {
        ended(seed, source, child);
    }
    let failed = failed.get();
    let seconds = (boundary::real_time() - begin) as f64 / 1e9;
    let [steps, compared, looked] = sums;
    println!(
        "{} seeds, {steps} steps in {seconds:.1} s ({:.0} a second), {compared} replies compared, {looked} queues looked at, {failed} failed",
        seeds.count(),
        steps as f64 / seconds
    );
    println!("steps of each server: {servers:?}");
    Ok(failed)
}
