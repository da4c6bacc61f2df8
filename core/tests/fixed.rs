//! The fixed window, with an end and without, compared with models that count all calls again each time.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{DAY, MS, NOW, S, US, at, in_nanos, instant, offset, span};
use proptest::prelude::*;
use redis_cell_core::Change::{Delete, Keep, Store};
use redis_cell_core::Unit::{Microseconds, Milliseconds, Seconds};
use redis_cell_core::calendar::{Calendar, Cycle};
use redis_cell_core::fixed::{Counter, LEAST_TAT, Limit, Window, arguments, saturate, settle, take};
use redis_cell_core::{Error, Instant, Stretch, Verdict};

/// Begun and over at a whole millisecond: `NOW` is 456789 ns past one.
const END: i64 = 60 * S - 456_789;
/// The last instant, at which the count of a key without expiry ends.
const EVER: i64 = i64::MAX - NOW;

fn counter(count: i64, end: i64) -> Counter {
    Counter { count, end: at(end) }
}

/// A limit in each minute.
fn minute(most: i64) -> Limit {
    Limit::new(most, 60, Seconds).unwrap()
}

/// A limit in no window.
fn total(most: i64) -> Limit {
    Limit::total(most, None, Seconds).unwrap()
}

/// The same until the key is not used for a minute.
fn idle(most: i64) -> Limit {
    Limit::total(most, Some(60), Seconds).unwrap()
}

#[test]
#[rustfmt::skip] // A table is read in columns.
fn row_by_row() {
    let some = |count, end| Some(counter(count, end));
    let store = |count, end| Store(counter(count, end));
    common::takes(&[
        ("opened by the first",           None,             minute(5), 0,        2, [0, 5, 3, -1, 60_000], store(2, END)),
        ("above the limit",               None,             minute(5), 0,        6, [1, 5, 5, -1, 0], Keep),
        ("a look opens nothing",          None,             minute(5), 0,        0, [0, 5, 5, -1, 0], Keep),
        ("the end stays",                 some(2, END),     minute(5), 30 * S,   3, [0, 5, 0, -1, 30_000], store(5, END)),
        ("a nanosecond early",            some(5, END),     minute(5), END - 1,  1, [1, 5, 0, 1, 1], Keep),
        ("over",                          some(5, END),     minute(5), END,      1, [0, 5, 4, -1, 60_000], store(1, END + 60 * S)),
        ("limit lowered",                 some(5, END),     minute(3), 0,        1, [1, 3, 0, 60_000, 60_000], Keep),
        ("longer period before",          some(5, 9 * END), minute(5), 0,        1, [1, 5, 0, 539_996, 539_996], Keep),
        ("nothing counted",               some(0, S),       minute(5), 0,        1, [0, 5, 4, -1, 60_000], store(1, END)),
        ("a total, the first",            None,             total(5),  0,        2, [0, 5, 3, -1, -1], store(2, EVER)),
        ("refused forever",               some(5, EVER),    total(5),  0,        1, [1, 5, 0, -1, -1], Keep),
        ("a total, above the limit",      None,             total(5),  0,        6, [1, 5, 5, -1, 0], Keep),
        ("a look at a lower limit",       some(6, EVER),    total(5),  0,        0, [1, 5, 0, -1, -1], Keep),
        ("the expiry stays",              some(2, S),       total(5),  0,        3, [0, 5, 0, -1, 1_000], store(5, S)),
        ("refused until it expires",      some(5, S),       total(5),  0,        1, [1, 5, 0, 1_000, 1_000], Keep),
        ("a count of 0 that expires",     some(0, S),       total(5),  0,        0, [0, 5, 5, -1, 0], Keep),
        ("expired",                       some(5, 0),       total(5),  0,        1, [0, 5, 4, -1, -1], store(1, EVER)),
        ("idle, renewed",                 some(2, S),       idle(5),   0,        1, [0, 5, 2, -1, 60_000], store(3, END)),
        ("expires later",                 some(2, 99 * S),  idle(5),   0,        1, [0, 5, 2, -1, 99_000], store(3, 99 * S)),
        ("idle, without expiry",          some(2, EVER),    idle(5),   0,        1, [0, 5, 2, -1, 60_000], store(3, END)),
        ("idle, refused forever",         some(5, EVER),    idle(5),   0,        1, [1, 5, 0, -1, -1], Keep),
        ("a count of 0 keeps its expiry", some(0, S),       total(5),  0,        1, [0, 5, 4, -1, 1_000], store(1, S)),
        ("idle, a look",                  some(2, S),       idle(5),   0,        0, [0, 5, 3, -1, 1_000], Keep),
        ("idle, expired",                 some(5, 0),       idle(5),   0,        1, [0, 5, 4, -1, 60_000], store(1, END)),
    ]);
}

