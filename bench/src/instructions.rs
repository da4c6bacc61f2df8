//! `make bench-instructions`: counts the instructions of a call, which are the same in every run.
//!
//! The server runs under callgrind, which counts while the server's function `call` runs: from the command's
//! own function to the propagation of its effects and the reply in its buffer, without the network, the
//! parser and the server's periodic work. `bench/instructions.tsv` contains the counts, so a change that
//! makes a command slower is visible.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};

use redis::ConnectionLike;

use crate::load::{encode, no_error};
use crate::report::{between, thousands};
use crate::server::{Binaries, Server, Setup, compile, output};

/// Calls counted, after the same number of calls as a warm-up.
const CALLS: usize = 100;
/// The tolerated difference from the table: less than the effect of a change to a command, and more than the
/// difference between two runs.
const MARGIN: f64 = 0.01;

const TABLE: &str = "bench/instructions.tsv";
/// The page with the shares of the module, the server and the libraries.
const PAGE: &str = "docs/performance.md";
/// The calls that the page omits, because another row has nearly the same counts.
const LEFT_OUT: [&str; 15] = [
    "PEXPIRE",
    "CL.THROTTLE beyond a day",
    "CL.THROTTLE refused, top-size 0",
    "CL.REFUND",
    "CL.CHARGE",
    "CL.RESERVE",
    "CL.PAUSE",
    "CL.FUNNEL refused",
    "CL.BUCKET refused",
    "CL.FIXED MONTH",
    "CL.FIXED refused",
    "CL.WINDOW refused",
    "CL.LOG refused",
    "CL.RENEW",
    "CL.RELEASE of nothing",
];

/// A call to count, with the call that creates its key. `{n}` is a different number in each call.
struct Case {
    name: &'static str,
    prepare: &'static str,
    call: &'static str,
}

const fn case(name: &'static str, prepare: &'static str, call: &'static str) -> Case {
    Case { name, prepare, call }
}

