//! The queues of `CL.BTHROTTLE`: the clients that wait for one GCRA limiter, first come, first served.
//!
//! The order is that of [`redis_cell_core::queue`].

use redis_cell_core::gcra::{self, Limit, Tat};
use redis_cell_core::queue::{self, Queue};
use redis_cell_core::{Decision, Error as CoreError, Instant, Span, Verdict};
use std::ffi::CStr;

use super::index::{self, AnyQueue, Client, End, Id, Index, Place, Waiter, locked};
use super::slots;
use super::timer::Budget;
use crate::ffi::{self, Access, Arg, Call, Handles, Key};
use crate::outcome::Outcome;
use crate::store;

/// The unit of time in which keys expire: a key expires after its instant, not at it.
const MILLISECOND: Span = Span::from_nanos(1_000_000).unwrap();

/// The arguments of the call that checks whether a client may be admitted, and never waits.
const CHECK: [&[u8]; 5] = [b"0", b"1", b"1", b"0", b"1"];

/// The result of a request to wait.
pub enum Joined {
    /// It need not wait, or waiting is useless.
    Decided(Decision<Tat>),
    /// Its turn would come too late.
    TooLate,
    /// It is in the queue, and is to be [blocked](index::attach) or [removed](index::leave).
    Waiting(Waiter),
}

/// The work for a queue. The client in it has left the queue.
enum Due {
    /// Write the decision, and answer the client.
    Admitted(Client, Decision<Tat>),
    /// Answer the client.
    Failed(Client, CoreError),
    /// Nothing for now.
    NotYet,
}

/// [`Queue::seen`] for the queue of a key, if it has one.
///
/// # Errors
/// Those of [`Queue::seen`].
#[cold] // the common key has no queue
pub fn seen(place: Place, state: Option<Tat>, now: Instant) -> Result<Option<Tat>, CoreError> {
    locked(|index| match index.first_come_at(place) {
        Some((_, queue)) => queue.seen(state, now),
        None => Ok(state),
    })
}

/// [`Queue::saw`] for the queue of a key, if it has one.
#[cold] // the common key has no queue
pub fn saw(place: Place, state: Option<Tat>, now: Instant) {
    locked(|index| {
        if let Some((_, queue)) = index.first_come_at(place) {
            queue.saw(state, now);
        }
    });
}

/// Reports a decision to the queue of a key, if it has one. The event of its write then serves the queue.
///
/// # Errors
/// Those of `told`.
#[cold] // the common key has no queue
pub fn tell(place: Place, told: impl FnOnce(&mut Queue) -> Result<(), CoreError>) -> Result<(), CoreError> {
    locked(|index| index.first_come_at(place).map_or(Ok(()), |(_, queue)| told(queue)))
}

/// [`Queue::pause`] for the queue of a key; only `decide` if it has none.
///
/// # Errors
/// Those of `decide`.
#[cold] // the common key has no queue
pub fn pause(
    place: Place,
    state: Option<Tat>,
    now: Instant,
    decide: impl Fn(Option<Tat>) -> Result<Decision<Tat>, CoreError>,
) -> Result<Decision<Tat>, CoreError> {
    locked(|index| {
        let Some((_, queue)) = index.first_come_at(place) else { return decide(state) };
        queue.pause(state, now, decide)
    })
}

/// [`Queue::join`] for the queue of a key, which is made when the first client joins it.
///
/// # Errors
/// Those of [`Queue::join`].
pub fn join(
    place: Place,
    state: Option<Tat>,
    (limit, quantity, patience): (&Limit, i64, Option<Span>),
    now: Instant,
) -> Result<Joined, CoreError> {
    locked(|index| {
        let id = index.first_come_at(place).map(|(id, _)| id);
        if id.is_none() {
            // Most clients need not wait, and no queue is made for them.
            let decision = gcra::throttle(state, limit, now, quantity)?;
            if !matches!(decision.answer.verdict, Verdict::Later(_)) {
                return Ok(Joined::Decided(decision));
            }
        }
        let mut new = Queue::default();
        let queue = index.first_come_at(place).map_or(&mut new, |(_, queue)| queue);
        let joined = queue.join(state, limit, now, quantity, patience);
        let id = match (id, &joined) {
            // A new queue is served now, because its key may expire before the turn that follows from this
            // state.
            (None, Ok(queue::Joined::Waiting(_))) => Some(index.insert(place, AnyQueue::FirstCome(new), now)),
            (id, _) => id,
        };
        Ok(match joined? {
            queue::Joined::Decided(decision) => Joined::Decided(decision),
            queue::Joined::Waiting(ticket) if let Some(id) = id => Joined::Waiting(Waiter { id, ticket }),
            queue::Joined::Waiting(_) | queue::Joined::TooLate => Joined::TooLate,
        })
    })
}

