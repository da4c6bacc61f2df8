//! `make bench-curves`: the cost of calls by the number of entries, clients or keys, compared with the bound
//! that the page promises.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use redis::{Connection, ConnectionLike};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use crate::load::{encode, no_error};
use crate::report::{machine, now, quantile, thousands};
use crate::server::{Binaries, Server, Setup};
use crate::stalls::departures;
use crate::waiting::{QUIET, place};

/// Calls in a round, except for long ones.
const CALLS: usize = 1_024;
/// Commands in a pipeline.
const PIPELINE: usize = 64;
/// Clients that join and leave a queue in a round.
const JOINERS: usize = 50;

/// The results of a whole run.
#[derive(Serialize, Deserialize)]
pub struct Curves {
    when: String,
    machine: Vec<(String, String)>,
    rounds: usize,
    of: Vec<Curve>,
}

/// The cost of a call for each N.
#[derive(Serialize, Deserialize)]
pub struct Curve {
    call: String,
    /// The entries, clients or keys that N counts.
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

/// The growth that a page promises.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Growth {
    Constant,
    Logarithm,
    LinearLogarithm,
}

impl Growth {
    fn text(self) -> &'static str {
        match self {
            Self::Constant => "O(1)",
            Self::Logarithm => "O(log N)",
            Self::LinearLogarithm => "O(N log N)",
        }
    }

    /// Returns the steps of a lookup among `n`, including the last comparison.
    fn steps(self, n: f64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Logarithm => 1.0 + n.log2(),
            Self::LinearLogarithm => n * (1.0 + n.log2()),
        }
    }
}

impl Curve {
    fn new(call: &str, of: &str, promise: Growth) -> Self {
        Self { call: call.to_owned(), of: of.to_owned(), promise, points: Vec::new() }
    }

    /// Returns the curve as a line of text.
    pub fn line(&self) -> String {
        let points: Vec<String> =
            self.points.iter().map(|point| format!("{}: {} µs", point.n, micros(point.ns))).collect();
        let (grown, promised) = self.growth().unwrap_or((f64::NAN, f64::NAN));
        format!("{}, {}: grown {grown:.1} times, promised {promised:.1}", self.call, points.join(", "))
    }

    /// Returns the growth of the cost and of the steps from the first point to the last.
    fn growth(&self) -> Option<(f64, f64)> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let steps = |point: &Point| self.promise.steps(point.n as f64);
        Some((last.ns / first.ns, steps(last) / steps(first)))
    }
}

/// Measures the curves, and writes the results to `target/bench`.
pub fn run(binaries: &Binaries, rounds: usize) -> Result<(), Box<dyn Error>> {
    let (cores, program) = place()?;
    let start = || Server::start_under(&program, Setup::Module, binaries, &QUIET);
    let mut curves = leases(&start()?, rounds)?;
    curves.extend(log(&start()?, rounds)?);
    curves.push(several(&start()?, rounds)?);
    curves.extend(queue(&start()?, rounds)?);
    curves.extend(queues(&start()?, rounds)?);
    curves.push(leavers(start)?);
    let all = Curves { when: now()?, machine: machine(binaries, cores)?, rounds, of: curves };
    println!("{}", markdown(&all));
    let folder = Path::new("target/bench");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("curves.json"), serde_json::to_string_pretty(&all)?)?;
    println!("also in target/bench: curves.json");
    Ok(())
}

/// Returns 10, 100, and so on.
fn tens(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(10), |n| Some(n * 10)).take_while(move |&n| n <= most)
}

