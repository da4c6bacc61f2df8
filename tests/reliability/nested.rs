//! Beside a module that calls limiters from its keyspace events, from a timer and from a thread.

use crate::common::{
    BINARY, Client, Clock, Options, SECOND, Server, Waiter, compile_library, ints, requires,
    wait_for_blocked, wait_until,
};
use crate::failover::replica_of;
use crate::hostile::Checked;
use std::time::{Duration, Instant};

/// A server with the second module, which obeys `orders`, each `event key command`. Keys expire when they are
/// opened, not before.
fn start_with(options: Options, orders: &[&str]) -> (Server, Client) {
    let server = options.start();
    let mut client = server.connect();
    client.call(&["MODULE", "LOAD", compile_library("reliability/nested").to_str().unwrap()]);
    client.call("DEBUG SET-ACTIVE-EXPIRE 0");
    for order in orders {
        assert!(client.int(&format!("NESTED.ON {order}")) > 0, "{order}");
    }
    (server, client)
}

/// Waits until the replica holds the same in these keys.
fn wait_for_same(client: &mut Client, replica: &Server, keys: &[&str]) {
    let mut copy = replica.connect();
    wait_until("the replica to hold the same", || {
        let pairs = keys.iter().map(|key| (client.snapshot(*key), copy.snapshot(*key)));
        let differ: Vec<_> = pairs.filter(|(one, other)| one != other).collect();
        if differ.is_empty() { Ok(()) } else { Err(format!("{differ:?}")) }
    });
}

/// Whether a wait has ended in an admission. It may also end in a timeout, or in an error when the key holds
/// another limiter's state.
fn is_admitted(answer: &str) -> bool {
    let foreign = answer.starts_with("WRONGTYPE ") || answer.contains("does not hold");
    assert!(answer == "null" || answer.starts_with("0 1 ") || foreign, "{answer}");
    answer.starts_with("0 1 ")
}

/// Regression: a limiter that another module called from a keyspace event of the module's own writes waited
/// forever for the lock that the write held, and the server with it.
#[test]
pub fn calls_within_calls_do_not_hang_the_server() {
    let (mut server, mut client) = start_with(Options::new(), &[]);
    let replica = replica_of(&server);
    client.call("DEBUG SET-ACTIVE-EXPIRE 1");
    client.call("NESTED.START");

    let mut admitted = 0;
    let mut waiters: Vec<Waiter> = Vec::new();
    let until =
        Instant::now() + Duration::from_secs(if std::env::var("REDIS_CELL_LONG").is_ok() { 120 } else { 5 });
    let mut round = 0;
    while Instant::now() < until {
        let (key, timeout) = (round % 4, if round % 3 == 0 { "0" } else { "0.5" });
        waiters.push(Waiter::ask(&server, &format!("CL.BTHROTTLE k{key} 0 1 20 1 {timeout} MS")));
        round += 1;
        // Sometimes at once, behind a queue or not.
        for call in ["CL.BTHROTTLE key 9 1 20 1 0.001 MS", "CL.THROTTLE key 0 1 20 1 MS"] {
            let _ = client.ask(&call.replace("key", &format!("k{key}")));
        }
        if round % 7 == 0 {
            drop(waiters.remove(0)); // hangs up, answered or not
        }
        if waiters.len() > 40 {
            admitted += usize::from(is_admitted(&waiters.remove(0).answer()));
        }
    }
    let calls = client.ints("NESTED.STOP");
    assert!(calls.iter().all(|&calls| calls > 100), "{calls:?}");
    // The test does not wait for the units that all those calls have booked and charged.
    client.call("DEL k0 k1 k2 k3");
    for waiter in &mut waiters {
        admitted += usize::from(is_admitted(&waiter.answer()));
    }
    assert!(admitted > 0);
    wait_for_blocked(&mut client, 0);
    for key in ["k0", "k1", "k2", "k3"] {
        let _ = client.ask(&format!("CL.CHARGE {key} 0 1 3600"));
    }
    wait_for_same(&mut client, &replica, &["k0", "k1", "k2", "k3"]);
    server.assert_alive("calls within calls");
    assert!(!server.log().to_lowercase().contains("panic"), "{}", server.log());
    server.terminate();
}

