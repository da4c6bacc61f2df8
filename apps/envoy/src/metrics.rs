//! Metrics in the text format of Prometheus, under the names of envoyproxy/ratelimit.

use crate::process;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The upper bounds of the histogram of decisions, in microseconds.
const BOUNDS: [u64; 13] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];

/// The largest number of values in requests with their own metrics. Others are counted under the domain's
/// name. Rules have their own in any case.
const MOST: usize = 10_000;

/// The most bytes of the names of a rule and its values. Longer ones are counted under the domain's name.
const LONGEST: usize = 2_000;

type Read = fn(&Counters) -> &AtomicU64;

/// All metrics of the process. A reload of the rules does not reset them.
#[derive(Debug, Default)]
pub struct Metrics {
    rules: Mutex<BTreeMap<Vec<String>, Arc<Counters>>>,
    /// Requests.
    pub requests: AtomicU64,
    /// Requests for a domain without rules.
    pub unknown_domains: AtomicU64,
    /// Requests that got an error of the server.
    pub server_errors: AtomicU64,
    /// Requests that got an error because they were invalid.
    pub service_errors: AtomicU64,
    /// Requests that were decided without the server.
    pub without_server: AtomicU64,
    /// Refusals that the global shadow mode turned into admissions.
    pub global_shadow: AtomicU64,
    /// Configurations that were loaded.
    pub loads: AtomicU64,
    /// Configurations that were not loaded because of errors.
    pub load_errors: AtomicU64,
    /// Connections to the server that were made.
    pub connections: AtomicU64,
    /// Connections to the server that could not be made.
    pub failed_connections: AtomicU64,
    /// Whether there is a connection to the server.
    pub is_connected: AtomicBool,
    times: [AtomicU64; 14],
    time: AtomicU64,
}

/// The counters of a rule.
#[derive(Debug, Default)]
pub struct Counters {
    /// All hits.
    pub total: AtomicU64,
    /// Hits that were refused.
    pub over: AtomicU64,
    /// Hits that were admitted close to the limit.
    pub near: AtomicU64,
    /// Hits that were admitted.
    pub within: AtomicU64,
    /// Hits that a rule in shadow mode would have refused.
    pub shadow: AtomicU64,
}

