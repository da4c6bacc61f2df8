//! HOLD: units of a quota that come back when their owner neither settles nor renews.

use crate::common::{
    BINARY, Client, Effect, Options, ReplicaStream, Server, WRONGTYPE, Waiter, wait_for_blocked, wait_until,
};
use crate::replication::{attach, catch_up};
use crate::several::rows;

/// Two names of the same hash, which stand at the same score.
const SAME_HASH: [&str; 2] = ["020fc286", "024a1f35"];

/// How long a hold lasts that is to run out soon, in milliseconds.
const SHORT: u64 = 250;

/// Waits until holds that were taken before have run out.
fn let_run_out() {
    std::thread::sleep(std::time::Duration::from_millis(SHORT + 2));
}

fn counts(client: &mut Client) -> [String; 3] {
    let fields = crate::info::fields(client);
    ["holds_run_out", "holds_settled", "holds_unknown"].map(|name| fields[name].clone())
}

/// Lets owners take, each by a call that ends with its number.
fn each_takes(client: &mut Client, owners: std::ops::Range<usize>, take: &str) {
    let calls: Vec<String> = owners.map(|owner| format!("CL.MTAKE {take} {owner}")).collect();
    for chunk in calls.chunks(5_000) {
        client.pipeline(&chunk.iter().collect::<Vec<_>>());
    }
}

fn first(client: &mut Client, command: &str) -> Vec<i64> {
    rows(client, command).swap_remove(0)
}

/// The ends of the parts in a key that can run out.
fn ends(client: &mut Client, key: &str) -> Vec<String> {
    let all: Vec<String> = client.get(&format!("ZRANGE {key} 0 -1"));
    all.into_iter().filter(|member| member.starts_with("end ")).collect()
}

#[test]
fn what_is_settled_is_what_was_used() {
    let (_server, mut client) = Server::with_client();
    for (window, used, left) in
        [("3600", 3, 3), ("MONTH", 0, 0), ("TOTAL", 12, 12), ("TOTAL IDLE 3600", 10, 10)]
    {
        client.call("DEL q h");
        assert_eq!(first(&mut client, &format!("CL.MTAKE q FIXED 20 {window} 7 HOLD h 300 me"))[2], 13);
        assert_eq!(first(&mut client, &format!("CL.MTAKE q FIXED 20 {window} 3 HOLD h 300 me"))[2], 10);
        let settled = first(&mut client, &format!("CL.MSETTLE q FIXED 20 {window} {used} HOLD h me"));
        assert_eq!(settled[..3], [0, 20, 20 - left], "{window}");
        assert_eq!(client.int("EXISTS h"), 0);
        assert_eq!(client.get::<Option<i64>, _>("GET q").unwrap_or(0), left, "{window}");
    }
    assert_eq!(counts(&mut client), ["0", "4", "0"]);
}

/// A call of quantities 0 renews what is held of a limiter in debt, which refuses every other call. A place
/// that the owner does not hold is refused.
#[test]
fn a_limiter_in_debt_does_not_refuse_what_renews() {
    let server = Server::start();
    let mut client = server.connect();
    rows(&mut client, "CL.MTAKE q FIXED 5 3600 5 HOLD h 60 me");
    rows(&mut client, "CL.MSETTLE q FIXED 5 3600 3");
    rows(&mut client, "CL.MTAKE place LEASE 1 60 other");
    for (call, refused) in [
        ("q FIXED 5 3600 0 HOLD h 60 me", 0),
        ("q FIXED 5 3600 0 free LEASE 1 60 me HOLD h 60 me", 0),
        ("q FIXED 5 3600 0 place LEASE 1 60 me HOLD h 60 me", 1),
        ("q FIXED 5 3600 0 HOLD h 60 another", 1),
        ("q FIXED 5 3600 0 HOLD h", 1),
        ("q FIXED 5 3600 1 HOLD h 60 me", 1),
    ] {
        for verb in ["MPEEK", "MTAKE"] {
            assert_eq!(first(&mut client, &format!("CL.{verb} {call}"))[0], refused, "{verb} {call}");
        }
    }
    for _ in 0..2 {
        let renewed = first(&mut client, "CL.MTAKE q FIXED 5 3600 0 HOLD h 60 me ONCE once 60");
        assert_eq!(renewed[0], 0, "the stored reply, too");
    }
}

#[test]
fn what_has_run_out_comes_back_before_the_next_decision() {
    let (_server, mut client) = Server::with_client();
    for window in ["3600000 MS", "MONTH", "TOTAL", "TOTAL IDLE 3600000 MS"] {
        let (window, unit) = window.split_once(" MS").map_or((window, ""), |(window, _)| (window, " MS"));
        let unit = if unit.is_empty() { " MS" } else { unit };
        let call = |quantity, hold: &str| format!("CL.MTAKE q FIXED 10 {window} {quantity}{unit} {hold}");
        client.call("DEL q h");
        assert_eq!(first(&mut client, &call(7, &format!("HOLD h {SHORT} dead")))[0], 0);
        assert_eq!(first(&mut client, &call(7, "HOLD h"))[0], 1, "it is held");
        let_run_out();
        assert_eq!(first(&mut client, &call(7, ""))[0], 1, "a call without the key sees it as taken");
        let before = (client.snapshot("q"), client.snapshot("h"));
        let peek = call(7, "HOLD h").replace("MTAKE", "MPEEK");
        assert_eq!(first(&mut client, &peek)[..3], [0, 10, 10], "{window}");
        assert_eq!((client.snapshot("q"), client.snapshot("h")), before, "a peek writes nothing");
        assert_eq!(first(&mut client, &call(8, "HOLD h"))[..3], [0, 10, 2], "{window}");
        assert_eq!(client.int("GET q"), 8);
        assert_eq!(client.int("EXISTS h"), 0);
    }
    assert_eq!(counts(&mut client), ["4", "0", "0"]);
}

#[test]
fn a_refusal_carries_out_what_has_run_out_and_nothing_else() {
    let (server, mut client) = Server::with_client();
    let mut stream = ReplicaStream::attach(&server);
    rows(&mut client, &format!("CL.MTAKE q FIXED 10 3600000 4 p FIXED 10 3600000 1 MS HOLD h {SHORT} dead"));
    rows(&mut client, "CL.MTAKE q FIXED 10 3600000 3 MS HOLD h 300000 alive");
    let_run_out();
    stream.effects(&server);
    let refused = rows(&mut client, "CL.MTAKE q FIXED 10 3600000 8 x THROTTLE 9 1 60 1 MS HOLD h 300000 me");
    assert_eq!(refused[0][..3], [1, 10, 7]);
    assert_eq!(refused[1][..3], [1, 10, 7]);
    assert_eq!(refused[2][..3], [0, 10, 10], "nothing is taken");
    assert_eq!(client.int("GET q"), 3);
    assert_eq!(client.int("EXISTS x"), 0);
    let held = ends(&mut client, "h");
    assert_eq!(held.len(), 2, "the part of a key that no call names stays: {held:?}");
    assert_eq!(first_words(&stream.effects(&server)), ["MULTI", "SET", "ZADD", "ZREM", "EXEC"]);
    // An error writes nothing, and a refusal without anything to carry out neither.
    rows(&mut client, &format!("CL.MTAKE q FIXED 10 3600000 1 MS HOLD h {SHORT} dead"));
    let_run_out();
    client.call("RPUSH list a");
    stream.effects(&server);
    for command in [
        "CL.MTAKE q FIXED 10 3600000 1 list FIXED 9 60000 1 MS HOLD h",
        "CL.MSETTLE q FIXED 10 3600 1 list LOG 9 60 1 HOLD h me",
    ] {
        assert_eq!(client.error(command), WRONGTYPE);
    }
    assert_eq!(stream.effects(&server), []);
    assert_eq!(first(&mut client, "CL.MTAKE q FIXED 10 3600000 20 MS HOLD h 300000 me")[0], 1);
    assert_eq!(first_words(&stream.effects(&server)).len(), 5);
    assert_eq!(first(&mut client, "CL.MTAKE q FIXED 10 3600000 20 MS HOLD h 300000 me")[0], 1);
    assert_eq!(stream.effects(&server), []);
}