/// Measures calls by the number of places with leases of an hour.
fn leases(server: &Server, rounds: usize) -> Result<Vec<Curve>, Box<dyn Error>> {
    let mut connection = server.connect()?;
    let mut curve = Curve::new("CL.ACQUIRE + CL.RELEASE", "holders", Growth::Logarithm);
    let mut there = 0;
    for n in tens(1_000_000) {
        eprintln!("{}, {n} ...", curve.call);
        // The holder of the measured call is the last of the n.
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

/// Measures calls by the entries of a log: admitted and removed by the server's own command, and refused.
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

/// Measures a call by its number of limiters, all of which admit it.
fn several(server: &Server, rounds: usize) -> Result<Curve, Box<dyn Error>> {
    let mut curve = Curve::new("CL.MTAKE", "keys", Growth::LinearLogarithm);
    for n in std::iter::once(1).chain(tens(1_000)) {
        eprintln!("{}, {n} ...", curve.call);
        let mut call = String::from("CL.MTAKE");
        (0..n).try_for_each(|key| write!(call, " key:{key} THROTTLE 1000000000 1000 1 1"))?;
        curve.points.push(Point { n, ns: cost(server, &call, (CALLS / n).max(8), rounds)? });
    }
    Ok(curve)
}

/// Measures calls by the number of waiting clients: one client joins and leaves, and another gets null
/// immediately because its wait would be too long.
fn queue(server: &Server, rounds: usize) -> Result<Vec<Curve>, Box<dyn Error>> {
    let mut connection = server.connect()?;
    let mut joins = Curve::new("CL.BTHROTTLE joins + leaves", "waiting clients", Growth::Logarithm);
    let mut told = Curve::new("CL.BTHROTTLE null at once", "waiting clients", Growth::Logarithm);
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
        wait_for_blocked(server, n)?;
        told.points.push(Point { n, ns: cost(server, "CL.BTHROTTLE k 0 1 3600 1 1", CALLS, rounds)? });
        let round = || {
            joiners.iter_mut().try_for_each(|(_, stream)| stream.write_all(&wait))?;
            for (id, stream) in &mut joiners {
                let unblock = encode(&format!("CLIENT UNBLOCK {id}"), 0);
                // The server may not have read the call yet.
                while connection.req_packed_command(&unblock)? != redis::Value::Int(1) {}
                read_line(stream)?;
            }
            Ok(())
        };
        joins.points.push(Point { n, ns: measure(server, JOINERS, rounds, round)? });
    }
    Ok(vec![joins, told])
}

/// Measures the cost of queues for other calls: a write to a key without a queue, a flush of another
/// database, and a millisecond of a pause in which all waiting clients are due. N = 0 is a server on which no
/// client has waited yet.
fn queues(server: &Server, rounds: usize) -> Result<Vec<Curve>, Box<dyn Error>> {
    const PAUSE: usize = 300;
    let mut connection = server.connect()?;
    let mut writes = Curve::new("SET of a key without a queue", "queues", Growth::Constant);
    let mut after = Curve::new("SET when all have been served", "queues before", Growth::Constant);
    let mut flushes = Curve::new("FLUSHDB of another database", "queues", Growth::Constant);
    let mut paused = Curve::new("1 ms of CLIENT PAUSE", "queues that are due", Growth::Constant);
    let most = usize::try_from(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))?;
    for n in [0, 1, 5_000, 15_000].into_iter().take_while(|n| n + 200 <= most) {
        eprintln!("queues, {n} ...");
        let mut waiting = Vec::new();
        for key in 0..n {
            ask(&mut connection, &format!("CL.THROTTLE queue:{key} 0 1 3600"))?;
            let mut stream = server.stream()?;
            stream.write_all(&encode(&format!("CL.BTHROTTLE queue:{key} 0 1 3600 1 0"), 0))?;
            waiting.push(stream);
        }
        wait_for_blocked(server, n)?;
        writes.points.push(Point { n, ns: cost(server, "SET another 1", CALLS, rounds)? });
        let flush = "SELECT 1 ; FLUSHDB ; SELECT 0";
        flushes.points.push(Point { n, ns: cost(server, flush, CALLS / 16, rounds)? });
        // Measured once: when the pause ends, all clients are served.
        ask(&mut connection, &format!("FLUSHALL ; CLIENT PAUSE {PAUSE} WRITE"))?;
        let before = server.cpu()?;
        thread::sleep(Duration::from_millis(PAUSE as u64 / 2));
        let ns = (server.cpu()? - before) * 2.0 / PAUSE as f64;
        if n > 0 {
            paused.points.push(Point { n, ns });
        }
        wait_for_blocked(server, 0)?;
        drop(waiting);
        thread::sleep(Duration::from_secs(1)); // so that the server closes the connections
        after.points.push(Point { n, ns: cost(server, "SET another 1", CALLS, rounds)? });
    }
    Ok(vec![writes, after, flushes, paused])
}

/// Measures clients that leave a queue together, for whose key as many flows wait. Measured once for each N.
pub fn leavers(start: impl Fn() -> Result<Server, Box<dyn Error>>) -> Result<Curve, Box<dyn Error>> {
    let mut curve = Curve::new("all leave together", "clients, and flows", Growth::LinearLogarithm);
    for n in [1_000, 2_000, 4_000, 8_000] {
        eprintln!("{}, {n} ...", curve.call);
        let (ns, _) = departures(&start()?, n, n)?;
        curve.points.push(Point { n, ns });
    }
    Ok(curve)
}

pub fn wait_for_blocked(server: &Server, count: usize) -> Result<(), Box<dyn Error>> {
    while server.info("blocked_clients")? != count.to_string() {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the cost of a unit of calls: processor time of the server's main thread, the median of the rounds.
pub fn cost(server: &Server, unit: &str, units: usize, rounds: usize) -> Result<f64, Box<dyn Error>> {
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
        // The kernel updates a thread's processor time when the thread goes to sleep.
        thread::sleep(Duration::from_millis(2));
        took.push((server.cpu()? - before) / units as f64);
    }
    // The first round is the warm-up.
    Ok(quantile(took.into_iter().skip(1), 0.5))
}

pub fn ask(connection: &mut Connection, calls: &str) -> Result<(), Box<dyn Error>> {
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

/// Returns the curves as a table for a page.
pub fn markdown(all: &Curves) -> String {
    let mut text = format!("{}. Medians of {} rounds.\n\n", all.when, all.rounds);
    for (what, value) in &all.machine {
        let _ = writeln!(text, "- {what}: {value}");
    }
    let mut sizes: Vec<usize> =
        all.of.iter().flat_map(|curve| curve.points.iter().map(|point| point.n)).collect();
    sizes.sort_unstable();
    sizes.dedup();
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
