//! The state of the simulated server, and the effects of calls of the module API on it.
//!
//! The functions here never call the module; [`crate::server`] does, while the world is not borrowed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use crate::clock;
use crate::commands::Name;
use crate::history::Settings;
use crate::keyspace::{Bytes, Entry, Keyspace, Noted, Places, Score, Value, ZSet};
use crate::slab::Slab;

/// A key as it is: its value, and its expiry in milliseconds.
pub type Held = Option<(Value, Option<i64>)>;

/// Words of a command.
pub type Words = Vec<Bytes>;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// An integer.
    Int(i64),
    /// A bulk string.
    Text(Bytes),
    /// A simple string.
    Simple(String),
    /// An error.
    Error(String),
    /// Null.
    Null,
    /// An array.
    Array(Vec<Reply>),
}

impl Reply {
    /// The reply on one line, as redis-cli would show it, with rows separated by bars.
    pub fn shown(&self) -> String {
        match self {
            Self::Int(number) => number.to_string(),
            Self::Text(bytes) => format!("\"{}\"", bytes.escape_ascii()),
            Self::Simple(text) => text.clone(),
            Self::Error(text) => format!("(error) {text}"),
            Self::Null => "(nil)".to_owned(),
            Self::Array(items) => {
                let nested = items.iter().any(|item| matches!(item, Self::Array(_)));
                let items: Vec<String> = items.iter().map(Self::shown).collect();
                items.join(if nested { " | " } else { " " })
            }
        }
    }
}

/// Part of a reply, as the module sends it.
#[derive(Clone, Debug)]
pub enum Token {
    /// The beginning of an array.
    Array(usize),
    /// Anything else.
    Item(Reply),
}

/// The first whole reply of some parts.
pub fn reply_of(tokens: &[Token]) -> Option<Reply> {
    fn one(tokens: &mut std::slice::Iter<Token>) -> Option<Reply> {
        Some(match tokens.next()? {
            Token::Item(item) => item.clone(),
            Token::Array(count) => {
                Reply::Array((0..*count).map(|_| one(tokens)).collect::<Option<Vec<_>>>()?)
            }
        })
    }
    let mut rest = tokens.iter();
    let reply = one(&mut rest)?;
    rest.next().is_none().then_some(reply)
}

/// Code of the module. Only `boundary.rs` runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub usize);

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The oracle that found it.
    pub oracle: &'static str,
    /// What was expected, and what came.
    pub text: String,
}

/// A string that the module refers to.
#[derive(Debug)]
pub struct Text {
    /// Its bytes, which stay in place.
    pub bytes: Rc<[u8]>,
    /// Who holds it.
    pub holders: usize,
}

/// A key that the module has opened.
#[derive(Clone, Debug)]
pub struct OpenKey {
    /// The database.
    pub db: i32,
    /// The name.
    pub name: Rc<[u8]>,
    /// Whether it is open for writing.
    pub writes: bool,
    /// The incarnation of the value; 0 for none.
    pub incarnation: u64,
    /// A range of its members.
    pub range: Option<Rc<Range>>,
    /// Whether its value was created by it, in whose event no other module acts on it.
    pub is_new: bool,
    /// Whether another module may have acted on it. Then it is neither used nor closed.
    pub is_lost: bool,
}

/// Where the module is in a range of a sorted set.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// The member.
    pub current: Option<(f64, Bytes)>,
    /// The lowest and the highest score of the range.
    pub bounds: (f64, f64),
}

/// The context in which the module runs.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The selected database.
    pub db: i32,
    /// The client; 0 for none.
    pub client: u64,
    /// Flags that depend on the context: a transaction, a script, no blocking.
    pub flags: u32,
    /// The reply so far.
    pub tokens: Vec<Token>,
    /// The words of the call.
    pub words: Rc<Words>,
    /// The private data of a blocked client.
    pub private: usize,
    /// The blocked client whose callback it is.
    pub blocked: usize,
    /// The client that the call has blocked.
    pub has_blocked: Option<usize>,
    /// The positions of the keys, if the command is asked for them.
    pub positions: Option<Vec<usize>>,
}

