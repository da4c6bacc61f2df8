//! Windows, held against models that keep every admitted call and count again each time.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test that panics is a test that fails"
)]

mod common;

use common::{DAY, MS, NOW, S, US, at, instant, nanos, offset};
use proptest::prelude::*;
use redis_cell_core::Unit::{Microseconds, Milliseconds, Seconds};
use redis_cell_core::window::{Counter, Limit, Sliding, fixed, sliding};
use redis_cell_core::{Answer, Change, Error, Retry, Unit};

/// The five numbers, in nanoseconds.
fn in_nanos(answer: &Answer) -> [i64; 5] {
    let retry = match answer.retry_after {
        Retry::Never => -1,
        Retry::After(wait) => nanos(wait),
    };
    [answer.limited.into(), answer.limit, answer.remaining, retry, nanos(answer.reset_after)]
}

#[test]
fn a_limit_names_what_is_out_of_range() {
    let any_limit = "ERR limit must be an integer from 1 to 9223372036854775807";
    let any_period = "ERR period must be an integer from 1 to 9223372036";
    let rows: [([&str; 2], Unit, &str); 8] = [
        (["0", "1"], Seconds, any_limit),
        (["-1", "1"], Seconds, any_limit),
        (["x", "1"], Seconds, any_limit),
        (["9223372036854775808", "1"], Seconds, any_limit),
        (["1", "0"], Seconds, any_period),
        (["1", "x"], Seconds, any_period),
        (["1", "9223372037"], Seconds, any_period),
        (["1", "9223372036854776"], Microseconds, "ERR period must be an integer from 1 to 9223372036854775"),
    ];
    for (limit, unit, text) in rows {
        let error = Limit::parse(limit.map(str::as_bytes), unit).unwrap_err();
        assert_eq!(error.to_string(), text, "{limit:?}");
    }
    assert!(Limit::new(0, 1, Seconds).is_err());
    let limit = Limit::new(1, 1, Seconds).unwrap();
    let text = "ERR quantity must be an integer from 0 to 9223372036854775807";
    assert_eq!(fixed(None, &limit, at(0), -1).unwrap_err().to_string(), text);
    assert_eq!(sliding(None, &limit, at(0), -1).unwrap_err().to_string(), text);
}

#[test]
fn a_period_must_end_within_time_itself() {
    // 2^63 ns less the instant of the call, in seconds; half of it for two periods. Whatever the quantity.
    for quantity in [0, 1, 2] {
        let longest = Limit::new(1, 7_523_372_036, Seconds).unwrap();
        assert!(fixed(None, &longest, at(0), quantity).is_ok());
        let error =
            fixed(None, &Limit::new(1, 7_523_372_037, Seconds).unwrap(), at(0), quantity).unwrap_err();
        assert_eq!(error.to_string(), "ERR period must be an integer from 1 to 7523372036");

        let longest = Limit::new(1, 3_761_686_018, Seconds).unwrap();
        assert!(sliding(None, &longest, at(0), quantity).is_ok());
        let error =
            sliding(None, &Limit::new(1, 3_761_686_019, Seconds).unwrap(), at(0), quantity).unwrap_err();
        assert_eq!(error.to_string(), "ERR period must be an integer from 1 to 3761686018");
    }
}

mod a_fixed_window {
    use super::*;

    /// Begun and over at a whole millisecond: `NOW` is 456789 ns past one.
    const END: i64 = 60 * S - 456_789;

    fn counter(count: i64, end: i64) -> Counter {
        Counter { count, end: at(end) }
    }

