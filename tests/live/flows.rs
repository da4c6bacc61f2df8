//! CL.BMTAKE: clients that wait for several limiters, fairly among flows.

use crate::common::{Client, KINDS, ReplicaStream, Server, Waiter, wait_for_blocked, wait_until};
use crate::several::rows;
use redis::Value;
use std::time::{Duration, Instant};

/// A limiter of one unit or place of each kind, that nothing comes back to during a test, and the call of its
/// own command that takes all of it.
fn kinds() -> Vec<(String, String)> {
    let kinds = KINDS.iter().map(|kind| {
        let call = kind.call("k", 1, 3600, kind.asked("1", "other"));
        (kind.limiter(1, 3600, kind.asked("1", "me")), call)
    });
    let until = "FIXED 1 UNTIL 4102444800 1"; // the year 2100
    kinds.chain([(until.to_owned(), "CL.FIXED k 1 UNTIL 4102444800 1".to_owned())]).collect()
}

/// The settlement that gives the unit or the place back.
fn give_back(limiter: &str) -> String {
    match limiter.strip_suffix(" 1") {
        Some(limit) => format!("CL.MSETTLE k {limit} -1"),
        None => "CL.MSETTLE k LEASE 1 0 other".to_owned(),
    }
}

/// Sends a call that waits, and returns once `count` clients wait, this one among them.
fn wait_with(server: &Server, client: &mut Client, call: &str, count: usize) -> Waiter {
    let waiter = Waiter::ask(server, call);
    wait_for_blocked(client, count);
    waiter
}

fn flows(client: &mut Client) -> String {
    crate::info::fields(client)["flows"].clone()
}

#[test]
fn every_kind_is_waited_for_in_order() {
    let (server, mut client) = Server::with_client();
    for (limiter, single) in &kinds() {
        client.call("DEL k other");
        client.call(single);
        let mut waiter =
            wait_with(&server, &mut client, &format!("CL.BMTAKE k {limiter} other LOG 9 60 1"), 1);
        let before = client.snapshot("k");
        // One that does not wait is behind it: by its own command, and among several.
        let both = format!("CL.MTAKE k {}", limiter.replace("me", "you"));
        let own = single.replace("other", "you");
        client.call("MULTI");
        client.call(&give_back(limiter));
        client.call(&both);
        client.call(&own);
        let Value::Array(answers) = client.call("EXEC") else { panic!("{limiter}") };
        let refused: Vec<Vec<i64>> = redis::from_redis_value(answers[1].clone()).unwrap();
        assert_eq!((refused[0][0], refused[1][0], refused[1][2]), (1, 1, 0), "{both}: {refused:?}");
        let refused: Vec<i64> = redis::from_redis_value(answers[2].clone()).unwrap();
        assert_eq!((refused[0], refused[2]), (1, 0), "{own}: {refused:?}");
        let answer = waiter.answer();
        assert!(answer.starts_with("0 1 0 -1 "), "{limiter}: {answer}");
        wait_for_blocked(&mut client, 0);
        assert_eq!(client.int("ZCARD other"), 1, "{limiter}: it has taken from both");
        assert_ne!(client.snapshot("k"), before, "{limiter}");
        client.call("DEL k");
        assert_eq!(rows(&mut client, &format!("CL.MTAKE k {limiter}"))[0][0], 0, "nobody waits any more");
    }
}

