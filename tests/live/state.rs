//! The state under the key: the same as of brandur/redis-cell, native, readable, and moved by the server's
//! commands.

use crate::common::{Client, Server, ceil_div, requires, wall_ns};

#[test]
fn del_is_the_reset() {
    let (_server, mut client) = Server::with_client();
    client.throttle_checked("k", "0 1 3600");
    assert_eq!(client.throttle_checked("k", "0 1 3600")[0], 1);
    assert_eq!(client.int("DEL k"), 1);
    assert_eq!(client.throttle_checked("k", "0 1 3600")[0], 0);
}

#[test]
fn written_by_redis_cell_is_honoured() {
    let (_server, mut client) = Server::with_client();
    for (key, ahead_ms) in [("nearly-done", 3_000), ("half", 15_000), ("full", 32_000), ("in-debt", 45_000)] {
        // brandur/redis-cell rounds the expiry down.
        let tat = wall_ns() + ahead_ms * 1_000_000 + 987_654;
        client.call(&format!("SET {key} {tat} PX {ahead_ms}"));
        let before = client.snapshot(key);
        for arguments in ["15 30 60 0", "15 30 60 17"] {
            client.throttle_checked(key, arguments);
            assert_eq!(client.snapshot(key), before, "{key} after {arguments}");
        }
        for arguments in ["15 30 60", "15 30 60 3", "15 30 60 20 SATURATE", "15 30 60"] {
            client.throttle_checked(key, arguments);
        }
    }
}

fn state(client: &mut Client, key: &str) -> (Option<i64>, i64) {
    (client.tat(key), client.expiry_ms(key))
}

#[test]
fn survives_dump_restore_and_rename() {
    let (_server, mut client) = Server::with_client();
    client.throttle_checked("k", "15 30 60 9");
    let original = state(&mut client, "k");

    let dump: Vec<u8> = client.get("DUMP k");
    let expiry = original.1.to_string();
    client.call(&[b"RESTORE".as_ref(), b"restored", expiry.as_bytes(), &dump, b"ABSTTL"]);
    assert_eq!(state(&mut client, "restored"), original, "RESTORE");

    client.call("RENAME k renamed");
    assert_eq!(state(&mut client, "renamed"), original, "RENAME");
    for key in ["restored", "renamed"] {
        assert_eq!(client.throttle_checked(key, "15 30 60 4")[0], 0, "{key}");
        assert_eq!(client.throttle_checked(key, "15 30 60 9")[0], 1, "{key}");
    }
    assert_eq!(client.throttle_checked("k", "15 30 60 16")[0], 0, "the old name is fresh again");
}

#[test]
fn survives_copy() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("COPY"), "no COPY");
    client.throttle_checked("k", "15 30 60 9");
    let original = state(&mut client, "k");
    client.call("COPY k copied");
    assert_eq!(state(&mut client, "copied"), original);
    client.throttle_checked("copied", "15 30 60 1");
    assert_eq!(state(&mut client, "k"), original, "the copy has a state of its own");
}

#[test]
fn whatever_the_encoding_of_the_string() {
    let (_server, mut client) = Server::with_client();
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
        assert_eq!(client.throttle_checked(key, "15 30 60 0")[..2], [0, 16], "{key}, {encoding}");
        assert_eq!(client.throttle_checked(key, "15 30 60 16")[..2], [1, 16], "{key}, {encoding}");
        assert_eq!(client.snapshot(key), before, "{key}, {encoding}");
        assert_eq!(client.throttle_checked(key, "15 30 60")[..2], [0, 16], "{key}, {encoding}");
        assert_eq!(client.throttle_checked(key, "15 30 60")[..2], [0, 16], "{key}, {encoding}");
    }
}

/// Regression: after PERSIST, or RESTORE without a time to live, a limiter longer than a day was an error
/// until DEL, and so was any limiter that had not been called for a day since.
#[test]
fn a_limiter_without_its_expiry_continues_and_gets_one() {
    let (_server, mut client) = Server::with_client();
    client.call("CL.CHARGE k 9 10 864000 8"); // eight of ten days
    let dump: Vec<u8> = client.get("DUMP k");
    client.call("PERSIST k");
    client.call(&[b"RESTORE".as_ref(), b"copy", b"0", &dump]);
    for key in ["k", "copy"] {
        assert_eq!(client.ints(&format!("CL.THROTTLE {key} 9 10 864000 3"))[..3], [1, 10, 2]);
        assert_eq!(client.expiry_ms(key), -1, "a refusal changes nothing");
        assert_eq!(client.ints(&format!("CL.THROTTLE {key} 9 10 864000 2"))[..3], [0, 10, 0]);
        assert_eq!(client.expiry_ms(key), ceil_div(client.tat(key).unwrap().into(), 1_000_000));
        // Another expiry, set by hand, does not matter either.
        client.call(&format!("EXPIRE {key} 100"));
        assert_eq!(client.ints(&format!("CL.THROTTLE {key} 9 10 864000"))[..3], [1, 10, 0]);
    }
    // Idle for thirty days.
    let passed = wall_ns() - 30 * 86_400 * 1_000_000_000;
    client.call(&format!("SET idle {passed}"));
    assert_eq!(client.ints("CL.THROTTLE idle 9 10 60"), [0, 10, 9, -1, 6]);
}
