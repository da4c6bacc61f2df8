//! Leases of units on a real server: few calls, a limit that holds with its bound, and nothing left behind.

use crate::common::{Client, Server, wait_until, wall_ns};
use crate::{calls, client, until};
use redis::aio::MultiplexedConnection;
use redis_cell_client::{Decision, Fixed, FixedWindow, Leased, LeasedLimit, Rate, Units};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEY: &str = "hot";

/// A hold that is not over while a test runs.
const LONG: Duration = Duration::from_secs(3_600);

pub async fn connect(server: &Server) -> MultiplexedConnection {
    let client = client(server.port());
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None); // on a busy machine
    client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
}

/// How long a test waits for an event that takes a moment on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);

/// Waits until a condition holds. Other tasks of the thread run meanwhile.
pub async fn soon(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds().await {
        assert!(Instant::now() < deadline, "waited {SOON:?} for {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A runtime with a thread of its own.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// In the pause after an error the error is remembered, and after it a call is sent to the server again.
async fn asks_again(leased: &Leased<MultiplexedConnection>) {
    let take = || tokio::time::timeout(SOON, leased.take(KEY, Units(1)));
    soon("another call", async || take().await.expect("the key waits forever").is_ok()).await;
}

fn remaining(client: &mut Client, limit: &str) -> i64 {
    client.ints(&format!("CL.PEEK {KEY} {limit}"))[2]
}

#[tokio::test]
async fn a_batch_is_spent_without_calls_and_a_refusal_is_remembered() {
    let (server, mut client) = Server::with_client();
    let limit = Rate::per_day(100).burst(99);
    let leased = Leased::new(connect(&server).await, limit, 10..=40, LONG).unwrap();
    let mut admitted = 0;
    let mut wait = Duration::ZERO;
    for _ in 0..10_000 {
        match leased.take(KEY, Units(1)).await.unwrap() {
            Decision::Admitted => admitted += 1,
            Decision::RefusedFor(retry_after) => {
                wait = wait.max(retry_after);
                // The pause after a batch that was not filled. The server refuses the call that follows.
                if retry_after < Duration::from_secs(1) {
                    tokio::time::sleep(retry_after).await;
                }
            }
            _ => panic!("a unit is never above the limit"),
        }
    }
    assert_eq!((admitted, remaining(&mut client, "99 100 86400")), (100, 0));
    // A unit comes back after 864 seconds.
    assert!(wait > Duration::from_secs(800) && wait < Duration::from_secs(864), "{wait:?}");
    let calls = calls(&mut client, "cl.throttle");
    assert!((3..=12).contains(&calls), "{calls} calls for 100 units in batches of 10 to 40");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)] // wait_until does not let others run
async fn units_that_are_left_go_back_at_the_end_of_the_hold() {
    let (server, mut client) = Server::with_client();
    let (gcra, quota) = (Rate::per_day(100).burst(99), Fixed::new(100, FixedWindow::year()));
    let hold = Duration::from_secs(1); // longer than the three calls on a busy machine
    let rate = Leased::new(connect(&server).await, gcra, 20..=20, hold).unwrap();
    let year = Leased::new(connect(&server).await, quota, 20..=20, hold).unwrap();
    assert_eq!(rate.take(KEY, Units(3)).await.unwrap(), Decision::Admitted);
    let sliding = LeasedLimit::Window(Rate::new(100, Duration::from_secs(86_400)));
    let sliding = Leased::new(connect(&server).await, sliding, 20..=20, hold).unwrap();
    assert_eq!(year.take("year", Units(3)).await.unwrap(), Decision::Admitted);
    assert_eq!(sliding.take("sliding", Units(3)).await.unwrap(), Decision::Admitted);
    assert_eq!(client.text("GET year"), "20");
    // Seventeen, less one that may have leaked by the time that the server receives the call.
    wait_until("the units to come back", || match remaining(&mut client, "99 100 86400") {
        96 | 97 => Ok(()),
        other => Err(format!("{other} remain")),
    });
    until("the quota's units to come back", 3, || client.get::<u64, _>("GET year"));
    until("the window's units to come back", 97, || client.ints("CL.WINDOW sliding 100 86400 0")[2]);
    until("the keys to be forgotten", 0, || rate.keys_in_use() + year.keys_in_use());
}

#[tokio::test]
async fn units_are_given_back_before_the_process_ends() {
    let (server, mut client) = Server::with_client();
    let leased = Leased::new(connect(&server).await, Rate::per_day(100).burst(99), 20..=20, LONG).unwrap();
    leased.take(KEY, Units(3)).await.unwrap();
    assert_eq!(remaining(&mut client, "99 100 86400"), 80);
    leased.give_back().await.unwrap();
    assert!((96..=97).contains(&remaining(&mut client, "99 100 86400")));
}

#[tokio::test]
async fn quantities_that_cannot_be_held_are_taken_directly() {
    let (server, mut client) = Server::with_client();
    let limit = Rate::per_day(100).burst(99);
    let leased = Leased::new(connect(&server).await, limit, 1..=10, LONG).unwrap().keys(1);
    assert_eq!(leased.take(KEY, Units(11)).await.unwrap(), Decision::Admitted);
    assert_eq!(leased.keys_in_use(), 0);
    assert_eq!(leased.take(KEY, Units(101)).await.unwrap(), Decision::RefusedForever);
    assert_eq!(leased.take(KEY, Units(1)).await.unwrap(), Decision::Admitted);
    // The only place for a key is used.
    for _ in 0..5 {
        assert_eq!(leased.take("other", Units(1)).await.unwrap(), Decision::Admitted);
    }
    assert_eq!(leased.keys_in_use(), 1);
    assert_eq!(client.ints("CL.PEEK other 99 100 86400")[2], 95);
}

#[tokio::test]
async fn more_units_than_the_limit_has_are_refused_forever_and_take_nothing() {
    let (server, mut client) = Server::with_client();
    let (gcra, quota) = (Rate::per_day(5).burst(4), Fixed::new(5, FixedWindow::year()));
    let rate = Leased::new(connect(&server).await, gcra, 1..=100, LONG).unwrap();
    let year = Leased::new(connect(&server).await, quota, 1..=100, LONG).unwrap();
    assert_eq!(rate.take(KEY, Units(6)).await.unwrap(), Decision::RefusedForever);
    assert_eq!(year.take("year", Units(6)).await.unwrap(), Decision::RefusedForever);
    assert_eq!((client.int("EXISTS hot year"), rate.keys_in_use()), (0, 0));
    assert_eq!(rate.take(KEY, Units(5)).await.unwrap(), Decision::Admitted);
    assert_eq!(year.take("year", Units(5)).await.unwrap(), Decision::Admitted);
}

#[tokio::test]
async fn a_total_that_is_used_up_is_refused_forever() {
    let (server, mut client) = Server::with_client();
    let total = Fixed::new(5, FixedWindow::total());
    let hold = Duration::from_millis(200);
    let leased = Leased::new(connect(&server).await, total, 1..=10, hold).unwrap();
    assert_eq!(leased.take(KEY, Units(5)).await.unwrap(), Decision::Admitted);
    for _ in 0..3 {
        // Remembered or not.
        assert_eq!(leased.take(KEY, Units(1)).await.unwrap(), Decision::RefusedForever);
    }
    client.int(&format!("DEL {KEY}"));
    soon("another call", async || leased.take(KEY, Units(1)).await.unwrap() == Decision::Admitted).await;
}

#[tokio::test]
async fn giving_back_stops_at_a_server_that_does_not_answer() {
    let server = Server::start();
    let limit = Rate::per_day(100).burst(99);
    let leased = Leased::new(connect(&server).await, limit, 20..=20, LONG).unwrap();
    let leased = leased.timeout(Duration::from_secs(2));
    for key in ["a", "b", "c", "d"] {
        assert_eq!(leased.take(key, Units(1)).await.unwrap(), Decision::Admitted);
    }
    server.signal("STOP");
    assert!(leased.give_back().await.is_err());
    server.signal("CONT");
    // The one call was sent, and has waited in the server's socket.
    let mut client = server.connect();
    until("the call to be served", 1, || calls(&mut client, "cl.refund"));
    // The others are made now.
    leased.give_back().await.unwrap();
    assert_eq!(calls(&mut client, "cl.refund"), 4);
}

#[test]
fn a_key_whose_batch_was_on_its_way_when_the_runtime_ended_is_fetched_again() {
    let server = Server::start();
    let (first, second) = (runtime(), runtime());
    let connection = second.block_on(connect(&server));
    let hold = Duration::from_millis(50);
    let leased = Leased::new(connection, Rate::per_day(100).burst(99), 10..=10, hold).unwrap();
    let leased = leased.timeout(Duration::from_secs(60)); // longer than the test waits for the outcome
    server.signal("STOP");
    first.spawn({
        let leased = leased.clone();
        async move { leased.take(KEY, Units(1)).await }
    });
    until("the first call", 1, || leased.keys_in_use());
    let _second = second.enter();
    let mut waiting = Box::pin(leased.take(KEY, Units(1)));
    assert!(futures_poll(waiting.as_mut()).is_none());
    drop(first);
    server.signal("CONT");
    let waited = second.block_on(async { tokio::time::timeout(SOON, waiting).await });
    assert_eq!(waited.expect("the key waits forever").unwrap(), Decision::Admitted);
    second.block_on(asks_again(&leased));
    // The second runtime gives back the units that are left, and forgets the key.
    until("the key to be forgotten", 0, || leased.keys_in_use());
}

#[tokio::test]
async fn calls_that_wait_are_served_in_order() {
    let server = Server::start();
    let limit = Rate::per_day(100).burst(9);
    let leased = Leased::new(connect(&server).await, limit, 10..=10, LONG).unwrap();
    let order = Arc::new(AtomicU64::new(0));
    // All of them call before the first batch has arrived: the runtime has one thread.
    let tasks: Vec<_> = (0..15)
        .map(|_| {
            let (leased, order) = (leased.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                let decision = leased.take(KEY, Units(1)).await.unwrap();
                (order.fetch_add(1, Ordering::Relaxed), decision)
            })
        })
        .collect();
    for (place, task) in (0..).zip(tasks) {
        let (served, decision) = task.await.unwrap();
        assert_eq!((served, decision == Decision::Admitted), (place, place < 10), "{decision:?}");
    }
}

#[tokio::test]
async fn a_caller_that_gives_up_takes_nothing() {
    let server = Server::start();
    let limit = Rate::per_day(100).burst(9);
    let leased = Leased::new(connect(&server).await, limit, 10..=10, LONG).unwrap();
    for _ in 0..5 {
        let mut call = Box::pin(leased.take(KEY, Units(1)));
        // Polled once: it waits for the batch.
        assert!(futures_poll(call.as_mut()).is_none());
    }
    // The batch comes, and its first caller leaves before it reads that it has a unit of it.
    let mut first = Box::pin(leased.take(KEY, Units(1)));
    assert!(futures_poll(first.as_mut()).is_none());
    soon("the batch", async || leased.held(KEY) == 9).await;
    drop(first);
    for _ in 0..10 {
        assert_eq!(leased.take(KEY, Units(1)).await.unwrap(), Decision::Admitted);
    }
}

/// Polls a future once.
pub fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_an_error() {
    let server = Server::start();
    let limit = Rate::per_second(1_000).burst(999);
    let leased = Leased::new(connect(&server).await, limit, 10..=10, LONG).unwrap();
    let leased = leased.timeout(Duration::from_millis(200));
    server.signal("STOP");
    assert!(leased.take(KEY, Units(1)).await.is_err());
    server.signal("CONT");
    let mut client = server.connect();
    asks_again(&leased).await;
    // The batch whose answer came too late is lost, and was requested once.
    assert_eq!(calls(&mut client, "cl.throttle"), 2);
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error() {
    let server = Server::start();
    server.connect().call("HSET hot field value");
    let leased = Leased::new(connect(&server).await, Rate::per_day(1), 1..=10, LONG).unwrap();
    let error = leased.take(KEY, Units(1)).await.unwrap_err();
    assert_eq!(error.code(), Some("WRONGTYPE"));
}

#[tokio::test]
async fn bad_numbers_are_errors() {
    let server = Server::start();
    let connection = connect(&server).await;
    let error = |limit, batch, hold| {
        Leased::new(connection.clone(), limit, batch, hold).err().map(|error| error.to_string())
    };
    let rejected = |limit, batch, hold, text: &str| {
        let error = error(limit, batch, hold);
        assert!(error.as_ref().is_some_and(|error| error.contains(text)), "{text}: {error:?}");
    };
    let limit = Rate::per_second(1).burst(0);
    rejected(limit, 0..=10, LONG, "from 1 to 9223372036854775807 units");
    rejected(limit, 1..=u64::MAX, LONG, "from 1 to 9223372036854775807 units");
    #[allow(clippy::reversed_empty_ranges)] // which this tests
    let empty = 10..=9;
    rejected(limit, empty, LONG, "the range of the batch is empty");
    rejected(limit, 1..=10, Duration::ZERO, "from 1 ns to 292 years");
    rejected(limit, 1..=10, Duration::MAX, "from 1 ns to 292 years");
    rejected(Rate::per_second(0).burst(0), 1..=10, LONG, "count");
    assert_eq!(error(limit, 1..=10, LONG), None);
}

/// Leased units of `CL.WINDOW` end with their window: clients spend at most the limit in each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_sliding_window_spend_at_most_the_limit_in_each_window() {
    let server = Server::start();
    let period = Duration::from_millis(200);
    let limit = LeasedLimit::Window(Rate::new(60, period));
    let mut spenders = Vec::new();
    for _ in 0..3 {
        let leased = Leased::new(connect(&server).await, limit, 5..=20, LONG).unwrap().timeout(SOON);
        spenders.push(tokio::spawn(async move {
            let (mut spent, end) = (Vec::new(), Instant::now() + 8 * period);
            while Instant::now() < end {
                let before = wall_ns();
                if leased.take(KEY, Units(1)).await.unwrap() == Decision::Admitted {
                    spent.push((before, wall_ns()));
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            spent
        }));
    }
    let mut windows = HashMap::new();
    for spender in spenders {
        for (before, after) in spender.await.unwrap() {
            let window = |instant: i64| instant / i64::try_from(period.as_nanos()).unwrap();
            // A unit counts if it was certainly spent in one window.
            if window(before) == window(after) {
                *windows.entry(window(before)).or_insert(0) += 1;
            }
        }
    }
    assert!(windows.values().all(|&spent| spent <= 60), "{windows:?}");
    assert!(windows.values().sum::<i32>() >= 60, "{windows:?}");
}
