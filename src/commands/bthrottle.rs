//! `CL.BTHROTTLE`

use redis_cell_core::{QUANTITY, Span, Tail, gcra, parse_timeout};

use super::arguments::{KEY, LIMITER, UNIT};
use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Spec, Type};
use crate::limiters::arguments::{COUNT, PERIOD};
use crate::limiters::gcra::MAX_BURST;
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};
use crate::waiting::{self, FirstComeRequest};

/// Waits in a queue until a quantity of a GCRA limiter is admitted.
pub struct Bthrottle;

impl Command for Bthrottle {
    const SPEC: Spec = Spec {
        name: c"cl.bthrottle",
        summary: "Waits in a queue until a quantity of a GCRA limiter is admitted.",
        reply: "Replies limited, limit, remaining, retry_after and reset_after, or null when not admitted in time.",
        complexity: c"O(log N) where N is the number of callers waiting, O(N) to join those who wait by different limits or were late before a booking.",
        arguments: &[
            KEY,
            MAX_BURST,
            COUNT,
            PERIOD,
            Argument::new(c"quantity", Type::Integer, c"Units to wait for, 0 or more."),
            Argument::new(c"timeout", Type::Double, c"How long to wait, always in seconds; 0 for no limit."),
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Blocking],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, max_burst, count, period, quantity, timeout] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(7))?;
        let limit = [max_burst, count, period].map(|arg| call.bytes(arg));
        let limit = gcra::Limit::parse(limit, unit)?;
        let quantity = QUANTITY.parse(call.bytes(quantity))?;
        let patience = parse_timeout(call.bytes(timeout))?;
        let patience = if call.may_block() { patience } else { Some(Span::ZERO) };

        waiting::join_first_come::<Self>(call, &FirstComeRequest { key, limit, quantity, unit, patience })
    }
}
