//! `CL.MPEEK`

use super::arguments::UNIT;
use super::mtake::{HOLD, LIMITERS, SEVERAL};
use crate::calls::many::Request;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec, Use};
use crate::limiters::Verb;
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};

/// Returns what CL.MTAKE would reply, without changing anything.
pub struct Mpeek;

impl Command for Mpeek {
    const SPEC: Spec = Spec {
        name: c"cl.mpeek",
        summary: "Returns what CL.MTAKE would reply, without changing anything.",
        arguments: &[LIMITERS, HOLD, UNIT],
        flags: &[Flag::ReadOnly],
        uses: Use::Read,
        ..SEVERAL
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        Request::run(call, Verb::Peek, |request| request.peek(call))
    }
}
