//! The lines to copy, run as they stand against a real server whose clocks are stopped: the command in
//! `redis-cli`, the line in Python, and the line in Rust, which the compiler has read in this file. Each
//! gives the decisions that the playground shows, and leaves the same keys.
//!
//! `make test-apps` names the server, the module, and a Python with the package `redis_cell`:
//! `REDIS_CELL_SERVER`, `REDIS_CELL_MODULE`, `REDIS_CELL_PYTHON`.

// A test should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::format_collect,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unreadable_literal, // of the lines to copy
    clippy::unwrap_used
)]

#[path = "../../../tests/common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the other test programs use the rest
mod common;

use std::env;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use common::{Client, Clock, Options, SECOND, Server};
use redis::{Connection, RedisResult};
use redis_cell_client::several::Taken;
use redis_cell_client::{
    Answer, CellCommands, Decision, Fixed, FixedWindow, MTake, Places, Rate, Units, Weekday,
};
use serde_json::{Value, json};

/// When the traffic of the playground begins.
const START: i64 = 1_767_571_200 * SECOND;

/// How often each line is run. All calls come at the same instant.
const CALLS: usize = 6;

/// The five integers of each row of a reply, in microseconds.
type Rows = Vec<[i64; 5]>;

/// The rows of an answer in Rust.
trait ToRows {
    fn rows(&self) -> Rows;
}

impl ToRows for Answer {
    fn rows(&self) -> Rows {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap();
        let (limited, retry_after) = match self.decision {
            Decision::Admitted => (0, -1),
            Decision::RefusedFor(time) => (1, micros(time)),
            _ => (1, -1), // forever
        };
        let [limit, remaining] = [self.limit, self.remaining].map(u64::cast_signed);
        vec![[limited, limit, remaining, retry_after, micros(self.reset_after)]]
    }
}

impl ToRows for Taken {
    fn rows(&self) -> Rows {
        [&[self.combined], self.each.as_slice()].concat().iter().flat_map(Answer::rows).collect()
    }
}

/// A policy, and the lines in Rust that the playground shows for it.
struct Line {
    policy: &'static str,
    rust: &'static str,
    run: fn(&mut Connection) -> RedisResult<Rows>,
}

/// Lines in Rust as text and as code: first the calls of one line. They use the names of the caller.
macro_rules! lines {
    ($connection:ident, $answer:ident:
     $($one:literal => $call:expr;)* several: $($policy:literal { $($rust:tt)* })*) => {
        vec![$(Line {
            policy: $one,
            rust: concat!("let answer = ", stringify!($call), "?;"),
            run: |$connection| Ok($call?.rows()),
        },)* $(Line {
            policy: $policy,
            rust: stringify!($($rust)*),
            run: |$connection| { $($rust)* Ok($answer.rows()) },
        }),*]
    };
}

