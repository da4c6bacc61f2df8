//! `CL.RESERVE`

use redis_cell_core::TailOption;
use redis_cell_core::gcra::{self, Tat};

use super::arguments::{KEY, LIMITER, QUANTITY, UNIT};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Spec, Type};
use crate::limiters::arguments::{COUNT, PERIOD};
use crate::limiters::gcra::MAX_BURST;
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};
use crate::waiting::{self, Order};

/// Books a quantity of a GCRA limiter, and returns how long to wait before using it.
pub struct Reserve;

impl Command for Reserve {
    const SPEC: Spec = Spec {
        name: c"cl.reserve",
        summary: "Books a quantity of a GCRA limiter, and returns how long to wait before using it.",
        arguments: &[
            KEY,
            MAX_BURST,
            COUNT,
            PERIOD,
            QUANTITY,
            Argument::new(
                c"wait",
                Type::Integer,
                c"Longest acceptable wait in units of time, at least 0; unlimited by default.",
            )
            .after(c"MAXWAIT")
            .optional(),
            Argument::token(c"PREPAY", c"prepay", c"Let the next call wait for the cost of this one.")
                .optional(),
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = one::arguments::<Tat>(call, &[TailOption::MaxWait, TailOption::Prepay])?;
        let booking = gcra::Booking { max_wait: tail.max_wait()?, prepay: tail.prepay };
        let answer = waiting::update(call, key, Order::Behind, limit.tolerance(), |tat, now| {
            gcra::reserve(tat, &limit, now, tail.quantity, booking)
        })?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
