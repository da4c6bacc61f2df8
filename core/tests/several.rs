//! Several limits at once: the combined row.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use core::ops::Range;

use common::{S, at, nanos, span};
use proptest::prelude::*;
use redis_cell_core::Verdict::{Admitted, Booked, Later, Never};
use redis_cell_core::several::{
    Arity, Columns, Grammar, Join, Keyword, Keyword::Ago, Once, Options, Part, Parts, Prefix, Role, Row,
    combine, combine_chain, combine_rows, parse_reset, read_reply,
};
use redis_cell_core::{Answer, Error, Instant, Unit, Verdict};

fn row(verdict: Verdict, limit: i64, remaining: i64, reset: i64) -> Answer {
    Answer { verdict, limit, remaining, reset_after: span(reset), taken: None }
}

fn later(wait: i64) -> Verdict {
    Later(span(wait))
}

fn booked(wait: i64) -> Verdict {
    Booked(span(wait))
}

fn rows() -> impl Strategy<Value = Vec<Answer>> {
    let verdict =
        prop_oneof![Just(Admitted), (1..9 * S).prop_map(later), (0..9 * S).prop_map(booked), Just(Never),];
    let row = (verdict, 1..50_i64, 0..5_i64, 0..9 * S)
        .prop_map(|(verdict, limit, remaining, reset)| row(verdict, limit, remaining, reset));
    prop::collection::vec(row, 1..6)
}

proptest! {
    #[test]
    fn each_column_for_itself(rows in rows()) {
        let all = combine(rows.iter().copied()).unwrap();
        prop_assert_eq!(all.limited(), rows.iter().any(Answer::limited));
        let least = rows.iter().map(|row| row.remaining).min().unwrap();
        let tightest = rows.iter().find(|row| row.remaining == least).unwrap();
        prop_assert_eq!((all.remaining, all.limit), (least, tightest.limit));
        let of = |kind: fn(&Verdict) -> bool| rows.iter().map(|row| row.verdict).filter(kind);
        let longest = |verdicts: &mut dyn Iterator<Item = Verdict>| verdicts.max_by_key(|one| one.wait());
        let verdict = longest(&mut of(|one| *one == Never))
            .or_else(|| longest(&mut of(|one| one.is_limited())))
            .or_else(|| longest(&mut of(|one| matches!(one, Booked(_)))));
        prop_assert_eq!(all.verdict, verdict.unwrap_or(Admitted));
        prop_assert_eq!(nanos(all.reset_after), rows.iter().map(|row| nanos(row.reset_after)).max().unwrap());
        prop_assert_eq!(all.taken, None);
    }
}

/// Kinds with two, and with one or two arguments.
const KINDS: [Grammar; 2] = [
    Grammar { word: b"PAIR", arguments: Arity::Always(2) },
    Grammar {
        word: b"ONE",
        arguments: Arity::Counted(|rest| Some(if rest.next()?.is_empty() { 2 } else { 1 })),
    },
];

/// The parts of a call, and where its options begin.
fn parts(words: &[&[u8]]) -> (Vec<Part>, usize) {
    let mut parts = Parts::of(words, &KINDS);
    let all = parts.by_ref().collect();
    (all, words.len() - parts.rest().count())
}

fn words(call: &str) -> Vec<&[u8]> {
    call.split(' ').map(str::as_bytes).collect()
}

fn part(key: usize, prefix: Prefix, kind: usize, arguments: Range<usize>) -> Part {
    Part { join: Join::None, key, prefix, kind, arguments }
}

#[test]
fn keys_are_found_whatever_they_are_called() {
    use Prefix::{None, Reset, Shadow};

    for (call, expected, options) in [
        ("k PAIR 1 2", vec![part(0, None, 0, 2..4)], 4),
        ("k pair 1 2 MS", vec![part(0, None, 0, 2..4)], 4),
        ("k ONE 1 AGO 5", vec![part(0, None, 1, 2..3)], 3),
        ("k PAIR 1 2 MS one 1", vec![part(0, None, 0, 2..4), part(4, None, 1, 6..7)], 7),
        ("PAIR PAIR PAIR PAIR PAIR ONE ONE", vec![part(0, None, 0, 2..4), part(4, None, 1, 6..7)], 7),
        (
            "k Shadow PAIR 1 2 SHADOW SHADOW ONE 1",
            vec![part(0, Shadow, 0, 3..5), part(5, Shadow, 1, 8..9)],
            9,
        ),
        ("k reset 9 ONE 1 AGO 5", vec![part(0, Reset(2), 1, 4..5)], 5),
        ("RESET RESET RESET ONE 1 RESET", vec![part(0, Reset(2), 1, 4..5)], 5),
        ("k ONE 1 AGO RESET 5 PAIR 1 2", vec![part(0, None, 1, 2..3), part(3, Reset(5), 0, 7..9)], 9),
        ("k ONE 1 RESET ONE 1", vec![part(0, None, 1, 2..3), part(3, None, 1, 5..6)], 6),
    ] {
        assert_eq!(parts(&words(call)), (expected, options), "{call}");
    }
}

