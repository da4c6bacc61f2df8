//! `CL.RESERVE key max_burst count period [quantity] [MAXWAIT wait] [PREPAY] [S|MS|US]`

use redis_cell_core::{Error, Keyword, gcra};

use super::{Command, Flag, Keys, Spec, gcra_args};
use crate::ffi::Call;
use crate::store;

/// Books a quantity of a GCRA limiter and tells how long to wait before acting on it.
pub struct Reserve;

impl Command for Reserve {
    const SPEC: Spec = Spec {
        name: c"cl.reserve",
        summary: c"Books a quantity of a GCRA limiter and tells how long to wait before acting on it.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 5,
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = gcra_args(call, &[Keyword::MaxWait, Keyword::Prepay])?;
        let booking = gcra::Booking { max_wait: tail.max_wait()?, prepay: tail.prepay };
        let answer = store::update_behind_line(call, key, |tat, now| {
            gcra::reserve(tat, &limit, now, tail.quantity, booking)
        })?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