/// Every command of the module, and some of the server's commands for comparison.
const CASES: &[Case] = &[
    case("SET", "SET k nineteen-bytes-text", "SET k nineteen-bytes-text PX 3600000"),
    case("GET", "SET k nineteen-bytes-text PX 3600000", "GET k"),
    case("INCR", "SET k 1000 PX 3600000", "INCR k"),
    case("HINCRBY", "HSET k window 1700000000000000000 current 1000 previous 0", "HINCRBY k current 1"),
    case("PEXPIRE", "HSET k window 1700000000000000000 current 1000 previous 0", "PEXPIRE k 3600000"),
    case("ZADD", "ZADD k 1700000000000000 first", "ZADD k 1700000000000000 holder{n}"),
    case("CL.THROTTLE admitted", "CL.THROTTLE k 1000000 1 1 3600", "CL.THROTTLE k 1000000 1 1"),
    case("CL.THROTTLE refused", "CL.THROTTLE k 0 1 3600", "CL.THROTTLE k 0 1 3600"),
    case("CL.THROTTLE new key", "PING", "CL.THROTTLE k{n} 1000000 1 3600"),
    case("CL.THROTTLE beyond a day", "CL.THROTTLE k 2000000 1 1 1000000", "CL.THROTTLE k 2000000 1 1"),
    case("CL.PEEK", "CL.THROTTLE k 1000000 1 1 3600", "CL.PEEK k 1000000 1 1"),
    case("CL.REFUND", "CL.THROTTLE k 1000000 1 1 3600", "CL.REFUND k 1000000 1 1"),
    case("CL.CHARGE", "CL.THROTTLE k 1000000 1 1 3600", "CL.CHARGE k 1000000 1 1"),
    case("CL.RESERVE", "CL.THROTTLE k 1000000 1 1 3600", "CL.RESERVE k 1000000 1 1"),
    case("CL.BTHROTTLE admitted at once", "CL.THROTTLE k 1000000 1 1 3600", "CL.BTHROTTLE k 1000000 1 1 1 0"),
    case(
        "CL.MTAKE of 3 THROTTLE",
        "CL.MTAKE k THROTTLE 1000000 1 1 3600 l THROTTLE 1000000 1 1 3600 m THROTTLE 1000000 1 1 3600",
        "CL.MTAKE k THROTTLE 1000000 1 1 1 l THROTTLE 1000000 1 1 1 m THROTTLE 1000000 1 1 1",
    ),
    case(
        "CL.MTAKE of 3 THROTTLE, ONCE",
        "CL.MTAKE k THROTTLE 1000000 1 1 3600 l THROTTLE 1000000 1 1 3600 m THROTTLE 1000000 1 1 3600",
        "CL.MTAKE k THROTTLE 1000000 1 1 1 l THROTTLE 1000000 1 1 1 m THROTTLE 1000000 1 1 1 ONCE o{n} 60",
    ),
    case(
        "CL.BMTAKE of 3 THROTTLE admitted at once",
        "CL.MTAKE k THROTTLE 1000000 1 1 3600 l THROTTLE 1000000 1 1 3600 m THROTTLE 1000000 1 1 3600",
        "CL.BMTAKE k THROTTLE 1000000 1 1 1 l THROTTLE 1000000 1 1 1 m THROTTLE 1000000 1 1 1 TIMEOUT 1 FLOW f",
    ),
    case(
        "CL.MTAKE of 4 kinds",
        "CL.MTAKE k THROTTLE 1000000 1 1 3600 l THROTTLE 1000000 1 1 3600 m FIXED 1000000 MONTH 1 n LEASE 9 3600 me",
        "CL.MTAKE k THROTTLE 1000000 1 1 1 l THROTTLE 1000000 1 1 1 m FIXED 1000000 MONTH 1 n LEASE 9 3600 me",
    ),
    case(
        "CL.MTAKE of 3 THROTTLE, HOLD",
        "CL.MTAKE k THROTTLE 1000000 1 1 3600 l THROTTLE 1000000 1 1 3600 m THROTTLE 1000000 1 1 3600",
        "CL.MTAKE k THROTTLE 1000000 1 1 1 l THROTTLE 1000000 1 1 1 m THROTTLE 1000000 1 1 1 HOLD h 3600 o{n}",
    ),
    case(
        "CL.MTAKE of 2 THROTTLE, 1 FIXED, HOLD",
        "CL.MTAKE k THROTTLE 1000000 1 1 3600 l THROTTLE 1000000 1 1 3600 m FIXED 1000000 MONTH 1",
        "CL.MTAKE k THROTTLE 1000000 1 1 1 l THROTTLE 1000000 1 1 1 m FIXED 1000000 MONTH 1 HOLD h 3600 o{n}",
    ),
    case(
        "CL.MTAKE of 4 limiters, 2 FIXED",
        "CL.MTAKE k THROTTLE 1000000 1 1 3600 l THROTTLE 1000000 1 1 3600 m FIXED 1000000 MONTH 1000 n FIXED 1000000 TOTAL 1000",
        "CL.MTAKE k THROTTLE 1000000 1 1 1 l THROTTLE 1000000 1 1 1 m FIXED 1000000 MONTH 1 n FIXED 1000000 TOTAL 1",
    ),
    case(
        "CL.MTAKE of 3 limiters, a chain of 2",
        "CL.MTAKE k THROTTLE 1000000 1 1 3600 l THROTTLE 1000000 1 1 3600 m FIXED 1000000 MONTH 1000 n FIXED 1000000 TOTAL 1000",
        "CL.MTAKE k THROTTLE 1000000 1 1 1 l THROTTLE 1000000 1 1 1 m FIXED 1000000 MONTH 1 SPILL n FIXED 1000000 TOTAL 1",
    ),
    case(
        "CL.MTAKE of a chain of 8 refused",
        "CL.MTAKE a FIXED 5 3600 5 b FIXED 5 3600 5 c FIXED 5 3600 5 d FIXED 5 3600 5 e FIXED 5 3600 5 f FIXED 5 3600 5 g FIXED 5 3600 5 h FIXED 5 3600 5",
        "CL.MTAKE a FIXED 5 3600 7 SPILL b FIXED 5 3600 7 SPILL c FIXED 5 3600 7 SPILL d FIXED 5 3600 7 SPILL e FIXED 5 3600 7 SPILL f FIXED 5 3600 7 SPILL g FIXED 5 3600 7 SPILL h FIXED 5 3600 7",
    ),
    case("CL.PAUSE", "CL.THROTTLE k 1000000 1 1 3600", "CL.PAUSE k 1000000 1 1 3600"),
    case("CL.FUNNEL admitted", "CL.FUNNEL k 1000000 1 3600 1000", "CL.FUNNEL k 1000000 1 3600"),
    case("CL.FUNNEL refused", "CL.FUNNEL k 1 1 3600", "CL.FUNNEL k 1 1 3600"),
    case("CL.BUCKET admitted", "CL.BUCKET k 1000000 1 3600 1000", "CL.BUCKET k 1000000 1 3600"),
    case("CL.BUCKET refused", "CL.BUCKET k 1 1 3600", "CL.BUCKET k 1 1 3600"),
    case("CL.FIXED admitted", "CL.FIXED k 1000000 3600 1000", "CL.FIXED k 1000000 3600"),
    case("CL.FIXED MONTH", "CL.FIXED k 1000000 MONTH 1000", "CL.FIXED k 1000000 MONTH"),
    case("CL.FIXED TOTAL", "CL.FIXED k 1000000 TOTAL 1000", "CL.FIXED k 1000000 TOTAL"),
    case("CL.FIXED refused", "CL.FIXED k 1 3600", "CL.FIXED k 1 3600"),
    case("CL.WINDOW admitted", "CL.WINDOW k 1000000 86400 1000", "CL.WINDOW k 1000000 86400"),
    case("CL.WINDOW refused", "CL.WINDOW k 1 86400", "CL.WINDOW k 1 86400"),
    case("CL.LOG admitted", "CL.LOG k 1000000 3600", "CL.LOG k 1000000 3600"),
    case("CL.LOG refused", "CL.LOG k 1 3600", "CL.LOG k 1 3600"),
    case("CL.ACQUIRE", "CL.ACQUIRE k 1000 3600 first", "CL.ACQUIRE k 1000 3600 holder{n}"),
    case("CL.RENEW", "CL.ACQUIRE k 10 3600 holder", "CL.RENEW k 3600 holder"),
    case("CL.RELEASE of nothing", "CL.ACQUIRE k 10 3600 holder", "CL.RELEASE k nobody"),
];

