//! The parts of holds: a sorted set, whose members [`redis_cell_core::hold`] describes.

use redis_cell_core::Instant;
use redis_cell_core::hold::{Class, FOREIGN, Origin, Part, member};

use crate::error::Error;
use crate::ffi::{self, Access, Announcement, Arg, Call, Handles, Key, Kind, Lives, Side};

/// By how much the expiry is longer that is stored while the key has none, in milliseconds.
const MARGIN: i64 = 60_000;

/// A part and its members in the set.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its owner.
    pub id: Vec<u8>,
    pub part: Part,
    members: [Vec<u8>; 2],
}

/// The open key of holds.
pub struct Book<'k, 'c> {
    key: Key<'k, 'c>,
}

/// What an owner holds.
pub struct Own {
    /// Of the limiters of a call, in their order.
    pub named: Vec<Option<Entry>>,
    /// Of other limiters, with their keys.
    pub others: Vec<(Vec<u8>, Entry)>,
}

/// A change to the parts.
#[derive(Default)]
pub struct Changes {
    added: Vec<Vec<u8>>,
    removed: Vec<Vec<u8>>,
    /// The latest millisecond at which a part that was added can still come back.
    until: i64,
    /// Whether a part that was added can come back at any time.
    adds_total: bool,
}

impl Changes {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.until == 0
    }

    /// Lets the key live until the millisecond `expiry`, or longer.
    pub fn prolong(&mut self, expiry: i64) {
        self.until = self.until.max(expiry);
    }

    /// Removes a part.
    pub fn remove(&mut self, entry: &Entry) {
        self.removed.extend(entry.members.iter().cloned());
    }

    /// Adds a part of the limiter `key`, whose own key expires at the millisecond `expiry`.
    pub fn add(&mut self, key: &[u8], id: &[u8], part: &Part, expiry: Option<i64>) {
        self.added.extend(member::of_part(key, id, part));
        let window = match part.origin {
            Origin::Window { end } => Some(end.as_millis_ceil().cast_signed()),
            Origin::Rate { .. } => Some(0),
            Origin::Total { idles: true } => Some(expiry.unwrap_or_default()),
            Origin::Total { idles: false } => None,
        };
        match window {
            Some(window) => self.until = self.until.max(ffi::expiry_at(part.end)).max(window),
            None => self.adds_total = true,
        }
    }

    /// Makes the part of another key run out now.
    pub fn end(&mut self, key: &[u8], entry: &Entry, now: Instant) {
        self.remove(entry);
        self.added.extend(member::of_part(key, &entry.id, &entry.part.ended(now)));
    }
}

impl<'k, 'c> Book<'k, 'c> {
    /// Opens the key `name`.
    ///
    /// # Errors
    /// [`Error::WrongType`] and [`FOREIGN`] when it holds something else, and [`Error::Busy`].
    pub fn open(
        call: &'k Call<'c>,
        handles: &'k Handles,
        name: Arg<'c>,
        access: Access,
    ) -> Result<Self, Error> {
        let key = handles.open(call, name, access)?;
        match key.kind() {
            Kind::Empty => {}
            Kind::ZSet => {
                // All scores are 0 if the first and the last one are.
                let first = key.first(|first, score| score == Some(0) && member::is_first(first));
                let last = key.highest(|last, score| score == Some(0) && member::is_last(last));
                if (first, last) != (Some(true), Some(true)) {
                    return Err(FOREIGN.into());
                }
            }
            _ => return Err(Error::WrongType),
        }
        Ok(Self { key })
    }

    /// Whether there are no parts.
    pub fn is_empty(&self) -> bool {
        self.key.kind() == Kind::Empty
    }

    /// The number of parts.
    pub fn parts(&self) -> u64 {
        self.key.members() / 2
    }

