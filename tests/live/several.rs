//! CL.MTAKE, CL.MPEEK and CL.MSETTLE: several limiters of any kind in one call.

use crate::common::{Client, Effect, KINDS, Options, ReplicaStream, Server, wait_until};
use crate::replication::{attach, catch_up};
use redis::Value;

/// The rows of a call: the combined one, then one for each key.
pub fn rows<W: crate::common::Words + ?Sized>(client: &mut Client, command: &W) -> Vec<Vec<i64>> {
    client.get(command)
}

/// Runs `calls` as one transaction, microseconds apart, and returns the answers.
fn at_once(client: &mut Client, calls: &[&str]) -> Vec<Value> {
    client.call("MULTI");
    for call in calls {
        client.call(*call);
    }
    let Value::Array(answers) = client.call("EXEC") else { panic!("EXEC answered no array: {calls:?}") };
    for (call, answer) in calls.iter().zip(&answers) {
        assert!(!matches!(answer, Value::ServerError(_)), "{call}: {answer:?}");
    }
    answers
}

fn table(answer: &Value) -> Vec<Vec<i64>> {
    redis::from_redis_value(answer.clone()).unwrap_or_else(|e| panic!("{answer:?}: {e}"))
}

fn row(answer: &Value) -> Vec<i64> {
    redis::from_redis_value(answer.clone()).unwrap_or_else(|e| panic!("{answer:?}: {e}"))
}

/// Every kind: a limiter of ten units or two places, and the single command on the same state. `#` is the
/// quantity.
fn kinds() -> Vec<(String, String)> {
    let kinds = KINDS.iter().map(|kind| {
        let (limit, asked) = (if kind.has_quantity() { 10 } else { 2 }, kind.asked("#", "id#"));
        (kind.limiter(limit, 3600, asked), kind.call("KEY", limit, 3600, asked))
    });
    let mut kinds: Vec<_> = kinds.collect();
    kinds.insert(4, ("FIXED 10 YEAR UTC -90 #".to_owned(), "CL.FIXED KEY 10 YEAR # UTC -90".to_owned()));
    kinds
}

/// The kinds with a quantity.
fn counting_kinds() -> impl Iterator<Item = (String, String)> {
    kinds().into_iter().filter(|(limiter, _)| !limiter.starts_with("LEASE"))
}

fn with(template: &str, quantity: i64, key: &str) -> String {
    template.replace('#', &quantity.to_string()).replace("KEY", key)
}

/// The limiter on a key of its own, as it stands in a call.
fn on(number: usize, limiter: &str, quantity: i64) -> String {
    format!(" k{number} {}", with(limiter, quantity, ""))
}

#[test]
fn the_gateway_of_the_contract() {
    let server = Server::start();
    let mut client = server.connect();
    let take = "CL.MTAKE {o7}:rpm THROTTLE 99 100 60 1 {o7}:tpm THROTTLE 19999 100000 60 1200 \
                {o7}:month FIXED 10000000 MONTH 1200 {o7}:busy LEASE 20 120 req-5";
    let answer = rows(&mut client, take);
    assert_eq!(answer.len(), 5);
    assert_eq!(answer[1], [0, 100, 99, -1, 1]);
    assert_eq!(answer[2], [0, 20_000, 18_800, -1, 1]);
    assert_eq!(answer[3][..4], [0, 10_000_000, 9_998_800, -1]);
    assert_eq!(answer[4], [0, 20, 19, -1, 120]);
    assert_eq!(answer[0], [0, 20, 19, -1, answer[3][4].max(120)], "the tightest, and the longest");
    let settle = "CL.MSETTLE {o7}:tpm THROTTLE 19999 100000 60 -350 {o7}:month FIXED 10000000 MONTH -350 \
                  {o7}:busy LEASE 20 0 req-5 AGO 0";
    let settled = rows(&mut client, settle);
    assert_eq!(settled[2][..4], [0, 10_000_000, 9_999_150, -1]);
    assert_eq!(settled[3], [0, 20, 20, -1, 0]);
    assert_eq!(client.int("EXISTS {o7}:busy"), 0, "the last place given back takes the key along");
    assert_eq!(client.int("GET {o7}:month"), 850);
}

#[test]
fn each_row_is_the_answer_of_the_single_command_on_the_same_state() {
    let server = Server::start();
    let mut client = server.connect();
    for (limiter, single) in &kinds() {
        for quantity in [3, 0, 4, 2, 2, 11, 1, 0] {
            let take = format!("CL.MTAKE m {}", with(limiter, quantity, "m"));
            let peek = format!("CL.MPEEK m {}", with(limiter, quantity, "m"));
            let alone = with(single, quantity, "s");
            let answers = at_once(&mut client, &[&peek, &take, &alone]);
            let (peeked, taken, alone) = (table(&answers[0]), table(&answers[1]), row(&answers[2]));
            assert_eq!(taken, [alone.clone(), alone.clone()], "{take}");
            assert_eq!((peeked[1][0], peeked[1][3]), (alone[0], alone[3]), "{peek} before {alone:?}");
            if alone[0] == 1 || quantity == 0 && !limiter.starts_with("LEASE") {
                assert_eq!(peeked[1], alone, "a refusal and a look leave the state as it is: {peek}");
            }
            assert_eq!(client.text("TYPE m"), client.text("TYPE s"), "{take}");
            // They were decided one after the other, microseconds apart.
            let apart = client.expiry_ms("m") - client.expiry_ms("s");
            assert!(apart.abs() < 1000, "{take}: the keys expire {apart} ms apart");
        }
        client.call("FLUSHALL");
    }
}

