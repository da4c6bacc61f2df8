//! `CL.FIXED`

use redis_cell_core::Tail;
use redis_cell_core::fixed::{self, Window};

use super::arguments::{KEY, LIMIT, LIMITER, PERIOD, QUANTITY, SATURATE, UNIT, WITH_TAKEN};
use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Spec, Type};
use crate::outcome::{Command, Outcome};
use crate::store;
use crate::tally::{Tally, tally};
use crate::waiting;

/// Takes a quantity from a fixed window: a counter that expires with its window.
pub struct Fixed;

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
    ]),
    c"The window, computed when it opens.",
);

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

impl Command for Fixed {
    const SPEC: Spec = Spec {
        name: c"cl.fixed",
        summary: "Takes a quantity from a fixed window.",
        reply: WITH_TAKEN,
        arguments: &[KEY, LIMIT, WINDOW, QUANTITY, SATURATE, UTC, FROM, UNIT],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Fast],
        ..LIMITER
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let [key, limit] = call.positional::<2>()?;
        let mut words = call.rest(3);
        let window = Window::parse(&mut words)?;
        let tail = Tail::parse(words, window.keywords())?;
        let limit = fixed::Limit::parse(call.bytes(limit), window, [tail.utc, tail.from], tail.unit)?;
        let answer = store::update(call, key, &limit, |counter, now| {
            let ahead = waiting::ahead(call, key);
            if ahead > 0 {
                let decide = if tail.saturate { fixed::saturate } else { fixed::take };
                return waiting::behind_apart(limit, counter, now, tail.quantity, ahead, decide);
            }
            // Not by a pointer to either function, which would not be inlined.
            if tail.saturate {
                fixed::saturate(counter, &limit, now, tail.quantity)
            } else {
                fixed::take(counter, &limit, now, tail.quantity)
            }
        })?;
        Ok(Outcome::Verdict(answer, tail.unit))
    }
}
