//! `CL.RELEASE`

use redis_cell_core::Error;
use redis_cell_core::lease::{self, Places};

use super::spec::{ID, KEY};
use super::{Command, Flag, Keys, Spec, Use, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store::{self, Holder};

/// Gives a place back before its lease ends.
pub struct Release;

impl Command for Release {
    const SPEC: Spec = Spec {
        name: c"cl.release",
        summary: "Gives a place back before its lease ends.",
        reply: "Replies 1, or 0 when the holder had no place.",
        complexity: c"O(log N) where N is the number of holders; O(N) when nobody holds a place any more.",
        since: c"1.0.0",
        arguments: &[KEY, ID],
        flags: &[Flag::Write],
        keys: Keys::First,
        uses: Use::Delete,
        tips: c"",
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, id] = call.positional()?;
        if call.rest(3).next().is_some() {
            return Err(Error::Syntax);
        }
        let released = store::edit(call, key, |ends, now| {
            let change = lease::release(&Places { ends, own: ends.of(id)? }, now)?;
            Ok((!change.is_keep(), change.map(|change| Holder { call, id, change })))
        })?;
        Ok(Outcome::Held(released))
    }
}
