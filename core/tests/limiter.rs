//! The verbs that limiters have whatever their algorithm, and calls behind clients that wait.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{S, after, at, in_nanos, span};
use redis_cell_core::Unit::Seconds;
use redis_cell_core::fixed::{self, Counter};
use redis_cell_core::limiter::{Limiter, behind, behind_units, peek_behind};
use redis_cell_core::{Change, Error, Span, Verdict, gcra};

/// Five units in a window of a minute.
fn limit() -> fixed::Limit {
    fixed::Limit::new(5, 60, Seconds).unwrap()
}

/// A window with this many units used, which ends in half a minute.
fn used(count: i64) -> Option<Counter> {
    (count > 0).then(|| Counter { count, end: at(30 * S) })
}

#[test]
fn a_check_has_the_verdict_of_a_call_and_the_numbers_of_the_state() {
    for count in 0..8 {
        for quantity in 0..8 {
            let call = limit().take(used(count), at(0), quantity).unwrap().answer;
            let look = limit().peek(used(count), at(0), quantity).unwrap();
            assert_eq!(look.verdict, call.verdict, "{quantity} with {count} used");
            let left = if count > 0 { 30 * S } else { 0 };
            assert_eq!(in_nanos(&look)[2], (5 - count).max(0), "{quantity} with {count} used");
            assert_eq!(in_nanos(&look)[4], left, "{quantity} with {count} used");
        }
    }
}

#[test]
fn clients_that_wait_cost_their_units() {
    for quantity in [0, 1, 7, i64::MAX] {
        assert_eq!(limit().cost(quantity).unwrap(), quantity.unsigned_abs());
    }
    let count = |state: Option<Counter>| state.map(|counter| counter.count);
    for (before, costs, charged) in [(0, 0, None), (0, 3, Some(3)), (2, 0, Some(2)), (2, 7, Some(9))] {
        let state = limit().charged(used(before), at(0), costs).unwrap();
        assert_eq!(count(state), charged, "{costs} with {before} used");
    }
}

#[test]
fn a_call_behind_those_that_wait_is_decided_after_them_and_takes_its_own() {
    // Used; the units of waiting clients; the quantity; refused or not; `remaining`; the count then.
    let rows = [
        (0, 2, 1, 0, 2, Some(1)),
        (1, 2, 2, 0, 0, Some(3)),
        (1, 2, 3, 1, 2, Some(1)),
        (1, 2, 0, 0, 2, Some(1)),
        (0, 5, 1, 1, 0, None),
    ];
    for (count, costs, quantity, refused, remaining, then) in rows {
        let state = used(count);
        let decide = |state| limit().take(state, at(0), quantity);
        let decision = behind(&limit(), state, at(0), quantity, costs, decide).unwrap();
        let shows = format!("{quantity} behind {costs}, {count} used");
        assert_eq!(in_nanos(&decision.answer)[0], refused, "{shows}");
        assert_eq!(in_nanos(&decision.answer)[2], remaining, "{shows}");
        assert_eq!(after(&decision, state).map(|counter| counter.count), then, "{shows}");
        assert_eq!(decision.change.is_keep(), refused == 1 || quantity == 0, "{shows}");
    }
    // The answer of a call that takes as much as fits has the quantity taken.
    let decide = |state| limit().saturate(state, at(0), 9);
    let decision = behind(&limit(), None, at(0), 9, 2, decide).unwrap();
    assert_eq!(decision.answer.taken, Some(3));
    assert!(matches!(decision.change, Change::Store(Counter { count: 3, .. })));
}

#[test]
fn a_call_behind_more_than_any_state_can_hold_is_refused_and_is_no_error() {
    const MOST: u64 = i64::MAX.unsigned_abs();
    let never_known = Verdict::Later(Span::MAX);
    // The quantity; whether it takes as much as fits; the verdict; the quantity taken.
    let rows = [
        (1, false, never_known, None),
        (0, false, never_known, None),
        (6, false, Verdict::Never, None),
        (9, true, never_known, Some(0)),
        (0, true, Verdict::Admitted, Some(0)),
    ];
    for (quantity, saturates, verdict, taken) in rows {
        let decide = |state| {
            let (limit, now) = (limit(), at(0));
            if saturates { limit.saturate(state, now, quantity) } else { limit.take(state, now, quantity) }
        };
        let decision = behind(&limit(), used(1), at(0), quantity, MOST, decide).unwrap();
        let shows = format!("{quantity}, {saturates}");
        assert_eq!((decision.answer.verdict, decision.answer.taken), (verdict, taken), "{shows}");
        assert_eq!((decision.answer.limit, decision.answer.remaining), (5, 0), "{shows}");
        assert!(decision.change.is_keep(), "{shows}");
        if !saturates {
            let answer = peek_behind(&limit(), used(1), at(0), quantity, MOST).unwrap();
            assert_eq!((answer.verdict, answer.remaining), (verdict, 0), "{shows}");
        }
    }
    // Clients that wait for 300 years.
    let century = gcra::Limit::new(0, 1, 100 * 365 * 86_400, Seconds).unwrap();
    let costs = 3 * Limiter::cost(&century, 1).unwrap();
    let take = |state| century.take(state, at(0), 1);
    assert_eq!(behind(&century, None, at(0), 1, costs, take).unwrap().answer.verdict, never_known);
    assert_eq!(peek_behind(&century, None, at(0), 1, costs).unwrap().verdict, never_known);
    // An error of the call itself is one.
    assert!(behind(&limit(), used(1), at(0), -1, MOST, |state| limit().take(state, at(0), -1)).is_err());
    assert!(peek_behind(&limit(), used(1), at(0), -1, MOST).is_err());
}

#[test]
fn a_check_behind_clients_that_wait() {
    let wait = |nanos| Verdict::Later(span(nanos));
    // Used; the units of waiting clients; the quantity; the verdict; `remaining`.
    let rows = [
        (1, 2, 2, Verdict::Admitted, 2),
        (1, 2, 3, wait(30 * S), 2),
        (1, 4, 0, Verdict::Admitted, 0),
        (1, 5, 0, wait(30 * S), 0),
        (1, 9, 1, wait(30 * S), 0),
        (1, 2, 6, Verdict::Never, 2),
        (0, 4, 1, Verdict::Admitted, 1),
        // They do not fit all at once, and the first of them at once.
        (0, 6, 1, wait(1), 0),
        (0, u64::MAX, 1, wait(1), 0),
        (5, 1, 1, wait(30 * S), 0),
    ];
    for (count, units, quantity, verdict, remaining) in rows {
        let alone = |quantity| limit().peek(used(count), at(0), quantity);
        let answer = behind_units(units, quantity, alone).unwrap();
        let shows = format!("{quantity} behind {units}, {count} used");
        assert_eq!((answer.verdict, answer.remaining), (verdict, remaining), "{shows}");
        assert_eq!(answer.limit, 5, "{shows}");
    }
    let error = behind_units(1, 1, |_| Err::<redis_cell_core::Answer, _>(Error::BeyondTime));
    assert_eq!(error, Err(Error::BeyondTime));
}
