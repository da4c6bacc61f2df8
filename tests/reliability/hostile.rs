//! A fuzzer against a live server: every command of the module, on keys of every type and encoding, with arguments from
//! sensible to absurd. `REDIS_CELL_FUZZ_COMMANDS` says how many, `REDIS_CELL_FUZZ_SEED` which.

use crate::common::{Client, Options, Server, Waiter, module_path, requires, wall_ns};
use crate::figures::{figure, long};
use crate::random::Random;
use redis::Value;
use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use tempfile::NamedTempFile;

type Words = Vec<Vec<u8>>;

/// The commands, with what their arguments are.
const COMMANDS: [(&str, &str); 16] = [
    ("CL.THROTTLE", "key small count period quantity options"),
    ("CL.PEEK", "key small count period quantity options"),
    ("CL.REFUND", "key small count period quantity options"),
    ("CL.CHARGE", "key small count period quantity options"),
    ("CL.RESERVE", "key small count period quantity options"),
    ("CL.BTHROTTLE", "key small count period quantity timeout options"),
    ("CL.MTHROTTLE", "2 key key small count period small count period options"),
    ("CL.FUNNEL", "key count count period quantity options"),
    ("CL.BUCKET", "key count count period quantity options"),
    ("CL.FIXED", "key count period quantity options"),
    ("CL.WINDOW", "key count period quantity options"),
    ("CL.LOG", "key count period quantity options"),
    ("CL.ACQUIRE", "key count period id options"),
    ("CL.RENEW", "key period id options"),
    ("CL.RELEASE", "key id"),
    ("CL.TOP", "count"),
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

/// Every so many commands share their keys, so that each finds states of its own kind.
const FAMILIES: usize = 7;

/// Builds commands.
struct Writer {
    random: Random,
    keys: Vec<Vec<u8>>,
}

impl Writer {
    fn command(&mut self) -> Words {
        let (name, shape) = COMMANDS[self.random.below(COMMANDS.len())];
        if self.random.chance(1) {
            return self.expensive(name);
        }
        let mut words: Words = vec![name.into()];
        // Half of all calls are as they should be, so that there are states for the others to meet.
        let sound = self.random.chance(50);
        for word in shape.split(' ') {
            if !sound && self.random.chance(25) {
                let garbage = self.garbage();
                words.push(garbage);
                continue;
            }
            match word {
                "key" if sound && self.random.chance(80) => {
                    let family = match name {
                        "CL.FUNNEL" => 1,
                        "CL.BUCKET" => 2,
                        "CL.FIXED" => 3,
                        "CL.WINDOW" => 4,
                        "CL.LOG" => 5,
                        "CL.ACQUIRE" | "CL.RENEW" | "CL.RELEASE" => 6,
                        _ => 0,
                    };
                    words.push(format!("k{}", family + FAMILIES * self.random.below(5)).into());
                }
                "key" => {
                    let key = self.random.below(self.keys.len());
                    words.push(self.keys[key].clone());
                }
                "small" => words.push(self.number(8)),
                "count" => words.push(self.number(40)),
                "period" => words.push(self.number(50)),
                "quantity" if self.random.chance(60) => words.push(self.number(6)),
                "quantity" => {}
                // At the most a hundredth of a second, because those behind it in the pipeline wait as well.
                "timeout" => {
                    let timeout = ["0.01", "0.001", "1e-9", "-1", "nan", "x", "1e300"];
                    words.push(timeout[self.random.below(timeout.len())].into());
                }
                "id" => words.push(format!("id{}", self.random.below(30)).into()),
                "options" => {
                    while self.random.chance(30) {
                        words.push(OPTIONS[self.random.below(if sound { 4 } else { OPTIONS.len() })].into());
                        if words.last().is_some_and(|word| word == b"MAXWAIT" || word == b"QUANTITY") {
                            let wait = self.number(9);
                            words.push(wait);
                        }
                    }
                }
                fixed => words.push(fixed.into()),
            }
        }
        if !sound && self.random.chance(10) {
            words.truncate(1 + self.random.below(words.len()));
        }
        if !sound && self.random.chance(3) {
            (0..self.random.below(300)).for_each(|_| words.push(b"1".to_vec()));
        }
        // A timeout that would let the pipeline stand still is not for this client.
        if name == "CL.BTHROTTLE"
            && let Some(timeout) = words.get_mut(6)
            && !timeout.starts_with(b"0.0")
            && String::from_utf8_lossy(timeout).parse::<f64>().is_ok_and(|seconds| seconds < 1e12)
        {
            *timeout = b"0.001".to_vec();
        }
        words
    }

    /// The calls that may cost the most.
    fn expensive(&mut self, name: &str) -> Words {
        let (some, many) = (self.random.below(3), 10 + self.random.below(90));
        let text = match name {
            "CL.LOG" => format!("CL.LOG big{some} 1000000 1 10000"),
            "CL.MTHROTTLE" => {
                let keys: Vec<String> = (0..many).map(|key| format!("several{key}")).collect();
                format!("CL.MTHROTTLE {many} {} {}", keys.join(" "), "999 1 1 ".repeat(many))
            }
            "CL.ACQUIRE" => format!("CL.ACQUIRE leases{some} 1000000 1 id{}", self.random.next()),
            name => format!("{name} {} 1 1 1", "k".repeat(100_000)),
        };
        text.split(' ').filter(|word| !word.is_empty()).map(Into::into).collect()
    }

    fn number(&mut self, below: usize) -> Vec<u8> {
        (1 + self.random.below(below)).to_string().into()
    }

    fn garbage(&mut self) -> Vec<u8> {
        match self.random.below(10) {
            0..6 => AWKWARD[self.random.below(AWKWARD.len())].into(),
            6 => self.random.next().to_string().into(),
            7 => {
                let key = self.random.below(self.keys.len());
                self.keys[key].clone()
            }
            8 => (0..self.random.below(40)).map(|_| self.random.byte()).collect(),
            _ => vec![self.random.byte(); self.random.below(5_000)],
        }
    }
}

/// Keys that no command of ours may change, of every type and encoding, with what they hold.
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

/// Whether the call was refused or failed, which is when it may have changed nothing.
fn took_nothing(answer: &Result<Value, String>) -> bool {
    match answer {
        Err(_) | Ok(Value::Nil) => true,
        Ok(Value::Array(items)) => match items.first() {
            Some(Value::Int(limited)) => *limited == 1,
            Some(row @ Value::Array(_)) => took_nothing(&Ok(row.clone())),
            _ => false,
        },
        Ok(Value::Int(done)) => *done == 0,
        Ok(_) => false,
    }
}

/// CL.CHARGE and CL.REFUND say `limited` of the state that they leave.
fn always_takes(command: &Words) -> bool {
    [b"CL.CHARGE".as_ref(), b"CL.REFUND"].contains(&command[0].as_ref())
}

struct Fuzzer {
    server: Server,
    client: Client,
    watcher: Client,
    writer: Writer,
    foreigners: BTreeMap<Vec<u8>, Value>,
    sent: u64,
    errors: u64,
    /// The slowest call of each command, in microseconds.
    slowest: BTreeMap<Vec<u8>, (i64, String)>,
    /// Answers by command, to see that none was left out.
    answered: HashMap<Vec<u8>, u64>,
}

impl Fuzzer {
    fn start(options: Options, seed: u64) -> Self {
        let server = options.start();
        let mut client = server.connect();
        // Nothing that it fills by itself may look like our leak.
        // The slow log is for the slowest call.
        for setting in ["slowlog-max-len 256", "slowlog-log-slower-than 200", "latency-monitor-threshold 0"] {
            client.call(&format!("CONFIG SET {setting}"));
        }
        let known = client.ask("COMMAND LIST FILTERBY MODULE redis-cell").ok();
        if let Some(Value::Array(known)) = known {
            for command in known {
                let name: String = redis::from_redis_value(command).unwrap();
                let listed = COMMANDS.iter().any(|(listed, _)| listed.eq_ignore_ascii_case(&name));
                assert!(listed, "{name} is not fuzzed");
            }
        }
        let foreigners = foreigners(&mut client);
        let own = (0..40).map(|i| format!("k{i}").into_bytes());
        let odd = [b"".to_vec(), b"\0".to_vec(), b"\xff\xfe%s\r\n".to_vec(), vec![b'k'; 1000]];
        let mut keys: Vec<Vec<u8>> = own.chain(odd).chain(foreigners.keys().cloned()).collect();
        keys.extend_from_within(..30); // our own more often
        let watcher = server.connect();
        Self {
            server,
            client,
            watcher,
            writer: Writer { random: Random::new(seed), keys },
            foreigners,
            sent: 0,
            errors: 0,
            slowest: BTreeMap::new(),
            answered: HashMap::new(),
        }
    }

    /// Sends so many commands, and holds everything against the contract after each batch.
    fn run(&mut self, commands: u64) {
        let until = self.sent + commands;
        while self.sent < until {
            let batch: Vec<Words> = (0..500).map(|_| self.writer.command()).collect();
            self.batch(&batch);
            self.lonely_calls();
            self.waiters();
            self.interfere();
            self.assert_invariants();
        }
    }

    fn batch(&mut self, batch: &[Words]) {
        let script = ["EVAL", "return redis.pcall(unpack(ARGV))", "0"].map(|word| word.as_bytes().to_vec());
        let word = |word: &str| vec![word.as_bytes().to_vec()];
        match self.writer.random.below(4) {
            0 => {
                let calls: Vec<Words> = batch.iter().map(|call| [&script, &call[..]].concat()).collect();
                for (command, answer) in batch.iter().zip(self.pipeline(&calls)) {
                    // What a script returns has been through Lua's floating point.
                    self.check(command, answer.map(|_| Value::Nil));
                }
            }
            1 => {
                let calls = [&[word("MULTI")], batch, &[word("EXEC")]].concat();
                let exec = self.pipeline(&calls).pop().unwrap();
                // A call that has too few words has spoilt the transaction.
                if let Ok(Value::Array(answers)) = exec {
                    assert_eq!(answers.len(), batch.len());
                    for (command, answer) in batch.iter().zip(answers) {
                        let failed = matches!(answer, Value::ServerError(_));
                        assert!(failed || sound(&answer), "{}: {answer:?}", shown(command));
                    }
                }
            }
            _ => {
                for (command, answer) in batch.iter().zip(self.pipeline(batch)) {
                    self.check(command, answer);
                }
            }
        }
        self.sent += u64::try_from(batch.len()).unwrap();
    }

    fn pipeline(&mut self, calls: &[Words]) -> Vec<Result<Value, String>> {
        self.client.pipeline(&calls.iter().collect::<Vec<_>>())
    }

    /// Calls one by one, to see of each that takes nothing that it changes nothing.
    fn lonely_calls(&mut self) {
        for _ in 0..10 {
            let command = self.writer.command();
            let changes = self.watcher.info("rdb_changes_since_last_save");
            let keys = self.dumps();
            let answer = self.client.ask(&command);
            if took_nothing(&answer) && !always_takes(&command) {
                let shown = shown(&command);
                assert_eq!(self.watcher.info("rdb_changes_since_last_save"), changes, "{shown}: {answer:?}");
                for (key, before) in &keys {
                    // In this order: who is gone at the second look may have expired since the first.
                    let expiry = self.watcher.expiry_ms(key);
                    let after = self.watcher.call(&[b"DUMP".to_vec(), key.clone()]);
                    let gone = after == Value::Nil && before.1 <= wall_ns() / 1_000_000 + 1;
                    assert!(
                        gone || (&after, expiry) == (&before.0, before.1),
                        "{shown}: {answer:?} changed a key"
                    );
                }
            }
            self.check(&command, answer);
            self.sent += 1;
        }
    }

    /// All keys but the foreign ones, with expiries.
    fn dumps(&mut self) -> Vec<(Vec<u8>, (Value, i64))> {
        let mut keys: Vec<Vec<u8>> = self.watcher.get("KEYS *");
        keys.retain(|key| !key.starts_with(b"f:"));
        keys.truncate(6);
        keys.into_iter()
            .map(|key| {
                let expiry = self.watcher.expiry_ms(&key);
                (key.clone(), (self.watcher.call(&[b"DUMP".to_vec(), key]), expiry))
            })
            .filter(|(_, (dump, _))| *dump != Value::Nil)
            .collect()
    }

    /// Callers in line whom the others' calls, a kill or their patience end.
    fn waiters(&mut self) {
        let mut waiters = Vec::new();
        for _ in 0..self.writer.random.below(4) {
            let mut waiter = Waiter::connect(&self.server);
            waiter.send("CLIENT ID");
            waiter.id = waiter.answer().parse().unwrap();
            let key = self.writer.random.below(40);
            waiter.send(&format!("CL.BTHROTTLE k{key} 0 1 1 1 0.05"));
            waiters.push(waiter);
        }
        let batch: Vec<Words> = (0..50).map(|_| self.writer.command()).collect();
        self.batch(&batch);
        for (index, waiter) in waiters.iter_mut().enumerate() {
            if index == 0 && self.writer.random.chance(30) {
                let _ = self.watcher.ask(&format!("CLIENT KILL ID {}", waiter.id));
                continue;
            }
            if index == 1 {
                let _ = self.watcher.ask(&format!("CLIENT UNBLOCK {}", waiter.id));
            }
            waiter.answer();
        }
    }

    /// What others do to the keys of a limiter, as they may.
    fn interfere(&mut self) {
        for _ in 0..4 {
            let (one, other) = (self.writer.random.below(40), self.writer.random.below(40));
            let command = match self.writer.random.below(6) {
                0 => format!("DEL k{one}"),
                1 => format!("RENAME k{one} k{other}"),
                2 => format!("PEXPIRE k{one} 5"),
                3 => format!("HSET k{one} tokens 9223372036854775807 previous 9223372036854775807"),
                4 => format!("ZADD k{one} XX CH {} id1", self.writer.random.next() % (1 << 53)),
                _ => format!("SETRANGE k{one} 3 {}", self.writer.random.below(100)),
            };
            // A key that is not there some of these would make, and it would not be ours.
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
        self.note_slow_calls();
    }

    fn note_slow_calls(&mut self) {
        let Value::Array(entries) = self.watcher.call("SLOWLOG GET 256") else { panic!("no SLOWLOG") };
        for entry in entries {
            let Value::Array(fields) = entry else { panic!("SLOWLOG") };
            let micros: i64 = redis::from_redis_value(fields[2].clone()).unwrap();
            let words: Words = redis::from_redis_value(fields[3].clone()).unwrap();
            let name = words[0].to_ascii_uppercase();
            if name.starts_with(b"CL.")
                && self.slowest.get(&name).is_none_or(|(slowest, _)| micros > *slowest)
            {
                self.slowest.insert(name, (micros, shown(&words)));
            }
        }
        self.watcher.call("SLOWLOG RESET");
    }

    /// What the server uses when all keys are gone.
    fn memory_at_rest(&mut self) -> i64 {
        self.client.call("FLUSHALL");
        self.client.call("SCRIPT FLUSH");
        self.client.call("CL.TOP RESET");
        let _ = self.client.ask("MEMORY PURGE");
        // Connections have buffers of their own, which a new one has not grown yet.
        self.client = self.server.connect();
        self.watcher = self.server.connect();
        self.watcher.info("used_memory").parse().unwrap()
    }
}

/// An answer that one of the commands can give.
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
            // CL.TOP: a key, its refusals, by how many they may be wrong, and when the last one was.
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
    // What the module and the server allocate once is no leak.
    fuzzer.run(2_000);
    let before = fuzzer.memory_at_rest();
    fuzzer.foreigners = foreigners(&mut fuzzer.client);
    fuzzer.run(commands);
    for (name, _) in COMMANDS {
        assert!(fuzzer.answered.contains_key(name.as_bytes()), "{name} was never called");
    }
    let grown = fuzzer.memory_at_rest() - before;
    assert!(grown < 200_000, "used_memory has grown by {grown} bytes, from {before}, in {commands} commands");
    fuzzer
}

/// Random commands by the hundred thousand: the server lives, keys of ours expire, those of others stay as they are,
/// what is refused changes nothing, and no memory stays behind.
#[test]
pub fn no_random_command_does_harm() {
    let commands = number("REDIS_CELL_FUZZ_COMMANDS").unwrap_or(if long() { 1_000_000 } else { 200_000 });
    let fuzzer = fuzz(number("REDIS_CELL_FUZZ_SEED").unwrap_or(1), commands);
    figure("fuzzer: commands sent", fuzzer.sent);
    figure("fuzzer: errors answered", fuzzer.errors);
    if let Some((micros, call)) = fuzzer.slowest.values().max() {
        figure("fuzzer: slowest call", format!("{micros} us, {call}"));
    }
    for (micros, call) in fuzzer.slowest.values() {
        println!("{micros} us: {call}");
    }
}

#[test]
pub fn no_memory_stays_behind() {
    fuzz(2, 20_000);
}

/// The same, while everything is also written to an append-only file, which then makes the same keys.
#[test]
pub fn what_it_leaves_behind_is_what_the_append_only_file_says() {
    let mut fuzzer = Fuzzer::start(Options::new().set("appendonly", "yes"), 3);
    fuzzer.run(if long() { 100_000 } else { 10_000 });
    // Nothing expires between the two looks.
    let mut keys: Vec<Vec<u8>> = fuzzer.watcher.get("KEYS *");
    keys.retain(|key| fuzzer.watcher.int(&[b"PEXPIRE".as_ref(), key, b"100000000"]) == 1);
    assert!(keys.len() > 20, "{} keys are few", keys.len());
    let digest = [&[b"DEBUG".to_vec(), b"DIGEST-VALUE".to_vec()], &keys[..]].concat();
    let before: Vec<String> = fuzzer.watcher.get(&digest);
    fuzzer.watcher.call("DEBUG LOADAOF");
    let after: Vec<String> = fuzzer.watcher.get(&digest);
    for (key, (before, after)) in keys.iter().zip(before.iter().zip(&after)) {
        assert_eq!(after, before, "{}", key.escape_ascii());
    }
}

/// Every access to memory checked by valgrind, and at the end what nobody has freed.
#[test]
pub fn valgrind_finds_no_error_and_no_leak() {
    let found = Command::new("valgrind").arg("--version").output();
    requires!(found.is_ok_and(|output| output.status.success()), "there is no valgrind");
    let log = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let log_file = format!("--log-file={}", log.path().display());
    // The server's compression looks at memory that it has not set, on purpose.
    let options = Options::new().set("rdbcompression", "no").under(&[
        "valgrind",
        &log_file,
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
        "--keep-debuginfo=yes",
        "--soname-synonyms=somalloc=*jemalloc*", // an allocator that is not libc's
    ]);
    let mut fuzzer = Fuzzer::start(options, 4);
    fuzzer.run(if long() { 100_000 } else { 5_000 });
    // What the module holds on to must not stay behind when it goes.
    fuzzer.client.call("MODULE UNLOAD redis-cell");
    fuzzer.client.call(&["MODULE", "LOAD", &module_path().display().to_string()]);
    fuzzer.run(500);
    fuzzer.client.call("MODULE UNLOAD redis-cell");
    fuzzer.server.shut_down();
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("ERROR SUMMARY: 0 errors "), "{log}");
}
