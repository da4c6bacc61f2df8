//! `CL.RELEASE`

use redis_cell_core::lease;

use super::arguments::{KEY, LIMITER};
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec, Use};
use crate::limiters::lease::ID;
use crate::outcome::{Command, Outcome};
use crate::store;
use crate::tally::{Tally, tally};

/// Gives a place back before its lease ends.
pub struct Release;

impl Command for Release {
    const SPEC: Spec = Spec {
        name: c"cl.release",
        summary: "Gives a place back before its lease ends.",
        reply: "Replies 1, or 0 when the holder had no place.",
        complexity: c"O(log N) where N is the number of holders.",
        arguments: &[KEY, ID],
        flags: &[Flag::Write],
        uses: Use::Delete,
        tips: c"",
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, id] = call.positional()?;
        if call.rest(3).next().is_some() {
            return Err(Error::SYNTAX);
        }
        let released = store::lease::update(call, key, id, None, |places, now| {
            let change = lease::release(places, now)?;
            Ok((!change.is_keep(), change))
        })?;
        Ok(Outcome::Held(released))
    }
}
