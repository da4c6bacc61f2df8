//! CL.LOG: its replies, states and effects.

use crate::common::{Client, ReplicaStream, Server, ceil_div, entries, propagated, wait_until, wall_ns};

#[test]
fn units_of_one_microsecond_have_names_of_their_own() {
    let (_server, mut client) = Server::with_client();
    // Entries from the future, as after a failover to a server whose clock is behind, count like others.
    client.call("CL.LOG k 10000 3600");
    let future = entries(&mut client, "k")[0].1 + 3_000_000_000;
    client.call(&format!("ZADD k {future} {future}-0"));
    client.call(&format!("PEXPIREAT k {}", ceil_div((future + 3_600_000_000).into(), 1_000)));
    for _ in 0..50 {
        client.call("CL.LOG k 10000 3600 7");
    }
    assert_eq!(client.int("ZCARD k"), 352);
    assert_eq!(client.expiry_ms("k"), ceil_div((future + 3_600_000_000).into(), 1_000));
    // Many calls within one script come closer to each other than any client's.
    let script = "for i = 1, 1000 do redis.call('CL.LOG', KEYS[1], 10000, 3600, 2) end";
    client.call(&["EVAL", script, "1", "k"]);
    assert_eq!(client.int("ZCARD k"), 2352);
    assert_eq!(client.ints("CL.LOG k 10000 3600 0")[2], 10_000 - 2352);
}

#[test]
fn a_refused_call_removes_nothing_and_the_next_admitted_one_what_has_left() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    let look = |client: &mut Client| client.ints("CL.LOG k 2 4000 0 MS");
    client.call("CL.LOG k 2 4000 1 MS");
    wait_until("half the period", || match look(&mut client)[4] {
        ..=2000 => Ok(()),
        left => Err(format!("{left} ms left")),
    });
    client.call("CL.LOG k 2 4000 1 MS");
    wait_until("the first entry to leave", || match look(&mut client)[2] {
        1 => Ok(()),
        seen => Err(format!("{seen} remaining")),
    });
    let before = entries(&mut client, "k");
    assert_eq!(before.len(), 2, "looks remove nothing");
    assert_eq!(client.ints("CL.LOG k 2 4000 2 MS")[0], 1);
    assert_eq!(entries(&mut client, "k"), before, "a refusal removes nothing");
    stream.effects(&server);

    assert_eq!(client.ints("CL.LOG k 2 4000 1 MS")[..3], [0, 2, 0]);
    let after = entries(&mut client, "k");
    assert_eq!((after.len(), &after[0]), (2, &before[1]));
    let score = after[1].1;
    let effects = [
        format!("ZADD k NX {score} {score}-0"),
        "ZREMRANGEBYRANK k 0 0".to_owned(),
        format!("PEXPIREAT k {}", ceil_div((score + 4_000_000).into(), 1_000)),
    ];
    assert_eq!(stream.effects(&server), propagated(0, effects));
}

/// The work of a call on a log of a million is bounded by its quantity, not by the log.
#[test]
fn a_million_entries_are_handled_in_bounded_steps() {
    let (_server, mut client) = Server::with_client();
    for i in 1..=100 {
        assert_eq!(client.ints("CL.LOG k 1000000 3600 10000")[..3], [0, 1_000_000, 1_000_000 - i * 10_000]);
    }
    assert_eq!(client.ints("CL.LOG k 1000000 3600")[..3], [1, 1_000_000, 0]);
    assert_eq!(client.ints("CL.LOG k 1000000 3600 9999")[..3], [1, 1_000_000, 0]);
    assert_eq!(client.int("ZCARD k"), 1_000_000);
}

#[test]
fn what_has_left_is_removed_in_bounded_steps() {
    let (_server, mut client) = Server::with_client();
    let now = ceil_div(wall_ns().into(), 1_000);
    let left = (now - 7_200_000_000).to_string();
    for chunk in 0..5 {
        let mut command = vec!["ZADD".to_owned(), "k".to_owned()];
        command.extend((0..5_000).flat_map(|k| [left.clone(), format!("{left}-{}", chunk * 5_000 + k)]));
        client.call(&command);
    }
    client.call(&format!("ZADD k {now} {now}-0"));
    client.call("PEXPIRE k 3600000");
    for (remaining, cards) in [(999_998, 15_002), (999_997, 5_003), (999_996, 4), (999_995, 5)] {
        assert_eq!(client.ints("CL.LOG k 1000000 3600")[..3], [0, 1_000_000, remaining]);
        assert_eq!(client.int("ZCARD k"), cards);
    }
}

/// Entries at every microsecond of a while: whenever a call comes, it meets one, and so does the start of its
/// period.
#[test]
fn instants_are_told_apart_to_the_microsecond() {
    const ENTRIES: i64 = 300_000;
    let (server, mut client) = Server::with_client();
    let wall_us = || ceil_div(wall_ns().into(), 1_000);
    let wait_for = |instant: i64| {
        wait_until("the clock", || match instant - wall_us() {
            ..0 => Ok(()),
            left => Err(format!("{left} us left")),
        });
    };
    let script = "for i = 1, 20 do redis.call('CL.LOG', KEYS[1], 1000000, 60) end";
    // The entries have to be there before the clock comes to them, and the calls made before it has passed
    // them. A busy machine gets more time.
    let in_time = [6, 20, 60].into_iter().find_map(|seconds| {
        client.call("DEL k");
        let first = wall_us() + seconds * 1_000_000;
        for chunk in (first..first + ENTRIES).collect::<Vec<_>>().chunks(10_000) {
            let mut command = vec!["ZADD".to_owned(), "k".to_owned()];
            command.extend(chunk.iter().flat_map(|score| [score.to_string(), format!("{score}-0")]));
            client.call(&command);
        }
        client.call("PEXPIRE k 3600000");
        let stream = ReplicaStream::attach(&server);
        wait_for(first);
        client.call(&["EVAL", script, "1", "k"]);
        (wall_us() < first + ENTRIES).then_some((first, stream))
    });
    let (first, mut stream) = in_time.expect("a machine that runs twenty calls in 300 ms");
    assert_eq!(client.int("ZCARD k"), ENTRIES + 20);
    let effects = stream.effects(&server);
    let added: Vec<&str> = effects.iter().filter_map(|e| e.command.strip_prefix("ZADD k NX ")).collect();
    assert_eq!(added.len(), 20, "each found its name at once: {effects:?}");
    let mut scores: Vec<i64> = (first..first + ENTRIES).collect();
    for added in added {
        let (score, member) = added.split_once(' ').unwrap();
        assert_eq!(member, format!("{score}-1"));
        scores.push(score.parse().unwrap());
    }
    scores.sort_unstable();

    wait_for(first + ENTRIES);
    let period = wall_us() - first - ENTRIES / 3;
    let script = "local seen = {} for i = 1, 100 do \
                  local r = redis.call('CL.LOG', KEYS[1], 1000000, ARGV[1], 0, 'US') \
                  seen[2 * i - 1], seen[2 * i] = r[3], r[5] end return seen";
    let seen = client.ints(&["EVAL", script, "1", "k", &period.to_string()]);
    for pair in seen.chunks(2) {
        let (remaining, reset) = (pair[0], pair[1]);
        let now = scores.last().unwrap() + period - reset;
        let alive = scores.iter().filter(|&&score| score + period > now).count();
        assert!(alive > 0 && alive < scores.len(), "nothing was tested");
        assert_eq!(remaining, 1_000_000 - i64::try_from(alive).unwrap(), "at {now}");
    }
}
