//! The queues of `CL.BMTAKE`: the clients that wait for several limiters, fair among flows.
//!
//! The arguments of a client are kept, and read again for each decision, as if the call had just come, so
//! that no stored state of a limiter can be out of date. The order is that of [`redis_cell_core::fair`].

use std::ffi::CStr;
use std::sync::Arc;

use redis_cell_core::fair::{Queue, Readiness, Request, Ticket};
use redis_cell_core::{Instant, Span};

use super::index::{self, AnyQueue, Decides, End, FairCall, Id, Index, Looks, Others, Place, Waiter, locked};
use super::slots;
use super::timer::Budget;
use crate::error::Error;
use crate::ffi::{self, Call, Handles, Rejection};
use crate::outcome::Outcome;

/// The shortest wait until a client is checked again, which is the resolution of timers. A client is checked
/// this often if its limiter may be replenished so soon while other calls take from it, as with a total that
/// is forgotten after a millisecond (`TOTAL IDLE 1 MS`). The budget of the [timer](super::timer) covers all
/// checks.
const MILLISECOND: Span = Span::from_nanos(1_000_000).unwrap();

/// What to do next for a queue. The client has not left it yet.
enum Step {
    /// Check whether the reply of its `ONCE` is there.
    Repeat(Head),
    /// [Check](checked) whether it is ready.
    Check(Head),
    /// It is next.
    Turn(Head),
    /// Nothing for now.
    None,
}

/// A client in a queue.
struct Head {
    waiter: Waiter,
    arguments: Arc<[Box<[u8]>]>,
    command: &'static CStr,
    number: u64,
    decides: &'static dyn Decides,
}

/// The costs of the clients that come before a call on this key that does not wait.
#[cold] // the common key has no queue
pub fn ahead(place: Place) -> u64 {
    locked(|index| {
        let taken = index.fair_at(place).map_or(0, |(_, queue)| queue.taken());
        u64::try_from(taken).unwrap_or(u64::MAX)
    })
}

/// How many clients of the flow wait for the key; `None` when no client of any flow does.
pub fn waiting(place: Place, flow: Option<&[u8]>) -> Option<usize> {
    locked(|index| index.fair_at(place).map(|(_, queue)| queue.clients_of(flow)))
}

/// [`Queue::settle`] for the queue of a key, if it has one. The next turn may then belong to another client,
/// with a smaller quantity.
pub fn settle(place: Place, flow: Option<&[u8]>, weight: Option<u32>, difference: i64, now: Instant) {
    locked(|index| {
        if let Some((_, queue)) = index.fair_at(place) {
            queue.settle(flow, weight, difference);
            index.changed(place, || now);
        }
    });
}

/// Joins the queue of a key, which is made when the first client joins it.
pub fn join(place: Place, request: Request, now: Instant) -> Waiter {
    locked(|index| {
        let id = index.fair_at(place).map(|(id, _)| id);
        let id = id
            .unwrap_or_else(|| index.insert(place, AnyQueue::Fair(Queue::default(), Looks::default()), now));
        let ticket = index.fair(id).map(|(queue, _)| queue.join(request)).unwrap_or_default();
        index.look_at(id, now);
        Waiter { id, ticket }
    })
}

/// The next step for a queue: checks and turns alternate, so that each of them makes progress.
fn next(id: Id, now: Instant) -> Step {
    locked(|index| {
        let Some(entry) = index.entry(id) else { return Step::None };
        let AnyQueue::Fair(queue, looks) = &mut entry.queue else { return Step::None };
        let head = |ticket: Ticket| {
            let client = entry.clients.get(&ticket)?;
            let FairCall { arguments, decides, .. } = client.call.as_ref()?;
            let (waiter, arguments) = (Waiter { id, ticket }, Arc::clone(arguments));
            let (command, number) = (client.command, client.number);
            Some(Head { waiter, arguments, command, number, decides: *decides })
        };
        if let Some(head) = looks.repeats.pop_first().and_then(head) {
            return Step::Repeat(head);
        }
        let is_blocked = |next| looks.blocked.is_some_and(|(ticket, until)| ticket == next && now < until);
        let turn = queue.next().filter(|next| !is_blocked(*next)).and_then(head);
        let is_check = turn.is_none() || looks.was_turn || queue.unchecked().is_some();
        let check = queue.to_check(now).filter(|_| is_check).and_then(head);
        looks.was_turn = check.is_none();
        check.map(Step::Check).or(turn.map(Step::Turn)).unwrap_or(Step::None)
    })
}

/// The client was checked: it is ready, or is to be checked again at an instant, or when one of its other
/// keys changes.
fn checked(waiter: Waiter, readiness: Readiness, now: Instant) {
    locked(|index| {
        let Some((queue, _)) = index.fair(waiter.id) else { return };
        let taken = queue.taken();
        queue.checked(waiter.ticket, readiness);
        let counts_less = queue.taken() < taken;
        index.name(waiter);
        if counts_less {
            index.changed_for(waiter.id, now);
        }
    });
}