#[test]
fn else_and_spill_join_limiters_unless_a_limiter_stands_behind_them() {
    let joined = |join, part| Part { join, ..part };
    let one = |key, arguments| part(key, Prefix::None, 1, arguments);
    for (call, expected, options) in [
        ("k ONE 1 ELSE l ONE 1", vec![one(0, 2..3), joined(Join::Else, one(4, 6..7))], 7),
        ("k ONE 1 spill l ONE 1 MS", vec![one(0, 2..3), joined(Join::Spill, one(4, 6..7))], 7),
        ("k ONE 1 ELSE ONE 1", vec![one(0, 2..3), one(3, 5..6)], 6),
        ("k ONE 1 SPILL SHADOW ONE 1", vec![one(0, 2..3), part(3, Prefix::Shadow, 1, 6..7)], 7),
        ("k ONE 1 SPILL RESET 5 ONE 1", vec![one(0, 2..3), part(3, Prefix::Reset(5), 1, 7..8)], 8),
        ("k ONE 1 ELSE SPILL ONE 1", vec![one(0, 2..3), joined(Join::Else, one(4, 6..7))], 7),
        ("ELSE ONE 1 ELSE ELSE ONE 1", vec![one(0, 2..3), joined(Join::Else, one(4, 6..7))], 7),
        // No limiter, or not a complete one.
        ("k ONE 1 ELSE", vec![one(0, 2..3)], 3),
        ("k ONE 1 ELSE l", vec![one(0, 2..3)], 3),
        ("k ONE 1 ELSE l ONE", vec![one(0, 2..3)], 3),
        ("k ONE 1 ELSE ELSE l ONE 1", vec![one(0, 2..3)], 3),
        ("ELSE k ONE 1", vec![], 0),
        // A pool that is called like a kind is misread.
        ("k ONE 1 ELSE ONE ONE 1", vec![one(0, 2..3), one(3, 5..6)], 6),
    ] {
        assert_eq!(parts(&words(call)), (expected, options), "{call}");
    }
}

#[test]
fn a_chain_gives_the_largest_of_its_pools_and_their_sum_along_spill() {
    use Join::{Else, None, Spill};

    let pool = |limit, remaining, reset| row(Admitted, limit, remaining, reset);
    let chain = |rows: &[(Join, Answer)]| combine_chain(later(7), rows.iter().copied());
    let [a, b, c] = [pool(10, 3, 7 * S), pool(5, 4, S), pool(12, 6, 2 * S)];
    assert_eq!(chain(&[(None, a), (Else, b)]), row(later(7), 10, 4, 7 * S));
    assert_eq!(chain(&[(None, a), (Spill, b)]), row(later(7), 15, 7, 7 * S));
    assert_eq!(chain(&[(None, a), (Spill, b), (Else, c)]), row(later(7), 15, 7, 7 * S));
    assert_eq!(chain(&[(None, a), (Else, b), (Spill, c)]), row(later(7), 17, 10, 7 * S));
    let large = pool(i64::MAX, i64::MAX, 0);
    assert_eq!(chain(&[(None, large), (Spill, large)]), row(later(7), i64::MAX, i64::MAX, 0));
    // The chain stands for its pools.
    let rows = [
        Row { answer: Answer { taken: Some(3), ..a }, role: Role::Pool },
        Row { answer: Answer { taken: Some(0), ..row(later(9), 5, 1, S) }, role: Role::Pool },
        Row { answer: Answer { taken: Some(2), ..c }, role: Role::Limiter },
        Row { answer: row(Admitted, 15, 7, 7 * S), role: Role::Chain { first: 0 } },
    ];
    let all = Answer { taken: Some(0), ..row(Admitted, 12, 6, 7 * S) };
    assert_eq!(combine_rows(&rows), Some(all));
    assert!(!rows.iter().any(Row::refuses));
    // It stands at the place of its first pool: of two that are as tight, the first one counts.
    let tight = row(Admitted, 3, 7, S);
    let rows = [rows[0], rows[1], Row { answer: tight, role: Role::Limiter }, rows[3]];
    assert_eq!(combine_rows(&rows).unwrap().limit, 15);
}