/// Cases on a server without the record of `CL.TOP`.
const CASES_NO_TOP: &[Case] =
    &[case("CL.THROTTLE refused, top-size 0", "CL.THROTTLE k 0 1 3600", "CL.THROTTLE k 0 1 3600")];

/// Cases on a server with an append-only file, so that effects are propagated.
const CASES_AOF: &[Case] = &[
    case("SET, AOF", "SET k nineteen-bytes-text", "SET k nineteen-bytes-text PX 3600000"),
    case("CL.THROTTLE admitted, AOF", "CL.THROTTLE k 1000000 1 1 3600", "CL.THROTTLE k 1000000 1 1"),
    case("CL.FUNNEL admitted, AOF", "CL.FUNNEL k 1000000 1 3600 1000", "CL.FUNNEL k 1000000 1 3600"),
    case("CL.WINDOW admitted, AOF", "CL.WINDOW k 1000000 86400 1000", "CL.WINDOW k 1000000 86400"),
    case("CL.ACQUIRE, AOF", "CL.ACQUIRE k 1000 3600 first", "CL.ACQUIRE k 1000 3600 holder{n}"),
];

/// The instructions of a call: the sum, and the shares of the module, the server and their libraries.
#[derive(Clone, Copy)]
struct Count {
    all: u64,
    module: u64,
    server: u64,
}

