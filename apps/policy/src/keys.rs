//! Names that are stored once, each with a number.

use core::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Names with numbers from 0.
///
/// Memory: the bytes of each name, and 35 to 70 bytes. An attacker who chooses names cannot choose their
/// hashes.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// All names, one after the other.
    bytes: Vec<u8>,
    /// Where each name ends.
    ends: Vec<usize>,
    entries: HashTable<Entry>,
    hasher: RandomState,
}

/// How long a name is at most that is compared where it is looked up. Addresses of IPv4 are not longer.
const SHORT: usize = 15;

/// A name where it is looked up: of many keys, each further place in memory takes longer than a decision.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Short { name: [u8; SHORT], len: u8, number: u32 },
    Long { start: usize, len: u32, number: u32 },
}

impl Keys {
    /// The number of a name, which is added if it is new; `None` when there are 2^32 names already, or when
    /// the name is longer than 2^32 bytes.
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

    /// The name with this number, empty when there is none.
    pub fn name(&self, number: u32) -> &[u8] {
        let Ok(number) = usize::try_from(number) else { return &[] };
        let start =
            number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        self.ends.get(number).and_then(|&end| self.bytes.get(start..end)).unwrap_or_default()
    }
}

impl Entry {
    /// A name, and where it begins among all names; `None` if it is longer than 2^32 bytes.
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
