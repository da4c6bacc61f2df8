//! Effects are replicated, never calls: the exact stream, and replicas that lag, lack the module, or are
//! promoted.

use crate::common::{
    BINARY, Client, Effect, Options, ReplicaStream, Server, requires, wait_for_cluster, wait_until, wall_ns,
};
use crate::renamed::everything;

/// Calls, and what each propagates; `#` stands for an instant.
const STREAMS: &[(&str, &[&str])] = &[
    ("CL.THROTTLE g 9 10 3600 11", &[]),
    ("CL.THROTTLE g 9 10 3600 0", &[]),
    ("CL.THROTTLE g 9 10 3600000 3 MS", &["SET g # PXAT #"]),
    ("CL.THROTTLE g 9 10 3600 100 SATURATE", &["SET g # PXAT #"]),
    ("CL.THROTTLE g 9 10 3600", &[]),
    ("CL.THROTTLE far 0 1 4000000000", &["SET far # PXAT #"]),
    ("CL.CHARGE g 9 10 3600 15", &["SET g # PXAT #"]),
    ("CL.REFUND g 9 10 3600 3", &["SET g # PXAT #"]),
    ("CL.RESERVE g 9 10 3600 200 PREPAY", &["SET g # PXAT #"]),
    ("CL.REFUND g 9 10 3600 1000", &["DEL g"]),
    ("CL.FUNNEL f 10 1 36000 11", &[]),
    (
        "CL.FUNNEL f 10 1 36000 3",
        &["HSET f left_quota 7 leaking_ts # capacity 10 leaking_rate 0.000027777", "PEXPIREAT f #"],
    ),
    (
        "CL.FUNNEL f 10 1 36000 2",
        &["HSET f left_quota 5 capacity 10 leaking_rate 0.000027777", "PEXPIREAT f #"],
    ),
    ("CL.BUCKET b 10 1 36000 3", &["HSET b tokens 7 timestamp #", "PEXPIREAT b #"]),
    ("CL.BUCKET b 10 1 36000 2", &["HSET b tokens 5", "PEXPIREAT b #"]),
    ("CL.BUCKET b 10 1 36000 6", &[]),
    ("CL.WINDOW w 10 700000000 3", &["HSET w window # current 3 previous 0", "PEXPIREAT w #"]),
    ("CL.WINDOW w 10 700000000 2", &["HSET w current 5"]),
    ("CL.WINDOW w 10 700000000 x", &[]),
    ("CL.FIXED x 10 36000 3", &["SET x 3 PXAT #"]),
    ("CL.FIXED x 10 36000 2", &["SET x 5 PXAT #"]),
    ("CL.FIXED x 10 36000 6", &[]),
    ("CL.FIXED x 10 36000 0", &[]),
    // Totals, and chains of them.
    ("CL.FIXED t 10 TOTAL 4", &["SET t 4"]),
    ("CL.FIXED t 10 TOTAL 7", &[]),
    ("PEXPIREAT t 4102444800000", &["PEXPIREAT t #"]),
    ("CL.FIXED t 10 TOTAL 1", &["SET t 5 PXAT #"]),
    ("CL.FIXED i 10 TOTAL IDLE 100 1", &["SET i 1 PXAT #"]),
    ("CL.MSETTLE i FIXED 10 TOTAL IDLE 100 -1", &["DEL i"]),
    (
        "CL.MTAKE t1 FIXED 5 TOTAL 7 SPILL t2 FIXED 5 TOTAL 7 ELSE t3 FIXED 5 TOTAL 1",
        &["SET t1 5", "SET t2 2"],
    ),
    ("CL.MTAKE t1 FIXED 5 TOTAL 7 SPILL t2 FIXED 5 TOTAL 7 ELSE t3 FIXED 5 TOTAL 1", &["SET t3 1"]),
    ("CL.MTAKE t1 FIXED 5 TOTAL 7 SPILL t2 FIXED 5 TOTAL 7 ELSE t3 FIXED 1 TOTAL 1", &[]),
    ("CL.MPEEK t1 FIXED 5 TOTAL 7 SPILL t2 FIXED 5 TOTAL 7 ELSE t3 FIXED 5 TOTAL 1", &[]),
    // Leases, also of holders whose leases have ended.
    ("CL.ACQUIRE p 2 100 a", &["ZADD p # a", "PEXPIREAT p #"]),
    ("CL.ACQUIRE p 2 50 b", &["ZADD p # b", "PEXPIREAT p #"]),
    ("CL.ACQUIRE p 2 50 c", &[]),
    ("CL.RENEW p 50 c", &[]),
    ("CL.RELEASE p c", &[]),
    ("CL.RENEW p x a", &[]),
    ("CL.RENEW p 10 a", &["ZADD p # a", "PEXPIREAT p #"]),
    ("CL.RELEASE p b", &["ZREM p b", "PEXPIREAT p #"]),
    ("CL.RELEASE p a", &["UNLINK p"]),
    ("CL.ACQUIRE p 3 1000 long", &["ZADD p # long", "PEXPIREAT p #"]),
    ("ZADD p PAST x PAST y", &["ZADD p # x # y"]),
    ("CL.ACQUIRE p 3 10 a", &["ZADD p # a", "ZREMRANGEBYRANK p 0 1", "PEXPIREAT p #"]),
    ("CL.LOG l 5 60 0", &[]),
    ("CL.LOG l 5 60 3", &["ZADD l NX # #-0 # #-1 # #-2", "PEXPIREAT l #"]),
    ("CL.LOG l 5 60 3", &[]),
    (
        "EVAL return{redis.call('CL.LOG',KEYS[1],5,60,3),redis.call('CL.LOG',KEYS[1],5,60,3)} 1 e",
        &["ZADD e NX # #-0 # #-1 # #-2", "PEXPIREAT e #"],
    ),
    (
        "CL.MTAKE m THROTTLE 9 10 3600 1 n BUCKET 9 10 3600 2 o LOG 9 3600 1 q LEASE 2 3600 id ONCE r 60",
        &[
            "SET m # PXAT #",
            "HSET n tokens 7 timestamp #",
            "PEXPIREAT n #",
            "ZADD o NX # #-0",
            "PEXPIREAT o #",
            "ZADD q # id",
            "PEXPIREAT q #",
            "SET r 0 2 1 -1 3600 0 10 9 -1 360 0 9 7 -1 720 0 9 8 -1 3600 0 2 1 -1 3600 PXAT #",
        ],
    ),
    ("CL.MPEEK m THROTTLE 9 10 3600 1 n BUCKET 9 10 3600 2 o LOG 9 3600 1 q LEASE 2 3600 id", &[]),
    (
        "CL.MSETTLE m THROTTLE 9 10 3600 -1 n BUCKET 9 10 3600 -1 o LOG 9 3600 -1 q LEASE 2 0 id",
        &["DEL m", "HSET n tokens 8", "PEXPIREAT n #", "UNLINK o", "UNLINK q"],
    ),
];

