//! The sliding window, compared with a model that keeps every admitted call and counts again each time.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{MS, NOW, S, after, in_nanos, instant, nanos};
use proptest::prelude::*;
use redis_cell_core::Change::{Delete, Keep, Store};
use redis_cell_core::Unit::{Microseconds, Seconds};
use redis_cell_core::window::{Limit, Sliding, settle, take};
use redis_cell_core::{Error, Instant};

/// The start of a window of 60 s, in nanoseconds since the epoch.
const START: i64 = 1_700_000_040 * S;

fn window(start: i64, current: i64, previous: i64) -> Sliding {
    Sliding { start: instant((START + start).into()), current, previous }
}

#[test]
#[rustfmt::skip] // A table is read in columns.
fn row_by_row() {
    let of = |most| Limit::new(most, 60, Seconds).unwrap();
    let some = |start, current, previous| Some(window(start, current, previous));
    let store = |start, current, previous| Store(window(start, current, previous));
    // The beginning of a window, and its length. Of 8 units, 2.5 are still covered at `half`.
    let (z, m) = (START - NOW, 60 * S);
    let half = z + 41_250 * MS;
    common::takes(&[
        ("the first",                  None,                of(10), z + 15 * S,       1, [0, 10, 9, -1, 75_001], store(0, 1, 0)),
        ("above the limit",            None,                of(10), z + 15 * S,      11, [1, 10, 10, -1, 0], Keep),
        ("a look at a used window",    some(0, 4, 8),       of(10), z + 45 * S,       0, [0, 10, 4, -1, 67_501], Keep),
        ("a quarter of the previous",  some(0, 4, 8),       of(10), z + 45 * S,       4, [0, 10, 0, -1, 71_251], store(0, 8, 8)),
        ("half a unit counts as one",  some(0, 4, 8),       of(10), half,             4, [1, 10, 3, 1, 71_251], Keep),
        ("less than half as none",     some(0, 4, 8),       of(10), half + 1,         4, [0, 10, 0, -1, 75_000], store(0, 8, 8)),
        ("wait in this window",        some(0, 1, 10),      of(10), z,                5, [1, 10, 0, 33_001, 90_001], Keep),
        ("wait for the next window",   some(0, 5, 10),      of(10), z,                5, [1, 10, 0, 57_001, 114_001], Keep),
        ("wait for all of it",         some(0, 10, 0),      of(10), z + 50 * S,      10, [1, 10, 0, 67_001, 67_001], Keep),
        ("and then",                   some(0, 10, 0),      of(10), z + 117 * S + 1, 10, [0, 10, 0, -1, 60_000], store(m, 10, 10)),
        ("becomes the previous",       some(-m, 10, 3),     of(10), z,                1, [1, 10, 0, 3_001, 57_001], Keep),
        ("older: gone",                some(-m - 1, 10, 3), of(10), z,               10, [0, 10, 0, -1, 117_001], store(0, 10, 0)),
        ("ahead of the clock",         some(m, 2, 4),       of(10), z + S,            4, [0, 10, 0, -1, 174_001], store(m, 6, 4)),
        ("limit lowered",              some(0, 5, 5),       of(4),  z + 30 * S,       1, [1, 4, 0, 48_001, 84_001], Keep),
        ("limit lowered, a look",      some(0, 5, 5),       of(4),  z + 30 * S,       0, [1, 4, 0, 36_001, 84_001], Keep),
        ("begun by a shorter period",  some(30 * S, 3, 2),  of(9),  z + 45 * S,       1, [0, 9, 3, -1, 67_501], store(30 * S, 4, 2)),
        ("of a shorter period before", some(-30 * S, 6, 2), of(6),  z + 30 * S,       3, [0, 6, 0, -1, 80_001], store(0, 3, 6)),
    ]);
}

/// Two windows hold up to twice the largest limit.
#[test]
fn more_than_the_largest_limit_is_above_it() {
    let (limit, most) = (Limit::new(i64::MAX, 60, Seconds).unwrap(), i64::MAX);
    let (state, half) = (Some(window(0, most, most)), START - NOW + 30 * S);
    common::takes(&[("a look", state, limit, half, 0, [1, most, 0, 30_000, 90_000], Keep)]);
    common::settles(&[("one more", state, limit, half, 0, [1, most, 0, 30_001, 90_000], Keep)]);
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

    /// The weight of the previous window, and the estimate.
    fn estimate(&self, now: i64) -> i64 {
        let elapsed = now % self.period;
        let start = now - elapsed;
        let previous = self.within(start - self.period, start);
        // To the nearest unit: of the whole numbers, the one that is closest, and of two the larger one.
        let distance = |n: &i64| (n * self.period - previous * (self.period - elapsed)).abs();
        let weight = (0..=previous).rev().min_by_key(distance).unwrap();
        self.within(start, start + self.period) + weight
    }

    fn first(&self, from: i64, done: impl Fn(i64) -> bool) -> i64 {
        (from..from + 9 * self.period).find(|&now| done(now)).unwrap() - from
    }

    fn call(&mut self, now: i64, quantity: i64) -> [i64; 5] {
        let fits = |model: &Self, now| model.estimate(now) + quantity <= model.limit;
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
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

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
            let decision = take(state, &limits, instant(now.into()), quantity).unwrap();
            let expected = model.call(now, quantity);
            prop_assert_eq!(in_nanos(&decision.answer), expected, "at {} from {:?}", now, state);
            let takes = expected[0] == 0 && quantity > 0;
            match decision.change {
                Keep => prop_assert!(!takes),
                Store(window) => {
                    prop_assert!(takes);
                    prop_assert_eq!(window.start.as_nanos() % (period * 1_000).unsigned_abs(), 0, "aligned");
                    state = Some(window);
                }
                Delete => prop_assert!(false),
            }
        }
    }
}

