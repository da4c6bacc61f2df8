//! Names that are stored once, each with a number.

use core::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Names, numbered from 0.
///
/// Memory: the bytes of each name, and 35 to 70 more bytes. An attacker who chooses the names cannot choose
/// their hashes.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// The bytes of all names, one after the other.
    bytes: Vec<u8>,
    /// Where each name ends.
    ends: Vec<usize>,
    entries: HashTable<Entry>,
    hasher: RandomState,
}

/// The longest name that is stored in the hash table itself. IPv4 addresses are not longer.
const SHORT: usize = 15;

/// An entry of the hash table. It contains a short name, which saves a slow access to other memory.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Short { name: [u8; SHORT], len: u8, number: u32 },
    Long { start: usize, len: u32, number: u32 },
}

impl Keys {
    /// Returns the number of a name, which is added if it is new. Returns `None` if there are already 2^32
    /// names, or if the name has 2^32 bytes or more.
    ///
    /// Cost: O(1).
    pub fn number(&mut self, name: &[u8]) -> Option<u32> {
        let Self { bytes, ends, entries, hasher } = self;
        let hash = hasher.hash_one(name);
        if let Some(Entry::Short { number, .. } | Entry::Long { number, .. }) =
            entries.find(hash, |entry| entry.name(bytes) == name)
        {
            return Some(*number);
        }
        let number = u32::try_from(ends.len()).ok()?;
        let entry = Entry::new(name, bytes.len(), number)?;
        bytes.extend_from_slice(name);
        ends.push(bytes.len());
        entries.insert_unique(hash, entry, |entry| hasher.hash_one(entry.name(bytes)));
        Some(number)
    }

    /// Returns the name with this number, or an empty name if there is none.
    pub fn name(&self, number: u32) -> &[u8] {
        let Ok(number) = usize::try_from(number) else { return &[] };
        let start =
            number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        self.ends.get(number).and_then(|&end| self.bytes.get(start..end)).unwrap_or_default()
    }
}

impl Entry {
    /// Creates the entry of a name that begins at `start`. Returns `None` if the name has 2^32 bytes or more.
    fn new(name: &[u8], start: usize, number: u32) -> Option<Self> {
        let len = u32::try_from(name.len()).ok()?;
        let mut short = [0; SHORT];
        if let Some(bytes) = short.get_mut(..name.len()) {
            bytes.copy_from_slice(name);
            return Some(Self::Short { name: short, len: u8::try_from(len).ok()?, number });
        }
        Some(Self::Long { start, len, number })
    }

    fn name<'a>(&'a self, bytes: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Short { name, len, .. } => name.get(..usize::from(*len)),
            Self::Long { start, len, .. } => {
                let behind = bytes.get(*start..).unwrap_or_default();
                usize::try_from(*len).ok().and_then(|len| behind.get(..len))
            }
        }
        .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_have_one_number_each() {
        let mut keys = Keys::default();
        let name = |number: usize| format!("{number:0>width$}", width = number % 40);
        let names: Vec<String> = (0..40_000).map(name).collect();
        for _ in 0..2 {
            for (name, number) in names.iter().zip(0..) {
                assert_eq!(keys.number(name.as_bytes()), Some(number));
                assert_eq!(keys.name(number), name.as_bytes());
            }
        }
        assert_eq!(keys.number(b""), Some(40_000));
        assert_eq!(keys.name(40_001), b"");
    }
}
