//! `CL.PEEK`

use redis_cell_core::gcra;
use redis_cell_core::limiter::Limiter;

use super::arguments::{COUNT, KEY, LIMITER, MAX_BURST, PERIOD, QUANTITY, UNIT, gcra_args};
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec, Use};
use crate::outcome::{Command, Outcome};
use crate::store;
use crate::tally::{Tally, tally};
use crate::waiting::{self, Order};

/// Returns what CL.THROTTLE would reply, without changing anything.
pub struct Peek;

impl Command for Peek {
    const SPEC: Spec = Spec {
        name: c"cl.peek",
        summary: "Returns what CL.THROTTLE would reply, without changing anything.",
        arguments: &[KEY, MAX_BURST, COUNT, PERIOD, QUANTITY, UNIT],
        flags: &[Flag::ReadOnly, Flag::Fast],
        uses: Use::Read,
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer = store::look(call, key, &limit, |tat, now| {
            let tat = waiting::seen(call, key, Order::Behind, tat, now)?;
            let ahead = waiting::ahead(call, key);
            let tat = if ahead == 0 { tat } else { limit.charged(tat, now, ahead)? };
            gcra::peek(tat, &limit, now, tail.quantity)
        })?;
        Ok(Outcome::State(answer, tail.unit))
    }
}
