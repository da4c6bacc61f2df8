//! Names that are stored once, each with a number.

use foldhash::fast::RandomState;
use indexmap::IndexSet;

/// Names, numbered from 0. An attacker who chooses the names cannot choose their hashes.
#[derive(Clone, Debug, Default)]
pub struct Keys(IndexSet<Box<[u8]>, RandomState>);

impl Keys {
    /// Returns the number of a name, which is added if it is new. Returns `None` if there are already 2^32
    /// names.
    ///
    /// Cost: O(1).
    pub fn number(&mut self, name: &[u8]) -> Option<u32> {
        let known = self.0.get_index_of(name);
        let number = known.unwrap_or_else(|| self.0.insert_full(name.into()).0);
        u32::try_from(number).ok()
    }

    /// Returns the name with this number, or an empty name if there is none.
    pub fn name(&self, number: u32) -> &[u8] {
        usize::try_from(number).ok().and_then(|number| self.0.get_index(number)).map_or(&[], |name| name)
    }
}
