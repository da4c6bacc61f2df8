//! A connection that takes commands as a user types them, and returns errors as they are on the wire.

use super::{Throttle, ceil_div, wait_until, wall_ns};
use redis::{ConnectionLike, RedisError, Value};
use std::fmt::Debug;
use std::time::Duration;

/// A command: words separated by spaces, or a list of arguments where these contain spaces or other bytes.
pub trait Words {
    fn words(&self) -> Vec<Vec<u8>>;
}

impl Words for str {
    fn words(&self) -> Vec<Vec<u8>> {
        self.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
    }
}

impl Words for String {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_str().words()
    }
}

impl<W: AsRef<[u8]>> Words for [W] {
    fn words(&self) -> Vec<Vec<u8>> {
        self.iter().map(|word| word.as_ref().to_vec()).collect()
    }
}

impl<W: AsRef<[u8]>> Words for Vec<W> {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_slice().words()
    }
}

impl<W: AsRef<[u8]>, const N: usize> Words for [W; N] {
    fn words(&self) -> Vec<Vec<u8>> {
        self.as_slice().words()
    }
}

/// Everything that a refused, read-only or failed call must leave unchanged.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot {
    keys: i64,
    dump: Dump,
    expiry_ms: i64,
}

/// A dump, shown as escaped text.
#[derive(PartialEq, Eq)]
struct Dump(Option<Vec<u8>>);

impl Debug for Dump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            None => f.write_str("no such key"),
        }
    }
}

pub struct Client {
    connection: redis::Connection,
}

impl Client {
    pub fn connect(port: u16, query: &str) -> Result<Self, String> {
        let mut client = Self::connect_to(&format!("127.0.0.1:{port}"), query, Duration::from_secs(30))?;
        // A server that hangs fails the test instead of hanging it.
        client.set_patience(Duration::from_secs(180));
        Ok(client)
    }

    /// Connects to `host:port`. `patience` limits the wait for the connection and for every reply.
    pub fn connect_to(address: &str, query: &str, patience: Duration) -> Result<Self, String> {
        let client = redis::Client::open(format!("redis://{address}/{query}")).unwrap();
        let connection = client.get_connection_with_timeout(patience).map_err(|e| e.to_string())?;
        let mut client = Self { connection };
        client.set_patience(patience);
        Ok(client)
    }

    /// How long to wait for a reply.
    pub fn set_patience(&mut self, patience: Duration) {
        self.connection.set_read_timeout(Some(patience)).unwrap();
    }

    pub fn connection(&mut self) -> &mut redis::Connection {
        &mut self.connection
    }

    /// The reply, or the error text exactly as the server sent it.
    pub fn ask<W: Words + ?Sized>(&mut self, command: &W) -> Result<Value, String> {
        self.pipeline(&[command]).remove(0)
    }

    /// Sends all commands in one write and returns all replies in order.
    pub fn pipeline<W: Words + ?Sized>(&mut self, commands: &[&W]) -> Vec<Result<Value, String>> {
        self.try_pipeline(commands)
            .unwrap_or_else(|e| panic!("the connection broke, or the answer could not be read: {e}"))
    }

    /// The same, for a connection that may break.
    pub fn try_pipeline<W: Words + ?Sized>(
        &mut self,
        commands: &[&W],
    ) -> Result<Vec<Result<Value, String>>, String> {
        let mut bytes = Vec::new();
        for command in commands {
            let mut packed = redis::Cmd::new();
            for word in command.words() {
                packed.arg(word);
            }
            bytes.extend(packed.get_packed_command());
        }
        let answers =
            self.connection.req_packed_commands(&bytes, 0, commands.len()).map_err(|e| e.to_string())?;
        Ok(answers.into_iter().map(refuse_error).collect())
    }

    /// The reply to a command that must not fail.
    pub fn call<W: Words + ?Sized>(&mut self, command: &W) -> Value {
        self.ask(command).unwrap_or_else(|e| panic!("{}: unexpected error: {e}", shown(command)))
    }

