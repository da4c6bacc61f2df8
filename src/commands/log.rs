//! `CL.LOG`

use redis_cell_core::{Error, Tail, log};

use super::spec::{FIVE, KEY, LIMIT, PERIOD, QUANTITY, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store;

/// Takes a quantity from a sliding-window log: never more than the limit in any period.
pub struct Log;

impl Command for Log {
    const SPEC: Spec = Spec {
        name: c"cl.log",
        summary: "Takes a quantity from a sliding-window log.",
        reply: FIVE,
        complexity:
            c"O(log N) where N is the number of entries, plus O(log N) for each entry added or removed.",
        since: c"1.0.0",
        arguments: &[KEY, LIMIT, PERIOD, QUANTITY, UNIT],
        flags: &[Flag::Write, Flag::DenyOom],
        keys: Keys::First,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, limit @ ..] = call.positional::<3>()?;
        let tail = Tail::parse_within(call.rest(4), &[], &log::QUANTITY)?;
        let limit = log::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
        let answer = store::edit(call, key, |scores, now| {
            let decision = log::take(scores, &limit, now, tail.quantity)?;
            Ok((decision.answer, decision.change))
        });
        // What is refused for ever is so whatever the key holds.
        let answer = answer.or_else(|error| limit.never(tail.quantity, error))?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
