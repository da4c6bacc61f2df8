//! The sliding-window log against a naive exact model: a list of instants, searched completely each time.

#![allow(
    clippy::restriction,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "tests may fail loudly"
)]

mod common;

use common::{Log, ago};
use proptest::prelude::*;
use redis_cell_core::log::{Entries, Limit, is_entry, may_be, peek, peek_behind, saturate, settle, take};
use redis_cell_core::timeline::{PRUNED_AT_MOST, Timeline};
use redis_cell_core::{Change, Decision, Error, Instant, Span, Unit, Verdict};

const START: u64 = 1_700_000_000_000_000_000;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos).unwrap()
}

fn span(nanos: u64) -> Span {
    Span::from_nanos(nanos).unwrap()
}

fn tick(now: u64) -> u64 {
    now.div_ceil(1_000) * 1_000
}

/// The contract, by going through everything that was ever admitted.
struct Naive {
    limit: u64,
    period: u64,
    admitted: Vec<u64>,
}

impl Naive {
    fn alive(&self, now: u64) -> Vec<u64> {
        let mut alive: Vec<u64> =
            self.admitted.iter().copied().filter(|entry| entry + self.period > now).collect();
        alive.sort_unstable();
        alive
    }

    fn admits(&self, now: u64, quantity: u64) -> bool {
        self.alive(now).len() as u64 + quantity <= self.limit
    }

    /// The first tick from `now` on at which the quantity would be admitted, if there is one.
    fn admits_at(&self, now: u64, quantity: u64) -> Option<u64> {
        let leaving = self.admitted.iter().map(|entry| entry + self.period);
        leaving.chain([now]).filter(|&then| then >= now && self.admits(then, quantity)).min()
    }

    /// The most that any window of a period holds: one that is the fullest begins at an entry.
    fn fullest_window(&self) -> usize {
        let within =
            |from: u64| self.admitted.iter().filter(|&&e| e >= from && e < from + self.period).count();
        self.admitted.iter().map(|&entry| within(entry)).max().unwrap_or(0)
    }

    /// Adds entries whatever the limit, or removes the newest of those that count and are so old.
    fn settle(&mut self, now: u64, difference: i64, age: Option<u64>) {
        let alive = self.alive(now);
        if difference > 0 {
            self.admitted.extend((0..difference).map(|_| now));
        } else {
            let (mut old, newer): (Vec<u64>, Vec<u64>) =
                alive.iter().partition(|&&entry| age.is_none_or(|age| entry + age <= now));
            old.truncate(old.len().saturating_sub(difference.unsigned_abs() as usize));
            self.admitted = [old, newer].concat();
        }
    }

    /// The answer of a call that is never refused: limited while there are more entries than the limit.
    fn standing(&self, now: u64) -> [i64; 5] {
        let alive = self.alive(now);
        let limited = alive.len() as u64 > self.limit;
        [
            i64::from(limited),
            self.limit as i64,
            (self.limit as i64 - alive.len() as i64).max(0),
            if limited { ((self.admits_at(now, 1).unwrap() - now) / 1_000) as i64 } else { -1 },
            (alive.last().map_or(0, |last| last + self.period - now) / 1_000) as i64,
        ]
    }

    fn answer(&self, now: u64, quantity: u64) -> [i64; 5] {
        let admitted = self.admits(now, quantity);
        let taken = if admitted { quantity } else { 0 };
        let alive = self.alive(now);
        let last =
            if taken > 0 { now.max(*alive.last().unwrap_or(&now)) } else { *alive.last().unwrap_or(&0) };
        [
            i64::from(!admitted),
            self.limit as i64,
            (self.limit as i64 - (alive.len() as u64 + taken) as i64).max(0),
            match self.admits_at(now, quantity) {
                Some(then) if !admitted => ((then - now) / 1_000) as i64,
                _ => -1,
            },
            ((last + self.period).saturating_sub(now) / 1_000) as i64,
        ]
    }
}

/// Limits in microseconds, and calls that come closer and further apart than their period.
fn traffic() -> impl Strategy<Value = (u64, u64, Vec<(u64, i64)>)> {
    (1..12_u64, prop_oneof![1..5_u64, 5..400_u64]).prop_flat_map(|(limit, period)| {
        let gap = prop_oneof![Just(0), 1..2_000_u64, 0..period * 2_000];
        let calls = prop::collection::vec((gap, 0..limit as i64 + 2), 1..60);
        (Just(limit), Just(period), calls)
    })
}