#[test]
fn all_or_nothing_with_a_refusal_at_each_position() {
    let server = Server::start();
    let mut client = server.connect();
    let mut stream = ReplicaStream::attach(&server);
    let kinds = kinds();
    for kind in &KINDS {
        for position in 0..kinds.len() {
            client.call("FLUSHALL");
            client.call(&kind.call("full", 1, 3600, kind.asked("1", "other")));
            let mut call = String::from("CL.MTAKE");
            for (at, (limiter, _)) in kinds.iter().enumerate() {
                if at == position {
                    call += " full ";
                    call += &kind.limiter(1, 3600, kind.asked("1", "me"));
                }
                call += &on(at, limiter, 3);
            }
            let before = client.snapshot("full");
            stream.effects(&server);
            let answer = rows(&mut client, &call);
            assert_eq!(answer.len(), kinds.len() + 2, "every row is there: {call}");
            let refused = &answer[position + 1];
            assert_eq!(refused[..3], [1, 1, 0], "{call}");
            assert!(refused[3] > 0, "{call}: {refused:?}");
            assert_eq!((answer[0][0], answer[0][3]), (1, refused[3]), "{call}: {answer:?}");
            for (at, row) in answer[1..].iter().enumerate().filter(|(at, _)| *at != position) {
                let limit = if row[1] == 2 { 2 } else { 10 };
                assert_eq!(row[..4], [0, limit, limit, -1], "row {at} speaks for itself, unconsumed: {call}");
                assert_eq!(row[4], 0, "row {at}: {call}");
            }
            assert_eq!(client.snapshot("full"), before, "{call}");
            assert_eq!(client.int("DBSIZE"), 1, "{call}");
            assert_eq!(stream.effects(&server), [], "{call}");
        }
    }
}

#[test]
fn an_error_at_any_position_is_the_calls_error_and_nothing_is_charged() {
    let server = Server::start();
    let mut client = server.connect();
    client.call("SET text foo");
    client.call("RPUSH list a");
    client.call("CL.THROTTLE used 9 10 3600 3");
    let mut stream = ReplicaStream::attach(&server);
    let keys = ["text", "list", "used"];
    let before = keys.map(|key| client.snapshot(key));
    let dirty = client.info("rdb_changes_since_last_save");
    for (limiter, _) in kinds() {
        let limiter = with(&limiter, 1, "");
        for (bad, error) in [("text", ""), ("list", "WRONGTYPE ")] {
            let string = limiter.starts_with("THROTTLE") || limiter.starts_with("FIXED");
            let error = if error.is_empty() && string { "ERR the key does not hold" } else { "WRONGTYPE " };
            for call in [
                format!("{bad} {limiter} used THROTTLE 9 10 3600 1 fresh LOG 5 60 1"),
                format!("used THROTTLE 9 10 3600 1 {bad} {limiter} fresh LOG 5 60 1"),
                format!("used THROTTLE 9 10 3600 1 fresh LOG 5 60 1 {bad} {limiter}"),
                format!("used THROTTLE 9 10 3600 1 full THROTTLE 0 1 60 2 {bad} {limiter}"),
            ] {
                for command in ["CL.MTAKE", "CL.MPEEK", "CL.MSETTLE"] {
                    let seen = client.error(&format!("{command} {call}"));
                    assert!(seen.starts_with(error), "{command} {call}: {seen}");
                }
                let shadowed = client
                    .error(&format!("CL.MTAKE {}", call.replace(&limiter, &format!("SHADOW {limiter}"))));
                assert!(shadowed.starts_with(error), "SHADOW hides no error: {call}: {shadowed}");
            }
        }
    }
    assert_eq!(keys.map(|key| client.snapshot(key)), before);
    assert_eq!(client.info("rdb_changes_since_last_save"), dirty);
    assert_eq!(stream.effects(&server), []);
}

#[test]
fn a_quantity_above_a_limit_is_refused_permanently_and_so_is_the_call() {
    let server = Server::start();
    let mut client = server.connect();
    client.call("CL.THROTTLE full 0 1 3600");
    for (limiter, _) in counting_kinds() {
        let call = format!("CL.MTAKE full THROTTLE 0 1 3600 1 k {}", with(&limiter, 11, ""));
        let answer = rows(&mut client, &call);
        assert_eq!((answer[0][0], answer[0][3]), (1, -1), "{call}: {answer:?}");
        assert_eq!(answer[2], [1, 10, 10, -1, 0], "{call}");
        assert!(answer[1][3] > 0, "{call}: {answer:?}");
    }
    assert_eq!(client.int("DBSIZE"), 1);
}