#[test]
fn saturate_and_other_quantities_are_behind_the_queue_too() {
    let (server, mut client) = Server::with_client();
    for kind in KINDS.iter().filter(|kind| kind.has_quantity()) {
        let single = |words: &str| kind.call("k", 3, 3600, words);
        let limiter = |quantity: &str| kind.limiter(3, 3600, quantity);
        client.call("DEL k");
        client.call(&single("1"));
        let waiter = wait_with(&server, &mut client, &format!("CL.BMTAKE k {}", limiter("3")), 1);
        // Two are left, and three are waited for.
        assert_eq!(client.ints(&single("1"))[..3], [1, 3, 0], "{}", kind.word);
        let saturated = client.ints(&single("2 SATURATE"));
        assert_eq!((saturated[0], saturated[5]), (1, 0), "{}: {saturated:?}", kind.word);
        let peeked = rows(&mut client, &format!("CL.MPEEK k {}", limiter("1")));
        assert_eq!(peeked[1][..3], [1, 3, 0], "{}", kind.word);
        drop(waiter);
        wait_for_blocked(&mut client, 0);
        let saturated = client.ints(&single("9 SATURATE"));
        assert_eq!((saturated[0], saturated[5]), (0, 2), "{}: {saturated:?}", kind.word);
    }
    // A limit with room for both admits behind the queue, and takes its own quantity only.
    client.call("DEL k");
    client.call("CL.FIXED k 3 3600 2");
    let _waiter = wait_with(&server, &mut client, "CL.BMTAKE k FIXED 3 3600 2", 1);
    assert_eq!(client.ints("CL.FIXED k 9 3600 3")[..3], [0, 9, 2]);
    assert_eq!(client.int("GET k"), 5);
    assert_eq!(client.ints("CL.FIXED k 9 3600 9 SATURATE")[5], 2);
    client.call("DEL k");
    assert!(wait_with(&server, &mut client, "PING", 0).answer() == "PONG");
}

/// A client that is not ready delays no other flow, keeps its place, and its units do not count as taken.
#[test]
fn the_other_limiters_say_who_is_ready() {
    let (server, mut client) = Server::with_client();
    for (limiter, single) in &kinds() {
        client.call("FLUSHALL");
        client.call(single);
        client.call("CL.ACQUIRE busy 1 3600 holder");
        let call = |id: &str, other: &str, flow: &str| {
            format!("CL.BMTAKE busy LEASE 1 3600 {id}{other} FLOW {flow}")
        };
        let other = format!(" k {limiter}");
        let mut poor = wait_with(&server, &mut client, &call("p1", &other, "poor"), 1);
        let mut behind = wait_with(&server, &mut client, &call("p2", "", "poor"), 2);
        let mut rich = wait_with(&server, &mut client, &call("r1", "", "rich"), 3);
        client.call("CL.RELEASE busy holder");
        assert_eq!(rich.answer().split(' ').next(), Some("0"), "{limiter}");
        client.call("CL.RELEASE busy r1");
        // Nobody is ready, so that calls which do not wait are admitted.
        assert_eq!(client.ints("CL.ACQUIRE busy 1 3600 plain")[0], 0, "{limiter}");
        client.call("CL.RELEASE busy plain");
        assert!(poor.is_waiting() && behind.is_waiting(), "{limiter}");
        client.call(&give_back(limiter));
        assert_eq!(poor.answer().split(' ').next(), Some("0"), "{limiter}");
        assert!(behind.is_waiting());
        client.call("CL.RELEASE busy p1");
        assert_eq!(behind.answer().split(' ').next(), Some("0"), "{limiter}");
        wait_for_blocked(&mut client, 0);
    }
}

/// Two queues: the units that clients of one queue wait for count as taken for the other queue. When they no
/// longer do, clients of the other queue may be ready.
#[test]
fn a_client_that_is_not_ready_any_more_counts_for_no_other_queue() {
    let (server, mut client) = Server::with_client();
    client.call("CL.FIXED x 9 3600 7");
    let _large = wait_with(&server, &mut client, "CL.BMTAKE x FIXED 9 3600 5 gate LEASE 1 3600 me", 1);
    let mut small = wait_with(&server, &mut client, "CL.BMTAKE y FIXED 9 3600 1 x FIXED 9 3600 1", 2);
    assert!(small.is_waiting());
    client.call("CL.ACQUIRE gate 1 3600 other");
    assert!(small.answer().starts_with("0 "));
    // Two clients that are in each other's way, both of whose limiters are used up: the server is idle.
    client.call("CL.MTAKE v FIXED 9 3600 9 w FIXED 9 3600 9");
    let _one = wait_with(&server, &mut client, "CL.BMTAKE v FIXED 9 3600 1 w FIXED 9 3600 1", 2);
    let _other = wait_with(&server, &mut client, "CL.BMTAKE w FIXED 9 3600 1 v FIXED 9 3600 1", 3);
    let cpu = |client: &mut Client| client.info("used_cpu_user").parse::<f64>().unwrap();
    let before = cpu(&mut client);
    std::thread::sleep(Duration::from_millis(500));
    let used = cpu(&mut client) - before;
    assert!(used < 0.25, "{used} s of half a second");
}

