//! `CL.WINDOW`

use redis_cell_core::{Keyword, Tail, window};

use super::arguments::{KEY, LIMIT, LIMITER, PERIOD, QUANTITY, SATURATE, UNIT, WITH_TAKEN};
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::outcome::{Command, Outcome};
use crate::store;
use crate::tally::{Tally, tally};
use crate::waiting;

/// Takes a quantity from a sliding window: two counters, of which the older one fades.
pub struct Window;

impl Command for Window {
    const SPEC: Spec = Spec {
        name: c"cl.window",
        summary: "Takes a quantity from a sliding window of two counters.",
        reply: WITH_TAKEN,
        arguments: &[KEY, LIMIT, PERIOD, QUANTITY, SATURATE, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, limit @ ..] = call.positional::<3>()?;
        let tail = Tail::parse(call.rest(4), &[Keyword::Saturate])?;
        let limit = window::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
        let answer = store::update(call, key, &limit, |window, now| {
            let ahead = waiting::ahead(call, key);
            // Not by a pointer to either function, which would not be inlined.
            let decision = if ahead > 0 {
                let decide = if tail.saturate { window::saturate } else { window::take };
                waiting::behind_apart(limit, window, now, tail.quantity, ahead, decide)
            } else if tail.saturate {
                window::saturate(window, &limit, now, tail.quantity)
            } else {
                window::take(window, &limit, now, tail.quantity)
            };
            Ok(decision?.map(|window| (window, limit)))
        })?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
