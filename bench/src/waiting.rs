//! `make bench-waiting`: clients that wait in `CL.BMTAKE`, their order, and their cost for other clients.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use plotters::prelude::*;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::curves::{cost, wait_for_blocked};
use crate::load::encode;
use crate::report::{machine, now, quantile, thousands};
use crate::server::{Binaries, Cores, Kind, Server, on};

/// Without most of the server's periodic work for each connection, which is not part of an admission.
const QUIET: [&str; 6] = ["--hz", "1", "--dynamic-hz", "no", "--maxclients", "16000"];
/// The number of places. An admitted client gives its place back and waits again. There are half as many
/// places if there are fewer clients.
const PLACES: usize = 32;
/// The number of admissions in a round.
const TURNS: usize = 2_000;
/// The number of admissions whose instants are compared with the limiter's.
const TIMED: usize = 1_000;
/// The number of admissions in the picture, and in each of its points.
const SHARED: usize = 10_000;
const POINT: usize = 250;
/// The weights of the flows in the picture.
const WEIGHTS: [usize; 3] = [1, 2, 4];

/// The results of a whole run.
#[derive(Serialize, Deserialize)]
pub struct Waits {
    when: String,
    machine: Vec<(String, String)>,
    rounds: usize,
    turns: Vec<Turns>,
    bystanders: Vec<Bystander>,
    /// The tenants in the order of admissions: with all clients in one flow, and with a flow for each tenant.
    shares: [Vec<u8>; 2],
}

/// Admissions with this many clients in this many flows.
#[derive(Serialize, Deserialize)]
struct Turns {
    clients: usize,
    flows: usize,
    /// Processor time of the server's main thread per admission, in nanoseconds.
    cpu: f64,
    /// Admissions per second, if each begins when the previous one ends.
    per_second: f64,
    /// How long after its units are available a client is admitted, in milliseconds: the median, the 99th
    /// percentile, and the maximum.
    late: [f64; 3],
    /// How late the machine has woken a thread that slept until the same instants, at most.
    woken: f64,
}

/// A call of a client that does not wait.
#[derive(Serialize, Deserialize)]
struct Bystander {
    call: String,
    /// Processor time with an empty queue, and with all clients in it, in nanoseconds.
    alone: f64,
    beside: f64,
}

/// Clients on separate connections, each with at most one call under way.
struct Crowd {
    streams: Vec<TcpStream>,
    epoll: OwnedFd,
}

impl Crowd {
    fn new(server: &Server, clients: usize) -> Result<Self, Box<dyn Error>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut streams = Vec::new();
        for client in 0..clients {
            let stream = server.stream()?;
            let data = epoll::EventData::new_u64(client as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN)?;
            streams.push(stream);
        }
        Ok(Self { streams, epoll })
    }

    fn send(&mut self, client: usize, calls: &str) -> Result<(), Box<dyn Error>> {
        Ok(self.streams[client].write_all(&encode(calls, 0))?)
    }

    /// Returns the clients that got a reply, and the replies.
    fn replies(&mut self) -> Result<Vec<(usize, String)>, Box<dyn Error>> {
        let mut events = Vec::with_capacity(64);
        while events.is_empty() {
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        }
        let mut replies = Vec::new();
        for event in events {
            let client = event.data.u64() as usize;
            let mut buffer = [0; 1_024];
            let length = self.streams[client].read(&mut buffer)?;
            replies.push((client, String::from_utf8_lossy(&buffer[..length]).into_owned()));
        }
        Ok(replies)
    }
}

/// Returns whether a reply admits a call: its combined row then begins with 0.
fn is_admitted(reply: &str) -> bool {
    reply.contains("*5\r\n:0\r\n")
}

