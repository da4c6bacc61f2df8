//! What holds of limiters whatever their algorithm, and calls behind clients that wait.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use std::fmt::Debug;

use common::{DAY, Exact, NOW, S, after, ago, at, in_nanos, instant, nanos, span, unit};
use proptest::prelude::*;
use redis_cell_core::Unit::{Microseconds, Seconds};
use redis_cell_core::bucket::{self, Level};
use redis_cell_core::calendar::{Calendar, Cycle};
use redis_cell_core::fixed::{self, Counter, LEAST_TAT};
use redis_cell_core::limiter::{Limiter, behind, behind_units, peek_behind};
use redis_cell_core::window::{self, Sliding};
use redis_cell_core::{Answer, Change, Decision, Error, Instant, Span, Taken, Unit, Verdict, gcra, log};

/// A limit of each kind with any state: used or not, ahead of the clock, in debt or above the limit.
#[derive(Clone, Debug)]
enum Made {
    Gcra(gcra::Limit, Option<Instant>),
    Bucket(bucket::Limit, Option<Level>),
    Fixed(fixed::Limit, Option<Counter>),
    Window(window::Limit, Option<Sliding>),
    Log(log::Limit, Vec<Instant>),
}

/// Units per period. Most emission intervals have a fraction of a nanosecond, and some are hardly longer.
fn rate() -> impl Strategy<Value = (i64, i64, Unit)> {
    prop_oneof![
        2 => (1..900_i64, 1..5_000_i64, unit()),
        1 => (2..=1_000_i64, Just(1), Just(Microseconds)),
        1 => (300_000_000..=1_000_000_000_i64, Just(1), Just(Seconds)),
    ]
}

/// A rate, and an instant some of its emission intervals ahead or behind.
fn rate_and_instant() -> impl Strategy<Value = ((i64, i64, Unit), Instant)> {
    (rate(), -9_000..20_000_i64, 0..3_i64).prop_map(|((count, period, unit), thousandths, stray)| {
        let time = Exact::new(count, period, unit).cost(thousandths.into()) / 1_000;
        ((count, period, unit), at(i64::try_from(time).unwrap() + stray))
    })
}

/// A count of units, mostly small.
fn count() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0..30_i64, 1 => 0..i64::MAX]
}

fn made() -> impl Strategy<Value = Made> {
    let used = || prop::bool::weighted(0.9);
    let gcra = (0..12_i64, rate_and_instant(), used()).prop_map(|(burst, (rate, tat), used)| {
        Made::Gcra(gcra::Limit::new(burst, rate.0, rate.1, rate.2).unwrap(), used.then_some(tat))
    });
    let free = -9..25_i64;
    let bucket =
        (1..20_i64, rate_and_instant(), free, used()).prop_map(|(most, (rate, since), free, used)| {
            let limit = bucket::Limit::new(most, rate.0, rate.1, rate.2).unwrap();
            Made::Bucket(limit, used.then_some(Level { free, since }))
        });
    let fixed = (count(), 0..4, count(), -S..20 * S, any::<bool>(), used()).prop_map(
        |(most, kind, count, end, expires, used)| {
            // A total is always smaller than the state of GCRA.
            let (most, count) = (most % (LEAST_TAT / 9) + 1, count % (LEAST_TAT / 9));
            let limit = match kind {
                0 => fixed::Limit::new(most, 7, Seconds),
                1 => fixed::Limit::by_calendar(most, Calendar::new(Cycle::Hour, 0, None).unwrap()),
                2 => fixed::Limit::total(most, Some(7), Seconds),
                _ => fixed::Limit::total(most, None, Seconds),
            };
            let end = if kind < 2 || expires { at(end) } else { Instant::MAX };
            Made::Fixed(limit.unwrap(), used.then_some(Counter { count, end }))
        },
    );
    let period = prop_oneof![1..4_i64, 1..2_000_000_000_i64];
    let window = (count(), period, [count(), count()], -2_500..2_500_i64, any::<bool>(), used()).prop_map(
        |(most, period, [current, previous], start, is_aligned, used)| {
            let limit = window::Limit::new(most + 1, period, Microseconds).unwrap();
            let start = NOW + period * start;
            let start = if is_aligned { start - start % (period * 1_000) } else { start };
            Made::Window(limit, used.then_some(Sliding { start: instant(start.into()), current, previous }))
        },
    );
    let entries = prop::collection::vec(-12_000..3_000_i64, 0..20);
    let log = (1..15_i64, 1..10_i64, entries).prop_map(|(most, period, mut entries)| {
        entries.sort_unstable();
        let tick = |entry: &i64| Instant::from_micros(at(0).as_micros().saturating_add_signed(entry / 1_000));
        let entries = entries.iter().map(|entry| tick(entry).unwrap()).collect();
        Made::Log(log::Limit::new(most, period, Microseconds).unwrap(), entries)
    });
    prop_oneof![gcra, bucket, fixed, window, log]
}

