//! Without listeners no effects are built. A listener that is added at any moment misses nothing.

use crate::common::{Client, Options, Server, requires, wait_until};
use crate::info::wait_for_no_listeners;
use crate::renamed::everything;
use crate::replication::{attach, catch_up};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

const KEYS: usize = 300;

/// A limit that is never reached, of one unit an hour: no key expires between two readings.
const SLOW: &str = "1000000 1 3600";

/// Runs `work` while two clients send batches of admitted calls on many keys without a pause.
fn under_load<T>(server: &Server, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in 0..2 {
            let (mut connection, stop) = (server.connect(), &stop);
            scope.spawn(move || {
                let calls: Vec<String> = (0..KEYS)
                    .map(|i| match (i + client) % 5 {
                        0 => format!("CL.CHARGE k{i} {SLOW}"),
                        1 => format!("CL.RESERVE k{i} {SLOW}"),
                        2 => format!("CL.MTAKE k{i} THROTTLE {SLOW} 1 m{i} THROTTLE {SLOW} 1"),
                        3 => format!("CL.BTHROTTLE k{i} {SLOW} 1 0"),
                        _ => format!("CL.THROTTLE k{i} {SLOW}"),
                    })
                    .collect();
                let calls: Vec<&String> = calls.iter().collect();
                while !stop.load(Relaxed) {
                    for chunk in calls.chunks(30) {
                        for answer in connection.pipeline(chunk) {
                            answer.unwrap();
                        }
                    }
                }
            });
        }
        // The threads must stop even if the work fails, or the scope would never end.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn assert_same(one: &mut Client, other: &mut Client, what: &str) {
    let (one, other) = (everything(one), everything(other));
    assert!(one.len() >= KEYS, "{what}: only {} keys", one.len());
    assert_eq!(one.len(), other.len(), "{what}");
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(one, other, "{what}");
    }
}

