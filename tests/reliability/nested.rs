//! Beside a module that calls limiters from its keyspace events, from a timer and from a thread.

use crate::common::{Server, Waiter, compile_library, wait_for_blocked, wait_until};
use std::time::{Duration, Instant};

fn load_nested(server: &Server) {
    server.connect().call(&["MODULE", "LOAD", compile_library("reliability/nested").to_str().unwrap()]);
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
    let mut server = Server::start();
    let replica = Server::start();
    let (mut client, mut copy) = (server.connect(), replica.connect());
    copy.call(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
    load_nested(&server);
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
    // What all those calls have booked and charged is not waited for.
    client.call("DEL k0 k1 k2 k3");
    for waiter in &mut waiters {
        admitted += usize::from(is_admitted(&waiter.answer()));
    }
    assert!(admitted > 0);
    wait_for_blocked(&mut client, 0);
    for key in ["k0", "k1", "k2", "k3"] {
        let _ = client.ask(&format!("CL.CHARGE {key} 0 1 3600"));
    }
    wait_until("the replica to hold the same", || {
        let differ: Vec<String> = ["k0", "k1", "k2", "k3"]
            .iter()
            .map(|key| (client.snapshot(key), copy.snapshot(key)))
            .filter(|(one, other)| one != other)
            .map(|pair| format!("{pair:?}"))
            .collect();
        if differ.is_empty() { Ok(()) } else { Err(differ.join("\n")) }
    });
    server.assert_alive("calls within calls");
    assert!(!server.log().to_lowercase().contains("panic"), "{}", server.log());
    server.terminate();
}

/// Regression: a callback that wrote to the key of a call, while the call still had the key open, ended the
/// server; or the call's own expiry and its effects came after those of the callback.
#[test]
pub fn a_call_within_a_call_on_the_same_key_comes_after_it() {
    let server = Server::start();
    let replica = Server::start();
    let (mut client, mut copy) = (server.connect(), replica.connect());
    copy.call(&format!("REPLICAOF 127.0.0.1 {}", server.port()));
    load_nested(&server);
    client.call("NESTED.START");
    let until = Instant::now() + Duration::from_secs(2);
    let limiters = [
        "CL.THROTTLE key 0 1 10 1 MS",
        "CL.FUNNEL key 5 1 20 1 MS",
        "CL.BUCKET key 5 1 20 1 MS",
        "CL.FIXED key 5 20 1 MS",
        "CL.WINDOW key 5 20 1 MS",
        "CL.LOG key 5 20 1 MS",
        "CL.ACQUIRE key 5 20 id MS",
        "CL.RELEASE key id",
        "DEL key",
    ];
    while Instant::now() < until {
        for (round, limiter) in limiters.iter().enumerate() {
            // The key may hold another limiter's state, which is an error.
            let _ = client.ask(&limiter.replace("key", &format!("k{}", round % 4)));
        }
    }
    client.call("NESTED.STOP");
    for key in ["k0", "k1", "k2", "k3"] {
        wait_until("the replica to hold the same", || match (client.snapshot(key), copy.snapshot(key)) {
            (one, other) if one == other => Ok(()),
            pair => Err(format!("{pair:?}")),
        });
    }
    server.assert_alive("writes within writes");
}

/// Regression: the record belonged to the server's main thread, so refusals of calls from other threads were
/// missed.
#[test]
pub fn refusals_of_calls_from_a_thread_are_recorded() {
    let server = Server::start();
    load_nested(&server);
    let mut client = server.connect();
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