/// The command with `#` in place of every instant.
fn without_instants(command: &str) -> String {
    let is_instant = |word: &str| word.len() >= 13 && word.bytes().all(|byte| byte.is_ascii_digit());
    let shown = |word: &str| match word.split_once('-') {
        Some((instant, number)) if is_instant(instant) => format!("#-{number}"),
        _ if is_instant(word) => "#".to_owned(),
        _ => word.to_owned(),
    };
    command.split(' ').map(shown).collect::<Vec<_>>().join(" ")
}

/// The instants are right if a replica without the module has the same keys.
#[test]
fn an_admitted_call_propagates_its_state_and_nothing_else() {
    let server = Server::start();
    let plain = attach(&server, Options::new().without_module());
    let mut stream = ReplicaStream::attach(&server);
    let (mut client, mut copy) = (server.connect(), plain.connect());
    let past = (wall_ns() / 1_000 - 60_000_000).to_string();
    for (call, expected) in STREAMS {
        let _ = client.ask(&call.replace("PAST", &past)); // one is an error
        let mut commands: Vec<String> = Vec::new();
        for command in *expected {
            match command.strip_suffix(" PXAT #") {
                // Servers that cannot set an expiry with a value.
                Some(set) if !BINARY.at_least(6, 2, 8) => {
                    let key = set.split(' ').nth(1).unwrap();
                    commands.extend([set.to_owned(), format!("PEXPIREAT {key} #")]);
                }
                _ => commands.push((*command).to_owned()),
            }
        }
        if !BINARY.at_least(6, 2, 8) && commands.len() == 1 && commands[0].starts_with("HSET w ") {
            commands.push("PEXPIREAT w #".to_owned()); // of which the module cannot tell that it stays
        }
        let effects: Vec<_> = commands.into_iter().map(|command| Effect { db: 0, command }).collect();
        let framed = match effects.len() {
            0 => effects,
            1 if !call.starts_with("CL.") => effects,
            1 => Effect::alone(0, effects),
            _ => Effect::transaction(0, effects),
        };
        let mut seen = stream.effects(&server);
        for effect in &mut seen {
            effect.command = without_instants(&effect.command);
        }
        assert_eq!(seen, framed, "{call}");
    }
    catch_up(&mut client, &mut copy);
    assert_eq!(everything(&mut copy), everything(&mut client));
}

