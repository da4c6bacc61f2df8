//! The load: calls that are encoded in advance and sent in pipelines. Only the line ends of the replies are
//! counted.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use redis::{ConnectionLike, Value};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;

use crate::lines::Side;
use crate::server::Server;

/// The number of keys.
pub const KEYS: usize = 100_000;

/// The number of encoded calls: about as many as one round sends, so that the keys are random.
const CALLS: usize = 256_000;

/// The scripts, by the placeholders for their names.
const SCRIPTS: [(&str, &str); 8] = [
    ("{account}", include_str!("account.lua")),
    ("{counter}", include_str!("counter.lua")),
    ("{counters}", include_str!("counters.lua")),
    ("{gcra}", include_str!("gcra.lua")),
    ("{halves}", include_str!("halves.lua")),
    ("{hold}", include_str!("hold.lua")),
    ("{list}", include_str!("list.lua")),
    ("{mtake}", include_str!("mtake.lua")),
];
/// The function library, as assembled by scripts/functions.sh.
const FUNCTIONS: &str = "target/functions/redis_cell.lua";

/// How calls are sent.
#[derive(Clone, Copy)]
pub struct Shape {
    pub connections: usize,
    /// The number of commands that a connection sends before it waits for their replies.
    pub pipeline: usize,
}

/// For throughput: with several pipelines under way, the server never waits for the load.
pub const PIPELINED: Shape = Shape { connections: 4, pipeline: 64 };
/// For latency.
pub const UNPIPELINED: Shape = Shape { connections: 50, pipeline: 1 };

/// The time of a round, in nanoseconds per unit of calls.
#[derive(Clone, Copy)]
pub struct Took {
    pub wall: f64,
    /// Processor time of the server's main thread.
    pub cpu: f64,
}

/// One side of a line, ready for measurement.
pub struct Load<'a> {
    side: &'static Side,
    server: &'a Server,
    database: usize,
    /// The number of keys that were created.
    keys: usize,
    streams: Vec<TcpStream>,
    pipelines: Vec<Vec<u8>>,
    /// The number of units in a pipeline, and of line ends in its replies.
    units: usize,
    line_ends: usize,
    next: usize,
}

impl<'a> Load<'a> {
    /// Creates the keys and encodes the calls.
    pub fn prepare(
        side: &'static Side,
        server: &'a Server,
        database: usize,
        shape: Shape,
    ) -> Result<Self, Box<dyn Error>> {
        Self::prepare_keys(side, server, database, shape, &(0..KEYS).collect::<Vec<_>>())
    }

    /// Like `prepare`, but only with the keys of these numbers.
    pub fn prepare_keys(
        side: &'static Side,
        server: &'a Server,
        database: usize,
        shape: Shape,
        numbers: &[usize],
    ) -> Result<Self, Box<dyn Error>> {
        let mut connection = server.database(database)?;
        let (mut prepare, mut call) = (side.prepare.to_owned(), side.call.to_owned());
        for (place, script) in SCRIPTS {
            let name: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut connection)?;
            (prepare, call) = (prepare.replace(place, &name), call.replace(place, &name));
        }
        if side.call.starts_with("FCALL") {
            let library = std::fs::read_to_string(FUNCTIONS)?;
            redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(library).exec(&mut connection)?;
        }
        redis::cmd("FLUSHDB").exec(&mut connection)?;
        fill_keys(&mut connection, &prepare, numbers)?;
        let keys = redis::cmd("DBSIZE").query(&mut connection)?;

        let answers = ask(&mut connection, side, &encode(&call, numbers[0]))?;
        let units = (shape.pipeline / answers.len()).max(1);
        let pipelines = (0..CALLS / shape.pipeline)
            .map(|_| {
                (0..units).flat_map(|_| encode(&call, numbers[fastrand::usize(..numbers.len())])).collect()
            })
            .collect();
        let mut streams = Vec::new();
        for _ in 0..shape.connections {
            let mut stream = server.stream()?;
            stream.write_all(format!("SELECT {database}\r\n").as_bytes())?;
            read_line_ends(&mut stream, 1)?;
            streams.push(stream);
        }
        let line_ends = units * answers.iter().map(line_ends).sum::<usize>();
        Ok(Self { side, server, database, keys, streams, pipelines, units, line_ends, next: 0 })
    }

    /// Sends pipelines for this duration, and waits for the last reply.
    pub fn round(&mut self, length: Duration) -> Result<Took, Box<dyn Error>> {
        let cpu = self.server.cpu()?;
        let start = Instant::now();
        let mut done = 0;
        for connection in 0..self.streams.len() {
            self.send(connection)?;
        }
        while start.elapsed() < length {
            for connection in 0..self.streams.len() {
                read_line_ends(&mut self.streams[connection], self.line_ends)?;
                self.send(connection)?;
                done += 1;
            }
        }
        for stream in &mut self.streams {
            read_line_ends(stream, self.line_ends)?;
            done += 1;
        }
        let wall = start.elapsed();
        // The kernel updates a thread's processor time when the thread goes to sleep.
        thread::sleep(Duration::from_millis(2));
        let cpu = self.server.cpu()? - cpu;
        self.server.settle()?;
        let units = (done * self.units) as f64;
        Ok(Took { wall: wall.as_nanos() as f64 / units, cpu: cpu / units })
    }

    /// Sends the next call of a connection when the previous one is answered. Returns the time of each call
    /// in nanoseconds.
    pub fn latencies(&mut self, length: Duration) -> Result<Vec<f64>, Box<dyn Error>> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let start = Instant::now();
        let mut sent = Vec::new();
        for connection in 0..self.streams.len() {
            let number = epoll::EventData::new_u64(connection as u64);
            epoll::add(&ready, &self.streams[connection], number, epoll::EventFlags::IN)?;
            sent.push(Instant::now());
            self.send(connection)?;
        }
        let mut took = Vec::new();
        let mut events = Vec::with_capacity(self.streams.len());
        while start.elapsed() < length {
            events.clear();
            epoll::wait(&ready, spare_capacity(&mut events), None)?;
            for event in &events {
                let connection = event.data.u64() as usize;
                read_line_ends(&mut self.streams[connection], self.line_ends)?;
                took.push(sent[connection].elapsed().as_nanos() as f64);
                sent[connection] = Instant::now();
                self.send(connection)?;
            }
        }
        for stream in &mut self.streams {
            read_line_ends(stream, self.line_ends)?;
        }
        Ok(took)
    }

    fn send(&mut self, connection: usize) -> std::io::Result<()> {
        let pipeline = &self.pipelines[self.next % self.pipelines.len()];
        self.next += 1;
        self.streams[connection].write_all(pipeline)
    }

    /// Checks the replies again, and deletes the keys.
    pub fn finish(self) -> Result<(), Box<dyn Error>> {
        let mut connection = self.server.database(self.database)?;
        for pipeline in self.pipelines.iter().take(100) {
            ask(&mut connection, self.side, pipeline)?;
        }
        let keys: usize = redis::cmd("DBSIZE").query(&mut connection)?;
        let expired = self.server.info("expired_keys")?;
        // If a key expired between two calls, the second call would be cheaper or more expensive.
        if keys != self.keys || expired != "0" {
            return Err(format!("{}: {keys} keys at the end, {expired} expired", self.side.name).into());
        }
        redis::cmd("FLUSHDB").exec(&mut connection)?;
        self.server.settle()
    }
}

