//! `CL.TOP`

use redis_cell_core::Range;

use crate::error::Error;
use crate::ffi::{Argument, Call, Flag, Keys, Spec, Type, Use};
use crate::outcome::{Command, Outcome};
use crate::refusals;
use crate::tally::{Tally, tally};

/// The number of keys returned by default.
const DEFAULT: usize = 10;

const COUNT: Range = Range { name: "count", min: 1, max: i64::MAX };

/// Returns the keys refused most often, or resets their record.
pub struct Top;

impl Command for Top {
    const SPEC: Spec = Spec {
        name: c"cl.top",
        summary: "Returns the keys refused most often, or resets their record.",
        reply: "Replies an array for each key: key, refusals, error, Unix time of the last refusal in ms; to RESET, OK.",
        complexity: c"O(N log N) where N is the number of keys recorded, configured by top-size.",
        since: c"1.0.0",
        arguments: &[Argument::new(
            c"what",
            Type::OneOf(&[
                Argument::new(
                    c"count",
                    Type::Integer,
                    c"Number of keys to return, at least 1; 10 by default.",
                ),
                Argument::token(c"RESET", c"reset", c"Reset the record."),
            ]),
            c"Number of keys to return, or the request to reset the record.",
        )
        .optional()],
        flags: &[Flag::Admin, Flag::Loading, Flag::Stale],
        keys: Keys::None,
        uses: Use::None,
        tips: c"nondeterministic_output request_policy:all_nodes response_policy:special",
    };

    const TALLY: &Tally = tally!();

    fn run(call: &Call) -> Result<Outcome, Error> {
        let mut arguments = call.rest(1);
        let (first, more) = (arguments.next(), arguments.next());
        if more.is_some() {
            return Err(Error::SYNTAX);
        }
        let count = match first {
            None => DEFAULT,
            Some(word) if word.eq_ignore_ascii_case(b"RESET") => {
                refusals::reset()?;
                return Ok(Outcome::Done);
            }
            Some(word) => usize::try_from(COUNT.parse(word)?).unwrap_or(usize::MAX),
        };
        Ok(Outcome::MostRefused(refusals::most(call, count)?))
    }
}
