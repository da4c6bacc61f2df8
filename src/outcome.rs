//! How a call ends: what is answered, what is counted, and who is told of a refusal.
//!
//! Every call and every wait ends here, whatever its command, so that no command can forget to count.

use redis_cell_core::top::Refused;
use redis_cell_core::{Answer, Error, Unit, several};

use crate::commands::Command;
use crate::ffi::{Arg, Call};
use crate::{config, top};

/// How a call ends, if not in an error.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Admitted or refused.
    Verdict(Answer, Unit),
    /// A limiter as it stands: nothing was refused, whatever the answer says of others to come.
    State(Answer, Unit),
    /// Admitted or refused by several limiters, in the order of their keys.
    Several(Vec<Answer>, Unit),
    /// Whether a place is, or was, held.
    Held(bool),
    /// Not admitted in time.
    Null,
    /// The keys refused most often.
    MostRefused(Vec<Refused>),
    /// Done.
    Okay,
    /// To be answered when the client has waited.
    Waiting,
}

/// Answers how a call of `C`, or a wait that it began, has ended, counts it, and tells of a refusal.
pub fn conclude<C: Command>(call: &Call, end: &Result<Outcome, Error>) {
    let tally = C::SPEC.tally;
    match end {
        Ok(Outcome::Verdict(answer, unit)) => {
            tally.count(answer.limited);
            call.reply(&answer.reply(*unit));
            if answer.limited {
                refused(call, keys::<C>(call));
            }
        }
        Ok(Outcome::State(answer, unit)) => {
            tally.count(answer.limited);
            call.reply(&answer.reply(*unit));
        }
        Ok(Outcome::Several(answers, unit)) => {
            let combined = several::combine(answers.iter().copied());
            tally.count(combined.is_some_and(|combined| combined.limited));
            let replies = combined.iter().chain(answers).map(|answer: &Answer| answer.reply(*unit));
            call.reply_rows(replies.collect::<Vec<_>>().as_slice());
            let limited = keys::<C>(call).zip(answers).filter(|(_, answer)| answer.limited);
            refused(call, limited.map(|(key, _)| key));
        }
        Ok(Outcome::Held(held)) => {
            tally.count(!held);
            call.reply_whether(*held);
        }
        Ok(Outcome::Null) => {
            tally.count(true);
            call.reply_null();
            refused(call, keys::<C>(call));
        }
        Ok(Outcome::MostRefused(rows)) => call.reply_most_refused(rows),
        Ok(Outcome::Okay) => call.reply_okay(),
        Ok(Outcome::Waiting) => {}
        Err(error) => {
            tally.count_error();
            call.reply_error(error);
        }
    }
}

/// The keys of a call of `C`.
fn keys<'c, C: Command>(call: &Call<'c>) -> impl Iterator<Item = Arg<'c>> {
    let positions = C::SPEC.keys.positions(call);
    call.words(positions.start, positions.len()).iter().copied()
}

/// Records and reports that the call was refused for these keys.
fn refused<'c>(call: &Call<'c>, keys: impl Iterator<Item = Arg<'c>>) {
    let (record, notify) = (config::records_refusals(), config::notifies_refusals());
    if !record && !notify {
        return;
    }
    for key in keys {
        if record {
            top::note(call, key);
        }
        if notify {
            call.notify_refused(key);
        }
    }
}
