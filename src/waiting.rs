//! The clients that wait, and their queues.
//!
//! A client waits in the *queue* of a key: in `CL.BTHROTTLE` [first come, first
//! served](first_come), in `CL.BMTAKE` [fairly among flows](fair). The [index] has the clients that wait for
//! each key. A queue is served at a certain instant (the turn of a client, or a client's timeout) and when
//! something happens to a key. Such an event only marks the key in the index, and sets the one [timer]. The
//! work is done when the timer fires, outside of the command that caused the event, so that other clients are
//! served in between.
//!
//! While no client waits, this costs almost nothing: the module subscribes to the server's events when the
//! first client has to wait, and commands read a single counter.

mod fair;
mod first_come;
mod index;
mod slots;
mod timer;

use core::marker::PhantomData;
use redis_cell_core::fair::Request;
use redis_cell_core::gcra::{Limit, Tat};
use redis_cell_core::{Answer, Decision, Instant, Span, Unit};
use std::sync::Arc;

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Arg, Call, Handles, Identity, Waits, Watches};
use crate::outcome::{Command, Outcome, conclude, reject};
use crate::store;
use first_come::Joined;
use index::{Client, End, FairCall, Place, Waiter};
use timer::arm;

pub use first_come::expires;
pub use index::{Decides, Others, clients, is_anybody, remembered};

type GcraDecision = Result<Decision<Tat>, redis_cell_core::Error>;

/// The order of a call that does not wait and the clients in the queue of `CL.BTHROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The call comes after them: for it, their costs count as taken.
    Behind,
    /// The call comes before them: it ignores them, and they wait longer.
    Before,
    /// The call is a pause: no client is admitted before a given time.
    ForAll,
}

/// Decides a call on a GCRA limiter that does not wait, and writes the decision. A debt above `most` does not
/// outlast the key.
///
/// # Errors
/// As [`store::change`].
pub fn update<'c>(
    call: &Call<'c>,
    key: Arg<'c>,
    order: Order,
    most: Span,
    decide: impl Fn(Option<Tat>, Instant) -> GcraDecision,
) -> Result<Answer, Error> {
    store::change(call, key, |open, now| {
        let tat = store::gcra::load(open, now, most)?;
        let decision = self::decide(call, key, order, tat, now, |tat| decide(tat, now))?;
        Ok((decision.answer, decision.change))
    })
}

/// Decides a call that does not wait: with the queue of the key, if it has one.
///
/// # Errors
/// Those of `decide`, and as [`seen`].
fn decide(
    call: &Call,
    key: Arg,
    order: Order,
    state: Option<Tat>,
    now: Instant,
    decide: impl Fn(Option<Tat>) -> GcraDecision,
) -> GcraDecision {
    if !is_anybody() {
        return decide(state);
    }
    if order == Order::ForAll {
        return first_come::pause(place(call, key), state, now, decide);
    }
    let mut decision = decide(seen(call, key, order, state, now)?)?;
    took(call, key, order, &mut decision, now)?;
    Ok(decision)
}

/// The state of a key as a call sees it: the costs of the clients in the queue count as taken if the call
/// comes after them.
///
/// # Errors
/// [`redis_cell_core::Error::BeyondTime`] when the queue reaches past the year 2262.
#[inline]
pub fn seen(
    call: &Call,
    key: Arg,
    order: Order,
    state: Option<Tat>,
    now: Instant,
) -> Result<Option<Tat>, redis_cell_core::Error> {
    match order {
        _ if !is_anybody() => Ok(state),
        // A chain computes its wait from later instants, which the queue must not mistake for the present.
        Order::Behind => first_come::seen(place(call, key), state, now.min(ffi::now())),
        Order::Before | Order::ForAll => {
            first_come::saw(place(call, key), state, now);
            Ok(state)
        }
    }
}

/// Reports a decision to the queue of a key, if it has one. The decision contains the state that is written
/// next. The call has [seen] the key at the same instant.
///
/// # Errors
/// As [`seen`].
#[inline]
pub fn took(
    call: &Call,
    key: Arg,
    order: Order,
    decision: &mut Decision<Tat>,
    now: Instant,
) -> Result<(), redis_cell_core::Error> {
    if is_anybody() && !decision.change.is_keep() { tell(call, key, order, decision, now) } else { Ok(()) }
}

#[cold] // the common key has no queue
fn tell(
    call: &Call,
    key: Arg,
    order: Order,
    decision: &mut Decision<Tat>,
    now: Instant,
) -> Result<(), redis_cell_core::Error> {
    first_come::tell(place(call, key), |queue| match order {
        Order::Behind => queue.took(now, decision),
        Order::Before | Order::ForAll => {
            queue.charged(now, decision);
            Ok(())
        }
    })
}

/// The costs of the clients of flows that come before a call on this key that does not wait.
#[inline]
pub fn ahead(call: &Call, key: Arg) -> u64 {
    if is_anybody() && !faults::ignores_flows() { fair::ahead(place(call, key)) } else { 0 }
}

/// Settles the usage of the first limiter by a flow with the fair queue of its key, if it has one.
pub fn settle(call: &Call, key: Arg, flow: Option<&[u8]>, weight: Option<u32>, difference: i64) {
    if is_anybody() {
        fair::settle(place(call, key), flow, weight, difference, ffi::now());
        arm(call);
    }
}

/// The number of clients of the flow that wait for the key; `None` when no client of any flow does.
pub fn waiting(call: &Call, key: Arg, flow: Option<&[u8]>) -> Option<usize> {
    fair::waiting(place(call, key), flow)
}

