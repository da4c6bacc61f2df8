//! `CL.THROTTLE key max_burst count period [quantity] [SATURATE] [S|MS|US]`

use redis_cell_core::{Error, Keyword, gcra};

use super::{Command, Flag, Keys, Spec, gcra_args};
use crate::ffi::Call;
use crate::store;

/// Takes a quantity from a GCRA limiter: the command of redis-cell.
pub struct Throttle;

impl Command for Throttle {
    const SPEC: Spec = Spec {
        name: c"cl.throttle",
        summary: c"Takes a quantity from a GCRA limiter.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 5,
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = gcra_args(call, &[Keyword::Saturate])?;
        let decide = if tail.saturate { gcra::saturate } else { gcra::throttle };
        let answer =
            store::update_behind_line(call, key, |tat, now| decide(tat, &limit, now, tail.quantity))?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
