//! The counts of a log's calls under one policy.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use redis_cell_core::{Instant, Unit, Verdict};
use redis_cell_policy::{CallError, Policy, Taken};

use crate::faults;
use crate::series::Series;

/// The counts of a policy.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Calls that met at least one limiter, or would have got an error.
    pub requests: u64,
    /// Refused calls.
    pub refused: u64,
    /// Refused calls that no wait would have admitted.
    pub never: u64,
    /// Calls that met no limiter, because they lack a field of each key.
    pub exempt: u64,
    /// Calls that the server would have answered with this error.
    pub errors: BTreeMap<String, u64>,
    /// How long the refused calls would have had to wait, in microseconds.
    pub waits: Histogram<u64>,
    /// The longest wait, exactly. The histogram is accurate to one percent.
    pub longest: u64,
    /// The counts over time.
    pub series: Series,
    /// Each limiter.
    pub limiters: Vec<LimiterTally>,
}

/// The counts of one limiter.
#[derive(Clone, Debug, Default)]
pub struct LimiterTally {
    /// Calls that it refused, or would have refused without shadow.
    pub refused: u64,
    /// The number of calls of each key, by the key's number. It is apart from the refusals, so that an
    /// admitted call changes little memory.
    pub requests: Vec<u64>,
    /// The refusals of each key, by the key's number, up to the last key that was refused.
    pub refusals: Vec<Refusals>,
}

/// The refused calls of one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusals {
    /// The number of refusals.
    pub count: u64,
    /// The instant of the first refusal.
    pub first: Instant,
    /// The instant of the last refusal.
    pub last: Instant,
    /// The longest wait in microseconds.
    pub longest: u64,
}

impl Tally {
    /// Creates the counts of a policy without any calls.
    ///
    /// # Errors
    /// Never: two digits are within the range of a histogram.
    pub fn new(policy: &Policy) -> Result<Self, hdrhistogram::CreationError> {
        Ok(Self {
            requests: 0,
            refused: 0,
            never: 0,
            exempt: 0,
            errors: BTreeMap::new(),
            waits: Histogram::new(2)?,
            longest: 0,
            series: Series::default(),
            limiters: vec![LimiterTally::default(); policy.limiters.len()],
        })
    }

    /// Counts a call.
    pub fn count(&mut self, now: Instant, rows: &[Taken]) {
        if rows.is_empty() && !faults::has("exempt-is-a-request") {
            self.exempt = self.exempt.saturating_add(1);
            return;
        }
        let (mut refused, mut never, mut longest) = (false, false, 0);
        for row in rows {
            let wait = row.verdict().wait().map_or(0, |wait| wait.ceil_to(Unit::Microseconds).unsigned_abs());
            if row.refuses() || (row.answer.limited() && faults::has("shadow-refuses")) {
                refused = true;
                never |= row.verdict() == Verdict::Never;
                longest = wait.max(longest);
            }
            if let Some(limiter) = self.limiters.get_mut(row.limiter) {
                limiter.count(now, row, wait);
            }
        }
        self.requests = self.requests.saturating_add(1);
        self.series.count(now, refused);
        if refused {
            self.refused = self.refused.saturating_add(1);
            if never {
                self.never = self.never.saturating_add(1);
            } else {
                self.longest = self.longest.max(longest);
                // The histogram grows to fit any wait, so this is not an error.
                self.waits.record(longest).unwrap_or_default();
            }
        }
    }

    /// Counts a call that the server would have answered with an error.
    pub fn error(&mut self, error: CallError) {
        self.requests = self.requests.saturating_add(1);
        let count = self.errors.entry(error.to_string()).or_default();
        *count = count.saturating_add(1);
    }

    /// Returns how many keys the limiters that can refuse have, and how many of these were refused.
    pub fn keys(&self, policy: &Policy) -> (u64, u64) {
        let refusing = self.limiters.iter().zip(&policy.limiters).filter(|(_, limiter)| !limiter.shadow);
        refusing.fold((0, 0), |(all, refused), (tally, _)| {
            let (more, more_refused) = tally.keys();
            (all.saturating_add(more), refused.saturating_add(more_refused))
        })
    }
}

impl LimiterTally {
    fn count(&mut self, now: Instant, row: &Taken, wait: u64) {
        let number = usize::try_from(row.key).unwrap_or(usize::MAX);
        if let Some(requests) = grown(&mut self.requests, number) {
            *requests = requests.saturating_add(1);
        }
        if row.verdict().is_limited() {
            self.refused = self.refused.saturating_add(1);
            let Some(refusals) = grown(&mut self.refusals, number) else { return };
            if refusals.count == 0 || faults::has("first-is-last") {
                refusals.first = now;
            }
            refusals.count = refusals.count.saturating_add(1);
            refusals.last = now;
            refusals.longest = refusals.longest.max(wait);
        }
    }

    /// Returns the number of keys, and how many of them were refused at least once.
    pub fn keys(&self) -> (u64, u64) {
        let seen = self.requests.iter().filter(|&&requests| requests > 0);
        let refused = self.refusals.iter().filter(|refusals| refusals.count > 0);
        (count(seen.count()), count(refused.count()))
    }
}

/// Returns the element with this number, which is created if it is new.
pub fn grown<T: Clone + Default>(places: &mut Vec<T>, number: usize) -> Option<&mut T> {
    if places.len() <= number {
        places.resize(number.saturating_add(1), T::default());
    }
    places.get_mut(number)
}

/// Returns a length as the number that reports have.
pub fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
