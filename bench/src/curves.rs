//! `make bench-curves`: what a call costs where that grows with what is there already, beside what its page promises.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use plotters::prelude::*;
use redis::{Connection, ConnectionLike};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::load::{encode, no_error};
use crate::report::{quantile, thousands};
use crate::server::{Binaries, Cores, Kind, Server, on};
use crate::{machine, now};

/// Calls of a round, but for those that are long.
const CALLS: usize = 1_024;
/// Commands sent at a time.
const PIPELINE: usize = 64;
/// Callers who join a line and leave it, of which a round is made.
const JOINERS: usize = 50;

/// A whole run.
#[derive(Serialize, Deserialize)]
pub struct Curves {
    when: String,
    machine: Vec<(String, String)>,
    rounds: usize,
    of: Vec<Curve>,
}

/// What a call costs, by how much is there.
#[derive(Serialize, Deserialize)]
struct Curve {
    call: String,
    /// What N counts.
    of: String,
    promise: Growth,
    points: Vec<Point>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Point {
    n: usize,
    /// Processor time of the server's main thread for each call, in nanoseconds: the median of the rounds.
    ns: f64,
}

/// What a page promises.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Growth {
    Logarithm,
    LinearLogarithm,
}

impl Growth {
    fn text(self) -> &'static str {
        match self {
            Self::Logarithm => "O(log N)",
            Self::LinearLogarithm => "O(N log N)",
        }
    }

    /// The steps of looking something up among `n`, the last comparison being one.
    fn steps(self, n: f64) -> f64 {
        match self {
            Self::Logarithm => 1.0 + n.log2(),
            Self::LinearLogarithm => n * (1.0 + n.log2()),
        }
    }
}

impl Curve {
    fn new(call: &str, of: &str, promise: Growth) -> Self {
        Self { call: call.to_owned(), of: of.to_owned(), promise, points: Vec::new() }
    }

    /// By how much the cost has grown from the first point to the last, and by how much the steps have.
    fn growth(&self) -> Option<(f64, f64)> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let steps = |point: &Point| self.promise.steps(point.n as f64);
        Some((last.ns / first.ns, steps(last) / steps(first)))
    }
}

/// Measures, and leaves what it found in `target/bench`.
pub fn run(binaries: &Binaries, rounds: usize) -> Result<(), Box<dyn Error>> {
    let files = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files })?;
    let cores = Cores::choose();
    if let Some(cores) = cores {
        cores.pin_load()?;
    }
    let program = cores.map(|cores| on(cores.server)).unwrap_or_default();
    // What the server does by the clock for each connection is not a call's.
    let quiet = ["--hz", "1", "--dynamic-hz", "no", "--maxclients", "11000"];
    let start = || Server::start_under(&program, Kind::Module, binaries, &quiet);
    let mut curves = leases(&start()?, rounds)?;
    curves.extend(log(&start()?, rounds)?);
    curves.push(several(&start()?, rounds)?);
    curves.extend(line(&start()?, rounds)?);
    let all = Curves { when: now()?, machine: machine(binaries, cores)?, rounds, of: curves };
    println!("{}", markdown(&all));
    let folder = Path::new("target/bench");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("curves.json"), serde_json::to_string_pretty(&all)?)?;
    draw(&all, &folder.join("curves.svg"))?;
    println!("also in target/bench: curves.json, curves.svg");
    Ok(())
}

/// Ten, a hundred, and so on.
fn tens(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(10), |n| Some(n * 10)).take_while(move |&n| n <= most)
}

/// Places taken, by holders whose leases last an hour.
fn leases(server: &Server, rounds: usize) -> Result<Vec<Curve>, Box<dyn Error>> {
    let mut connection = server.connect()?;
    let mut curve = Curve::new("CL.ACQUIRE + CL.RELEASE", "holders", Growth::Logarithm);
    let mut there = 0;
    for n in tens(1_000_000) {
        eprintln!("{}, {n} ...", curve.call);
        // The one that is measured makes them n.
        let holders: Vec<usize> = (there..n - 1).collect();
        for holders in holders.chunks(1_000) {
            let calls = holders.iter().map(|holder| format!("CL.ACQUIRE k 2000000 3600 holder{holder}"));
            ask(&mut connection, &calls.collect::<Vec<_>>().join(" ; "))?;
        }
        there = n - 1;
        let ns = cost(server, "CL.ACQUIRE k 2000000 3600 another ; CL.RELEASE k another", CALLS, rounds)?;
        curve.points.push(Point { n, ns });
    }
    Ok(vec![curve])
}

