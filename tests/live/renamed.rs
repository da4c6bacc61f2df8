//! Servers whose configuration renames commands: a call that needs a missing one is an error before anything
//! is written.

use crate::common::{BINARY, COMMANDS, Client, Options, ReplicaStream, Server, Waiter, cluster, wall_ns};

/// Calls that write, each with its key and the commands that its effects need. Their order matters: without a
/// lease there is nothing to renew.
fn calls() -> Vec<(String, &'static str, &'static [&'static str])> {
    const LEASES: &[&str] = &["ZADD", "ZREM", "ZREMRANGEBYRANK", "PEXPIREAT"];
    let all = COMMANDS.iter().filter(|command| !command.effects.is_empty());
    let all = all.map(|command| (command.on(command.name), command.name, command.effects));
    let more = [
        ("CL.THROTTLE CL.THROTTLE 15 30 3600 5 SATURATE", "CL.THROTTLE", &["SET"][..]),
        ("CL.ACQUIRE CL.ACQUIRE 15 1800 you", "CL.ACQUIRE", LEASES),
        ("CL.RENEW CL.ACQUIRE 7200 you", "CL.ACQUIRE", LEASES),
        ("CL.MTAKE q THROTTLE 15 30 3600 1 HOLD h 60 me", "h", &["SET", "ZADD", "ZREM", "PEXPIREAT"]),
    ];
    all.chain(more.map(|(call, key, effects)| (call.to_owned(), key, effects))).collect()
}

const MISSING: [&str; 10] =
    ["SET", "HSET", "PEXPIREAT", "ZADD", "ZREM", "ZREMRANGEBYRANK", "ZRANGE", "ZCOUNT", "DEL", "UNLINK"];

fn without(command: &str) -> Options {
    Options::new().append_only().rename(command, if command.len().is_multiple_of(2) { "" } else { "renamed" })
}

fn not_available(command: &str) -> String {
    format!("ERR command {command} is not available on this server")
}

/// Every key with its value and its expiry.
pub fn everything(client: &mut Client) -> Vec<String> {
    let mut keys: Vec<String> = client.get("KEYS *");
    keys.sort();
    keys.iter().map(|key| format!("{key} {:?}", client.snapshot(key))).collect()
}

#[test]
fn what_needs_a_missing_command_is_an_error_and_changes_nothing() {
    for missing in MISSING {
        let mut server = without(missing).start();
        let mut stream = ReplicaStream::attach(&server);
        let mut client = server.connect();
        let said = format!("not available on this server: {missing};");
        assert!(server.log().contains(&said), "{missing}: the log says nothing:\n{}", server.log());
        stream.effects(&server);
        for (call, key, commands) in calls() {
            let call = call.as_str();
            let before = client.snapshot(key);
            let needs = commands.contains(&missing)
                || missing == "PEXPIREAT" && commands == ["SET"] && !BINARY.at_least(6, 2, 8);
            // Without ACQUIRE there is nothing to renew.
            let nothing_to_do = call.starts_with("CL.RENEW") && client.int("ZCARD CL.ACQUIRE") == 0;
            match client.ask(call) {
                Err(error) if needs && !nothing_to_do => assert_eq!(error, not_available(missing), "{call}"),
                Ok(answer) if !needs || nothing_to_do => {
                    assert_eq!(needs, client.snapshot(key) == before, "{call}: {answer:?} without {missing}");
                }
                seen => panic!("{call} without {missing}: {seen:?}"),
            }
            let effects = stream.effects(&server);
            if needs {
                assert_eq!(client.snapshot(key), before, "{call} without {missing}");
                assert_eq!(effects, [], "{call} without {missing}");
            }
        }
        let before = everything(&mut client);
        server.restart();
        assert_eq!(
            everything(&mut server.connect()),
            before,
            "{missing}: restarted from the append-only file"
        );
    }
}

#[test]
fn a_server_with_all_commands_warns_of_nothing() {
    let server = Options::new().set("appendonly", "yes").start();
    server.connect().call("CL.THROTTLE k 9 10 3600");
    for warning in ["not available", "not replicated"] {
        assert!(!server.log().contains(warning), "{}", server.log());
    }
}

#[test]
fn without_del_nothing_is_refunded_to_full() {
    let server = without("DEL").start();
    let mut client = server.connect();
    client.call("CL.THROTTLE k 9 10 3600 5");
    let before = client.snapshot("k");
    assert_eq!(client.error("CL.REFUND k 9 10 3600 5"), not_available("DEL"));
    assert_eq!(client.snapshot("k"), before);
    assert_eq!(client.ints("CL.REFUND k 9 10 3600 4")[..3], [0, 10, 9]);
}

/// A place is given back as long as the server has one of the two commands that delete.
#[test]
fn the_last_release_deletes_by_whichever_command_there_is() {
    for (missing, other) in [("UNLINK", "DEL"), ("DEL", "UNLINK")] {
        let mut server = without(missing).start();
        let mut stream = ReplicaStream::attach(&server);
        let mut client = server.connect();
        client.call("CL.ACQUIRE k 1 3600 a");
        stream.effects(&server);
        assert_eq!(client.int("CL.RELEASE k a"), 1);
        let effects = stream.effects(&server);
        assert!(effects.iter().any(|effect| effect.command == format!("{other} k")), "{effects:?}");
        server.restart();
        assert_eq!(server.connect().int("DBSIZE"), 0);
    }
    let server = without("UNLINK").rename("DEL", "").start();
    let mut client = server.connect();
    client.call("CL.ACQUIRE k 1 3600 a");
    let before = client.snapshot("k");
    assert_eq!(client.error("CL.RELEASE k a"), not_available("DEL"));
    assert_eq!(client.snapshot("k"), before);
}

/// The place was taken and an error answered, at every call with something to remove.
#[test]
fn no_place_is_taken_by_a_call_that_is_an_error() {
    let server = without("ZREMRANGEBYRANK").start();
    let mut client = server.connect();
    let ended = wall_ns() / 1_000 - 60_000_000;
    client.call(&format!("ZADD k {ended} ended"));
    client.call("PEXPIRE k 3600000");
    let before = client.snapshot("k");
    assert_eq!(client.error("CL.ACQUIRE k 5 60 z"), not_available("ZREMRANGEBYRANK"));
    assert_eq!(client.snapshot("k"), before);
}

#[test]
fn checks_that_the_server_cannot_make_are_errors() {
    for (missing, call) in [("ZRANGE", "CL.LOG k 5 3600 3"), ("ZCOUNT", "CL.LOG k 5 1800")] {
        let server = without(missing).start();
        let mut client = server.connect();
        let now = wall_ns() / 1_000;
        for age in [2_400, 1_200, 600, 1] {
            let score = now - age * 1_000_000;
            client.call(&format!("ZADD k {score} {score}-0"));
        }
        client.call("PEXPIRE k 3600000");
        let before = client.snapshot("k");
        assert_eq!(client.error(call), not_available(missing));
        assert_eq!(client.snapshot("k"), before);
    }
}

#[test]
fn refusals_and_checks_need_no_effects() {
    let (full, server) = (Server::start(), without("SET").start());
    let (mut source, mut client) = (full.connect(), server.connect());
    source.call("CL.THROTTLE k 0 1 3600");
    let dump: Vec<u8> = source.get("DUMP k");
    client.call(&[b"RESTORE".as_ref(), b"k", b"3600000", &dump]);
    let before = client.snapshot("k");
    assert_eq!(client.ints("CL.THROTTLE k 0 1 3600")[..3], [1, 1, 0]);
    assert_eq!(client.ints("CL.PEEK k 0 1 3600")[..3], [1, 1, 0]);
    assert_eq!(client.error("CL.CHARGE k 0 1 3600"), not_available("SET"));
    assert_eq!(client.snapshot("k"), before);
}

/// Every waiter got TRYAGAIN at its turn, as if the key had moved away.
#[test]
fn a_client_that_waits_in_a_cluster_is_admitted_without_exists() {
    let server = cluster(1, || Options::new().rename("EXISTS", "")).remove(0);
    let mut client = server.connect();
    client.call("CL.THROTTLE k 0 1 200 1 MS");
    let mut waiter = Waiter::ask(&server, "CL.BTHROTTLE k 0 1 200 1 0 MS");
    assert_eq!(waiter.answer().split(' ').next(), Some("0"));
}
