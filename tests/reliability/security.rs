//! The effects that a client restricted to the module's commands can have on other keys, memory, processor
//! time and the log. SECURITY.md states it in words.

use crate::clock::Subject;
use crate::common::{COMMANDS, Client, Command, Options, SECOND, Server, faulty_module_path};
use crate::figures::figure;
use redis::Value;

/// The commands that have keys.
fn limiters() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().filter(|command| command.has_keys())
}

fn name(call: &str) -> &str {
    call.split(' ').next().unwrap()
}

/// Permission for the module's commands and some keys gives access to no other key, and is all that is
/// needed.
#[test]
fn who_may_call_our_commands_reaches_no_other_key() {
    let server = Server::start();
    let mut admin = server.connect();
    let ours: Vec<String> = limiters().map(|command| format!("+{}", command.lower())).collect();
    admin.call(&format!("ACL SETUSER limiter on nopass ~limit:* {}", ours.join(" ")));
    let mut client = server.connect();
    client.call("AUTH limiter any");
    for command in limiters() {
        let on = |key: &str| command.on(key).replace("first", "limit:other");
        client.call(&on(&format!("limit:{}", command.name)));
        let other = format!("other:{}", command.name);
        let call = on(&other);
        let error = client.error(&call);
        assert!(error.starts_with("NOPERM "), "{call}: {error}");
        assert_eq!(admin.int(&["EXISTS", &other]), 0, "{call}");
    }
    for call in ["GET limit:CL.THROTTLE", "ZADD limit:CL.LOG 1 x", "DEL limit:CL.LOG"] {
        assert!(client.error(call).starts_with("NOPERM "), "{call}");
    }
    // A call that names two keys, one of them forbidden, has no effects.
    let before = admin.snapshot("limit:other");
    client.error("CL.MTAKE limit:other THROTTLE 15 30 60 1 other THROTTLE 15 30 60 1");
    assert_eq!(admin.snapshot("limit:other"), before);
}

/// After any calls, a key is no larger than its command's page says: some bytes, or an entry per unit or
/// holder.
#[test]
fn memory_is_bounded_by_keys() {
    let (_server, mut client) = Server::with_client();
    // The others make no key, or the same as CL.THROTTLE.
    for Command { name, call, .. } in limiters().filter(|command| command.takes() && !command.has_many()) {
        client.call("FLUSHALL");
        let calls: Vec<String> = (0..2_000)
            .map(|id| {
                call.replace("KEY", "k").replace("15 3600", "100 3600").replace("ID", &format!("id{id}"))
            })
            .collect();
        for answer in client.pipeline(&calls.iter().collect::<Vec<_>>()) {
            answer.unwrap_or_else(|e| panic!("{call}: {e}"));
        }
        assert_eq!(client.int("DBSIZE"), 1, "{call}");
        let bytes = client.int("MEMORY USAGE k SAMPLES 0");
        // At most a hundred entries of less than 200 bytes; other states are a few numbers.
        let most = if ["CL.LOG", "CL.ACQUIRE"].contains(name) { 20_000 } else { 300 };
        assert!(bytes <= most, "{call}: {bytes} bytes");
        figure(&format!("{name}: memory of a key after 2,000 calls"), format!("{bytes} bytes"));
    }
}

/// The time that the server measured for a call.
fn micros(client: &mut Client, call: &str) -> i64 {
    client.call("SLOWLOG RESET");
    client.call(call);
    let Value::Array(entries) = client.call("SLOWLOG GET 10") else { panic!("no SLOWLOG") };
    let times = entries.into_iter().filter_map(|entry| match entry {
        Value::Array(fields) => {
            let words: Vec<String> = redis::from_redis_value(fields[3].clone()).unwrap();
            let time: i64 = redis::from_redis_value(fields[2].clone()).unwrap();
            words[0].eq_ignore_ascii_case(name(call)).then_some(time)
        }
        _ => None,
    });
    times.max().expect("the slow log has the call")
}

