//! `CL.BUCKET`

use super::arguments::{KEY, LIMITER, QUANTITY, SATURATE, UNIT, WITH_TAKEN};
use crate::calls::one;
use crate::error::Error;
use crate::ffi::{Call, Flag, Spec};
use crate::limiters::arguments::{COUNT, PERIOD};
use crate::limiters::bucket::CAPACITY;
use crate::outcome::{Command, Outcome};
use crate::store::bucket;
use crate::tally::{Tally, tally};

/// Takes a quantity of tokens from a bucket that refills.
pub struct Bucket;

impl Command for Bucket {
    const SPEC: Spec = Spec {
        name: c"cl.bucket",
        summary: "Takes a quantity of tokens from a bucket that refills.",
        reply: WITH_TAKEN,
        arguments: &[KEY, CAPACITY, COUNT, PERIOD, QUANTITY, SATURATE, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        one::take::<bucket::Bucket>(call)
    }
}
