//! Holds: the life of a part by tables, random histories of owners against a ledger, and the members.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test that panics is a test that fails"
)]

mod common;

use common::{S, at, span};
use proptest::prelude::*;
use redis_cell_core::fixed::{Counter, Limit};
use redis_cell_core::hold::{Class, Origin, Part, member, settles_rate, settles_window};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::{Change, Instant, Unit, gcra};
use std::collections::BTreeMap;

const TOTAL: Origin = Origin::Total { idles: false };

fn window(end: i64) -> Origin {
    Origin::Window { end: at(end) }
}

fn taken(before: Option<Part>, quantity: i64, origin: Origin, now: i64) -> Part {
    Part::taken(before, quantity, origin, at(now), span(10 * S)).unwrap().unwrap()
}

#[test]
fn a_part_is_taken_added_to_renewed_and_runs_out() {
    assert_eq!(Part::taken(None, 0, TOTAL, at(0), span(S)).unwrap(), None);
    let part = taken(None, 5, window(60 * S), 0);
    assert_eq!((part.held(), part.end), (5, at(10 * S)));
    assert!(!part.has_ended(at(10 * S - 1)) && part.has_ended(at(10 * S)));
    let more = taken(Some(part), 3, window(60 * S), 4 * S);
    assert_eq!((more.earlier, more.last, more.end), (0, 8, at(14 * S)));
    let renewed = taken(Some(more), 0, TOTAL, 9 * S);
    assert_eq!((renewed.last, renewed.origin, renewed.end), (8, window(60 * S), at(19 * S)));
    // The next window: what was taken before stays in the one that has ended.
    let next = taken(Some(renewed), 2, window(120 * S), 15 * S);
    assert_eq!((next.earlier, next.last, next.origin), (8, 2, window(120 * S)));
    // A part that has more left than its period was taken before the clock was set back.
    assert!(next.has_ended(at(14 * S)));
    assert!(!next.has_ended(at(15 * S)));
    let error = Part::taken(None, 1, TOTAL, Instant::MAX, span(1)).unwrap_err();
    assert_eq!(error.to_string(), "ERR HOLD must be an integer from 1 to 9223372036854775807");
}

#[test]
fn a_settlement_is_the_difference_to_what_is_held() {
    let counter = |end| Counter { count: 20, end: at(end) };
    let part = Part { earlier: 8, ..taken(None, 2, window(60 * S), 0) };
    let rows = [
        // used, in the window of the part, in a later one
        (0, -2, 0),
        (5, -2, 0),
        (8, -2, 0),
        (9, -1, 0),
        (10, 0, 0),
        (11, 1, 1),
        (i64::MAX, i64::MAX - 10, i64::MAX - 10),
    ];
    for (used, same, later) in rows {
        assert_eq!(settles_window(Some(&part), Some(&counter(60 * S)), used), same, "{used}");
        assert_eq!(settles_window(Some(&part), Some(&counter(120 * S)), used), later, "{used}");
        assert_eq!(settles_window(Some(&part), None, used), later, "{used}");
        assert_eq!(settles_window(None, None, used), used);
    }
    assert_eq!(part.comes_back(&counter(60 * S)), 2);
    assert_eq!(part.comes_back(&counter(120 * S)), 0);
    let total = taken(None, 7, TOTAL, 0);
    assert_eq!(total.comes_back(&Counter { count: 9, end: Instant::MAX }), 7);
}

#[test]
fn a_rate_gets_back_what_is_still_owed_for_the_last_take_to_the_nanosecond() {
    let limit = gcra::Limit::new(9, 10, 10, Unit::Seconds).unwrap();
    let first = gcra::throttle(None, &limit, at(0), 5).unwrap();
    let Change::Store(tat) = first.change else { panic!("{first:?}") };
    let origin = Origin::Rate { at: at(0), reset_after: first.answer.reset_after };
    let part = taken(None, 5, origin, 0);
    // After 1.5 seconds, 3.5 seconds of the five are still owed.
    let (difference, known) = settles_rate(Some(&part), at(3 * S / 2), 0);
    assert_eq!(difference, -5);
    let settled = limit.settle(Some(tat), at(3 * S / 2), difference, known.as_ref()).unwrap();
    assert_eq!(settled.change, Change::Delete);
    // Of units that were taken before, nothing comes back.
    let more = Part { earlier: 4, ..part };
    assert_eq!(settles_rate(Some(&more), at(S), 0).0, -5);
    assert_eq!(settles_rate(Some(&more), at(S), 7).0, -2);
    assert_eq!(settles_rate(Some(&more), at(S), 12).0, 3);
    assert_eq!(settles_rate(None, at(S), 12).0, 0);
    assert_eq!(settles_rate(Some(&taken(None, 1, TOTAL, 0)), at(S), 12).0, 0);
}

