//! Rates whose interval is not whole: thousands of calls, each compared with the contract in wide integers.
//!
//! The models share nothing with the code but the definition of a cost. "The largest" and "the first" of the
//! contract are found by bisection.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test that panics is a test that fails"
)]

mod common;

use common::contract::{Call, Said, first, gcra_says, span, wide};
use common::{Exact, NOW, instant};
use redis_cell_core::Change::{Delete, Keep, Store};
use redis_cell_core::Unit::{self, Microseconds, Milliseconds, Seconds};
use redis_cell_core::Verdict::{self, Admitted, Later, Never};
use redis_cell_core::bucket::{self, Level};
use redis_cell_core::gcra;

/// Numbers that look random and are the same in every run (`SplitMix64`).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `most`.
    fn up_to(&mut self, most: i128) -> i128 {
        i128::from(self.next()) % (most + 1)
    }

    /// A number from 1 to `most`, small ones as likely as large ones.
    fn of_any_size(&mut self, most: i128) -> i128 {
        let bits = self.up_to(62);
        1 + self.up_to(most - 1) % (1 << bits)
    }
}

/// A rate as the arguments of a call.
#[derive(Clone, Copy, Debug)]
struct Spelt {
    count: i64,
    period: i64,
    unit: Unit,
}

impl Spelt {
    fn exact(self) -> Exact {
        Exact::new(self.count, self.period, self.unit)
    }

    /// Rates that people use for bytes, and others of all sizes; none with a whole emission interval.
    fn all(random: &mut Random) -> Vec<Self> {
        let bytes = [150_000_000, 400_000_000, 500_000_001, 600_000_000, 600_000_001, 15_000_000, 15_000, 7];
        let mut rates: Vec<Self> =
            bytes.iter().map(|&count| Self { count, period: 1, unit: Seconds }).collect();
        let mut others = std::iter::repeat_with(|| {
            let unit = [Seconds, Milliseconds, Microseconds][usize::try_from(random.up_to(2)).unwrap()];
            let nanos = i128::from(unit.nanos().get());
            // At most an hour, a week or 292 years.
            let longest = [3_600_000_000_000, 604_800_000_000_000, i128::from(i64::MAX)];
            let longest = longest[usize::try_from(random.up_to(2)).unwrap()];
            let period = random.of_any_size(longest / nanos);
            let count = random.of_any_size(period * nanos);
            Self { count: count.try_into().unwrap(), period: period.try_into().unwrap(), unit }
        });
        rates.extend(others.by_ref().filter(|rate| !rate.exact().is_whole()).take(392));
        rates
    }

    /// A capacity whose cost a span can hold, of any size.
    fn capacity(self, random: &mut Random) -> i128 {
        // An eighth of it, so that charges do not lead past the year 2262.
        random.of_any_size(self.exact().units(i128::from(i64::MAX) / 8).max(1))
    }
}

/// A bucket by the contract.
fn bucket_says(rate: Exact, capacity: i128, level: Option<Level>, now: i128, quantity: i128) -> Said<Level> {
    let (free, since) =
        level.map_or((capacity, now), |level| (i128::from(level.free), i128::from(level.since.as_nanos())));
    let free_at =
        |(free, since): (i128, i128), at: i128| capacity.min(free + rate.units((at - since).max(0)));
    let wait =
        |state, quantity: i128| first(rate.cost(capacity) + 1, |wait| free_at(state, now + wait) >= quantity);
    let state = (free, since);
    let available = free_at(state, now);
    let (verdict, change) = if quantity > capacity {
        (Never, Keep)
    } else if quantity > available {
        (Later(span(wait(state, quantity))), Keep)
    } else {
        // In a full bucket, the leak begins with the call; otherwise the one that has begun continues.
        let since = if available == capacity { now } else { since + rate.cost(available - free) };
        (Admitted, Store(Level { free: (available - quantity).try_into().unwrap(), since: instant(since) }))
    };
    let after = match change {
        Store(level) => (i128::from(level.free), i128::from(level.since.as_nanos())),
        _ => state,
    };
    Said { verdict, remaining: free_at(after, now), reset_after: wait(after, capacity), change }
}

/// The time before the next call: none, about the wait in the reply, a part of the time until it is full, or
/// more than that.
fn pause(random: &mut Random, told: Verdict, full: i128) -> i128 {
    match (random.up_to(3), told) {
        (0, _) => random.up_to(2),
        (1 | 2, Later(wait)) => (wide(wait) + random.up_to(2) - 1).max(0),
        (1 | 2, _) => random.of_any_size(full + 1),
        _ => random.up_to(full / 16 + 3),
    }
}

