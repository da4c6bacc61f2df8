//! Holds: tables of a part's changes, random histories of owners against a ledger, and the members.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{S, after, at, span};
use proptest::prelude::*;
use redis_cell_core::fixed::{Counter, Limit};
use redis_cell_core::hold::member::{self, End};
use redis_cell_core::hold::{Origin, Part, settles_rate, settles_window};
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
        (8, -2, 0),
        (10, 0, 0),
        (11, 1, 1),
        (i64::MAX, i64::MAX - 10, i64::MAX - 10),
    ];
    for (used, same, later) in rows {
        assert_eq!(settles_window(Some(&part), Some(&counter(60 * S)), at(0), used), same, "{used}");
        assert_eq!(settles_window(Some(&part), Some(&counter(120 * S)), at(0), used), later, "{used}");
        assert_eq!(settles_window(Some(&part), None, at(0), used), later, "{used}");
        assert_eq!(settles_window(None, None, at(0), used), used);
    }
    assert_eq!(part.comes_back(&counter(60 * S), at(0)), 2);
    assert_eq!(part.comes_back(&counter(120 * S), at(0)), 0);
    // The key was moved to another server, which counts the time that is left from its own clock.
    for (end, now, back) in [(61, 59, 2), (59, 58, 2), (62, 59, 0), (58, 57, 0), (61, 60, 0)]
        .map(|(end, now, back)| (end * S, now * S, back))
    {
        assert_eq!(part.comes_back(&counter(end), at(now)), back, "{end} {now}");
        assert_eq!(settles_window(Some(&part), Some(&counter(end)), at(now), 8), -back, "{end} {now}");
        let more = taken(Some(part), 3, window(end), now);
        assert_eq!((more.earlier, more.last), if back > 0 { (8, 5) } else { (10, 3) }, "{end} {now}");
    }
    let total = taken(None, 7, TOTAL, 0);
    assert_eq!(total.comes_back(&Counter { count: 9, end: Instant::MAX }, at(0)), 7);
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
                *state = state.and_then(|counter| match part.comes_back(&counter, now) {
                    0 => Some(counter),
                    back => counter.without(back),
                });
            }
            !part.has_ended(now)
        });
    }
}

/// The action of an owner after some time.
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
                        server.state = after(&decision, server.state);
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
                        let here = server.state.is_some_and(|counter| part.comes_back(&counter, now) > 0);
                        if here { part.earlier } else { part.held() }
                    });
                    let difference = settles_window(before.as_ref(), server.state.as_ref(), now, used);
                    let decision = limit.settle(server.state, now, difference, None).unwrap();
                    server.state = after(&decision, server.state);
                    server.parts.remove(&owner);
                    if let Some(counter) = server.state {
                        *used_in.entry(counter.end).or_default() += (used - elsewhere).max(0);
                    }
                }
            }
            let held: i64 = server.state.map_or(0, |counter| {
                server.parts.values().map(|part| part.comes_back(&counter, now)).sum()
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
        id in any::<Vec<u8>>(),
        parts in proptest::collection::vec((any::<Vec<u8>>(), any_part()), 1..5),
    ) {
        let record = member::record(&id, parts.iter().map(|(key, part)| (key.as_slice(), *part)));
        let read = member::read_record(&record, &id).unwrap().unwrap();
        prop_assert_eq!(read.iter().map(|(key, part)| (key.to_vec(), *part)).collect::<Vec<_>>(), parts.clone());
        prop_assert_eq!(member::read_record(&record, &[id.as_slice(), b"x"].concat()), None);
        let (key, part) = &parts[0];
        let [(_, further), (owner, more), (place, end)] = member::further(&id, key, part);
        prop_assert_eq!(member::read_further(&further, &id, key), Some(*part));
        prop_assert_eq!(member::read_further(&further, &id, &[key.as_slice(), b"x"].concat()), None);
        prop_assert_eq!((owner, member::read_more(&more, &id)), (member::of_owner(&id), Some(key.as_slice())));
        prop_assert_eq!(member::read_more(&more, &[id.as_slice(), b"x"].concat()), None);
        prop_assert_eq!(place, member::of_key(key));
        let read = End { end: part.end, period: part.period, id: &id, key };
        prop_assert_eq!(member::read_end(&end), Some(read));
        // The ends of a key are in the order of time.
        let soon = Instant::from_nanos(1_000).unwrap();
        let (_, other) = member::end(b"", key, &Part { end: soon, ..*part });
        prop_assert!((part.end < soon) == (end < other) || part.end == soon);
    }

    #[test]
    fn no_bytes_are_read_as_anything_else(
        bytes in any::<Vec<u8>>(), cut in 0..80_usize, change in any::<(u8, u8)>(), part in any_part(),
    ) {
        let record = member::record(b"i", [(&b"k"[..], part)].into_iter());
        let others = member::further(b"i", b"k", &part).map(|(_, member)| member);
        for mut member in [record, bytes].into_iter().chain(others) {
            if !member.is_empty() {
                let place = usize::from(change.0) % member.len();
                member[place] = change.1;
                member.truncate(cut.max(1));
            }
            let _ = (member::read_end(&member), member::read_more(&member, b"i"));
            let read = member::read_further(&member, b"i", b"k").into_iter();
            let record = member::read_record(&member, b"i").and_then(Result::ok).into_iter().flatten();
            for part in read.chain(record.map(|(_, part)| part)) {
                prop_assert!(part.earlier >= 0 && part.last >= 0);
            }
        }
    }
}

