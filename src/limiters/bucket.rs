//! The funnel and the token bucket of `CL.FUNNEL` and `CL.BUCKET`: two names of one algorithm.

use redis_cell_core::Unit;
use redis_cell_core::bucket::{self, Level, Limit};
use redis_cell_core::several::Grammar;

use super::arguments::{COUNT, PERIOD, QUANTITY, kind};
use super::kind::Arguments;
use super::whole::Whole;
use crate::error::Error;
use crate::ffi::{Argument, Type};
use crate::store::bucket::{Bucket, Funnel};

/// The depth.
pub const CAPACITY: Argument =
    Argument::new(c"capacity", Type::Integer, c"Units allowed at once, at least 1.");

macro_rules! bucket {
    ($state:ident, $grammar:expr, $documented:expr) => {
        impl Whole for $state {
            const GRAMMAR: Grammar = $grammar;
            const DOCUMENTED: Argument = $documented;

            type Stored = (Self, Limit);

            #[inline]
            fn limit(arguments: &Arguments, unit: Unit) -> Result<Limit, Error> {
                Ok(Limit::parse(arguments.words()?, unit)?)
            }

            fn state(self) -> Level {
                self.0
            }

            fn stored(level: Level, limit: &Limit) -> (Self, Limit) {
                (Self(level), *limit)
            }
        }
    };
}

const ARGUMENTS: &[Argument] = &[CAPACITY, COUNT, PERIOD, QUANTITY];

bucket!(Funnel, bucket::FUNNEL, kind(c"FUNNEL", c"funnel", c"As CL.FUNNEL.", ARGUMENTS));
bucket!(Bucket, bucket::BUCKET, kind(c"BUCKET", c"bucket", c"As CL.BUCKET.", ARGUMENTS));
