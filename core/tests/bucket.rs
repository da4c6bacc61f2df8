//! Funnel and token bucket, held against a model that lives through every nanosecond.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test that panics is a test that fails"
)]

mod common;

use common::{MS, NOW, S, US, at, instant, nanos, offset};
use proptest::prelude::*;
use redis_cell_core::Unit::{Microseconds, Milliseconds, Seconds};
use redis_cell_core::bucket::{Level, Limit, decode, take};
use redis_cell_core::{Change, Decision, Error, Retry, Unit};

fn level(free: i64, since: i64) -> Level {
    Level { free, since: at(since) }
}

/// Calls `take`, carries out what it decides, and returns the reply in milliseconds.
fn call(state: &mut Option<Level>, limit: &Limit, now: i64, quantity: i64) -> [i64; 5] {
    let decision = take(*state, limit, at(now), quantity).unwrap();
    match decision.change {
        Change::Keep => {}
        Change::Store(level) => *state = Some(level),
        Change::Delete => panic!("a bucket is never deleted"),
    }
    decision.answer.reply(Milliseconds).five
}

#[test]
fn the_articles_own_runs() {
    for (capacity, count, period, calls, admitted) in
        [(15, 30, 60, 20, 15), (6, 1, 10, 20, 6), (30, 20, 1, 50, 30)]
    {
        let limit = Limit::new(capacity, count, period, Seconds).unwrap();
        let mut state = None;
        for n in 1..=calls {
            // All within less than the time of one leak.
            let reply = call(&mut state, &limit, n * 900 * US, 1);
            let left = (capacity - n).max(0);
            assert_eq!(reply[..3], [i64::from(n > admitted), capacity, left], "call {n} of {capacity}");
        }
    }
}

#[test]
fn the_leaky_bucket_as_a_meter() {
    let limit = Limit::new(100, 5, 1, Seconds).unwrap();
    let mut state = None;
    let answers: Vec<_> = [(0, 50), (0, 10), (0, 50), (S, 50), (2 * S, 50)]
        .map(|(now, quantity)| call(&mut state, &limit, now, quantity)[..4].to_vec())
        .into();
    assert_eq!(
        answers,
        [[0, 100, 50, -1], [0, 100, 40, -1], [1, 100, 40, 2_000], [1, 100, 45, 1_000], [0, 100, 0, -1]]
    );
}

