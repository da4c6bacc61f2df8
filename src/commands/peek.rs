//! `CL.PEEK`

use redis_cell_core::gcra::Tat;

use super::arguments::{KEY, LIMITER, QUANTITY, UNIT};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec, Use};
use crate::limiters::arguments::{COUNT, PERIOD};
use crate::limiters::gcra::MAX_BURST;
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};

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
        one::peek::<Tat>(call)
    }
}
