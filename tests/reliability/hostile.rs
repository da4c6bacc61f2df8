//! A fuzzer against a live server: every command of the module, on keys of every type and encoding, with
//! arguments from sensible to absurd. `REDIS_CELL_FUZZ_COMMANDS` says how many, `REDIS_CELL_FUZZ_SEED` which.

use crate::calls::{ALL, Call, Calls, KEYS};
use crate::common::{COMMANDS, Client, Options, Server, Waiter, module_path, requires, wall_ns};
use crate::figures::{figure, long};
use redis::Value;
use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use tempfile::NamedTempFile;

type Words = Vec<Vec<u8>>;

/// Generates commands: the random calls that the function library is compared with, and calls of the table of
/// commands, on any key and with garbage in them.
struct Writer {
    calls: Calls,
    keys: Vec<Vec<u8>>,
}

impl Writer {
    fn new(seed: u64, keys: Vec<Vec<u8>>) -> Self {
        Self { calls: Calls::new(seed, wall_ns(), ALL), keys }
    }

    fn below(&mut self, end: usize) -> usize {
        self.calls.rng().usize(..end)
    }

    fn any_key(&mut self) -> Vec<u8> {
        let at = self.below(self.keys.len());
        self.keys[at].clone()
    }

    fn command(&mut self) -> Words {
        let mut words = loop {
            let (key, at) = (self.calls.key(), self.below(COMMANDS.len() * 4));
            let words: Words = if let Some(command) = COMMANDS.get(at) {
                command.on(&key.to_string()).split(' ').map(Into::into).collect()
            } else {
                let Call { mut words, keys } = self.calls.call(key, wall_ns());
                for at in keys {
                    if self.below(5) == 0 {
                        words[at] = self.any_key();
                    }
                }
                words
            };
            // A total without `IDLE` has no expiry.
            if !words.iter().any(|word| word.eq_ignore_ascii_case(b"TOTAL")) {
                break words;
            }
        };
        while words.len() > 1 && self.below(3) == 0 {
            let at = self.below(words.len() - 1) + 1;
            words[at] = self.garbage();
        }
        match self.below(40) {
            0..=1 => words.truncate(self.below(words.len()).max(1)),
            2 => words.extend(vec![b"1".to_vec(); self.below(300)]),
            _ => {}
        }
        let name = String::from_utf8_lossy(&words[0]).into_owned();
        shorten_wait(&name, &mut words);
        words
    }

    fn garbage(&mut self) -> Vec<u8> {
        match self.below(6) {
            0 => b"2\r\n+OK".to_vec(),
            1 => "\u{661}%s%n".into(),
            2 => self.calls.rng().u64(..).to_string().into(),
            3 => self.any_key(),
            4 => (0..self.below(40)).map(|_| self.calls.rng().u8(..)).collect(),
            _ => vec![self.calls.rng().u8(..); self.below(5_000)],
        }
    }
}

/// Lets no call wait that would block the pipeline.
fn shorten_wait(name: &str, words: &mut Words) {
    if name == "CL.BMTAKE" {
        words.extend([b"MAXLEN".to_vec(), b"0".to_vec()]);
    }
    shorten_timeout(name, words);
}

/// Replaces a timeout that would block the pipeline. One too large to be valid stays.
fn shorten_timeout(name: &str, words: &mut Words) {
    if name == "CL.BTHROTTLE"
        && let Some(timeout) = words.get_mut(6)
        && !timeout.starts_with(b"0.0")
        && String::from_utf8_lossy(timeout).parse::<f64>().is_ok_and(|seconds| seconds < 1e12)
    {
        *timeout = b"0.001".to_vec();
    }
}