/// Regression: a callback that wrote to the key of a call, while the call still had the key open, ended the
/// server; or the call's own expiry and effects came after the callback's.
#[test]
pub fn a_call_within_a_call_on_the_same_key_comes_after_it() {
    let (server, mut client) = start_with(Options::new(), &[]);
    let replica = replica_of(&server);
    client.call("NESTED.START beside");
    let until = Instant::now() + Duration::from_secs(2);
    let limiters = [
        "CL.MTAKE k0 THROTTLE 5 1 10 1 k1 FUNNEL 5 1 20 1 k2 LOG 5 20 1 k3 LEASE 5 20 id MS",
        "CL.MTAKE k3 THROTTLE 5 1 10 1 k2 THROTTLE 5 1 10 1 k1 THROTTLE 5 1 10 1 MS",
        "CL.MSETTLE k0 THROTTLE 5 1 10 -1 k1 FIXED 5 20 1 k2 WINDOW 5 20 1 k3 LEASE 5 0 id MS",
        "CL.MTAKE k0 THROTTLE 5 1 10 1 k1 FUNNEL 5 1 20 1 ONCE key: 15 MS",
        "CL.MSETTLE k2 FIXED 5 20 1 ONCE k3 15 MS",
        "CL.MTAKE k0 FIXED 5 20 1 k1 THROTTLE 5 1 10 1 HOLD k2 15 id MS",
        "CL.MTAKE k1 FIXED 5 TOTAL 1 k3 FIXED 5 20 1 HOLD k2 15 other MS",
        "CL.MSETTLE k0 FIXED 5 20 1 k1 THROTTLE 5 1 10 1 MS HOLD k2 id",
        "CL.THROTTLE key 0 1 10 1 MS",
        "CL.FUNNEL key 5 1 20 1 MS",
        "CL.BUCKET key 5 1 20 1 MS",
        "CL.FIXED key 5 20 1 MS",
        "CL.WINDOW key 5 20 1 MS",
        "CL.LOG key 5 20 1 MS",
        "CL.ACQUIRE key 5 20 id MS",
        "CL.RELEASE key id",
    ];
    while Instant::now() < until {
        for (round, limiter) in limiters.iter().enumerate() {
            // The key may hold another limiter's state, which is an error.
            let _ = client.ask(&limiter.replace("key", &format!("k{}", round % 4)));
        }
    }
    client.call("NESTED.STOP");
    client.call("DEBUG SET-ACTIVE-EXPIRE 1");
    wait_for_same(&mut client, &replica, &["k0", "k1", "k2", "k3"]);
    server.assert_alive("writes within writes");
}

/// Whether the server publishes `new`, while it makes a key.
fn has_new() -> bool {
    BINARY.at_least(7, 0, 0)
}

/// Regression: CL.MTAKE and CL.MSETTLE kept all keys open while they wrote and published one after the other.
/// A module that acted on another key of the call, in an event of one that was written, that had expired or
/// that was made, ended the server, wrote into freed memory, or was charged for nothing.
#[test]
pub fn what_another_module_does_to_the_other_keys_of_a_call_comes_before_or_after_it() {
    for event in EVENTS {
        let (server, mut client) = start_with(Options::new(), &[]);
        act_on_other_keys(event, &server, &mut client);
    }
}

/// The same with every access to memory checked: some of these writes into freed memory ended no server.
#[test]
pub fn valgrind_finds_no_error_beside_another_module() {
    let checked = Checked::new();
    requires!(checked.is_some(), "there is no valgrind");
    let checked = checked.unwrap();
    let (mut server, mut client) = start_with(checked.options.clone(), &[]);
    for event in EVENTS {
        act_on_other_keys(event, &server, &mut client);
    }
    checked.assert_no_errors(&mut server);
}

const EVENTS: [&str; 7] = ["set", "hset", "zadd", "expire", "del", "expired", "new"];

