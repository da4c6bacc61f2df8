//! `CL.TOP`

use redis_cell_core::{Error, Range};

use super::spec::{Argument, Kind};
use super::{Command, Flag, Keys, Spec, Use, tally};
use crate::ffi::Call;
use crate::outcome::Outcome;
use crate::top;

/// How many keys are shown when the call does not say.
const DEFAULT: usize = 10;

const COUNT: Range = Range { name: "count", min: 1, max: i64::MAX };

/// Tells which keys are refused most, or forgets it.
pub struct MostRefused;

impl Command for MostRefused {
    const SPEC: Spec = Spec {
        name: c"cl.top",
        summary: "Tells which keys are refused most, or forgets all of them.",
        reply: "Replies a row for each key: the key, refusals, error, instant of the last refusal in milliseconds; or OK.",
        complexity: c"O(N log N) where N is the number of keys recorded, configured by top-size.",
        since: c"1.0.0",
        arguments: &[Argument::new(
            c"what",
            Kind::OneOf(&[
                Argument::new(c"count", Kind::Integer, c"How many keys at the most; 10 when left out."),
                Argument::word(c"RESET", c"reset", c"Forget all refusals so far."),
            ]),
            c"How many keys to tell, or to forget them.",
        )
        .optional()],
        flags: &[Flag::Admin, Flag::Loading, Flag::Stale],
        keys: Keys::None,
        uses: Use::Nothing,
        tips: c"nondeterministic_output request_policy:all_nodes response_policy:special",
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let mut words = call.rest(1);
        let (first, more) = (words.next(), words.next());
        if more.is_some() {
            return Err(Error::Syntax);
        }
        let count = match first {
            None => DEFAULT,
            Some(word) if word.eq_ignore_ascii_case(b"RESET") => {
                top::reset()?;
                return Ok(Outcome::Okay);
            }
            Some(word) => usize::try_from(COUNT.parse(word)?).unwrap_or(usize::MAX),
        };
        Ok(Outcome::MostRefused(top::most(call, count)?))
    }
}
