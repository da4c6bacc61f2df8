//! Leases against a naive exact model: a map from holder to lease end, searched completely each time.

#![allow(
    clippy::restriction,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "tests may fail loudly"
)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use redis_cell_core::lease::{
    Edit, Freed, Kept, Lease, Limit, Places, acquire, acquire_behind, may_be, peek, release, renew, score_of,
    settle,
};
use redis_cell_core::{Answer, Change, Error, Instant, Span, Unit, Verdict};

const START: u64 = 1_700_000_000_000_000_000;

type Id = u8;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos).unwrap()
}

fn tick(now: u64) -> u64 {
    now.div_ceil(1_000) * 1_000
}

fn lease(micros: u64) -> Lease {
    Lease::new(micros as i64, Unit::Microseconds).unwrap()
}

/// A sorted set in memory, which only the core's decisions change.
#[derive(Clone, Debug, Default, PartialEq)]
struct Set {
    /// By lease end, as a sorted set has them.
    members: Vec<(Instant, Id)>,
    until: Option<Instant>,
}

impl Set {
    fn own(&self, id: Id) -> Option<Instant> {
        self.members.iter().find(|member| member.1 == id).map(|member| member.0)
    }

    fn look<T>(&self, id: Id, decide: impl FnOnce(&Places<[Instant]>) -> Result<T, Error>) -> T {
        let ends: Vec<Instant> = self.members.iter().map(|member| member.0).collect();
        decide(&Places { ends: &ends, own: self.own(id) }).unwrap()
    }

    fn acquire(&mut self, limit: i64, now: u64, micros: u64, id: Id) -> Answer {
        let limit = Limit::new(limit).unwrap();
        let decision = self.look(id, |places| acquire(places, &limit, at(now), &lease(micros)));
        self.hold(id, decision.change);
        decision.answer
    }

    fn renew(&mut self, now: u64, micros: u64, id: Id) -> bool {
        let change = self.look(id, |places| renew(places, at(now), &lease(micros)));
        self.hold(id, change);
        !change.is_keep()
    }

    fn release(&mut self, now: u64, id: Id) -> bool {
        let change = self.look(id, |places| release(places, at(now)));
        match change {
            Change::Keep => {}
            Change::Delete => *self = Self::default(),
            Change::Store(Freed { until }) => {
                self.members.retain(|member| member.1 != id);
                self.until = Some(until);
            }
        }
        !change.is_keep()
    }

    fn settle(&mut self, limit: i64, now: u64, micros: u64, id: Id) -> Answer {
        let limit = Limit::new(limit).unwrap();
        let lease = (micros > 0).then(|| lease(micros));
        let decision = self.look(id, |places| settle(places, &limit, at(now), lease.as_ref()));
        match decision.change {
            Change::Store(Edit::Hold(held)) => self.hold(id, Change::Store(held)),
            Change::Store(Edit::Free(Freed { until })) => {
                self.members.retain(|member| member.1 != id);
                self.until = Some(until);
            }
            Change::Keep => {}
            Change::Delete => *self = Self::default(),
        }
        decision.answer
    }

    fn hold(&mut self, id: Id, change: Change<Kept>) {
        if let Change::Store(Kept { end, pruned, until }) = change {
            self.members.retain(|member| member.1 != id);
            self.members.push((end, id));
            self.members.sort();
            self.members.drain(..pruned as usize);
            self.until = Some(until);
        }
    }
}

/// The contract, word by word.
#[derive(Clone, Debug, Default)]
struct Naive(BTreeMap<Id, u64>);

impl Naive {
    fn alive(&self, now: u64) -> BTreeMap<Id, u64> {
        self.0.iter().filter(|(_, end)| **end > now).map(|(id, end)| (*id, *end)).collect()
    }

    fn admits(&self, limit: u64, now: u64, id: Id) -> bool {
        let alive = self.alive(now);
        alive.contains_key(&id) || (alive.len() as u64) < limit
    }

