//! ONCE: calls for several limiters that may be repeated.

use crate::common::{Client, KINDS, Options, ReplicaStream, Server, WRONGTYPE, cluster, read_aof, requires};
use crate::replication::{attach, catch_up};
use crate::several::rows;
use redis::Value;

const KEYS: [&str; KINDS.len()] = ["t", "f", "b", "x", "w", "l", "p"];

/// A call with a limiter of each kind, of ten units or places.
fn all(command: &str, quantity: i64) -> String {
    let quantity = quantity.to_string();
    KEYS.iter().zip(&KINDS).fold(command.to_owned(), |call, (key, kind)| {
        format!("{call} {key} {}", kind.limiter(10, 3600, kind.asked(&quantity, "me")))
    })
}

fn repeated(client: &mut Client, command: &str) -> String {
    crate::info::fields(client)[&format!("{command}_repeated")].clone()
}

/// The integers of a reply, as they are stored.
fn stored(rows: &[Vec<i64>]) -> String {
    rows.iter().flatten().map(i64::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_call_that_is_repeated_is_charged_once() {
    let (_server, mut client) = Server::with_client();
    for (command, quantity) in [("CL.MTAKE", 3), ("CL.MSETTLE", 3), ("CL.MSETTLE", -1), ("CL.MTAKE", 0)] {
        let call = format!("{} ONCE o 60", all(command, quantity));
        client.call("DEL o");
        let first = rows(&mut client, &call);
        assert_eq!(first.len(), KEYS.len() + 1, "{call}");
        let before = KEYS.map(|key| client.snapshot(key));
        assert_eq!(client.text("GET o"), stored(&first), "{call}");
        for again in [call.as_str(), &call.replace("CL.MTAKE", "cl.mtake").replace("ONCE", "once")] {
            assert_eq!(rows(&mut client, again), first, "{again}");
        }
        assert_eq!(KEYS.map(|key| client.snapshot(key)), before, "{call}");
        assert!((59_000..=60_000).contains(&client.int("PTTL o")), "{call}");
    }
    assert_eq!(repeated(&mut client, "mtake"), "4");
    assert_eq!(repeated(&mut client, "msettle"), "4");
    let fields = crate::info::fields(&mut client);
    assert_eq!([&fields["mtake_admitted"], &fields["msettle_admitted"]], ["2", "2"]);
    // Another key is another call.
    let other = rows(&mut client, &format!("{} ONCE other 60", all("CL.MTAKE", 1)));
    assert_ne!(stored(&other), client.text("GET o"));
}

#[test]
fn the_stored_integers_are_those_of_the_reply_however_long_they_are() {
    let (_server, mut client) = Server::with_client();
    let limits =
        [1, 9, 10, 11, 99, 100, 101, 999, 1_000, 1_010, 99_999, 1_000_000_007, 1_000_000_000_000_000_003_i64];
    for (number, limit) in limits.iter().enumerate() {
        // One row, whose combined row is the same, and several, which differ.
        let one = format!("k{number} FIXED {limit} UNTIL 4102444800000000 1 ONCE one{number} 60000000 US");
        let many: Vec<String> =
            limits.iter().map(|limit| format!("m{number}:{limit} FIXED {limit} 3600 0")).collect();
        let many = many.join(" ");
        for (call, key) in [(one, "one"), (format!("{many} ONCE many{number} 60"), "many")] {
            let reply = rows(&mut client, &format!("CL.MTAKE {call}"));
            assert_eq!(client.text(&format!("GET {key}{number}")), stored(&reply));
            assert_eq!(rows(&mut client, &format!("CL.MTAKE {call}")), reply);
        }
    }
}

#[test]
fn what_is_wrong_with_the_key_is_said_before_anything_is_written() {
    let (_server, mut client) = Server::with_client();
    rows(&mut client, "CL.MTAKE k FIXED 9 3600 1 m THROTTLE 9 10 3600 1 ONCE two 60");
    let limiter = "k FIXED 9 3600 1";
    for (value, error) in [
        ("SET o foo", "ERR the key does not hold"),
        ("SET o 1", "ERR the key does not hold"),
        ("CL.MTAKE l FIXED 9 3600 1 n THROTTLE 9 10 3600 1 ONCE o 60", "ERR the key does not hold"),
        ("SET o \"\"", "ERR the key does not hold"),
        ("CL.THROTTLE o 1 1 60", "ERR the key does not hold"),
        ("RPUSH o a", WRONGTYPE),
        ("HSET o a b", WRONGTYPE),
    ] {
        client.call("DEL o");
        client.call(value);
        let before = ["o", "k", "two"].map(|key| client.snapshot(key));
        for command in ["CL.MTAKE", "CL.MSETTLE"] {
            let seen = client.error(&format!("{command} {limiter} ONCE o 60"));
            assert!(seen.starts_with(error), "{command} after {value}: {seen}");
        }
        assert_eq!(["o", "k", "two"].map(|key| client.snapshot(key)), before, "{value}");
    }
    client.call("DEL o");
    let before = client.snapshot("k");
    for (options, named) in [
        ("ONCE", "syntax error"),
        ("ONCE o", "syntax error"),
        ("ONCE o 60 60", "syntax error"),
        ("ONCE o 60 ONCE p 60", "syntax error"),
        ("ONCE o 0", "ONCE must be an integer from 1 to"),
        ("ONCE o x", "ONCE must be"),
        ("ONCE o 9223372036", "ONCE must be"),
        ("ONCE k 60", "the same key is named twice"),
        ("ONCE log 60 5", "LOG"),
    ] {
        for command in ["CL.MTAKE", "CL.MSETTLE"] {
            let seen = client.error(&format!("{command} {limiter} {options}"));
            assert!(
                seen.starts_with("ERR ") && (seen.contains(named) || named == "LOG"),
                "{options}: {seen}"
            );
        }
    }
    assert!(client.error(&format!("CL.MPEEK {limiter} ONCE o 60")).contains("syntax error"));
    // An error of a limiter stores nothing either; but a reply is found before any limiter's state is read.
    client.call("SET m foo");
    client.error("CL.MTAKE k FIXED 9 3600 1 m THROTTLE 9 10 3600 1 ONCE o 60");
    assert_eq!(client.int("EXISTS o"), 0);
    assert_eq!(client.snapshot("k"), before);
    assert_eq!(rows(&mut client, "CL.MTAKE k FIXED 9 3600 1 m THROTTLE 9 10 3600 1 ONCE two 60").len(), 3);
}

#[test]
fn the_reply_is_in_the_transaction_of_the_effects() {
    let server = Options::new().append_only().start();
    let replica = attach(&server, Options::new());
    let mut stream = ReplicaStream::attach(&server);
    let (mut client, mut copy) = (server.connect(), replica.connect());
    for call in ["CL.MTAKE k FIXED 9 3600 1 ONCE o 60", "CL.MSETTLE k FIXED 9 3600 1 ONCE p 60"] {
        let answer = rows(&mut client, call);
        let effects = stream.effects(&server);
        let words: Vec<&str> = effects.iter().map(|effect| effect.command.as_str()).collect();
        let key = call.split(' ').nth_back(1).unwrap();
        let set = format!("SET {key} {}", stored(&answer));
        assert_eq!((words.first(), words.last()), (Some(&"MULTI"), Some(&"EXEC")), "{words:?}");
        assert!(words[1].starts_with("SET k "), "{words:?}");
        assert!(words[2..].iter().any(|word| word.starts_with(&set)), "{set} is not in {words:?}");
        assert!(words.iter().all(|word| !word.starts_with("CL.")), "{words:?}");
        assert_eq!(rows(&mut client, call), answer);
        assert_eq!(stream.effects(&server), [], "a repeated call has no effect");
    }
    catch_up(&mut client, &mut copy);
    for key in ["k", "o", "p"] {
        assert_eq!(copy.snapshot(key), client.snapshot(key), "{key}");
    }
    let appended: Vec<String> = read_aof(&server).into_iter().map(|effect| effect.command).collect();
    assert!(appended.iter().any(|word| word.starts_with("SET o ")), "{appended:?}");
    // A call that was charged before a failover is not charged again.
    copy.call("REPLICAOF NO ONE");
    let before = copy.snapshot("k");
    assert_eq!(stored(&rows(&mut copy, "CL.MTAKE k FIXED 9 3600 1 ONCE o 60")), copy.text("GET o"));
    assert_eq!(copy.snapshot("k"), before);
}

#[test]
fn the_key_is_one_of_the_calls_keys() {
    let (_server, mut client) = Server::with_client();
    for call in [
        "CL.MTAKE a LOG 5 60 1 b LEASE 1 60 x MS ONCE o 60",
        "CL.MSETTLE a LOG 5 60 1 b LEASE 1 60 x AGO 5 ONCE o 60 MS",
    ] {
        let keys: Vec<String> = client.get(&format!("COMMAND GETKEYS {call}"));
        assert_eq!(keys, ["a", "b", "o"], "{call}");
    }
    client.call("ACL SETUSER tenant on nopass ~a* +cl.mtake +cl.msettle");
    client.call("AUTH tenant any");
    for command in ["CL.MTAKE", "CL.MSETTLE"] {
        let error = client.error(&format!("{command} a LOG 5 60 1 ONCE o 60"));
        assert!(error.starts_with("NOPERM "), "{error}");
        assert_eq!(rows(&mut client, &format!("{command} a LOG 5 60 1 ONCE a{command} 60")).len(), 2);
    }
}

#[test]
fn in_a_cluster_the_key_is_in_the_slot() {
    let nodes = cluster(1, Options::new);
    let mut client = nodes[0].connect();
    for command in ["CL.MTAKE", "CL.MSETTLE"] {
        let error = client.error(&format!("{command} a LOG 5 60 1 ONCE o 60"));
        assert!(error.starts_with("CROSSSLOT "), "{error}");
        rows(&mut client, &format!("{command} {{t}}a LOG 5 60 1 ONCE {{t}}{command} 60"));
    }
    assert_eq!(client.int("DBSIZE"), 3);
}

#[test]
fn a_server_without_set_stores_no_reply() {
    let server = Options::new().rename("SET", "").start();
    let mut client = server.connect();
    let error = client.error("CL.MTAKE a LOG 5 60 1 ONCE o 60");
    assert_eq!(error, "ERR command SET is not available on this server");
    assert_eq!(client.int("DBSIZE"), 0);
}

#[test]
fn in_transactions_and_functions() {
    let (_server, mut client) = Server::with_client();
    client.call("MULTI");
    for _ in 0..3 {
        client.call("CL.MTAKE k FIXED 9 3600 1 ONCE o 60");
    }
    let Value::Array(replies) = client.call("EXEC") else { panic!("no array") };
    assert!(replies.windows(2).all(|pair| pair[0] == pair[1]), "{replies:?}");
    assert_eq!(client.int("GET k"), 1);
    requires!(client.has_command("FUNCTION"), "no functions");
    let script = "return redis.call('CL.MTAKE', KEYS[1], 'FIXED', 9, 3600, 1, 'ONCE', KEYS[2], 60)";
    assert_eq!(rows(&mut client, &["EVAL", script, "2", "k", "o"]).len(), 2);
    assert_eq!(client.int("GET k"), 1);
}
