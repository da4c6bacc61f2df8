//! Cases that random calls hardly meet, by the command and by the function.

use crate::both::{Both, Reply};
use crate::common::{FUNCTIONS, to_function};
use redis_cell_core::hold::member;

const WALL: i64 = 1_800_000_000_000_000_000;

/// The purpose of the commands before the call, the call, and the beginning of the reply.
const EDGES: [(&[&str], &str, &str); 73] = [
    // A limit that the library remembers, with another unit.
    (&[], "CL.MTAKE k THROTTLE 1499 10 60 1 MS", "[0, 1500, 1499, -1, 6, 0, 1500, 1499, -1, 6]"),
    (&[], "CL.THROTTLE k 9 10 60", "[0, 10, 9, -1, 6]"),
    (
        &["SET k 9223372036854775806 PXAT 9223372036855"],
        "CL.CHARGE k 0 1000 1 1 US",
        "[1, 1, 0, 7423372036854776,",
    ),
    (
        &["SET k 9223372036854775806 PXAT 9223372036855"],
        "CL.CHARGE k 0 1000 1 2 US",
        "ERR quantity is out of range: the state",
    ),
    (&["SET k 1800000000000000001 PXAT 1800000000001"], "CL.REFUND k 0 1000 1 1 US", "[0, 1, 1, -1, 0]"),
    (&["SET k 0 PXAT 1800000009000"], "CL.FIXED k 5 60 0", "[0, 5, 5, -1, 0]"),
    (&["SET k 0 PXAT 1800000009000"], "CL.FIXED k 5 60 2", "[0, 5, 3, -1, 60]"),
    (&["SET k 2 PXAT 9300000000000"], "CL.FIXED k 5 60 2", "[0, 5, 1, -1, 7423372037]"),
    (
        &[],
        "CL.FIXED k 9223372036854775807 UNTIL 1800000001 1800000001000000000",
        "ERR quantity is out of range: the count",
    ),
    (&[], "CL.FIXED k 9007199254740991 60 9007199254740991", "[0, 9007199254740991, 0, -1, 60]"),
    (&[], "CL.FIXED k 5 UNTIL 1800000000000500 1 US", "[0, 5, 4, -1, 1000]"),
    (&[], "CL.FIXED k 5 TOTAL 2", "[0, 5, 3, -1, -1]"),
    (&["SET k 3"], "CL.FIXED k 5 TOTAL 3", "[1, 5, 2, -1, -1]"),
    (&["SET k 3"], "CL.FIXED k 5 TOTAL 6", "[1, 5, 2, -1, -1]"),
    (&["SET k 3 PXAT 1800000009000"], "CL.FIXED k 5 TOTAL 3", "[1, 5, 2, 9, 9]"),
    (&["SET k 0 PXAT 1800000009000"], "CL.FIXED k 5 TOTAL 3", "[0, 5, 2, -1, 9]"),
    // In the millisecond in which it expires, the key is still there.
    (&["SET k 3 PXAT 1800000000000"], "CL.FIXED k 5 TOTAL 2", "[0, 5, 3, -1, -1]"),
    (&["SET k 2 PXAT 9300000000000"], "CL.FIXED k 5 TOTAL IDLE 9 2", "[0, 5, 1, -1, 7423372037]"),
    (&["SET k 2"], "CL.FIXED k 5 TOTAL IDLE 9 2", "[0, 5, 1, -1, 9]"),
    (&[], "CL.FIXED k 5 TOTAL IDLE 7423372037", "ERR IDLE must be an integer from 1 to 7423372036"),
    // In shadow it gives nothing, and lives as long as what is held of it.
    (
        &["DEL h", "CL.MTAKE k FIXED 5 TOTAL IDLE 9 2 HOLD h 60 me"],
        "CL.MTAKE k SHADOW FIXED 5 TOTAL IDLE 9 4 HOLD h 90 me",
        "[0, 5, 3, -1, 90, 1, 5, 3, 60, 90]",
    ),
    (&[], "CL.MTAKE k FIXED 5 60 1 HOLD h 7423372037 me", "ERR HOLD must be an integer from 1 to 7423372036"),
    (
        &[],
        "CL.MTAKE k FIXED 5 60000 1 HOLD h 7423372036855 me MS",
        "ERR HOLD must be an integer from 1 to 7423372036854",
    ),
    // A renewal is admitted, and takes a place, although one of its limiters is over its limit.
    (
        RENEWABLE,
        "CL.MTAKE d FIXED 1 60 0 k LEASE 2 9 me ELSE m FIXED 5 60 0 HOLD h 60 me",
        "[0, 1, 0, -1, 60, 0, 1, 1, 0, 60, 60, 0, 0, 2, 1, -1, 9, 1, 0, 5, 5, -1, 0, 0]",
    ),
    (
        RENEWABLE,
        "CL.MPEEK d FIXED 1 60 0 k LEASE 2 9 me ELSE m FIXED 5 60 0 HOLD h 60 me",
        "[0, 1, 0, -1, 60, 0, 1, 1, 0, 60, 60, 0, 0, 2, 2, -1, 0, 1, 0, 5, 5, -1, 0, 0]",
    ),
    // No key of holds has no parts.
    (&["ZADD k 0 parts"], "CL.MSETTLE q FIXED 9 60 1 HOLD k me", "ERR the key does not hold"),
    // Names of more than one word of 32 bits, of which the scores are hashes.
    (
        &["DEL the-quota"],
        "CL.MTAKE the-quota FIXED 5 60 2 HOLD k 60 the-owner",
        "[0, 5, 3, -1, 60, 0, 5, 3, -1, 60]",
    ),
    // Units come back to their window if its end has moved by less than a second, and to no other window.
    (MOVED, "CL.MSETTLE k FIXED 5 60 1 HOLD h me", "[0, 5, 4, -1, 61, 0, 5, 4, -1, 61]"),
    (MOVED, "CL.MTAKE k FIXED 5 60 1 HOLD h 60 me", "[0, 5, 1, -1, 61, 0, 5, 1, -1, 61]"),
    (OTHER, "CL.MSETTLE k FIXED 5 60 1 HOLD h me", "[0, 5, 2, -1, 70, 0, 5, 2, -1, 70]"),
    (OTHER, "CL.MTAKE k FIXED 5 60 1 HOLD h 60 me", "[0, 5, 1, -1, 70, 0, 5, 1, -1, 70]"),
    (ENDED, "CL.MTAKE k FIXED 5 60 1 HOLD h 60 you", "[0, 5, 1, -1, 70, 0, 5, 1, -1, 70]"),
    (
        &["CL.MTAKE q FIXED 5 60 3 HOLD k 60 me", "PEXPIREAT q 1800000060005"],
        "CL.MTAKE q FIXED 5 60 1 HOLD k 60 me",
        "[0, 5, 1, -1, 61, 0, 5, 1, -1, 61]",
    ),
    // Units of an earlier window.
    (&EARLIER, "CL.MSETTLE q FIXED 5 60 1 HOLD k me", "[0, 5, 3, -1, 70, 0, 5, 3, -1, 70]"),
    (
        &[EARLIER[0], EARLIER[1], EARLIER[2], "PEXPIREAT q 1800000080000"],
        "CL.MTAKE q FIXED 5 60 1 HOLD k 60 me",
        "[0, 5, 1, -1, 80, 0, 5, 1, -1, 80]",
    ),
    // The same with AGO.
    (MONTH_MOVED, "CL.MSETTLE k FIXED 5 MONTH -1 AGO 0", "[0, 5, 3, -1, 1440001, 0, 5, 3, -1, 1440001]"),
    (MONTH_OTHER, "CL.MSETTLE k FIXED 5 MONTH -1 AGO 0", "[0, 5, 2, -1, 1440002, 0, 5, 2, -1, 1440002]"),
    (UNTIL_MOVED, "CL.MSETTLE k FIXED 5 UNTIL 1800000060 -1 AGO 0", "[0, 5, 3, -1, 59, 0, 5, 3, -1, 59]"),
    (UNTIL_OTHER, "CL.MSETTLE k FIXED 5 UNTIL 1800000060 -1 AGO 0", "[0, 5, 2, -1, 59, 0, 5, 2, -1, 59]"),
    (PASSED, "CL.MSETTLE k FIXED 5 UNTIL 1800000000 -1 AGO 5", "[0, 5, 2, -1, 1, 0, 5, 2, -1, 1]"),
    (PASSED, "CL.MSETTLE k FIXED 5 HOUR -1 AGO 5", "[0, 5, 2, -1, 1, 0, 5, 2, -1, 1]"),
    // A refusal takes nothing, although a chain would admit the call.
    (
        FULL,
        "CL.MTAKE k FIXED 5 60 1 ELSE m FIXED 5 60 1 HOLD h 60 me",
        "[1, 5, 5, 60, 0, 0, 0, 5, 5, -1, 0, 0, 0, 5, 5, -1, 0, 0]",
    ),
    (
        FULL,
        "CL.MPEEK k FIXED 5 60 1 ELSE m FIXED 5 60 1 HOLD h 60 me",
        "[1, 5, 5, 60, 0, 0, 0, 5, 5, -1, 0, 0, 0, 5, 5, -1, 0, 0]",
    ),
    (&["SET k 1000000000000000000"], "CL.FIXED k 5 TOTAL", "ERR the key does not hold"),
    (
        &["SET k 5"],
        "CL.FIXED k 9223372036854775807 TOTAL 999999999999999995",
        "ERR quantity must be an integer from 0 to 999999999999999994",
    ),
    // More than a year ahead, and not near the key's expiry.
    (
        &["SET k 1831579200000000000 PXAT 1900000000000"],
        "CL.THROTTLE k 9 10 60",
        "ERR the key does not hold this limiter's state",
    ),
    // Two units and a half are available.
    (
        &["SET k 1800000045000000000 PXAT 1800000045000"],
        "CL.THROTTLE k 9 10 60 9 SATURATE",
        "[0, 10, 0, -1, 57, 2]",
    ),
    (&[], "CL.RESERVE k 9 10 60 PREPAY PREPAY", "ERR syntax error"),
    (
        &["CL.THROTTLE k 9 10 60 5"],
        "CL.MSETTLE k RESET 12 THROTTLE 9 10 60 -5 AGO 3",
        "[0, 10, 6, -1, 22, 0, 10, 6, -1, 22]",
    ),
    // The first day of a month that begins on it.
    (&[], "CL.FIXED k 5 MONTH FROM 15", "[0, 5, 4, -1, 2649600]"),
    // A unit that is free one nanosecond too late.
    (&["SET k 1800000000000000001 PXAT 1800000000001"], "CL.THROTTLE k 2 3 7 0 US", "[0, 3, 2, -1, 1]"),
    // A reply that is stored too long, and a key that is a limiter's too.
    (&[], "CL.MTAKE k FIXED 5 60 1 ONCE o 7423372037", "ERR ONCE must be an integer from 1 to 7423372036"),
    (&[], "CL.MTAKE k FIXED 5 60 1 ONCE k 60", "ERR the same key is named twice"),
    // More keys than are compared in pairs.
    (
        &[],
        "CL.MTAKE a LOG 1 9 1 b LOG 1 9 1 c LOG 1 9 1 d LOG 1 9 1 e LOG 1 9 1 f LOG 1 9 1 g LOG 1 9 1 h LOG 1 9 1 \
         k LOG 1 9 1 k LOG 1 9 1",
        "ERR the same key is named twice",
    ),
    (&[], "CL.MTAKE k FIXED 5 60 1 ONCE o", "ERR syntax error"),
    (&[], "CL.MPEEK k FIXED 5 60 1 ONCE o 60", "ERR syntax error"),
    // Products that a double misses by more than the divisor.
    (&[], "CL.THROTTLE k 989739254 989739255 932849 989739255", "[0, 989739255, 0, -1, 932849]"),
    (&[], "CL.THROTTLE k 806439310 188721509 717196 806439311 US", "[0, 806439311, 0, -1, 3064702]"),
    (&[], "CL.MTAKE k FIXED 5 60 UTC", "ERR quantity must be an integer"),
    // An entry that leaves at this very instant, beside a later one.
    (&["ZADD k 1799999940000000 a 1799999950000000 b"], "CL.LOG k 5 60", "[0, 5, 3, -1, 60]"),
    // An entry from the future, which moves up.
    (&["ZADD k 1800000060000000 1800000060000000-0"], "CL.LOG k 5 60", "[0, 5, 3, -1, 120]"),
    (
        &["ZADD k 1800000060000000 1800000060000000-0"],
        "CL.MSETTLE k LOG 1 60 1",
        "[1, 1, 0, 120, 120, 1, 1, 0, 120, 120]",
    ),
    // An entry of this very microsecond, whose name is taken.
    (&["ZADD k 1800000000000000 1800000000000000-1"], "CL.LOG k 5 60", "[0, 5, 3, -1, 60]"),
    // Units that were taken before this window began.
    (
        &["HSET k window 1800000000000000000 current 3 previous 0", "PEXPIREAT k 1800000120000"],
        "CL.MSETTLE k WINDOW 9 60 -2 AGO 5",
        "[0, 9, 6, -1,",
    ),
    // One place of two is given back, and the last of which others have ended.
    (
        &["CL.ACQUIRE k 3 60 a", "CL.ACQUIRE k 3 90 b"],
        "CL.MSETTLE k LEASE 3 0 a",
        "[0, 3, 2, -1, 90, 0, 3, 2, -1, 90]",
    ),
    (&["ZADD k 1799999990000000 a 1800000001000000 b"], "CL.RELEASE k b", "[1]"),
    // The clock was set back: states that lie ahead count no longer than their keys live.
    (&["SET k 1800000058000000000 PXAT 1800000040000"], "CL.PAUSE k 9 10 60 0", "[0, 10, 1, -1, 54]"),
    (&[WINDOW_AHEAD], "CL.WINDOW k 10 60", "[0, 10, 1, -1, 176]"),
    (&[WINDOW_AHEAD, "PEXPIREAT k 1800000100000"], "CL.WINDOW k 10 60", "[0, 10, 4, -1, 91]"),
    (&[WINDOW_AHEAD, "PEXPIREAT k 1800000150000"], "CL.WINDOW k 10 60", "[0, 10, 1, -1, 116]"),
    (
        &["ZADD k 1800000020000000 1800000020000000-0", LOG_AHEAD, "PEXPIREAT k 1800000090000"],
        "CL.LOG k 2 60",
        "[1, 2, 0, 80, 90]",
    ),
    (
        &["ZADD k 1800000050000000 1800000050000000-0", LOG_AHEAD, "PEXPIREAT k 1800000090000"],
        "CL.LOG k 2 60",
        "[1, 2, 0, 80, 90]",
    ),
    (&["ZADD k 1800000100000000 a 1800000200000000 b", "PEXPIREAT k 1800000150000"], "CL.RELEASE k a", "[1]"),
];

