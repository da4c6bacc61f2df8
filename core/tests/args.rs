//! From words to arguments: which calls are understood, and the errors of the others.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{S, US, nanos};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use redis_cell_core::TailOption::{MaxWait, Prepay, Saturate};
use redis_cell_core::Unit::{Microseconds, Milliseconds, Seconds};
use redis_cell_core::lease::{self, Lease};
use redis_cell_core::{Error, QUANTITY, Range, Tail, TailOption, Unit, parse_integer, parse_timeout};
use redis_cell_core::{bucket, fixed, log, window};

const THROTTLE: &[TailOption] = &[Saturate];
const RESERVE: &[TailOption] = &[MaxWait, Prepay];
const PLAIN: &[TailOption] = &[];
const ALL: &[TailOption] = &[Saturate, MaxWait, Prepay];

/// The content of a tail: quantity, unit, SATURATE, PREPAY, the longest wait in nanoseconds.
type Said = (i64, Unit, bool, bool, Option<i64>);

fn parse(words: &[&[u8]], known: &[TailOption]) -> Result<Said, Error> {
    let tail = Tail::parse(words.iter().copied(), known)?;
    Ok((tail.quantity, tail.unit, tail.saturate, tail.prepay, tail.max_wait()?.map(nanos)))
}

fn parse_text(text: &str, known: &[TailOption]) -> Result<Said, Error> {
    parse(&text.split_ascii_whitespace().map(str::as_bytes).collect::<Vec<_>>(), known)
}

/// Parses a limit of a kind, or a lease. GCRA has a table of its own, in `conformance.rs`.
fn parse_limit(kind: &str, text: &str, unit: Unit) -> Result<(), Error> {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    match (kind, &words[..]) {
        ("bucket", &[a, b, c]) => bucket::Limit::parse([a, b, c], unit).map(drop),
        ("fixed", _) => fixed::Limit::parse_words(&mut words.into_iter(), unit).map(drop),
        ("window", &[a, b]) => window::Limit::parse([a, b], unit).map(drop),
        ("log", &[a, b]) => log::Limit::parse([a, b], unit).map(drop),
        ("places", &[a]) => lease::Limit::parse(a).map(drop),
        ("lease", &[a]) => Lease::parse(a, unit).map(drop),
        _ => panic!("{kind}: {text}"),
    }
}

#[test]
fn limits_name_what_is_out_of_range() {
    const MOST: i64 = i64::MAX;
    const LONGEST: i64 = 9_223_372_036;
    // The kind; the words, `#` for the one that is out of range; its name and its largest value in seconds.
    for (kind, words, name, most) in [
        ("bucket", "# 1 1", "capacity", MOST),
        ("bucket", "1 # 1", "count", MOST),
        ("bucket", "1 1 #", "period", LONGEST),
        ("fixed", "# 1", "limit", MOST),
        ("fixed", "# MONTH", "limit", MOST),
        ("fixed", "1 #", "period", LONGEST),
        ("window", "# 1", "limit", MOST),
        ("window", "1 #", "period", LONGEST),
        ("log", "# 1", "limit", 1_000_000),
        ("log", "1 #", "period", LONGEST),
        ("places", "#", "limit", MOST),
        ("lease", "#", "lease", LONGEST),
    ] {
        let parse = |word: &str, unit| parse_limit(kind, &words.replace('#', word), unit);
        let above = (i128::from(most) + 1).to_string();
        for word in ["", "0", "-1", "1.5", &above, "x"] {
            // Words are kinds of windows there.
            if words != "1 #" || kind != "fixed" || !["", "x"].contains(&word) {
                let error = parse(word, Seconds).unwrap_err().to_string();
                assert_eq!(
                    error,
                    format!("ERR {name} must be an integer from 1 to {most}"),
                    "{kind} {words}"
                );
            }
        }
        let largest = if name == "count" { 1_000_000_000 } else { most };
        // As many units would not leak in 292 years.
        let largest = if name == "capacity" { LONGEST } else { largest };
        assert_eq!(parse(&largest.to_string(), Seconds), Ok(()), "{kind} {words}");
        let error = format!("ERR {name} must be an integer from 1 to 9223372036854775");
        if most == LONGEST {
            assert_eq!(parse("9223372036854776", Microseconds).unwrap_err().to_string(), error, "{kind}");
        }
    }
    for (words, unit, text) in [
        ("9223372037 1 1", Seconds, "ERR capacity must be an integer from 1 to 9223372036"),
        ("1 1001 1", Microseconds, "ERR count must be an integer from 1 to 1000"),
    ] {
        assert_eq!(parse_limit("bucket", words, unit).unwrap_err().to_string(), text);
    }
    let none = [
        bucket::Limit::new(0, 1, 1, Seconds).map(drop),
        fixed::Limit::new(0, 1, Seconds).map(drop),
        window::Limit::new(0, 1, Seconds).map(drop),
    ];
    assert!(none.iter().all(Result::is_err));
}