impl Metrics {
    /// Returns the counters of a rule, or of the values of a request, which are created if they are new.
    pub fn of(&self, levels: &[String], is_of_rule: bool) -> Arc<Counters> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rules.get(levels) {
            return Arc::clone(known);
        }
        let is_short = levels.iter().map(String::len).sum::<usize>() <= LONGEST;
        let has_own = is_of_rule || is_short && rules.len() < MOST;
        let levels = if has_own { levels } else { levels.get(..1).unwrap_or_default() };
        Arc::clone(rules.entry(levels.to_vec()).or_default())
    }

    /// Counts a request and the time that its answer took.
    pub fn answered(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        if let Some(count) = self.times.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.time.fetch_add(micros, Relaxed);
        self.requests.fetch_add(1, Relaxed);
    }

    /// Returns all metrics in the text format of Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let labels: Vec<(String, Arc<Counters>)> =
            rules.into_iter().map(|(levels, counters)| (labels(&levels), counters)).collect();
        let of_rules: [(&str, &str, Read); 5] = [
            ("total_hits", "Hits.", |counters| &counters.total),
            ("over_limit", "Hits that were refused.", |counters| &counters.over),
            ("near_limit", "Hits that were admitted close to the limit.", |counters| &counters.near),
            ("within_limit", "Hits that were admitted.", |counters| &counters.within),
            ("shadow_mode", "Hits that a rule in shadow mode would have refused.", |counters| {
                &counters.shadow
            }),
        ];
        for (name, help, read) in of_rules {
            let name = format!("ratelimit_service_rate_limit_{name}");
            head(&mut text, &name, help, "counter");
            for (labels, counters) in &labels {
                line(&mut text, &name, labels, read(counters).load(Relaxed));
            }
        }
        let of_requests = [
            ("total_requests", "Requests.", "{grpc_method=\"ShouldRateLimit\"}", &self.requests),
            (
                "decided_without_server",
                "Requests that were decided without the server.",
                "",
                &self.without_server,
            ),
            (
                "global_shadow_mode",
                "Refusals that SHADOW_MODE has turned into admissions.",
                "",
                &self.global_shadow,
            ),
            ("domain_not_found", "Requests for a domain without rules.", "", &self.unknown_domains),
            ("config_load_success", "Configurations that were loaded.", "", &self.loads),
            (
                "config_load_error",
                "Configurations with errors, which were not loaded.",
                "",
                &self.load_errors,
            ),
        ];
        for (name, help, labels, count) in of_requests {
            let name = format!("ratelimit_service_{name}");
            head(&mut text, &name, help, "counter");
            line(&mut text, &name, labels, count.load(Relaxed));
        }
        let name = "ratelimit_service_should_rate_limit_error";
        head(&mut text, name, "Requests that got an error.", "counter");
        line(&mut text, name, "{err_type=\"redis_error\"}", self.server_errors.load(Relaxed));
        line(&mut text, name, "{err_type=\"service_error\"}", self.service_errors.load(Relaxed));
        self.histogram(&mut text);
        let pool: [(&str, &str, &str, u64); 3] = [
            ("active", "Whether the server is connected.", "gauge", self.is_connected.load(Relaxed).into()),
            ("total", "Connections that were made.", "counter", self.connections.load(Relaxed)),
            (
                "failed",
                "Connections that could not be made.",
                "counter",
                self.failed_connections.load(Relaxed),
            ),
        ];
        for (name, help, kind, value) in pool {
            let name = format!("ratelimit_redis_pool_cx_{name}");
            head(&mut text, &name, help, kind);
            line(&mut text, &name, "", value);
        }
        for (name, kind, value) in process::metrics() {
            let name = format!("process_{name}");
            head(&mut text, &name, "As of other programs.", kind);
            line(&mut text, &name, "", value);
        }
        text
    }

    fn histogram(&self, text: &mut String) {
        const NAME: &str = "ratelimit_service_response_time_seconds";
        const METHOD: &str = "grpc_method=\"ShouldRateLimit\"";
        head(text, NAME, "The time of decisions.", "histogram");
        let mut count: u64 = 0;
        let bounds = BOUNDS.iter().copied().map(Some).chain([None]);
        for (bound, times) in bounds.zip(&self.times) {
            count = count.saturating_add(times.load(Relaxed));
            let bound = bound.map_or("+Inf".to_owned(), seconds);
            line(text, &format!("{NAME}_bucket"), &format!("{{{METHOD},le=\"{bound}\"}}"), count);
        }
        let sum = seconds(self.time.load(Relaxed));
        line(text, &format!("{NAME}_sum"), &format!("{{{METHOD}}}"), sum);
        line(text, &format!("{NAME}_count"), &format!("{{{METHOD}}}"), count);
    }
}

/// Converts microseconds to seconds.
fn seconds(micros: u64) -> String {
    Duration::from_micros(micros).as_secs_f64().to_string()
}

/// Returns the labels `{domain="...",key1="...",key2="..."}`.
fn labels(levels: &[String]) -> String {
    let mut text = String::from("{");
    for (index, level) in levels.iter().enumerate() {
        let value = level.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let name = if index == 0 { "domain".to_owned() } else { format!(",key{index}") };
        text.push_str(&name);
        text.push_str("=\"");
        text.push_str(&value);
        text.push('"');
    }
    text.push('}');
    text
}

fn head(text: &mut String, name: &str, help: &str, kind: &str) {
    // Writing to a String does not fail.
    let _: Result<(), std::fmt::Error> = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _: Result<(), std::fmt::Error> = writeln!(text, "{name}{labels} {value}");
}