/// Keys of every type and encoding that no command of the module may change, with their dumps.
fn foreigners(client: &mut Client) -> BTreeMap<Vec<u8>, Value> {
    let many = |command: &str, words: fn(usize) -> String| {
        let words: Vec<String> = (0..600).map(words).collect();
        format!("{command} {}", words.join(" "))
    };
    for command in [
        "SET f:int 42".to_owned(),
        "SET f:negative -42".to_owned(),
        "SET f:embstr text".to_owned(),
        format!("SET f:raw {}", "x".repeat(500)),
        "APPEND f:appended 12".to_owned(),
        "SET f:expiring text PX 100000000".to_owned(),
        "SETBIT f:bitmap 10000 1".to_owned(),
        "PFADD f:hll a b c".to_owned(),
        "RPUSH f:list a b c".to_owned(),
        many("RPUSH f:quicklist", |i| format!("element-{i}")),
        "SADD f:intset 1 2 3".to_owned(),
        "SADD f:set a b c".to_owned(),
        many("SADD f:hashset", |i| format!("member-{i}")),
        "HSET f:hash field value tokens x window 1".to_owned(),
        many("HSET f:hashtable", |i| format!("field-{i} {i}")),
        "ZADD f:zset 1 a 2 b".to_owned(),
        "ZADD f:infinite -inf a 1.5 b inf c".to_owned(),
        many("ZADD f:skiplist", |i| format!("{i} member-{i}")),
        "GEOADD f:geo 13.4 52.5 berlin".to_owned(),
        "XADD f:stream * field value".to_owned(),
    ] {
        client.call(&command);
    }
    let keys: Vec<Vec<u8>> = client.get("KEYS f:*");
    keys.into_iter().map(|key| (key.clone(), client.call(&[b"DUMP".to_vec(), key]))).collect()
}

struct Fuzzer {
    server: Server,
    client: Client,
    watcher: Client,
    writer: Writer,
    foreigners: BTreeMap<Vec<u8>, Value>,
    sent: u64,
    errors: u64,
    /// Replies by command, to assert that every command was called.
    answered: HashMap<Vec<u8>, u64>,
}

impl Fuzzer {
    fn start(options: Options, seed: u64) -> Self {
        let server = options.start();
        let mut client = server.connect();
        // Buffers that the server fills by itself must not look like a leak of the module.
        for setting in ["slowlog-max-len 0", "latency-monitor-threshold 0"] {
            client.call(&format!("CONFIG SET {setting}"));
        }
        let known = client.ask("COMMAND LIST FILTERBY MODULE redis-cell").ok();
        if let Some(Value::Array(known)) = known {
            for command in known {
                let name: String = redis::from_redis_value(command).unwrap();
                let listed = COMMANDS.iter().any(|command| command.lower() == name);
                assert!(listed, "{name} is not fuzzed");
            }
        }
        let foreigners = foreigners(&mut client);
        let own = (0..KEYS).map(|key| key.to_string().into_bytes());
        let odd = [b"".to_vec(), b"\0".to_vec(), b"\xff\xfe%s\r\n".to_vec(), vec![b'k'; 1000]];
        let mut keys: Vec<Vec<u8>> = own.chain(odd).chain(foreigners.keys().cloned()).collect();
        keys.extend_from_within(..30); // the limiters' keys more often
        let watcher = server.connect();
        Self {
            server,
            client,
            watcher,
            writer: Writer::new(seed, keys),
            foreigners,
            sent: 0,
            errors: 0,
            answered: HashMap::new(),
        }
    }

    /// Sends `commands` commands and checks everything against the contract after each batch.
    fn run(&mut self, commands: u64) {
        let until = self.sent + commands;
        while self.sent < until {
            let batch: Vec<Words> = (0..500).map(|_| self.writer.command()).collect();
            self.batch(&batch);
            self.waiters();
            self.interfere();
            self.assert_invariants();
        }
    }

    fn batch(&mut self, batch: &[Words]) {
        for (command, answer) in batch.iter().zip(self.client.pipeline(&batch.iter().collect::<Vec<_>>())) {
            self.check(command, answer);
        }
        self.sent += u64::try_from(batch.len()).unwrap();
    }