/// The names of the commands. Servers that cannot set an expiry with a value have one command more for each.
fn first_words(effects: &[Effect]) -> Vec<&str> {
    let words = effects.iter().map(|effect| effect.command.split(' ').next().unwrap());
    words.filter(|word| *word != "PEXPIREAT" || BINARY.at_least(6, 2, 8)).collect()
}

#[test]
fn a_hold_that_is_settled_late_is_exact_and_once_makes_it_repeatable() {
    let (_server, mut client) = Server::with_client();
    rows(
        &mut client,
        &format!("CL.MTAKE q FIXED 10 3600000 9 r THROTTLE 99 1 3600000 5 MS HOLD h {SHORT} me"),
    );
    let_run_out();
    let settle = "CL.MSETTLE q FIXED 10 3600000 6 r THROTTLE 99 1 3600000 2 MS HOLD h me";
    let settled = rows(&mut client, settle);
    assert_eq!(settled[1][..3], [0, 10, 4], "nine came back, six were charged");
    assert_eq!(settled[2][2], 95, "a rate of which nothing is held stays as it is");
    assert_eq!(rows(&mut client, settle)[1][..3], [1, 10, 0], "sent twice is charged twice");
    assert_eq!(counts(&mut client), ["1", "0", "2"]);
    client.call("DEL q h");
    let take = "CL.MTAKE q FIXED 10 3600000 9 MS HOLD h 300000 me ONCE t 60000";
    assert_eq!(rows(&mut client, take), rows(&mut client, take));
    assert_eq!(client.int("GET q"), 9);
    let settle = "CL.MSETTLE q FIXED 10 3600000 6 MS ONCE s 60000 HOLD h me";
    assert_eq!(rows(&mut client, settle), rows(&mut client, settle));
    assert_eq!(client.int("GET q"), 6);
    assert_eq!(counts(&mut client), ["1", "1", "2"]);
}

/// MIGRATE sends the time that is left, so a window ends some milliseconds later or earlier on the other
/// server.
#[test]
fn what_is_held_of_a_window_comes_back_on_the_server_to_which_its_key_is_moved() {
    let (_server, mut client) = Server::with_client();
    for by in [3, -3] {
        for owner in ["a", "b"] {
            rows(&mut client, &format!("CL.MTAKE q FIXED 10 3600000 4 MS HOLD h {SHORT} {owner}"));
        }
        let end = client.expiry_ms("q") + by;
        client.call(&format!("PEXPIREAT q {end}"));
        rows(&mut client, "CL.MTAKE q FIXED 10 3600000 1 MS HOLD h 300000 a");
        assert_eq!(first(&mut client, "CL.MSETTLE q FIXED 10 3600000 3 MS HOLD h a")[2], 3);
        let_run_out();
        assert_eq!(first(&mut client, "CL.MTAKE q FIXED 10 3600000 0 MS HOLD h")[2], 7);
        client.call("DEL q");
    }
}

#[test]
fn of_a_log_a_million_units_may_be_used() {
    let (_server, mut client) = Server::with_client();
    // Of units taken in between, none is given back: only entries as old as the take.
    rows(&mut client, "CL.MTAKE m LOG 100 3600 5 HOLD h 300 me");
    client.call("CL.LOG m 100 3600 7");
    assert_eq!(first(&mut client, "CL.MSETTLE m LOG 100 3600 0 HOLD h me")[2], 93);
    assert_eq!(client.int("ZCARD m"), 7);
    // Up to 1,000,000 used, and up to 10,000 more than held.
    rows(&mut client, "CL.MTAKE m LOG 1000000 3600 10000 HOLD h 300 me");
    for (used, range) in [(1_000_001, "0 to 1000000"), (20_001, "-9223372036854775807 to 10000")] {
        let error = client.error(&format!("CL.MSETTLE m LOG 100 3600 {used} HOLD h me"));
        assert_eq!(error, format!("ERR quantity must be an integer from {range}"));
    }
    assert_eq!(client.int("ZCARD m"), 10_007);
    rows(&mut client, "CL.MSETTLE m LOG 100 3600 20000 HOLD h me");
    assert_eq!(client.int("ZCARD m"), 20_007);
}

#[test]
fn parts_that_a_settlement_does_not_name_have_run_out() {
    let (_server, mut client) = Server::with_client();
    let call = "a FIXED 10 3600 4 b FIXED 10 TOTAL 4 r THROTTLE 99 1 3600 4";
    rows(&mut client, &format!("CL.MTAKE {call} HOLD h 300 me"));
    rows(&mut client, "CL.MTAKE b FIXED 10 TOTAL 1 HOLD h 300 other");
    rows(&mut client, "CL.MSETTLE a FIXED 10 3600 1 HOLD h me");
    assert_eq!((client.int("GET a"), client.int("GET b")), (1, 5));
    let left = ends(&mut client, "h");
    assert_eq!((left.len(), client.int("ZSCORE h parts")), (2, 2), "the rate's part is forgotten: {left:?}");
    rows(&mut client, "CL.MTAKE b FIXED 10 TOTAL 2 HOLD h 300 me");
    assert_eq!(client.int("GET b"), 3, "four came back");
    assert_eq!(ends(&mut client, "h").len(), 2);
    // A key that is deleted, or is another limiter's by now: the part is forgotten.
    client.call("DEL b");
    rows(&mut client, "CL.MTAKE b THROTTLE 9 1 60 1 HOLD h 300 me");
    rows(&mut client, "CL.MSETTLE b THROTTLE 9 1 60 0 HOLD h me");
    assert_eq!(client.int("EXISTS b"), 0);
}