#[test]
fn thousands_of_calls_by_rates_that_do_not_divide() {
    let mut random = Random(2026);
    let (mut vectors, mut coarse) = (0, 0);
    for spelt in Spelt::all(&mut random) {
        let rate = spelt.exact();
        let capacity = spelt.capacity(&mut random);
        let Spelt { count, period, unit } = spelt;
        let limit = gcra::Limit::new(i64::try_from(capacity).unwrap() - 1, count, period, unit).unwrap();
        let (mut tat, mut now, mut told) = (None, i128::from(NOW), Admitted);
        for step in 0..20 {
            now += pause(&mut random, told, rate.cost(capacity));
            let call = [Call::Throttle, Call::Throttle, Call::Throttle, Call::Charge, Call::Refund][step % 5];
            let quantity = random.of_any_size(capacity + capacity / 8 + 1);
            let decide = match call {
                Call::Throttle => gcra::throttle,
                Call::Charge => gcra::charge,
                Call::Refund => gcra::refund,
            };
            let Ok(decision) = decide(tat, &limit, instant(now), quantity.try_into().unwrap()) else {
                break; // past the year 2262
            };
            let said =
                gcra_says(call, rate, capacity, tat.filter(|_| tat > Some(instant(now))), now, quantity);
            let change = match decision.change {
                Delete if tat <= Some(instant(now)) => Keep, // a state of the past is removed
                Store(new) if Some(new) == tat => Keep,
                change => change,
            };
            let decided = Said { change, ..Said::of(&decision) };
            assert_eq!(decided, said, "{call:?} {quantity} of {capacity} by {spelt:?} at {now} from {tat:?}");
            coarse += i32::from(rate.cost(quantity) != rate.cost(1) * quantity);
            vectors += 1;
            told = said.verdict;
            match decision.change {
                Keep => {}
                Store(new) => tat = Some(new),
                Delete => tat = None,
            }
        }

        let limit = bucket::Limit::new(capacity.try_into().unwrap(), count, period, unit).unwrap();
        let (mut level, mut now, mut told) = (None, i128::from(NOW), Admitted);
        for _ in 0..20 {
            now += pause(&mut random, told, rate.cost(capacity));
            let quantity = random.of_any_size(capacity + capacity / 8 + 1);
            let Ok(decision) = bucket::take(level, &limit, instant(now), quantity.try_into().unwrap()) else {
                break;
            };
            let said = bucket_says(rate, capacity, level, now, quantity);
            assert_eq!(
                Said::of(&decision),
                said,
                "{quantity} of {capacity} by {spelt:?} at {now} from {level:?}"
            );
            coarse += i32::from(rate.cost(quantity) != rate.cost(1) * quantity);
            vectors += 1;
            told = said.verdict;
            if let Store(new) = decision.change {
                level = Some(new);
            }
        }
    }
    assert!(vectors >= 12_000, "{vectors} vectors");
    assert!(coarse >= 6_000, "an emission interval rounded down would have done for all but {coarse}");
}

/// Where the count divides the period, each number equals the one by an emission interval in whole
/// nanoseconds.
#[test]
fn by_a_whole_emission_interval_nothing_is_rounded() {
    let mut random = Random(2027);
    for round in 0..4_000 {
        let interval = random.of_any_size(1_000_000_000_000);
        let count = random.of_any_size(5_000);
        // In microseconds, so that the period is a whole number of them.
        let count = count * 1_000;
        let period = interval * count / 1_000;
        let most = i128::from(i64::MAX) / 8 / interval;
        let (capacity, quantity) = (random.of_any_size(most), random.of_any_size(most / 2));
        let quantity = if round % 3 == 0 { quantity } else { 1 + quantity % capacity };
        let [count, period, whole] = [count, period, capacity].map(|number| i64::try_from(number).unwrap());
        let now = i128::from(NOW);
        let passed = random.of_any_size(interval * capacity + interval);
        let tolerance = interval * capacity;

        let limit = gcra::Limit::new(whole - 1, count, period, Microseconds).unwrap();
        let debt = passed;
        let decided =
            gcra::throttle(Some(instant(now + debt)), &limit, instant(now), i64::try_from(quantity).unwrap());
        let need = debt + interval * quantity;
        let (verdict, owed, change) = if quantity > capacity {
            (Never, debt, Keep)
        } else if need > tolerance {
            (Later(span(need - tolerance)), debt, Keep)
        } else {
            (Admitted, need, Store(instant(now + need)))
        };
        let remaining = ((tolerance - owed) / interval).max(0);
        let expected = Said { verdict, remaining, reset_after: owed, change };
        assert_eq!(Said::of(&decided.unwrap()), expected, "{quantity} of {limit:?}, owing {debt}");

        let limit = bucket::Limit::new(whole, count, period, Microseconds).unwrap();
        let free = random.up_to(capacity);
        let (since, leaks) = (now - passed, passed / interval);
        let level = Level { free: free.try_into().unwrap(), since: instant(since) };
        let decided = bucket::take(Some(level), &limit, instant(now), i64::try_from(quantity).unwrap());
        let (free, since) =
            if free + leaks >= capacity { (capacity, now) } else { (free + leaks, since + leaks * interval) };
        let (verdict, left, change) = if quantity > capacity {
            (Never, free, Keep)
        } else if quantity > free {
            (Later(span(since + (quantity - free) * interval - now)), free, Keep)
        } else {
            let free = free - quantity;
            (Admitted, free, Store(Level { free: free.try_into().unwrap(), since: instant(since) }))
        };
        let reset_after = since + (capacity - left) * interval - now;
        let expected = Said { verdict, remaining: left, reset_after, change };
        assert_eq!(Said::of(&decided.unwrap()), expected, "{quantity} of {limit:?} from {level:?}");
    }
}
