//! The clients that wait in queues, and what moves the queues.
//!
//! A queue moves when its time has come (the turn of the first client, or a client's timeout) and when
//! something happens to its key. Such an event only sets the one timer. The work is done when the timer
//! fires, outside of the command that caused the event, and in steps, so that other clients are served in
//! between.
//!
//! While nobody waits, this costs next to nothing: the module subscribes to the server's events when the
//! first client has to wait, and commands read a single counter.

mod flows;
mod queues;

use core::marker::PhantomData;
use redis_cell_core::fair;
use redis_cell_core::gcra::{Limit, Tat};
use redis_cell_core::{Answer, Decision, Instant, Span, Unit};
use std::sync::Arc;

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Arg, Call, Identity, Key, Rings, Waits, Watches};
use crate::outcome::{Command, Outcome, conclude, reject};
use crate::store;
use queues::{Client, End, Id, Joined, MILLISECOND, PAUSE, Place, Turn, Waiting};

pub use queues::{Others, Turns, clients, remembered};

/// How far the wall clock must have been set back for the timer to be set again.
const STEP: Span = Span::from_nanos(50_000_000).unwrap();

/// How many clients are answered, and queues looked at, before other clients are served: about two
/// milliseconds of work.
const STEPS: u32 = 200;

/// The arguments of the call that asks whether a client may be admitted: a look, which never waits.
const LOOK: [&[u8]; 5] = [b"0", b"1", b"1", b"0", b"1"];

type Decided = Result<Decision<Tat>, redis_cell_core::Error>;

/// The order of a call that does not wait and the clients in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The call comes after them: for it, their costs count as taken.
    Behind,
    /// The call comes before them: it takes regardless of them, and they wait longer.
    Before,
    /// The call admits nobody before a given time, and all of them wait for it.
    ForAll,
}

/// Decides a call on a GCRA limiter that does not wait, and writes what was decided. A debt above `most` does
/// not outlast the key.
///
/// # Errors
/// As [`store::change`].
pub fn update<'c>(
    call: &Call<'c>,
    key: Arg<'c>,
    order: Order,
    most: Span,
    decide: impl Fn(Option<Tat>, Instant) -> Decided,
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
    decide: impl Fn(Option<Tat>) -> Decided,
) -> Decided {
    if !is_anybody() {
        return decide(state);
    }
    if order == Order::ForAll {
        let decision = queues::pause(place(call, key), state, now, decide);
        arm(call);
        return decision;
    }
    let mut decision = decide(seen(call, key, order, state, now)?)?;
    took(call, key, order, &mut decision, now)?;
    Ok(decision)
}

/// Whether any client waits, for whatever key.
pub fn is_anybody() -> bool {
    queues::exist()
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
        Order::Behind => queues::seen(place(call, key), state, now),
        Order::Before | Order::ForAll => {
            queues::saw(place(call, key), state, now);
            Ok(state)
        }
    }
}

/// Tells the queue of a key, if it has one, of a decision on what the call has [seen] at the same instant,
/// which contains the state to be written afterwards.
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
    let told = queues::tell(place(call, key), now, decision, |queue, decision| match order {
        Order::Behind => queue.took(now, decision),
        Order::Before | Order::ForAll => {
            queue.charged(now, decision);
            Ok(())
        }
    });
    arm(call);
    told
}

/// The costs of the clients of flows that come before a call on this key that does not wait.
#[inline]
pub fn ahead(call: &Call, key: Arg) -> u64 {
    if is_anybody() && !faults::ignores_flows() { queues::ahead(place(call, key)) } else { 0 }
}

/// Settles what a flow has used of the first limiter with the queue of its key, if it has one.
pub fn settle(call: &Call, key: Arg, flow: Option<&[u8]>, weight: Option<u32>, difference: i64) {
    if is_anybody() {
        queues::settle(place(call, key), flow, weight, difference, ffi::now());
        arm(call);
    }
}

/// How many clients of the flow wait for the key; `None` when no client of any flow does.
pub fn waiting(call: &Call, key: Arg, flow: Option<&[u8]>) -> Option<usize> {
    queues::waiting(place(call, key), flow)
}

/// A call that waits in a queue of flows.
pub struct FlowRequest<'a> {
    /// The key of the first limiter.
    pub key: Arg<'a>,
    /// What the queue is told about the call.
    pub request: fair::Request<'a>,
    /// The unit of the answer.
    pub unit: Unit,
    /// How long to wait at most; `None` forever.
    pub patience: Option<Span>,
    /// The keys of its other limiters, which decide whether it is ready.
    pub others: Box<[Arc<[u8]>]>,
    /// The key of `ONCE`.
    pub once: Option<Arc<[u8]>>,
    /// Decides the call whenever it is looked at.
    pub turns: &'static dyn Turns,
}

