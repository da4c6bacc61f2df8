//! The sliding window of `CL.WINDOW`.

use redis_cell_core::Unit;
use redis_cell_core::several::Grammar;
use redis_cell_core::window::{self, Limit, Sliding};

use super::arguments::{LIMIT, PERIOD, QUANTITY, kind};
use super::kind::Arguments;
use super::whole::Whole;
use crate::error::Error;
use crate::ffi::Argument;

impl Whole for Sliding {
    const GRAMMAR: Grammar = window::GRAMMAR;
    const DOCUMENTED: Argument = kind(c"WINDOW", c"window", c"As CL.WINDOW.", &[LIMIT, PERIOD, QUANTITY]);

    type Stored = (Self, Limit);

    #[inline]
    fn limit(arguments: &Arguments, unit: Unit) -> Result<Limit, Error> {
        Ok(Limit::parse(arguments.words()?, unit)?)
    }

    fn state(self) -> Self {
        self
    }

    fn stored(window: Self, limit: &Limit) -> (Self, Limit) {
        (window, *limit)
    }
}