/// Counts, and writes the table and its page.
pub fn record(binaries: &Binaries) -> Result<(), Box<dyn Error>> {
    let before = fs::read_to_string(TABLE).unwrap_or_default();
    let counts = count(binaries)?;
    let mut table = circumstances(binaries)?;
    table += "# call\tinstructions\tin the module\tin the server\tin libraries\n";
    for (name, Count { all, module, server }) in &counts {
        writeln!(table, "{name}\t{all}\t{module}\t{server}\t{}", all - module - server)?;
    }
    fs::write(TABLE, &table)?;
    fs::write(PAGE, between(&fs::read_to_string(PAGE)?, "shares", &shares(&counts)?)?)?;
    for (name, count) in &counts {
        let was = row(&before, name).map_or(String::new(), |was| change(was.all, count.all));
        println!("{name:<30} {:>7} {was}", count.all);
    }
    Ok(())
}

/// Returns the counts as a table for the page.
fn shares(counts: &[(String, Count)]) -> Result<String, Box<dyn Error>> {
    let mut text =
        "| call | instructions | module | server | libraries |\n|---|--:|--:|--:|--:|\n".to_owned();
    let is_shown = |name: &str| !name.ends_with("AOF") && !LEFT_OUT.contains(&name);
    for (name, Count { all, module, server }) in counts.iter().filter(|(name, _)| is_shown(name)) {
        let percent = |part: u64| (part as f64 / *all as f64 * 100.0).round();
        let (module, server, libraries) =
            (percent(*module), percent(*server), percent(all - module - server));
        let all = thousands(*all as usize);
        writeln!(text, "| {name} | {all} | {module} % | {server} % | {libraries} % |")?;
    }
    Ok(text)
}

