//! `make bench-waiting`: clients that wait in `CL.BMTAKE`, their order, and their cost for other clients.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::curves::{cost, wait_for_blocked};
use crate::load::encode;
use crate::report::{machine, now, quantile, thousands};
use crate::server::{Binaries, Cores, Server, Setup, on};
use crate::stalls::{self, Stall};

/// Without most of the server's periodic work for each connection, which is not part of a call.
pub const QUIET: [&str; 6] = ["--hz", "1", "--dynamic-hz", "no", "--maxclients", "20000"];
/// The number of places. An admitted client gives its place back and waits again. There are half as many
/// places if there are fewer clients.
const PLACES: usize = 32;
/// The number of admissions in a round.
const TURNS: usize = 2_000;
/// The number of admissions whose instants are compared with the limiter's.
const TIMED: usize = 1_000;
/// The number of admissions of which each tenant has a share.
const SHARED: usize = 10_000;
/// The weights of the tenants' flows.
const WEIGHTS: [usize; 3] = [1, 2, 4];

/// The results of a whole run.
#[derive(Serialize, Deserialize)]
pub struct Waits {
    when: String,
    machine: Vec<(String, String)>,
    rounds: usize,
    turns: Vec<Turns>,
    bystanders: Vec<Bystander>,
    stalls: Vec<Stall>,
    /// The memory of the server for a client that waits.
    #[serde(default)]
    memory: Vec<Memory>,
    /// The number of clients that request a wait on a server with too little memory for all of them.
    #[serde(default)]
    full: Option<Full>,
    /// The shares of the tenants in percent: with all clients in one flow, and with a flow for each tenant.
    shares: [[f64; 3]; 2],
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

/// The memory of the server while clients wait, and the memory that the system has given it, in bytes for
/// each.
#[derive(Serialize, Deserialize)]
struct Memory {
    call: String,
    used: f64,
    resident: f64,
}

/// How many clients wait, and how many have received an error for lack of memory.
#[derive(Serialize, Deserialize)]
struct Full {
    bytes: usize,
    waiting: usize,
    refused: usize,
}

/// Clients on separate connections, each with at most one call under way.
pub struct Crowd {
    streams: Vec<TcpStream>,
    epoll: OwnedFd,
}

impl Crowd {
    pub fn new(server: &Server, clients: usize) -> Result<Self, Box<dyn Error>> {
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

    pub fn send(&mut self, client: usize, calls: &str) -> Result<(), Box<dyn Error>> {
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

/// Allows as many connections as there may be, pins the load, and returns the cores, and the prefix of the
/// server's command line.
pub fn place() -> Result<(Option<Cores>, Vec<String>), Box<dyn Error>> {
    let files = getrlimit(Resource::Nofile).maximum;
    let allow = |files| setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files });
    // Root may allow more, if its machine lets it.
    allow(files.map(|files| files.max(MANY as u64 + 1_000))).or_else(|_| allow(files))?;
    let cores = Cores::choose();
    if let Some(cores) = cores {
        cores.pin_load()?;
    }
    Ok((cores, cores.map(|cores| on(cores.server)).unwrap_or_default()))
}

/// Measures only what events cost other clients, and prints it.
pub fn events(binaries: &Binaries) -> Result<(), Box<dyn Error>> {
    let (_, program) = place()?;
    let start = || Server::start_under(&program, Setup::Module, binaries, &QUIET);
    println!("{}", stalls::markdown(&stalls::run(start)?));
    println!("{}", crate::curves::leavers(start)?.line());
    Ok(())
}

/// Measures only the memory of waiting clients, and prints it.
pub fn only_memory(binaries: &Binaries) -> Result<(), Box<dyn Error>> {
    let (_, program) = place()?;
    let (memory, full) = memories(&program, binaries)?;
    println!("{}", memory_markdown(&memory, Some(&full)));
    Ok(())
}

/// Measures the memory of waiting clients.
fn memories(program: &[String], binaries: &Binaries) -> Result<(Vec<Memory>, Full), Box<dyn Error>> {
    let files = getrlimit(Resource::Nofile).maximum;
    let at_most = |clients: usize| files.map_or(clients, |files| clients.min(files as usize - 1_000));
    let memory: Result<Vec<_>, _> =
        WAITS.iter().map(|call| memory(program, binaries, call, at_most(CROWD))).collect();
    Ok((memory?, full(program, binaries, at_most(MANY))?))
}

/// Measures waiting clients, and writes the results to `target/bench`.
pub fn run(binaries: &Binaries, rounds: usize) -> Result<(), Box<dyn Error>> {
    let (cores, program) = place()?;
    let start = || Server::start_under(&program, Setup::Module, binaries, &QUIET);
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
    eprintln!("memory ...");
    let (memory, full) = memories(&program, binaries)?;
    eprintln!("shares ...");
    let shares = [shares(&start()?, false)?, shares(&start()?, true)?];
    let stalls = stalls::run(start)?;
    let (when, machine) = (now()?, machine(binaries, cores)?);
    let waits =
        Waits { when, machine, rounds, turns: all, bystanders, memory, full: Some(full), stalls, shares };
    println!("{}", markdown(&waits));
    let folder = Path::new("target/bench");
    fs::create_dir_all(folder)?;
    fs::write(folder.join("waiting.json"), serde_json::to_string_pretty(&waits)?)?;
    println!("also in target/bench: waiting.json");
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

/// Calls that wait: the server's own, and the module's. `#` is the number of the client.
const WAITS: [&str; 3] =
    ["BLPOP list# 0", "CL.BTHROTTLE one 0 1 3600 1 0", "CL.BMTAKE busy LEASE 1 3600 client# FLOW flow#"];
/// The clients whose memory is measured, and those that ask for more than there is.
const CROWD: usize = 10_000;
const MANY: usize = 50_000;
/// The memory of that server for each of them beyond that of their connections, which is less than they take.
const BYTES_EACH: usize = 20 << 10;

/// Starts a server for this many clients, and connects them. More of them than TCP has ports reach it by its
/// other socket.
fn crowd(
    program: &[String],
    binaries: &Binaries,
    clients: usize,
) -> Result<(Server, Vec<UnixStream>), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket").display().to_string();
    let most = (clients + 100).to_string();
    let options = ["--maxclients", &most, "--unixsocket", &socket];
    let server = Server::start_under(program, Setup::Module, binaries, &options)?;
    let mut connection = server.connect()?;
    crate::curves::ask(&mut connection, "CL.ACQUIRE busy 1 3600 holder")?;
    crate::curves::ask(&mut connection, "CL.THROTTLE one 0 1 3600")?;
    let streams: Result<Vec<_>, _> = (0..clients).map(|_| UnixStream::connect(&socket)).collect();
    let mut streams = streams?;
    for stream in &mut streams {
        stream.write_all(&encode("PING", 0))?;
        let _ = stream.read(&mut [0; 100])?;
        stream.set_nonblocking(true)?;
    }
    Ok((server, streams))
}

/// Sends the call of each client.
fn ask_all(streams: &mut [UnixStream], call: &str) -> Result<(), Box<dyn Error>> {
    for (client, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&encode(&call.replace('#', &client.to_string()), 0))?;
    }
    Ok(())
}

/// Measures what clients take of the memory while they wait with `call`.
fn memory(
    program: &[String],
    binaries: &Binaries,
    call: &str,
    clients: usize,
) -> Result<Memory, Box<dyn Error>> {
    let (server, mut streams) = crowd(program, binaries, clients)?;
    let measure = || -> Result<[f64; 2], Box<dyn Error>> {
        thread::sleep(Duration::from_secs(10)); // the server shrinks the buffers of connections that are idle
        Ok([server.info("used_memory")?.parse()?, server.info("used_memory_rss")?.parse()?])
    };
    let before = measure()?;
    ask_all(&mut streams, call)?;
    wait_for_blocked(&server, clients)?;
    let after = measure()?;
    let [used, resident] = [0, 1].map(|each| (after[each] - before[each]) / clients as f64);
    Ok(Memory { call: call.to_owned(), used, resident })
}

/// Lets clients ask to wait until the server has no more memory for them.
fn full(program: &[String], binaries: &Binaries, clients: usize) -> Result<Full, Box<dyn Error>> {
    let (server, mut streams) = crowd(program, binaries, clients)?;
    let bytes = server.info("used_memory")?.parse::<usize>()? + clients * BYTES_EACH;
    crate::curves::ask(&mut server.connect()?, &format!("CONFIG SET maxmemory {bytes}"))?;
    ask_all(&mut streams, WAITS[2])?;
    let mut refused = 0;
    loop {
        thread::sleep(Duration::from_millis(100));
        for stream in &mut streams {
            let mut reply = [0; 100];
            if let Ok(length) = stream.read(&mut reply) {
                let reply = String::from_utf8_lossy(&reply[..length]).into_owned();
                if !reply.starts_with("-OOM ") {
                    return Err(format!("a client was answered {reply}").into());
                }
                refused += 1;
            }
        }
        let waiting: usize = server.info("blocked_clients")?.parse()?;
        if waiting + refused == clients {
            return Ok(Full { bytes, waiting, refused });
        }
    }
}

/// Simulates three tenants. The one with the smallest weight floods the service with 300 clients; the others
/// have 20 each. Returns the share of each in the admissions, in percent.
fn shares(server: &Server, by_flow: bool) -> Result<[f64; 3], Box<dyn Error>> {
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
    let mut admitted = [0; 3];
    while admitted.iter().sum::<usize>() < SHARED {
        for (client, reply) in crowd.replies()? {
            if is_admitted(&reply) {
                admitted[tenant(client)] += 1;
                crowd.send(client, &format!("CL.RELEASE busy c{client} ; {}", wait(client)))?;
            }
        }
    }
    let all = admitted.iter().sum::<usize>() as f64;
    Ok(admitted.map(|admitted| 100.0 * admitted as f64 / all))
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
    text += &stalls::markdown(&all.stalls);
    text += &memory_markdown(&all.memory, all.full.as_ref());
    let _ = writeln!(
        text,
        "\n| {} admissions | weight 1, 300 clients | weight 2, 20 | weight 4, 20 |",
        thousands(SHARED)
    );
    text += "|---|--:|--:|--:|\n";
    for (name, [one, two, four]) in ["all in one flow", "a flow for each"].iter().zip(all.shares) {
        let _ = writeln!(text, "| {name} | {one:.2} % | {two:.2} % | {four:.2} % |");
    }
    let [one, two, four] = WEIGHTS.map(|weight| 100.0 * weight as f64 / 7.0);
    let _ = writeln!(text, "| by weight | {one:.2} % | {two:.2} % | {four:.2} % |");
    text
}

/// Returns the memory of waiting clients as a table for a page.
fn memory_markdown(memory: &[Memory], full: Option<&Full>) -> String {
    let mut text = String::new();
    if !memory.is_empty() {
        text += "\n| a client that waits | memory used | resident |\n|---|--:|--:|\n";
    }
    for Memory { call, used, resident } in memory {
        let _ = writeln!(text, "| `{call}` | {:.1} KB | {:.1} KB |", used / 1024.0, resident / 1024.0);
    }
    if let Some(Full { bytes, waiting, refused }) = full {
        let (asked, waiting, refused) =
            (thousands(waiting + refused), thousands(*waiting), thousands(*refused));
        let _ = writeln!(
            text,
            "\nBeside a `maxmemory` of {} MB, of {asked} clients that call `CL.BMTAKE`, {waiting} wait, and {refused} receive `OOM`.",
            bytes >> 20
        );
    }
    text
}
