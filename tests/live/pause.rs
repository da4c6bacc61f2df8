//! CL.PAUSE: no unit before the wait is over, one unit at its end, and then units at the rate.

use crate::common::{Client, Effect, ReplicaStream, Server, Waiter, wait_for_blocked};

/// Runs calls in one transaction, so that next to no time passes between them.
fn at_once(client: &mut Client, calls: &[&str]) -> Vec<Vec<i64>> {
    client.call("MULTI");
    for call in calls {
        client.call(*call);
    }
    client.get("EXEC")
}

#[test]
fn nobody_is_admitted_before_it_ends() {
    let (_server, mut client) = Server::with_client();
    for (calls, expected) in [
        (["CL.PAUSE a 0 1 60 30", "CL.THROTTLE a 0 1 60"], [[0, 1, 0, -1, 30], [1, 1, 0, 30, 30]]),
        (["CL.PAUSE b 9 10 3600 600", "CL.PEEK b 9 10 3600"], [[1, 10, 0, 600, 3840], [1, 10, 0, 600, 3840]]),
        (["CL.PAUSE c 9 10 3600 0", "CL.THROTTLE c 9 10 3600"], [[0, 10, 1, -1, 3240], [0, 10, 0, -1, 3600]]),
        (
            ["CL.PAUSE d 9 10 3600000 600000 MS", "CL.THROTTLE d 9 10 3600 2"],
            [[1, 10, 0, 600_000, 3_840_000], [1, 10, 0, 960, 3840]],
        ),
    ] {
        assert_eq!(at_once(&mut client, &calls), expected, "{calls:?}");
    }
}

#[test]
fn the_pause_that_ends_last_holds() {
    let (server, mut client) = Server::with_client();
    let mut stream = ReplicaStream::attach(&server);
    client.call("CL.PAUSE k 4 5 3600 7200");
    assert_eq!(stream.effects(&server), Effect::alone(0, Effect::of_call(&mut client, 0, "k")));
    let before = client.snapshot("k");
    for shorter in ["CL.PAUSE k 4 5 3600 3600", "CL.PAUSE k 4 5 3600 0"] {
        client.call(shorter);
        assert_eq!(client.snapshot("k"), before, "{shorter}");
    }
    assert_eq!(stream.effects(&server), []);
    client.call("CL.PAUSE k 4 5 3600 9000");
    assert!(client.expiry_ms("k") > 0 && client.snapshot("k") != before, "a longer one lengthens it");
    // A refund gives back its quantity and no more; DEL ends the pause.
    assert_eq!(client.ints("CL.REFUND k 4 5 3600")[..3], [1, 5, 0]);
    client.call("DEL k");
    assert_eq!(client.ints("CL.THROTTLE k 4 5 3600 5")[..3], [0, 5, 0]);
}

#[test]
fn clients_in_the_queue_wait_for_its_end() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 3600");
    let mut waiter = Waiter::ask(&server, "CL.BTHROTTLE k 0 1 3600 1 0");
    wait_for_blocked(&mut client, 1);
    client.call("CL.PAUSE k 0 1 3600 86400");
    // Without the pause the next turn would come when the key is deleted or this much is given back.
    client.call("CL.REFUND k 0 1 3600 1");
    assert!(client.ints("CL.PEEK k 0 1 3600 1")[3] > 80_000);
    assert_eq!(crate::info::fields(&mut client)["blocked_clients"], "1");
    client.call("DEL k");
    assert!(waiter.answer().starts_with("0 1 0"), "admitted once the pause is gone");
}