/// Sets the next instant at which to serve a queue whose key holds `state`; an empty queue is dropped.
fn schedule(index: &mut Index, id: Id, state: Option<Tat>, now: Instant) {
    let Some(queue) = index.first_come(id) else { return };
    match queue.next_turn(state, now) {
        Some(wait) => {
            // The key does not expire before that, because no debt outlasts its key.
            index.plan(id, now.checked_add(wait).unwrap_or(Instant::MAX));
        }
        None => index.drop(id),
    }
}

/// The command and the number of the client whose turn has come; `None` if none has come.
fn due(id: Id, state: Option<Tat>, now: Instant) -> Option<(&'static CStr, u64)> {
    locked(|index| {
        schedule(index, id, state, now);
        let entry = index.entry(id).filter(|entry| entry.is_due(now))?;
        entry.clients.first_key_value().map(|(_, client)| (client.command, client.number))
    })
}

/// [`Queue::turn`].
fn turn(id: Id, state: Option<Tat>, now: Instant) -> Due {
    locked(|index| {
        let Some(queue) = index.first_come(id) else { return Due::NotYet };
        let turn = queue.turn(state, now);
        let mut forget = |ticket| index.forget(Waiter { id, ticket }, now);
        let turn = match turn {
            queue::Turn::Admitted(ticket, decision) => {
                forget(ticket).map(|client| Due::Admitted(client, decision))
            }
            queue::Turn::Failed(ticket, error) => forget(ticket).map(|client| Due::Failed(client, error)),
            queue::Turn::NotYet => None,
        };
        turn.unwrap_or_else(|| {
            schedule(index, id, state, now);
            Due::NotYet
        })
    })
}

/// Ends one wait of a queue; false when none is over.
///
/// Each call of the server here may run other modules' code, which may change the key and the queue. So every
/// decision loads its state just before, and nothing is kept between calls.
pub fn step(call: &Call, id: Id, key: Arg, budget: &mut Budget) -> bool {
    let now = ffi::now();
    let mut handles = Handles::default();
    let Ok(open) = handles.open_alone(call, key, Access::Write) else { return index::come_again(id, now) };
    let due = store::gcra::load(&open, now, Span::ZERO).map(|state| due(id, state, now));
    drop(open);
    let due = match due {
        Ok(due) => due,
        Err(error) => return dismiss(call, id, now, End::Outcome(Err(error))),
    };
    let Some((command, client)) = due else { return false };
    budget.read(CHECK.len());
    if let Err(rejection) = call.would_run(&mut handles, command, key, &CHECK, Some(client)) {
        return dismiss(call, id, now, slots::end(call, &budget.table, call.bytes(key), rejection));
    }
    let Ok(mut open) = handles.open_alone(call, key, Access::Write) else {
        return index::come_again(id, now);
    };
    match store::gcra::load(&open, now, Span::ZERO).map(|state| turn(id, state, now)) {
        Ok(Due::Admitted(client, Decision { answer, change })) => {
            let written = store::carry_out(change, &mut open);
            drop(open);
            let outcome = written.map(|announcement| {
                handles.publish(call, announcement);
                Outcome::Verdict(answer, client.unit)
            });
            call.unblock(client.blocked, Some(End::Outcome(outcome)));
        }
        Ok(Due::Failed(client, error)) => {
            call.unblock(client.blocked, Some(End::Outcome(Err(error.into()))));
        }
        Ok(Due::NotYet) => return false,
        Err(error) => {
            drop(open);
            return dismiss(call, id, now, End::Outcome(Err(error)));
        }
    }
    true
}

/// The instant at which a key expires on this module's clock, which may be ahead of the server's. At least a
/// millisecond from now, because the key is there.
pub fn expires(key: &Key, now: Instant) -> Option<Instant> {
    let expires = key.lives_until()?.max(now);
    Some(expires.checked_add(MILLISECOND).unwrap_or(Instant::MAX))
}

/// Ends the wait of the first client with `end`, without a decision; false when there is none.
pub fn dismiss(call: &Call, id: Id, now: Instant, end: End) -> bool {
    let Some(client) = index::dismiss(id, now) else { return false };
    call.unblock(client.blocked, Some(end));
    true
}