#[test]
fn a_limiter_in_shadow_refuses_nothing_and_takes_when_it_may() {
    let server = Server::start();
    let mut client = server.connect();
    // It admits: it takes like any other.
    let call = "CL.MTAKE a THROTTLE 9 10 3600 1 b SHADOW THROTTLE 1 2 3600 1";
    assert_eq!(rows(&mut client, call), [[0, 10, 9, -1, 360], [0, 10, 9, -1, 360], [0, 2, 1, -1, 1800]]);
    // It would refuse: its row says so, and the combined one leaves it out.
    let call = "CL.MTAKE a THROTTLE 9 10 3600 2 b SHADOW THROTTLE 1 2 3600 2";
    let answer = rows(&mut client, call);
    assert_eq!(answer[0][..4], [0, 10, 7, -1]);
    assert_eq!(answer[1][..4], [0, 10, 7, -1]);
    assert_eq!(answer[2][..3], [1, 2, 1]);
    assert!(answer[2][3] > 0, "{answer:?}");
    // If another limiter refuses, it takes nothing either.
    let before = client.snapshot("b");
    let call = "CL.MTAKE a THROTTLE 9 10 3600 8 b SHADOW THROTTLE 1 2 3600 1";
    let answer = rows(&mut client, call);
    assert_eq!((&answer[0][..3], &answer[2][..4]), (&[1, 10, 7][..], &[0, 2, 1, -1][..]));
    assert_eq!(client.snapshot("b"), before);
    // All of them in shadow: admitted, whatever they decide.
    let call = "CL.MTAKE b SHADOW THROTTLE 1 2 3600 2 c shadow FIXED 1 60 5 d SHADOW LEASE 1 60 me";
    let answer = rows(&mut client, call);
    assert_eq!(answer[0][..4], [0, 1, 0, -1], "limit and remaining of the tightest: {answer:?}");
    assert_eq!((answer[1][0], answer[2][0], answer[2][3]), (1, 1, -1));
    assert_eq!(answer[3], [0, 1, 0, -1, 60]);
    assert_eq!(client.int("EXISTS c"), 0);
    // INFO counts them separately, and CL.TOP does not record them.
    let fields = crate::info::fields(&mut client);
    let count = |what: &str| fields[&format!("mtake_{what}")].clone();
    assert_eq!(["admitted", "refused", "errors", "shadow_refused"].map(count), ["3", "1", "0", "3"]);
    let top: Vec<Vec<Value>> = client.get("CL.TOP");
    assert_eq!(top.len(), 1, "{top:?}");
}

#[test]
fn the_combined_row_is_of_the_tightest_and_waits_for_the_slowest() {
    let server = Server::start();
    let mut client = server.connect();
    client.call("CL.THROTTLE full 0 1 3600");
    client.call("CL.THROTTLE longer 0 1 7200");
    let call = "CL.MTAKE fresh THROTTLE 4 5 3600 1 full THROTTLE 0 1 3600 1 longer THROTTLE 0 1 7200 1";
    let answer = rows(&mut client, call);
    assert_eq!(answer[1], [0, 5, 5, -1, 0]);
    assert!((7199..=7200).contains(&answer[3][3]) && (3599..=3600).contains(&answer[2][3]), "{answer:?}");
    assert_eq!(answer[0], [1, 1, 0, answer[3][3], answer[3][4]]);
    // Of two that are as tight, the first.
    let call = "CL.MTAKE x THROTTLE 6 1 60 2 y FIXED 5 60 0";
    assert_eq!(rows(&mut client, call)[0], [0, 7, 5, -1, 120]);
}

#[test]
fn words_are_keys_where_a_kind_stands_behind_them() {
    let server = Server::start();
    let mut client = server.connect();
    let call = "CL.MTAKE THROTTLE THROTTLE 9 10 3600000 1 MS FIXED 10 60000 1 AGO SHADOW LOG 5 60000 1 \
                SHADOW LEASE 1 60000 LOG ms";
    let answer = rows(&mut client, call);
    assert_eq!(answer.len(), 5);
    assert_eq!(answer[1][4], 360_000, "ms is the unit of the call: 360,000 of 3,600,000 milliseconds");
    for key in ["THROTTLE", "MS", "AGO", "SHADOW"] {
        assert_eq!(client.int(&["EXISTS", key]), 1, "{key}");
    }
    let keys: Vec<String> = client.get(&format!("COMMAND GETKEYS {call}"));
    assert_eq!(keys, ["THROTTLE", "MS", "AGO", "SHADOW"]);
    // An empty key, one that is not UTF-8, and one with a NUL byte.
    let words: Vec<&[u8]> = vec![
        b"CL.MTAKE",
        b"",
        b"throttle",
        b"9",
        b"10",
        b"60",
        b"1",
        b"\xff\xfe",
        b"Fixed",
        b"5",
        b"60",
        b"1",
        b"a\0b",
        b"LEASE",
        b"1",
        b"60",
        b"\0\xff",
    ];
    assert_eq!(rows(&mut client, &words).len(), 4);
}