#[test]
#[rustfmt::skip] // A table is read in columns.
fn tails_that_are_understood() {
    for (known, words, expected) in [
        (PLAIN,     "",                          (1, Seconds, false, false, None)),
        (PLAIN,     "MS",                        (1, Milliseconds, false, false, None)),
        (THROTTLE,  "5 SATURATE MS",             (5, Milliseconds, true, false, None)),
        (RESERVE,   "5 prepay us maxwait 7",     (5, Microseconds, false, true, Some(7 * US))),
        (RESERVE,   "MAXWAIT 9223372036",        (1, Seconds, false, false, Some(9_223_372_036 * S))),
        (RESERVE,   "MAXWAIT 9223372036854775 US", (1, Microseconds, false, false, Some(9_223_372_036_854_775 * US))),
    ] {
        assert_eq!(parse_text(words, known), Ok(expected), "{words:?}");
    }
}

#[test]
#[rustfmt::skip]
fn tails_that_are_not() {
    const SYNTAX: &str = "ERR syntax error";
    const QUANTITY: &str = "ERR quantity must be an integer from 0 to 9223372036854775807";
    const WAIT: &str = "ERR MAXWAIT must be an integer from 0 to 9223372036854775807";
    for (shows, known, words, text) in [
        ("no quantity and no option",     PLAIN,     "x",                      QUANTITY),
        ("a negative quantity",           PLAIN,     "-1",                     QUANTITY),
        ("a quantity beyond 64 bits",     PLAIN,     "9223372036854775808",    QUANTITY),
        ("a fraction",                    PLAIN,     "1.5",                    QUANTITY),
        ("another command's option",      PLAIN,     "SATURATE",               QUANTITY),
        ("another command's option",      PLAIN,     "5 SATURATE",             SYNTAX),
        ("another command's option",      THROTTLE,  "5 MAXWAIT 7",            SYNTAX),
        ("another command's option",      RESERVE,   "5 SATURATE",             SYNTAX),
        ("another command's option",      THROTTLE,  "5 QUANTITY 7",           SYNTAX),
        ("two quantities",                PLAIN,     "5 6",                    SYNTAX),
        ("the quantity after an option",  PLAIN,     "MS 5",                   SYNTAX),
        ("the quantity after an option",  THROTTLE,  "SATURATE 5",             SYNTAX),
        ("the same unit twice",           PLAIN,     "S S",                    SYNTAX),
        ("no unit",                       PLAIN,     "5 NS",                   SYNTAX),
        ("the beginning of an option",    THROTTLE,  "5 SATURAT",              SYNTAX),
        ("more than an option",           THROTTLE,  "5 SATURATED",            SYNTAX),
        ("an option without its value",   RESERVE,   "MAXWAIT",                SYNTAX),
        ("an option without its value",   RESERVE,   "MAXWAIT MS",             WAIT),
        ("a negative wait",               RESERVE,   "MAXWAIT -1",             WAIT),
        ("a wait that is not a number",   RESERVE,   "MAXWAIT soon",           WAIT),
        ("a wait above 292 years",        RESERVE,   "MAXWAIT 9223372037",
            "ERR MAXWAIT must be an integer from 0 to 9223372036"),
        ("a wait above 292 years (ms)",   RESERVE,   "MAXWAIT 9223372036855 MS",
            "ERR MAXWAIT must be an integer from 0 to 9223372036854"),
        ("a wait above 292 years (us)",   RESERVE,   "US MAXWAIT 9223372036854776",
            "ERR MAXWAIT must be an integer from 0 to 9223372036854775"),
    ] {
        let error = parse_text(words, known).unwrap_err();
        assert_eq!(error.to_string(), text, "{shows}: {words:?}");
    }
}

