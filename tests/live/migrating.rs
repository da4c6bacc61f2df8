//! The statements of docs/migrating.md about other limiters: which states are taken over, which are rejected,
//! and how the decisions of the call before and the call after compare. The scripts imitate the scripts of
//! other projects without copying them.

use super::effects::no_child;
use super::replication::{attach, catch_up};
use crate::common::{Client, Options, Server, requires, wait_until, wall_ns};
use std::fs::OpenOptions;
use std::io::Write;

/// A command as it is written to an append-only file and to a replication stream.
fn resp(command: &str) -> String {
    let words: Vec<String> =
        command.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}

/// The reply of a script to a key and arguments.
fn eval(client: &mut Client, script: &str, key: &str, arguments: &[&str]) -> Vec<i64> {
    client.ints(&[&["EVAL", script, "1", key], arguments].concat())
}

/// brandur/redis-cell replicates calls, even refused ones, so a replica with this module decides each again.
#[test]
fn a_replica_decides_the_calls_of_a_primary_with_redis_cell() {
    let primary = Server::start();
    let mut client = primary.connect();
    requires!(client.ask("DEBUG REPLICATE PING").is_ok(), "no DEBUG REPLICATE");
    let replica = attach(&primary, Options::new().append_only());
    let mut copy = replica.connect();
    let mut from_redis_cell = |call: &str| {
        client.call(&format!("DEBUG REPLICATE {call}"));
        catch_up(&mut client, &mut copy);
        copy.tat("k")
    };
    from_redis_cell("SELECT 0");
    let first = from_redis_cell("CL.THROTTLE k 1 1 3600").expect("admitted");
    let second = from_redis_cell("CL.THROTTLE k 1 1 3600 1").expect("admitted");
    assert_eq!(second - first, 3_600_000_000_000);
    assert_eq!(from_redis_cell("CL.THROTTLE k 1 1 3600"), Some(second), "refused again");
    // A call that 0.5.0 admits and this module rejects is lost, and the link stays up.
    assert_eq!(from_redis_cell("CL.THROTTLE k 1 +1 3600"), Some(second));
    assert_eq!(from_redis_cell("DEL k"), None);
    assert_eq!(copy.info("master_link_status"), "up");
    // The replica's own file contains states, so a restart does not decide the calls a third time.
    no_child(&mut copy);
    let files = std::fs::read_dir(replica.folder().join("appendonlydir")).unwrap();
    // Files that the rewrite has replaced may be deleted by now.
    let file: Vec<u8> =
        files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap_or_default()).collect();
    let text = String::from_utf8_lossy(&file);
    assert!(text.contains(&second.to_string()) && !text.contains("CL.THROTTLE"), "{text}");
}

/// An append-only file of brandur/redis-cell contains calls, and a replay decides them at the time of the
/// replay.
#[test]
fn a_file_of_calls_is_decided_again_and_a_file_of_states_is_not() {
    let mut server = Options::new().append_only().set("aof-use-rdb-preamble", "no").start();
    let mut client = server.connect();
    client.call("SET marker 1");
    let parts = server.folder().join("appendonlydir/appendonly.aof.1.incr.aof");
    let file = if parts.exists() { parts } else { server.folder().join("appendonly.aof") };
    let mut file = OpenOptions::new().append(true).open(file).unwrap();
    file.write_all(resp("CL.THROTTLE k 0 1 3600").as_bytes()).unwrap();
    file.write_all(resp("CL.THROTTLE k 0 1 3600").as_bytes()).unwrap(); // refused
    drop((file, client));

    let replayed = wall_ns();
    server.restart();
    let mut client = server.connect();
    let state = client.tat("k").expect("replayed");
    assert!(state >= replayed + 3_600_000_000_000, "{state} from a replay after {replayed}");

    client.call("BGREWRITEAOF");
    no_child(&mut client);
    assert_eq!(client.info("aof_last_bgrewrite_status"), "ok");
    server.restart();
    assert_eq!(server.connect().tat("k"), Some(state));
}

/// In the manner of `redis_rate`: GCRA in floating point, the state in seconds since 2017.
const GCRA_IN_LUA: &str = "
    local burst, rate, period, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
    local clock, interval = redis.call('TIME'), period / rate
    local now = clock[1] - 1483228800 + clock[2] / 1000000
    local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + interval * cost
    local room = (now - tat + interval * burst) / interval
    if room < 0 then return {0, 0} end
    redis.call('SET', KEYS[1], tat, 'EX', math.ceil(tat - now))
    return {cost, math.floor(room)}";