    #[test]
    fn row_by_row() {
        // What it shows; count and end before; limit per 60 s; now; quantity; the answer in ms; what is stored.
        type Row = (&'static str, Option<(i64, i64)>, i64, i64, i64, [i64; 5], Option<(i64, i64)>);
        let rows: [Row; 15] = [
            ("opened by the first", None, 5, 0, 2, [0, 5, 3, -1, 60_000], Some((2, END))),
            ("all of it", None, 5, 0, 5, [0, 5, 0, -1, 60_000], Some((5, END))),
            ("above the limit", None, 5, 0, 6, [1, 5, 5, -1, 0], None),
            ("a look opens nothing", None, 5, 0, 0, [0, 5, 5, -1, 0], None),
            ("the end stays", Some((2, END)), 5, 30 * S, 3, [0, 5, 0, -1, 30_000], Some((5, END))),
            ("a look", Some((2, END)), 5, 30 * S, 0, [0, 5, 3, -1, 30_000], None),
            ("refused", Some((2, END)), 5, 30 * S, 4, [1, 5, 3, 30_000, 30_000], None),
            ("refused for ever", Some((2, END)), 5, 30 * S, 6, [1, 5, 3, -1, 30_000], None),
            ("a nanosecond early", Some((5, END)), 5, END - 1, 1, [1, 5, 0, 1, 1], None),
            ("over", Some((5, END)), 5, END, 1, [0, 5, 4, -1, 60_000], Some((1, END + 60 * S))),
            ("limit lowered", Some((5, END)), 3, 0, 1, [1, 3, 0, 60_000, 60_000], None),
            ("limit lowered, a look", Some((5, END)), 3, 0, 0, [0, 3, 0, -1, 60_000], None),
            ("limit raised", Some((5, END)), 6, 0, 1, [0, 6, 0, -1, 60_000], Some((6, END))),
            ("longer period before", Some((5, 9 * END)), 5, 0, 1, [1, 5, 0, 539_996, 539_996], None),
            ("nothing counted, nothing opened", Some((0, S)), 5, 0, 1, [0, 5, 4, -1, 60_000], Some((1, END))),
        ];
        for (shows, before, limit, now, quantity, answer, stored) in rows {
            let limit = Limit::new(limit, 60, Seconds).unwrap();
            let before = before.map(|(count, end)| counter(count, end));
            let decision = fixed(before, &limit, at(now), quantity).unwrap();
            assert_eq!(decision.answer.reply(Milliseconds).five, answer, "{shows}");
            let change = stored.map_or(Change::Keep, |(count, end)| Change::Store(counter(count, end)));
            assert_eq!(decision.change, change, "{shows}");
        }
    }

    #[test]
    fn is_read_strictly() {
        let foreign = Err(Error::Foreign { expected: Counter::EXPECTED });
        let soon = Some(at(END));
        assert_eq!(Counter::decode(b"7", at(0), soon), Ok(counter(7, END)));
        assert_eq!(Counter::decode(b"0", at(0), soon), Ok(counter(0, END)));
        assert_eq!(Counter::decode(b"7", at(0), None), foreign, "no end");
        for bad in ["", "-1", "+1", "1.5", "01", " 1", "x", "9223372036854775808", "\0", "7\n"] {
            assert_eq!(Counter::decode(bad.as_bytes(), at(0), soon), foreign, "{bad:?}");
        }
        // The state of GCRA, near the clock or far ahead as its key's expiry is.
        for ahead in [0, 60 * S, DAY, 9 * DAY] {
            let tat = (NOW + ahead).to_string();
            assert_eq!(Counter::decode(tat.as_bytes(), at(0), Some(at(ahead))), foreign, "{tat}");
        }
    }

    proptest! {
        #[test]
        fn decides_as_a_list_of_calls_does(
            limit in 1..6_i64,
            period in prop_oneof![(1..40_i64).prop_map(|period| period * MS), (1..40_000_i64).prop_map(|period| period * US)],
            calls in prop::collection::vec((0..20_000_000_i64, 0..7_i64), 1..60),
        ) {
            let limits = Limit::new(limit, period / US, Microseconds).unwrap();
            let (mut state, mut now) = (None, 0);
            // What was admitted in the window that is open, and the instant that ends it.
            let mut open: Option<(Vec<i64>, i64)> = None;
            for (wait, quantity) in calls {
                now += wait;
                open = open.filter(|(_, end)| now < *end);
                let used: i64 = open.iter().flat_map(|(list, _)| list).sum();
                let admitted = quantity <= limit - used;
                if admitted && quantity > 0 {
                    let millisecond = (NOW + now) / MS;
                    let ends = |end: &i64| end * MS >= millisecond * MS + period;
                    let end = (millisecond..millisecond + 99).find(ends).unwrap() * MS - NOW;
                    open.get_or_insert_with(|| (Vec::new(), end)).0.push(quantity);
                }
                let used: i64 = open.iter().flat_map(|(list, _)| list).sum();
                let left = open.as_ref().map_or(0, |(_, end)| end - now);
                let retry = if admitted || quantity > limit { -1 } else { left };
                let decision = fixed(state, &limits, at(now), quantity).unwrap();
                prop_assert_eq!(
                    in_nanos(&decision.answer),
                    [i64::from(!admitted), limit, limit - used, retry, left],
                    "at {} from {:?}", now, state
                );
                match decision.change {
                    Change::Keep => prop_assert!(!admitted || quantity == 0),
                    Change::Store(window) => {
                        prop_assert!(admitted && quantity > 0);
                        prop_assert_eq!((NOW + offset(window.end)) % MS, 0, "what a key can expire at");
                        state = Some(window);
                    }
                    Change::Delete => prop_assert!(false),
                }
            }
        }

        #[test]
        fn takes_any_number(
            (limit, period, quantity) in any::<(i64, i64, i64)>(),
            (count, end, now) in (0..=i64::MAX, 0..=i64::MAX, 0..=i64::MAX),
        ) {
            let state = Some(Counter { count, end: instant(end.into()) });
            for divisor in [1, 1_000_000, 1_000_000_000_000] {
                let Ok(limit) = Limit::new(limit, period / divisor, Microseconds) else { continue };
                if let Ok(decision) = fixed(state, &limit, instant(now.into()), quantity) {
                    prop_assert!((0..=decision.answer.limit).contains(&decision.answer.remaining));
                }
            }
        }
    }
}

mod a_sliding_window {
    use super::*;