#[test]
fn a_settlement_of_a_flow_moves_its_turn() {
    let (server, mut client) = Server::with_client();
    for (settle, first) in [
        ("", "a"),
        ("CL.MSETTLE k FIXED 9 3600 5 FLOW a", "b"),
        // The flow is charged only the difference to what it holds.
        ("CL.MSETTLE k FIXED 9 3600 5 FLOW a HOLD h me", "a"),
        ("CL.MSETTLE k FIXED 9 3600 9 FLOW a HOLD h me", "b"),
    ] {
        client.call("FLUSHALL");
        client.call("CL.MTAKE k FIXED 9 3600 5 HOLD h 300 me");
        client.call("CL.FIXED k 9 3600 4");
        let mut a = wait_with(&server, &mut client, "CL.BMTAKE k FIXED 9 3600 9 FLOW a", 1);
        let mut b = wait_with(&server, &mut client, "CL.BMTAKE k FIXED 9 3600 9 FLOW b", 2);
        if !settle.is_empty() {
            client.call(settle);
            client.call("CL.MSETTLE k FIXED 9 3600 5 FLOW stranger WEIGHT 3");
        }
        client.call("DEL k");
        let (one, other) = if first == "a" { (&mut a, &mut b) } else { (&mut b, &mut a) };
        assert!(one.answer().starts_with("0 "), "{first}");
        assert!(other.is_waiting(), "{first}");
        client.call("DEL k");
        assert!(other.answer().starts_with("0 "));
    }
    assert!(client.error("CL.MTAKE k FIXED 9 3600 5 FLOW a").contains("syntax error"));
}

/// A settlement that gives nothing back changes no key, but whose turn it is.
#[test]
fn a_settlement_that_changes_no_key_moves_the_queue_too() {
    let (server, mut client) = Server::with_client();
    client.call("CL.FIXED gate 1 3600");
    // Not ready: it keeps the queue, so that the flows are charged.
    let _first = wait_with(&server, &mut client, "CL.BMTAKE k FIXED 9 3600 1 gate FIXED 1 3600 1", 1);
    for (flow, quantity) in [("a", 1), ("b", 3)] {
        let call = format!("CL.BMTAKE k FIXED 9 3600 {quantity} FLOW {flow}");
        assert_eq!(rows(&mut client, &call)[0][0], 0);
    }
    let _large = wait_with(&server, &mut client, "CL.BMTAKE k FIXED 9 3600 9 FLOW a", 2);
    let mut small = wait_with(&server, &mut client, "CL.BMTAKE k FIXED 9 3600 1 FLOW b", 3);
    assert!(small.is_waiting());
    // The window has begun since.
    client.call("CL.MSETTLE k FIXED 9 3600 -3 AGO 3600 FLOW b");
    assert!(small.answer().starts_with("0 "));
    assert_eq!(client.int("GET k"), 5);
}

/// The limits are not the same for all, or their numbers are large: clients may wait for more than a call may
/// take at once, and for more than a state can hold.
#[test]
fn a_call_behind_whatever_clients_wait_for_is_refused_and_is_no_error() {
    let (server, mut client) = Server::with_client();
    for (limiter, single) in [
        ("LOG 10001 3600 10000", "CL.LOG k 10001 3600 1"),
        ("THROTTLE 0 1 3153600000 1", "CL.THROTTLE k 0 1 3153600000 1"),
        ("FIXED 9223372036854775807 3600 9223372036854775807", "CL.FIXED k 9223372036854775807 3600 1"),
    ] {
        client.call("FLUSHALL");
        assert_eq!(rows(&mut client, &format!("CL.MTAKE k {limiter}"))[0][0], 0, "{limiter}");
        let mut waiters: Vec<Waiter> =
            (1..=3).map(|n| wait_with(&server, &mut client, &format!("CL.BMTAKE k {limiter}"), n)).collect();
        assert_eq!(client.ints(single)[0], 1, "{single}");
        assert_eq!(rows(&mut client, &format!("CL.MPEEK k {limiter}"))[0][0], 1, "{limiter}");
        // Nor is it an error for clients that wait for another key first.
        let mut other = wait_with(&server, &mut client, &format!("CL.BMTAKE free LOG 9 60 1 k {limiter}"), 4);
        if !single.contains("THROTTLE") {
            let saturated = client.ints(&format!("{single} SATURATE"));
            assert_eq!((saturated[0], saturated[5]), (1, 0), "{single}: {saturated:?}");
            let nothing = single.strip_suffix('1').unwrap();
            let looked = client.ints(&format!("{nothing}0 SATURATE"));
            assert_eq!((looked[0], looked[5]), (0, 0), "{single}: {looked:?}");
        }
        for left in (0..3).rev() {
            client.call("DEL k");
            assert!(waiters.remove(0).answer().starts_with("0 "), "{limiter}");
            assert!(left == 0 || other.is_waiting(), "{limiter}");
        }
        client.call("DEL k");
        assert!(other.answer().starts_with("0 "), "{limiter}");
    }
}

