//! `CL.MSETTLE`

use super::arguments::{KEY, UNIT};
use super::bmtake::FLOW;
use super::mtake::{ANY_LIMITER, HOLDS, ONCE, OWNER, SEVERAL};
use crate::calls::many::{self, Request};
use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Keys, Spec, Type};
use crate::limiters::Verb;
use crate::outcome::{Command, Outcome};
use crate::tally::{OUT_OF_MEMORY, REPEATED, Tally, tally};

/// Charges several limiters of any kind, or gives back to them.
pub struct Msettle;

/// The keys, and the limiter of each, with the reply of the call that took the units.
const TAKEN_LIMITERS: Argument = Argument::new(
    c"limiters",
    Type::Block(&[
        KEY,
        Argument::new(
            c"reset_after",
            Type::Integer,
            c"The reset_after of this limiter when the units were taken; only with AGO.",
        )
        .after(c"RESET")
        .optional(),
        ANY_LIMITER,
    ]),
    c"Keys, and the limiter of each.",
)
.multiple();

/// The owner whose hold is settled.
const HOLD_OF: Argument = Argument::new(
    c"hold",
    Type::Block(&[HOLDS, OWNER]),
    c"Settle what the owner holds: each quantity is what was used, and the hold ends.",
)
.after(c"HOLD")
.optional();

impl Command for Msettle {
    const SPEC: Spec = Spec {
        name: c"cl.msettle",
        summary: "Charges differences to several limiters of any kind, or gives them back.",
        arguments: &[
            TAKEN_LIMITERS,
            Argument::new(
                c"age",
                Type::Integer,
                c"How long ago the units were taken, in units of time, at least 0.",
            )
            .after(c"AGO")
            .optional(),
            FLOW,
            ONCE,
            HOLD_OF,
            UNIT,
        ],
        reply: "Replies arrays of five integers: the combined answer, then the answer of each limiter.",
        flags: &[Flag::Write],
        keys: Keys::Found(many::keys_of_settlement),
        ..SEVERAL
    };

    const TALLY: &Tally = tally!(OUT_OF_MEMORY, REPEATED);

    fn run(call: &Call) -> Result<Outcome, Error> {
        Request::run(call, Verb::Settle, |request| request.settle(call))
    }
}
