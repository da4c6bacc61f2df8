//! `CL.RENEW`

use redis_cell_core::Tail;
use redis_cell_core::lease::{self, Lease};

use super::arguments::{KEY, LIMITER, UNIT};
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec, Use};
use crate::limiters::lease::{ID, LEASE};
use crate::outcome::{Command, Outcome};
use crate::store;
use crate::tally::{Tally, tally};

/// Sets another end for a lease.
pub struct Renew;

impl Command for Renew {
    const SPEC: Spec = Spec {
        name: c"cl.renew",
        summary: "Sets another end for a lease that has not ended.",
        reply: "Replies 1, or 0 when the holder has no place.",
        complexity: c"O(log N) where N is the number of holders.",
        arguments: &[KEY, LEASE, ID, UNIT],
        flags: &[Flag::Write],
        uses: Use::Update,
        tips: c"",
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, lease, id] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(4))?;
        let lease = Lease::parse(call.bytes(lease), unit)?;
        let renewed = store::lease::update(call, key, id, Some(&lease), |places, now| {
            let change = lease::renew(places, now, &lease)?;
            Ok((!change.is_keep(), change))
        })?;
        Ok(Outcome::Held(renewed))
    }
}
