//! The beginning and the end of a call: its outcome is counted and replied, and a refusal is recorded.
//!
//! Every call and every wait ends here, whatever its command, so that no command can forget to count.

use std::borrow::Cow;
use std::marker::PhantomData;

use redis_cell_core::several::{self, Columns};
use redis_cell_core::top::Refused;
use redis_cell_core::{Answer, Reply, Unit, Verdict};

use smallvec::SmallVec;

use crate::error::Error;
use crate::ffi::{self, Arg, Call, Serve, Served, Spec};
use crate::tally::{OUT_OF_MEMORY, REPEATED, SHADOW_REFUSED, Tally};
use crate::{config, refusals};

/// A command.
pub trait Command {
    /// Its description for the server.
    const SPEC: Spec;

    /// The numbers of its calls that were admitted, were refused, or failed.
    const TALLY: &Tally;

    /// The keys for which a null is recorded as a refusal.
    fn waited_for<'c>(call: &Call<'c>) -> Cow<'c, [Arg<'c>]> {
        Self::SPEC.keys.of(call)
    }

    /// Runs a call, and returns its outcome, from which the reply is made.
    ///
    /// # Errors
    /// The error to reply. After an error, nothing was written.
    fn run(call: &Call) -> Result<Outcome, Error>;
}

/// A command as the server calls it. It has a type of its own because the trait belongs to another crate.
struct Concluded<C>(PhantomData<C>);

impl<C: Command> Serve for Concluded<C> {
    const SPEC: Spec = C::SPEC;

    fn serve(call: &Call) {
        conclude::<C>(call, C::run(call));
    }
}

/// A row in the table of commands.
pub struct CommandRow {
    /// The description of the command for the server.
    pub command: Served,
    /// Its tally.
    pub tally: &'static Tally,
}

/// The row of the command `C`.
pub const fn row<C: Command>() -> CommandRow {
    CommandRow { command: ffi::served::<Concluded<C>>(), tally: C::TALLY }
}

/// A call for up to this many limiters allocates no memory.
pub const FEW: usize = 4;

/// The answers of several limiters, in the order of their keys.
pub type Rows = SmallVec<[several::Row; FEW]>;

/// The reply to an earlier call: its integers, row by row.
pub type Repeated = (Vec<i64>, Columns);

/// The outcome of a call that did not fail.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Admitted or refused.
    Verdict(Answer, Unit),
    /// The state of a limiter. Nothing was refused, even if the answer says that further calls would be.
    State(Answer, Unit),
    /// Admitted or refused, by several limiters.
    Several(Rows, Unit),
    /// The states of several limiters. Nothing was refused.
    SeveralStates(Rows, Unit),
    /// The answers of several limiters, and the verdict on the call, which differs from theirs.
    Ruled(Rows, Unit, Verdict),
    /// The same for a call that only checks.
    RuledStates(Rows, Unit, Verdict),
    /// The stored reply to an earlier call, which this one repeats.
    Repeated(Repeated),
    /// Whether a place is held, or was held before a release.
    Held(bool),
    /// Not admitted in time.
    Null,
    /// The keys refused most often.
    MostRefused(Vec<Refused>),
    /// Done.
    Done,
    /// The client waits, and gets its reply later.
    Waiting,
}

impl Outcome {
    /// Whether a call for several limiters is refused.
    pub fn is_refused(&self) -> bool {
        match self {
            Self::Several(rows, _) => rows.iter().any(several::Row::refuses),
            Self::Ruled(_, _, verdict) => verdict.is_limited(),
            _ => false,
        }
    }
}

/// Ends a call of `C`, or the wait that it began: counts it, replies, and records a refusal.
pub fn conclude<C: Command>(call: &Call, end: Result<Outcome, Error>) {
    let tally = C::TALLY;
    match end {
        Ok(Outcome::Verdict(answer, unit)) => {
            tally.count(answer.limited());
            reply(call, &answer, unit);
            if answer.limited() {
                refused(call, &C::SPEC.keys.of(call));
            }
        }
        Ok(Outcome::State(answer, unit)) => {
            tally.count(answer.limited());
            reply(call, &answer, unit);
        }
        Ok(Outcome::Several(rows, unit)) => {
            let is_refused = reply_rows(call, tally, &rows, unit, None);
            count_refusals::<C>(call, &rows, is_refused);
        }
        Ok(Outcome::SeveralStates(rows, unit)) => {
            reply_rows(call, tally, &rows, unit, None);
        }
        Ok(Outcome::Ruled(rows, unit, verdict)) => {
            let is_refused = reply_rows(call, tally, &rows, unit, Some(verdict));
            count_refusals::<C>(call, &rows, is_refused);
        }
        Ok(Outcome::RuledStates(rows, unit, verdict)) => {
            reply_rows(call, tally, &rows, unit, Some(verdict));
        }
        Ok(Outcome::Repeated(rows)) => {
            tally.count_besides(REPEATED);
            reply_repeated(call, rows);
        }
        Ok(Outcome::Held(held)) => {
            tally.count(!held);
            call.reply_integer(held.into());
        }
        Ok(Outcome::Null) => {
            tally.count(true);
            call.reply_null();
            refused(call, &C::waited_for(call));
        }
        Ok(Outcome::MostRefused(rows)) => reply_most_refused(call, &rows),
        Ok(Outcome::Done) => call.reply_ok(),
        Ok(Outcome::Waiting) => {}
        Err(error) => {
            tally.count_error();
            if error == Error::OutOfMemory {
                tally.count_besides(OUT_OF_MEMORY);
            }
            call.reply_error(&error);
        }
    }
}

