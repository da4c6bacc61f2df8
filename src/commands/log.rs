//! `CL.LOG key limit period [quantity] [S|MS|US]`

use redis_cell_core::{Error, Tail, log};

use super::{Command, Flag, Keys, Spec};
use crate::ffi::Call;
use crate::store;

/// Takes a quantity from a sliding-window log: never more than the limit in any period.
pub struct Log;

impl Command for Log {
    const SPEC: Spec = Spec {
        name: c"cl.log",
        summary: c"Takes a quantity from a sliding-window log.",
        complexity: c"O(log N + M) where N is the limit and M the quantity plus the expired entries removed.",
        since: c"1.0.0",
        least_words: 4,
        flags: &[Flag::Write, Flag::DenyOom],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let [key, limit @ ..] = call.positional::<3>()?;
        let tail = Tail::parse_within(call.rest(4), &[], &log::QUANTITY)?;
        let limit = log::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
        let answer = store::edit(call, key, |scores, now| {
            let decision = log::take(scores, &limit, now, tail.quantity)?;
            Ok((decision.answer, decision.change))
        });
        // What is refused for ever is so whatever the key holds.
        let answer = answer.or_else(|error| limit.never(tail.quantity, error))?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
