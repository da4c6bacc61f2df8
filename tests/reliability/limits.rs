//! The limits of the machine: memory, connections, time, disk; and modules that are loaded, unloaded and
//! collide.

use crate::common::{
    BINARY, COMMANDS, Client, Clock, Options, Server, Waiter, compile_library, ints, module_path, requires,
    wait_for_blocked, wait_until, wall_ns,
};
use crate::failover::wait_for_info;
use crate::figures::{figure, long};
use redis::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// A call of every command that takes units, each on a key of its own.
fn taking() -> Vec<String> {
    COMMANDS.iter().filter(|command| command.takes()).map(|command| command.on(command.name)).collect()
}

/// A call of every command that does not take units, on the key of a call that does.
fn giving() -> Vec<String> {
    let giving = COMMANDS.iter().filter(|command| command.has_keys() && !command.takes());
    giving
        .map(|command| command.on(if command.call.ends_with("ID") { "CL.ACQUIRE" } else { "CL.THROTTLE" }))
        .collect()
}

#[test]
fn without_memory_what_takes_is_refused_by_the_server_and_what_gives_goes_on() {
    let (_server, mut client) = Server::with_client();
    for call in taking() {
        client.call(&call);
    }
    client.call("CONFIG SET maxmemory 1");
    let before = client.text("DEBUG DIGEST");
    for call in taking() {
        let error = client.error(&call);
        assert!(error.starts_with("OOM "), "{call}: {error}");
    }
    assert_eq!(client.text("DEBUG DIGEST"), before);
    for call in giving() {
        let answer = client.call(&call);
        let first = ints(&answer).ok().map(|five| five[0]);
        let done = match answer {
            Value::Int(done) => done == 1,
            Value::Array(_) => first.is_none_or(|limited| limited == 0),
            _ => false,
        };
        assert!(done, "{call}: {answer:?}");
    }
    client.call("CONFIG SET maxmemory 0");
    let room = client.ints("CL.PEEK CL.THROTTLE 15 30 3600")[2];
    assert_eq!(room, 16, "the unit that was taken was given back");
    assert_eq!(client.int("EXISTS CL.ACQUIRE"), 0);
}

/// Every limiter's key has an expiry, so that every policy except one finds keys to evict.
#[test]
fn a_server_that_evicts_continues_within_its_memory() {
    let (server, mut client) = Server::with_client();
    for policy in [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ] {
        client.call("FLUSHALL");
        client.call("CONFIG RESETSTAT");
        client.call(&format!("CONFIG SET maxmemory-policy {policy}"));
        let used = client.used_memory();
        let most = used + 2_000_000;
        client.call(&format!("CONFIG SET maxmemory {most}"));
        for batch in 0..40 {
            let calls: Vec<String> =
                (0..1000).map(|i| format!("CL.THROTTLE {policy}:{batch}:{i} 9 10 3600")).collect();
            for answer in client.pipeline(&calls.iter().collect::<Vec<_>>()) {
                assert_eq!(ints(&answer.unwrap()).unwrap()[..2], [0, 10], "{policy}");
            }
        }
        assert_ne!(client.info("evicted_keys"), "0", "{policy}");
        assert!(client.int("DBSIZE") < 40_000, "{policy}");
        client.call("CONFIG SET maxmemory 0");
    }
    server.assert_alive("eviction");
}

/// The limits on open files of this process (soft, hard), after raising the soft limit as far as possible.
fn raised_file_limit() -> u64 {
    let own = std::process::id().to_string();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let hard: u64 = line.split_whitespace().nth(4).unwrap().parse().unwrap_or(1 << 20);
    let nofile = format!("--nofile={hard}:{hard}");
    assert!(Command::new("prlimit").args(["--pid", &own, &nofile]).status().unwrap().success());
    hard
}

#[test]
fn ten_thousand_connections_share_one_budget_exactly() {
    // Other files that this process and the server have open.
    let most = usize::try_from(raised_file_limit()).unwrap().saturating_sub(500);
    let connections = most.min(10_000);
    let server =
        Options::new().set("maxclients", &(connections + 100).to_string()).set("tcp-backlog", "4096").start();
    let mut sockets: Vec<BufReader<TcpStream>> = (0..connections)
        .map(|_| {
            let socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            BufReader::with_capacity(128, socket)
        })
        .collect();
    // A third of the calls.
    let budget = connections * 2 / 3;
    let call = format!("CL.THROTTLE hot {} 1 1000000\r\n", budget - 1);
    for _ in 0..2 {
        for socket in &mut sockets {
            socket.get_mut().write_all(call.as_bytes()).unwrap();
        }
    }
    let mut admitted = 0;
    for socket in &mut sockets {
        for _ in 0..2 {
            let answer: Vec<String> = socket.lines().take(6).map(Result::unwrap).collect();
            assert_eq!(answer[..1], ["*5"]);
            admitted += usize::from(answer[1] == ":0");
        }
    }
    assert_eq!(admitted, budget, "of {connections} connections");
    figure("connections that share one key", connections);
}