const RENEWABLE: &[&str] = &["DEL d h", "CL.MTAKE d FIXED 5 60 2 HOLD h 60 me"];
const MOVED: &[&str] = &["DEL h", "CL.MTAKE k FIXED 5 60 3 HOLD h 60 me", "PEXPIREAT k 1800000060005"];
const OTHER: &[&str] = &["DEL h", "CL.MTAKE k FIXED 5 60 3 HOLD h 60 me", "PEXPIREAT k 1800000070000"];
const ENDED: &[&str] = &[
    "DEL h m",
    "CL.MTAKE k FIXED 5 60 3 HOLD h 60 me",
    "CL.MSETTLE m FIXED 5 60 0 HOLD h me",
    "PEXPIREAT k 1800000070000",
];
const EARLIER: [&str; 3] = [
    "CL.MTAKE q FIXED 5 60 2 HOLD k 60 me",
    "PEXPIREAT q 1800000070000",
    "CL.MTAKE q FIXED 5 60 1 HOLD k 60 me",
];
const MONTH_MOVED: &[&str] = &["CL.FIXED k 5 MONTH 3", "PEXPIREAT k 1801440001000"];
const MONTH_OTHER: &[&str] = &["CL.FIXED k 5 MONTH 3", "PEXPIREAT k 1801440001001"];
const UNTIL_MOVED: &[&str] = &["CL.FIXED k 5 UNTIL 1800000060 3", "PEXPIREAT k 1800000059000"];
const UNTIL_OTHER: &[&str] = &["CL.FIXED k 5 UNTIL 1800000060 3", "PEXPIREAT k 1800000058999"];
const PASSED: &[&str] = &["SET k 3 PXAT 1800000000500"];
const FULL: &[&str] = &["DEL h", "ZADD h 100000 parts", "PEXPIREAT h 1800000060000"];
const WINDOW_AHEAD: &str = "HSET k window 1800000060000000000 current 5 previous 3";
const LOG_AHEAD: &str = "ZADD k 1800000060000000 1800000060000000-0";

