//! The queues of clients that wait for several limiters, fairly among flows: what moves them.
//!
//! A client's arguments are kept. Whenever its call is to be decided, they are read again, and the call is
//! decided like one that has just come: nothing is remembered of a limiter that could be out of date. The
//! order is that of [`redis_cell_core::fair`].

use redis_cell_core::Instant;
use redis_cell_core::fair::Readiness;
use redis_cell_core::several::Row;

use super::queues::{self, End, Head, Id, MILLISECOND, Others, Seat, Step};
use crate::error::Error;
use crate::ffi::{self, Call, Rejection};
use crate::outcome::Outcome;

/// Whether the outcome is a refusal.
fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Several(rows, _) if rows.iter().any(Row::refuses))
}

/// Ends the waits of a queue that are over.
pub fn serve(call: &Call, id: Id, steps: &mut u32) {
    while *steps > 0 {
        *steps = steps.saturating_sub(1);
        if !step(call, id) {
            return;
        }
    }
}

/// Takes one step for a queue; false when there is nothing to do for now.
///
/// Each call of the server here may run other modules' code, which may change keys and the queue. So every
/// decision is made on states that are loaded for it, and a client that has left is not found again.
fn step(call: &Call, id: Id) -> bool {
    let now = ffi::now();
    match queues::step(id, now) {
        Step::None => {
            queues::look_again(id, Instant::MAX);
            false
        }
        Step::Repeat(head) => {
            let repeated = call.with_arguments(&head.arguments, |own| head.turns.repeated(own));
            match repeated {
                Ok(Some(rows)) => end(call, head.seat, now, End::Outcome(Ok(Outcome::Repeated(rows)))),
                Ok(None) => {}
                Err(error) => end(call, head.seat, now, End::Outcome(Err(error))),
            }
            true
        }
        Step::Check(head) => check(call, id, &head, now),
        Step::Turn(head) => turn(call, id, &head, now),
    }
}

/// Checks whether a client is ready.
fn check(call: &Call, id: Id, head: &Head, now: Instant) -> bool {
    match call.with_arguments(&head.arguments, |own| head.turns.others_admit(own)) {
        Ok(Others::Ready) => queues::checked(head.seat, Readiness::Ready, now),
        Ok(Others::Wait(wait)) => {
            let at = now.checked_add(wait.max(MILLISECOND)); // no timer is more exact
            queues::checked(head.seat, Readiness::NotBefore(at), now);
        }
        Err(Error::Busy) => return queues::come_again(id, now),
        Err(error) => end(call, head.seat, now, End::Outcome(Err(error))),
    }
    true
}

/// Admits the client that is next, if its first limiter admits it.
fn turn(call: &Call, id: Id, head: &Head, now: Instant) -> bool {
    match call.with_arguments(&head.arguments, |own| head.turns.first_admits(own)) {
        Ok(None) => {}
        Ok(Some(wait)) => {
            // It has been ready when it was checked. If it is not any more, it must not hold up the others
            // until the first limiter admits it.
            if !check(call, id, head, now) {
                return false;
            }
            return !queues::waits_for_turn(head.seat, now.checked_add(wait).unwrap_or(Instant::MAX));
        }
        Err(Error::Busy) => return queues::come_again(id, now),
        Err(error) => {
            end(call, head.seat, now, End::Outcome(Err(error)));
            return true;
        }
    }
    let taken: Result<_, Rejection> = call.with_arguments(&head.arguments, |own| {
        let words: Vec<&[u8]> = own.rest(2).collect();
        let Some(key) = own.arg(1) else { return Ok(Err(Error::SYNTAX)) };
        own.would_run(head.command, key, &words, Some(head.number))?;
        Ok(head.turns.take(own))
    });
    match taken {
        Err(rejection) => end(call, head.seat, now, rejection.into()),
        Ok(Ok(outcome)) if is_refused(&outcome) => {
            // Another limiter does not admit it any more, or its first limiter does not admit it yet.
            return check(call, id, head, now);
        }
        Ok(Ok(outcome @ Outcome::Several(..))) => {
            if let Some(client) = queues::admitted(head.seat, now) {
                call.unblock(client.blocked, Some(End::Outcome(Ok(outcome))));
            }
        }
        Ok(Err(Error::Busy)) => return queues::come_again(id, now),
        Ok(outcome) => end(call, head.seat, now, End::Outcome(outcome)),
    }
    true
}

/// The client leaves the queue without having taken anything, and is answered with `end`.
fn end(call: &Call, seat: Seat, now: Instant, end: End) {
    if let Some(client) = queues::withdraw(seat, now) {
        call.unblock(client.blocked, Some(end));
    }
}
