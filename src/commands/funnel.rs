//! `CL.FUNNEL key capacity count period [quantity] [S|MS|US]`

use redis_cell_core::{Error, bucket};

use super::{Command, Flag, Keys, Spec, bucket_args};
use crate::ffi::Call;
use crate::store;

/// Pours a quantity into a funnel that leaks: the leaky bucket as a meter.
pub struct Funnel;

impl Command for Funnel {
    const SPEC: Spec = Spec {
        name: c"cl.funnel",
        summary: c"Pours a quantity into a funnel that leaks.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 5,
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = bucket_args(call)?;
        let answer = store::update(call, key, |funnel: Option<store::bucket::Funnel>, now| {
            let decision = bucket::take(funnel.map(|funnel| funnel.0), &limit, now, tail.quantity)?;
            Ok(decision.map(|level| (store::bucket::Funnel(level), &limit)))
        })?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
