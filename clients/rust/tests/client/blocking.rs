//! The blocking guard, with a server and with an unavailable one. As in unavailable.rs, no call is sent
//! twice.

use crate::cluster::{client as cluster_client, cluster, errors, move_slot};
use crate::common::Server;
use crate::unavailable::{KEY, NOBODY, PATIENCE, limit, served};
use crate::{client, until};
use redis_cell_client::{BlockingGuard, DecidedBy, Guard, Rate, TimedConnection, Units, WhenUnavailable};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A guard whose calls are all sent, and wait for a busy machine.
fn guard(port: u16, when_unavailable: WhenUnavailable) -> BlockingGuard {
    BlockingGuard::new(client(port), when_unavailable).timeout(PATIENCE).ask_again(Duration::ZERO)
}

fn ask<C: TimedConnection + Send + 'static>(guard: &BlockingGuard<C>) -> DecidedBy {
    guard.take(KEY, limit(), Units(1)).unwrap()
}

/// The outcome of a call that must end, although the server does not reply.
fn ask_in_vain(guard: &BlockingGuard) -> DecidedBy {
    let (sender, receiver) = std::sync::mpsc::channel();
    let guard = guard.clone();
    std::thread::spawn(move || _ = sender.send(ask(&guard)));
    receiver.recv_timeout(PATIENCE).expect("the call did not end at its timeout")
}

#[test]
fn a_frozen_server() {
    let server = Server::start();
    let guard = guard(server.port(), WhenUnavailable::FailClosed);
    assert!(matches!(ask(&guard), DecidedBy::Server(_)));
    server.signal("STOP");
    let impatient = guard.clone().timeout(Duration::from_millis(100));
    assert!(matches!(ask_in_vain(&impatient), DecidedBy::FailedClosed(_))); // sent
    // The connection is closed, and no other one can be made: these are not sent.
    assert!(matches!(ask_in_vain(&impatient), DecidedBy::FailedClosed(_)));
    // With a timeout, redis-rs waits for as long for each reply of the connection's setup, here for four.
    let url = format!("redis://user:secret@127.0.0.1:{}/1", server.port());
    let client = redis::Client::open(url).unwrap();
    let timeout = Duration::from_secs(1);
    let by_hand = std::thread::spawn({
        let client = client.clone();
        move || client.get_connection_with_timeout(timeout).is_err()
    });
    let limiter_of_four = BlockingGuard::new(client, WhenUnavailable::FailClosed).timeout(timeout);
    assert!(matches!(ask_in_vain(&limiter_of_four), DecidedBy::FailedClosed(_)));
    assert!(!by_hand.is_finished(), "a call waits for its timeout more than once");
    assert!(by_hand.join().unwrap());
    server.signal("CONT");
    // The reply that came too late is not taken for the reply to another call.
    let decided = guard.take("another", Rate::per_day(7), Units(1)).unwrap();
    assert_eq!(decided.answer().unwrap().limit, 7);
    assert_eq!(served(&mut server.connect()), 3);
}

#[test]
fn a_call_whose_connection_breaks_is_not_sent_again() {
    let server = Server::start();
    let guard = guard(server.port(), WhenUnavailable::FailOpen);
    assert!(matches!(ask(&guard), DecidedBy::Server(_)));
    let mut inspector = server.connect();
    inspector.call("CLIENT KILL TYPE normal SKIPME yes");
    // Whether the server has counted it is not known, so that it is not sent again. The next one is.
    assert!(matches!(ask(&guard), DecidedBy::FailedOpen(_)));
    assert!(matches!(ask(&guard), DecidedBy::Server(_)));
    assert_eq!(served(&mut inspector), 2);
}

#[test]
fn calls_share_a_connection_which_an_error_of_a_call_closes() {
    let (server, mut inspector) = Server::with_client();
    inspector.call("LPUSH k x");
    let guard = guard(server.port(), WhenUnavailable::FailClosed);
    for _ in 0..3 {
        assert!(guard.take("other", limit(), Units(1)).unwrap().admitted());
    }
    // And the connection that counts them.
    assert_eq!(inspector.info("connected_clients"), "2");
    guard.take(KEY, limit(), Units(1)).unwrap_err();
    until("the connection to be closed", "1".to_owned(), || inspector.info("connected_clients"));
}

/// The server has answered, but decides nothing: a reason for the choice.
#[test]
fn a_server_that_decides_nothing_for_now_is_unavailable() {
    let server = Server::start();
    let guard = guard(server.port(), WhenUnavailable::FailOpen);
    let mut inspector = server.connect();
    for (before, after, code) in [
        (format!("REPLICAOF 127.0.0.1 {NOBODY}"), "REPLICAOF NO ONE", "READONLY"),
        ("CONFIG SET maxmemory 1".to_owned(), "CONFIG SET maxmemory 0", "OOM"),
        ("CONFIG SET min-replicas-to-write 1".to_owned(), "CONFIG SET min-replicas-to-write 0", "NOREPLICAS"),
    ] {
        inspector.call(&before);
        let decided = ask(&guard);
        assert!(
            matches!(&decided, DecidedBy::FailedOpen(error) if error.code() == Some(code)),
            "{decided:?}"
        );
        inspector.call(after);
        let decided = ask(&guard);
        assert!(matches!(decided, DecidedBy::Server(_)), "{decided:?}");
    }
    inspector.call("CONFIG SET maxclients 1");
    inspector.call("CLIENT KILL TYPE normal SKIPME yes");
    for url in ["redis://127.0.0.1", "redis://:secret@127.0.0.1"] {
        let client = redis::Client::open(format!("{url}:{}", server.port())).unwrap();
        let decided = ask(&BlockingGuard::new(client, WhenUnavailable::FailOpen).timeout(PATIENCE));
        assert!(matches!(decided, DecidedBy::FailedOpen(_)), "{decided:?}");
    }
}