#[test]
fn what_is_wrong_with_the_arguments_is_said() {
    let server = Server::start();
    let mut client = server.connect();
    client.call("CL.THROTTLE used 9 10 3600");
    let before = client.snapshot("used");
    for (arguments, named) in [
        ("a NOTHING 9 10 60 1", "syntax error"),
        ("a THROTTLE 9 10 60", "syntax error"),
        ("a THROTTLE 9 10 60 1 b", "syntax error"),
        ("a THROTTLE 9 10 60 1 b THROTTLE", "syntax error"),
        ("a THROTTLE 9 10 60 1 b THROTTLE 9 10 60", "syntax error"),
        ("a THROTTLE 9 10 60 1 S MS", "syntax error"),
        ("a THROTTLE 9 10 60 1 SATURATE", "syntax error"),
        ("a THROTTLE 9 10 60 1 AGO 5", "syntax error"),
        ("a RESET 5 THROTTLE 9 10 60 1", "syntax error"),
        ("a THROTTLE 9 10 60 1 PREPAY", "syntax error"),
        ("a SHADOW 9 10 60 1", "syntax error"),
        ("a SHADOW SHADOW THROTTLE 9 10 60 1", "syntax error"),
        ("a THROTTLE 9 10 60 -1", "quantity"),
        ("a THROTTLE 9 10 60 x", "quantity"),
        ("a THROTTLE x 10 60 1", "max_burst"),
        ("a THROTTLE 9 0 60 1", "count"),
        ("a THROTTLE 9 10 0 1", "period"),
        ("a FUNNEL 0 10 60 1", "capacity"),
        ("a BUCKET 5 10 60 -1", "quantity"),
        ("a FIXED 0 60 1", "limit"),
        ("a FIXED 5 NEVER 1", "HOUR, DAY"),
        ("a FIXED 5 60 UTC 60 1", "syntax error"),
        ("a FIXED 5 DAY UTC 841 1", "UTC"),
        ("a FIXED 5 MONTH FROM 32 1", "FROM"),
        ("a FIXED 5 MONTH FROM 1 FROM 2 1", "syntax error"),
        ("a WINDOW 5 0 1", "period"),
        ("a LOG 1000001 60 1", "limit"),
        ("a LOG 5 60 10001", "quantity"),
        ("a LEASE 0 60 me", "limit"),
        ("a LEASE 1 0 me", "lease"),
        ("used THROTTLE 9 10 60 1 used FIXED 5 60 1", "same key"),
        ("a THROTTLE 9 10 60 1 used LOG 5 60 1 a BUCKET 5 10 60 1", "same key"),
        ("used THROTTLE 9 10 3600 1 a THROTTLE 9 10 60 x", "quantity"),
    ] {
        for command in ["CL.MTAKE", "CL.MPEEK"] {
            let error = client.error(&format!("{command} {arguments}"));
            assert!(error.starts_with("ERR ") && error.contains(named), "{command} {arguments}: {error}");
        }
    }
    for (arguments, named) in [
        ("a THROTTLE 9 10 60 -9223372036854775808", "quantity"),
        ("a THROTTLE 9 10 60 1 AGO", "syntax error"),
        ("a THROTTLE 9 10 60 1 AGO -1", "AGO"),
        ("a THROTTLE 9 10 60 1 AGO x", "AGO"),
        ("a THROTTLE 9 10 60 1 AGO 1 AGO 1", "syntax error"),
        ("a SHADOW THROTTLE 9 10 60 1", "syntax error"),
        ("a RESET 5 THROTTLE 9 10 60 -1", "syntax error"),
        ("a RESET 5 RESET 5 THROTTLE 9 10 60 -1 AGO 1", "syntax error"),
        ("a RESET THROTTLE 9 10 60 -1 AGO 1", "syntax error"),
        ("a RESET -1 THROTTLE 9 10 60 -1 AGO 1", "RESET"),
        ("a RESET -1 LOG 9 60 -1 AGO 1", "RESET"),
        ("a RESET x THROTTLE 9 10 60 -1 AGO 1", "RESET"),
        ("a RESET 9223372037 THROTTLE 9 10 60 -1 AGO 1", "RESET"),
        ("a LEASE 1 -1 me", "lease"),
    ] {
        let error = client.error(&format!("CL.MSETTLE {arguments}"));
        assert!(error.starts_with("ERR ") && error.contains(named), "CL.MSETTLE {arguments}: {error}");
    }
    assert!(client.error("CL.MPEEK a SHADOW THROTTLE 9 10 60 1").contains("syntax error"));
    for command in ["cl.mtake", "cl.mpeek", "cl.msettle"] {
        let error = client.error(&format!("{command} a THROTTLE"));
        assert_eq!(error, format!("ERR wrong number of arguments for '{command}' command"));
    }
    assert_eq!(client.snapshot("used"), before);
    assert_eq!(client.int("DBSIZE"), 1);
    server.assert_alive("wrong arguments");
}

#[test]
fn the_server_finds_the_keys() {
    let server = Server::start();
    let mut client = server.connect();
    let limiters =
        "a THROTTLE 9 10 60 1 b FIXED 5 MONTH UTC 60 FROM 3 1 c LEASE 1 60 THROTTLE d WINDOW 5 60 1";
    for call in [
        format!("CL.MTAKE {limiters}"),
        format!("CL.MPEEK {limiters} MS"),
        format!("CL.MSETTLE {limiters} AGO 5 MS"),
        format!("CL.MSETTLE {limiters} AGO 5 MS").replace(" THROTTLE 9", " reset 60 THROTTLE 9"),
        format!("CL.MSETTLE {limiters} AGO 5").replace("b FIXED", "b RESET 60 FIXED"),
    ] {
        let keys: Vec<String> = client.get(&format!("COMMAND GETKEYS {call}"));
        assert_eq!(keys, ["a", "b", "c", "d"], "{call}");
    }
    let keys: Vec<String> = client.get("COMMAND GETKEYS CL.MTAKE a SHADOW FIXED 5 60 1 b SHADOW LOG 5 60 1");
    assert_eq!(keys, ["a", "b"]);
    for call in
        ["CL.MTAKE a b c", "CL.MTAKE a THROTTLE 1", "CL.MSETTLE a LEASE 1 60", "CL.MPEEK a FIXED 5 UNTIL"]
    {
        let _ = client.ask(&format!("COMMAND GETKEYS {call}"));
    }
    server.assert_alive("calls whose keys cannot be found");
    client.call("ACL SETUSER tenant on nopass ~a* +cl.mtake +cl.mpeek +cl.msettle");
    client.call("AUTH tenant any");
    for command in ["CL.MTAKE", "CL.MPEEK", "CL.MSETTLE"] {
        assert_eq!(rows(&mut client, &format!("{command} a1 THROTTLE 9 10 60 1 a2 LOG 5 60 1")).len(), 3);
        for call in ["a1 THROTTLE 9 10 60 1 b LOG 5 60 1", "b LOG 5 60 1 a1 THROTTLE 9 10 60 1"] {
            let error = client.error(&format!("{command} {call}"));
            assert!(error.starts_with("NOPERM "), "{command} {call}: {error}");
        }
    }
}

