//! `CL.REFUND`

use redis_cell_core::gcra;

use super::arguments::{COUNT, KEY, LIMITER, MAX_BURST, PERIOD, QUANTITY, UNIT, gcra_args};
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
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
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer =
            store::update(call, key, &limit, |tat, now| gcra::refund(tat, &limit, now, tail.quantity))?;
        Ok(Outcome::State(answer, tail.unit))
    }
}