/// The second module acts on other keys of calls, at an event of one of them.
fn act_on_other_keys(event: &str, server: &Server, client: &mut Client) {
    let actions = [
        "DEL b",
        "SET b hello",
        "CL.THROTTLE b 9 10 3600 8",
        "CL.REFUND b 9 10 3600",
        "CL.RELEASE b id",
        "CL.MTAKE b THROTTLE 9 10 3600 8 c LOG 9 3600 1",
        "FLUSHALL",
    ];
    let kinds = [
        "THROTTLE 9 10 3600 #",
        "FUNNEL 10 10 3600 #",
        "BUCKET 10 10 3600 #",
        "FIXED 10 3600 #",
        "LOG 10 3600 #",
    ];
    for action in actions.iter().filter(|action| event != "new" || **action != "FLUSHALL") {
        client.call("NESTED.OFF");
        client.int(&format!("NESTED.ON {event} a {action}"));
        for (call, kind) in ["CL.MTAKE", "CL.MSETTLE"].iter().flat_map(|call| kinds.map(|kind| (call, kind)))
        {
            client.call("FLUSHALL");
            let of = |quantity: &str| kind.replace('#', quantity);
            if event == "expired" {
                client.call(&format!("CL.MTAKE a {}", of("1")));
                client.call("PEXPIRE a 1");
                std::thread::sleep(Duration::from_millis(2));
            }
            for b in [false, true] {
                if b {
                    client.call("DEL b");
                    client.call("CL.THROTTLE b 9 10 3600");
                }
                let _ = client.ask(&format!("{call} b THROTTLE 9 10 3600 1 a {} d LEASE 3 60 x", of("1")));
                let _ = client.ask(&format!("{call} a {} b THROTTLE 9 10 3600 1", of("1")));
                let _ = client.ask(&format!("CL.MSETTLE a {} b THROTTLE 9 10 3600 -1", of("-9")));
            }
        }
        server.assert_alive(&format!("{action} at {event}"));
    }
    assert!(client.int("NESTED.OFF") > 0 || event == "new" && !has_new(), "nothing was run at {event}");
}

/// Regression: a call admitted its units in addition to the units that another module had taken in its
/// events.
#[test]
pub fn what_another_module_takes_in_an_event_of_a_call_is_not_taken_again() {
    const TAKE: &str = "CL.THROTTLE b 9 10 3600 8";
    let taken = |client: &mut Client| 10 - client.ints("CL.PEEK b 9 10 3600 0")[2];
    let call = "CL.MTAKE a THROTTLE 9 10 3600 1 b THROTTLE 9 10 3600 3";

    // In the event of a write: after the call.
    let (_server, mut client) = start_with(Options::new(), &[&format!("set a {TAKE}")]);
    client.call("CL.THROTTLE b 9 10 3600");
    assert_eq!(client.get::<Vec<Vec<i64>>, _>(call)[0][..3], [0, 10, 6]);
    assert_eq!((client.int("NESTED.OFF"), taken(&mut client)), (1, 4), "8 more are too many");

    // As a key expires: before it, whatever the order of the keys.
    for call in [call, "CL.MTAKE b THROTTLE 9 10 3600 3 a THROTTLE 9 10 3600 1"] {
        let (_server, mut client) = start_with(Options::new(), &[&format!("expired a {TAKE}")]);
        client.call("CL.THROTTLE a 9 10 3600");
        client.call("PEXPIRE a 1");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(client.get::<Vec<Vec<i64>>, _>(call)[0][..3], [1, 10, 2], "{call}");
        assert_eq!(
            (client.int("NESTED.OFF"), taken(&mut client), client.int("EXISTS a")),
            (1, 8, 0),
            "{call}"
        );
    }

    // As a key is made: before it, and the key that the call has made is gone.
    requires!(has_new(), "no event for a key that is made");
    for (kind, place) in [
        ("THROTTLE 9 10 3600 1", 0),
        ("LEASE 1 60 x", 0),
        ("LOG 9 60 2", 1),
        ("FIXED 9 60 2", 1),
        // Two of the three are to come from `b`, in which one is left.
        ("FIXED 1 60 3 SPILL", 1),
    ] {
        let (server, mut client) = start_with(Options::new(), &[&format!("new a {TAKE}")]);
        let replica = replica_of(&server);
        if place == 1 {
            client.call("CL.THROTTLE b 9 10 3600"); // not made by the call
        }
        let rows: Vec<Vec<i64>> = client.get(&format!("CL.MTAKE a {kind} b THROTTLE 9 10 3600 3"));
        assert_eq!(rows[0][0], 1, "{kind}: {rows:?}");
        assert_eq!((client.int("NESTED.OFF"), taken(&mut client)), (1, 8 + place), "{kind}");
        assert_eq!(client.int("EXISTS a"), 0, "{kind}");
        wait_for_same(&mut client, &replica, &["a", "b"]);
    }
}