/// The most expensive calls, the bound on each, and the time that it took here. The times are figures, not
/// promises: they depend on the machine.
#[test]
fn the_worst_calls_do_a_bounded_amount_of_work() {
    let (_server, mut client) = Server::with_client();
    client.call("CONFIG SET slowlog-log-slower-than 0");
    let long_key = "k".repeat(1_000_000);
    let single = format!("CL.THROTTLE {long_key} 15 30 60");
    figure("worst call: a key's name of 1 MB", format!("{} us", micros(&mut client, &single)));

    // Ten thousand entries, the most that a call may add.
    let log = "CL.LOG log 1000000 50 10000 MS";
    figure("worst call: CL.LOG of 10,000 units", format!("{} us", micros(&mut client, log)));
    // For a call with a shorter period all of them have expired, and it removes ten thousand.
    for _ in 0..2 {
        client.call("CL.LOG log 1000000 3600 10000");
    }
    let clearing = micros(&mut client, "CL.LOG log 1000000 1 1 US");
    figure("worst call: CL.LOG that clears 10,000 entries away", format!("{clearing} us"));

    let limiters: Vec<String> = (0..1_000).map(|key| format!("several:{key} THROTTLE 15 30 60 1")).collect();
    let several = format!("CL.MTAKE {}", limiters.join(" "));
    figure("worst call: CL.MTAKE of 1,000 keys", format!("{} us", micros(&mut client, several.trim())));

    // Holders whose leases have ended. The key stays because of one lease that has not.
    client.call("CL.ACQUIRE lease 20000 3600 keeper");
    let holders: Vec<String> = (0..20_000).map(|id| format!("CL.ACQUIRE lease 30000 3600 id{id}")).collect();
    client.pipeline(&holders.iter().collect::<Vec<_>>());
    let ended: Vec<String> = (0..20_000).map(|id| format!("CL.RENEW lease 1 id{id} US")).collect();
    client.pipeline(&ended.iter().collect::<Vec<_>>());
    let acquire = micros(&mut client, "CL.ACQUIRE lease 30000 3600 last");
    figure("worst call: CL.ACQUIRE that clears 10,000 leases away", format!("{acquire} us"));
    assert_eq!(client.int("ZCARD lease"), 10_002, "cleared away by ten thousand at a time");
    client.call("CL.RELEASE lease keeper");
    let release = micros(&mut client, "CL.RELEASE lease last");
    figure("worst call: CL.RELEASE by the last of 10,000", format!("{release} us"));
    assert_eq!(client.int("EXISTS lease"), 0);
}

/// Even if a client could make the module panic, it could not fill the disk with log lines.
#[test]
fn the_log_cannot_be_flooded() {
    let options = Options::new().module(faulty_module_path()).environment("REDIS_CELL_FAULT", "panic");
    let mut subject = Subject::with_options(options);
    for _ in 0..1_000 {
        subject.client.error("CL.THROTTLE k 15 30 60");
    }
    let lines = |subject: &Subject| -> Vec<String> {
        subject
            .server
            .log()
            .lines()
            .filter(|line| line.contains("more were not logged"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(lines(&subject).len(), 5, "{}", subject.server.log());
    subject.clock.pass(10 * SECOND);
    subject.client.error("CL.THROTTLE k 15 30 60");
    let lines = lines(&subject);
    assert_eq!(lines.len(), 6);
    assert!(lines[5].contains("(995 more were not logged)"), "{}", lines[5]);
}

/// Names of keys and holders can be personal data, such as addresses. The module does not log them.
#[test]
fn no_name_of_a_key_gets_into_the_log() {
    for fault in ["none", "panic"] {
        let server =
            Options::new().module(faulty_module_path()).environment("REDIS_CELL_FAULT", fault).start();
        let mut client = server.connect();
        client.call("RPUSH confidential:list x");
        for command in limiters() {
            for key in ["confidential", "confidential:list"] {
                let call = command.call.replace("FIRST", "limit:other").replace("KEY", key);
                let call = call.replace("ID", "confidential:id");
                for call in [
                    call.clone(),
                    format!("{call} confidential:option"),
                    call.replace("3600", "confidential"),
                ] {
                    let _ = client.ask(&call);
                }
            }
        }
        let _ = client.ask("MODULE LOAD /confidential.so");
        let log = server.log();
        let about_us = log.lines().filter(|line| line.contains("<redis-cell>") || line.contains("seeded"));
        for line in about_us {
            assert!(!line.contains("confidential"), "{line}");
        }
    }
}