#[test]
fn all_effects_are_one_transaction() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    rows(&mut client, "CL.MTAKE a THROTTLE 9 10 3600 1 b THROTTLE 99 100 7200 1");
    let mut effects = Effect::of_call(&mut client, 0, "a");
    effects.extend(Effect::of_call(&mut client, 0, "b"));
    assert_eq!(stream.effects(&server), Effect::transaction(0, effects));
    // All kinds: the effects are one transaction, and a check propagates nothing.
    let all = |quantity| {
        let limiters = kinds().into_iter().enumerate();
        limiters.fold(String::new(), |call, (at, (limiter, _))| call + &on(at, &limiter, quantity))
    };
    for call in
        [format!("CL.MTAKE{}", all(2)), format!("CL.MSETTLE{}", all(-1)).replace("LEASE 2 3600", "LEASE 2 0")]
    {
        rows(&mut client, &call);
        let effects = stream.effects(&server);
        let words: Vec<&str> =
            effects.iter().map(|effect| effect.command.split(' ').next().unwrap()).collect();
        assert_eq!((words.first(), words.last()), (Some(&"MULTI"), Some(&"EXEC")), "{call}: {words:?}");
        assert_eq!(words.iter().filter(|word| **word == "MULTI").count(), 1, "{call}: {words:?}");
        assert!(words.iter().all(|word| !word.starts_with("CL.")), "{call}: {words:?}");
    }
    rows(&mut client, &format!("CL.MPEEK{}", all(1)));
    rows(&mut client, &format!("CL.MSETTLE{}", all(0)).replace(" k7 LEASE 2 3600 id0", ""));
    assert_eq!(stream.effects(&server), []);
}

#[test]
fn replicas_and_scripts_and_transactions() {
    let primary = Server::start();
    let replica = attach(&primary, Options::new());
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    let script =
        "return redis.call('CL.MTAKE', KEYS[1], 'THROTTLE', 9, 10, 3600, 1, KEYS[2], 'LOG', 5, 3600, 1)";
    assert_eq!(rows(&mut client, &["EVAL", script, "2", "a", "b"])[0], [0, 5, 4, -1, 3600]);
    client.call("MULTI");
    client.call("CL.MTAKE a THROTTLE 9 10 3600 2 b LOG 5 3600 2 c FIXED 5 3600 1 d LEASE 1 3600 me");
    client.call("CL.MSETTLE a THROTTLE 9 10 3600 -1 b LOG 5 3600 -1");
    assert!(matches!(client.call("EXEC"), Value::Array(replies) if replies.len() == 2));
    catch_up(&mut client, &mut copy);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(copy.snapshot(key), client.snapshot(key), "{key}");
    }
    for command in ["CL.MTAKE", "CL.MSETTLE"] {
        assert!(copy.error(&format!("{command} a THROTTLE 9 10 60 1")).starts_with("READONLY "));
    }
    let peek = "CL.MPEEK a THROTTLE 9 10 3600 1 b LOG 5 3600 1 d LEASE 1 3600 me e LEASE 1 60 me";
    let (here, there) = (rows(&mut client, peek), rows(&mut copy, peek));
    assert_eq!(here[3][..4], [0, 1, 0, -1], "a holder would be admitted");
    assert_eq!(here[4], [0, 1, 1, -1, 0]);
    let without_times = |rows: &[Vec<i64>]| rows.iter().map(|row| row[..4].to_vec()).collect::<Vec<_>>();
    assert_eq!(without_times(&here), without_times(&there));
    let script = "return redis.call('CL.MPEEK', KEYS[1], 'THROTTLE', 9, 10, 3600, 1)";
    if client.has_command("EVAL_RO") {
        assert_eq!(rows(&mut copy, &["EVAL_RO", script, "1", "a"]).len(), 2);
    }
    let mut resp3 = primary.connect_resp3();
    assert_eq!(rows(&mut resp3, "CL.MTAKE f THROTTLE 9 10 3600 1").len(), 2);
}

