//! The measures of a simulation.

use std::collections::HashMap;

/// The spent units of one key, as a bucket of unlimited capacity that leaks at the limit's rate.
///
/// The highest level of the bucket is the largest number of units spent in any period beyond what the rate
/// allows for it.
#[derive(Clone, Copy, Default)]
pub struct Meter {
    level: f64,
    peak: f64,
    last: u64,
    /// Units spent.
    pub spent: u64,
    /// Units wanted.
    pub wanted: u64,
}

impl Meter {
    /// Spends one unit at `now`, in nanoseconds, with a limit of `rate` units per second.
    pub fn spend(&mut self, now: u64, rate: f64) {
        self.level = (self.level - now.saturating_sub(self.last) as f64 / 1e9 * rate).max(0.0) + 1.0;
        self.last = self.last.max(now);
        self.peak = self.peak.max(self.level);
        self.spent += 1;
    }

    /// Returns the largest number of units by which the limit was exceeded in any period.
    pub fn above(&self, burst: f64) -> f64 {
        (self.peak - burst).max(0.0)
    }
}

/// Waits in microseconds.
#[derive(Default)]
pub struct Waits {
    counts: HashMap<u32, u64>,
    sum: f64,
    count: u64,
}

impl Waits {
    /// Adds a wait in nanoseconds.
    pub fn add(&mut self, nanos: u64) {
        // Three digits are enough for a long wait, and keep the number of counts small.
        let micros = u32::try_from(nanos / 1_000).unwrap_or(u32::MAX);
        let coarse = if micros < 1_000 { micros } else { micros / 100 * 100 };
        *self.counts.entry(coarse).or_default() += 1;
        self.sum += nanos as f64 / 1e3;
        self.count += 1;
    }

    /// Returns the mean in microseconds.
    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// Returns the 99th percentile in microseconds.
    pub fn p99(&self) -> f64 {
        let mut counts: Vec<_> = self.counts.iter().collect();
        counts.sort_unstable();
        let mut rest = self.count / 100;
        for (&micros, &count) in counts.into_iter().rev() {
            if count > rest {
                return f64::from(micros);
            }
            rest -= count;
        }
        0.0
    }
}

/// Returns Jain's fairness index: 1 if the same fraction of every gateway's requests was admitted, and 1 / n
/// if only one of n gateways had requests admitted.
///
/// Source: R. Jain, D. Chiu, W. Hawe, 1984.
pub fn fairness(gateways: &[(u64, u64)]) -> f64 {
    let parts: Vec<f64> = gateways
        .iter()
        .filter(|(wanted, _)| *wanted > 0)
        .map(|&(wanted, spent)| spent as f64 / wanted as f64)
        .collect();
    let sum: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (parts.len() as f64 * squares) }
}

/// The results of a scenario.
pub struct Outcome {
    /// Requests per second.
    pub wanted: f64,
    /// Admitted requests per second.
    pub admitted: f64,
    /// Calls per second to all servers.
    pub calls: f64,
    /// Calls per second to the busiest server.
    pub busiest: f64,
    /// The largest number of units above the limit in any period, for the key that exceeded it most.
    pub above: f64,
    /// The unused fraction of the units that could have been admitted.
    pub unused: f64,
    /// The [`fairness`] among gateways.
    pub fairness: f64,
    /// The wait that the limiter adds to a request, in microseconds: the mean and the 99th percentile.
    pub waits: [f64; 2],
}

/// Formats a count as an integer, with commas between groups of three digits.
pub fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