#[test]
fn those_who_wait_behind_count_as_taken_in_the_reply() {
    let (server, mut client) = Server::with_client();
    client.call("CL.FIXED k 3 3600 3");
    let call = "CL.BMTAKE k FIXED 3 3600 # ONCE o# 60 FLOW f#";
    let mut first = wait_with(&server, &mut client, &call.replace('#', "1"), 1);
    let _second = wait_with(&server, &mut client, &call.replace('#', "2"), 2);
    client.call("CL.MSETTLE k FIXED 3 3600 -2");
    let answer = first.answer();
    assert!(answer.starts_with("0 3 0 -1 "), "one is left, and two are waited for: {answer}");
    assert_eq!(client.text("GET o1"), answer, "and so the reply is stored");
    assert_eq!(client.int("GET k"), 2);
    // In logs and among leases, too.
    client.call("CL.LOG log 2 3600 2");
    let _third = wait_with(&server, &mut client, "CL.BMTAKE log LOG 2 3600 1", 2);
    assert_eq!(client.ints("CL.LOG log 2 3600 1 SATURATE")[..3], [1, 2, 0]);
    assert_eq!(client.ints("CL.LOG log 9 3600 1")[..3], [0, 9, 5], "three are used, and one is waited for");
    client.call("CL.ACQUIRE places 1 3600 a");
    let _fourth = wait_with(&server, &mut client, "CL.BMTAKE places LEASE 1 3600 b", 3);
    assert_eq!(rows(&mut client, "CL.MPEEK places LEASE 2 3600 c")[1][..3], [1, 2, 0]);
    assert_eq!(rows(&mut client, "CL.MPEEK places LEASE 3 3600 c")[1][..3], [0, 3, 1]);
}

/// It was ready when it was checked, and is only known not to be when it takes.
#[test]
fn a_client_whose_other_limiter_is_taken_in_the_moment_of_its_turn_waits_on() {
    let (server, mut client) = Server::with_client();
    client.call("CL.FIXED k 1 3600");
    let call = "CL.BMTAKE k FIXED 1 3600 1 gate LEASE 1 3600 me";
    let mut waiter = wait_with(&server, &mut client, call, 1);
    let both = "return {redis.call('CL.ACQUIRE', 'gate', 1, 3600, 'other'), redis.call('DEL', 'k')}";
    client.call(&["EVAL", both, "2", "gate", "k"]);
    client.call("PING");
    assert!(waiter.is_waiting());
    client.call("CL.RELEASE gate other");
    assert!(waiter.answer().starts_with("0 1 0 -1 3600 "));
}