#[test]
fn a_transaction_propagates_as_one() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    for command in [
        "MULTI",
        "CL.THROTTLE a 9 10 3600 4",
        "CL.THROTTLE a 9 10 3600 7", // refused
        "INCR calls",
        "CL.THROTTLE b 9 10 3600 4",
        "CL.THROTTLE b 9 10 3600 0",
        "EXEC",
    ] {
        client.call(command);
    }
    let mut inside = Effect::of_call(&mut client, 0, "a");
    inside.push(Effect { db: 0, command: "INCR calls".to_owned() });
    inside.extend(Effect::of_call(&mut client, 0, "b"));
    assert_eq!(stream.effects(&server), Effect::transaction(0, inside));

    let mut transaction = |commands: &[&str]| {
        for command in [&["MULTI"], commands, &["EXEC"]].concat() {
            client.call(command);
        }
        stream.effects(&server)
    };
    let nothing = transaction(&[WRITES_NOTHING]);
    let refused = transaction(&["CL.THROTTLE a 9 10 3600 7", "CL.THROTTLE b 9 10 3600 0"]);
    assert_eq!(refused, nothing, "a transaction of refusals");
}

/// A write command that changes nothing. Old servers propagate an empty frame if it runs in a transaction
/// (before 6.2) or in a script (before 7.0), so a refusal may leave such a frame there too.
const WRITES_NOTHING: &str = "DEL no-such-key";

#[test]
fn a_script_propagates_its_effects_as_one() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    let script = "for _, key in ipairs(KEYS) do \
                  redis.call('CL.THROTTLE', key, 9, 10, 3600, 4) \
                  redis.call('CL.THROTTLE', key, 9, 10, 3600, 7) \
                  redis.call('CL.THROTTLE', key, 9, 10, 3600, 0) end";
    client.call(&["EVAL", script, "2", "a", "b"]);
    let mut inside = Effect::of_call(&mut client, 0, "a");
    inside.extend(Effect::of_call(&mut client, 0, "b"));
    assert_eq!(stream.effects(&server), Effect::transaction(0, inside));

    let mut script = |command: &str| {
        let words = command.replace(' ', "', '");
        client.call(&["EVAL", &format!("return redis.call('{words}')"), "0"]);
        stream.effects(&server)
    };
    let nothing = script(WRITES_NOTHING);
    assert_eq!(script("CL.THROTTLE a 9 10 3600 7"), nothing, "a script that was refused");
}

#[test]
fn a_function_propagates_its_effects_as_one() {
    let (server, mut client) = Server::with_client();
    requires!(client.has_command("FUNCTION"), "no functions");
    let mut stream = ReplicaStream::attach(&server);
    let library = "#!lua name=limits\n\
                   redis.register_function('take', function(keys)\n\
                   redis.call('CL.THROTTLE', keys[1], 9, 10, 3600)\n\
                   redis.call('CL.THROTTLE', keys[2], 9, 10, 3600) end)";
    client.call(&["FUNCTION", "LOAD", library]);
    stream.effects(&server);
    client.call("FCALL take 2 c d");
    let mut inside = Effect::of_call(&mut client, 0, "c");
    inside.extend(Effect::of_call(&mut client, 0, "d"));
    assert_eq!(stream.effects(&server), Effect::transaction(0, inside));
}

#[test]
fn keys_are_propagated_byte_by_byte() {
    let primary = Server::start();
    let replica = attach(&primary, Options::new());
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    let keys: [&[u8]; 5] = [b"", b"a\0b", b"\xff\xfe", b"%s %n", b"\r\n$5\r\n"];
    for key in keys {
        client.ints(&[b"CL.THROTTLE".as_ref(), key, b"9", b"10", b"3600"]);
    }
    catch_up(&mut client, &mut copy);
    for key in keys {
        assert_eq!(copy.snapshot(key), client.snapshot(key), "{:?}", key.escape_ascii().to_string());
    }
}

/// A replica that has finished its first synchronization.
pub fn attach(primary: &Server, options: Options) -> Server {
    let replica = options.start();
    replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    replica.connect().wait_for("master_link_status", "up");
    replica
}

pub fn catch_up(primary: &mut Client, replica: &mut Client) {
    let target: u64 = primary.info("master_repl_offset").parse().unwrap();
    wait_until("the replica to catch up", || {
        let offset: u64 = replica.info("slave_repl_offset").parse().unwrap();
        if offset >= target { Ok(()) } else { Err(format!("{offset} of {target}")) }
    });
}