/// Any part.
fn any_part() -> impl Strategy<Value = Part> {
    let numbers = || 0..=i64::MAX;
    ((numbers(), numbers(), 0..4), (prop_oneof![0..2_000_i64, numbers()], numbers(), numbers())).prop_map(
        |((earlier, last, kind), (end, period, time))| {
            let instant = |nanos: i64| Instant::from_nanos(nanos.unsigned_abs()).unwrap();
            let origin = match kind {
                0 => TOTAL,
                3 => Origin::Total { idles: true },
                1 => Origin::Window { end: instant(time) },
                _ => Origin::Rate { at: instant(time), reset_after: span(period) },
            };
            Part { earlier, last, origin, end: instant(end), period: span(period) }
        },
    )
}

#[test]
fn names_that_contain_other_names_are_kept_apart() {
    let part = taken(None, 1, TOTAL, 0);
    let names: [&[u8]; 8] = [b"", b" ", b"a", b"a b", b"1 a", b"a 1 b", b"\0", b"id 1 a "];
    let mut all = Vec::new();
    for key in names {
        for id in names {
            all.extend(member::further(id, key, &part));
            all.push((member::of_owner(id), member::record(id, [(key, part)].into_iter())));
        }
    }
    all.sort();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count);
}

/// The function library and every stored key have these scores.
#[test]
fn scores_are_always_the_same() {
    let region = 1 << 50;
    assert_eq!(member::of_owner(b"") / region, 1);
    assert_eq!(member::of_further(b"req-1", b"{a}:run") / region, 2);
    assert_eq!(member::of_key(b"{a}:run") / region, 3);
    assert_eq!(member::of_owner(b"req-1"), 1_685_913_334_159_505);
    assert_eq!(member::of_further(b"req-1", b"{a}:run"), 3_011_994_342_073_767);
    assert_eq!(member::of_key(b"{a}:run"), 3_420_076_770_738_384);
    // Names that differ little are spread.
    let scores: std::collections::BTreeSet<_> = (0..20_000)
        .map(|n| member::of_owner(format!("req-{n}").as_bytes()) % region / (region / 20_000))
        .collect();
    assert!((12_000..13_300).contains(&scores.len()), "{}", scores.len());
}