/// Lets a call of `C` wait in the queue of flows of its first key.
pub fn join_flow<C: Command>(call: &Call, waits: FlowRequest) -> Outcome {
    let FlowRequest { key, request, unit, patience, others, once, turns } = waits;
    let now = ffi::now();
    let seat = queues::join_flow(place(call, key), request, now);
    call.watch::<Watcher>();
    let Some(blocked) = call.block::<Wait<C>>() else {
        queues::rise(seat, now);
        arm(call);
        return Outcome::Null;
    };
    let deadline = patience.and_then(|patience| now.checked_add(patience));
    let waiting = Waiting { arguments: call.copy_arguments().into(), others, once, turns };
    let (number, command) = (call.client(), C::SPEC.name);
    if let Some(Client { blocked, .. }) =
        queues::sit(seat, Client { blocked, number, command, unit, deadline, call: Some(waiting) })
    {
        call.unblock(blocked, Some(End::Outcome(Ok(Outcome::Null))));
    }
    arm(call);
    Outcome::Waiting
}

/// A call that may wait.
pub struct Request<'a> {
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
pub fn join<C: Command>(call: &Call, request: &Request) -> Result<Outcome, Error> {
    let Request { key, limit, quantity, unit, patience } = *request;
    if key.is_asked() {
        return Ok(Outcome::Done); // the server has let it through, and that was the question
    }
    let now = ffi::now();
    let mut open = Key::open(*call, key, Access::Write)?;
    let state = store::gcra::load(&open, now, limit.tolerance())?;
    let joined = queues::join(place(call, key), state, (&limit, quantity, patience), now);
    if is_anybody() {
        arm(call);
    }
    let seat = match joined? {
        Joined::Waiting(seat) => seat,
        Joined::TooLate => return Ok(Outcome::Null),
        Joined::Decided(decision) => {
            store::check::<Tat>(&decision.change)?;
            let announcement = store::write(decision.change, &mut open);
            drop(open);
            store::publish(call, announcement);
            return Ok(Outcome::Verdict(decision.answer, unit));
        }
    };
    drop(open);
    call.watch::<Watcher>();
    let Some(blocked) = call.block::<Wait<C>>() else {
        queues::rise(seat, now);
        arm(call);
        return Ok(Outcome::Null);
    };
    let deadline = patience.and_then(|patience| now.checked_add(patience));
    let (number, command) = (call.client(), C::SPEC.name);
    if let Some(Client { blocked, .. }) =
        queues::sit(seat, Client { blocked, number, command, unit, deadline, call: None })
    {
        call.unblock(blocked, Some(End::Outcome(Ok(Outcome::Null))));
    }
    arm(call);
    Ok(Outcome::Waiting)
}

/// Frees the queues when the server unloads the module. Nobody waits then, but tables that were once full
/// hold memory, which would never be freed.
pub fn unload() {
    queues::clear();
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
        // A client that has already left its queue has been unblocked, or is about to be.
        if let Some(client) = queues::leave(client, ffi::now()) {
            call.unblock(client.blocked, None);
            arm(call);
        }
    }
}

/// Moves queues when keys change.
struct Watcher;

impl Watches for Watcher {
    fn is_watching() -> bool {
        queues::exist()
    }

    fn key_changed(call: &Call, name: &[u8]) {
        if queues::key_changed(Place { db: call.db(), name }, ffi::now) {
            arm(call);
        }
    }

    fn database_changed(call: &Call, db: Option<i32>) {
        queues::database_changed(db, ffi::now());
        arm(call);
    }

    fn ticked(call: &Call) {
        if queues::exist() {
            if call.is_read_only() {
                // All queues are due now. The timer ends their waits in steps.
                queues::database_changed(None, ffi::now());
            }
            // The wall clock may have been set back, and the timer with it.
            arm(call);
        } else {
            call.unwatch::<Self>();
        }
    }
}

/// The one timer of all queues.
struct Alarm;