/// Waits until no child of the server saves its keys.
pub fn no_child(client: &mut Client) {
    wait_until("children to end", || {
        // The scheduled rewrite first, because it may begin between two of these calls.
        let fields = ["aof_rewrite_scheduled", "aof_rewrite_in_progress", "rdb_bgsave_in_progress"];
        let seen = fields.map(|field| client.info(field));
        if seen == ["0", "0", "0"] { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}

#[test]
fn a_replica_that_comes_under_load_misses_nothing() {
    for diskless in ["no", "yes"] {
        for delay in ["0", "1"] {
            let primary = Options::new()
                .set("repl-diskless-sync", diskless)
                .set("repl-diskless-sync-delay", delay)
                .set("repl-backlog-size", "64mb")
                .start();
            let what = format!("diskless: {diskless}, delay: {delay}");
            let mut client = primary.connect();
            let (first, second) = under_load(&primary, || {
                wait_for_no_listeners(&mut primary.connect());
                primary.connect().call("BGSAVE");
                let first = attach(&primary, Options::new());
                let second = attach(&primary, Options::new().without_module());
                // And again from the backlog.
                let resyncs = primary.connect().info("sync_partial_ok");
                primary.connect().call("CLIENT KILL TYPE replica");
                wait_until("a partial synchronisation", || match primary.connect().info("sync_partial_ok") {
                    seen if seen == resyncs => Err(seen),
                    _ => Ok(()),
                });
                (first, second)
            });
            for replica in [&first, &second] {
                let mut copy = replica.connect();
                copy.wait_for("master_link_status", "up");
                catch_up(&mut client, &mut copy);
                assert_same(&mut client, &mut copy, &what);
            }
        }
    }
}

#[test]
fn replicas_that_come_and_go_miss_nothing() {
    let primary = Options::new().set("repl-backlog-ttl", "1").start();
    let mut client = primary.connect();
    for round in 0..3 {
        let replica = under_load(&primary, || {
            primary.connect().wait_for("repl_backlog_active", "0");
            wait_for_no_listeners(&mut primary.connect());
            attach(&primary, Options::new())
        });
        let mut copy = replica.connect();
        catch_up(&mut client, &mut copy);
        assert_same(&mut client, &mut copy, &format!("round {round}"));
    }
}

/// While there is no replica, the backlog keeps what is written for one that comes back.
#[test]
fn what_is_taken_while_there_is_no_replica_comes_by_a_partial_synchronization() {
    for promoted in [true, false] {
        let (primary, replica) = (Server::start(), Server::start());
        let (mut client, mut copy) = (primary.connect(), replica.connect());
        let follow = |server: &Server| format!("REPLICAOF 127.0.0.1 {}", server.port());
        if promoted {
            wait_for_no_listeners(&mut client);
            client.call(&follow(&replica));
            client.wait_for("master_link_status", "up");
            client.call("REPLICAOF NO ONE");
        } else {
            copy.call(&follow(&primary));
            copy.wait_for("master_link_status", "up");
            replica.signal("STOP");
            client.call("CLIENT KILL TYPE replica");
            // The module looks for listeners once a second; nothing shows it.
            let mut uptime = || client.info("uptime_in_seconds").parse::<u64>().unwrap();
            let enough = uptime() + 3;
            wait_until("three seconds to pass", || match uptime() {
                seen if seen >= enough => Ok(()),
                seen => Err(seen.to_string()),
            });
        }
        client.call("CL.THROTTLE k 9 10 3600");
        client.call("CL.FUNNEL f 9 10 3600");
        if promoted {
            copy.call(&follow(&primary));
        } else {
            replica.signal("CONT");
        }
        client.wait_for("sync_partial_ok", "1");
        copy.wait_for("master_link_status", "up");
        catch_up(&mut client, &mut copy);
        let values = |client: &mut Client| (client.call("GET k"), client.call("HGETALL f"));
        assert_eq!(values(&mut copy), values(&mut client), "promoted: {promoted}");
    }
}

#[test]
fn an_append_only_file_switched_on_under_load_misses_nothing() {
    for bgsave in [false, true] {
        let mut server = Options::new().set("appendfsync", "always").start();
        under_load(&server, || {
            let mut client = server.connect();
            for round in 0..2 {
                wait_for_no_listeners(&mut client);
                if bgsave {
                    client.call("CONFIG SET rdb-key-save-delay 1000");
                    client.call("BGSAVE");
                }
                client.call("CONFIG SET appendonly yes");
                client.call("CONFIG SET rdb-key-save-delay 0");
                no_child(&mut client);
                if round == 0 {
                    client.call("CONFIG SET appendonly no");
                }
            }
        });
        let mut client = server.connect();
        no_child(&mut client);
        assert_eq!(client.info("aof_enabled"), "1");
        let before = everything(&mut client);
        server.restart_with("appendonly", "yes");
        let after = everything(&mut server.connect());
        assert_eq!(after, before, "BGSAVE before: {bgsave}");
    }
}

#[test]
fn each_admitted_call_is_one_change() {
    for heard in [false, true] {
        let server = if heard { Options::new().append_only().start() } else { Server::start() };
        let mut client = server.connect();
        if !heard {
            wait_for_no_listeners(&mut client);
        }
        let dirty = |client: &mut Client| client.info("rdb_changes_since_last_save").parse::<i64>().unwrap();
        for (call, changes) in [
            ("CL.THROTTLE k 9 10 3600", 1),
            ("CL.THROTTLE k 9 10 3600 2", 1),
            ("CL.THROTTLE k 9 10 3600 10", 0),
            ("CL.THROTTLE k 9 10 3600 0", 0),
            ("CL.CHARGE k 9 10 3600", 1),
            ("CL.RESERVE k 9 10 3600", 1),
            ("CL.REFUND k 9 10 3600", 1),
            ("CL.BTHROTTLE k 9 10 3600 1 0", 1),
            ("CL.MTAKE k THROTTLE 9 10 3600 1 l THROTTLE 9 10 3600 1", 2),
            ("CL.PEEK k 9 10 3600", 0),
        ] {
            let before = dirty(&mut client);
            client.call(call);
            if crate::common::BINARY.at_least(6, 2, 8) {
                assert_eq!(dirty(&mut client) - before, changes, "{call}, heard: {heard}");
            }
        }
        let script = "for i = 1, 3 do redis.call('CL.CHARGE', KEYS[1], 9, 10, 3600) end";
        let before = dirty(&mut client);
        client.call(&["EVAL", script, "1", "k"]);
        if crate::common::BINARY.at_least(6, 2, 8) {
            assert_eq!(dirty(&mut client) - before, 3, "heard: {heard}");
        }
    }
}

/// An append-only file switched on in the middle of a transaction begins with the rewrite after it.
///
/// During another rewrite it would begin at once, but without a file, and current servers then reject writes.
/// So the module assumes that there is a listener while a child process runs, and this case is not tested.
#[test]
fn switched_on_in_a_transaction() {
    requires!(crate::common::BINARY.at_least(7, 0, 0), "CONFIG is not for transactions");
    let mut server = Options::new().set("appendfsync", "always").start();
    let mut client = server.connect();
    let fill: Vec<String> = (0..KEYS).map(|i| format!("CL.THROTTLE k{i} 99 100 3600")).collect();
    client.pipeline(&fill.iter().collect::<Vec<_>>());
    wait_for_no_listeners(&mut client);
    let transaction = [
        "MULTI",
        "CL.THROTTLE k0 99 100 3600",
        "CONFIG SET appendonly yes",
        "CL.THROTTLE k1 99 100 3600 2",
        "EXEC",
        "CL.THROTTLE k2 99 100 3600 3",
    ];
    client.pipeline(&transaction);
    let script = "for i = 1, 3 do redis.call('CL.CHARGE', KEYS[1], 99, 100, 3600) end";
    client.call(&["EVAL", script, "1", "k3"]);
    no_child(&mut client);
    client.call(&["EVAL", script, "1", "k4"]);
    client.call("CL.THROTTLE k5 99 100 3600 5");
    let before = everything(&mut client);
    server.restart_with("appendonly", "yes");
    assert_eq!(everything(&mut server.connect()), before);
}

/// Regression: waiting clients replaced the callback that detects listeners.
#[test]
fn a_client_that_waits_does_not_end_the_search() {
    let primary = Options::new().set("repl-backlog-ttl", "1").start();
    let mut client = primary.connect();
    client.throttle_checked("wanted", "0 1 3600");
    let _waiter = crate::common::Waiter::ask(&primary, "CL.BTHROTTLE wanted 0 1 3600 1 0");
    crate::common::wait_for_blocked(&mut client, 1);
    wait_for_no_listeners(&mut client);
    let replica = under_load(&primary, || attach(&primary, Options::new()));
    let mut copy = replica.connect();
    catch_up(&mut client, &mut copy);
    assert_same(&mut client, &mut copy, "with somebody waiting");
}