    /// The error text of a command that must fail.
    pub fn error<W: Words + ?Sized>(&mut self, command: &W) -> String {
        match self.ask(command) {
            Err(text) => text,
            Ok(answer) => panic!("{}: expected an error, got {answer:?}", shown(command)),
        }
    }

    pub fn int<W: Words + ?Sized>(&mut self, command: &W) -> i64 {
        self.get(command)
    }

    pub fn text<W: Words + ?Sized>(&mut self, command: &W) -> String {
        self.get(command)
    }

    /// The reply to a command that returns integers only, such as CL.THROTTLE.
    pub fn ints<W: Words + ?Sized>(&mut self, command: &W) -> Vec<i64> {
        ints(&self.call(command)).unwrap_or_else(|seen| panic!("{}: not integers: {seen}", shown(command)))
    }

    /// The integers of an answer, separated by spaces; a single integer by itself.
    pub fn integers<W: Words + ?Sized>(&mut self, command: &W) -> String {
        let numbers = match self.call(command) {
            Value::Int(number) => vec![number],
            answer => ints(&answer).unwrap_or_else(|seen| panic!("{}: not integers: {seen}", shown(command))),
        };
        numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")
    }

    pub fn get<T: redis::FromRedisValue, W: Words + ?Sized>(&mut self, command: &W) -> T {
        let answer = self.call(command);
        let seen = format!("{answer:?}");
        redis::from_redis_value(answer).unwrap_or_else(|e| panic!("{}: {seen}: {e}", shown(command)))
    }

    /// The key's state, if it has one.
    pub fn tat(&mut self, key: &str) -> Option<i64> {
        let text: Option<String> = self.get(&["GET", key]);
        text.map(|digits| digits.parse().unwrap_or_else(|e| panic!("{key} holds {digits:?}, not a TAT: {e}")))
    }

    /// The exact absolute expiry in milliseconds; -1 without an expiry, -2 without a key.
    pub fn expiry_ms<K: AsRef<[u8]> + ?Sized>(&mut self, key: &K) -> i64 {
        if self.has_command("PEXPIRETIME") {
            return self.int(&[b"PEXPIRETIME".as_ref(), key.as_ref()]);
        }
        // Before 7.0: if the clock shows the same millisecond before and after PTTL, the sum is exact.
        wait_until("PTTL within one millisecond", || {
            let answers =
                self.pipeline(&[&[b"TIME".as_ref()][..], &[b"PTTL".as_ref(), key.as_ref()], &[b"TIME"]]);
            let [before, ttl, after] = answers.try_into().unwrap();
            let (before, after) = (milliseconds(before.unwrap()), milliseconds(after.unwrap()));
            match ttl {
                Ok(Value::Int(ttl)) if ttl < 0 => Ok(ttl),
                Ok(Value::Int(ttl)) if before == after => Ok(before + ttl),
                seen => Err(format!("{seen:?} between {before} and {after}")),
            }
        })
    }

    pub fn snapshot<K: AsRef<[u8]> + ?Sized>(&mut self, key: &K) -> Snapshot {
        Snapshot {
            keys: self.int("DBSIZE"),
            dump: Dump(self.get(&[b"DUMP".as_ref(), key.as_ref()])),
            expiry_ms: self.expiry_ms(key),
        }
    }

    /// One line of INFO.
    pub fn info(&mut self, field: &str) -> String {
        let text = self.text("INFO");
        field_of(&text, field).unwrap_or_else(|| panic!("INFO has no field {field}")).to_owned()
    }

    /// Waits until a line of INFO has this value.
    pub fn wait_for(&mut self, field: &str, value: &str) {
        wait_until(&format!("{field} {value}"), || match self.info(field) {
            seen if seen == value => Ok(()),
            seen => Err(seen),
        });
    }

    /// The bytes of memory that the server uses, once it has freed what was deleted: Valkey 8 replies to
    /// FLUSHALL while another thread still frees the keys.
    pub fn used_memory(&mut self) -> i64 {
        self.wait_for("lazyfree_pending_objects", "0");
        self.info("used_memory").parse().unwrap()
    }

