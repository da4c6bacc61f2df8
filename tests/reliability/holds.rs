//! Random histories of owners of holds, many of which die, against a ledger.

use crate::common::{Client, Clock, Options, SECOND, wait_until};
use crate::failover::{catch_up, replica_of};
use std::collections::BTreeMap;

/// What an owner holds, as the ledger notes it.
#[derive(Clone, Copy, Default)]
struct Held {
    /// Units of windows that have ended.
    earlier: i64,
    /// Units of the present window.
    present: i64,
    /// When it runs out, in seconds.
    end: i64,
}

/// The present window of a limiter, in seconds, and the units that were used in it.
#[derive(Default)]
struct Ledger {
    owners: BTreeMap<u32, Held>,
    used: i64,
    window_end: Option<i64>,
}

impl Ledger {
    fn held(&self) -> i64 {
        self.owners.values().map(|held| held.present).sum()
    }

    /// Time has passed: the window ends, and holds run out.
    fn pass_to(&mut self, now: i64) {
        if self.window_end.is_some_and(|end| end <= now) {
            self.window_end = None;
            self.used = 0;
            for held in self.owners.values_mut() {
                held.earlier += held.present;
                held.present = 0;
            }
        }
        self.owners.retain(|_, held| held.end > now);
    }

    /// A window opens with the first unit that is counted, and is gone when none is left.
    fn settle_window(&mut self, end: Option<i64>) {
        let is_open = self.held() + self.used > 0;
        self.window_end = self.window_end.or(end).filter(|_| is_open);
    }
}

fn counted(client: &mut Client) -> i64 {
    client.get::<Option<i64>, _>("GET q").unwrap_or(0)
}

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
    // Settled after the end: only what was used beyond is charged, to the new window.
    client.call("DEL q");
    for (used, charged) in [(3, None), (4, None), (6, Some(2))] {
        call(&mut client, &take(4, "HOLD h 300000 me"));
        pass(102);
        call(&mut client, &format!("CL.MSETTLE q FIXED 10 3600000 {used} MS HOLD h me"));
        assert_eq!(client.get::<Option<i64>, _>("GET q"), charged);
    }
}

/// At each step, what is counted is what is held and what was used, and is within the limit but for debts. At
/// the end, all owners have died, and what is counted is what was used. The server is killed several times.
#[test]
pub fn no_unit_is_spent_twice_and_none_is_lost() {
    const LIMIT: i64 = 100;
    const DAY: i64 = 86_400;
    /// The end of a window that opens now.
    type End = fn(i64) -> Option<i64>;
    // A window, by how much slower everything is, and its end.
    let windows: [(&str, i64, End); 4] = [
        ("100", 1, |now| Some(now + 100)),
        ("DAY UTC 90", 864, |now| Some(((now + 5_400) / DAY + 1) * DAY - 5_400)),
        ("TOTAL", 1, |_| None),
        ("TOTAL IDLE 100000", 1, |_| None),
    ];
    for (window, pace, end_at) in windows {
        let (hold, ends) = (20 * pace, end_at(0).is_some());
        let mut clock = Clock::stopped_at(20_834 * DAY * SECOND);
        let mut server = clock.start(Options::new().append_only());
        let mut client = server.connect();
        let mut rng = fastrand::Rng::with_seed(LIMIT.unsigned_abs());
        let mut ledger = Ledger::default();
        let (mut now, mut admitted, mut refused, mut debt) = (0, 0, 0, 0);
        for step in 1..=2_500 {
            if step % 400 == 0 {
                drop(client);
                server.restart();
                client = server.connect();
            }
            let pass = if rng.u32(0..3) == 0 { rng.i64(1..4) * pace } else { 0 };
            clock.pass(pass * SECOND);
            now += pass;
            ledger.pass_to(now);
            let owner = rng.u32(0..200);
            let before = ledger.owners.get(&owner).copied();
            match rng.u32(0..10) {
                // Of ten that take, some never come again before their hold runs out: they have died.
                0..=5 => {
                    let quantity = rng.i64(1..12);
                    let call = format!("CL.MTAKE q FIXED {LIMIT} {window} {quantity} HOLD h {hold} {owner}");
                    let row = client.get::<Vec<Vec<i64>>, _>(&call).swap_remove(0);
                    let fits = ledger.held() + ledger.used + quantity <= LIMIT;
                    assert_eq!(row[0], i64::from(!fits), "{call}");
                    if fits {
                        let held = before.unwrap_or_default();
                        let present = held.present + quantity;
                        ledger.owners.insert(owner, Held { present, end: now + hold, ..held });
                        admitted += 1;
                    } else {
                        refused += 1;
                    }
                }
                6 => {
                    client.call(&format!("CL.MTAKE q FIXED {LIMIT} {window} 0 HOLD h {hold} {owner}"));
                    if let Some(held) = before {
                        ledger.owners.insert(owner, Held { end: now + hold, ..held });
                    }
                }
                _ => {
                    let used = if rng.bool() { rng.i64(0..6) } else { 0 };
                    client.call(&format!("CL.MSETTLE q FIXED {LIMIT} {window} {used} HOLD h {owner}"));
                    ledger.owners.remove(&owner);
                    // What the present window bears: not what the owner took in one that has ended.
                    let held = before.unwrap_or_default();
                    let elsewhere = if held.present > 0 { held.earlier } else { held.earlier.min(used) };
                    ledger.used += (used - elsewhere).max(0);
                    debt += i64::from(ledger.held() + ledger.used > LIMIT);
                }
            }
            ledger.settle_window(end_at(now));
            // At the very millisecond of its end, a window's key is still there for GET.
            if ledger.window_end.is_some() || !ends {
                assert_eq!(counted(&mut client), ledger.held() + ledger.used, "{window} at {now}");
            }
            // A TOTAL is never used up for good: a customer pays.
            if !ends && ledger.used > LIMIT / 2 {
                client.call(&format!("CL.MSETTLE q FIXED {LIMIT} {window} -{}", ledger.used));
                ledger.used = 0;
            }
        }
        assert!(admitted > 500 && refused > 50 && debt < 300, "{window}: {admitted}, {refused}, {debt}");
        clock.pass(hold * SECOND);
        ledger.pass_to(now + hold);
        client.call(&format!("CL.MTAKE q FIXED {LIMIT} {window} 0 HOLD h"));
        if ledger.window_end.is_some() || !ends {
            assert_eq!(counted(&mut client), ledger.used, "{window}");
        }
        assert_eq!(client.int("EXISTS h"), 0);
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
