//! CL.MTHROTTLE: several limits at once, from all or from none.

use crate::common::{Client, Effect, Options, ReplicaStream, Server, wait_until};
use crate::replication::{attach, catch_up};
use redis::Value;

fn rows<W: crate::common::Words + ?Sized>(client: &mut Client, command: &W) -> Vec<Vec<i64>> {
    client.get(command)
}

#[test]
fn one_row_for_all_and_one_for_each() {
    let server = Server::start();
    let mut client = server.connect();
    let call = "CL.MTHROTTLE 3 second hour day 9 10 3600 99 100 7200 4 5 36000";
    assert_eq!(
        rows(&mut client, call),
        [[0, 5, 4, -1, 7200], [0, 10, 9, -1, 360], [0, 100, 99, -1, 72], [0, 5, 4, -1, 7200]]
    );
    assert_eq!(
        rows(&mut client, "CL.MTHROTTLE 1 alone 9 10 3600"),
        [[0, 10, 9, -1, 360], [0, 10, 9, -1, 360]]
    );
    assert_eq!(client.int("DBSIZE"), 4);
    // The very state that each would have had alone.
    assert_eq!(client.checked("second", "9 10 3600 8")[..4], [0, 10, 1, -1]);
}

#[test]
fn all_or_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    client.checked("full", "0 1 3600");
    client.checked("longer", "0 1 7200");
    let mut stream = ReplicaStream::attach(&server);
    let before = ["full", "longer", "fresh"].map(|key| client.snapshot(key));
    let refused = rows(&mut client, "CL.MTHROTTLE 3 fresh full longer 4 5 3600 0 1 3600 0 1 7200");
    assert_eq!(refused[1], [0, 5, 5, -1, 0], "its own limit, unconsumed");
    assert_eq!((&refused[2][..3], &refused[3][..3]), (&[1, 1, 0][..], &[1, 1, 0][..]));
    assert!((7199..=7200).contains(&refused[3][3]) && (3599..=3600).contains(&refused[2][3]), "{refused:?}");
    assert_eq!((&refused[0][..3], refused[0][3]), (&[1, 1, 0][..], refused[3][3]), "the longest");
    let for_ever = rows(&mut client, "CL.MTHROTTLE 2 fresh full 4 5 3600 0 1 3600 QUANTITY 6");
    assert_eq!((for_ever[0][3], for_ever[1][..4].to_vec()), (-1, vec![1, 5, 5, -1]));
    assert_eq!(["full", "longer", "fresh"].map(|key| client.snapshot(key)), before);
    assert_eq!(stream.effects(&server), []);
}

#[test]
fn a_foreign_key_is_an_error_and_nothing_is_charged() {
    let server = Server::start();
    let mut client = server.connect();
    client.call("SET text foo");
    client.call("RPUSH list a");
    client.checked("used", "9 10 3600 3");
    let mut stream = ReplicaStream::attach(&server);
    let keys = ["used", "fresh", "text", "list"];
    let before = keys.map(|key| client.snapshot(key));
    let dirty = client.info("rdb_changes_since_last_save");
    for (bad, error) in [("text", "ERR the key does not hold"), ("list", "WRONGTYPE ")] {
        for order in ["used fresh BAD", "BAD used fresh", "used BAD fresh"] {
            let call = format!("CL.MTHROTTLE 3 {} 9 10 3600 9 10 3600 9 10 3600", order.replace("BAD", bad));
            let seen = client.error(&call);
            assert!(seen.starts_with(error), "{call}: {seen}");
        }
    }
    assert_eq!(keys.map(|key| client.snapshot(key)), before);
    assert_eq!(client.info("rdb_changes_since_last_save"), dirty);
    assert_eq!(stream.effects(&server), []);
}

#[test]
fn what_is_wrong_with_the_arguments_is_said() {
    let server = Server::start();
    let mut client = server.connect();
    for (arguments, named) in [
        ("0 a 9 10 60", "numkeys"),
        ("-1 a 9 10 60", "numkeys"),
        ("x a 9 10 60", "numkeys"),
        ("2 a 9 10 60", "numkeys"),
        ("2 a b 9 10 60 9 10", "numkeys"),
        ("9223372036854775807 a 9 10 60", "numkeys"),
        ("4611686018427387904 a 9 10 60", "numkeys"),
        ("18446744073709551615 a 9 10 60", "numkeys"),
        ("1 a 9 10 60 60", "syntax error"),
        ("1 a 9 10 60 QUANTITY", "syntax error"),
        ("1 a 9 10 60 QUANTITY 1 QUANTITY 1", "syntax error"),
        ("1 a 9 10 60 S MS", "syntax error"),
        ("1 a 9 10 60 SATURATE", "syntax error"),
        ("1 a b 9 10 60 9 10 60", "syntax error"),
        ("1 a 9 10 60 QUANTITY -1", "quantity"),
        ("1 a 9 10 60 QUANTITY x", "quantity"),
        ("2 a b 9 10 60 x 10 60", "max_burst"),
        ("2 a b 9 10 60 9 0 60", "count"),
        ("2 a b 9 10 60 9 10 0", "period"),
        ("2 a a 9 10 60 9 10 60", "same key"),
        ("3 a b a 9 10 60 9 10 60 5 10 60", "same key"),
    ] {
        let error = client.error(&format!("CL.MTHROTTLE {arguments}"));
        assert!(error.starts_with("ERR ") && error.contains(named), "{arguments}: {error}");
    }
    let error = client.error("CL.MTHROTTLE 1 a 9 10");
    assert_eq!(error.to_lowercase(), "err wrong number of arguments for 'cl.mthrottle' command");
    assert_eq!(client.int("DBSIZE"), 0);
    server.assert_alive("wrong numbers of keys");
}