/// What a key of holds has beside the number of its parts, and whether a settlement of `me` that names the
/// key `q` rejects it. What is not of `me` at all is not read.
const HELD: [(&[&str], bool); 24] = [
    (&["id 2 me 1 q 1800000060000000000 60000000000 window 0 3 1800000060000000000"], false),
    (&["id 2 me 01 q 1800000060000000000 60000000000 total 0 3"], true),
    (&["id 2 me 1 q 01800000060000000000 60000000000 total 0 3"], true),
    (&["id 2 me 1 q 1800000060000000000 060000000000 total 0 3"], true),
    (&["id 2 me 1 q 1800000060000000000 60000000000 total 00 3"], true),
    (&["id 2 me 1 q 1800000060000000000 60000000000 total 0 03"], true),
    (&["id 2 me 1 q 1800000060000000000 60000000000 window 0 3 01800000060000000000"], true),
    (&["id 2 me 1 q 1800000060000000000 60000000000 rate 0 3 01800000000000000000 5"], true),
    (&["id 2 me 1 q 1800000060000000000 60000000000 rate 0 3 - 05"], true),
    (&["id 2 me 1 q 5 6 rate 0 3 - 5"], true),
    (&["id 2 me 1 q - total 0 3"], true),
    (&["id 2 me"], true),
    (&["id 2 mex1 q 1800000060000000000 60000000000 total 0 3"], true),
    (&["id 02 me 1 q 1800000060000000000 60000000000 total 0 3"], false),
    (&["more 2 me 1 q", "part 2 me 1 q 1800000060000000000 60000000000 total 0 3"], false),
    (&["more 2 me 1 q", "part 2 me 01 q 1800000060000000000 60000000000 total 0 3"], true),
    (&["more 2 me 01 q"], false),
    (&["more 2 me 1 qx"], false),
    (&["end 1800000060000000000 60000000000 1 a 1 q"], false),
    (&["end 180000006000000000 60000000000 1 a 1 q"], true),
    (&["end 1800000060000000000 060000000000 1 a 1 q"], true),
    (&["end 1800000060000000000 60000000000 01 a 1 q"], true),
    (&["end 1800000060000000000 60000000000 1 a 01 q"], true),
    (&["end 1800000060000000000 60000000000 1 ax1 q"], true),
];

