//! Runs the traffic through the policy: counts calls over time, samples the limiters, and explains one call.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use redis_cell_core::{Answer, Span};
use redis_cell_policy::{Policy, Replay, Taken, combined};
use serde::Serialize;

use crate::copy::{self, Copied};
use crate::traffic::{MOST, Traffic, Values, instant};
use crate::words;
use crate::{Pattern, Request, Retry};

/// The number of bars of a picture.
const BINS: u64 = 120;

/// The contents of the page.
#[derive(Debug, Default, Serialize)]
pub struct Picture {
    /// The limiters of the policy.
    pub limiters: Vec<Limiter>,
    /// The unit of all times in the policy: `S`, `MS` or `US`.
    pub unit: &'static str,
    /// The beginning of the picture, in milliseconds since the epoch.
    pub start: u64,
    /// The length of the picture, in milliseconds.
    pub length: u64,
    /// The admitted, refused and other calls of each bar, in the order of time. Other calls meet no limiter,
    /// or return an error.
    pub bins: Vec<[u32; 3]>,
    /// All calls.
    pub calls: u32,
    /// Calls that repeat a refused call.
    pub repeated: u32,
    /// Whether there are more calls than the picture shows.
    pub cut: bool,
    /// The first error of a call.
    pub error: Option<String>,
    /// The number of lines of a log that could not be read, and the first such line.
    pub unreadable: (u32, Option<String>),
    /// The client whose limiters are drawn, or its line of the log.
    pub watched: String,
    /// The call in detail.
    pub call: Option<Call>,
    /// The call as a command and for the clients.
    pub copy: Copied,
}

/// A limiter and its units over time.
#[derive(Debug, Serialize)]
pub struct Limiter {
    /// The key, with its fields.
    pub key: String,
    /// Whether it is in shadow.
    pub shadow: bool,
    /// The word for the kind.
    pub kind: String,
    /// The arguments of the kind.
    pub arguments: Vec<String>,
    /// The limit in words.
    pub words: String,
    /// The largest number of units that it can hold.
    pub most: i64,
    /// The units that could be taken at the beginning of a bar, and then the smallest number after a call in
    /// it, for each bar. `None` for a bar without calls.
    pub remaining: Vec<Option<i64>>,
}

/// A call in detail.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    /// Its number, starting at 1.
    pub number: u32,
    /// Its time in microseconds from the beginning.
    pub at: u64,
    /// The client.
    pub client: String,
    /// The number of earlier refusals of the same call.
    pub attempt: u32,
    /// The rows of its reply: one for a single limiter, otherwise the combined row and one for each limiter.
    pub rows: Vec<Row>,
    /// The number of the last refused call before it.
    pub previous_refused: Option<u32>,
    /// The number of the first refused call after it.
    pub next_refused: Option<u32>,
}

/// A row of a reply.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The key, or an empty string for the combined row.
    pub key: String,
    /// Whether its limiter is in shadow.
    pub shadow: bool,
    /// The five integers as text, because integers in JavaScript are not exact above 2^53.
    pub five: [String; 5],
    /// The units that were taken from the key, as a number and in words, if the call has a chain.
    pub taken: Option<[String; 2]>,
    /// The meaning of each integer.
    pub words: [String; 5],
}

/// A call that is due later.
type Coming = Reverse<(u64, u32, u32, u32)>;

/// Runs the traffic through the policy.
pub fn run(request: &Request, policy: &Policy, traffic: &Traffic) -> Picture {
    let mut run = Run::new(request, policy, traffic);
    let mut coming: BinaryHeap<Coming> = BinaryHeap::new();
    let mut first = traffic.calls.iter().zip(0_u32..).peekable();
    let mut cut = traffic.cut;
    loop {
        // New calls of the pattern precede repeated calls at the same instant.
        let repeated = coming.peek().map(|Reverse((at, ..))| *at);
        let new = first.peek().map(|((at, _), _)| *at);
        let call = match (new, repeated) {
            (None, None) => break,
            (Some(at), other) if other.is_none_or(|other| at <= other) => {
                first.next().map(|((at, _), number)| (*at, number, 0))
            }
            _ => coming.pop().map(|Reverse((at, _, number, attempt))| (at, number, attempt)),
        };
        let Some((at, number, attempt)) = call else { break };
        if usize::try_from(run.picture.calls).unwrap_or(MOST) >= MOST {
            cut = true;
            break;
        }
        let Some(wait) = run.call(at, number, attempt) else { continue };
        let again = at.saturating_add(wait);
        if again < traffic.end {
            coming.push(Reverse((again, run.picture.calls, number, attempt.saturating_add(1))));
        }
    }
    let mut picture = run.finish();
    picture.cut = cut;
    picture
}