/// The server deletes them gradually. No client waits for it, and no memory is left.
#[test]
fn keys_by_the_hundred_thousand_expire_at_once() {
    let keys = if long() { 1_000_000 } else { 100_000 };
    let mut clock = Clock::ahead_by(0);
    let server = clock.start(Options::new());
    let mut client = server.connect();
    client.call("CL.THROTTLE warm-up 0 1 1");
    client.call("FLUSHALL");
    let at_rest = client.used_memory();
    for batch in 0..keys / 1000 {
        let calls: Vec<String> = (0..1000).map(|i| format!("CL.THROTTLE k{batch}:{i} 0 1 36000")).collect();
        client.pipeline(&calls.iter().collect::<Vec<_>>());
    }
    assert_eq!(client.int("DBSIZE"), keys);
    client.call("CL.THROTTLE hot 99 1 10000000 90");
    clock.step(48 * 3600 * 1_000_000_000);
    let (mut slowest, mut admitted) = (0, 0);
    wait_until("the keys to be gone", || {
        for _ in 0..100 {
            let begun = wall_ns();
            admitted += 1 - client.ints("CL.THROTTLE hot 99 1 10000000")[0];
            slowest = slowest.max(wall_ns() - begun);
        }
        match client.int("DBSIZE") {
            1 => Ok(()),
            left => Err(left.to_string()),
        }
    });
    assert_eq!(admitted, 10, "of the budget that was left when the others expired");
    let left = client.used_memory() - at_rest;
    // The server's table of keys shrinks at its next use. Its largest size is some tens of bytes per key.
    assert!(left < keys * 40, "{left} bytes are left of {keys} keys");
    figure(&format!("slowest call while {keys} keys expire"), format!("{} us", slowest / 1000));
}

/// Writes fail as on a full disk, because the server is not allowed to enlarge its files. It ignores SIGXFSZ,
/// which a full disk does not send.
#[test]
fn a_full_disk_loses_and_hangs_nothing() {
    let mut server = Options::new()
        .set("appendonly", "yes")
        .set("appendfsync", "everysec")
        .set("auto-aof-rewrite-percentage", "0")
        .under(&["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"])
        .start();
    let mut client = server.connect();
    for call in taking() {
        client.call(&call);
    }
    let pid = client.process_id().unwrap().to_string();
    let limit_files = |limit: &str| {
        let fsize = format!("--fsize={limit}:unlimited");
        assert!(Command::new("prlimit").args(["--pid", &pid, &fsize]).status().unwrap().success());
    };
    limit_files("8192");
    let refused =
        wait_until("the disk to be full", || match client.ask("CL.THROTTLE filler 999999 1 3600") {
            Err(error) => Ok(error),
            Ok(answer) => Err(format!("{answer:?}")),
        });
    assert!(refused.starts_with("MISCONF "), "{refused}");
    let before = client.text("DEBUG DIGEST");
    for call in taking() {
        let error = client.error(&call);
        assert!(error.starts_with("MISCONF "), "{call}: {error}");
    }
    assert_eq!(client.ints("CL.PEEK CL.THROTTLE 15 30 3600")[0], 0);
    assert_eq!(client.text("DEBUG DIGEST"), before);
    // With space again, the server recovers, and every answered call is in its data after a restart.
    limit_files("unlimited");
    wait_until("the server to write again", || client.ask("CL.THROTTLE filler 999999 1 3600"));
    let tat = client.tat("filler");
    let before = client.text("DEBUG DIGEST");
    server.shut_down();
    server.restart();
    let mut client = server.connect();
    assert_eq!(client.tat("filler"), tat);
    assert_eq!(client.text("DEBUG DIGEST"), before);
}

