//! Totals: counts without end, and what they keep of the expiry of their keys. Chains: pools in order,
//! joined by `ELSE` and `SPILL`.

use crate::common::{BINARY, Client, Server, Waiter, wait_for_blocked, wait_until};
use crate::several::rows;

/// The time until the key expires in milliseconds, or -1.
fn left(client: &mut Client, key: &str) -> i64 {
    client.int(&["PTTL", key])
}

#[test]
fn a_total_keeps_the_expiry_of_its_key() {
    let (_server, mut client) = Server::with_client();
    // A count of INCR, and a count with an expiry from another client.
    client.call("INCRBY k 3");
    assert_eq!(client.ints("CL.FIXED k 10 TOTAL 1"), [0, 10, 6, -1, -1]);
    client.call("EXPIRE k 100");
    let expiry = client.expiry_ms("k");
    assert_eq!(client.ints("CL.FIXED k 10 TOTAL 1"), [0, 10, 5, -1, 100]);
    assert_eq!(client.ints("CL.FIXED k 10 TOTAL 6"), [1, 10, 5, 100, 100]);
    assert_eq!(client.ints("CL.FIXED k 10 TOTAL 11"), [1, 10, 5, -1, 100]);
    assert_eq!(rows(&mut client, "CL.MSETTLE k FIXED 10 TOTAL -1")[1], [0, 10, 6, -1, 100]);
    assert_eq!(client.expiry_ms("k"), expiry);
    // An expiry after the last instant of the module, which Redis 6.0 tells it in a way that it cannot keep.
    if BINARY.at_least(6, 2, 0) {
        client.call("PEXPIREAT k 99999999999999");
        assert_eq!(client.ints("CL.FIXED k 10 TOTAL 1")[..4], [0, 10, 5, -1]);
        assert_eq!(client.ints("CL.FIXED k 10 TOTAL IDLE 9 1")[..4], [0, 10, 4, -1]);
        assert_eq!(client.expiry_ms("k"), 99_999_999_999_999);
    }
    // Other windows refuse a count without expiry, and a total one of the size of an instant.
    client.call("SET forever 5");
    assert!(client.error("CL.FIXED forever 10 60").contains("expected a count that expires with its window"));
    client.call("SET tat 1700000000000000000");
    let error = client.error("CL.FIXED tat 9223372036854775807 TOTAL");
    assert_eq!(
        error,
        "ERR the key does not hold this limiter's state: expected a count, below 10^18 if it does not expire"
    );
    assert_eq!(client.text("GET tat"), "1700000000000000000");
    client.call("CL.THROTTLE gcra 5 5 60");
    assert!(client.error("CL.FIXED gcra 9223372036854775807 TOTAL").contains("limiter's state"));
    client.call("RPUSH list a");
    assert!(client.error("CL.FIXED list 5 TOTAL").starts_with("WRONGTYPE"));
}

#[test]
fn every_take_renews_the_idle_time() {
    let (_server, mut client) = Server::with_client();
    assert_eq!(client.ints("CL.FIXED k 10 TOTAL IDLE 100 4"), [0, 10, 6, -1, 100]);
    let expiry = client.expiry_ms("k");
    wait_until("the clock ticks", || match left(&mut client, "k") {
        99_990.. => Err("too early".to_owned()),
        _ => Ok(()),
    });
    // Refusals, looks, and units that are given back do not renew it.
    client.call("CL.FIXED k 10 TOTAL IDLE 100 7");
    client.call("CL.FIXED k 10 TOTAL IDLE 100 0");
    client.call("CL.MPEEK k FIXED 10 TOTAL IDLE 100 1");
    client.call("CL.MSETTLE k FIXED 10 TOTAL IDLE 100 -1");
    client.call("CL.FIXED k 10 TOTAL 1");
    assert_eq!(client.expiry_ms("k"), expiry);
    client.call("CL.FIXED k 10 TOTAL IDLE 100 1");
    let renewed = client.expiry_ms("k");
    assert!(renewed > expiry);
    client.call("CL.FIXED k 10 TOTAL IDLE 50 1");
    assert_eq!(client.expiry_ms("k"), renewed, "a key that expires later stays so");
    client.call("CL.MSETTLE k FIXED 10 TOTAL IDLE 200 1");
    assert!(client.expiry_ms("k") > renewed + 90_000, "a charge renews it");
    client.call("PERSIST k");
    assert_eq!(client.ints("CL.FIXED k 10 TOTAL IDLE 100 1")[4], 100, "a key without expiry gets one");
    // The wait of a refusal ends with the key.
    client.call("CL.FIXED soon 1 TOTAL IDLE 30 1 MS");
    wait_until("the key has expired", || match client.ints("CL.FIXED soon 1 TOTAL IDLE 30 1 MS")[..] {
        [0, ..] => Ok(()),
        ref refused => Err(format!("{refused:?}")),
    });
}

