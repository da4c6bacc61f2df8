//! `CL.BUCKET`

use redis_cell_core::{Error, bucket};

use super::spec::{CAPACITY, COUNT, FIVE, KEY, PERIOD, QUANTITY, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, bucket_args, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::store;

/// Takes a quantity of tokens from a bucket that refills.
pub struct Bucket;

impl Command for Bucket {
    const SPEC: Spec = Spec {
        name: c"cl.bucket",
        summary: "Takes a quantity of tokens from a bucket that refills.",
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
        let answer = store::update(call, key, |bucket: Option<store::bucket::Bucket>, now| {
            let decision = bucket::take(bucket.map(|bucket| bucket.0), &limit, now, tail.quantity)?;
            Ok(decision.map(|level| (store::bucket::Bucket(level), &limit)))
        })?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