/// Measures waiting clients, and writes the results to `target/bench`.
pub fn run(binaries: &Binaries, rounds: usize) -> Result<(), Box<dyn Error>> {
    let files = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files })?;
    let cores = Cores::choose();
    if let Some(cores) = cores {
        cores.pin_load()?;
    }
    let program = cores.map(|cores| on(cores.server)).unwrap_or_default();
    let start = || Server::start_under(&program, Kind::Module, binaries, &QUIET);
    let mut all = Vec::new();
    for (clients, flows) in [
        (10, 1),
        (10, 10),
        (1_000, 1),
        (1_000, 100),
        (1_000, 1_000),
        (10_000, 1),
        (10_000, 100),
        (10_000, 1_000),
    ] {
        eprintln!("{clients} clients in {flows} flows ...");
        all.push(turns(&start()?, clients, flows, rounds)?);
    }
    eprintln!("bystanders ...");
    let bystanders = bystanders(&start()?, rounds)?;
    eprintln!("shares ...");
    let shares = [shares(&start()?, false)?, shares(&start()?, true)?];
    let waits =
        Waits { when: now()?, machine: machine(binaries, cores)?, rounds, turns: all, bystanders, shares };
    println!("{}", markdown(&waits));
    let folder = Path::new("target/bench");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("waiting.json"), serde_json::to_string_pretty(&waits)?)?;
    draw(&waits, &folder.join("waiting.svg"))?;
    println!("also in target/bench: waiting.json, waiting.svg");
    Ok(())
}

/// Measures admissions: an admitted client gives its place back and waits again, in one write.
fn turns(server: &Server, clients: usize, flows: usize, rounds: usize) -> Result<Turns, Box<dyn Error>> {
    let mut crowd = Crowd::new(server, clients)?;
    let places = PLACES.min(clients / 2);
    let wait =
        |client: usize| format!("CL.BMTAKE busy LEASE {places} 3600 c{client} FLOW f{}", client % flows);
    for client in 0..clients {
        crowd.send(client, &wait(client))?;
    }
    wait_for_blocked(server, clients - places)?;
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    for _ in 0..=rounds {
        let (before, begin, mut admitted) = (server.cpu()?, Instant::now(), 0);
        while admitted < TURNS {
            for (client, reply) in crowd.replies()? {
                // The reply to CL.RELEASE may arrive separately.
                if is_admitted(&reply) {
                    admitted += 1;
                    crowd.send(client, &format!("CL.RELEASE busy c{client} ; {}", wait(client)))?;
                }
            }
        }
        wall.push(begin.elapsed().as_secs_f64() / admitted as f64);
        thread::sleep(Duration::from_millis(2));
        cpu.push((server.cpu()? - before) / admitted as f64);
    }
    drop(crowd);
    let (late, woken) = late(server, clients, flows)?;
    Ok(Turns {
        clients,
        flows,
        cpu: quantile(cpu.into_iter().skip(1), 0.5),
        per_second: 1.0 / quantile(wall.into_iter().skip(1), 0.5),
        late,
        woken,
    })
}

/// The time after which another unit becomes available while [`late`] measures.
const EVERY: Duration = Duration::from_millis(2);

/// Measures how late admissions are, and beside them, how late a thread is that only sleeps.
fn late(server: &Server, clients: usize, flows: usize) -> Result<([f64; 3], f64), Box<dyn Error>> {
    wait_for_blocked(server, 0)?;
    let mut crowd = Crowd::new(server, clients)?;
    // Units that are not taken in time are not lost, so the instants do not depend on earlier delays.
    let wait = |client: usize| format!("CL.BMTAKE pace THROTTLE 49 500 1 1 FLOW f{}", client % flows);
    crate::curves::ask(&mut server.connect()?, "CL.CHARGE pace 49 500 1 5050")?;
    for client in 0..clients {
        crowd.send(client, &wait(client))?;
    }
    wait_for_blocked(server, clients)?;
    let sleeper = thread::spawn(oversleeps);
    let (mut instants, begin) = (Vec::new(), Instant::now());
    while instants.len() < TIMED {
        for (client, reply) in crowd.replies()? {
            if is_admitted(&reply) {
                instants.push(begin.elapsed().as_secs_f64() * 1e3);
                crowd.send(client, &wait(client))?;
            }
        }
    }
    let after = |(number, at): (usize, &f64)| at - number as f64 * EVERY.as_secs_f64() * 1e3;
    let due = instants.iter().enumerate().map(after).fold(f64::MAX, f64::min);
    let late: Vec<f64> = instants.iter().enumerate().map(|each| after(each) - due).collect();
    let latest = late.iter().copied().fold(0.0, f64::max);
    let woken = sleeper.join().map_err(|_| "the thread that sleeps has panicked")?;
    Ok(([quantile(late.iter().copied(), 0.5), quantile(late.iter().copied(), 0.99), latest], woken))
}