/// Counts, and compares the results with the table. The last line has the number of results, as in other
/// tests.
pub fn check(binaries: &Binaries) -> Result<(), Box<dyn Error>> {
    let table = fs::read_to_string(TABLE)?;
    let here = circumstances(binaries)?;
    if !table.starts_with(&here) {
        let there: Vec<_> = table.lines().take_while(|line| line.starts_with("# ")).collect();
        println!(
            "instruction counts NOT COMPARED: {TABLE} counts on\n{}\nand here is\n{here}",
            there.join("\n")
        );
        println!("test result: ok. 0 passed; 0 failed");
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        return if must {
            Err(format!(
                "in CI they are to be compared: make bench-instructions here, and commit {TABLE} and {PAGE}"
            )
            .into())
        } else {
            Ok(())
        };
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, count) in count(binaries)? {
        let was = row(&table, &name)
            .ok_or_else(|| format!("{TABLE} has no row {name}: make bench-instructions"))?;
        let same = |was: u64, now: u64| now.abs_diff(was) as f64 <= (was as f64 * MARGIN).max(2.0);
        // A sorted set draws the level of each new member at random, and two are new in each of these calls.
        let is_random = name.ends_with("HOLD");
        // Not the libraries' share: the C library chooses its functions by the processor.
        if same(was.module, count.module) && (is_random || same(was.server, count.server)) {
            passed += 1;
        } else {
            failed += 1;
            println!(
                "{name}: {} instructions in the module, {} in the server",
                change(was.module, count.module),
                change(was.server, count.server)
            );
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    if failed > 0 {
        println!("meant so? then make bench-instructions, and commit {TABLE} and {PAGE} with the change");
    }
    println!("test result: {verdict}. {passed} passed; {failed} failed");
    if failed == 0 { Ok(()) } else { Err("instruction counts differ from the table".into()) }
}

/// Returns the versions on which the counts depend, for the head of the table.
fn circumstances(binaries: &Binaries) -> Result<String, Box<dyn Error>> {
    let mut head = String::new();
    for mut command in [Command::new(&binaries.server), Command::new("rustc"), Command::new("valgrind")] {
        writeln!(head, "# {}", output(command.arg("--version"))?)?;
    }
    Ok(head)
}

fn change(was: u64, now: u64) -> String {
    if was == now {
        return now.to_string();
    }
    let percent = (now as f64 / was as f64 - 1.0) * 100.0;
    format!("{was} -> {now} ({percent:+.1} %)")
}

fn row(table: &str, name: &str) -> Option<Count> {
    let mut columns = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'))?.split('\t');
    let mut column = || columns.next()?.parse().ok();
    Some(Count { all: column()?, module: column()?, server: column()? })
}

fn count(binaries: &Binaries) -> Result<Vec<(String, Count)>, Box<dyn Error>> {
    let mut counts = count_cases(binaries, Setup::Module, CASES)?;
    counts.extend(count_cases(binaries, Setup::ModuleNoTop, CASES_NO_TOP)?);
    counts.extend(count_cases(binaries, Setup::ModuleAof, CASES_AOF)?);
    Ok(counts)
}

fn count_cases(
    binaries: &Binaries,
    setup: Setup,
    cases: &[Case],
) -> Result<Vec<(String, Count)>, Box<dyn Error>> {
    let folder = tempfile::Builder::new().prefix("redis-cell-bench-").tempdir()?;
    let seed = compile(include_str!("seed.c"), folder.path(), "seed")?;
    let profile = folder.path().join("profile");
    let valgrind = [
        "env".to_owned(),
        format!("LD_PRELOAD={}", seed.display()),
        // By default, jemalloc returns memory to the system from time to time.
        "MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1,tcache_gc_incr_bytes:1073741824".to_owned(),
        "valgrind".to_owned(),
        "--quiet".to_owned(),
        "--tool=callgrind".to_owned(),
        "--toggle-collect=call".to_owned(),
        format!("--callgrind-out-file={}", profile.display()),
    ];
    // Disables work that depends on the duration of a call or on the disk. While the disk is busy, an
    // append-only file that is synced every second collects its writes in memory, which is moved as it grows.
    let steady =
        ["--slowlog-log-slower-than", "-1", "--latency-tracking", "no", "--hz", "1", "--appendfsync", "no"];
    let server = Server::start_under(&valgrind, setup, binaries, &steady)?;
    let callgrind = |request: &str| {
        let mut vgdb = Command::new("vgdb");
        output(vgdb.arg(format!("--pid={}", server.id())).arg(request).stderr(Stdio::null()))
    };
    let mut connection = server.connect()?;
    let mut counts = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        redis::cmd("FLUSHALL").exec(&mut connection)?;
        // Calls are sent one after the other, because the number of replies that fit the buffer depends on
        // the age of the connection.
        let mut ask = |call: &str| no_error(&connection.req_packed_command(&encode(call, 0))?);
        let call = |n: usize| case.call.replace("{n}", &format!("{n:03}"));
        ask(case.prepare)?;
        // The number of holders and entries must stay small.
        let warm = if case.call.contains("{n}") || case.call.starts_with("CL.LOG") { 10 } else { CALLS };
        (0..warm).try_for_each(|n| ask(&call(n)))?;
        callgrind("zero")?;
        (warm..warm + CALLS).try_for_each(|n| ask(&call(n)))?;
        callgrind("dump")?;
        let file = format!("{}.{}", profile.display(), number + 1);
        counts.push((case.name.to_owned(), Count::of(&fs::read_to_string(file)?)));
    }
    Ok(counts)
}

impl Count {
    /// Adds up the counts of a profile for each object file, and divides them by the number of calls.
    fn of(profile: &str) -> Self {
        let parts = by_object(profile);
        let part = |name: &str| {
            let mine = parts
                .iter()
                .filter(|(object, _)| object.rsplit('/').next().is_some_and(|o| o.starts_with(name)));
            mine.map(|(_, count)| count).sum::<u64>() / CALLS as u64
        };
        Self {
            all: parts.values().sum::<u64>() / CALLS as u64,
            module: part("libredis_cell"),
            server: part("redis-"),
        }
    }
}

/// Reads callgrind's format: a line of positions and a count belongs to the last object named, except for the
/// line after `calls=`, which repeats the cost of a callee. A name is written once, and then its number.
fn by_object(profile: &str) -> BTreeMap<String, u64> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let (mut object, mut callee) = ("", false);
    for line in profile.lines() {
        if let Some(named) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            let (number, name) = named.split_once(' ').unwrap_or((named, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if line.starts_with("ob=") {
                object = names.get(number).copied().unwrap_or_default();
            }
        } else if line.starts_with("calls=") {
            callee = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let count: u64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default();
            if !std::mem::take(&mut callee) {
                *counts.entry(object.to_owned()).or_default() += count;
            }
        }
    }
    counts
}
