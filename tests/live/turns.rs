//! CL.BTHROTTLE: the events that move a queue, and the server's checks before a client is admitted.

use crate::common::{
    BINARY, Client, Effect, Options, ReplicaStream, Server, Waiter, requires, wait_for_blocked, wait_until,
};
use crate::waiting::{HOURLY, leave, queue};
use std::time::{Duration, Instant};

/// Regression: the loop of Redis 7.0 did not sleep while the next timer was 36 minutes away or more.
#[test]
fn a_server_sleeps_while_its_clients_wait_for_an_hour() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 3600");
    client.call("CL.FIXED many 1 3600");
    let _waiters = [
        Waiter::ask(&server, "CL.BTHROTTLE k 0 1 3600 1 0"),
        Waiter::ask(&server, "CL.BMTAKE many FIXED 1 3600 1"),
    ];
    wait_for_blocked(&mut client, 2);
    let mut used = || {
        let fields = ["used_cpu_user", "used_cpu_sys"];
        fields.map(|field| client.info(field).parse::<f64>().unwrap()).iter().sum::<f64>()
    };
    let (before, begun) = (used(), Instant::now());
    std::thread::sleep(Duration::from_secs(1)); // in which the server has nothing to do
    let busy = used() - before;
    assert!(busy < begun.elapsed().as_secs_f64() / 4.0, "{busy} s of the processor's time");
}

/// Regression: other clients were admitted in place of clients that had left the queue before a booking,
/// while the booking acted at the time that it had received.
#[test]
pub fn clients_that_leave_before_bookings_leave_their_cost() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    let (limit, hour) = ("0 1 3600", 3_600_000_000_000);
    for way in ["disconnect", "CLIENT UNBLOCK id", "CLIENT KILL ID id"] {
        client.call("DEL k");
        client.call(&format!("CL.THROTTLE k {limit}"));
        let tat = client.tat("k").unwrap();
        // One that stays, two that leave, three bookings.
        let mut waiters = queue(&server, &mut client, 1);
        let leavers = queue(&server, &mut client, 2);
        stream.effects(&server);
        for hours in 4..=6 {
            let booked = client.ints(&format!("CL.RESERVE k {limit}"))[3];
            assert!((hours * 3600 - 20..=hours * 3600).contains(&booked), "{booked}");
            // The first booking stores the costs of the clients before it.
            assert_eq!(client.tat("k").unwrap(), tat + hours * hour);
            let effect = Effect::alone(0, Effect::of_call(&mut client, 0, "k"));
            assert_eq!(stream.effects(&server), effect);
        }
        for leaver in leavers {
            leave(&mut client, leaver, way);
        }
        wait_for_blocked(&mut client, 1);
        assert_eq!(client.tat("k").unwrap(), tat + 6 * hour);
        let booked = client.ints(&format!("CL.RESERVE k {limit}"))[3];
        assert!((7 * 3600 - 20..=7 * 3600).contains(&booked), "{way}: {booked}");
        // The client that stays is still the first, and a refund of its place moves it.
        assert!(waiters[0].is_waiting());
        client.call("DEL k");
        assert!(waiters[0].answer().starts_with("0 1 0 -1 "));
        wait_for_blocked(&mut client, 0);
    }
}

/// Regression: a charge among several limiters was decided on a state that lacked the cost of clients that
/// had just left the queue, and overwrote it.
#[test]
pub fn a_settlement_that_charges_keeps_the_cost_of_clients_that_left() {
    let (server, mut client) = Server::with_client();
    let (limit, hour) = ("0 1 3600", 3_600_000_000_000);
    client.call(&format!("CL.THROTTLE k {limit}"));
    let tat = client.tat("k").unwrap();
    let leavers = queue(&server, &mut client, 5);
    for _ in 0..5 {
        client.call(&format!("CL.RESERVE k {limit}"));
    }
    client.call("MULTI");
    for leaver in &leavers {
        client.call(&format!("CLIENT UNBLOCK {}", leaver.id));
    }
    client.call("CL.MSETTLE k THROTTLE 999 1000000 1 1");
    client.call("EXEC");
    wait_for_blocked(&mut client, 0);
    assert_eq!(client.tat("k").unwrap(), tat + 10 * hour + 1000);
    assert_eq!(client.throttle_checked("k", limit)[0], 1);
}