proptest! {
    #[test]
    fn every_answer_equals_the_naive_model((limit, period, calls) in traffic()) {
        let mut naive = Naive { limit, period: period * 1_000, admitted: Vec::new() };
        let limit = Limit::new(limit as i64, period as i64, Unit::Microseconds).unwrap();
        let (mut log, mut now) = (Log::default(), START);
        for (gap, quantity) in calls {
            now += gap;
            let expected = naive.answer(tick(now), quantity as u64);
            let before = log.clone();
            let answer = log.take(&limit, at(now), quantity);
            prop_assert_eq!(answer.reply(Unit::Microseconds).five, expected, "{:?} at {}", quantity, now);
            if answer.limited() {
                prop_assert_eq!(&log, &before, "a refusal left a trace");
            } else {
                naive.admitted.extend((0..quantity).map(|_| tick(now)));
            }
            prop_assert!(naive.fullest_window() as u64 <= naive.limit, "more than the limit in a period");
        }
    }

    /// A failover to a server whose clock is behind: entries come from the future, and count until they have
    /// left.
    #[test]
    fn no_step_of_the_clock_admits_more((limit, period, calls) in traffic(), steps in prop::collection::vec(0..800_000_u64, 60)) {
        let mut naive = Naive { limit, period: period * 1_000, admitted: Vec::new() };
        let limit = Limit::new(limit as i64, period as i64, Unit::Microseconds).unwrap();
        let (mut log, mut now) = (Log::default(), START);
        for ((gap, quantity), step) in calls.into_iter().zip(steps) {
            now = now + gap - if step % 3 == 0 { step } else { 0 };
            // Entries that were pruned before the step back are forgotten: the documented price. Hence
            // unpruned here.
            let decision = take(&log.entries[..], &limit, at(now), quantity).unwrap();
            if let Change::Store(change) = decision.change {
                log.entries.extend((0..change.count).map(|_| change.at));
                log.entries.sort();
                naive.admitted.extend((0..quantity).map(|_| tick(now)));
                let last = naive.admitted.iter().max().unwrap() + naive.period;
                prop_assert_eq!(change.until, at(last.max(tick(now))));
            }
            prop_assert!(naive.fullest_window() as u64 <= naive.limit);
        }
    }

    /// Every step is settled by some difference, with an age or without.
    #[test]
    fn a_settlement_equals_the_naive_model(
        (limit, period, calls) in traffic(),
        differences in prop::collection::vec((-6..7_i64, prop::option::of(0..900_000_u64)), 60),
    ) {
        let mut naive = Naive { limit, period: period * 1_000, admitted: Vec::new() };
        let limit = Limit::new(limit as i64, period as i64, Unit::Microseconds).unwrap();
        let (mut log, mut now) = (Log::default(), START);
        for ((gap, quantity), (difference, age)) in calls.into_iter().zip(differences) {
            now += gap;
            if !log.take(&limit, at(now), quantity).limited() {
                naive.admitted.extend((0..quantity).map(|_| tick(now)));
            }
            let before = log.clone();
            let taken = age.map(|age| ago(age as i64));
            let answer = log.settle(&limit, at(now), difference, taken.as_ref());
            naive.settle(tick(now), difference, age);
            let expected = naive.standing(tick(now));
            prop_assert_eq!(answer.reply(Unit::Microseconds).five, expected, "{} after {:?}", difference, age);
            if difference == 0 || difference < 0 && age.is_some_and(|age| age >= naive.period) {
                prop_assert_eq!(&log, &before, "nothing was to be settled");
            }
            // Exactly the entries that still count are stored, and the key lives exactly as long.
            let alive = naive.alive(tick(now));
            let stored: Vec<u64> = log.entries.iter().map(|entry| entry.as_nanos()).collect();
            prop_assert!(stored.ends_with(&alive), "{:?} without {:?}", stored, alive);
            let until = alive.last().map(|last| at(last + naive.period));
            prop_assert!(alive.is_empty() || log.until == until, "until {:?}, not {:?}", log.until, until);
            if alive.is_empty() && log != before {
                prop_assert_eq!(&log, &Log::default(), "a log without entries that count has no key");
            }
        }
    }

}

#[test]
fn a_call_removes_a_bounded_number_of_entries() {
    let limit = Limit::new(1_000_000, 1, Unit::Seconds).unwrap();
    let expired = vec![at(START); 25_000];
    let pruned = |quantity| match take(expired.as_slice(), &limit, at(START + 1_000_000_000), quantity) {
        Ok(Decision { change: Change::Store(Entries { pruned, .. }), .. }) => pruned,
        seen => panic!("{seen:?}"),
    };
    assert_eq!(pruned(1), PRUNED_AT_MOST);
    assert_eq!(pruned(9_000), 18_000);
    assert_eq!(pruned(10_000), 20_000);
    // And no call removes an entry that counts.
    let alive = take(expired.as_slice(), &limit, at(START + 999_999_000), 1).unwrap();
    assert!(matches!(alive.change, Change::Store(Entries { pruned: 0, .. })));
}