proptest! {
    /// The documented bound on the error, and that no period holds twice the limit.
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
            let decision = take(state, &limits, instant(now.into()), quantity).unwrap();
            let estimate_before = model.estimate(now);
            if let Store(window) = decision.change {
                state = Some(window);
                model.admitted.push((now, quantity));
                prop_assert!(estimate_before + quantity <= limit, "admitted above the limit by its own estimate");
            }
            let elapsed = now % PERIOD;
            let start = now - elapsed;
            let previous = model.within(start - PERIOD, start);
            let really = model.within(now - PERIOD + 1, now + 1);
            // The weighted value, in thousandths of a unit: off by half a unit at most, and so passed by that
            // at most.
            let weighted = model.within(start, now + 1) * PERIOD + previous * (PERIOD - elapsed);
            let estimate = model.estimate(now);
            prop_assert!((2 * (estimate * PERIOD - weighted)).abs() <= PERIOD, "{} of {}", estimate, weighted);
            prop_assert!(2 * weighted <= (2 * limit + 1) * PERIOD, "{} of {}", weighted, limit);
            // An exact log.
            let weight = estimate - model.within(start, now + 1);
            prop_assert!(estimate - really <= weight, "{} too high, {} allowed", estimate - really, weight);
            let too_low = previous - weight;
            prop_assert!(really - estimate <= too_low, "{} too low, {} allowed", really - estimate, too_low);
            prop_assert!(too_low <= (2 * previous * elapsed + PERIOD - 1) / (2 * PERIOD), "half a unit is none");
            prop_assert!(really <= limit + too_low && really <= 2 * limit, "{} of {}", really, limit);
            prop_assert!(model.within(start, start + PERIOD) <= limit, "in the window itself");
        }
    }
}

#[test]
fn a_caller_that_waits_for_retry_after_gets_the_limit_in_every_window() {
    for limit in [1, 2, 5, 10, 99] {
        let limits = Limit::new(limit, 1, Seconds).unwrap();
        let begin = NOW / S * S;
        let (mut state, mut now, mut admitted) = (None, begin, Vec::new());
        while now < begin + 10 * S {
            let decision = take(state, &limits, instant(now.into()), 1).unwrap();
            state = after(&decision, state);
            match decision.answer.verdict.wait() {
                Some(wait) => {
                    assert!(nanos(wait) > 0, "a wait of nothing");
                    now += nanos(wait);
                }
                None => admitted.push(now),
            }
        }
        for window in 0..10 {
            let from = begin + window * S;
            let count = admitted.iter().filter(|at| (from..from + S).contains(at)).count();
            assert_eq!(i64::try_from(count).unwrap(), limit, "in window {window}");
        }
    }
}

proptest! {
    /// Whatever is stored, and whenever the units were taken.
    #[test]
    fn settles_the_present_window_alone(
        limit in 1..20_i64,
        start in -2_500..2_500_i64,
        (current, previous) in (0..25_i64, 0..25_i64),
        now in 0..1_000_i64,
        difference in prop_oneof![-30..30_i64, Just(-i64::MAX)],
        age in prop_oneof![Just(None), (0..2_500_i64).prop_map(Some)],
    ) {
        const PERIOD: i64 = 1_000;
        let zero = NOW / PERIOD * PERIOD;
        let at = |offset: i64| instant((zero + offset).into());
        let limits = Limit::new(limit, 1, Microseconds).unwrap();
        let state = Some(Sliding { start: at(start), current, previous });
        let decision = settle(state, &limits, at(now), difference, age.map(common::ago).as_ref()).unwrap();
        // The window as it is by now.
        let [start, current, previous] = if start >= 0 {
            [start, current, previous]
        } else if -start <= PERIOD {
            [0, 0, current]
        } else {
            [0, 0, 0]
        };
        let gives = age.is_none_or(|age| start <= now - age);
        let counted = match difference {
            1.. => current + difference,
            _ if gives => current.saturating_add(difference).max(0),
            _ => current,
        };
        let after = Sliding { start: at(start), current: counted, previous };
        let look = take(Some(after), &limits, at(now), 0).unwrap().answer;
        let expected = if look.limited() { take(Some(after), &limits, at(now), 1).unwrap().answer } else { look };
        prop_assert_eq!(decision.answer, expected);
        let change = if counted == current {
            Keep
        } else if look.remaining == limit && look.reset_after == redis_cell_core::Span::ZERO {
            Delete
        } else {
            Store(after)
        };
        prop_assert_eq!(decision.change, change);
    }
}

