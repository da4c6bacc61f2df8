//! `CL.REFUND`

use redis_cell_core::gcra::{self, Tat};

use super::arguments::{KEY, LIMITER, QUANTITY, UNIT};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::limiters::arguments::{COUNT, PERIOD};
use crate::limiters::gcra::MAX_BURST;
use crate::outcome::{Command, Outcome};
use crate::store;
use crate::tally::{Tally, tally};

/// Gives a quantity back to a GCRA limiter.
pub struct Refund;

impl Command for Refund {
    const SPEC: Spec = Spec {
        name: c"cl.refund",
        summary: "Gives a quantity back to a GCRA limiter.",
        arguments: &[KEY, MAX_BURST, COUNT, PERIOD, QUANTITY, UNIT],
        flags: &[Flag::Write, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = one::arguments::<Tat>(call, &[])?;
        let answer = store::change(call, key, |open, now| {
            let tat = store::gcra::load(open, now, limit.tolerance())?;
            let decision = gcra::refund(tat, &limit, now, tail.quantity)?;
            Ok((decision.answer, decision.change))
        })?;
        Ok(Outcome::State(answer, tail.unit))
    }
}