#[test]
fn unloading_and_loading_under_load_loses_nothing() {
    // redis/redis#10259: the server keeps a pointer to a client's last command, even after its module was
    // unloaded. Redis 8 checks it first: calling any module's command again after MODULE UNLOAD crashes the
    // server.
    requires!(BINARY.name != "redis" || !BINARY.at_least(8, 0, 0), "Redis 8 calls commands that are gone");
    let server = Server::start();
    let done = AtomicBool::new(false);
    let admitted: i64 = thread::scope(|scope| {
        let load: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut admitted) = (server.connect(), 0);
                    while !done.load(Relaxed) {
                        for answer in client.pipeline(&["CL.THROTTLE hot 999999 1 3600"; 20]) {
                            match answer {
                                Ok(answer) => admitted += 1 - ints(&answer).unwrap()[0],
                                Err(error) => assert!(error.contains("unknown command"), "{error}"),
                            }
                        }
                    }
                    admitted
                })
            })
            .collect();
        let mut client = server.connect();
        let module = module_path().display().to_string();
        for _ in 0..50 {
            client.call("MODULE UNLOAD redis-cell");
            client.call(&["MODULE", "LOAD", &module]);
        }
        done.store(true, Relaxed);
        load.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // No unit is replenished within the hour.
    let remaining = server.connect().ints("CL.PEEK hot 999999 1 3600")[2];
    assert_eq!(admitted + remaining, 1_000_000);
    assert!(admitted > 0);
    server.assert_alive("unloading under load");
}

/// Regression: each unloading leaked the tables of the queues.
#[test]
fn an_unloaded_module_leaves_no_memory_behind() {
    let (server, mut client) = Server::with_client();
    let module = module_path().display().to_string();
    let mut lines_and_reload = || {
        let mut waiters: Vec<Waiter> = Vec::new();
        for key in 0..100 {
            client.call(&format!("CL.THROTTLE k{key} 0 1 3600"));
            waiters.push(Waiter::ask(&server, &format!("CL.BTHROTTLE k{key} 0 1 3600 1 0")));
        }
        wait_for_blocked(&mut client, 100);
        client.call("FLUSHALL");
        for mut waiter in waiters {
            waiter.answer();
        }
        client.call("FLUSHALL");
        client.call("MODULE UNLOAD redis-cell");
        client.call(&["MODULE", "LOAD", &module]);
        wait_for_info(&mut client, "connected_clients", "1");
        client.used_memory()
    };
    let before = lines_and_reload();
    for _ in 0..5 {
        lines_and_reload();
    }
    // The server keeps the buffers of clients that have waited for some seconds.
    wait_until("the memory to be freed", || match client.used_memory() - before {
        ..50_000 => Ok(()),
        more => Err(format!("{more} bytes more than {before}")),
    });
}

/// Waiting clients keep their module: the server does not unload it.
#[test]
fn a_module_with_queued_callers_stays() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 3600");
    let mut waiter = Waiter::ask(&server, "CL.BTHROTTLE k 0 1 3600 1 0");
    wait_for_blocked(&mut client, 1);
    let error = client.error("MODULE UNLOAD redis-cell");
    assert!(error.starts_with("ERR ") && error.contains("blocked"), "{error}");
    client.call("DEL k");
    assert_eq!(waiter.answer(), "0 1 0 -1 3600");
    client.call("MODULE UNLOAD redis-cell");
    client.call(&["MODULE", "LOAD", &module_path().display().to_string()]);
    assert_eq!(client.ints("CL.THROTTLE k 0 1 3600")[0], 1);
}

fn load(client: &mut Client, words: &[&str]) -> Result<Value, String> {
    client.ask(&[&["MODULE", "LOAD"], words].concat())
}

/// Beside a module with the same name, or with one of its commands, the module does not load, logs the
/// reason, and does not change the other module.
#[test]
fn beside_another_module_with_its_command_it_does_not_load() {
    let (ours, other_module) =
        (module_path().display().to_string(), compile_library("reliability/other_module"));
    let other_module = other_module.to_str().unwrap();
    for (name, reason) in [
        ("redis-cell", "not loaded: a module called redis-cell is loaded already; unload it first"),
        ("other", "not loaded: the server refuses the command cl.throttle"),
    ] {
        let server = Options::new().without_module().start();
        let mut client = server.connect();
        load(&mut client, &[other_module, name]).unwrap();
        for _ in 0..2 {
            let error = load(&mut client, &[&ours]).unwrap_err();
            assert!(error.starts_with("ERR "), "{error}");
            assert!(server.log().contains(reason), "{}", server.log());
            assert_eq!(client.text("CL.THROTTLE"), "another module");
            assert!(!client.has_command("CL.PEEK"), "half of it is loaded");
        }
        client.call(&["MODULE", "UNLOAD", name]);
        load(&mut client, &[&ours]).unwrap();
        assert_eq!(client.throttle_checked("k", "15 30 60"), [0, 16, 15, -1, 2]);
        // And the other way around.
        load(&mut client, &[other_module, name]).unwrap_err();
        assert_eq!(client.throttle_checked("k", "15 30 60")[0], 0);
    }
}
