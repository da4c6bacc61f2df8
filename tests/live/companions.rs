//! CL.PEEK, CL.REFUND, CL.CHARGE and CL.RESERVE: the other ways of using the state of CL.THROTTLE.

use crate::common::{BINARY, COMMANDS, Client, Options, Server, wall_ns};
use crate::replication::{attach, catch_up};
use redis::Value;

const LIKE_THROTTLE: [&str; 4] = ["CL.PEEK", "CL.REFUND", "CL.CHARGE", "CL.RESERVE"];

/// Compares replies, and allows waits to be a second shorter, because time passes.
fn assert_about(reply: &[i64], expected: [i64; 5], call: &str) {
    let near = |seen: i64, wait: i64| seen == wait || wait > 0 && seen == wait - 1;
    let right = reply.len() == 5
        && reply[..3] == expected[..3]
        && near(reply[3], expected[3])
        && near(reply[4], expected[4]);
    assert!(right, "{call}: {reply:?}, expected {expected:?}");
}

fn assert_replies(client: &mut Client, calls: &[(&str, [i64; 5])]) {
    for (call, expected) in calls {
        assert_about(&client.ints(*call), *expected, call);
    }
}

/// The flags of a command, as COMMAND INFO lists them.
fn flags(client: &mut Client, command: &str) -> Vec<String> {
    let Value::Array(rows) = client.call(&["COMMAND", "INFO", command]) else { panic!("no COMMAND INFO") };
    let Value::Array(row) = &rows[0] else { panic!("{command}: {rows:?}") };
    match &row[2] {
        Value::Array(flags) | Value::Set(flags) => {
            flags.iter().map(|flag| redis::from_redis_value(flag.clone()).unwrap()).collect()
        }
        seen => panic!("flags: {seen:?}"),
    }
}

#[test]
fn the_server_knows_what_kind_of_commands_they_are() {
    let (_server, mut client) = Server::with_client();
    for command in COMMANDS.iter().filter(|command| command.has_keys()) {
        let flags = flags(&mut client, command.name);
        for flag in ["readonly", "write", "denyoom", "fast", "admin", "noscript", "blocking"] {
            if flag == "blocking" && !BINARY.at_least(7, 0, 0) {
                continue;
            }
            let has = flags.iter().any(|seen| seen == flag);
            assert_eq!(has, command.has(flag), "{}, {flag}: {flags:?}", command.name);
        }
    }
    for command in LIKE_THROTTLE {
        let keys: Vec<String> = client.get(&format!("COMMAND GETKEYS {command} k 9 10 60 1 MS"));
        assert_eq!(keys, ["k"], "{command}");
    }
}

#[test]
fn checks_run_on_a_replica() {
    let primary = Server::start();
    let replica = attach(&primary, Options::new());
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    client.call("CL.CHARGE k 9 10 3600 12");
    client.call("CL.RESERVE other 9 10 3600 12 PREPAY");
    client.call("CL.CHARGE gone 9 10 3600 2");
    client.call("CL.REFUND gone 9 10 3600 2");
    catch_up(&mut client, &mut copy);
    for key in ["k", "other", "gone"] {
        assert_eq!(copy.snapshot(key), client.snapshot(key), "{key}");
    }
    assert_replies(&mut copy, &[("CL.PEEK k 9 10 3600", [1, 10, 0, 1080, 4320])]);
    for command in ["CL.REFUND", "CL.CHARGE", "CL.RESERVE"] {
        assert!(copy.error(&format!("{command} k 9 10 3600")).starts_with("READONLY "), "{command}");
    }
    assert!(copy.error("CL.BTHROTTLE k 9 10 3600 1 0").starts_with("READONLY "));
}

#[test]
fn a_state_of_redis_cell_is_understood() {
    let (_server, mut client) = Server::with_client();
    // brandur/redis-cell rounds the expiry down.
    client.call(&format!("SET k {} PX 1000000", wall_ns() + 1_000_000_999_999));
    assert_eq!(client.ints("CL.PEEK k 9 10 3600")[..3], [0, 10, 7]);
    assert_eq!(client.ints("CL.REFUND k 9 10 3600 2")[..3], [0, 10, 9]);
    assert_eq!(client.ints("CL.CHARGE k 9 10 3600 10")[..3], [1, 10, 0]);
}
