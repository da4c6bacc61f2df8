//! A primary, its replica, and the effect of a failover on limits: planned, after a kill, and by Sentinels.

use crate::common::{Client, Options, Server, wait_until};
use crate::figures::figure;
use crate::histories::{CALLERS, Guide, PATIENCE, Recorder, examine, histories, stretch};
use crate::keys::{KINDS, alone, contents};
use redis::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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

/// Promotes a replica that has received everything that the killed primary sent.
pub fn promote(replica: &mut Client) {
    wait_for_info(replica, "master_link_status", "down");
    replica.call("REPLICAOF NO ONE");
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
pub fn sentinels_that_fail_over_cost_at_most_the_calls_in_flight() {
    let _alone = alone();
    let mut first = node().start();
    let second = replica_of(&first);
    let sentinels = Sentinels::watch(first.port());
    let mut recorder = Recorder::start(CALLERS, PATIENCE, sentinels.guide());
    recorder.wait_for(stretch());
    first.kill();
    recorder.fault(CALLERS, 0);
    recorder.wait_for(stretch());
    examine("Sentinels promote a replica", &histories(recorder.stop()));

    // The killed server restarts, and the sentinels make it a replica of the new primary.
    first.restart_here();
    wait_for_role(&first, "slave");
    let (mut client, mut copy) = (second.connect(), first.connect());
    wait_for_info(&mut copy, "master_link_status", "up");
    catch_up(&mut client, &mut copy);
    assert_eq!(contents(&mut copy), contents(&mut client));
}
