//! A clock finer than a millisecond: fast rates are limited exactly.

use std::thread;
use std::time::Duration;

use crate::common::{Client, Server, Throttle, ints, wall_ns};
use redis::Value;

/// The result of calls without a pause.
struct Hammer {
    admitted: i64,
    refused: i64,
    /// Between these wall-clock instants all calls took place.
    first: i64,
    last: i64,
    /// When the last batch was sent, whose last call was refused.
    refused_after: i64,
}

/// Calls for this time, and then until a batch ends with a refusal: a busy machine may be slower than the
/// limit.
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
        let elapsed = seen.last - seen.first;
        let most = throttle.most_within(elapsed, seen.admitted);
        assert!(
            i128::from(seen.admitted) <= most,
            "{arguments}: {} admitted in {elapsed} ns, at most {most} would be right",
            seen.admitted
        );
        assert!(seen.admitted > 0, "{arguments}: nothing admitted");
    }
}

/// With a minute's worth of burst used up, the state stays ahead of the clock, and the admitted units can be
/// counted exactly.
#[test]
fn every_unit_is_accounted_for() {
    let server = Server::start();
    let mut client = server.connect();
    let arguments = "47999 800 1";
    let throttle = Throttle::parse(arguments);
    let (interval, tolerance) = (1_250_000, i64::try_from(throttle.tolerance()).unwrap());
    assert_eq!(client.throttle_checked("k", "47999 800 1 48000")[0], 0);
    let begun = client.tat("k").unwrap();
    let seen = hammer(&mut client, "k", arguments, 500_000_000);
    let ended = client.tat("k").unwrap();
    assert!(ended > seen.last, "a machine that stood still for a minute proves nothing");
    assert_eq!(
        ended - begun,
        seen.admitted * interval,
        "{} admitted, {} refused",
        seen.admitted,
        seen.refused
    );
    // A refusal means that one more unit would have exceeded the tolerance.
    let refused_after = seen.refused_after;
    assert!(ended + interval - tolerance > refused_after, "refused too early: {ended}, {refused_after}");
    assert!(ended - tolerance <= seen.last, "admitted too much: {ended}, {}", seen.last);
}

/// Rates of bytes, whose emission interval is hardly more than a nanosecond, and not a whole number of
/// nanoseconds.
#[test]
fn six_hundred_million_and_one_bytes_a_second_are_that() {
    const RATE: i128 = 600_000_001;
    let server = Server::start();
    let mut client = server.connect();
    // A minute's worth at once, so that the limiter is never idle however busy the machine is.
    let arguments = "35999999999 600000001 1 1000000000000 SATURATE";
    let throttle = Throttle::parse(arguments);
    let begun = wall_ns();
    let (mut taken, mut calls, mut first) = (0, 0, None);
    loop {
        let reply = client.ints(&format!("CL.THROTTLE bytes {arguments}"));
        taken += reply[5];
        calls += i64::from(reply[5] > 0);
        let (tat, ended) = (client.tat("bytes").unwrap(), wall_ns());
        // The most units that can be admitted, by a clock that has run for longer than the server's.
        let most = throttle.most_within(ended - begun, calls);
        assert!(i128::from(taken) <= most, "{taken} in {} ns, at most {most} would be right", ended - begun);
        // And no fewer, by the server's own clock, at which the limiter's state is full.
        let (first_tat, first_taken) = *first.get_or_insert((tat, taken));
        let elapsed = i128::from(tat - first_tat);
        let brought = elapsed * RATE / 1_000_000_000;
        let since = i128::from(taken - first_taken);
        assert!(since >= brought, "{since} in {elapsed} ns, which bring {brought}");
        if elapsed > 2_000_000_000 {
            assert!(since - brought <= brought / 10_000, "{since} in {elapsed} ns, which bring {brought}");
            assert!(i128::from(tat) <= i128::from(ended) + throttle.tolerance(), "{tat} at {ended}");
            break;
        }
        // A call a millisecond, or fewer: each may be forgiven a nanosecond.
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_bucket_of_bytes_gives_what_its_rate_brings() {
    let server = Server::start();
    let mut client = server.connect();
    // Like a limiter of CL.THROTTLE, with a capacity of one more than the burst.
    let throttle = Throttle::parse("19999999 600000001 1");
    let call = "CL.BUCKET bytes 20000000 600000001 1 1000000";
    let begun = wall_ns();
    let (mut admitted, mut refused, mut ended) = (0, 0, begun);
    while ended - begun < 1_000_000_000 || refused == 0 {
        for answer in client.pipeline(&[call; 16]) {
            let limited = ints(&answer.unwrap()).unwrap()[0] == 1;
            *if limited { &mut refused } else { &mut admitted } += 1;
        }
        ended = wall_ns();
        assert!(ended - begun < 60_000_000_000, "never came up against the limit");
    }
    let most = throttle.most_within(ended - begun, admitted);
    assert!(
        i128::from(admitted) * 1_000_000 <= most,
        "{admitted} times a million in {} ns, at most {most} would be right",
        ended - begun
    );
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
