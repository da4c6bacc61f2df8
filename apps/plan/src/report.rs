//! The results of a run, for the table, for JSON and for the page.

use jiff::Timestamp;
use redis_cell_core::Instant;
use redis_cell_policy::{Names, Policy, Replay};
use serde::Serialize;

use crate::faults;
use crate::log::{File, Shown};
use crate::tally::{LimiterTally, Refusals, Tally};

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The log.
    pub log: LogReport,
    /// The policies, in the order in which they were named.
    pub policies: Vec<PolicyReport>,
    /// The allowed shares, and whether the last policy is within them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// Why the log cannot answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The lines that were read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LogReport {
    /// The files in the order in which they were read.
    pub files: Vec<File>,
    /// Lines with a call.
    pub read: u64,
    /// Lines that cannot be read.
    pub unreadable: u64,
    /// The first unreadable lines.
    pub first_unreadable: Vec<Shown>,
    /// The time of the first call.
    pub first: String,
    /// The time of the last call.
    pub last: String,
    /// The seconds between them.
    pub seconds: f64,
    /// Lines with an earlier time than a line before them. Their calls are decided at the time of that line.
    pub late: u64,
    /// Lines that are late by more than a minute.
    pub too_late: u64,
    /// The largest difference, in seconds.
    pub latest_by_seconds: f64,
    /// Whether all times of a file are whole seconds, so that all its calls of a second count as
    /// simultaneous.
    pub whole_seconds: bool,
    /// Files without a line for a call.
    pub empty: Vec<String>,
    /// Patterns of paths that have replaced no path.
    pub unused_paths: Vec<String>,
}

impl LogReport {
    /// Returns the number of files with whole seconds, if other files have none.
    pub fn coarse_files(&self) -> Option<usize> {
        let coarse = self.files.iter().filter(|file| file.whole_seconds).count();
        (0 < coarse && coarse < self.files.len()).then_some(coarse)
    }
}

/// The results of a policy.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport {
    /// Its text.
    pub policy: String,
    /// The result of the search, if the text has a `?`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
    /// Calls.
    pub requests: u64,
    /// Calls refused.
    pub refused: u64,
    /// The share of refused calls.
    pub refused_share: f64,
    /// Refused calls that no wait would have admitted.
    pub never: u64,
    /// Calls that meet no limiter, because they lack the fields of its key.
    pub exempt: u64,
    /// Keys of all limiters that refuse.
    pub keys: u64,
    /// Keys that were refused at least once.
    pub keys_refused: u64,
    /// The share of refused keys.
    pub keys_refused_share: f64,
    /// Calls that the server would have answered with an error.
    pub errors: Vec<ErrorReport>,
    /// How long refused calls would have had to wait, in seconds.
    pub waits: Option<Waits>,
    /// Admitted and refused calls over time.
    pub series: SeriesReport,
    /// Each limiter.
    pub limiters: Vec<LimiterReport>,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The smallest number in place of `?` that refuses no more than allowed.
    pub value: i64,
    /// The numbers that were tried, in ascending order.
    pub tried: Vec<Tried>,
}

/// A number that was tried.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tried {
    /// The number.
    pub value: i64,
    /// The share of calls that it refuses.
    pub refused_share: f64,
    /// The share of keys that it refuses.
    pub keys_refused_share: f64,
}

/// An error, and the number of calls that would have got it.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorReport {
    /// The text of the server's reply.
    pub error: String,
    /// The number of calls.
    pub requests: u64,
}

/// The waits of refused calls in seconds, accurate to one percent.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Waits {
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest wait.
    pub longest: f64,
}

/// Calls over time.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesReport {
    /// The beginning of the first interval.
    pub start: String,
    /// The beginning of the first interval, in seconds since the epoch.
    pub start_unix: u64,
    /// The length of an interval in seconds.
    pub width: u64,
    /// Calls admitted in each interval.
    pub admitted: Vec<u64>,
    /// Calls refused in each interval.
    pub refused: Vec<u64>,
}

/// The results of a limiter.
#[derive(Clone, Debug, Serialize)]
pub struct LimiterReport {
    /// Its key, as written in the policy.
    pub key: String,
    /// Its kind and its arguments.
    pub limiter: String,
    /// Whether the limiter is in shadow, and so refuses nothing.
    pub shadow: bool,
    /// The number of its keys.
    pub keys: u64,
    /// The number of keys that were refused at least once.
    pub keys_refused: u64,
    /// Calls that do not meet it, because they lack a field of its key.
    pub exempt: u64,
    /// Calls that it refused, or would have refused.
    pub refused: u64,
    /// The keys that were refused most often.
    pub top: Vec<KeyReport>,
}