/// A client that the module has blocked.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// How many clients were blocked before.
    pub order: u64,
    /// The client, as long as it is connected and blocked.
    pub client: Option<u64>,
    /// The words of the call.
    pub words: Rc<Words>,
    /// The database of the call.
    pub db: i32,
    /// The callbacks.
    pub reply: Code,
    /// Of a timeout.
    pub timeout: Code,
    /// That frees the private data.
    pub free: Code,
    /// Of a disconnection.
    pub disconnect: Option<Code>,
    /// Whether the module has unblocked it.
    pub is_unblocked: bool,
    /// The private data.
    pub private: usize,
}

/// A connection.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// The selected database.
    pub db: i32,
    /// The command that has blocked the client.
    pub blocked: Option<usize>,
    /// Since when, in nanoseconds of the monotonic clock.
    pub since: i64,
    /// Calls of a transaction that has begun.
    pub queued: Option<Vec<Rc<Words>>>,
    /// The user.
    pub user: Bytes,
    /// Calls that arrived while it was blocked.
    pub pending: VecDeque<Rc<Words>>,
}

/// A command of the module.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its code.
    pub code: Code,
    /// Whether it writes.
    pub writes: bool,
    /// Whether it is refused when the memory is used up.
    pub denies_oom: bool,
    /// Whether it is asked for the positions of its keys; otherwise that is the first argument, if any.
    pub finds_keys: bool,
    /// Whether it has keys.
    pub has_keys: bool,
}

/// Who follows keyspace events.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The classes.
    pub classes: i32,
    /// The callback.
    pub code: Code,
    /// Whether it runs, in which case it is not called again.
    pub is_running: bool,
}

/// Commands that another module runs in the events of a key.
#[derive(Clone, Debug)]
pub struct Reaction {
    /// The key.
    pub key: Bytes,
    /// What it runs.
    pub words: Words,
    /// How often at most.
    pub left: u32,
}

/// A reply that a client has received.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The client.
    pub client: u64,
    /// What it has called.
    pub words: Rc<Words>,
    /// The database.
    pub db: i32,
    /// The reply.
    pub reply: Reply,
    /// Whether it has waited, and since when on the monotonic clock.
    pub waited: Option<i64>,
    /// When it was sent, on the monotonic clock.
    pub at: i64,
}