#[test]
fn the_key_lives_as_long_as_anything_can_come_back() {
    let (_server, mut client) = Server::with_client();
    let ttl = |client: &mut Client| client.int("PTTL h");
    let near = |seen: i64, expected: i64| {
        assert!((expected - 2_000..=expected + 1).contains(&seen), "{seen}, not {expected}");
    };
    rows(&mut client, "CL.MTAKE a FIXED 10 60 1 HOLD h 30 x");
    near(ttl(&mut client), 60_000);
    rows(&mut client, "CL.MTAKE a FIXED 10 60 1 HOLD h 90 x");
    near(ttl(&mut client), 90_000);
    rows(&mut client, "CL.MTAKE r THROTTLE 9 1 60 1 HOLD h 300 x");
    near(ttl(&mut client), 300_000);
    rows(&mut client, "CL.MTAKE i FIXED 10 TOTAL IDLE 600 1 HOLD h 30 x");
    near(ttl(&mut client), 600_000);
    // A user may want it to live on.
    client.call("ZUNIONSTORE kept 1 h");
    rows(&mut client, "CL.MTAKE i FIXED 10 TOTAL IDLE 600 1 HOLD kept 30 x");
    assert_eq!(client.int("PTTL kept"), -1);
    // A total with an idle time lives at least as long as its held parts.
    rows(&mut client, "CL.MTAKE i FIXED 10 TOTAL IDLE 600 1 HOLD h 900 x");
    near(ttl(&mut client), 900_000);
    near(client.int("PTTL i"), 900_000);
    rows(&mut client, "CL.MTAKE i FIXED 10 TOTAL IDLE 600 0 HOLD h 1200 x");
    near(client.int("PTTL i"), 1_200_000);
    // In shadow, nothing is taken of it, and the hold is renewed.
    let shadow = rows(&mut client, "CL.MTAKE i SHADOW FIXED 10 TOTAL IDLE 600 20 HOLD h 1300 x");
    assert_eq!(shadow[1][0], 1);
    near(client.int("PTTL i"), 1_300_000);
    rows(&mut client, "CL.MTAKE i FIXED 10 TOTAL IDLE 1500 1 HOLD h");
    near(ttl(&mut client), 1_500_000);
    rows(&mut client, "CL.MTAKE t FIXED 10 TOTAL 1 HOLD h 30 x");
    assert_eq!(ttl(&mut client), -1);
    rows(&mut client, "CL.MTAKE a FIXED 10 60 1 HOLD h 3000 x");
    assert_eq!(ttl(&mut client), -1);
    rows(&mut client, "CL.MTAKE u FIXED 10 60 1 HOLD h 4000 z");
    rows(&mut client, "CL.MSETTLE t FIXED 10 TOTAL 1 HOLD h x");
    let left = ttl(&mut client);
    assert!((3_990_000..=4_100_000).contains(&left), "without a total it expires again: {left}");
    rows(&mut client, "CL.MSETTLE u FIXED 10 60 1 HOLD h z");
    rows(&mut client, "CL.MTAKE a FIXED 10 60 0 i FIXED 10 TOTAL IDLE 1500 0 HOLD h");
    assert_eq!(client.get::<Vec<String>, _>("ZRANGE h 0 -1").len(), 0);
    // The last total comes back in the call that holds something else.
    rows(&mut client, &format!("CL.MTAKE t FIXED 10 TOTAL 1 MS HOLD h {SHORT} x"));
    assert_eq!(ttl(&mut client), -1);
    let_run_out();
    rows(&mut client, "CL.MTAKE t FIXED 10 TOTAL 0 v FIXED 10 60000 1 MS HOLD h 30000 z");
    near(ttl(&mut client), 60_000);
}

/// Calls that name a total with `IDLE` find what calls without it have left, and the reverse.
#[test]
fn what_is_held_of_a_total_comes_back_with_idle_and_without() {
    let (_server, mut client) = Server::with_client();
    for [held, named] in [["TOTAL", "TOTAL IDLE 3600000"], ["TOTAL IDLE 3600000", "TOTAL"]] {
        client.call("DEL q h");
        rows(&mut client, &format!("CL.MTAKE q FIXED 10 {held} 8 MS HOLD h {SHORT} dead"));
        let_run_out();
        assert_eq!(first(&mut client, &format!("CL.MTAKE q FIXED 10 {named} 5 MS HOLD h"))[..3], [0, 10, 5]);
        assert_eq!((client.int("GET q"), client.int("EXISTS h")), (5, 0), "{named}");
    }
}

/// Units of an earlier life of a total do not come back to the present one.
#[test]
fn what_was_held_of_a_total_that_was_forgotten_does_not_come_back() {
    let (_server, mut client) = Server::with_client();
    let lives = |client: &mut Client| client.get::<Option<i64>, _>(&["ZSCORE", "h", "idle 1 q"][..]);
    let total = "q FIXED 9999 TOTAL IDLE 60000";
    rows(&mut client, "CL.MTAKE t FIXED 9 TOTAL 1 HOLD h 60 alive");
    // It has expired, and calls that do not name HOLD have begun it again.
    rows(&mut client, &format!("CL.MTAKE q FIXED 9999 TOTAL IDLE {SHORT} 50 MS HOLD h {SHORT} dead"));
    assert_eq!(lives(&mut client), Some(client.expiry_ms("q")));
    let_run_out();
    rows(&mut client, &format!("CL.MTAKE {total} 60 MS"));
    rows(&mut client, &format!("CL.MTAKE {total} 10 MS HOLD h 60000 new"));
    assert_eq!(client.int("GET q"), 70);
    assert_eq!(lives(&mut client), Some(client.expiry_ms("q")));
    rows(&mut client, &format!("CL.MSETTLE {total} 0 MS HOLD h new"));
    assert_eq!((client.int("GET q"), lives(&mut client)), (60, None));
    // More has run out than one call carries out, and what is held of the new life comes back.
    client.call("DEL q");
    each_takes(&mut client, 0..1_500, "q FIXED 9999 TOTAL IDLE 3000 1 MS HOLD h 3000");
    std::thread::sleep(std::time::Duration::from_millis(3_002));
    for taken in [1, 2, 3] {
        rows(&mut client, &format!("CL.MTAKE {total} 1 MS HOLD h 60000 new"));
        assert_eq!(client.int("GET q"), taken);
    }
    rows(&mut client, &format!("CL.MTAKE {total} 1 MS HOLD h {SHORT} dead"));
    let_run_out();
    rows(&mut client, &format!("CL.MTAKE {total} 1 MS HOLD h 60000 new"));
    assert_eq!(client.int("GET q"), 4);
    // Another limiter's parts are all that the call carries out. A refusal carries out the last one.
    rows(&mut client, &format!("CL.MSETTLE {total} 1 MS HOLD h new"));
    assert_eq!(lives(&mut client), None);
    rows(&mut client, &format!("CL.MTAKE {total} 1 MS HOLD h 1000 dead"));
    each_takes(&mut client, 0..1_000, "p FIXED 9999 60000 1 MS HOLD h 1000");
    std::thread::sleep(std::time::Duration::from_millis(1_002));
    rows(&mut client, &format!("CL.MTAKE p FIXED 9999 60000 1 {total} 1 MS HOLD h 60000 new"));
    assert_eq!(lives(&mut client), Some(client.expiry_ms("q")));
    rows(&mut client, &format!("CL.MSETTLE {total} 1 MS HOLD h new"));
    rows(&mut client, &format!("CL.MTAKE {total} 1 MS HOLD h {SHORT} dead"));
    let_run_out();
    assert_eq!(first(&mut client, &format!("CL.MTAKE {total} 9999 MS HOLD h"))[0], 1);
    assert_eq!(lives(&mut client), None);
    // The key is of another limiter since.
    rows(&mut client, "CL.MTAKE q FIXED 9999 TOTAL IDLE 60 1 HOLD g 60 new");
    client.call("DEL q");
    rows(&mut client, "CL.MTAKE q THROTTLE 9 1 60 1 HOLD g 60 new");
    rows(&mut client, "CL.MSETTLE q THROTTLE 9 1 60 1 HOLD g new");
    assert_eq!(client.int("EXISTS g"), 0);
}

