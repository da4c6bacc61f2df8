//! The calls of a pattern or of a log.

use std::io::Write;

use fastrand::Rng;
use redis_cell_core::Instant;
use redis_cell_lines::format::{Format, Hints};
use redis_cell_lines::time::Times;
use redis_cell_policy::Fields;
use serde::Deserialize;

use crate::Request;

/// The largest number of calls in a picture.
pub const MOST: usize = 100_000;

/// The beginning of the traffic of a pattern: Monday, 5 January 2026, midnight UTC, at which calendar windows
/// also begin.
pub const START: u64 = 1_767_571_200_000_000_000;

const SECOND: u64 = 1_000_000_000;

/// The pattern of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One after the other, evenly spaced.
    Steady,
    /// Many at once, and then none.
    Bursts,
    /// Independent of each other, with exponential gaps.
    Random,
    /// All clients at once, as after an outage.
    Storm,
    /// The calls of an access log.
    Log,
}

/// The behaviour of a client after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Retry {
    /// It gives up.
    Never,
    /// It calls again after a second, whatever the reply says.
    Second,
    /// It calls again after the wait in the reply.
    Told,
    /// It calls again after the wait in the reply and up to as much longer.
    Jitter,
}

/// The calls in the order of time, without the repeated calls.
pub struct Traffic {
    /// The beginning of the picture.
    pub start: u64,
    /// The end of the picture.
    pub end: u64,
    /// The calls: nanoseconds since the epoch, and the values of the fields.
    pub calls: Vec<(u64, Values)>,
    /// Whether there were more calls than [`MOST`].
    pub cut: bool,
    /// The number of lines of the log that could not be read, and the first such line.
    pub unreadable: (u32, Option<String>),
    sources: Vec<Source>,
}

/// The values of the fields of a call.
pub enum Values {
    /// The number of a client.
    Client(u32),
    /// The values in a line of the log.
    Line(Vec<Vec<u8>>),
}

/// The source of a field in a pattern's call.
#[derive(Clone, Copy)]
enum Source {
    User,
    Address,
    Call,
}

impl Traffic {
    /// Creates the calls of a request.
    ///
    /// # Errors
    /// Returns an error for a field that the calls do not have, and for a log that cannot be read.
    pub fn new(request: &Request, fields: &Fields) -> Result<Self, String> {
        if request.pattern == Pattern::Log {
            return Self::read(&request.log, fields);
        }
        let sources = fields.names().iter().map(|name| match name.as_str() {
            "user" => Ok(Source::User),
            "address" => Ok(Source::Address),
            "call" => Ok(Source::Call),
            _ => Err(format!(
                "these calls have no field <{name}>, only <user>, <address> and <call>; a log has others"
            )),
        });
        let sources = sources.collect::<Result<_, _>>()?;
        let length = u64::from(request.seconds.max(1)).saturating_mul(SECOND);
        let clients = request.clients.max(1);
        let mut rng = Rng::with_seed(request.seed);
        let mut calls: Vec<(u64, Values)> = Vec::new();
        let mut cut = false;
        for (at, number) in instants(request, length).zip(0_u32..) {
            cut = calls.len() >= MOST;
            if cut {
                break;
            }
            let client = if request.pattern == Pattern::Random {
                rng.u32(..clients)
            } else {
                number.checked_rem(clients).unwrap_or_default()
            };
            calls.push((START.saturating_add(at), Values::Client(client)));
        }
        Ok(Self {
            start: START,
            end: START.saturating_add(length),
            calls,
            cut,
            unreadable: (0, None),
            sources,
        })
    }