    /// The start of a window of 60 s, in nanoseconds since the epoch.
    const START: i64 = 1_700_000_040 * S;

    fn window(start: i64, current: i64, previous: i64) -> Sliding {
        Sliding { start: instant((START + start).into()), current, previous }
    }

    #[test]
    fn row_by_row() {
        // What it shows; start, current, previous before; limit per 60 s; now; quantity; answer in ms; what is stored.
        type Stored = (i64, i64, i64);
        type Row = (&'static str, Option<Stored>, i64, i64, i64, [i64; 5], Option<Stored>);
        let m = 60 * S;
        let rows: [Row; 25] = [
            ("the first", None, 10, 15 * S, 1, [0, 10, 9, -1, 105_000], Some((0, 1, 0))),
            ("all of it", None, 10, 15 * S, 10, [0, 10, 0, -1, 105_000], Some((0, 10, 0))),
            ("above the limit", None, 10, 15 * S, 11, [1, 10, 10, -1, 0], None),
            ("a look", None, 10, 15 * S, 0, [0, 10, 10, -1, 0], None),
            ("a look at a used one", Some((0, 4, 8)), 10, 45 * S, 0, [0, 10, 4, -1, 75_000], None),
            (
                "a quarter of the previous",
                Some((0, 4, 8)),
                10,
                45 * S,
                4,
                [0, 10, 0, -1, 75_000],
                Some((0, 8, 8)),
            ),
            ("rounded up", Some((0, 4, 8)), 10, 45 * S - 1, 4, [1, 10, 3, 1, 75_001], None),
            ("wait in this window", Some((0, 1, 10)), 10, 0, 5, [1, 10, 0, 36_000, 120_000], None),
            ("wait for the next window", Some((0, 5, 10)), 10, 0, 5, [1, 10, 0, 60_000, 120_000], None),
            ("wait into the next window", Some((0, 10, 0)), 10, 50 * S, 5, [1, 10, 0, 40_000, 70_000], None),
            ("wait for all of it", Some((0, 10, 0)), 10, 50 * S, 10, [1, 10, 0, 70_000, 70_000], None),
            ("the last nanosecond of it", Some((0, 10, 0)), 10, 2 * m - 1, 10, [1, 10, 9, 1, 1], None),
            ("previous only", Some((0, 0, 6)), 10, 30 * S, 0, [0, 10, 7, -1, 30_000], None),
            ("becomes the previous", Some((-m, 10, 3)), 10, 0, 1, [1, 10, 0, 6_000, 60_000], None),
            (
                "and is stored as such",
                Some((-m, 10, 3)),
                10,
                6 * S,
                1,
                [0, 10, 0, -1, 114_000],
                Some((0, 1, 10)),
            ),
            ("older: gone", Some((-m - 1, 10, 3)), 10, 0, 10, [0, 10, 0, -1, 120_000], Some((0, 10, 0))),
            ("long gone", Some((-99 * m, 10, 3)), 10, 0, 10, [0, 10, 0, -1, 120_000], Some((0, 10, 0))),
            ("ahead of the clock", Some((m, 2, 4)), 10, S, 4, [0, 10, 0, -1, 179_000], Some((m, 6, 4))),
            ("refused ahead of the clock", Some((m, 2, 4)), 10, S, 5, [1, 10, 4, 74_000, 179_000], None),
            ("limit lowered", Some((0, 5, 5)), 4, 30 * S, 1, [1, 4, 0, 54_000, 90_000], None),
            ("limit lowered, a look", Some((0, 5, 5)), 4, 30 * S, 0, [0, 4, 0, -1, 90_000], None),
            ("limit raised", Some((0, 5, 4)), 9, 30 * S, 2, [0, 9, 0, -1, 90_000], Some((0, 7, 4))),
            (
                "begun by a shorter period",
                Some((30 * S, 3, 2)),
                9,
                45 * S,
                1,
                [0, 9, 3, -1, 75_000],
                Some((30 * S, 4, 2)),
            ),
            (
                "of a shorter period before",
                Some((-30 * S, 6, 2)),
                6,
                30 * S,
                3,
                [0, 6, 0, -1, 90_000],
                Some((0, 3, 6)),
            ),
            ("nothing counted", Some((0, 0, 0)), 10, 30 * S, 1, [0, 10, 9, -1, 90_000], Some((0, 1, 0))),
        ];
        for (shows, before, limit, now, quantity, answer, stored) in rows {
            let limit = Limit::new(limit, 60, Seconds).unwrap();
            let state = |(start, current, previous)| window(start, current, previous);
            let decision =
                sliding(before.map(state), &limit, instant((START + now).into()), quantity).unwrap();
            assert_eq!(decision.answer.reply(Milliseconds).five, answer, "{shows}");
            assert_eq!(decision.change, stored.map_or(Change::Keep, |s| Change::Store(state(s))), "{shows}");
        }
    }

    #[test]
    fn is_read_strictly() {
        let foreign = Err(Error::Foreign { expected: Sliding::EXPECTED });
        let start = START.to_string();
        let good = [start.as_str(), "7", "0"];
        let read = |fields: [Option<&str>; 3]| {
            let [start, current, previous] = fields.map(|field| field.map(str::as_bytes));
            Sliding::decode(start, current, previous)
        };
        assert_eq!(read(good.map(Some)), Ok(window(0, 7, 0)));
        for place in 0..3 {
            let mut fields = good.map(Some);
            fields[place] = None;
            assert_eq!(read(fields), foreign, "field {place} is missing");
            for bad in ["", "-1", "+1", "1.5", "01", " 1", "x", "9223372036854775808"] {
                fields[place] = Some(bad);
                assert_eq!(read(fields), foreign, "field {place} is {bad:?}");
            }
        }
    }

    /// Every admitted call, by its instant since the epoch.
    #[derive(Clone, Debug)]
    struct Model {
        limit: i64,
        period: i64,
        admitted: Vec<(i64, i64)>,
    }

    impl Model {
        fn within(&self, from: i64, to: i64) -> i64 {
            self.admitted.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, quantity)| quantity).sum()
        }

