//! `CL.PAUSE`

use redis_cell_core::{Span, Tail, gcra};

use super::arguments::{KEY, LIMITER, UNIT};
use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Spec, Type};
use crate::limiters::arguments::{COUNT, PERIOD};
use crate::limiters::gcra::MAX_BURST;
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};
use crate::waiting::{self, Order};

/// Admits nobody to a GCRA limiter before a wait is over, and then one unit at a time.
pub struct Pause;

impl Command for Pause {
    const SPEC: Spec = Spec {
        name: c"cl.pause",
        summary: "Admits nobody to a GCRA limiter before a wait is over, and then one unit at a time.",
        arguments: &[
            KEY,
            MAX_BURST,
            COUNT,
            PERIOD,
            Argument::new(c"wait", Type::Integer, c"Length of the pause in units of time, at least 0."),
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, max_burst, count, period, wait] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(6))?;
        let limit = gcra::Limit::parse([max_burst, count, period].map(|arg| call.bytes(arg)), unit)?;
        let wait = gcra::WAIT.parse_span(call.bytes(wait), unit)?;
        let most = limit.debt_of_pause(wait).unwrap_or(Span::MAX); // more than that is another pause's
        let answer = waiting::update(call, key, Order::ForAll, most, |tat, now| {
            gcra::pause(tat, &limit, now, wait).map_err(|_| gcra::waits(&limit, now, unit).error())
        })?;
        Ok(Outcome::State(answer, unit))
    }
}