/// `RESET` computes what it gives back from a `reset_after`, so that of an admission must describe the key.
#[test]
fn the_reset_after_of_an_admission_counts_nobody_who_waits() {
    let (server, mut client) = Server::with_client();
    for (waits, calls) in [
        (
            "CL.BTHROTTLE k 2 3 3600 3 0",
            &["THROTTLE k 9 3 3600", "RESERVE k 9 3 3600", "MTAKE k THROTTLE 9 3 3600"][..],
        ),
        ("CL.BMTAKE k THROTTLE 2 3 3600 3", &["THROTTLE k 9 3 3600", "MTAKE k THROTTLE 9 3 3600"]),
    ] {
        let limiter = waits.replace("BTHROTTLE k", "BMTAKE k THROTTLE").replace("3 3600 3 0", "3 3600 3");
        for call in calls {
            client.call("FLUSHALL");
            client.call(&limiter.replace("BMTAKE", "MTAKE"));
            client.call(&limiter.replace("BMTAKE", "MSETTLE").replace("3600 3", "3600 -2"));
            let mut first = wait_with(&server, &mut client, waits, 1);
            let mut second = wait_with(&server, &mut client, waits, 2);
            let mut assert_exact = |answer: &str| {
                let reset_after: i64 = answer.split(' ').nth(4).unwrap().parse().unwrap();
                let held = client.int("PTTL k");
                assert!(
                    (held - 1000..held + 2000).contains(&(reset_after * 1000)),
                    "{call}: {answer} of {held} ms"
                );
            };
            assert_exact(&Waiter::ask(&server, &format!("CL.{call} 1")).answer());
            // The call that was admitted behind them gives back what it took, and one unit comes back.
            let mut other = server.connect();
            for _ in 0..2 {
                other.call(&limiter.replace("BMTAKE", "MSETTLE").replace("3600 3", "3600 -1"));
            }
            assert_exact(&first.answer());
            assert!(second.is_waiting());
            // Before the key is flushed, which would admit it.
            drop(second);
            wait_for_blocked(&mut client, 0);
        }
    }
}

/// However many clients leave a queue together, those who name its key are looked at once: their number of
/// looks is that of the flows, not that of the flows times the clients.
#[test]
fn clients_that_leave_together_cost_those_who_name_their_key_one_look() {
    const FLOWS: usize = 100;
    const LEAVE: usize = 50;
    let (server, mut client) = Server::with_client();
    client.call("CL.LOG b 5 3600 5");
    let mut waiters: Vec<Waiter> = Vec::new();
    for flow in 0..FLOWS {
        let call = format!("CL.BMTAKE a THROTTLE 9 1 3600 1 b LOG 5 3600 2 FLOW f{flow}");
        waiters.push(Waiter::ask(&server, &call));
    }
    waiters.extend((0..LEAVE).map(|_| Waiter::ask(&server, "CL.BMTAKE b LOG 5 3600 2")));
    wait_for_blocked(&mut client, FLOWS + LEAVE);
    // Each look has the server read the log.
    let mut settled = || {
        let mut last = String::new();
        let mut same = 0;
        wait_until("all looks", || {
            let seen = client.info("keyspace_hits");
            same = if seen == last { same + 1 } else { 0 };
            last = seen;
            if same == 20 { Ok(()) } else { Err(last.clone()) }
        });
        last.parse::<usize>().unwrap()
    };
    let before = settled();
    let mut other = server.connect();
    other.call("MULTI");
    for leaver in &waiters[FLOWS..] {
        other.call(&format!("CLIENT UNBLOCK {}", leaver.id));
    }
    other.call("EXEC");
    for leaver in &mut waiters[FLOWS..] {
        assert_eq!(leaver.answer(), "null");
    }
    let looks = settled() - before;
    assert!((FLOWS / 2..4 * FLOWS).contains(&looks), "{looks} readings");
}

/// However many turns come at once, the server serves its other clients between any two of them that take
/// long.
#[test]
fn turns_that_take_long_are_taken_one_by_one() {
    const CLIENTS: usize = 24;
    let (server, mut client) = Server::with_client();
    client.call(&format!("CL.FIXED gate {CLIENTS} 3600 {CLIENTS}"));
    let mut waiters: Vec<Waiter> = Vec::new();
    for place in 0..CLIENTS {
        let call =
            format!("CL.BMTAKE gate FIXED {CLIENTS} 3600 1 log{place} LOG 10000 3600 10000 FLOW {place}");
        waiters.push(wait_with(&server, &mut client, &call, place + 1));
    }
    client.call("DEL gate");
    // The reply to the first turn is sent before the server takes all others, each of which takes longer than
    // the time that it spends on turns at once.
    assert!(waiters[0].answer().starts_with("0 "));
    let left: usize = client.info("blocked_clients").parse().unwrap();
    assert!(left > CLIENTS / 2, "{left} of {CLIENTS} left");
    for waiter in &mut waiters[1..] {
        assert!(waiter.answer().starts_with("0 "));
    }
}

