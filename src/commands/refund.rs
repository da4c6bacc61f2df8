//! `CL.REFUND key max_burst count period [quantity] [S|MS|US]`

use redis_cell_core::{Error, gcra};

use super::{Command, Spec, gcra_args};
use crate::ffi::Call;
use crate::store;

/// Gives a quantity back to a GCRA limiter.
pub struct Refund;

impl Command for Refund {
    const SPEC: Spec = Spec { name: c"cl.refund", least_words: 5, flags: c"write fast", keys: (1, 1, 1) };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer = store::update(call, key, |tat, now| gcra::refund(tat, &limit, now, tail.quantity))?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
