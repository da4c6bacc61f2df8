//! `CL.ACQUIRE`

use redis_cell_core::Tail;
use redis_cell_core::lease::{Lease, Limit};

use super::arguments::{KEY, LIMITER, UNIT};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::limiters::LeaseCall;
use crate::limiters::lease::{ID, LEASE, PLACES};
use crate::outcome::{Command, Outcome};
use crate::tally::{Tally, tally};

/// Gets one of a limited number of places, or renews the one held.
pub struct Acquire;

impl Command for Acquire {
    const SPEC: Spec = Spec {
        name: c"cl.acquire",
        summary: "Gets one of a limited number of places for a time, or renews the one held.",
        complexity: c"O(log N) where N is the number of holders, plus O(log N) for each ended lease removed.",
        arguments: &[KEY, PLACES, LEASE, ID, UNIT],
        flags: &[Flag::Write, Flag::DenyOom],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, limit, lease, id] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(5))?;
        let limit = Limit::parse(call.bytes(limit))?;
        let lease = Lease::parse(call.bytes(lease), unit)?;
        one::take_by(call, key, LeaseCall { limit, lease: Some(lease), id }, unit)
    }
}