/// Ended parts of rates only take memory, and are looked for when others are added.
#[test]
fn parts_of_rates_that_have_ended_are_removed_when_their_number_passes_a_multiple_of_32() {
    let (_server, mut client) = Server::with_client();
    rows(&mut client, "CL.MTAKE q FIXED 99 3600000 1 MS HOLD h 3600000 alive");
    rows(&mut client, &format!("CL.MTAKE r THROTTLE 9 1 3600000 1 MS HOLD h {SHORT} dead"));
    let_run_out();
    each_takes(&mut client, 0..28, "q FIXED 99 3600000 1 r THROTTLE 9 1 3600000 0 MS HOLD h 3600000");
    assert_eq!(client.int("ZSCORE h parts"), 30);
    rows(&mut client, "CL.MTAKE r THROTTLE 9 1 3600000 0 MS HOLD h");
    assert_eq!(client.int("ZSCORE h parts"), 30, "nothing is added");
    rows(&mut client, "CL.MTAKE q FIXED 99 3600000 1 r THROTTLE 9 1 3600000 0 MS HOLD h 3600000 last");
    assert_eq!(client.int("ZSCORE h parts"), 30, "one is added, and one is removed");
}

/// What has run out makes room at a full key, however much it is, for clients that wait and for others.
#[test]
fn more_than_a_thousand_parts_that_have_ended_make_room_at_a_full_key() {
    let (server, mut client) = Server::with_client();
    for limit in ["q FIXED 9999999 86400000 1", "r THROTTLE 9999 1 60000 1"] {
        client.call("FLUSHALL");
        rows(&mut client, "CL.MTAKE other FIXED 9 86400000 1 MS HOLD h 86400000 alive");
        // As if others held so many: the first 1,000 that are removed do not make room for one.
        let end_beside_others = |client: &mut Client, owners| {
            client.call("ZADD h 2 parts");
            each_takes(client, owners, &format!("{limit} MS HOLD h 1000"));
            std::thread::sleep(std::time::Duration::from_millis(1_002));
            client.call("ZADD h 101000 parts");
        };
        end_beside_others(&mut client, 0..1_500);
        let mut waiter = Waiter::ask(&server, &format!("CL.BMTAKE {limit} MS HOLD h 3600000 waits"));
        assert!(waiter.answer().starts_with("0 "), "{limit}");
        assert_eq!(client.int("ZSCORE h parts"), 99_501, "{limit}: 1,500 are removed, and one is added");
        end_beside_others(&mut client, 1_500..3_000);
        let take = format!("CL.MTAKE {limit} MS HOLD h 3600000 new");
        assert_eq!([(); 2].map(|()| first(&mut client, &take)[0]), [1, 0], "{limit}");
    }
}

#[test]
fn names_with_the_same_hash_are_told_apart() {
    let (_server, mut client) = Server::with_client();
    let [one, other] = SAME_HASH;
    for (key, foreign) in [(one, other), (other, one)] {
        client.call("FLUSHALL");
        // Parts of the foreign key end before and after those of the key.
        rows(&mut client, &format!("CL.MTAKE {foreign} FIXED 9 3600000 1 MS HOLD h {SHORT} {one}"));
        rows(&mut client, &format!("CL.MTAKE {foreign} FIXED 9 3600000 1 MS HOLD h 3600000 {other}"));
        assert_eq!(client.int("ZSCORE h parts"), 2);
        assert!((3_590_000..=3_600_001).contains(&client.int("PTTL h")));
        client.call(&format!("CL.MTAKE {key} FIXED 9 TOTAL IDLE 7200 1 HOLD h"));
        assert!(client.int("PTTL h") <= 3_600_001, "nothing of {key} is held");
        rows(&mut client, &format!("CL.MTAKE {key} FIXED 9 TOTAL IDLE 7200000 2 MS HOLD h {SHORT} {other}"));
        let_run_out();
        rows(&mut client, &format!("CL.MTAKE {key} FIXED 9 TOTAL IDLE 7200 0 HOLD h"));
        assert_eq!((client.int(&format!("GET {key}")), client.int("ZSCORE h parts")), (1, 2), "{key}");
        rows(&mut client, &format!("CL.MSETTLE {foreign} FIXED 9 3600 2 HOLD h {other}"));
        assert_eq!(client.int(&format!("GET {foreign}")), 2, "one ran out, another became two");
        assert_eq!(client.int("EXISTS h"), 0);
    }
}

/// Parts whose places are taken by others, and that are held again, do not make a record longer.
#[test]
fn a_record_has_sixteen_parts() {
    let (_server, mut client) = Server::with_client();
    for call in 1..=4 {
        let limiters: Vec<_> = (0..16 * call).rev().map(|n| format!("k{n} FIXED 10 3600000 1")).collect();
        rows(&mut client, &format!("CL.MTAKE {} MS HOLD h {SHORT} me", limiters.join(" ")));
        let members: Vec<String> = client.get("ZRANGE h 0 -1");
        let most = members.iter().map(|member| member.matches(" window ").count()).max();
        assert!(most.is_some_and(|most| (1..=16).contains(&most)), "{most:?}");
        let_run_out();
    }
}

#[test]
fn at_most_a_thousand_parts_run_out_in_a_call() {
    let (_server, mut client) = Server::with_client();
    each_takes(&mut client, 0..2_500, "q FIXED 10000 3600000 1 MS HOLD h 6000");
    assert_eq!(client.int("GET q"), 2_500);
    rows(&mut client, "CL.MTAKE q FIXED 10000 3600000 1 MS HOLD h 3600000 alive");
    std::thread::sleep(std::time::Duration::from_millis(6_050));
    for left in [1_501, 501, 1, 1] {
        rows(&mut client, "CL.MTAKE q FIXED 10000 3600000 0 MS HOLD h");
        assert_eq!(client.int("GET q"), left);
    }
    // An owner's own part is the first.
    assert_eq!(counts(&mut client)[0], "2500");
}

