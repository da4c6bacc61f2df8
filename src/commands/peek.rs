//! `CL.PEEK key max_burst count period [quantity] [S|MS|US]`

use redis_cell_core::{Error, gcra};

use super::{Command, Spec, gcra_args};
use crate::ffi::Call;
use crate::store;

/// Tells what CL.THROTTLE would answer, and changes nothing.
pub struct Peek;

impl Command for Peek {
    const SPEC: Spec = Spec { name: c"cl.peek", least_words: 5, flags: c"readonly fast", keys: (1, 1, 1) };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer = store::look(call, key, |tat, now| gcra::peek(tat, &limit, now, tail.quantity))?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
