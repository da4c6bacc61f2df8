//! The queue of the clients that wait for one GCRA limiter, first come, first served.
//!
//! A place in the queue is not a booking: a waiter costs nothing until its turn, so a waiter that leaves has
//! nothing to give back and those behind it move up. Its turn has come when
//! [`throttle`](crate::gcra::throttle) admits it. Four rules keep the order fair and the limit intact. Each
//! is a sum of *costs* (`T * quantity`, the time that serving a quantity takes):
//!
//! - A client that joins waits for the costs of all waiters before it.
//! - A call that does not wait may be admitted by a larger limit of its own, but to that call the costs of
//!   all waiters count as taken ([`Queue::decide_behind`]).
//! - What such a call takes is *behind* the waiters of that moment: it does not delay them. The queue records
//!   what was taken, and behind which waiter.
//! - A call that was told a later time (a booking) acts at that time, whatever becomes of the waiters before
//!   it. So the cost of a waiter that leaves stays in its place, right before the first booking behind it: it
//!   is stored in the key, as if it had been taken. Otherwise other calls would be admitted in its place, and
//!   the booking acts as well.
//!
//! A refund is taken off what was taken behind the queue, the latest first. Only the rest lets the queue move
//! on. The other way round, a booking made behind the queue and refunded would let the queue in before its
//! time.
//!
//! All of it is pure: the caller brings the state and the instant, and writes what is decided.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;

use crate::gcra::{self, Limit, Tat};
use crate::{Answer, Change, Decision, Error, Instant, Span, Verdict};

/// A place in the queue. Smaller numbers come first.
pub type Ticket = u64;

/// The waiters of one key.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    waiters: BTreeMap<Ticket, Waiter>,
    next: Ticket,
    /// The costs of all waiters.
    queued: Span,
    /// What calls have taken behind waiters, by the last waiter before them.
    taken: BTreeMap<Ticket, Taken>,
    /// The sum of its costs: the part of the state that is behind the first waiter.
    behind: Span,
    /// The costs of waiters that have left before a booking. They are in `taken`, and yet to be stored in the
    /// key.
    unpaid: Span,
    /// The state as it was last seen or decided. A smaller one now has been refunded.
    known: Option<Tat>,
    /// The limit by which all wait; `None` when the limits differ or the queue is empty.
    shared: Option<Limit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    limit: Limit,
    quantity: i64,
    cost: Span,
}

/// What calls have taken between two waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    cost: Span,
    /// Whether one of them was told a later time, at which it acts.
    booked: bool,
}

/// What becomes of a client that asks to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It need not wait, or waiting is of no use: admitted, or never admitted.
    Decided(Decision<Tat>),
    /// Its turn would come too late.
    TooLate,
    /// It waits.
    Waiting(Ticket),
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The first waiter is admitted and has left the queue; the decision must be written.
    Admitted(Ticket, Decision<Tat>),
    /// The first waiter cannot be decided and has left the queue.
    Failed(Ticket, Error),
    /// Nobody's, but waiters have left before a booking: this state must be written.
    Unpaid(Tat),
    /// Nobody's yet, or the queue is empty.
    NotYet,
}