/// Regression: a client that needed more than a call carries out waited until the next call, or for a day.
#[test]
fn a_client_that_waits_is_served_when_more_runs_out_than_a_call_carries_out() {
    let (server, mut client) = Server::with_client();
    let quota = "q FIXED 10000 86400000";
    for before in ["", "r THROTTLE 9 1 60 1 ", "r THROTTLE 9 1 60 1 p FIXED 1 60 10000 ELSE "] {
        client.call("FLUSHALL");
        each_takes(&mut client, 0..2_500, &format!("{quota} 1 MS HOLD h 3000"));
        let call = format!("CL.BMTAKE {before}{quota} 10000 MS HOLD h 86400000 me");
        assert!(Waiter::ask(&server, &call).answer().starts_with("0 "), "{before}");
        assert_eq!(client.int("GET q"), 10_000);
    }
    // A wait for one limiter delays the take from the other.
    client.call("FLUSHALL");
    each_takes(&mut client, 0..1_500, &format!("{quota} 1 MS HOLD h 3000"));
    rows(&mut client, "CL.MTAKE p FIXED 1 86400000 1 MS HOLD h 3000 other");
    let call = format!("CL.BMTAKE {quota} 1 p FIXED 1 86400000 1 MS HOLD h 86400000 me");
    assert!(Waiter::ask(&server, &call).answer().starts_with("0 "));
    // What its owner has held of rates is not among those thousand parts.
    client.call("FLUSHALL");
    let rates: Vec<_> = (0..1_100).map(|n| format!(" r{n} THROTTLE 9 1 3600000 1")).collect();
    let rates = rates.concat();
    rows(&mut client, &format!("CL.MTAKE{rates} MS HOLD h 400 me"));
    rows(&mut client, &format!("CL.MTAKE {quota} 10000 MS HOLD h 400 dead"));
    let call = format!("CL.BMTAKE {quota} 10000{rates} MS HOLD h 86400000 me");
    assert!(Waiter::ask(&server, &call).answer().starts_with("0 "));
    // What was held of a rate comes back to no window that has its key now, but is carried out.
    client.call("FLUSHALL");
    each_takes(&mut client, 0..1_500, "q THROTTLE 9999 1 60 1 HOLD h 1");
    rows(&mut client, "CL.MTAKE other FIXED 1 86400 1 HOLD h 86400 other");
    client.call("DEL q");
    rows(&mut client, "CL.MTAKE q FIXED 1 86400 1");
    assert_eq!(client.call("CL.BMTAKE q FIXED 1 86400 1 TIMEOUT 3 HOLD h 60 me"), redis::Value::Nil);
    assert!(client.int("ZSCORE h parts") < 1_000);
}

/// A key may have more parts than a new owner may add to, because known owners add theirs.
#[test]
fn a_client_waits_for_room_until_several_calls_have_carried_out_what_has_run_out() {
    let (server, mut client) = Server::with_client();
    each_takes(&mut client, 0..2_100, "q FIXED 10000 86400000 1 MS HOLD h 1000");
    client.call("ZADD h XX 102050 parts");
    let call = "CL.BMTAKE q FIXED 10000 86400 1 TIMEOUT 10 HOLD h 7200 new";
    assert!(Waiter::ask(&server, call).answer().starts_with("0 "));
}

#[test]
fn a_hundred_thousand_parts_fit_and_a_new_owner_is_refused() {
    let (server, mut client) = Server::with_client();
    each_takes(&mut client, 0..49_998, "q FIXED 1000000 86400 1 p FIXED 1000000 86400 1 HOLD h 7200");
    let [one, same_hash] = SAME_HASH;
    let day = "FIXED 1000000 86400";
    rows(&mut client, &format!("CL.MTAKE q {day} 1 p {day} 1 HOLD h 7200 {one}"));
    // Ended parts of rates make room where there is little.
    rows(&mut client, "CL.MTAKE r THROTTLE 9 1 60000 1 MS HOLD h 1 dead");
    std::thread::sleep(std::time::Duration::from_millis(2));
    rows(&mut client, &format!("CL.MTAKE q {day} 0 r THROTTLE 9 1 60 0 HOLD h"));
    assert_eq!(client.int("ZSCORE h parts"), 99_998);
    // So does what has run out of the limiters of the call, and of no others.
    let ms = "FIXED 1000000 86400000 1";
    rows(&mut client, &format!("CL.MTAKE q {ms} p {ms} MS HOLD h {SHORT} dead"));
    let_run_out();
    for (key, refused, parts) in [("q", 1, 99_999), ("p", 0, 100_000)] {
        let call = format!("CL.MTAKE {key} {day} 0 s {day} 1 t {day} 1 HOLD h 7200 {same_hash}");
        assert_eq!(first(&mut client, &call)[0], refused);
        assert_eq!(client.int("ZSCORE h parts"), parts);
    }
    let call = format!("q {day} 1 HOLD h 7200");
    let before = ["q", "h"].map(|key| client.snapshot(key));
    let mut waiting = 0;
    for command in ["CL.MTAKE", "CL.MPEEK"] {
        let refused = rows(&mut client, &format!("{command} {call} new"));
        assert_eq!(refused[0][..3], [1, 1_000_000, 950_001]);
        assert!((7_000..=7_200).contains(&refused[0][3]), "{refused:?}");
        assert_eq!(refused[1][..4], [0, 1_000_000, 950_001, -1]);
        // Of this limiter nothing is held, so that only the end of the key makes room.
        let wait = first(&mut client, &format!("{command} other FIXED 9 86400 1 HOLD h 7200 new"))[3];
        assert!((86_200..=86_400).contains(&wait), "{wait}");
    }
    // Nothing would be taken. The refusal is recorded where a limiter refuses, or else for the first limiter.
    let chain = format!("q {day} 1 ELSE p {day} 1 HOLD h 7200 new");
    let peeked = rows(&mut client, &format!("CL.MPEEK {chain}"));
    assert_eq!((peeked[0][0], peeked[1][5], peeked[2][5]), (1, 0, 0), "{peeked:?}");
    for (call, key) in [
        (chain, "q"),
        (format!("s SHADOW FIXED 1 60 2 {call} new"), "q"),
        (format!("p {day} 1 s FIXED 1 60 2 {call} new"), "s"),
    ] {
        client.call("CL.TOP RESET");
        assert_eq!(first(&mut client, &format!("CL.MTAKE {call}"))[0], 1, "{call}");
        assert_eq!(client.get::<Vec<(String, i64, i64, i64)>, _>("CL.TOP")[0].0, key, "{call}");
    }
    assert_eq!(["q", "h"].map(|key| client.snapshot(key)), before);
    // CL.BMTAKE waits where it may, also behind others, and is not admitted at its turn before there is room.
    let in_script = ["EVAL", "return redis.call(unpack(ARGV))", "0"].into_iter();
    let in_script: Vec<&str> =
        in_script.chain("CL.BMTAKE q FIXED 1000000 86400 1 HOLD h 7200 new".split(' ')).collect();
    assert_eq!(client.call(&in_script), redis::Value::Nil);
    assert_eq!(first(&mut client, &format!("CL.BMTAKE q {day} 1 MAXLEN 0 HOLD h 7200 new"))[0], 1);
    assert_eq!(client.call(&format!("CL.BMTAKE q {day} 1 TIMEOUT 0.1 HOLD h 7200 new")), redis::Value::Nil);
    let chain = format!("CL.BMTAKE other {day} 1 q {day} 1 ELSE p {day} 1 HOLD h 7200 chained FLOW c");
    let mut waits =
        [format!("CL.BMTAKE {call} waits"), format!("CL.BMTAKE {call} behind"), chain].map(|call| {
            let waiter = Waiter::ask(&server, &call);
            waiting += 1;
            wait_for_blocked(&mut client, waiting);
            waiter
        });
    assert_eq!(["q", "h"].map(|key| client.snapshot(key)), before);
    // An owner that is there may pass it.
    for (owner, parts) in [(one, 100_001), (same_hash, 100_002)] {
        assert_eq!(first(&mut client, &format!("CL.MTAKE other FIXED 9 86400 1 HOLD h 7200 {owner}"))[0], 0);
        assert_eq!(client.int("ZSCORE h parts"), parts);
    }
    // Nothing is to be held: admitted.
    assert_eq!(first(&mut client, &format!("CL.MTAKE q {day} 0 HOLD h 7200 new"))[0], 0);
    assert_eq!(first(&mut client, &format!("CL.MTAKE q {day} 1 HOLD h"))[0], 0);
    // Settlements that remove three parts make room for one, in either queue. First served are the clients
    // that wait.
    for waiter in &mut waits {
        assert!(waiter.is_waiting());
    }
    rows(&mut client, &format!("CL.MSETTLE q {day} 1 p {day} 1 HOLD h 1"));
    rows(&mut client, &format!("CL.MSETTLE q {day} 1 HOLD h 2"));
    wait_for_blocked(&mut client, 2);
    let mut waits = Vec::from(waits);
    let look = || waits.iter_mut().position(|one| !one.is_waiting()).ok_or_else(|| "none".into());
    let served = wait_until("a reply", look);
    assert!(waits.remove(served).answer().starts_with("0 "));
    assert_eq!(first(&mut client, &format!("CL.MTAKE {call} newer"))[0], 1);
    for owner in [3, 4] {
        rows(&mut client, &format!("CL.MSETTLE q {day} 1 p {day} 1 HOLD h {owner}"));
    }
    for waiter in &mut waits {
        let answer = waiter.answer();
        assert!(answer.starts_with("0 "), "{answer}");
    }
}