        /// What the previous window weighs, and the estimate.
        fn estimate(&self, now: i64) -> i64 {
            let elapsed = now % self.period;
            let start = now - elapsed;
            let previous = self.within(start - self.period, start);
            // Rounded up: the first whole number that is no less.
            let weight =
                (0..=previous).find(|n| n * self.period >= previous * (self.period - elapsed)).unwrap();
            self.within(start, start + self.period) + weight
        }

        fn first(&self, from: i64, done: impl Fn(i64) -> bool) -> i64 {
            (from..from + 9 * self.period).find(|&now| done(now)).unwrap() - from
        }

        fn call(&mut self, now: i64, quantity: i64) -> [i64; 5] {
            let fits = |model: &Self, now| quantity == 0 || model.estimate(now) + quantity <= model.limit;
            let limited = !fits(self, now);
            let mut retry = -1;
            if !limited {
                self.admitted.push((now, quantity));
            } else if quantity <= self.limit {
                retry = self.first(now, |now| fits(self, now));
            }
            let reset = self.first(now, |now| self.estimate(now) == 0);
            [limited.into(), self.limit, (self.limit - self.estimate(now)).max(0), retry, reset]
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn decides_as_a_list_of_calls_does(
            limit in 1..12_i64,
            period in 1..3_i64,
            begin in 0..3_000_i64,
            calls in prop::collection::vec((prop_oneof![0..400_i64, 0..3_000_i64], 0..6_i64), 1..30),
        ) {
            let limits = Limit::new(limit, period, Microseconds).unwrap();
            let mut model = Model { limit, period: period * 1_000, admitted: Vec::new() };
            let (mut state, mut now) = (None, NOW + begin);
            for (wait, quantity) in calls {
                now += wait;
                let decision = sliding(state, &limits, instant(now.into()), quantity).unwrap();
                let expected = model.call(now, quantity);
                prop_assert_eq!(in_nanos(&decision.answer), expected, "at {} from {:?}", now, state);
                let takes = expected[0] == 0 && quantity > 0;
                match decision.change {
                    Change::Keep => prop_assert!(!takes),
                    Change::Store(window) => {
                        prop_assert!(takes);
                        prop_assert_eq!(window.start.as_nanos() % (period * 1_000).unsigned_abs(), 0, "aligned");
                        state = Some(window);
                    }
                    Change::Delete => prop_assert!(false),
                }
            }
        }
    }