#[test]
fn arguments_have_ranges() {
    let limit = Limit::new(5, 60, Unit::Seconds).unwrap();
    for quantity in [-1, 10_001, i64::MIN, i64::MAX] {
        let error = take(&[][..], &limit, at(START), quantity).unwrap_err();
        assert_eq!(error.to_string(), "ERR quantity must be an integer from 0 to 10000");
    }
    // A period that would end past the last instant is an error that names it and its range.
    let long = Limit::new(5, 9_000_000_000, Unit::Seconds).unwrap();
    let error = take(&[][..], &long, at(START), 1).unwrap_err();
    assert_eq!(error.to_string(), "ERR period must be an integer from 1 to 7523372036");
    let longest = Limit::new(5, 7_523_372_036, Unit::Seconds).unwrap();
    assert!(take(&[][..], &longest, at(START), 1).is_ok());
    assert_eq!(take(&[][..], &limit, Instant::saturating_from_nanos(u64::MAX), 1), Err(Error::BeyondTime));
}

#[test]
fn settlements_have_ranges() {
    let limit = Limit::new(1_000_000, 60, Unit::Seconds).unwrap();
    for difference in [10_001, i64::MAX, i64::MIN] {
        let error = settle(&[][..], &limit, at(START), difference, None).unwrap_err();
        assert_eq!(error.to_string(), "ERR quantity must be an integer from -9223372036854775807 to 10000");
    }
    for quantity in [-1, i64::MIN] {
        let error = saturate(&[][..], &limit, at(START), quantity).unwrap_err();
        assert_eq!(error.to_string(), "ERR quantity must be an integer from 0 to 9223372036854775807");
    }
    // A million entries at once would stall the server for a second.
    let decision = saturate(&[][..], &limit, at(START), i64::MAX).unwrap();
    assert_eq!(decision.answer.reply(Unit::Seconds).five, [0, 1_000_000, 990_000, -1, 60]);
    assert_eq!(decision.answer.taken, Some(10_000));
}

/// After a step back of the clock: the latest entries are given back, and charged entries may come before
/// them.
#[test]
fn settlements_meet_entries_from_the_future() {
    let limit = Limit::new(2, 60, Unit::Seconds).unwrap();
    let second = 1_000_000_000;
    let entries = [START - 50 * second, START - 40 * second, START + 30 * second].map(at);
    let charged = settle(&entries[..], &limit, at(START), 2, None).unwrap().answer;
    // Five, so four have to leave for one more: the two old ones, and the two of now.
    assert_eq!(charged.reply(Unit::Seconds).five, [1, 2, 0, 60, 90]);
    let charged = settle(&entries[1..], &limit, at(START), 2, None).unwrap().answer;
    assert_eq!(charged.reply(Unit::Seconds).five, [1, 2, 0, 60, 90]);
    let one = Limit::new(1, 60, Unit::Seconds).unwrap();
    let charged = settle(&entries[1..], &one, at(START), 1, None).unwrap().answer;
    assert_eq!(charged.reply(Unit::Seconds).five, [1, 1, 0, 90, 90], "the one of the future moves up");
    let back = settle(&entries[..], &limit, at(START), -1, None).unwrap();
    assert_eq!(back.answer.reply(Unit::Seconds).five, [0, 2, 0, -1, 20]);
}

/// New entries are named after those with the same instant: neither the ones before nor the ones of the
/// future are among them.
#[test]
fn entries_from_the_future_are_not_there_already() {
    let limit = Limit::new(9, 60, Unit::Seconds).unwrap();
    let entries = [START - 1_000, START, START, START + 1_000].map(at);
    let Change::Store(added) = take(&entries[..], &limit, at(START), 3).unwrap().change else {
        panic!("five are left")
    };
    assert_eq!((added.at, added.there, added.count), (at(START), 2, 3));
    let epoch = [0, 0, 1_000].map(at);
    let Change::Store(added) = take(&epoch[..], &limit, at(0), 3).unwrap().change else {
        panic!("six are left")
    };
    assert_eq!(added.there, 2, "nothing is before the epoch");
}

#[test]
fn a_log_is_known_by_the_names_of_its_entries() {
    for (name, entry) in [
        (&b"1700000000000000-0"[..], true),
        (b"1700000000000000-9999", true),
        (b"1700000000000001-0", false),
        (b"170000000000000-0", false),
        (b"1700000000000000-0-0", false),
        (b"-1700000000000000-0", false),
        (b"1700000000000000-", false),
        (b"1700000000000000", false),
        (b"1700000000000000-a", false),
        (b"1700000000000000--1", false),
        (b"01700000000000000-0", false),
        (b"-0", false),
        (b"", false),
        (b"worker-17", false),
    ] {
        assert_eq!(is_entry(name, at(START)), entry, "{}", name.escape_ascii());
    }
    assert!(is_entry(b"0-0", at(0)));
}

