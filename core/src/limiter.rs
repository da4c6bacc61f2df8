//! The verbs of the limiters whose state is a single value, whatever their algorithm.

use crate::{Answer, Change, Decision, Error, Instant, Span, Taken, Verdict};

/// A limit with its algorithm, which decides by a stored state.
///
/// Logs and leases have the same verbs as functions of [`log`](crate::log) and [`lease`](crate::lease): they
/// do not read their state as a whole.
///
/// Cost: O(1), no allocation, for every verb.
pub trait Limiter {
    /// The stored state.
    type State: Copy;

    /// Takes `quantity` units, all or nothing.
    ///
    /// # Errors
    /// The errors of the algorithm. Nothing must be stored after an error.
    fn take(
        &self,
        state: Option<Self::State>,
        now: Instant,
        quantity: i64,
    ) -> Result<Decision<Self::State>, Error>;

    /// Takes as much of `quantity` as fits, however large it is: [`taken`](Answer::taken).
    ///
    /// Refused only when nothing fits, with the wait until one unit would. A quantity of 0 is admitted and
    /// takes 0.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn saturate(
        &self,
        state: Option<Self::State>,
        now: Instant,
        quantity: i64,
    ) -> Result<Decision<Self::State>, Error>;

    /// The verdict of [`take`](Self::take), with the numbers of the state as it is.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn peek(&self, state: Option<Self::State>, now: Instant, quantity: i64) -> Result<Answer, Error> {
        let answer = self.take(state, now, quantity)?.answer;
        // A refusal has these numbers already.
        if answer.limited() {
            return Ok(answer);
        }
        Ok(Answer { verdict: answer.verdict, ..self.take(state, now, 0)?.answer })
    }

    /// The cost of the `quantity` of a client that waits for the limiter, in the sum that
    /// [`charged`](Self::charged) takes: units, unless the algorithm has a finer measure.
    ///
    /// # Errors
    /// The errors of the algorithm.
    fn cost(&self, quantity: i64) -> Result<u64, Error> {
        Ok(quantity.unsigned_abs())
    }

    /// The state after clients have taken what they wait for, with the sum of their costs.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn charged(
        &self,
        state: Option<Self::State>,
        now: Instant,
        costs: u64,
    ) -> Result<Option<Self::State>, Error> {
        let units = i64::try_from(costs).unwrap_or(i64::MAX);
        Ok(match self.settle(state, now, units, None)?.change {
            Change::Store(state) => Some(state),
            Change::Keep => state,
            Change::Delete => None,
        })
    }

    /// Settles the `difference` between the units taken and those needed: a positive one is charged, a
    /// negative one is given back. If the caller says when the units were `taken`, only those that are still
    /// there are given back.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn settle(
        &self,
        state: Option<Self::State>,
        now: Instant,
        difference: i64,
        taken: Option<&Taken>,
    ) -> Result<Decision<Self::State>, Error>;
}

/// Implements [`Limiter`] for the `Limit` of the file that calls the macro, with the functions of that file:
/// the one that takes is an argument, and the functions of the other verbs are called `saturate` and
/// `settle`. Methods that the algorithm overrides follow.
macro_rules! limiter {
    ($state:ty, $take:ident $(, $own:item)*) => {
        impl crate::limiter::Limiter for Limit {
            type State = $state;

            #[inline(always)]
            fn take(
                &self,
                state: Option<$state>,
                now: Instant,
                quantity: i64,
            ) -> Result<Decision<$state>, Error> {
                $take(state, self, now, quantity)
            }

            fn saturate(
                &self,
                state: Option<$state>,
                now: Instant,
                quantity: i64,
            ) -> Result<Decision<$state>, Error> {
                saturate(state, self, now, quantity)
            }

            fn settle(
                &self,
                state: Option<$state>,
                now: Instant,
                difference: i64,
                taken: Option<&Taken>,
            ) -> Result<Decision<$state>, Error> {
                settle(state, self, now, difference, taken)
            }

            $($own)*
        }
    };
}
pub(crate) use limiter;

/// Decides a call that comes after clients that wait for the limiter: for this call, the sum of their `costs`
/// counts as taken. `decide` decides on a state; the units that it takes are then taken from the real one, of
/// which `reset_after` speaks.
///
/// If no state can hold that sum, the call is refused, and the wait is unknown: it is the longest.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// The errors of `decide` on the present state, and of the limiter.
pub fn behind<L: Limiter>(
    limit: &L,
    state: Option<L::State>,
    now: Instant,
    quantity: i64,
    costs: u64,
    decide: impl Fn(Option<L::State>) -> Result<Decision<L::State>, Error>,
) -> Result<Decision<L::State>, Error> {
    let Ok(decision) = limit.charged(state, now, costs).and_then(&decide) else {
        return Ok(Decision::keep(without_room(decide(state)?.answer)));
    };
    if decision.change.is_keep() {
        return Ok(decision);
    }
    let taken = decision.answer.taken.unwrap_or(quantity);
    let Decision { answer: Answer { reset_after, .. }, change } = limit.settle(state, now, taken, None)?;
    Ok(Decision { answer: Answer { reset_after, ..decision.answer }, change })
}

/// What [`Limiter::peek`] says of a call that comes after clients that wait for the limiter, as [`behind`].
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// Those of [`Limiter::peek`] on the present state.
pub fn peek_behind<L: Limiter>(
    limit: &L,
    state: Option<L::State>,
    now: Instant,
    quantity: i64,
    costs: u64,
) -> Result<Answer, Error> {
    let peek = |state| limit.peek(state, now, quantity);
    match limit.charged(state, now, costs).and_then(peek) {
        Ok(answer) => Ok(answer),
        Err(_) => Ok(without_room(peek(state)?)),
    }
}

/// The answer to a call before which clients wait for more than any state can hold, from the answer that it
/// would get without them.
fn without_room(own: Answer) -> Answer {
    let verdict = match own.verdict {
        Verdict::Never => Verdict::Never,
        // It takes as much as fits, and wants nothing.
        Verdict::Admitted if own.taken == Some(0) => Verdict::Admitted,
        _ => Verdict::Later(Span::MAX),
    };
    Answer { verdict, remaining: 0, taken: own.taken.map(|_| 0), ..own }
}

/// The answer to a call after clients that wait for `units`, from a limiter of which only `alone` is known:
/// its answers to quantities while nobody else waits, with the numbers of the present state.
///
/// The wait of a refusal ends when as much as possible of the whole sum fits.
///
/// # Errors
/// The errors of `alone`.
pub fn behind_units<E>(
    units: u64,
    quantity: i64,
    alone: impl Fn(i64) -> Result<Answer, E>,
) -> Result<Answer, E> {
    let own = alone(quantity)?;
    let units = i64::try_from(units).unwrap_or(i64::MAX);
    let remaining = own.remaining.saturating_sub(units).max(0);
    let verdict = match own.verdict {
        Verdict::Admitted if quantity <= own.remaining.saturating_sub(units) => own.verdict,
        Verdict::Never => own.verdict,
        _ => {
            let all = quantity.saturating_add(units).min(own.limit);
            Verdict::Later(alone(all)?.verdict.wait().unwrap_or(Span::NANOSECOND))
        }
    };
    Ok(Answer { verdict, remaining, ..own })
}
