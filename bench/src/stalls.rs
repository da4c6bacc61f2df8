//! The delays of other clients while waiting clients leave together, or while keys for which they wait
//! change.

use std::error::Error;
use std::fmt::{self, Display, Formatter, Write as _};
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Connection, cmd};
use serde::{Deserialize, Serialize};

use crate::curves::{ask, wait_for_blocked};
use crate::server::{Server, cpu};
use crate::waiting::Crowd;

/// The time between two PINGs.
const EVERY: Duration = Duration::from_millis(5);
/// For how long events come, and how many in a second.
const LONG: Duration = Duration::from_secs(10);
const EVENTS: u32 = 400;
/// The limiters of a call that names very many.
const MANY: usize = 2_000;

/// The latest reply to a PING, in milliseconds, and the most processor time that the server's main thread
/// used from the sending of a PING until it replied. The rest of the delay is the machine's, if it has other
/// work.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Latest {
    pub after: f64,
    pub cpu: f64,
}

impl Display for Latest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms ({:.1})", self.after, self.cpu)
    }
}

/// The cost of an event for other clients.
#[derive(Serialize, Deserialize)]
pub struct Stall {
    pub event: String,
    /// While nobody waits, and beside clients that wait.
    pub alone: Latest,
    pub beside: Latest,
    /// The processor time of one decision that an event causes, in milliseconds, where that is much.
    pub decision: Option<f64>,
    /// What was admitted meanwhile in percent of what is due: while nobody else waits, and beside clients
    /// that wait.
    pub admitted: Option<[f64; 2]>,
}

/// Returns the table of events for a page.
pub fn markdown(all: &[Stall]) -> String {
    let mut text = String::from(
        "\n| event | latest PING (of it the server's work), nobody waits | beside clients that wait \
         | one decision | admitted of what is due |\n",
    );
    text += "|---|--:|--:|--:|--:|\n";
    for Stall { event, alone, beside, decision, admitted } in all {
        let decision = decision.map_or(String::new(), |decision| format!("{decision:.1} ms"));
        let admitted =
            admitted.map_or(String::new(), |[alone, beside]| format!("{alone:.1} %, {beside:.1} %"));
        let _ = writeln!(text, "| {event} | {alone} | {beside} | {decision} | {admitted} |");
    }
    text
}

/// A client that sends a PING every 5 ms.
struct Pings {
    is_over: Arc<AtomicBool>,
    latest: JoinHandle<Result<Latest, String>>,
}

impl Pings {
    fn start(server: &Server) -> Result<Self, Box<dyn Error>> {
        let mut stream = server.stream()?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let (is_over, schedstat) = (Arc::new(AtomicBool::new(false)), server.schedstat());
        let until = Arc::clone(&is_over);
        let mut pings = move || -> Result<Latest, Box<dyn Error>> {
            let mut latest = Latest::default();
            while !until.load(Relaxed) {
                let (begin, before) = (Instant::now(), cpu(&schedstat)?);
                stream.write_all(b"PING\r\nINFO cpu\r\n")?;
                stream.read_exact(&mut [0; 7])?;
                let after = begin.elapsed();
                latest.after = latest.after.max(after.as_secs_f64() * 1e3);
                latest.cpu = latest.cpu.max(main_thread(&mut stream)? * 1e3 - before / 1e6);
                thread::sleep(EVERY.saturating_sub(after));
            }
            Ok(latest)
        };
        let latest = thread::spawn(move || pings().map_err(|error| error.to_string()));
        thread::sleep(20 * EVERY);
        Ok(Self { is_over, latest })
    }

    fn latest(self) -> Result<Latest, Box<dyn Error>> {
        thread::sleep(20 * EVERY);
        self.is_over.store(true, Relaxed);
        Ok(self.latest.join().map_err(|_| "the thread that sends PINGs has panicked")??)
    }
}

/// Reads a reply to `INFO cpu`, and returns the processor time of the server's main thread in seconds.
fn main_thread(stream: &mut TcpStream) -> Result<f64, Box<dyn Error>> {
    let (mut reply, mut buffer) = (String::new(), [0; 1_024]);
    loop {
        let length = stream.read(&mut buffer)?;
        reply += std::str::from_utf8(&buffer[..length])?;
        let field = |name: &str| reply.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
        if length == 0 {
            return Err("the server has closed the connection".into());
        }
        // The last of the fields.
        if reply.contains("used_cpu_user_main_thread:") && reply.ends_with("\r\n") {
            let of = ["used_cpu_sys_main_thread:", "used_cpu_user_main_thread:"].map(field);
            return Ok(of.into_iter().flatten().sum());
        }
    }
}

