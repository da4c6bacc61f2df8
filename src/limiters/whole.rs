//! The limiters whose state is loaded and stored as a whole.

use redis_cell_core::limiter::{self, Limiter};
use redis_cell_core::several::Grammar;
use redis_cell_core::{Answer, Decision, Error as CoreError, Instant, Taken, Unit};

use super::kind::{Arguments, Kind, Target, Verb};
use crate::error::Error;
use crate::faults;
use crate::ffi::{Argument, Call};
use crate::store::{Save, State};

/// A state that is loaded and stored as a whole.
pub trait Whole: State<Limit: Limiter + Copy> {
    /// Its word among several limiters, and its arguments, of which the last is the quantity.
    const GRAMMAR: Grammar;
    /// The same, as in the server's documentation.
    const DOCUMENTED: Argument;
    /// The state with everything that its key stores.
    type Stored: Save;

    /// Reads the arguments before the quantity.
    ///
    /// # Errors
    /// The errors of the limiter's own command.
    fn limit(arguments: &Arguments, unit: Unit) -> Result<Self::Limit, Error>;

    /// The state for a decision.
    fn state(self) -> StateOf<Self>;

    /// The state to be stored.
    fn stored(state: StateOf<Self>, limit: &Self::Limit) -> Self::Stored;

    /// Whether the `reset_after` of this limit may be -1, which means never.
    fn is_endless(_: &Self::Limit) -> bool {
        false
    }

    /// The state as a call sees it.
    ///
    /// # Errors
    /// The errors of the limiter's own command.
    fn seen(state: Option<StateOf<Self>>, _: &Target, _: Verb) -> Result<Option<StateOf<Self>>, CoreError> {
        Ok(state)
    }

    /// Completes the decision of a call that takes or charges, made on the state that it has
    /// [seen](Self::seen).
    fn complete(_: &mut Decision<StateOf<Self>>, _: &Target, _: Verb) {}
}

/// The state on which the algorithm decides.
pub type StateOf<S> = <<S as State>::Limit as Limiter>::State;

/// A limiter with such a state, with the quantity of a call.
pub struct WholeCall<S: Whole> {
    pub limit: S::Limit,
    pub units: i64,
    /// Whether to take as many of them as fit, instead of all or nothing.
    pub saturate: bool,
}

impl<S: Whole> Clone for WholeCall<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Whole> Copy for WholeCall<S> {}

impl<S: Whole> WholeCall<S> {
    /// The state as the call sees it, and the instant of the decision.
    #[inline(always)]
    pub fn seen(&self, at: &Target, verb: Verb) -> Result<(Option<StateOf<S>>, Instant), Error> {
        let mut now = at.now;
        let state = S::load(at.key, &mut now, &self.limit)?;
        Ok((S::seen(state.map(S::state), at, verb)?, now))
    }

    /// Takes the quantity on this state, after clients that wait for `ahead`.
    ///
    /// # Errors
    /// Those of the limiter's own command.
    #[inline(always)]
    pub fn take_on(
        &self,
        state: Option<StateOf<S>>,
        now: Instant,
        ahead: u64,
    ) -> Result<Decision<StateOf<S>>, CoreError> {
        if ahead > 0 { behind(*self, state, now, ahead) } else { self.decide(state, now) }
    }

    /// The answer that [`take_on`](Self::take_on) would give, with the numbers of the state as it is.
    ///
    /// # Errors
    /// Those of the limiter's own command.
    #[inline(always)]
    pub fn peek_on(&self, state: Option<StateOf<S>>, now: Instant, ahead: u64) -> Result<Answer, CoreError> {
        if ahead > 0 {
            return limiter::peek_behind(&self.limit, state, now, self.units, ahead);
        }
        self.limit.peek(state, now, self.units)
    }

    // Without a pointer to either function, which would not be inlined.
    #[inline]
    fn decide(&self, state: Option<StateOf<S>>, now: Instant) -> Result<Decision<StateOf<S>>, CoreError> {
        if self.saturate {
            self.limit.saturate(state, now, self.units)
        } else {
            self.limit.take(state, now, self.units)
        }
    }
}

/// Decides a call that does not wait, after clients that do: for this call, the sum of their costs counts as
/// taken. The limiter is a copy, so that on the common path it need not be in memory.
#[cold]
#[inline(never)]
fn behind<S: Whole>(
    WholeCall { limit, units, saturate }: WholeCall<S>,
    state: Option<StateOf<S>>,
    now: Instant,
    ahead: u64,
) -> Result<Decision<StateOf<S>>, CoreError> {
    limiter::behind(&limit, state, now, units, ahead, |state| {
        if saturate { limit.saturate(state, now, units) } else { limit.take(state, now, units) }
    })
}

impl<'c, S: Whole> Kind<'c> for WholeCall<S> {
    const GRAMMAR: Grammar = S::GRAMMAR;
    const DOCUMENTED: Argument = S::DOCUMENTED;

    type Change = StateOf<S>;
    type Stored = S::Stored;

    fn parse(arguments: &Arguments<'c>, verb: Verb, unit: Unit) -> Result<Self, Error> {
        let (limit, quantity) = arguments.split_last()?;
        let limit = S::limit(&limit, unit)?;
        let units = faults::difference(verb.quantity().parse(arguments.call.bytes(quantity))?);
        Ok(Self { limit, units, saturate: false })
    }

    #[inline(always)]
    fn take(&self, at: &Target<'_, 'c>) -> Result<Decision<StateOf<S>>, Error> {
        let (state, now) = self.seen(at, Verb::Take)?;
        Ok(self.take_on(state, now, at.ahead)?)
    }

    fn units(&self) -> i64 {
        self.units
    }

    fn with_units(&self, units: i64) -> Self {
        Self { units, ..*self }
    }

    fn cost(&self) -> Result<u64, Error> {
        Ok(self.limit.cost(self.units)?)
    }

    fn is_endless(&self) -> bool {
        S::is_endless(&self.limit)
    }

    #[inline(always)]
    fn peek(&self, at: &Target<'_, 'c>) -> Result<Answer, Error> {
        let (state, now) = self.seen(at, Verb::Peek)?;
        Ok(self.peek_on(state, now, at.ahead)?)
    }

    fn settle(&self, at: &Target<'_, 'c>, taken: Option<&Taken>) -> Result<Decision<StateOf<S>>, Error> {
        let (state, now) = self.seen(at, Verb::Settle)?;
        Ok(self.limit.settle(state, now, self.units, taken)?)
    }

    fn give_back(&self, at: &Target<'_, 'c>) -> Result<Decision<StateOf<S>>, Error> {
        let (state, now) = self.seen(at, Verb::Settle)?;
        Ok(self.limit.settle(state, now, self.units.saturating_neg(), None)?)
    }

    fn stored(&self, state: StateOf<S>, _: &Call<'c>) -> S::Stored {
        S::stored(state, &self.limit)
    }

    fn complete(&self, decision: &mut Decision<StateOf<S>>, at: &Target<'_, 'c>, verb: Verb) {
        if self.units > 0 {
            S::complete(decision, at, verb);
        }
    }
}