#[test]
#[rustfmt::skip]
fn settles_row_by_row() {
    let some = |count, end| Some(counter(count, end));
    let store = |count, end| Store(counter(count, end));
    common::settles(&[
        ("nothing",                    some(3, END),  minute(5), 0,  0, [0, 5, 2, -1, 60_000], Keep),
        ("taken",                      some(3, END),  minute(5), 0,  2, [0, 5, 0, -1, 60_000], store(5, END)),
        ("taken regardless",           some(3, END),  minute(5), 0,  3, [1, 5, 0, 60_000, 60_000], store(6, END)),
        ("taken, which opens one",     None,          minute(5), 0,  7, [1, 5, 0, 60_000, 60_000], store(7, END)),
        ("still beyond the limit",     some(9, END),  minute(5), 0, -3, [1, 5, 0, 60_000, 60_000], store(6, END)),
        ("more than was taken",        some(3, END),  minute(5), 0, -i64::MAX, [0, 5, 5, -1, 0], Delete),
        ("to a window that has ended", some(3, S),    minute(5), S, -1, [0, 5, 5, -1, 0], Keep),
        ("a total, into debt",         some(3, EVER), total(5),  0,  3, [1, 5, 0, -1, -1], store(6, EVER)),
        ("until the key expires",      some(3, S),    total(5),  0,  3, [1, 5, 0, 1_000, 1_000], store(6, S)),
        ("given back",                 some(3, EVER), total(5),  0, -2, [0, 5, 4, -1, -1], store(1, EVER)),
        ("more than a total has",      some(3, EVER), total(5),  0, -i64::MAX, [0, 5, 5, -1, 0], Delete),
        ("to a count of 0",            some(0, S),    total(5),  0, -1, [0, 5, 5, -1, 0], Keep),
        ("idle, charged",              some(3, S),    idle(5),   0,  1, [0, 5, 1, -1, 60_000], store(4, END)),
        ("idle, given back",           some(3, S),    idle(5),   0, -1, [0, 5, 3, -1, 1_000], store(2, S)),
    ]);
    // It does not matter when the units of a total were taken.
    let old = settle(some(3, EVER), &total(5), at(0), -2, Some(&common::ago(3_600 * S))).unwrap();
    assert_eq!(old.change, store(1, EVER));
    let error = settle(some(3, END), &minute(5), at(0), i64::MAX, None).unwrap_err().to_string();
    assert_eq!(error, "ERR quantity must be an integer from -9223372036854775807 to 9223372036854775804");
    for limit in [minute(5), total(5)] {
        assert!(settle(None, &limit, at(0), i64::MIN, None).is_err());
    }
}

#[test]
fn a_count_says_when_it_ends() {
    assert!(total(5).never_expires() && !idle(5).never_expires());
    assert_eq!(idle(5).lasts(counter(1, S), at(2 * S)), counter(1, 2 * S));
    assert_eq!([2, 1].map(|units| counter(2, EVER).without(units)), [None, Some(counter(1, EVER))]);
    let end = Instant::from_nanos(9_223_372_036_854_000_000).unwrap();
    assert!(!Counter { count: 1, end }.outlasts_time(), "the last millisecond");
    assert!(counter(1, EVER).outlasts_time() && !counter(1, S).outlasts_time());
}

