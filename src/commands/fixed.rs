//! `CL.FIXED`

use redis_cell_core::Tail;
use redis_cell_core::fixed::{self, Counter, Window};

use super::arguments::{KEY, LIMITER, QUANTITY, SATURATE, UNIT, WITH_TAKEN};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::limiters::arguments::LIMIT;
use crate::limiters::fixed::{FROM, IDLE, UTC, WINDOW};
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};

/// Takes a quantity from a fixed window: a counter that expires with its window.
pub struct Fixed;

impl Command for Fixed {
    const SPEC: Spec = Spec {
        name: c"cl.fixed",
        summary: "Takes a quantity from a fixed window.",
        reply: WITH_TAKEN,
        arguments: &[KEY, LIMIT, WINDOW, IDLE, QUANTITY, SATURATE, UTC, FROM, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, limit] = call.positional::<2>()?;
        let mut words = call.rest(3);
        let window = Window::parse(&mut words)?;
        let tail = Tail::parse(words, window.keywords())?;
        let limit = fixed::Limit::parse(call.bytes(limit), window, [tail.utc, tail.from], tail.unit)?;
        one::take_from::<Counter>(call, key, limit, &tail)
    }
}
