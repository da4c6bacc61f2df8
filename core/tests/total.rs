//! The fixed window without end, compared with a model that keeps every take and adds them up each time.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{MS, NOW, S, ago, at, offset};
use proptest::prelude::*;
use redis_cell_core::Unit::{Milliseconds, Seconds};
use redis_cell_core::fixed::{Counter, LEAST_TAT, Limit, settle, take};
use redis_cell_core::{Change, Error, Instant};

/// A count, and the end in nanoseconds from now, if its key expires.
type State = (i64, Option<i64>);

fn counter((count, end): State) -> Counter {
    Counter { count, end: end.map_or(Instant::MAX, at) }
}

/// Now, at a whole millisecond.
const ZERO: i64 = -456_789;

#[test]
fn row_by_row() {
    // The case; the state before; the limit; the quantity; the answer in ms; the state stored.
    type Row = (&'static str, Option<State>, Limit, i64, [i64; 5], Option<State>);

    let in_60 = Some(60 * S + ZERO);
    let total = |most| Limit::total(most, None, Seconds).unwrap();
    let idle = |most| Limit::total(most, Some(60), Seconds).unwrap();
    let rows: [Row; 24] = [
        ("the first", None, total(5), 2, [0, 5, 3, -1, -1], Some((2, None))),
        ("the rest", Some((2, None)), total(5), 3, [0, 5, 0, -1, -1], Some((5, None))),
        ("refused forever", Some((5, None)), total(5), 1, [1, 5, 0, -1, -1], None),
        ("above the limit", None, total(5), 6, [1, 5, 5, -1, 0], None),
        ("a look at nothing", None, total(5), 0, [0, 5, 5, -1, 0], None),
        ("a look", Some((2, None)), total(5), 0, [0, 5, 3, -1, -1], None),
        ("a look at a lower limit", Some((6, None)), total(5), 0, [1, 5, 0, -1, -1], None),
        ("limit raised", Some((5, None)), total(6), 1, [0, 6, 0, -1, -1], Some((6, None))),
        ("the expiry stays", Some((2, Some(S))), total(5), 3, [0, 5, 0, -1, 1_000], Some((5, Some(S)))),
        ("refused until the key expires", Some((5, Some(S))), total(5), 1, [1, 5, 0, 1_000, 1_000], None),
        ("above the limit, and expires", Some((5, Some(S))), total(5), 6, [1, 5, 0, -1, 1_000], None),
        ("a lower limit, and expires", Some((6, Some(S))), total(5), 0, [1, 5, 0, 1_000, 1_000], None),
        ("a count of 0", Some((0, None)), total(5), 0, [0, 5, 5, -1, 0], None),
        ("a count of 0 that expires", Some((0, Some(S))), total(5), 0, [0, 5, 5, -1, 0], None),
        ("keeps its expiry", Some((0, Some(S))), total(5), 1, [0, 5, 4, -1, 1_000], Some((1, Some(S)))),
        ("expired", Some((5, Some(0))), total(5), 1, [0, 5, 4, -1, -1], Some((1, None))),
        ("idle, the first", None, idle(5), 2, [0, 5, 3, -1, 60_000], Some((2, in_60))),
        ("idle, a key without expiry", Some((2, None)), idle(5), 1, [0, 5, 2, -1, 60_000], Some((3, in_60))),
        ("idle, renewed", Some((2, Some(S))), idle(5), 1, [0, 5, 2, -1, 60_000], Some((3, in_60))),
        (
            "expires later",
            Some((2, Some(99 * S))),
            idle(5),
            1,
            [0, 5, 2, -1, 99_000],
            Some((3, Some(99 * S))),
        ),
        ("idle, refused", Some((5, Some(S))), idle(5), 1, [1, 5, 0, 1_000, 1_000], None),
        ("idle, refused forever", Some((5, None)), idle(5), 1, [1, 5, 0, -1, -1], None),
        ("idle, a look", Some((2, Some(S))), idle(5), 0, [0, 5, 3, -1, 1_000], None),
        ("idle, expired", Some((5, Some(0))), idle(5), 1, [0, 5, 4, -1, 60_000], Some((1, in_60))),
    ];
    assert!(total(5).never_expires() && !idle(5).never_expires());
    assert_eq!(idle(5).lasts(counter((1, Some(S))), at(2 * S)), counter((1, Some(2 * S))));
    assert_eq!([2, 1].map(|units| counter((2, None)).without(units)), [None, Some(counter((1, None)))]);
    let end = Instant::from_nanos(9_223_372_036_854_000_000).unwrap();
    assert!(!Counter { count: 1, end }.outlasts_time(), "the last millisecond");
    assert!(counter((1, None)).outlasts_time() && !counter((1, Some(S))).outlasts_time());
    for (shows, before, limit, quantity, answer, stored) in rows {
        let decision = take(before.map(counter), &limit, at(0), quantity).unwrap();
        assert_eq!(decision.answer.reply(Milliseconds).five, answer, "{shows}");
        assert_eq!(decision.change, stored.map_or(Change::Keep, |s| Change::Store(counter(s))), "{shows}");
    }
}

#[test]
fn settles_row_by_row() {
    let total = Limit::total(5, None, Seconds).unwrap();
    let idle = Limit::total(5, Some(60), Seconds).unwrap();
    let in_60 = Some(60 * S + ZERO);
    let (keep, delete) = (Change::Keep, Change::Delete);
    let store = |count, end| Change::Store(counter((count, end)));
    let rows = [
        ("charged", Some((3, None)), total, 2, [0, 5, 0, -1, -1], store(5, None)),
        ("into debt", Some((3, None)), total, 3, [1, 5, 0, -1, -1], store(6, None)),
        (
            "into debt until the key expires",
            Some((3, Some(S))),
            total,
            3,
            [1, 5, 0, 1_000, 1_000],
            store(6, Some(S)),
        ),
        ("charged to nothing", None, total, 7, [1, 5, 0, -1, -1], store(7, None)),
        ("nothing", Some((3, None)), total, 0, [0, 5, 2, -1, -1], keep),
        ("given back", Some((3, None)), total, -2, [0, 5, 4, -1, -1], store(1, None)),
        ("given back, and still in debt", Some((9, None)), total, -3, [1, 5, 0, -1, -1], store(6, None)),
        ("all given back", Some((3, None)), total, -3, [0, 5, 5, -1, 0], delete),
        ("more than was taken", Some((3, None)), total, -i64::MAX, [0, 5, 5, -1, 0], delete),
        ("to nothing", None, total, -1, [0, 5, 5, -1, 0], keep),
        ("to a count of 0", Some((0, Some(S))), total, -1, [0, 5, 5, -1, 0], keep),
        ("idle, charged", Some((3, Some(S))), idle, 1, [0, 5, 1, -1, 60_000], store(4, in_60)),
        ("idle, given back", Some((3, Some(S))), idle, -1, [0, 5, 3, -1, 1_000], store(2, Some(S))),
    ];
    for (shows, before, limit, difference, answer, change) in rows {
        // It does not matter when the units were taken.
        for taken in [None, Some(ago(0)), Some(ago(3_600 * S))] {
            let decision = settle(before.map(counter), &limit, at(0), difference, taken.as_ref()).unwrap();
            assert_eq!(decision.answer.reply(Milliseconds).five, answer, "{shows}");
            assert_eq!(decision.change, change, "{shows}");
        }
    }
    assert!(settle(None, &total, at(0), i64::MIN, None).is_err());
}

#[test]
fn a_string_without_expiry_is_a_count() {
    let foreign = Err(Error::Foreign { expected: Counter::EXPECTED_OF_TOTAL });
    for count in [0, 7, LEAST_TAT - 1] {
        let read = Counter::decode_total(count.to_string().as_bytes(), None);
        assert_eq!(read, Ok(counter((count, None))));
        assert!(Counter::decode(count.to_string().as_bytes(), None).is_err(), "another window");
        assert_eq!(
            Counter::decode_total(count.to_string().as_bytes(), Some(at(S))),
            Ok(counter((count, Some(S))))
        );
    }
    for bad in ["", "-1", "+1", "1.5", "01", "x", "9223372036854775808", "1000000000000000000"] {
        assert_eq!(Counter::decode_total(bad.as_bytes(), None), foreign, "{bad:?}");
    }
    assert_eq!(Counter::decode_total(NOW.to_string().as_bytes(), Some(at(0))), foreign, "a TAT");
    // An expiry after the last instant is not none.
    let late = Counter::decode_total(b"7", Some(Instant::MAX)).unwrap();
    assert!(late.outlasts_time() && late.end < Instant::MAX);
    let idle = Limit::total(9, Some(60), Seconds).unwrap();
    let Change::Store(stored) = take(Some(late), &idle, at(0), 1).unwrap().change else { panic!("refused") };
    assert_eq!(stored, Counter { count: 8, end: late.end });
}

#[test]
fn no_count_is_written_that_it_could_not_read() {
    let total = Limit::total(i64::MAX, None, Seconds).unwrap();
    let before = Some(counter((5, None)));
    let error = |quantity| take(before, &total, at(0), quantity).unwrap_err().to_string();
    assert_eq!(error(LEAST_TAT - 5), "ERR quantity must be an integer from 0 to 999999999999999994");
    assert_eq!(error(NOW), "ERR quantity must be an integer from 0 to 999999999999999994");
    assert!(take(before, &total, at(0), LEAST_TAT - 6).is_ok());
    let error = settle(before, &total, at(0), i64::MAX - 5, None).unwrap_err().to_string();
    assert_eq!(error, "ERR quantity must be an integer from -9223372036854775807 to 999999999999999994");
    // With an expiry it can be told from the state of GCRA.
    assert!(take(Some(counter((5, Some(S)))), &total, at(0), NOW / 2).is_ok());
}

proptest! {
    /// Each operation: the time since the one before, and its quantity; below 0 it gives back.
    #[test]
    fn agrees_with_the_sum_of_all_takes(
        most in 1_i64..40,
        idle in proptest::option::of(1_i64..50),
        operations in prop::collection::vec((0_i64..30 * MS, -5_i64..20, any::<bool>()), 1..60),
    ) {
        let limit = Limit::total(most, idle, Milliseconds).unwrap();
        let (mut state, mut taken, mut expires, mut now) = (None::<Counter>, 0_i64, None::<i64>, 0_i64);
        for (pause, quantity, charges) in operations {
            now += pause;
            if expires.is_some_and(|at| at <= now) {
                (taken, expires) = (0, None);
            }
            let fits = quantity >= 0 && taken + quantity <= most;
            let decision = if quantity < 0 || charges {
                settle(state, &limit, at(now), quantity, None).unwrap()
            } else {
                take(state, &limit, at(now), quantity).unwrap()
            };
            if quantity < 0 || charges || fits {
                taken = (taken + quantity).max(0);
                if let Some(idle) = idle.filter(|_| quantity > 0) {
                    // It begins at the start of the millisecond.
                    expires = expires.max(Some((NOW + now) / MS * MS + idle * MS - NOW));
                }
                if taken == 0 {
                    expires = None; // the key is gone
                }
            }
            state = common::after(&decision, state);
            prop_assert_eq!(decision.answer.remaining, (most - taken).max(0));
            prop_assert_eq!(state.filter(|state| state.end > at(now)).map_or(0, |state| state.count), taken);
            let seen = state.filter(|state| state.end < Instant::MAX && taken > 0).map(|state| offset(state.end));
            prop_assert_eq!(seen, expires.filter(|_| taken > 0));
        }
    }
}