/// Calls in the log, admitted and taken out again by the server's own command, and refused.
fn log(server: &Server, rounds: usize) -> Result<Vec<Curve>, Box<dyn Error>> {
    let mut connection = server.connect()?;
    let mut admitted = Curve::new("CL.LOG admitted + ZPOPMAX", "entries", Growth::Logarithm);
    let mut refused = Curve::new("CL.LOG refused", "entries", Growth::Logarithm);
    let mut there = 0;
    for n in tens(1_000_000) {
        eprintln!("CL.LOG, {n} ...");
        while there < n - 1 {
            let more = (n - 1 - there).min(10_000);
            ask(&mut connection, &format!("CL.LOG k 1000000 36000 {more}"))?;
            there += more;
        }
        let ns = cost(server, "CL.LOG k 1000000 36000 ; ZPOPMAX k", CALLS, rounds)?;
        admitted.points.push(Point { n, ns });
        ask(&mut connection, "CL.LOG k 1000000 36000")?;
        there = n;
        refused.points.push(Point { n, ns: cost(server, &format!("CL.LOG k {n} 36000"), CALLS, rounds)? });
    }
    Ok(vec![admitted, refused])
}

/// Limiters asked at once, all of them admitting.
fn several(server: &Server, rounds: usize) -> Result<Curve, Box<dyn Error>> {
    let mut curve = Curve::new("CL.MTHROTTLE", "keys", Growth::LinearLogarithm);
    for n in std::iter::once(1).chain(tens(1_000)) {
        eprintln!("{}, {n} ...", curve.call);
        let mut call = format!("CL.MTHROTTLE {n}");
        (0..n).try_for_each(|key| write!(call, " key:{key}"))?;
        call += &" 1000000000 1000 1".repeat(n);
        curve.points.push(Point { n, ns: cost(server, &call, (CALLS / n).max(8), rounds)? });
    }
    Ok(curve)
}

/// Callers in line: one more who joins and leaves, and one who is told at once that the wait is too long.
fn line(server: &Server, rounds: usize) -> Result<Vec<Curve>, Box<dyn Error>> {
    let mut connection = server.connect()?;
    let mut joins = Curve::new("CL.BTHROTTLE joins + leaves", "in line", Growth::Logarithm);
    let mut told = Curve::new("CL.BTHROTTLE told at once", "in line", Growth::Logarithm);
    let wait = encode("CL.BTHROTTLE k 0 1 3600 1 0", 0);
    ask(&mut connection, "CL.THROTTLE k 0 1 3600")?;
    let mut joiners = Vec::new();
    for _ in 0..JOINERS {
        let mut stream = server.stream()?;
        stream.write_all(&encode("CLIENT ID", 0))?;
        joiners.push((read_line(&mut stream)?.trim_start_matches(':').to_owned(), stream));
    }
    let most = usize::try_from(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))?;
    let mut waiting = Vec::new();
    for n in tens(10_000).take_while(|n| n + 200 <= most) {
        eprintln!("CL.BTHROTTLE, {n} ...");
        while waiting.len() < n {
            let mut stream = server.stream()?;
            stream.write_all(&wait)?;
            waiting.push(stream);
        }
        while server.info("blocked_clients")? != n.to_string() {
            thread::sleep(Duration::from_millis(5));
        }
        told.points.push(Point { n, ns: cost(server, "CL.BTHROTTLE k 0 1 3600 1 1", CALLS, rounds)? });
        let round = || {
            joiners.iter_mut().try_for_each(|(_, stream)| stream.write_all(&wait))?;
            for (id, stream) in &mut joiners {
                let unblock = encode(&format!("CLIENT UNBLOCK {id}"), 0);
                // It may not have been read yet.
                while connection.req_packed_command(&unblock)? != redis::Value::Int(1) {}
                read_line(stream)?;
            }
            Ok(())
        };
        joins.points.push(Point { n, ns: measure(server, JOINERS, rounds, round)? });
    }
    Ok(vec![joins, told])
}

/// What a unit of calls costs: processor time of the server's main thread, the median of the rounds.
fn cost(server: &Server, unit: &str, units: usize, rounds: usize) -> Result<f64, Box<dyn Error>> {
    let mut connection = server.connect()?;
    let each = unit.split(" ; ").count();
    let units_at_once = (PIPELINE / each).min(units);
    let calls = encode(unit, 0).repeat(units_at_once);
    let times = units / units_at_once;
    measure(server, times * units_at_once, rounds, || {
        for _ in 0..times {
            let answers = connection.req_packed_commands(&calls, 0, units_at_once * each)?;
            answers.iter().try_for_each(no_error)?;
        }
        Ok(())
    })
}

