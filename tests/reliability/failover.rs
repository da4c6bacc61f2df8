//! A primary, its replica, and the effect of a failover on limits: planned, after a kill, and by Sentinels.

use crate::common::{Client, Options, Server, requires, wait_until};
use crate::figures::{figure, long};
use crate::load::{Differences, Guide, KINDS, Load, Plan, alone, contents};
use redis::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;

/// The number of callers, and so the most calls that can be in flight for one key.
const CALLERS: usize = 4;

pub fn node() -> Options {
    // The heartbeat of the link: these tests last longer than a replica tolerates a silent primary.
    Options::new().set("repl-ping-replica-period", "5")
}

/// A replica that receives its primary's writes.
pub fn replica_of(primary: &Server) -> Server {
    let replica = node().start();
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    copy.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    wait_for_info(&mut copy, "master_link_status", "up");
    catch_up(&mut client, &mut copy);
    replica
}

pub fn wait_for_info(client: &mut Client, field: &str, value: &str) {
    wait_until(&format!("{field} to be {value}"), || match client.info(field) {
        seen if seen == value => Ok(()),
        seen => Err(seen),
    });
}

/// Waits until the replica has received the primary's writes.
pub fn catch_up(primary: &mut Client, replica: &mut Client) {
    // The primary sends no writes until the replica has reported that the snapshot is loaded, up to a second
    // after the link is up. A wait for more replicas than there are requests the offsets of all, and is sent
    // like a write, which PUBLISH in a cluster is not.
    primary.call("WAIT 100 1");
    let target: u64 = primary.info("master_repl_offset").parse().unwrap();
    wait_until("the replica to catch up", || {
        let offset: u64 = replica.info("slave_repl_offset").parse().unwrap();
        if offset >= target { Ok(()) } else { Err(format!("{offset} of {target}")) }
    });
}

/// Waits until the server is a `master` or a `slave`. Sentinels close connections when they change its role.
fn wait_for_role(server: &Server, role: &str) {
    wait_until(&format!("port {} to be a {role}", server.port()), || {
        let address = format!("127.0.0.1:{}", server.port());
        let mut client = Client::connect_to(&address, "", Duration::from_secs(30))?;
        match client.try_pipeline(&["ROLE"])?.remove(0)? {
            Value::Array(seen) if seen[0] == Value::BulkString(role.into()) => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    });
}

/// Sends callers to the port that was set last.
fn guide_to(port: &Arc<AtomicU16>) -> Guide {
    let port = Arc::clone(port);
    Arc::new(move |_| Some(format!("127.0.0.1:{}", port.load(Relaxed))))
}

fn plan(guide: Guide) -> Plan {
    Plan {
        callers: CALLERS,
        tags: vec!["hot".to_owned()],
        limit: if long() { 20_000 } else { 2_000 },
        guide,
        patience: Duration::from_secs(30),
    }
}

#[test]
pub fn a_thousand_keys_are_the_same_on_their_replica() {
    let primary = node().start();
    let replica = replica_of(&primary);
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    let calls: Vec<String> = (0..100)
        .flat_map(|tag| KINDS.iter().map(move |kind| kind.call(&tag.to_string(), 9, "holder")))
        .collect();
    for _ in 0..3 {
        for answer in client.pipeline(&calls.iter().collect::<Vec<_>>()) {
            answer.unwrap();
        }
    }
    // And the commands that correct the usage of other calls.
    for tag in 0..100 {
        for call in [
            format!("CL.CHARGE {{{tag}}}throttle 8 1 3600 {tag}"),
            format!("CL.REFUND {{{tag}}}reserve 8 1 3600 {}", tag % 4),
            format!("CL.RENEW {{{tag}}}acquire {} holder", 40_000 + tag),
            format!("CL.RELEASE {{{}}}acquire holder", tag % 7),
        ] {
            client.call(&call);
        }
    }
    catch_up(&mut client, &mut copy);
    let held = contents(&mut client);
    assert!(held.len() >= 1_000, "{} keys", held.len());
    assert!(held.values().all(|(_, expiry)| *expiry > 0), "a key without an expiry");
    assert_eq!(contents(&mut copy), held);
    figure("replication: keys equal on the replica to the last digit", held.len());
}

#[test]
pub fn a_replica_that_stands_still_for_two_seconds_invents_no_debt() {
    let _alone = alone();
    let primary = node().start();
    let replica = replica_of(&primary);
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    replica.signal("STOP");
    // Ten a second while the replica is stopped: decided again two seconds later, these would be a debt of
    // twenty.
    let mut admitted = 0;
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        if client.ints("CL.THROTTLE steady 9 10 1")[0] == 0 {
            admitted += 1;
        }
        std::thread::sleep(Duration::from_millis(10)); // a caller's pace, not a synchronisation
    }
    client.call("CL.THROTTLE slow 9 10 3600 4");
    let states = ["steady", "slow"].map(|key| (client.tat(key), client.expiry_ms(key)));
    replica.signal("CONT");
    catch_up(&mut client, &mut copy);
    assert!(admitted >= 20, "{admitted} admitted");
    for (key, (tat, expiry)) in ["steady", "slow"].iter().zip(states) {
        // The fast one may have expired by now, on both.
        let seen = (copy.tat(key), copy.expiry_ms(*key));
        assert!(seen == (tat, expiry) || *key == "steady" && seen == (None, -2), "{key}: {seen:?}");
    }
    assert_eq!(copy.ints("CL.PEEK slow 9 10 3600")[..3], [0, 10, 6]);
}

