//! CL.BTHROTTLE: which clients wait, for how long, and every way in which a wait ends.

use crate::common::{
    BINARY, Client, Effect, Options, ReplicaStream, Server, Waiter, cluster, module_path, report_skip,
    requires, wait_for_blocked, wait_for_cluster, wait_until, wall_ns,
};
use redis::Value;
use std::time::{Duration, Instant};

/// One an hour: no turn comes during a test.
pub const HOURLY: &str = "0 1 3600";
/// The start of the reply to a client that is admitted. It ends with the time that the rest of the queue will
/// take.
const ADMITTED: &str = "0 1 0 -1 ";

/// A server whose key `k` has no room left by [`HOURLY`].
fn full() -> (Server, Client) {
    let (server, mut client) = Server::with_client();
    assert_eq!(client.throttle_checked("k", HOURLY)[0], 0);
    (server, client)
}

/// Lets `count` more clients wait for `k` without a timeout, and returns them in their order.
pub fn queue(server: &Server, client: &mut Client, count: usize) -> Vec<Waiter> {
    let before: usize = client.info("blocked_clients").parse().unwrap();
    (1..=count)
        .map(|place| {
            let waiter = Waiter::ask(server, &format!("CL.BTHROTTLE k {HOURLY} 1 0"));
            wait_for_blocked(client, before + place);
            waiter
        })
        .collect()
}

fn refund(client: &mut Client) {
    client.call(&format!("CL.REFUND k {HOURLY}"));
}

/// The first client gets this reply, and those behind it get none yet.
fn assert_next(waiters: &mut Vec<Waiter>, answer: &str) {
    let seen = waiters.remove(0).answer();
    assert!(seen.starts_with(answer), "{seen}");
    for (place, waiter) in waiters.iter_mut().enumerate() {
        assert!(waiter.is_waiting(), "number {place} behind was answered as well: {}", waiter.answer());
    }
}

#[test]
fn a_call_that_need_not_wait_is_answered_at_once() {
    let (_server, mut client) = Server::with_client();
    assert_eq!(client.ints("CL.BTHROTTLE k 2 3 3600 1 0"), [0, 3, 2, -1, 1200]);
    assert_eq!(client.ints("CL.BTHROTTLE k 2 3 3600 0 0"), [0, 3, 2, -1, 1200], "a look");
    assert_eq!(client.ints("CL.BTHROTTLE k 2 3 3600 4 0")[..4], [1, 3, 2, -1], "above the limit");
    assert_eq!(client.ints("CL.BTHROTTLE ms 2 3 3600000 1 0 MS"), [0, 3, 2, -1, 1_200_000]);
    assert_eq!(client.int("EXISTS other"), 0);
}

#[test]
fn first_come_first_served() {
    let (server, mut client) = full();
    let mut waiters = queue(&server, &mut client, 5);
    for left in (0..5).rev() {
        refund(&mut client);
        assert_next(&mut waiters, ADMITTED);
        wait_for_blocked(&mut client, left);
    }
}

#[test]
fn no_client_is_admitted_before_its_turn_and_every_client_then() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 150 1 MS");
    let full_until = client.tat("k").unwrap();
    let mut waiters: Vec<Waiter> =
        (1..=4).map(|_| Waiter::ask(&server, "CL.BTHROTTLE k 0 1 150 1 20 MS")).collect();
    // The server may have read the connections in any order: each turn belongs to one of them.
    let answers: Vec<i64> = waiters
        .iter_mut()
        .map(|waiter| {
            assert!(waiter.answer().starts_with("0 1 0 -1 "));
            wall_ns()
        })
        .collect();
    let last = *answers.iter().max().unwrap();
    assert!(last >= full_until + 3 * 150_000_000, "the last came {} ns after", last - full_until);
    assert!(client.tat("k").is_none_or(|tat| tat >= full_until + 4 * 150_000_000));
    wait_for_blocked(&mut client, 0);
}

