//! A clock finer than a millisecond: fast rates are limited exactly.

use crate::common::{Client, Server, Throttle, ints, wall_ns};
use redis::Value;

/// Calls for this time, and then until a batch ends with a refusal: a busy machine may be slower than the
/// limit. Returns how many were admitted, and the time between two instants of the wall clock around them.
fn hammer(client: &mut Client, key: &str, arguments: &str, for_ns: i64) -> (i64, i64) {
    let call = format!("CL.THROTTLE {key} {arguments}");
    let batch = vec![call.as_str(); 64];
    let first = wall_ns();
    let (mut admitted, mut last, mut limited) = (0, first, false);
    while last < first + for_ns || !limited {
        assert!(last < first + 100 * for_ns, "never came up against the limit");
        for answer in client.pipeline(&batch) {
            limited = ints(&answer.unwrap()).unwrap()[0] == 1;
            admitted += i64::from(!limited);
        }
        last = wall_ns();
    }
    (admitted, last - first)
}

#[test]
fn never_more_than_the_burst_and_what_time_brings() {
    let (_server, mut client) = Server::with_client();
    for (key, arguments) in [
        ("8,000-a-second", "0 8000 1"),
        ("the-same-per-millisecond", "0 8 1 1 MS"),
        ("the-same-per-microsecond", "0 1 125 1 US"),
        ("with-a-burst", "99 8000 1"),
        ("a-third-of-a-millisecond", "4 3 1 1 MS"),
    ] {
        let throttle = Throttle::parse(arguments);
        let (admitted, elapsed) = hammer(&mut client, key, arguments, 150_000_000);
        let most = throttle.most_within(elapsed, admitted);
        assert!((1..=most).contains(&admitted.into()), "{arguments}: {admitted} of {most} in {elapsed} ns");
    }
}

#[test]
fn replies_stay_in_order_under_load() {
    let (_server, mut client) = Server::with_client();
    let call = "CL.THROTTLE k 999 1000 3600";
    let replies: Vec<Value> = client.pipeline(&vec![call; 1500]).into_iter().map(Result::unwrap).collect();
    for (i, reply) in (0..).zip(&replies) {
        let reply = ints(reply).unwrap();
        assert_eq!(reply[0], i64::from(i >= 1000), "call {i}: {reply:?}");
        assert_eq!(reply[2], (999 - i).max(0), "call {i}: {reply:?}");
    }
}
