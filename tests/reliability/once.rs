//! Calls that are sent again because their replies were lost.

use crate::common::{Client, Options, Server, Waiter};
use crate::failover::catch_up;

const PAYMENTS: u32 = 300;

/// Whether the reply to this attempt is lost: of about a third of all.
fn is_lost(payment: u32, attempt: u32) -> bool {
    (payment.wrapping_mul(2_654_435_761) ^ attempt.wrapping_mul(40_503)).rotate_right(11) % 10 < 3
}

/// Sends the call until a reply arrives; how many were lost.
fn pay(server: &Server, client: &mut Client, payment: u32) -> u32 {
    let call = format!(
        "CL.MTAKE {{u}}:paid FIXED 1000000 3600 7 {{u}}:rpm THROTTLE 9999 1 3600 1 ONCE {{u}}:payment-{payment} 600"
    );
    let mut attempt = 0;
    while is_lost(payment, attempt) {
        // The client closes the connection before the reply. The server may run the call or not.
        let mut lost = Waiter::connect(server);
        lost.send(&call);
        if attempt % 2 == 0 {
            let _ = lost.answer();
        }
        attempt += 1;
    }
    client.call(&call);
    attempt
}

#[test]
pub fn payments_are_charged_once_through_lost_replies_and_a_failover() {
    let primary = Server::start();
    let replica = Options::new().start();
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    copy.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let lost: u32 = (0..PAYMENTS).map(|payment| pay(&primary, &mut client, payment)).sum();
    assert!(lost > PAYMENTS / 5, "{lost} replies were lost");
    // Connections that were closed may still be read.
    client.call("PING");
    assert_eq!(client.int("GET {u}:paid"), i64::from(7 * PAYMENTS));
    catch_up(&mut client, &mut copy);
    copy.call("REPLICAOF NO ONE");
    // It is unknown which replies the old primary has sent, so all calls are sent again, and then new ones.
    for payment in 0..PAYMENTS + 100 {
        pay(&replica, &mut copy, payment);
    }
    assert_eq!(copy.int("GET {u}:paid"), i64::from(7 * (PAYMENTS + 100)));
    let taken = 10_000 - copy.ints("CL.PEEK {u}:rpm 9999 1 3600 0")[2];
    assert_eq!(taken, i64::from(PAYMENTS + 100), "nor does another limiter of the call count twice");
}
