//! The planner against the module: the same calls to `cell-plan`'s engine and to a real server whose clocks
//! are stopped at the instant of each call. And the page docs/planner.md, step by step.
//!
//! `REDIS_CELL_MODULE` names the module and `REDIS_CELL_SERVER` the server; `make test-apps` sets both.

// A test should fail at the first unexpected value.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

#[path = "../../../tests/common/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // the other test programs use the rest
mod common;

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use common::{Client, Clock, Options, SECOND, Server, ints};
use fastrand::Rng;
use redis::Value;
use redis_cell_core::{Instant, Unit};
use redis_cell_policy::{Fields, Policy, Replay, combined};

/// A minute before a full hour of 2025.
const START: i64 = 1_760_000_340 * SECOND;

/// A server whose clocks stand still, and a connection to it.
struct Still {
    clock: Clock,
    client: Client,
    server: Server,
}

impl Still {
    fn at(start: i64) -> Self {
        let clock = Clock::stopped_at(start);
        let server = clock.start(Options::new());
        Self { client: server.connect(), clock, server }
    }

    /// All rows of the reply of `CL.MTAKE` at an instant.
    fn take(&mut self, now: i64, words: &[String]) -> Result<Vec<Vec<i64>>, String> {
        self.clock.pass(now - self.clock.wall());
        let command = [&["CL.MTAKE".to_owned()], words].concat();
        match self.client.ask(&command)? {
            Value::Array(rows) => Ok(rows.iter().map(|row| ints(row).unwrap()).collect()),
            other => panic!("{command:?}: {other:?}"),
        }
    }
}

/// The same, by the engine of the planner.
fn planned(replay: &mut Replay, now: i64, values: &[&[u8]], unit: Unit) -> Result<Vec<Vec<i64>>, String> {
    let now = Instant::from_nanos(now.unsigned_abs()).unwrap();
    replay.call(now, values).map_err(|error| error.to_string())?;
    let rows = replay.decide(0).map_err(|error| error.to_string())?;
    let answers = combined(rows).into_iter().chain(rows.iter().map(|row| row.answer));
    // The reply to a call with a chain has the units that were taken.
    Ok(answers.map(|answer| answer.reply(unit).five.into_iter().chain(answer.taken).collect()).collect())
}

/// Policies of every kind and several mixes, with a user, a quantity, a lease and a holder in each call.
const POLICIES: [&str; 17] = [
    "<user> THROTTLE 15 30 60 1",
    "<user> THROTTLE 4 7 3 <quantity>",
    "<user> FUNNEL 15 30 60 <quantity>",
    "<user> BUCKET 9 13 700 <quantity> MS",
    "<user> FIXED 20 10 <quantity>",
    "<user> FIXED 200 HOUR UTC 90 <quantity>",
    "<user> FIXED 50 UNTIL 1760090000 1",
    "<user> WINDOW 17 30 <quantity>",
    "<user> WINDOW 12 1500 1 MS",
    "<user> LOG 12 20 <quantity>",
    "<user> LEASE 3 <lease> <holder>",
    "r:<user> THROTTLE 19 40 60 1 t:<user> BUCKET 60 90 60 <quantity> m:<user> FIXED 300 HOUR <quantity>",
    "r:<user> SHADOW WINDOW 9 30 1 a:all LOG 40 60 <quantity> b:<user> LEASE 4 <lease> <holder> f:<user> FUNNEL 9 2 1 1",
    "a:<user> FIXED 30 60 <quantity> SPILL b:<user> FIXED 25 HOUR <quantity> ELSE c:<user> LEASE 2 <lease> <holder>",
    "a:<user> LEASE 2 <lease> <holder> ELSE b:<user> THROTTLE 4 7 30 <quantity> r:<user> FIXED 40 60 1",
    "a:<user> BUCKET 9 13 70 <quantity> SPILL b:<user> LOG 12 20 <quantity> SPILL c:<user> WINDOW 17 30 <quantity>",
    "a:<user> SHADOW THROTTLE 2 30 60 1 b:<user> SHADOW LOG 3 60 <quantity>",
];

