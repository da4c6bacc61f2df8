//! GCRA, the limiter of `CL.THROTTLE`.

use redis_cell_core::gcra::{self, Tat};
use redis_cell_core::several::Grammar;
use redis_cell_core::{Decision, Error as CoreError, Unit};

use super::arguments::{COUNT, PERIOD, QUANTITY, kind};
use super::kind::{Arguments, Target, Verb};
use super::whole::Whole;
use crate::error::Error;
use crate::ffi::{Argument, Type};
use crate::waiting::{self, Order};

/// The burst.
pub const MAX_BURST: Argument =
    Argument::new(c"max_burst", Type::Integer, c"Units allowed at once on top of one, at least 0.");

impl Whole for Tat {
    const GRAMMAR: Grammar = gcra::GRAMMAR;
    const DOCUMENTED: Argument =
        kind(c"THROTTLE", c"throttle", c"As CL.THROTTLE.", &[MAX_BURST, COUNT, PERIOD, QUANTITY]);

    type Stored = Self;

    #[inline(always)]
    fn limit(arguments: &Arguments, unit: Unit) -> Result<gcra::Limit, Error> {
        Ok(gcra::Limit::parse(arguments.words()?, unit)?)
    }

    fn state(self) -> Self {
        self
    }

    fn stored(tat: Self, _: &gcra::Limit) -> Self {
        tat
    }

    #[inline(always)]
    fn seen(tat: Option<Self>, at: &Target, verb: Verb) -> Result<Option<Self>, CoreError> {
        waiting::seen(&at.call, at.name, order(verb), tat, at.now)
    }

    fn complete(decision: &mut Decision<Self>, at: &Target, verb: Verb) {
        // This does not fail, because the costs of the clients in the queue were already added to the state.
        let _ = waiting::took(&at.call, at.name, order(verb), decision, at.now);
    }
}

/// Units that a call takes come after the clients in the queue; units that it charges come before them, as in
/// `CL.CHARGE`.
const fn order(verb: Verb) -> Order {
    match verb {
        Verb::Take | Verb::Wait | Verb::Peek => Order::Behind,
        Verb::Settle => Order::Before,
    }
}
