//! The line of callers that wait for one GCRA limiter, first come, first served.
//!
//! The line is a queue, not bookings: a waiter costs nothing until its turn, so one that leaves has nothing to give
//! back and those behind it move up. Its turn has come when [`throttle`](crate::gcra::throttle) admits it. Three rules
//! keep the order fair, and each is a sum of *costs* (`T * quantity`, the time that serving a quantity takes):
//!
//! - who joins waits for the costs of all who are in line already;
//! - who does not wait in line (a plain call) may still be admitted by a wider limit of its own, but to it the costs
//!   in line count as taken ([`Line::overtake`]);
//! - what such a call takes is *behind* those who were in line then: it does not delay them. The line remembers the
//!   sum of it, and each waiter where that sum stood when it joined.
//!
//! All of it is pure: the caller brings the state and the instant, and writes what is decided.

use std::collections::BTreeMap;

use crate::gcra::{self, Limit, Tat};
use crate::{Answer, Change, Decision, Error, Instant, Retry, Span};

/// A place in line. Those with smaller numbers come first.
pub type Ticket = u64;

/// The callers that wait for one key.
#[derive(Clone, Debug, Default)]
pub struct Line {
    waiters: BTreeMap<Ticket, Waiter>,
    next: Ticket,
    /// The costs of all waiters.
    ahead: Span,
    /// The costs of all calls that were admitted past the line.
    overtaken: Span,
    /// The limit by which all wait; `None` when they differ or nobody waits.
    shared: Option<Limit>,
}

/// A caller in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    limit: Limit,
    quantity: i64,
    cost: Span,
    /// [`Line::overtaken`] when it joined: what came after is behind it.
    joined_at: Span,
}

/// What becomes of a caller who asks to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It need not wait, or waiting is of no use: admitted, or refused for ever.
    Decided(Decision<Tat>),
    /// Its turn would come too late.
    TooLate,
    /// It stands in line.
    Waiting(Ticket),
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The first in line is admitted and has left it; the decision is to be written.
    Admitted(Ticket, Decision<Tat>),
    /// The first in line cannot be decided and has left it.
    Failed(Ticket, Error),
    /// Nobody's yet, or nobody waits.
    Nobodys,
}