#[test]
fn is_read_strictly() {
    let foreign = Err(Error::Foreign { expected: Counter::EXPECTED });
    let soon = Some(at(END));
    assert_eq!(Counter::decode(b"7", soon), Ok(counter(7, END)));
    assert_eq!(Counter::decode(b"0", soon), Ok(counter(0, END)));
    assert_eq!(Counter::decode(b"9223372036854775807", soon), Ok(counter(i64::MAX, END)));
    assert_eq!(Counter::decode(b"7", None), foreign, "no end");
    for bad in ["", "-1", "+1", "1.5", "01", " 1", "x", "9223372036854775808", "\0", "7\n"] {
        assert_eq!(Counter::decode(bad.as_bytes(), soon), foreign, "{bad:?}");
    }
    // The state of GCRA, whose key expires when the TAT has passed: to the millisecond, or nearly.
    for ahead in [0, 60 * S, DAY, 9 * DAY] {
        for stray in [0, 999_999, -S, 60 * S, -60 * S] {
            let tat = (NOW + ahead).to_string();
            let expiry = Some(at(ahead + stray));
            assert_eq!(Counter::decode(tat.as_bytes(), expiry), foreign, "{tat} {stray}");
        }
        let count = NOW + ahead;
        for stray in [60 * S + 1, -60 * S - 1] {
            let counter = Counter { count, end: at(ahead + stray) };
            assert_eq!(Counter::decode(count.to_string().as_bytes(), Some(counter.end)), Ok(counter));
        }
    }
}

#[test]
fn what_it_writes_it_reads() {
    let any = Limit::new(i64::MAX, 3_600, Seconds).unwrap();
    // A count like a TAT of now, whose window ends in an hour; once it was an error until then.
    let Store(counter) = take(None, &any, at(0), NOW).unwrap().change else { panic!("nothing taken") };
    assert_eq!(counter.count, NOW);
    assert_eq!(Counter::decode(NOW.to_string().as_bytes(), Some(counter.end)), Ok(counter));
    // A count like the TAT of a key that expires with the window could not be read again.
    let ambiguous = "ERR quantity is out of range: the count would be the end of its window in nanoseconds, \
                     a state of CL.THROTTLE";
    let end = NOW + 3_600 * S;
    for count in [end, end - 59 * S, end + 59 * S] {
        assert_eq!(take(None, &any, at(0), count).unwrap_err().to_string(), ambiguous);
        assert_eq!(saturate(None, &any, at(0), count).unwrap_err().to_string(), ambiguous);
        assert_eq!(settle(None, &any, at(0), count, None).unwrap_err().to_string(), ambiguous);
        assert_eq!(take(Some(counter), &any, at(0), count - NOW).unwrap_err().to_string(), ambiguous);
    }
}

/// The arguments of a limit and the words after them, as several limiters have them.
fn words(text: &str) -> Vec<&[u8]> {
    text.split(' ').map(str::as_bytes).collect()
}

