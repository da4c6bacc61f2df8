//! Contexts of the command: transactions, scripts, functions, both protocols.

use crate::common::{Client, Server, Words, ints, requires};
use redis::Value;

const LIMIT: &str = "4 5 3600";

/// The `limited` and `remaining` of some replies.
fn verdicts(replies: &[Value]) -> Vec<(i64, i64)> {
    replies.iter().map(|reply| ints(reply).map(|n| (n[0], n[2])).unwrap()).collect()
}

const FIVE_THEN_REFUSED: [(i64, i64); 7] = [(0, 4), (0, 3), (0, 2), (0, 1), (0, 0), (1, 0), (1, 0)];

#[test]
fn on_both_protocols_the_reply_is_an_array_of_integers() {
    let server = Server::start();
    for (key, mut client) in [("resp2", server.connect()), ("resp3", server.connect_resp3())] {
        for (arguments, length) in
            [("9 10 60", 5), ("9 10 60 0", 5), ("9 10 60 11", 5), ("9 10 60 3 SATURATE", 6)]
        {
            let reply = client.ints(&format!("CL.THROTTLE {key} {arguments}"));
            assert_eq!(reply.len(), length, "{key} {arguments}: {reply:?}");
        }
        assert_eq!(client.error(&format!("CL.THROTTLE {key} 9 10 60 1 BOGUS")), "ERR syntax error");
        client.throttle_checked(key, "9 10 60");
    }
}

#[test]
fn in_a_transaction() {
    let (_server, mut client) = Server::with_client();
    client.call("MULTI");
    for _ in 0..7 {
        assert_eq!(client.text(&format!("CL.THROTTLE k {LIMIT}")), "QUEUED");
    }
    assert_eq!(client.text("CL.THROTTLE k x 5 3600"), "QUEUED");
    let Value::Array(replies) = client.call("EXEC") else { panic!("EXEC answered no array") };
    assert_eq!(verdicts(&replies[..7]), FIVE_THEN_REFUSED);
    assert!(matches!(replies[7], Value::ServerError(_)), "{:?}", replies[7]);

    client.call("MULTI");
    client.call(&format!("CL.THROTTLE discarded {LIMIT}"));
    client.call("DISCARD");
    assert_eq!(client.int("EXISTS discarded"), 0);
}

/// Whether who watches a key notices what `act` does.
fn notices(watcher: &mut Client, key: &str, act: impl FnOnce()) -> bool {
    watcher.call(&["WATCH", key]);
    act();
    watcher.call("MULTI");
    watcher.call("PING");
    watcher.call("EXEC") == Value::Nil
}

#[test]
fn a_watch_notices_what_is_taken_and_nothing_else() {
    let server = Server::start();
    let (mut watcher, mut other) = (server.connect(), server.connect());
    for (key, call, changes) in [
        ("taken", "4 5 3600 1", true),
        ("saturated", "4 5 3600 9 SATURATE", true),
        ("looked", "4 5 3600 0", false),
        ("looked-saturated", "4 5 3600 0 SATURATE", false),
        ("refused", "4 5 3600 5", false),
        ("refused-for-ever", "4 5 3600 6", false),
        ("failed", "4 5 3600 1 BOGUS", false),
        ("failed-number", "4 5 x", false),
    ] {
        for fresh in [true, false] {
            if fresh && key == "refused" {
                continue; // a fresh key has room for five
            }
            if !fresh {
                other.throttle_checked(key, "4 5 3600");
            }
            let call = format!("CL.THROTTLE {key} {call}");
            let aborted = notices(&mut watcher, key, || drop(other.ask(&call)));
            assert_eq!(aborted, changes, "WATCH {key}, then {call} (fresh: {fresh})");
            other.call(&["DEL", key]);
        }
    }
}