    fn acquire(&mut self, limit: u64, now: u64, micros: u64, id: Id) -> [i64; 5] {
        let admitted = self.admits(limit, now, id);
        let then = self.0.values().copied().filter(|&end| end > now && self.admits(limit, end, id)).min();
        if admitted {
            self.0.insert(id, now + micros * 1_000);
        }
        let alive = self.alive(now);
        [
            i64::from(!admitted),
            limit as i64,
            (limit as i64 - alive.len() as i64).max(0),
            if admitted { -1 } else { ((then.unwrap() - now) / 1_000) as i64 },
            ((alive.values().max().unwrap() - now) / 1_000) as i64,
        ]
    }

    fn renew(&mut self, now: u64, micros: u64, id: Id) -> bool {
        let holds = self.alive(now).contains_key(&id);
        if holds {
            self.0.insert(id, now + micros * 1_000);
        }
        holds
    }

    fn release(&mut self, now: u64, id: Id) -> bool {
        self.alive(now).contains_key(&id) && self.0.remove(&id).is_some()
    }

    /// The answer of a settlement, which may be limited if it has found no place to renew.
    fn standing(&self, limit: u64, now: u64, limited: bool) -> [i64; 5] {
        let alive = self.alive(now);
        let is_free = |then: &u64| (self.alive(*then).len() as u64) < limit;
        let then = alive.values().copied().chain([now]).filter(is_free).min();
        [
            i64::from(limited),
            limit as i64,
            (limit as i64 - alive.len() as i64).max(0),
            if limited { ((then.unwrap() - now) / 1_000) as i64 } else { -1 },
            (alive.values().max().map_or(0, |end| end - now) / 1_000) as i64,
        ]
    }
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Acquire(u64, u64),
    Renew(u64),
    Release,
}