/// Sleeps until as many instants as [`late`] measures, and returns the greatest delay in milliseconds.
fn oversleeps() -> f64 {
    let begin = Instant::now();
    let mut latest = Duration::ZERO;
    for due in (1..=TIMED as u32).map(|number| EVERY * number) {
        thread::sleep(due.saturating_sub(begin.elapsed()));
        latest = latest.max(begin.elapsed().saturating_sub(due));
    }
    latest.as_secs_f64() * 1e3
}

/// Measures calls on another key, and refused calls on the key for which 10,000 clients wait.
fn bystanders(server: &Server, rounds: usize) -> Result<Vec<Bystander>, Box<dyn Error>> {
    const CLIENTS: usize = 10_000;
    let calls = ["SET other 1", "CL.THROTTLE another 1000000 1000000 1", "CL.ACQUIRE busy 1 3600 hasty"];
    crate::curves::ask(&mut server.connect()?, "CL.ACQUIRE busy 1 3600 holder")?;
    let measure = || -> Result<Vec<f64>, Box<dyn Error>> {
        calls.iter().map(|call| cost(server, call, 65_536, rounds)).collect()
    };
    let alone = measure()?;
    let mut crowd = Crowd::new(server, CLIENTS)?;
    for client in 0..CLIENTS {
        crowd.send(client, &format!("CL.BMTAKE busy LEASE 1 3600 c{client} FLOW f{}", client % 1_000))?;
    }
    wait_for_blocked(server, CLIENTS)?;
    let beside = measure()?;
    let each = calls.iter().zip(alone).zip(beside);
    Ok(each.map(|((call, alone), beside)| Bystander { call: (*call).to_owned(), alone, beside }).collect())
}

/// Simulates three tenants. The one with the smallest weight floods the service with 300 clients; the others
/// have 20 each. Returns the tenants in the order of admissions.
fn shares(server: &Server, by_flow: bool) -> Result<Vec<u8>, Box<dyn Error>> {
    const FLOOD: usize = 300;
    let tenant = |client: usize| if client < FLOOD { 0 } else { 1 + client % 2 };
    let wait = |client: usize| {
        let flow = format!(" FLOW t{} WEIGHT {}", tenant(client), WEIGHTS[tenant(client)]);
        let flow = if by_flow { flow } else { String::new() };
        format!("CL.BMTAKE busy LEASE 1 3600 c{client}{flow}")
    };
    let clients = FLOOD + 40;
    let mut crowd = Crowd::new(server, clients)?;
    crate::curves::ask(&mut server.connect()?, "CL.ACQUIRE busy 1 3600 holder")?;
    for client in 0..clients {
        crowd.send(client, &wait(client))?;
    }
    wait_for_blocked(server, clients)?;
    crate::curves::ask(&mut server.connect()?, "CL.RELEASE busy holder")?;
    let mut admitted = Vec::new();
    while admitted.len() < SHARED {
        for (client, reply) in crowd.replies()? {
            if is_admitted(&reply) {
                admitted.push(tenant(client) as u8);
                crowd.send(client, &format!("CL.RELEASE busy c{client} ; {}", wait(client)))?;
            }
        }
    }
    Ok(admitted)
}

/// Returns the share of a tenant, in percent.
fn share(admitted: &[u8], tenant: usize) -> f64 {
    let of_it = admitted.iter().filter(|each| usize::from(**each) == tenant).count();
    100.0 * of_it as f64 / admitted.len() as f64
}

