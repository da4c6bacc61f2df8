//! CL.TOP: the keys that are refused most often, and the cost of the record.

use crate::common::{
    COMMANDS, Client, Effect, Options, ReplicaStream, Server, Waiter, wait_for_blocked, wall_ns,
};
use crate::replication::attach;
use redis::Value;

/// A row: key, refusals, error, last refusal.
type Row = (String, i64, i64, i64);

fn top(client: &mut Client, call: &str) -> Vec<Row> {
    client.get(call)
}

/// Keys and their refusals, without the other columns.
fn refused(client: &mut Client) -> Vec<(String, i64)> {
    top(client, "CL.TOP 1000").into_iter().map(|(key, refusals, ..)| (key, refusals)).collect()
}

fn row(key: &str, refusals: i64) -> (String, i64) {
    (key.to_owned(), refusals)
}

#[test]
fn points_at_the_key_that_is_hammered() {
    let (_server, mut client) = Server::with_client();
    let earliest = wall_ns() / 1_000_000;
    // Far more keys than the table has room for, each refused once or twice, and one key refused many times.
    let mut calls = Vec::new();
    for i in 0..5_000 {
        calls.push(format!("CL.THROTTLE once:{i} 0 1 3600 2"));
        if i % 4 == 0 {
            calls.push("CL.THROTTLE hammered 0 1 3600 2".to_owned());
        }
    }
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    for answer in client.pipeline(&calls) {
        answer.unwrap();
    }
    let rows = top(&mut client, "CL.TOP");
    assert_eq!(rows.len(), 10);
    let (key, refusals, error, last) = &rows[0];
    assert_eq!(key, "hammered");
    assert!(*refusals <= 1250 && 1250 <= refusals + error, "{rows:?}");
    assert!(rows.iter().all(|(_, _, error, _)| *error <= 6250 / 128), "{rows:?}");
    assert!((earliest..=wall_ns() / 1_000_000).contains(last), "{rows:?}");
}

#[test]
fn every_refusal_and_every_null_feeds_it_and_nothing_else_does() {
    let (_server, mut client) = Server::with_client();
    let all = COMMANDS.iter().filter(|command| command.has_keys());
    let all = all.map(|command| (command.counted[0], command.counted[1], command.records));
    for (setup, call, feeds) in all.chain([
        ("CL.THROTTLE k 8 1 3600", "CL.THROTTLE k 8 1 3600", false),
        ("PING", "CL.THROTTLE k 0 1 3600 2", true),
        ("CL.THROTTLE k 0 1 3600", "CL.THROTTLE k 0 1 3600 9 SATURATE", true),
        ("CL.THROTTLE k 0 1 3600", "CL.RESERVE k 0 1 3600", false),
    ]) {
        client.call("FLUSHALL");
        client.call("CL.CHARGE debt 0 1 60 9");
        client.call("CL.ACQUIRE held 1 60 me");
        client.call("CL.TOP RESET");
        client.call(setup);
        client.call(call);
        assert!(client.ask("CL.THROTTLE k 0 1 wrong").is_err());
        let expected = if feeds { vec![row("k", 1)] } else { vec![] };
        assert_eq!(refused(&mut client), expected, "{call}");
    }
}

#[test]
fn of_several_limits_those_that_refuse() {
    let (_server, mut client) = Server::with_client();
    client.call("CL.THROTTLE b 0 1 3600");
    client.call("CL.MTAKE a THROTTLE 0 1 3600 1 b THROTTLE 0 1 3600 1 c THROTTLE 0 1 3600 1");
    assert_eq!(refused(&mut client), [row("b", 1)]);
    client.call("CL.THROTTLE c 0 1 3600");
    client.call("CL.MTAKE a THROTTLE 0 1 3600 1 b THROTTLE 0 1 3600 1 c THROTTLE 0 1 3600 1");
    assert_eq!(refused(&mut client), [row("b", 2), row("c", 1)]);
    client.call("CL.MTAKE a THROTTLE 0 1 3600 1");
    assert_eq!(refused(&mut client), [row("b", 2), row("c", 1)]);
    // One in shadow would refuse, but does not.
    client.call("CL.MTAKE b THROTTLE 0 1 3600 1 c SHADOW THROTTLE 0 1 3600 1");
    assert_eq!(refused(&mut client), [row("b", 3), row("c", 1)]);
}

