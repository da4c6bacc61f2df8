//! The verbs that all limiters have, whatever their algorithm.

use crate::{Answer, Decision, Error, Instant, Taken, bucket, fixed, gcra, window};

/// A limit with its algorithm, which decides by a stored state.
///
/// Logs and leases have the same verbs as functions of [`log`](crate::log) and [`lease`](crate::lease): they
/// do not read their state as a whole, so it is not a value.
///
/// Cost: O(1), no allocation, for every verb.
pub trait Limiter {
    /// The stored state.
    type State: Copy;

    /// Takes `quantity` units, all or none.
    ///
    /// # Errors
    /// Those of the algorithm. Nothing is to be stored then.
    fn take(
        &self,
        state: Option<Self::State>,
        now: Instant,
        quantity: i64,
    ) -> Result<Decision<Self::State>, Error>;

    /// Takes as much of `quantity` as fits, however large it is.
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

    /// Settles the `difference` between the units taken and those needed: charged above 0, given back below
    /// 0. Of what is given back, only that is which is still there of what was `taken`, if the caller says
    /// when.
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

/// The verbs of a module's functions for its limit and state.
macro_rules! limiter {
    ($module:ident, $state:ty, $take:ident) => {
        impl Limiter for $module::Limit {
            type State = $state;

            fn take(
                &self,
                state: Option<$state>,
                now: Instant,
                quantity: i64,
            ) -> Result<Decision<$state>, Error> {
                $module::$take(state, self, now, quantity)
            }

            fn saturate(
                &self,
                state: Option<$state>,
                now: Instant,
                quantity: i64,
            ) -> Result<Decision<$state>, Error> {
                $module::saturate(state, self, now, quantity)
            }

            fn settle(
                &self,
                state: Option<$state>,
                now: Instant,
                difference: i64,
                taken: Option<&Taken>,
            ) -> Result<Decision<$state>, Error> {
                $module::settle(state, self, now, difference, taken)
            }
        }
    };
}

limiter!(gcra, gcra::Tat, throttle);
limiter!(bucket, bucket::Level, take);
limiter!(fixed, fixed::Counter, take);
limiter!(window, window::Sliding, take);
