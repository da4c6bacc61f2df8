//! Settlements and pauses of each kind of limiter: tables and properties.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{S, after, ago, at, nanos, span};
use proptest::prelude::*;
use redis_cell_core::bucket::{self, Level};
use redis_cell_core::gcra::{Limit, Tat, charge, pause, refund, settle, throttle};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::{Decision, Error, Span, Unit, Verdict};

/// Ten units an hour, ten at once.
fn limit() -> Limit {
    Limit::new(9, 10, 3600, Unit::Seconds).unwrap()
}

/// Ten minus `units` are left.
fn owing(units: i64) -> Option<Tat> {
    (units != 0).then(|| at(units * 360 * S))
}

fn reply(decision: &Decision<Tat>) -> [i64; 5] {
    decision.answer.reply(Unit::Seconds).five
}

/// Ten units free at most, and one more every 360 s.
fn bucket_of_ten() -> bucket::Limit {
    bucket::Limit::new(10, 10, 3600, Unit::Seconds).unwrap()
}

fn level(free: i64) -> Option<Level> {
    (free != 10).then(|| Level { free, since: at(0) })
}

/// Settles a limiter, compares the answer, and returns the state after it.
fn settled<L: Limiter>(
    limit: &L,
    state: Option<L::State>,
    difference: i64,
    age: Option<i64>,
    answer: [i64; 5],
) -> Option<L::State> {
    let taken = age.map(|seconds| ago(seconds * S));
    let settled = limit.settle(state, at(0), difference, taken.as_ref()).unwrap();
    assert_eq!(settled.answer.reply(Unit::Seconds).five, answer, "{difference} after {age:?}");
    after(&settled, state)
}

#[test]
fn a_difference_is_charged_or_given_back() {
    // The units owed, which a bucket has less; the difference; the age in seconds; the units owed then.
    for (owed, difference, age, left, answer) in [
        (5, 0, None, 5, [0, 10, 5, -1, 1800]),
        (5, 2, None, 7, [0, 10, 3, -1, 2520]),
        (5, 18, None, 23, [1, 10, 0, 5040, 8280]),
        (5, -2, None, 3, [0, 10, 7, -1, 1080]),
        (5, -i64::MAX, None, 0, [0, 10, 10, -1, 0]),
        (0, -1, None, 0, [0, 10, 10, -1, 0]),
        (23, -3, None, 20, [1, 10, 0, 3960, 7200]),
        (23, 0, None, 23, [1, 10, 0, 5040, 8280]),
        // Eight units owe three after half an hour, one after 2520 s, and nothing after 2880 s.
        (10, -8, Some(1800), 7, [0, 10, 3, -1, 2520]),
        (10, -8, Some(2520), 9, [0, 10, 1, -1, 3240]),
        (10, -8, Some(2880), 10, [0, 10, 0, -1, 3600]),
        (10, -8, Some(9_000_000_000), 10, [0, 10, 0, -1, 3600]),
        (10, 8, Some(3600), 18, [1, 10, 0, 3240, 6480]),
    ] {
        assert_eq!(settled(&limit(), owing(owed), difference, age, answer), owing(left), "{owed} owed");
        let level_after = settled(&bucket_of_ten(), level(10 - owed), difference, age, answer);
        assert_eq!(level_after, level(10 - left), "{owed} owed");
    }
    // A bucket puts back whole units only.
    assert_eq!(settled(&bucket_of_ten(), level(0), -8, Some(2521), [0, 10, 0, -1, 3600]), level(0));
}

#[test]
fn the_one_difference_that_has_no_opposite_is_out_of_range() {
    let of_all = |difference| {
        let gcra = settle(owing(5), &limit(), at(0), difference, None).unwrap_err();
        assert_eq!(bucket::settle(level(5), &bucket_of_ten(), at(0), difference, None).unwrap_err(), gcra);
        gcra
    };
    assert!(matches!(of_all(i64::MIN), Error::OutOfRange { name: "quantity", .. }));
    let range = "ERR quantity must be an integer from -9223372036854775807 to 25620477";
    assert_eq!(of_all(i64::MAX).to_string(), range);
}

