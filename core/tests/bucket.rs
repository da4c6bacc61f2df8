//! Funnel and token bucket, compared with a model that lives through every nanosecond.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{Exact, MS, NOW, S, at, in_nanos, nanos, offset, unit};
use proptest::prelude::*;
use redis_cell_core::Unit::{Microseconds, Milliseconds, Seconds};
use redis_cell_core::bucket::{Level, Limit, decode, take};
use redis_cell_core::{Change, Error, Unit};

fn level(free: i64, since: i64) -> Level {
    Level { free, since: at(since) }
}

#[test]
fn state_and_answer_row_by_row() {
    // The case; free and since before; capacity; now; quantity; the answer at one unit per second; the stored
    // state.
    type Row = (&'static str, Option<(i64, i64)>, i64, i64, i64, [i64; 5], Option<(i64, i64)>);
    let half = 500 * MS;
    let rows: [Row; 17] = [
        ("a fresh one is full", None, 5, 0, 1, [0, 5, 4, -1, 1_000], Some((4, 0))),
        ("all at once", None, 5, 0, 5, [0, 5, 0, -1, 5_000], Some((0, 0))),
        ("more than it holds, ever", None, 5, 0, 6, [1, 5, 5, -1, 0], None),
        ("a look", None, 5, 0, 0, [0, 5, 5, -1, 0], None),
        ("a look at a used one", Some((2, 0)), 5, S + half, 0, [0, 5, 3, -1, 1_500], None),
        ("the begun leak goes on", Some((2, 0)), 5, S + half, 1, [0, 5, 2, -1, 2_500], Some((2, S))),
        ("not there yet", Some((2, 0)), 5, S + half, 4, [1, 5, 3, 500, 1_500], None),
        ("a nanosecond short", Some((2, 0)), 5, 2 * S - 1, 4, [1, 5, 3, 1, 1_001], None),
        ("just there", Some((2, 0)), 5, 2 * S, 4, [0, 5, 0, -1, 5_000], Some((0, 2 * S))),
        (
            "full: no leak has begun",
            Some((2, 0)),
            5,
            3 * S + 1,
            1,
            [0, 5, 4, -1, 1_000],
            Some((4, 3 * S + 1)),
        ),
        ("long full", Some((0, 0)), 5, 900 * S, 1, [0, 5, 4, -1, 1_000], Some((4, 900 * S))),
        ("ahead of the clock", Some((2, 10 * S)), 5, 0, 2, [0, 5, 0, -1, 15_000], Some((0, 10 * S))),
        ("refused ahead of the clock", Some((2, 10 * S)), 5, 0, 3, [1, 5, 2, 11_000, 13_000], None),
        ("capacity lowered: cut", Some((9, 0)), 5, 0, 1, [0, 5, 4, -1, 1_000], Some((4, 0))),
        ("the same, ahead of the clock", Some((9, 10 * S)), 5, 0, 1, [0, 5, 4, -1, 1_000], Some((4, 0))),
        ("capacity raised: fills up", Some((2, 0)), 9, S + half, 1, [0, 9, 2, -1, 6_500], Some((2, S))),
        ("capacity raised above a full one", Some((5, 0)), 9, 0, 6, [1, 9, 5, 1_000, 4_000], None),
    ];
    for (shows, before, capacity, now, quantity, answer, stored) in rows {
        let limit = Limit::new(capacity, 1, 1, Seconds).unwrap();
        let before = before.map(|(free, since)| level(free, since));
        let decision = take(before, &limit, at(now), quantity).unwrap();
        assert_eq!(decision.answer.reply(Milliseconds).five, answer, "{shows}");
        let change = stored.map_or(Change::Keep, |(free, since)| Change::Store(level(free, since)));
        assert_eq!(decision.change, change, "{shows}");
        if let Change::Store(level) = decision.change {
            let full = offset(limit.full_at(&level));
            assert_eq!(full, now + nanos(decision.answer.reset_after), "{shows}: full when it says");
        }
    }
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

/// Rates whose emission interval is not a whole number of nanoseconds, and often hardly more than one.
fn any_fractional_rate() -> impl Strategy<Value = (i64, i64, Unit)> {
    prop_oneof![
        (1..900_i64, 1..5_000_i64, unit()),
        (2..=1_000_i64, Just(1_i64), Just(Microseconds)),
        (2..=1_000_000_000_i64, Just(1_i64), Just(Seconds)),
    ]
    .prop_filter("a fraction", |&(count, period, unit)| !Exact::new(count, period, unit).is_whole())
}

/// A bucket that knows real numbers: its free room in `1 / period` of a unit, so that each nanosecond brings
/// `count`.
struct Rational {
    rate: Exact,
    capacity: i128,
    room: i128,
    seen: i64,
}

impl Rational {
    fn pass_to(&mut self, now: i64) {
        self.room += i128::from(now - self.seen) * self.rate.count;
        self.room = self.room.min(self.capacity * self.rate.period);
        self.seen = now;
    }

    /// The whole units that are free, including those that `nanos` more would bring.
    fn units_with(&self, nanos: i128) -> i128 {
        (self.room + nanos * self.rate.count).div_euclid(self.rate.period).min(self.capacity)
    }

    fn take(&mut self, quantity: i64) {
        self.room -= i128::from(quantity) * self.rate.period;
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
                Change::Keep => prop_assert!(!takes),
                Change::Store(level) => {
                    prop_assert!(takes);
                    state = Some(level);
                }
                Change::Delete => prop_assert!(false),
            }
        }
    }

    /// Over a long run, none of the units that the rate brings are lost, and each call that takes gains less
    /// than the units of a nanosecond.
    #[test]
    fn a_long_run_stays_within_a_nanosecond_per_call_of_real_numbers(
        (count, period, unit) in any_fractional_rate(),
        capacity in 1..200_i64,
        calls in prop::collection::vec((0..4_000_i64, 0..1_500_i64), 1..400),
    ) {
        let rate = Exact::new(count, period, unit);
        let limit = Limit::new(capacity, count, period, unit).unwrap();
        let full = capacity.into();
        let mut real = Rational { rate, capacity: full, room: full * rate.period, seen: 0 };
        let (mut state, mut now, mut takes) = (None, 0, 0);
        for (thousandths, share) in calls {
            now += i64::try_from(rate.cost(thousandths.into()) / 1_000 + i128::from(thousandths % 3)).unwrap();
            real.pass_to(now);
            let free = take(state, &limit, at(now), 0).unwrap().answer.remaining;
            prop_assert!(real.units_with(0) <= free.into(), "lost: {} of {:?}", free, real.room);
            prop_assert!(i128::from(free) <= real.units_with(takes + 1), "{} after {} calls", free, takes);
            let quantity = capacity * share / 1_000;
            if let Change::Store(level) = take(state, &limit, at(now), quantity).unwrap().change {
                state = Some(level);
                real.take(quantity);
                takes += 1;
            }
        }
    }

}

#[test]
fn a_limit_says_what_it_holds() {
    assert_eq!(Limit::new(7, 1, 1, Seconds).unwrap().capacity(), 7);
}