impl Rings for Alarm {
    fn rings(call: &Call) {
        queues::fired();
        let mut steps = STEPS;
        let may_write = call.may_write();
        queues::wait_until(if may_write { None } else { ffi::now().checked_add(PAUSE) });
        if call.is_read_only() {
            end_all(call, &mut steps);
        }
        if may_write {
            while steps > 0
                && let Some(queues::Due { id, db, name, has_flows }) = queues::next(ffi::now())
            {
                call.select(db);
                if has_flows {
                    flows::serve(call, id, &mut steps);
                } else if call.with_name(&name, |key| serve(call, id, key, &mut steps)).is_none() {
                    break;
                }
            }
        }
        // Turns before timeouts: a client whose turn came in time does not time out because the timer was
        // late. If turns are left, those that came later than a timeout do not delay it.
        let left = if steps == 0 { queues::first_turn() } else { None };
        let mut steps = STEPS;
        while steps > 0
            && let now = ffi::now()
            && let Some(client) = queues::timed_out(left.map_or(now, |turn| turn.min(now)), now)
        {
            steps = steps.saturating_sub(1);
            call.unblock(client.blocked, Some(End::Outcome(Ok(Outcome::Null))));
        }
        arm(call);
    }
}

/// Sets the timer if it would not fire in time.
fn arm(call: &Call) {
    let rearm = queues::rearm(ffi::now(), ffi::lead(), STEP);
    if let Some(timer) = rearm.stop {
        call.stop_timer(timer);
    }
    if let Some(alarm) = rearm.set {
        queues::armed(call.set_timer::<Alarm>(alarm.wait), alarm);
    }
}

/// Ends all waits because the server has become a replica, whose keys only its primary may write. Most
/// servers do that themselves; Valkey 9.1 in a cluster does not.
fn end_all(call: &Call, steps: &mut u32) {
    while *steps > 0
        && let Some(id) = queues::any()
    {
        *steps = steps.saturating_sub(1);
        dismiss(call, id, ffi::now(), End::Outcome(Err(Error::Demoted)));
    }
}

/// Ends the waits of a queue that are over.
fn serve(call: &Call, id: Id, key: Arg, steps: &mut u32) {
    while *steps > 0 {
        *steps = steps.saturating_sub(1);
        if !step(call, id, key) {
            return;
        }
    }
}

/// Ends one wait of a queue; false when none is over.
///
/// Each call of the server here may run other modules' code, which may change the key and the queue. So every
/// decision is made on a state that was loaded just before it, and nothing is remembered between calls.
fn step(call: &Call, id: Id, key: Arg) -> bool {
    let now = ffi::now();
    let Ok(open) = Key::open(*call, key, Access::Write) else { return queues::come_again(id, now) };
    let due = store::gcra::load(&open, now, Span::ZERO)
        .map(|state| queues::due(id, state, expires(&open, now), now));
    drop(open);
    let due = match due {
        Ok(due) => due,
        Err(error) => return dismiss(call, id, now, End::Outcome(Err(error))),
    };
    let Some((command, client)) = due else { return false };
    if let Err(rejection) = call.would_run(command, key, &LOOK, Some(client)) {
        return dismiss(call, id, now, rejection.into());
    }
    let Ok(mut open) = Key::open(*call, key, Access::Write) else { return queues::come_again(id, now) };
    match store::gcra::load(&open, now, Span::ZERO).map(|state| queues::turn(id, state, now)) {
        Ok(Turn::Admitted(client, Decision { answer, change })) => {
            let written = store::carry_out(change, &mut open);
            drop(open);
            let outcome = written.map(|announcement| {
                store::publish(call, announcement);
                Outcome::Verdict(answer, client.unit)
            });
            call.unblock(client.blocked, Some(End::Outcome(outcome)));
        }
        Ok(Turn::Failed(client, error)) => {
            call.unblock(client.blocked, Some(End::Outcome(Err(error.into()))));
        }
        Ok(Turn::NotYet) => return false,
        Err(error) => return dismiss(call, id, now, End::Outcome(Err(error))),
    }
    true
}

/// The instant at which a key expires on this module's clock, which may be ahead of the server's. At least a
/// millisecond from now, because the key is there.
pub fn expires(key: &Key, now: Instant) -> Option<Instant> {
    let expires = key.lives_until()?.max(now);
    Some(expires.checked_add(MILLISECOND).unwrap_or(Instant::MAX))
}

/// Ends the wait of the first client with `end`, whatever the limiter says; false when there is none.
fn dismiss(call: &Call, id: Id, now: Instant, end: End) -> bool {
    let Some(client) = queues::dismiss(id, now) else { return false };
    call.unblock(client.blocked, Some(end));
    true
}