#[test]
fn windows_are_spelled_in_many_ways() {
    let month = |utc, from| Limit::by_calendar(5, Calendar::new(Cycle::Month, utc, from).unwrap()).unwrap();
    for (text, limit) in [
        ("5 60 1", Limit::new(5, 60, Seconds).unwrap()),
        ("5 MONTH 1", month(0, None)),
        ("5 month utc 60 1", month(60, None)),
        ("5 Month From 31 1", month(0, Some(31))),
        ("5 MONTH UTC -840 FROM 1 1", month(-840, Some(1))),
        ("5 MONTH FROM 15 UTC 840 1", month(840, Some(15))),
        ("5 WEEK FROM 7 1", Limit::by_calendar(5, Calendar::new(Cycle::Week, 0, Some(7)).unwrap()).unwrap()),
        ("5 hour UTC 1 1", Limit::by_calendar(5, Calendar::new(Cycle::Hour, 1, None).unwrap()).unwrap()),
        ("5 DAY 1", Limit::by_calendar(5, Calendar::new(Cycle::Day, 0, None).unwrap()).unwrap()),
        ("5 year 1", Limit::by_calendar(5, Calendar::new(Cycle::Year, 0, None).unwrap()).unwrap()),
        ("5 UNTIL 1700000000 1", Limit::until(5, 1_700_000_000, Seconds).unwrap()),
        ("5 until 0 1", Limit::until(5, 0, Seconds).unwrap()),
        ("5 TOTAL 1", Limit::total(5, None, Seconds).unwrap()),
        ("5 total idle 60 1", Limit::total(5, Some(60), Seconds).unwrap()),
    ] {
        let words = words(text);
        let mut rest = words.iter().copied();
        assert_eq!(Limit::parse_words(&mut rest, Seconds), Ok(limit), "{text}");
        assert_eq!(rest.collect::<Vec<_>>(), [b"1"], "{text}: the quantity is left");
        assert_eq!(arguments(&mut words.iter().copied()), Some(words.len()), "{text}");
        for missing in 1..words.len() {
            assert_ne!(arguments(&mut words[..missing].iter().copied()), Some(words.len()), "{text}");
        }
        let more = format!("{text} more FIXED 5");
        assert_eq!(arguments(&mut self::words(&more).into_iter()), Some(words.len()), "{text}");
    }
    assert_eq!(arguments(&mut words("5 10 word and more").into_iter()), Some(3), "no option");
    let syntax = "ERR syntax error";
    let windows =
        "ERR period must be an integer from 1 to 9223372036, or HOUR, DAY, WEEK, MONTH, YEAR, UNTIL or TOTAL";
    for (text, error) in [
        ("5", syntax),
        ("5 UNTIL", syntax),
        ("5 TOTAL IDLE", syntax),
        ("5 DAY UTC 1 FROM x 1", syntax),
        ("5 MONTH UTC", syntax),
        ("5 x 1", windows),
        ("5 MONHT 1", windows),
        ("5 MONTH UTC 841 1", "ERR UTC must be an integer from -840 to 840"),
        ("5 MONTH UTC x 1", "ERR UTC must be an integer from -840 to 840"),
        ("5 MONTH FROM 32 1", "ERR FROM must be an integer from 1 to 31"),
        ("5 WEEK FROM 8 1", "ERR FROM must be an integer from 1 to 7"),
        ("5 WEEK FROM x 1", "ERR FROM must be an integer from 1 to 7"),
        ("5 TOTAL IDLE 0 1", "ERR IDLE must be an integer from 1 to 9223372036"),
        ("5 TOTAL IDLE x 1", "ERR IDLE must be an integer from 1 to 9223372036"),
        ("5 UNTIL x 1", "ERR UNTIL must be an integer from 0 to 9223372036"),
        ("5 UNTIL -1 1", "ERR UNTIL must be an integer from 0 to 9223372036"),
        ("5 UNTIL 9223372037 1", "ERR UNTIL must be an integer from 0 to 9223372036"),
    ] {
        let error_seen = Limit::parse_words(&mut words(text).into_iter(), Seconds).unwrap_err();
        assert_eq!(error_seen.to_string(), error, "{text}");
    }
    // Options that a window does not have, and options that it has had already.
    for (window, options) in [
        ("60", &["UTC 0", "FROM 1", "IDLE 5"][..]),
        ("UNTIL 5", &["UTC 0", "FROM 1", "IDLE 5"]),
        ("TOTAL", &["UTC 0", "FROM 1", "IDLE 5 UTC 0", "IDLE 5 IDLE 5"]),
        ("MONTH", &["IDLE 5", "UTC 1 UTC 1", "FROM 1 FROM 1"]),
        ("HOUR", &["FROM 1"]),
        ("YEAR", &["FROM 1"]),
    ] {
        for option in options {
            let text = format!("5 {window} {option} 1");
            assert_eq!(
                Limit::parse_words(&mut words(&text).into_iter(), Seconds),
                Err(Error::Syntax),
                "{text}"
            );
        }
    }
    assert!(Limit::until(5, 9_223_372_036_854_000, Microseconds).is_ok());
    let error = Limit::until(5, 9_223_372_036_854_001, Microseconds).unwrap_err();
    assert_eq!(error.to_string(), "ERR UNTIL must be an integer from 0 to 9223372036854000");
}

#[test]
fn the_calendar_is_read_when_a_window_opens() {
    let month = |utc| Limit::by_calendar(5, Calendar::new(Cycle::Month, utc, None).unwrap()).unwrap();
    // 2023-12-01, 00:00 UTC; an hour earlier at +01:00.
    let december = instant((1_701_388_800 * S).into());
    let opened = take(None, &month(0), at(0), 2).unwrap();
    assert_eq!(opened.change, Store(Counter { count: 2, end: december }));
    let state = Some(Counter { count: 2, end: december });
    for limit in [month(60), Limit::new(5, 1, Seconds).unwrap(), Limit::until(5, 1, Seconds).unwrap()] {
        let decision = take(state, &limit, at(0), 3).unwrap();
        assert_eq!(decision.change, Store(Counter { count: 5, end: december }), "{limit:?}");
        let refused = take(state, &limit, at(0), 4).unwrap();
        assert_eq!(refused.answer.verdict, Verdict::Later(december.since(at(0))), "{limit:?}");
    }
    // The boundary itself belongs to the new window.
    let last = take(state, &month(0), december.saturating_sub(span(1)), 3).unwrap();
    assert_eq!(last.answer.reset_after, span(1));
    let first = take(state, &month(0), december, 3).unwrap();
    let january = instant((1_704_067_200 * S).into());
    assert_eq!(first.change, Store(Counter { count: 3, end: january }));
    assert_eq!(first.answer.reply(Seconds).five, [0, 5, 2, -1, 31 * 86_400]);
}