/// A call: its quantity, or as many ninths of the limit; a part of its wait in thousandths; its unit of time.
type Call = (i64, bool, i64, Unit);

/// A limiter by its verbs, `take` some nanoseconds from now: what it says of waits comes true, and its other
/// verbs say the same. `tick` is the shortest time between two instants that it tells apart.
fn assert_consistent<S: Debug + PartialEq>(
    take: impl Fn(i64, i64) -> Decision<S>,
    saturate: impl Fn(i64) -> Decision<S>,
    peek: impl Fn(i64) -> Answer,
    tick: i64,
    (quantity, is_share, part, unit): Call,
) {
    let look = take(0, 0).answer;
    let quantity = if is_share { (look.limit / 9).saturating_mul(quantity) } else { quantity };
    let Decision { answer, change } = take(0, quantity);
    assert_eq!(change.is_keep(), answer.limited() || quantity == 0);
    assert_eq!(peek(quantity), Answer { verdict: answer.verdict, ..look });
    let length = i64::try_from(unit.nanos().get()).unwrap();
    let exact = [answer.verdict.wait(), Some(answer.reset_after)];
    for (told, exact) in answer.reply(unit).five[3..].iter().zip(exact) {
        let exact = exact.filter(|exact| *exact < Span::MAX).map(nanos);
        assert!(
            exact.map_or(*told == -1, |exact| (exact..exact + length).contains(&(told * length))),
            "{told}"
        );
    }

    let limited = |after| take(after, quantity).answer.limited();
    match answer.verdict {
        Verdict::Later(wait) => {
            let wait = nanos(wait);
            let sooner = (wait / 1_000 * part).min(wait - tick);
            assert!([0, sooner, wait - tick].iter().all(|sooner| limited(*sooner)), "{wait}");
            let later = [wait, wait + tick, wait + wait / 500 * part, wait + DAY];
            assert!(!later.iter().any(|later| limited(*later)), "{wait}");
        }
        Verdict::Never => assert!(limited(40_000 * DAY)),
        verdict => assert_eq!(verdict, Verdict::Admitted),
    }
    if look.reset_after < Span::MAX {
        let reset = nanos(look.reset_after);
        let left = |after| take(after, 0).answer.remaining;
        assert!([0, tick, DAY].iter().all(|later| left(reset + later) == look.limit), "{reset}");
        assert!(reset == 0 || left(reset - tick) < look.limit, "{reset}");
    }

    for quantity in [quantity, i64::MAX] {
        let saturated = saturate(quantity);
        let taken = saturated.answer.taken.unwrap();
        assert_eq!(taken, quantity.min(look.remaining));
        assert!(taken == quantity || taken < quantity && take(0, taken + 1).answer.limited());
        let mut expected = take(0, if quantity > 0 { taken.max(1) } else { 0 });
        if quantity == 0 {
            expected.answer.verdict = Verdict::Admitted;
        }
        assert_eq!(expected.answer.limited(), taken == 0 && quantity > 0);
        expected.answer.taken = Some(taken);
        assert_eq!(saturated, expected);
    }
}

/// The same of a limiter whose state is one value. What is stored is what the answer describes.
fn assert_limiter<L: Limiter>(limit: &L, state: Option<L::State>, call: Call, taken: Option<Taken>)
where
    L::State: Debug + PartialEq,
{
    let take = |state, after, quantity| limit.take(state, at(after), quantity).unwrap();
    let saturate = |quantity| limit.saturate(state, at(0), quantity).unwrap();
    let peek = |quantity| limit.peek(state, at(0), quantity).unwrap();
    assert_consistent(|after, quantity| take(state, after, quantity), saturate, peek, 1, call);

    let decision = take(state, 0, call.0);
    if !decision.change.is_keep() {
        assert_eq!(decision.answer, take(after(&decision, state), 0, 0).answer);
    }
    for difference in [call.0, -call.0] {
        let Ok(settled) = limit.settle(state, at(0), difference, taken.as_ref()) else { continue };
        let left = after(&settled, state);
        let look = take(left, 0, 0).answer;
        // In debt, the wait is that of a call for one unit.
        assert_eq!(settled.answer, if look.limited() { take(left, 0, 1).answer } else { look });
        assert!(difference != 0 || settled.change.is_keep());
        assert!(settled.change != Change::Delete || difference < 0 && look.reset_after == Span::ZERO);
    }
}

