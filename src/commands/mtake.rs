//! `CL.MTAKE`

use super::arguments::{KEY, LIMITER, UNIT};
use crate::calls::many::{self, Request};
use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Keys, Spec, Type};
use crate::limiters::{Limiter, Verb};
use crate::outcome::{Command, Outcome};
use crate::tally::{REPEATED, SHADOW_REFUSED, Tally, tally};

/// Takes from several limiters of any kind: from all of them, or from none.
pub struct Mtake;

/// The description that the commands for several limiters share.
pub const SEVERAL: Spec = Spec {
    reply: "Replies arrays of five integers, or of six with chains: the combined answer, then the answer of each limiter.",
    complexity: c"O(N log N) where N is the number of limiters, plus the cost of each limiter's own command.",
    keys: Keys::Found(many::keys),
    ..LIMITER
};

/// The word between two limiters of a chain.
const JOIN: Argument = Argument::new(
    c"join",
    Type::OneOf(&[
        Argument::token(
            c"ELSE",
            c"else",
            c"The next limiter is taken if this one does not admit its quantity.",
        ),
        Argument::token(c"SPILL", c"spill", c"What does not fit this limiter is taken from the next one."),
    ]),
    c"Joins this limiter and the next one to a chain.",
)
.optional();

/// The keys, and the limiter of each.
pub const LIMITERS: Argument =
    Argument::new(c"limiters", Type::Block(&[KEY, ANY_LIMITER, JOIN]), c"Keys, and the limiter of each.")
        .multiple();

/// The same, for commands whose limiters may be in shadow.
pub const SHADOWABLE_LIMITERS: Argument = Argument::new(
    c"limiters",
    Type::Block(&[
        KEY,
        Argument::token(c"SHADOW", c"shadow", c"This limiter refuses nothing, and takes only if it admits.")
            .optional(),
        ANY_LIMITER,
        JOIN,
    ]),
    c"Keys, and the limiter of each.",
)
.multiple();

/// The option by which a call may be repeated.
pub const ONCE: Argument = Argument::new(
    c"once",
    Type::Block(&[
        Argument::new(c"key", Type::Key, c"Key that holds the reply of an admitted call."),
        Argument::new(c"period", Type::Integer, c"How long it is kept, in units of time, at least 1."),
    ]),
    c"A call with this key that was admitted is not run again: the same reply is returned.",
)
.after(c"ONCE")
.optional();

/// The key of holds.
pub const HOLDS: Argument = Argument::new(c"key", Type::Key, c"Key that holds what its owners have taken.");

/// The owner of a hold.
pub const OWNER: Argument = Argument::new(c"id", Type::String, c"Name of the owner.");

/// The option by which units come back that are not settled in time.
pub const HOLD: Argument = Argument::new(
    c"hold",
    Type::Block(&[
        HOLDS,
        Argument::new(
            c"owner",
            Type::Block(&[
                Argument::new(
                    c"period",
                    Type::Integer,
                    c"How long the owner holds what it takes, in units of time, at least 1.",
                ),
                OWNER,
            ]),
            c"The owner; without one, nothing is held.",
        )
        .optional(),
    ]),
    c"Hold what is taken. What has run out of others comes back first.",
)
.after(c"HOLD")
.optional();

/// A limiter of any kind.
pub const ANY_LIMITER: Argument =
    Argument::new(c"limiter", Type::OneOf(Limiter::DOCUMENTED), c"Kind, limit and quantity of the limiter.");

impl Command for Mtake {
    const SPEC: Spec = Spec {
        name: c"cl.mtake",
        summary: "Takes from several limiters of any kind, from all or from none.",
        arguments: &[SHADOWABLE_LIMITERS, ONCE, HOLD, UNIT],
        flags: &[Flag::Write, Flag::DenyOom],
        ..SEVERAL
    };

    const TALLY: &Tally = tally!(SHADOW_REFUSED, REPEATED);

    fn run(call: &Call) -> Result<Outcome, Error> {
        Request::run(call, Verb::Take, |request| request.take(call))
    }
}