/// The results for a key.
#[derive(Clone, Debug, Serialize)]
pub struct KeyReport {
    /// The key. Invalid UTF-8 is replaced.
    pub key: String,
    /// Its calls.
    pub requests: u64,
    /// Its refused calls.
    pub refused: u64,
    /// The time of the first refusal.
    pub first: String,
    /// The time of the last refusal.
    pub last: String,
    /// The longest wait in seconds.
    pub longest_wait: f64,
}

/// The allowed shares.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Check {
    /// The largest share of calls that may be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_refused: Option<f64>,
    /// The largest share of keys that may be refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_refused_keys: Option<f64>,
    /// Whether the last policy is within both, and the report has no error.
    pub passed: bool,
}

impl Check {
    /// Returns whether these shares are allowed.
    pub fn allows(&self, refused: f64, keys: f64) -> bool {
        self.max_refused.is_none_or(|max| refused <= max)
            && self.max_refused_keys.is_none_or(|max| keys <= max)
    }
}

impl PolicyReport {
    /// Creates the report of the policy at this position, with at most `top` keys for each limiter.
    pub fn new(
        text: &str,
        position: usize,
        policy: &Policy,
        tally: &Tally,
        replay: &Replay,
        top: usize,
    ) -> Self {
        let (keys, keys_refused) = tally.keys(policy);
        let calls = tally.requests.saturating_add(tally.exempt);
        let limiters = policy.limiters.iter().zip(&tally.limiters).enumerate();
        let limiters = limiters.map(|(at, (limiter, tally))| {
            let (keys, keys_refused) = tally.keys();
            LimiterReport {
                key: limiter.name.clone(),
                limiter: limiter.text.clone(),
                shadow: limiter.shadow,
                keys,
                keys_refused,
                exempt: calls.saturating_sub(tally.requests.iter().sum()),
                refused: tally.refused,
                top: replay
                    .names(position, at)
                    .map(|names| most_refused(tally, names, top))
                    .unwrap_or_default(),
            }
        });
        let errors = tally.errors.iter();
        let errors = errors.map(|(error, &requests)| ErrorReport { error: error.clone(), requests });
        let series = &tally.series;
        let waits = &tally.waits;
        let quantile = |quantile| seconds(waits.value_at_quantile(quantile).min(tally.longest));
        let start = Instant::from_nanos(series.start().saturating_mul(1_000_000_000)).unwrap_or_default();
        Self {
            policy: text.to_owned(),
            found: None,
            requests: tally.requests,
            refused: tally.refused,
            refused_share: share(tally.refused, tally.requests),
            never: tally.never,
            exempt: tally.exempt,
            keys,
            keys_refused,
            keys_refused_share: share(keys_refused, keys),
            errors: errors.collect(),
            waits: (!waits.is_empty()).then(|| Waits {
                p50: quantile(0.5),
                p90: quantile(0.9),
                p99: quantile(0.99),
                longest: seconds(tally.longest),
            }),
            series: SeriesReport {
                start: time(start),
                start_unix: series.start(),
                width: series.width(),
                admitted: series.intervals().iter().map(|interval| interval.admitted).collect(),
                refused: series.intervals().iter().map(|interval| interval.refused).collect(),
            },
            limiters: limiters.collect(),
        }
    }
}

/// Returns the keys that were refused most often. Keys with equal counts are sorted by name.
fn most_refused(tally: &LimiterTally, names: Names, top: usize) -> Vec<KeyReport> {
    let refused = tally.refusals.iter().zip(&tally.requests).zip(0_u32..);
    let refused = refused.filter(|((refusals, _), _)| refusals.count > 0);
    let mut refused: Vec<((&Refusals, &u64), u32)> = refused.collect();
    let order = |&((refusals, _), number): &((&Refusals, &u64), u32)| {
        let count = if faults::has("top-by-name") { 0 } else { refusals.count };
        (core::cmp::Reverse(count), names.part(number))
    };
    if refused.len() > top {
        refused.select_nth_unstable_by(top, |one, other| order(one).cmp(&order(other)));
        refused.truncate(top);
    }
    refused.sort_unstable_by(|one, other| order(one).cmp(&order(other)));
    let report = |((refusals, &requests), number): ((&Refusals, &u64), u32)| KeyReport {
        key: String::from_utf8_lossy(&names.name(number)).into_owned(),
        requests,
        refused: refusals.count,
        first: time(refusals.first),
        last: time(refusals.last),
        longest_wait: seconds(refusals.longest),
    };
    refused.into_iter().map(report).collect()
}

/// Formats an instant as ISO 8601 in UTC, with at most milliseconds.
pub fn time(instant: Instant) -> String {
    let millis = instant.as_nanos() / 1_000_000;
    let time = Timestamp::from_millisecond(millis.cast_signed());
    time.map(|time| time.to_string()).unwrap_or_default()
}

/// Converts microseconds to seconds. Rounding is harmless in reports, which do not affect decisions.
#[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "a report may round")]
pub fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Returns a share between 0 and 1.
#[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "a report may round")]
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