/// A call that waits in a fair queue.
pub struct FairRequest<'a> {
    /// The key of the first limiter.
    pub key: Arg<'a>,
    /// The request of the call for the queue.
    pub request: Request<'a>,
    /// The unit of the answer.
    pub unit: Unit,
    /// How long to wait at most; `None` forever.
    pub patience: Option<Span>,
    /// The keys of its other limiters, which decide whether it is ready.
    pub others: Box<[Arc<[u8]>]>,
    /// The key of `ONCE`.
    pub once: Option<Arc<[u8]>>,
    /// Decides the call whenever it is checked.
    pub decides: &'static dyn Decides,
}

/// Lets a call of `C` wait in the fair queue of its first key.
pub fn join_fair<C: Command>(call: &Call, waits: FairRequest) -> Outcome {
    let FairRequest { key, request, unit, patience, others, once, decides } = waits;
    let now = ffi::now();
    let waiter = fair::join(place(call, key), request, now);
    let arguments = call.copy_arguments().into();
    wait::<C>(call, waiter, (unit, patience, now), Some(FairCall { arguments, others, once, decides }))
}

/// A call that may wait in the queue of a key that is served first come, first served.
pub struct FirstComeRequest<'a> {
    /// The key.
    pub key: Arg<'a>,
    /// Its limit.
    pub limit: Limit,
    /// The units to wait for.
    pub quantity: i64,
    /// The unit of the answer.
    pub unit: Unit,
    /// How long to wait at most; `None` forever.
    pub patience: Option<Span>,
}

/// Decides a call of `C` that may wait: [`Outcome::Waiting`] when the client waits, to be answered later.
///
/// # Errors
/// Those of the limiter.
pub fn join_first_come<C: Command>(call: &Call, request: &FirstComeRequest) -> Result<Outcome, Error> {
    let FirstComeRequest { key, limit, quantity, unit, patience } = *request;
    if key.is_being_checked() {
        return Ok(Outcome::Done); // the server has let it through, and that was the question
    }
    let now = ffi::now();
    let mut handles = Handles::default();
    let mut open = handles.open_alone(call, key, Access::Write)?;
    let state = store::gcra::load(&open, now, limit.tolerance())?;
    let joined = first_come::join(place(call, key), state, (&limit, quantity, patience), now);
    if is_anybody() {
        arm(call);
    }
    let waiter = match joined? {
        Joined::Waiting(waiter) => waiter,
        Joined::TooLate => return Ok(Outcome::Null),
        Joined::Decided(decision) => {
            let announcement = store::carry_out(decision.change, &mut open)?;
            drop(open);
            handles.publish(call, announcement);
            return Ok(Outcome::Verdict(decision.answer, unit));
        }
    };
    drop(open);
    Ok(wait::<C>(call, waiter, (unit, patience, now), None))
}

/// Keeps the client of a call of `C` waiting, which has joined its queue at `now`. `waiting` is its call, if
/// the queue is fair.
fn wait<C: Command>(
    call: &Call,
    waiter: Waiter,
    (unit, patience, now): (Unit, Option<Span>, Instant),
    waiting: Option<FairCall>,
) -> Outcome {
    call.watch::<Watcher>();
    let Some(blocked) = call.block::<Wait<C>>() else {
        index::leave(waiter, now);
        arm(call);
        return Outcome::Null;
    };
    let deadline = patience.and_then(|patience| now.checked_add(patience));
    let (number, command) = (call.client(), C::SPEC.name);
    let client = Client { blocked, number, command, unit, deadline, call: waiting };
    if let Some(Client { blocked, .. }) = index::attach(waiter, client) {
        call.unblock(blocked, Some(End::Outcome(Ok(Outcome::Null))));
    }
    arm(call);
    Outcome::Waiting
}

/// Frees the index when the server unloads the module. No client waits then, but tables that were once full
/// still have memory.
pub fn unload() {
    index::clear();
    slots::clear();
}

fn place<'c>(call: &Call<'c>, key: Arg<'c>) -> Place<'c> {
    Place { db: call.db(), name: call.bytes(key) }
}

/// A client of `C` that waits.
struct Wait<C>(PhantomData<C>);

impl<C: Command> Waits for Wait<C> {
    type End = End;

    fn answer(call: &Call, end: Option<&End>) {
        match end {
            Some(End::Outcome(outcome)) => conclude::<C>(call, outcome.clone()),
            Some(End::Rejected(text)) => reject::<C>(call, text),
            None => conclude::<C>(call, Ok(Outcome::Null)),
        }
    }

    fn gone(call: &Call, client: Identity) {
        // If the client has already left its queue, it has been unblocked, or is about to be.
        if let Some(client) = index::gone(client, ffi::now()) {
            call.unblock(client.blocked, None);
            arm(call);
        }
    }
}

/// Marks keys that change.
struct Watcher;

impl Watches for Watcher {
    fn is_watching() -> bool {
        is_anybody()
    }

    fn key_changed(call: &Call, name: &[u8]) {
        if index::changed(Place { db: call.db(), name }, ffi::now) {
            arm(call);
        }
    }

    fn database_changed(call: &Call, db: Option<i32>) {
        index::all_changed(db, ffi::now());
        arm(call);
    }

    fn ticked(call: &Call) {
        timer::tidy();
        if is_anybody() {
            slots::look(call);
            if call.is_read_only() {
                // All queues are due now. The timer ends their waits in steps.
                index::all_changed(None, ffi::now());
            }
            // The wall clock may have been set back, and the timer with it.
            arm(call);
        } else {
            call.unwatch::<Self>();
        }
    }
}