#[test]
fn a_wait_that_ends_in_nothing_counts_for_its_key() {
    let (server, mut client) = Server::with_client();
    client.call("SELECT 5");
    client.call("CL.THROTTLE k 0 1 3600");
    let mut waiter = Waiter::ask_in(&server, 5, "CL.BTHROTTLE k 0 1 3600 1 0");
    wait_for_blocked(&mut client, 1);
    assert!(refused(&mut client).is_empty(), "it still waits");
    client.call(&format!("CLIENT UNBLOCK {}", waiter.id));
    assert_eq!(waiter.answer(), "null");
    assert_eq!(refused(&mut client), [row("k", 1)]);

    // Above the limit, and while it waits behind another call, the key becomes foreign, which is an error.
    let mut waiter = Waiter::ask_in(&server, 5, "CL.BTHROTTLE k 0 1 3600 1 0");
    wait_for_blocked(&mut client, 1);
    client.call("SET k foreign");
    assert!(waiter.answer().starts_with("ERR "));
    assert_eq!(refused(&mut client), [row("k", 1)]);
}

#[test]
fn a_null_counts_for_no_key_in_shadow() {
    let (_server, mut client) = Server::with_client();
    client.call("CL.ACQUIRE b 1 60 other");
    client.call("CL.FIXED c 1 3600");
    for (call, key) in [
        // It waits until the timeout, or is refused at once.
        ("CL.BMTAKE a LEASE 1 60 me b LEASE 1 60 me TIMEOUT 0.05", "a"),
        ("CL.BMTAKE a SHADOW LEASE 1 60 me b LEASE 1 60 me TIMEOUT 0.05", "b"),
        ("CL.BMTAKE a SHADOW LEASE 1 60 me c FIXED 1 3600 1 TIMEOUT 0.05", "c"),
        ("CL.BMTAKE a SHADOW LEASE 1 60 me b SHADOW LEASE 1 60 me c FIXED 1 3600 1 TIMEOUT 0.05", "c"),
    ] {
        client.call("CL.TOP RESET");
        assert_eq!(client.call(call), Value::Nil, "{call}");
        assert_eq!(refused(&mut client), [row(key, 1)], "{call}");
    }
}

#[test]
fn patience_that_ends_while_waiting_counts_for_its_key() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 3600");
    // It could be admitted in time, so it waits. Then the wait becomes longer.
    let mut waiter = Waiter::ask(&server, "CL.BTHROTTLE k 0 1 1 1 1 S");
    client.call("CL.CHARGE k 0 1 3600");
    assert_eq!(waiter.answer(), "null");
    assert_eq!(refused(&mut client), [row("k", 1)]);
}

