//! `CL.BTHROTTLE`

use redis_cell_core::{Error, QUANTITY, Span, Tail, gcra, parse_timeout};

use super::spec::{Argument, COUNT, KEY, Kind, MAX_BURST, PERIOD, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::waiting;

/// Waits in line until a quantity of a GCRA limiter is admitted.
pub struct Bthrottle;

impl Command for Bthrottle {
    const SPEC: Spec = Spec {
        name: c"cl.bthrottle",
        summary: "Waits in line until a quantity of a GCRA limiter is admitted.",
        reply: "Replies limited, limit, remaining, retry_after and reset_after, or null when not admitted in time.",
        complexity: c"O(log N) where N is the number of callers waiting, O(N) to join those who wait by different limits.",
        since: c"1.0.0",
        arguments: &[
            KEY,
            MAX_BURST,
            COUNT,
            PERIOD,
            Argument::new(c"quantity", Kind::Integer, c"Units to wait for, 0 or more."),
            Argument::new(c"timeout", Kind::Double, c"How long to wait, always in seconds; 0 for no limit."),
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Blocking],
        keys: Keys::First,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, max_burst, count, period, quantity, timeout] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(7))?;
        let limit = [max_burst, count, period].map(|arg| call.bytes(arg));
        let limit = gcra::Limit::parse(limit, unit)?;
        let quantity = QUANTITY.parse(call.bytes(quantity))?;
        let patience = parse_timeout(call.bytes(timeout))?;
        let patience = if call.may_block() { patience } else { Some(Span::ZERO) };

        waiting::join(call, key, (&limit, quantity, unit), patience)
    }
}
