//! `CL.MSETTLE`

use super::arguments::UNIT;
use super::mtake::{LIMITERS, SEVERAL};
use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Spec, Type};
use crate::outcome::{Command, Outcome};
use crate::several::{Request, Verb};
use crate::tally::{Tally, tally};

/// Charges or gives back what several limiters of any kind were taken from.
pub struct Msettle;

impl Command for Msettle {
    const SPEC: Spec = Spec {
        name: c"cl.msettle",
        summary: "Charges differences to several limiters of any kind, or gives them back.",
        arguments: &[
            LIMITERS,
            Argument::new(
                c"age",
                Type::Integer,
                c"How long ago the units were taken, in units of time, at least 0.",
            )
            .after(c"AGO")
            .optional(),
            UNIT,
        ],
        flags: &[Flag::Write],
        ..SEVERAL
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let request = Request::parse(call, Verb::Settle)?;
        Ok(Outcome::SeveralStates(request.settle(call)?, request.unit))
    }
}