/// An event on the other key of a client that is not ready says nothing of the first key until it is checked.
#[test]
fn who_is_not_ready_counts_for_nobody_until_it_is_looked_at_again() {
    let (server, mut client) = Server::with_client();
    client.call("CL.ACQUIRE b 1 60 x");
    let _waiter = wait_with(&server, &mut client, "CL.BMTAKE a THROTTLE 0 1 3600 1 b LEASE 1 60 y", 1);
    let mut call = Waiter::connect(&server);
    for (words, answer) in [
        ("MULTI", "OK"),
        ("CL.RENEW b 60 x", "QUEUED"),
        ("CL.MTAKE a THROTTLE 0 1 3600 1", "QUEUED"),
        ("EXEC", "1 0 1 0 -1 3600 0 1 0 -1 3600"),
    ] {
        call.send(words);
        assert_eq!(call.answer(), answer);
    }
}

#[test]
fn a_flow_does_not_have_the_name_of_a_kind() {
    let (_server, mut client) = Server::with_client();
    for call in [
        "CL.BMTAKE k FIXED 9 3600 1 FLOW log",
        "CL.BMTAKE k FIXED 9 3600 1 FLOW LEASE TIMEOUT 1",
        "CL.MSETTLE k FIXED 9 3600 1 FLOW Fixed WEIGHT 2",
    ] {
        assert_eq!(client.error(call), "ERR syntax error", "{call}");
    }
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn maxlen_tells_at_once_who_cannot_be_served_soon() {
    let (server, mut client) = Server::with_client();
    client.call("CL.FIXED k 1 3600");
    let call = "CL.BMTAKE k FIXED 1 3600 1 FLOW a MAXLEN 2";
    let _first = wait_with(&server, &mut client, call, 1);
    let _second = wait_with(&server, &mut client, call, 2);
    assert_eq!(rows(&mut client, call)[0][..3], [1, 1, 0], "a refusal, as of CL.MTAKE");
    let _other = wait_with(&server, &mut client, &call.replace("FLOW a", "FLOW b"), 3);
}

#[test]
fn null_at_once_where_a_limiter_says_that_it_will_be_too_late() {
    let (_server, mut client) = Server::with_client();
    for (limiter, single) in &kinds() {
        client.call("FLUSHALL");
        client.call(single);
        let asked = Instant::now();
        if limiter.starts_with("LEASE") {
            // A place may be given back at any time.
            assert_eq!(client.call(&format!("CL.BMTAKE k {limiter} TIMEOUT 0.3")), Value::Nil);
            assert!(asked.elapsed() >= Duration::from_millis(300), "{:?}", asked.elapsed());
            continue;
        }
        for call in [
            format!("CL.BMTAKE k {limiter} TIMEOUT 900"),
            format!("CL.BMTAKE free LOG 9 60 1 k {limiter} TIMEOUT 900"),
        ] {
            assert_eq!(client.call(&call), Value::Nil, "{call}");
        }
        assert_eq!(client.int("EXISTS free"), 0);
        // A limiter in shadow is not waited for.
        let shadowed = format!("CL.BMTAKE free LOG 9 60 1 k SHADOW {limiter} TIMEOUT 900");
        assert_eq!(rows(&mut client, &shadowed)[0][0], 0);
        client.call("DEL free");
    }
}

/// Clients of other flows that wait for the first limiter are before it only in part, and those that wait for
/// another one may leave.
#[test]
fn a_timeout_does_not_count_who_waits() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 1000");
    let call = "CL.BMTAKE k THROTTLE 0 1 1000 1 FLOW";
    let others: Vec<Waiter> =
        (1..=5).map(|count| wait_with(&server, &mut client, &format!("{call} a"), count)).collect();
    let one = wait_with(&server, &mut client, &format!("{call} b TIMEOUT 3000"), 6);
    let call = "CL.BMTAKE free LOG 9 60 1 k THROTTLE 0 1 1000 1 TIMEOUT";
    let mut waiter = wait_with(&server, &mut client, &format!("{call} 3000"), 7);
    assert_eq!(client.call(&format!("{call} 900")), Value::Nil, "the limiter itself is too late");
    drop((others, one));
    wait_for_blocked(&mut client, 1);
    client.call("DEL k");
    assert!(waiter.answer().starts_with("0 "));
}

