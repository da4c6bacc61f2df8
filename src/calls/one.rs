//! A call for one limiter: the verbs of its kind, on the only key of the call.

use redis_cell_core::several::{Arity, Grammar};
use redis_cell_core::{Decision, Tail, TailOption, Unit};

use crate::error::Error;
use crate::ffi::{self, Access, Arg, Call, Handles};
use crate::limiters::{Arguments, Kind, Target, Verb, Whole, WholeCall};
use crate::outcome::Outcome;
use crate::store;
use crate::waiting;

/// Runs `key limit [quantity] [SATURATE] [unit]`, with the syntax that the limit has among several limiters.
///
/// # Errors
/// The errors of [`arguments`] and of [`take_by`].
pub fn take<S: Whole>(call: &Call) -> Result<Outcome, Error> {
    let (key, limit, tail) = arguments::<S>(call, &[TailOption::Saturate])?;
    take_from::<S>(call, key, limit, &tail)
}

/// Takes from a limiter whose arguments have been read.
///
/// # Errors
/// As [`take_by`].
#[inline]
pub fn take_from<'c, S: Whole>(
    call: &Call<'c>,
    key: Arg<'c>,
    limit: S::Limit,
    tail: &Tail,
) -> Result<Outcome, Error> {
    let Tail { quantity: units, saturate, unit, .. } = *tail;
    take_by(call, key, WholeCall::<S> { limit, units, saturate }, unit)
}

/// Takes from a limiter of any kind, and carries out the decision.
///
/// # Errors
/// The errors of [`Kind::take`] and of [`store::change`]. After an error, nothing was taken.
#[inline]
pub fn take_by<'c, K: Kind<'c> + Copy>(
    call: &Call<'c>,
    key: Arg<'c>,
    limiter: K,
    unit: Unit,
) -> Result<Outcome, Error> {
    let answer = store::change(call, key, |open, now| {
        let at = Target { call: *call, name: key, key: open, now, ahead: 0 };
        let decision = if waiting::is_anybody() { beside_queues(limiter, at) } else { limiter.take(&at) }?;
        Ok((decision.answer, decision.change.map(|change| limiter.stored(change, call))))
    })?;
    Ok(Outcome::Verdict(answer, unit))
}

/// Takes while clients wait for this key or for another one. The limiter is a copy, so that it can stay in
/// registers on the common path.
#[cold]
#[inline(never)]
fn beside_queues<'c, K: Kind<'c> + Copy>(
    limiter: K,
    at: Target<'_, 'c>,
) -> Result<Decision<K::Change>, Error> {
    let at = Target { ahead: waiting::ahead(&at.call, at.name), ..at };
    let mut decision = limiter.take(&at)?;
    limiter.complete(&mut decision, &at, Verb::Take);
    Ok(decision)
}

/// Runs `key limit [quantity] [unit]`, which only checks.
///
/// # Errors
/// The errors of [`arguments`] and of [`Kind::peek`].
pub fn peek<S: Whole>(call: &Call) -> Result<Outcome, Error> {
    let (name, limit, Tail { quantity: units, unit, .. }) = arguments::<S>(call, &[])?;
    let now = ffi::now();
    let mut handles = Handles::default();
    let key = handles.open_alone(call, name, Access::Read)?;
    let at = Target { call: *call, name, key: &key, now, ahead: waiting::ahead(call, name) };
    let answer = WholeCall::<S> { limit, units, saturate: false }.peek(&at)?;
    Ok(Outcome::State(answer, unit))
}

/// Reads `key limit [quantity] [options]`, where the options are those that are `known`.
///
/// # Errors
/// The errors of [`Tail::parse`] and of [`Whole::limit`].
#[inline(always)]
pub fn arguments<'c, S: Whole>(
    call: &Call<'c>,
    known: &[TailOption],
) -> Result<(Arg<'c>, S::Limit, Tail), Error> {
    let [key] = call.positional()?;
    let count = const { words(&S::GRAMMAR) };
    let tail = Tail::parse(call.rest(count.saturating_add(2)), known)?;
    let limit = S::limit(&Arguments { call: *call, args: call.args(2, count) }, tail.unit)?;
    Ok((key, limit, tail))
}

/// The number of arguments of a limit, which precede the quantity. A command whose limit has a varying number
/// of arguments parses them itself.
const fn words(grammar: &Grammar) -> usize {
    assert!(matches!(grammar.arguments, Arity::Always(_)), "the number of these arguments varies");
    match grammar.arguments {
        Arity::Always(count) => count.saturating_sub(1),
        Arity::Counted(_) => 0,
    }
}