/// The queue is served again when a client is to be checked, or may be admitted.
fn look_again(index: &mut Index, id: Id) {
    let Some((queue, looks)) = index.fair(id) else { return };
    let turn = looks.blocked.filter(|(ticket, _)| queue.next() == Some(*ticket)).map(|(_, turn)| turn);
    let at = turn.into_iter().chain(queue.next_check()).min().unwrap_or(Instant::MAX);
    index.plan(id, at);
}

/// Takes one step for a queue; false when there is nothing to do for now.
///
/// Each call of the server here may run other modules' code, which may change keys and the queue. So every
/// decision loads its states, and ignores clients that have left.
pub fn step(call: &Call, id: Id, budget: &mut Budget) -> bool {
    let now = ffi::now();
    let next = next(id, now);
    if let Step::Repeat(head) | Step::Check(head) | Step::Turn(head) = &next {
        budget.read(head.arguments.len());
    }
    match next {
        Step::None => {
            locked(|index| look_again(index, id));
            false
        }
        Step::Repeat(head) => {
            let repeated = call.with_arguments(&head.arguments, |own| head.decides.repeated(own));
            match repeated {
                Ok(Some(rows)) => end(call, head.waiter, now, End::Outcome(Ok(Outcome::Repeated(rows)))),
                Ok(None) => {}
                Err(Error::Busy) => {
                    let Waiter { id, ticket } = head.waiter;
                    locked(|index| index.fair(id).map(|(_, looks)| looks.repeats.insert(ticket)));
                    return index::come_again(id, now);
                }
                Err(error) => end(call, head.waiter, now, End::Outcome(Err(error))),
            }
            true
        }
        Step::Check(head) => check(call, &head, now),
        Step::Turn(head) => turn(call, &budget.table, &head, now),
    }
}

/// Checks whether a client is ready.
fn check(call: &Call, head: &Head, now: Instant) -> bool {
    match call.with_arguments(&head.arguments, |own| head.decides.others_admit(own)) {
        Ok(Others::Ready) => checked(head.waiter, Readiness::Ready, now),
        Ok(Others::Wait(wait)) => {
            let at = now.checked_add(wait.max(MILLISECOND));
            checked(head.waiter, Readiness::NotBefore(at), now);
        }
        Err(Error::Busy) => return index::come_again(head.waiter.id, now),
        Err(error) => return fail(call, head, now, error),
    }
    true
}

/// Admits the client that is next, if its first limiter admits it.
fn turn(call: &Call, table: &slots::Table, head: &Head, now: Instant) -> bool {
    match call.with_arguments(&head.arguments, |own| head.decides.first_admits(own)) {
        Ok(None) => {}
        Ok(Some(wait)) => {
            // The client was ready when it was checked. If it is no longer ready, it must not delay the
            // others until the first limiter admits it.
            let is_checked = check(call, head, now);
            let until = now.checked_add(wait).unwrap_or(Instant::MAX);
            locked(|index| {
                if is_checked && let Some((_, looks)) = index.fair(head.waiter.id) {
                    looks.blocked = Some((head.waiter.ticket, until));
                }
            });
            return is_checked;
        }
        Err(Error::Busy) => return index::come_again(head.waiter.id, now),
        Err(error) => return fail(call, head, now, error),
    }
    let taken: Result<_, Rejection> = call.with_arguments(&head.arguments, |own| {
        let words: Vec<&[u8]> = own.rest(2).collect();
        let Some(key) = own.arg(1) else { return Ok(Err(Error::SYNTAX)) };
        own.would_run(&mut Handles::default(), head.command, key, &words, Some(head.number))?;
        Ok(head.decides.take(own))
    });
    match taken {
        Err(rejection) => {
            let key = head.arguments.get(1).map(AsRef::as_ref).unwrap_or_default();
            end(call, head.waiter, now, slots::end(call, table, key, rejection));
        }
        Ok(Ok(outcome)) if outcome.is_refused() => {
            // Another limiter no longer admits it, its first limiter does not admit it yet, or the key of
            // `HOLD` has no room.
            return check(call, head, now);
        }
        Ok(Ok(outcome @ Outcome::Several(..))) => {
            locked(|index| index.fair(head.waiter.id).map(|(queue, _)| queue.admitted(head.waiter.ticket)));
            end(call, head.waiter, now, End::Outcome(Ok(outcome)));
        }
        Ok(Err(Error::Busy)) => return index::come_again(head.waiter.id, now),
        Ok(outcome) => end(call, head.waiter, now, End::Outcome(outcome)),
    }
    true
}

/// The client leaves the queue with an error of a limiter, or with the stored reply that it repeats: another
/// call may have stored it since the client was checked.
fn fail(call: &Call, head: &Head, now: Instant, error: Error) -> bool {
    let repeated = match call.with_arguments(&head.arguments, |own| head.decides.repeated(own)) {
        Err(Error::Busy) => return index::come_again(head.waiter.id, now),
        repeated => repeated.ok().flatten(),
    };
    end(call, head.waiter, now, End::Outcome(repeated.map(Outcome::Repeated).ok_or(error)));
    true
}

/// The client leaves the queue, and is answered with `end`.
fn end(call: &Call, waiter: Waiter, now: Instant, end: End) {
    if let Some(client) = index::leave(waiter, now) {
        call.unblock(client.blocked, Some(end));
    }
}