/// Replies with the integers of an answer.
#[inline(always)]
fn reply(call: &Call, answer: &Answer, unit: Unit) {
    let Reply { five, taken } = answer.reply(unit);
    call.reply_array(if taken.is_some() { 6 } else { 5 });
    for integer in five {
        call.reply_integer(integer);
    }
    if let Some(taken) = taken {
        call.reply_integer(taken);
    }
}

/// Counts a call for several limiters, and replies their combined row and then each row. Returns whether the
/// call is limited. Its verdict is that of the limiters, unless there is another.
#[inline(always)]
fn reply_rows(
    call: &Call,
    tally: &Tally,
    rows: &[several::Row],
    unit: Unit,
    verdict: Option<Verdict>,
) -> bool {
    let mut combined = several::combine_rows(rows);
    if let (Some(combined), Some(verdict)) = (&mut combined, verdict) {
        combined.verdict = verdict;
    }
    let limited = combined.as_ref().is_some_and(Answer::limited);
    tally.count(limited);
    let chains = rows.iter().rev().take_while(|row| !row.is_replied()).count();
    let replied = rows.get(..rows.len().saturating_sub(chains)).unwrap_or_default();
    call.reply_array(replied.len().saturating_add(combined.iter().len()));
    for answer in combined.iter().chain(replied.iter().map(|row| &row.answer)) {
        reply(call, answer, unit);
    }
    limited
}

/// Counts the limiters in shadow that would refuse a call for several, and records the limiters that refuse
/// it, a chain under its first key. If all admit it, but the key of `HOLD` has no room, it records the first
/// one.
#[inline(always)]
fn count_refusals<C: Command>(call: &Call, rows: &[several::Row], is_refused: bool) {
    rows.iter().filter(|row| row.would_refuse()).for_each(|_| C::TALLY.count_besides(SHADOW_REFUSED));
    if is_refused {
        let keys = C::SPEC.keys.of(call);
        let key = |at: usize| keys.get(at).copied();
        let refusing = rows.iter().enumerate().filter(|(_, row)| row.refuses());
        let mut by: Vec<_> = refusing.filter_map(|(at, row)| key(row.role.first().unwrap_or(at))).collect();
        if by.is_empty() {
            by.extend(rows.iter().position(|row| row.role != several::Role::Shadow).and_then(key));
        }
        refused(call, &by);
    }
}

/// Replies with the rows of an earlier call.
#[cold]
fn reply_repeated(call: &Call, (integers, columns): Repeated) {
    let rows = integers.chunks_exact(columns.count());
    call.reply_array(rows.len());
    for row in rows {
        call.reply_array(row.len());
        for integer in row {
            call.reply_integer(*integer);
        }
    }
}

/// Replies with an array for each key.
fn reply_most_refused(call: &Call, rows: &[Refused]) {
    call.reply_array(rows.len());
    for row in rows {
        call.reply_array(4);
        call.reply_bytes(row.key.as_bytes());
        for number in [row.refusals, row.error, row.last.as_micros() / 1_000] {
            call.reply_integer(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
}

/// Replies with a server error to a call of `C` that has waited, and counts it.
pub fn reject<C: Command>(call: &Call, error: &str) {
    C::TALLY.count_error();
    call.reply_error(&error);
}

/// Records that the call was refused for these keys, and publishes it, as configured.
fn refused(call: &Call, keys: &[Arg]) {
    let (record, notify) = (refusals::is_on(), config::NOTIFY_REFUSALS.get());
    if !record && !notify {
        return;
    }
    for &key in keys {
        if record {
            refusals::record(call, key);
        }
        if notify {
            call.notify_module_event(c"cl.refused", key);
        }
    }
}
