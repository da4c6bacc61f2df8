//! The function library on the server under test, with the module and without it. tests/functions compares
//! the two on a clock that stands still.

use crate::common::{
    Client, Effect, FUNCTIONS, Footprint, Options, ReplicaStream, Server, Throttle, ceil_div, cluster,
    has_functions, load_functions, read_aof, requires, to_function, wait_until, wall_ns,
};
use crate::renamed::everything;

const NONE: &str = "the server has no functions";

fn without_module() -> Server {
    Options::new().without_module().start()
}

fn loaded(server: &Server) -> Client {
    let mut client = server.connect();
    load_functions(&mut client, &FUNCTIONS);
    client
}

/// The words of the function's call for a command.
fn function(command: &str) -> Vec<Vec<u8>> {
    to_function(&command.split(' ').collect::<Vec<_>>())
}

/// The reply is right for an instant of the call, whatever the clock shows.
fn check(client: &mut Client, key: &str, arguments: &str) -> Vec<i64> {
    let throttle = Throttle::parse(arguments);
    let tat = client.tat(key);
    let command = format!("CL.THROTTLE {key} {arguments}");
    // The functions' clock has microseconds, so that it is up to one behind.
    let earliest = wall_ns() - 1_000;
    let reply = client.ints(&function(&command));
    let latest = wall_ns() + 5_000_000;
    throttle.check(&reply, tat, earliest, latest, &command);
    if throttle.writes(&reply) {
        let (tat, expiry) = (client.tat(key).unwrap(), client.expiry_ms(key));
        assert_eq!(expiry, ceil_div(tat.into(), 1_000_000), "{command} left {tat}");
    }
    reply
}

#[test]
fn without_the_module() {
    requires!(has_functions(), NONE);
    let server = without_module();
    let mut client = server.connect();
    assert_eq!(client.error(&function("CL.THROTTLE k 15 30 60")), "ERR Function not found");
    let mut client = loaded(&server);
    assert!(client.error("CL.THROTTLE k 15 30 60").starts_with("ERR unknown command"));
    for _ in 0..20 {
        check(&mut client, "k", "15 30 3600");
    }
    assert_eq!(client.integers(&function("CL.REFUND k 15 30 3600 16")).split(' ').nth(2), Some("16"));
    assert_eq!(client.ints(&function("CL.CHARGE k 15 30 3600 17"))[..3], [1, 16, 0]);
    assert_eq!(client.ints(&function("CL.PEEK k 15 30 3600"))[..3], [1, 16, 0]);
    for (command, error) in [
        ("CL.THROTTLE k 15 30", "ERR wrong number of arguments for 'cl.throttle' command"),
        ("CL.FIXED k 15", "ERR wrong number of arguments for 'cl.fixed' command"),
        ("CL.PEEK k 15 30 60 1 SATURATE", "ERR syntax error"),
        ("CL.CHARGE k 15 0 60", "ERR count must be an integer from 1 to 9223372036854775807"),
        (
            "CL.FIXED k 5 60",
            "ERR the key does not hold this limiter's state: expected a count that expires with its window",
        ),
    ] {
        let before = client.snapshot("k");
        assert_eq!(client.error(&function(command)), error, "{command}");
        assert_eq!(client.snapshot("k"), before, "{command}");
    }
    client.call("LPUSH list x");
    let wrong = client.error("GET list");
    assert_eq!(client.error(&function("CL.THROTTLE list 15 30 60")), wrong);
    assert_eq!(client.error("FCALL cl_peek 0 15 30 60"), "ERR cl_peek takes one key");
    assert_eq!(client.error("FCALL cl_peek 2 a b 15 30 60"), "ERR cl_peek takes one key");
    client.error(&["EVAL", "return redis.call('FCALL', 'cl_version', 0)", "0"]); // in the words of the server
    // Anything is a key.
    let bytes: [&[u8]; 7] = [b"FCALL", b"cl_throttle", b"1", b"\xff\0 ", b"15", b"30", b"60"];
    assert_eq!(client.ints(&bytes), [0, 16, 15, -1, 2]);
}