#[test]
fn nobody_is_admitted_before_a_pause_ends() {
    for (owed, wait, left, answer) in [
        (0, 0, 9, [0, 10, 1, -1, 3240]),
        // Not yet beyond the tolerance, as after a charge; the next unit still waits for 30 s.
        (0, 30, 9, [0, 10, 0, -1, 3270]),
        (10, 30, 10, [0, 10, 0, -1, 3600]),
        (10, 400, 9, [1, 10, 0, 400, 3640]),
        (23, 30, 23, [1, 10, 0, 5040, 8280]),
    ] {
        let paused = pause(owing(owed), &limit(), at(0), span(wait * S)).unwrap();
        let expected = if left == owed { owing(left) } else { Some(at((left * 360 + wait) * S)) };
        assert_eq!(after(&paused, owing(owed)), expected, "{owed} owed, paused for {wait}");
        assert_eq!(reply(&paused), answer, "{owed} owed, paused for {wait}");
    }
    assert_eq!(pause(None, &limit(), at(0), Span::MAX), Err(Error::BeyondTime));
}

fn limits() -> impl Strategy<Value = Limit> {
    (0..20_i64, 1..1_000_i64, 1..1_000_i64).prop_map(|(max_burst, count, period)| {
        Limit::new(max_burst, count, period, Unit::Milliseconds).unwrap()
    })
}

proptest! {
    #[test]
    fn without_an_age_a_settlement_is_a_charge_or_a_refund(
        limit in limits(), owed in 0..60 * S, quantity in 0..100_i64,
    ) {
        let state = (owed > 0).then(|| at(owed));
        prop_assert_eq!(settle(state, &limit, at(0), quantity, None), charge(state, &limit, at(0), quantity));
        prop_assert_eq!(settle(state, &limit, at(0), -quantity, None), refund(state, &limit, at(0), quantity));
    }

    /// At most as much is given back as the units would still owe at that age, had they been alone.
    #[test]
    fn with_its_age_nothing_is_given_back_that_has_leaked_away(
        limit in limits(), before in 0..2 * S, taken in 1..20_i64, age in 0..4 * S, back in 1..30_i64,
    ) {
        let state = (before > 0).then(|| at(before));
        let took = charge(state, &limit, at(0), taken).unwrap();
        let tat = after(&took, state).unwrap();
        let later = at(age);
        let gone = if tat <= later { None } else { Some(tat) };
        let settled = settle(gone, &limit, later, -back, Some(&ago(age))).unwrap();
        let left = after(&settled, gone).map_or(0, |tat| nanos(tat.since(later)));
        let whole = nanos(limit.cost(back).unwrap());
        let owed = gone.map_or(0, |tat| nanos(tat.since(later)));
        prop_assert_eq!(owed - left, (whole - age).clamp(0, owed));
    }

    #[test]
    fn exactly_one_unit_is_admitted_when_a_pause_ends(limit in limits(), owed in 0..2 * S, wait in 0..9 * S) {
        let state = (owed > 0).then(|| at(owed));
        let free = throttle(state, &limit, at(0), 1).unwrap();
        let paused = after(&pause(state, &limit, at(0), span(wait)).unwrap(), state);
        let end = match free.answer.verdict { Verdict::Later(own) => wait.max(nanos(own)), _ => wait };
        let at_end = throttle(paused, &limit, at(end), 1).unwrap();
        prop_assert_eq!(at_end.answer.verdict, Verdict::Admitted);
        if end == wait {
            prop_assert!(throttle(after(&at_end, paused), &limit, at(end), 1).unwrap().answer.limited());
        }
        if end > 0 {
            prop_assert!(throttle(paused, &limit, at(end - 1), 1).unwrap().answer.limited());
        }
        // Of several pauses the one that ends last holds, whatever their order.
        let shorter = pause(paused, &limit, at(0), span(wait / 2)).unwrap();
        prop_assert_eq!(after(&shorter, paused), paused);
    }
}

/// A leak ends between two nanoseconds, and the state holds the one before: thereby another may have ended.
#[test]
fn the_answer_of_a_settlement_is_that_of_a_look_at_what_it_stores() {
    let limit = bucket::Limit::new(13, 35, 183, Unit::Microseconds).unwrap();
    // One leak has ended by now, and with its end rounded down a second one.
    let (since, now) = (at(0), at(10_456));
    for (free, difference, left) in
        [(5, 1, 6), (5, -1, 8), (5, 0, 6), (0, 2, 0), (0, 3, 0), (9, -1, 12), (10, -1, 13), (11, 1, 12)]
    {
        let state = Some(Level { free, since });
        let settled = bucket::settle(state, &limit, now, difference, None).unwrap();
        let after = after(&settled, state);
        // In debt, a settlement returns the time until one more unit is admitted, as a call for it does.
        let look = bucket::take(after, &limit, now, i64::from(settled.answer.limited())).unwrap().answer;
        assert_eq!(settled.answer.remaining, left, "{free} free, {difference}");
        assert_eq!(settled.answer, look, "{free} free, {difference}");
        assert_eq!(after.is_none(), left == 13, "what is full has no state: {free} free, {difference}");
    }
}
