//! Restarts: exactly the same state is loaded, with or without the module.

use crate::common::{BINARY, Client, Effect, Options, Server, Snapshot, read_aof, wait_until};
use crate::effects::no_child;

const KEYS: [&str; 5] = ["once", "twice", "full", "uneven", "far"];

/// Some limits in use, one of them in another database.
fn use_limits(client: &mut Client) {
    client.throttle_checked("once", "9 10 3600 4");
    client.throttle_checked("twice", "9 10 3600 4");
    client.throttle_checked("twice", "9 10 3600 2");
    client.throttle_checked("full", "9 10 3600 10");
    client.throttle_checked("full", "9 10 3600 10");
    client.throttle_checked("uneven", "99 7 3600 3");
    client.throttle_checked("far", "0 1 4000000000");
    client.call("SELECT 7");
    client.throttle_checked("once", "9 10 3600 9");
    client.call("SELECT 0");
}

fn states(client: &mut Client) -> Vec<Snapshot> {
    let mut states: Vec<Snapshot> = KEYS.iter().map(|key| client.snapshot(*key)).collect();
    client.call("SELECT 7");
    states.push(client.snapshot("once"));
    client.call("SELECT 0");
    states
}

/// Asserts that the limits continue from their state.
fn assert_limits_hold(client: &mut Client) {
    assert_eq!(client.throttle_checked("full", "9 10 3600")[0], 1);
    assert_eq!(client.throttle_checked("twice", "9 10 3600 5")[0], 1);
    assert_eq!(client.throttle_checked("twice", "9 10 3600 4")[..4], [0, 10, 0, -1]);
    assert_eq!(client.throttle_checked("far", "0 1 4000000000")[0], 1);
}

/// Time that a replay of calls, instead of effects, would add to every state.
fn let_a_second_pass(client: &mut Client) {
    client.call("CL.THROTTLE second 0 1 1001 1 MS");
    wait_until("a second to pass", || match client.ints("CL.THROTTLE second 0 1 1001 0 MS")[4] {
        0 => Ok(()),
        left => Err(format!("{left} ms left")),
    });
    client.call("DEL second");
}

#[test]
fn an_append_only_file_replayed_later_brings_back_the_same_instants() {
    let mut server = Options::new().append_only().start();
    let mut client = server.connect();
    use_limits(&mut client);
    let before = states(&mut client);
    let_a_second_pass(&mut client);
    server.restart();
    let mut client = server.connect();
    assert_eq!(states(&mut client), before);
    assert_limits_hold(&mut client);
}

#[test]
fn the_append_only_file_holds_effects() {
    let server = Options::new().append_only().start();
    let mut client = server.connect();
    let mut expected = Vec::new();
    for (key, arguments) in [("a", "9 10 3600"), ("b", "9 10 3600 4"), ("a", "9 10 3600 2 SATURATE")] {
        client.throttle_checked(key, arguments);
        client.call(&format!("CL.THROTTLE {key} 9 10 3600 10")); // refused
        client.call(&format!("CL.THROTTLE {key} 9 10 3600 0"));
        expected.extend(Effect::alone(0, Effect::of_call(&mut client, 0, key)));
    }
    assert_eq!(read_aof(&server), expected);
}

#[test]
fn a_rewritten_append_only_file_brings_back_the_same_instants() {
    for preamble in ["yes", "no"] {
        let mut server = Options::new().append_only().set("aof-use-rdb-preamble", preamble).start();
        let mut client = server.connect();
        use_limits(&mut client);
        client.call("BGREWRITEAOF");
        no_child(&mut client);
        client.throttle_checked("once", "9 10 3600 1"); // after the rewrite
        let before = states(&mut client);
        server.restart();
        let mut client = server.connect();
        assert_eq!(states(&mut client), before, "RDB preamble: {preamble}");
        assert_limits_hold(&mut client);
    }
}

#[test]
fn a_snapshot_brings_back_the_same_instants() {
    let (mut server, mut client) = Server::with_client();
    use_limits(&mut client);
    let before = states(&mut client);
    client.call("DEBUG RELOAD");
    assert_eq!(states(&mut client), before, "DEBUG RELOAD");
    client.call("SAVE");
    let_a_second_pass(&mut client);
    server.restart();
    let mut client = server.connect();
    assert_eq!(states(&mut client), before, "restart");
    assert_limits_hold(&mut client);
}

#[test]
fn a_server_without_the_module_loads_everything_as_plain_strings() {
    for (name, options) in [("RDB", Options::new()), ("AOF", Options::new().append_only())] {
        let mut server = options.start();
        let mut client = server.connect();
        use_limits(&mut client);
        let before = states(&mut client);
        if name == "RDB" {
            client.call("SAVE");
        }
        server.restart_without_module();
        let mut client = server.connect();
        assert!(client.error("CL.THROTTLE once 9 10 3600").contains("unknown command"), "no module");
        assert_eq!(states(&mut client), before, "{name}");
        for key in KEYS {
            assert_eq!(client.text(&["TYPE", key]), "string", "{name}, {key}");
            assert!(client.tat(key).is_some(), "{name}, {key}");
        }
    }
}

#[test]
fn the_server_under_test_is_the_one_named() {
    let server = Server::start();
    let field = if BINARY.name == "valkey" { "valkey_version" } else { "redis_version" };
    assert_eq!(server.connect().info(field), BINARY.version_text);
}