/// Regression: a queue stood still for as long as its state said when the key's time to live was cut, and so
/// many keys had one that the server did not notice that this one had expired.
#[test]
pub fn a_time_to_live_that_is_cut_moves_the_queue() {
    let (server, mut client) = Server::with_client();
    // The server expires nothing by itself.
    client.call("DEBUG SET-ACTIVE-EXPIRE 0");
    for cut_first in [false, true] {
        client.call("DEL k");
        client.call("CL.CHARGE k 0 1 3600");
        let mut waiters = Vec::new();
        if cut_first {
            client.call("PEXPIRE k 300");
            waiters = queue(&server, &mut client, 1);
        } else {
            waiters.extend(queue(&server, &mut client, 1));
            client.call("PEXPIRE k 20");
        }
        assert!(waiters[0].answer().starts_with("0 1 0 -1 "), "{cut_first}");
    }
}

/// A writable replica of a primary that does not answer, with its own connection.
fn writable_replica() -> (Server, Client) {
    let server = Options::new().set("replica-read-only", "no").start();
    let mut client = server.connect();
    client.call("REPLICAOF 127.0.0.1 1");
    (server, client)
}

/// Regression: on a writable replica no wait ever ended, not even by its timeout.
#[test]
fn on_a_writable_replica_waits_end_as_on_a_primary() {
    let (server, mut client) = writable_replica();
    client.call("CL.THROTTLE k 0 1 3600");
    client.call("CL.THROTTLE short 0 1 300 1 MS");
    let asked = Instant::now();
    let mut by_turn = Waiter::ask(&server, "CL.BTHROTTLE short 0 1 300 1 0 MS");
    wait_for_blocked(&mut client, 1);
    let mut by_change = Waiter::ask(&server, &format!("CL.BTHROTTLE k {HOURLY} 1 0"));
    wait_for_blocked(&mut client, 2);
    assert!(by_turn.answer().starts_with("0 1 0 -1 "));
    assert!(asked.elapsed() >= Duration::from_millis(200));
    client.call("DEL k");
    assert!(by_change.answer().starts_with("0 1 0 -1 "));

    client.call("CL.THROTTLE late 0 1 400 1 MS");
    let mut late = Waiter::ask(&server, "CL.BTHROTTLE late 0 1 400 1 0.6 MS");
    wait_for_blocked(&mut client, 1);
    client.call("CL.CHARGE late 0 1 3600");
    assert_eq!(late.answer(), "null");
    wait_for_blocked(&mut client, 0);
}

/// Regression: timeouts were not replied while the server was paused.
#[test]
fn a_timeout_is_replied_while_writes_are_paused() {
    requires!(BINARY.at_least(6, 2, 0), "no CLIENT PAUSE WRITE");
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 300 1 MS");
    let asked = Instant::now();
    let mut waiter = Waiter::ask(&server, "CL.BTHROTTLE k 0 1 300 1 0.5 MS");
    wait_for_blocked(&mut client, 1);
    client.call("CLIENT PAUSE 60000 WRITE");
    assert_eq!(waiter.answer(), "null", "its turn came while the server was paused");
    assert!(asked.elapsed() >= Duration::from_millis(500) && asked.elapsed() < Duration::from_secs(30));
    assert_eq!(client.info("blocked_clients"), "0");
    client.call("CLIENT UNPAUSE");
}

/// Compares the beginning of the reply to each call that waits, on a server that changes before its turn.
/// With an error, nothing is written.
fn at_its_turn(options: &Options, change: impl Fn(&Server, &mut Client), expected: &str) {
    for (first, call) in [
        ("CL.THROTTLE {k}second 0 1 1000 1 MS", "CL.BTHROTTLE {k}second 0 1 1000 1 0 MS"),
        ("CL.ACQUIRE k 1 1000 other MS", "CL.BMTAKE k LEASE 1 3600 me {k}second LOG 9 60 1 FLOW a"),
    ] {
        let server = options.clone().start();
        let mut client = server.connect();
        client.call("ACL SETUSER u on nopass ~* +@all");
        client.call(first);
        let mut waiter = Waiter::connect(&server);
        waiter.send("AUTH u any");
        assert_eq!(waiter.answer(), "OK");
        waiter.send(call);
        wait_for_blocked(&mut client, 1);
        let dumps = |client: &mut Client| {
            ["DUMP k", "DUMP {k}second"].map(|dump| client.get::<Option<Vec<u8>>, _>(dump))
        };
        let before = dumps(&mut client);
        change(&server, &mut client);
        let answer = waiter.answer();
        assert!(answer.starts_with(expected), "{call}: {answer}");
        if expected != "0 " {
            // By now the key may have expired.
            let is_kept =
                dumps(&mut client).into_iter().zip(before).all(|(now, then)| now.is_none() || now == then);
            assert!(is_kept, "{call} has written");
        }
        wait_for_blocked(&mut client, 0);
    }
}

