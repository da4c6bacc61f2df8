//! Metrics in the text format of Prometheus, under the names of envoyproxy/ratelimit.

use crate::{lock, process};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The upper bounds of the histogram of decisions, in microseconds.
const BOUNDS: [u64; 13] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000];

/// The largest number of values in requests with their own metrics. Others are counted under the domain's
/// name. Rules have their own in any case.
const MOST: usize = 10_000;

/// The most bytes of the names of a rule and its values. Longer ones are counted under the domain's name.
const LONGEST: usize = 2_000;

/// A struct of counters, each with its name and its labels. Prometheus shows their documentation.
macro_rules! counters {
    (
        $(#[$about:meta])*
        $all:ident { $($rest:tt)* }
        $(#[doc = $help:literal] $field:ident = $name:literal;)*
    ) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $all {
            $(#[doc = $help] pub $field: AtomicU64,)*
            $($rest)*
        }

        impl $all {
            /// The names, the documentation, and how to read the counters.
            const COUNTERS: &[(&str, &str, fn(&Self) -> &AtomicU64)] =
                &[$(($name, $help, |all| &all.$field),)*];
        }
    };
}

counters! {
    /// All metrics of the process. A reload of the rules does not reset them.
    Metrics {
        /// Whether there is a connection to the server.
        pub is_connected: AtomicBool,
        rules: Mutex<BTreeMap<Vec<String>, Arc<Counters>>>,
        times: [AtomicU64; 14],
        time: AtomicU64,
    }
    /// Requests.
    requests = "service_total_requests{grpc_method=\"ShouldRateLimit\"}";
    /// Requests that were decided without the server.
    without_server = "service_decided_without_server";
    /// Refusals that `SHADOW_MODE` has turned into admissions.
    global_shadow = "service_global_shadow_mode";
    /// Requests for a domain without rules.
    unknown_domains = "service_domain_not_found";
    /// Configurations that were loaded.
    loads = "service_config_load_success";
    /// Configurations with errors, which were not loaded.
    load_errors = "service_config_load_error";
    /// Requests that got an error, by its type.
    server_errors = "service_should_rate_limit_error{err_type=\"redis_error\"}";
    /// Requests that got an error because they were invalid.
    service_errors = "service_should_rate_limit_error{err_type=\"service_error\"}";
    /// Connections to the server that were made.
    connections = "redis_pool_cx_total";
    /// Connections to the server that could not be made.
    failed_connections = "redis_pool_cx_failed";
}

counters! {
    /// The counters of a rule.
    Counters {}
    /// Hits.
    total = "total_hits";
    /// Hits that were refused.
    over = "over_limit";
    /// Hits that were admitted close to the limit.
    near = "near_limit";
    /// Hits that were admitted.
    within = "within_limit";
    /// Hits that a rule in shadow mode would have refused.
    shadow = "shadow_mode";
}

impl Metrics {
    /// Returns the counters of a rule, or of the values of a request, which are created if they are new.
    pub fn of(&self, levels: &[String], is_of_rule: bool) -> Arc<Counters> {
        let mut rules = lock(&self.rules);
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
        let rules = lock(&self.rules).clone();
        let labels: Vec<(String, Arc<Counters>)> =
            rules.into_iter().map(|(levels, counters)| (labels(&levels), counters)).collect();
        for (name, help, counter) in Counters::COUNTERS {
            let name = format!("ratelimit_service_rate_limit_{name}");
            head(&mut text, &name, help, "counter");
            for (labels, counters) in &labels {
                line(&mut text, &name, labels, counter(counters).load(Relaxed));
            }
        }
        let mut last = "";
        for (name, help, counter) in Self::COUNTERS {
            let bare = name.split('{').next().unwrap_or_default();
            if bare != last {
                head(&mut text, &format!("ratelimit_{bare}"), help, "counter");
            }
            last = bare;
            line(&mut text, &format!("ratelimit_{name}"), "", counter(self).load(Relaxed));
        }
        self.histogram(&mut text);
        let active = "ratelimit_redis_pool_cx_active";
        head(&mut text, active, "Whether the server is connected.", "gauge");
        line(&mut text, active, "", u8::from(self.is_connected.load(Relaxed)));
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
    let _: Result<(), std::fmt::Error> =
        writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", help.trim());
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _: Result<(), std::fmt::Error> = writeln!(text, "{name}{labels} {value}");
}
