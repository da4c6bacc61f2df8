//! The server's own commands, as far as the module runs them, replicates them, or others change keys by them.

use std::fmt::{self, Display};
use std::ops::Deref;
use std::rc::Rc;

use crate::keyspace::{Bytes, Keyspace, Value, ZSet};
use crate::world::{Reply, Words};

/// Classes of keyspace events.
pub mod class {
    /// Of any type.
    pub const GENERIC: i32 = 1 << 2;
    /// Of strings.
    pub const STRING: i32 = 1 << 3;
    /// Of sets.
    pub const SET: i32 = 1 << 5;
    /// Of hashes.
    pub const HASH: i32 = 1 << 6;
    /// Of sorted sets.
    pub const ZSET: i32 = 1 << 7;
    /// Of expired keys.
    pub const EXPIRED: i32 = 1 << 8;
    /// Of evicted keys.
    pub const EVICTED: i32 = 1 << 9;
    /// Of keys that were created.
    pub const NEW: i32 = 1 << 14;
}

/// Every command, with whether it writes.
const COMMANDS: [(&str, bool); 20] = [
    ("SET", true),
    ("DEL", true),
    ("UNLINK", true),
    ("PEXPIRE", true),
    ("PEXPIREAT", true),
    ("PERSIST", true),
    ("RENAME", true),
    ("COPY", true),
    ("MOVE", true),
    ("SWAPDB", true),
    ("FLUSHDB", true),
    ("FLUSHALL", true),
    ("HSET", true),
    ("ZADD", true),
    ("ZREM", true),
    ("ZREMRANGEBYRANK", true),
    ("ZRANGE", false),
    ("ZCOUNT", false),
    ("INCR", true),
    ("SADD", true),
];

/// Whether a command writes; `None` if there is none of this name, which is in upper case.
pub fn writes(name: &str) -> Option<bool> {
    COMMANDS.iter().find(|(known, _)| *known == name).map(|(_, writes)| *writes)
}