fn lines() -> Vec<Line> {
    lines! { connection, answer:
        "k THROTTLE 2 30 60 1" =>
            connection.cl_throttle("k", Rate::new(30, Duration::from_secs(60)).burst(2), Units(1));
        "k THROTTLE 3 30 60 2 MS" =>
            connection.cl_throttle("k", Rate::new(30, Duration::from_millis(60)).burst(3), Units(2));
        "k THROTTLE 3 30 60000001 5 US" =>
            connection.cl_throttle("k", Rate::new(30, Duration::from_micros(60000001)).burst(3), Units(5));
        "k THROTTLE 3 30 60 0" =>
            connection.cl_throttle("k", Rate::new(30, Duration::from_secs(60)).burst(3), Units(0));
        "\"\\<user> FUNNEL 4 30 60 1" =>
            connection.cl_funnel("\"\\user1", Rate::new(30, Duration::from_secs(60)).capacity(4), Units(1));
        "k BUCKET 4 30 60 3" =>
            connection.cl_bucket("k", Rate::new(30, Duration::from_secs(60)).capacity(4), Units(3));
        "k FIXED 4 60 1" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::period(Duration::from_secs(60))), Units(1));
        "k FIXED 4 1500 2 MS" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::period(Duration::from_millis(1500))), Units(2));
        "k FIXED 4 HOUR 1" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::hour()), Units(1));
        "k FIXED 4 day UTC -90 1" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::day().utc_offset_minutes(-90)), Units(1));
        "k FIXED 4 WEEK FROM 7 1" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::week_from(Weekday::Sunday)), Units(1));
        "k FIXED 4 MONTH UTC 60 FROM 15 2" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::month_from(15).utc_offset_minutes(60)), Units(2));
        "k FIXED 4 YEAR 1" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::year()), Units(1));
        "k FIXED 4 UNTIL 1767571260 1" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::until(UNIX_EPOCH + Duration::from_secs(1767571260))), Units(1));
        "k FIXED 4 UNTIL 1767571260250 2 MS" =>
            connection.cl_fixed("k", Fixed::new(4, FixedWindow::until(UNIX_EPOCH + Duration::from_millis(1767571260250))), Units(2));
        "k WINDOW 4 60 1" =>
            connection.cl_window("k", Rate::new(4, Duration::from_secs(60)), Units(1));
        "k LOG 4 60 3" =>
            connection.cl_log("k", Rate::new(4, Duration::from_secs(60)), Units(3));
        "k LEASE 2 10 \"a'\\<user>\"" =>
            connection.cl_acquire("k", Places(2), Duration::from_secs(10), "\"a'\\user1\"");
        "k LEASE 2 2500 <call> MS" =>
            connection.cl_acquire("k", Places(2), Duration::from_millis(2500), "call1");
        several:
        "a:<user> THROTTLE 4 5 1 2 b:<user> BUCKET 3 5 1 1 c:<user> FUNNEL 9 5 1 0" {
            let take = MTake::new()
                .throttle("a:user1", Rate::new(5, Duration::from_secs(1)).burst(4), Units(2))
                .bucket("b:user1", Rate::new(5, Duration::from_secs(1)).capacity(3), Units(1))
                .funnel("c:user1", Rate::new(5, Duration::from_secs(1)).capacity(9), Units(0));
            let answer = connection.cl_mtake(take)?;
        }
        "a SHADOW WINDOW 2 60 1 b LOG 4 60 1 c SHADOW LEASE 1 10 \"x\"" {
            let take = MTake::new()
                .shadow(|take| take.window("a", Rate::new(2, Duration::from_secs(60)), Units(1)))
                .log("b", Rate::new(4, Duration::from_secs(60)), Units(1))
                .shadow(|take| take.lease("c", Places(1), Duration::from_secs(10), "\"x\""));
            let answer = connection.cl_mtake(take)?;
        }
        "a FIXED 4 MONTH UTC 60 FROM 15 1 b FIXED 3 UNTIL 1767571260250 1 MS" {
            let take = MTake::new()
                .fixed("a", Fixed::new(4, FixedWindow::month_from(15).utc_offset_minutes(60)), Units(1))
                .fixed("b", Fixed::new(3, FixedWindow::until(UNIX_EPOCH + Duration::from_millis(1767571260250))), Units(1));
            let answer = connection.cl_mtake(take)?;
        }
        "a SHADOW THROTTLE 2 30 60 1" {
            let take = MTake::new()
                .shadow(|take| take.throttle("a", Rate::new(30, Duration::from_secs(60)).burst(2), Units(1)));
            let answer = connection.cl_mtake(take)?;
        }
    }
}

/// The playground's output for the call with this number: the lines to copy, and the rows of the reply.
fn shown(policy: &str, call: usize) -> (Value, Rows) {
    let request = json!({
        "policy": policy, "pattern": "bursts", "rate": 1, "burst": CALLS, "gap": 120, "clients": 1, "seconds": 100,
        "retry": "never", "seed": 1, "watch": 1, "call": call,
    });
    let picture: Value = serde_json::from_str(&redis_cell_playground::answer(&request.to_string())).unwrap();
    assert_eq!(picture["error"], Value::Null, "{policy}");
    let rows = picture["call"]["rows"].as_array().unwrap().iter().map(|row| {
        let five: Vec<i64> =
            row["five"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().parse().unwrap()).collect();
        five.try_into().unwrap()
    });
    (picture["copy"].clone(), rows.collect())
}

/// The playground's output for all calls, with the lines of the first call.
fn all_shown(policy: &str) -> (Value, Vec<Rows>) {
    let calls: Vec<_> = (1..=CALLS).map(|call| shown(policy, call)).collect();
    let lines = calls[0].0.clone();
    // Only the holder of a lease may be the call.
    assert!(policy.contains("<call>") || calls.iter().all(|(other, _)| *other == lines), "{policy}");
    (
        lines,
        calls
            .into_iter()
            .map(|(_, rows)| rows)
            .take(if policy.contains("<call>") { 1 } else { CALLS })
            .collect(),
    )
}

/// The keys of a server, with their content as DUMP returns it, in hexadecimal.
type State = Vec<[String; 2]>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state(client: &mut Client) -> State {
    let mut keys: Vec<Vec<u8>> = client.get("KEYS *");
    keys.sort();
    let dumped = keys.iter().map(|key| {
        let content: Vec<u8> = client.get(&[b"DUMP", key.as_slice()]);
        [hex(key), hex(&content)]
    });
    dumped.collect()
}

/// The keys that the calls of a policy leave on a server, when its words are sent as they are.
fn left_by(server: &Server, policy: &str, calls: usize) -> State {
    let mut client = server.connect();
    client.call("FLUSHALL");
    let words = policy.replace("<user>", "user1").replace("<call>", "call1");
    for _ in 0..calls {
        client.call(&format!("CL.MTAKE {words}"));
    }
    let left = state(&mut client);
    client.call("FLUSHALL");
    left
}