/// Measures all events, each on a server without clients that wait and on one with them.
pub fn run(start: impl Fn() -> Result<Server, Box<dyn Error>>) -> Result<Vec<Stall>, Box<dyn Error>> {
    let mut stalls = Vec::new();
    for (event, limit, admit) in [
        (
            "400 renewals a second of a place that 4,000 flows wait for; a flow that does not",
            "0 10",
            ready as Admit,
        ),
        ("the same; 50 plain calls a second on the flows' first key", "999 1000", plain),
    ] {
        eprintln!("{event} ...");
        let (alone, due) = events(&start()?, 0, (limit, admit))?;
        let (beside, admitted) = events(&start()?, 4_000, (limit, admit))?;
        let decision = None;
        stalls.push(Stall {
            event: event.to_owned(),
            alone,
            beside,
            decision,
            admitted: Some([due, admitted]),
        });
    }
    let event = "2,000 clients leave a queue together, 3,000 flows wait for its key";
    eprintln!("{event} ...");
    let (_, alone) = departures(&start()?, 0, 2_000)?;
    let (_, beside) = departures(&start()?, 3_000, 2_000)?;
    stalls.push(Stall { event: event.to_owned(), alone, beside, decision: None, admitted: None });
    eprintln!("decisions that take long ...");
    stalls.push(ring(&start()?)?);
    stalls.extend(many(&start()?)?);
    Ok(stalls)
}

/// Makes calls on the key `a` until an instant, and returns the percentage of what is due that is admitted.
type Admit = fn(&mut Connection, Instant) -> Result<f64, Box<dyn Error>>;

/// A flow that waits for its turns on a limiter of 10 a second.
fn ready(connection: &mut Connection, until: Instant) -> Result<f64, Box<dyn Error>> {
    let (begin, mut admitted) = (Instant::now(), 0_u32);
    while Instant::now() < until {
        let _: redis::Value =
            cmd("CL.BMTAKE").arg(words("a THROTTLE 0 10 1 1 FLOW ready")).query(connection)?;
        admitted += 1;
    }
    Ok(100.0 * f64::from(admitted - 1) / (10.0 * begin.elapsed().as_secs_f64()))
}

/// Plain calls on a limiter of 1,000 a second.
fn plain(connection: &mut Connection, until: Instant) -> Result<f64, Box<dyn Error>> {
    let (mut calls, mut admitted) = (0_u32, 0_u32);
    while Instant::now() < until {
        let rows: Vec<Vec<i64>> = cmd("CL.MTAKE").arg(words("a THROTTLE 999 1000 1 1")).query(connection)?;
        calls += 1;
        admitted += u32::from(rows[0][0] == 0);
        thread::sleep(Duration::from_millis(20));
    }
    Ok(100.0 * f64::from(admitted) / f64::from(calls))
}

fn words(call: &str) -> Vec<&str> {
    call.split(' ').collect()
}

