//! `CL.BTHROTTLE key max_burst count period quantity timeout [S|MS|US]`

use redis_cell_core::{Error, QUANTITY, Span, Tail, gcra, parse_timeout};

use super::{Command, Flag, Keys, Spec};
use crate::ffi::Call;
use crate::waiting;

/// Waits in line until a quantity of a GCRA limiter is admitted.
pub struct Bthrottle;

impl Command for Bthrottle {
    const SPEC: Spec = Spec {
        name: c"cl.bthrottle",
        summary: c"Waits in line until a quantity of a GCRA limiter is admitted.",
        complexity: c"O(log N) where N is the number of callers waiting.",
        since: c"1.0.0",
        least_words: 7,
        flags: &[Flag::Write, Flag::DenyOom, Flag::Blocking],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let [key, max_burst, count, period, quantity, timeout] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(7))?;
        let limit = [max_burst, count, period].map(|arg| call.bytes(arg));
        let limit = gcra::Limit::parse(limit, unit)?;
        let quantity = QUANTITY.parse(call.bytes(quantity))?;
        let patience = parse_timeout(call.bytes(timeout))?;
        let patience = if call.may_block() { patience } else { Some(Span::ZERO) };

        if let Some(outcome) = waiting::join(call, key, (&limit, quantity, unit), patience)? {
            call.reply_outcome(&outcome);
        }
        Ok(())
    }
}
