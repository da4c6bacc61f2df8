//! What `INFO` counts for each command: calls admitted, calls refused, errors.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of further counts that a command may have.
const BESIDES: usize = 2;

/// The further counts.
pub const SHADOW_REFUSED: &str = "shadow_refused";
pub const OUT_OF_MEMORY: &str = "out_of_memory";
pub const REPEATED: &str = "repeated";

/// Owners whose units have run out, owners that have settled, and owners whose settlement found no hold.
pub static HOLDS_RUN_OUT: Count = Count::new();
pub static HOLDS_SETTLED: Count = Count::new();
pub static HOLDS_UNKNOWN: Count = Count::new();

/// All further counts, with their names.
pub static HOLDS: [(&str, &Count); 3] =
    [("holds_run_out", &HOLDS_RUN_OUT), ("holds_settled", &HOLDS_SETTLED), ("holds_unknown", &HOLDS_UNKNOWN)];

/// A further count.
#[derive(Debug)]
pub struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds to it.
    pub fn add(&self, more: usize) {
        let more = u64::try_from(more).unwrap_or_default();
        self.0.store(self.get().wrapping_add(more), Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Sets it to 0.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

/// How many calls of a command were admitted, were refused, or failed since the module was loaded.
#[derive(Debug)]
pub struct Tally {
    admitted: AtomicU64,
    refused: AtomicU64,
    errors: AtomicU64,
    /// The names of the further counts, which some commands have.
    besides: &'static [&'static str],
    counts: [AtomicU64; BESIDES],
}

/// A command's own [`Tally`]. A macro, because a generic function would share one static among all commands.
macro_rules! tally {
    ($($besides:expr),*) => {{
        static TALLY: $crate::tally::Tally = $crate::tally::Tally::new(&[$($besides),*]);
        &TALLY
    }};
}
pub(crate) use tally;

impl Tally {
    /// Creates a tally, with a further count for each of these names.
    pub const fn new(besides: &'static [&'static str]) -> Self {
        let [admitted, refused, errors] = [const { AtomicU64::new(0) }; 3];
        Self { admitted, refused, errors, besides, counts: [const { AtomicU64::new(0) }; BESIDES] }
    }

    /// Counts a call that was admitted or refused.
    pub fn count(&self, refused: bool) {
        bump(if refused { &self.refused } else { &self.admitted });
    }

    /// Counts an error.
    pub fn count_error(&self) {
        bump(&self.errors);
    }

    /// Adds one to the further count of this name, if the command has it.
    pub fn count_besides(&self, name: &str) {
        self.besides.iter().zip(&self.counts).filter(|(known, _)| **known == name).for_each(|(_, count)| {
            bump(count);
        });
    }

    /// The counts under the names that `INFO` gives them.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.named().map(|(name, count)| (name, count.load(Relaxed)))
    }

    /// Sets all counts to 0.
    pub fn reset(&self) {
        self.named().for_each(|(_, count)| count.store(0, Relaxed));
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &AtomicU64)> {
        let always = [("admitted", &self.admitted), ("refused", &self.refused), ("errors", &self.errors)];
        always.into_iter().chain(self.besides.iter().copied().zip(&self.counts))
    }
}

/// Adds one. Commands run one after the other, so a load and a store are enough, and cost less than a locked
/// instruction.
fn bump(count: &AtomicU64) {
    count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
}
