//! The keys of a server: databases of strings, hashes and sorted sets with expiries.
//!
//! Each value has a number of its own, its *incarnation*. A key that is deleted, overwritten or replaced gets
//! a value with another one, so that a handle to the old value is recognised, which on a real server would be
//! a pointer to freed memory.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Bytes of a key, a value or an argument.
pub type Bytes = Vec<u8>;

/// A score, ordered as the server orders scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score(pub f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A sorted set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZSet {
    /// The score of each member.
    pub scores: BTreeMap<Bytes, Score>,
    /// The members in their order.
    pub order: BTreeSet<(Score, Bytes)>,
}

impl ZSet {
    /// Adds a member or sets its score. Returns whether it is new.
    pub fn put(&mut self, member: &[u8], score: f64) -> bool {
        let score = Score(score);
        let old = self.scores.insert(member.to_vec(), score);
        if let Some(old) = old {
            self.order.remove(&(old, member.to_vec()));
        }
        self.order.insert((score, member.to_vec()));
        old.is_none()
    }

    /// Removes a member.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(score, member.to_vec()))
    }
}

/// The value of a key. What is shared is copied when it changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(Bytes),
    /// A hash.
    Hash(Rc<BTreeMap<Bytes, Bytes>>),
    /// A sorted set.
    ZSet(Rc<ZSet>),
    /// A list or a set, of which only the type is kept.
    Other(&'static str),
}

impl Value {
    /// The value on one line.
    pub fn shown(&self) -> String {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        match self {
            Self::Text(bytes) => text(bytes),
            Self::Hash(fields) => {
                let fields: Vec<_> =
                    fields.iter().map(|(name, value)| format!("{}={}", text(name), text(value))).collect();
                fields.join(" ")
            }
            Self::ZSet(set) => {
                let entries: Vec<_> =
                    set.order.iter().map(|(score, name)| format!("{}={}", text(name), score.0)).collect();
                entries.join(" ")
            }
            Self::Other(kind) => format!("a {kind}"),
        }
    }
}

/// A key.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its value.
    pub value: Value,
    /// Unix time in milliseconds.
    pub expiry: Option<i64>,
    /// The number of this value.
    pub incarnation: u64,
    /// Whether something other than the module has written the value or its expiry.
    pub by_hand: bool,
}

/// Something about some keys of each database.
#[derive(Clone, Debug)]
pub struct Places<T>(BTreeMap<i32, BTreeMap<Bytes, T>>);

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Places<T> {
    /// That of a key.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&T> {
        self.0.get(&db)?.get(key)
    }

    /// The same, to be changed in place.
    pub fn get_mut(&mut self, db: i32, key: &[u8]) -> Option<&mut T> {
        self.0.get_mut(&db)?.get_mut(key)
    }

    /// Says this of a key.
    pub fn insert(&mut self, db: i32, key: &[u8], thing: T) {
        let of_db = self.0.entry(db).or_default();
        match of_db.get_mut(key) {
            Some(place) => *place = thing,
            None => drop(of_db.insert(key.to_vec(), thing)),
        }
    }

    /// Forgets a key.
    pub fn remove(&mut self, db: i32, key: &[u8]) -> Option<T> {
        self.0.get_mut(&db)?.remove(key)
    }

    /// Forgets the other keys.
    pub fn retain(&mut self, which: impl Fn(&[u8]) -> bool) {
        self.0.values_mut().for_each(|keys| keys.retain(|key, _| which(key)));
    }

    /// All keys.
    pub fn iter(&self) -> impl Iterator<Item = (i32, &Bytes, &T)> {
        self.0.iter().flat_map(|(db, keys)| keys.iter().map(|(key, thing)| (*db, key, thing)))
    }
}

/// The same about the few keys of one step.
#[derive(Clone, Debug)]
pub struct Noted<T>(Vec<(i32, Bytes, T)>);

impl<T> Default for Noted<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Noted<T> {
    /// That of a key.
    pub fn get(&self, db: i32, key: &[u8]) -> Option<&T> {
        self.0.iter().find(|(of, name, _)| *of == db && **name == *key).map(|(.., thing)| thing)
    }

    /// Says this of a key, unless something is said of it.
    pub fn note(&mut self, db: i32, key: &[u8], thing: impl FnOnce() -> T) {
        if self.get(db, key).is_none() {
            self.0.push((db, key.to_vec(), thing()));
        }
    }

    /// Forgets all keys.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// All keys.
    pub fn iter(&self) -> impl Iterator<Item = (i32, &Bytes, &T)> {
        self.0.iter().map(|(db, key, thing)| (*db, key, thing))
    }
}

/// Databases.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    keys: Places<Entry>,
    incarnations: u64,
}

impl Deref for Keyspace {
    type Target = Places<Entry>;

    fn deref(&self) -> &Places<Entry> {
        &self.keys
    }
}

impl DerefMut for Keyspace {
    fn deref_mut(&mut self) -> &mut Places<Entry> {
        &mut self.keys
    }
}

impl Keyspace {
    /// Sets a key to a new value.
    pub fn set(&mut self, db: i32, key: &[u8], value: Value, expiry: Option<i64>) -> u64 {
        self.put(db, key, Entry { value, expiry, incarnation: 0, by_hand: false })
    }

    /// Puts an entry under a name, where it is another value. Returns its number.
    pub fn put(&mut self, db: i32, key: &[u8], mut entry: Entry) -> u64 {
        self.incarnations += 1;
        entry.incarnation = self.incarnations;
        self.insert(db, key, entry);
        self.incarnations
    }

    /// Removes all keys of a database, or of all.
    pub fn flush(&mut self, db: Option<i32>) {
        match db {
            Some(db) => drop(self.keys.0.remove(&db)),
            None => self.keys.0.clear(),
        }
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, one: i32, other: i32) {
        let dbs = &mut self.keys.0;
        let (first, second) = (dbs.remove(&one), dbs.remove(&other));
        dbs.extend(first.map(|keys| (other, keys)).into_iter().chain(second.map(|keys| (one, keys))));
    }

    /// Whether both are the same key: the same value until the same instant, or until instants that have both
    /// passed at `passed`.
    pub fn same(one: Option<&Entry>, other: Option<&Entry>, passed: i64) -> bool {
        let until = |entry: &Entry| entry.expiry.map(|at| at.max(passed));
        one.map(|entry| (&entry.value, until(entry))) == other.map(|entry| (&entry.value, until(entry)))
    }

    /// The first difference to another keyspace, as a text.
    pub fn difference(&self, other: &Self, passed: i64) -> Option<String> {
        let show = |entry: Option<&Entry>| {
            entry.map_or("nothing".to_owned(), |entry| {
                format!("{} until {:?}", entry.value.shown(), entry.expiry)
            })
        };
        let keys = self.iter().chain(other.iter()).map(|(db, key, _)| (db, key));
        keys.map(|(db, key)| (db, key, self.get(db, key), other.get(db, key)))
            .find(|(_, _, a, b)| !Self::same(*a, *b, passed))
            .map(|(db, key, a, b)| {
                format!("key {} of database {db}: {}, and {}", key.escape_ascii(), show(a), show(b))
            })
    }
}