/// What the command and the function reply to a call, and leave in the key `k`, after `before`; or how they
/// differ.
fn same<W: AsRef<[u8]>>(both: &mut Both, before: &[Vec<W>], call: &str) -> Result<Reply, String> {
    let words: Vec<&str> = call.split(' ').collect();
    let [command, function] = [false, true].map(|function| {
        both.client.call("DEL k q");
        for command in before {
            both.client.call(&command.iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>());
        }
        let reply: Reply = both.call(&words, function);
        let left = ["TTL k", "PEXPIRETIME k", "GET k", "HGETALL k", "ZRANGE k 0 -1 WITHSCORES"]
            .map(|look| both.client.ask(look));
        (reply, left)
    });
    if command == function { Ok(command.0) } else { Err(format!("{command:?}, by function {function:?}")) }
}

/// Compares the two, or returns how they differ.
pub fn edges(library: &str) -> Result<(), String> {
    let mut both = Both::at(WALL, library);
    // More limits than the library remembers.
    let calls: Vec<_> =
        (1..1_500).map(|limit| to_function(&["CL.THROTTLE", "k", &limit.to_string(), "10", "60"])).collect();
    for reply in both.client.pipeline(&calls.iter().collect::<Vec<_>>()) {
        reply?;
    }
    for (before, call, expected) in EDGES {
        let words: Vec<Vec<&str>> = before.iter().map(|command| command.split(' ').collect()).collect();
        let about = |error| format!("{call} after {before:?}: {error}");
        let text = match same(&mut both, &words, call).map_err(about)? {
            Ok(integers) => format!("{integers:?}"),
            Err(error) => error,
        };
        assert!(text.starts_with(expected), "{call} after {before:?}: {text}");
    }
    for (members, is_foreign) in HELD {
        let mut words: Vec<String> = ["ZADD", "k", "1", "parts"].map(str::to_owned).to_vec();
        for text in members {
            let score = match text.split(' ').next() {
                Some("part") => member::of_further(b"me", b"q"),
                Some("end") => member::of_key(b"q"),
                _ => member::of_owner(b"me"),
            };
            words.extend([score.to_string(), (*text).to_owned()]);
        }
        let reply = same(&mut both, &[words], "CL.MSETTLE q FIXED 9 60 1 HOLD k me")
            .map_err(|error| format!("holds {members:?}: {error}"))?;
        let foreign =
            "ERR the key does not hold this limiter's state: expected the parts of holds, stored by HOLD";
        assert_eq!(reply.err().as_deref(), is_foreign.then_some(foreign), "{members:?}");
    }
    // A rate is alone in the record, beside a window. Both have ended.
    let mut words = ["ZADD", "k", "2", "parts"].map(str::to_owned).to_vec();
    for (score, text) in [
        (member::of_owner(b"me"), "id 2 me 1 r 1799999999000000000 1000000000 rate 0 1 - 1000000000"),
        (member::of_owner(b"me"), "more 2 me 1 q"),
        (
            member::of_further(b"me", b"q"),
            "part 2 me 1 q 1799999999000000000 1000000000 window 0 1 1800000030000000000",
        ),
        (member::of_key(b"r"), "end 1799999999000000000 1000000000 2 me 1 r"),
        (member::of_key(b"q"), "end 1799999999000000000 1000000000 2 me 1 q"),
    ] {
        words.extend([score.to_string(), text.to_owned()]);
    }
    let before =
        ["DEL r", "SET q 1 PXAT 1800000030000"].map(|call| call.split(' ').map(str::to_owned).collect());
    let before: Vec<_> = before.into_iter().chain([words]).collect();
    let call = "CL.MTAKE q FIXED 9 60 1 r THROTTLE 9 1 60 1 HOLD k 60 you";
    let reply = same(&mut both, &before, call)?.map(|integers| format!("{integers:?}"));
    assert_eq!(reply.as_deref(), Ok("[0, 9, 8, -1, 60, 0, 9, 8, -1, 60, 0, 10, 9, -1, 60]"));
    Ok(())
}