/// A few holders that come, stay, go and come too late, under a limit that changes.
fn traffic() -> impl Strategy<Value = Vec<(u64, Id, Asked)>> {
    let asked = prop_oneof![
        4 => (1..5_u64, 1..60_u64).prop_map(|(limit, lease)| Asked::Acquire(limit, lease)),
        1 => (1..60_u64).prop_map(Asked::Renew),
        1 => Just(Asked::Release),
    ];
    prop::collection::vec((prop_oneof![Just(0), 0..20_000_u64, 0..90_000_u64], 0..7_u8, asked), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    /// A peek is what an acquire answers, without its place; a settlement renews and releases as CL.RENEW and
    /// CL.RELEASE do, and describes the places after it.
    #[test]
    fn every_answer_equals_the_naive_model(calls in traffic(), settled_limit in 1..5_u64) {
        let (mut set, mut naive, mut now) = (Set::default(), Naive::default(), START);
        for (gap, id, asked) in calls {
            now += gap;
            let before = set.clone();
            let settle = |micros| {
                let mut settled = before.clone();
                (settled.settle(settled_limit as i64, now, micros, id).reply(Unit::Microseconds).five, settled)
            };
            let refused = match asked {
                Asked::Acquire(limit, micros) => {
                    let most = Limit::new(limit as i64).unwrap();
                    let seen = set.look(id, |places| peek(places, &most, at(now), &lease(micros)));
                    let alive = naive.alive(tick(now));
                    prop_assert_eq!(seen.remaining, (limit as i64 - alive.len() as i64).max(0));
                    let last = alive.values().max().map_or(0, |end| end - tick(now));
                    prop_assert_eq!(seen.reset_after.as_nanos(), last);
                    let answer = set.acquire(limit as i64, now, micros, id);
                    prop_assert_eq!(seen.verdict, answer.verdict);
                    let wait = answer.verdict.wait().map_or(0, Span::as_nanos);
                    prop_assert_eq!(wait % 1_000, 0, "waits are spans of ticks");
                    let expected = naive.acquire(limit, tick(now), micros, id);
                    prop_assert_eq!(answer.reply(Unit::Microseconds).five, expected);
                    answer.limited()
                }
                Asked::Renew(micros) => {
                    let renewed = set.renew(now, micros, id);
                    prop_assert_eq!(renewed, naive.renew(tick(now), micros, id));
                    let standing = naive.standing(settled_limit, tick(now), !renewed);
                    prop_assert_eq!(settle(micros), (standing, set.clone()));
                    !renewed
                }
                Asked::Release => {
                    let released = set.release(now, id);
                    prop_assert_eq!(released, naive.release(tick(now), id));
                    prop_assert_eq!(settle(0), (naive.standing(settled_limit, tick(now), false), set.clone()));
                    !released
                }
            };
            if refused {
                prop_assert_eq!(&set, &before, "a refusal left a trace");
                continue;
            }
            // Every holder of a place is in the set, with its own end, and the set lives exactly as long as
            // its holders.
            let alive = naive.alive(tick(now));
            for (id, end) in &alive {
                prop_assert_eq!(set.own(*id), Some(at(*end)));
            }
            prop_assert_eq!(set.until, alive.values().max().map(|end| at(*end)));
            if matches!(asked, Asked::Acquire(..)) {
                prop_assert_eq!(set.members.len(), alive.len(), "what has ended is removed");
            }
            if alive.is_empty() {
                prop_assert_eq!(&set.members, &[], "the last to go takes the set along");
            }
        }
    }
}

#[test]
fn arguments_have_ranges() {
    // A lease that ends after the last exact score is an error that names it and its range.
    let (limit, none) = (Limit::new(1).unwrap(), Places { ends: &[][..], own: None });
    let lease = |seconds| Lease::new(seconds, Unit::Seconds).unwrap();
    let error = acquire(&none, &limit, at(START), &lease(7_307_199_255)).unwrap_err();
    assert_eq!(error.to_string(), "ERR lease must be an integer from 1 to 7307199254");
    assert_eq!(renew(&none, at(START), &lease(7_307_199_255)), Err(error));
    assert!(acquire(&none, &limit, at(START), &lease(7_307_199_254)).is_ok());
    let late = Instant::saturating_from_nanos(u64::MAX);
    assert_eq!(release(&none, late), Err(Error::BeyondTime));
}

/// The last of the others ends at this very tick, so no place is held once the caller has released its own.
#[test]
fn a_release_beside_a_lease_that_ends_now_deletes_the_set() {
    let own = at(START + 1_000);
    let places = Places { ends: &[at(START), own][..], own: Some(own) };
    assert_eq!(release(&places, at(START)), Ok(Change::Delete));
}

#[test]
fn a_settlement_of_zero_releases() {
    let of = |bytes: &[u8]| Lease::parse_settlement(bytes, Unit::Seconds).map_err(|error| error.to_string());
    assert_eq!(of(b"0"), Ok(None));
    assert_eq!(of(b"60"), Ok(Some(Lease::new(60, Unit::Seconds).unwrap())));
    for wrong in [&b""[..], b"-1", b"x", b"9223372037"] {
        assert_eq!(of(wrong).unwrap_err(), "ERR lease must be an integer from 0 to 9223372036");
    }
}

#[test]
fn a_sorted_set_holds_leases_when_its_ends_can_be_theirs() {
    let year = 365 * 86_400 * 1_000_000_000;
    let check = |first: u64, last: u64, expiry: Option<u64>| {
        may_be([at(first), at(last)], at(START), || expiry.map(at))
    };
    assert!(check(START, START, None));
    assert!(check(START - 9 * year, START + 9 * year, None));
    assert!(!check(START - 11 * year, START, None));
    assert!(!check(START, START + 11 * year, None));
    // Longer leases are confirmed by their key's expiry, each of them.
    assert!(check(START, START + 100 * year, Some(START + 100 * year)));
    assert!(check(START + 11 * year, START + 22 * year, Some(START + 22 * year)));
    assert!(!check(START + 11 * year, START + 22 * year, Some(START + 22 * year - 1)));
    assert!(!check(START - 11 * year, START, Some(START)));
    // Scores of a game; seconds, milliseconds since the epoch.
    for score in [0, 1, 100, 1_000_000, START / 1_000_000_000, START / 1_000_000] {
        assert!(!check(score * 1_000, score * 1_000, None), "{score}");
        assert!(!check(score * 1_000, START, Some(START + year)), "{score}");
    }
}

/// If a holder has the name of an entry of a log of the same microsecond, its lease is stored a microsecond
/// earlier.
#[test]
fn no_lease_looks_like_an_entry_of_a_log() {
    let end = at(START);
    assert_eq!(score_of(b"worker-17", end), end);
    assert_eq!(score_of(b"1700000000000001-0", end), end);
    assert_eq!(score_of(b"1700000000000000-0", end), at(START - 1_000));
    assert!(!redis_cell_core::log::is_entry(b"1700000000000000-0", at(START - 1_000)));
}

/// A call leaves their places to the clients that wait: it has only the places that are free behind them.
#[test]
fn an_acquisition_behind_clients_that_wait() {
    // The ends of leases; the caller's own; the number of waiting clients; the verdict, `remaining`, and
    // `reset_after` in seconds.
    type Row<'a> = (&'a [Instant], Option<Instant>, u64, Verdict, i64, u64);
    let (limit, now, lease) = (Limit::new(3).unwrap(), at(START), lease(8_000_000));
    let end = |seconds: u64| at(START + seconds * 1_000_000_000);
    let two = [end(5), end(7)];
    let three = [end(5), end(7), end(9)];
    let wait = |seconds: u64| Verdict::Later(Span::from_nanos(seconds * 1_000_000_000).unwrap());
    let soon = Verdict::Later(Span::NANOSECOND);
    let rows: [Row; 10] = [
        (&[], None, 0, Verdict::Admitted, 2, 8),
        (&[], None, 1, Verdict::Admitted, 1, 8),
        (&[], None, 2, Verdict::Admitted, 0, 8),
        (&[], None, 3, soon, 0, 0),
        (&[], None, u64::MAX, soon, 0, 0),
        (&two, None, 0, Verdict::Admitted, 0, 8),
        (&two, None, 1, wait(5), 0, 7),
        (&two, None, 3, soon, 0, 7),
        (&three, None, 1, wait(5), 0, 9),
        (&two, Some(end(5)), 9, Verdict::Admitted, 1, 8),
    ];
    for (ends, own, clients, verdict, remaining, reset) in rows {
        let places = Places { ends, own };
        let decision = acquire_behind(&places, &limit, now, &lease, clients).unwrap();
        let answer = decision.answer;
        let shows = format!("{ends:?}, {own:?}, behind {clients}");
        assert_eq!((answer.verdict, answer.remaining, answer.limit), (verdict, remaining, 3), "{shows}");
        assert_eq!(answer.reset_after.as_nanos(), reset * 1_000_000_000, "{shows}");
        assert_eq!(decision.change.is_keep(), answer.limited(), "{shows}");
    }
}

/// The clock ticks in microseconds: a place that ends at the next tick is held no more, and its holder comes
/// after the clients that wait.
#[test]
fn whose_place_ends_at_the_tick_of_the_call_comes_behind_those_who_wait() {
    let (one, own) = (Limit::new(1).unwrap(), at(START + 1_000));
    for (now, change) in [(START, false), (START + 1, true), (START + 1_000, true)] {
        let places = Places { ends: &[own][..], own: Some(own) };
        let decision = acquire_behind(&places, &one, at(now), &lease(1_000_000), 1).unwrap();
        assert_eq!(decision.answer.limited(), change, "{now}");
        assert_eq!(decision.change.is_keep(), change, "{now}");
    }
}