    proptest! {
        /// What the documentation says of the error, and that no period holds twice the limit.
        #[test]
        fn errs_within_its_bound(
            limit in 1..40_i64,
            calls in prop::collection::vec((prop_oneof![0..80_i64, 0..1_500_i64, Just(999_i64)], 1..12_i64), 1..80),
        ) {
            const PERIOD: i64 = 1_000;
            let limits = Limit::new(limit, 1, Microseconds).unwrap();
            let mut model = Model { limit, period: PERIOD, admitted: Vec::new() };
            let (mut state, mut now) = (None, NOW / PERIOD * PERIOD);
            for (wait, quantity) in calls {
                now += wait;
                let decision = sliding(state, &limits, instant(now.into()), quantity).unwrap();
                let estimate_before = model.estimate(now);
                if let Change::Store(window) = decision.change {
                    state = Some(window);
                    model.admitted.push((now, quantity));
                    prop_assert!(estimate_before + quantity <= limit, "admitted above the limit by its own estimate");
                }
                let elapsed = now % PERIOD;
                let start = now - elapsed;
                let previous = model.within(start - PERIOD, start);
                let really = model.within(now - PERIOD + 1, now + 1);
                let (error, too_low) = (model.estimate(now) - really, previous * elapsed / PERIOD);
                prop_assert!(-too_low <= error, "{} too low, {} allowed", -error, too_low);
                let too_high = (previous * (PERIOD - elapsed) + PERIOD - 1) / PERIOD;
                prop_assert!(error <= too_high, "{} too high, {} allowed", error, too_high);
                prop_assert!(really <= limit + too_low, "{} of {}", really, limit);
                prop_assert!(really < 2 * limit);
                prop_assert!(model.within(start, start + PERIOD) <= limit, "in the window itself");
            }
        }

        /// Whatever is stored: aligned or not, behind, ahead, above the limit.
        #[test]
        fn the_wait_is_exact(
            limit in 1..20_i64,
            start in -2_500..2_500_i64,
            aligned in any::<bool>(),
            (current, previous) in (0..25_i64, 0..25_i64),
            now in 0..1_000_i64,
            quantity in 1..22_i64,
        ) {
            const PERIOD: i64 = 1_000;
            let zero = NOW / PERIOD * PERIOD;
            let start = if aligned { start / PERIOD * PERIOD } else { start };
            let limits = Limit::new(limit, 1, Microseconds).unwrap();
            let state = Some(Sliding { start: instant((zero + start).into()), current, previous });
            let decide =
                |now: i64, quantity| sliding(state, &limits, instant((zero + now).into()), quantity).unwrap().answer;
            let answer = decide(now, quantity);
            let first = |done: &dyn Fn(i64) -> bool| (now..now + 9 * PERIOD).find(|&at| done(at)).unwrap() - now;
            if quantity > limit {
                prop_assert!(answer.limited && answer.retry_after == Retry::Never);
            } else if answer.limited {
                let wait = first(&|at| !decide(at, quantity).limited);
                prop_assert_eq!(answer.retry_after, Retry::After(common::span(wait)));
                for later in wait..wait + 3 * PERIOD {
                    prop_assert!(!decide(now + later, quantity).limited, "once it fits, it stays so");
                }
            } else {
                prop_assert_eq!(answer.retry_after, Retry::Never);
            }
            let reset = nanos(decide(now, 0).reset_after);
            // As good as new: of the whole limit nothing is missing, nor will be.
            let weighs = |at| nanos(decide(at, 0).reset_after) > 0;
            prop_assert!(!weighs(now + reset) && decide(now + reset, 0).remaining == limit);
            prop_assert!(reset == 0 || weighs(now + reset - 1));
        }

        #[test]
        fn takes_any_number(
            (limit, period, quantity) in any::<(i64, i64, i64)>(),
            (start, current, previous, now) in (0..=i64::MAX, 0..=i64::MAX, 0..=i64::MAX, 0..=i64::MAX),
        ) {
            for (start, divisor) in [(start, 1), (now, 1_000_000), (now.saturating_sub(1_000_000), 1_000_000_000_000)] {
                let state = Some(Sliding { start: instant(start.into()), current, previous });
                let Ok(limit) = Limit::new(limit, period / divisor, Microseconds) else { continue };
                if let Ok(decision) = sliding(state, &limit, instant(now.into()), quantity) {
                    prop_assert!((0..=decision.answer.limit).contains(&decision.answer.remaining));
                }
            }
        }
    }
}
