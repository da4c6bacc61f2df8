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
fn each_refusal_is_one_event_if_both_the_module_and_the_server_are_told() {
    requires!(has_class(), NO_CLASS);
    let (refused, on) = ("CL.THROTTLE k 0 1 3600 2", "notify-refusals yes");
    let all = "CL.MTAKE a THROTTLE 0 1 3600 1 b THROTTLE 0 1 3600 1 c THROTTLE 0 1 3600 1";
    let script = "EVAL return{redis.call(unpack(ARGV))} 0 CL.THROTTLE l 0 1 60 2";
    for (settings, classes, calls, events) in [
        (
            on,
            "KEd",
            &[refused, "SELECT 3", "CL.ACQUIRE jobs 1 60 a", "CL.ACQUIRE jobs 1 60 b"][..],
            &[
                "__keyspace@0__:k cl.refused",
                "__keyevent@0__:cl.refused k",
                "__keyspace@3__:jobs cl.refused",
                "__keyevent@3__:cl.refused jobs",
            ][..],
        ),
        // What refuses nothing.
        (
            on,
            "KEd",
            &[
                "CL.CHARGE k 0 1 3600 5",
                "CL.CHARGE k 0 1 3600 5",
                "CL.REFUND k 0 1 3600",
                "CL.PEEK k 0 1 3600",
                "CL.RENEW nobody 60 me",
                "CL.RELEASE nobody me",
                "CL.THROTTLE k 0 1 x",
            ],
            &[],
        ),
        // Of several limits those that refuse, also without the record of CL.TOP.
        (
            "notify-refusals yes top-size 0",
            "Ed",
            &["CL.THROTTLE b 0 1 3600", "CL.THROTTLE c 0 1 3600", all],
            &["__keyevent@0__:cl.refused b", "__keyevent@0__:cl.refused c"],
        ),
        (
            on,
            "EA",
            &["MULTI", refused, "EXEC", script],
            &["__keyevent@0__:cl.refused k", "__keyevent@0__:cl.refused l"],
        ),
        ("", "KEd", &[refused], &[]),
        ("notify-refusals no", "KEA", &[refused], &[]),
        (on, "KE$g", &[refused], &[]),
    ] {
        let server = start(settings, classes);
        let seen = published(&server, |client| {
            for call in calls {
                let _ = client.ask(*call);
            }
        });
        assert_eq!(seen, events, "{settings} with {classes}: {calls:?}");
    }
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
fn an_expiry_is_an_event_when_it_changes() {
    let server = start("", "Kz$gx");
    let seen = published(&server, |client| {
        for hold in ["h 30", "h 30", "h 90"] {
            client.call(&format!("CL.MTAKE k FIXED 9 60 1 HOLD {hold} me"));
        }
        client.call("CL.MTAKE t FIXED 9 TOTAL 1 HOLD h 90 me");
        client.call("CL.MTAKE t FIXED 9 TOTAL 1 HOLD h 90 me");
    });
    let of_holds = seen.iter().filter_map(|event| event.strip_prefix("__keyspace@0__:h "));
    let events: Vec<&str> = of_holds.collect();
    assert_eq!(events, ["zadd", "expire", "zadd", "zadd", "expire", "zadd", "zadd"]);
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