/// Regression: clients that waited were admitted where the server refuses all writes for want of memory.
#[test]
pub fn out_of_memory_is_the_servers_own_error_at_the_turn() {
    // No command runs between this and the turn, at which the server itself would go by the memory used
    // before.
    let change = |_: &Server, client: &mut Client| drop(client.call("CONFIG SET maxmemory 1"));
    at_its_turn(&Options::new(), change, "OOM command not allowed when used memory > 'maxmemory'.");
}

/// Regression: clients that waited received `OOM` when memory had run out at the last command, and was free
/// at their turn.
#[test]
pub fn memory_that_is_free_again_admits_at_the_turn() {
    let change = |_: &Server, client: &mut Client| {
        client.call("CONFIG SET maxmemory 1");
        // When this command begins, memory is out, and no other command runs before the turn.
        client.call("CONFIG SET maxmemory 1gb");
    };
    at_its_turn(&Options::new(), change, "0 ");
}

/// Regression: clients that waited were admitted on a primary without the replicas that it needs to accept
/// writes.
#[test]
pub fn too_few_replicas_is_the_servers_own_error_at_the_turn() {
    requires!(BINARY.at_least(7, 0, 0), "a module cannot ask for it");
    let change = |_: &Server, client: &mut Client| drop(client.call("CONFIG SET min-replicas-to-write 1"));
    at_its_turn(&Options::new(), change, "NOREPLICAS ");
}

/// Regression: the same on a server that cannot save to its disk.
#[test]
pub fn a_failed_save_is_the_servers_own_error_at_the_turn() {
    requires!(BINARY.at_least(7, 0, 0), "a module cannot ask for it");
    let change = |server: &Server, client: &mut Client| {
        client.call(&["CONFIG", "SET", "save", "3600 1"]);
        // A directory in the place of the file.
        std::fs::create_dir(server.folder().join("snapshot")).unwrap();
        client.call("BGSAVE");
        wait_until("the save to fail", || match client.ask("SET other 1") {
            Err(error) if error.starts_with("MISCONF ") => Ok(()),
            _ => Err(client.text("INFO persistence")),
        });
    };
    at_its_turn(&Options::new().set("dbfilename", "snapshot"), change, "MISCONF ");
}

/// Regression: clients that waited were admitted though the permission had been withdrawn.
#[test]
pub fn a_permission_that_is_withdrawn_is_an_error_at_the_turn() {
    requires!(BINARY.at_least(7, 0, 0), "a module cannot ask for it");
    for (changed, expected) in [
        ("resetkeys", "NOPERM "),
        ("-@all", "NOPERM "),
        ("-cl.bthrottle -cl.bmtake", "NOPERM "),
        ("resetkeys ~other*", "NOPERM "),
        // Of all its keys, not of the first alone.
        ("resetkeys ~k", "NOPERM "),
        ("resetkeys ~k ~{k}* -@all +cl.bthrottle +cl.bmtake", "0 "),
    ] {
        let change = |_: &Server, client: &mut Client| drop(client.call(&format!("ACL SETUSER u {changed}")));
        at_its_turn(&Options::new(), change, expected);
    }
}

/// Regression: clients of a user that is restricted to some databases were never admitted after waiting.
#[test]
fn a_user_of_some_databases_is_admitted_in_them() {
    requires!(BINARY.name == "valkey" && BINARY.at_least(9, 1, 0), "users have all databases");
    let (server, mut client) = Server::with_client();
    client.call("ACL SETUSER u on nopass ~* +@all resetdbs db=0,1");
    for (db, withdrawn) in [(0, false), (1, false), (1, true)] {
        client.call(&format!("SELECT {db}"));
        client.call("DEL k");
        client.call("CL.THROTTLE k 0 1 400 1 MS");
        let mut waiter = Waiter::connect(&server);
        for call in ["AUTH u any", &format!("SELECT {db}")] {
            waiter.send(call);
            assert_eq!(waiter.answer(), "OK");
        }
        waiter.send("CL.BTHROTTLE k 0 1 400 1 0 MS");
        wait_for_blocked(&mut client, 1);
        if withdrawn {
            client.call("ACL SETUSER u resetdbs db=0");
        }
        let expected = if withdrawn { "NOPERM " } else { "0 1 0 -1 " };
        assert!(waiter.answer().starts_with(expected));
    }
}