/// The quantities that a limiter of a rate admits, and when.
fn admissions<L: Limiter>(limit: &L, rate: Exact, calls: &[(i64, i64, bool, bool)]) -> Vec<(i64, i64)> {
    let (mut state, mut now, mut told, mut admissions) = (None, 0, 0, Vec::new());
    for &(thousandths, quantity, waits, takes_what_fits) in calls {
        let time = i64::try_from(rate.cost(thousandths.into()) / 1_000).unwrap();
        now += if waits { (told + thousandths % 3 - 1).max(0) } else { time };
        let decision = if takes_what_fits {
            limit.saturate(state, at(now), quantity).unwrap()
        } else {
            limit.take(state, at(now), quantity).unwrap()
        };
        told = decision.answer.verdict.wait().map_or(0, nanos);
        if !decision.change.is_keep() {
            admissions.push((now, decision.answer.taken.unwrap_or(quantity)));
        }
        state = after(&decision, state);
    }
    admissions
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    /// A client that waits for `retry_after` is admitted, and not before; a limiter is fully replenished
    /// after `reset_after`, and not before; `SATURATE` takes as much as would be admitted; a look changes
    /// nothing.
    #[test]
    fn waits_are_exact_and_all_verbs_agree(
        made in made(),
        call in (0..25_i64, any::<bool>(), 0..1_000_i64, unit()),
        age in prop::option::of(0..9 * S),
    ) {
        let taken = age.map(ago);
        match made {
            Made::Gcra(limit, tat) => assert_limiter(&limit, tat, call, taken),
            Made::Bucket(limit, level) => assert_limiter(&limit, level, call, taken),
            Made::Fixed(limit, counter) => assert_limiter(&limit, counter, call, taken),
            Made::Window(limit, sliding) => assert_limiter(&limit, sliding, call, taken),
            Made::Log(limit, entries) => {
                let log = &entries[..];
                let take = |after, quantity| log::take(log, &limit, at(after), quantity).unwrap();
                let saturate = |quantity| log::saturate(log, &limit, at(0), quantity).unwrap();
                let peek = |quantity| log::peek(log, &limit, at(0), quantity).unwrap();
                assert_consistent(take, saturate, peek, 1_000, call);
            }
        }
    }

    /// Between any two admissions, both included, no more than the limit and the units that the rate brings
    /// in that time; where a unit does not take a whole number of nanoseconds, plus the units of a nanosecond
    /// for each call.
    #[test]
    fn no_interval_admits_more_than_it_may(
        (count, period, unit) in rate(),
        most in prop_oneof![1..13_i64, 1..200_i64],
        calls in prop::collection::vec((0..4_000_i64, 0..200_i64, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let rate = Exact::new(count, period, unit);
        let gcra = gcra::Limit::new(most - 1, count, period, unit).unwrap();
        let bucket = bucket::Limit::new(most, count, period, unit).unwrap();
        for admissions in [admissions(&gcra, rate, &calls), admissions(&bucket, rate, &calls)] {
            for (from, &(start, _)) in admissions.iter().enumerate() {
                let mut admitted = 0;
                for (calls, &(end, quantity)) in (1..).zip(&admissions[from..]) {
                    admitted += i128::from(quantity);
                    let forgiven = if rate.is_whole() { 0 } else { calls };
                    prop_assert!(
                        (admitted - i128::from(most)) * rate.period
                            <= (i128::from(end - start) + forgiven) * rate.count,
                        "{} admitted by {} calls in {} ns", admitted, calls, end - start
                    );
                }
            }
        }
    }
}

/// Whatever the quantity: 2^63 ns less the instant of the call, or half of that for two periods, in seconds.
#[test]
fn a_period_must_end_within_time_itself() {
    fn check<L: Limiter>(limit: impl Fn(i64) -> Result<L, Error>, name: &str, longest: i64) {
        for quantity in [0, 1, 2] {
            let take =
                |period| limit(period).unwrap().take(None, at(0), quantity).map(|decision| decision.answer);
            assert!(take(longest).is_ok());
            let error = take(longest + 1).unwrap_err().to_string();
            assert_eq!(error, format!("ERR {name} must be an integer from 1 to {longest}"));
        }
    }
    check(|period| fixed::Limit::new(1, period, Seconds), "period", 7_523_372_036);
    check(|idle| fixed::Limit::total(1, Some(idle), Seconds), "IDLE", 7_523_372_036);
    check(|period| window::Limit::new(1, period, Seconds), "period", 3_761_686_018);
}

/// Five units in a window of a minute.
fn limit() -> fixed::Limit {
    fixed::Limit::new(5, 60, Seconds).unwrap()
}

/// A window with this many units used, which ends in half a minute.
fn used(count: i64) -> Option<Counter> {
    (count > 0).then(|| Counter { count, end: at(30 * S) })
}

#[test]
fn a_call_behind_those_that_wait_is_decided_after_them_and_takes_its_own() {
    assert_eq!(
        [0, 7, i64::MAX].map(|quantity| limit().cost(quantity).unwrap()),
        [0, 7, i64::MAX.unsigned_abs()]
    );
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
    // An error of the call itself is returned.
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
    let error = behind_units(1, 1, |_| Err::<Answer, _>(Error::BeyondTime));
    assert_eq!(error, Err(Error::BeyondTime));
}
