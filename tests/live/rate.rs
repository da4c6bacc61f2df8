//! A clock finer than a millisecond: fast rates are limited to exactly what they say.

use crate::common::{Client, Server, Throttle, ints, wall_ns};
use redis::Value;

/// What came of calls without a pause.
struct Hammer {
    admitted: i64,
    refused: i64,
    /// Between these wall-clock instants all calls took place.
    first: i64,
    last: i64,
    /// When the last batch was sent, whose last call was refused.
    refused_after: i64,
}

/// Calls for so long, and then until a batch ends with a refusal: on a busy machine the limit may be ahead.
fn hammer(client: &mut Client, key: &str, arguments: &str, for_ns: i64) -> Hammer {
    let call = format!("CL.THROTTLE {key} {arguments}");
    let batch = vec![call.as_str(); 64];
    let first = wall_ns();
    let mut seen = Hammer { admitted: 0, refused: 0, first, last: first, refused_after: first };
    let mut limited = false;
    while seen.last < first + for_ns || !limited {
        assert!(seen.last < first + 100 * for_ns, "never came up against the limit");
        let sent = wall_ns();
        for answer in client.pipeline(&batch) {
            limited = ints(&answer.unwrap()).unwrap()[0] == 1;
            if limited {
                seen.refused += 1;
            } else {
                seen.admitted += 1;
            }
        }
        seen.refused_after = sent;
        seen.last = wall_ns();
    }
    seen
}

#[test]
fn never_more_than_the_burst_and_what_time_brings() {
    let server = Server::start();
    let mut client = server.connect();
    for (key, arguments) in [
        ("8,000-a-second", "0 8000 1"),
        ("the-same-per-millisecond", "0 8 1 1 MS"),
        ("the-same-per-microsecond", "0 1 125 1 US"),
        ("with-a-burst", "99 8000 1"),
        ("a-third-of-a-millisecond", "4 3 1 1 MS"),
    ] {
        let throttle = Throttle::parse(arguments);
        let seen = hammer(&mut client, key, arguments, 150_000_000);
        let elapsed = i128::from(seen.last - seen.first);
        let most = (elapsed + throttle.tolerance()) / throttle.interval();
        assert!(
            i128::from(seen.admitted) <= most,
            "{arguments}: {} admitted in {elapsed} ns, at most {most} would be right",
            seen.admitted
        );
        assert!(seen.admitted > 0, "{arguments}: nothing admitted");
    }
}

/// With a second's worth of burst used up, the state stays ahead of the clock, and what was admitted can be
/// accounted for to the last unit.
#[test]
fn every_unit_is_accounted_for() {
    let server = Server::start();
    let mut client = server.connect();
    let arguments = "7999 8000 1";
    let throttle = Throttle::parse(arguments);
    let (interval, tolerance) = (125_000, i64::try_from(throttle.tolerance()).unwrap());
    assert_eq!(client.checked("k", "7999 8000 1 8000")[0], 0);
    let begun = client.tat("k").unwrap();
    let seen = hammer(&mut client, "k", arguments, 500_000_000);
    let ended = client.tat("k").unwrap();
    assert!(ended > seen.last, "a machine that stood still for a second proves nothing");
    assert_eq!(
        ended - begun,
        seen.admitted * interval,
        "{} admitted, {} refused",
        seen.admitted,
        seen.refused
    );
    // A refusal means that one more would have passed the tolerance.
    let refused_after = seen.refused_after;
    assert!(ended + interval - tolerance > refused_after, "refused too early: {ended}, {refused_after}");
    assert!(ended - tolerance <= seen.last, "admitted too much: {ended}, {}", seen.last);
}

#[test]
fn replies_stay_in_order_under_load() {
    let server = Server::start();
    let mut client = server.connect();
    let call = "CL.THROTTLE k 999 1000 3600";
    let replies: Vec<Value> = client.pipeline(&vec![call; 1500]).into_iter().map(Result::unwrap).collect();
    for (i, reply) in (0..).zip(&replies) {
        let reply = ints(reply).unwrap();
        assert_eq!(reply[0], i64::from(i >= 1000), "call {i}: {reply:?}");
        assert_eq!(reply[2], (999 - i).max(0), "call {i}: {reply:?}");
    }
}
