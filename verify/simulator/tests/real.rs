//! The simulated server held to a real one: the same histories, on clocks that stand still between calls, get
//! the same replies and leave the same keys.

#[allow(dead_code, unused_imports, unused_macros, missing_docs)] // of which these tests need a part
#[path = "../../../tests/common/mod.rs"]
mod common;

use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;
use std::process::Command;

use common::{BINARY, Client, Clock, Options, Waiter, module_path};
use redis_cell_simulator::history::Step;

/// The next reply of a connection as the simulator shows it, and the items of an array.
fn reply(socket: &mut impl BufRead) -> Option<(String, Option<Vec<String>>)> {
    let mut line = String::new();
    socket.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let (sigil, rest) = line.trim_end().split_at(1);
    Some(match (sigil, rest) {
        ("*" | "$", "-1") => ("(nil)".to_owned(), None),
        ("*", count) => {
            let items: Option<Vec<_>> = (0..count.parse().ok()?).map(|_| reply(socket)).collect();
            let (items, nested): (Vec<_>, Vec<_>) = items?.into_iter().unzip();
            let is_nested = nested.iter().any(Option::is_some);
            (items.join(if is_nested { " | " } else { " " }), Some(items))
        }
        ("$", _) => {
            let mut text = String::new();
            socket.read_line(&mut text).ok()?;
            (format!("\"{}\"", text.trim_end().escape_default()), None)
        }
        ("-", error) => (format!("(error) {error}"), None),
        _ => (rest.to_owned(), None),
    })
}

/// A key as the simulator shows it: its expiry and its value.
fn held(client: &mut Client, key: &str) -> String {
    let pairs = |flat: Vec<String>| flat.chunks(2).map(|pair| pair.join("=")).collect::<Vec<_>>();
    let value = match client.text(&["TYPE", key]).as_str() {
        "string" => client.text(&["GET", key]),
        "hash" => {
            let mut fields = pairs(client.get(&["HGETALL", key]));
            fields.sort_unstable();
            fields.join(" ")
        }
        "zset" => pairs(client.get(&["ZRANGE", key, "0", "-1", "WITHSCORES"])).join(" "),
        kind => format!("a {kind}"),
    };
    format!("{} {value}", client.int(&["PEXPIRETIME", key]))
}

/// The keys of both databases, as the simulator shows them.
fn keys(client: &mut Client) -> Vec<String> {
    let mut shown = Vec::new();
    for db in 0..2 {
        client.call(&format!("SELECT {db}"));
        let mut keys: Vec<String> = client.get("KEYS *");
        keys.sort_unstable();
        shown.extend(keys.iter().map(|key| format!("{db} {key} {}", held(client, key))));
    }
    shown
}