fn measure(
    server: &Server,
    units: usize,
    rounds: usize,
    mut round: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let mut took = Vec::new();
    for _ in 0..=rounds {
        let before = server.cpu()?;
        round()?;
        // The kernel adds up a thread's time when it goes to sleep.
        thread::sleep(Duration::from_millis(2));
        took.push((server.cpu()? - before) / units as f64);
    }
    // The first one is for warming up.
    Ok(quantile(took.into_iter().skip(1), 0.5))
}

fn ask(connection: &mut Connection, calls: &str) -> Result<(), Box<dyn Error>> {
    let count = calls.split(" ; ").count();
    connection.req_packed_commands(&encode(calls, 0), 0, count)?.iter().try_for_each(no_error)
}

fn read_line(stream: &mut TcpStream) -> Result<String, Box<dyn Error>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// The curves as a page has them.
pub fn markdown(all: &Curves) -> String {
    let mut text = format!("{}. Medians of {} rounds.\n\n", all.when, all.rounds);
    for (what, value) in &all.machine {
        let _ = writeln!(text, "- {what}: {value}");
    }
    let sizes: Vec<usize> = std::iter::once(1).chain(tens(1_000_000)).collect();
    text += "\n| µs with N = | |";
    for n in &sizes {
        let _ = write!(text, " {} |", thousands(*n));
    }
    text += " grown | promised |\n|---|---|";
    text += &"--:|".repeat(sizes.len() + 1);
    text += "---|\n";
    for curve in &all.of {
        let _ = write!(text, "| {} | {} |", curve.call, curve.of);
        for n in &sizes {
            let point = curve.points.iter().find(|point| point.n == *n);
            let _ = write!(text, " {} |", point.map_or(String::new(), |point| micros(point.ns)));
        }
        let (grown, allowed) = curve.growth().unwrap_or((f64::NAN, f64::NAN));
        let _ = writeln!(text, " {grown:.1} | {}, that is {allowed:.1} |", curve.promise.text());
    }
    text
}

fn micros(ns: f64) -> String {
    let digits = usize::from(ns < 100_000.0);
    format!("{:.digits$}", ns / 1e3)
}

/// The curves on logarithmic axes, each with what its page allows it as a thin line from its first point.
pub fn draw(all: &Curves, file: &Path) -> Result<(), Box<dyn Error>> {
    const COLOURS: [RGBColor; 6] = [
        RGBColor(0x1f, 0x77, 0xb4),
        RGBColor(0xd6, 0x27, 0x28),
        RGBColor(0xff, 0x7f, 0x0e),
        RGBColor(0x2c, 0xa0, 0x2c),
        RGBColor(0x94, 0x67, 0xbd),
        RGBColor(0x8c, 0x56, 0x4b),
    ];
    let area = SVGBackend::new(file, (1_000, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let costs = || all.of.iter().flat_map(|curve| curve.points.iter().map(|point| point.ns / 1e3));
    let (least, most) = (costs().fold(f64::MAX, f64::min), costs().fold(f64::MIN, f64::max));
    let top = most * 1.5;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .margin_right(250)
        .set_label_area_size(LabelAreaPosition::Left, 60)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d((1.0..1_000_000.0).log_scale(), (least / 1.5..top).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE.mix(0.0))
        .x_desc("N: what is there, or what is named")
        .y_desc("µs of the server's processor")
        .x_label_formatter(&|n: &f64| thousands(n.round() as usize))
        .y_label_formatter(&|us: &f64| {
            if *us < 1.0 { us.to_string() } else { thousands(us.round() as usize) }
        })
        .label_style(("sans-serif", 13))
        .draw()?;
    let mut labels = Vec::new();
    for (curve, colour) in all.of.iter().zip(COLOURS) {
        let points: Vec<_> = curve.points.iter().map(|point| (point.n as f64, point.ns / 1e3)).collect();
        let (Some(&(n, cost)), Some(&last)) = (points.first(), points.last()) else { continue };
        let steps = |n: f64| curve.promise.steps(n);
        let allowed = points.iter().map(|&(of, _)| (of, cost * steps(of) / steps(n))).filter(|at| at.1 < top);
        chart.draw_series(DashedLineSeries::new(allowed, 4, 4, colour.mix(0.5).stroke_width(1)))?;
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
        labels.push((chart.backend_coord(&last).1, colour, format!("{}: {}", curve.call, curve.of)));
    }
    // One beneath the other, in the order of the lines' ends.
    labels.sort_by_key(|label| label.0);
    let mut free = 0;
    for (y, colour, label) in labels {
        let top = (y - 8).max(free);
        free = top + 18;
        area.draw_text(&label, &("sans-serif", 13, &colour).into_text_style(&area), (758, top))?;
    }
    area.present()?;
    Ok(())
}