#[test]
fn from_redis_rate() {
    let (_server, mut client) = Server::with_client();
    // redis_rate.PerHour(10), and the same limit here: its burst includes the first request, max_burst does
    // not.
    for expected in (0..10).rev() {
        assert_eq!(eval(&mut client, GCRA_IN_LUA, "rate:u", &["10", "10", "3600", "1"]), [1, expected]);
        assert_eq!(client.throttle_checked("limit:u", "9 10 3600")[..3], [0, 10, expected]);
    }
    assert_eq!(eval(&mut client, GCRA_IN_LUA, "rate:u", &["10", "10", "3600", "1"]), [0, 0]);
    assert_eq!(client.throttle_checked("limit:u", "9 10 3600")[..3], [1, 10, 0]);
    // AllowAtMost is SATURATE.
    assert_eq!(client.throttle_checked("limit:v", "9 10 3600 25 SATURATE")[5], 10);

    let before = client.snapshot("rate:u");
    assert!(client.error("CL.THROTTLE rate:u 9 10 3600").contains("does not hold this limiter's state"));
    assert_eq!(client.snapshot("rate:u"), before, "its state is in another unit, and stays as it was");
}

/// In the manner of Spring Cloud Gateway's `request_rate_limiter`: tokens and the whole second in two
/// strings.
const TOKENS_IN_LUA: &str = "
    local rate, capacity, requested = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    local tokens, stamp, ttl = KEYS[1] .. '.tokens', KEYS[1] .. '.timestamp', math.floor(capacity / rate * 2)
    local now = tonumber(redis.call('TIME')[1])
    local left = tonumber(redis.call('GET', tokens) or capacity)
    left = math.min(capacity, left + math.max(0, now - tonumber(redis.call('GET', stamp) or 0)) * rate)
    local allowed = left >= requested
    if allowed then left = left - requested end
    if ttl > 0 then
        redis.call('SETEX', tokens, ttl, left)
        redis.call('SETEX', stamp, ttl, now)
    end
    return {allowed and 1 or 0, left}";

#[test]
fn from_spring_cloud_gateway() {
    let (_server, mut client) = Server::with_client();
    // Of a burst within a second both admit the capacity. If the machine is too slow, the test starts over.
    wait_until("21 calls within a second of the server's clock", || {
        client.call("FLUSHALL");
        let second = client.get::<(i64, i64), _>("TIME").0;
        let spring: Vec<_> =
            (0..21).map(|_| eval(&mut client, TOKENS_IN_LUA, "{r.u}", &["10", "20", "1"])).collect();
        let bucket: Vec<_> = (0..21).map(|_| client.ints("CL.BUCKET limit:u 20 10 1 1")).collect();
        if client.get::<(i64, i64), _>("TIME").0 != second || bucket[20][0] == 0 {
            return Err("a call that took longer".to_owned());
        }
        for (i, (spring, bucket)) in (0_i64..).zip(spring.iter().zip(&bucket)) {
            let admitted = i64::from(i < 20);
            assert_eq!(spring, &[admitted, (19 - i).max(0)], "call {i}");
            // Here, whole tokens arrive during the burst, one every 100 ms.
            assert_eq!(bucket[0], 1 - admitted, "call {i}: {bucket:?}");
        }
        Ok(())
    });
    // Its keys are not states of this module.
    for (call, error) in [
        ("CL.BUCKET {r.u}.tokens 20 10 1", "WRONGTYPE"),
        ("CL.THROTTLE {r.u}.tokens 19 10 1", "ERR the key does not hold"),
        ("CL.THROTTLE {r.u}.timestamp 19 10 1", "ERR the key does not hold"),
    ] {
        client.call("SET {r.u}.tokens 7 EX 100");
        client.call("SET {r.u}.timestamp 1795247506 EX 100");
        let seen = client.error(call);
        assert!(seen.starts_with(error), "{call}: {seen}");
    }
    // With a rate above twice the capacity nothing is stored there, so nothing is limited. Here it is.
    for _ in 0..100 {
        assert_eq!(eval(&mut client, TOKENS_IN_LUA, "{r.v}", &["3000", "1000", "1000"])[0], 1);
    }
    assert_eq!(client.ints("CL.BUCKET limit:v 1000 3000 3600 1000")[..3], [0, 1000, 0]);
    assert_eq!(client.ints("CL.BUCKET limit:v 1000 3000 3600 1000")[..3], [1, 1000, 0]);
}

/// The usual sliding window on a sorted set, scored in milliseconds.
const WINDOW_IN_LUA: &str = "
    local limit, period = tonumber(ARGV[1]), tonumber(ARGV[2])
    local clock = redis.call('TIME')
    local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - period)
    local count = redis.call('ZCARD', KEYS[1])
    if count >= limit then return {0, 0} end
    redis.call('ZADD', KEYS[1], now, ARGV[3])
    redis.call('PEXPIRE', KEYS[1], period)
    return {1, limit - count - 1}";