#[test]
fn the_effects_are_those_of_the_module() {
    requires!(has_functions(), NONE);
    let server = without_module();
    let mut client = loaded(&server);
    let mut stream = ReplicaStream::attach(&server);
    for command in ["CL.THROTTLE k 9 10 3600 3", "CL.CHARGE k 9 10 3600 30", "CL.REFUND k 9 10 3600 2"] {
        client.call(&function(command));
        assert_eq!(stream.effects(&server), Effect::of_call(&mut client, 0, "k"), "{command}");
    }
    for command in [
        "CL.THROTTLE k 9 10 3600 3", // refused
        "CL.THROTTLE k 9 10 3600 0",
        "CL.THROTTLE k x 10 3600",
        "CL.PEEK k 9 10 3600",
        "CL.REFUND k 9 10 3600 0",
        "CL.CHARGE k 9 10 3600 0",
        "CL.FIXED f 3 60 4", // refused
        "CL.FIXED f 3 60 0",
    ] {
        let _ = client.ask(&function(command));
        assert_eq!(stream.effects(&server), [], "{command}");
    }
    client.call(&function("CL.REFUND k 9 10 3600 100"));
    assert_eq!(stream.effects(&server), [Effect { db: 0, command: "DEL k".to_owned() }]);
    client.call(&function("CL.FIXED f 3 60 2"));
    let command = format!("SET f 2 PXAT {}", client.expiry_ms("f"));
    assert_eq!(stream.effects(&server), [Effect { db: 0, command }]);
}

#[test]
fn a_refusal_leaves_no_trace_and_the_library_survives_a_restart() {
    requires!(has_functions(), NONE);
    let mut server = Options::new().without_module().append_only().start();
    let mut client = loaded(&server);
    client.call(&function("CL.THROTTLE k 9 10 3600 8"));
    let state = (client.tat("k"), client.expiry_ms("k"));
    let before = Footprint::of(&server, &mut client, "k");
    for command in ["CL.THROTTLE k 9 10 3600 8", "CL.PEEK k 9 10 3600", "CL.THROTTLE k 9 x 3600"] {
        let _ = client.ask(&function(command));
        assert_eq!(Footprint::of(&server, &mut client, "k"), before, "{command}");
    }
    assert_eq!(read_aof(&server).last().unwrap().command, Effect::of_call(&mut client, 0, "k")[0].command);
    server.restart();
    let mut client = server.connect();
    assert_eq!((client.tat("k"), client.expiry_ms("k")), state);
    assert_eq!(client.ints(&function("CL.PEEK k 9 10 3600"))[..3], [0, 10, 2]);
}