#[test]
fn an_incomplete_limiter_is_not_among_the_parts_nor_an_option() {
    for (call, complete) in [
        ("k", 0),
        ("k PAIR 1", 0),
        ("k NOTHING 1 2", 0),
        ("k SHADOW", 0),
        ("k SHADOW SHADOW PAIR 1 2", 0),
        ("k RESET PAIR 1 2", 0),
        ("k RESET 5 RESET 5 PAIR 1 2", 0),
        ("k SHADOW 1 2", 0),
        ("k RESET", 0),
        ("k RESET 5", 0),
        ("k RESET 5 SHADOW PAIR 1 2", 0),
        ("k SHADOW RESET 5 PAIR 1 2", 0),
        ("k PAIR 1 2 l ONE", 1),
        ("k PAIR 1 2 l SHADOW x 1", 1),
        ("k PAIR 1 2 l RESET 5 x 1", 1),
    ] {
        let call = words(call);
        let mut parts = Parts::of(&call[..], &KINDS);
        assert_eq!(parts.by_ref().count(), complete, "{call:?}");
        assert_eq!(parts.rest().count(), call.len() - 4 * complete, "{call:?}");
        assert_eq!(Options::parse(parts.rest(), &Keyword::ALL), Err(Error::Syntax), "{call:?}");
    }
    assert_eq!(parts(&[]), (vec![], 0));
    assert_eq!(parts(&[b"k", b"ONE", b""]), (vec![], 0), "the kind itself asks for more");
}

#[test]
fn the_unit_is_known_before_the_limiters() {
    for (call, unit) in [
        ("k PAIR 1 2", Unit::Seconds),
        ("k PAIR 1 MS", Unit::Seconds),
        ("k PAIR AGO MS", Unit::Seconds),
        ("k PAIR 1 2 ms", Unit::Milliseconds),
        ("k PAIR 1 2 AGO 5", Unit::Seconds),
        ("k PAIR 1 2 US ago 5", Unit::Microseconds),
        ("k PAIR 1 2 AGO 5 US", Unit::Microseconds),
        ("k PAIR 1 2 MS TIMEOUT 5", Unit::Milliseconds),
        ("k PAIR 1 2 MS US", Unit::Seconds),
        ("k PAIR 1 2 MS ONCE k 5", Unit::Milliseconds),
        ("k PAIR 1 2 ONCE k 5", Unit::Seconds),
        ("k PAIR 1 2 ONCE US 5", Unit::Seconds),
        ("k PAIR 1 2 once US 5 MS", Unit::Milliseconds),
        // Options before and after `ONCE key period`.
        ("k PAIR 1 2 MS FLOW ONCE AGO 5", Unit::Milliseconds),
        ("k PAIR 1 2 MS FLOW x ONCE WEIGHT 60", Unit::Milliseconds),
        ("k PAIR 1 2 MS AGO 5 ONCE k 60", Unit::Milliseconds),
        ("k PAIR 1 2 MS FLOW x WEIGHT 2 ONCE k 60", Unit::Milliseconds),
        ("k PAIR 1 2 MS FLOW US ONCE k 60", Unit::Milliseconds),
        ("k PAIR 1 2 FLOW US ONCE k 60", Unit::Seconds),
        ("k PAIR 1 US ONCE k 60", Unit::Seconds),
        ("k PAIR 1 ONCE FLOW MS AGO 5", Unit::Seconds),
        ("k NOTHING US", Unit::Seconds),
        ("US", Unit::Microseconds),
        // A key that is called as an option is.
        ("k ONE x ONCE ONCE 5 MS", Unit::Milliseconds),
        ("k ONE x MS MAXLEN 5", Unit::Milliseconds),
        ("k ONE x ONCE MS 5", Unit::Seconds),
        ("k ONE x MS ONCE ONCE 5", Unit::Milliseconds),
    ] {
        assert_eq!(Parts::of(&words(call)[..], &KINDS).unit(&Keyword::ALL), unit, "{call}");
    }
    assert_eq!(Parts::of(&[][..], &KINDS).unit(&Keyword::ALL), Unit::Seconds);
}