#[test]
fn a_client_whose_turn_would_come_too_late_gets_null_at_once() {
    let (server, mut client) = full();
    let asked = Instant::now();
    for timeout in ["1e-400", "0.001", "5", "3598"] {
        assert_eq!(client.call(&format!("CL.BTHROTTLE k {HOURLY} 1 {timeout}")), Value::Nil, "{timeout}");
    }
    let _waiters = queue(&server, &mut client, 1);
    // Behind one client it takes two hours.
    assert_eq!(client.call(&format!("CL.BTHROTTLE k {HOURLY} 1 7000")), Value::Nil);
    assert!(asked.elapsed() < Duration::from_secs(20));
    let refused = client.ints(&format!("CL.BTHROTTLE k {HOURLY} 2 0"));
    assert_eq!(refused[..4], [1, 1, 0, -1], "above the limit");
    let _third = Waiter::ask(&server, &format!("CL.BTHROTTLE k {HOURLY} 1 7300"));
    wait_for_blocked(&mut client, 2);
}

/// Ends a wait in one of several ways.
pub fn leave(client: &mut Client, mut leaver: Waiter, way: &str) {
    if way != "disconnect" {
        assert_eq!(client.int(&way.replace("id", &leaver.id.to_string())), 1, "{way}");
    }
    match way {
        "CLIENT UNBLOCK id ERROR" => {
            assert_eq!(leaver.answer(), "UNBLOCKED client unblocked via CLIENT UNBLOCK");
        }
        "CLIENT KILL ID id" | "disconnect" => drop(leaver),
        _ => assert_eq!(leaver.answer(), "null", "{way}"),
    }
}

#[test]
fn a_wait_that_ends_without_admission_leaves_no_trace() {
    let (server, mut client) = full();
    for way in [
        "CLIENT UNBLOCK id",
        "CLIENT UNBLOCK id TIMEOUT",
        "CLIENT UNBLOCK id ERROR",
        "CLIENT KILL ID id",
        "disconnect",
    ] {
        for place in [0, 1] {
            let mut waiters = queue(&server, &mut client, 3);
            let before = client.snapshot("k");
            let leaver = waiters.remove(place);
            leave(&mut client, leaver, way);
            wait_for_blocked(&mut client, 2);
            assert_eq!(client.snapshot("k"), before, "{way}");
            for _ in 0..2 {
                refund(&mut client);
                assert_next(&mut waiters, ADMITTED);
            }
            wait_for_blocked(&mut client, 0);
        }
    }
}

#[test]
fn a_refund_or_a_deleted_key_moves_the_queue_at_once() {
    let (server, mut client) = Server::with_client();
    for event in [
        "DEL k",
        "UNLINK k",
        "CL.REFUND k 0 1 3600",
        "FLUSHDB",
        "FLUSHALL",
        "SWAPDB 0 5",
        "RENAME k away",
        "PEXPIRE k 1",
        "EXPIRE k -1",
        "RENAME empty k",
    ] {
        client.call("FLUSHALL");
        client.throttle_checked("k", HOURLY);
        client.call(&format!("SET empty {} PX 100000", wall_ns()));
        let mut waiters = queue(&server, &mut client, 2);
        client.call(event);
        assert_next(&mut waiters, ADMITTED);
        client.call("DEL k");
        assert_next(&mut waiters, ADMITTED);
        wait_for_blocked(&mut client, 0);
    }
}

#[test]
fn a_charge_right_after_a_deletion_comes_before_the_queue() {
    let (server, mut client) = full();
    let mut waiters = queue(&server, &mut client, 2);
    client.call(&format!("CL.RESERVE k {HOURLY}"));
    client.pipeline(&["MULTI", "DEL k", &format!("CL.CHARGE k {HOURLY} 2"), "EXEC"]);
    refund(&mut client);
    refund(&mut client);
    assert_next(&mut waiters, "0 1 0 -1 3600");
}

