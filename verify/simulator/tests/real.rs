//! The simulated server held to a real one: the same histories, on clocks that stand still between calls, get
//! the same replies and leave the same keys.

#[allow(dead_code, unused_imports, unused_macros, missing_docs)] // of which these tests need a part
#[path = "../../../tests/common/mod.rs"]
mod common;

use std::process::Command;

use common::{Client, Clock, Options, module_path};
use redis::Value;
use redis_cell_simulator::history::{Step, line};

/// A reply as the simulator shows it.
fn shown(reply: &Value) -> String {
    match reply {
        Value::Nil => "(nil)".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Okay => "OK".to_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::BulkString(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Array(items) => {
            let nested = items.iter().any(|item| matches!(item, Value::Array(_)));
            items.iter().map(shown).collect::<Vec<_>>().join(if nested { " | " } else { " " })
        }
        other => format!("{other:?}"),
    }
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

fn follow(number: u64, steps: u32) -> usize {
    let mut clock = Clock::stopped_at(1_800_000_000_123_456_789);
    let server = clock.start(Options::new().set("appendonly", "yes").set("appendfsync", "no"));
    let mut client = server.connect();
    let (number, steps) = (number.to_string(), steps.to_string());
    let output = Command::new(env!("CARGO_BIN_EXE_simulate"))
        .args(["--real", &number, &client.info("redis_version"), "--steps", &steps])
        .arg(module_path())
        .output()
        .expect("the simulator");
    let transcript = String::from_utf8(output.stdout).expect("text");
    client.call("DEBUG SET-ACTIVE-EXPIRE 0");
    let (mut context, mut compared, mut last) = (Vec::new(), 0, None);
    for text in transcript.lines() {
        context.push(text);
        let (mark, rest) = text.split_at(2);
        let at = || format!("history {number}:\n{}", context[context.len().saturating_sub(12)..].join("\n"));
        match (mark, Step::parse(rest)) {
            ("> ", Some(Step::Pass(nanos))) => clock.pass(nanos),
            ("> ", Some(Step::Call(_, words))) => {
                let reply = client.pipeline(&[&line(&words)]).remove(0);
                last = Some(match reply {
                    Ok(reply) => shown(&reply),
                    Err(error) => format!("(error) {error}"),
                });
            }
            ("< ", _) if rest.starts_with("= ") => {
                let (db, key) = rest[2..].split_once(' ').expect("a database");
                let (key, expected) = key.split_once(' ').expect("a key");
                client.call(&format!("SELECT {db}"));
                assert_eq!(held(&mut client, key), expected, "{key}, {}", at());
                compared += 1;
            }
            ("< ", _) => {
                let (_, reply) = rest.split_once(": ").expect("a reply");
                let came = last.take().expect("a call");
                // The texts of errors are compared by their codes.
                let code = |text: &str| text.split(' ').take(2).collect::<Vec<_>>().join(" ");
                let same =
                    if reply.starts_with("(error)") { code(reply) == code(&came) } else { reply == came };
                assert!(same, "the server replied {came}, {}", at());
                compared += 1;
            }
            _ => panic!("{text}: {}", at()),
        }
    }
    compared
}

#[test]
fn replies_and_keys_are_those_of_a_real_server() {
    let compared: usize = (0..40).map(|number| follow(number, 400)).sum();
    assert!(compared > 10_000, "{compared}");
}