#[test]
fn until_an_instant() {
    let now = 1_700_000_000; // and some milliseconds
    let error = |limit: &Limit, quantity| take(None, limit, at(0), quantity).unwrap_err().to_string();
    for (instant, unit, least) in [
        (now, Seconds, 1_700_000_001_i64),
        (0, Seconds, 1_700_000_001),
        (now * 1_000 + 123, Milliseconds, 1_700_000_000_124),
        (now * 1_000_000 + 123_456, Microseconds, 1_700_000_000_123_457),
    ] {
        let limit = Limit::until(5, instant, unit).unwrap();
        let passed = error(&limit, 1);
        assert!(passed.starts_with(&format!("ERR UNTIL must be an integer from {least} to ")), "{passed}");
        let opened = take(None, &Limit::until(5, least, unit).unwrap(), at(0), 1).unwrap();
        let Store(Counter { count: 1, end }) = opened.change else { panic!("{opened:?}") };
        assert!(end > at(0) && end.as_nanos() % MS.unsigned_abs() == 0, "{end:?}");
        // Nothing opens a window here, so nothing has passed.
        for quantity in [0, 6] {
            assert!(take(None, &limit, at(0), quantity).unwrap().change == Keep, "{quantity}");
        }
        assert!(settle(None, &limit, at(0), -3, None).unwrap().change == Keep);
        assert!(saturate(None, &limit, at(0), 9).is_err());
        // Nothing is charged to a window that has ended.
        let charged = settle(None, &limit, at(0), 3, None).unwrap();
        assert_eq!((charged.change, in_nanos(&charged.answer)), (Keep, [0, 5, 5, -1, 0]));
        let open = settle(Some(counter(3, S)), &limit, at(0), 3, None).unwrap();
        assert_eq!(open.change, Store(counter(6, S)), "to the window that is open");
    }
    // At that very instant it has passed; a nanosecond earlier it has not.
    let limit = Limit::until(5, now, Seconds).unwrap();
    let instant = instant((now * S).into());
    assert!(take(None, &limit, instant, 1).unwrap_err().to_string().starts_with("ERR UNTIL must be"));
    let before = instant.saturating_sub(span(1));
    assert_eq!(take(None, &limit, before, 1).unwrap().answer.reset_after, span(1));
}