#[test]
fn many_threads_take_exactly_the_limit() {
    let server = Server::start();
    let guard = guard(server.port(), WhenUnavailable::FailClosed);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let guard = guard.clone();
            let admitted = move || guard.take(KEY, Rate::per_day(100), Units(1)).unwrap().admitted();
            std::thread::spawn(move || (0..50).filter(|_| admitted()).count())
        })
        .collect();
    let admitted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!((admitted, served(&mut server.connect())), (100, 400));
    let connections: u64 = server.connect().info("total_connections_received").parse().unwrap();
    assert!(connections <= 2 * 8 + 3, "{connections} connections"); // and those of this test
}

/// No time is measured: a call that waits for its connection would not end.
#[test]
fn a_call_does_not_wait_for_a_connection_beyond_its_timeout() {
    let server = Server::start();
    let (release, released) = std::sync::mpsc::channel();
    let (released, client) = (std::sync::Mutex::new(released), client(server.port()));
    let made = Arc::new(AtomicUsize::new(0));
    let connect = {
        let made = Arc::clone(&made);
        move |_| {
            if released.lock().unwrap().recv().is_err() {
                return Err(std::io::Error::other("the test has ended").into());
            }
            made.fetch_add(1, Relaxed);
            client.get_connection()
        }
    };
    let guard =
        BlockingGuard::with_connections(connect, WhenUnavailable::FailClosed).ask_again(Duration::ZERO);
    let impatient = guard.clone().timeout(Duration::from_millis(50));
    let calls: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn({
                let guard = impatient.clone();
                move || ask(&guard)
            })
        })
        .collect();
    for call in calls {
        until("the call to end", true, || call.is_finished());
        assert!(matches!(call.join().unwrap(), DecidedBy::FailedClosed(_)));
    }
    // A later call has the connection of an earlier one.
    release.send(()).unwrap();
    assert!(matches!(ask(&guard.clone().timeout(PATIENCE)), DecidedBy::Server(_)));
    assert_eq!(made.load(Relaxed), 1);
    drop(release);
}

#[test]
fn a_timeout_covers_connecting_and_calling() {
    // It accepts connections, and never replies.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let guard = guard(silent.local_addr().unwrap().port(), WhenUnavailable::FailClosed);
    for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(100)] {
        let start = Instant::now();
        assert!(matches!(ask_in_vain(&guard.clone().timeout(timeout)), DecidedBy::FailedClosed(_)));
        assert!(start.elapsed() < PATIENCE);
    }
    let server = Server::start();
    let patient =
        BlockingGuard::new(client(server.port()), WhenUnavailable::FailClosed).timeout(Duration::MAX);
    assert!(matches!(ask(&patient), DecidedBy::Server(_)));
}

#[tokio::test]
async fn clusters() {
    let nodes = cluster();
    let connection = cluster_client(&nodes).get_async_connection().await.unwrap();
    let other = Guard::new(connection, WhenUnavailable::FailClosed).timeout(PATIENCE);
    assert!(matches!(other.take(KEY, limit(), Units(0)).await.unwrap(), DecidedBy::Server(_)));
    let made = Arc::new(AtomicUsize::new(0));
    let connect = {
        let (client, made) = (cluster_client(&nodes), Arc::clone(&made));
        move |_| {
            made.fetch_add(1, Relaxed);
            client.get_connection()
        }
    };
    let guard = BlockingGuard::with_connections(connect, WhenUnavailable::FailOpen).timeout(PATIENCE);
    for key in 0..20 {
        assert!(matches!(guard.take(format!("key:{key}"), limit(), Units(1)).unwrap(), DecidedBy::Server(_)));
    }
    assert_eq!(made.load(Relaxed), 1);
    move_slot(&nodes, KEY); // whose key does not exist yet
    // The node that has the slot no longer has not run the call, and another connection has read the slots.
    let decided = ask(&guard);
    assert!(matches!(decided, DecidedBy::Server(answer) if answer.remaining == 3), "{decided:?}");
    assert_eq!(made.load(Relaxed), 2);
    let decided = other.take(KEY, limit(), Units(1)).await.unwrap();
    assert!(matches!(decided, DecidedBy::Server(answer) if answer.remaining == 2), "{decided:?}");
    // A client of a single server cannot follow.
    let owner = nodes.iter().position(|node| !errors(node, "MOVED").is_empty()).unwrap();
    let alone = BlockingGuard::new(client(nodes[owner].port()), WhenUnavailable::FailOpen).timeout(PATIENCE);
    let connection = client(nodes[owner].port()).get_multiplexed_async_connection().await.unwrap();
    let other = Guard::new(connection, WhenUnavailable::FailOpen).timeout(Duration::from_secs(2));
    for outcome in [alone.take(KEY, limit(), Units(1)), other.take(KEY, limit(), Units(1)).await] {
        assert_eq!(outcome.as_ref().unwrap_err().code(), Some("MOVED"), "{outcome:?}");
    }
}
