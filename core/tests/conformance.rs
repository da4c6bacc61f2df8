//! The commands on GCRA's string, row by row: the state before a call, its answer, the state after it.
//!
//! A row reads from left to right: the case; the TAT before the call in nanoseconds from now, or `None` for a
//! key that does not exist; the limit; the unit of the call; the quantity; the integers answered (limited,
//! limit, remaining, `retry_after`, `reset_after`, and the quantity taken for SATURATE); the change of the
//! state, TATs again in nanoseconds from now.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{DAY, MS, NOW, S, US, at, instant, offset, span};
use redis_cell_core::Change::{self, Delete, Keep, Store};
use redis_cell_core::Unit::{Microseconds, Milliseconds, Seconds};
use redis_cell_core::gcra::{Booking, Limit, Tat, charge, decode, peek, refund, reserve, saturate, throttle};
use redis_cell_core::{Decision, Error, Instant, Span, Unit};

/// The case, TAT before, limit, unit, quantity, answer, change.
type Row<const N: usize> = (&'static str, Option<i64>, [i64; 3], Unit, i64, [i64; N], Change<i64>);

/// One every 2 s, 16 at once: the limit of redis-cell's own example.
const L: [i64; 3] = [15, 30, 60];
/// A billion a second, a second's worth at once: one per nanosecond.
const FASTEST: [i64; 3] = [999_999_999, 1_000_000_000, 1];
/// 600 MB a second, in bursts of 20 MB.
const BYTES: [i64; 3] = [MB20 - 1, 600_000_000, 1];
const MB20: i64 = 20_000_000;
/// A hundred years in seconds.
const CENTURY: i64 = 3_153_600_000;
const BILLION: i64 = 1_000_000_000;
const MOST: [i64; 3] = [i64::MAX - 1, BILLION, 1];

fn check<const N: usize>(
    decide: impl Fn(Option<Tat>, &Limit, Instant, i64) -> Result<Decision<Tat>, Error>,
    rows: &[Row<N>],
) {
    for &(shows, before, limit, unit, quantity, expected, change) in rows {
        let [max_burst, count, period] = limit;
        let limit = Limit::new(max_burst, count, period, unit).unwrap_or_else(|e| panic!("{shows}: {e}"));
        let decision =
            decide(before.map(at), &limit, at(0), quantity).unwrap_or_else(|e| panic!("{shows}: {e}"));
        let reply = decision.answer.reply(unit);
        let answer: Vec<i64> = reply.five.into_iter().chain(reply.taken).collect();
        assert_eq!(answer, expected, "{shows}: the answer");
        let left = match decision.change {
            Keep => Keep,
            Store(tat) => Store(offset(tat)),
            Delete => Delete,
        };
        assert_eq!(left, change, "{shows}: the state left behind");
    }
}

#[test]
#[rustfmt::skip]
fn throttle_takes_all_or_nothing() {
    check(throttle, &[
        ("a fresh limiter admits",              None,           L, Seconds,  1, [0, 16, 15, -1,  2], Store(2 * S)),
        ("a whole burst at once",               None,           L, Seconds, 16, [0, 16,  0, -1, 32], Store(32 * S)),
        ("part of a unit is no unit",           Some(9 * S),    L, Seconds,  1, [0, 16, 10, -1, 11], Store(11 * S)),
        ("the last unit that fits",             Some(30 * S),   L, Seconds,  1, [0, 16,  0, -1, 32], Store(32 * S)),
        ("a nanosecond too soon",               Some(30*S + 1), L, Seconds,  1, [1, 16,  0,  1, 31], Keep),
        ("full",                                Some(32 * S),   L, Seconds,  1, [1, 16,  0,  2, 32], Keep),
        ("full, and asked for the whole limit", Some(32 * S),   L, Seconds, 16, [1, 16,  0, 32, 32], Keep),
        ("room, but not for that many",         Some(10 * S),   L, Seconds, 12, [1, 16, 11,  2, 10], Keep),
        ("a debt is served first",              Some(40 * S),   L, Seconds,  1, [1, 16,  0, 10, 40], Keep),
        ("idle time is not saved up",           Some(-DAY),     L, Seconds, 16, [0, 16,  0, -1, 32], Store(32 * S)),
        ("more than the limit, ever",           Some(10 * S),   L, Seconds, 17, [1, 16, 11, -1, 10], Keep),
        ("the most of all",                     None, L, Seconds, 4_611_686_018, [1, 16, 16, -1, 0], Keep),
        ("a look",                              Some(10 * S),   L, Seconds,  0, [0, 16, 11, -1, 10], Keep),
        ("a look at a full one",                Some(32 * S),   L, Seconds,  0, [0, 16,  0, -1, 32], Keep),
        ("a look at one in debt by 1 ns",       Some(32*S + 1), L, Seconds,  0, [1, 16,  0,  1, 33], Keep),
    ]);
}

#[test]
#[rustfmt::skip]
fn throttle_follows_a_limit_that_changes_between_calls() {
    check(throttle, &[
        ("burst lowered: what was admitted is served first",
            Some(20 * S), [3, 30, 60],  Seconds, 1, [1, 4, 0, 14, 20],   Keep),
        ("burst lowered below the quantity",
            Some(20 * S), [3, 30, 60],  Seconds, 5, [1, 4, 0, -1, 20],   Keep),
        ("burst raised: room at once",
            Some(32 * S), [31, 30, 60], Seconds, 1, [0, 32, 15, -1, 34], Store(34 * S)),
        ("rate halved: the time owed stays, new units cost double",
            Some(32 * S), [15, 15, 60], Seconds, 1, [0, 16, 7, -1, 36],  Store(36 * S)),
        ("rate doubled: the time owed stays, new units cost half",
            Some(10 * S), [15, 60, 60], Seconds, 1, [0, 16, 5, -1, 11],  Store(11 * S)),
    ]);
}

#[test]
#[rustfmt::skip]
fn waits_round_up_and_a_cost_rounds_down_once_per_call() {
    check(throttle, &[
        ("a second",                  Some(S),      [0, 1, 1],    Seconds,      1, [1, 1, 0, 1, 1], Keep),
        ("a second and 1 ns",         Some(S + 1),  [0, 1, 1],    Seconds,      1, [1, 1, 0, 2, 2], Keep),
        ("a millisecond and 1 ns",    Some(MS + 1), [0, 1, 1000], Milliseconds, 1, [1, 1, 0, 2, 2], Keep),
        ("a microsecond and 1 ns",    Some(US + 1), [0, 1, 1],    Microseconds, 1, [1, 1, 0, 2, 2], Keep),
        ("two thirds of a second",    None, [2, 3, 1],  Seconds,       2, [0,  3, 1, -1, 1], Store(666_666_666)),
        ("three thirds are a second", None, [2, 3, 1],  Seconds,       3, [0,  3, 0, -1, 1], Store(S)),
        ("142 6/7 ns count as 142",   None, [9, 7, 1],  Microseconds,  1, [0, 10, 9, -1, 1], Store(142)),
        ("ten of them, as 1,428",     None, [9, 7, 1],  Microseconds, 10, [0, 10, 0, -1, 2], Store(1_428)),
        ("room for one, of 142 ns",   Some(1_428 - 142), [9, 7, 1], Microseconds, 0, [0, 10, 1, -1, 2], Keep),
        ("and for none in 141 ns",    Some(1_428 - 141), [9, 7, 1], Microseconds, 1, [1, 10, 0,  1, 2], Keep),
        ("three bytes of 600 MB/s",   None, BYTES, Seconds,         3, [0, MB20, MB20 - 3, -1, 1], Store(5)),
        ("a billion at once",         None, FASTEST, Seconds, BILLION, [0, BILLION, 0, -1, 1], Store(S)),
        ("full for one nanosecond",   Some(S), FASTEST, Seconds,   1, [1, BILLION, 0, 1, 1],  Keep),
        ("the largest burst there is", None, MOST, Seconds, 1, [0, i64::MAX, i64::MAX - 1, -1, 1], Store(1)),
        ("a wait of a hundred years", Some(CENTURY * S), [0, 1, CENTURY], Seconds, 1, [1, 1, 0, CENTURY, CENTURY], Keep),
    ]);
}

#[test]
#[rustfmt::skip]
fn saturate_takes_what_fits() {
    check(saturate, &[
        ("all of it fits",                 None,           L, Seconds,        4, [0, 16, 12, -1,  8,  4], Store(8 * S)),
        ("however large",                  None,           L, Seconds, i64::MAX, [0, 16,  0, -1, 32, 16], Store(32 * S)),
        ("a part of it fits",              Some(10 * S),   L, Seconds,       17, [0, 16,  0, -1, 32, 11], Store(32 * S)),
        ("nothing fits, but for 1 ns",     Some(30*S + 1), L, Seconds,        5, [1, 16,  0,  1, 31,  0], Keep),
        ("full: the wait is one unit's",   Some(32 * S),   L, Seconds,       16, [1, 16,  0,  2, 32,  0], Keep),
        ("in debt",                        Some(40 * S),   L, Seconds,        5, [1, 16,  0, 10, 40,  0], Keep),
        ("0 of a full one is admitted",    Some(32 * S),   L, Seconds,        0, [0, 16,  0, -1, 32,  0], Keep),
        ("0 of one in debt is admitted",   Some(40 * S),   L, Seconds,        0, [0, 16,  0, -1, 40,  0], Keep),
    ]);
}

#[test]
#[rustfmt::skip]
fn peek_says_what_throttle_would_and_describes_the_state_as_it_is() {
    let peek = |tat, limit: &Limit, now, quantity| peek(tat, limit, now, quantity).map(Decision::keep);
    check(peek, &[
        ("fresh, the whole limit",           None,           L, Seconds, 16, [0, 16, 16, -1,  0], Keep),
        ("fresh, above the limit",           None,           L, Seconds, 17, [1, 16, 16, -1,  0], Keep),
        ("partly used, the whole limit",     Some(2 * S),    L, Seconds, 16, [1, 16, 15,  2,  2], Keep),
        ("the last unit, but for 1 ns",      Some(30*S + 1), L, Seconds,  1, [1, 16,  0,  1, 31], Keep),
        ("full, quantity 0",                 Some(32 * S),   L, Seconds,  0, [0, 16,  0, -1, 32], Keep),
        ("in debt, quantity 0",              Some(40 * S),   L, Seconds,  0, [1, 16,  0,  8, 40], Keep),
        ("drained long ago",                 Some(-DAY),     L, Seconds,  1, [0, 16, 16, -1,  0], Keep),
    ]);
}

#[test]
#[rustfmt::skip]
fn refund_gives_back_up_to_full() {
    check(refund, &[
        ("no key: nothing is created",           None,           L, Seconds,   1, [0, 16, 16, -1,  0], Keep),
        ("one of several",                       Some(10 * S),   L, Seconds,   1, [0, 16, 12, -1,  8], Store(8 * S)),
        ("all of it: full, the key goes",        Some(2 * S),    L, Seconds,   1, [0, 16, 16, -1,  0], Delete),
        ("all but 1 ns",                         Some(2*S + 1),  L, Seconds,   1, [0, 16, 15, -1,  1], Store(1)),
        ("drained just now",                     Some(0),        L, Seconds,   1, [0, 16, 16, -1,  0], Delete),
        ("out of debt, to full use",             Some(40 * S),   L, Seconds,   4, [0, 16,  0, -1, 32], Store(32 * S)),
        ("still in debt by 1 ns",                Some(34*S + 1), L, Seconds,   1, [1, 16,  0,  3, 33], Store(32*S + 1)),
        ("in debt, quantity 0",                  Some(40 * S),   L, Seconds,   0, [1, 16,  0, 10, 40], Keep),
    ]);
}

#[test]
#[rustfmt::skip]
fn charge_takes_regardless() {
    check(charge, &[
        ("the whole limit is no debt",           None,           L, Seconds, 16, [0, 16,  0, -1,  32], Store(32 * S)),
        ("above the limit: into debt",           None,           L, Seconds, 17, [1, 16,  0,  4,  34], Store(34 * S)),
        ("the last unit",                        Some(30 * S),   L, Seconds,  1, [0, 16,  0, -1,  32], Store(32 * S)),
        ("full",                                 Some(32 * S),   L, Seconds,  1, [1, 16,  0,  4,  34], Store(34 * S)),
        ("full, quantity 0",                     Some(32 * S),   L, Seconds,  0, [0, 16,  0, -1,  32], Keep),
        ("in debt, quantity 0",                  Some(40 * S),   L, Seconds,  0, [1, 16,  0, 10,  40], Keep),
    ]);
}

#[test]
#[rustfmt::skip]
fn reserve_books_a_slot_and_tells_the_wait() {
    let book = |tat, limit: &Limit, now, quantity| reserve(tat, limit, now, quantity, Booking::default());
    check(book, &[
        ("fresh: act now",               None,           L, Seconds,  1, [0, 16, 15,  0,  2], Store(2 * S)),
        ("above the limit: forever",    None,           L, Seconds, 17, [1, 16, 16, -1,  0], Keep),
        ("1 ns too soon: wait for it",   Some(30*S + 1), L, Seconds,  1, [0, 16,  0,  1, 33], Store(32*S + 1)),
        ("full: wait for one unit",      Some(32 * S),   L, Seconds,  1, [0, 16,  0,  2, 34], Store(34 * S)),
        ("several, behind others",       Some(34 * S),   L, Seconds,  5, [0, 16,  0, 12, 44], Store(44 * S)),
        ("a queue, quantity 0",          Some(40 * S),   L, Seconds,  0, [0, 16,  0,  8, 40], Keep),
    ]);
}

/// Reservations that accept a wait of at most `nanos`.
fn patient(
    nanos: i64,
    prepay: bool,
) -> impl Fn(Option<Tat>, &Limit, Instant, i64) -> Result<Decision<Tat>, Error> {
    move |tat, limit, now, quantity| {
        reserve(tat, limit, now, quantity, Booking { max_wait: Some(span(nanos)), prepay })
    }
}

#[test]
#[rustfmt::skip]
fn reserve_compares_maxwait_exactly() {
    check(patient(2 * S, false), &[
        ("exactly the longest wait",     Some(32 * S),   L, Seconds,  1, [0, 16,  0,  2, 34], Store(34 * S)),
        ("1 ns longer: nothing booked",  Some(32*S + 1), L, Seconds,  1, [1, 16,  0,  3, 33], Keep),
    ]);
    check(patient(2 * S - 1, false), &[
        ("1 ns too impatient",           Some(32 * S),   L, Seconds,  1, [1, 16,  0,  2, 32], Keep),
    ]);
    check(patient(0, false), &[
        ("now or not at all: now",       Some(30 * S),   L, Seconds,  1, [0, 16,  0,  0, 32], Store(32 * S)),
        ("now or not at all: not",       Some(30*S + 1), L, Seconds,  1, [1, 16,  0,  1, 31], Keep),
    ]);
}

#[test]
#[rustfmt::skip]
fn reserve_prepay_lets_the_next_caller_wait() {
    let prepay = |tat, limit: &Limit, now, quantity| {
        reserve(tat, limit, now, quantity, Booking { max_wait: None, prepay: true })
    };
    check(prepay, &[
        ("a single unit waits as ever",        Some(32 * S),   L, Seconds,   1, [0, 16,  0,   2,  34], Store(34 * S)),
        ("above the limit: act now",           None,           L, Seconds,  17, [0, 16,  0,   0,  34], Store(34 * S)),
        ("however many it takes",              Some(200 * S),  L, Seconds,  10, [0, 16,  0, 170, 220], Store(220 * S)),
        ("room for one is short by 1 ns",      Some(30*S + 1), L, Seconds,  16, [0, 16,  0,   1,  63], Store(62*S + 1)),
        ("quantity 0 waits for the debt only", Some(200 * S),  L, Seconds,   0, [0, 16,  0, 168, 200], Keep),
    ]);
    check(patient(170 * S, true), &[
        ("MAXWAIT limits that wait",           Some(200 * S),  L, Seconds,  10, [0, 16,  0, 170, 220], Store(220 * S)),
        ("MAXWAIT exceeded by 1 ns",           Some(200*S + 1), L, Seconds, 10, [1, 16,  0, 171, 201], Keep),
    ]);
}

#[test]
#[rustfmt::skip]
fn limits_that_cannot_be_are_refused_by_name_and_range() {
    const BURST: &str = "ERR max_burst must be an integer from 0 to 9223372036854775806";
    const COUNT: &str = "ERR count must be an integer from 1 to 9223372036854775807";
    const PERIOD: &str = "ERR period must be an integer from 1 to 9223372036";
    const FITS: &str = "no error";
    for (shows, limit, unit, text) in [
        ("max_burst negative",            ["-1", "30", "60"],                  Seconds, BURST),
        ("max_burst + 1 overflows",       ["9223372036854775807", "30", "60"], Seconds, BURST),
        ("count 0",                       ["15", "0", "60"],                   Seconds, COUNT),
        ("period 0",                      ["15", "30", "0"],                   Seconds, PERIOD),
        ("the first wrong one is named",  ["-1", "0", "0"],                    Seconds, BURST),
        ("the first wrong one is named",  ["0", "0", "0"],                     Seconds, COUNT),
        ("above one per nanosecond (s)",  ["0", "1000000001", "1"],            Seconds,
            "ERR count must be an integer from 1 to 1000000000"),
        ("above one per nanosecond (ms)", ["0", "3000001", "3"],               Milliseconds,
            "ERR count must be an integer from 1 to 3000000"),
        ("above one per nanosecond (us)", ["0", "1001", "1"],                  Microseconds,
            "ERR count must be an integer from 1 to 1000"),
        ("period above 292 years (s)",    ["0", "1", "9223372037"],            Seconds,
            "ERR period must be an integer from 1 to 9223372036"),
        ("period above 292 years (ms)",   ["0", "1", "9223372036855"],         Milliseconds,
            "ERR period must be an integer from 1 to 9223372036854"),
        ("period above 292 years (us)",   ["0", "1", "9223372036854776"],      Microseconds,
            "ERR period must be an integer from 1 to 9223372036854775"),
        ("a burst above 292 years",       ["4611686018", "30", "60"],          Seconds,
            "ERR max_burst must be an integer from 0 to 4611686017"),
        ("no burst beside such a period", ["1", "1", "9223372036"],            Seconds,
            "ERR max_burst must be an integer from 0 to 0"),
        ("one per nanosecond",               ["0", "1000000000", "1"],                      Seconds, FITS),
        ("the longest period in s",          ["0", "1", "9223372036"],                      Seconds, FITS),
        ("the longest period in ms",         ["0", "1", "9223372036854"],                   Milliseconds, FITS),
        ("the longest period in us",         ["0", "1", "9223372036854775"],                Microseconds, FITS),
        ("the largest burst at one per 2 s", ["4611686017", "30", "60"],                    Seconds, FITS),
        ("the largest burst of all",         ["9223372036854775806", "1000", "1"],          Microseconds, FITS),
        ("everything at its largest", ["9223372036854775806", "9223372036854775000", "9223372036854775"], Microseconds, FITS),
    ] {
        let error = Limit::parse(limit.map(str::as_bytes), unit).err();
        assert_eq!(error.map_or(FITS.to_owned(), |error| error.to_string()), text, "{shows}");
    }
}

#[test]
fn limits_built_from_integers_name_the_same_arguments() {
    let error = |limit: Result<Limit, Error>| limit.unwrap_err().to_string();
    assert_eq!(
        error(Limit::new(-1, 30, 60, Seconds)),
        "ERR max_burst must be an integer from 0 to 4611686017"
    );
    assert_eq!(error(Limit::new(0, 0, 60, Seconds)), "ERR count must be an integer from 1 to 60000000000");
    assert_eq!(error(Limit::new(0, 1, 0, Seconds)), "ERR period must be an integer from 1 to 9223372036");
    assert_eq!(error(Limit::new(i64::MAX, i64::MAX, i64::MAX, Seconds)), error(Limit::new(0, 1, 0, Seconds)));
    assert_eq!(error(Limit::new(i64::MIN, i64::MIN, i64::MIN, Seconds)), error(Limit::new(0, 1, 0, Seconds)));
}

/// Every decision with its name, for the properties of all decisions.
#[expect(clippy::type_complexity, reason = "it is their common shape")]
const DECISIONS: [(&str, fn(Option<Tat>, &Limit, Instant, i64) -> Result<Decision<Tat>, Error>); 7] = [
    ("throttle", throttle),
    ("saturate", saturate),
    ("peek", |tat, limit, now, quantity| peek(tat, limit, now, quantity).map(Decision::keep)),
    ("refund", refund),
    ("charge", charge),
    ("reserve", |tat, limit, now, quantity| reserve(tat, limit, now, quantity, Booking::default())),
    ("reserve prepay", |tat, limit, now, quantity| {
        reserve(tat, limit, now, quantity, Booking { max_wait: None, prepay: true })
    }),
];

#[test]
fn a_quantity_out_of_range_is_refused_by_name_and_range() {
    let limit = Limit::new(15, 30, 60, Seconds).unwrap();
    let text = "ERR quantity must be an integer from 0 to 4611686018";
    for (name, decide) in DECISIONS {
        for quantity in [-1, i64::MIN, 4_611_686_019, i64::MAX] {
            if name == "saturate" && quantity > 0 {
                continue; // It takes what fits, however large the quantity.
            }
            for state in [None, Some(at(10 * S)), Some(at(40 * S))] {
                let error = decide(state, &limit, at(0), quantity).unwrap_err();
                assert_eq!(error.to_string(), text, "{name} of {quantity}, {state:?}");
            }
        }
    }
}

#[test]
fn a_state_past_the_year_2262_is_an_error() {
    let limit = Limit::new(15, 30, 60, Seconds).unwrap();
    let end = i128::from(i64::MAX);
    let text = "ERR quantity is out of range: the state would reach past the year 2262, the end of 64-bit nanoseconds";
    for (name, decide) in DECISIONS {
        let two_seconds_left = instant(end - 2 * i128::from(S));
        let just_fits = decide(None, &limit, two_seconds_left, 1);
        assert!(just_fits.is_ok(), "{name}: {just_fits:?}");
        if name == "refund" {
            continue; // It never reaches further than the state it finds.
        }
        let one_nanosecond_less = instant(end - 2 * i128::from(S) + 1);
        let error = decide(None, &limit, one_nanosecond_less, 1).unwrap_err();
        assert_eq!((error, error.to_string().as_str()), (Error::BeyondTime, text), "{name}");
        let look = decide(None, &limit, instant(end), 0).unwrap();
        assert_eq!((look.answer.limited(), look.change), (false, Keep), "{name} of 0 at the last instant");
    }
    // The debt would exceed 63 bits. That is an error for calls that would owe it, not for calls that are
    // refused anyway.
    for (name, decide) in DECISIONS {
        let outcome = decide(Some(at(10 * S)), &limit, at(0), 4_611_686_018);
        match name {
            "saturate" => assert_eq!(outcome.unwrap().answer.taken, Some(11)),
            "refund" => assert_eq!(outcome.unwrap().change, Delete),
            "charge" | "reserve prepay" => assert_eq!(outcome.unwrap_err(), Error::BeyondTime, "{name}"),
            _ => {
                let refused = outcome.unwrap();
                assert_eq!(refused.answer.reply(Seconds).five, [1, 16, 11, -1, 10], "{name}");
                assert_eq!(refused.change, Keep, "{name}");
            }
        }
    }
}

#[test]
fn the_oldest_clock_and_the_last_state_are_honoured() {
    let limit = Limit::new(0, 1, 1, Seconds).unwrap();
    let last = instant(i128::from(i64::MAX));
    // At the epoch itself, this time would be that of a state without an end.
    let epoch = instant(1);
    let refused = throttle(Some(last), &limit, epoch, 0).unwrap();
    assert_eq!(refused.answer.reply(Seconds).five, [1, 1, 0, 9_223_372_036, 9_223_372_037]);
    let refused = throttle(Some(last), &limit, epoch, 1).unwrap();
    assert_eq!(refused.answer.reply(Seconds).five, [1, 1, 0, 9_223_372_037, 9_223_372_037]);
    assert_eq!(throttle(Some(epoch), &limit, last, 0).unwrap().answer.reply(Seconds).five, [0, 1, 1, -1, 0]);
}

/// A TAT as a key holds it, in nanoseconds from now.
fn stored(offset: i64) -> Vec<u8> {
    (NOW + offset).to_string().into_bytes()
}

#[test]
#[rustfmt::skip]
fn decode_reads_a_tat_and_tells_what_is_none() {
    const SMALL: i64 = 42 - NOW;
    const LAST: i64 = i64::MAX - NOW;
    const YEAR: i64 = 365 * DAY;
    // The case, the bytes, the key's expiry in nanoseconds from now, the TAT in nanoseconds from now.
    for (shows, bytes, expiry, expected) in [
        ("a TAT ahead",                          stored(10 * S),        None,              Some(10 * S)),
        ("a year ahead",                         stored(YEAR),          None,              Some(YEAR)),
        ("a year and 1 ns ahead, no expiry",     stored(YEAR + 1),      None,              None),
        ("a year and 1 ns ahead, expiry then",   stored(YEAR + 1),      Some(YEAR + MS),   Some(YEAR + 1)),
        ("expiry a day earlier",                 stored(2 * YEAR),      Some(2 * YEAR - DAY), Some(2 * YEAR)),
        ("expiry a day and 1 ns earlier",        stored(2 * YEAR),      Some(2 * YEAR - DAY - 1), None),
        ("expiry a day and 1 ns later",          stored(2 * YEAR),      Some(2 * YEAR + DAY + 1), None),
        ("a year behind",                        stored(-YEAR),         None,              Some(-YEAR)),
        ("a year and 1 ns behind",               stored(-YEAR - 1),     None,              None),
        ("a year and 1 ns behind, expiry then",  stored(-YEAR - 1),     Some(-YEAR),       Some(-YEAR - 1)),
        ("a counter that expires",               b"42".to_vec(),        Some(60 * S),      None),
        ("42, if the key expired in 1970",       b"42".to_vec(),        Some(SMALL),       Some(SMALL)),
        ("the last instant, no expiry",          stored(LAST),          None,              None),
        ("the last instant, expiry soon",        stored(LAST),          Some(60 * S),      None),
        ("the last instant, expiry then",        stored(LAST),          Some(LAST),        Some(LAST)),
        ("beyond the last instant",  b"9223372036854775808".to_vec(),   Some(LAST),        None),
        ("a word",                               b"foo".to_vec(),       Some(0),           None),
        ("a TAT, negated",                       [b"-", &stored(0)[..]].concat(), Some(0), None),
        ("James Bond",                           b"007".to_vec(),       Some(0),           None),
        ("a megabyte of digits",                 vec![b'1'; 1 << 20],   Some(0),           None),
    ] {
        let read = decode(&bytes, at(0), || expiry.map(at)).map(offset);
        assert_eq!(read.ok(), expected, "{shows}");
        if let Err(error) = read {
            let text = "ERR the key does not hold this limiter's state: expected a TAT in nanoseconds since the epoch";
            assert_eq!(error.to_string(), text, "{shows}");
        }
    }
}

#[test]
fn decode_asks_for_the_expiry_only_when_the_number_cannot_tell() {
    for tat in [-365 * DAY, 0, 365 * DAY] {
        assert!(decode(&stored(tat), at(0), || panic!("asked for the expiry")).is_ok());
    }
    assert!(decode(b"foo", at(0), || panic!("asked for the expiry")).is_err());
}

#[test]
fn a_key_lives_to_the_millisecond_after_its_tat() {
    for (nanos, millis) in [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)] {
        assert_eq!(instant(nanos).as_millis_ceil(), millis, "{nanos} ns");
    }
    assert_eq!(instant(i128::from(i64::MAX)).as_millis_ceil(), 9_223_372_036_855);
}

#[test]
fn times_end_where_the_state_does() {
    const END: u64 = i64::MAX.unsigned_abs();
    assert!(Instant::from_nanos(END).is_some() && Instant::from_nanos(END + 1).is_none());
    assert!(Span::from_nanos(END).is_some() && Span::from_nanos(END + 1).is_none());
    assert_eq!(Instant::saturating_from_nanos(u64::MAX), Instant::saturating_from_nanos(END));
    assert_eq!(Instant::saturating_from_nanos(END - 1).as_nanos(), END - 1);
    for unit in [Seconds, Milliseconds, Microseconds] {
        let most = u64::try_from(unit.max()).unwrap();
        assert_eq!(Span::from_units(most, unit).unwrap().ceil_to(unit), unit.max(), "{unit:?}");
        assert_eq!(Span::from_units(most + 1, unit), None, "{unit:?}");
        assert_eq!(Span::from_units(u64::MAX, unit), None, "{unit:?}");
        assert_eq!(Span::from_nanos(END).unwrap().ceil_to(unit), unit.max() + 1, "{unit:?}");
    }
}