#[test]
fn nothing_goes_back_to_a_window_that_has_begun_since() {
    let given = |limit: &Limit, end: i64, age: i64| {
        let state = Some(Counter { count: 5, end: at(end) });
        let decision = settle(state, limit, at(0), -2, Some(&common::ago(age))).unwrap();
        match decision.change {
            Keep => false,
            change => {
                assert_eq!(change, Store(Counter { count: 3, end: at(end) }));
                true
            }
        }
    };
    // Opened 10 s ago, in the millisecond of that instant.
    let opened = -10 * S - 456_789;
    let period = Limit::new(9, 60, Seconds).unwrap();
    // The age of the call that opened the window is rounded up by a microsecond at most.
    let oldest = US - opened;
    for (age, gives) in [(0, true), (9 * S, true), (oldest, true), (oldest + 1, false), (DAY, false)] {
        assert_eq!(given(&period, opened + 60 * S, age), gives, "a period, {age}");
    }
    // A period of one and a half milliseconds is one of two.
    let short = Limit::new(9, 1_500, Microseconds).unwrap();
    for (age, gives) in [(457_789 + MS, true), (457_790 + MS, false)] {
        assert_eq!(given(&short, -456_789 + MS, age), gives, "a short period, {age}");
    }
    // The time since November began: 2023-11-01, 00:00.
    let begun = NOW - 1_698_796_800 * S;
    let month = Limit::by_calendar(9, Calendar::new(Cycle::Month, 0, None).unwrap()).unwrap();
    for (age, gives) in [(0, true), (begun, true), (begun + 1, false)] {
        assert_eq!(given(&month, 1_701_388_800 * S - NOW, age), gives, "a month, {age}");
    }
    // An end alone does not tell the beginning: units go back to the window that the call names, and to no
    // other.
    let until = |seconds| Limit::until(9, seconds, Seconds).unwrap();
    for age in [0, S, DAY] {
        assert!(given(&until(1_701_388_800), 1_701_388_800 * S - NOW, age));
        assert!(!given(&until(1_698_796_800), 1_701_388_800 * S - NOW, age));
    }
    // A key that was moved to another server expires up to a second before or after the end of its window.
    for (moved, is_near) in [(S, true), (MS, true), (-S, true), (S + MS, false), (-S - MS, false)] {
        let end = 1_701_388_800 * S - NOW + moved;
        assert_eq!(given(&until(1_701_388_800), end, 0), is_near, "an instant, {moved}");
        assert_eq!(given(&month, end, begun), is_near || moved < 0, "a month, {moved}");
        assert!(!given(&month, end, begun + 1), "a month, {moved}");
    }
    // This instant was 123 milliseconds ago, so its window has ended.
    assert!(!given(&until(1_700_000_000), 1_700_000_001 * S - NOW, 0));
    // Taking ignores the age, and an age beyond the range of time gives nothing back.
    let state = Some(Counter { count: 5, end: at(END) });
    let taken = settle(state, &period, at(0), 2, Some(&common::ago(i64::MAX))).unwrap();
    assert_eq!(taken.change, Store(Counter { count: 7, end: at(END) }));
    let back = settle(state, &period, at(0), -2, Some(&common::ago(i64::MAX))).unwrap();
    assert_eq!(back.change, Keep);
}

proptest! {
    #[test]
    fn decides_as_a_list_of_calls_does(
        limit in 1..6_i64,
        period in prop_oneof![(1..40_i64).prop_map(|period| period * MS), (1..40_000_i64).prop_map(|period| period * US)],
        calls in prop::collection::vec((0..20_000_000_i64, 0..7_i64), 1..60),
    ) {
        let limits = Limit::new(limit, period / US, Microseconds).unwrap();
        let (mut state, mut now) = (None, 0);
        // The units admitted in the open window, and the instant at which it ends.
        let mut open: Option<(Vec<i64>, i64)> = None;
        for (wait, quantity) in calls {
            now += wait;
            open = open.filter(|(_, end)| now < *end);
            let used: i64 = open.iter().flat_map(|(list, _)| list).sum();
            let admitted = quantity <= limit - used;
            if admitted && quantity > 0 {
                let millisecond = (NOW + now) / MS;
                let ends = |end: &i64| end * MS >= millisecond * MS + period;
                let end = (millisecond..millisecond + 99).find(ends).unwrap() * MS - NOW;
                open.get_or_insert_with(|| (Vec::new(), end)).0.push(quantity);
            }
            let used: i64 = open.iter().flat_map(|(list, _)| list).sum();
            let left = open.as_ref().map_or(0, |(_, end)| end - now);
            let retry = if admitted || quantity > limit { -1 } else { left };
            let decision = take(state, &limits, at(now), quantity).unwrap();
            prop_assert_eq!(
                in_nanos(&decision.answer),
                [i64::from(!admitted), limit, limit - used, retry, left],
                "at {} from {:?}", now, state
            );
            match decision.change {
                Keep => prop_assert!(!admitted || quantity == 0),
                Store(window) => {
                    prop_assert!(admitted && quantity > 0);
                    prop_assert_eq!((NOW + offset(window.end)) % MS, 0, "what a key can expire at");
                    state = Some(window);
                }
                Delete => prop_assert!(false),
            }
        }
    }
}

/// A window that ends at an instant is not a calendar window: it has neither `UTC` nor `FROM`.
#[test]
fn an_instant_goes_without_the_options_of_the_calendar() {
    let until = Window::Until(b"1700000001");
    assert!(Limit::parse(b"1", until, [None, None], Seconds).is_ok());
    for options in [[Some(60), None], [None, Some(2)], [Some(60), Some(2)]] {
        assert_eq!(Limit::parse(b"1", until, options, Seconds), Err(Error::Syntax), "{options:?}");
    }
}