/// Returns the results as tables for a page.
pub fn markdown(all: &Waits) -> String {
    let mut text = format!("{}. Medians of {} rounds.\n\n", all.when, all.rounds);
    for (what, value) in &all.machine {
        let _ = writeln!(text, "- {what}: {value}");
    }
    text += "\n| clients | flows | µs of the server per admission | admissions a second | late, median | 99 % | latest | a thread, latest |\n";
    text += "|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for Turns { clients, flows, cpu, per_second, late: [median, most, latest], woken } in &all.turns {
        let (clients, flows) = (thousands(*clients), thousands(*flows));
        let (us, per_second) = (cpu / 1e3, thousands(*per_second as usize));
        let _ = writeln!(
            text,
            "| {clients} | {flows} | {us:.1} | {per_second} | {median:.2} ms | {most:.2} ms | {latest:.2} ms | {woken:.2} ms |"
        );
    }
    text += "\n| call of a client that does not wait | µs, nobody waits | µs, 10,000 wait |\n|---|--:|--:|\n";
    for Bystander { call, alone, beside } in &all.bystanders {
        let _ = writeln!(text, "| `{call}` | {:.2} | {:.2} |", alone / 1e3, beside / 1e3);
    }
    let _ = writeln!(
        text,
        "\n| {} admissions | weight 1, 300 clients | weight 2, 20 | weight 4, 20 |",
        thousands(SHARED)
    );
    text += "|---|--:|--:|--:|\n";
    for (name, admitted) in ["all in one flow", "a flow for each"].iter().zip(&all.shares) {
        let [one, two, four] = [0, 1, 2].map(|tenant| share(admitted, tenant));
        let _ = writeln!(text, "| {name} | {one:.2} % | {two:.2} % | {four:.2} % |");
    }
    let [one, two, four] = WEIGHTS.map(|weight| 100.0 * weight as f64 / 7.0);
    let _ = writeln!(text, "| by weight | {one:.2} % | {two:.2} % | {four:.2} % |");
    text
}

/// Draws the share of each tenant over time, in one flow and in separate flows.
pub fn draw(all: &Waits, file: &Path) -> Result<(), Box<dyn Error>> {
    const COLOURS: [RGBColor; 3] =
        [RGBColor(0xd6, 0x27, 0x28), RGBColor(0x1f, 0x77, 0xb4), RGBColor(0x2c, 0xa0, 0x2c)];
    let area = SVGBackend::new(file, (830, 380)).into_drawing_area();
    area.fill(&WHITE)?;
    let halves = area.split_evenly((1, 2));
    for ((half, admitted), title) in
        halves.iter().zip(&all.shares).zip(["all in one flow", "a flow for each tenant"])
    {
        let mut chart = ChartBuilder::on(half)
            .margin(12)
            .margin_right(30)
            .caption(title, ("sans-serif", 18))
            .set_label_area_size(LabelAreaPosition::Left, 62)
            .set_label_area_size(LabelAreaPosition::Bottom, 44)
            .build_cartesian_2d(0.0..SHARED as f64, 0.0..100.0)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE.mix(0.0))
            .x_labels(4)
            .x_desc("admissions")
            .y_desc("share in percent; dashed: by weight")
            .x_label_formatter(&|n: &f64| thousands(n.round() as usize))
            .y_label_formatter(&|share: &f64| format!("{share:.0}"))
            .label_style(("sans-serif", 16))
            .draw()?;
        let mut taken: Vec<f64> = Vec::new();
        for (tenant, colour) in COLOURS.iter().enumerate() {
            let due = 100.0 * WEIGHTS[tenant] as f64 / 7.0;
            let dashes = [(0.0, due), (SHARED as f64, due)];
            chart.draw_series(DashedLineSeries::new(dashes, 4, 4, colour.mix(0.5).stroke_width(1)))?;
            let shares: Vec<f64> = admitted.chunks(POINT).map(|of| share(of, tenant)).collect();
            let points = shares.iter().enumerate().map(|(at, &share)| (((at + 1) * POINT) as f64, share));
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            let (clients, weight) = (if tenant == 0 { 300 } else { 20 }, WEIGHTS[tenant]);
            let label = format!("weight {weight}, {clients} clients");
            // Above the line, and above another label; below a line at the top.
            let highest = shares.iter().copied().fold(f64::MIN, f64::max);
            let lowest = shares.iter().copied().fold(f64::MAX, f64::min);
            let mut y = if highest > 90.0 { lowest - 2.0 } else { highest + 8.0 };
            while taken.iter().any(|other| (other - y).abs() < 7.0) {
                y += 7.0;
            }
            taken.push(y);
            let at = (SHARED as f64 * 0.55, y);
            let style = ("sans-serif", 16, colour).into_text_style(half);
            chart.draw_series(std::iter::once(Text::new(label, at, style)))?;
        }
    }
    area.present()?;
    Ok(())
}