#[test]
fn replicas_hold_the_same_state_and_take_over_where_it_stands() {
    let primary = Server::start();
    let mut client = primary.connect();
    client.throttle_checked("before", "9 10 3600 4"); // reaches the replica by snapshot
    let replica = attach(&primary, Options::new());
    let plain = attach(&primary, Options::new().without_module());
    let (mut copy, mut plain_copy) = (replica.connect(), plain.connect());

    client.throttle_checked("after", "9 10 3600 4"); // and these by the stream
    client.throttle_checked("twice", "9 10 3600 4");
    client.throttle_checked("twice", "9 10 3600 2");
    client.throttle_checked("refused", "9 10 3600 10");
    client.throttle_checked("refused", "9 10 3600 10");
    client.throttle_checked("saturated", "9 10 3600 99 SATURATE");
    let keys = ["before", "after", "twice", "refused", "saturated"];
    catch_up(&mut client, &mut copy);
    catch_up(&mut client, &mut plain_copy);
    for key in keys {
        assert_eq!(copy.snapshot(key), client.snapshot(key), "{key} on the replica");
        assert_eq!(plain_copy.snapshot(key), client.snapshot(key), "{key} on a replica without the module");
    }

    let before = copy.snapshot("twice");
    for call in ["CL.THROTTLE twice 9 10 3600", "CL.THROTTLE fresh 9 10 3600"] {
        let error = copy.error(call);
        assert!(error.starts_with("READONLY "), "{call} on a replica: {error}");
    }
    assert_eq!(copy.snapshot("twice"), before);

    copy.call("REPLICAOF NO ONE");
    copy.wait_for("role", "master");
    assert_eq!(copy.throttle_checked("refused", "9 10 3600")[0], 1, "the limit is as used as it was");
    assert_eq!(copy.throttle_checked("twice", "9 10 3600 5")[0], 1);
    assert_eq!(copy.throttle_checked("twice", "9 10 3600 4")[..4], [0, 10, 0, -1]);
}

#[test]
fn a_replica_that_lags_still_gets_the_primarys_state() {
    let primary = Server::start();
    let replica = attach(&primary, Options::new());
    let (mut client, mut copy) = (primary.connect(), replica.connect());
    replica.signal("STOP");
    let reset = client.throttle_checked("k", "9 10 100000 3 MS")[4];
    // This tests the lag: half a second passes while the replica receives nothing.
    wait_until("half a second to pass", || {
        let now = client.ints("CL.THROTTLE k 9 10 100000 0 MS")[4];
        if now <= reset - 500 { Ok(()) } else { Err(format!("{now} ms left of {reset}")) }
    });
    client.throttle_checked("late", "9 10 3600 3");
    let states = ["k", "late"].map(|key| client.snapshot(key));
    replica.signal("CONT");
    catch_up(&mut client, &mut copy);
    assert_eq!(["k", "late"].map(|key| copy.snapshot(key)), states);
}

#[test]
fn the_version_tells_how_effects_are_framed() {
    // `Effect` chooses the framing by the version, so the version must have been parsed.
    assert!(BINARY.at_least(6, 0, 0), "server version {:?} from {:?}", BINARY.version, BINARY.version_text);
}

/// Valkey 9 moves slots with a stream of their own, to a node that is not a replica. Regression, found on
/// Valkey 9.1: the stream contained calls, which the other node decided again, when the module assumed that
/// there were no listeners.
#[test]
fn a_slot_that_migrates_takes_its_limits_along() {
    let node = || Options::new().set("cluster-enabled", "yes").start();
    let (source, target) = (node(), node());
    let (mut from, mut to) = (source.connect(), target.connect());
    requires!(from.has_command("CLUSTER|MIGRATESLOTS"), "no CLUSTER MIGRATESLOTS");
    from.call("CLUSTER ADDSLOTSRANGE 0 16383");
    from.call(&format!("CLUSTER MEET 127.0.0.1 {}", target.port()));
    wait_for_cluster(&[&source, &target]);
    from.throttle_checked("early", "9 10 3600 2");
    for i in 0..30 {
        from.call(&format!("SET filler{i} value"));
    }
    from.call("CONFIG SET rdb-key-save-delay 200000"); // slots are on their way for six seconds
    from.call(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 16383 NODE {}", to.text("CLUSTER MYID")));
    let uptime = |client: &mut Client| client.info("uptime_in_seconds").parse::<u64>().unwrap();
    let begun = uptime(&mut from);
    wait_until("the snapshot to be well under way", || match uptime(&mut from) - begun {
        seconds if seconds >= 3 => Ok(()),
        seconds => Err(format!("{seconds} s")),
    });
    let states = ["early", "late", "latest"].map(|key| {
        from.throttle_checked(key, "9 10 3600 3");
        (key, from.tat(key), from.expiry_ms(key))
    });
    let migrations = format!("{:?}", from.call("CLUSTER GETSLOTMIGRATIONS"));
    assert!(migrations.contains("snapshotting"), "too late to tell anything: {migrations}");
    wait_until("the slots to arrive", || match from.ask("GET early") {
        Err(error) if error.starts_with("MOVED ") => Ok(()),
        seen => Err(format!("{seen:?}, {:?}", from.call("CLUSTER GETSLOTMIGRATIONS"))),
    });
    assert_eq!(["early", "late", "latest"].map(|key| (key, to.tat(key), to.expiry_ms(key))), states);
}
