//! Merged calls: whatever the row, its callers get the answers that calls of their own would have got.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test that panics is a test that fails"
)]

mod common;

use common::{S, after, at, span};
use proptest::prelude::*;
use redis_cell_core::Unit::{Microseconds, Seconds};
use redis_cell_core::bucket::{self, Level};
use redis_cell_core::fixed::{self, Counter};
use redis_cell_core::gcra;
use redis_cell_core::limiter::Limiter;
use redis_cell_core::merged::{Grants, Limit, Reply, tail};
use redis_cell_core::{Rate, Span, Verdict};

/// A row of quantities that are mostly small.
fn rows() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(prop_oneof![6 => Just(1_i64), 2 => 1..4_i64, 1 => 1..30_i64], 0..12)
}

/// The units that callers take one after the other, all or nothing.
fn one_by_one(row: &[i64], available: i64) -> i64 {
    row.iter()
        .fold(0, |taken, &quantity| if taken + quantity <= available { taken + quantity } else { taken })
}

fn tail_of(row: &[i64]) -> usize {
    tail(row.iter().rev().copied().map(Some))
}

/// Sends a row to a limiter: its complete ends as one call each, the others by themselves. Returns the five
/// numbers of each caller in microseconds, the units taken, and the number of calls.
fn merged<L: Limiter>(
    limiter: &L,
    limit: Limit,
    mut state: Option<L::State>,
    row: &[i64],
) -> (Vec<[i64; 5]>, i64, usize) {
    let mut parts = Vec::new();
    let mut rest = row;
    while !rest.is_empty() {
        let (before, part) = rest.split_at(rest.len() - tail_of(rest));
        parts.insert(0, part);
        rest = before;
    }
    let (mut answers, mut taken) = (Vec::new(), 0);
    for part in &parts {
        if let &[quantity] = *part {
            let decision = limiter.take(state, at(0), quantity).unwrap();
            taken += if decision.answer.limited() { 0 } else { quantity };
            answers.push(decision.answer.reply(Microseconds).five);
            state = after(&decision, state);
            continue;
        }
        let decision = limiter.saturate(state, at(0), part.iter().sum()).unwrap();
        let reply = decision.answer.reply(Microseconds);
        let micros = |number: i64| span(number * 1_000);
        let reply = Reply {
            taken: reply.taken.unwrap(),
            remaining: reply.five[2],
            retry_after: (reply.five[3] >= 0).then(|| micros(reply.five[3])),
            reset_after: micros(reply.five[4]),
        };
        let mut grants = Grants::new(limit, reply);
        answers.extend(part.iter().map(|&quantity| grants.next(quantity).reply(Microseconds).five));
        let admitted = |(answer, quantity): (&[i64; 5], &i64)| if answer[0] == 0 { *quantity } else { 0 };
        let own = answers[answers.len() - part.len()..].iter().zip(*part).map(admitted).sum::<i64>();
        assert_eq!(own, reply.taken, "{part:?}: no unit may be held, and none granted twice");
        taken += own;
        state = after(&decision, state);
    }
    (answers, taken, parts.len())
}

/// The same by calls of their own.
fn direct<L: Limiter>(limiter: &L, mut state: Option<L::State>, row: &[i64]) -> (Vec<[i64; 5]>, i64) {
    let (mut answers, mut taken) = (Vec::new(), 0);
    for &quantity in row {
        let decision = limiter.take(state, at(0), quantity).unwrap();
        taken += if decision.answer.limited() { 0 } else { quantity };
        answers.push(decision.answer.reply(Microseconds).five);
        state = after(&decision, state);
    }
    (answers, taken)
}

fn same<L: Limiter>(limiter: &L, limit: Limit, state: Option<L::State>, row: &[i64]) {
    // A quantity above the limit goes alone in clients.
    let row: Vec<i64> = row.iter().map(|&quantity| quantity.min(limit.most())).collect();
    let (answers, ..) = merged(limiter, limit, state, &row);
    assert_eq!(answers, direct(limiter, state, &row).0, "{row:?}");
}

