//! `CL.PEEK key max_burst count period [quantity] [S|MS|US]`

use redis_cell_core::{Error, gcra};

use super::{Command, Flag, Keys, Spec, gcra_args};
use crate::ffi::Call;
use crate::{store, waiting};

/// Tells what CL.THROTTLE would answer, and changes nothing.
pub struct Peek;

impl Command for Peek {
    const SPEC: Spec = Spec {
        name: c"cl.peek",
        summary: c"Tells what CL.THROTTLE would answer, and changes nothing.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 5,
        flags: &[Flag::ReadOnly, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer = store::look(call, key, |tat, now| {
            gcra::peek(waiting::seen(call, key, tat, now)?, &limit, now, tail.quantity)
        })?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
