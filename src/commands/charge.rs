//! `CL.CHARGE`

use redis_cell_core::gcra::{self, Tat};

use super::arguments::{KEY, LIMITER, QUANTITY, UNIT};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::limiters::arguments::{COUNT, PERIOD};
use crate::limiters::gcra::MAX_BURST;
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};
use crate::waiting::{self, Order};

/// Takes a quantity from a GCRA limiter, even if it exceeds the limit.
pub struct Charge;

impl Command for Charge {
    const SPEC: Spec = Spec {
        name: c"cl.charge",
        summary: "Takes a quantity from a GCRA limiter, even if it exceeds the limit.",
        arguments: &[KEY, MAX_BURST, COUNT, PERIOD, QUANTITY, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = one::arguments::<Tat>(call, &[])?;
        let answer = waiting::update(call, key, Order::Before, limit.tolerance(), |tat, now| {
            gcra::charge(tat, &limit, now, tail.quantity)
        })?;
        Ok(Outcome::State(answer, tail.unit))
    }
}
