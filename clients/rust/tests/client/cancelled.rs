//! Calls that are cancelled at each point at which they wait: they leave no unit, no place, no client in a
//! queue and no hold behind.

use crate::client;
use crate::common::{Client, Server, wait_until};
use crate::leased::{SOON, connect, futures_poll};
use redis_cell_client::{
    Account, Fixed, FixedWindow, Guard, MTake, Merged, Places, Rate, Units, Wait, Waiter, WhenUnavailable,
};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Polls a future at most N times, each time when it is woken, and drops it. Returns its output if it
/// is complete by then, and how often it was polled.
async fn polled<F: Future>(times: usize, future: F) -> (Option<F::Output>, usize) {
    let (mut future, mut polls) = (pin!(future), 0);
    std::future::poll_fn(|context| {
        if polls == times {
            return Poll::Ready((None, polls));
        }
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready((Some(output), polls)),
            Poll::Pending if polls == times => Poll::Ready((None, polls)),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Limiters of every kind, the first of which is a place.
fn all(holder: &str) -> MTake {
    MTake::new()
        .lease("{c}:busy", Places(1), HOUR, holder)
        .throttle("{c}:rate", Rate::per_hour(9).burst(8), Units(2))
        .fixed("{c}:fixed", Fixed::new(9, FixedWindow::period(HOUR)), Units(2))
        .fixed("{c}:total", Fixed::new(9, FixedWindow::total()), Units(2))
        .log("{c}:log", Rate::new(9, HOUR), Units(2))
        .shadow(|all| all.throttle("{c}:shadow", Rate::per_hour(1), Units(1)))
}

/// What remains of the limiters beside the units of others: of a rate, a unit may come back a moment later.
fn given_back(inspector: &mut Client, others: i64, what: &str) {
    wait_until("what was taken to come back", || {
        let blocked = inspector.info("blocked_clients");
        let places = inspector.int("ZCARD {c}:busy");
        let rate = inspector.ints("CL.PEEK {c}:rate 8 9 3600")[2] + others;
        let shadow = inspector.ints("CL.PEEK {c}:shadow 0 1 3600")[2];
        let used = [
            inspector.get::<Option<i64>, _>("GET {c}:fixed").unwrap_or_default(),
            inspector.get::<Option<i64>, _>("GET {c}:total").unwrap_or_default(),
            inspector.int("ZCARD {c}:log"),
        ];
        let is_back = [(9, 1), (8, 1), (8, 0)].contains(&(rate, shadow)) && used == [others; 3];
        if blocked == "0" && places == 0 && is_back {
            return Ok(());
        }
        Err(format!("{what}: {blocked} wait, {places} places, {rate}, {used:?}, {shadow}"))
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_leaves_its_queue_and_gives_back_what_it_has_taken() {
    let (server, mut inspector) = Server::with_client();
    // A call that is admitted at once, over a new connection and over one that is there.
    for used in [false, true] {
        let waiter = Waiter::new(client(server.port()));
        for polls in 1.. {
            let waiter = if used { waiter.clone() } else { Waiter::new(client(server.port())) };
            let taken = polled(polls, waiter.take(all("a"), Wait::forever())).await.0;
            let done = taken.is_some();
            if done {
                inspector.call("FLUSHALL");
            }
            given_back(&mut inspector, 0, &format!("used: {used}, {polls} polls"));
            inspector.call("FLUSHALL");
            if done && (!used || polls > 20) {
                break;
            }
        }
    }
    // A waiting call that is cancelled at each poll, and finally while it waits in the server. The windows
    // are older than its wait: nothing is given back to a window that began since.
    let others = MTake::new()
        .throttle("{c}:rate", Rate::per_hour(9).burst(8), Units(1))
        .fixed("{c}:fixed", Fixed::new(9, FixedWindow::period(HOUR)), Units(1))
        .fixed("{c}:total", Fixed::new(9, FixedWindow::total()), Units(1))
        .log("{c}:log", Rate::new(9, HOUR), Units(1));
    assert!(
        Waiter::new(client(server.port()))
            .take(others, Wait::forever())
            .await
            .unwrap()
            .unwrap()
            .combined
            .admitted()
    );
    tokio::time::sleep(Duration::from_secs(1)).await; // the longest age of what is given back
    for polls in 1.. {
        inspector.call("CL.ACQUIRE {c}:busy 1 3600 stays");
        let waiter = Waiter::new(client(server.port()));
        let call = tokio::spawn(async move { polled(polls, waiter.take(all("a"), Wait::forever())).await.0 });
        let mut waits = false;
        wait_until("the call to wait, or to be cancelled", || {
            waits = inspector.info("blocked_clients") == "1";
            if waits || call.is_finished() { Ok(()) } else { Err(String::new()) }
        });
        let is_last = waits && !call.is_finished();
        call.abort();
        // The place is free at the very moment at which the call is cancelled.
        inspector.call("CL.RELEASE {c}:busy stays");
        given_back(&mut inspector, 1, &format!("{polls} polls"));
        if is_last {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)] // wait_until does not let others run
async fn a_hold_that_is_not_taken_leaves_nothing() {
    let (server, mut inspector) = Server::with_client();
    let guard = Guard::new(connect(&server).await, WhenUnavailable::FailClosed).timeout(SOON);
    let account = Account::new(guard, "{h}:holds").pool("{h}:run", Fixed::new(9, FixedWindow::total()));
    let holds = |inspector: &mut Client, wanted: i64, what: &str| {
        wait_until("what is held", || {
            let held = (inspector.int("EXISTS {h}:holds"), inspector.get::<Option<i64>, _>("GET {h}:run"));
            if held.0 == wanted && held.1.unwrap_or_default() == 3 * wanted {
                return Ok(());
            }
            Err(format!("{what}: {held:?}"))
        });
    };
    for polls in 1.. {
        let held = polled(polls, account.hold(format!("owner-{polls}"), Units(3))).await.0;
        let is_done = held.is_some();
        drop(held);
        holds(&mut inspector, 0, &format!("{polls} polls"));
        if is_done {
            break;
        }
    }
    // The server has taken the units, and the caller does not know yet.
    let mut calls = (0..).map(|id| Box::pin(account.hold(format!("unread-{id}"), Units(3))));
    let mut call = calls.next().unwrap();
    while futures_poll(call.as_mut()).is_some() {
        call = calls.next().unwrap(); // a busy machine may answer before that
    }
    holds(&mut inspector, 1, "before it is dropped");
    drop(call);
    holds(&mut inspector, 0, "after it was dropped");
}

/// Four callers, one of which is gone after each number of polls: it takes nothing, or it comes back.
#[tokio::test]
async fn a_merged_call_that_is_cancelled_takes_nothing_and_keeps_nobody_waiting() {
    let (server, mut inspector) = Server::with_client();
    let merged = Merged::new(connect(&server).await).timeout(SOON);
    let limit = Rate::per_day(1_000).burst(999);
    let month = Fixed::new(1_000, FixedWindow::month());
    let call = |is_mix: bool| {
        let merged = merged.clone();
        Box::pin(async move {
            if is_mix {
                let mix = MTake::new().throttle("{k}:k", limit, Units(1)).fixed("{k}:month", month, Units(1));
                merged.mtake(mix).await.map(|taken| taken.combined.remaining)
            } else {
                merged.take("{k}:k", limit, Units(1)).await.map(|answer| answer.remaining)
            }
        })
    };
    for (polls, gone, is_mix) in (1..8).flat_map(|polls| (0..8).map(move |n| (polls, n % 4, n < 4))) {
        inspector.call("FLUSHALL");
        let mut all: Vec<_> = (0..4).map(|_| call(is_mix)).collect();
        let mut left = [polls, usize::MAX, usize::MAX, usize::MAX];
        left.swap(0, gone);
        let mut answers = Vec::new();
        std::future::poll_fn(|context| {
            for (own, left) in all.iter_mut().zip(&mut left) {
                if *left == 0 {
                    continue;
                }
                *left -= 1;
                match own.as_mut().poll(context) {
                    Poll::Ready(answer) => {
                        answers.push(answer.unwrap());
                        *left = 0;
                    }
                    Poll::Pending if *left == 0 => *own = call(is_mix), // drops the call
                    Poll::Pending => {}
                }
            }
            if left == [0; 4] { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(all);
        let told = format!("{polls} polls of {gone}, a mix: {is_mix}, {answers:?}");
        // Each of the others has a unit of its own.
        let admitted = i64::try_from(answers.len()).unwrap();
        answers.sort_unstable();
        answers.dedup();
        assert!(admitted >= 3 && answers.len() >= 3, "{told}");
        // What the other one took comes back.
        are_taken(&mut inspector, admitted, is_mix, &told).await;
    }
    // A caller that is gone while its call is on its way, and one whose answer has come that it has not read.
    for (is_mix, has_come) in [(false, false), (false, true), (true, false), (true, true)] {
        inspector.call("FLUSHALL");
        let (mut first, mut second) = (call(is_mix), call(is_mix));
        assert!(futures_poll(first.as_mut()).is_none() && futures_poll(second.as_mut()).is_none());
        first.await.unwrap();
        if has_come {
            are_taken(&mut inspector, 2, is_mix, "before it is gone").await;
            tokio::time::sleep(Duration::from_millis(10)).await; // for the reply
        } else {
            server.signal("STOP");
            tokio::time::sleep(Duration::from_millis(10)).await; // for the call
        }
        drop(second);
        server.signal("CONT");
        are_taken(&mut inspector, 1, is_mix, "the second one is gone").await;
    }
}

/// Waits until as many units are taken. Tasks of this thread give back.
async fn are_taken(inspector: &mut Client, units: i64, is_mix: bool, told: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        let taken = 1_000 - inspector.ints("CL.PEEK {k}:k 999 1000 86400")[2];
        let month = inspector.get::<Option<i64>, _>("GET {k}:month").unwrap_or_default();
        if taken == units && month == if is_mix { units } else { 0 } {
            return;
        }
        assert!(Instant::now() < deadline, "{taken} and {month} are taken, {told}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
