//! Whether any stretch of time has more units than a limit and its bound allow.

// Instants become floating-point numbers for products. Their differences are far below 2^53.
#![allow(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::cast_precision_loss)]

/// A unit that was admitted between two instants, in nanoseconds: before the call of the client, and after
/// its decision.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    pub before: u64,
    pub after: u64,
}

/// The largest number of units that were certainly admitted within any stretch of time, beyond what `rate`
/// units a second bring in it.
///
/// A unit counts for the stretches that contain both of its instants. So a process that is not running for a
/// while, between a decision and the clock, raises no false alarm.
///
/// Cost: O(n log n). The stretches are taken by their beginning, from the last one back; a tree over their
/// ends has the number of units less the units that the rate has brought.
pub fn most_beyond(rate: f64, units: &[Admitted]) -> f64 {
    let mut units = units.to_vec();
    units.sort_unstable_by_key(|unit| unit.before);
    let mut ends: Vec<u64> = units.iter().map(|unit| unit.after).collect();
    ends.sort_unstable();
    let Some(&first) = ends.first() else { return 0.0 };
    let brought = |nanos: u64| nanos as f64 / 1e9 * rate;
    let mut tree = Tree::new(ends.iter().map(|&end| -brought(end - first)).collect());
    let mut most = 0_f64;
    for unit in units.iter().rev() {
        tree.add_from(ends.partition_point(|&end| end < unit.after));
        // The beginning may lie before the first end.
        let begins = unit.before as f64 - first as f64;
        most = most.max(tree.most() + begins / 1e9 * rate);
    }
    most
}

/// Numbers: all of them from a given place on grow by one, and the largest is read. A number takes part once
/// its place was given: a stretch ends with one of its units.
struct Tree {
    leaves: usize,
    numbers: Vec<f64>,
    /// The sum added to all numbers below a node, and the largest of these numbers with it.
    added: Vec<f64>,
    most: Vec<f64>,
}

impl Tree {
    fn new(numbers: Vec<f64>) -> Self {
        let leaves = numbers.len().next_power_of_two();
        Self { leaves, numbers, added: vec![0.0; 2 * leaves], most: vec![f64::NEG_INFINITY; 2 * leaves] }
    }

    fn most(&self) -> f64 {
        self.most.get(1).copied().unwrap_or(f64::NEG_INFINITY)
    }

    /// Adds one to all numbers from this place on.
    fn add_from(&mut self, place: usize) {
        let mut node = self.leaves + place;
        if let (Some(&number), Some(most)) = (self.numbers.get(place), self.most.get_mut(node))
            && *most == f64::NEG_INFINITY
        {
            *most = number + self.added.get(node).copied().unwrap_or_default();
        }
        self.add(node);
        while node > 1 {
            // The right sibling of a left child follows it.
            if node.is_multiple_of(2) {
                self.add(node + 1);
            }
            node /= 2;
            self.renew(node);
        }
    }

    fn add(&mut self, node: usize) {
        if let (Some(added), Some(most)) = (self.added.get_mut(node), self.most.get_mut(node)) {
            *added += 1.0;
            *most += 1.0;
        }
    }

    fn renew(&mut self, node: usize) {
        let below = |child| self.most.get(child).copied().unwrap_or(f64::NEG_INFINITY);
        let most =
            below(2 * node).max(below(2 * node + 1)) + self.added.get(node).copied().unwrap_or_default();
        if let Some(place) = self.most.get_mut(node) {
            *place = most;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every stretch, one by one.
    fn naive(rate: f64, units: &[Admitted]) -> f64 {
        let mut most = 0_f64;
        for begin in units {
            for end in units.iter().filter(|end| end.after >= begin.before) {
                let inside = |unit: &&Admitted| unit.before >= begin.before && unit.after <= end.after;
                let count = units.iter().filter(inside).count() as f64;
                most = most.max(count - (end.after as f64 - begin.before as f64) / 1e9 * rate);
            }
        }
        most
    }

    #[test]
    fn the_same_as_every_stretch_one_by_one() {
        let mut state = 7_u64;
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        for round in 1..200 {
            let units: Vec<_> = (0..=round % 40)
                .map(|_| {
                    let before = 1_000_000_000 + below(100_000_000);
                    Admitted { before, after: before + below(2) * below(20_000_000) }
                })
                .collect();
            let rate = below(1_000) as f64;
            let (fast, slow) = (most_beyond(rate, &units), naive(rate, &units));
            assert!((fast - slow).abs() < 1e-6, "{fast} instead of {slow} at {rate}: {units:?}");
        }
    }
}