#[test]
fn words_that_are_no_text() {
    let megabyte = vec![b'5'; 1 << 20];
    for word in [&b""[..], b"\0", b"5\0", b"\xff\xfe", b"5\r\n", b"MS\0", b" 5", &megabyte] {
        assert_eq!(parse(&[word], THROTTLE), Err(QUANTITY.error()), "as the quantity");
        assert_eq!(parse(&[b"5", word], THROTTLE), Err(Error::Syntax), "as an option");
        let range = Range { name: "MAXWAIT", min: 0, max: i64::MAX };
        assert_eq!(parse(&[b"MAXWAIT", word], RESERVE), Err(range.error()), "as an option's value");
    }
}

/// The integer that the standard library reads from a text, and formats back to the same text.
fn canonical(bytes: &[u8]) -> Option<i64> {
    str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.parse::<i64>().ok().filter(|value| value.to_string() == text))
}

#[test]
#[rustfmt::skip]
fn integers() {
    // The edges of 64 bits; forms of no integer; a seven that is not in ASCII; the bytes beside the digits.
    for text in [
        "9223372036854775807", "9223372036854775808", "9999999999999999999", "10000000000000000000",
        "18446744073709551616", "18446744073709551623", "0", "7", "10", "00", "007",
        "", "-", "+7", " 7", "7 ", "7\n", "7\0", "7.0", "7e2", "0x7", "1_000", "\u{667}", "1/", "1:",
    ] {
        for text in [text.to_owned(), format!("-{text}")] {
            assert_eq!(parse_integer(text.as_bytes()), canonical(text.as_bytes()), "{text:?}");
        }
    }
    assert_eq!([&b"7"[..], b"-7", b"-0"].map(parse_integer), [Some(7), Some(-7), None]);
    assert_eq!(parse_integer(b"-9223372036854775808"), Some(i64::MIN));
}