#[test]
fn a_timeout_ends_a_wait_and_leaves_no_trace() {
    let (server, mut client) = Server::with_client();
    client.call("CL.ACQUIRE k 1 3600 other");
    let asked = Instant::now();
    let mut waiter = Waiter::ask(&server, "CL.BMTAKE k LEASE 1 3600 me l LOG 9 60 1 TIMEOUT 0.4 FLOW a");
    assert_eq!(waiter.answer(), "null");
    assert!(asked.elapsed() >= Duration::from_millis(400));
    for way in ["CLIENT UNBLOCK id", "CLIENT UNBLOCK id ERROR", "CLIENT KILL ID id", "disconnect"] {
        let leaver = wait_with(&server, &mut client, "CL.BMTAKE k LEASE 1 3600 me l LOG 9 60 1 FLOW a", 1);
        let mut stays = wait_with(&server, &mut client, "CL.BMTAKE k LEASE 1 3600 you FLOW a", 2);
        let before = client.snapshot("k");
        crate::waiting::leave(&mut client, leaver, way);
        wait_for_blocked(&mut client, 1);
        assert_eq!(client.snapshot("k"), before, "{way}");
        assert!(stays.is_waiting());
        client.call("CL.RELEASE k other");
        assert!(stays.answer().starts_with("0 "), "{way}");
        assert_eq!(client.int("EXISTS l"), 0, "{way}");
        client.call("DEL k");
        client.call("CL.ACQUIRE k 1 3600 other");
    }
}

#[test]
fn an_admission_is_one_transaction() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    client.call("CL.ACQUIRE k 1 3600 other");
    let mut waiter =
        wait_with(&server, &mut client, "CL.BMTAKE k LEASE 1 3600 me f FIXED 9 60 1 ONCE o 60", 1);
    stream.effects(&server);
    client.call("DEL k");
    assert!(waiter.answer().starts_with("0 "));
    let effects: Vec<String> = stream.effects(&server).into_iter().map(|effect| effect.command).collect();
    let deleted = effects.iter().position(|effect| effect == "DEL k").unwrap();
    let effects = &effects[deleted + 1..];
    let words: Vec<&str> = effects.iter().map(|effect| effect.split(' ').next().unwrap()).collect();
    assert_eq!((words.first(), words.last()), (Some(&"MULTI"), Some(&"EXEC")), "{effects:?}");
    assert_eq!(words.iter().filter(|word| **word == "MULTI").count(), 1, "{effects:?}");
    for key in ["ZADD k ", "SET f ", "SET o "] {
        assert!(effects.iter().any(|effect| effect.starts_with(key)), "{key}: {effects:?}");
    }
    assert!(words.iter().all(|word| !word.starts_with("CL.")), "{effects:?}");
}

/// Commands that put a set or a list in the place of a key delete nothing.
#[test]
fn a_key_that_a_user_changes_is_an_error_at_once() {
    let (server, mut client) = Server::with_client();
    client.call("SADD set a");
    for (limiter, change, error) in [
        ("LEASE 1 3600 me", "SUNIONSTORE k set", "WRONGTYPE "),
        ("LEASE 1 3600 me", "SORT set ALPHA STORE k", "WRONGTYPE "),
        ("LEASE 1 3600 me", "ZADD k 1.5 x", "ERR the key does not hold"),
        ("BUCKET 1 1 3600 1", "HSET k tokens x", "ERR the key does not hold"),
    ] {
        client.call("DEL k");
        client.call(&format!("CL.MTAKE k {}", limiter.replace("me", "other")));
        let mut first = wait_with(&server, &mut client, &format!("CL.BMTAKE k {limiter}"), 1);
        let mut other = wait_with(&server, &mut client, &format!("CL.BMTAKE free LOG 9 60 1 k {limiter}"), 2);
        client.call(change);
        for waiter in [&mut first, &mut other] {
            let answer = waiter.answer();
            assert!(answer.starts_with(error), "{change}: {answer}");
        }
    }
}