/// Of options that stand behind the quantity; the others are tested in core.
#[test]
fn what_is_wrong_with_a_total_is_said() {
    let (_server, mut client) = Server::with_client();
    let syntax = "ERR syntax error";
    for (call, error) in [
        ("CL.FIXED k 5 TOTAL 1 UTC 60", syntax),
        ("CL.FIXED k 5 TOTAL IDLE 5 1 FROM 1", syntax),
        ("CL.FIXED k 5 TOTAL 1 IDLE 5", syntax),
        ("CL.FIXED k 5 60 1 IDLE 5", syntax),
        ("CL.FIXED k 5 TOTAL IDLE", syntax),
        ("CL.MTAKE k FIXED 5 TOTAL IDLE 5", syntax),
        ("CL.FIXED k 5 TOTAL x", "ERR quantity must be an integer from 0 to 9223372036854775807"),
        ("CL.MSETTLE k RESET -1 FIXED 5 60 -1 AGO 1", "ERR RESET must be an integer from 0 to 9223372036"),
        ("CL.MSETTLE k RESET -1 LOG 5 60 -1 AGO 1", "ERR RESET must be an integer from 0 to 9223372036"),
    ] {
        assert_eq!(client.error(call), error, "{call}");
    }
    assert_eq!(rows(&mut client, "CL.MSETTLE k RESET -1 FIXED 5 TOTAL -1 AGO 1")[1][..3], [0, 5, 5]);
    assert_eq!(client.int("DBSIZE"), 0);
}

