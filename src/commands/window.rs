//! `CL.WINDOW`

use redis_cell_core::window::Sliding;

use super::arguments::{KEY, LIMITER, QUANTITY, SATURATE, UNIT, WITH_TAKEN};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::limiters::arguments::{LIMIT, PERIOD};
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};

/// Takes a quantity from a sliding window: two counters, of which the older one fades.
pub struct Window;

impl Command for Window {
    const SPEC: Spec = Spec {
        name: c"cl.window",
        summary: "Takes a quantity from a sliding window of two counters.",
        reply: WITH_TAKEN,
        arguments: &[KEY, LIMIT, PERIOD, QUANTITY, SATURATE, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        one::take::<Sliding>(call)
    }
}