#[test]
#[rustfmt::skip]
fn timeouts() {
    const TEXT: &str = "ERR timeout must be a number of seconds from 0 to 9223372036";
    for (bytes, expected) in [
        (&b"0"[..],            Ok(None)),
        (b"-0",                Ok(None)),
        (b"0.25",              Ok(Some(S / 4))),
        (b"1.5e3",             Ok(Some(1_500 * S))),
        (b"0.000000001",       Ok(Some(1))),
        (b"0.0000000000001",   Ok(Some(1))), // however short, it is not none
        (b"1e-400",            Ok(Some(1))), // nor where a double underflows to 0
        (b"0.1E-999999",       Ok(Some(1))),
        (b"0e5",               Ok(None)),
        (b"0.000e-400",        Ok(None)),
        (b"-1e-400",           Err(TEXT)),
        (b"9223372036",        Ok(Some(9_223_372_036 * S))),
        (b"9223372037",        Err(TEXT)),
        (b"1e400",             Err(TEXT)),
        (b"-0.000001",         Err(TEXT)),
        (b"inf",               Err(TEXT)),
        (b" 1",                Err(TEXT)),
        (b"NaN",               Err(TEXT)),
        (b"",                  Err(TEXT)),
        (b"1\0",               Err(TEXT)),
        (b"\xff",              Err(TEXT)),
    ] {
        let read = parse_timeout(bytes).map(|timeout| timeout.map(nanos)).map_err(|error| error.to_string());
        assert_eq!(read, expected.map_err(str::to_owned), "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_unit_alone() {
    let parse = |text: &str| Tail::parse_unit(text.split_ascii_whitespace().map(str::as_bytes));
    for (words, unit) in [("", Seconds), ("S", Seconds), ("ms", Milliseconds), ("uS", Microseconds)] {
        assert_eq!(parse(words), Ok(unit), "{words:?}");
    }
    for words in ["5", "NS", "MS MS", "MS US", "S SATURATE", "SATURATE"] {
        assert_eq!(parse(words), Err(Error::Syntax), "{words:?}");
    }
}

#[test]
fn a_range_admits_its_ends_and_names_itself() {
    let range = Range { name: "lease", min: -5, max: 5 };
    for value in -5..=5_i64 {
        assert_eq!(range.parse(value.to_string().as_bytes()), Ok(value));
    }
    for bytes in [&b"-6"[..], b"6", b"x"] {
        let error = range.parse(bytes).unwrap_err();
        assert_eq!(error.to_string(), "ERR lease must be an integer from -5 to 5");
    }
    assert_eq!(range.up_to(3), Range { name: "lease", min: -5, max: 3 });
    // As a time, too, whatever a span can hold in that unit.
    assert_eq!(range.parse_span(b"5", Milliseconds).map(nanos), Ok(5_000_000));
    let error = range.parse_span(b"6", Milliseconds).unwrap_err();
    assert_eq!(error.to_string(), "ERR lease must be an integer from -5 to 5");
}

/// Bytes that are nearly an integer.
fn nearly_an_integer() -> impl Strategy<Value = Vec<u8>> {
    let canonical = any::<i64>().prop_map(|value| value.to_string().into_bytes());
    let wide = any::<i128>().prop_map(|value| (value >> 60).to_string().into_bytes());
    let damaged = (any::<i64>(), any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(
        |(value, place, byte, insert)| {
            let mut bytes = value.to_string().into_bytes();
            let place = place.index(bytes.len());
            let replaced = if insert { place..place } else { place..place + 1 };
            bytes.splice(replaced, [byte]);
            bytes
        },
    );
    let digits = prop::collection::vec(select(b"0123456789-+ ".to_vec()), 0..24);
    prop_oneof![canonical, wide, damaged, digits, prop::collection::vec(any::<u8>(), 0..30)]
}

/// An option as a call would name it: in any mixture of upper and lower case.
fn in_any_case(word: &str, upper: u32) -> Vec<u8> {
    let cased = word.bytes().enumerate();
    cased
        .map(
            |(i, b)| if upper >> (i % 32) & 1 == 1 { b.to_ascii_uppercase() } else { b.to_ascii_lowercase() },
        )
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parse_integer_reads_the_canonical_form_and_nothing_else(bytes in nearly_an_integer()) {
        prop_assert_eq!(parse_integer(&bytes), canonical(&bytes));
    }

    /// A call is understood whatever the order and the case of its options.
    #[test]
    fn options_come_in_any_order_and_case(
        quantity in prop::option::of(0..=i64::MAX),
        unit in prop::option::of(select(vec![("s", Seconds), ("ms", Milliseconds), ("us", Microseconds)])),
        max_wait in prop::option::of(0..=9_223_372_036_i64),
        flags in subsequence(vec!["saturate", "prepay"], 0..=2),
        order in Just([0, 1, 2, 3]).prop_shuffle(),
        upper: u32,
    ) {
        let wait = max_wait.map(|wait| wait.to_string());
        let mut groups: [Vec<Vec<u8>>; 4] = Default::default();
        groups[0].extend(unit.map(|(word, _)| in_any_case(word, upper)));
        if let Some(wait) = &wait {
            groups[1].extend([in_any_case("maxwait", upper), wait.clone().into_bytes()]);
        }
        for (place, flag) in flags.iter().enumerate() {
            groups[2 + place].push(in_any_case(flag, upper));
        }
        let mut words: Vec<Vec<u8>> = quantity.map(|n| n.to_string().into_bytes()).into_iter().collect();
        words.extend(order.iter().flat_map(|&group| groups[group].clone()));
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();

        let unit = unit.map_or(Seconds, |(_, unit)| unit);
        let nanos_in_unit = i64::try_from(unit.nanos().get()).unwrap();
        let expected = (
            quantity.unwrap_or(1),
            unit,
            flags.contains(&"saturate"),
            flags.contains(&"prepay"),
            max_wait.map(|wait| wait * nanos_in_unit),
        );
        prop_assert_eq!(parse(&words, ALL), Ok(expected));

        // Any repeated option is an error.
        for (again, group) in groups.iter().enumerate().filter(|(_, group)| !group.is_empty()) {
            let twice: Vec<&[u8]> = words.iter().copied().chain(group.iter().map(Vec::as_slice)).collect();
            prop_assert_eq!(parse(&twice, ALL), Err(Error::Syntax), "group {}", again);
        }
    }
}

#[test]
fn short_numbers_are_read_digit_by_digit() {
    let powers = (0..19).map(|digits| 10_i64.pow(digits));
    let edges = powers.flat_map(|power| [power - 1, power, power + 1, 9 * (power / 10), 8 * power / 9]);
    for number in (0..100_000).chain(edges) {
        assert_eq!(parse_integer(number.to_string().as_bytes()), Some(number));
        assert_eq!(parse_integer((-number).to_string().as_bytes()), Some(-number));
        let longer = format!("{number}:");
        assert_eq!(parse_integer(longer.as_bytes()), None, "the byte behind 9");
    }
}
