//! Names that are stored once, each with a number.

use core::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Names with numbers from 0.
///
/// Memory: the bytes of each name and 24 bytes. An attacker who chooses names cannot choose their hashes.
#[derive(Clone, Debug, Default)]
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

impl Keys {
    /// The number of a name, which is added if it is new; `None` when there are 2^32 names already, or when
    /// the name is longer than 2^32 bytes.
    ///
    /// Cost: O(1).
    pub fn number(&mut self, name: &[u8]) -> Option<u32> {
        let Self { bytes, ends, entries, hasher } = self;
        let hash = hasher.hash_one(name);
        if let Some(&Entry { number, .. }) = entries.find(hash, |entry| entry.name(bytes) == name) {
            return Some(number);
        }
        let number = u32::try_from(ends.len()).ok()?;
        let entry = Entry { start: bytes.len(), len: u32::try_from(name.len()).ok()?, number };
        bytes.extend_from_slice(name);
        ends.push(bytes.len());
        entries.insert_unique(hash, entry, |entry| hasher.hash_one(entry.name(bytes)));
        Some(number)
    }

    /// The name with this number, empty when there is none.
    pub fn name(&self, number: u32) -> &[u8] {
        let Ok(number) = usize::try_from(number) else { return &[] };
        let start =
            number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        self.ends.get(number).and_then(|&end| self.bytes.get(start..end)).unwrap_or_default()
    }
}

impl Entry {
    fn name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let behind = bytes.get(self.start..).unwrap_or_default();
        usize::try_from(self.len).ok().and_then(|len| behind.get(..len)).unwrap_or_default()
    }
}
