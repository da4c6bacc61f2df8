//! Owners of holds that die, windows that end, clocks that are set back, and primaries that are killed.

use crate::common::{Client, Clock, Options, SECOND, wait_until};
use crate::failover::{catch_up, replica_of};

/// Units come back to the window in which they were taken, and to no later one.
#[test]
fn what_comes_back_comes_back_to_its_own_window() {
    let mut clock = Clock::stopped();
    let server = clock.start(Options::new());
    let mut client = server.connect();
    // The window ends before the hold.
    let take = |quantity: i64, hold: &str| format!("CL.MTAKE q FIXED 10 100 {quantity} MS {hold}");
    let call = |client: &mut Client, command: &str| client.get::<Vec<Vec<i64>>, _>(command);
    let mut pass = |milliseconds: i64| clock.pass(milliseconds * SECOND / 1000);
    call(&mut client, &take(4, "HOLD h 300000 me"));
    call(&mut client, &take(4, "HOLD h 150 dead"));
    pass(102);
    assert_eq!(client.int("EXISTS q"), 0, "the window has not ended");
    call(&mut client, &take(3, "HOLD h 300000 me"));
    call(&mut client, &take(3, ""));
    assert_eq!(client.int("GET q"), 6);
    // Seven are held, four of them in the window that has ended; five were used, one of them here.
    call(&mut client, "CL.MSETTLE q FIXED 10 100 5 MS HOLD h me");
    assert_eq!(client.int("GET q"), 4);
    pass(60);
    client.call("DEL q");
    client.call("SET q 5 PX 3600000");
    call(&mut client, &take(0, "HOLD h"));
    assert_eq!(client.int("GET q"), 5, "the part of the dead owner is forgotten");
    assert_eq!(client.int("EXISTS h"), 0);
    // After the end of its window, a settlement charges only the units beyond those held, to the new window.
    client.call("DEL q");
    for (used, charged) in [(3, None), (4, None), (6, Some(2))] {
        call(&mut client, &take(4, "HOLD h 300000 me"));
        pass(102);
        call(&mut client, &format!("CL.MSETTLE q FIXED 10 3600000 {used} MS HOLD h me"));
        assert_eq!(client.get::<Option<i64>, _>("GET q"), charged);
    }
}

/// A clock that is set back lets no hold last longer than its period.
#[test]
pub fn a_hold_that_was_taken_before_a_step_back_has_run_out() {
    let mut clock = Clock::stopped();
    let mut server = clock.start(Options::new().append_only());
    let mut client = server.connect();
    client.call("CL.MTAKE q FIXED 10 TOTAL 4 HOLD h 300 dead");
    client.call("CL.MTAKE q FIXED 10 TOTAL 4 HOLD h 300 me");
    drop(client);
    clock.step(-3_600 * SECOND);
    server.restart();
    let mut client = server.connect();
    client.call("CL.MTAKE q FIXED 10 TOTAL 0 HOLD h");
    assert_eq!(client.get::<Option<i64>, _>("GET q"), None);
    assert_eq!(client.int("EXISTS h"), 0);
}

/// Of 200 owners, which take from three limiters and a chain, a tenth dies. Two primaries are killed
/// meanwhile, and their replicas take over. In the end, each window has what was used in it, and nothing is
/// held.
#[test]
pub fn owners_that_die_and_primaries_that_are_killed_leave_nothing_held() {
    const LIMITERS: [&str; 3] =
        ["day FIXED 100000 36000000", "run FIXED 100000 TOTAL IDLE 36000000", "rate THROTTLE 99999 1 1000"];
    const CHAIN: [&str; 2] = ["included FIXED 300 36000000", "bought FIXED 100000 TOTAL"];
    let call = |units: i64| {
        let [first, rest @ ..] = CHAIN.map(|pool| format!("{pool} {units}"));
        let single = LIMITERS.map(|limiter| format!("{limiter} {units}")).join(" ");
        format!("{single} {first} SPILL {} MS HOLD holds", rest.join(" "))
    };
    let mut primary = crate::failover::node().start();
    let mut replica = replica_of(&primary);
    let mut client = primary.connect();
    let mut rng = fastrand::Rng::with_seed(41);
    let (mut used, mut alive, mut deaths) = (0, Vec::new(), 0);
    for owner in 0..200 {
        let units = rng.i64(1..9);
        let rows: Vec<Vec<i64>> = client.get(&format!("CL.MTAKE {} 2000 {owner}", call(units)));
        assert_eq!(rows[0][0], 0, "{rows:?}");
        alive.push(owner);
        if rng.u32(0..4) == 0 {
            let owner = alive[rng.usize(..alive.len())];
            client.call(&format!("CL.MTAKE {} 2000 {owner}", call(rng.i64(0..3))));
        }
        while alive.len() > 20 || owner == 199 && !alive.is_empty() {
            let owner = alive.swap_remove(rng.usize(..alive.len()));
            if rng.u32(0..10) == 0 {
                deaths += 1;
                continue;
            }
            let units = rng.i64(0..12);
            client.call(&format!("CL.MSETTLE {} {owner}", call(units)));
            used += units;
        }
        if owner % 80 == 70 {
            catch_up(&mut client, &mut replica.connect());
            primary.kill();
            primary = replica;
            client = primary.connect();
            client.call("REPLICAOF NO ONE");
            replica = replica_of(&primary);
        }
    }
    assert!(deaths > 5, "{deaths}");
    let counts = |client: &mut Client| {
        let all = ["day", "run", "included", "bought"].map(|key| format!("GET {key}"));
        all.map(|call| client.get::<Option<i64>, _>(&call).unwrap_or(0))
    };
    wait_until("all holds to have run out", || {
        client.call(&format!("CL.MTAKE {}", call(0)));
        match client.int("EXISTS holds") {
            0 => Ok(()),
            _ => Err(format!("{:?}", counts(&mut client))),
        }
    });
    let [day, run, included, bought] = counts(&mut client);
    assert_eq!([day, run, included + bought], [used; 3]);
}