#[test]
fn every_kind_and_every_mix_decides_as_the_module_does() {
    for (policy, seed) in POLICIES.into_iter().zip(1..) {
        let mut rng = Rng::with_seed(seed);
        let mut fields = Fields::default();
        let parsed = Policy::parse(policy, &mut fields).unwrap();
        let unit = parsed.unit;
        let mut replay = Replay::new([parsed]);
        let mut still = Still::at(START);
        let mut now = START;
        let (mut admitted, mut refused) = (0, 0);
        for call in 0..600 {
            // Bursts, short pauses and, now and then, a long one.
            now += match rng.u8(..) {
                0..220 => 0,
                220..250 => rng.i64(0..SECOND),
                250..254 => rng.i64(0..5 * SECOND),
                _ => rng.i64(0..30 * SECOND),
            };
            let value = |name: &str| match name {
                "user" => format!("u{}", call % 3),
                "quantity" => [0, 1, 1, 2, 3, 5, 18][call * 31 % 7].to_string(),
                "lease" => (1 + call * 7 % 29).to_string(),
                "holder" => format!("h{}", call * 13 % 5),
                other => panic!("{other}"),
            };
            let values: Vec<String> = fields.names().iter().map(|name| value(name)).collect();
            let bytes: Vec<&[u8]> = values.iter().map(String::as_bytes).collect();
            let filled = fields.names().iter().zip(&values);
            let filled = filled
                .fold(policy.to_owned(), |text, (name, value)| text.replace(&format!("<{name}>"), value));
            let words: Vec<String> = filled.split(' ').map(str::to_owned).collect();
            let seen = planned(&mut replay, now, &bytes, unit);
            assert_eq!(seen, still.take(now, &words), "call {call} after {} ns, {filled}", now - START);
            if seen.unwrap()[0][0] == 0 { admitted += 1 } else { refused += 1 }
        }
        // Only a policy in shadow refuses nothing.
        let in_shadow = policy.matches("SHADOW").count() > 1;
        assert!(
            admitted > 50 && (refused > 20 || in_shadow),
            "{policy}: {admitted} admitted, {refused} refused"
        );
        still.server.assert_alive(policy);
    }
}

#[test]
fn errors_of_calls_equal_the_errors_of_the_module() {
    let mut fields = Fields::default();
    let mut replay = Replay::new([Policy::parse("<user> LOG 20000 60 <quantity>", &mut fields).unwrap()]);
    let mut still = Still::at(START);
    let words: Vec<String> = "u LOG 20000 60 10001".split(' ').map(str::to_owned).collect();
    let error = still.take(START, &words).unwrap_err();
    assert_eq!(
        planned(&mut replay, START, &[b"u", b"10001"], Unit::Seconds).unwrap_err(),
        error.replace("ERR ", "")
    );
}

/// The commands of the page docs/planner.md that begin with `cell-plan`, each in one line.
fn commands_of_the_page() -> Vec<String> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/planner.md")).unwrap();
    let page = page.replace("\\\n", "");
    let lines = page.lines().filter_map(|line| line.trim().strip_prefix("$ "));
    lines.filter(|line| line.starts_with("cell-plan ")).map(str::to_owned).collect()
}

/// The tutorial of docs/planner.md: the limit that is found is tried in shadow and then turned on, on a real
/// server that gets the calls of the log. It refuses as many as were planned.
#[test]
fn the_tutorial_leads_from_a_log_to_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(7);
    let mut text = String::new();
    let mut calls = Vec::new();
    let mut now = START;
    for call in 0..3_000 {
        now += rng.i64(0..1_000) * 1_000_000;
        // One client in a hundred is a crawler that sends bursts.
        let address = if call % 100 < 30 && call > 500 {
            "198.51.100.9".to_owned()
        } else {
            format!("203.0.113.{}", rng.u8(..))
        };
        let nanos = i128::from(now);
        let time = jiff::Timestamp::from_nanosecond(nanos).unwrap().strftime("%d/%b/%Y:%H:%M:%S.%3f +0000");
        writeln!(text, "{address} - - [{time}] \"GET /items/{call}?q=1 HTTP/1.1\" 200 512 \"-\" \"curl/8\"")
            .unwrap();
        calls.push((now, address));
    }
    fs::write(folder.path().join("access.log"), text).unwrap();
    let commands = commands_of_the_page();
    assert!(commands.len() >= 3, "{commands:?}");
    let mut reports = Vec::new();
    for command in commands {
        // A shell reads the command as a user's does.
        let command = command.replacen("cell-plan", env!("CARGO_BIN_EXE_cell-plan"), 1);
        let output = Command::new("sh").arg("-c").arg(&command).current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.is_empty(), "{command}: {said}");
        reports.push(String::from_utf8(output.stdout).unwrap());
    }
    assert!(fs::read_to_string(folder.path().join("plan.html")).unwrap().contains("<svg"));
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("plan.json")).unwrap()).unwrap();
    let policy = &json["policies"][0];
    let (text, refused) = (policy["policy"].as_str().unwrap(), policy["refused"].as_u64().unwrap());
    assert!(policy["found"]["value"].is_i64() && refused > 0, "{policy}");

    // In shadow, and turned on: the same limiter, on a server.
    for shadow in [true, false] {
        let mut still = Still::at(START);
        let mut limited = 0;
        for (now, address) in &calls {
            let filled = text.replace("<address>", address);
            let filled = if shadow { filled.replacen(" THROTTLE", " SHADOW THROTTLE", 1) } else { filled };
            let words: Vec<String> = filled.split(' ').map(str::to_owned).collect();
            let rows = still.take(*now, &words).unwrap();
            assert!(!shadow || rows[0][0] == 0, "a limiter in shadow refused {filled}");
            limited += rows[1][0].unsigned_abs();
        }
        assert_eq!(limited, refused, "in shadow: {shadow}");
    }
}