#[test]
fn a_replica_peeks_and_takes_nothing() {
    requires!(has_functions(), NONE);
    let (primary, replica) = (without_module(), without_module());
    let mut client = loaded(&primary);
    let mut reader = replica.connect();
    reader.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    client.call(&function("CL.THROTTLE k 9 10 3600 8"));
    wait_until("the replica to have the state", || match reader.tat("k") {
        tat if tat.is_some() && tat == client.tat("k") => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    assert_eq!(reader.ints("FCALL_RO cl_peek 1 k 9 10 3600")[..3], [0, 10, 2]);
    assert_eq!(reader.ints("FCALL cl_peek 1 k 9 10 3600 3")[..3], [1, 10, 2]);
    assert!(reader.ask("FCALL_RO cl_mpeek 1 k THROTTLE 9 10 3600 1").is_ok());
    assert_eq!(reader.text(&["FCALL_RO", "cl_version", "0"]), env!("CARGO_PKG_VERSION"));
    for command in ["CL.THROTTLE", "CL.CHARGE", "CL.REFUND"] {
        let error = reader.error(&function(&format!("{command} k 9 10 3600")));
        assert!(error.starts_with("READONLY "), "{command}: {error}");
    }
    let error = client.error("FCALL_RO cl_throttle 1 k 9 10 3600");
    assert!(error.contains("write"), "{error}");
}

#[test]
fn out_of_memory_only_checks_and_refunds_run() {
    requires!(has_functions(), NONE);
    let server = without_module();
    let mut client = loaded(&server);
    client.call(&function("CL.THROTTLE k 9 10 3600 8"));
    client.call("CONFIG SET maxmemory 1");
    for command in ["CL.THROTTLE k 9 10 3600", "CL.CHARGE k 9 10 3600", "CL.FIXED f 9 60"] {
        let error = client.error(&function(command));
        assert!(error.starts_with("OOM "), "{command}: {error}");
    }
    assert_eq!(client.ints(&function("CL.PEEK k 9 10 3600"))[..3], [0, 10, 2]);
    assert_eq!(client.ints(&function("CL.REFUND k 9 10 3600 3"))[..3], [0, 10, 5]);
    assert!(client.ask(&function("CL.MSETTLE k THROTTLE 9 10 3600 -1")).is_ok());
    assert_eq!(client.integers(&function("CL.RELEASE places a")), "0");
}

/// The calls of `several::without_memory_a_settlement_makes_no_keys_and_no_entries`.
#[test]
fn without_memory_a_settlement_makes_no_keys_and_no_entries() {
    requires!(has_functions(), NONE);
    let server = without_module();
    let mut client = loaded(&server);
    for call in ["CL.LOG log 1000 3600 5", "CL.THROTTLE old 9 10 3600 5", "CL.ACQUIRE busy 3 60 r1"] {
        client.call(&function(call));
    }
    client.call("CONFIG SET maxmemory 1");
    let before = ["log", "old", "busy", "new"].map(|key| client.snapshot(key));
    let grows = [
        "CL.MSETTLE new THROTTLE 9 10 60 1",
        "CL.MSETTLE old THROTTLE 9 10 3600 -2 new FIXED 10 60 1",
        "CL.MSETTLE new FUNNEL 9 10 60 1",
        "CL.MSETTLE busy LEASE 3 0 r1 log LOG 1000 3600 2",
    ];
    for call in grows {
        let error = client.error(&function(call));
        assert_eq!(error, "OOM command not allowed when used memory > 'maxmemory'.", "{call}");
        assert_eq!(["log", "old", "busy", "new"].map(|key| client.snapshot(key)), before, "{call}");
    }
    // What makes nothing gets through.
    client.call(&function(
        "CL.MSETTLE new THROTTLE 9 10 60 -1 old THROTTLE 9 10 3600 2 log LOG 1000 3600 -2 busy LEASE 3 0 r1",
    ));
    assert_eq!(client.int("DBSIZE"), 2);
    // So does every settlement where the server makes room, or has room.
    for setting in ["maxmemory-policy allkeys-random", "maxmemory 1gb"] {
        client.call(&format!("CONFIG SET {setting}"));
        client.call("DEL new");
        assert!(client.ask(&function(grows[0])).is_ok(), "{setting}");
    }
}

#[test]
fn a_call_with_once_that_is_repeated_is_charged_once() {
    requires!(has_functions(), NONE);
    let server = without_module();
    let mut client = loaded(&server);
    let mut stream = ReplicaStream::attach(&server);
    let take = function("CL.MTAKE {a}:k FIXED 100 3600 25 ONCE {a}:id 600");
    let first = client.call(&take);
    let (state, reply) = (client.text("GET {a}:k"), client.text("GET {a}:id"));
    assert_eq!([state.as_str(), reply.as_str()], ["25", "0 100 75 -1 3600 0 100 75 -1 3600"]);
    let effects = stream.effects(&server);
    let expected = format!("SET {{a}}:id {reply} PXAT {}", client.expiry_ms("{a}:id"));
    let commands: Vec<&str> = effects.iter().map(|effect| effect.command.as_str()).collect();
    assert!(commands.len() == 4 && commands[0] == "MULTI" && commands[2] == expected, "{commands:?}");
    assert_eq!(client.call(&take), first);
    assert_eq!(client.text("GET {a}:k"), "25");
    assert_eq!(stream.effects(&server), []);
    let other = client.error("FCALL cl_mtake 3 {a}:k {a}:l {a}:id LOG 5 60 1 LOG 5 60 1 ONCE 600");
    assert!(other.ends_with("expected a reply of as many limiters, stored by ONCE"), "{other}");
    // A refusal stores nothing.
    client.call(&function("CL.MTAKE {a}:k FIXED 100 3600 76 ONCE {a}:refused 600"));
    assert_eq!(client.int("EXISTS {a}:refused"), 0);
    // A new settlement needs memory, a repeated one does not.
    let settle = |id: &str| function(&format!("CL.MSETTLE {{a}}:k FIXED 100 3600 -5 ONCE {{a}}:{id} 600"));
    let settled = client.call(&settle("one"));
    client.call("CONFIG SET maxmemory 1");
    assert!(client.error(&settle("two")).starts_with("OOM "));
    assert_eq!(client.call(&settle("one")), settled);
    assert_eq!(client.text("GET {a}:k"), "20");
}

#[test]
fn a_replica_has_what_each_function_writes() {
    requires!(has_functions(), NONE);
    let (primary, replica) = (without_module(), without_module());
    let mut client = loaded(&primary);
    let mut reader = replica.connect();
    reader.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let limiters = "t THROTTLE 9 10 3600 2 f FUNNEL 9 10 3600 2 b BUCKET 9 10 3600 2 x FIXED 9 MONTH 2 \
        w WINDOW 9 3600 2 l LOG 9 3600 2 p LEASE 9 3600 a";
    let given_back = limiters.replace(" 2 ", " -1 ").replace("3600 a", "0 a");
    for command in [
        &format!("CL.MTAKE {limiters}"),
        "CL.RESERVE t 9 10 3600",
        "CL.PAUSE t 9 10 3600 60",
        "CL.LOG l 9 3600 3",
        "CL.ACQUIRE p 9 3600 b",
        "CL.RENEW p 60 b",
        "CL.FUNNEL f 9 10 3600 20 SATURATE",
        &format!("CL.MSETTLE {given_back}"),
        "CL.RELEASE p b",
    ] {
        let by_function = client.ask(&function(command));
        assert!(by_function.is_ok(), "{command}: {by_function:?}");
        for key in ["t", "f", "b", "x", "w", "l", "p"] {
            wait_until("the replica to have the state", || {
                let states = [client.snapshot(key), reader.snapshot(key)];
                if states[0] == states[1] { Ok(()) } else { Err(format!("{command}: {states:?}")) }
            });
        }
    }
}

#[test]
fn the_library_is_replaced_under_load() {
    requires!(has_functions(), NONE);
    let server = without_module();
    let mut client = loaded(&server);
    let calls = || {
        let mut client = server.connect();
        let calls = (0..500).map(|_| client.ints(&function("CL.THROTTLE k 999 1000 360000")));
        calls.filter(|reply| reply[0] == 0).count()
    };
    let admitted: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3).map(|_| scope.spawn(calls)).collect();
        for _ in 0..50 {
            load_functions(&mut client, &FUNCTIONS);
        }
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(admitted, 1000);
}

/// The table of permissions in the page: limiters or options, and the commands that they need.
fn permissions() -> Vec<(Vec<&'static str>, Vec<&'static str>)> {
    let names = |cell: &'static str| cell.split('`').skip(1).step_by(2).collect();
    let page = include_str!("../../docs/functions.md");
    let (_, table) = page.split_once("beside `TIME` and `PEXPIRETIME` |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    rows.map(|row| row[1..].split_once('|').unwrap()).map(|(of, needs)| (names(of), names(needs))).collect()
}

/// Calls of a kind that run each of its commands, one after the other. Commands of the server prepare them.
fn calls_of(kind: &str) -> Vec<String> {
    if kind == "HOLD" {
        let calls = [
            "MTAKE k FIXED 9 3600 2 HOLD h 60 a",
            "MTAKE k FIXED 9 3600 1 l FIXED 9 TOTAL 1 HOLD h 60 b",
            "MSETTLE k FIXED 9 3600 1 HOLD h a",
        ];
        return calls.map(str::to_owned).to_vec();
    }
    let limit = if matches!(kind, "THROTTLE" | "FUNNEL" | "BUCKET") { "9 10 3600" } else { "9 3600" };
    let (take, then) = match kind {
        "LEASE" => {
            ("a".to_owned(), "ZADD k {past} gone|ACQUIRE k 9 60 b|RENEW k 90 a|RELEASE k b|RELEASE k a")
        }
        "LOG" => (
            "1".to_owned(),
            "ZADD k {past} 1-0|LOG k 9 3600 3|MSETTLE k LOG 9 3600 -1|MSETTLE k LOG 9 3600 -9",
        ),
        _ => ("1".to_owned(), "{kind} k {limit} 2|MSETTLE k {kind} {limit} -1|MSETTLE k {kind} {limit} -9"),
    };
    let first = format!("MTAKE o THROTTLE 9 10 3600 1 k {kind} {limit} {take} ONCE id 600");
    let alone = if kind == "LEASE" { format!("ACQUIRE l {limit} a") } else { format!("{kind} l {limit} 1") };
    let then = then.replace("{kind}", kind).replace("{limit}", limit);
    let then = then.replace("{past}", &(wall_ns() / 1_000 - 7_200_000_000).to_string());
    [&first, &alone].map(String::as_str).into_iter().chain(then.split('|')).map(str::to_owned).collect()
}

/// Makes the calls of a kind. Returns the errors, none of which may have changed anything; `admin` then
/// repeats the call.
fn errors_of(kind: &str, client: &mut Client, admin: &mut Client) -> Vec<String> {
    admin.call("FLUSHALL");
    let mut errors = Vec::new();
    for call in calls_of(kind) {
        if call.starts_with("ZADD") {
            let _ = admin.ask(call.as_str());
            continue;
        }
        let (words, before) = (function(&format!("CL.{call}")), everything(admin));
        if let Err(error) = client.ask(&words) {
            assert_eq!(everything(admin), before, "CL.{call}: {error}");
            errors.push(error);
            let _ = admin.ask(&words);
        }
    }
    errors
}

#[test]
fn a_user_needs_the_permissions_of_the_page() {
    requires!(has_functions(), NONE);
    let server = without_module();
    let mut client = loaded(&server);
    client.call("ACL SETUSER app on >secret ~*");
    let mut app = server.connect();
    app.call("AUTH app secret");
    let table = permissions();
    let [kinds @ .., once, hold] = table.as_slice() else { panic!("too few rows") };
    assert_eq!((&once.0[..], &hold.0[..]), (&["ONCE"][..], &["HOLD"][..]));
    let of_all = ["GET", "SET"]; // of THROTTLE and ONCE, which take part in the first call of each kind
    assert_eq!(once.1, of_all);
    assert_eq!(kinds.iter().flat_map(|(kinds, _)| kinds).count(), 7);
    for (kinds, needs) in kinds {
        for kind in kinds {
            let rules =
                format!("+fcall +time +pexpiretime +{}", [needs.as_slice(), &once.1].concat().join(" +"));
            client.call(&format!("ACL SETUSER app -@all {rules}"));
            assert_eq!(errors_of(kind, &mut app, &mut client), Vec::<String>::new(), "{kind}");
            for missing in needs.iter().chain(&of_all) {
                client.call(&format!("ACL SETUSER app -@all {rules} -{missing}"));
                let errors = errors_of(kind, &mut app, &mut client);
                assert!(!errors.is_empty(), "{kind} does not need {missing}");
            }
        }
    }
    let (_, fixed) = kinds.iter().find(|(kinds, _)| kinds.contains(&"FIXED")).unwrap();
    let rules = format!("+fcall +time +pexpiretime +{}", [fixed.as_slice(), &hold.1].concat().join(" +"));
    client.call(&format!("ACL SETUSER app -@all {rules}"));
    assert_eq!(errors_of("HOLD", &mut app, &mut client), Vec::<String>::new());
    for missing in &hold.1 {
        client.call(&format!("ACL SETUSER app -@all {rules} -{missing}"));
        assert!(!errors_of("HOLD", &mut app, &mut client).is_empty(), "HOLD does not need {missing}");
    }
}

#[test]
fn what_needs_a_missing_command_is_an_error_and_changes_nothing() {
    requires!(has_functions(), NONE);
    for missing in ["SET", "PEXPIREAT", "ZREMRANGEBYRANK"] {
        let server = Options::new().without_module().rename(missing, "").start();
        let mut client = loaded(&server);
        let errors: Vec<String> = permissions()
            .iter()
            .flat_map(|(kinds, _)| kinds)
            .filter(|&&kind| kind != "ONCE")
            .flat_map(|kind| errors_of(kind, &mut client, &mut server.connect()))
            .collect();
        let expected = format!("ERR command {missing} is not available on this server");
        assert!(errors.contains(&expected), "{errors:?}");
    }
}

#[test]
fn nothing_of_a_call_stays_in_the_interpreter() {
    requires!(has_functions(), NONE);
    let server = without_module();
    let mut client = loaded(&server);
    client.call(&function("CL.PEEK k 9 10 60"));
    let before: i64 = client.info("used_memory_vm_functions").parse().unwrap();
    let long = "x".repeat(1_000_000);
    let places = [0, 1, 2].map(|place| format!(" p{place} LEASE 1 60 {place}{long}")).concat();
    // The second call has limits that are remembered.
    client.call(&function(&format!("CL.MTAKE{places}")));
    client.call(&function(&format!("CL.MTAKE{places}")));
    client.call(&function(&format!("CL.MSETTLE{}", places.replace(" 60 ", " 0 "))));
    for i in 0..3 {
        client.call(&format!("HSET w{i} window {long} current 1 previous 1"));
        client.error(&function(&format!("CL.WINDOW w{i} {} 60", i + 1)));
        client.error(&function(&format!("CL.MSETTLE k RESET {long} FIXED 5 60 1 AGO 1")));
    }
    wait_until("the interpreter to be as small as before", || {
        (0..200).for_each(|_| drop(client.call(&function("CL.PEEK k 9 10 60"))));
        let now: i64 = client.info("used_memory_vm_functions").parse().unwrap();
        if now < before + 500_000 { Ok(()) } else { Err(format!("{now} bytes, not {before}")) }
    });
}

#[test]
fn in_a_cluster() {
    requires!(has_functions(), NONE);
    let server = cluster(1, || Options::new().without_module()).remove(0);
    let mut client = loaded(&server);
    client.call(&function("CL.THROTTLE k 9 10 3600 8"));
    assert_eq!(client.ints(&function("CL.PEEK k 9 10 3600"))[..3], [0, 10, 2]);
}

#[test]
fn on_both_protocols_in_transactions_and_with_other_calls_of_the_library() {
    requires!(has_functions(), NONE);
    let server = without_module();
    loaded(&server);
    for (key, mut client) in [("a", server.connect()), ("b", server.connect_resp3())] {
        assert_eq!(client.ints(&function(&format!("CL.THROTTLE {key} 9 10 60 3")))[..3], [0, 10, 7]);
        client.call("MULTI");
        client.call(&function(&format!("CL.THROTTLE {key} 9 10 60 8")));
        client.call(&function(&format!("CL.REFUND {key} 9 10 60 3")));
        let replies: Vec<Vec<i64>> = client.get("EXEC");
        assert_eq!(replies, [[1, 10, 7, replies[0][3], replies[0][4]], [0, 10, 10, -1, 0]]);
    }
}
