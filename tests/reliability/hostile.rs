//! A fuzzer against a live server: every command of the module, on keys of every type and encoding, with
//! arguments from sensible to absurd. `REDIS_CELL_FUZZ_COMMANDS` says how many, `REDIS_CELL_FUZZ_SEED` which.

use crate::common::{COMMANDS, Client, KINDS, Options, Server, Waiter, module_path, requires};
use crate::figures::{figure, long};
use fastrand::Rng;
use redis::Value;
use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use tempfile::NamedTempFile;

type Words = Vec<Vec<u8>>;

/// The limiters of a call for several, with the family of each and the kinds of its arguments.
const LIMITERS: [(usize, &str); 8] = [
    (0, "THROTTLE small count period difference"),
    (1, "FUNNEL count count period difference"),
    (2, "BUCKET count count period difference"),
    (3, "FIXED count period difference"),
    (3, "FIXED count calendar difference"),
    (4, "WINDOW count period difference"),
    (5, "LOG count period difference"),
    (6, "LEASE count period id"),
];

const AWKWARD: [&str; 30] = [
    "-9223372036854775808",
    "-1",
    "-0",
    "0",
    "1",
    "2",
    "999999",
    "1000000000",
    "4294967296",
    "9223372036",
    "9223372036854775",
    "4611686018427387904",
    "9223372036854775806",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "99999999999999999999999999999999999999999",
    "",
    " ",
    "1 ",
    "+1",
    "007",
    "1.5",
    "1e3",
    "nan",
    "inf",
    "0x10",
    "%s%n",
    "\u{661}",
    "2\r\n+OK",
];

const OPTIONS: [&str; 12] =
    ["S", "MS", "US", "ms", "SATURATE", "PREPAY", "MAXWAIT", "QUANTITY", "BOGUS", "H", "", "SATURATEX"];

/// The number of kinds of states. Key `k<n>` belongs to family `n % FAMILIES`, so that most calls find states
/// of their own kind.
const FAMILIES: usize = KINDS.len();

/// The frequency of each action of the generator, in percent. With these numbers a run has states of every
/// kind and every error text.
mod percent {
    /// Valid calls. Without this many there are too few states for the invalid ones to find.
    pub const SOUND: u8 = 50;
    /// Valid calls on a key of the family that their limiter shares. The others find keys of other limiters
    /// or types.
    pub const OWN_FAMILY: u8 = 80;
    /// Arguments of an invalid call replaced by garbage: one or two in a call of average length.
    pub const GARBAGE: u8 = 25;
    /// Invalid calls cut off after any argument.
    pub const TRUNCATED: u8 = 10;
    /// Invalid calls with up to 300 more arguments.
    pub const EXTENDED: u8 = 3;
    /// Calls with a quantity.
    pub const QUANTITY: u8 = 60;
    /// Calls with an option, and again with one more.
    pub const OPTION: u8 = 30;
    /// Waiting clients that are killed.
    pub const KILLED: u8 = 30;
}

/// Generates commands.
struct Writer {
    random: Rng,
    keys: Vec<Vec<u8>>,
}

impl Writer {
    fn chance(&mut self, percent: u8) -> bool {
        self.random.u8(..100) < percent
    }

    fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())]
    }

    fn any_key(&mut self) -> Vec<u8> {
        self.keys[self.random.usize(..self.keys.len())].clone()
    }

    fn command(&mut self) -> Words {
        let command = &COMMANDS[self.random.usize(..COMMANDS.len())];
        let (name, shape) = (command.name, command.shape);
        let mut words: Words = vec![name.into()];
        let sound = self.chance(percent::SOUND);
        for argument in shape.split(' ') {
            if !sound && self.chance(percent::GARBAGE) {
                words.push(self.garbage());
            } else {
                self.argument(argument, name, sound, &mut words);
            }
        }
        if !sound && self.chance(percent::TRUNCATED) {
            words.truncate(1 + self.random.usize(..words.len()));
        }
        if !sound && self.chance(percent::EXTENDED) {
            (0..self.random.usize(..300)).for_each(|_| words.push(b"1".to_vec()));
        }
        shorten_wait(name, &mut words);
        words
    }

    /// Appends an argument of the kind that a command's `shape` names.
    fn argument(&mut self, kind: &str, name: &str, sound: bool, words: &mut Words) {
        match kind {
            "key" if sound && self.chance(percent::OWN_FAMILY) => {
                words.push(format!("k{}", family(name) + FAMILIES * self.random.usize(..5)).into());
            }
            "key" => words.push(self.any_key()),
            "small" => words.push(self.number(8)),
            "count" => words.push(self.number(40)),
            "period" => words.push(self.number(50)),
            "quantity" if self.chance(percent::QUANTITY) => words.push(self.number(6)),
            // At most a hundredth of a second, because the commands after it in the pipeline wait as well.
            "timeout" => words.push(self.any(&["0.01", "0.001", "1e-9", "-1", "nan", "x", "1e300"]).into()),
            "id" => words.push(format!("id{}", self.random.usize(..30)).into()),
            "options" => {
                while self.chance(percent::OPTION) {
                    let option = self.any(&OPTIONS[..if sound { 4 } else { OPTIONS.len() }]);
                    words.push(option.into());
                    if ["MAXWAIT", "QUANTITY"].contains(&option) {
                        words.push(self.number(9));
                    }
                }
            }
            "limiter" => {
                let (own, shape) = self.any(&LIMITERS);
                if sound && self.chance(percent::OWN_FAMILY) {
                    words.push(format!("k{}", own + FAMILIES * self.random.usize(..5)).into());
                } else {
                    words.push(self.any_key());
                }
                if name == "CL.MTAKE" && self.chance(percent::OPTION) {
                    words.push("SHADOW".into());
                }
                if name == "CL.MSETTLE" && self.chance(percent::OPTION) {
                    words.push("RESET".into());
                    words.push(self.number(60));
                }
                for argument in shape.split(' ') {
                    self.argument(argument, name, sound, words);
                }
            }
            "difference" if name == "CL.MSETTLE" => {
                let sign = self.any(&["", "-"]);
                words.push([sign.as_bytes(), &self.number(6)].concat());
            }
            "difference" => words.push(self.number(6)),
            "calendar" => words.push(self.any(&["HOUR", "DAY", "WEEK", "MONTH", "YEAR"]).into()),
            "age" if self.chance(percent::OPTION) => {
                words.push("AGO".into());
                words.push(self.number(60));
            }
            "queued" if self.chance(percent::OPTION) => {
                words.extend(["FLOW".into(), self.number(6), "WEIGHT".into(), self.number(6)]);
            }
            "quantity" | "age" | "queued" => {}
            fixed => words.push(fixed.into()),
        }
    }

    fn number(&mut self, below: usize) -> Vec<u8> {
        self.random.usize(1..=below).to_string().into()
    }

    fn garbage(&mut self) -> Vec<u8> {
        match self.random.u8(..10) {
            0..6 => self.any(&AWKWARD).into(),
            6 => self.random.u64(..).to_string().into(),
            7 => self.any_key(),
            8 => (0..self.random.usize(..40)).map(|_| self.random.u8(..)).collect(),
            _ => vec![self.random.u8(..); self.random.usize(..5_000)],
        }
    }
}

/// Which of every [`FAMILIES`] keys the limiter of a command uses.
fn family(name: &str) -> usize {
    COMMANDS.iter().find(|command| command.name == name).unwrap().kind
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
        let own = (0..40).map(|i| format!("k{i}").into_bytes());
        let odd = [b"".to_vec(), b"\0".to_vec(), b"\xff\xfe%s\r\n".to_vec(), vec![b'k'; 1000]];
        let mut keys: Vec<Vec<u8>> = own.chain(odd).chain(foreigners.keys().cloned()).collect();
        keys.extend_from_within(..30); // the limiters' keys more often
        let watcher = server.connect();
        Self {
            server,
            client,
            watcher,
            writer: Writer { random: Rng::with_seed(seed), keys },
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

    /// Waiting clients, which other calls, a kill or their timeout end.
    fn waiters(&mut self) {
        let mut waiters = Vec::new();
        for _ in 0..self.writer.random.usize(..4) {
            let mut waiter = Waiter::connect(&self.server);
            waiter.send("CLIENT ID");
            waiter.id = waiter.answer().parse().unwrap();
            let key = self.writer.random.usize(..40);
            waiter.send(&format!("CL.BTHROTTLE k{key} 0 1 1 1 0.05"));
            waiters.push(waiter);
        }
        let batch: Vec<Words> = (0..50).map(|_| self.writer.command()).collect();
        self.batch(&batch);
        for (index, waiter) in waiters.iter_mut().enumerate() {
            if index == 0 && self.writer.chance(percent::KILLED) {
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
            let (one, other) = (self.writer.random.usize(..40), self.writer.random.usize(..40));
            let command = match self.writer.random.usize(..6) {
                0 => format!("DEL k{one}"),
                1 => format!("RENAME k{one} k{other}"),
                2 => format!("PEXPIRE k{one} 5"),
                3 => format!("HSET k{one} tokens 9223372036854775807 previous 9223372036854775807"),
                4 => format!("ZADD k{one} XX CH {} id1", self.writer.random.u64(..1 << 53)),
                _ => format!("SETRANGE k{one} 3 {}", self.writer.random.usize(..100)),
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

/// Random commands by the hundred thousand: the server lives, limiters expire, other keys stay as they are, and
/// no memory is leaked. Of refused calls, the simulator asserts that they change nothing.
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