/// One limiter's key and the parts of its owners, as a server has them.
#[derive(Default)]
struct Server {
    state: Option<Counter>,
    parts: BTreeMap<u8, Part>,
}

impl Server {
    fn carry_out(&mut self, now: Instant) {
        self.state = self.state.filter(|counter| now < counter.end);
        let state = &mut self.state;
        self.parts.retain(|_, part| {
            if part.has_ended(now) {
                *state = state.and_then(|counter| match part.comes_back(&counter) {
                    0 => Some(counter),
                    back => counter.without(back),
                });
            }
            !part.has_ended(now)
        });
    }

    fn apply(&mut self, change: Change<Counter>) {
        match change {
            Change::Store(counter) => self.state = Some(counter),
            Change::Delete => self.state = None,
            Change::Keep => {}
        }
    }
}

/// What an owner does after some time.
#[derive(Clone, Copy, Debug)]
enum Act {
    Take(i64),
    Renew,
    Settle(i64),
}

fn acts() -> impl Strategy<Value = Vec<(i64, u8, Act)>> {
    let act = prop_oneof![
        3 => (1..40_i64).prop_map(Act::Take),
        1 => Just(Act::Renew),
        2 => (0..60_i64).prop_map(Act::Settle),
    ];
    // An owner that does nothing more has died.
    proptest::collection::vec((0..15 * S, 0..20_u8, act), 1..120)
}

