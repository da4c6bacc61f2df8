//! Who is refused most: the heavy hitters of a stream of refusals, in memory that does not grow.
//!
//! The algorithm is Space-Saving, from A. Metwally, D. Agrawal and A. El Abbadi, "Efficient Computation of Frequent and
//! Top-k Elements in Data Streams", ICDT 2005. It keeps a fixed number of rows, each with a key and a count. A key that
//! has a row counts there. A key that has none takes the row with the smallest count over, goes on from that count, and
//! remembers it as the most by which its own count may be too high. From this follow, for n refusals and k rows:
//!
//! - a row's count is never too low, and too high by no more than its error;
//! - no error is above n / k, because the counts add up to n and the smallest is at most their mean;
//! - a key with more than n / k refusals has a row, whatever the order in which they came.
//!
//! So traffic that never repeats a key costs the precision of rare keys, and nothing else. What is answered is the count
//! less its error: at least so many refusals, and at most so many more.
//!
//! The rows stand in an order of ascending counts, so that the smallest is the first, and a count that rises by one moves
//! its row to the end of those that it was equal to: a binary search and one swap. All rows exist from the beginning, with
//! counts of 0, which makes taking over the first the only way to get one.
//!
//! There are crates for it. Those that were looked at (topk 0.7, the one with users) take keys by value, so that each
//! refusal would allocate one, and have no place for the instant.
//!
//! Keys are told apart by a hash of 64 bits, seeded so that nobody outside knows which keys share one; the chance that two
//! of a million keys do is about one in 37 million. So a key's bytes need not be kept, and of a long one only the
//! beginning is.

use core::cmp::Reverse;
use core::fmt::Write;
use core::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::collections::HashMap;
use std::hash::RandomState;

use crate::Instant;

/// How many bytes of a key are kept to be shown.
pub const KEPT: usize = 128;

/// The most refused keys.
#[derive(Debug)]
pub struct Top {
    seed: RandomState,
    rows: Vec<Row>,
    /// The indices of `rows`, by ascending count.
    order: Vec<usize>,
    /// The index of the row of each key that has one, by its hash.
    by_hash: HashMap<u64, usize, BuildHasherDefault<Hashed>>,
}

#[derive(Clone, Debug)]
struct Row {
    /// Where its index stands in the order.
    place: usize,
    hash: u64,
    db: i32,
    /// The key's length, of which no more than [`KEPT`] bytes are kept.
    len: usize,
    start: [u8; KEPT],
    count: u64,
    error: u64,
    last: Instant,
}

/// A key and what is known of its refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The key, safe to be shown: see [`shown`].
    pub key: String,
    /// It was refused so often at the least.
    pub refusals: u64,
    /// It may have been refused so many times more.
    pub error: u64,
    /// When it was refused last.
    pub last: Instant,
}

impl Top {
    /// Nobody so far, and room for `size` keys.
    ///
    /// Cost: all memory that will ever be needed is taken here.
    pub fn new(size: usize) -> Self {
        let row = |place| Row {
            place,
            hash: 0,
            db: 0,
            len: 0,
            start: [0; KEPT],
            count: 0,
            error: 0,
            last: Instant::saturating_from_nanos(0),
        };
        Self {
            seed: RandomState::new(),
            rows: (0..size).map(row).collect(),
            order: (0..size).collect(),
            // A table that is never more than half full clears itself of what was removed without growing.
            by_hash: HashMap::with_capacity_and_hasher(size.saturating_mul(2), BuildHasherDefault::default()),
        }
    }

    /// Counts a refusal of `key` in database `db`.
    ///
    /// Cost: O(log k) with k rows; no allocation.
    pub fn note(&mut self, db: i32, key: &[u8], now: Instant) {
        let mut hasher = self.seed.build_hasher();
        hasher.write(key);
        let hash = hasher.finish() ^ u64::from(db.cast_unsigned());
        let known = self.by_hash.get(&hash).copied();
        let Some(index) = known.or_else(|| self.take_over(hash, db, key)) else { return };
        self.rise(index);
        if let Some(row) = self.rows.get_mut(index) {
            row.last = now;
        }
    }

    /// Gives the row with the smallest count to a key that has none. `None` when there are no rows.
    fn take_over(&mut self, hash: u64, db: i32, key: &[u8]) -> Option<usize> {
        let index = *self.order.first()?;
        let row = self.rows.get_mut(index)?;
        if row.count > 0 {
            self.by_hash.remove(&row.hash);
        }
        row.error = row.count;
        (row.hash, row.db, row.len) = (hash, db, key.len());
        let start = key.get(..KEPT).unwrap_or(key);
        if let Some(kept) = row.start.get_mut(..start.len()) {
            kept.copy_from_slice(start);
        }
        self.by_hash.insert(hash, index);
        Some(index)
    }

    /// Adds one to a row's count, and moves it behind those that it was equal to.
    fn rise(&mut self, index: usize) -> Option<()> {
        let row = self.rows.get(index)?;
        let (place, count) = (row.place, row.count);
        let equal = self.order.get(place..)?.partition_point(|&other| self.count(other) <= count);
        let target = place.checked_add(equal)?.checked_sub(1)?;
        let other = *self.order.get(target)?;
        self.order.swap(place, target);
        self.rows.get_mut(other)?.place = place;
        let row = self.rows.get_mut(index)?;
        row.place = target;
        row.count = count.saturating_add(1);
        Some(())
    }

    fn count(&self, index: usize) -> u64 {
        self.rows.get(index).map_or(0, |row| row.count)
    }

    /// The `most` keys of database `db` that were refused most often, the first one most.
    ///
    /// Cost: O(k log k) with k rows.
    pub fn most(&self, db: i32, most: usize) -> Vec<Refused> {
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.count > 0 && row.db == db).collect();
        rows.sort_unstable_by_key(|row| Reverse((row.at_least(), row.error, row.last)));
        rows.into_iter().take(most).map(Row::refused).collect()
    }

    /// Forgets everybody.
    pub fn reset(&mut self) {
        for row in &mut self.rows {
            row.count = 0;
        }
        self.by_hash.clear();
    }
}

impl Row {
    fn at_least(&self) -> u64 {
        self.count.saturating_sub(self.error)
    }

    fn refused(&self) -> Refused {
        let kept = self.start.get(..self.len).unwrap_or(&self.start);
        let mut key = shown(kept);
        if let Some(more @ 1..) = self.len.checked_sub(KEPT) {
            let _ = write!(key, "... ({more} more bytes)"); // a String takes what it is given
        }
        Refused { key, refusals: self.at_least(), error: self.error, last: self.last }
    }
}

/// A key as text that no terminal, log or decoder stumbles over: what is not UTF-8, control characters, the backslash
/// and the double quote are written as `\xHH`, as `redis-cli` reads them back between double quotes. Different keys stay different.
pub fn shown(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            let _ = write!(text, "\\x{byte:02x}"); // a String takes what it is given
        }
    };
    for chunk in key.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || matches!(character, '\\' | '"') {
                escape(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

/// A hasher for what is a hash already.
#[derive(Clone, Copy, Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        // Nothing but 64-bit hashes comes here; anything else is as good as its bytes.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }
}
