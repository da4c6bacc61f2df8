//! `CL.PEEK`

use redis_cell_core::{Error, gcra};

use super::spec::{COUNT, FIVE, KEY, MAX_BURST, PERIOD, QUANTITY, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, gcra_args, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::{store, waiting};

/// Tells what CL.THROTTLE would answer, and changes nothing.
pub struct Peek;

impl Command for Peek {
    const SPEC: Spec = Spec {
        name: c"cl.peek",
        summary: "Tells what CL.THROTTLE would answer, and changes nothing.",
        reply: FIVE,
        complexity: c"O(1)",
        since: c"1.0.0",
        arguments: &[KEY, MAX_BURST, COUNT, PERIOD, QUANTITY, UNIT],
        flags: &[Flag::ReadOnly, Flag::Fast],
        keys: Keys::First,
        uses: Use::Look,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = gcra_args(call, &[])?;
        let answer = store::look(call, key, |tat, now| {
            gcra::peek(waiting::seen(call, key, tat, now)?, &limit, now, tail.quantity)
        })?;
        Ok(Outcome::State(answer, tail.unit))
    }
}