proptest! {
    /// Overspend 0: the count is what is held and what was used, and no take passes the limit. Stranded 0:
    /// when all owners have settled or died, the count is what was used in the window.
    #[test]
    fn no_unit_is_spent_twice_and_none_is_lost(acts in acts(), period in prop::option::of(20..200_i64)) {
        let limit = period.map_or_else(
            || Limit::total(100, None, Unit::Seconds),
            |period| Limit::new(100, period, Unit::Seconds),
        ).unwrap();
        let (mut server, mut now) = (Server::default(), at(0));
        // What was used by settlements, in the window that ends then.
        let mut used_in: BTreeMap<Instant, i64> = BTreeMap::new();
        for (time, owner, act) in acts {
            now = now.checked_add(span(time)).unwrap();
            server.carry_out(now);
            let before = server.parts.get(&owner).copied();
            match act {
                Act::Take(quantity) => {
                    let decision = limit.take(server.state, now, quantity).unwrap();
                    if !decision.answer.limited() {
                        let Change::Store(counter) = decision.change else { panic!("{decision:?}") };
                        prop_assert!(counter.count <= 100);
                        let end = counter.end;
                        let origin = if limit.is_total() { TOTAL } else { Origin::Window { end } };
                        let part = Part::taken(before, quantity, origin, now, span(10 * S)).unwrap().unwrap();
                        server.parts.insert(owner, part);
                        server.apply(decision.change);
                    }
                }
                Act::Renew => {
                    if let Some(part) = Part::taken(before, 0, TOTAL, now, span(10 * S)).unwrap() {
                        server.parts.insert(owner, part);
                    }
                }
                Act::Settle(used) => {
                    // The ledger knows no differences: it notes what the present window bears.
                    let elsewhere = before.map_or(0, |part| {
                        let here = server.state.is_some_and(|counter| part.comes_back(&counter) > 0);
                        if here { part.earlier } else { part.held() }
                    });
                    let difference = settles_window(before.as_ref(), server.state.as_ref(), used);
                    let decision = limit.settle(server.state, now, difference, None).unwrap();
                    server.apply(decision.change);
                    server.parts.remove(&owner);
                    if let Some(counter) = server.state {
                        *used_in.entry(counter.end).or_default() += (used - elsewhere).max(0);
                    }
                }
            }
            let held: i64 = server.state.map_or(0, |counter| {
                server.parts.values().map(|part| part.comes_back(&counter)).sum()
            });
            let used = server.state.map_or(0, |counter| used_in.get(&counter.end).copied().unwrap_or(0));
            prop_assert_eq!(server.state.map_or(0, |counter| counter.count), held + used);
        }
        // All owners die. Their parts run out, unless the window ends before.
        let end = now.checked_add(span(10 * S)).unwrap();
        server.carry_out(end);
        prop_assert!(server.parts.is_empty());
        let used = server.state.map_or(0, |counter| used_in.get(&counter.end).copied().unwrap_or(0));
        prop_assert_eq!(server.state.map_or(0, |counter| counter.count), used);
    }

    #[test]
    fn members_are_read_as_they_were_written(
        (key, id) in (any::<Vec<u8>>(), any::<Vec<u8>>()),
        (earlier, last, kind) in (0..=i64::MAX, 0..=i64::MAX, 0..4),
        (end, period, at) in (0..=i64::MAX, 0..=i64::MAX, 0..=i64::MAX),
    ) {
        let instant = |nanos: i64| Instant::from_nanos(nanos.unsigned_abs()).unwrap();
        let origin = match kind {
            0 => TOTAL,
            3 => Origin::Total { idles: true },
            1 => Origin::Window { end: instant(at) },
            _ => Origin::Rate { at: instant(at), reset_after: span(period) },
        };
        let part = Part { earlier, last, origin, end: instant(end), period: span(period) };
        let [by_id, by_key] = member::of_part(&key, &id, &part);
        let class = part.origin.class();
        prop_assert_eq!(member::read(&by_key, class, &key), Some((&id[..], part)));
        for other in [Class::Idle, Class::Part, Class::Total].into_iter().filter(|other| *other != class) {
            prop_assert_eq!(member::read(&by_key, other, &key), None);
        }
        prop_assert!(by_id.starts_with(&member::of_id_and_key(&id, &key)));
        let (prefix, same_class, same) = member::by_key_of(&by_id, &member::of_id(&id), &id).unwrap();
        prop_assert_eq!(member::key_of(&by_id, &member::of_id(&id)), Some(&key[..]));
        prop_assert!(by_key.starts_with(&prefix));
        prop_assert_eq!((same_class, same), (class, &key[..]));
        let (first, behind) = (member::of_key(class, &key), member::behind(&member::of_key(class, &key)));
        prop_assert!(first <= by_key && by_key < behind);
        prop_assert!(by_key < member::of_key_after(class, &key, instant(end)) || end == i64::MAX);
        prop_assert!(end == 0 || by_key >= member::of_key_after(class, &key, instant(end - 1)));
        prop_assert!(member::is_first(&by_id) && member::is_last(&by_key));
    }

    #[test]
    fn no_bytes_are_read_as_anything_else(bytes in any::<Vec<u8>>(), cut in 0..80_usize, change in any::<(u8, u8)>()) {
        let _ = member::read(&bytes, Class::Total, b"k");
        let _ = member::by_key_of(&bytes, &member::of_id(b"i"), b"i");
        let _ = member::read_until(&bytes);
        let origin = Origin::Rate { at: at(0), reset_after: span(S) };
        let [_, mut by_key] = member::of_part(b"k", b"i", &taken(None, 5, origin, 0));
        let place = usize::from(change.0) % by_key.len();
        by_key[place] = change.1;
        by_key.truncate(cut.max(1));
        if let Some((_, part)) = member::read(&by_key, Class::Part, b"k") {
            prop_assert!(part.earlier >= 0 && part.last >= 0);
        }
    }
}

#[test]
fn names_that_contain_other_names_are_kept_apart() {
    let part = taken(None, 1, TOTAL, 0);
    let names: [&[u8]; 8] = [b"", b" ", b"a", b"a b", b"1 a", b"a 1 b", b"\0", b"id 1 a "];
    let mut all = Vec::new();
    for key in names {
        for id in names {
            all.extend(member::of_part(key, id, &part));
            let prefix = member::of_id_and_key(id, key);
            let found =
                names.iter().flat_map(|key| names.iter().map(move |id| member::of_part(key, id, &part)));
            assert_eq!(found.filter(|[by_id, _]| by_id.starts_with(&prefix)).count(), 1);
        }
    }
    all.sort();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count);
}