#[test]
fn replicas_and_the_append_only_file_have_the_same_holds() {
    let server = Options::new().append_only().start();
    let mut client = server.connect();
    let replica = attach(&server, Options::new());
    let mut copy = replica.connect();
    let mut stream = ReplicaStream::attach(&server);
    rows(
        &mut client,
        &format!("CL.MTAKE q FIXED 10 TOTAL 4 r THROTTLE 9 1 3600 2 MS HOLD h {SHORT} dead ONCE o 5000"),
    );
    let effects = stream.effects(&server);
    let mut commands = first_words(&effects);
    // Beside other modules, new keys come first.
    commands.sort_unstable();
    assert_eq!(commands, ["EXEC", "MULTI", "SET", "SET", "SET", "ZADD"]);
    rows(&mut client, "CL.MTAKE q FIXED 10 TOTAL 1 p LOG 9 3600 1 HOLD h 300 a");
    rows(&mut client, "CL.MTAKE q FIXED 10 TOTAL 1 w WINDOW 9 3600 1 HOLD h 300 b");
    let_run_out();
    rows(&mut client, "CL.MSETTLE q FIXED 10 TOTAL 3 HOLD h b");
    rows(&mut client, "CL.MTAKE q FIXED 10 TOTAL 9 HOLD h 300 c");
    catch_up(&mut client, &mut copy);
    for key in ["q", "h", "r", "p", "w"] {
        assert_eq!(copy.snapshot(key), client.snapshot(key), "{key}");
    }
    // A replica peeks.
    assert_eq!(first(&mut copy, "CL.MPEEK q FIXED 10 TOTAL 6 HOLD h 300 z")[..3], [0, 10, 6]);
}

#[test]
fn the_key_is_one_of_the_calls_keys() {
    let (_server, mut client) = Server::with_client();
    let keys =
        |client: &mut Client, call: &str| client.get::<Vec<String>, _>(&format!("COMMAND GETKEYS {call}"));
    for (call, expected) in [
        ("CL.MTAKE a LOG 5 60 1 HOLD h 300 id", vec!["a", "h"]),
        ("CL.MTAKE a LOG 5 60 1 HOLD h 300 id MS ONCE o 5", vec!["a", "h", "o"]),
        ("CL.MTAKE a LOG 5 60 1 ONCE o 5 HOLD h", vec!["a", "o", "h"]),
        ("CL.BMTAKE a LOG 5 60 1 TIMEOUT 1 hold h 300 id FLOW f", vec!["a", "h"]),
        ("CL.MPEEK a LOG 5 60 1 HOLD h", vec!["a", "h"]),
        ("CL.MSETTLE a LOG 5 60 1 HOLD h 5 ONCE o 5", vec!["a", "h", "o"]),
        ("CL.MSETTLE a LOG 5 60 1 ONCE o 5 HOLD h id FLOW f", vec!["a", "o", "h"]),
        // A key, where a limiter stands behind it.
        ("CL.MTAKE a LOG 5 60 1 HOLD LOG 5 60 1", vec!["a", "HOLD"]),
    ] {
        assert_eq!(keys(&mut client, call), expected, "{call}");
    }
    let limiter = "a FIXED 10 60 1";
    for call in ["HOLD a 300 id", "ONCE h 5 HOLD h 300 id"] {
        assert_eq!(client.error(&format!("CL.MTAKE {limiter} {call}")), "ERR the same key is named twice");
    }
    let range = "ERR HOLD must be an integer from 1 to 9223372036";
    for (call, error) in [
        ("CL.MTAKE {} HOLD", "ERR syntax error"),
        ("CL.MTAKE {} HOLD h 300", "ERR syntax error"),
        ("CL.MTAKE {} HOLD h id", "ERR syntax error"),
        ("CL.MTAKE {} HOLD h 300 id HOLD g 300 id", "ERR syntax error"),
        ("CL.MTAKE {} HOLD h 300 id more", "ERR syntax error"),
        ("CL.MTAKE {} HOLD h 0 id", range),
        ("CL.MTAKE {} HOLD h -1 id", range),
        ("CL.MTAKE {} HOLD h 1.5 id", range),
        ("CL.MTAKE {} HOLD h 9223372037 id", range),
        ("CL.MSETTLE {} HOLD h", "ERR syntax error"),
        ("CL.MSETTLE {} HOLD h 300 id", "ERR syntax error"),
        ("CL.MSETTLE {} HOLD h id AGO 5", "ERR syntax error"),
        ("CL.MSETTLE b RESET 5 THROTTLE 1 1 60 1 {} HOLD h id", "ERR syntax error"),
        (
            "CL.MSETTLE a FIXED 10 60 -1 HOLD h id",
            "ERR quantity must be an integer from 0 to 9223372036854775807",
        ),
    ] {
        let call = call.replace("{}", limiter);
        assert_eq!(client.error(&call), error, "{call}");
    }
    assert_eq!(client.int("DBSIZE"), 0);
    // The unit is the call's, wherever it stands.
    for call in ["MS HOLD h 300000 id", "HOLD h 300000 id MS", "MS HOLD h 300000 id ONCE o 60000"] {
        client.call("FLUSHALL");
        let reply = rows(&mut client, &format!("CL.MTAKE a FIXED 10 60000 1 {call}"));
        assert!((59_000..=60_000).contains(&reply[1][4]), "{call}: {reply:?}");
        assert!((299_000..=300_001).contains(&client.int("PTTL h")), "{call}");
    }
    for call in ["MS HOLD h id", "HOLD h id MS", "MS HOLD h 5"] {
        let reply = rows(&mut client, &format!("CL.MSETTLE a FIXED 10 60000 1 {call}"));
        assert!((58_000..=60_000).contains(&reply[1][4]), "{call}: {reply:?}");
    }
    let reply = rows(&mut client, "CL.MSETTLE a FIXED 10 60000 1 HOLD h 5 US");
    assert!(reply[1][4] > 58_000_000, "the owner is 5, the unit US: {reply:?}");
}

