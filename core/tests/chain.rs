//! Chains of pools, compared with calls of their limiters one by one.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{DAY, MS, S, at, nanos, span};
use proptest::prelude::*;
use redis_cell_core::Verdict::{Admitted, Later, Never};
use redis_cell_core::chain::{Pool, Share, decide};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::several::Join::{self, Else, Spill};
use redis_cell_core::{Answer, Error, Instant, Span, Unit, Verdict};
use redis_cell_core::{bucket, fixed, gcra, window};

/// What a limiter in some state answers to a look, at an instant and for a quantity.
type Look = Box<dyn Fn(Instant, i64) -> Result<Answer, Error>>;

fn of<L: Limiter + 'static>(limit: L, state: L::State) -> Look {
    Box::new(move |now, quantity| limit.peek(Some(state), now, quantity))
}

/// Places, of which the caller holds one or not; one is free, or the first lease ends after a time.
fn places(held: bool, wait: Option<i64>) -> Look {
    Box::new(move |now, _| {
        let left = wait.map(|wait| at(wait).since(now)).filter(|left| *left > Span::ZERO);
        let verdict = left.filter(|_| !held).map_or(Admitted, Later);
        let remaining = left.map_or(1, |_| 0);
        Ok(Answer { verdict, limit: 1, remaining, reset_after: left.unwrap_or(Span::ZERO), taken: None })
    })
}

struct Chained {
    join: Join,
    quantity: i64,
    held: bool,
    look: Look,
}

impl Pool for Chained {
    type Error = Error;

    fn join(&self) -> Join {
        self.join
    }

    fn quantity(&self) -> i64 {
        self.quantity
    }

    fn is_held(&self) -> Result<bool, Error> {
        Ok(self.held)
    }

    fn peek(&self, after: Span, quantity: i64) -> Result<Answer, Error> {
        (self.look)(at(0).checked_add(after).unwrap_or(Instant::MAX), quantity)
    }
}

fn pool(join: Join, quantity: i64, look: Look) -> Chained {
    Chained { join, quantity, held: false, look }
}

/// A total of which so much is left, and which expires, or not.
fn total(limit: i64, left: i64, expires: Option<i64>) -> Look {
    let counter = fixed::Counter { count: limit - left, end: expires.map_or(Instant::MAX, at) };
    of(fixed::Limit::total(limit, None, Unit::Seconds).unwrap(), counter)
}

/// A window that ends after this time, with this many units left.
fn fixed(limit: i64, left: i64, end: i64) -> Look {
    let counter = fixed::Counter { count: limit - left, end: at(end) };
    of(fixed::Limit::new(limit, 3_600, Unit::Seconds).unwrap(), counter)
}

fn run(pools: &[Chained]) -> (Verdict, Vec<Option<i64>>) {
    let mut shares: Vec<_> = pools.iter().map(|_| Share::of(NOTHING)).collect();
    let verdict = decide(pools, &mut shares).unwrap();
    for (pool, share) in pools.iter().zip(&shares) {
        assert_eq!(share.answer, pool.peek(Span::ZERO, pool.quantity).unwrap(), "its own answer");
    }
    (verdict, shares.iter().map(|share| share.taken).collect())
}

const NOTHING: Answer =
    Answer { verdict: Never, limit: 0, remaining: 0, reset_after: Span::ZERO, taken: None };

const FIRST: Join = Join::None;

#[test]
fn a_window_with_until_has_its_room_at_the_end_of_the_wait() {
    let end = at(S).ceil_to_millis().unwrap();
    let instant = i64::try_from(end.as_nanos()).unwrap() / MS;
    let limit = fixed::Limit::until(10, instant, Unit::Milliseconds).unwrap();
    let until = of(limit, fixed::Counter { count: 10, end });
    let pools = [pool(FIRST, 8, until), pool(Spill, 8, fixed(10, 0, 2 * S))];
    assert_eq!(run(&pools), (Later(end.since(at(0))), vec![None; 2]));
}

#[test]
fn a_place_that_is_held_goes_first() {
    let places = |held, wait| Chained { held, ..pool(Else, 1, places(held, wait)) };
    let run =
        |held, wait| run(&[pool(FIRST, 1, total(10, 5, None)), places(false, None), places(held, wait)]);
    assert_eq!(run(false, None), (Admitted, vec![Some(1), None, None]));
    assert_eq!(run(true, None), (Admitted, vec![None, None, Some(0)]));
    assert_eq!(run(true, Some(S)), (Admitted, vec![None, None, Some(0)]));
}

/// A GCRA limiter in which a unit is missing for each second until it is full.
fn rate(most: i64, missing: i64) -> Look {
    of(gcra::Limit::new(most - 1, 1, 1, Unit::Seconds).unwrap(), at(missing * S))
}

#[test]
fn the_wait_is_found_among_rates_too() {
    // Each gives a unit a second: three units are missing, which both give in two seconds.
    let run =
        |quantity, a, b| run(&[pool(FIRST, quantity, rate(10, a)), pool(Spill, quantity, rate(10, b))]).0;
    assert_eq!(run(3, 10, 10), Later(span(2 * S)));
    assert_eq!(run(20, 10, 10), Later(span(10 * S)));
    assert_eq!(run(21, 10, 10), Never);
    assert_eq!(run(5, 10, 14), Later(span(5 * S)), "the other is in debt for four seconds");
    assert_eq!(run(6, 10, 14), Later(span(5 * S)));
    let large: Vec<_> = (0..8)
        .map(|n| pool(if n == 0 { FIRST } else { Spill }, 1_000_000, rate(1_000_000, 999_999 + n)))
        .collect();
    assert!(together(&large, large_wait(&large)) >= 1_000_000);
}