    fn read(log: &str, fields: &Fields) -> Result<Self, String> {
        let lines = || log.lines().filter(|line| !line.trim().is_empty());
        let sample: Vec<Vec<u8>> = lines().take(100).map(|line| line.as_bytes().to_owned()).collect();
        if sample.is_empty() {
            return Err("paste the lines of an access log, or choose a file".to_owned());
        }
        let mut format =
            Format::recognize(&Hints::default(), fields, &sample).map_err(|error| error.to_string())?;
        let mut times = Times::new(0);
        let mut calls: Vec<(u64, Values)> = Vec::new();
        let mut unreadable: (u32, Option<String>) = (0, None);
        let mut cut = false;
        for line in lines() {
            if format.is_another(line.as_bytes()) {
                return Err(format!("this line names other columns: {line}"));
            }
            if format.is_no_call(line.as_bytes()) {
                continue;
            }
            cut = calls.len() >= MOST;
            if cut {
                break;
            }
            let call = format.read(line.as_bytes()).ok().and_then(|values| {
                let (time, fields) = values.split_first()?;
                let values = fields.iter().map(|value| (*value).to_owned()).collect();
                Some((times.parse(time)?.as_nanos(), Values::Line(values)))
            });
            if let Some(call) = call {
                calls.push(call);
            } else {
                unreadable.0 = unreadable.0.saturating_add(1);
                unreadable.1.get_or_insert_with(|| line.chars().take(160).collect());
            }
        }
        let (Some(start), Some(end)) =
            (calls.iter().map(|call| call.0).min(), calls.iter().map(|call| call.0).max())
        else {
            return Err(match unreadable.0 {
                1 => "the only line cannot be read".to_owned(),
                lines => format!("none of the {lines} lines can be read"),
            });
        };
        Ok(Self {
            start,
            end: end.max(start.saturating_add(SECOND)),
            calls,
            cut,
            unreadable,
            sources: Vec::new(),
        })
    }

    /// Returns the values of the fields of the call with this number, which are written to `buffers`.
    pub fn values<'a>(
        &'a self,
        values: &'a Values,
        number: u32,
        buffers: &'a mut Vec<Vec<u8>>,
    ) -> Vec<&'a [u8]> {
        let client = match values {
            Values::Client(client) => *client,
            Values::Line(values) => return values.iter().map(Vec::as_slice).collect(),
        };
        buffers.resize_with(self.sources.len(), Vec::new);
        for (source, buffer) in self.sources.iter().zip(buffers.iter_mut()) {
            buffer.clear();
            // Writing to memory does not fail.
            let _ = match source {
                Source::User => write!(buffer, "user{}", client.saturating_add(1)),
                Source::Address => {
                    let [.., high, low] = client.saturating_add(1).to_be_bytes();
                    write!(buffer, "198.51.{high}.{low}")
                }
                Source::Call => write!(buffer, "call{}", number.saturating_add(1)),
            };
        }
        buffers.iter().map(Vec::as_slice).collect()
    }
}

/// Returns the instants of the calls of a pattern, in nanoseconds from its beginning.
fn instants(request: &Request, length: u64) -> Box<dyn Iterator<Item = u64>> {
    let minute = SECOND.saturating_mul(60);
    let gap = minute.checked_div(request.rate.into()).unwrap_or(minute).max(1);
    match request.pattern {
        Pattern::Steady | Pattern::Log => {
            Box::new((0_u64..).map(move |call| call.saturating_mul(gap)).take_while(move |at| *at < length))
        }
        Pattern::Random => {
            let mut rng = Rng::with_seed(!request.seed);
            let mut at = 0_u64;
            Box::new(core::iter::from_fn(move || {
                at = at.saturating_add(exponential(&mut rng, gap));
                (at < length).then_some(at)
            }))
        }
        Pattern::Bursts => {
            let burst = request.burst.max(1);
            let gap = u64::from(request.gap.max(1)).saturating_mul(SECOND);
            let begins =
                (0_u64..).map(move |number| number.saturating_mul(gap)).take_while(move |at| *at < length);
            Box::new(begins.flat_map(move |begin| (0..burst).map(move |_| begin)))
        }
        Pattern::Storm => Box::new((0..request.clients.max(1)).map(|_| SECOND)),
    }
}

/// Returns a random gap with an exponential distribution.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "chance may round"
)]
fn exponential(rng: &mut Rng, mean: u64) -> u64 {
    (-(1.0 - rng.f64()).ln() * mean as f64) as u64
}

/// Returns an instant, at most the last one that the core can represent.
pub fn instant(nanos: u64) -> Instant {
    Instant::saturating_from_nanos(nanos)
}