/// The server.
#[derive(Debug, Default)]
pub struct World {
    /// The settings of the history for it.
    pub settings: Settings,
    /// The keys.
    pub keys: Keyspace,
    /// The keys by the stream of effects, while anybody listens to it.
    pub image: Option<Keyspace>,
    /// Keys that the stream has changed since they were last compared.
    pub touched: Noted<()>,
    /// Effects of the unit that is running.
    pub effects: Vec<(i32, Words)>,
    /// How many effects there have been.
    pub written: u64,
    /// Whether a replica is connected, and whether there is a backlog.
    pub replicas: u32,
    /// See `replicas`.
    pub has_backlog: bool,
    /// Whether an append-only file is written.
    pub has_aof: bool,
    /// Whether the server is a replica.
    pub is_replica: bool,
    /// Until when clients are paused, on the wall clock in milliseconds.
    pub paused_until: i64,
    /// Whether the memory is used up.
    pub is_full: bool,
    /// Once in this number of times, a key is not opened for writing; 0 for never.
    pub busy: u64,
    /// See `busy`.
    pub openings: u64,
    /// The strings of the module.
    pub texts: Slab<Text, 1>,
    /// The open keys.
    pub open: Slab<OpenKey, 2>,
    /// Replies of the server's commands, and their elements.
    pub replies: Slab<Reply, 3>,
    /// How many replies the module has to free, which does not free elements.
    pub owned_replies: usize,
    /// Sections of INFO.
    pub infos: Slab<BTreeMap<String, String>, 4>,
    /// Blocked clients.
    pub blocked: Slab<Blocked, 5>,
    /// Users, as the module asks for them.
    pub users: Slab<Bytes, 6>,
    /// The contexts, of which the last is the innermost.
    pub contexts: Vec<Context>,
    /// The connections.
    pub clients: BTreeMap<u64, Client>,
    /// Those that have begun to wait, or wait no more, since this was last taken.
    pub turned: BTreeSet<u64>,
    /// Those that may have sent calls which were not run yet.
    pub behind: BTreeSet<u64>,
    /// Blocked clients that the module has unblocked.
    pub unblocked: VecDeque<usize>,
    /// The module's timers, by microseconds of the wall clock.
    pub timers: BTreeMap<(i64, u64), (Code, usize)>,
    /// The number of timers so far.
    pub timer_count: u64,
    /// The microsecond of the timer that fires.
    pub firing: Option<i64>,
    /// The module's commands.
    pub commands: BTreeMap<Bytes, Command>,
    /// Who follows keyspace events.
    pub subscriptions: Vec<Subscription>,
    /// Who follows the server's events.
    pub events: BTreeMap<u64, Code>,
    /// The callback of INFO, and what it has added.
    pub info: Option<Code>,
    /// See `info`.
    pub fields: Vec<(String, String)>,
    /// The other module.
    pub reactions: Vec<Reaction>,
    /// Whether it acts at present.
    pub is_reacting: bool,
    /// The commands that it has run in this step.
    pub acted: Vec<Words>,
    /// Why calls begin again: how often it has acted in this step, or a key has expired as it was opened. A
    /// key that is not opened at all is reason enough to end a call.
    pub disturbances: u64,
    /// Users without permission, for a key or for everything.
    pub denied: BTreeSet<(Bytes, Option<Bytes>)>,
    /// Keys that have moved to another node, while their slots are still here.
    pub moved: BTreeSet<Bytes>,
    /// Slots that another node serves.
    pub left: BTreeSet<u16>,
    /// The configuration epoch of this node, which rises when a slot comes.
    pub epoch: u64,
    /// The replies of each of the module's commands: how many, and how many of them errors.
    pub replied: BTreeMap<Name, [u64; 2]>,
    /// How many commands, timers or events are running inside each other.
    pub depth: u32,
    /// How many commands are running inside each other.
    pub commands_running: u32,
    /// The time of the command that is running, in milliseconds.
    pub snapshot: i64,
    /// Replies that were sent since they were last taken.
    pub answers: Vec<Answer>,
    /// What was found.
    pub violations: Vec<Violation>,
    /// When the cron runs next, on the monotonic clock.
    pub cron: i64,
    /// How often it runs, in nanoseconds.
    pub cron_every: i64,
    /// Whether it has not run since the wall clock was set back, and timers with it.
    pub awaits_cron: bool,
    /// When it had first run after that, on the monotonic clock.
    pub timed_since: i64,
    /// How many clients have been blocked so far.
    pub blockings: u64,
    /// When keys have expired, on the monotonic clock.
    pub gone: Places<i64>,
    /// Lines of the server's log.
    pub log: Vec<String>,
    /// Keys that a call has looked up, with their values before.
    pub seen: Noted<Held>,
    /// Keys of which a change was signalled, and published, since they were first looked up.
    pub signalled: Noted<()>,
    /// See `signalled`.
    pub published: Noted<()>,
    /// Whether `seen` is kept.
    pub sees: bool,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Works on the world.
pub fn with<T>(work: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with(|world| work(world.borrow_mut().as_mut().expect("a world")))
}

/// Begins a world.
pub fn begin(settings: Settings) {
    clock::start(settings.wall, settings.tick);
    WORLD.with(|world| *world.borrow_mut() = Some(World::fresh(settings)));
}

/// The other node of the cluster.
pub const OTHER_HOST: &str = "127.0.0.1";
/// See `OTHER_HOST`.
pub const OTHER_PORT: i64 = 7001;

/// The slot of a key, bit by bit. Keys have no braces, or begin with `{t}`.
pub fn slot_of(key: &[u8]) -> u16 {
    let key = if key.starts_with(b"{t}") { b"t" } else { key };
    let shift = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    key.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| shift(crc))) % 16_384
}

/// A millisecond, in nanoseconds.
pub const MILLI: i64 = 1_000_000;