/// Settlements on a limiter of ten that has taken five, one transaction each, so that next to no time passes.
#[test]
fn a_settlement_takes_regardless_and_gives_back_what_was_taken() {
    let server = Server::start();
    let mut client = server.connect();
    for (kind, difference, expected) in [
        ("THROTTLE 9 10 3600", "0", "0 10 5 -1 1800"),
        ("THROTTLE 9 10 3600", "-2", "0 10 7 -1 1080"),
        ("THROTTLE 9 10 3600", "5", "0 10 0 -1 3600"),
        ("THROTTLE 9 10 3600", "18", "1 10 0 5040 8280"),
        ("THROTTLE 9 10 3600", "-5", "gone"),
        ("THROTTLE 9 10 3600", "-9223372036854775807", "gone"),
        ("FUNNEL 10 10 3600", "0", "0 10 5 -1 1800"),
        ("FUNNEL 10 10 3600", "-2", "0 10 7 -1 1080"),
        ("FUNNEL 10 10 3600", "5", "0 10 0 -1 3600"),
        ("FUNNEL 10 10 3600", "18", "1 10 0 5040 8280"),
        ("FUNNEL 10 10 3600", "-5", "gone"),
        ("FUNNEL 10 10 3600", "-9223372036854775807", "gone"),
        ("BUCKET 10 10 3600", "0", "0 10 5 -1 1800"),
        ("BUCKET 10 10 3600", "-2", "0 10 7 -1 1080"),
        ("BUCKET 10 10 3600", "18", "1 10 0 5040 8280"),
        ("BUCKET 10 10 3600", "-6", "gone"),
        ("FIXED 10 3600", "0", "0 10 5 -1 3600"),
        ("FIXED 10 3600", "-2", "0 10 7 -1 3600"),
        ("FIXED 10 3600", "5", "0 10 0 -1 3600"),
        ("FIXED 10 3600", "18", "1 10 0 3600 3600"),
        ("FIXED 10 3600", "-5", "gone"),
        ("FIXED 10 3600", "-9223372036854775807", "gone"),
        ("WINDOW 10 3600000", "0", "0 10 5 -1 *"),
        ("WINDOW 10 3600000", "-2", "0 10 7 -1 *"),
        ("WINDOW 10 3600000", "5", "0 10 0 -1 *"),
        ("WINDOW 10 3600000", "18", "1 10 0 * *"),
        ("WINDOW 10 3600000", "-5", "gone"),
        ("LOG 10 3600", "0", "0 10 5 -1 3600"),
        ("LOG 10 3600", "-2", "0 10 7 -1 3600"),
        ("LOG 10 3600", "5", "0 10 0 -1 3600"),
        ("LOG 10 3600", "18", "1 10 0 3600 3600"),
        ("LOG 10 3600", "-5", "gone"),
        ("LOG 10 3600", "-9223372036854775807", "gone"),
    ] {
        let take = format!("CL.MTAKE k {kind} 5");
        let settle = format!("CL.MSETTLE k {kind} {difference}");
        let answers = at_once(&mut client, &["DEL k", &take, &settle, "EXISTS k"]);
        let seen = table(&answers[2]);
        assert_eq!(seen[0], seen[1], "{settle}");
        let gone = expected == "gone";
        let expected = if gone { "0 10 10 -1 0" } else { expected };
        let matches = expected.split(' ').zip(&seen[1]).all(|(word, n)| word == "*" || word == n.to_string());
        assert!(matches, "{settle}: {:?}, not {expected}", seen[1]);
        assert_eq!(answers[3], Value::Int(i64::from(!gone)), "{settle}");
    }
}

#[test]
fn a_settlement_never_creates_a_state_by_giving_back() {
    let server = Server::start();
    let mut client = server.connect();
    let mut stream = ReplicaStream::attach(&server);
    for (limiter, _) in counting_kinds() {
        for difference in [0, -1, -1_000_000] {
            let call = format!("CL.MSETTLE k {}", with(&limiter, difference, ""));
            assert_eq!(rows(&mut client, &call)[1], [0, 10, 10, -1, 0], "{call}");
        }
    }
    assert_eq!(client.int("DBSIZE"), 0);
    assert_eq!(stream.effects(&server), []);
    // Taking does.
    for (at, (limiter, _)) in counting_kinds().enumerate() {
        let call = format!("CL.MSETTLE k{at} {}", with(&limiter, 3, ""));
        assert_eq!(rows(&mut client, &call)[1][..4], [0, 10, 7, -1], "{call}");
    }
    assert_eq!(client.int("DBSIZE"), 7);
}

#[test]
fn a_settlement_of_a_lease_renews_or_releases() {
    let server = Server::start();
    let mut client = server.connect();
    rows(&mut client, "CL.MTAKE k LEASE 2 60 a");
    rows(&mut client, "CL.MTAKE k LEASE 2 60 b");
    assert_eq!(rows(&mut client, "CL.MSETTLE k LEASE 2 120 a")[1], [0, 2, 0, -1, 120]);
    assert_eq!(
        rows(&mut client, "CL.MSETTLE k LEASE 2 120 c")[1][..3],
        [1, 2, 0],
        "it holds none and wanted one"
    );
    assert_eq!(client.int("ZCARD k"), 2, "and gets none by this");
    assert_eq!(rows(&mut client, "CL.MSETTLE k LEASE 2 0 c")[1][..3], [0, 2, 0], "it wanted none");
    assert_eq!(rows(&mut client, "CL.MSETTLE k LEASE 2 0 b")[1][..4], [0, 2, 1, -1]);
    assert_eq!(rows(&mut client, "CL.MSETTLE k LEASE 2 0 a")[1], [0, 2, 2, -1, 0]);
    assert_eq!(client.int("EXISTS k"), 0);
    assert_eq!(rows(&mut client, "CL.MSETTLE k LEASE 2 60 a")[1][0], 1);
    assert_eq!(client.int("EXISTS k"), 0);
}