#[test]
fn state_and_answer_row_by_row() {
    // What it shows; free and since before; capacity; now; quantity; the answer at one unit per second; what is stored.
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
    let any_capacity = "ERR capacity must be an integer from 1 to 9223372036854775807";
    let any_period = "ERR period must be an integer from 1 to 9223372036";
    let rows: [([&str; 3], Unit, &str); 10] = [
        (["0", "1", "1"], Seconds, any_capacity),
        (["-1", "1", "1"], Seconds, any_capacity),
        (["x", "1", "1"], Seconds, any_capacity),
        (["", "1", "1"], Seconds, any_capacity),
        (["9223372036854775808", "1", "1"], Seconds, any_capacity),
        (["9223372037", "1", "1"], Seconds, "ERR capacity must be an integer from 1 to 9223372036"),
        (["1", "0", "1"], Seconds, "ERR count must be an integer from 1 to 9223372036854775807"),
        (["1", "1001", "1"], Microseconds, "ERR count must be an integer from 1 to 1000"),
        (["1", "1", "0"], Seconds, any_period),
        (["1", "1", "9223372037"], Seconds, any_period),
    ];
    for (limit, unit, text) in rows {
        let error = Limit::parse(limit.map(str::as_bytes), unit).unwrap_err();
        assert_eq!(error.to_string(), text, "{limit:?}");
    }
    let limit = Limit::new(1, 1, 1, Seconds).unwrap();
    let error = take(None, &limit, at(0), -1).unwrap_err();
    assert_eq!(error.to_string(), "ERR quantity must be an integer from 0 to 9223372036854775807");
    assert!(Limit::new(0, 1, 1, Seconds).is_err());
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
    for bad in ["", "-1", "+1", "1.5", "01", " 1", "x", "9223372036854775808"] {
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
    interval: i64,
    free: i64,
    /// How much of the next leak has passed.
    begun: i64,
}

impl Model {
    fn tick(&mut self) {
        if self.free < self.capacity {
            self.begun += 1;
        }
        if self.begun == self.interval {
            self.free += 1;
            self.begun = 0;
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
        if !limited {
            self.free -= quantity;
        }
        [limited.into(), self.capacity, self.free, retry, self.ticks_until(self.capacity)]
    }
}

fn in_nanos(decision: &Decision<Level>) -> [i64; 5] {
    let answer = decision.answer;
    let retry = match answer.retry_after {
        Retry::Never => -1,
        Retry::After(wait) => nanos(wait),
    };
    [answer.limited.into(), answer.limit, answer.remaining, retry, nanos(answer.reset_after)]
}

/// A limit, and its emission interval.
fn any_limit() -> impl Strategy<Value = (i64, Limit, i64)> {
    let unit = prop_oneof![Just((Seconds, S)), Just((Milliseconds, MS)), Just((Microseconds, US))];
    (2..2_000_i64, 1..900_i64, 1..5_000_i64, unit).prop_map(|(capacity, count, period, (unit, length))| {
        (capacity, Limit::new(capacity, count, period, unit).unwrap(), period * length / count)
    })
}

proptest! {
    #[test]
    fn decides_as_one_that_lives_through_every_nanosecond(
        capacity in 1..8_i64,
        count in 25..800_i64, // per microsecond: one unit every 1 to 40 ns
        calls in prop::collection::vec((0..120_i64, 0..10_i64), 1..60),
    ) {
        let limit = Limit::new(capacity, count, 1, Microseconds).unwrap();
        let mut model = Model { capacity, interval: 1_000 / count, free: capacity, begun: 0 };
        let (mut state, mut now) = (None, 0);
        for (wait, quantity) in calls {
            now += wait;
            for _ in 0..wait {
                model.tick();
            }
            let decision = take(state, &limit, at(now), quantity).unwrap();
            prop_assert_eq!(in_nanos(&decision), model.call(quantity), "at {} from {:?}", now, state);
            let takes = !decision.answer.limited && quantity > 0;
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

    #[test]
    fn many_small_steps_equal_one_large_one(
        (capacity, limit, interval) in any_limit(),
        steps in prop::collection::vec(1..3_000_i64, 1..300),
    ) {
        let mut state = None;
        call(&mut state, &limit, 0, capacity); // empty: from now on all that is free has leaked
        let (mut now, mut taken) = (0, 0);
        for step in steps {
            // Odd fractions of the interval, each of which could be lost.
            let next = now + interval * step / 1_000;
            if next / interval - taken >= capacity {
                break; // a full one loses what would leak
            }
            now = next;
            taken += i64::from(call(&mut state, &limit, now, 1)[0] == 0);
        }
        let free = take(state, &limit, at(now), 0).unwrap().answer.remaining;
        prop_assert_eq!(free, now / interval - taken, "after {} units of {} ns", now / interval, interval);
    }

    #[test]
    fn the_wait_is_exact(
        (capacity, limit, interval) in any_limit(),
        free in 0..2_000_i64,
        since in (-3..3_i64, -1_000_000..1_000_000_i64),
        quantity in 1..2_100_i64,
        part in 0..1_000_i64,
    ) {
        let state = Some(level(free, since.0 * interval + since.1));
        let answer = take(state, &limit, at(0), quantity).unwrap().answer;
        let room = |now| take(state, &limit, at(now), 0).unwrap().answer.remaining;
        let reset = nanos(answer.reset_after);
        if let Retry::After(wait) = answer.retry_after {
            let wait = nanos(wait);
            prop_assert!(answer.limited && wait > 0);
            let limited = |now: i64| take(state, &limit, at(now), quantity).unwrap().answer.limited;
            for now in [0, wait / 1_000 * part, wait - 1] {
                prop_assert!(limited(now), "at {} of {}", now, wait);
            }
            prop_assert!(!limited(wait), "after {}", wait);
            prop_assert_eq!(room(reset), capacity, "as good as new when it says");
            prop_assert!(reset == 0 || room(reset - 1) < capacity);
        } else {
            prop_assert_eq!(answer.limited, quantity > capacity, "refused for ever");
        }
    }

    #[test]
    fn no_number_is_too_wild(
        (capacity, count, period, quantity) in any::<(i64, i64, i64, i64)>(),
        (free, since, now) in (0..=i64::MAX, 0..=i64::MAX, 0..=i64::MAX),
    ) {
        let state = Some(Level { free, since: instant(since.into()) });
        for divisor in [1, 1_000_000, 1_000_000_000_000] {
            let limit = Limit::new(capacity / divisor, count, period / divisor, Microseconds);
            let limits = [limit, Limit::new(3, 1, 1, Seconds), Limit::new(1_000_000, 1, 9_223, Seconds)];
            for limit in limits.into_iter().flatten() {
                if let Ok(decision) = take(state, &limit, instant(now.into()), quantity) {
                    prop_assert!((0..=decision.answer.limit).contains(&decision.answer.remaining));
                }
            }
        }
    }
}