/// Of each command: a string, a hash, a sorted set, and the keys of `HOLD` and `ONCE`.
#[test]
fn those_who_watch_a_key_notice_each_write_and_nothing_else() {
    let server = Server::start();
    let (mut watcher, mut other) = (server.connect(), server.connect());
    for (key, call, changes) in [
        ("k", "CL.CHARGE k 9 10 3600 4", true),
        ("k", "CL.PEEK k 9 10 3600", false),
        ("k", "CL.REFUND k 9 10 3600 0", false),
        ("k", "CL.REFUND k 9 10 3600 100", true),
        ("k", "CL.REFUND k 9 10 3600 100", false),
        ("b", "CL.BUCKET b 9 10 3600 9", true),
        ("b", "CL.BUCKET b 9 10 3600 9", false),
        ("w", "CL.WINDOW w 9 3600 9", true),
        ("w", "CL.WINDOW w 9 3600 9", false),
        ("l", "CL.LOG l 9 3600 9", true),
        ("l", "CL.LOG l 9 3600 9", false),
        ("p", "CL.ACQUIRE p 1 3600 a", true),
        ("p", "CL.ACQUIRE p 1 3600 b", false),
        ("p", "CL.RELEASE p a", true),
        ("f", "CL.FIXED f 9 3600 9", true),
        ("f", "CL.FIXED f 9 3600 9", false),
        ("h", "CL.MTAKE q FIXED 9 TOTAL 4 HOLD h 60 o", true),
        ("q", "CL.MSETTLE q FIXED 9 TOTAL 2 HOLD h o", true),
        ("o", "CL.MTAKE q FIXED 9 TOTAL 4 ONCE o 60", true),
        ("q", "CL.MTAKE q FIXED 9 TOTAL 4 ONCE o 60", false),
    ] {
        assert_eq!(notices(&mut watcher, key, || drop(other.call(call))), changes, "{call}");
    }
}

#[test]
fn in_a_script() {
    let (_server, mut client) = Server::with_client();
    let script = "local replies = {} \
                  for i = 1, tonumber(ARGV[1]) do \
                  replies[i] = redis.call('CL.THROTTLE', KEYS[1], ARGV[2], ARGV[3], ARGV[4]) end \
                  return replies";
    let answer = client.call(&["EVAL", script, "1", "k", "7", "4", "5", "3600"]);
    let Value::Array(replies) = answer else { panic!("{answer:?}") };
    assert_eq!(verdicts(&replies), FIVE_THEN_REFUSED);

    let script = "return redis.pcall('CL.THROTTLE', KEYS[1], '4', 'x', '3600')";
    let error = client.error(&["EVAL", script, "1", "k"]);
    assert!(error.contains("count"), "{error}");
    let script = "return type(redis.call('CL.THROTTLE', KEYS[1], 4, 5, 3600, 0)[4])";
    assert_eq!(client.text(&["EVAL", script, "1", "k"]), "number", "numbers as arguments and in the reply");
}

#[test]
fn not_in_a_read_only_script() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("EVAL_RO"), "no EVAL_RO");
    let error = client.error(&["EVAL_RO", "return redis.call('CL.THROTTLE', 'k', 4, 5, 60)", "1", "k"]);
    assert!(error.contains("Write commands are not allowed"), "{error}");
    assert_eq!(client.int("DBSIZE"), 0);
}

#[test]
fn in_a_function() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("FUNCTION"), "no functions");
    let library = "#!lua name=limits\n\
                   redis.register_function('take', function(keys, args)\n\
                   return redis.call('CL.THROTTLE', keys[1], unpack(args)) end)";
    client.call(&["FUNCTION", "LOAD", library]);
    let replies: Vec<Value> = (0..7).map(|_| client.call(&format!("FCALL take 1 k {LIMIT}"))).collect();
    assert_eq!(verdicts(&replies), FIVE_THEN_REFUSED);
}

#[test]
fn beside_other_commands_of_the_server() {
    let (_server, mut client) = Server::with_client();
    // The reply must leave the connection usable.
    let commands =
        ["PING", "CL.THROTTLE k 1 1 60", "ECHO a", "CL.THROTTLE k", "CL.THROTTLE k 1 x 60", "ECHO b"];
    let answers = client.pipeline(&commands);
    let ok: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, true, true, false, false, true]);
    assert_eq!(answers[5], Ok(Value::BulkString(b"b".to_vec())), "{:?}", commands[5].words());
}