/// The keys of a database are marked, and the clients that name a key are woken, a hundred at a time.
#[test]
fn a_flush_moves_hundreds_of_queues_and_wakes_hundreds_of_flows() {
    const MANY: usize = 250;
    let (server, mut client) = Server::with_client();
    client.call(&format!("CL.FIXED gate {MANY} 3600 {MANY}"));
    let mut waiters = Vec::new();
    for number in 0..MANY {
        client.call(&format!("CL.THROTTLE k{number} {HOURLY}"));
        waiters.push(Waiter::ask(&server, &format!("CL.BTHROTTLE k{number} {HOURLY} 1 0")));
        let call = format!("CL.BMTAKE k LOG 1000 3600 1 gate FIXED {MANY} 3600 1 FLOW f{number}");
        waiters.push(Waiter::ask(&server, &call));
    }
    wait_for_blocked(&mut client, 2 * MANY);
    client.call("FLUSHDB");
    for waiter in &mut waiters {
        assert!(waiter.answer().starts_with("0 "));
    }
}

/// Regression: a queue stood still for as long as its key would have lived, when a call for the same queue
/// was the first to notice that the key had expired.
#[test]
fn a_key_that_expires_moves_its_queue_whichever_call_notices() {
    let (server, mut client) = Server::with_client();
    client.call("DEBUG SET-ACTIVE-EXPIRE 0");
    for noticed_by in [
        "CL.BTHROTTLE k 0 1 3600 1 0",
        "CL.BTHROTTLE k 0 1 3600 1 0.001",
        "CL.THROTTLE k 0 1 3600",
        "CL.RESERVE k 0 1 3600 1 MAXWAIT 1",
        "CL.PEEK k 0 1 3600",
        "MULTI",
        "EVAL",
        "GET k",
        "EXISTS k",
    ] {
        client.call("DEL k");
        client.call("CL.CHARGE k 0 1 3600");
        let mut waiters = queue(&server, &mut client, 1);
        client.call("PEXPIRE k 20");
        std::thread::sleep(Duration::from_millis(30));
        match noticed_by {
            "MULTI" => {
                client.call("MULTI");
                client.call("CL.BTHROTTLE k 0 1 3600 1 0");
                client.call("EXEC");
            }
            "EVAL" => {
                let script = "return redis.call('CL.BTHROTTLE', KEYS[1], 0, 1, 3600, 1, 0)";
                client.call(&["EVAL", script, "1", "k"]);
            }
            call if call.ends_with("1 0") => waiters.push(Waiter::ask(&server, call)),
            call => drop(client.call(call)),
        }
        let answer = waiters[0].answer();
        assert!(answer.starts_with("0 1 0 -1 "), "{noticed_by}: {answer}");
        drop(waiters);
        wait_for_blocked(&mut client, 0);
    }
}

#[test]
fn flushes_move_the_queues_of_their_database_only() {
    let (server, mut client) = Server::with_client();
    let wait_in = |client: &mut Client, db| {
        client.call(&format!("SELECT {db}"));
        client.call("FLUSHDB");
        client.call(&format!("CL.THROTTLE k{db} {HOURLY}"));
        let before: usize = client.info("blocked_clients").parse().unwrap();
        let waiter = Waiter::ask_in(&server, db, &format!("CL.BTHROTTLE k{db} {HOURLY} 1 0"));
        wait_for_blocked(client, before + 1);
        waiter
    };
    let mut waiters = [0, 1].map(|db| wait_in(&mut client, db));
    client.call("FLUSHDB");
    assert!(waiters[1].answer().starts_with("0 1 0 -1 "));
    for swap in ["SWAPDB 2 9", "SWAPDB 9 2"] {
        let swapped = [2, 9].map(|db| wait_in(&mut client, db));
        client.call(swap);
        for mut waiter in swapped {
            assert!(waiter.answer().starts_with("0 1 0 -1 "), "{swap}");
        }
    }
    assert!(waiters[0].is_waiting());
    client.call("FLUSHALL ASYNC");
    assert!(waiters[0].answer().starts_with("0 1 0 -1 "));
}
