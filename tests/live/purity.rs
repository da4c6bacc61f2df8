//! A refusal, a check and an error change nothing, anywhere.

use crate::common::{Footprint, KINDS, Options, ReplicaStream};
use std::time::Duration;

#[test]
fn what_takes_nothing_leaves_no_trace() {
    let server = Options::new().append_only().set("notify-keyspace-events", "KEA").start();
    // With a replica, offsets move.
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    client.call("SET text foo");
    client.call("RPUSH list a");
    client.throttle_checked("used", "9 10 3600 7");
    client.throttle_checked("full", "9 10 3600 10");
    for kind in &KINDS {
        for asked in [kind.asked("2", "a"), kind.asked("0", "b")] {
            client.call(&kind.call(kind.word, 2, 3600, asked));
        }
    }
    let mut listener = server.connect();
    let mut events = listener.connection().as_pubsub();
    events.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    events.psubscribe("__key*").unwrap();
    stream.effects(&server);

    let mut calls: Vec<String> = ["RENEW LEASE 60 c", "RELEASE LEASE c", "RELEASE fresh c", "RELEASE list c"]
        .map(|call| format!("CL.{call}"))
        .into();
    for kind in &KINDS {
        for (quantity, holder) in
            [("0", "c"), ("1", "c"), ("3", "c MS"), ("-1", "c 1"), ("1 BOGUS", "c BOGUS")]
        {
            calls.push(kind.call(kind.word, 2, 3600, kind.asked(quantity, holder)));
            calls.push(kind.call("list", 2, 3600, kind.asked(quantity, holder)));
        }
    }
    calls.extend(
        [
            ("fresh", "9 10 3600 0"),
            ("fresh", "9 10 3600 0 SATURATE"),
            ("fresh", "9 10 3600 11"),
            ("fresh", "9 10 3600 1000000"),
            ("fresh", "9 10 3600 1000000000000"),
            ("fresh", "9 10 3600 x"),
            ("fresh", "9 10 3600 1 BOGUS"),
            ("fresh", "9 10 3600 1 MS MS"),
            ("fresh", "9 10"),
            ("used", "9 10 3600 0"),
            ("used", "9 10 3600 0 SATURATE MS"),
            ("used", "9 10 3600 4"),
            ("used", "9 10 3600 11"),
            ("used", "6 7 3600 8"),
            ("used", "9 10 3600 -1"),
            ("used", "9 10 9223372036854775807"),
            ("used", "9 10 3600 1 BOGUS"),
            ("full", "9 10 3600"),
            ("full", "9 10 3600 SATURATE"),
            ("full", "9 10 3600 100 SATURATE"),
            ("full", "9 10 3600 0"),
            ("full", "0 1 60"),
            ("text", "9 10 3600"),
            ("text", "9 10 3600 0"),
            ("list", "9 10 3600"),
            ("list", "9 10 3600 0"),
        ]
        .map(|(key, arguments)| format!("CL.THROTTLE {key} {arguments}")),
    );
    for call in calls {
        let key = call.split(' ').nth(1).unwrap();
        let before = Footprint::of(&server, &mut client, key);
        for _ in 0..3 {
            let _ = client.ask(&call);
        }
        assert_eq!(Footprint::of(&server, &mut client, key), before, "{call}");
    }
    client.call("PUBLISH __keydone__ now");
    let first_event = events.get_message().unwrap();
    assert_eq!(first_event.get_channel_name(), "__keydone__", "no keyspace event before this message");
    assert_eq!(stream.effects(&server).len(), 1, "nothing was propagated but this message");

    // The same comparison detects a call that takes units.
    let before = Footprint::of(&server, &mut client, "used");
    client.throttle_checked("used", "9 10 3600");
    let after = Footprint::of(&server, &mut client, "used");
    assert_ne!(after.key, before.key);
    assert_ne!(after.unsaved_changes, before.unsaved_changes);
    assert_ne!(after.replication_offset, before.replication_offset);
    assert_ne!(after.append_only_file, before.append_only_file);
    assert_ne!(stream.effects(&server), []);
}
