//! The keys of a limiter: each name is stored once and has a number.

use core::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Names with numbers from 0.
///
/// Memory: the bytes of each name and 16 bytes. An attacker who chooses names cannot choose their hashes.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// All names, one after the other.
    bytes: Vec<u8>,
    /// Where each name ends.
    ends: Vec<usize>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

impl Keys {
    /// The number of a name, which is added if it is new; `None` when there are 2^32 names already.
    ///
    /// Cost: O(1).
    pub fn number(&mut self, name: &[u8]) -> Option<u32> {
        let Self { bytes, ends, numbers, hasher } = self;
        let hash = hasher.hash_one(name);
        if let Some(&number) = numbers.find(hash, |&number| name_of(bytes, ends, number) == name) {
            return Some(number);
        }
        let number = u32::try_from(ends.len()).ok()?;
        bytes.extend_from_slice(name);
        ends.push(bytes.len());
        numbers.insert_unique(hash, number, |&number| hasher.hash_one(name_of(bytes, ends, number)));
        Some(number)
    }

    /// The name with this number, empty when there is none.
    pub fn name(&self, number: u32) -> &[u8] {
        name_of(&self.bytes, &self.ends, number)
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

fn name_of<'a>(bytes: &'a [u8], ends: &[usize], number: u32) -> &'a [u8] {
    let Ok(number) = usize::try_from(number) else { return &[] };
    let start = number.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or_default();
    ends.get(number).and_then(|&end| bytes.get(start..end)).unwrap_or_default()
}
