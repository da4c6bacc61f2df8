//! `CL.THROTTLE`

use redis_cell_core::gcra::Tat;

use super::arguments::{KEY, LIMITER, QUANTITY, SATURATE, UNIT, WITH_TAKEN};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::limiters::arguments::{COUNT, PERIOD};
use crate::limiters::gcra::MAX_BURST;
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};

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
        one::take::<Tat>(call)
    }
}
