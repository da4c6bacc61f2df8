//! `CL.LOG`

use redis_cell_core::{Tail, TailOption, log};

use super::arguments::{KEY, LIMITER, SATURATE, UNIT, WITH_TAKEN};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Spec, Type};
use crate::limiters;
use crate::limiters::arguments::PERIOD;
use crate::limiters::log::LIMIT;
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};

/// The quantity of a log, whose entries cost memory.
const QUANTITY: Argument =
    Argument::new(c"quantity", Type::Integer, c"Units of this call, 0 to 10,000; 1 by default.").optional();

/// Takes a quantity from a sliding-window log: never more than the limit in any period.
pub struct Log;

impl Command for Log {
    const SPEC: Spec = Spec {
        name: c"cl.log",
        summary: "Takes a quantity from a sliding-window log.",
        reply: WITH_TAKEN,
        complexity:
            c"O(log N) where N is the number of entries, plus O(log N) for each entry added or removed.",
        arguments: &[KEY, LIMIT, PERIOD, QUANTITY, SATURATE, UNIT],
        flags: &[Flag::Write, Flag::DenyOom],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, limit @ ..] = call.positional::<3>()?;
        // With SATURATE any quantity may be requested. The core limits how much of it one call takes.
        let saturates = call.rest(4).any(|word| word.eq_ignore_ascii_case(b"SATURATE"));
        let range = if saturates { &redis_cell_core::QUANTITY } else { &log::QUANTITY };
        let tail = Tail::parse_within(call.rest(4), &[TailOption::Saturate], range)?;
        let limit = log::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
        let limiter = limiters::Log { limit, quantity: tail.quantity, saturate: tail.saturate };
        one::take_by(call, key, limiter, tail.unit)
    }
}