fn large_wait(pools: &[Chained]) -> Span {
    let Later(wait) = run(pools).0 else { panic!("no wait") };
    assert!(together(pools, Span::from_nanos(wait.as_nanos() - 1).unwrap()) < 1_000_000);
    wait
}

/// The units that fit all pools together after a time.
fn together(pools: &[Chained], after: Span) -> i64 {
    pools.iter().map(|pool| pool.peek(after, pool.quantity).unwrap().remaining).sum()
}

/// A limiter of any kind with any state, described so that it can be made more than once.
#[derive(Clone, Debug)]
enum Made {
    Gcra(i64, i64, i64, i64),
    Bucket(i64, i64, i64, i64, i64),
    Fixed(i64, i64, i64),
    Total(i64, i64, Option<i64>),
    Window(i64, i64, i64, i64, i64),
}

impl Made {
    fn look(&self) -> Look {
        match *self {
            Self::Gcra(burst, count, period, ahead) => {
                let limit = gcra::Limit::new(burst, count, period, Unit::Milliseconds).unwrap();
                of(limit, at(ahead))
            }
            Self::Bucket(capacity, count, period, left, ago) => {
                let limit = bucket::Limit::new(capacity, count, period, Unit::Milliseconds).unwrap();
                of(limit, bucket::Level { free: left, since: at(-ago) })
            }
            Self::Fixed(limit, left, end) => fixed(limit, left.min(limit), end),
            Self::Total(limit, left, expires) => total(limit, left.min(limit), expires),
            Self::Window(limit, period, current, previous, into) => {
                let limit = window::Limit::new(limit, period, Unit::Milliseconds).unwrap();
                // Windows are aligned to the epoch.
                let start = at(0).as_nanos() / (period * MS).unsigned_abs() * (period * MS).unsigned_abs();
                let start = start.saturating_sub((into * period * MS).unsigned_abs());
                let start = Instant::from_nanos(start).unwrap();
                of(limit, window::Sliding { start, current, previous })
            }
        }
    }
}

fn made() -> impl Strategy<Value = Made> {
    prop_oneof![
        (0_i64..9, 1_i64..9, 1_i64..99, 0..20 * S).prop_map(|(a, b, c, d)| Made::Gcra(a, b, c, d)),
        (1_i64..9, 1_i64..9, 1_i64..99, -9_i64..9, 0..S).prop_map(|(a, b, c, d, e)| Made::Bucket(
            a,
            b,
            c,
            d.min(a),
            e
        )),
        (1_i64..20, -9_i64..20, 1..20 * S).prop_map(|(a, b, c)| Made::Fixed(a, b, c)),
        (1_i64..20, -9_i64..20, proptest::option::of(1..20 * S)).prop_map(|(a, b, c)| Made::Total(a, b, c)),
        (1_i64..20, 1_i64..9_999, 0_i64..30, 0_i64..30, 0_i64..2)
            .prop_map(|(a, b, c, d, e)| Made::Window(a, b, c, d, e)),
    ]
}

/// What each pool gives to a call after a time, as far as its limiters say one by one; `None` for a refusal.
fn given(pools: &[Chained], after: Span) -> Option<Vec<i64>> {
    let mut alternatives: Vec<Vec<usize>> = Vec::new();
    for (at, pool) in pools.iter().enumerate() {
        match (pool.join, alternatives.last_mut()) {
            (Spill, Some(last)) => last.push(at),
            _ => alternatives.push(vec![at]),
        }
    }
    alternatives.iter().find_map(|joined| {
        let quantity = pools[joined[0]].quantity;
        let answers: Vec<_> = joined.iter().map(|&at| pools[at].peek(after, quantity).unwrap()).collect();
        let mut given = vec![0; pools.len()];
        if joined.len() == 1 || quantity == 0 {
            given[joined[0]] = quantity;
            return answers.iter().any(|answer| !answer.limited()).then_some(given);
        }
        let mut left = quantity;
        for (&at, answer) in joined.iter().zip(answers) {
            given[at] = left.min(answer.remaining);
            left -= given[at];
        }
        (left == 0).then_some(given)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Refused at every instant before the end of the wait, and admitted at its end.
    #[test]
    fn a_wait_ends_exactly_when_the_chain_admits_the_call(
        limiters in prop::collection::vec((made(), any::<bool>(), 0_i64..40), 1..9),
        instants in prop::collection::vec(0..1_000_000_i128, 8),
    ) {
        let mut pools: Vec<Chained> = Vec::new();
        for (made, spills, quantity) in &limiters {
            let (join, quantity) = match (pools.last(), spills) {
                (None, _) => (FIRST, *quantity),
                (Some(_), false) => (Else, *quantity),
                (Some(last), true) => (Spill, last.quantity),
            };
            pools.push(pool(join, quantity, made.look()));
        }
        let (verdict, taken) = run(&pools);
        let admits = |after| given(&pools, after).is_some();
        match verdict {
            Admitted => {
                let taken: Vec<_> = taken.iter().map(|taken| taken.unwrap_or(0)).collect();
                prop_assert_eq!(Some(taken), given(&pools, Span::ZERO));
            }
            Later(wait) => {
                prop_assert!(taken.iter().all(Option::is_none) && !admits(Span::ZERO));
                prop_assert!(admits(wait), "admitted at its end");
                let before = Span::from_nanos(wait.as_nanos() - 1).unwrap();
                prop_assert!(!admits(before), "refused a nanosecond before");
                for millionths in instants {
                    let after = i128::from(nanos(wait)) * millionths / 1_000_000;
                    let after = span(i64::try_from(after).unwrap());
                    prop_assert!(after >= wait || !admits(after), "refused at every instant before");
                }
            }
            _ => prop_assert!(!admits(span(40_000 * DAY)), "never"),
        }
    }
}
