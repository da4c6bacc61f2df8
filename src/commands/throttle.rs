//! `CL.THROTTLE`

use redis_cell_core::{Error, Keyword, gcra};

use super::spec::{Argument, COUNT, KEY, MAX_BURST, PERIOD, QUANTITY, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, gcra_args, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store;

/// Takes a quantity from a GCRA limiter: the command of redis-cell.
pub struct Throttle;

impl Command for Throttle {
    const SPEC: Spec = Spec {
        name: c"cl.throttle",
        summary: "Takes a quantity from a GCRA limiter.",
        reply: "Replies limited, limit, remaining, retry_after and reset_after, and with SATURATE the quantity taken.",
        complexity: c"O(1)",
        since: c"1.0.0",
        arguments: &[
            KEY,
            MAX_BURST,
            COUNT,
            PERIOD,
            QUANTITY,
            Argument::word(c"SATURATE", c"saturate", c"Take what fits instead of all or nothing.").optional(),
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = gcra_args(call, &[Keyword::Saturate])?;
        let decide = if tail.saturate { gcra::saturate } else { gcra::throttle };
        let answer =
            store::update_behind_line(call, key, |tat, now| decide(tat, &limit, now, tail.quantity))?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