/// Flows that were given more than their share are remembered while others wait, up to a number of them.
#[test]
fn so_many_flows_are_remembered() {
    const MOST: usize = 65_536;
    let (server, mut client) = Server::with_client();
    client.call("CL.ACQUIRE gate 1 3600 holder");
    // Not ready: it keeps the queue alive, and takes no turn.
    let waiter = wait_with(
        &server,
        &mut client,
        "CL.BMTAKE k FIXED 9000000000 36000 1 gate LEASE 1 3600 me FLOW first",
        1,
    );
    let mut callers: Vec<Waiter> = (0..200).map(|_| Waiter::connect(&server)).collect();
    let before = client.used_memory();
    // The first ones are given most, so that the last ones are forgotten.
    for number in 0..(MOST + 1_000) / callers.len() {
        for (caller, waiter) in callers.iter_mut().enumerate() {
            let units = MOST + 2_000 - number;
            waiter.send(&format!("CL.BMTAKE k FIXED 9000000000 36000 {units} FLOW flow:{number}:{caller}"));
        }
        for waiter in &mut callers {
            assert!(waiter.answer().starts_with("0 "));
        }
    }
    assert_eq!(flows(&mut client), (MOST + 1).to_string());
    let bytes = (client.used_memory() - before) / i64::try_from(MOST).unwrap();
    assert!((1..1_000).contains(&bytes), "{bytes} bytes for a flow");
    // When nobody waits, none is remembered.
    client.call("CL.RELEASE gate holder");
    let mut waiter = waiter;
    assert!(waiter.answer().starts_with("0 "));
    assert_eq!(flows(&mut client), "0");
    // The server's cron forgets them.
    wait_until("the memory of the flows to be free", || match (client.used_memory() - before) / bytes {
        left if left < 10_000 => Ok(()),
        left => Err(format!("the memory of {left} flows")),
    });
    server.assert_alive("many flows");
}

#[test]
fn clients_of_bthrottle_go_before_and_so_do_bookings() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 3600");
    let mut fair = wait_with(&server, &mut client, "CL.BMTAKE k THROTTLE 0 1 3600 1 FLOW a", 1);
    let mut line = wait_with(&server, &mut client, "CL.BTHROTTLE k 0 1 3600 1 0", 2);
    client.call("DEL k");
    assert!(line.answer().starts_with("0 1 0 -1 "));
    assert!(fair.is_waiting());
    // One that leaves makes room.
    let line = wait_with(&server, &mut client, "CL.BTHROTTLE k 0 1 3600 1 0", 2);
    client.call(&format!("CLIENT UNBLOCK {}", line.id));
    wait_for_blocked(&mut client, 1);
    client.call("DEL k");
    assert!(fair.answer().starts_with("0 "));
    let mut fair = wait_with(&server, &mut client, "CL.BMTAKE k THROTTLE 0 1 3600 1 FLOW a", 1);
    let booked = client.ints("CL.RESERVE k 0 1 3600");
    assert!(booked[0] == 0 && (3599..=3600).contains(&booked[3]), "{booked:?}");
    client.call("CL.REFUND k 0 1 3600");
    assert!(fair.is_waiting(), "what the booking took is given back, and no more");
}

#[test]
fn a_first_limiter_in_shadow_queues_and_counts_nothing_as_taken() {
    let (server, mut client) = Server::with_client();
    client.call("CL.LOG x 1 3600");
    client.call("CL.FIXED k 1 3600");
    let mut waiter =
        wait_with(&server, &mut client, "CL.BMTAKE k SHADOW FIXED 1 3600 1 x LOG 1 3600 1 FLOW a", 1);
    client.call("DEL k");
    assert_eq!(client.ints("CL.FIXED k 1 3600")[0], 0);
    client.call("DEL x");
    let answer = waiter.answer();
    assert!(answer.starts_with("0 1 0 -1 3600 1 1 0 "), "{answer}");
}
