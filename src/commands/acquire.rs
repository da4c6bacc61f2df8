//! `CL.ACQUIRE`

use redis_cell_core::lease::{self, Lease, Limit, Places};
use redis_cell_core::{Error, Tail};

use super::spec::{Argument, FIVE, ID, KEY, Kind, LEASE, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store::{self, Holder};

/// Gets one of a limited number of places, or renews the one held.
pub struct Acquire;

impl Command for Acquire {
    const SPEC: Spec = Spec {
        name: c"cl.acquire",
        summary: "Gets one of a limited number of places for a time, or renews the one held.",
        reply: FIVE,
        complexity: c"O(log N) where N is the number of holders, plus O(log N) for each ended lease removed.",
        since: c"1.0.0",
        arguments: &[
            KEY,
            Argument::new(c"limit", Kind::Integer, c"How many may hold a place at once, 1 or more."),
            LEASE,
            ID,
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom],
        keys: Keys::First,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, limit, lease, id] = call.positional()?;
        let unit = Tail::parse_unit(call.rest(5))?;
        let limit = Limit::parse(call.bytes(limit))?;
        let lease = Lease::parse(call.bytes(lease), unit)?;
        let answer = store::edit(call, key, |ends, now| {
            let places = Places { ends, own: ends.of(id)? };
            let decision = lease::acquire(&places, &limit, now, &lease)?;
            Ok((decision.answer, decision.change.map(|change| Holder { call, id, change })))
        })?;
        Ok(Outcome::Verdict(answer, unit))
    }
}