#[test]
fn options_in_any_order() {
    let server = Server::start();
    let mut client = server.connect();
    for (key, tail) in [("a", "QUANTITY 3 MS"), ("b", "MS QUANTITY 3"), ("c", "ms quantity 3")] {
        let expected = [0, 10, 7, -1, 1_080_000];
        let call = format!("CL.MTHROTTLE 1 {key} 9 10 3600000 {tail}");
        assert_eq!(rows(&mut client, &call), [expected, expected], "{tail}");
    }
    let before = client.snapshot("a");
    assert_eq!(rows(&mut client, "CL.MTHROTTLE 1 a 9 10 3600 QUANTITY 0")[0][..4], [0, 10, 7, -1]);
    assert_eq!(client.snapshot("a"), before);
}

#[test]
fn the_server_finds_the_keys() {
    let server = Server::start();
    let mut client = server.connect();
    let keys: Vec<String> =
        client.get("COMMAND GETKEYS CL.MTHROTTLE 3 a b c 9 10 60 9 10 60 9 10 60 QUANTITY 2");
    assert_eq!(keys, ["a", "b", "c"]);
    for call in ["CL.MTHROTTLE 9 a 9 10 60", "CL.MTHROTTLE x a 9 10 60", "CL.MTHROTTLE -1 a 9 10 60"] {
        let _ = client.ask(&format!("COMMAND GETKEYS {call}"));
    }
    server.assert_alive("numbers of keys that are none");
    client.call("ACL SETUSER tenant on nopass ~a* +cl.mthrottle");
    client.call("AUTH tenant any");
    assert_eq!(rows(&mut client, "CL.MTHROTTLE 2 a1 a2 9 10 60 9 10 60").len(), 3);
    for call in ["CL.MTHROTTLE 2 a1 b 9 10 60 9 10 60", "CL.MTHROTTLE 2 b a1 9 10 60 9 10 60"] {
        let error = client.error(call);
        assert!(error.starts_with("NOPERM "), "{call}: {error}");
    }
}

#[test]
fn all_states_are_one_transaction() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    rows(&mut client, "CL.MTHROTTLE 2 a b 9 10 3600 99 100 7200");
    let mut effects = Effect::of_call(&mut client, 0, "a");
    effects.extend(Effect::of_call(&mut client, 0, "b"));
    assert_eq!(stream.effects(&server), Effect::transaction(0, effects));
}

#[test]
fn replicas_and_scripts_and_transactions() {
    let primary = Server::start();
    let replica = attach(&primary, Options::new());
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    let script = "return redis.call('CL.MTHROTTLE', 2, KEYS[1], KEYS[2], 9, 10, 3600, 4, 5, 3600)";
    assert_eq!(rows(&mut client, &["EVAL", script, "2", "a", "b"])[0], [0, 5, 4, -1, 720]);
    client.call("MULTI");
    client.call("CL.MTHROTTLE 2 a b 9 10 3600 4 5 3600 QUANTITY 2");
    assert!(matches!(client.call("EXEC"), Value::Array(replies) if replies.len() == 1));
    catch_up(&mut client, &mut copy);
    for key in ["a", "b"] {
        assert_eq!(copy.snapshot(key), client.snapshot(key), "{key}");
    }
    assert!(copy.error("CL.MTHROTTLE 1 a 9 10 60").starts_with("READONLY "));
    let mut resp3 = primary.connect_resp3();
    assert_eq!(rows(&mut resp3, "CL.MTHROTTLE 1 c 9 10 3600").len(), 2);
}

#[test]
fn many_keys() {
    let server = Server::start();
    let mut client = server.connect();
    let keys: Vec<String> = (0..5000).map(|i| format!("k{i}")).collect();
    let call = format!("CL.MTHROTTLE 5000 {}{}", keys.join(" "), " 9 10 3600".repeat(5000));
    let replies = rows(&mut client, &call);
    assert_eq!(replies.len(), 5001);
    assert!(replies.iter().all(|row| *row == [0, 10, 9, -1, 360]));
    assert_eq!(client.int("DBSIZE"), 5000);
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
    let error = client.error("CL.MTHROTTLE 2 a b 9 10 60 9 10 60");
    assert!(error.starts_with("CROSSSLOT "), "{error}");
    assert_eq!(rows(&mut client, "CL.MTHROTTLE 2 {t}a {t}b 9 10 60 9 10 60").len(), 3);
    assert_eq!(client.int("DBSIZE"), 2);
}