#[test]
fn from_a_window_on_a_sorted_set() {
    let (_server, mut client) = Server::with_client();
    for (id, expected) in (0..5).rev().enumerate() {
        let answer = eval(&mut client, WINDOW_IN_LUA, "win", &["5", "3600000", &format!("request-{id}")]);
        assert_eq!(answer, [1, expected]);
        assert_eq!(client.ints("CL.LOG log 5 3600")[..3], [0, 5, expected]);
    }
    assert_eq!(eval(&mut client, WINDOW_IN_LUA, "win", &["5", "3600000", "late"]), [0, 0]);
    assert_eq!(client.ints("CL.LOG log 5 3600")[..3], [1, 5, 0]);

    let before = client.snapshot("win");
    assert!(client.error("CL.LOG win 5 3600").contains("microseconds since the epoch"));
    assert_eq!(client.snapshot("win"), before);
    // The conversion on the page: a thousand times the score.
    client.call("ZUNIONSTORE moved 1 win WEIGHTS 1000");
    client.call("PEXPIRE moved 3600000");
    let reply = client.ints("CL.LOG moved 5 3600");
    assert_eq!(reply[..3], [1, 5, 0], "as full as it was");
    assert!((3_590..=3_600).contains(&reply[3]), "{reply:?}");
    assert_eq!(client.ints("CL.LOG moved 6 3600")[..3], [0, 6, 0], "and it goes on");
}

/// `INCREX key BYINT 1 UBOUND 5 EX 60 ENX` leaves the same string with the same expiry.
#[test]
fn from_incr_and_expire() {
    let (_server, mut client) = Server::with_client();
    for _ in 0..2 {
        client.call("INCR k");
    }
    assert!(
        client.error("CL.FIXED k 5 3600").contains("expires"),
        "a counter that never expires is somebody's"
    );
    client.call("PEXPIRE k 3600000");
    let expiry = client.expiry_ms("k");
    assert_eq!(client.ints("CL.FIXED k 5 3600")[..4], [0, 5, 2, -1], "it continues from the count of INCR");
    assert_eq!(client.expiry_ms("k"), expiry, "in the same window");
    assert_eq!(client.int("INCR k"), 4, "and back");
    assert_eq!(client.ints("CL.FIXED k 5 3600")[..3], [0, 5, 0]);
    assert_eq!(client.ints("CL.FIXED k 5 3600")[..3], [1, 5, 0]);
    assert_eq!(client.text("GET k"), "5", "a refused call does not count");
    assert_eq!(client.int("INCR k"), 6, "with INCR it does");
    assert_eq!(client.ints("CL.FIXED k 5 3600")[..3], [1, 5, 0]);
}

/// Where the server has the command: both count in the same key and the same window.
#[test]
fn from_increx() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("INCREX"), "no INCREX");
    let increx = |quantity: i64| format!("INCREX k BYINT {quantity} UBOUND 5 EX 3600 ENX");
    assert_eq!(client.ints(&increx(3)), [3, 3]);
    let expiry = client.expiry_ms("k");
    assert_eq!(client.ints("CL.FIXED k 5 3600")[..4], [0, 5, 1, -1], "it continues from the count of INCREX");
    assert_eq!(client.expiry_ms("k"), expiry, "in the same window");
    assert_eq!(client.ints(&increx(1)), [5, 1], "and back");
    assert_eq!(client.ints(&increx(1)), [5, 0]);
    assert_eq!(client.ints("CL.FIXED k 5 3600")[..3], [1, 5, 0], "both refuse");
    assert_eq!(client.expiry_ms("k"), expiry);

    assert_eq!(client.ints("CL.FIXED fresh 5 3600 4")[..3], [0, 5, 1]);
    let expiry = client.expiry_ms("fresh");
    assert_eq!(client.ints("INCREX fresh BYINT 1 UBOUND 5 EX 60 ENX"), [5, 1]);
    assert_eq!(client.expiry_ms("fresh"), expiry, "INCREX leaves the window that CL.FIXED opened");
}

/// Dragonfly stores the state of brandur/redis-cell, in a string that can be read.
#[test]
fn from_dragonfly_by_copying_key_and_expiry() {
    let (_server, mut client) = Server::with_client();
    let now = wall_ns();
    let tat = now + 3 * 360_000_000_000; // three of ten an hour, as GET shows it there
    client.call(&format!("SET k {tat}"));
    client.call(&format!("PEXPIREAT k {}", tat / 1_000_000 + 1));
    let reply = client.throttle_checked("k", "9 10 3600 8");
    assert_eq!(reply[..3], [1, 10, 7], "{reply:?}");
    assert_eq!(client.throttle_checked("k", "9 10 3600 7")[..3], [0, 10, 0]);
}