/// With `AGO`, units that must have leaked are not given back.
#[test]
fn what_is_no_longer_owed_is_not_given_back() {
    let server = Server::start();
    let mut client = server.connect();
    for (reset, kind, ago, remaining) in [
        // Ten units an hour, ten taken now: after 30 minutes eight units, alone, would still owe three.
        ("", "THROTTLE 9 10 3600", "1800", 3),
        ("", "THROTTLE 9 10 3600", "2880", 0),
        ("", "THROTTLE 9 10 3600", "9223372036", 0),
        ("", "THROTTLE 9 10 3600", "0", 8),
        ("", "FUNNEL 10 10 3600", "1800", 3),
        ("", "BUCKET 10 10 3600", "2880", 0),
        // If an hour was owed after the call, half an hour is owed after half an hour; a second is rounding.
        ("RESET 3600 ", "THROTTLE 9 10 3600", "0", 8),
        ("RESET 3600 ", "THROTTLE 9 10 3600", "1799", 5),
        ("RESET 3600 ", "THROTTLE 9 10 3600", "1800", 4),
        ("RESET 3600 ", "THROTTLE 9 10 3600", "3599", 0),
        ("RESET 0 ", "THROTTLE 9 10 3600", "0", 0),
        ("RESET 9223372036 ", "THROTTLE 9 10 3600", "9223372036", 0),
        ("reset 3600 ", "FUNNEL 10 10 3600", "1799", 5),
        ("RESET 3600 ", "BUCKET 10 10 3600", "1800", 4),
        // The call that opened the window is as old as the window, but for rounding.
        ("", "FIXED 10 3600", "0", 8),
        ("", "FIXED 10 3600", "1", 8),
        ("", "FIXED 10 3600", "2", 0),
        ("", "FIXED 10 3600", "3601", 0),
        ("RESET 3600 ", "FIXED 10 3600", "3599", 8),
        ("RESET 3600 ", "FIXED 10 3600", "3600", 0),
        ("RESET 1 ", "FIXED 10 YEAR", "31622401", 0),
        ("", "FIXED 10 HOUR", "3601", 0),
        ("", "WINDOW 10 3600000", "3600001", 0),
        ("RESET 5 ", "LOG 10 3600", "0", 8),
        ("", "LOG 10 3600", "1", 0),
    ] {
        let take = format!("CL.MTAKE k {kind} 10");
        let settle = format!("CL.MSETTLE k {reset}{kind} -8 AGO {ago}");
        let answers = at_once(&mut client, &["DEL k", &take, &settle]);
        let seen = table(&answers[2]);
        assert_eq!(seen[1][2], remaining, "{settle}: {seen:?}");
    }
}

/// A late call gets back only the units that have not leaked away, whatever others have taken since.
#[test]
fn what_others_have_taken_since_is_not_given_back() {
    let server = Server::start();
    let mut client = server.connect();
    for kind in ["THROTTLE 9 10 3000", "FUNNEL 10 10 3000", "BUCKET 10 10 3000"] {
        client.call("DEL k");
        let first = rows(&mut client, &format!("CL.MTAKE k {kind} 5 MS"));
        std::thread::sleep(std::time::Duration::from_millis(1_501));
        assert_eq!(rows(&mut client, &format!("CL.MTAKE k {kind} 10 MS"))[1][0], 0, "{kind}");
        for reset in [String::new(), format!("RESET {} ", first[1][4])] {
            let settle = format!("CL.MSETTLE k {reset}{kind} -5 AGO 1502 MS");
            assert_eq!(rows(&mut client, &settle)[1][2], 0, "{settle}");
        }
    }
    // A log gives back entries of at least that age, and no later ones: three came half a minute after two.
    client.call("DEL k");
    let time: Vec<i64> = client.get("TIME");
    let mut all = Vec::new();
    for (age, entries) in [(35, 2), (5, 3)] {
        for entry in 0..entries {
            let score = (time[0] - age) * 1_000_000;
            all.push(format!("{score}-{entry}"));
            client.call(&format!("ZADD k {score} {score}-{entry}"));
        }
    }
    client.call("EXPIRE k 60");
    for (settle, remaining) in [("-1 AGO 20", 6), ("-5 AGO 50", 6), ("-5 AGO 20", 7)] {
        assert_eq!(
            rows(&mut client, &format!("CL.MSETTLE k LOG 10 60 {settle}"))[1][2],
            remaining,
            "{settle}"
        );
    }
    let left: Vec<String> = client.get("ZRANGE k 0 -1");
    assert_eq!(left, all[2..]);
    assert_eq!(rows(&mut client, "CL.MSETTLE k LOG 10 60 -5")[1][2], 10);
}

/// Units of a window that the call names and that has ended are charged to nothing, and everything else is
/// settled.
#[test]
fn a_settlement_for_a_window_that_has_ended_releases_the_place() {
    let server = Server::start();
    let mut client = server.connect();
    rows(&mut client, "CL.MTAKE busy LEASE 1 600 me rpm THROTTLE 9 10 3600 5");
    let settle = "CL.MSETTLE day FIXED 100 UNTIL 1000 2 busy LEASE 1 0 me rpm THROTTLE 9 10 3600 2 AGO 61";
    let answer = rows(&mut client, settle);
    assert_eq!(answer[1], [0, 100, 100, -1, 0]);
    assert_eq!((answer[2][2], answer[3][2]), (1, 3), "{answer:?}");
    assert_eq!(client.int("EXISTS day busy"), 0);
    assert!(client.error("CL.MTAKE day FIXED 100 UNTIL 1000 2").starts_with("ERR UNTIL must be"));
}

