//! `CL.FIXED key limit period [quantity] [S|MS|US]`

use redis_cell_core::{Error, window};

use super::{Command, Flag, Keys, Spec, window_args};
use crate::ffi::Call;
use crate::store;

/// Takes a quantity from a fixed window: a counter that starts anew when its key expires.
pub struct Fixed;

impl Command for Fixed {
    const SPEC: Spec = Spec {
        name: c"cl.fixed",
        summary: c"Takes a quantity from a fixed window.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 4,
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = window_args(call)?;
        let answer =
            store::update(call, key, |counter, now| window::fixed(counter, &limit, now, tail.quantity))?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
