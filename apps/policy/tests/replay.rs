//! Calls through policies, with the answers that the pages of the commands give. apps/plan/tests/server.rs
//! compares all answers with a server's.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a test that panics is a test that fails"
)]

use redis_cell_core::{Instant, Unit};
use redis_cell_policy::{CallError, Fields, Policy, PolicyError, Replay, combined};

const START: u64 = 1_700_000_040; // a multiple of 60

fn at(millis: u64) -> Instant {
    Instant::from_nanos(START * 1_000_000_000 + millis * 1_000_000).unwrap()
}

fn replay(text: &str) -> Replay {
    Replay::new([Policy::parse(text, &mut Fields::default()).unwrap()])
}

/// The integers of all rows, the combined one first.
fn rows(replay: &mut Replay, millis: u64, values: &[&str]) -> Vec<[i64; 5]> {
    let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
    replay.call(at(millis), &values).unwrap();
    let rows = replay.decide(0).unwrap();
    let answers = combined(rows).into_iter().chain(rows.iter().map(|row| row.answer));
    answers.map(|answer| answer.reply(Unit::Seconds).five).collect()
}

#[test]
fn a_check_takes_nothing() {
    for text in ["<u> THROTTLE 4 5 1 <n>", "{<u>}:a LOG 5 60 <n> {<u>}:b LEASE 2 30 x"] {
        let mut limits = replay(text);
        limits.call(at(0), &[b"7", b"2"]).unwrap();
        let before = limits.peek(0).unwrap().to_vec();
        assert_eq!(limits.peek(0).unwrap(), before);
        let after = limits.decide(0).unwrap().to_vec();
        for (before, after) in before.iter().zip(&after) {
            assert!(before.answer.remaining > after.answer.remaining, "{before:?} {after:?}");
        }
        assert_eq!(limits.peek(1).unwrap(), []);
    }
}

#[test]
fn the_clock_does_not_go_back() {
    let mut limit = replay("k THROTTLE 0 1 60 1");
    assert_eq!(rows(&mut limit, 50_000, &[])[0], [0, 1, 0, -1, 60]);
    assert_eq!(rows(&mut limit, 20_000, &[])[0], [1, 1, 0, 60, 60]);
    assert_eq!(limit.now(), at(50_000));
}

#[test]
fn a_limiter_without_its_field_is_left_out() {
    let mut limits = replay("u:<user> FIXED 1 60 1 a:<address> FIXED 9 60 1");
    assert_eq!(rows(&mut limits, 0, &["", "::1"]), [[0, 9, 8, -1, 60]; 2]);
    assert_eq!(rows(&mut limits, 0, &["", "::1"]), [[0, 9, 7, -1, 60]; 2]);
    assert!(rows(&mut limits, 0, &["", ""]).is_empty());
    let [of_user, of_address] = [0, 1].map(|limiter| limits.names(0, limiter).unwrap());
    assert_eq!((of_user.part(0), of_address.part(0)), (&b""[..], &b"::1"[..]));
    assert_eq!(of_address.name(0), b"a:::1");
}

/// The same with what was taken, of a call with a chain.
fn taken(replay: &mut Replay, millis: u64, values: &[&str]) -> Vec<[i64; 6]> {
    let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
    replay.call(at(millis), &values).unwrap();
    let rows = replay.decide(0).unwrap();
    let answers = combined(rows).into_iter().chain(rows.iter().map(|row| row.answer));
    answers
        .map(|answer| {
            let mut six = [answer.taken.unwrap(); 6];
            six[..5].copy_from_slice(&answer.reply(Unit::Seconds).five);
            six
        })
        .collect()
}

#[test]
fn a_pool_without_its_field_is_left_out_of_its_chain() {
    let chain = "p FIXED 9 60 1 a:<a> FIXED 1 60 2 ELSE b:<b> FIXED 5 60 2 SPILL c:<c> FIXED 5 60 2";
    let mut chain = replay(chain);
    let all =
        |limits: &mut Replay, values| taken(limits, 0, values).iter().map(|row| row[5]).collect::<Vec<_>>();
    assert_eq!(all(&mut chain, &["x", "x", "x"]), [0, 1, 0, 2, 0]);
    assert_eq!(all(&mut chain, &["", "x", "x"]), [0, 1, 2, 0]);
    assert_eq!(all(&mut chain, &["", "", "x"]), [0, 1, 2]);
    assert_eq!(all(&mut chain, &["x", "", "x"]), [0, 1, 0, 2]);
    assert_eq!(all(&mut chain, &["", "x", "x"]), [0, 1, 1, 1]);
    for (text, error) in [
        (
            "a FIXED 1 60 1 SPILL b FIXED 1 60 2",
            "quantity must be the same for all limiters that SPILL joins",
        ),
        (
            "a FIXED 1 60 <x> SPILL b FIXED 1 60 <y>",
            "quantity must be the same for all limiters that SPILL joins",
        ),
        ("a FIXED 1 60 1 SPILL b LEASE 1 60 x", "a LEASE cannot stand beside SPILL"),
        ("a SHADOW FIXED 1 60 1 ELSE b FIXED 1 60 1", "syntax error"),
        ("a FIXED 1 60 1 ELSE b SHADOW FIXED 1 60 1", "syntax error"),
    ] {
        let seen = Policy::parse(text, &mut Fields::default()).unwrap_err();
        assert_eq!(seen.to_string(), error, "{text}");
    }
}

