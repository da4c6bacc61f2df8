//! Funnel and token bucket, compared with a model that lives through every nanosecond.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{Exact, MS, NOW, S, at, in_nanos, nanos, offset};
use proptest::prelude::*;
use redis_cell_core::Change::{Delete, Keep, Store};
use redis_cell_core::Error;
use redis_cell_core::Unit::{Microseconds, Milliseconds, Seconds};
use redis_cell_core::bucket::{Level, Limit, decode, take};

fn level(free: i64, since: i64) -> Level {
    Level { free, since: at(since) }
}

#[test]
fn row_by_row() {
    let limit = |capacity| Limit::new(capacity, 1, 1, Seconds).unwrap();
    let some = |free, since| Some(level(free, since));
    let store = |free, since| Store(level(free, since));
    let (later, full) = (S + 500 * MS, 3 * S + 1);
    common::takes(&[
        ("a fresh one is full", None, limit(5), 0, 1, [0, 5, 4, -1, 1_000], store(4, 0)),
        ("more than it holds, ever", None, limit(5), 0, 6, [1, 5, 5, -1, 0], Keep),
        ("a look at a used one", some(2, 0), limit(5), later, 0, [0, 5, 3, -1, 1_500], Keep),
        ("the begun leak goes on", some(2, 0), limit(5), later, 1, [0, 5, 2, -1, 2_500], store(2, S)),
        ("a nanosecond short", some(2, 0), limit(5), 2 * S - 1, 4, [1, 5, 3, 1, 1_001], Keep),
        ("no leak has begun", some(2, 0), limit(5), full, 1, [0, 5, 4, -1, 1_000], store(4, full)),
        ("ahead of the clock", some(2, 10 * S), limit(5), 0, 2, [0, 5, 0, -1, 15_000], store(0, 10 * S)),
        ("capacity lowered: cut", some(9, 0), limit(5), 0, 1, [0, 5, 4, -1, 1_000], store(4, 0)),
        ("the same ahead", some(9, 10 * S), limit(5), 0, 1, [0, 5, 4, -1, 1_000], store(4, 0)),
        ("capacity raised: fills up", some(2, 0), limit(9), later, 1, [0, 9, 2, -1, 6_500], store(2, S)),
    ]);
}

#[test]
fn what_is_out_of_range_is_named() {
    let limit = Limit::new(1, 1, 1, Seconds).unwrap();
    let error = take(None, &limit, at(0), -1).unwrap_err();
    assert_eq!(error.to_string(), "ERR quantity must be an integer from 0 to 9223372036854775807");
    assert!(Limit::new(9_223_372_036, 1, 1, Seconds).is_ok(), "the largest that there is");
    let century = Limit::new(2, 1, 4_000_000_000, Seconds).unwrap();
    assert_eq!(take(None, &century, at(0), 2), Err(Error::BeyondTime));
    assert!(take(None, &century, at(0), 1).is_ok());
}

#[test]
fn what_is_stored_is_read_strictly() {
    let read = |free: Option<&str>, since: Option<&str>| {
        decode(free.map(str::as_bytes), since.map(str::as_bytes), "what it holds")
    };
    let (now, max) = (NOW.to_string(), i64::MAX.to_string());
    assert_eq!(read(Some("7"), Some(&now)), Ok(level(7, 0)));
    assert!(read(Some("0"), Some("0")).is_ok());
    assert!(read(Some(&max), Some(&max)).is_ok());
    let foreign = Err(Error::Foreign { expected: "what it holds" });
    assert_eq!(read(None, Some(&now)), foreign);
    assert_eq!(read(Some("7"), None), foreign);
    // Fewer units than none are a debt. No instant is before the epoch.
    assert_eq!(read(Some("-1"), Some(&now)), Ok(level(-1, 0)));
    assert_eq!(read(Some("7"), Some("-1")), foreign);
    for bad in ["", "-0", "+1", "1.5", "01", " 1", "x", "9223372036854775808"] {
        assert_eq!(read(Some(bad), Some(&now)), foreign, "{bad:?}");
        assert_eq!(read(Some("7"), Some(bad)), foreign, "{bad:?}");
    }
}