/// Creates keys, all with the same calls.
pub fn fill(connection: &mut redis::Connection, call: &str, keys: usize) -> Result<(), Box<dyn Error>> {
    fill_keys(connection, call, &(0..keys).collect::<Vec<_>>())
}

fn fill_keys(
    connection: &mut redis::Connection,
    call: &str,
    numbers: &[usize],
) -> Result<(), Box<dyn Error>> {
    for numbers in numbers.chunks(1_000) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|&number| encode(call, number)).collect();
        let calls = numbers.len() * call.split(" ; ").count();
        connection.req_packed_commands(&bytes, 0, calls)?.iter().try_for_each(no_error)?;
    }
    Ok(())
}

/// Sends one pipeline, and checks that the replies are as expected for this side.
fn ask(
    connection: &mut redis::Connection,
    side: &Side,
    pipeline: &[u8],
) -> Result<Vec<Value>, Box<dyn Error>> {
    let commands = memchr::memchr_iter(b'*', pipeline).count();
    let answers = connection.req_packed_commands(pipeline, 0, commands)?;
    answers.iter().try_for_each(no_error)?;
    let each = side.call.split(" ; ").count();
    match answers.iter().step_by(each).map(wire).find(|answer| !answer.starts_with(side.answer)) {
        Some(other) => Err(format!("{} was answered {other:?}", side.name).into()),
        None => Ok(answers),
    }
}

pub fn no_error(answer: &Value) -> Result<(), Box<dyn Error>> {
    match answer {
        Value::ServerError(error) => Err(format!("the server says {error:?}").into()),
        _ => Ok(()),
    }
}

/// Returns the reply in the wire format.
fn wire(answer: &Value) -> String {
    match answer {
        Value::Nil => "$-1\r\n".to_owned(),
        Value::Int(number) => format!(":{number}\r\n"),
        Value::BulkString(bytes) => format!("${}\r\n{}\r\n", bytes.len(), bytes.escape_ascii()),
        Value::Array(values) => {
            let all: String = values.iter().map(wire).collect();
            format!("*{}\r\n{all}", values.len())
        }
        Value::Okay => "+OK\r\n".to_owned(),
        Value::SimpleString(text) => format!("+{text}\r\n"),
        other => format!("{other:?}"),
    }
}

fn line_ends(answer: &Value) -> usize {
    memchr::memchr_iter(b'\n', wire(answer).as_bytes()).count()
}

/// Returns the calls of one unit, on key number `key` and two others.
pub fn encode(calls: &str, key: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for call in calls.split(" ; ") {
        let words: Vec<String> = call.split(' ').map(|word| fill_in(word, key)).collect();
        bytes.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
    }
    bytes
}

fn fill_in(word: &str, key: usize) -> String {
    let places =
        [("{a}", key), ("{hot}", 0), ("{b}", (key + KEYS / 3) % KEYS), ("{c}", (key + KEYS / 2) % KEYS)];
    let filled = places.iter().find_map(|(place, key)| {
        let suffix = word.strip_prefix(place)?;
        Some(format!("key:{key:012}{suffix}"))
    });
    filled.unwrap_or_else(|| word.to_owned())
}

/// Reads until this number of lines has ended.
pub fn read_line_ends(stream: &mut TcpStream, mut missing: usize) -> Result<(), Box<dyn Error>> {
    let mut buffer = [0; 16_384];
    while missing > 0 {
        let bytes = stream.read(&mut buffer)?;
        let ends = memchr::memchr_iter(b'\n', &buffer[..bytes]).count();
        missing =
            missing.checked_sub(ends).filter(|_| bytes > 0).ok_or("an answer is not what was expected")?;
    }
    Ok(())
}