#[test]
fn a_key_that_turns_foreign_is_an_error_for_each_client() {
    let (server, mut client) = full();
    for (commands, error) in [
        (&["SET k foo"][..], "ERR the key does not hold this limiter's state"),
        (&["MULTI", "DEL k", "RPUSH k a", "EXEC"], "WRONGTYPE "),
    ] {
        client.call("DEL k");
        client.throttle_checked("k", HOURLY);
        let mut waiters = queue(&server, &mut client, 2);
        for call in ["k THROTTLE 0 1 3600 1", "free LOG 9 60 1 k THROTTLE 0 1 3600 1"] {
            waiters.push(Waiter::ask(&server, &format!("CL.BMTAKE {call}")));
            wait_for_blocked(&mut client, waiters.len());
        }
        for command in commands {
            client.call(*command);
        }
        let before = client.snapshot("k");
        for waiter in &mut waiters {
            let answer = waiter.answer();
            assert!(answer.starts_with(error), "{commands:?}: {answer}");
        }
        assert_eq!(client.snapshot("k"), before);
        wait_for_blocked(&mut client, 0);
    }
}

#[test]
fn the_costs_of_the_queue_count_as_taken() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 2 3 3600 1");
    assert_eq!(client.ints("CL.PEEK k 2 3 3600")[..3], [0, 3, 2]);
    let mut waiter = Waiter::ask(&server, "CL.BTHROTTLE k 2 3 3600 3 0");
    wait_for_blocked(&mut client, 1);
    let before = client.snapshot("k");
    assert_eq!(client.ints("CL.PEEK k 2 3 3600")[..3], [1, 3, 0]);
    assert_eq!(client.ints("CL.THROTTLE k 2 3 3600")[..3], [1, 3, 0]);
    assert_eq!(client.ints("CL.THROTTLE k 2 3 3600 2 SATURATE")[5], 0);
    assert_eq!(client.ints("CL.RESERVE k 2 3 3600 1 MAXWAIT 100")[0], 1);
    let rows: Vec<Vec<i64>> = client.get("CL.MTAKE k THROTTLE 2 3 3600 1 other THROTTLE 2 3 3600 1");
    assert_eq!([&rows[0][..3], &rows[1][..3], &rows[2][..3]], [[1, 3, 0], [1, 3, 0], [0, 3, 3]]);
    assert_eq!(client.snapshot("k"), before);
    assert!(waiter.is_waiting());

    // A booking is behind the queue, and its refund leaves the queue where it was.
    let booked = client.ints("CL.RESERVE k 2 3 3600");
    assert!(booked[0] == 0 && (2399..=2400).contains(&booked[3]), "{booked:?}");
    client.call("CL.REFUND k 2 3 3600");
    assert_eq!(client.expiry_ms("k"), (client.tat("k").unwrap() + 999_999) / 1_000_000);
    assert!(waiter.is_waiting());
    client.call("CL.REFUND k 2 3 3600");
    assert_eq!(waiter.answer(), "0 3 0 -1 3600");
    assert_eq!(client.ints("CL.PEEK k 2 3 3600")[..3], [1, 3, 0]);
}

