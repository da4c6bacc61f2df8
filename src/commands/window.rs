//! `CL.WINDOW key limit period [quantity] [S|MS|US]`

use redis_cell_core::{Error, window};

use super::{Command, Flag, Keys, Spec, window_args};
use crate::ffi::Call;
use crate::store;

/// Takes a quantity from a sliding window: two counters, of which the older one fades.
pub struct Window;

impl Command for Window {
    const SPEC: Spec = Spec {
        name: c"cl.window",
        summary: c"Takes a quantity from a sliding window of two counters.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 4,
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = window_args(call)?;
        let answer = store::update(call, key, |window, now| {
            let decision = window::sliding(window, &limit, now, tail.quantity)?;
            Ok(decision.map(|window| (window, &limit)))
        })?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