/// A stretch between two steps of the clock, in nanoseconds from now, and the length of the step behind it.
fn stretch(from: i64, until: i64, step: i64) -> Stretch {
    Stretch { from: at(from), until: at(until), step: span(step) }
}

#[test]
fn a_window_goes_by_the_clock_that_it_was_opened_by() {
    // Ten seconds ago by the clock as it is now, that was set back by 10 s. Before, it was set back by 5 s.
    let past =
        [stretch(-10 * S, 0, 0), stretch(-100 * S, -10 * S, 10 * S), stretch(-900 * S, -100 * S, 15 * S)];
    let limit = Limit::new(5, 60, Seconds).unwrap();
    let count = |end| Counter { count: 3, end: instant(i128::from(in_millis(NOW) + end)) };
    // The case; the end by the clock that opened it; the instant of the check; the instant on that clock.
    let rows = [
        ("opened since", 55 * S, 0, Some(0)),
        ("opened since, and ended", 55 * S, 55 * S, None),
        ("opened before the step", 45 * S, 0, Some(10 * S)),
        ("its last nanosecond", 45 * S, 35 * S - 1 - 456_789, Some(45 * S - 1 - 456_789)),
        ("and its end", 45 * S, 35 * S - 456_789, None),
        ("opened before both", -31 * S, -60 * S, Some(-45 * S)),
        // Its window begins at the start of the millisecond, before the step.
        ("opened within the millisecond of a step", -30 * S, -50 * S, Some(-40 * S)),
        ("opened by no clock", 500 * S, 0, Some(0)),
    ];
    for (shows, end, now, then) in rows {
        let (kept, clock) = count(end).after_steps(&limit, at(now), past.into_iter());
        assert_eq!(kept, then.map(|_| count(end)), "{shows}");
        assert_eq!(offset(clock), then.unwrap_or(now), "{shows}");
    }
}

#[test]
fn a_window_of_the_calendar_goes_by_the_clock_as_it_is() {
    let date = |day: i64| instant(i128::from((19_782 + day) * DAY)); // from 2024-02-29 on
    let month = Limit::by_calendar(5, Calendar::new(Cycle::Month, 0, None).unwrap()).unwrap();
    // The case; the end; now; by how many days the clock was set back; the end then.
    let rows = [
        ("as long as it can be", 32, 2, 0, 32),
        ("not by a boundary of this month", 20, 2, 0, 20),
        ("too long by ten days", 32, -4, 10, 32),
        ("too long by a month, which is over", 32, -4, 31, 1),
        ("too long by more than any month", 62, -4, 40, 1),
        ("by no clock that is known", 900, -4, 10, 1),
    ];
    for (shows, end, now, back, then) in rows {
        let past = [stretch(-DAY, 0, 0), stretch(-99 * DAY, -DAY, back * DAY)];
        let counter = Counter { count: 3, end: date(end) };
        let (kept, clock) = counter.after_steps(&month, date(now), past.into_iter());
        assert_eq!(kept, Some(Counter { count: 3, end: date(then) }), "{shows}");
        assert_eq!(clock, date(now), "{shows}");
    }
    // An instant that a caller has named stays.
    let until = Limit::until(5, 1_700_000_060, Seconds).unwrap();
    let counter = Counter { count: 3, end: at(60 * S) };
    let past = [stretch(-S, 0, 0), stretch(-99 * S, -S, 10 * S)];
    assert_eq!(counter.after_steps(&until, at(0), past.into_iter()), (Some(counter), at(0)));
}

/// The last whole millisecond before.
fn in_millis(nanos: i64) -> i64 {
    nanos - nanos % MS
}

#[test]
fn no_window_of_the_calendar_is_longer_than_the_longest() {
    let lengths = [
        (Cycle::Hour, 3_600 * S),
        (Cycle::Day, DAY),
        (Cycle::Week, 7 * DAY),
        (Cycle::Month, 31 * DAY),
        (Cycle::Year, 366 * DAY),
    ];
    for (cycle, longest) in lengths {
        let calendar = Calendar::new(cycle, 0, None).unwrap();
        let limit = Limit::by_calendar(5, calendar).unwrap();
        let past = [stretch(-S, 0, 0), stretch(-99 * S, -S, 400 * DAY)];
        // As long as a window can be, it stays; a nanosecond more is the work of a clock that was off.
        for (end, then) in
            [(at(longest), at(longest)), (at(longest + 1), calendar.window_of(at(0)).unwrap().1)]
        {
            let (kept, _) = Counter { count: 3, end }.after_steps(&limit, at(0), past.into_iter());
            assert_eq!(kept, Some(Counter { count: 3, end: then }), "{cycle:?}");
        }
    }
}

