//! `CL.FIXED`

use redis_cell_core::{Error, window};

use super::spec::{FIVE, KEY, LIMIT, PERIOD, QUANTITY, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, tally, window_args};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store;

/// Takes a quantity from a fixed window: a counter that starts anew when its key expires.
pub struct Fixed;

impl Command for Fixed {
    const SPEC: Spec = Spec {
        name: c"cl.fixed",
        summary: "Takes a quantity from a fixed window.",
        reply: FIVE,
        complexity: c"O(1)",
        since: c"1.0.0",
        arguments: &[KEY, LIMIT, PERIOD, QUANTITY, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = window_args(call)?;
        let answer =
            store::update(call, key, |counter, now| window::fixed(counter, &limit, now, tail.quantity))?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
