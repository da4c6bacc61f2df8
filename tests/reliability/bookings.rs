//! Bookings behind clients that wait, whose key goes to another server: by a failover, and with its slot. The
//! queue stays behind, and the bookings act at the times that they had received.

use crate::cluster::Cluster;
use crate::common::{Client, Server, Waiter, wait_for_blocked, wall_ns};
use crate::failover::{catch_up, node, promote, replica_of, wait_for_info};
use crate::keys::alone;
use std::thread;
use std::time::Duration;

/// Four units a second, without a burst.
const SPACED: &str = "0 4 1000";
const INTERVAL: i64 = 250_000_000;
const WAITERS: usize = 6;
const BOOKED: i64 = 6;

/// Takes the unit that is there, lets clients wait, and books behind them. Returns the clients, and the
/// instant before which the last booking does not act.
fn book(server: &Server, client: &mut Client, key: &str) -> (Vec<Waiter>, i64) {
    client.call(&format!("CL.THROTTLE {key} {SPACED} 1 MS"));
    let waiters = (1..=WAITERS)
        .map(|place| {
            let waiter = Waiter::ask(server, &format!("CL.BTHROTTLE {key} {SPACED} 1 0 MS"));
            wait_for_blocked(client, place);
            waiter
        })
        .collect();
    let before = wall_ns();
    let told = (0..BOOKED).map(|_| {
        let answer = client.ints(&format!("CL.RESERVE {key} {SPACED} 1 MS"));
        assert_eq!(answer[0], 0);
        answer[3]
    });
    let last = told.last().unwrap();
    (waiters, before + (last - 1) * 1_000_000) // what is told is rounded up, by less than a millisecond
}

/// Calls to the server that has the key now act behind all bookings, one each interval. Instants at which
/// replies arrive can only be late, however busy the machine is.
fn assert_behind(server: &Server, key: &str, last: i64) {
    let mut client = server.connect();
    // A booking acts at the instant at which its place has room: its end less one interval.
    let end = client.tat(key).expect("the state has come along");
    assert!(end - INTERVAL >= last, "the state ends at {end}, the last booking acts at {last}");
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let mut waiter = Waiter::ask(server, &format!("CL.BTHROTTLE {key} {SPACED} 1 0 MS"));
            thread::spawn(move || {
                let answer = waiter.answer();
                assert!(answer.starts_with("0 1 0 -1 "), "{answer}");
                wall_ns()
            })
        })
        .collect();
    let mut acts = Vec::new();
    while acts.len() < 2 {
        if client.ints(&format!("CL.THROTTLE {key} {SPACED} 1 MS"))[0] == 0 {
            acts.push(wall_ns());
        }
        thread::sleep(Duration::from_millis(5)); // a caller's pace, not a synchronisation
    }
    acts.extend(waiters.into_iter().map(|waiter| waiter.join().unwrap()));
    acts.sort_unstable();
    for (act, earliest) in acts.iter().zip((end..).step_by(INTERVAL.unsigned_abs().try_into().unwrap())) {
        assert!(
            *act >= earliest,
            "{} ms early: {acts:?}, bookings until {end}",
            (earliest - act) / 1_000_000
        );
    }
}

/// Regression: the costs of clients before bookings were not in the key. After a failover, calls were
/// admitted at the times of the bookings.
#[test]
pub fn bookings_behind_waiting_clients_keep_the_limit_after_a_failover() {
    let _alone = alone();
    for planned in [true, false] {
        let mut first = node().start();
        let second = replica_of(&first);
        let (mut client, mut copy) = (first.connect(), second.connect());
        if planned && !client.has_command("FAILOVER") {
            continue;
        }
        let (waiters, last) = book(&first, &mut client, "k");
        catch_up(&mut client, &mut copy);
        if planned {
            client.call("FAILOVER");
            wait_for_info(&mut copy, "role", "master");
            for mut waiter in waiters {
                let answer = waiter.answer();
                assert!(answer.starts_with("UNBLOCKED ") || answer.starts_with("0 1 0 -1 "), "{answer}");
            }
        } else {
            first.kill();
            promote(&mut copy);
        }
        assert_behind(&second, "k", last);
    }
}

/// The same for a slot that moves to another node.
#[test]
pub fn bookings_behind_waiting_clients_keep_the_limit_when_their_slot_moves() {
    let _alone = alone();
    let cluster = Cluster::start(2, 0);
    let tag = &cluster.tags(0..8000, 1)[0];
    let key = format!("{{{tag}}}k");
    let (waiters, last) = book(&cluster.nodes[0], &mut cluster.connect(0), &key);
    let slot = cluster.begin_to_move(tag, 0, 1);
    cluster.migrate(std::slice::from_ref(&key), 0, 1);
    for mut waiter in waiters {
        let answer = waiter.answer();
        assert!(answer.starts_with("TRYAGAIN ") || answer.starts_with("0 1 0 -1 "), "{answer}");
    }
    cluster.end_of_move(slot, 1);
    assert_behind(&cluster.nodes[1], &key, last);
}