#[test]
fn entries_with_other_names_are_a_log_when_they_are_past() {
    let year = 365 * 86_400 * 1_000_000_000;
    let check = |first: u64, last: u64| may_be([at(first), at(last)], at(START));
    assert!(check(START, START));
    assert!(check(START - 9 * year, START));
    assert!(!check(START - 11 * year, START));
    assert!(!check(START - 9 * year, START + 1_000), "a lease that counts");
    for score in [0, 1, 100, 1_000_000, START / 1_000_000_000, START / 1_000_000] {
        assert!(!check(score * 1_000, score * 1_000), "{score}");
        assert!(!check(score * 1_000, START), "{score}");
    }
}

#[test]
fn an_entry_is_named_by_its_microseconds_in_any_year() {
    for digits in 0..16 {
        for micros in [10_u64.pow(digits), 10_u64.pow(digits + 1) - 1] {
            let entry = at((micros.min((1 << 53) - 1)) * 1_000);
            let micros = entry.as_micros();
            assert!(is_entry(format!("{micros}-0").as_bytes(), entry), "{micros}");
            assert!(!is_entry(format!("{micros}0-0").as_bytes(), entry), "{micros}0");
        }
    }
    assert!(is_entry(b"0-0", at(0)));
    assert!(!is_entry(b"00-0", at(0)));
}

/// A call takes at most 10,000 units; clients that wait may want more together.
#[test]
fn behind_clients_that_want_more_than_one_call_may_a_call_is_refused_and_is_no_error() {
    let (limit, now) = (Limit::new(30_000, 60, Unit::Seconds).unwrap(), START + 60_000_000_000);
    // 10,000 leave in 10 s, and 10,000 in 20 s.
    let mut entries = vec![at(START + 10_000_000_000); 10_000];
    entries.extend(vec![at(START + 20_000_000_000); 10_000]);
    let rows = [
        (1, 9_000, Verdict::Admitted, 1_000),
        (1_000, 9_000, Verdict::Admitted, 1_000),
        (1_001, 9_000, Verdict::Later(span(10_000_000_000)), 1_000),
        (1, 15_000, Verdict::Later(span(10_000_000_000)), 0),
        (1, 20_000, Verdict::Later(span(20_000_000_000)), 0),
        (0, 20_000, Verdict::Later(span(10_000_000_000)), 0),
        (1, u64::MAX, Verdict::Later(span(20_000_000_000)), 0),
    ];
    for (quantity, units, verdict, remaining) in rows {
        let answer = peek_behind(entries.as_slice(), &limit, at(now), quantity, units).unwrap();
        assert_eq!((answer.verdict, answer.remaining), (verdict, remaining), "{quantity} behind {units}");
    }
    // The range of a quantity does not depend on them.
    assert!(peek_behind(entries.as_slice(), &limit, at(now), 10_001, 1).is_err());
}

#[test]
fn a_peek_is_an_error_where_a_take_is() {
    use redis_cell_core::timeline::LAST;

    // The last instant of a log lies in 2255, and the last representable instant in 2262: ten years reach
    // beyond both.
    let year = 365 * 86_400;
    let limit = Limit::new(1, 10 * year, Unit::Seconds).unwrap();
    let before = |seconds: i64| LAST.saturating_sub(span(seconds.unsigned_abs() * 1_000_000_000));
    let now = before(30);
    for entries in [vec![], vec![before(5 * year)]] {
        for quantity in 0..3 {
            let taken =
                take(entries.as_slice(), &limit, now, quantity).map(|decision| decision.answer.verdict);
            let seen = peek(entries.as_slice(), &limit, now, quantity).map(|answer| answer.verdict);
            assert_eq!(seen, taken, "{quantity} with {entries:?}");
        }
    }
    assert!(matches!(peek(&[][..], &limit, now, 1), Err(Error::OutOfRange { name: "period", .. })));
}

#[test]
fn a_score_holds_every_instant_until_the_year_2255() {
    use redis_cell_core::timeline::{LAST, tick};

    assert_eq!(LAST.as_micros(), (1 << 53) - 1);
    assert_eq!(tick(LAST), Ok(LAST));
    assert_eq!(tick(LAST.checked_add(span(1)).unwrap()), Err(Error::BeyondTime));
    assert!(Timeline::is_empty(&[][..]));
    assert!(!Timeline::is_empty(&[LAST][..]));
}