impl World {
    /// A world in which nothing has happened.
    pub fn fresh(settings: Settings) -> Self {
        let image = (settings.listeners != "none").then(Keyspace::default);
        Self {
            has_aof: settings.listeners == "aof",
            replicas: u32::from(settings.listeners == "replica"),
            has_backlog: settings.listeners == "replica",
            settings,
            image,
            epoch: 1,
            cron: clock::monotonic() + 100 * MILLI,
            cron_every: 100 * MILLI,
            ..Self::default()
        }
    }

    /// Whether the server is Valkey.
    pub fn is_valkey(&self) -> bool {
        self.settings.version.starts_with("valkey")
    }

    /// Whether the server is a node of a cluster.
    pub fn in_cluster(&self) -> bool {
        self.settings.cluster || !self.moved.is_empty()
    }

    /// Whether the server has no memory for a command that needs some.
    pub fn is_out_of_memory(&self) -> bool {
        self.is_full && !self.settings.evicts
    }

    /// The error for a user who may not run a command with these keys.
    pub fn forbids(&self, user: &[u8], keys: &[Bytes]) -> Option<&'static str> {
        let of_user = || self.denied.iter().filter(|(name, _)| name == user);
        if of_user().any(|(_, key)| key.is_none()) {
            return Some("NOPERM this user has no permissions to run the command");
        }
        let is_denied = of_user().any(|(_, key)| key.as_ref().is_some_and(|key| keys.contains(key)));
        is_denied.then_some("NOPERM No permissions to access a key")
    }

    /// Where another node serves a key, as the error for its clients says.
    pub fn redirection(&self, key: &[u8]) -> Option<String> {
        let slot = slot_of(key);
        self.left.contains(&slot).then(|| format!("MOVED {slot} {OTHER_HOST}:{OTHER_PORT}"))
    }

    /// Records what must never happen.
    pub fn violates(&mut self, oracle: &'static str, text: impl Into<String>) {
        if self.violations.len() < 5 {
            self.violations.push(Violation { oracle, text: text.into() });
        }
    }

    /// The server's time, by which keys expire, in milliseconds: it stands still while a command runs.
    pub fn time(&self) -> i64 {
        if self.commands_running > 0 { self.snapshot } else { clock::wall().div_euclid(MILLI) }
    }

    /// A string of the module's.
    pub fn text(&mut self, bytes: &[u8]) -> usize {
        self.texts.insert(Text { bytes: bytes.into(), holders: 1 })
    }

    /// The bytes of a string.
    pub fn bytes(&mut self, text: usize) -> Rc<[u8]> {
        let Some(text) = self.texts.get(text) else {
            self.violates("handles", "a string is used after it was freed");
            return [].into();
        };
        Rc::clone(&text.bytes)
    }

    /// One holder less.
    pub fn free_text(&mut self, text: usize) {
        let Some(found) = self.texts.get_mut(text) else {
            return self.violates("handles", "a string is freed twice");
        };
        found.holders -= 1;
        if found.holders == 0 {
            self.texts.remove(text);
        }
    }

    /// The module replicates something: outside of commands, not while clients are paused.
    pub fn replicate(&mut self, context: usize, words: Words) {
        if self.commands_running == 0 && clock::wall() / MILLI < self.paused_until {
            self.violates("replication", "an effect while writes are paused");
        }
        let db = self.context(context).db;
        self.effects.push((db, words));
    }

    /// The innermost context, which is the only one that the module may use.
    pub fn context(&mut self, index: usize) -> &mut Context {
        if index + 1 > self.contexts.len() {
            self.violates("handles", "a context is used after its callback");
            self.contexts.resize(index + 1, Context::default());
        }
        &mut self.contexts[index]
    }

    /// Notes what a key was before the module could change it.
    pub fn note(&mut self, db: i32, key: &[u8]) {
        if self.sees {
            let before = || self.keys.get(db, key).map(|entry| (entry.value.clone(), entry.expiry));
            self.seen.note(db, key, before);
        }
    }

    /// Opens a key that has not expired. A key that does not exist is open for writing only.
    pub fn open(&mut self, db: i32, name: &Rc<[u8]>, writes: bool) -> usize {
        self.note(db, name);
        let expired = self.is_expired(db, name);
        let incarnation = self.keys.get(db, name).filter(|_| !expired).map_or(0, |entry| entry.incarnation);
        if incarnation == 0 && !writes {
            return 0;
        }
        let (name, range) = (Rc::clone(name), None);
        self.open.insert(OpenKey { db, name, writes, incarnation, range, is_new: false, is_lost: false })
    }

    /// A key that has not expired.
    pub fn living(&self, db: i32, name: &[u8]) -> Option<&Entry> {
        self.keys.get(db, name).filter(|entry| entry.expiry.is_none_or(|at| self.time() <= at))
    }

    /// Whether the expiry of a key has passed.
    pub fn is_expired(&self, db: i32, name: &[u8]) -> bool {
        let expiry = self.keys.get(db, name).and_then(|entry| entry.expiry);
        expiry.is_some_and(|at| self.time() > at)
    }

    /// The value of the open key behind a pointer, which must not have been taken away by somebody else;
    /// `Some(None)` for an empty key.
    fn opened(&mut self, key: usize, doing: &str) -> Option<Option<&mut Entry>> {
        let Some(open) = self.open.get(key) else {
            self.violates("handles", format!("{doing}: the key is not open"));
            return None;
        };
        if open.is_lost {
            let name = open.name.escape_ascii();
            let text = format!("{doing}: another module may have acted on {name}");
            self.violates("handles", text);
            return None;
        }
        if open.incarnation == 0 {
            return Some(None);
        }
        let is_there = self.keys.get(open.db, &open.name).map(|entry| entry.incarnation);
        if is_there != Some(open.incarnation) {
            let name = open.name.escape_ascii();
            let text = format!("{doing}: the value of the open key {name} is gone");
            self.violates("handles", text);
            return None;
        }
        Some(self.keys.get_mut(open.db, &open.name))
    }

    /// The same, to be written to.
    fn writable(&mut self, key: usize, doing: &str) -> Option<OpenKey> {
        self.opened(key, doing)?;
        let open = self.open.get(key)?.clone();
        if !open.writes {
            self.violates("handles", format!("{doing}: the key is open for reading"));
            return None;
        }
        if open.incarnation == 0 && self.keys.get(open.db, &open.name).is_some() {
            let name = open.name.escape_ascii();
            self.violates("handles", format!("{doing}: {name} was created after it was opened as empty"));
            return None;
        }
        Some(open)
    }

    /// Closes a key.
    pub fn close(&mut self, key: usize) {
        if key != 0 && self.opened(key, "CloseKey").is_some() {
            self.open.remove(key);
        }
    }

    /// The server or another module may look a key up and delete it: no handle to its value may be open.
    pub fn looked_up(&mut self, db: i32, name: &[u8], by: &str) {
        if self.open.is_empty() {
            return;
        }
        let is_in_use = |open: &OpenKey| open.incarnation != 0 && !open.is_lost;
        if self.open.iter().any(|open| open.db == db && *open.name == *name && is_in_use(open)) {
            let name = name.escape_ascii();
            self.violates("handles", format!("{by} may delete the key {name}, which is open"));
        }
    }

    /// The value of an open key.
    fn value(&mut self, key: usize, doing: &str) -> Option<&mut Value> {
        self.opened(key, doing)?.map(|entry| &mut entry.value)
    }

    /// The type of an open key's value.
    pub fn key_type(&mut self, key: usize) -> i32 {
        match self.value(key, "KeyType") {
            None => 0,
            Some(Value::Text(_)) => 1,
            Some(Value::Hash(_)) => 3,
            Some(Value::ZSet(_)) => 5,
            Some(Value::Other(_)) => 4,
        }
    }

    /// Deletes the value of an open key. Returns whether there was one.
    pub fn delete(&mut self, key: usize) -> bool {
        let Some(open) = self.writable(key, "DeleteKey") else { return false };
        if let Some(handle) = self.open.get_mut(key) {
            handle.incarnation = 0;
        }
        self.keys.remove(open.db, &open.name).is_some()
    }

    /// The expiry of an open key, in milliseconds of the wall clock; -1 for none.
    pub fn expiry(&mut self, key: usize) -> i64 {
        match self.opened(key, "GetAbsExpire") {
            None => return -1,
            Some(Some(entry)) => return entry.expiry.unwrap_or(-1),
            Some(None) => {}
        }
        self.violates("handles", "GetAbsExpire: the key is empty");
        -1
    }

    /// Sets the expiry of an open key; -1 for none.
    pub fn set_expiry(&mut self, key: usize, at: i64) -> bool {
        let Some(open) = self.writable(key, "SetAbsExpire") else { return false };
        // The module has read the clock since it has decided, a few calls ago.
        if self.commands_running == 0
            && at >= 0
            && at + 2 < self.time()
            && !self.settings.version.starts_with('6')
        {
            self.violates(
                "contract",
                format!("{} is stored though it has expired", open.name.escape_ascii()),
            );
        }
        let Some(entry) = self.keys.get_mut(open.db, &open.name) else { return false };
        entry.expiry = (at >= 0).then_some(at);
        true
    }

    /// Gives an open key without a value a new one. The event `new` follows.
    fn create(&mut self, key: usize, open: &OpenKey, value: Value) -> Option<(i32, Bytes)> {
        let incarnation = self.keys.set(open.db, &open.name, value, None);
        let handle = self.open.get_mut(key)?;
        (handle.incarnation, handle.is_new) = (incarnation, true);
        Some((open.db, open.name.to_vec()))
    }

    /// Where the string of an open key is, and its length. Not null for an empty key.
    pub fn string(&mut self, key: usize, writes: bool) -> Option<(*mut u8, usize)> {
        static EMPTY: &str = "<dma-empty-string>";
        if writes {
            let open = self.writable(key, "StringDMA")?;
            if open.incarnation == 0 {
                return Some((EMPTY.as_ptr().cast_mut(), 0));
            }
        }
        match self.value(key, "StringDMA") {
            Some(Value::Text(bytes)) => Some((bytes.as_mut_ptr(), bytes.len())),
            Some(_) => None,
            None => Some((EMPTY.as_ptr().cast_mut(), 0)),
        }
    }

    /// Sets the length of an open key's string. Returns the key if it was created.
    pub fn truncate(&mut self, key: usize, len: usize) -> Option<(i32, Bytes)> {
        let open = self.writable(key, "StringTruncate")?;
        if open.incarnation == 0 {
            return if len == 0 { None } else { self.create(key, &open, Value::Text(vec![0; len])) };
        }
        if let Some(Value::Text(bytes)) = self.value(key, "StringTruncate") {
            bytes.resize(len, 0);
        }
        None
    }

    /// The number of elements of an open key's value.
    pub fn value_length(&mut self, key: usize) -> usize {
        match self.value(key, "ValueLength") {
            Some(Value::Text(bytes)) => bytes.len(),
            Some(Value::Hash(fields)) => fields.len(),
            Some(Value::ZSet(set)) => set.scores.len(),
            Some(Value::Other(_)) => 1,
            None => 0,
        }
    }

    fn zset(&mut self, key: usize, doing: &str) -> Option<&mut Rc<ZSet>> {
        match self.value(key, doing) {
            Some(Value::ZSet(set)) => Some(set),
            _ => None,
        }
    }

    /// The score of a member.
    pub fn score(&mut self, key: usize, member: usize) -> Option<f64> {
        let member = self.bytes(member);
        self.zset(key, "ZsetScore")?.scores.get(&*member).map(|score| score.0)
    }

    /// Adds a member or sets its score; with `only_new`, adds it. Returns the result's flags, and the key if
    /// it was created.
    pub fn zadd(
        &mut self,
        key: usize,
        score: f64,
        member: usize,
        only_new: bool,
    ) -> (i32, Option<(i32, Bytes)>) {
        const ADDED: i32 = 4;
        const UPDATED: i32 = 8;
        const NOP: i32 = 16;
        let member = self.bytes(member);
        let Some(open) = self.writable(key, "ZsetAdd") else { return (NOP, None) };
        let mut created = None;
        if open.incarnation == 0 {
            created = self.create(key, &open, Value::ZSet(Rc::default()));
        }
        let Some(set) = self.zset(key, "ZsetAdd") else { return (NOP, created) };
        if only_new && set.scores.contains_key(&*member) {
            return (NOP, created);
        }
        (if Rc::make_mut(set).put(&member, score) { ADDED } else { UPDATED }, created)
    }

    /// Removes a member. A set without members is deleted.
    pub fn zrem(&mut self, key: usize, member: usize) {
        let member = self.bytes(member);
        let Some(open) = self.writable(key, "ZsetRem") else { return };
        let Some(set) = self.zset(key, "ZsetRem") else { return };
        Rc::make_mut(set).remove(&member);
        if set.scores.is_empty() {
            self.keys.remove(open.db, &open.name);
            if let Some(handle) = self.open.get_mut(key) {
                handle.incarnation = 0;
            }
        }
    }

    /// Begins a range of scores at its first member, or at its last one.
    pub fn seek(&mut self, key: usize, min: f64, max: f64, last: bool) -> bool {
        let Some(set) = self.zset(key, "ZsetFirstInScoreRange") else { return false };
        let bounds = (Score(min), Bytes::new())..(Score(max.next_up()), Bytes::new());
        let found = if last { set.order.range(bounds).next_back() } else { set.order.range(bounds).next() };
        let found = found.map(|(score, member)| (score.0, member.clone()));
        self.range(key, found, (min, max));
        true
    }

    fn range(&mut self, key: usize, current: Option<(f64, Bytes)>, bounds: (f64, f64)) {
        if let Some(open) = self.open.get_mut(key) {
            open.range = Some(Rc::new(Range { current, bounds }));
        }
    }

    /// Moves a range on, or back. False at its end.
    pub fn walk(&mut self, key: usize, back: bool) -> bool {
        let range = self.open.get(key).and_then(|open| open.range.clone());
        let Some(Range { current: Some((score, member)), bounds }) = range.as_deref() else { return false };
        let at = (Score(*score), member.clone());
        let Some(set) = self.zset(key, "ZsetRangeNext") else { return false };
        let next = if back {
            set.order.range(..&at).next_back()
        } else {
            set.order.range((std::ops::Bound::Excluded(&at), std::ops::Bound::Unbounded)).next()
        };
        let next = next.filter(|(score, _)| (bounds.0..=bounds.1).contains(&score.0));
        let next = next.map(|(score, member)| (score.0, member.clone()));
        let moved = next.is_some();
        self.range(key, next, *bounds);
        moved
    }

    /// The member at which the range is.
    pub fn current(&mut self, key: usize) -> Option<(f64, usize)> {
        let (score, member) = self.open.get(key)?.range.as_ref()?.current.clone()?;
        Some((score, self.text(&member)))
    }

    /// The value of a field of a hash, as a new string.
    pub fn field(&mut self, key: usize, field: usize) -> Option<usize> {
        let field = self.bytes(field);
        let value = match self.value(key, "HashGet") {
            Some(Value::Hash(fields)) => fields.get(&*field).cloned()?,
            _ => return None,
        };
        Some(self.text(&value))
    }

    /// Sets a field of a hash. Returns the key if it was created.
    pub fn set_field(&mut self, key: usize, field: usize, value: usize) -> Option<(i32, Bytes)> {
        let (field, value) = (self.bytes(field), self.bytes(value));
        let open = self.writable(key, "HashSet")?;
        let mut created = None;
        if open.incarnation == 0 {
            created = self.create(key, &open, Value::Hash(Rc::default()));
        }
        if let Some(Value::Hash(fields)) = self.value(key, "HashSet") {
            Rc::make_mut(fields).insert(field.to_vec(), value.to_vec());
        }
        created
    }

    /// A section of INFO, as fields.
    pub fn info_section(&self, section: &str) -> BTreeMap<String, String> {
        let field = |name: &str, value: String| (name.to_owned(), value);
        match section {
            "replication" => [
                field("connected_slaves", self.replicas.to_string()),
                field("repl_backlog_active", u32::from(self.has_backlog).to_string()),
            ]
            .into(),
            "server" => {
                let name = if self.is_valkey() { "valkey_version" } else { "redis_version" };
                [field(name, self.settings.version.trim_start_matches("valkey-").to_owned())].into()
            }
            _ => BTreeMap::new(),
        }
    }
}