/// A reply as text, a row on each line.
fn reply(client: &mut Client, call: &str) -> String {
    let rows = rows(client, call);
    let line = |row: &Vec<i64>| row.iter().map(i64::to_string).collect::<Vec<_>>().join(" ");
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The account of the contract: included, then bought, then paid.
fn account(tokens: i64, cents: i64) -> String {
    format!(
        "{{o7}}:included FIXED 10000 UNTIL 9000000000 {tokens} SPILL {{o7}}:bought FIXED 5000 TOTAL {tokens} \
         ELSE {{o7}}:cents FIXED 200 TOTAL {cents}"
    )
}

#[test]
fn units_come_from_what_is_included_then_bought_then_paid() {
    let (_server, mut client) = Server::with_client();
    let mut take = |tokens, cents| {
        // `t` is the time until the year 2255.
        let number = |number: &i64| if *number > 1_000_000 { "t".to_owned() } else { number.to_string() };
        let row = |row: &Vec<i64>| row.iter().map(number).collect::<Vec<_>>().join(" ");
        let rows = rows(&mut client, &format!("CL.MTAKE {}", account(tokens, cents)));
        rows.iter().map(row).collect::<Vec<_>>()
    };
    for (tokens, cents, expected) in [
        // All of it is included.
        (
            9_000,
            36,
            ["0 15000 6000 -1 t 0", "0 10000 1000 -1 t 9000", "1 5000 5000 -1 0 0", "0 200 200 -1 0 0"],
        ),
        // A part of it is; the rest was bought.
        (
            1_200,
            36,
            ["0 15000 4800 -1 -1 0", "1 10000 0 t t 1000", "0 5000 4800 -1 -1 200", "0 200 200 -1 0 0"],
        ),
        // Neither has enough, so it is paid.
        (
            4_801,
            144,
            ["0 15000 4800 -1 -1 0", "1 10000 0 t t 0", "1 5000 4800 -1 -1 0", "0 200 56 -1 -1 144"],
        ),
        // A refusal has nothing in the last column. It ends when the window does.
        (4_801, 144, ["1 15000 4800 t -1 0", "1 10000 0 t t 0", "1 5000 4800 -1 -1 0", "1 200 56 -1 -1 0"]),
    ] {
        assert_eq!(take(tokens, cents), expected, "{tokens} tokens, {cents} cents");
    }
    // Never: more than the limit and what is left of the total.
    for (tokens, cents) in [(14_801, 144), (15_001, 57)] {
        assert_eq!(take(tokens, cents)[0], "1 15000 4800 -1 -1 0");
    }
}

/// A place may be given back at any time, so a chain with one waits, although its other pool never admits the
/// call. At its turn, it counts the client behind it.
#[test]
fn a_chain_with_a_place_waits_for_it_and_counts_who_waits_behind() {
    let (server, mut client) = Server::with_client();
    client.call("CL.ACQUIRE l 1 3600 other");
    let call = "CL.BMTAKE k THROTTLE 9 1 60 2 p FIXED 1 60 5 ELSE l LEASE 1 3600 me";
    let mut first = Waiter::ask(&server, call);
    wait_for_blocked(&mut client, 1);
    let _second = Waiter::ask(&server, "CL.BMTAKE k THROTTLE 9 1 60 3 l LEASE 1 3600 you");
    wait_for_blocked(&mut client, 2);
    client.call("CL.RELEASE l other");
    assert!(first.answer().contains(" 0 10 5 -1 "), "8 are left, and 3 of them wanted");
    // The same if the other pool only admits it after the timeout.
    client.call("CL.MTAKE p FIXED 1 DAY 1");
    let call = "CL.BMTAKE o THROTTLE 9 1 60 1 p FIXED 1 DAY 1 ELSE l LEASE 1 3600 they TIMEOUT 60";
    let mut third = Waiter::ask(&server, call);
    wait_for_blocked(&mut client, 2);
    client.call("CL.RELEASE l me");
    client.call("CL.RELEASE l you");
    assert!(third.answer().starts_with("0 "));
}

/// At its turn, a client counts those who wait for a limiter behind its first one, whole.
#[test]
fn a_turn_counts_who_waits_for_a_further_limiter() {
    let (server, mut client) = Server::with_client();
    client.call("CL.MTAKE l THROTTLE 0 1 3600 1 k THROTTLE 3 1 3600 1");
    let _waits = Waiter::ask(&server, "CL.BMTAKE k THROTTLE 3 1 3600 4");
    wait_for_blocked(&mut client, 1);
    let mut served = Waiter::ask(&server, "CL.BMTAKE l THROTTLE 0 1 3600 1 k THROTTLE 99 1 3600 2");
    wait_for_blocked(&mut client, 2);
    client.call("DEL l");
    assert!(served.answer().contains(" 0 100 93 -1 "), "97 are left, and 4 of them wanted");
}

#[test]
fn words_that_join_are_keys_where_a_limiter_stands_behind_them() {
    let (_server, mut client) = Server::with_client();
    let call = "CL.MTAKE a FIXED 5 TOTAL 1 ELSE FIXED 5 TOTAL 1 SPILL FIXED 5 TOTAL 1";
    assert_eq!(reply(&mut client, call), "0 5 4 -1 -1\n0 5 4 -1 -1\n0 5 4 -1 -1\n0 5 4 -1 -1");
    let call = "CL.MTAKE a FIXED 5 TOTAL 1 else SPILL FIXED 5 TOTAL 1 Spill ELSE FIXED 5 TOTAL 1 MS";
    assert_eq!(rows(&mut client, call).len(), 4);
    assert_eq!(client.get::<Vec<i64>, _>(&["MGET", "a", "ELSE", "SPILL"]), [2, 1, 1]);
    let keys = |client: &mut Client, call: &str| {
        let words: Vec<&str> = ["COMMAND", "GETKEYS"].into_iter().chain(call.split(' ')).collect();
        client.get::<Vec<String>, _>(&words)
    };
    assert_eq!(keys(&mut client, call), ["a", "SPILL", "ELSE"]);
    let chain = "CL.MTAKE a FIXED 5 TOTAL 1 ELSE b SHADOW FIXED 5 TOTAL 1 ONCE o 5";
    assert_eq!(keys(&mut client, chain), ["a", "b", "o"]);
    let syntax = "ERR syntax error";
    for (call, error) in [
        ("CL.MTAKE a FIXED 5 TOTAL 1 ELSE", syntax),
        ("CL.MTAKE a FIXED 5 TOTAL 1 ELSE b", syntax),
        ("CL.MTAKE ELSE a FIXED 5 TOTAL 1", syntax),
        ("CL.MTAKE a FIXED 5 TOTAL 1 ELSE ELSE b FIXED 5 TOTAL 1", syntax),
        (
            "CL.MTAKE a FIXED 5 TOTAL 1 ELSE log FIXED 5 TOTAL 1",
            "ERR limit must be an integer from 1 to 1000000",
        ),
        ("CL.MTAKE a SHADOW FIXED 5 TOTAL 1 ELSE b FIXED 5 TOTAL 1", syntax),
        ("CL.MTAKE a FIXED 5 TOTAL 1 ELSE b SHADOW FIXED 5 TOTAL 1", syntax),
        ("CL.MSETTLE a FIXED 5 TOTAL 1 ELSE b FIXED 5 TOTAL 1", syntax),
        ("CL.BMTAKE a FIXED 5 TOTAL 1 ELSE b FIXED 5 TOTAL 1", syntax),
        ("CL.MTAKE a FIXED 5 TOTAL 1 ELSE a FIXED 5 TOTAL 1", "ERR the same key is named twice"),
        (
            "CL.MTAKE a FIXED 5 TOTAL 1 SPILL b FIXED 5 TOTAL 2",
            "ERR quantity must be the same for all limiters that SPILL joins",
        ),
        ("CL.MTAKE a FIXED 5 TOTAL 1 SPILL b LEASE 5 60 1", "ERR a LEASE cannot stand beside SPILL"),
        ("CL.MPEEK a LEASE 5 60 1 SPILL b FIXED 5 TOTAL 1", "ERR a LEASE cannot stand beside SPILL"),
        (
            "CL.MTAKE a LOG 90000 60 10001 SPILL b LOG 5 60 10001",
            "ERR quantity must be an integer from 0 to 10000",
        ),
    ] {
        assert_eq!(client.error(call), error, "{call}");
    }
}
