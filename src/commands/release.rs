//! `CL.RELEASE key id`

use redis_cell_core::Error;
use redis_cell_core::lease::{self, Places};

use super::{Command, Flag, Keys, Spec};
use crate::ffi::Call;
use crate::store::{self, Holder};

/// Gives a place back before its lease ends.
pub struct Release;

impl Command for Release {
    const SPEC: Spec = Spec {
        name: c"cl.release",
        summary: c"Gives a place back before its lease ends.",
        complexity: c"O(log N) where N is the number of holders; O(N) when nobody holds a place any more.",
        since: c"1.0.0",
        least_words: 3,
        flags: &[Flag::Write],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let [key, id] = call.positional()?;
        if call.rest(3).next().is_some() {
            return Err(Error::Syntax);
        }
        let released = store::edit(call, key, |ends, now| {
            let change = lease::release(&Places { ends, own: ends.of(id)? }, now)?;
            Ok((!change.is_keep(), change.map(|change| Holder { id: call.bytes(id), change })))
        })?;
        call.reply_whether(released);
        Ok(())
    }
}
