//! The line of callers that wait for one GCRA limiter, first come, first served.
//!
//! The line is a queue, not bookings: a waiter costs nothing until its turn, so one that leaves has nothing to give
//! back and those behind it move up. Its turn has come when [`throttle`](crate::gcra::throttle) admits it. Three rules
//! keep the order fair, and each is a sum of *costs* (`T * quantity`, the time that serving a quantity takes):
//!
//! - who joins waits for the costs of all who are in line already;
//! - who does not wait in line (a plain call) may still be admitted by a wider limit of its own, but to it the costs
//!   in line count as taken ([`Line::overtake`]);
//! - what such a call takes is *behind* those who were in line then: it does not delay them. The line remembers what
//!   was taken, and past whom.
//!
//! What is given back was owed last, as far as the line can tell: it is taken off what overtook, the latest first, and
//! lets the line move on with the rest. The other way round, a booking made behind the line and given back would let the
//! line in before its time.
//!
//! All of it is pure: the caller brings the state and the instant, and writes what is decided.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;

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
    /// The costs of the calls that were admitted past the line, by the last ticket in it then.
    overtaken: BTreeMap<Ticket, Span>,
    /// The sum of them: what is behind the first in line.
    behind: Span,
    /// The state as it was last seen or decided. One that is less now has been given back to.
    known: Option<Tat>,
    /// The limit by which all wait; `None` when they differ or nobody waits.
    shared: Option<Limit>,
}

/// A caller in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    limit: Limit,
    quantity: i64,
    cost: Span,
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
        self.waiters.insert(ticket, Waiter { limit: *limit, quantity, cost });
        Ok(Joined::Waiting(ticket))
    }

    /// Leaves the line: those behind move up. Nothing happens when the ticket has left it already.
    ///
    /// Cost: O(log n).
    pub fn leave(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waiters.remove(&ticket) {
            self.ahead = self.ahead.saturating_sub(waiter.cost);
        }
        // What was taken past nobody who is left is behind nobody.
        let first = self.waiters.first_key_value().map(|(&first, _)| first);
        while let Some(entry) =
            self.overtaken.first_entry().filter(|entry| first.is_none_or(|first| *entry.key() < first))
        {
            self.behind = self.behind.saturating_sub(entry.remove());
        }
    }

    /// The time until it is somebody's turn, unless the state changes; `None` when nobody waits.
    ///
    /// Cost: O(log n).
    pub fn next_turn(&self, state: Option<Tat>, now: Instant) -> Option<Span> {
        let (_, first) = self.waiters.first_key_value()?;
        let given_back = self.given_back(state, now);
        let behind = self.behind.saturating_sub(given_back);
        match decide(first, behind, state, now).map(|decision| decision.answer.retry_after) {
            Ok(Retry::After(wait)) => Some(wait),
            Ok(Retry::Never) | Err(_) => Some(Span::ZERO),
        }
    }

    /// Whose turn it is. To be asked again, with the state then written, until it is nobody's.
    ///
    /// Cost: O(log n).
    pub fn turn(&mut self, state: Option<Tat>, now: Instant) -> Turn {
        let Some((&ticket, &waiter)) = self.waiters.first_key_value() else { return Turn::Nobodys };
        self.settle(state, now);
        match decide(&waiter, self.behind, state, now) {
            Ok(decision) if decision.answer.limited => Turn::Nobodys,
            Ok(decision) => {
                if let Change::Store(after) = decision.change {
                    self.known = Some(after);
                }
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
        self.settle(state, now);
        let before = self.seen_from_behind(state, now)?;
        let mut decision = decide(Some(before))?;
        if let (Change::Store(after), Some((&last, _))) =
            (&mut decision.change, self.waiters.last_key_value())
        {
            let cost = after.since(before);
            self.behind = self.behind.checked_add(cost).ok_or(Error::BeyondTime)?;
            let past = self.overtaken.entry(last).or_default();
            *past = past.checked_add(cost).unwrap_or(*past);
            *after = after.saturating_sub(self.ahead);
            self.known = Some(*after);
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

    /// What has been given back since the state was last seen.
    fn given_back(&self, state: Option<Tat>, now: Instant) -> Span {
        let debt = |state: Option<Tat>| state.map_or(Span::ZERO, |tat| tat.since(now));
        debt(self.known).saturating_sub(debt(state))
    }

    /// Forgets of what was taken past the line all that is no longer owed.
    fn settle(&mut self, state: Option<Tat>, now: Instant) {
        let given_back = self.given_back(state, now);
        self.known = state;
        self.forget(given_back, BTreeMap::last_entry);
        // While a line that could move has not (its timer was late), what is behind it was served instead.
        let owed = state.map_or(Span::ZERO, |tat| tat.since(now));
        self.forget(self.behind.saturating_sub(owed), BTreeMap::first_entry);
    }

    /// Takes `amount` off what was taken past the line, beginning with the entry that `next` gives.
    fn forget(
        &mut self,
        mut amount: Span,
        next: impl Fn(&mut BTreeMap<Ticket, Span>) -> Option<OccupiedEntry<'_, Ticket, Span>>,
    ) {
        while amount > Span::ZERO
            && let Some(mut entry) = next(&mut self.overtaken)
        {
            let part = amount.min(*entry.get());
            amount = amount.saturating_sub(part);
            self.behind = self.behind.saturating_sub(part);
            if part == *entry.get() {
                entry.remove();
            } else {
                entry.insert(entry.get().saturating_sub(part));
            }
        }
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
        let mut behind = self.behind;
        let mut past = self.overtaken.iter().peekable();
        for (ticket, waiter) in &self.waiters {
            while let Some((_, &cost)) = past.next_if(|(last, _)| *last < ticket) {
                behind = behind.saturating_sub(cost);
            }
            let debt = state.map_or(Span::ZERO, |tat| tat.saturating_sub(behind).since(now));
            served = served.checked_add(waiter.cost).unwrap_or(served);
            let need = debt.checked_add(served).unwrap_or(served);
            longest = longest.max(need.saturating_sub(waiter.limit.tolerance));
        }
        longest
    }
}

/// What the limiter says to the first in line, as if nobody who came later had taken what is `behind` it.
fn decide(waiter: &Waiter, behind: Span, state: Option<Tat>, now: Instant) -> Result<Decision<Tat>, Error> {
    let seen = state.map(|tat| tat.saturating_sub(behind));
    let mut decision = gcra::throttle(seen, &waiter.limit, now, waiter.quantity)?;
    if let Change::Store(after) = &mut decision.change {
        // What came later is owed all the same.
        let owed = state.unwrap_or(now).max(now);
        *after = owed.checked_add(waiter.cost).ok_or(Error::BeyondTime)?;
    }
    Ok(decision)
}
