//! `CL.ACQUIRE key limit lease id [S|MS|US]`

use redis_cell_core::lease::{self, Lease, Limit, Places};
use redis_cell_core::{Error, Tail};

use super::{Command, Flag, Keys, Spec};
use crate::ffi::Call;
use crate::store::{self, Holder};

/// Gets one of a limited number of places, or renews the one held.
pub struct Acquire;

impl Command for Acquire {
    const SPEC: Spec = Spec {
        name: c"cl.acquire",
        summary: c"Gets one of a limited number of places for a time, or renews the one held.",
        complexity: c"O(log N + M) where N is the number of holders and M the expired leases removed.",
        since: c"1.0.0",
        least_words: 5,
        flags: &[Flag::Write, Flag::DenyOom],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let [key, limit, lease, id] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(5))?;
        let limit = Limit::parse(call.bytes(limit))?;
        let lease = Lease::parse(call.bytes(lease), unit)?;
        let answer = store::edit(call, key, |ends, now| {
            let places = Places { ends, own: ends.of(id)? };
            let decision = lease::acquire(&places, &limit, now, &lease)?;
            Ok((decision.answer, decision.change.map(|change| Holder { id: call.bytes(id), change })))
        })?;
        call.reply(&answer.reply(unit));
        Ok(())
    }
}
