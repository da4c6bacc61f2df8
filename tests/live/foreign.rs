//! Keys that hold something else: a clear error, and they stay unchanged.

use crate::common::{Client, Server, WRONGTYPE, requires, wall_ns};

const CALLS: [&str; 5] =
    ["9 10 60", "9 10 60 0", "9 10 60 11", "9 10 60 5 SATURATE", "9 10 60 0 SATURATE MS"];

/// Asserts that every call on the key returns an error that `expected` accepts, and changes nothing.
fn assert_untouched(client: &mut Client, key: &str, expected: impl Fn(&str) -> bool) {
    let before = client.snapshot(key);
    for arguments in CALLS {
        let error = client.error(&format!("CL.THROTTLE {key} {arguments}"));
        assert!(expected(&error), "CL.THROTTLE {key} {arguments}: {error}");
    }
    assert_eq!(client.snapshot(key), before, "{key}");
}

#[test]
fn keys_of_another_type_are_refused_as_the_server_does() {
    let (server, mut client) = Server::with_client();
    for command in [
        "RPUSH list a b",
        "SADD set a b",
        "SADD intset 1 2",
        "HSET hash f v",
        "ZADD zset 1 a",
        "XADD stream * f v",
        "GEOADD geo 1 1 a",
    ] {
        client.call(command);
        let key = command.split(' ').nth(1).unwrap();
        assert_untouched(&mut client, key, |error| error == WRONGTYPE);
        client.call(&["PEXPIRE", key, "3600000"]);
        assert_untouched(&mut client, key, |error| error == WRONGTYPE);
    }
    server.assert_alive("keys of other types");
}

#[test]
fn strings_of_another_meaning_are_refused() {
    let (server, mut client) = Server::with_client();
    let now = wall_ns();
    let either = "foo -5 1.5 42 0 12345678901234567890123".split(' ').chain([""]);
    let lasting = "9223372036854775807 9223372036854775808 1e18 0x1fff".split(' ');
    let values = either.flat_map(|value| [(value, false), (value, true)]);
    let values = values.chain(lasting.map(|value| (value, false)));
    let values = values.map(|(value, expires)| (value.to_owned(), expires)).chain([
        (format!("-{now}"), true),
        (format!("+{now}"), true),
        (format!(" {now}"), true),
        (format!("{now} "), true),
        (format!("{now}.0"), true),
        (format!("{now}\0"), true),
        (format!("00{now}"), true),
        ("9".repeat(1 << 20), true),
        ("\0".repeat(19), true),
    ]);
    for (value, expires) in values {
        client.call(&["SET", "k", &value]);
        if expires {
            client.call("PEXPIRE k 20000");
        }
        assert_untouched(&mut client, "k", |error| {
            error.starts_with("ERR ") && error.contains("does not hold") && error.len() < 300
        });
    }
    client.call(&[b"SET".as_ref(), b"k", b"\xff\xfe\x80", b"PX", b"20000"]);
    assert_untouched(&mut client, "k", |error| error.contains("does not hold"));
    server.assert_alive("foreign strings");
}

/// A value that the module would not write, but that looks like a state. A call on it may be refused or be an
/// error. It must neither overwrite it nor end the server.
#[test]
fn a_far_future_state_is_not_overwritten() {
    let (server, mut client) = Server::with_client();
    for value in ["9223372036854775807", "9223372036854775806", "9200000000000000000", "4000000000000000000"]
    {
        for expires in [false, true] {
            client.call(&["SET", "k", value]);
            if expires {
                client.call(&["PEXPIREAT", "k", &value[..13]]);
            }
            let before = client.snapshot("k");
            for arguments in ["9 10 60", "9 10 60 5 SATURATE", "9 10 60 0", "0 1 4000000000"] {
                if let Ok(reply) = client.ask(&format!("CL.THROTTLE k {arguments}")) {
                    let reply = crate::common::ints(&reply).unwrap();
                    let looked = arguments.ends_with(" 0");
                    assert!(looked || reply[0] == 1, "{value}, {arguments}: {reply:?}");
                }
            }
            assert_eq!(client.snapshot("k"), before, "{value} (expires: {expires})");
        }
    }
    server.assert_alive("states in the far future");
}

#[test]
fn hash_field_expiry_does_not_confuse_the_type() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("HPEXPIRE"), "no expiry of hash fields");
    client.call("HSET hash f v g w");
    client.call("HPEXPIRE hash 3600000 FIELDS 1 f");
    let before = client.expiry_ms("hash");
    assert_eq!(client.error("CL.THROTTLE hash 9 10 60"), WRONGTYPE);
    assert_eq!((client.expiry_ms("hash"), client.int("HLEN hash")), (before, 2));
}
