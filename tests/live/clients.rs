//! The statements of docs/clients.md about clients that treat CL.BTHROTTLE as an ordinary command.

use crate::common::{Client, Server, Waiter, wait_for_blocked};

/// The limit refills one unit an hour, so that no client is admitted by the passage of time.
const WAIT: &str = "CL.BTHROTTLE k 0 1 3600 1 0";
const GIVE_BACK: &str = "CL.REFUND k 0 1 3600";

/// A server whose key `k` has no units left, and a client that waits for one.
fn waiting() -> (Server, Client, Waiter) {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 3600");
    let waiter = Waiter::ask(&server, WAIT);
    wait_for_blocked(&mut client, 1);
    (server, client, waiter)
}

#[test]
fn a_client_that_gives_up_and_calls_again_is_behind_the_others() {
    let (server, mut client, impatient) = waiting();
    let mut patient = Waiter::ask(&server, WAIT);
    wait_for_blocked(&mut client, 2);
    drop(impatient);
    wait_for_blocked(&mut client, 1);
    let mut impatient = Waiter::ask(&server, WAIT);
    wait_for_blocked(&mut client, 2);

    client.call(GIVE_BACK);
    assert!(patient.answer().starts_with("0 1 0 -1 "));
    assert!(impatient.is_waiting(), "admitted as well: {}", impatient.answer());
}

#[test]
fn units_are_taken_for_a_client_that_keeps_its_connection_and_reads_no_reply() {
    let (_server, mut client, mut absent) = waiting();
    client.call(GIVE_BACK);
    wait_for_blocked(&mut client, 0);
    assert_eq!(client.ints("CL.PEEK k 0 1 3600")[0], 1, "the unit is available, so no client was admitted");
    assert!(absent.answer().starts_with("0 1 0 -1 "));
}

#[test]
fn later_calls_of_a_connection_wait_behind_a_waiting_call() {
    let (_server, mut client, mut shared) = waiting();
    shared.send("PING");
    assert_eq!(client.ints("CL.PEEK other 0 1 3600")[0], 0, "another connection is served");
    assert!(shared.is_waiting(), "the connection replied: {}", shared.answer());

    client.call(GIVE_BACK);
    assert!(shared.answer().starts_with("0 1 0 -1 "));
    assert_eq!(shared.answer(), "PONG");
}