impl Line {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Asks to wait for `quantity` units, for `patience` at most (`None`: for ever).
    ///
    /// Cost: O(log n) for n in line, O(n) when they wait by different limits.
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
        let decision = self.overtake(state, now, |state| gcra::throttle(state, limit, now, quantity))?;
        let Retry::After(own) = decision.answer.retry_after else { return Ok(Joined::Decided(decision)) };
        if patience.is_some_and(|patience| own > patience || self.last_turn(state, limit, now) > patience) {
            return Ok(Joined::TooLate);
        }
        let cost = limit.cost(quantity)?;
        self.ahead = self.ahead.checked_add(cost).ok_or(Error::BeyondTime)?;
        self.shared =
            if self.is_empty() { Some(*limit) } else { self.shared.filter(|shared| shared == limit) };
        let ticket = self.next;
        self.next = ticket.wrapping_add(1);
        self.waiters.insert(ticket, Waiter { limit: *limit, quantity, cost, joined_at: self.overtaken });
        Ok(Joined::Waiting(ticket))
    }

    /// Leaves the line: those behind move up. Nothing happens when the ticket has left it already.
    ///
    /// Cost: O(log n).
    pub fn leave(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            self.ahead = self.ahead.saturating_sub(waiter.cost);
        }
    }

    /// The time until it is somebody's turn, unless the state changes; `None` when nobody waits.
    ///
    /// Cost: O(log n).
    pub fn next_turn(&self, state: Option<Tat>, now: Instant) -> Option<Span> {
        let (_, first) = self.waiters.first_key_value()?;
        match self.decide(first, state, now).map(|decision| decision.answer.retry_after) {
            Ok(Retry::After(wait)) => Some(wait),
            Ok(Retry::Never) | Err(_) => Some(Span::ZERO),
        }
    }

    /// Whose turn it is. To be asked again, with the state then written, until it is nobody's.
    ///
    /// Cost: O(log n).
    pub fn turn(&mut self, state: Option<Tat>, now: Instant) -> Turn {
        let Some((&ticket, &waiter)) = self.waiters.first_key_value() else { return Turn::Nobodys };
        match self.decide(&waiter, state, now) {
            Ok(decision) if decision.answer.limited => Turn::Nobodys,
            Ok(decision) => {
                self.leave(ticket);
                let answer = self.behind_it(&waiter, &decision, state, now).unwrap_or(decision.answer);
                Turn::Admitted(ticket, Decision { answer, ..decision })
            }
            Err(error) => {
                self.leave(ticket);
                Turn::Failed(ticket, error)
            }
        }
    }

    /// Takes the first in line out of it, whatever the limiter says.
    pub fn dismiss(&mut self) -> Option<Ticket> {
        let (&ticket, _) = self.waiters.first_key_value()?;
        self.leave(ticket);
        Some(ticket)
    }

    /// Decides a call that does not wait: to it, what the line waits for counts as taken.
    ///
    /// Cost: that of `decide`.
    ///
    /// # Errors
    /// Those of `decide`, and [`Error::BeyondTime`] when the line reaches past the year 2262.
    pub fn overtake(
        &mut self,
        state: Option<Tat>,
        now: Instant,
        decide: impl FnOnce(Option<Tat>) -> Result<Decision<Tat>, Error>,
    ) -> Result<Decision<Tat>, Error> {
        if self.is_empty() {
            return decide(state);
        }
        let before = self.seen_from_behind(state, now)?;
        let mut decision = decide(Some(before))?;
        if let Change::Store(after) = &mut decision.change {
            self.overtaken = self.overtaken.checked_add(after.since(before)).ok_or(Error::BeyondTime)?;
            *after = after.saturating_sub(self.ahead);
        }
        Ok(decision)
    }

    /// Answers a call that only looks: to it, what the line waits for counts as taken.
    ///
    /// # Errors
    /// [`Error::BeyondTime`] when the line reaches past the year 2262.
    pub fn seen(&self, state: Option<Tat>, now: Instant) -> Result<Option<Tat>, Error> {
        if self.is_empty() { Ok(state) } else { self.seen_from_behind(state, now).map(Some) }
    }

    /// The state as it would be with all in line admitted.
    fn seen_from_behind(&self, state: Option<Tat>, now: Instant) -> Result<Tat, Error> {
        state.unwrap_or(now).max(now).checked_add(self.ahead).ok_or(Error::BeyondTime)
    }

    /// What the limiter says to a waiter, as if nobody who came later had taken anything.
    fn decide(&self, waiter: &Waiter, state: Option<Tat>, now: Instant) -> Result<Decision<Tat>, Error> {
        let behind = self.overtaken.saturating_sub(waiter.joined_at);
        let seen = state.map(|tat| tat.saturating_sub(behind));
        let mut decision = gcra::throttle(seen, &waiter.limit, now, waiter.quantity)?;
        if let Change::Store(after) = &mut decision.change {
            // What came later is owed all the same.
            let owed = state.unwrap_or(now).max(now);
            *after = owed.checked_add(waiter.cost).ok_or(Error::BeyondTime)?;
        }
        Ok(decision)
    }

    /// The answer to a waiter that has just left the line admitted: what the others wait for counts as taken.
    fn behind_it(
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

    /// How long the one who waits longest waits yet; zero when all wait by `limit`.
    ///
    /// By one and the same limit whoever joins waits longest of all, so that there is nothing to look up.
    fn last_turn(&self, state: Option<Tat>, limit: &Limit, now: Instant) -> Span {
        if self.is_empty() || self.shared == Some(*limit) {
            return Span::ZERO;
        }
        let mut served = Span::ZERO;
        let mut longest = Span::ZERO;
        for waiter in self.waiters.values() {
            let behind = self.overtaken.saturating_sub(waiter.joined_at);
            let debt = state.map_or(Span::ZERO, |tat| tat.saturating_sub(behind).since(now));
            served = served.checked_add(waiter.cost).unwrap_or(served);
            let need = debt.checked_add(served).unwrap_or(served);
            longest = longest.max(need.saturating_sub(waiter.limit.tolerance));
        }
        longest
    }
}