#[test]
fn settles_row_by_row() {
    let limit = Limit::new(5, 60, Seconds).unwrap();
    let some = |start, current, previous| Some(window(start, current, previous));
    let now = START - NOW + 15 * S;
    common::settles(&[
        ("nothing", some(0, 3, 0), limit, now, 0, [0, 5, 2, -1, 95_001], Keep),
        ("taken", some(0, 3, 0), limit, now, 2, [0, 5, 0, -1, 99_001], Store(window(0, 5, 0))),
        ("taken regardless", None, limit, now, 6, [1, 5, 0, 60_001, 100_001], Store(window(0, 6, 0))),
        ("more than was taken", some(0, 3, 0), limit, now, -i64::MAX, [0, 5, 5, -1, 0], Delete),
        ("the previous stays", some(0, 1, 4), limit, now, -3, [0, 5, 2, -1, 37_501], Store(window(0, 0, 4))),
        ("taken before", some(-60 * S, 4, 0), limit, now, -3, [0, 5, 2, -1, 37_501], Keep),
        ("to nothing", None, limit, now, -3, [0, 5, 5, -1, 0], Keep),
    ]);
    // Taken when the window began, or a nanosecond before that.
    for (age, stored) in [(15 * S, Store(window(0, 1, 0))), (15 * S + 1, Keep)] {
        let now = instant((START + 15 * S).into());
        let decision = settle(Some(window(0, 3, 0)), &limit, now, -2, Some(&common::ago(age))).unwrap();
        assert_eq!(decision.change, stored, "{age}");
    }
    let error = settle(Some(window(0, 3, 0)), &limit, instant(START.into()), i64::MAX, None).unwrap_err();
    let text = "ERR quantity must be an integer from -9223372036854775807 to 9223372036854775804";
    assert_eq!(error.to_string(), text);
    assert!(settle(None, &limit, instant(START.into()), i64::MIN, None).is_err());
}

#[test]
fn it_counts_until_the_end_of_the_next_window() {
    let limit = Limit::new(5, 60, Seconds).unwrap();
    let gone_at = |window: Sliding| offset_of(window.gone_at(&limit));
    assert_eq!(gone_at(window(0, 3, 0)), 120 * S);
    assert_eq!(gone_at(window(0, 1, 4)), 120 * S);
    assert_eq!(gone_at(window(0, 0, 4)), 60 * S, "a window without units counts in none");
    let last = Sliding { start: Instant::MAX, current: 1, previous: 0 };
    assert_eq!(last.gone_at(&limit), Instant::MAX);
}

/// A window that lies ahead, because the clock was set back, may count until after the last instant: nothing
/// more is taken from it, and nothing is charged to it.
#[test]
fn nothing_is_added_to_a_window_that_counts_beyond_time_itself() {
    let limit = Limit::new(5, 50, Seconds).unwrap();
    let now = instant(START.into());
    // A multiple of 50 s, 86.9 s before the last instant: its units fade in time, but count in the next
    // window.
    let last = 9_223_371_950 * i128::from(S);
    for (start, fits) in [(last, false), (last - i128::from(50 * S), true)] {
        let state = Some(Sliding { start: instant(start), current: 0, previous: 0 });
        assert_eq!(take(state, &limit, now, 1).is_ok(), fits, "{start}");
        assert_eq!(settle(state, &limit, now, 1, None).is_ok(), fits, "{start}");
    }
}

#[test]
fn a_window_that_lies_ahead_is_moved_back_by_whole_periods() {
    let limit = Limit::new(5, 60, Seconds).unwrap();
    let ahead = window(180 * S, 3, 1); // gone after 300 s
    let rows = [(301, 180), (300, 180), (299, 120), (240, 120), (239, 60), (130, 0)];
    for (end, start) in rows {
        let end = instant((START + end * S).into());
        let moved = ahead.gone_by(&limit, end);
        assert_eq!(moved, window(start * S, 3, 1), "{end:?}");
        assert!(moved.gone_at(&limit) <= end);
    }
}

/// An instant in nanoseconds after [`START`].
fn offset_of(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap() - START
}
