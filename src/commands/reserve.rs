//! `CL.RESERVE`

use redis_cell_core::{Error, Keyword, gcra};

use super::spec::{Argument, COUNT, FIVE, KEY, Kind, MAX_BURST, PERIOD, QUANTITY, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, gcra_args, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store;

/// Books a quantity of a GCRA limiter and tells how long to wait before acting on it.
pub struct Reserve;

impl Command for Reserve {
    const SPEC: Spec = Spec {
        name: c"cl.reserve",
        summary: "Books a quantity of a GCRA limiter and tells how long to wait before acting on it.",
        reply: FIVE,
        complexity: c"O(1)",
        since: c"1.0.0",
        arguments: &[
            KEY,
            MAX_BURST,
            COUNT,
            PERIOD,
            QUANTITY,
            Argument::new(c"wait", Kind::Integer, c"Refuse a longer wait than this, in units of time.")
                .behind(c"MAXWAIT")
                .optional(),
            Argument::word(c"PREPAY", c"prepay", c"Let the next caller wait for what this call costs.")
                .optional(),
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = gcra_args(call, &[Keyword::MaxWait, Keyword::Prepay])?;
        let booking = gcra::Booking { max_wait: tail.max_wait()?, prepay: tail.prepay };
        let answer = store::update_behind_line(call, key, |tat, now| {
            gcra::reserve(tat, &limit, now, tail.quantity, booking)
        })?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
