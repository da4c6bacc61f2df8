//! The limiters whose state is loaded and stored as a whole: GCRA, the funnel, the token bucket and both
//! windows.

use redis_cell_core::gcra::{self, Tat};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::several::Grammar;
use redis_cell_core::{Answer, Decision, Error as CoreError, Instant, Taken, Unit, bucket, fixed, window};

use super::kind::{Arguments, Kind, Place, Verb};
use crate::error::Error;
use crate::faults;
use crate::ffi::Call;
use crate::store::bucket::{Bucket, Funnel};
use crate::store::{Save, State};
use crate::waiting::{self, Order};

/// A state that is loaded and stored as a whole.
pub trait Whole: State<Limit: Limiter> {
    /// The word for the limiter and its arguments, of which the last is the quantity.
    const GRAMMAR: Grammar;
    /// The state with all that its key shows.
    type Stored: Save;

    /// Reads the other arguments.
    ///
    /// # Errors
    /// Those of the limiter's own command.
    fn limit(arguments: &Arguments, unit: Unit) -> Result<Self::Limit, Error>;

    /// The state for a decision.
    fn state(self) -> StateOf<Self>;

    /// The state to be stored.
    fn stored(state: StateOf<Self>, limit: &Self::Limit) -> Self::Stored;

    /// The state as a call sees it.
    ///
    /// # Errors
    /// Those of the limiter's own command.
    fn seen(state: Option<StateOf<Self>>, _: &Place, _: Verb) -> Result<Option<StateOf<Self>>, CoreError> {
        Ok(state)
    }

    /// Completes the decision of a call that takes or charges, on what it has [seen](Self::seen).
    fn complete(_: &mut Decision<StateOf<Self>>, _: &Place, _: Verb) {}
}

/// The state that the algorithm decides by.
type StateOf<S> = <<S as State>::Limit as Limiter>::State;

/// A limiter with such a state, and the quantity of a call.
pub struct Quantity<S: Whole> {
    limit: S::Limit,
    quantity: i64,
}

impl<S: Whole> Quantity<S> {
    /// The state as the call sees it, and the instant to decide on it at.
    fn seen(&self, at: &Place, verb: Verb) -> Result<(Option<StateOf<S>>, Instant), Error> {
        let mut now = at.now;
        let state = S::load(at.key, &mut now, &self.limit)?;
        Ok((S::seen(state.map(S::state), at, verb)?, now))
    }
}

impl<'c, S: Whole> Kind<'c> for Quantity<S> {
    const GRAMMAR: Grammar = S::GRAMMAR;

    type Change = StateOf<S>;
    type Stored = S::Stored;

    fn parse(arguments: &Arguments<'c>, verb: Verb, unit: Unit) -> Result<Self, Error> {
        let (limit, quantity) = arguments.split_last()?;
        let limit = S::limit(&limit, unit)?;
        let quantity = faults::difference(verb.quantity().parse(arguments.call.bytes(quantity))?);
        Ok(Self { limit, quantity })
    }

    fn take(&self, at: &Place<'_, 'c>) -> Result<Decision<StateOf<S>>, Error> {
        let (state, now) = self.seen(at, Verb::Take)?;
        Ok(waiting::behind(&self.limit, state, now, self.quantity, at.ahead, |state| {
            self.limit.take(state, now, self.quantity)
        })?)
    }

    fn units(&self) -> i64 {
        self.quantity
    }

    fn cost(&self) -> Result<u64, Error> {
        Ok(self.limit.cost(self.quantity)?)
    }

    fn peek(&self, at: &Place<'_, 'c>) -> Result<Answer, Error> {
        let (state, now) = self.seen(at, Verb::Peek)?;
        let state = if at.ahead == 0 { state } else { self.limit.charged(state, now, at.ahead)? };
        Ok(self.limit.peek(state, now, self.quantity)?)
    }