#[test]
fn rows_in_shadow_are_left_out_unless_there_are_no_others() {
    let (open, closed) = (row(Admitted, 9, 5, S), row(later(7), 2, 0, 2 * S));
    let combined = |rows: &[(Answer, bool)]| {
        combine_rows(&rows.iter().map(|&(answer, shadow)| Row::of(answer, shadow)).collect::<Vec<_>>())
    };
    assert_eq!(combined(&[(open, false), (closed, true)]), Some(open));
    assert_eq!(combined(&[(open, true), (closed, false)]), Some(closed));
    assert_eq!(combined(&[(open, true), (closed, true)]), Some(row(Admitted, 2, 0, 2 * S)));
    assert_eq!((combined(&[]), combine([])), (None, None));
}

#[test]
fn options_come_in_any_order_and_once() {
    fn parse<'w>(call: &'w str, known: &[Keyword]) -> Result<Options<'w>, Error> {
        Options::parse(call.split_whitespace().map(str::as_bytes), known)
    }
    for (call, unit, age) in [
        ("", Unit::Seconds, None),
        ("MS", Unit::Milliseconds, None),
        ("AGO 5", Unit::Seconds, Some(5 * S)),
        ("ago 5 us", Unit::Microseconds, Some(5_000)),
        ("MS AGO 5", Unit::Milliseconds, Some(5_000_000)),
        ("AGO 0", Unit::Seconds, Some(0)),
    ] {
        assert_eq!(
            parse(call, &[Ago]),
            Ok(Options { unit, age: age.map(span), ..Options::default() }),
            "{call}"
        );
        assert_eq!(parse(call, &[]).is_ok(), age.is_none(), "{call}");
    }
    for (call, unit, key, period) in [
        ("ONCE k 5", Unit::Seconds, 1, 5 * S),
        ("once MS 5 AGO 1", Unit::Seconds, 1, 5 * S),
        ("AGO 1 MS ONCE ONCE 5", Unit::Milliseconds, 4, 5_000_000),
        ("us ONCE AGO 5", Unit::Microseconds, 2, 5_000),
    ] {
        let options = parse(call, &Keyword::ALL).unwrap();
        assert_eq!((options.unit, options.once), (unit, Some(Once { key, period: span(period) })), "{call}");
        assert!(parse(call, &[Ago]).is_err(), "{call}");
    }
    for call in [
        "AGO",
        "AGO 5 AGO 5",
        "MS S",
        "MS MS",
        "SATURATE",
        "5",
        "AGO MS AGO 5",
        "ONCE",
        "ONCE k",
        "ONCE k 5 5",
        "ONCE k 5 ONCE l 5",
    ] {
        assert_eq!(parse(call, &Keyword::ALL).unwrap_err(), Error::Syntax, "{call}");
    }
    for call in ["AGO x", "AGO -1", "AGO 9223372037", "AGO 9223372036854775807 US"] {
        assert!(matches!(parse(call, &[Ago]), Err(Error::OutOfRange { name: "AGO", .. })), "{call}");
    }
    for call in ["ONCE k x", "ONCE k 0", "ONCE k MS", "ONCE k 9223372037"] {
        let seen = parse(call, &Keyword::ALL);
        assert!(matches!(seen, Err(Error::OutOfRange { name: "ONCE", min: 1, .. })), "{call}: {seen:?}");
    }
}

#[test]
fn the_time_behind_reset_is_in_the_unit_of_the_call() {
    assert_eq!(parse_reset(b"5", Unit::Milliseconds), Ok(span(5_000_000)));
    assert_eq!(parse_reset(b"0", Unit::Seconds), Ok(span(0)));
    for (time, unit) in
        [("x", Unit::Seconds), ("-1", Unit::Seconds), ("9223372036854775807", Unit::Microseconds)]
    {
        let error = parse_reset(time.as_bytes(), unit);
        assert!(matches!(error, Err(Error::OutOfRange { name: "RESET", .. })), "{time}");
    }
}

#[test]
fn the_key_of_once_is_found_without_reading_a_number() {
    for (call, key) in [
        ("k PAIR 1 2 ONCE o x", Some(5)),
        ("k PAIR 1 2 MS AGO AGO once ONCE x", Some(8)),
        ("k PAIR 1 2 ONCE MS 5 MS", Some(5)),
        ("k PAIR 1 2 AGO ONCE o 5", None),
        ("k PAIR 1 2 ONCE o", None),
        ("k PAIR 1 2 ONCE o 5 x", None),
        ("k PAIR 1 2 ONCE PAIR 5 6", None),
        ("k PAIR 1 2", None),
        ("ONCE o 5", Some(1)),
    ] {
        let words = words(call);
        let mut keys = Parts::of(&words[..], &KINDS).option_keys(&Keyword::ALL);
        assert_eq!((keys.next(), keys.next()), (key, None), "{call}");
    }
}

