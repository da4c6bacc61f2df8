//! `CL.CHARGE key max_burst count period [quantity] [S|MS|US]`

use redis_cell_core::{Error, gcra};

use super::{Command, Flag, Keys, Spec, gcra_args};
use crate::ffi::Call;
use crate::store;

/// Takes a quantity from a GCRA limiter regardless, into debt if need be.
pub struct Charge;

impl Command for Charge {
    const SPEC: Spec = Spec {
        name: c"cl.charge",
        summary: c"Takes a quantity from a GCRA limiter regardless, into debt if need be.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 5,
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer = store::update(call, key, |tat, now| gcra::charge(tat, &limit, now, tail.quantity))?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