#[test]
fn edges_are_equal() {
    edges(&FUNCTIONS).unwrap();
}

/// In the command, `ONCE` is a key if a complete limiter follows it. Then the key of the function's `ONCE`
/// is the word for its kind.
#[test]
fn a_key_of_once_that_is_a_kind_is_the_error_of_the_command() {
    let mut both = Both::at(WALL, &FUNCTIONS);
    for (verb, kind, rest) in [
        ("MTAKE", "FIXED", "60 MS AGO 5"),
        ("MSETTLE", "fixed", "60 AGO 5"),
        ("MSETTLE", "LOG", "60 AGO 5 MS"),
        ("MSETTLE", "THROTTLE", "60 AGO 5 MS"),
        ("MSETTLE", "LEASE", "60 MS AGO 5"),
        ("MSETTLE", "LEASE", "60 MS"),
        ("MTAKE", "FIXED", "60"),
    ] {
        let limiter = "FIXED 5 60 1";
        let function = format!("FCALL cl_{} 2 k {kind} {limiter} ONCE {rest}", verb.to_lowercase());
        let answers = [format!("CL.{verb} k {limiter} ONCE {kind} {rest}"), function].map(|call| {
            both.client.call("FLUSHALL");
            let answer = both.client.ask(call.as_str());
            (answer, both.client.int("DBSIZE"))
        });
        assert_eq!(answers[0], answers[1], "{verb} {kind} {rest}");
    }
}
