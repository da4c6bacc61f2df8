//! `CL.FUNNEL`

use redis_cell_core::bucket;

use super::arguments::{
    CAPACITY, COUNT, KEY, LIMITER, PERIOD, QUANTITY, SATURATE, UNIT, WITH_TAKEN, bucket_args,
};
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::outcome::{Command, Outcome};
use crate::store;
use crate::tally::{Tally, tally};
use crate::waiting;

/// Pours a quantity into a funnel that leaks: the leaky bucket as a meter.
pub struct Funnel;

impl Command for Funnel {
    const SPEC: Spec = Spec {
        name: c"cl.funnel",
        summary: "Pours a quantity into a funnel that leaks.",
        reply: WITH_TAKEN,
        arguments: &[KEY, CAPACITY, COUNT, PERIOD, QUANTITY, SATURATE, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = bucket_args(call)?;
        let decide = if tail.saturate { bucket::saturate } else { bucket::take };
        let answer = store::update(call, key, &limit, |funnel: Option<store::bucket::Funnel>, now| {
            let (funnel, ahead) = (funnel.map(|funnel| funnel.0), waiting::ahead(call, key));
            let decision = waiting::behind(&limit, funnel, now, tail.quantity, ahead, |level| {
                decide(level, &limit, now, tail.quantity)
            })?;
            Ok(decision.map(|level| (store::bucket::Funnel(level), limit)))
        })?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