#[test]
fn rows_are_of_the_selected_database() {
    let (_server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 3600 2");
    client.call("SELECT 3");
    assert!(refused(&mut client).is_empty());
    client.call("CL.THROTTLE k 0 1 3600 2");
    client.call("CL.THROTTLE k 0 1 3600 2");
    assert_eq!(refused(&mut client), [row("k", 2)]);
    client.call("SELECT 0");
    assert_eq!(refused(&mut client), [row("k", 1)]);
    assert_eq!(client.text("CL.TOP RESET"), "OK");
    client.call("SELECT 3");
    assert!(refused(&mut client).is_empty(), "a reset is for all databases");
}

#[test]
fn long_and_binary_keys_are_shown_safely() {
    let (_server, mut client) = Server::with_client();
    let megabyte = vec![b'k'; 1 << 20];
    for key in [&b"\xff\0\x1b[31m\r\n"[..], &megabyte, b"", "限流".as_bytes(), "\u{202e}k".as_bytes()] {
        client.call(&[b"CL.THROTTLE".as_ref(), key, b"0", b"1", b"60", b"2"]);
    }
    let mut seen = refused(&mut client);
    seen.sort_unstable();
    let long = format!("{}... (1048448 more bytes)", "k".repeat(128));
    let shown = ["", "\\xe2\\x80\\xaek", "\\xff\\x00\\x1b[31m\\x0d\\x0a", &long, "限流"];
    assert_eq!(seen, shown.map(|key| row(key, 1)));
}

#[test]
fn arguments() {
    let (_server, mut client) = Server::with_client();
    for i in 0..20 {
        client.call(&format!("CL.THROTTLE k{i} 0 1 60 2"));
    }
    assert_eq!(top(&mut client, "CL.TOP").len(), 10);
    assert_eq!(top(&mut client, "cl.top 3").len(), 3);
    assert_eq!(top(&mut client, "CL.TOP 9223372036854775807").len(), 20);
    for wrong in ["0", "-1", "x", "1.5", "9223372036854775808", "\"\""] {
        let error = client.error(&format!("CL.TOP {wrong}"));
        assert_eq!(error, "ERR count must be an integer from 1 to 9223372036854775807", "{wrong}");
    }
    for wrong in ["1 2", "RESET 1", "RESET RESET", "1 RESET"] {
        assert_eq!(client.error(&format!("CL.TOP {wrong}")), "ERR syntax error", "{wrong}");
    }
    assert_eq!(top(&mut client, "CL.TOP 100").len(), 20, "errors forget nothing");
    assert_eq!(client.text("CL.TOP reset"), "OK");
    assert!(top(&mut client, "CL.TOP").is_empty());
}

#[test]
fn on_both_protocols_and_in_transactions_and_scripts() {
    let server = Server::start();
    server.connect().call("CL.THROTTLE k 0 1 60 2");
    for mut client in [server.connect(), server.connect_resp3()] {
        let Value::Array(rows) = client.call("CL.TOP") else { panic!("no array") };
        assert!(matches!(&rows[..], [Value::Array(row)] if row.len() == 4), "{rows:?}");
    }
    let mut client = server.connect();
    client.call("MULTI");
    client.call("CL.TOP RESET");
    client.call("CL.THROTTLE k 0 1 60 2");
    client.call("CL.TOP");
    let Value::Array(answers) = client.call("EXEC") else { panic!("no array") };
    assert!(matches!(&answers[2], Value::Array(rows) if rows.len() == 1), "{answers:?}");
    assert_eq!(client.int(&["EVAL", "return #redis.call('CL.TOP')", "0"]), 1);
}

#[test]
fn nothing_of_it_is_propagated_or_stored() {
    let server = Options::new().append_only().start();
    let mut client = server.connect();
    let mut stream = ReplicaStream::attach(&server);
    stream.effects(&server);
    let dirty = client.info("rdb_changes_since_last_save");
    client.call("CL.THROTTLE k 0 1 60 2");
    client.call("CL.TOP");
    client.call("CL.TOP RESET");
    assert_eq!(stream.effects(&server), Vec::<Effect>::new());
    assert_eq!(client.info("rdb_changes_since_last_save"), dirty);
    assert_eq!(client.int("DBSIZE"), 0);
}

#[test]
fn on_a_replica_too() {
    let primary = Server::start();
    let replica = attach(&primary, Options::new());
    let mut client = replica.connect();
    assert!(top(&mut client, "CL.TOP").is_empty());
    assert_eq!(client.text("CL.TOP RESET"), "OK");
}

#[test]
fn switched_off_it_says_so() {
    let server = Options::new().module_arguments("top-size 0").start();
    let mut client = server.connect();
    client.call("CL.THROTTLE k 0 1 60 2");
    for call in ["CL.TOP", "CL.TOP 5", "CL.TOP RESET"] {
        assert_eq!(client.error(call), "ERR refusals are not recorded: the setting top-size is 0", "{call}");
    }
}