/// Rows in microseconds as the playground shows them: in the unit of the policy, and without the combined row
/// of a single limiter.
fn as_shown(rows: &Rows, shown: &Rows, policy: &str) -> Rows {
    let unit = match policy.rsplit(' ').next() {
        Some("MS") => 1_000,
        Some("US") => 1,
        _ => 1_000_000,
    };
    let time = |micros: i64| if micros < 0 { -1 } else { (micros + unit - 1) / unit };
    let rows = rows.iter().skip(rows.len() - shown.len());
    rows.map(|&[limited, limit, remaining, retry, reset]| {
        [limited, limit, remaining, time(retry), time(reset)]
    })
    .collect()
}

/// The answer of a program to its standard input.
fn answered(program: &mut Command, input: &str) -> String {
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program:?}: {input}");
    String::from_utf8(output.stdout).unwrap()
}

fn server() -> (Clock, Server) {
    let clock = Clock::stopped_at(START);
    let server = clock.start(Options::new());
    (clock, server)
}

#[test]
fn the_command_gives_the_decisions_that_are_shown() {
    let (_clock, server) = server();
    for Line { policy, .. } in lines() {
        let (copy, shown) = all_shown(policy);
        let left = left_by(&server, policy, shown.len());
        let command = copy["command"].as_str().unwrap();
        for shown in shown {
            let port = server.port().to_string();
            let reply = answered(Command::new("redis-cli").args(["-p", &port]), &format!("{command}\n"));
            let integers: Vec<i64> = reply
                .split_whitespace()
                .map(|word| word.parse().unwrap_or_else(|_| panic!("{command}: {reply}")))
                .collect();
            let rows: Rows = integers.chunks(5).map(|row| row.try_into().unwrap()).collect();
            assert_eq!(rows[rows.len() - shown.len()..], shown, "{command}");
        }
        assert_eq!(state(&mut server.connect()), left, "{command}");
    }
}

#[test]
fn the_line_in_rust_gives_the_decisions_that_are_shown() {
    let (_clock, server) = server();
    let mut client = server.connect();
    let plain = |text: &str| text.replace(char::is_whitespace, "");
    for Line { policy, rust, run } in lines() {
        let (copy, shown) = all_shown(policy);
        let left = left_by(&server, policy, shown.len());
        assert_eq!(plain(copy["rust"].as_str().unwrap()), plain(rust), "{policy}");
        for shown in shown {
            let rows = run(client.connection()).unwrap();
            assert_eq!(as_shown(&rows, &shown, policy), shown, "{policy}");
        }
        assert_eq!(state(&mut client), left, "{policy}");
    }
}

/// Runs each line that arrives as JSON, and prints the rows of its answers and the keys that they leave.
const PYTHON: &str = r"
import json, sys
from datetime import datetime, timedelta, timezone
import redis
from redis_cell import *

client = redis.Redis(port=int(sys.argv[1]))
cell = Cell(client)

def row(answer):
    retry = -1 if answer.retry_after is None else round(answer.retry_after * 1e6)
    return [0 if answer else 1, answer.limit, answer.remaining, retry, round(answer.reset_after * 1e6)]

for source, calls in json.loads(sys.stdin.read()):
    client.flushall()
    rows = []
    for _ in range(calls):
        exec(source)
        rows.append([row(it) for it in ((answer.combined, *answer.values()) if isinstance(answer, Together) else (answer,))])
    print(json.dumps([rows, [[key.hex(), client.dump(key).hex()] for key in sorted(client.keys())]]))
";

#[test]
fn the_line_in_python_gives_the_decisions_that_are_shown() {
    let (_clock, server) = server();
    let python = env::var("REDIS_CELL_PYTHON").expect("REDIS_CELL_PYTHON is not set: use `make test-apps`");
    let all: Vec<_> = lines().into_iter().map(|line| (line.policy, all_shown(line.policy))).collect();
    let sources: Vec<_> = all.iter().map(|(_, (copy, shown))| json!([copy["python"], shown.len()])).collect();
    let mut program = Command::new(python);
    program.args(["-c", PYTHON, &server.port().to_string()]);
    let answers = answered(&mut program, &json!(sources).to_string());
    assert_eq!(answers.lines().count(), all.len(), "{answers}");
    for ((policy, (copy, shown)), answer) in all.iter().zip(answers.lines()) {
        let (answers, state): (Vec<Rows>, State) = serde_json::from_str(answer).unwrap();
        assert_eq!(state, left_by(&server, policy, shown.len()), "{}", copy["python"]);
        for (rows, shown) in answers.iter().zip(shown) {
            assert_eq!(as_shown(rows, shown, policy), *shown, "{}", copy["python"]);
        }
    }
}
