//! The most refused keys: the heavy hitters of a stream of refusals, in memory that does not grow.
//!
//! The algorithm is Filtered Space-Saving, from N. Homem and J. P. Carvalho, "Finding top-k elements in data
//! streams", Information Sciences 180 (2010). It keeps a fixed number of rows, each with a key and a count,
//! and a larger number of cells, each with a count for all keys of one hash that have no row. A refusal of a
//! key with a row is counted in the row, and of any other key in its cell, until the cell has reached the
//! smallest count of all rows. Then the key takes that row over, continues from the cell's count, and records
//! it as the most by which its own count may be too high. The key that loses the row leaves its count in its
//! own cell. From this follow, for n refusals and k rows:
//!
//! - a row's count is never too low, and too high by no more than its error: a cell counts at least each of
//!   its keys;
//! - no error is above n / k: each refusal adds one to at most one row, and no cell is above the smallest
//!   row;
//! - a key with more than n / k refusals has a row, whatever the order in which they came.
//!
//! So keys that are refused only once reduce only the precision of rare keys. The reported number is the
//! count less its error: the true number is at least that, and at most the count. The cells make such traffic
//! cheap: without them (Space-Saving, A. Metwally, D. Agrawal and A. El Abbadi, ICDT 2005, with the same
//! guarantees) each new key would take a row over.
//!
//! The counts are sorted in ascending order, so that the smallest is the first. A count that rises by one
//! moves to the end of the counts that it was equal to: a binary search and one swap. All rows exist from the
//! beginning, with counts of 0, so taking over the first is the only way to get one. The fields that every
//! refusal reads lie close together, and apart from the keys' bytes, which only a new row writes.
//!
//! There are crates for this. The only one in wide use, topk 0.7, takes keys by value, so that each refusal
//! would allocate one, and has no field for the instant.
//!
//! Keys are distinguished by a hash of 64 bits, with a seed so that clients cannot find keys with the same
//! hash. The chance that two of a million keys have the same hash is about one in 37 million. So the table
//! keeps only the beginning of a long key.

use core::cmp::Reverse;
use core::fmt::Write;
use core::hash::{BuildHasher, Hasher};
use std::collections::HashMap;

use foldhash::{fast, quality};

use crate::Instant;

/// The number of bytes of a key that are kept for display.
pub const KEPT: usize = 128;

/// How many cells there are for each row. When no key repeats, one refusal in `CELLS + 1` takes a row over.
const CELLS: usize = 8;

/// The most refused keys.
#[derive(Debug)]
pub struct Top {
    seed: quality::RandomState,
    /// The index of the row of each key that has one, by its hash.
    by_hash: HashMap<u64, usize, fast::RandomState>,
    /// The counts of the keys without a row, by their hash; a power of two of them.
    cells: Vec<u64>,
    /// The counts of the rows, in ascending order.
    counts: Vec<Count>,
    rows: Vec<Row>,
    /// The beginning of each row's key.
    starts: Vec<[u8; KEPT]>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    count: u64,
    /// The index of its row.
    row: usize,
}

#[derive(Clone, Debug)]
struct Row {
    /// The index of its count.
    place: usize,
    hash: u64,
    db: i32,
    /// The key's length, of which no more than [`KEPT`] bytes are kept.
    len: usize,
    error: u64,
    last: Instant,
}

/// A key and the record of its refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The key in printable form, see [`shown`].
    pub key: String,
    /// The smallest possible number of refusals.
    pub refusals: u64,
    /// How many more refusals there may have been.
    pub error: u64,
    /// The instant of its last refusal.
    pub last: Instant,
}

impl Top {
    /// An empty record with room for `size` keys.
    ///
    /// Cost: all memory is allocated here.
    pub fn new(size: usize) -> Self {
        let row =
            |place| Row { place, hash: 0, db: 0, len: 0, error: 0, last: Instant::saturating_from_nanos(0) };
        Self {
            seed: quality::RandomState::default(),
            // A table that is never more than half full reclaims removed entries without growing.
            by_hash: HashMap::with_capacity_and_hasher(size.saturating_mul(2), fast::RandomState::default()),
            cells: vec![0; size.saturating_mul(CELLS).next_power_of_two()],
            counts: (0..size).map(|row| Count { count: 0, row }).collect(),
            rows: (0..size).map(row).collect(),
            starts: vec![[0; KEPT]; size],
        }
    }

    /// Records a refusal of `key` in database `db`.
    ///
    /// Cost: O(log k) with k rows; no allocation.
    pub fn note(&mut self, db: i32, key: &[u8], now: Instant) {
        let mut hasher = self.seed.build_hasher();
        hasher.write(key);
        let hash = hasher.finish() ^ u64::from(db.cast_unsigned());
        let known = self.by_hash.get(&hash).copied();
        let Some(index) = known.or_else(|| self.take_over(hash, db, key)) else { return };
        // There is a count for every row, so this cannot fail. If it did, a release build would only miss one
        // refusal.
        let risen = self.rise(index);
        debug_assert!(risen.is_some(), "row {index} has no count");
        if let Some(row) = self.rows.get_mut(index) {
            row.last = now;
        }
    }