#[test]
fn a_key_of_something_else_is_an_error_behind_once_and_before_the_limiters() {
    let (_server, mut client) = Server::with_client();
    let foreign =
        "ERR the key does not hold this limiter's state: expected the parts of holds, stored by HOLD";
    client.call("RPUSH wrong a");
    for (value, error) in [
        ("SET h foo", WRONGTYPE),
        ("HSET h a b", WRONGTYPE),
        ("ZADD h 0 a", foreign),
        ("ZADD h 0 part", foreign),
        ("ZADD h 0 parts", foreign),
        ("CL.LOG h 5 60", foreign),
        ("CL.ACQUIRE h 5 60 me", foreign),
    ] {
        client.call("DEL h");
        client.call(value);
        client.call("SET once foo");
        let before = client.snapshot("h");
        for call in [
            "CL.MTAKE wrong FIXED 9 60 1 HOLD h 300 id",
            "CL.MPEEK wrong FIXED 9 60 1 HOLD h",
            "CL.MSETTLE wrong FIXED 9 60 1 HOLD h id",
        ] {
            assert_eq!(client.error(call), error, "{value}: {call}");
        }
        assert!(
            client
                .error("CL.MTAKE q FIXED 9 60 1 HOLD h 300 id ONCE once 9")
                .starts_with("ERR the key does not hold")
        );
        assert_eq!(client.snapshot("h"), before, "{value}");
        assert_eq!(client.int("EXISTS q"), 0);
    }
    // Members that were tampered with.
    client.call("DEL h");
    rows(&mut client, "CL.MTAKE q FIXED 9 3600 1 HOLD h 300 id");
    let members: Vec<String> = client.get("ZRANGE h 0 -1 WITHSCORES");
    let [_, _, record, at, end, place] = &members[..] else { panic!("{members:?}") };
    client.call(&["ZREM", "h", record]);
    client.call(&["ZADD", "h", at, &record.replace("window", "widow")]);
    for call in ["CL.MTAKE q FIXED 9 3600 1 HOLD h 300 id", "CL.MSETTLE q FIXED 9 3600 1 HOLD h id"] {
        assert_eq!(client.error(call), foreign);
    }
    client.call(&["ZREM", "h", &record.replace("window", "widow")]);
    client.call(&["ZADD", "h", place, "end x"]);
    assert_eq!(client.error("CL.MTAKE q FIXED 9 3600 1 HOLD h"), foreign);
    client.call(&["ZREM", "h", "end x", end]);
    // An end without a part.
    let ended = format!("end {:019} {}", 1, &end[24..]);
    client.call(&["ZADD", "h", place, &ended]);
    assert_eq!(client.error("CL.MTAKE q FIXED 9 3600 1 HOLD h"), foreign);
    client.call(&["ZREM", "h", &ended, "parts"]);
    client.call(&["ZADD", "h", at, record]);
    assert_eq!(client.error("CL.MSETTLE q FIXED 9 3600 1 HOLD h id"), foreign);
}

/// A record has sixteen parts. What else an owner holds is found, settled and runs out as well.
#[test]
fn an_owner_holds_of_many_limiters() {
    let (_server, mut client) = Server::with_client();
    let limiters = |numbers: std::ops::Range<usize>, quantity: i64| {
        let one = |n| match n % 3 {
            0 => format!("k{n} FIXED 10 3600000 {quantity}"),
            1 => format!("k{n} FIXED 10 TOTAL {quantity}"),
            _ => format!("k{n} THROTTLE 9 1 3600000 {quantity}"),
        };
        numbers.map(one).collect::<Vec<_>>().join(" ")
    };
    let left = |client: &mut Client| (0..40).filter(|n| client.int(&format!("EXISTS k{n}")) == 1).count();
    for from in [0, 10, 20, 30] {
        rows(&mut client, &format!("CL.MTAKE {} MS HOLD h 300000 me", limiters(from..from + 10, 2)));
    }
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h 300000 me", limiters(15..25, 2)));
    assert_eq!((client.int("ZSCORE h parts"), ends(&mut client, "h").len()), (40, 35));
    // All are renewed, settled, and added to.
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h {SHORT} me", limiters(0..40, 0)));
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h {SHORT} other", limiters(30..40, 1)));
    assert_eq!(client.int("ZSCORE h parts"), 50);
    let_run_out();
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h", limiters(0..20, 0)));
    assert_eq!(client.int("ZSCORE h parts"), 30);
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h", limiters(20..40, 0)));
    assert_eq!(client.int("EXISTS h"), 0);
    assert_eq!(left(&mut client), 13, "only what rates gave");
    for from in [0, 20] {
        rows(&mut client, &format!("CL.MTAKE {} MS HOLD h 300000 me", limiters(from..from + 20, 2)));
    }
    // What is not named has run out; of a rate it is forgotten.
    rows(&mut client, &format!("CL.MSETTLE {} MS HOLD h me", limiters(10..20, 1)));
    assert_eq!(client.int("ZSCORE h parts"), 20);
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h", limiters(0..40, 0)));
    assert_eq!(client.int("EXISTS h"), 0);
    let windows = (0..40).filter(|n| n % 3 < 2);
    let counted = windows.filter_map(|n| client.get::<Option<i64>, _>(&format!("GET k{n}")));
    assert_eq!(counted.sum::<i64>(), 7);
    // Also more parts than a call brings back.
    client.call("FLUSHALL");
    let many = |quantity| {
        let one = |n| format!("k{n} FIXED 10 3600000 {quantity}");
        (0..2_500).map(one).collect::<Vec<_>>().join(" ")
    };
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h 3600000 me", many(1)));
    // A settlement ends those of the record and two thousand more; the next one ends the others.
    for (settled, lefts) in [(1, [Some(1_499), Some(499), Some(484)]), (0, [None; 3])] {
        rows(&mut client, &format!("CL.MSETTLE k0 FIXED 10 3600000 {settled} MS HOLD h me"));
        for left in lefts {
            rows(&mut client, &format!("CL.MTAKE {} MS HOLD h", many(0)));
            assert_eq!(client.get::<Option<i64>, _>("ZSCORE h parts"), left);
        }
    }
    assert_eq!(client.int("DBSIZE"), 1, "only what was settled");
}

#[test]
fn a_key_that_is_copied_renamed_or_restored_holds_the_same() {
    let (_server, mut client) = Server::with_client();
    rows(&mut client, "CL.MTAKE q FIXED 10 3600 4 r THROTTLE 9 1 3600 1 HOLD h 300 me");
    let dump: Vec<u8> = redis::cmd("DUMP").arg("h").query(client.connection()).unwrap();
    client.call("DEL h");
    let ttl = 300_000;
    let _: () = redis::cmd("RESTORE").arg("h").arg(ttl).arg(dump).query(client.connection()).unwrap();
    client.call("RENAME h g");
    rows(&mut client, "CL.MSETTLE q FIXED 10 3600 1 HOLD g me");
    assert_eq!(client.int("GET q"), 1);
    // Without the key, what was taken stays taken.
    rows(&mut client, "CL.MTAKE q FIXED 10 3600 4 HOLD g 300 me");
    client.call("DEL g");
    rows(&mut client, "CL.MSETTLE q FIXED 10 3600 1 HOLD g me");
    assert_eq!(client.int("GET q"), 6);
}

