//! `CL.BUCKET key capacity count period [quantity] [S|MS|US]`

use redis_cell_core::{Error, bucket};

use super::{Command, Flag, Keys, Spec, bucket_args};
use crate::ffi::Call;
use crate::store;

/// Takes a quantity of tokens from a bucket that refills.
pub struct Bucket;

impl Command for Bucket {
    const SPEC: Spec = Spec {
        name: c"cl.bucket",
        summary: c"Takes a quantity of tokens from a bucket that refills.",
        complexity: c"O(1)",
        since: c"1.0.0",
        least_words: 5,
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        keys: Keys::First,
    };

    fn run(call: &Call) -> Result<(), Error> {
        let (key, limit, tail) = bucket_args(call)?;
        let answer = store::update(call, key, |bucket: Option<store::bucket::Bucket>, now| {
            let decision = bucket::take(bucket.map(|bucket| bucket.0), &limit, now, tail.quantity)?;
            Ok(decision.map(|level| (store::bucket::Bucket(level), &limit)))
        })?;
        call.reply(&answer.reply(tail.unit));
        Ok(())
    }
}
