//! Keyspace events for refusals: only where they are enabled.

use crate::common::{Client, Options, Server, Waiter, requires, wait_for_blocked};
use std::time::Duration;

const NO_CLASS: &str = "no keyspace events of modules";

/// A server with these settings, which publishes the events of these classes.
fn start(settings: &str, classes: &str) -> Server {
    Options::new().module_arguments(settings).set("notify-keyspace-events", classes).start()
}

/// Whether the server has a class for module events.
fn has_class() -> bool {
    Server::start().connect().ask("CONFIG SET notify-keyspace-events KEd").is_ok()
}

/// The messages published while `work` runs, as `channel message`.
fn published(server: &Server, work: impl FnOnce(&mut Client)) -> Vec<String> {
    let mut listener = server.connect();
    let mut subscribed = listener.connection().as_pubsub();
    subscribed.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    subscribed.psubscribe("__key*").unwrap();
    subscribed.subscribe("end").unwrap();
    let mut client = server.connect();
    work(&mut client);
    client.call("PUBLISH end now");
    let mut seen = Vec::new();
    loop {
        let message = subscribed.get_message().unwrap();
        if message.get_channel_name() == "end" {
            return seen;
        }
        seen.push(format!(
            "{} {}",
            message.get_channel_name().escape_debug(),
            message.get_payload_bytes().escape_ascii()
        ));
    }
}

#[test]
fn each_refusal_is_one_event() {
    requires!(has_class(), NO_CLASS);
    let server = start("notify-refusals yes", "KEd");
    let seen = published(&server, |client| {
        client.call("CL.THROTTLE k 0 1 3600");
        client.call("CL.THROTTLE k 0 1 3600");
        client.call("SELECT 3");
        client.call("CL.ACQUIRE jobs 1 60 a");
        client.call("CL.ACQUIRE jobs 1 60 b");
    });
    assert_eq!(
        seen,
        [
            "__keyspace@0__:k cl.refused",
            "__keyevent@0__:cl.refused k",
            "__keyspace@3__:jobs cl.refused",
            "__keyevent@3__:cl.refused jobs",
        ]
    );
}

#[test]
fn what_refuses_nothing_is_no_event() {
    requires!(has_class(), NO_CLASS);
    let server = start("notify-refusals yes", "KEd");
    let seen = published(&server, |client| {
        client.call("CL.CHARGE k 0 1 3600 5");
        client.call("CL.CHARGE k 0 1 3600 5");
        client.call("CL.REFUND k 0 1 3600");
        client.call("CL.PEEK k 0 1 3600");
        client.call("CL.RENEW nobody 60 me");
        client.call("CL.RELEASE nobody me");
        client.error("CL.THROTTLE k 0 1 x");
    });
    assert_eq!(seen, Vec::<String>::new());
}

#[test]
fn of_several_limits_those_that_refuse() {
    requires!(has_class(), NO_CLASS);
    let server = start("notify-refusals yes top-size 0", "Ed"); // also without the record of CL.TOP
    let seen = published(&server, |client| {
        client.call("CL.THROTTLE b 0 1 3600");
        client.call("CL.THROTTLE c 0 1 3600");
        client.call("CL.MTAKE a THROTTLE 0 1 3600 1 b THROTTLE 0 1 3600 1 c THROTTLE 0 1 3600 1");
    });
    assert_eq!(seen, ["__keyevent@0__:cl.refused b", "__keyevent@0__:cl.refused c"]);
}

#[test]
fn a_wait_that_ends_in_nothing_is_an_event() {
    requires!(has_class(), NO_CLASS);
    let server = start("notify-refusals yes", "Ed");
    let seen = published(&server, |client| {
        client.call("SELECT 4");
        client.call("CL.THROTTLE k 0 1 3600");
        let mut waiter = Waiter::ask_in(&server, 4, "CL.BTHROTTLE k 0 1 3600 1 0");
        wait_for_blocked(client, 1);
        client.call(&format!("CLIENT UNBLOCK {}", waiter.id));
        assert_eq!(waiter.answer(), "null");
    });
    assert_eq!(seen, ["__keyevent@4__:cl.refused k"]);
}

#[test]
fn in_transactions_and_scripts() {
    requires!(has_class(), NO_CLASS);
    let server = start("notify-refusals yes", "EA");
    let seen = published(&server, |client| {
        client.call("MULTI");
        client.call("CL.THROTTLE k 0 1 3600 2");
        client.call("EXEC");
        client.call(&["EVAL", "return redis.call('CL.THROTTLE', KEYS[1], 0, 1, 60, 2)", "1", "l"]);
    });
    assert_eq!(seen, ["__keyevent@0__:cl.refused k", "__keyevent@0__:cl.refused l"]);
}

#[test]
fn off_unless_both_the_module_and_the_server_are_told() {
    requires!(has_class(), NO_CLASS);
    for (settings, classes) in [("", "KEd"), ("notify-refusals no", "KEA"), ("notify-refusals yes", "KE$g")] {
        let server = start(settings, classes);
        let seen = published(&server, |client| {
            client.call("CL.THROTTLE k 0 1 3600 2");
        });
        assert_eq!(seen, Vec::<String>::new(), "{settings} with {classes}");
    }
}

#[test]
fn a_server_without_the_class_refuses_the_setting() {
    let server = Options::new().without_module().start();
    let mut client = server.connect();
    let path = crate::common::module_path().display().to_string();
    let loaded = client.ask(&["MODULE", "LOAD", &path, "notify-refusals", "yes"]).is_ok();
    assert_eq!(loaded, has_class());
    if !loaded {
        let log = server.log();
        assert!(log.contains("not loaded: this server has no module keyspace events"), "{log}");
    }
}

#[test]
fn a_refusal_that_is_published_still_changes_nothing() {
    requires!(has_class(), NO_CLASS);
    let server = start("notify-refusals yes", "KEd");
    let mut client = server.connect();
    client.throttle_checked("k", "0 1 3600");
    let before = (client.snapshot("k"), client.info("rdb_changes_since_last_save"));
    client.call("WATCH k");
    let mut other = server.connect();
    assert_eq!(other.throttle_checked("k", "0 1 3600")[0], 1);
    client.call("MULTI");
    client.call("PING");
    assert_ne!(client.call("EXEC"), redis::Value::Nil, "a refusal fails no WATCH");
    assert_eq!((client.snapshot("k"), client.info("rdb_changes_since_last_save")), before);
}