struct Run<'a> {
    request: &'a Request,
    policy: &'a Policy,
    traffic: &'a Traffic,
    replay: Replay,
    rng: fastrand::Rng,
    buffers: Vec<Vec<u8>>,
    /// The client whose limiters are drawn: the number of one of its calls, and the values of its fields.
    watched: Option<(u32, &'a Values)>,
    /// The keys of the watched client, one per limiter.
    keys: Vec<Option<u32>>,
    sampled: u64,
    last_refused: Option<u32>,
    latest: Latest,
    picture: Picture,
}

/// The latest call, until the call to explain has been made.
#[derive(Default)]
struct Latest {
    at: u64,
    number: u32,
    attempt: u32,
    previous_refused: Option<u32>,
    rows: Vec<Taken>,
}

impl<'a> Run<'a> {
    fn new(request: &'a Request, policy: &'a Policy, traffic: &'a Traffic) -> Self {
        let watch = request.watch.saturating_sub(1);
        // In a pattern, every number is a client. In a log, the first call replaces a line that is missing.
        let watched = match request.pattern {
            Pattern::Log => traffic.calls.iter().zip(0..).find(|(_, number)| *number == watch),
            _ => traffic
                .calls
                .iter()
                .zip(0..)
                .find(|((_, values), _)| matches!(values, Values::Client(it) if *it == watch)),
        };
        let watched = watched.or_else(|| traffic.calls.iter().zip(0..).next());
        let limiters = policy.limiters.iter().map(|limiter| {
            let mut parts = limiter.text.split(' ').map(str::to_owned);
            Limiter {
                key: limiter.name.clone(),
                shadow: limiter.shadow,
                kind: parts.next().unwrap_or_default().to_ascii_uppercase(),
                arguments: parts.collect(),
                words: words::limit(&limiter.text, policy.unit),
                most: 0,
                remaining: Vec::new(),
            }
        });
        let picture = Picture {
            limiters: limiters.collect(),
            unit: words::unit(policy.unit),
            start: traffic.start / 1_000_000,
            length: traffic.end.saturating_sub(traffic.start) / 1_000_000,
            bins: vec![[0; 3]; usize::try_from(BINS).unwrap_or_default()],
            unreadable: traffic.unreadable.clone(),
            ..Picture::default()
        };
        Self {
            request,
            policy,
            traffic,
            replay: Replay::new([policy.clone()]),
            rng: fastrand::Rng::with_seed(request.seed),
            buffers: Vec::new(),
            watched: watched.map(|((_, values), number)| (number, values)),
            keys: Vec::new(),
            sampled: 0,
            last_refused: None,
            latest: Latest::default(),
            picture,
        }
    }

    /// Returns the instant at which a bar begins.
    fn begin(&self, bin: u64) -> u64 {
        let length = self.traffic.end.saturating_sub(self.traffic.start);
        let whole = (length / BINS).saturating_mul(bin);
        self.traffic.start.saturating_add(whole).saturating_add((length % BINS).saturating_mul(bin) / BINS)
    }

    /// Reads the watched client's units in the limiters at the beginning of a bar.
    fn sample(&mut self) {
        let at = self.begin(self.sampled);
        self.sampled = self.sampled.saturating_add(1);
        let Self { traffic, replay, watched, buffers, picture, keys, .. } = self;
        let Some((number, values)) = *watched else { return };
        let values = traffic.values(values, number, buffers);
        let rows = replay.call(instant(at), &values).and_then(|()| replay.peek(0)).unwrap_or_default();
        keys.clear();
        for (limiter, position) in picture.limiters.iter_mut().zip(0_usize..) {
            let row = rows.iter().find(|row| row.limiter == position);
            keys.push(row.map(|row| row.key));
            limiter.most = row.map_or(limiter.most, |row| row.answer.limit);
            limiter.remaining.push(row.map(|row| row.answer.remaining));
            limiter.remaining.push(None);
        }
    }