#[test]
fn a_string_without_expiry_is_a_count() {
    let foreign = Err(Error::Foreign { expected: Counter::EXPECTED_OF_TOTAL });
    for count in [0, 7, LEAST_TAT - 1] {
        let read = Counter::decode_total(count.to_string().as_bytes(), None);
        assert_eq!(read, Ok(counter(count, EVER)));
        assert!(Counter::decode(count.to_string().as_bytes(), None).is_err(), "another window");
        assert_eq!(Counter::decode_total(count.to_string().as_bytes(), Some(at(S))), Ok(counter(count, S)));
    }
    for bad in ["", "-1", "+1", "1.5", "01", "x", "9223372036854775808", "1000000000000000000"] {
        assert_eq!(Counter::decode_total(bad.as_bytes(), None), foreign, "{bad:?}");
    }
    assert_eq!(Counter::decode_total(NOW.to_string().as_bytes(), Some(at(0))), foreign, "a TAT");
    // An expiry after the last instant is not none.
    let late = Counter::decode_total(b"7", Some(Instant::MAX)).unwrap();
    assert!(late.outlasts_time() && late.end < Instant::MAX);
    let Store(stored) = take(Some(late), &idle(9), at(0), 1).unwrap().change else { panic!("refused") };
    assert_eq!(stored, Counter { count: 8, end: late.end });
}

#[test]
fn no_count_is_written_that_it_could_not_read() {
    let total = total(i64::MAX);
    let before = Some(counter(5, EVER));
    let error = |quantity| take(before, &total, at(0), quantity).unwrap_err().to_string();
    assert_eq!(error(LEAST_TAT - 5), "ERR quantity must be an integer from 0 to 999999999999999994");
    assert_eq!(error(NOW), "ERR quantity must be an integer from 0 to 999999999999999994");
    assert!(take(before, &total, at(0), LEAST_TAT - 6).is_ok());
    let error = settle(before, &total, at(0), i64::MAX - 5, None).unwrap_err().to_string();
    assert_eq!(error, "ERR quantity must be an integer from -9223372036854775807 to 999999999999999994");
    // With an expiry it can be told from the state of GCRA.
    assert!(take(Some(counter(5, S)), &total, at(0), NOW / 2).is_ok());
}

proptest! {
    /// Each operation: the time since the one before, and its quantity; below 0 it gives back.
    #[test]
    fn agrees_with_the_sum_of_all_takes(
        most in 1_i64..40,
        idle in proptest::option::of(1_i64..50),
        operations in prop::collection::vec((0_i64..30 * MS, -5_i64..20, any::<bool>()), 1..60),
    ) {
        let limit = Limit::total(most, idle, Milliseconds).unwrap();
        let (mut state, mut taken, mut expires, mut now) = (None::<Counter>, 0_i64, None::<i64>, 0_i64);
        for (pause, quantity, charges) in operations {
            now += pause;
            if expires.is_some_and(|at| at <= now) {
                (taken, expires) = (0, None);
            }
            let fits = quantity >= 0 && taken + quantity <= most;
            let decision = if quantity < 0 || charges {
                settle(state, &limit, at(now), quantity, None).unwrap()
            } else {
                take(state, &limit, at(now), quantity).unwrap()
            };
            if quantity < 0 || charges || fits {
                taken = (taken + quantity).max(0);
                if let Some(idle) = idle.filter(|_| quantity > 0) {
                    // It begins at the start of the millisecond.
                    expires = expires.max(Some((NOW + now) / MS * MS + idle * MS - NOW));
                }
                if taken == 0 {
                    expires = None; // the key is gone
                }
            }
            state = common::after(&decision, state);
            prop_assert_eq!(decision.answer.remaining, (most - taken).max(0));
            prop_assert_eq!(state.filter(|state| state.end > at(now)).map_or(0, |state| state.count), taken);
            let seen = state.filter(|state| state.end < Instant::MAX && taken > 0).map(|state| offset(state.end));
            prop_assert_eq!(seen, expires.filter(|_| taken > 0));
        }
    }
}
