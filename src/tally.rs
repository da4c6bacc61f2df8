//! What `INFO` counts for each command: calls admitted, calls refused, errors.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many calls of a command were admitted, were refused and failed since the module was loaded.
#[derive(Debug)]
pub struct Tally {
    admitted: AtomicU64,
    refused: AtomicU64,
    errors: AtomicU64,
    /// What some commands count besides, with its name.
    besides: Option<(&'static str, AtomicU64)>,
}

/// A command's own [`Tally`]. A macro, because a generic function would share one static among all commands.
macro_rules! tally {
    ($($besides:literal)?) => {{
        static TALLY: $crate::tally::Tally = $crate::tally::Tally::new()$(.with($besides))?;
        &TALLY
    }};
}
pub(crate) use tally;

impl Tally {
    /// All counts at 0.
    pub const fn new() -> Self {
        let [admitted, refused, errors] = [const { AtomicU64::new(0) }; 3];
        Self { admitted, refused, errors, besides: None }
    }

    /// The same, with one more count of this name.
    pub const fn with(self, name: &'static str) -> Self {
        Self { besides: Some((name, AtomicU64::new(0))), ..self }
    }

    /// Counts a call that was admitted or refused.
    pub fn count(&self, refused: bool) {
        bump(if refused { &self.refused } else { &self.admitted });
    }

    /// Counts an error.
    pub fn count_error(&self) {
        bump(&self.errors);
    }

    /// Counts what only some commands count.
    pub fn count_besides(&self) {
        self.besides.iter().for_each(|(_, count)| bump(count));
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
        always.into_iter().chain(self.besides.iter().map(|(name, count)| (*name, count)))
    }
}

/// Adds one. Commands run one after the other, so a load and a store will do; one locked instruction would
/// cost more.
fn bump(count: &AtomicU64) {
    count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
}