    /// Makes one call. Returns the number of nanoseconds after which the client repeats it.
    fn call(&mut self, at: u64, number: u32, attempt: u32) -> Option<u64> {
        while self.sampled <= BINS && self.begin(self.sampled) <= at {
            self.sample();
        }
        let Self { request, policy, traffic, replay, buffers, picture, keys, last_refused, latest, .. } =
            self;
        let (_, values) = traffic.calls.get(usize::try_from(number).ok()?)?;
        let values = traffic.values(values, number, buffers);
        let rows = replay.call(instant(at), &values).and_then(|()| replay.decide(0));
        let rows = rows.unwrap_or_else(|error| {
            picture.error.get_or_insert_with(|| error.to_string());
            &[]
        });
        for row in rows {
            if keys.get(row.limiter) == Some(&Some(row.key)) {
                let last =
                    picture.limiters.get_mut(row.limiter).and_then(|limiter| limiter.remaining.last_mut());
                if let Some(lowest) = last {
                    *lowest =
                        Some(lowest.map_or(row.answer.remaining, |lowest| lowest.min(row.answer.remaining)));
                }
            }
        }
        picture.calls = picture.calls.saturating_add(1);
        picture.repeated = picture.repeated.saturating_add(u32::from(attempt > 0));
        let shown = picture.calls;
        let refused = rows.iter().any(Taken::refuses);
        let which = if rows.is_empty() { 2 } else { usize::from(refused) };
        let bin = self.sampled.saturating_sub(1).min(BINS.saturating_sub(1));
        let bin = usize::try_from(bin).ok().and_then(|bin| picture.bins.get_mut(bin));
        if let Some(count) = bin.and_then(|bin| bin.get_mut(which)) {
            *count = count.saturating_add(1);
        }
        match &mut picture.call {
            Some(call) if refused => drop(call.next_refused.get_or_insert(shown)),
            Some(_) => {}
            None => {
                latest.rows.clear();
                latest.rows.extend_from_slice(rows);
                *latest = Latest {
                    at,
                    number,
                    attempt,
                    previous_refused: *last_refused,
                    rows: core::mem::take(&mut latest.rows),
                };
            }
        }
        let wait = refused.then(|| {
            *last_refused = Some(shown);
            // The wait in the reply, rounded as it is there.
            let told = combined(rows)?.verdict.wait()?.ceil_to(policy.unit);
            let told = Span::from_units(u64::try_from(told).ok()?, policy.unit)?.as_nanos();
            let wait = match request.retry {
                _ if request.pattern == Pattern::Log => return None, // a log contains the repeated calls
                Retry::Never => return None,
                Retry::Second => 1_000_000_000,
                Retry::Told => told,
                Retry::Jitter => told.saturating_add(self.rng.u64(..=told)),
            };
            Some(wait.max(1_000_000)) // no client repeats a call sooner
        });
        if shown == request.call.max(1) {
            self.explain();
        }
        wait.flatten()
    }

    /// Describes the latest call.
    fn explain(&mut self) {
        let Self { policy, traffic, buffers, picture, latest, .. } = self;
        let Some((_, values)) =
            usize::try_from(latest.number).ok().and_then(|number| traffic.calls.get(number))
        else {
            return;
        };
        let values = traffic.values(values, latest.number, buffers);
        picture.copy = copy::copied(policy, &values);
        picture.call = Some(Call {
            number: picture.calls,
            at: latest.at.saturating_sub(traffic.start) / 1_000,
            client: String::from_utf8_lossy(&values.join(&b' ')).into_owned(),
            attempt: latest.attempt,
            rows: described(&latest.rows, policy),
            previous_refused: latest.previous_refused,
            next_refused: None,
        });
    }

    fn finish(mut self) -> Picture {
        while self.sampled <= BINS {
            self.sample();
        }
        // There were fewer calls than the number of the call to explain.
        if self.picture.call.is_none() && self.picture.calls > 0 {
            self.explain();
        }
        self.picture
    }
}

/// Returns the rows of a reply, starting with the combined one if there are several limiters.
fn described(rows: &[Taken], policy: &Policy) -> Vec<Row> {
    let all = combined(rows).filter(|_| rows.len() > 1);
    let all = all.map(|answer| Row::new("", false, &answer, "", policy));
    let each = rows.iter().filter_map(|row| {
        let limiter = policy.limiters.get(row.limiter)?;
        Some(Row::new(&limiter.name, row.shadow, &row.answer, &limiter.text, policy))
    });
    all.into_iter().chain(each).collect()
}

impl Row {
    fn new(key: &str, shadow: bool, answer: &Answer, text: &str, policy: &Policy) -> Self {
        let five = answer.reply(policy.unit).five;
        let taken = answer.taken.map(|units| [units.to_string(), words::taken(units, text)]);
        Self {
            taken,
            key: key.to_owned(),
            shadow,
            five: five.map(|number| number.to_string()),
            words: words::five(answer, text, policy.unit),
        }
    }
}