    /// Lets clients wait until other calls, a kill or their timeout end their waits.
    fn waiters(&mut self) {
        let mut waiters = Vec::new();
        for _ in 0..self.writer.below(4) {
            let mut waiter = Waiter::connect(&self.server);
            waiter.send("CLIENT ID");
            waiter.id = waiter.answer().parse().unwrap();
            let key = self.writer.below(KEYS);
            waiter.send(&format!("CL.BTHROTTLE {key} 0 1 1 1 0.05"));
            waiters.push(waiter);
        }
        let batch: Vec<Words> = (0..50).map(|_| self.writer.command()).collect();
        self.batch(&batch);
        for (index, waiter) in waiters.iter_mut().enumerate() {
            if index == 0 && self.writer.below(3) == 0 {
                let _ = self.watcher.ask(&format!("CLIENT KILL ID {}", waiter.id));
                continue;
            }
            if index == 1 {
                let _ = self.watcher.ask(&format!("CLIENT UNBLOCK {}", waiter.id));
            }
            waiter.answer();
        }
    }

    /// Commands that other programs may run on a limiter's keys.
    fn interfere(&mut self) {
        for _ in 0..4 {
            let (one, other) = (self.writer.below(KEYS), self.writer.below(KEYS));
            let command = match self.writer.below(6) {
                0 => format!("DEL {one}"),
                1 => format!("RENAME {one} {other}"),
                2 => format!("PEXPIRE {one} 5"),
                3 => format!("HSET {one} tokens 9223372036854775807 previous 9223372036854775807"),
                4 => format!("ZADD {one} XX CH {} id1", self.writer.calls.rng().u64(..1 << 53)),
                _ => format!("SETRANGE {one} 3 {}", self.writer.below(100)),
            };
            // Some of these would create a missing key, which would not belong to a limiter.
            let script = "if redis.call('EXISTS', ARGV[2]) == 1 then return redis.pcall(unpack(ARGV)) end";
            let words: Vec<&str> = ["EVAL", script, "0"].into_iter().chain(command.split(' ')).collect();
            let _ = self.watcher.ask(&words);
        }
    }

    fn check(&mut self, command: &Words, answer: Result<Value, String>) {
        *self.answered.entry(command[0].clone()).or_default() += 1;
        match answer {
            Err(error) => {
                self.errors += 1;
                let code = error.split(' ').next().unwrap();
                let shown = shown(command);
                assert!(["ERR", "WRONGTYPE", "NOSCRIPT"].contains(&code), "{shown}: {error}");
                assert!(!error.contains("internal error"), "{shown}: {error}");
                assert!(error.len() < 300, "{shown}: an error of {} bytes", error.len());
            }
            Ok(answer) => assert!(sound(&answer), "{}: {answer:?}", shown(command)),
        }
    }

    fn assert_invariants(&mut self) {
        self.server.assert_alive("the fuzzer");
        let mut keys: Vec<Vec<u8>> = self.watcher.get("KEYS *");
        keys.retain(|key| !self.foreigners.contains_key(key));
        let asked: Vec<Words> = keys.iter().map(|key| vec![b"PTTL".to_vec(), key.clone()]).collect();
        for (key, ttl) in keys.iter().zip(self.watcher.pipeline(&asked.iter().collect::<Vec<_>>())) {
            assert_ne!(ttl, Ok(Value::Int(-1)), "{} never expires", key.escape_ascii());
        }
        for (key, before) in &self.foreigners {
            let now = self.watcher.call(&[b"DUMP".to_vec(), key.clone()]);
            assert_eq!(now, *before, "{} has changed", key.escape_ascii());
        }
    }

    /// The server's memory use after all keys are deleted.
    fn memory_at_rest(&mut self) -> i64 {
        self.client.call("FLUSHALL");
        self.client.call("SCRIPT FLUSH");
        self.client.call("CL.TOP RESET");
        let _ = self.client.ask("MEMORY PURGE");
        // The buffers of connections grow with use. New ones are small.
        self.client = self.server.connect();
        self.watcher = self.server.connect();
        self.watcher.used_memory()
    }
}

/// Whether one of the commands can return this reply.
fn sound(answer: &Value) -> bool {
    match answer {
        Value::Nil | Value::Okay => true,
        Value::Int(done) => *done == 0 || *done == 1,
        Value::Array(items) => match &items[..] {
            [
                Value::Int(limited),
                Value::Int(limit),
                Value::Int(remaining),
                Value::Int(retry),
                Value::Int(reset),
                taken @ ..,
            ] => {
                (0..=1).contains(limited)
                    && *limit >= 1
                    && (0..=*limit).contains(remaining)
                    && *retry >= -1
                    && *reset >= 0
                    && taken.len() <= 1
            }
            // CL.TOP: a key, its refusals, their error, and the instant of the last one.
            [Value::BulkString(_), Value::Int(refusals), Value::Int(error), Value::Int(_)] => {
                *refusals > 0 && *error >= 0
            }
            rows => rows.iter().all(|row| matches!(row, Value::Array(_)) && sound(row)),
        },
        _ => false,
    }
}