    /// The process of the server, or the reason why it is not known: a server that still loads its data
    /// refuses PING, and one of another test, which has ended on this port, breaks the connection.
    pub fn process_id(&mut self) -> Result<u32, String> {
        let info = match <[_; 2]>::try_from(self.try_pipeline(&["PING", "INFO server"])?) {
            Ok([Ok(_), Ok(info)]) => info,
            replies => return Err(format!("{replies:?}")),
        };
        let text: String = redis::from_redis_value(info).map_err(|e| e.to_string())?;
        let id = field_of(&text, "process_id").ok_or("INFO has no process_id")?;
        id.parse().map_err(|e| format!("{e}"))
    }

    pub fn has_command(&mut self, name: &str) -> bool {
        matches!(self.call(&["COMMAND", "INFO", name]), Value::Array(rows) if rows != [Value::Nil])
    }

    /// Runs `CL.THROTTLE key <arguments>` and checks everything against the contract: the reply, the stored
    /// state, and its expiry.
    pub fn throttle_checked(&mut self, key: &str, arguments: &str) -> Vec<i64> {
        let throttle = Throttle::parse(arguments);
        let old = self.tat(key);
        let earliest = wall_ns();
        let reply = self.ints(&format!("CL.THROTTLE {key} {arguments}"));
        // The module's clock may run a little ahead of a wall clock that is being slewed.
        let latest = wall_ns() + 5_000_000;
        let context = format!("CL.THROTTLE {key} {arguments} on {old:?}, within {earliest}..{latest}");
        throttle.check(&reply, old, earliest, latest, &context);

        let (new, expiry) = (self.tat(key), self.expiry_ms(key));
        if throttle.writes(&reply) {
            let cost = throttle.cost(throttle.taken(&reply));
            let at =
                |now: i64| i64::try_from(i128::from(old.map_or(now, |tat| tat.max(now))) + cost).unwrap();
            let Some(new) = new else {
                assert!(wall_ns() >= at(earliest), "{context}: admitted, but there is no key");
                return reply; // it expired between the call and the check
            };
            assert!((at(earliest)..=at(latest)).contains(&new), "{context}: left TAT {new}");
            let expired = expiry == -2 && wall_ns() >= new;
            assert!(
                expired || expiry == ceil_div(new.into(), 1_000_000),
                "{context}: TAT {new} expires at {expiry}"
            );
        } else if old.is_some_and(|tat| tat > latest) {
            let expired = new.is_none() && old.is_some_and(|tat| wall_ns() >= tat); // since the call
            assert!(expired || new == old, "{context}: a call that takes nothing left {new:?}");
        } else {
            // An old state may have expired meanwhile, but no new one may appear.
            assert!(new.is_none() || new == old, "{context}: a call that takes nothing wrote {new:?}");
        }
        reply
    }
}

/// One line of INFO's text.
fn field_of<'t>(info: &'t str, field: &str) -> Option<&'t str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
}

fn refuse_error(answer: Value) -> Result<Value, String> {
    match answer {
        Value::ServerError(error) => Err(wire_text(&error.into())),
        answer => Ok(answer),
    }
}

fn wire_text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    }
}

/// The integers of an array reply.
pub fn ints(answer: &Value) -> Result<Vec<i64>, String> {
    let Value::Array(items) = answer else { return Err(format!("{answer:?}")) };
    let int = |item: &Value| if let Value::Int(n) = item { Ok(*n) } else { Err(format!("{answer:?}")) };
    items.iter().map(int).collect()
}

fn milliseconds(time: Value) -> i64 {
    let (seconds, microseconds): (i64, i64) = redis::from_redis_value(time).unwrap();
    seconds * 1000 + microseconds / 1000
}

/// A command for a message: escaped, and each argument cut to 60 bytes.
fn shown<W: Words + ?Sized>(command: &W) -> String {
    let text: Vec<String> =
        command.words().iter().map(|word| word[..word.len().min(60)].escape_ascii().to_string()).collect();
    text.join(" ")
}
