//! The fixed window of `CL.FIXED`.

use redis_cell_core::Unit;
use redis_cell_core::fixed::{self, Counter, Limit};
use redis_cell_core::several::Grammar;

use super::arguments::{LIMIT, PERIOD, QUANTITY, kind};
use super::kind::Arguments;
use super::whole::Whole;
use crate::error::Error;
use crate::ffi::{Argument, Type};

/// The window of a limit.
pub const WINDOW: Argument = Argument::new(
    c"window",
    Type::OneOf(&[
        PERIOD,
        Argument::token(c"HOUR", c"hour", c"Until the next full hour."),
        Argument::token(c"DAY", c"day", c"Until midnight."),
        Argument::token(c"WEEK", c"week", c"Until the next Monday, or the day of FROM."),
        Argument::token(c"MONTH", c"month", c"Until the first day of a month, or the day of FROM."),
        Argument::token(c"YEAR", c"year", c"Until the first of January."),
        Argument::new(c"instant", Type::Integer, c"The end of the window, as Unix time in units of time.")
            .after(c"UNTIL"),
        Argument::token(
            c"TOTAL",
            c"total",
            c"No end: the count is kept until its key is deleted or expires.",
        ),
    ]),
    c"The window, computed when it opens.",
);

/// The time after which an idle total is forgotten.
pub const IDLE: Argument = Argument::new(
    c"period",
    Type::Integer,
    c"With TOTAL: the key expires when nothing was taken for this time, in units of time, at least 1.",
)
.after(c"IDLE")
.optional();

/// The offset of a calendar.
pub const UTC: Argument = Argument::new(
    c"minutes",
    Type::Integer,
    c"Minutes by which local time is ahead of UTC, from -840 to 840; 0 by default.",
)
.after(c"UTC")
.optional();

/// The first day of a calendar's weeks or months.
pub const FROM: Argument = Argument::new(
    c"day",
    Type::Integer,
    c"Day on which weeks begin, from 1 (Monday) to 7, or months, from 1 to 31; 1 by default.",
)
.after(c"FROM")
.optional();

impl Whole for Counter {
    const GRAMMAR: Grammar = fixed::GRAMMAR;
    const DOCUMENTED: Argument =
        kind(c"FIXED", c"fixed", c"As CL.FIXED.", &[LIMIT, WINDOW, IDLE, UTC, FROM, QUANTITY]);

    type Stored = Self;

    #[inline]
    fn limit(arguments: &Arguments, unit: Unit) -> Result<Limit, Error> {
        Ok(Limit::parse_words(&mut arguments.iter(), unit)?)
    }

    fn state(self) -> Self {
        self
    }

    fn stored(counter: Self, _: &Limit) -> Self {
        counter
    }

    fn is_endless(limit: &Limit) -> bool {
        limit.is_total()
    }
}