/// The effect of a command.
#[derive(Debug)]
pub struct Applied {
    /// Its reply.
    pub reply: Reply,
    /// The keyspace events, with databases.
    pub events: Vec<(i32, i32, &'static str, Bytes)>,
    /// The command that does the same elsewhere, at any time; `None` if it has changed nothing.
    pub effect: Option<Words>,
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// A whole number as the server reads it.
pub fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn score(bytes: &[u8]) -> Option<f64> {
    match bytes {
        b"+inf" | b"inf" => Some(f64::INFINITY),
        b"-inf" => Some(f64::NEG_INFINITY),
        _ => std::str::from_utf8(bytes).ok()?.parse().ok(),
    }
}

/// The name of a command in upper case, without an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    bytes: [u8; 24],
    len: usize,
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// The name of a command; empty if it is longer than any.
pub fn name(words: &[Bytes]) -> Name {
    let mut name = Name::default();
    if let Some(word) = words.first()
        && let Some(bytes) = name.bytes.get_mut(..word.len())
    {
        bytes.copy_from_slice(word);
        bytes.make_ascii_uppercase();
        name.len = word.len();
    }
    name
}

/// The keys that a command names.
pub fn keys(words: &[Bytes]) -> &[Bytes] {
    let last = match &*name(words) {
        "SWAPDB" | "FLUSHDB" | "FLUSHALL" => 1,
        "DEL" | "UNLINK" => words.len(),
        "RENAME" | "COPY" => 3,
        _ => 2,
    };
    words.get(1..last.min(words.len())).unwrap_or_default()
}

/// Runs a command. Keys that have expired are gone already. A primary deletes a key that is given an expiry
/// in the past.
pub fn apply(keys: &mut Keyspace, db: i32, words: &[Bytes], now: i64, is_primary: bool) -> Applied {
    let mut run = Run { keys, db, events: Vec::new(), effect: None, now, is_primary };
    let reply = run.run(words).unwrap_or_else(|error| Reply::Error(error.to_owned()));
    Applied { reply, events: run.events, effect: run.effect }
}

struct Run<'a> {
    keys: &'a mut Keyspace,
    db: i32,
    events: Vec<(i32, i32, &'static str, Bytes)>,
    effect: Option<Words>,
    now: i64,
    is_primary: bool,
}

impl Run<'_> {
    fn event(&mut self, class: i32, event: &'static str, key: &[u8]) {
        if self.is_primary {
            self.events.push((self.db, class, event, key.to_vec()));
        }
    }

    /// The effect of a command that does the same elsewhere. Nobody follows that of a replica.
    fn verbatim(&self, words: &[Bytes]) -> Option<Words> {
        self.is_primary.then(|| words.to_vec())
    }

    fn expire_at(&mut self, key: &[u8], at: i64) -> Reply {
        let Some(entry) = self.keys.get_mut(self.db, key) else { return Reply::Int(0) };
        if self.is_primary && at <= self.now {
            self.keys.remove(self.db, key);
            self.event(class::GENERIC, "del", key);
            self.effect = Some(vec![b"DEL".into(), key.into()]);
        } else {
            entry.expiry = Some(at);
            entry.by_hand = true;
            self.event(class::GENERIC, "expire", key);
            self.effect = Some(vec![b"PEXPIREAT".into(), key.into(), at.to_string().into()]);
        }
        Reply::Int(1)
    }

    fn by_hand(&mut self, key: &[u8]) {
        if let Some(entry) = self.keys.get_mut(self.db, key) {
            entry.by_hand = true;
        }
    }

    fn zset(&mut self, key: &[u8]) -> Result<Option<&mut Rc<ZSet>>, &'static str> {
        match self.keys.get_mut(self.db, key).map(|entry| &mut entry.value) {
            None => Ok(None),
            Some(Value::ZSet(set)) => Ok(Some(set)),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    /// Deletes a set without members.
    fn end_zset(&mut self, key: &[u8]) {
        if matches!(self.zset(key), Ok(Some(set)) if set.scores.is_empty()) {
            self.keys.remove(self.db, key);
            self.event(class::GENERIC, "del", key);
        }
    }

    fn run(&mut self, words: &[Bytes]) -> Result<Reply, &'static str> {
        const SYNTAX: &str = "ERR syntax error";
        const SAME: &str = "ERR source and destination objects are the same";
        let name = name(words);
        let arg = |at: usize| words.get(at).map(Vec::as_slice).ok_or(SYNTAX);
        let db = self.db;
        Ok(match &*name {
            "SET" => {
                let (key, value) = (arg(1)?, arg(2)?);
                let mut expiry = None;
                match words.get(3).map(|word| word.to_ascii_uppercase()) {
                    None => {}
                    Some(word) if word == b"PX" => expiry = Some(self.now + number(arg(4)?).ok_or(SYNTAX)?),
                    Some(word) if word == b"PXAT" => expiry = Some(number(arg(4)?).ok_or(SYNTAX)?),
                    Some(word) if word == b"KEEPTTL" => {
                        expiry = self.keys.get(db, key).and_then(|entry| entry.expiry);
                    }
                    _ => return Err(SYNTAX),
                }
                self.keys.set(db, key, Value::Text(value.into()), expiry);
                self.by_hand(key);
                self.event(class::STRING, "set", key);
                let mut effect = vec![b"SET".into(), key.into(), value.into()];
                if let Some(at) = expiry {
                    self.event(class::GENERIC, "expire", key);
                    effect.extend([b"PXAT".into(), at.to_string().into()]);
                }
                self.effect = Some(effect);
                Reply::Simple("OK".into())
            }
            "INCR" => {
                let key = arg(1)?;
                let (old, expiry) = match self.keys.get(db, key) {
                    None => (0, None),
                    Some(entry) => match &entry.value {
                        Value::Text(bytes) => (
                            number(bytes).ok_or("ERR value is not an integer or out of range")?,
                            entry.expiry,
                        ),
                        _ => return Err(WRONG_TYPE),
                    },
                };
                let new = old.checked_add(1).ok_or("ERR increment or decrement would overflow")?;
                self.keys.set(db, key, Value::Text(new.to_string().into()), expiry);
                self.by_hand(key);
                self.event(class::STRING, "incrby", key);
                self.effect = self.verbatim(words);
                Reply::Int(new)
            }
            // Histories have one member only, so that its presence is all that a set holds.
            "SADD" => {
                let key = arg(1)?;
                match self.keys.get(db, key).map(|entry| &entry.value) {
                    None => {}
                    Some(Value::Other("set")) => return Ok(Reply::Int(0)),
                    Some(_) => return Err(WRONG_TYPE),
                }
                self.keys.set(db, key, Value::Other("set"), None);
                self.event(class::SET, "sadd", key);
                self.effect = self.verbatim(words);
                Reply::Int(1)
            }
            "DEL" | "UNLINK" => {
                let mut deleted = 0;
                for key in &words[1..] {
                    if self.keys.remove(db, key).is_some() {
                        self.event(class::GENERIC, "del", key);
                        deleted += 1;
                    }
                }
                self.effect = self.verbatim(words).filter(|_| deleted > 0);
                Reply::Int(deleted)
            }
            "PEXPIRE" => {
                let at = self.now.saturating_add(number(arg(2)?).ok_or(SYNTAX)?);
                self.expire_at(arg(1)?, at)
            }
            "PEXPIREAT" => {
                let at = number(arg(2)?).ok_or(SYNTAX)?;
                self.expire_at(arg(1)?, at)
            }
            "PERSIST" => {
                let key = arg(1)?;
                let had = self.keys.get_mut(db, key).and_then(|entry| entry.expiry.take());
                if had.is_some() {
                    self.by_hand(key);
                    self.event(class::GENERIC, "persist", key);
                    self.effect = self.verbatim(words);
                }
                Reply::Int(had.is_some().into())
            }
            "RENAME" => {
                let (from, to) = (arg(1)?, arg(2)?);
                if from == to && self.keys.get(db, from).is_some() {
                    return Ok(Reply::Simple("OK".into()));
                }
                let entry = self.keys.remove(db, from).ok_or("ERR no such key")?;
                self.keys.put(db, to, entry);
                self.event(class::GENERIC, "rename_from", from);
                self.event(class::GENERIC, "rename_to", to);
                self.effect = self.verbatim(words);
                Reply::Simple("OK".into())
            }
            "COPY" => {
                let (from, to) = (arg(1)?, arg(2)?);
                if from == to {
                    return Err(SAME);
                }
                let Some(entry) = self.keys.get(db, from).cloned() else { return Ok(Reply::Int(0)) };
                if self.keys.get(db, to).is_some() && words.len() < 4 {
                    return Ok(Reply::Int(0));
                }
                self.keys.put(db, to, entry);
                self.event(class::GENERIC, "copy_to", to);
                self.effect = self.verbatim(words);
                Reply::Int(1)
            }
            "MOVE" => {
                let (key, to) = (arg(1)?, number(arg(2)?).ok_or(SYNTAX)? as i32);
                if to == db {
                    return Err(SAME);
                }
                if self.keys.get(to, key).is_some() {
                    return Ok(Reply::Int(0));
                }
                let Some(entry) = self.keys.remove(db, key) else { return Ok(Reply::Int(0)) };
                self.keys.put(to, key, entry);
                self.event(class::GENERIC, "move_from", key);
                self.events.push((to, class::GENERIC, "move_to", key.into()));
                self.effect = self.verbatim(words);
                Reply::Int(1)
            }
            "SWAPDB" => {
                let (one, other) = (number(arg(1)?).ok_or(SYNTAX)?, number(arg(2)?).ok_or(SYNTAX)?);
                self.keys.swap(one as i32, other as i32);
                self.effect = self.verbatim(words);
                Reply::Simple("OK".into())
            }
            "FLUSHDB" | "FLUSHALL" => {
                self.keys.flush((*name == *"FLUSHDB").then_some(db));
                self.effect = self.verbatim(words);
                Reply::Simple("OK".into())
            }
            "HSET" => {
                let (key, _) = (arg(1)?, arg(3)?);
                if self.keys.get(db, key).is_none() {
                    self.keys.set(db, key, Value::Hash(Rc::default()), None);
                }
                let Some(Value::Hash(fields)) = self.keys.get_mut(db, key).map(|entry| &mut entry.value)
                else {
                    return Err(WRONG_TYPE);
                };
                Rc::make_mut(fields)
                    .extend(words[2..].chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())));
                self.by_hand(key);
                self.event(class::HASH, "hset", key);
                self.effect = self.verbatim(words);
                Reply::Int(1)
            }
            "ZADD" => {
                let (key, _) = (arg(1)?, arg(3)?);
                let mode = words.get(2).map(|word| word.to_ascii_uppercase()).unwrap_or_default();
                let (only_new, only_old) = (mode == b"NX", mode == b"XX");
                let pairs = &words[if only_new || only_old { 3 } else { 2 }..];
                if self.zset(key)?.is_none() {
                    if only_old {
                        return Ok(Reply::Int(0));
                    }
                    self.keys.set(db, key, Value::ZSet(Rc::default()), None);
                }
                let mut added = 0;
                if let Some(set) = self.zset(key)?.map(Rc::make_mut) {
                    for pair in pairs.chunks_exact(2) {
                        let there = set.scores.contains_key(&pair[1]);
                        if (only_new && there) || (only_old && !there) {
                            continue;
                        }
                        added += i64::from(
                            set.put(&pair[1], score(&pair[0]).ok_or("ERR value is not a valid float")?),
                        );
                    }
                }
                // What a key of holds says of its parts, as if other owners had added some.
                if !pairs.chunks(2).all(|pair| [&b"parts"[..], b"until"].contains(&&pair[1][..])) {
                    self.by_hand(key);
                }
                self.event(class::ZSET, "zadd", key);
                self.effect = self.verbatim(words);
                Reply::Int(added)
            }
            "ZREM" | "ZREMRANGEBYRANK" => {
                let (key, _) = (arg(1)?, arg(2)?);
                let Some(set) = self.zset(key)?.map(Rc::make_mut) else { return Ok(Reply::Int(0)) };
                let gone: Vec<Bytes> = if *name == *"ZREM" {
                    words[2..].to_vec()
                } else {
                    let len = set.order.len() as i64;
                    let place = |rank: i64| if rank < 0 { rank + len } else { rank };
                    let (first, last) = (number(arg(2)?).ok_or(SYNTAX)?, number(arg(3)?).ok_or(SYNTAX)?);
                    let (first, last) = (place(first).max(0), place(last));
                    let count = (last - first + 1).max(0) as usize;
                    set.order
                        .iter()
                        .skip(first as usize)
                        .take(count)
                        .map(|(_, member)| member.clone())
                        .collect()
                };
                let removed = gone.iter().filter(|member| set.remove(member)).count() as i64;
                if removed > 0 {
                    self.by_hand(key);
                    self.event(class::ZSET, if *name == *"ZREM" { "zrem" } else { "zremrangebyrank" }, key);
                    self.effect = self.verbatim(words);
                    self.end_zset(key);
                }
                Reply::Int(removed)
            }
            "ZRANGE" => {
                let key = arg(1)?;
                let (first, last) = (number(arg(2)?).ok_or(SYNTAX)?, number(arg(3)?).ok_or(SYNTAX)?);
                let Some(set) = self.zset(key)? else { return Ok(Reply::Array(vec![])) };
                let len = set.order.len() as i64;
                let place = |rank: i64| if rank < 0 { rank + len } else { rank };
                let count = (place(last) - place(first) + 1).max(0) as usize;
                let entries = set.order.iter().skip(place(first).max(0) as usize).take(count);
                let with_scores = words.len() > 4;
                Reply::Array(
                    entries
                        .flat_map(|(score, member)| {
                            let score = with_scores.then(|| Reply::Text(score.0.to_string().into()));
                            [Some(Reply::Text(member.clone())), score]
                        })
                        .flatten()
                        .collect(),
                )
            }
            "ZCOUNT" => {
                let (key, min, max) = (arg(1)?, arg(2)?, arg(3)?);
                let (open, min) = min.strip_prefix(b"(").map_or((false, min), |rest| (true, rest));
                let (min, max) = (score(min).ok_or(SYNTAX)?, score(max).ok_or(SYNTAX)?);
                let Some(set) = self.zset(key)? else { return Ok(Reply::Int(0)) };
                let within = |score: f64| (if open { score > min } else { score >= min }) && score <= max;
                Reply::Int(set.order.iter().filter(|(score, _)| within(score.0)).count() as i64)
            }
            _ => Reply::Error(format!("ERR unknown command '{name}'")),
        })
    }
}