#[test]
pub fn a_planned_failover_loses_nothing_and_admits_nothing_extra() {
    let _alone = alone();
    let first = node().start();
    let second = replica_of(&first);
    let (mut a, mut b) = (first.connect(), second.connect());
    requires!(a.has_command("FAILOVER"), "no FAILOVER");
    let port = Arc::new(AtomicU16::new(first.port()));
    let mut load = Load::start(plan(guide_to(&port)));
    let turns = if long() { 10 } else { 2 };
    for turn in 1..=turns {
        load.wait_for(load.budget() * turn / (turns + 1));
        let (from, to, next) =
            if turn % 2 == 1 { (&mut a, &mut b, second.port()) } else { (&mut b, &mut a, first.port()) };
        wait_for_info(to, "master_link_status", "up");
        from.call("FAILOVER");
        wait_for_info(to, "role", "master");
        port.store(next, Relaxed);
        wait_for_info(from, "master_link_status", "up");
    }
    load.exhaust();
    load.stop();
    let (mut primary, mut replica) = if turns % 2 == 1 { (b, a) } else { (a, b) };
    let seen = load.compare(|_| Client::connect(port.load(Relaxed), "").unwrap(), 0);
    assert_eq!((load.admitted(), seen.lost), (load.budget(), 0), "each budget to the unit");
    catch_up(&mut primary, &mut replica);
    assert_eq!(contents(&mut replica), contents(&mut primary));
    figure(
        "FAILOVER: failovers under load, admissions lost or extra",
        format!("{turns}, 0 of {}", load.budget()),
    );
}

/// Promotes a replica that has received everything that the killed primary sent.
pub fn promote(replica: &mut Client) {
    wait_for_info(replica, "master_link_status", "down");
    replica.call("REPLICAOF NO ONE");
}

#[test]
pub fn a_primary_that_is_killed_costs_at_most_the_calls_in_flight() {
    let _alone = alone();
    let mut sum = Differences::default();
    let rounds = if long() { 20 } else { 3 };
    for round in 1..=rounds {
        let mut first = node().start();
        let second = replica_of(&first);
        let port = Arc::new(AtomicU16::new(first.port()));
        let mut load = Load::start(plan(guide_to(&port)));
        load.wait_for(load.budget() * round / (rounds + 1));
        first.kill();
        promote(&mut second.connect());
        port.store(second.port(), Relaxed);
        load.exhaust();
        load.stop();
        let seen = load.compare(|_| second.connect(), load.callers());
        sum.lost += seen.lost;
        sum.over += seen.over;
    }
    figure(
        "kill -9 of the primary: admissions above the budget, callers with one call in flight for each of 10 keys",
        format!("{} in {rounds} failovers, {CALLERS} callers", sum.over),
    );
}

/// Three of them, watching the primary on `port`.
struct Sentinels([Server; 3]);

impl Sentinels {
    fn watch(port: u16) -> Self {
        let configuration = format!(
            "sentinel monitor cell 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds cell 2000\n\
             sentinel failover-timeout cell 20000\n"
        );
        let sentinels = Self([(); 3].map(|()| Options::sentinel(&configuration).start()));
        for sentinel in &sentinels.0 {
            let mut client = sentinel.connect();
            wait_until("the sentinels to know each other and the replica", || {
                let known: BTreeMap<String, String> = client.get("SENTINEL MASTER cell");
                match [&known["num-other-sentinels"], &known["num-slaves"], &known["flags"]] {
                    seen if seen == ["2", "1", "master"] => Ok(()),
                    seen => Err(format!("{seen:?}")),
                }
            });
        }
        sentinels
    }

    /// Gets the primary from the sentinels, as a client library does.
    fn guide(&self) -> Guide {
        let ports = self.0.each_ref().map(Server::port);
        Arc::new(move |_| {
            ports.iter().find_map(|port| {
                let mut client =
                    Client::connect_to(&format!("127.0.0.1:{port}"), "", Duration::from_secs(5)).ok()?;
                let found: (String, u16) = client.get("SENTINEL GET-MASTER-ADDR-BY-NAME cell");
                Some(format!("{}:{}", found.0, found.1))
            })
        })
    }
}

#[test]
pub fn sentinels_that_fail_over_keep_the_budgets() {
    let _alone = alone();
    let mut first = node().start();
    let second = replica_of(&first);
    let sentinels = Sentinels::watch(first.port());
    let mut load = Load::start(plan(sentinels.guide()));
    load.wait_for(load.budget() / 2);
    let killed = std::time::Instant::now();
    first.kill();
    wait_for_role(&second, "master");
    let admitted = load.admitted();
    load.wait_for(admitted + 1);
    figure(
        "Sentinel: from the primary's death to the next admission",
        format!("{:.1} s", killed.elapsed().as_secs_f64()),
    );
    load.exhaust();
    load.stop();
    let seen = load.compare(|_| second.connect(), load.callers());
    figure("Sentinel: admissions above the budgets", format!("{} of {}", seen.over, load.budget()));

    // The killed server restarts, and the sentinels make it a replica of the new primary.
    first.restart_here();
    wait_for_role(&first, "slave");
    let (mut client, mut copy) = (second.connect(), first.connect());
    wait_for_info(&mut copy, "master_link_status", "up");
    catch_up(&mut client, &mut copy);
    assert_eq!(contents(&mut copy), contents(&mut client));
}