/// Decisions are the same, and times at most a microsecond longer.
fn nearly_the_same<L: Limiter>(limiter: &L, limit: Limit, state: Option<L::State>, row: &[i64]) {
    let row: Vec<i64> = row.iter().map(|&quantity| quantity.min(limit.most())).collect();
    let (answers, ..) = merged(limiter, limit, state, &row);
    for (merged, direct) in answers.iter().zip(direct(limiter, state, &row).0) {
        assert_eq!(merged[..3], direct[..3], "{row:?}");
        assert_eq!(merged[3] < 0, direct[3] < 0, "{row:?}");
        for time in [3, 4] {
            assert!(
                (0..=1).contains(&(merged[time] - direct[time])),
                "{merged:?}, not {direct:?}, of {row:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_longest_complete_end_is_found(row in rows()) {
        let is_complete = |row: &[i64]| {
            let sum: i64 = row.iter().sum();
            (0..=sum + 1).all(|available| one_by_one(row, available) == sum.min(available))
        };
        // The end of a complete row is complete, so the first one that is not ends the search.
        let longest = (0..=row.len()).take_while(|&length| is_complete(&row[row.len() - length..])).last();
        prop_assert_eq!(tail_of(&row), longest.unwrap().max(usize::from(!row.is_empty())));
    }

    #[test]
    fn whole_microseconds_make_all_answers_the_same(
        row in rows(), burst in 0..20_i64, interval in 1..5_000_i64, debt in 0..40_000_000_i64, empty in any::<bool>()
    ) {
        let rate = Rate::new(1, interval, Microseconds).unwrap();
        let limit = Limit::Rated { rate, capacity: burst + 1 };
        let debt = debt % (2 * (burst + 1) * interval * 1_000);
        let limiter = gcra::Limit::new(burst, 1, interval, Microseconds).unwrap();
        same(&limiter, limit, (!empty).then(|| at(debt)), &row);
        let limiter = bucket::Limit::new(burst + 1, 1, interval, Microseconds).unwrap();
        let free = burst + 1 - debt / (interval * 1_000);
        let since = at(-(debt % (interval * 1_000)));
        same(&limiter, limit, (!empty).then_some(Level { free, since }), &row);
    }

    #[test]
    fn whole_nanoseconds_round_times_up_by_a_microsecond_at_most(
        row in rows(), burst in 0..20_i64, interval in 1..3_000_u64, debt in 0..60_000_i64
    ) {
        // `count` divides a period of whole microseconds into intervals of `interval` nanoseconds.
        let (count, period) = (1_000, i64::try_from(interval).unwrap());
        let rate = Rate::new(count, period, Microseconds).unwrap();
        let limit = Limit::Rated { rate, capacity: burst + 1 };
        let limiter = gcra::Limit::new(burst, count, period, Microseconds).unwrap();
        nearly_the_same(&limiter, limit, Some(at(debt)), &row);
        let limiter = bucket::Limit::new(burst + 1, count, period, Microseconds).unwrap();
        let level = Level { free: burst + 1 - debt / period, since: at(-(debt % period)) };
        nearly_the_same(&limiter, limit, Some(level), &row);
    }

    #[test]
    fn other_intervals_never_take_more(
        row in rows(), burst in 0..20_i64, count in 1..3_000_i64, period in 1..3_000_i64, debt in 0..60_000_i64,
        free in -5..20_i64
    ) {
        let count = count.min(period * 1_000);
        let rate = Rate::new(count, period, Microseconds).unwrap();
        let limit = Limit::Rated { rate, capacity: burst + 1 };
        let limiter = gcra::Limit::new(burst, count, period, Microseconds).unwrap();
        let row: Vec<i64> = row.iter().map(|&quantity| quantity.min(burst + 1)).collect();
        let part = &row[row.len() - tail_of(&row)..];
        // Each caller is forgiven less than a nanosecond, which can complete one more unit.
        let forgiven = rate.units(span(i64::try_from(part.len()).unwrap())) + 1;
        let (_, taken, _) = merged(&limiter, limit, Some(at(debt)), part);
        let (_, own) = direct(&limiter, Some(at(debt)), part);
        prop_assert!((taken..=taken + forgiven).contains(&own), "{taken}, not {own}, for {part:?}");
        let limiter = bucket::Limit::new(burst + 1, count, period, Microseconds).unwrap();
        let level = Some(Level { free: free.min(burst + 1), since: at(-debt) });
        let (_, taken, _) = merged(&limiter, limit, level, part);
        let (_, own) = direct(&limiter, level, part);
        prop_assert!((taken..=taken + forgiven).contains(&own), "{taken}, not {own}, for {part:?}");
    }

    #[test]
    fn fixed_windows_give_the_same_answers(
        row in rows(), most in 1..20_i64, used in 0..30_i64, left in 1..60_000_000_000_i64
    ) {
        let limiter = fixed::Limit::new(most, 60, Seconds).unwrap();
        let state = (used > 0).then(|| Counter { count: used, end: at(left) });
        same(&limiter, Limit::Counted(most), state, &row);
    }
}

#[test]
fn a_row_of_single_units_is_one_call() {
    assert_eq!(tail(std::iter::repeat_n(Some(1), 1_000)), 1_000);
    assert_eq!(tail([None, Some(1)]), 1); // the last caller goes alone
    assert_eq!(tail([Some(1), None, Some(1)]), 1);
    assert_eq!(tail([Some(1), Some(i64::MAX)]), 1);
    assert_eq!(tail([]), 0);
}

#[test]
fn a_refusal_behind_clients_that_wait_has_their_wait() {
    // `reset_after` does not count the units of clients that wait, and `retry_after` does.
    let rate = Rate::new(1, 1, Seconds).unwrap();
    let wait = |seconds: i64| span(seconds * S);
    let reply = Reply { taken: 0, remaining: 0, retry_after: Some(wait(7)), reset_after: wait(3) };
    let mut grants = Grants::new(Limit::Rated { rate, capacity: 5 }, reply);
    for (quantity, retry_after) in [(1, 7), (3, 9), (1, 7)] {
        let answer = grants.next(quantity);
        assert_eq!((answer.verdict, answer.reset_after), (Verdict::Later(wait(retry_after)), wait(3)));
    }
}

#[test]
fn no_unit_is_granted_that_was_not_taken() {
    // With intervals of a fraction of a nanosecond, rounding can make one more unit available.
    let rate = Rate::new(2, 3, Seconds).unwrap();
    let reply = Reply { taken: 2, remaining: 1, retry_after: None, reset_after: span(1) };
    let mut grants = Grants::new(Limit::Rated { rate, capacity: 5 }, reply);
    assert_eq!([1, 1, 1].map(|quantity| grants.next(quantity).limited()), [false, false, true]);
}

#[test]
fn no_number_of_a_reply_panics() {
    let rate = Rate::new(1, 1, Seconds).unwrap();
    for limit in [Limit::Rated { rate, capacity: i64::MAX }, Limit::Counted(i64::MAX)] {
        for taken in [0, 1, i64::MAX] {
            for time in [Span::ZERO, Span::MAX] {
                for retry_after in [None, Some(time)] {
                    let reply = Reply { taken, remaining: i64::MAX, retry_after, reset_after: time };
                    let mut grants = Grants::new(limit, reply);
                    for quantity in [1, i64::MAX] {
                        assert_eq!(grants.next(quantity).limit, i64::MAX);
                    }
                }
            }
        }
    }
}
