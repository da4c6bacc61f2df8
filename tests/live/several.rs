//! CL.MTAKE, CL.MPEEK and CL.MSETTLE: several limiters of any kind in one call.

use crate::common::{Client, KINDS, Options, ReplicaStream, Server, cluster};

/// The rows of a call: the combined one, then one for each key.
pub fn rows<W: crate::common::Words + ?Sized>(client: &mut Client, command: &W) -> Vec<Vec<i64>> {
    client.get(command)
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

fn with(template: &str, quantity: i64, key: &str) -> String {
    template.replace('#', &quantity.to_string()).replace("KEY", key)
}

/// The limiter on a key of its own, as it stands in a call.
fn on(number: usize, limiter: &str, quantity: i64) -> String {
    format!(" k{number} {}", with(limiter, quantity, ""))
}

#[test]
fn all_or_nothing_with_a_refusal_at_each_position() {
    let (server, mut client) = Server::with_client();
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
    let (server, mut client) = Server::with_client();
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
fn words_are_keys_where_a_kind_stands_behind_them() {
    let (_server, mut client) = Server::with_client();
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
    let call = b"CL.MTAKE  throttle 9 10 60 1 \xff\xfe Fixed 5 60 1 a\0b LEASE 1 60 \0\xff";
    let words: Vec<&[u8]> = call.split(|byte| *byte == b' ').collect();
    assert_eq!(rows(&mut client, &words).len(), 4);
}

#[test]
fn the_server_finds_the_keys() {
    let (server, mut client) = Server::with_client();
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

/// Units of a window that the call names and that has ended are charged to nothing, and everything else is
/// settled.
#[test]
fn a_settlement_for_a_window_that_has_ended_releases_the_place() {
    let (_server, mut client) = Server::with_client();
    rows(&mut client, "CL.MTAKE busy LEASE 1 600 me rpm THROTTLE 9 10 3600 5");
    let settle = "CL.MSETTLE day FIXED 100 UNTIL 1000 2 busy LEASE 1 0 me rpm THROTTLE 9 10 3600 2 AGO 61";
    let answer = rows(&mut client, settle);
    assert_eq!(answer[1], [0, 100, 100, -1, 0]);
    assert_eq!((answer[2][2], answer[3][2]), (1, 3), "{answer:?}");
    assert_eq!(client.int("EXISTS day busy"), 0);
    assert!(client.error("CL.MTAKE day FIXED 100 UNTIL 1000 2").starts_with("ERR UNTIL must be"));
}

#[test]
fn a_key_that_is_named_twice_is_found_among_few_and_among_many() {
    let (_server, mut client) = Server::with_client();
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

#[test]
fn in_a_cluster_all_keys_share_a_slot() {
    let nodes = cluster(1, Options::new);
    let mut client = nodes[0].connect();
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
    let (_server, mut client) = Server::with_client();
    for call in ["CL.LOG log 1000 3600 5", "CL.THROTTLE old 9 10 3600 5", "CL.ACQUIRE busy 3 60 r1"] {
        client.call(call);
    }
    client.call("CONFIG SET maxmemory 1");
    let before = ["log", "old", "busy", "new"].map(|key| client.snapshot(key));
    for call in [
        "CL.MSETTLE new THROTTLE 9 10 60 1",
        "CL.MSETTLE old THROTTLE 9 10 3600 -2 new FIXED 10 60 1",
        "CL.MSETTLE busy LEASE 3 0 r1 log LOG 1000 3600 2",
        "CL.MSETTLE new FIXED 10 60 1 HOLD hold me",
    ] {
        assert_eq!(client.error(call), "OOM command not allowed when used memory > 'maxmemory'.", "{call}");
        assert_eq!(["log", "old", "busy", "new"].map(|key| client.snapshot(key)), before, "{call}");
    }
    assert_eq!(crate::info::fields(&mut client)["msettle_out_of_memory"], "4");
    // Settlements that create nothing are accepted.
    client.call("CL.MSETTLE old THROTTLE 9 10 3600 2 HOLD hold me");
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
