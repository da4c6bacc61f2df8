//! `CL.THROTTLE`

use redis_cell_core::{Keyword, gcra};

use super::arguments::{
    COUNT, KEY, LIMITER, MAX_BURST, PERIOD, QUANTITY, SATURATE, UNIT, WITH_TAKEN, gcra_args,
};
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};
use crate::waiting::{self, Order};

/// Takes a quantity from a GCRA limiter. Compatible with `brandur/redis-cell`.
pub struct Throttle;

impl Command for Throttle {
    const SPEC: Spec = Spec {
        name: c"cl.throttle",
        summary: "Takes a quantity from a GCRA limiter.",
        reply: WITH_TAKEN,
        arguments: &[KEY, MAX_BURST, COUNT, PERIOD, QUANTITY, SATURATE, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = gcra_args(call, &[Keyword::Saturate])?;
        let decide = if tail.saturate { gcra::saturate } else { gcra::throttle };
        let answer = waiting::update(call, key, Order::Behind, limit.tolerance(), |tat, now| {
            waiting::behind(&limit, tat, now, tail.quantity, waiting::ahead(call, key), |tat| {
                decide(tat, &limit, now, tail.quantity)
            })
        })?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
