//! `CL.BMTAKE`

use core::ffi::CStr;
use std::borrow::Cow;

use redis_cell_core::several::Row;
use redis_cell_core::{Span, Verdict, fair};

use super::arguments::UNIT;
use super::mtake::{HOLD, ONCE, SEVERAL, SHADOWABLE_LIMITERS};
use crate::calls::many::{Queued, Request};
use crate::error::Error;
use crate::faults;
use crate::ffi::{Arg, Argument, Call, Flag, Spec, Type};
use crate::limiters::Verb;
use crate::outcome::{Command, Outcome, Repeated};
use crate::tally::{REPEATED, SHADOW_REFUSED, Tally, tally};
use crate::waiting::{self, Decides, FairRequest, Others};

/// Waits in a queue that is fair among flows until several limiters of any kind admit the call.
pub struct Bmtake;

/// The time complexity.
const COST: &CStr = c"O(N log N + log M) where N is the number of limiters and M that of clients that wait, plus the cost of each limiter's own command.";

/// The flow of a client.
pub const FLOW: Argument = Argument::new(
    c"flow",
    Type::Block(&[
        Argument::new(c"flow", Type::String, c"Name of those who share: a tenant, a user, a model."),
        Argument::new(c"weight", Type::Integer, c"Share of the flow, from 1 to 1,000,000; 1 by default.")
            .after(c"WEIGHT")
            .optional(),
    ]),
    c"The flow, which shares the first limiter with other flows by weight.",
)
.after(c"FLOW")
.optional();

impl Command for Bmtake {
    const SPEC: Spec = Spec {
        name: c"cl.bmtake",
        summary: "Waits in a queue, fair among flows, until several limiters admit the call together.",
        reply: "Replies arrays of five integers, or of six with chains: the combined answer, then the answer of each limiter; or null when not admitted in time.",
        complexity: COST,
        arguments: &[
            SHADOWABLE_LIMITERS,
            Argument::new(
                c"seconds",
                Type::Double,
                c"How long to wait, always in seconds; 0, the default, for no limit.",
            )
            .after(c"TIMEOUT")
            .optional(),
            FLOW,
            Argument::new(
                c"count",
                Type::Integer,
                c"Do not wait behind as many clients of the flow, at least 0.",
            )
            .after(c"MAXLEN")
            .optional(),
            ONCE,
            HOLD,
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom, Flag::Blocking],
        ..SEVERAL
    };

    const TALLY: &Tally = tally!(SHADOW_REFUSED, REPEATED);

    /// The first key that is not in `SHADOW`, because it is not known which limiter was not ready in time.
    fn waited_for<'c>(call: &Call<'c>) -> Cow<'c, [Arg<'c>]> {
        let first = Request::run(call, Verb::Wait, |request| Ok(request.refusing().next()));
        Cow::Owned(first.into_iter().flatten().collect())
    }

    fn run(call: &Call) -> Result<Outcome, Error> {
        if call.arg(1).is_some_and(Arg::is_being_checked) {
            return Ok(Outcome::Done); // the server has let it through, and that was the question
        }
        Request::run(call, Verb::Wait, |request| take_or_wait(call, request))
    }
}

/// Takes if nobody waits and all limiters admit the call. Otherwise the client waits.
fn take_or_wait<'c>(call: &Call<'c>, request: &Request<'c>) -> Result<Outcome, Error> {
    let key = request.first()?;
    let Queued { timeout, flow, weight, max_len, .. } = request.queued;
    let flow = flow.filter(|_| !faults::has_one_flow());
    let before = waiting::waiting(call, key, flow);
    let is_full = max_len.is_some_and(|most| most <= u64::try_from(before.unwrap_or(0)).unwrap_or(u64::MAX));
    // Even if a limiter now has an error.
    if before.is_some()
        && let Some(rows) = request.repeated(call)?
    {
        return Ok(Outcome::Repeated(rows));
    }
    let renews = before.is_some() && request.renews(call)?;
    let outcome = if before.is_none() || is_full || renews || !call.may_block() {
        request.take(call)?
    } else {
        // The queue has decided whose turn it is, so the limiters ignore the waiting clients.
        request.alone(call)?
    };
    let rows = match &outcome {
        Outcome::Several(rows, _) if before.is_some() && !renews => rows,
        Outcome::Several(rows, _) | Outcome::Ruled(rows, ..) if outcome.is_refused() => rows,
        _ => return Ok(outcome),
    };
    let is_never = |row: &Row| row.refuses() && row.answer.verdict == Verdict::Never;
    if is_full || rows.iter().any(is_never) && !request.may_be_given_back(call, rows, is_never)? {
        return Ok(outcome);
    }
    if !call.may_block() {
        return Ok(if outcome.is_refused() { Outcome::Null } else { outcome });
    }
    if request.is_too_late(call)? {
        return Ok(Outcome::Null);
    }
    let (quantity, cost) = request.share()?;
    let waits = FairRequest {
        key,
        request: fair::Request { flow, weight, quantity, cost },
        unit: request.unit,
        patience: timeout,
        others: request.others(call).map(Into::into).collect(),
        once: request.once_key(call).map(Into::into),
        decides: &Again,
    };
    Ok(waiting::join_fair::<Bmtake>(call, waits))
}

/// The call of a client that has waited.
struct Again;

impl Decides for Again {
    fn repeated(&self, call: &Call) -> Result<Option<Repeated>, Error> {
        Request::run(call, Verb::Wait, |request| request.repeated(call))
    }

    fn others_admit(&self, call: &Call) -> Result<Others, Error> {
        Request::run(call, Verb::Wait, |request| request.others_admit(call))
    }

    fn first_admits(&self, call: &Call) -> Result<Option<Span>, Error> {
        Request::run(call, Verb::Wait, |request| request.at_its_turn().first_admits(call))
    }

    fn take(&self, call: &Call) -> Result<Outcome, Error> {
        Request::run(call, Verb::Wait, |request| request.at_its_turn().take(call))
    }
}
