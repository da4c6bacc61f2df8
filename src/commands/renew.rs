//! `CL.RENEW key lease id [S|MS|US]`

use redis_cell_core::lease::{self, Lease, Places};
use redis_cell_core::{Error, Tail};

use super::{Command, Flag, Keys, Spec};
use crate::ffi::Call;
use crate::store::{self, Holder};

/// Sets the end of a lease anew.
pub struct Renew;

impl Command for Renew {
    const SPEC: Spec = Spec {
        name: c"cl.renew",
        summary: c"Sets the end of a lease anew, if it has not ended.",
        complexity: c"O(log N) where N is the number of holders.",
        since: c"1.0.0",
        least_words: 4,
        flags: &[Flag::Write],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let [key, lease, id] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(4))?;
        let lease = Lease::parse(call.bytes(lease), unit)?;
        let renewed = store::edit(call, key, |ends, now| {
            let change = lease::renew(&Places { ends, own: ends.of(id)? }, now, &lease)?;
            Ok((!change.is_keep(), change.map(|change| Holder { id: call.bytes(id), change })))
        })?;
        call.reply_whether(renewed);
        Ok(())
    }
}