fn shown(command: &Words) -> String {
    let word = |word: &Vec<u8>| word[..word.len().min(40)].escape_ascii().to_string();
    command.iter().take(16).map(word).collect::<Vec<_>>().join(" ")
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{variable}: {e}")))
}

/// The fuzzer, from a fresh server to an empty one.
fn fuzz(seed: u64, commands: u64) -> Fuzzer {
    println!("REDIS_CELL_FUZZ_SEED={seed}"); // shown with a failure
    let mut fuzzer = Fuzzer::start(Options::new(), seed);
    // Memory that the module and the server allocate once is not a leak.
    fuzzer.run(10_000);
    let before = fuzzer.memory_at_rest();
    fuzzer.foreigners = foreigners(&mut fuzzer.client);
    fuzzer.run(commands);
    for name in COMMANDS.iter().map(|command| command.name) {
        assert!(fuzzer.answered.contains_key(name.as_bytes()), "{name} was never called");
    }
    let grown = fuzzer.memory_at_rest() - before;
    assert!(grown < 200_000, "used_memory has grown by {grown} bytes, from {before}, in {commands} commands");
    fuzzer
}

/// Random commands by the hundred thousand: the server lives, limiters expire, other keys stay as they are,
/// and no memory is leaked. Of refused calls, the simulator asserts that they change nothing.
#[test]
pub fn no_random_command_does_harm() {
    let commands = number("REDIS_CELL_FUZZ_COMMANDS").unwrap_or(if long() { 1_000_000 } else { 200_000 });
    let fuzzer = fuzz(number("REDIS_CELL_FUZZ_SEED").unwrap_or(1), commands);
    figure("fuzzer: commands sent", fuzzer.sent);
    figure("fuzzer: errors answered", fuzzer.errors);
}

#[test]
pub fn no_memory_stays_behind() {
    fuzz(2, 20_000);
}

/// A server under valgrind, which checks every access to memory, and leaks at the end.
pub struct Checked {
    pub options: Options,
    log: NamedTempFile,
}

impl Checked {
    /// `None` where there is no valgrind.
    pub fn new() -> Option<Self> {
        let found = Command::new("valgrind").arg("--version").output();
        found.ok().filter(|output| output.status.success())?;
        let log = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let log_file = format!("--log-file={}", log.path().display());
        // The server's compression reads memory that it has not set, on purpose.
        let options = Options::new().set("rdbcompression", "no").under(&[
            "valgrind",
            &log_file,
            "--leak-check=full",
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=definite",
            "--keep-debuginfo=yes",
            "--soname-synonyms=somalloc=*jemalloc*", // an allocator that is not libc's
        ]);
        Some(Self { options, log })
    }

    /// Ends the server, and asserts that valgrind has found nothing.
    pub fn assert_no_errors(&self, server: &mut Server) {
        server.shut_down();
        let log = std::fs::read_to_string(self.log.path()).unwrap();
        assert!(log.contains("ERROR SUMMARY: 0 errors "), "{log}");
    }
}

#[test]
pub fn valgrind_finds_no_error_and_no_leak() {
    let checked = Checked::new();
    requires!(checked.is_some(), "there is no valgrind");
    let checked = checked.unwrap();
    let mut fuzzer = Fuzzer::start(checked.options.clone(), 4);
    fuzzer.run(if long() { 100_000 } else { 5_000 });
    // Memory that the module keeps must be freed when it is unloaded.
    fuzzer.client.call("MODULE UNLOAD redis-cell");
    fuzzer.client.call(&["MODULE", "LOAD", &module_path().display().to_string()]);
    fuzzer.run(500);
    fuzzer.client.call("MODULE UNLOAD redis-cell");
    checked.assert_no_errors(&mut fuzzer.server);
}