#[test]
fn policies_that_share_keys_do_not_share_states() {
    let mut fields = Fields::default();
    let texts = ["<u> FIXED 1 60 1", "<u> FIXED 2 60 1"];
    let mut both = Replay::new(texts.map(|text| Policy::parse(text, &mut fields).unwrap()));
    let mut limited = Vec::new();
    for _ in 0..3 {
        both.call(at(0), &[b"x"]).unwrap();
        limited.push([0, 1].map(|policy| both.decide(policy).unwrap()[0].answer.limited()));
    }
    assert_eq!(limited, [[false, false], [true, false], [true, true]]);
}

#[test]
fn an_error_of_a_call_takes_nothing() {
    let mut limits = replay("a:<u> FIXED 9 60 1 b:<u> LOG 20000 60 <n>");
    limits.call(at(0), &[b"x", b"10001"]).unwrap();
    let error = limits.decide(0).unwrap_err();
    assert_eq!(error.to_string(), "quantity must be an integer from 0 to 10000");
    assert_eq!(rows(&mut limits, 0, &["x", "1"])[1], [0, 9, 8, -1, 60]);
    for number in ["x", "-1", "1e3", "9223372036854775808", "1.x"] {
        assert_eq!(limits.call(at(0), &[b"x", number.as_bytes()]), Err(CallError::Number), "{number}");
    }
    let mut limits = replay("<u> FIXED 9 60 1 <v> FIXED 9 60 1");
    limits.call(at(0), &[b"x", b"x"]).unwrap();
    assert_eq!(limits.decide(0), Err(CallError::SameKey));
    assert_eq!(rows(&mut limits, 0, &["x", "y"])[1], [0, 9, 8, -1, 60]);
}

/// Which templates can make the same key, with the values of the fields that make it.
#[test]
fn two_limiters_with_the_same_key_are_an_error_however_their_keys_are_made() {
    for (one, two, same, differ) in [
        ("<u>", "<v>", ["x", "x"], ["x", "y"]),
        ("a:<u>", "<v>", ["x", "a:x"], ["x", "x"]),
        ("a:<u>", "a:all", ["all", ""], ["x", ""]),
        ("a<u>", "<u>a", ["aa", ""], ["ab", ""]),
        ("<u>:<v>", "<v>:<u>", ["x", "x"], ["x", "y"]),
        ("<u>:<v>", "<u>::", ["x", ":"], ["x", "y"]),
    ] {
        let mut limits = replay(&format!("{one} FIXED 9 60 1 {two} FIXED 9 60 1"));
        let mut decide = |values: [&str; 2]| {
            limits.call(at(0), &values.map(str::as_bytes)).unwrap();
            limits.decide(0).map(<[_]>::len)
        };
        assert_eq!(decide(same), Err(CallError::SameKey), "{one} {two} {same:?}");
        assert_eq!(decide(differ), Ok(2), "{one} {two} {differ:?}");
    }
}

#[test]
fn limiters_of_the_same_field_keep_their_states_and_names_apart() {
    let mut limits = replay("{<u>}:a FIXED 2 60 1 {<u>}:b FIXED 1 60 1");
    assert_eq!(rows(&mut limits, 0, &["x"])[1..], [[0, 2, 1, -1, 60], [0, 1, 0, -1, 60]]);
    assert_eq!(rows(&mut limits, 0, &["x"])[1..], [[0, 2, 1, -1, 60], [1, 1, 0, 60, 60]]);
    let names = [0, 1].map(|limiter| limits.names(0, limiter).unwrap().name(0));
    assert_eq!(names, [b"{x}:a", b"{x}:b"]);
}

#[test]
fn a_wrong_policy_is_named() {
    let error = |text: &str| Policy::parse(text, &mut Fields::default()).unwrap_err();
    assert!(matches!(error(""), PolicyError::NoLimiter(_)));
    assert!(matches!(error("<u> GCRA 1 2 3 4"), PolicyError::NoLimiter(_)));
    assert!(matches!(error("<u> THROTTLE 15 30 60"), PolicyError::NoLimiter(_)));
    for (text, meant) in [
        ("<u> THROTLE 15 30 60 1", Some("Did you mean THROTTLE by THROTLE?")),
        ("<u> CL.THROTTLE 15 30 60 1", Some("Did you mean THROTTLE by CL.THROTTLE?")),
        ("<u> LOG 5 60 1 ELSE <v> SHADOW fixde 5 60 1", Some("Did you mean FIXED by fixde?")),
        ("<u> THROTTLE 15 30 60", None),
        ("<u> LOCK 5 60 1", None),
        ("<u>", None),
    ] {
        let said = error(text).to_string();
        assert!(meant.map_or(!said.contains("Did you mean"), |meant| said.contains(meant)), "{said}");
    }
    assert_eq!(error("<u> FIXED 5 60 1 HOURS"), PolicyError::NoLimiter("HOURS".to_owned()));
    assert_eq!(error("<u> FIXED 5 60 1 <u> LOG 5 60 1"), PolicyError::SameKey("<u>".to_owned()));
    assert_eq!(error("<u FIXED 5 60 1"), PolicyError::Field("<u".to_owned()));
    assert_eq!(
        error("<u> FIXED 0 60 1").to_string(),
        "limit must be an integer from 1 to 9223372036854775807"
    );
    assert_eq!(error("<u> THROTTLE 1 1 1 x").to_string(), error("<u> THROTTLE 1 1 1 -1").to_string());
    assert!(Policy::parse("CL.MTAKE <u> fixed 5 month UTC 60 FROM 15 1 ms", &mut Fields::default()).is_ok());
}
