//! The program's descriptions of limits and calls, in words and as lines to copy.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics is a test that fails")]

use redis_cell_core::Unit;
use redis_cell_playground::{answer, words};
use serde_json::{Value, json};

fn picture(changes: &Value) -> Value {
    let mut request = json!({
        "policy": "user:<user> THROTTLE 15 30 60 1", "pattern": "bursts", "rate": 60, "burst": 20, "gap": 20, "clients": 1,
        "seconds": 120, "retry": "never", "seed": 1, "watch": 1, "call": 17,
    });
    for (name, value) in changes.as_object().unwrap() {
        request[name] = value.clone();
    }
    serde_json::from_str(&answer(&request.to_string())).unwrap()
}

/// Admitted, refused and other calls.
fn sums(picture: &Value) -> [u64; 3] {
    let bins = picture["bins"].as_array().unwrap();
    [0, 1, 2].map(|kind| bins.iter().map(|bin| bin[kind].as_u64().unwrap()).sum())
}

#[test]
fn fifteen_thirty_sixty() {
    let shown = picture(&json!({}));
    assert_eq!(
        shown["limiters"][0]["words"],
        "16 at once after a pause (one, and a burst of 15), then one every 2 s. Never more than 46 in any 1 min."
    );
    // 16 of the first 20, and 10 of each 20 that come 20 s later.
    assert_eq!(sums(&shown), [66, 54, 0]);
    let row = &shown["call"]["rows"][0];
    assert_eq!(row["five"], json!(["1", "16", "0", "2", "32"]));
    assert_eq!(
        row["words"],
        json!([
            "refused",
            "at most 16 at once",
            "nothing more right now",
            "the same call is admitted in 2 s",
            "fully replenished in 32 s, if nobody calls"
        ])
    );
    assert_eq!(shown["call"]["previous_refused"], Value::Null);
    assert_eq!(shown["call"]["next_refused"], 18);
    // Full, then empty, then half full before the next burst.
    let held = shown["limiters"][0]["remaining"].as_array().unwrap();
    assert_eq!((&held[0], &held[1], &held[2], &held[40]), (&json!(16), &json!(0), &json!(0), &json!(10)));
}

#[test]
fn a_call_behind_the_last_one_is_the_last_one() {
    let shown = picture(&json!({"call": 4_000_000}));
    assert_eq!(shown["call"]["number"], 120);
    assert_eq!(shown, picture(&json!({"call": 120})));
}

#[test]
fn clients_call_again_after_the_wait_with_jitter_or_without() {
    let storm = |retry: &str| {
        let policy = "api THROTTLE 9 60 60 1";
        picture(&json!({"policy": policy, "pattern": "storm", "clients": 60, "retry": retry}))
    };
    assert_eq!(sums(&storm("never")), [10, 50, 0]);
    let told = storm("told");
    // Each second all who are left come, and one of them is admitted: 50 + 49 + ... + 1 refusals.
    assert_eq!(sums(&told), [60, 1275, 0]);
    assert_eq!(told["repeated"], 1275);
    let jitter = storm("jitter");
    assert_eq!(sums(&jitter)[0], 60);
    assert!(sums(&jitter)[1] < 1000, "{:?}", sums(&jitter));
    assert_eq!(jitter, storm("jitter"), "the same seed, the same picture");
}

#[test]
fn calls_that_are_errors_are_counted_apart() {
    let shown = picture(&json!({"policy": "a THROTTLE 15 30 60 <user>"}));
    assert_eq!(sums(&shown), [0, 0, 120]);
    assert_eq!(shown["error"], "the field of a quantity is not a number");
    for (policy, error) in
        [("", "no key"), ("a LOG 0 1 1", "limit must be"), ("<x> LOG 1 1 1", "no field <x>")]
    {
        let shown = picture(&json!({"policy": policy}));
        assert!(shown["error"].as_str().unwrap().contains(error), "{shown}");
    }
    assert!(answer("{}").contains("missing field"));
    let of_log = |log: &str| picture(&json!({"pattern": "log", "log": log}))["error"].clone();
    assert_eq!(of_log(" \n"), "paste the lines of an access log, or choose a file");
    let unknown = "the format of the log is not recognized: name it with cell-plan --format";
    assert_eq!(of_log("no format"), unknown, "the page has no options");
    assert_eq!(of_log("{}"), "the only line cannot be read");
    assert_eq!(of_log("{}\n{}"), "none of the 2 lines can be read");
}

/// The cases that copied.rs does not run: a chain, for which the clients have no types, and the end of an
/// idle total.
#[test]
fn calls_to_copy() {
    for (policy, command, python, rust) in [
        (
            "k FIXED 15 TOTAL IDLE 60 2",
            "CL.FIXED k 15 TOTAL IDLE 60 2",
            r#"cell.fixed("k", Fixed.total(15, idle=60), 2)"#,
            r#"cl_fixed("k", Fixed::new(15, FixedWindow::total().idle(Duration::from_secs(60))), Units(2))"#,
        ),
        (
            "a FIXED 15 60 2 SPILL b FIXED 9 TOTAL 2 ELSE c FIXED 5 TOTAL 1",
            "CL.MTAKE a FIXED 15 60 2 SPILL b FIXED 9 TOTAL 2 ELSE c FIXED 5 TOTAL 1",
            r#"connection.execute_command("CL.MTAKE", "a", "FIXED", "15", "60", "2", "SPILL", "b", "FIXED", "9""#,
            r#"redis::cmd("CL.MTAKE").arg(&["a", "FIXED", "15", "60", "2", "SPILL", "b", "FIXED", "9","#,
        ),
    ] {
        let copy = &picture(&json!({"policy": policy}))["copy"];
        assert_eq!(copy["command"], command);
        for (text, part) in [("python", python), ("rust", rust)] {
            assert!(copy[text].as_str().unwrap().contains(part), "{}", copy[text]);
        }
    }
}

#[test]
fn a_chain_is_shown_as_what_was_taken_from_each() {
    let shown = picture(&json!({"policy": "a FIXED 3 60 2 SPILL b FIXED 9 TOTAL 2", "call": 2}));
    let rows = &shown["call"]["rows"];
    let taken = [0, 1, 2].map(|row| rows[row]["taken"].clone());
    assert_eq!(
        taken,
        [
            json!(["0", "shown for each limiter"]),
            json!(["1", "1 taken from this key"]),
            json!(["1", "1 taken from this key"])
        ]
    );
    assert_eq!(rows[2]["words"][4], "never replenished by itself");
    assert_eq!(shown["limiters"][1]["words"], "9 in all. A call takes 2.");
    assert_eq!(picture(&json!({}))["call"]["rows"][0]["taken"], Value::Null);
}

#[test]
fn spans_in_words() {
    let second = 1_000_000_000;
    for (nanos, words) in [
        (0, "0 s"),
        (500, "500 ns"),
        (1_500_000, "1.5 ms"),
        (2 * second, "2 s"),
        (90 * second, "1 min 30 s"),
        (3_600 * second, "1 h"),
        (86_430 * second, "1 d"),
        (u64::MAX, "213503 d 23 h"),
    ] {
        assert_eq!(words::span(nanos), words);
    }
    assert_eq!(
        words::limit("LEASE 20 <bytes> <user>", Unit::Seconds),
        "At most 20 at the same time. Each holds its place for <bytes>, or until it gives it back."
    );
}
