//! `CL.REFUND key max_burst count period [quantity] [S|MS|US]`

use redis_cell_core::{Error, gcra};

use super::{Command, Flag, Keys, Spec, gcra_args};
use crate::ffi::Call;
use crate::store;

/// Gives a quantity back to a GCRA limiter.
pub struct Refund;

impl Command for Refund {
    const SPEC: Spec = Spec {
        name: c"cl.refund",
        summary: c"Gives a quantity back to a GCRA limiter.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 5,
        flags: &[Flag::Write, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer = store::update(call, key, |tat, now| gcra::refund(tat, &limit, now, tail.quantity))?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
