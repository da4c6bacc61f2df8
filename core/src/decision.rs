//! What a limiter decides: the answer for the caller and the change, if any, for the store.

use crate::{Span, Unit};

/// The outcome of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<S> {
    /// What the caller is told.
    pub answer: Answer,
    /// What becomes of the stored state.
    pub change: Change<S>,
}

/// What becomes of the stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<S> {
    /// It stays as it is, untouched: no write, no expiry, no replication.
    Keep,
    /// It is replaced.
    Store(S),
    /// The limiter is as good as new: the key goes.
    Delete,
}

/// What the caller is told, before rounding to its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the call is refused.
    pub limited: bool,
    /// The most that could ever be admitted at once.
    pub limit: i64,
    /// What could be admitted right now, after this call.
    pub remaining: i64,
    /// When to come again.
    pub retry_after: Retry,
    /// The time until the limiter is as good as new.
    pub reset_after: Span,
    /// The quantity taken, for calls that may take less than they ask for.
    pub taken: Option<i64>,
}

/// When to come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// No need to, or no use: admitted, or refused for ever. Answered as -1.
    Never,
    /// The same call is refused at every instant before this span has passed, and admitted at its end.
    After(Span),
}

/// The integers of a reply: the five of every admission, and the quantity taken where the call asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// `limited`, `limit`, `remaining`, `retry_after`, `reset_after`.
    pub five: [i64; 5],
    /// The quantity taken.
    pub taken: Option<i64>,
}

impl Answer {
    /// The answer in whole units of time, rounded up.
    ///
    /// A caller who waits as long as it was told is never refused by rounding.
    pub fn reply(&self, unit: Unit) -> Reply {
        let retry_after = match self.retry_after {
            Retry::Never => -1,
            Retry::After(wait) => wait.ceil_to(unit),
        };
        Reply {
            five: [
                i64::from(self.limited),
                self.limit,
                self.remaining,
                retry_after,
                self.reset_after.ceil_to(unit),
            ],
            taken: self.taken,
        }
    }
}

impl<S> Change<S> {
    /// The same change, said of another state.
    pub fn map<T>(self, state: impl FnOnce(S) -> T) -> Change<T> {
        match self {
            Self::Keep => Change::Keep,
            Self::Store(stored) => Change::Store(state(stored)),
            Self::Delete => Change::Delete,
        }
    }

    /// Whether the stored state stays as it is.
    pub const fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }
}

impl<S> Decision<S> {
    /// The same decision, said of another state.
    pub fn map<T>(self, state: impl FnOnce(S) -> T) -> Decision<T> {
        Decision { answer: self.answer, change: self.change.map(state) }
    }

    /// A decision that leaves the state alone: a look, or a refusal.
    pub const fn keep(answer: Answer) -> Self {
        Self { answer, change: Change::Keep }
    }

    /// A decision that replaces the state.
    pub const fn store(answer: Answer, state: S) -> Self {
        Self { answer, change: Change::Store(state) }
    }

    /// A decision that deletes the state.
    pub const fn delete(answer: Answer) -> Self {
        Self { answer, change: Change::Delete }
    }
}