    /// The cell of the keys with such a hash.
    fn cell(&mut self, hash: u64) -> Option<&mut u64> {
        let mask = u64::try_from(self.cells.len()).ok()?.checked_sub(1)?;
        self.cells.get_mut(usize::try_from(hash & mask).ok()?)
    }

    /// Gives the row with the smallest count to a key that has none, if its cell has reached that count.
    /// Otherwise counts the refusal in the cell, and returns `None`.
    fn take_over(&mut self, hash: u64, db: i32, key: &[u8]) -> Option<usize> {
        let Count { count, row: index } = *self.counts.first()?;
        let cell = self.cell(hash)?;
        if *cell < count {
            *cell = cell.saturating_add(1);
            return None;
        }
        let row = self.rows.get_mut(index)?;
        let start = key.get(..KEPT).unwrap_or(key);
        self.starts.get_mut(index)?.get_mut(..start.len())?.copy_from_slice(start);
        let gone = row.hash;
        *row = Row { hash, db, len: key.len(), error: count, ..*row };
        if count > 0 {
            self.by_hash.remove(&gone);
            *self.cell(gone)? = count; // what it had before was no more
        }
        self.by_hash.insert(hash, index);
        Some(index)
    }

    /// Adds one to a row's count, and moves it after those that it was equal to.
    fn rise(&mut self, index: usize) -> Option<()> {
        let place = self.rows.get(index)?.place;
        let (own, above) = self.counts.get_mut(place..)?.split_first_mut()?;
        let count = own.count;
        own.count = count.saturating_add(1);
        let equal = above.partition_point(|other| other.count <= count);
        // The most refused key, which gets most refusals, has no count above its own.
        if equal > 0 {
            let target = place.checked_add(equal)?;
            self.counts.swap(place, target);
            self.rows.get_mut(self.counts.get(place)?.row)?.place = place;
            self.rows.get_mut(index)?.place = target;
        }
        Some(())
    }

    /// The `most` keys of database `db` that were refused most often, in descending order.
    ///
    /// Cost: O(k log k) with k rows.
    pub fn most(&self, db: i32, most: usize) -> Vec<Refused> {
        let mut refused: Vec<_> = self
            .counts
            .iter()
            .filter_map(|&Count { count, row }| {
                let (row, start) = (self.rows.get(row)?, self.starts.get(row)?);
                (count > 0 && row.db == db).then(|| (count.saturating_sub(row.error), row, start))
            })
            .collect();
        refused.sort_unstable_by_key(|(at_least, row, _)| Reverse((*at_least, row.error, row.last)));
        refused.into_iter().take(most).map(|(at_least, row, start)| row.refused(at_least, start)).collect()
    }

    /// Forgets all refusals.
    pub fn reset(&mut self) {
        for count in &mut self.counts {
            count.count = 0;
        }
        self.cells.fill(0);
        self.by_hash.clear();
    }
}

impl Row {
    fn refused(&self, at_least: u64, start: &[u8; KEPT]) -> Refused {
        let mut key = shown(start.get(..self.len).unwrap_or(start));
        if let Some(more @ 1..) = self.len.checked_sub(KEPT) {
            let _ = write!(key, "... ({more} more bytes)"); // writing to a String cannot fail
        }
        Refused { key, refusals: at_least, error: self.error, last: self.last }
    }
}

/// A key as text that is safe for terminals, logs and decoders.
///
/// Bytes that are not UTF-8, control characters, [invisible characters](is_invisible), the backslash and the
/// double quote are written as `\xHH`, which `redis-cli` reads back between double quotes. Different keys
/// stay different.
pub fn shown(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            let _ = write!(text, "\\x{byte:02x}"); // writing to a String cannot fail
        }
    };
    for chunk in key.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || is_invisible(character) || matches!(character, '\\' | '"') {
                escape(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

/// Whether a character is invisible and changes how others are shown or where lines end. Some of them reverse
/// the direction of writing.
///
/// Source: the general categories Cf, Zl and Zp of Unicode 17.
#[rustfmt::skip]
fn is_invisible(character: char) -> bool {
    matches!(
        u32::from(character),
        0x00ad | 0x0600..=0x0605 | 0x061c | 0x06dd | 0x070f | 0x0890..=0x0891 | 0x08e2 | 0x180e
            | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x2064 | 0x2066..=0x206f | 0xfeff | 0xfff9..=0xfffb
            | 0x110bd | 0x110cd | 0x13430..=0x1343f | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a
            | 0xe0001 | 0xe0020..=0xe007f
    )
}
