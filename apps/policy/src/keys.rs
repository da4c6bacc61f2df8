//! The keys of a limiter: each name is stored once and has a number.

use core::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Names with numbers from 0.
///
/// Memory: the bytes of each name and 24 bytes. An attacker who chooses names cannot choose their hashes.
#[derive(Clone, Debug)]
pub struct Keys {
    /// All names, one after the other.
    bytes: Vec<u8>,
    /// Where each name ends.
    ends: Vec<usize>,
    entries: HashTable<Entry>,
    hasher: RandomState,
}

/// A name where it is looked up: of many keys, each further place in memory takes longer than a decision.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    len: u32,
    number: u32,
}

/// A name in [`Keys`].
#[derive(Clone, Copy, Debug)]
pub struct Numbered {
    pub number: u32,
    /// Names that differ nearly always differ here, among all [`Keys`] with the same hasher.
    pub hash: u64,
}

impl Keys {
    /// No names yet.
    pub fn new(hasher: RandomState) -> Self {
        Self { bytes: Vec::new(), ends: Vec::new(), entries: HashTable::new(), hasher }
    }

    /// The number of a name, which is added if it is new; `None` when there are 2^32 names already, or when
    /// the name is longer than 2^32 bytes.
    ///
    /// Cost: O(1).
    pub fn number(&mut self, name: &[u8]) -> Option<Numbered> {
        let Self { bytes, ends, entries, hasher } = self;
        let hash = hasher.hash_one(name);
        if let Some(&Entry { number, .. }) = entries.find(hash, |entry| entry.name(bytes) == name) {
            return Some(Numbered { number, hash });
        }
        let number = u32::try_from(ends.len()).ok()?;
        let entry = Entry { start: bytes.len(), len: u32::try_from(name.len()).ok()?, number };
        bytes.extend_from_slice(name);
        ends.push(bytes.len());
        entries.insert_unique(hash, entry, |entry| hasher.hash_one(entry.name(bytes)));
        Some(Numbered { number, hash })
    }

    /// The name with this number, empty when there is none.
    pub fn name(&self, number: u32) -> &[u8] {
        let Ok(number) = usize::try_from(number) else { return &[] };
        let start =
            number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        self.ends.get(number).and_then(|&end| self.bytes.get(start..end)).unwrap_or_default()
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

impl Entry {
    fn name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let behind = bytes.get(self.start..).unwrap_or_default();
        usize::try_from(self.len).ok().and_then(|len| behind.get(..len)).unwrap_or_default()
    }
}