#[test]
fn when_memory_is_short_what_takes_is_refused_and_what_settles_goes_on() {
    let server = Server::start();
    let mut client = server.connect();
    rows(&mut client, "CL.MTAKE a THROTTLE 9 10 3600 5 b LEASE 1 3600 me");
    client.call("CONFIG SET maxmemory 1");
    assert!(client.error("CL.MTAKE a THROTTLE 9 10 3600 1").starts_with("OOM "));
    assert_eq!(rows(&mut client, "CL.MPEEK a THROTTLE 9 10 3600 1")[1][..3], [0, 10, 5]);
    assert_eq!(rows(&mut client, "CL.MSETTLE a THROTTLE 9 10 3600 -2 b LEASE 1 0 me")[1][..3], [0, 10, 7]);
    client.call("CONFIG SET maxmemory 0");
    assert_eq!(client.int("EXISTS b"), 0);
}

#[test]
fn many_keys() {
    let server = Server::start();
    let mut client = server.connect();
    let (kinds, mut call) = (kinds(), String::from("CL.MTAKE"));
    for at in 0..5000 {
        call += &on(at, &kinds[at % kinds.len()].0, 1);
    }
    let replies = rows(&mut client, &call);
    assert_eq!(replies.len(), 5001);
    assert!(replies.iter().all(|row| row[0] == 0 && row[3] == -1));
    assert_eq!(client.int("DBSIZE"), 5000);
}

#[test]
fn a_key_that_is_named_twice_is_found_among_few_and_among_many() {
    let server = Server::start();
    let mut client = server.connect();
    let kinds = kinds();
    for keys in [1, 2, 15, 16, 17, 500] {
        let different: String = (0..keys).map(|at| on(at, &kinds[at % kinds.len()].0, 1)).collect();
        for again in [0, keys / 2, keys - 1] {
            let error = client.error(&format!("CL.MTAKE{different}{}", on(again, &kinds[0].0, 1)));
            assert!(error.contains("same key"), "{again} of {keys}: {error}");
        }
        assert_eq!(client.int("DBSIZE"), 0, "{keys}");
    }
}

/// Makes a cluster of one node.
pub fn own_all_slots(client: &mut Client) {
    for from in (0..16384).step_by(4096) {
        let slots: Vec<String> = (from..from + 4096).map(|slot| slot.to_string()).collect();
        client.call(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
    }
    wait_until("the cluster to be up", || match client.text("CLUSTER INFO") {
        info if info.contains("cluster_state:ok") => Ok(()),
        info => Err(info),
    });
}

#[test]
fn in_a_cluster_all_keys_share_a_slot() {
    let server = Options::new().set("cluster-enabled", "yes").start();
    let mut client = server.connect();
    own_all_slots(&mut client);
    for command in ["CL.MTAKE", "CL.MPEEK", "CL.MSETTLE"] {
        let error = client.error(&format!("{command} a THROTTLE 9 10 60 1 b LOG 5 60 1"));
        assert!(error.starts_with("CROSSSLOT "), "{error}");
        assert_eq!(
            rows(&mut client, &format!("{command} {{t}}a THROTTLE 9 10 60 1 {{t}}b LOG 5 60 1")).len(),
            3
        );
    }
    assert_eq!(client.int("DBSIZE"), 2);
}

/// Regression: settlements made keys and entries without bound beyond the server's memory limit.
#[test]
fn without_memory_a_settlement_makes_no_keys_and_no_entries() {
    let server = Server::start();
    let mut client = server.connect();
    for call in ["CL.LOG log 1000 3600 5", "CL.THROTTLE old 9 10 3600 5", "CL.ACQUIRE busy 3 60 r1"] {
        client.call(call);
    }
    client.call("CONFIG SET maxmemory 1");
    let before = ["log", "old", "busy", "new"].map(|key| client.snapshot(key));
    for call in [
        "CL.MSETTLE new THROTTLE 9 10 60 1",
        "CL.MSETTLE old THROTTLE 9 10 3600 -2 new FIXED 10 60 1",
        "CL.MSETTLE busy LEASE 3 0 r1 log LOG 1000 3600 2",
    ] {
        assert_eq!(client.error(call), "OOM command not allowed when used memory > 'maxmemory'.", "{call}");
        assert_eq!(["log", "old", "busy", "new"].map(|key| client.snapshot(key)), before, "{call}");
    }
    assert_eq!(crate::info::fields(&mut client)["msettle_out_of_memory"], "3");
    // Settlements that create nothing are accepted.
    client.call(
        "CL.MSETTLE new THROTTLE 9 10 60 -1 old THROTTLE 9 10 3600 2 log LOG 1000 3600 -2 busy LEASE 3 0 r1",
    );
    assert_eq!(client.int("EXISTS busy new"), 0);
    assert_eq!(client.ints("CL.PEEK old 9 10 3600 0")[2], 3);
    assert_eq!(client.int("ZCARD log"), 3);
    client.call("CONFIG SET maxmemory 0");
    client.call("CL.MSETTLE new THROTTLE 9 10 60 1");
    assert_eq!(client.int("EXISTS new"), 1);
}
