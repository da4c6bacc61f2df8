//! The state under the key: redis-cell's own, native, readable, and carried along by the server's commands.

use crate::common::{Client, Server, requires, wall_ns};

#[test]
fn is_the_decimal_tat_with_an_expiry_rounded_up() {
    let server = Server::start();
    let mut client = server.connect();
    // `checked` holds GET and the expiry against the contract; here is what else a user sees.
    client.checked("k", "15 30 60");
    assert_eq!(client.text("TYPE k"), "string");
    let digits = client.text("GET k");
    assert_eq!(digits.len(), 19, "nanoseconds since the epoch: {digits}");
    assert!(digits.bytes().all(|byte| byte.is_ascii_digit()), "{digits}");
    let ttl = client.int("PTTL k");
    assert!((1..=2_001).contains(&ttl), "one unit every 2 s, but PTTL is {ttl}");
    for _ in 0..20 {
        client.checked("k", "15 30 60"); // of 20 instants some leave a remainder below 1 ms
    }
}

#[test]
fn is_gone_once_it_is_as_good_as_new() {
    let server = Server::start();
    let mut client = server.connect();
    client.checked("k", "0 1 30 1 MS");
    crate::common::wait_until("the key to expire", || match client.int("EXISTS k") {
        0 => Ok(()),
        n => Err(n.to_string()),
    });
    assert_eq!(client.checked("k", "0 1 60"), [0, 1, 0, -1, 60]);
}

#[test]
fn del_is_the_reset() {
    let server = Server::start();
    let mut client = server.connect();
    client.checked("k", "0 1 3600");
    assert_eq!(client.checked("k", "0 1 3600")[0], 1);
    assert_eq!(client.int("DEL k"), 1);
    assert_eq!(client.checked("k", "0 1 3600")[0], 0);
}

#[test]
fn written_by_redis_cell_is_honoured() {
    let server = Server::start();
    let mut client = server.connect();
    for (key, ahead_ms) in [("nearly-done", 3_000), ("half", 15_000), ("full", 32_000), ("in-debt", 45_000)] {
        // redis-cell rounds the expiry down.
        let tat = wall_ns() + ahead_ms * 1_000_000 + 987_654;
        client.call(&format!("SET {key} {tat} PX {ahead_ms}"));
        let before = client.snapshot(key);
        for arguments in ["15 30 60 0", "15 30 60 17"] {
            client.checked(key, arguments);
            assert_eq!(client.snapshot(key), before, "{key} after {arguments}");
        }
        for arguments in ["15 30 60", "15 30 60 3", "15 30 60 20 SATURATE", "15 30 60"] {
            client.checked(key, arguments);
        }
    }
}

fn state(client: &mut Client, key: &str) -> (Option<i64>, i64) {
    (client.tat(key), client.expiry_ms(key))
}

#[test]
fn survives_dump_restore_and_rename() {
    let server = Server::start();
    let mut client = server.connect();
    client.checked("k", "15 30 60 9");
    let original = state(&mut client, "k");

    let dump: Vec<u8> = client.get("DUMP k");
    let expiry = original.1.to_string();
    client.call(&[b"RESTORE".as_ref(), b"restored", expiry.as_bytes(), &dump, b"ABSTTL"]);
    assert_eq!(state(&mut client, "restored"), original, "RESTORE");

    client.call("RENAME k renamed");
    assert_eq!(state(&mut client, "renamed"), original, "RENAME");
    for key in ["restored", "renamed"] {
        assert_eq!(client.checked(key, "15 30 60 4")[0], 0, "{key}");
        assert_eq!(client.checked(key, "15 30 60 9")[0], 1, "{key}");
    }
    assert_eq!(client.checked("k", "15 30 60 16")[0], 0, "the old name is fresh again");
}

#[test]
fn survives_copy() {
    let server = Server::start();
    let mut client = server.connect();
    requires!(client.has_command("COPY"), "no COPY");
    client.checked("k", "15 30 60 9");
    let original = state(&mut client, "k");
    client.call("COPY k copied");
    assert_eq!(state(&mut client, "copied"), original);
    client.checked("copied", "15 30 60 1");
    assert_eq!(state(&mut client, "k"), original, "the copy has a state of its own");
}

#[test]
fn whatever_the_encoding_of_the_string() {
    let server = Server::start();
    let mut client = server.connect();
    let tat = (wall_ns() + 20_000_000_000).to_string();
    // Integer-encoded by SET, raw after APPEND, rewritten by SETRANGE.
    client.call(&["SET", "int", &tat, "PX", "20001"]);
    client.call(&["SET", "raw", &tat[..10], "PX", "20001"]);
    client.call(&["APPEND", "raw", &tat[10..]]);
    client.call(&["SET", "ranged", &tat, "PX", "20001"]);
    client.call(&["SETRANGE", "ranged", "0", &tat[..1]]);
    for key in ["int", "raw", "ranged"] {
        let encoding = client.text(&["OBJECT", "ENCODING", key]);
        let before = client.snapshot(key);
        assert_eq!(client.checked(key, "15 30 60 0")[..2], [0, 16], "{key}, {encoding}");
        assert_eq!(client.checked(key, "15 30 60 16")[..2], [1, 16], "{key}, {encoding}");
        assert_eq!(client.snapshot(key), before, "{key}, {encoding}");
        assert_eq!(client.checked(key, "15 30 60")[..2], [0, 16], "{key}, {encoding}");
        assert_eq!(client.checked(key, "15 30 60")[..2], [0, 16], "{key}, {encoding}");
    }
}
