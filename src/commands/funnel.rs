//! `CL.FUNNEL`

use redis_cell_core::{Error, bucket};

use super::spec::{CAPACITY, COUNT, FIVE, KEY, PERIOD, QUANTITY, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, bucket_args, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store;

/// Pours a quantity into a funnel that leaks: the leaky bucket as a meter.
pub struct Funnel;

impl Command for Funnel {
    const SPEC: Spec = Spec {
        name: c"cl.funnel",
        summary: "Pours a quantity into a funnel that leaks.",
        reply: FIVE,
        complexity: c"O(1)",
        since: c"1.0.0",
        arguments: &[KEY, CAPACITY, COUNT, PERIOD, QUANTITY, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (key, limit, tail) = bucket_args(call)?;
        let answer = store::update(call, key, |funnel: Option<store::bucket::Funnel>, now| {
            let decision = bucket::take(funnel.map(|funnel| funnel.0), &limit, now, tail.quantity)?;
            Ok(decision.map(|level| (store::bucket::Funnel(level), &limit)))
        })?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