#[test]
fn a_stored_reply_is_as_many_rows_as_there_are_limiters_and_one() {
    use Columns::{Five, Six};
    let rows = vec![0, 2, 1, -1, 120, 1, 5, 0, 3, 7];
    assert_eq!(read_reply(b"0 2 1 -1 120 1 5 0 3 7", 1, Five), Ok(rows));
    let rows = vec![0, 2, 1, -1, -1, 0, 1, 5, 0, 3, 7, 4];
    assert_eq!(read_reply(b"6 0 2 1 -1 -1 0 1 5 0 3 7 4", 1, Six), Ok(rows));
    for stored in ["0 2 1 -1 120 1 5 0 3 7", "6 0 2 1 -1 120 0 1 5 0 3 7 -1", "6 0 2 1 -1 120 0", "6", "5"] {
        assert!(read_reply(stored.as_bytes(), 1, Six).is_err(), "{stored}");
    }
    assert!(read_reply(b"6 0 2 1 -1 -1 0 1 5 0 3 7 4", 1, Five).is_err());
    for (stored, limiters) in [
        ("0 2 1 -1 120 1 5 0 3 7", 0),
        ("0 2 1 -1 120 1 5 0 3 7", 2),
        ("0 2 1 -1 120 1 5 0 3 7 ", 1),
        (" 0 2 1 -1 120 1 5 0 3 7", 1),
        ("0 2 1 -1 120 1 5 0 3 x", 1),
        ("0 2 1 -1 120  1 5 0 3 7", 1),
        ("2 2 1 -1 120 1 5 0 3 7", 1),
        ("0 2 1 -2 120 1 5 0 3 7", 1),
        ("0 2 -1 -1 120 1 5 0 3 7", 1),
        ("0 0 1 -1 120 1 5 0 3 7", 1),
        ("0 2 1 -1 -2 1 5 0 3 7", 1),
        ("", 0),
        ("1763877600000000000", 0),
    ] {
        let seen = read_reply(stored.as_bytes(), limiters, Five);
        assert!(matches!(seen, Err(Error::Foreign { .. })), "{stored:?} for {limiters}: {seen:?}");
    }
}

#[test]
fn the_end_of_what_was_read_is_counted_in_arguments() {
    let call = words("a ONE x b ONE x US");
    let mut parts = Parts::of(&call[..], &KINDS);
    let ends: Vec<usize> = core::iter::from_fn(|| parts.next().map(|_| parts.end())).collect();
    assert_eq!(ends, [3, 6]);
    assert_eq!(parts.end(), 6);
}

#[test]
fn a_row_in_shadow_would_refuse_and_does_not() {
    for (verdict, limited) in [(Admitted, false), (later(7), true), (Never, true), (booked(7), false)] {
        for shadow in [false, true] {
            let row = Row::of(row(verdict, 2, 0, S), shadow);
            assert_eq!(row.refuses(), limited && !shadow, "{row:?}");
            assert_eq!(row.would_refuse(), limited && shadow, "{row:?}");
        }
    }
}

#[test]
fn a_reply_is_stored_for_its_period_from_now_on() {
    let once = |period: &'static str| {
        let call = [&b"ONCE"[..], b"key", period.as_bytes()];
        Options::parse(call, &[Keyword::Once]).unwrap().once.unwrap()
    };
    assert_eq!(once("5").until(at(0), Unit::Seconds), Ok(at(5 * S)));
    let late = Instant::MAX.saturating_sub(span(2 * S + S / 2));
    assert_eq!(once("2").until(late, Unit::Seconds), Ok(late.checked_add(span(2 * S)).unwrap()));
    let error = once("3").until(late, Unit::Seconds).unwrap_err();
    assert_eq!(error.to_string(), "ERR ONCE must be an integer from 1 to 2");
    // The longest period is named in the unit of the call.
    let error = once("3").until(late, Unit::Milliseconds).unwrap_err();
    assert_eq!(error.to_string(), "ERR ONCE must be an integer from 1 to 2500");
}