impl Queue {
    /// Whether nobody waits and nothing is left to be written.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.unpaid == Span::ZERO
    }

    /// The number of waiters.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// The first waiter.
    pub fn first(&self) -> Option<Ticket> {
        self.waiters.first_key_value().map(|(&ticket, _)| ticket)
    }

    /// Asks to wait for `quantity` units, for `patience` at most (`None`: forever).
    ///
    /// Cost: O(log n) for n waiters, O(n) when they wait by different limits.
    ///
    /// # Errors
    /// Those of [`gcra::throttle`].
    pub fn join(
        &mut self,
        state: Option<Tat>,
        limit: &Limit,
        now: Instant,
        quantity: i64,
        patience: Option<Span>,
    ) -> Result<Joined, Error> {
        let decision = self.decide_behind(state, now, |state| gcra::throttle(state, limit, now, quantity))?;
        let Verdict::Later(own) = decision.answer.verdict else { return Ok(Joined::Decided(decision)) };
        if patience.is_some_and(|patience| own > patience || self.last_turn(state, limit, now) > patience) {
            return Ok(Joined::TooLate);
        }
        let cost = limit.cost(quantity)?;
        self.queued = self.queued.checked_add(cost).ok_or(Error::BeyondTime)?;
        self.shared =
            if self.waiters.is_empty() { Some(*limit) } else { self.shared.filter(|shared| shared == limit) };
        let ticket = self.next;
        self.next = ticket.wrapping_add(1);
        self.waiters.insert(ticket, Waiter { limit: *limit, quantity, cost });
        Ok(Joined::Waiting(ticket))
    }

    /// Leaves the queue: those behind move up, as far as the next booking. Nothing happens when the ticket
    /// has left it already.
    ///
    /// Cost: O(log n), and the calls with larger limits admitted since the ticket joined.
    pub fn leave(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.remove(ticket)
            && let Some((_, taken)) = self.taken.range_mut(ticket..).find(|(_, taken)| taken.booked)
            && let (Some(cost), Some(behind), Some(unpaid)) = (
                taken.cost.checked_add(waiter.cost),
                self.behind.checked_add(waiter.cost),
                self.unpaid.checked_add(waiter.cost),
            )
        {
            (taken.cost, self.behind, self.unpaid) = (cost, behind, unpaid);
            self.known = self.known.map(|known| known.checked_add(waiter.cost).unwrap_or(known));
        }
        self.forget_what_is_before_the_first();
    }

    /// Takes the first waiter out of the queue, whatever the limiter says.
    pub fn dismiss(&mut self) -> Option<Ticket> {
        let first = self.first()?;
        self.leave(first);
        Some(first)
    }

    /// The time until somebody's turn comes or something must be written, unless the state changes; `None`
    /// when the queue is empty.
    ///
    /// Cost: O(log n).
    pub fn next_turn(&self, state: Option<Tat>, now: Instant) -> Option<Span> {
        if self.unpaid > Span::ZERO {
            return Some(Span::ZERO);
        }
        let (_, first) = self.waiters.first_key_value()?;
        let behind = self.behind.saturating_sub(self.refunded(state, now));
        match decide(first, behind, state, now).map(|decision| decision.answer.verdict) {
            Ok(Verdict::Later(wait)) => Some(wait),
            Ok(_) | Err(_) => Some(Span::ZERO),
        }
    }

    /// Whose turn it is. To be asked again, with the state then written, until the answer is
    /// [`Turn::NotYet`].
    ///
    /// Cost: O(log n).
    pub fn turn(&mut self, state: Option<Tat>, now: Instant) -> Turn {
        let state = self.with_unpaid(state);
        if let Some((&ticket, &waiter)) = self.waiters.first_key_value() {
            self.settle(state, now);
            match decide(&waiter, self.behind, state, now) {
                Ok(decision) if decision.answer.limited() => {}
                Ok(decision) => {
                    self.wrote(&decision.change);
                    self.remove(ticket);
                    self.forget_what_is_before_the_first();
                    let answer =
                        self.as_seen_behind(&waiter, &decision, state, now).unwrap_or(decision.answer);
                    return Turn::Admitted(ticket, Decision { answer, ..decision });
                }
                Err(error) => {
                    self.leave(ticket);
                    return Turn::Failed(ticket, error);
                }
            }
        }
        let unpaid = core::mem::take(&mut self.unpaid);
        match state.filter(|tat| unpaid > Span::ZERO && *tat > now) {
            Some(tat) => {
                self.known = Some(tat);
                Turn::Unpaid(tat)
            }
            None => Turn::NotYet,
        }
    }

    /// Decides a call that does not wait: to it, the costs of all waiters count as taken.
    ///
    /// Cost: that of `decide`, and O(log n).
    ///
    /// # Errors
    /// Those of `decide`, and [`Error::BeyondTime`] when the queue reaches past the year 2262.
    pub fn decide_behind(
        &mut self,
        state: Option<Tat>,
        now: Instant,
        decide: impl FnOnce(Option<Tat>) -> Result<Decision<Tat>, Error>,
    ) -> Result<Decision<Tat>, Error> {
        let state = self.with_unpaid(state);
        let Some((&last, _)) = self.waiters.last_key_value() else {
            let decision = decide(state)?;
            self.wrote(&decision.change);
            return Ok(decision);
        };
        self.settle(state, now);
        let before = self.seen_from_behind(state, now)?;
        let mut decision = decide(Some(before))?;
        if let Change::Store(after) = &mut decision.change {
            let cost = after.since(before);
            self.behind = self.behind.checked_add(cost).ok_or(Error::BeyondTime)?;
            let taken = self.taken.entry(last).or_default();
            taken.cost = taken.cost.checked_add(cost).unwrap_or(taken.cost);
            taken.booked |= matches!(decision.answer.verdict, Verdict::Booked(wait) if wait > Span::ZERO);
            *after = after.saturating_sub(self.queued);
            self.wrote(&decision.change);
        }
        Ok(decision)
    }

    /// Decides a call that is never refused and takes before the queue ([`gcra::charge`]): all waiters wait
    /// longer for it, but those before a booking, which acts at its time whatever is charged. One that gives
    /// back is as if the queue had not been asked.
    ///
    /// Cost: that of `decide`, and O(log n).
    ///
    /// # Errors
    /// Those of `decide`.
    pub fn decide_before(
        &mut self,
        state: Option<Tat>,
        now: Instant,
        decide: impl FnOnce(Option<Tat>) -> Result<Decision<Tat>, Error>,
    ) -> Result<Decision<Tat>, Error> {
        let state = self.with_unpaid(state);
        self.settle(state, now);
        let decision = decide(state)?;
        if let Change::Store(after) = decision.change {
            let cost = after.since(state.unwrap_or(now).max(now));
            if let Some((_, taken)) = self.taken.iter_mut().rfind(|(_, taken)| taken.booked) {
                self.behind = self.behind.checked_add(cost).ok_or(Error::BeyondTime)?;
                taken.cost = taken.cost.checked_add(cost).unwrap_or(taken.cost);
            }
        }
        self.wrote(&decision.change);
        Ok(decision)
    }

    /// Decides a call that lets nobody in before a time ([`gcra::pause`]): all waiters wait for it, and what
    /// was taken behind them is owed on top.
    ///
    /// `decide` is asked twice: once about what is owed before the first waiter, and then for the answer.
    ///
    /// Cost: twice that of `decide`, and O(log n).
    ///
    /// # Errors
    /// Those of `decide`, and [`Error::BeyondTime`] when the state would lie past the year 2262.
    pub fn decide_for_all(
        &mut self,
        state: Option<Tat>,
        now: Instant,
        decide: impl Fn(Option<Tat>) -> Result<Decision<Tat>, Error>,
    ) -> Result<Decision<Tat>, Error> {
        let state = self.with_unpaid(state);
        self.settle(state, now);
        let change = match decide(state.map(|tat| tat.saturating_sub(self.behind)))?.change {
            Change::Store(tat) => Change::Store(tat.checked_add(self.behind).ok_or(Error::BeyondTime)?),
            other => other,
        };
        let after = match change {
            Change::Store(tat) => Some(tat),
            Change::Keep | Change::Delete => state,
        };
        let answer = decide(after)?.answer;
        self.wrote(&change);
        Ok(Decision { answer, change })
    }

    /// The state as a call sees it that only looks: to it, the costs of all waiters count as taken.
    ///
    /// # Errors
    /// [`Error::BeyondTime`] when the queue reaches past the year 2262.
    pub fn seen(&self, state: Option<Tat>, now: Instant) -> Result<Option<Tat>, Error> {
        let state = self.with_unpaid(state);
        if self.waiters.is_empty() { Ok(state) } else { self.seen_from_behind(state, now).map(Some) }
    }

    /// The state with all waiters admitted.
    fn seen_from_behind(&self, state: Option<Tat>, now: Instant) -> Result<Tat, Error> {
        state.unwrap_or(now).max(now).checked_add(self.queued).ok_or(Error::BeyondTime)
    }

    /// The stored state, and what is yet to be stored in it. A key that is gone owes nothing.
    fn with_unpaid(&self, state: Option<Tat>) -> Option<Tat> {
        state.map(|tat| tat.checked_add(self.unpaid).unwrap_or(tat))
    }

    /// The stored state was changed, from one that includes all that was yet to be stored.
    fn wrote(&mut self, change: &Change<Tat>) {
        if change.is_keep() {
            return;
        }
        self.unpaid = Span::ZERO;
        // A smaller state is a refund, which is still to be taken off what is behind the queue.
        if let Change::Store(tat) = change {
            self.known = self.known.max(Some(*tat));
        }
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.queued = self.queued.saturating_sub(waiter.cost);
        Some(waiter)
    }

    /// Forgets the costs that are behind no waiter any more.
    fn forget_what_is_before_the_first(&mut self) {
        let first = self.first();
        while let Some(entry) =
            self.taken.first_entry().filter(|entry| first.is_none_or(|first| *entry.key() < first))
        {
            self.behind = self.behind.saturating_sub(entry.remove().cost);
        }
    }

    /// What has been refunded since the state was last seen.
    fn refunded(&self, state: Option<Tat>, now: Instant) -> Span {
        let debt = |state: Option<Tat>| state.map_or(Span::ZERO, |tat| tat.since(now));
        debt(self.known).saturating_sub(debt(state))
    }

    /// Forgets the costs behind waiters that are no longer owed.
    fn settle(&mut self, state: Option<Tat>, now: Instant) {
        let refunded = self.refunded(state, now);
        self.known = state;
        self.forget(refunded, BTreeMap::last_entry);
        // While a queue that could move did not (its timer was late), what is behind it was served instead.
        let owed = state.map_or(Span::ZERO, |tat| tat.since(now));
        self.forget(self.behind.saturating_sub(owed), BTreeMap::first_entry);
        if state.is_none() {
            self.unpaid = Span::ZERO;
        }
    }

    /// Takes `amount` off the costs behind waiters, beginning with the entry that `next` returns.
    fn forget(
        &mut self,
        mut amount: Span,
        next: impl Fn(&mut BTreeMap<Ticket, Taken>) -> Option<OccupiedEntry<'_, Ticket, Taken>>,
    ) {
        while amount > Span::ZERO
            && let Some(mut entry) = next(&mut self.taken)
        {
            let taken = entry.get_mut();
            let part = amount.min(taken.cost);
            amount = amount.saturating_sub(part);
            self.behind = self.behind.saturating_sub(part);
            taken.cost = taken.cost.saturating_sub(part);
            if taken.cost == Span::ZERO {
                entry.remove();
            }
        }
    }

    /// The answer to a waiter that was just admitted: to it, the costs of the others count as taken.
    fn as_seen_behind(
        &self,
        waiter: &Waiter,
        decision: &Decision<Tat>,
        state: Option<Tat>,
        now: Instant,
    ) -> Result<Answer, Error> {
        let state = match decision.change {
            Change::Store(after) => Some(after),
            Change::Keep | Change::Delete => state,
        };
        gcra::peek(self.seen(state, now)?, &waiter.limit, now, 0).map(|seen| Answer {
            remaining: seen.remaining,
            reset_after: seen.reset_after,
            ..decision.answer
        })
    }

    /// The longest remaining wait in the queue; zero when all wait by `limit`.
    ///
    /// By one and the same limit, whoever joins waits longest of all, so there is nothing to look up.
    fn last_turn(&self, state: Option<Tat>, limit: &Limit, now: Instant) -> Span {
        if self.waiters.is_empty() || self.shared == Some(*limit) {
            return Span::ZERO;
        }
        let state = self.with_unpaid(state);
        let mut served = Span::ZERO;
        let mut longest = Span::ZERO;
        let mut behind = self.behind;
        let mut taken = self.taken.iter().peekable();
        for (ticket, waiter) in &self.waiters {
            while let Some((_, before)) = taken.next_if(|(last, _)| *last < ticket) {
                behind = behind.saturating_sub(before.cost);
            }
            let debt = state.map_or(Span::ZERO, |tat| tat.saturating_sub(behind).since(now));
            served = served.checked_add(waiter.cost).unwrap_or(served);
            let need = debt.checked_add(served).unwrap_or(served);
            longest = longest.max(need.saturating_sub(waiter.limit.tolerance));
        }
        longest
    }
}

/// What the limiter says to the first waiter, as if nobody who came later had taken what is `behind` it.
fn decide(waiter: &Waiter, behind: Span, state: Option<Tat>, now: Instant) -> Result<Decision<Tat>, Error> {
    let seen = state.map(|tat| tat.saturating_sub(behind));
    let mut decision = gcra::throttle(seen, &waiter.limit, now, waiter.quantity)?;
    if let Change::Store(after) = &mut decision.change {
        // What came later is owed as well.
        let owed = state.unwrap_or(now).max(now);
        *after = owed.checked_add(waiter.cost).ok_or(Error::BeyondTime)?;
    }
    Ok(decision)
}