    /// What `id` holds of each of these limiters, by their keys. With `others`, also at most so many parts of
    /// other keys.
    ///
    /// # Errors
    /// [`FOREIGN`] for members that are no part.
    pub fn own(&self, id: &[u8], keys: &[&[u8]], others: Option<usize>) -> Result<Own, Error> {
        let mut found = Own { named: keys.iter().map(|_| None).collect(), others: Vec::new() };
        if self.is_empty() {
            return Ok(found);
        }
        // Most owners are new, or hold of the limiters of the call and of no others.
        let prefix = member::of_id(id);
        let most = others.unwrap_or(1).saturating_add(keys.len());
        let all = self.key.between(&prefix, &member::behind(&prefix), Side::First, most);
        let has_more = all.len() == most;
        if has_more {
            for (own, key) in found.named.iter_mut().zip(keys) {
                let by_id = self.first(&member::of_id_and_key(id, key));
                *own = by_id.map(|by_id| self.entry(by_id, &prefix, id)).transpose()?;
            }
            if others.is_none() {
                return Ok(found);
            }
        }
        for by_id in all {
            let key = match member::key_of(&by_id, &prefix) {
                None if others.is_none() => continue, // not what the call asks for
                key => key.ok_or(FOREIGN)?,
            };
            match keys.iter().position(|named| *named == key) {
                None if others.is_some_and(|others| found.others.len() < others) => {
                    let key = key.to_vec();
                    found.others.push((key, self.entry(by_id, &prefix, id)?));
                }
                Some(at) if !has_more => {
                    let entry = self.entry(by_id, &prefix, id)?;
                    found.named.get_mut(at).map(|own| own.insert(entry));
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Whether `id` holds anything.
    pub fn knows(&self, id: &[u8]) -> bool {
        self.first(&member::of_id(id)).is_some()
    }

    /// At most `count` parts of the limiter `key` that have run out.
    ///
    /// # Errors
    /// As [`own`](Self::own).
    pub fn ended(&self, class: Class, key: &[u8], now: Instant, count: usize) -> Result<Vec<Entry>, Error> {
        if self.is_empty() || count == 0 {
            return Ok(Vec::new());
        }
        let prefix = member::of_key(class, key);
        let (end, behind) = (member::of_key_after(class, key, now), member::behind(&prefix));
        let read = |by_key: Vec<u8>| Entry::read(by_key, class, key);
        // Parts that were taken before the clock was set back are behind all others.
        let Some(last) = self.key.between(&prefix, &behind, Side::Last, 1).pop() else {
            return Ok(Vec::new());
        };
        let is_ahead = |entry: &Entry| entry.part.end > now && entry.part.has_ended(now);
        let ahead = if is_ahead(&read(last)?) {
            self.key.between(&end, &behind, Side::Last, count)
        } else {
            Vec::new()
        };
        let mut found: Vec<Entry> = Vec::new();
        for by_key in ahead {
            let entry = read(by_key)?;
            if !is_ahead(&entry) {
                break;
            }
            found.push(entry);
        }
        let left = count.saturating_sub(found.len());
        for by_key in self.key.between(&prefix, &end, Side::First, left) {
            found.push(read(by_key)?);
        }
        Ok(found)
    }

    /// The instant at which the next part of the limiter `key` runs out.
    ///
    /// # Errors
    /// As [`own`](Self::own).
    pub fn next_end(&self, class: Class, key: &[u8]) -> Result<Option<Instant>, Error> {
        let first = self.first(&member::of_key(class, key));
        first.map(|by_key| Ok(Entry::read(by_key, class, key)?.part.end)).transpose()
    }

    /// The instant at which the next part of the limiter `key` runs out after `now`. Parts that have run out
    /// stay until a call removes them.
    ///
    /// # Errors
    /// As [`own`](Self::own).
    pub fn next_end_after(&self, class: Class, key: &[u8], now: Instant) -> Result<Option<Instant>, Error> {
        let behind = member::behind(&member::of_key(class, key));
        let next = self.key.between(&member::of_key_after(class, key, now), &behind, Side::First, 1).pop();
        let next = next.map(|by_key| Entry::read(by_key, class, key)).transpose()?;
        Ok(next.filter(|entry| !entry.part.has_ended(now)).map(|entry| entry.part.end))
    }

    /// The instant at which the key expires.
    pub fn lives_until(&self) -> Option<Instant> {
        if self.is_empty() { None } else { self.key.lives_until() }
    }

    /// Writes the changes.
    pub fn write(mut self, changes: Changes) -> Option<Announcement<'c>> {
        if changes.is_empty() {
            return None;
        }
        let Changes { mut added, mut removed, until, adds_total } = changes;
        let (kind, expiry) = self.key.kind_and_expiry();
        let expiry = expiry.map(|at| at.as_millis_ceil().cast_signed());
        let is_new = kind == Kind::Empty;
        let is_endless = !is_new && expiry.is_none();
        let stored = if is_endless { self.first(member::UNTIL) } else { None };
        let before = expiry.or_else(|| stored.as_deref().and_then(member::read_until));
        let until = until.max(before.unwrap_or_default());
        let has_totals = adds_total || is_endless && self.keeps_a_total(&added, &removed);
        let lives = if has_totals {
            if until > stored.as_deref().and_then(member::read_until).unwrap_or_default() {
                // Rounded up, so that it need not be written with every call.
                added.push(member::until(until.saturating_add(MARGIN)));
                removed.extend(stored);
            }
            if expiry.is_some() { Lives::Always } else { Lives::AsBefore }
        } else {
            let was_endless_for_totals = stored.is_some();
            removed.extend(stored);
            match expiry {
                Some(expiry) if expiry == until => Lives::AsBefore,
                None if is_endless && !was_endless_for_totals => Lives::AsBefore, // PERSIST by hand
                _ => Lives::Until(until),
            }
        };
        // A member that stays is in neither list.
        if !removed.is_empty() {
            let stay: Vec<bool> = removed.iter().map(|member| added.contains(member)).collect();
            added.retain(|member| !removed.contains(member));
            let mut stays = stay.into_iter();
            removed.retain(|_| !stays.next().unwrap_or_default());
        }
        if added.is_empty() && removed.is_empty() && lives == Lives::AsBefore {
            return None;
        }
        let added: Vec<&[u8]> = added.iter().map(Vec::as_slice).collect();
        let gone: Vec<&[u8]> = removed.iter().map(Vec::as_slice).collect();
        Some(self.key.exchange(&added, &gone, lives))
    }

    /// Whether a total is among the parts after the changes.
    #[cold]
    fn keeps_a_total(&self, added: &[Vec<u8>], removed: &[Vec<u8>]) -> bool {
        let is_total = |member: &&Vec<u8>| member.starts_with(member::TOTALS);
        let removes = removed.iter().filter(is_total).count();
        let behind = member::behind(member::TOTALS);
        let left = self.key.between(member::TOTALS, &behind, Side::First, removes.saturating_add(1));
        left.len() > removes || added.iter().any(|member| is_total(&member))
    }

    fn first(&self, prefix: &[u8]) -> Option<Vec<u8>> {
        self.key.between(prefix, &member::behind(prefix), Side::First, 1).pop()
    }

    /// The part of which `by_id` is the first member; `prefix` is that of its owner.
    fn entry(&self, by_id: Vec<u8>, prefix: &[u8], id: &[u8]) -> Result<Entry, Error> {
        let (before, class, key) = member::by_key_of(&by_id, prefix, id).ok_or(FOREIGN)?;
        let by_key = self.first(&before).ok_or(FOREIGN)?;
        let (_, part) = member::read(&by_key, class, key).ok_or(FOREIGN)?;
        Ok(Entry { id: id.to_vec(), part, members: [by_id, by_key] })
    }
}

impl Entry {
    /// The part of the limiter `key` of which `by_key` is the second member.
    fn read(by_key: Vec<u8>, class: Class, key: &[u8]) -> Result<Self, Error> {
        let (id, part) = member::read(&by_key, class, key).ok_or(FOREIGN)?;
        let [by_id, _] = member::of_part(key, id, &part);
        Ok(Self { id: id.to_vec(), part, members: [by_id, by_key] })
    }

    /// Whether both are the same part.
    pub fn is(&self, other: &Self) -> bool {
        self.members == other.members
    }
}
