//! `CL.RENEW`

use redis_cell_core::lease::{self, Lease, Places};
use redis_cell_core::{Error, Tail};

use super::spec::{ID, KEY, LEASE, UNIT};
use super::{Command, Flag, Keys, Spec, Use, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store::{self, Holder};

/// Sets the end of a lease anew.
pub struct Renew;

impl Command for Renew {
    const SPEC: Spec = Spec {
        name: c"cl.renew",
        summary: "Sets the end of a lease anew, if it has not ended.",
        reply: "Replies 1, or 0 when the holder has no place.",
        complexity: c"O(log N) where N is the number of holders.",
        since: c"1.0.0",
        arguments: &[KEY, LEASE, ID, UNIT],
        flags: &[Flag::Write],
        keys: Keys::First,
        uses: Use::Change,
        tips: c"",
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, lease, id] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(4))?;
        let lease = Lease::parse(call.bytes(lease), unit)?;
        let renewed = store::edit(call, key, |ends, now| {
            let change = lease::renew(&Places { ends, own: ends.of(id)? }, now, &lease)?;
            Ok((!change.is_keep(), change.map(|change| Holder { call, id, change })))
        })?;
        Ok(Outcome::Held(renewed))
    }
}
