//! Counts over time, in a bounded number of intervals of equal length.

use redis_cell_core::Instant;

use crate::tally::grown;

/// The lengths of intervals in seconds. Each divides the next.
const WIDTHS: [u64; 11] = [1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400, 604_800, 31_449_600];

/// The largest number of intervals.
const MOST: usize = 400;

/// The calls in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Calls admitted.
    pub admitted: u64,
    /// Calls refused.
    pub refused: u64,
}

/// Admitted and refused calls over time.
///
/// Intervals begin as one second, and become longer when there are too many.
#[derive(Clone, Debug, Default)]
pub struct Series {
    width: usize,
    /// The number of the first interval, counted from the epoch.
    first: u64,
    intervals: Vec<Interval>,
    /// The second of the latest call, and its interval.
    latest: Option<(u64, usize)>,
}

impl Series {
    /// Counts a call. Calls must come in the order of their times.
    pub fn count(&mut self, now: Instant, refused: bool) {
        let second = now.as_nanos() / 1_000_000_000;
        let at = match self.latest {
            Some((latest, at)) if latest == second => at,
            _ => self.reached(second),
        };
        self.latest = Some((second, at));
        if let Some(interval) = self.intervals.get_mut(at) {
            let count = if refused { &mut interval.refused } else { &mut interval.admitted };
            *count = count.saturating_add(1);
        }
    }

    /// Returns the position of the interval with a second, which is created if it is new.
    fn reached(&mut self, second: u64) -> usize {
        if self.intervals.is_empty() {
            self.first = second;
        }
        let mut at = self.at(second);
        while at >= MOST && self.width.saturating_add(1) < WIDTHS.len() {
            self.merge();
            at = self.at(second);
        }
        if at >= self.intervals.len() && at < MOST {
            self.intervals.resize(at.saturating_add(1), Interval::default());
        }
        // A log of more than seven thousand years does not fit: its end is counted in the last interval.
        at.min(self.intervals.len().saturating_sub(1))
    }

    /// Returns the intervals.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Returns the length of an interval in seconds.
    pub fn width(&self) -> u64 {
        WIDTHS.get(self.width).copied().unwrap_or(1)
    }

    /// Returns the beginning of the first interval, in seconds since the epoch.
    pub fn start(&self) -> u64 {
        self.first.saturating_mul(self.width())
    }

    fn at(&self, second: u64) -> usize {
        let number = second.checked_div(self.width()).unwrap_or_default();
        usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX)
    }

    /// Merges the intervals into longer ones.
    fn merge(&mut self) {
        let start = self.start();
        let before = self.width();
        self.width = self.width.saturating_add(1);
        let after = self.width();
        self.first = start.checked_div(after).unwrap_or_default();
        let mut merged: Vec<Interval> = Vec::new();
        for (interval, number) in self.intervals.iter().zip(0_u64..) {
            let second = start.saturating_add(number.saturating_mul(before));
            if let Some(into) = grown(&mut merged, self.at(second)) {
                into.admitted = into.admitted.saturating_add(interval.admitted);
                into.refused = into.refused.saturating_add(interval.refused);
            }
        }
        self.intervals = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Instant {
        Instant::from_nanos(second.saturating_mul(1_000_000_000)).unwrap_or_default()
    }

    #[test]
    fn intervals_become_longer_and_lose_nothing() {
        let mut series = Series::default();
        for second in 1_000_000_007..1_000_010_007 {
            series.count(at(second), second % 10 == 0);
        }
        assert_eq!(series.width(), 60);
        assert_eq!(series.start(), 1_000_000_007 / 60 * 60);
        assert_eq!(series.intervals().iter().map(|interval| interval.admitted).sum::<u64>(), 9_000);
        assert_eq!(series.intervals().iter().map(|interval| interval.refused).sum::<u64>(), 1_000);
        assert_eq!(series.intervals().get(1), Some(&Interval { admitted: 54, refused: 6 }));
    }

    #[test]
    fn a_gap_of_centuries_stays_within_bounds() {
        let mut series = Series::default();
        series.count(at(0), false);
        series.count(at(9_000_000_000), true);
        assert!(series.intervals().len() <= MOST);
        assert_eq!(series.intervals().last(), Some(&Interval { admitted: 0, refused: 1 }));
    }
}
