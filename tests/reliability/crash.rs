//! The calls that a crash loses, and how another module, or a server without one, treats the remaining data.

use crate::common::{
    Options, Server, Throttle, aof_path, faulty_module_path, module_path, wait_until, wall_ns,
};
use crate::failover::wait_for_info;
use crate::figures::{figure, long};
use crate::histories::{CALLERS, PATIENCE, Recorder, Target, address, examine, histories, stretch};
use crate::keys::{KINDS, alone, contents};
use std::fs;

/// Calls of every command that writes: each kind of effect, alone and in transactions.
fn calls() -> Vec<String> {
    let mut calls: Vec<String> = KINDS.iter().map(|kind| kind.call("a", 9, "one")).collect();
    calls.extend(KINDS.iter().map(|kind| kind.call("a", 9, "two")));
    calls.extend(
        [
            "CL.THROTTLE {a}throttle 8 1 3600 99 SATURATE",
            "CL.CHARGE {a}throttle 8 1 3600 30",
            "CL.THROTTLE {a}throttle 8 1 3600",
            "CL.REFUND {a}reserve 8 1 3600 1",
            "CL.REFUND {a}bthrottle 8 1 3600 9",
            "CL.LOG {a}log 9 36000 3",
            "CL.RENEW {a}acquire 50000 one",
            "CL.RELEASE {a}acquire two",
            "CL.RELEASE {a}acquire one",
        ]
        .map(str::to_owned),
    );
    calls
}

#[test]
pub fn an_append_only_file_cut_anywhere_is_one_of_the_states_there_were() {
    let _alone = alone();
    let mut server = Options::new().append_only().start();
    let mut client = server.connect();
    let file = aof_path(&server);
    let mut states = vec![(0, contents(&mut client))];
    for call in calls() {
        client.call(&call);
        states.push((fs::metadata(&file).unwrap().len(), contents(&mut client)));
    }
    let whole = fs::read(&file).unwrap();
    let expected = |length: u64| &states.iter().rfind(|(end, _)| *end <= length).unwrap().1;

    // Every length of the tail, and before it the bytes around the end of each effect.
    let end_of_file = u64::try_from(whole.len()).unwrap();
    let tail = if long() { end_of_file } else { 300 };
    let ends = states.iter().flat_map(|(end, _)| [end.saturating_sub(1), *end, end + 1]);
    let mut lengths: Vec<u64> = ends.chain(end_of_file.saturating_sub(tail)..=end_of_file).collect();
    lengths.sort_unstable();
    lengths.dedup();
    for length in lengths.iter().copied().filter(|length| *length <= end_of_file) {
        server.kill();
        fs::write(&file, &whole[..usize::try_from(length).unwrap()]).unwrap();
        server.restart();
        let seen = contents(&mut server.connect());
        assert!(seen == *expected(length), "cut to {length} of {end_of_file}: {seen:#?}");
    }
    figure(
        "append-only file cut: lengths tried, torn states",
        format!("{} of {end_of_file}, 0", lengths.len()),
    );
}

#[test]
pub fn a_server_without_the_module_keeps_every_kind_of_key() {
    for name in ["RDB", "AOF"] {
        let options = if name == "AOF" { Options::new().append_only() } else { Options::new() };
        let mut server = options.start();
        let mut client = server.connect();
        for call in calls() {
            client.call(&call);
        }
        let before = contents(&mut client);
        if name == "RDB" {
            client.call("SAVE");
        }
        server.kill();
        server.set_module(None);
        server.restart();
        let mut client = server.connect();
        assert!(client.error("CL.PEEK {a}throttle 8 1 3600").contains("unknown command"), "no module");
        assert_eq!(contents(&mut client), before, "{name} loaded without the module");
        // The module continues from the writes of that server.
        if name == "RDB" {
            client.call("SAVE");
        } else {
            client.call("BGREWRITEAOF");
            wait_for_info(&mut client, "aof_rewrite_in_progress", "0");
        }
        server.set_module(Some(module_path()));
        server.restart();
        let mut client = server.connect();
        assert_eq!(contents(&mut client), before, "{name} loaded with it again");
        assert_eq!(client.ints("CL.THROTTLE {a}throttle 8 1 3600")[..3], [1, 9, 0]);
    }
}

#[test]
pub fn an_upgrade_of_the_module_under_load_forgets_nothing() {
    let _alone = alone();
    let mut server = Options::new().append_only().start();
    let target = Target::new(&address(server.port()));
    let mut recorder = Recorder::start(CALLERS, PATIENCE, target.guide());
    let mut client = server.connect();
    // The build with faults, none of which is selected, serves as another version.
    let versions = [faulty_module_path(), module_path()];
    for turn in 0..4 {
        recorder.wait_for(stretch());
        // While a call is running in the module, the server refuses to unload it.
        wait_until("the module to be unloaded", || client.ask("MODULE UNLOAD redis-cell"));
        client.call(&["MODULE", "LOAD", &versions[turn % 2].display().to_string()]);
    }
    recorder.wait_for(stretch());
    server.kill();
    recorder.fault(0, u64::MAX);
    server.set_module(Some(versions[0].clone()));
    server.restart_here();
    recorder.wait_for(stretch());
    examine("the module is replaced", &histories(recorder.stop()));
}

/// Both modules take turns at one key. The test computes the calls of brandur/redis-cell 0.5.0: it reads the
/// decimal TAT of the string, and writes the next one with a lifetime in whole milliseconds, rounded down.
#[test]
pub fn data_goes_to_redis_cell_and_back() {
    let (_server, mut client) = Server::with_client();
    let arguments = "9 10 3600";
    let throttle = Throttle::parse(arguments);
    for turn in 0..12 {
        if turn % 2 == 0 {
            client.throttle_checked("k", arguments);
        } else {
            let text = client.text("GET k");
            let tat: i64 = text.parse().unwrap();
            assert_eq!(text, tat.to_string(), "nothing but the digits of an i64");
            let now = wall_ns();
            let reply = throttle.answer(Some(tat), now);
            if reply[0] == 0 {
                let next = tat.max(now) + i64::try_from(throttle.cost(1)).unwrap();
                client.call(&format!("SET k {next} PX {}", (next - now) / 1_000_000));
            }
        }
    }
    let used = client.throttle_checked("k", "9 10 3600 0");
    assert_eq!(used[2], 0, "ten were there, and twelve have asked");
    // The key that 0.5.0 leaves if the server ends between creating it and setting its expiry.
    let tat = wall_ns() + 720_000_000_000;
    client.call(&format!("SET cut-short {tat}"));
    assert_eq!(client.throttle_checked("cut-short", arguments)[..3], [0, 10, 7]);
}
