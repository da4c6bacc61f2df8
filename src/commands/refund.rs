//! `CL.REFUND`

use redis_cell_core::{Error, gcra};

use super::spec::{COUNT, FIVE, KEY, MAX_BURST, PERIOD, QUANTITY, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, gcra_args, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store;

/// Gives a quantity back to a GCRA limiter.
pub struct Refund;

impl Command for Refund {
    const SPEC: Spec = Spec {
        name: c"cl.refund",
        summary: "Gives a quantity back to a GCRA limiter.",
        reply: FIVE,
        complexity: c"O(1)",
        since: c"1.0.0",
        arguments: &[KEY, MAX_BURST, COUNT, PERIOD, QUANTITY, UNIT],
        flags: &[Flag::Write, Flag::Fast],
        keys: Keys::First,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer = store::update(call, key, |tat, now| gcra::refund(tat, &limit, now, tail.quantity))?;
        Ok(Outcome::State(answer, tail.unit))
    }
}