/// Regression: a call that gave its units back, because another module had acted, published no event for
/// taking them.
#[test]
pub fn what_a_call_takes_and_gives_back_is_published() {
    requires!(has_new(), "no event for a key that is made");
    let orders = ["new a CL.THROTTLE b 9 10 3600 8", "set a INCR sets", "del a INCR dels"];
    let (_server, mut client) = start_with(Options::new(), &orders);
    let rows: Vec<Vec<i64>> = client.get("CL.MTAKE a THROTTLE 9 10 3600 1 b THROTTLE 9 10 3600 3");
    assert_eq!(rows[0][0], 1, "{rows:?}");
    assert_eq!(client.get::<Vec<i64>, _>("MGET sets dels"), [1, 1]);
    // It gives back once what it has taken.
    let orders = ["new b CL.MTAKE a THROTTLE 9 10 3600 4 c THROTTLE 9 10 3600 8"];
    let (_server, mut client) = start_with(Options::new(), &orders);
    client.call("CL.MTAKE a THROTTLE 9 10 3600 1 b THROTTLE 9 10 3600 1 c THROTTLE 9 10 3600 3");
    assert_eq!(client.ints("CL.PEEK a 9 10 3600")[..3], [0, 10, 6]);
}

/// Regression: a call of one key wrote a hash or a sorted set over one that another module had made, as the
/// key expired, and the server ended.
#[test]
pub fn a_key_that_another_module_makes_again_as_it_expires_is_decided_on() {
    for (call, refused) in [
        ("CL.THROTTLE k 0 1 3600", [1, 1]),
        ("CL.FUNNEL k 1 1 3600", [1, 1]),
        ("CL.FIXED k 1 3600", [1, 1]),
        ("CL.LOG k 1 3600", [1, 1]),
        ("CL.ACQUIRE k 1 3600 other", [1, 1]),
        ("CL.MTAKE k WINDOW 1 3600 1", [1, 1]),
    ] {
        let theirs = call.replace("other", "id");
        let (server, mut client) = start_with(Options::new(), &[&format!("expired k {theirs}")]);
        client.call(&theirs);
        client.call("PEXPIRE k 1");
        std::thread::sleep(Duration::from_millis(2));
        let answer = match client.call(call) {
            redis::Value::Array(rows) if matches!(rows[0], redis::Value::Array(_)) => ints(&rows[0]).unwrap(),
            answer => ints(&answer).unwrap(),
        };
        assert_eq!(answer[..2], refused, "{call}");
        server.assert_alive(call);
    }
}

/// Regression: writes by another module in the event `zremrangebyrank`, which a pruning call published, were
/// neither replicated nor appended.
#[test]
pub fn what_another_module_writes_in_the_event_of_a_pruned_key_is_replicated() {
    for (before, call) in [
        (["CL.LOG l 9 60000 1 MS", "CL.LOG l 9 60000 1 MS"], "CL.LOG l 9 1 1 MS"),
        (["CL.ACQUIRE l 9 60000 a MS", "CL.ACQUIRE l 9 1 b MS"], "CL.ACQUIRE l 9 60000 c MS"),
        (["CL.LOG l 9 60000 1 MS", "CL.LOG l 9 60000 1 MS"], "CL.MTAKE l LOG 9 1 1 m LOG 9 5 1 MS"),
    ] {
        let orders = ["zadd l INCR n", "zremrangebyrank l INCR n"];
        let (mut server, mut client) = start_with(Options::new().append_only(), &orders);
        let replica = replica_of(&server);
        for call in before {
            client.call(call);
        }
        std::thread::sleep(Duration::from_millis(3));
        client.call(call);
        assert_eq!(client.text("GET n"), "4", "{call}");
        wait_for_same(&mut client, &replica, &["n", "l"]);
        server.restart();
        assert_eq!(server.connect().text("GET n"), "4", "{call}, from the append-only file");
    }
}

/// Regression: a log whose next names were taken was an error, and the limiters before it in the call were
/// charged.
#[test]
pub fn names_of_entries_that_are_taken_are_skipped() {
    let mut clock = Clock::stopped();
    let server = clock.start(Options::new());
    let mut client = server.connect();
    let now = clock.wall() / 1000;
    // Their scores say that they are over, so the next names begin at 0.
    for k in 0..1_100 {
        client.call(&format!("ZADD log {} {now}-{k}", now - 120_000_000));
    }
    let rows: Vec<Vec<i64>> = client.get("CL.MTAKE a THROTTLE 9 10 60 1 log LOG 5000 60 3");
    assert_eq!((rows[0][0], &rows[2][..3]), (0, &[0, 5_000, 4_997][..]));
    clock.pass(SECOND);
    assert_eq!(client.ints("CL.LOG log 5000 60")[..3], [0, 5_000, 4_996]);
}