#[test]
fn a_client_that_waits_is_served_when_a_hold_runs_out() {
    let (server, mut client) = Server::with_client();
    for window in ["86400000", "TOTAL"] {
        client.call("DEL q h");
        rows(&mut client, &format!("CL.MTAKE q FIXED 10 {window} 7 MS HOLD h 400 dead"));
        for first in
            [format!("q FIXED 10 {window} 5"), format!("r THROTTLE 99 10 60 1 q FIXED 10 {window} 5")]
        {
            let refused = format!("CL.BMTAKE {first} TIMEOUT 60 MS");
            let at_once = client.call(&refused);
            assert!(at_once == redis::Value::Nil || format!("{at_once:?}").contains("int(1)"), "{at_once:?}");
        }
        let mut waits = Waiter::ask(
            &server,
            &format!("CL.BMTAKE q FIXED 10 {window} 5 TIMEOUT 60 MS HOLD h 86400000 me"),
        );
        wait_for_blocked(&mut client, 1);
        let answer = waits.answer();
        assert!(answer.starts_with("0 10 5 -1 "), "{window}: {answer}");
        assert_eq!(client.int("GET q"), 5);
        // As another limiter than the first.
        rows(&mut client, &format!("CL.MTAKE q FIXED 10 {window} 4 MS HOLD h 400 dead"));
        let mut waits = Waiter::ask(
            &server,
            &format!(
                "CL.BMTAKE r THROTTLE 99 10 60 1 q FIXED 10 {window} 5 TIMEOUT 60 MS HOLD h 86400000 you"
            ),
        );
        wait_for_blocked(&mut client, 1);
        let answer = waits.answer();
        assert!(answer.starts_with("0 10 0 -1 "), "{window}: {answer}");
        // A quantity that exceeds a limit is refused.
        let never = first(&mut client, &format!("CL.BMTAKE q FIXED 10 {window} 11 MS HOLD h 86400000 me"));
        assert_eq!(never[0], 1);
    }
}

#[test]
fn any_bytes_are_names() {
    let (_server, mut client) = Server::with_client();
    let long = vec![b'x'; 100_000];
    let names: [&[u8]; 6] = [b"", b" ", b"\0\xff", b"5 a", b"me 3 q", &long];
    for id in names {
        for key in names {
            let call: Vec<&[u8]> =
                vec![b"CL.MTAKE", key, b"FIXED", b"100", b"3600", b"3", b"HOLD", b"holds", b"300", id];
            client.call(&call);
        }
    }
    for id in names {
        for key in names {
            let call: Vec<&[u8]> =
                vec![b"CL.MSETTLE", key, b"FIXED", b"100", b"3600", b"1", b"HOLD", b"holds", id];
            client.call(&call);
            if key == names[0] {
                // The other parts of this owner have run out.
                break;
            }
        }
    }
    for key in &names[1..] {
        let call: Vec<&[u8]> = vec![b"CL.MTAKE", key, b"FIXED", b"100", b"3600", b"0", b"HOLD", b"holds"];
        client.call(&call);
        assert_eq!(client.get::<Option<i64>, _>(&[&b"GET"[..], key]), None);
    }
    assert_eq!(client.int(&[&b"GET"[..], b""]), 6);
    assert_eq!(client.int("EXISTS holds"), 0);
}

/// The sixth integers of the rows: what was taken, or what each key bears.
fn shares(reply: &[Vec<i64>]) -> Vec<i64> {
    reply[1..].iter().map(|row| row[5]).collect()
}

#[test]
fn along_chains_what_has_run_out_comes_back_to_each_pool() {
    let (_server, mut client) = Server::with_client();
    let spill = |quantity: i64| format!("a FIXED 10 3600000 {quantity} SPILL b FIXED 10 TOTAL {quantity}");
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h {SHORT} dead", spill(15)));
    assert_eq!(rows(&mut client, &format!("CL.MTAKE {} MS HOLD h", spill(12)))[0][0], 1);
    let_run_out();
    let peek = rows(&mut client, &format!("CL.MPEEK {} MS HOLD h", spill(12)));
    assert_eq!((peek[0][0], shares(&peek)), (0, vec![10, 2]));
    let taken = rows(&mut client, &format!("CL.MTAKE {} MS HOLD h {SHORT} me", spill(12)));
    assert_eq!((taken[0][0], shares(&taken)), (0, vec![10, 2]));
    assert_eq!((client.int("GET a"), client.int("GET b")), (10, 2));
    let_run_out();
    // A pool that is passed over gets back what has run out of it, too; and a refusal carries out.
    let passed = "a FIXED 10 3600000 1 ELSE b FIXED 10 TOTAL 1 MS HOLD h";
    assert_eq!(shares(&rows(&mut client, &format!("CL.MTAKE {passed}"))), [1, 0]);
    assert_eq!((client.int("GET a"), client.int("EXISTS b")), (1, 0));
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h {SHORT} me", spill(14)));
    let_run_out();
    assert_eq!(rows(&mut client, &format!("CL.MTAKE {} MS HOLD h {SHORT} me", spill(20)))[0][0], 1);
    assert_eq!((client.int("GET a"), client.int("EXISTS b"), client.int("EXISTS h")), (1, 0, 0));
    // A renewal keeps the held units.
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h {SHORT} me", spill(12)));
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h 3600000 me", spill(0)));
    let_run_out();
    rows(&mut client, &format!("CL.MTAKE {} MS HOLD h", spill(0)));
    assert_eq!((client.int("GET a"), client.int("GET b")), (10, 3));
    for call in [
        "CL.MSETTLE a FIXED 9 60 1 ELSE b FIXED 9 60 1",
        "CL.MSETTLE a FIXED 9 60 1 ELSE b FIXED 9 60 1 FLOW f HOLD h me",
    ] {
        assert_eq!(client.error(call), "ERR syntax error");
    }
    // Without a hold, along SPILL: where it fits, in order.
    client.call("DEL a b h");
    rows(&mut client, "CL.MTAKE a FIXED 10 3600000 7 MS");
    let settled = rows(&mut client, &format!("CL.MSETTLE {} MS HOLD h nobody", spill(5)));
    assert_eq!(shares(&settled), [3, 2]);
    let settled = rows(&mut client, &format!("CL.MSETTLE {} MS HOLD h nobody", spill(15)));
    assert_eq!(shares(&settled), [0, 15]);
    assert_eq!((settled[0][0], settled[2][0]), (0, 1), "one of the pools is in debt, the other full");
    // A stored reply has six columns.
    let call = format!("CL.MSETTLE {} MS HOLD h nobody ONCE o 60000", spill(1));
    assert_eq!(rows(&mut client, &call), rows(&mut client, &call));
}