    fn settle(&self, at: &Place<'_, 'c>, taken: Option<&Taken>) -> Result<Decision<StateOf<S>>, Error> {
        let (state, now) = self.seen(at, Verb::Settle)?;
        Ok(self.limit.settle(state, now, self.quantity, taken)?)
    }

    fn give_back(&self, at: &Place<'_, 'c>) -> Result<Decision<StateOf<S>>, Error> {
        let (state, now) = self.seen(at, Verb::Settle)?;
        Ok(self.limit.settle(state, now, self.quantity.saturating_neg(), None)?)
    }

    fn stored(&self, state: StateOf<S>, _: &Call<'c>) -> S::Stored {
        S::stored(state, &self.limit)
    }

    fn complete(&self, decision: &mut Decision<StateOf<S>>, at: &Place<'_, 'c>, verb: Verb) {
        if self.quantity > 0 {
            S::complete(decision, at, verb);
        }
    }
}

/// `THROTTLE max_burst count period quantity`
impl Whole for Tat {
    const GRAMMAR: Grammar = Grammar::THROTTLE;

    type Stored = Self;

    fn limit(arguments: &Arguments, unit: Unit) -> Result<gcra::Limit, Error> {
        Ok(gcra::Limit::parse(arguments.words()?, unit)?)
    }

    fn state(self) -> Self {
        self
    }

    fn stored(tat: Self, _: &gcra::Limit) -> Self {
        tat
    }

    fn seen(tat: Option<Self>, at: &Place, verb: Verb) -> Result<Option<Self>, CoreError> {
        waiting::seen(&at.call, at.name, order(verb), tat, at.now)
    }

    fn complete(decision: &mut Decision<Self>, at: &Place, verb: Verb) {
        // What the clients in the queue wait for was added to the state before, so this does not fail.
        let _ = waiting::took(&at.call, at.name, order(verb), decision, at.now);
    }
}

/// What a call takes is behind the clients in the queue; what it charges is before them, as `CL.CHARGE` has
/// it.
const fn order(verb: Verb) -> Order {
    match verb {
        Verb::Take | Verb::Wait | Verb::Peek => Order::Behind,
        Verb::Settle => Order::Before,
    }
}

/// The two names of one algorithm: `FUNNEL` and `BUCKET capacity count period quantity`.
macro_rules! bucket {
    ($state:ident, $grammar:expr) => {
        impl Whole for $state {
            const GRAMMAR: Grammar = $grammar;

            type Stored = (Self, bucket::Limit);

            fn limit(arguments: &Arguments, unit: Unit) -> Result<bucket::Limit, Error> {
                Ok(bucket::Limit::parse(arguments.words()?, unit)?)
            }

            fn state(self) -> bucket::Level {
                self.0
            }

            fn stored(level: bucket::Level, limit: &bucket::Limit) -> (Self, bucket::Limit) {
                (Self(level), *limit)
            }
        }
    };
}

bucket!(Funnel, Grammar::FUNNEL);
bucket!(Bucket, Grammar::BUCKET);

/// `FIXED limit window [UTC minutes] [FROM day] quantity`
impl Whole for fixed::Counter {
    const GRAMMAR: Grammar = Grammar::FIXED;

    type Stored = Self;

    fn limit(arguments: &Arguments, unit: Unit) -> Result<fixed::Limit, Error> {
        Ok(fixed::Limit::parse_words(&mut arguments.iter(), unit)?)
    }

    fn state(self) -> Self {
        self
    }

    fn stored(counter: Self, _: &fixed::Limit) -> Self {
        counter
    }
}

/// `WINDOW limit period quantity`
impl Whole for window::Sliding {
    const GRAMMAR: Grammar = Grammar::WINDOW;

    type Stored = (Self, window::Limit);

    fn limit(arguments: &Arguments, unit: Unit) -> Result<window::Limit, Error> {
        Ok(window::Limit::parse(arguments.words()?, unit)?)
    }

    fn state(self) -> Self {
        self
    }

    fn stored(window: Self, limit: &window::Limit) -> (Self, window::Limit) {
        (window, *limit)
    }
}
