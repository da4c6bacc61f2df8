//! The outcome of a decision: the answer to the caller, and the change to the stored state, if any.

use crate::time::{Span, Unit};

/// The outcome of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<S> {
    /// The answer to the caller.
    pub answer: Answer,
    /// The change to the stored state.
    pub change: Change<S>,
}

/// The change to the stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<S> {
    /// The state stays as it is: no write, no expiry, no replication.
    Keep,
    /// The state is replaced.
    Store(S),
    /// The limiter is fully replenished: its key is deleted.
    Delete,
}

/// The answer to the caller, before its times are rounded to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the call is admitted, and if not, when it would be.
    pub verdict: Verdict,
    /// The most that could ever be admitted at once.
    pub limit: i64,
    /// The most that could be admitted right after this call.
    pub remaining: i64,
    /// The time until the limiter is fully replenished; [`Span::MAX`] for never.
    pub reset_after: Span,
    /// The quantity taken, for calls that may take less than they request.
    pub taken: Option<i64>,
}

/// Whether a call is admitted, and if not, when it would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Admitted.
    Admitted,
    /// Admitted, for the caller to act on when this span has passed; zero to act at once.
    Booked(Span),
    /// Refused for now: if nobody else takes anything, the same call is refused until this span has passed,
    /// and admitted from then on.
    ///
    /// Calls that settle are never refused. For them, this means that they leave the limiter over the limit,
    /// and the span is the wait for one unit. For a booking that would be later than its caller accepts, the
    /// span is the wait for the booking.
    Later(Span),
    /// Refused, now and at any time: the quantity is above the limit.
    Never,
}

/// The integers of a reply: the five of every admission, and the quantity taken if the call saturates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// `limited`, `limit`, `remaining`, `retry_after`, `reset_after`.
    pub five: [i64; 5],
    /// The quantity taken.
    pub taken: Option<i64>,
}

impl Verdict {
    /// Whether this is a refusal, or describes a state over the limit.
    pub const fn is_limited(self) -> bool {
        matches!(self, Self::Later(_) | Self::Never)
    }

    /// The time to wait; `None` if waiting is unnecessary or useless.
    pub const fn wait(self) -> Option<Span> {
        match self {
            Self::Booked(wait) | Self::Later(wait) => Some(wait),
            Self::Admitted | Self::Never => None,
        }
    }
}

impl Answer {
    /// Whether the call is refused, or leaves the limiter over the limit.
    pub const fn limited(&self) -> bool {
        self.verdict.is_limited()
    }

    /// The answer in whole units of time, rounded up; -1 if there is nothing to wait for, or if the wait has
    /// no end.
    ///
    /// A caller that waits for `retry_after` is never refused because of rounding.
    #[inline]
    pub fn reply(&self, unit: Unit) -> Reply {
        Reply {
            five: [
                i64::from(self.limited()),
                self.limit,
                self.remaining,
                self.verdict.wait().map_or(-1, |wait| wait.ceil_to(unit)),
                if self.reset_after == Span::MAX { -1 } else { self.reset_after.ceil_to(unit) },
            ],
            taken: self.taken,
        }
    }
}

impl<S> Change<S> {
    /// The same change, with its new state converted.
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
    /// The same decision, with its new state converted.
    pub fn map<T>(self, state: impl FnOnce(S) -> T) -> Decision<T> {
        Decision { answer: self.answer, change: self.change.map(state) }
    }

    /// The decision of a call that takes as much of `quantity` as fits; `take` decides a call that takes all
    /// or nothing.
    ///
    /// If nothing fits, decides as for a single unit, which is refused with the wait to report. A quantity of
    /// 0 is always admitted.
    pub(crate) fn saturate<E>(
        quantity: i64,
        room: i64,
        take: impl FnOnce(i64) -> Result<Self, E>,
    ) -> Result<Self, E> {
        let mut decision = take(quantity.min(room.max(1)))?;
        let answer = &mut decision.answer;
        if quantity == 0 {
            answer.verdict = Verdict::Admitted;
        }
        answer.taken = Some(if answer.limited() { 0 } else { quantity.min(room.max(0)) });
        Ok(decision)
    }

    /// A decision that does not change the state: a check, or a refusal.
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
