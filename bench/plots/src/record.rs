//! Sends every limiter the same calls at the same instants, and records the replies.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::LIMITERS;

/// The traffic: a number of calls, the milliseconds between them, and a pause after them.
const TRAFFIC: [(u32, u64, u64); 3] = [(30, 10, 700), (75, 40, 1500), (30, 10, 700)];

/// A call's instant in milliseconds, and its result.
pub struct Answered {
    pub at: f64,
    pub limited: bool,
    /// The wait before acting, in milliseconds. Only reservations have one.
    pub wait: f64,
}

pub fn record(port: u16, file: &Path) -> Result<(), Box<dyn Error>> {
    let mut server = redis::Client::open(("127.0.0.1", port))?.get_connection()?;
    let start = Instant::now();
    let mut rows = String::from("# limiter\tmilliseconds\tlimited\tretry_after\n");
    let mut due = Duration::ZERO;
    let mut id = 0;
    for (calls, apart, pause) in TRAFFIC {
        for _ in 0..calls {
            thread::sleep(due.saturating_sub(start.elapsed()));
            let mut all = redis::pipe();
            for limiter in &LIMITERS {
                let call = limiter.call.replace("{id}", &id.to_string());
                let mut words = call.split(' ');
                let mut command = redis::cmd(words.next().unwrap_or_default());
                words.for_each(|word| {
                    command.arg(word);
                });
                all.add_command(command);
            }
            let at = start.elapsed();
            let answers: Vec<redis::Value> = all.query(&mut server)?;
            for (limiter, answer) in LIMITERS.iter().zip(answers) {
                let (limited, retry_after) = read(&answer).ok_or("an answer is not five integers")?;
                writeln!(rows, "{}\t{:.3}\t{limited}\t{retry_after}", limiter.name, at.as_secs_f64() * 1e3)?;
            }
            due += Duration::from_millis(apart);
            id += 1;
        }
        due += Duration::from_millis(pause);
    }
    Ok(fs::write(file, rows)?)
}

/// `limited` and `retry_after` of an admission reply, or of the first of several.
fn read(answer: &redis::Value) -> Option<(i64, i64)> {
    match answer {
        redis::Value::Array(items) => match items.as_slice() {
            [first @ redis::Value::Array(_), ..] => read(first),
            [redis::Value::Int(limited), _, _, redis::Value::Int(retry_after), _] => {
                Some((*limited, *retry_after))
            }
            _ => None,
        },
        _ => None,
    }
}

/// The records of one limiter.
pub fn recorded(file: &Path, name: &str) -> Result<Vec<Answered>, Box<dyn Error>> {
    let mut answered = Vec::new();
    for row in fs::read_to_string(file)?.lines().filter(|row| !row.starts_with('#')) {
        let [limiter, at, limited, retry_after] = row.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("not a row of answers: {row}").into());
        };
        if limiter == name {
            let (limited, retry_after) = (limited == "1", retry_after.parse::<f64>()?);
            // Of the admitted calls, only reservations return a wait. The others return -1.
            let wait = if limited { 0.0 } else { retry_after.max(0.0) };
            answered.push(Answered { at: at.parse()?, limited, wait });
        }
    }
    Ok(answered)
}