/// Renews a place many times a second, for which flows wait that have `a` as their first key. Returns the
/// latest PING, and what `admit` returns.
fn events(
    server: &Server,
    flows: usize,
    (limit, admit): (&str, Admit),
) -> Result<(Latest, f64), Box<dyn Error>> {
    let mut connection = server.connect()?;
    ask(&mut connection, "CL.ACQUIRE b 1 36000 holder")?;
    let mut crowd = Crowd::new(server, flows)?;
    for flow in 0..flows {
        crowd
            .send(flow, &format!("CL.BMTAKE a THROTTLE {limit} 1 1 b LEASE 1 36000 h{flow} FLOW f{flow}"))?;
    }
    wait_for_blocked(server, flows)?;
    let (pings, begin) = (Pings::start(server)?, Instant::now());
    let mut renewing = server.connect()?;
    let renewals = thread::spawn(move || -> redis::RedisResult<()> {
        for number in 0.. {
            let due = begin + Duration::from_secs(1) * number / EVENTS;
            if due > begin + LONG {
                break;
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let _: redis::Value = cmd("CL.RENEW").arg(words("b 36000 holder")).query(&mut renewing)?;
        }
        Ok(())
    });
    let admitted = admit(&mut connection, begin + LONG)?;
    renewals.join().map_err(|_| "the thread that renews has panicked")??;
    Ok((pings.latest()?, admitted))
}

/// Ends the connections of clients that wait for `b` together, for which flows wait as well. Returns the
/// processor time that the server takes until all is over, in nanoseconds, and the latest PING.
pub fn departures(server: &Server, flows: usize, leavers: usize) -> Result<(f64, Latest), Box<dyn Error>> {
    ask(&mut server.connect()?, "CL.ACQUIRE b 1 36000 holder")?;
    let (mut crowd, mut leaving) = (Crowd::new(server, flows)?, Crowd::new(server, leavers)?);
    for flow in 0..flows {
        crowd.send(flow, &format!("CL.BMTAKE a THROTTLE 0 10 1 1 b LEASE 1 36000 h{flow} FLOW f{flow}"))?;
    }
    for leaver in 0..leavers {
        leaving.send(leaver, &format!("CL.BMTAKE b LEASE 1 36000 l{leaver}"))?;
    }
    wait_for_blocked(server, flows + leavers)?;
    let (pings, before) = (Pings::start(server)?, server.cpu()?);
    drop(leaving);
    settle(server, flows)?;
    Ok((server.cpu()? - before, pings.latest()?))
}

/// Waits until this number of clients waits, and until the server has nothing to do.
fn settle(server: &Server, blocked: usize) -> Result<(), Box<dyn Error>> {
    wait_for_blocked(server, blocked)?;
    let mut before = server.cpu()?;
    loop {
        thread::sleep(Duration::from_millis(100));
        let now = server.cpu()?;
        if now - before < 10e6 {
            return Ok(());
        }
        before = now;
    }
}

/// Returns the processor time that a call takes, in milliseconds.
fn took(server: &Server, connection: &mut Connection, call: &str) -> Result<f64, Box<dyn Error>> {
    let before = server.cpu()?;
    ask(connection, call)?;
    thread::sleep(Duration::from_millis(2)); // the kernel updates it when the thread goes to sleep
    Ok((server.cpu()? - before) / 1e6)
}

/// A hundred clients are admitted by one event, each with 10,000 entries of a log.
fn ring(server: &Server) -> Result<Stall, Box<dyn Error>> {
    const CLIENTS: usize = 100;
    let mut connection = server.connect()?;
    let call = |client: usize| format!("gate FIXED {CLIENTS} 36000 1 log{client} LOG 10000 36000 10000");
    let decision = took(server, &mut connection, &format!("CL.MTAKE {}", call(CLIENTS)))?;
    ask(&mut connection, &format!("CL.FIXED gate {CLIENTS} 36000 {}", CLIENTS - 1))?;
    let mut crowd = Crowd::new(server, CLIENTS)?;
    let pings = Pings::start(server)?;
    let alone = pings.latest()?;
    for client in 0..CLIENTS {
        crowd.send(client, &format!("CL.BMTAKE {} FLOW {client}", call(client)))?;
    }
    wait_for_blocked(server, CLIENTS)?;
    let pings = Pings::start(server)?;
    ask(&mut connection, "DEL gate")?;
    settle(server, 0)?;
    Ok(Stall {
        event: "one DEL admits 100 clients, each with 10,000 entries of a log".to_owned(),
        alone,
        beside: pings.latest()?,
        decision: Some(decision),
        admitted: None,
    })
}

/// 150 flows wait with 2,000 limiters each; one of these keys changes, and all of them do.
fn many(server: &Server) -> Result<[Stall; 2], Box<dyn Error>> {
    const FLOWS: usize = 150;
    let mut connection = server.connect()?;
    let all: Vec<String> = (2..MANY).map(|key| format!("k{key} FIXED 1000000 36000 1")).collect();
    let all = all.join(" ");
    let take = format!("CL.MTAKE {all}");
    ask(&mut connection, &format!("{take} ; CL.ACQUIRE b 1 36000 holder"))?;
    let measure = |event: &str, connection: &mut Connection| -> Result<Latest, Box<dyn Error>> {
        let pings = Pings::start(server)?;
        ask(connection, event)?;
        let blocked = server.info("blocked_clients")?.parse()?;
        settle(server, blocked)?;
        pings.latest()
    };
    let decision = took(server, &mut connection, &take)?;
    let events = ["CL.RENEW b 36000 holder", &take];
    let alone = [measure(events[0], &mut connection)?, measure(events[1], &mut connection)?];
    let mut crowd = Crowd::new(server, FLOWS)?;
    for flow in 0..FLOWS {
        let call = format!("CL.BMTAKE a FIXED 1000000 36000 1 b LEASE 1 36000 h{flow} {all} FLOW f{flow}");
        crowd.send(flow, &call)?;
    }
    wait_for_blocked(server, FLOWS)?;
    let beside = [measure(events[0], &mut connection)?, measure(events[1], &mut connection)?];
    let stall = |event: &str, at: usize| Stall {
        event: format!("{event}, 150 flows wait with 2,000 limiters each"),
        alone: alone[at],
        beside: beside[at],
        decision: Some(decision),
        admitted: None,
    };
    Ok([stall("one key changes", 0), stall("1,998 keys change in one call", 1)])
}