#[test]
fn in_transactions_and_scripts_it_does_not_block() {
    let (server, mut client) = full();
    let calls = ["CL.BTHROTTLE # 0 1 3600 1 0", "CL.BMTAKE # THROTTLE 0 1 3600 1 FLOW a"];
    for call in calls {
        let (used_up, fresh) = (call.replace('#', "k"), call.replace('#', "{k}fresh"));
        client.call("DEL {k}fresh");
        client.call("MULTI");
        client.call(&used_up);
        client.call(&fresh);
        let Value::Array(replies) = client.call("EXEC") else { panic!("no array") };
        assert_eq!(replies[0], Value::Nil);
        assert!(matches!(replies[1], Value::Array(_)), "{fresh}: {:?}", replies[1]);
        let script = "return redis.call(unpack(ARGV))";
        let eval = |call: &str| {
            ["EVAL", script, "0"].into_iter().chain(call.split(' ')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(client.call(&eval(&used_up)), Value::Nil);
        client.call("DEL {k}fresh");
        assert!(matches!(client.call(&eval(&fresh)), Value::Array(_)));
        // Behind clients that wait, too.
        let _waiters = queue(&server, &mut client, 1);
        assert_eq!(client.call(&eval(&used_up)), Value::Nil);
    }
}

#[test]
fn null_on_both_protocols() {
    let (server, mut client) = full();
    for client in [&mut client, &mut server.connect_resp3()] {
        assert_eq!(client.call(&format!("CL.BTHROTTLE k {HOURLY} 1 1")), Value::Nil);
    }
}

#[test]
fn a_server_that_becomes_a_replica_unblocks_all() {
    let (server, mut client) = full();
    let mut waiters = queue(&server, &mut client, 3);
    waiters.push(Waiter::ask(&server, "CL.BMTAKE k THROTTLE 0 1 3600 1"));
    wait_for_blocked(&mut client, 4);
    client.call("REPLICAOF 127.0.0.1 1");
    for waiter in &mut waiters {
        let answer = waiter.answer();
        assert!(answer.starts_with("UNBLOCKED "), "{answer}");
    }
    wait_for_blocked(&mut client, 0);
    client.call("REPLICAOF NO ONE");
    let mut waiters = queue(&server, &mut client, 1);
    refund(&mut client);
    assert_next(&mut waiters, ADMITTED);
}

#[test]
fn while_the_server_is_paused_no_client_is_admitted() {
    requires!(BINARY.at_least(6, 2, 0), "no CLIENT PAUSE WRITE");
    for mode in ["WRITE", "ALL"] {
        let server = Options::new().append_only().start();
        let mut stream = ReplicaStream::attach(&server);
        let mut client = server.connect();
        client.call("CL.THROTTLE k 0 1 100 1 MS");
        let mut waiters: Vec<Waiter> =
            (0..3).map(|_| Waiter::ask(&server, "CL.BTHROTTLE k 0 1 100 1 0 MS")).collect();
        wait_until("all to be read", || {
            if client.info("blocked_clients").parse::<usize>().unwrap() > 0 {
                Ok(())
            } else {
                Err(String::new())
            }
        });
        let paused = Instant::now();
        client.call(&format!("CLIENT PAUSE 600 {mode}"));
        if mode == "WRITE" {
            wait_until("300 ms of pause", || {
                client.call("PING");
                if paused.elapsed() > Duration::from_millis(300) { Ok(()) } else { Err(String::new()) }
            });
            let before = client.info("master_repl_offset");
            client.call("PING");
            if paused.elapsed() < Duration::from_millis(500) {
                assert_eq!(client.info("master_repl_offset"), before);
            }
        }
        for waiter in &mut waiters {
            assert!(waiter.answer().starts_with("0 1 0 -1 "));
        }
        // At 100 ms each, one or two turns may have come before the pause, but not the third.
        assert!(paused.elapsed() >= Duration::from_millis(100), "{mode}");
        server.assert_alive("turns that come in a pause");
        wait_for_blocked(&mut client, 0);
        assert!(!stream.effects(&server).is_empty());
    }
}

#[test]
fn the_module_stays_loaded_while_a_client_waits() {
    let (server, mut client) = full();
    for call in ["CL.BTHROTTLE k 0 1 3600 1 0", "CL.BMTAKE k THROTTLE 0 1 3600 1 FLOW a"] {
        let mut waiters = queue(&server, &mut client, 1);
        waiters.push(Waiter::ask(&server, call));
        wait_for_blocked(&mut client, 2);
        refund(&mut client);
        assert_next(&mut waiters, ADMITTED);
        let error = client.error("MODULE UNLOAD redis-cell");
        assert!(error.contains("blocked clients"), "{error}");
        assert!(waiters[0].is_waiting());
        drop(waiters);
        wait_for_blocked(&mut client, 0);
        client.call("MODULE UNLOAD redis-cell");
        server.assert_alive("unloading");
        client.call("DEL no-such-key");
        client.call(&["MODULE", "LOAD", &module_path().display().to_string()]);
    }
    let mut waiters = queue(&server, &mut client, 1);
    client.call("DEL k");
    assert_next(&mut waiters, ADMITTED);
}

#[test]
fn nothing_is_written_until_a_client_is_admitted() {
    let (server, mut client) = full();
    client.call("CONFIG SET notify-keyspace-events KEA");
    let mut stream = ReplicaStream::attach(&server);
    let before = (client.snapshot("k"), client.info("rdb_changes_since_last_save"));
    let mut waiters = queue(&server, &mut client, 4);
    client.call(&format!("CLIENT UNBLOCK {}", waiters[1].id));
    client.call(&format!("CLIENT KILL ID {}", waiters[2].id));
    wait_for_blocked(&mut client, 2);
    assert_eq!(client.call(&format!("CL.BTHROTTLE k {HOURLY} 1 1")), Value::Nil);
    assert_eq!(stream.effects(&server), []);
    assert_eq!((client.snapshot("k"), client.info("rdb_changes_since_last_save")), before);

    refund(&mut client);
    assert!(waiters.remove(0).answer().starts_with(ADMITTED));
    let mut expected = Effect::alone(0, vec![Effect { db: 0, command: "DEL k".to_owned() }]);
    expected.extend(Effect::alone(0, Effect::of_call(&mut client, 0, "k")));
    assert_eq!(stream.effects(&server), expected);
    assert!(client.tat("k").unwrap() > wall_ns() + 3_500_000_000_000);
}

/// The number of connections that this process may open, less the connections of the other tests.
fn crowd() -> usize {
    let output = std::process::Command::new("sh").args(["-c", "ulimit -n"]).output().unwrap();
    let files = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap_or(usize::MAX);
    let crowd = files.saturating_sub(500).min(10_000);
    if crowd < 10_000 {
        report_skip(&format!("only {crowd} of 10,000 waiters: {files} open files are allowed"));
    }
    crowd
}

/// Sends all the calls, with a PING now and then.
fn gather(
    server: &Server,
    client: &mut Client,
    command: impl Fn(usize) -> String,
    count: usize,
) -> Vec<Waiter> {
    let mut slowest = Duration::ZERO;
    let waiters: Vec<Waiter> = (0..count)
        .map(|i| {
            let mut waiter = Waiter::connect(server);
            waiter.send(&command(i));
            if i % 100 == 0 {
                let asked = Instant::now();
                client.call("PING");
                slowest = slowest.max(asked.elapsed());
            }
            waiter
        })
        .collect();
    wait_for_blocked(client, count);
    assert!(slowest < Duration::from_secs(3), "a PING took {slowest:?}");
    waiters
}

#[test]
fn ten_thousand_at_once() {
    let count = crowd();
    let server = Options::new().set("maxclients", "12000").start();
    let mut client = server.connect();

    // The first round pays for memory that the server keeps: tables of clients and of file descriptors.
    let mut before = 0;
    for round in 0..2 {
        if round == 1 {
            before = client.used_memory();
        }
        let one_key = format!("{} {count} 360000000", count - 1);
        client.call(&format!("CL.THROTTLE k {one_key} {count}"));
        let mut waiters = gather(&server, &mut client, |_| format!("CL.BTHROTTLE k {one_key} 1 0"), count);
        waiters.truncate(count / 2); // half of them hang up
        wait_for_blocked(&mut client, count / 2);
        client.call("DEL k");
        for waiter in &mut waiters {
            assert!(waiter.answer().starts_with(&format!("0 {count} ")));
        }
        drop(waiters);
        wait_for_blocked(&mut client, 0);
        assert!(client.ints(&format!("CL.PEEK k {one_key}"))[2] >= i64::try_from(count - count / 2).unwrap());

        client.call("FLUSHALL");
        // Names that are new in each round, and long enough to be missed if they are kept.
        let name = |i: usize| format!("{round}:{i:0>600}");
        let fill: Vec<String> = (0..count).map(|i| format!("CL.THROTTLE {} {HOURLY}", name(i))).collect();
        client.pipeline(&fill.iter().collect::<Vec<_>>());
        let mut waiters =
            gather(&server, &mut client, |i| format!("CL.BTHROTTLE {} {HOURLY} 1 0", name(i)), count);
        client.call("FLUSHALL");
        for waiter in &mut waiters {
            assert!(waiter.answer().starts_with(ADMITTED));
        }
        drop(waiters);
        wait_for_blocked(&mut client, 0);
        assert_eq!(client.int("DBSIZE"), i64::try_from(count).unwrap());
        client.call("FLUSHALL");
        client.wait_for("connected_clients", "1");
    }
    wait_until("the memory to be given back", || {
        let more = client.used_memory() - before;
        if more < 4_000_000 { Ok(()) } else { Err(format!("{more} bytes more than before")) }
    });
    server.assert_alive("ten thousand waiters");
}

/// Regression: Valkey 9.1 leaves clients blocked whose node loses its slots to its replica, and they waited
/// for as long as it was a replica.
#[test]
fn a_primary_of_a_cluster_that_becomes_a_replica_unblocks_all() {
    let server = cluster(1, Options::new).remove(0);
    let successor = Options::new().set("cluster-enabled", "yes").start();
    let (mut client, mut next) = (server.connect(), successor.connect());
    next.call("CLUSTER SET-CONFIG-EPOCH 2");
    next.call(&format!("CLUSTER MEET 127.0.0.1 {}", server.port()));
    let primary = client.text("CLUSTER MYID");
    wait_until("the replica to know its primary", || next.ask(&format!("CLUSTER REPLICATE {primary}")));
    let wait_for = |client: &mut Client, call: &str, words: &str| {
        wait_until(words, || match client.text(call) {
            text if text.contains(words) => Ok(()),
            text => Err(text),
        });
    };
    wait_for(&mut next, "INFO replication", "link_status:up");
    wait_for(&mut client, "INFO replication", "state=online");
    client.throttle_checked("k", HOURLY);
    let mut waiters = queue(&server, &mut client, 3);
    // The request is lost as long as the nodes are not connected in both directions.
    wait_until("the replica to take over", || {
        let _ = next.ask("CLUSTER FAILOVER");
        std::thread::sleep(Duration::from_secs(1));
        match next.text("INFO replication") {
            info if info.contains("role:master") => Ok(()),
            info => Err(info),
        }
    });
    for waiter in &mut waiters {
        let answer = waiter.answer();
        assert!(answer.starts_with("UNBLOCKED "), "{answer}");
    }
    wait_for_blocked(&mut client, 0);
}

#[test]
fn a_cluster_serves_its_waiters() {
    let server = cluster(1, Options::new).remove(0);
    let mut client = server.connect();
    client.throttle_checked("k", HOURLY);
    let mut waiters = queue(&server, &mut client, 2);
    client.call("DEL k");
    assert_next(&mut waiters, ADMITTED);
    // A slot may move while a client waits. Some servers unblock the client at once, others leave it until
    // its turn.
    client.call("CL.THROTTLE j 0 1 700 1 MS");
    let mut waiter = Waiter::ask(&server, "CL.BTHROTTLE j 0 1 700 1 0 MS");
    wait_for_blocked(&mut client, 2);
    let slot = client.int("CLUSTER KEYSLOT j");
    client.call(&format!("CLUSTER DELSLOTS {slot}"));
    let answer = waiter.answer();
    let errors = ["TRYAGAIN ", "CLUSTERDOWN ", "UNBLOCKED "];
    assert!(errors.iter().any(|error| answer.starts_with(error)), "{answer}");
    // Whatever the turn: in both queues of a key, an hour before it.
    drop(waiters);
    wait_for_blocked(&mut client, 0);
    client.call(&format!("CLUSTER ADDSLOTS {slot}"));
    wait_for_cluster(&[&server]);
    client.call("CL.THROTTLE {j}k 0 1 3600");
    let hourly = ["CL.BTHROTTLE {j}k 0 1 3600 1 0", "CL.BMTAKE {j}k THROTTLE 0 1 3600 1"];
    let mut waiters = hourly.map(|call| Waiter::ask(&server, call));
    wait_for_blocked(&mut client, 2);
    client.call(&format!("CLUSTER DELSLOTS {slot}"));
    for waiter in &mut waiters {
        let answer = waiter.answer();
        assert!(errors.iter().any(|error| answer.starts_with(error)), "{answer}");
    }
    server.assert_alive("a slot that leaves");
}