/// Each kind of limiter, with the number to be found, and the share of calls that may be refused.
const TO_BE_FOUND: [(&str, &str); 9] = [
    ("<address> THROTTLE ? 30 60 1", "2%"),
    ("<address> THROTTLE 9 ? 60 1", "5%"),
    ("<address> FUNNEL ? 1 1 <bytes>", "1%"),
    ("<address> BUCKET ? 20 60 1", "0%"),
    ("<address> FIXED ? 60 1", "3%"),
    ("<address> WINDOW ? 60 1", "3%"),
    ("<address> LOG ? 30 1", "1%"),
    ("<address> LEASE ? 20 <id>", "2%"),
    ("s:<address> THROTTLE ? 30 60 1 {all} SHADOW FIXED 9 60 1 m:<address> FIXED 100 HOUR 1", "10%"),
];

/// The number that is recommended is set on a real server, which gets the calls of the log: it refuses the
/// reported share of them, which is allowed, and one less would refuse more than that.
#[test]
fn a_recommended_limit_refuses_the_share_that_was_reported() {
    let mut rng = Rng::with_seed(11);
    let mut now = START;
    let calls: Vec<(i64, [(&str, String); 3])> = (0..500_usize)
        .map(|call| {
            // A crawler sends bursts among calls of thirty people.
            let crawls = call % 50 < 12;
            now += if crawls { 20_000_000 } else { rng.i64(0..2 * SECOND) };
            let address =
                if crawls { "198.51.100.9".to_owned() } else { format!("203.0.113.{}", rng.u8(0..30)) };
            (now, [("address", address), ("bytes", rng.u8(1..9).to_string()), ("id", format!("r{call}"))])
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log.json");
    let lines = calls.iter().map(|(now, fields)| {
        let fields = fields.iter().map(|(name, value)| format!(r#","{name}":"{value}""#));
        format!("{{\"ts\":{now}{}}}\n", fields.collect::<String>())
    });
    fs::write(&file, lines.collect::<String>()).unwrap();
    for (policy, allowed) in TO_BE_FOUND {
        let output = Command::new(env!("CARGO_BIN_EXE_cell-plan"))
            .args(["-p", policy, "--max-refused", allowed, "--json", "-"])
            .arg(&file)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{policy}: {said}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let told = &report["policies"][0];
        let (found, share) =
            (told["found"]["value"].as_i64().unwrap(), told["refused_share"].as_f64().unwrap());
        let allowed: f64 = allowed.trim_end_matches('%').parse::<f64>().unwrap() / 100.0;
        let share_of = |number: i64| {
            let mut still = Still::at(START);
            let refused = calls.iter().filter(|(now, fields)| {
                let filled = policy.replace('?', &number.to_string());
                let filled = fields
                    .iter()
                    .fold(filled, |text, (name, value)| text.replace(&format!("<{name}>"), value));
                let words: Vec<String> = filled.split(' ').map(str::to_owned).collect();
                still.take(*now, &words).unwrap()[0][0] == 1
            });
            f64::from(u32::try_from(refused.count()).unwrap())
                / f64::from(u32::try_from(calls.len()).unwrap())
        };
        let real = share_of(found);
        assert!((real - share).abs() < 1e-9 && real <= allowed, "{policy}, {found}: {real}, told {share}");
        assert!(found > 2, "{policy}: {found} is too small a number to be tested");
        assert!(share_of(found - 1) > allowed, "{policy}: {} is enough as well", found - 1);
    }
}
