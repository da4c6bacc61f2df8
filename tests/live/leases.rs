//! CL.ACQUIRE, CL.RENEW, CL.RELEASE: replies, states, effects; and sorted sets that are a log or leases.

use crate::common::{ReplicaStream, Server, ceil_div, entries, propagated, wall_ns};

/// The wall clock in microseconds.
fn wall_us() -> i64 {
    ceil_div(wall_ns().into(), 1_000)
}

#[test]
fn names_are_any_bytes() {
    let (server, mut client) = Server::with_client();
    let long = vec![b'x'; 1 << 20];
    let ids: [&[u8]; 7] = [b"", b"a\0b", b"\xff\xfe", b"\r\n$5\r\n", b"%s%n", b"MS", &long];
    for (i, id) in ids.into_iter().enumerate() {
        let taken = i64::try_from(i).unwrap() + 1;
        let acquire: [&[u8]; 5] = [b"CL.ACQUIRE", b"k", b"9", b"3600", id];
        assert_eq!(client.ints(&acquire), [0, 9, 9 - taken, -1, 3600]);
        assert_eq!(client.ints(&acquire), [0, 9, 9 - taken, -1, 3600], "the same holder");
    }
    let mut stored: Vec<Vec<u8>> = entries(&mut client, "k").into_iter().map(|(id, _)| id).collect();
    stored.sort();
    let mut expected: Vec<Vec<u8>> = ids.iter().map(|id| id.to_vec()).collect();
    expected.sort();
    assert!(stored == expected, "names are kept byte by byte");
    for id in ids {
        assert_eq!(client.int(&[b"CL.RENEW".as_ref(), b"k", b"3600", id]), 1);
        assert_eq!(client.int(&[b"CL.RELEASE".as_ref(), b"k", id]), 1);
    }
    assert_eq!(client.int("EXISTS k"), 0);
    for key in ids {
        assert_eq!(client.ints(&[b"CL.ACQUIRE".as_ref(), key, b"1", b"60", b"me"]), [0, 1, 0, -1, 60]);
    }
    server.assert_alive("names of any bytes");
}

const CALLS: [&str; 5] = [
    "CL.ACQUIRE KEY 3 60 a",
    "CL.RENEW KEY 60 a",
    "CL.RELEASE KEY a",
    "CL.LOG KEY 3 60",
    "CL.LOG KEY 3 60 0 MS",
];

/// CL.ACQUIRE took a log's entries for leases that had ended, and CL.RELEASE deleted a whole log.
#[test]
fn logs_and_leases_are_told_apart() {
    let (_server, mut client) = Server::with_client();
    client.call("CL.LOG log 5 3600 5");
    client.call("CL.LOG one 5 3600");
    client.call("CL.ACQUIRE leases 5 3600 a");
    client.call("CL.ACQUIRE leases 5 1800 1700000000000000-0");
    let (score, name) = (wall_us(), "2-0");
    client.call(&format!("ZADD ended {score} {score}-0"));
    // Taken over from another program, and continued.
    client.call(&format!("ZADD moved {} request-1", score - 1_000));
    client.call("CL.LOG moved 5 3600");
    for (key, calls) in
        [("log", &CALLS[..3]), ("one", &CALLS[..3]), ("ended", &CALLS[..3]), ("leases", &CALLS[3..])]
    {
        let before = client.snapshot(key);
        for call in calls {
            let call = call.replace(" a", &format!(" {name}")).replace("KEY", key);
            let error = client.error(&call);
            assert!(error.contains("does not hold"), "{call}: {error}");
        }
        assert_eq!(client.snapshot(key), before, "{key}");
    }
    assert_eq!(client.ints("CL.LOG log 5 3600")[..3], [1, 5, 0]);
    assert_eq!(client.int("CL.RELEASE leases 1700000000000000-0"), 1);
    assert_eq!(client.int("CL.RELEASE leases a"), 1);
    // Many entries, in another encoding.
    client.call("CL.LOG many 1000 3600 500");
    let error = client.error("CL.RELEASE many a");
    assert!(error.contains("does not hold"), "{error}");
    assert_eq!(client.int("ZCARD many"), 500);
}

/// A holder that is called like an entry of a log, at the very microsecond at which its lease ends, would
/// have locked all others out.
#[test]
fn nobody_can_make_leases_look_like_a_log() {
    let (_server, mut client) = Server::with_client();
    // Each name has the microsecond at which the lease ends if this call comes as long after the last call as
    // that call after the one before.
    let script = "local last, step = 0, 0 \
                  for i = 1, 100000 do \
                  local id = string.format('%.0f-0', last + step) \
                  redis.call('CL.ACQUIRE', KEYS[1], 1, 60, id) \
                  local score = tonumber(redis.call('ZSCORE', KEYS[1], id)) \
                  redis.call('CL.RELEASE', KEYS[1], id) \
                  if string.format('%.0f-0', score) == id then return 'stored as it is' end \
                  if string.format('%.0f-0', score + 1) == id then return 'moved' end \
                  last, step = score, score - last end return 'never met'";
    assert_eq!(client.text(&["EVAL", script, "1", "k"]), "moved");
}