#[test]
fn the_rate_as_a_person_reads_it() {
    for (count, period, unit, text) in [
        (30, 60, Seconds, "0.5"),
        (20, 1, Seconds, "20"),
        (1, 10, Seconds, "0.1"),
        (1, 3, Seconds, "0.333333333"),
        (2, 3, Seconds, "0.666666666"),
        (100, 3, Seconds, "33.333333333"),
        (1, 86_400, Seconds, "0.000011574"),
        (5, 100, Milliseconds, "50"),
        (1, 1_000_000, Microseconds, "1"),
        (1_001, 1_000, Seconds, "1.001"),
        (1_000, 1, Microseconds, "1000000000"),
        (1, 9_000_000_000, Seconds, "0"),
        (i64::MAX, 9_223_372_036_854_775, Microseconds, "above one per nanosecond"),
    ] {
        let Ok(limit) = Limit::new(1, count, period, unit) else {
            assert_eq!(text, "above one per nanosecond");
            continue;
        };
        assert_eq!(limit.rate().per_second().to_string(), text, "{count} per {period} {unit:?}");
    }
}

/// A bucket that lives through every nanosecond.
#[derive(Clone, Debug)]
struct Model {
    capacity: i64,
    rate: Exact,
    free: i64,
    /// The leaks that have ended since the instant that the state holds, and the nanoseconds that have
    /// passed.
    leaks: i128,
    passed: i128,
}

impl Model {
    fn tick(&mut self) {
        if self.free < self.capacity {
            self.passed += 1;
        }
        if self.free < self.capacity && self.passed == self.rate.cost(self.leaks + 1) {
            self.free += 1;
            self.leaks += 1;
        }
    }

    fn ticks_until(&self, free: i64) -> i64 {
        let mut model = self.clone();
        let mut ticks = 0;
        while model.free < free {
            model.tick();
            ticks += 1;
        }
        ticks
    }

    /// The five numbers, in nanoseconds.
    fn call(&mut self, quantity: i64) -> [i64; 5] {
        let limited = quantity > self.free;
        let retry = if limited && quantity <= self.capacity { self.ticks_until(quantity) } else { -1 };
        if !limited && quantity > 0 {
            // The begun leak continues from the last whole one, and in a full bucket none has begun.
            let begun = if self.free < self.capacity { self.passed - self.rate.cost(self.leaks) } else { 0 };
            self.free -= quantity;
            (self.leaks, self.passed) = (0, begun);
            if self.passed >= self.rate.cost(1) {
                (self.free, self.leaks) = (self.free + 1, 1);
            }
        }
        [limited.into(), self.capacity, self.free, retry, self.ticks_until(self.capacity)]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decides_as_one_that_lives_through_every_nanosecond(
        capacity in 1..8_i64,
        count in 25..800_i64, // per microsecond: one unit every 1 to 40 ns
        calls in prop::collection::vec((0..120_i64, 0..10_i64), 1..60),
    ) {
        let limit = Limit::new(capacity, count, 1, Microseconds).unwrap();
        let rate = Exact::new(count, 1, Microseconds);
        let mut model = Model { capacity, rate, free: capacity, leaks: 0, passed: 0 };
        let (mut state, mut now) = (None, 0);
        for (wait, quantity) in calls {
            now += wait;
            for _ in 0..wait {
                model.tick();
            }
            let decision = take(state, &limit, at(now), quantity).unwrap();
            prop_assert_eq!(in_nanos(&decision.answer), model.call(quantity), "at {} from {:?}", now, state);
            let takes = !decision.answer.limited() && quantity > 0;
            match decision.change {
                Keep => prop_assert!(!takes),
                Store(level) => {
                    prop_assert!(takes);
                    let full = offset(limit.full_at(&level));
                    prop_assert_eq!(full, now + nanos(decision.answer.reset_after), "full when it says");
                    state = Some(level);
                }
                Delete => prop_assert!(false),
            }
        }
    }

}

#[test]
fn a_limit_says_what_it_holds() {
    assert_eq!(Limit::new(7, 1, 1, Seconds).unwrap().capacity(), 7);
}