/// Whatever another module does in the events of a call with HOLD, units of a hold that has run out come back
/// once, and the replica holds the same.
#[test]
pub fn what_has_run_out_comes_back_once_beside_another_module() {
    let orders = [
        "",
        "new {k}a CL.MTAKE {k}q FIXED 10 TOTAL 1 HOLD {k}h",
        "new {k}o CL.MTAKE {k}q FIXED 10 TOTAL 1 HOLD {k}h",
        "new {k}h CL.MTAKE {k}q FIXED 10 TOTAL 1 HOLD {k}h",
        "new {k}h DEL {k}q",
        "new {k}h SET {k}o foo",
        "new {k}o DEL {k}h",
        "new {k}a DEL {k}h",
        "new {k}a RPUSH {k}h x",
        "new {k}o SET {k}h foo",
        "new {k}a CL.MSETTLE {k}q FIXED 10 TOTAL 1 HOLD {k}h alive",
        "set {k}q CL.MTAKE {k}q FIXED 10 TOTAL 1 HOLD {k}h",
        "zrem {k}h CL.MTAKE {k}q FIXED 10 TOTAL 1 HOLD {k}h",
        "zadd {k}h CL.MSETTLE {k}q FIXED 10 TOTAL 1 HOLD {k}h me",
        "del {k}h CL.MTAKE {k}q FIXED 10 TOTAL 1 HOLD {k}h 60 other",
    ];
    for order in orders {
        for makes in [false, true] {
            let (server, mut client) = start_with(Options::new(), &[]);
            let replica = replica_of(&server);
            let period = if makes { 3_600_000 } else { 5 };
            client.call(&format!("CL.MTAKE {{k}}q FIXED 10 TOTAL 5 MS HOLD {{k}}h {period} dead"));
            client.call("CL.MTAKE {k}q FIXED 10 TOTAL 2 HOLD {k}h 3600 alive");
            if makes {
                client.call("DEL {k}h");
            } else {
                std::thread::sleep(Duration::from_millis(7));
            }
            if !order.is_empty() {
                client.call(&format!("NESTED.ON {order}"));
            }
            let call = "{k}q FIXED 10 TOTAL 3 {k}a THROTTLE 9 1 3600 1 HOLD {k}h 3600 me ONCE {k}o 60";
            // The key of holds may be another module's by now, which is an error.
            let reply = client.ask(&format!("CL.MTAKE {call}"));
            client.call("NESTED.OFF");
            // What others hold and have used is never less than what is counted.
            let counted = client.get::<Option<i64>, _>("GET {k}q").unwrap_or(0);
            if !order.contains("DEL {k}q") && !order.contains("SETTLE") {
                let least = if makes { 7 } else { 2 };
                assert!(counted >= least, "{order}, {makes}: {counted} after {reply:?}");
            }
            if makes {
                let _ = client.ask("CL.MSETTLE {k}q FIXED 10 TOTAL 0 HOLD {k}h me");
                let left = client.get::<Option<i64>, _>("GET {k}q").unwrap_or(0);
                assert!(left >= counted - 3, "{order}: {left} of {counted} after {reply:?}");
            }
            client.call("CL.MTAKE {k}z FIXED 10 60 1");
            wait_for_same(&mut client, &replica, &["{k}q", "{k}a", "{k}h", "{k}o", "{k}z"]);
            server.assert_alive(order);
        }
    }
}

#[test]
pub fn a_call_with_once_makes_its_keys_beside_another_module() {
    let (_server, mut client) = start_with(Options::new(), &[]);
    let call = "CL.MTAKE {k}a THROTTLE 4 1 3600 1 {k}b FIXED 5 3600 1 ONCE {k}once 60";
    let first = client.call(call);
    assert_eq!(client.call(call), first);
    assert_eq!(client.int("EXISTS {k}a {k}b {k}once"), 3);
}

/// Regression: the record belonged to the server's main thread, so refusals of calls from other threads were
/// missed.
#[test]
pub fn refusals_of_calls_from_a_thread_are_recorded() {
    let (_server, mut client) = start_with(Options::new(), &[]);
    for key in ["refused", "other"] {
        assert_eq!(client.ints(&format!("CL.THROTTLE {key} 0 1 3600 2"))[0], 1);
    }
    client.call("NESTED.REFUSE");
    wait_until("the refusals of the thread", || {
        let rows: Vec<(String, i64, i64, i64)> = client.get("CL.TOP");
        let seen = rows.iter().map(|row| (row.0.as_str(), row.1)).collect::<Vec<_>>();
        if seen == [("refused", 11), ("other", 1)] { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}