fn follow(number: u64, steps: u32) -> usize {
    const SCRIPT: &str = "return redis.pcall(unpack(ARGV))";
    let mut clock = Clock::stopped_at(1_800_000_000_123_456_789);
    let server = clock.start(Options::new().set("appendonly", "yes").set("appendfsync", "no"));
    let mut observer = server.connect();
    let (number, steps) = (number.to_string(), steps.to_string());
    let version = format!("{}-{}", BINARY.name, BINARY.version_text);
    // Redis 8 loads `vectorset`, Valkey 9.1 `lua`. Beside others, calls open all keys before they decide.
    let modules: Vec<redis::Value> = observer.get("MODULE LIST");
    let output = Command::new(env!("CARGO_BIN_EXE_simulate"))
        .args(["--real", &number, version.trim_start_matches("redis-"), "--steps", &steps])
        .args((modules.len() > 1).then_some("--beside"))
        .arg(module_path())
        .output()
        .expect("the simulator");
    let transcript = String::from_utf8(output.stdout).expect("text");
    observer.call("DEBUG SET-ACTIVE-EXPIRE 0");
    // Each connection, with the replies of a transaction that were not compared yet, the last one not at all.
    let mut clients: BTreeMap<u64, (Waiter, VecDeque<Option<String>>)> = BTreeMap::new();
    let (mut context, mut compared, mut expected, mut killed) = (Vec::new(), 0, Vec::new(), None);
    for text in transcript.lines() {
        context.push(text);
        let (mark, rest) = text.split_at(2);
        let at = || format!("history {number}:\n{}", context[context.len().saturating_sub(12)..].join("\n"));
        let step = (mark == "> ").then(|| Step::parse(rest).unwrap_or_else(|| panic!("{}", at())));
        if let Some(one) = step.as_ref().and_then(|_| killed.take()) {
            clients.remove(&one);
        }
        let is_step = step.is_some();
        match step {
            Some(Step::Pass(0)) => {}
            Some(Step::Pass(nanos) | Step::Hang(nanos)) => {
                for (id, (client, ..)) in &mut clients {
                    assert!(client.is_waiting(), "client {id} has a reply more, {}", at());
                }
                clock.pass(nanos);
            }
            Some(Step::Close(id)) => drop(clients.remove(&id)),
            Some(Step::Role(true)) => drop(observer.text("REPLICAOF 127.0.0.1 1")),
            Some(Step::Role(false)) => drop(observer.text("REPLICAOF NO ONE")),
            Some(Step::Call(id, words)) => {
                let mut words = words.to_vec();
                if words[0] == b"CLIENT" {
                    let one = String::from_utf8_lossy(&words[2]).parse().expect("a client");
                    words[2] = clients[&one].0.id.to_string().into_bytes();
                    if words[1] == b"KILL" {
                        words.insert(2, b"ID".into());
                        killed = Some(one);
                    }
                } else if words[0] == b"LUA" {
                    words.splice(..1, ["EVAL", SCRIPT, "0"].map(Into::into));
                }
                let (client, replies) = clients.entry(id).or_insert_with(|| {
                    let mut client = Waiter::ask(&server, "PING");
                    client.answer();
                    (client, VecDeque::new())
                });
                client.send(&words);
                if words[0] == b"EXEC" {
                    let (_, items) = reply(&mut client.socket).unwrap_or_else(|| panic!("{}", at()));
                    replies.extend(items.unwrap_or_default().into_iter().map(Some).chain([None]));
                }
            }
            None if mark == "< " => match rest.strip_prefix("= ") {
                Some(key) => expected.push(key.to_owned()),
                None => {
                    let (id, shown) = rest.split_once(':').expect("a reply");
                    let shown = shown.trim_start(); // which may be empty
                    let id = id.parse().expect("a number");
                    let (client, replies) = clients.get_mut(&id).expect("a client");
                    let came = replies.pop_front().unwrap_or_else(|| {
                        Some(reply(&mut client.socket).unwrap_or_else(|| panic!("no reply, {}", at())).0)
                    });
                    let came = came.unwrap_or_else(|| shown.to_owned());
                    // The texts of errors are compared by their codes.
                    let code = |text: &str| text.split(' ').take(2).collect::<Vec<_>>().join(" ");
                    let same =
                        if shown.starts_with("(error)") { code(shown) == code(&came) } else { shown == came };
                    assert!(same, "the server replied {came}, {}", at());
                    compared += 1;
                    if came.contains("force unblock") {
                        clients.remove(&id); // the server closes the connection
                    }
                }
            },
            _ => panic!("{text}: {}", at()),
        }
        // By then the server has read what was sent, has noticed which clients have left, and has
        // served those that it can.
        (0..if is_step { 3 } else { 0 }).for_each(|_| drop(observer.call("PING")));
    }
    assert_eq!(keys(&mut observer), expected, "history {number}");
    observer.call("DEBUG LOADAOF");
    assert_eq!(keys(&mut observer), expected, "history {number}, loaded from the append-only file");
    compared + expected.len()
}

/// Half of the histories have clients that wait, and a server that becomes a replica and a primary again.
#[test]
fn replies_and_keys_are_those_of_a_real_server() {
    let compared: usize = (0..60).map(|number| follow(number, 400)).sum();
    assert!(compared > 15_000, "{compared}");
}

/// The comparison with the append-only file finds effects that a server has not written.
#[test]
fn what_is_not_in_the_append_only_file_is_found() {
    let follow_some = || (0..6).for_each(|number| assert_ne!(follow(number, 400), 0));
    let found = std::panic::catch_unwind(|| common::with_fault("lose-effects", follow_some));
    let text = found.expect_err("a server that loses effects").downcast::<String>().expect("a text");
    assert!(text.contains("loaded from the append-only file"), "{text}");
}