#[test]
fn an_end_is_a_whole_number() {
    let (_server, mut client) = Server::with_client();
    let soon = wall_ns() / 1_000 + 60_000_000;
    for (fraction, is_end) in [(0, true), (5, false)] {
        client.call(&format!("ZADD k {soon}.{fraction} x"));
        client.call(&format!("PEXPIREAT k {}", soon / 1_000));
        assert_eq!(client.ask("CL.ACQUIRE k 2 60 y").is_ok(), is_end);
        client.call("DEL k");
    }
}

/// The lowest end was more than ten years from the clock and from the key's expiry, so no holder could
/// release.
#[test]
fn leases_far_apart_stay_the_limiters_own() {
    let (_server, mut client) = Server::with_client();
    assert_eq!(client.ints("CL.ACQUIRE k 3 346896000 eleven-years")[..3], [0, 3, 2]);
    assert_eq!(client.ints("CL.ACQUIRE k 3 693792000 twenty-two")[..3], [0, 3, 1]);
    assert_eq!(client.ints("CL.ACQUIRE k 3 7000000000 two-hundred")[..3], [0, 3, 0]);
    assert_eq!(client.ints("CL.ACQUIRE k 3 60 another")[..3], [1, 3, 0]);
    assert_eq!(client.int("CL.RENEW k 400000000 eleven-years"), 1);
    for id in ["eleven-years", "twenty-two", "two-hundred"] {
        assert_eq!(client.int(&["CL.RELEASE", "k", id]), 1);
    }
    assert_eq!(client.int("EXISTS k"), 0);
    // Leases of up to ten years need no expiry.
    client.call("CL.ACQUIRE k 2 315000000 a");
    client.call("PERSIST k");
    assert_eq!(client.int("CL.RENEW k 315000000 a"), 1);
    // So does a log with a long period, and one that is restored when its entries have left.
    assert_eq!(client.ints("CL.LOG log 1 7000000000")[..3], [0, 1, 0]);
    client.call("PERSIST log");
    assert_eq!(client.ints("CL.LOG log 1 7000000000")[..3], [1, 1, 0]);
    client.call("ZADD old 1000 1000-0 2000 2000-0");
    assert_eq!(client.ints("CL.LOG old 1 60")[..3], [0, 1, 0]);
    assert_eq!(client.int("ZCARD old"), 1);
}

/// Of leases that end later than their key lives, each ends with it. Leases of later calls do not.
#[test]
fn a_life_that_was_shortened_shortens_the_leases_that_there_were() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    client.call("CL.ACQUIRE k 3 100000 a");
    client.call("CL.ACQUIRE k 3 100000 c");
    let before = entries(&mut client, "k");
    let life = wall_ns() / 1_000_000 + 3_600_000;
    client.call(&format!("PEXPIREAT k {life}"));
    stream.effects(&server);
    let earliest = wall_ns() / 1_000 + 7_200_000_000;
    client.call("CL.ACQUIRE k 3 7200 b");
    let ends = entries(&mut client, "k");
    let [a, c] = [0, 1].map(|at| before[at].1 - (before[1].1 - life * 1_000));
    assert_eq!(ends[..2], [(b"a".to_vec(), a), (b"c".to_vec(), c)]);
    assert_eq!(ends[2].0, b"b");
    let b = ends[2].1;
    assert!(b >= earliest, "{b}");
    let expected = [
        format!("ZADD k XX {c} c"),
        format!("ZADD k XX {a} a"),
        format!("ZADD k {b} b"),
        format!("PEXPIREAT k {}", ceil_div(b.into(), 1_000)),
    ];
    assert_eq!(stream.effects(&server), propagated(0, expected));
}

/// A lease that ends before the key does is neither moved nor forgotten beside one that ends later.
#[test]
fn a_life_that_was_shortened_leaves_earlier_leases_as_they_are() {
    let server = Server::start();
    let mut client = server.connect();
    client.call("CL.ACQUIRE k 3 1000 a");
    client.call("CL.ACQUIRE k 3 100000 b");
    client.call("EXPIRE k 3600");
    let seen = client.ints("CL.ACQUIRE k 2 7200 c");
    assert_eq!(seen[..3], [1, 2, 0]);
    assert!((900..=1000).contains(&seen[3]), "{seen:?}");
}
