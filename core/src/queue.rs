//! The queue of the clients that wait for one GCRA limiter, first come, first served.
//!
//! Every call that acts has a *place* on the timeline: an interval as long as its *cost* (`T * quantity`, the
//! time that serving a quantity takes). The limit holds because of two rules:
//!
//! 1. No two places overlap.
//! 2. A place ends at most the tolerance `D` after its call acts, and does not begin before the call acts.
//!
//! By the second rule, the places of all calls that act within a time `W` lie within a time `W + D`; by the
//! first, the sum of their costs is at most `W + D`. That is the bound of [`gcra`](crate::gcra). The stored
//! TAT is the end of the last place, so a call that acts at once gets the place behind it, and [`throttle`]
//! checks the second rule.
//!
//! A client that waits has no place until its turn. So if it leaves, it has nothing to give back, and the
//! clients behind it move up. Its turn has come when [`throttle`] admits it to the next place. Three kinds of
//! calls come while it waits:
//!
//! - A *booking* receives a later time, at which it acts in any case. Its place is behind theirs, so it
//!   stores their costs in the key together with its own: a *room* on the timeline, right before the booking.
//!   The waiters before the booking take their places from there, and nothing is written then. So the key has
//!   the right state even if the queue is lost.
//! - A call by a larger limit acts at once. For this call, the costs of all waiters count as taken, and it
//!   does not delay them: it *moves* back when they are served.
//! - A charge takes before all waiters except those in a room, because the bookings behind them cannot move.
//!
//! The part of a room that lies in the past is lost, because a place must not begin before its call acts. If
//! too little of a room is left for the first waiter (the timer was late, the process was frozen, a pause
//! lasts longer), the rest of the room is given up and the waiter takes the next room, or a place behind
//! everything. There is one tolerance: without any burst, a place begins at the very instant of its turn, and
//! no timer is that exact. So a place in a room may begin before its call acts by a tenth of a unit's cost
//! ([`Limit::lateness`]). It adds a tenth of a unit to the bound, once for all waiters, because places do not
//! overlap nevertheless.
//!
//! A refund is subtracted from bookings and calls that have moved, the latest first. Only the rest lets the
//! queue advance. Otherwise, a booking made behind the queue and refunded would admit the queue before its
//! time.
//!
//! The queue is pure: the caller passes the state and the instant, and writes what is decided.
//!
//! [`throttle`]: crate::gcra::throttle
//! [`Limit::lateness`]: crate::gcra::Limit

use std::collections::{BTreeMap, VecDeque};

use crate::gcra::{self, Limit, Tat};
use crate::{Answer, Change, Decision, Error, Instant, Span, Verdict};

/// A position in the queue. Smaller numbers come first.
pub type Ticket = u64;

/// The waiters of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue {
    waiters: BTreeMap<Ticket, Waiter>,
    next: Ticket,
    /// The costs of all waiters.
    queued: Span,
    /// The bookings behind waiters, each with the room before it, in their order on the timeline.
    booked: VecDeque<Booked>,
    /// The costs of the waiters behind the last booking, while there are bookings.
    unbooked: Span,
    /// Whether a room has become smaller, so that some waiters before a booking may have no place in it.
    short: bool,
    /// The calls by larger limits that move back when the waiters before them are served. They are behind all
    /// bookings.
    moved: VecDeque<Moved>,
    /// The part of the state that is behind the place of the first waiter: all rooms, bookings and moved
    /// calls.
    behind: Span,
    /// The state as it was last seen or decided. If the key now holds a smaller one, units were given back.
    known: Option<Tat>,
    /// The limit by which all wait; `None` when the limits differ or the queue is empty.
    shared: Option<Limit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    limit: Limit,
    quantity: i64,
    cost: Span,
}

/// A booking, and the room before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Booked {
    /// The last waiter that may take a place in the room.
    last: Ticket,
    room: Span,
    /// The cost of the booking, and of others right behind it; zero when it was refunded.
    cost: Span,
}

/// The time that calls by larger limits have taken behind a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Moved {
    /// The last waiter before them.
    last: Ticket,
    cost: Span,
}

/// The outcome of a request to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It need not wait (admitted), or waiting is useless (never admitted).
    Decided(Decision<Tat>),
    /// Its turn would come too late.
    TooLate,
    /// It waits.
    Waiting(Ticket),
}

/// The client whose turn it is, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The first waiter is admitted and has left the queue; the decision must be written.
    Admitted(Ticket, Decision<Tat>),
    /// The first waiter cannot be decided and has left the queue.
    Failed(Ticket, Error),
    /// No client's turn has come, or the queue is empty.
    NotYet,
}

impl Queue {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The number of waiters.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// The first waiter.
    pub fn first(&self) -> Option<Ticket> {
        self.waiters.first_key_value().map(|(&ticket, _)| ticket)
    }

    /// Requests `quantity` units, and waits for them for at most `patience` (`None`: forever).
    ///
    /// Cost: O(log n) for n waiters; O(n) when they wait by different limits, or when a waiter before a
    /// booking has left or was late.
    ///
    /// # Errors
    /// The errors of [`gcra::throttle`].
    pub fn join(
        &mut self,
        state: Option<Tat>,
        limit: &Limit,
        now: Instant,
        quantity: i64,
        patience: Option<Span>,
    ) -> Result<Joined, Error> {
        let mut decision = gcra::throttle(self.seen(state, now)?, limit, now, quantity)?;
        let Verdict::Later(own) = decision.answer.verdict else {
            self.took(now, &mut decision)?;
            return Ok(Joined::Decided(decision));
        };
        let cost = limit.cost(quantity)?;
        if patience.is_some_and(|patience| own > patience || self.last_turn(limit, now) > patience) {
            return Ok(Joined::TooLate);
        }
        self.queued = self.queued.checked_add(cost).ok_or(Error::BeyondTime)?;
        self.unbooked = self.unbooked.checked_add(cost).unwrap_or(self.unbooked);
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
    /// Cost: O(log n).
    pub fn leave(&mut self, ticket: Ticket) {
        let Some(waiter) = self.waiters.remove(&ticket) else { return };
        self.queued = self.queued.saturating_sub(waiter.cost);
        if self.booked.back().is_some_and(|booked| ticket > booked.last) {
            self.unbooked = self.unbooked.saturating_sub(waiter.cost);
        }
    }

    /// Removes the first waiter from the queue without a decision.
    pub fn dismiss(&mut self) -> Option<Ticket> {
        let first = self.first()?;
        self.leave(first);
        Some(first)
    }

    /// The time until the next turn, unless the state changes; `None` when the queue is empty.
    ///
    /// Cost: O(log n), and the bookings that the first waiter has missed.
    pub fn next_turn(&mut self, state: Option<Tat>, now: Instant) -> Option<Span> {
        self.saw(state, now);
        let (_, first) = self.waiters.first_key_value()?;
        match first.decide(self.place(), now).map(|decision| decision.answer.verdict) {
            Ok(Verdict::Later(wait)) => Some(wait),
            Ok(_) | Err(_) => Some(Span::ZERO),
        }
    }

    /// Whose turn it is. Must be called again, with the state that was written since, until it returns
    /// [`Turn::NotYet`].
    ///
    /// The decision about a waiter whose cost a booking has stored is [`Change::Keep`].
    ///
    /// Cost: as [`next_turn`](Self::next_turn).
    pub fn turn(&mut self, state: Option<Tat>, now: Instant) -> Turn {
        self.saw(state, now);
        let Some((&ticket, &waiter)) = self.waiters.first_key_value() else { return Turn::NotYet };
        match self.serve(&waiter, now) {
            Ok(decision) if decision.answer.limited() => Turn::NotYet,
            Ok(decision) => {
                self.leave(ticket);
                let answer = self.as_seen_behind(&waiter, &decision, now).unwrap_or(decision.answer);
                Turn::Admitted(ticket, Decision { answer, ..decision })
            }
            Err(error) => {
                self.leave(ticket);
                Turn::Failed(ticket, error)
            }
        }
    }

    /// The state for a call that does not wait: the costs of all waiters count as taken. If the call takes
    /// anything, [`took`](Self::took) must be called.
    ///
    /// Cost: as [`next_turn`](Self::next_turn).
    ///
    /// # Errors
    /// [`Error::BeyondTime`] when the queue reaches past the year 2262.
    pub fn seen(&mut self, state: Option<Tat>, now: Instant) -> Result<Option<Tat>, Error> {
        self.saw(state, now);
        if self.waiters.is_empty() {
            return Ok(state);
        }
        self.owed(now).checked_add(self.unstored()).ok_or(Error::BeyondTime).map(Some)
    }

    /// Reports that a call has taken units by this `decision`, which was made on the state that
    /// [`seen`](Self::seen) returned for the same instant. The decision then contains the state that is to be
    /// written, and its `reset_after`.
    ///
    /// Cost: O(log n). A booking costs O(1) more for each waiter that it is the first booking behind.
    ///
    /// # Errors
    /// [`Error::BeyondTime`] when the queue reaches past the year 2262; nothing has changed then.
    pub fn took(&mut self, now: Instant, decision: &mut Decision<Tat>) -> Result<(), Error> {
        let Change::Store(after) = &mut decision.change else { return Ok(()) };
        let Some((&last, _)) = self.waiters.last_key_value() else {
            self.known = Some(*after);
            return Ok(());
        };
        let unstored = self.unstored();
        let before = self.owed(now).checked_add(unstored).ok_or(Error::BeyondTime)?;
        let cost = after.since(before);
        let behind = self.behind.checked_add(cost).ok_or(Error::BeyondTime)?;
        if matches!(decision.answer.verdict, Verdict::Booked(wait) if wait > Span::ZERO) {
            self.behind = behind.checked_add(unstored).ok_or(Error::BeyondTime)?;
            self.book(last, unstored, cost);
        } else {
            *after = after.saturating_sub(unstored);
            self.behind = behind;
            self.add_behind(last, unstored, cost);
        }
        decision.answer.reset_after = after.since(now);
        self.known = Some(*after);
        Ok(())
    }

    /// Reports that a call that is never refused has charged units by this `decision`, which was made on the
    /// stored state ([`gcra::charge`]) after [`saw`](Self::saw) was called with that state. All waiters wait
    /// longer for it, except those before a booking, which acts at its time whatever is charged. A call that
    /// gives back need not be reported.
    ///
    /// Cost: O(1).
    pub fn charged(&mut self, now: Instant, decision: &Decision<Tat>) {
        let Change::Store(after) = decision.change else { return };
        let cost = after.since(self.owed(now));
        if let Some(booked) = self.booked.iter_mut().rfind(|booked| !booked.is_open()) {
            booked.cost = sum(booked.cost, cost);
            self.behind = sum(self.behind, cost);
        }
        self.known = self.known.max(Some(after));
    }

    /// Decides a call that admits nobody before a given time ([`gcra::pause`]): all waiters wait for it.
    /// Units that were taken behind them, and lie before that time, are before them now.
    ///
    /// `decide` is called twice: once for the debt before the first waiter, and then for the answer.
    ///
    /// Cost: twice the cost of `decide`, and the bookings that lie before that time.
    ///
    /// # Errors
    /// The errors of `decide`.
    pub fn pause(
        &mut self,
        state: Option<Tat>,
        now: Instant,
        decide: impl Fn(Option<Tat>) -> Result<Decision<Tat>, Error>,
    ) -> Result<Decision<Tat>, Error> {
        self.saw(state, now);
        let until = match decide(self.place())?.change {
            Change::Store(until) => until,
            Change::Keep | Change::Delete => return Ok(Decision::keep(decide(state)?.answer)),
        };
        let decision = decide(Some(self.owed(now).max(until)))?;
        self.lose(until);
        if self.owed(now) >= until {
            return Ok(Decision::keep(decision.answer));
        }
        self.known = Some(until);
        Ok(Decision::store(decision.answer, until))
    }

    /// The time owed, as an instant.
    fn owed(&self, now: Instant) -> Tat {
        self.known.unwrap_or(now).max(now)
    }

    /// The state before the place of the first waiter.
    fn place(&self) -> Option<Tat> {
        self.known.map(|tat| tat.saturating_sub(self.behind))
    }

    /// The costs of waiters that are not stored in the key.
    fn unstored(&self) -> Span {
        if self.booked.is_empty() {
            self.queued
        } else if self.short {
            self.walk(Span::ZERO).unstored
        } else {
            self.unbooked
        }
    }

    /// Serves the first waiter, if its turn has come.
    fn serve(&mut self, waiter: &Waiter, now: Instant) -> Result<Decision<Tat>, Error> {
        let mut decision = waiter.decide(self.place(), now)?;
        if decision.change.is_keep() {
            return Ok(decision);
        }
        let stored = self.booked.front().map_or(Span::ZERO, |booked| booked.room.min(waiter.cost));
        let missing = waiter.cost.saturating_sub(stored);
        decision.change = if missing == Span::ZERO {
            Change::Keep
        } else {
            let after = self.owed(now).checked_add(missing).ok_or(Error::BeyondTime)?;
            self.known = Some(after);
            Change::Store(after)
        };
        self.take_from_room(stored);
        Ok(decision)
    }

    /// Places a booking behind all waiters. Their costs that the key has not stored become rooms: one before
    /// each call that was to move, and one before the booking.
    fn book(&mut self, last: Ticket, unstored: Span, cost: Span) {
        let unbooked = self.booked.back().map_or(0, |booked| booked.last.saturating_add(1));
        // A room that no booking is behind any more becomes part of the next one.
        let open = self.booked.back().is_some_and(Booked::is_open);
        let open = if open { self.booked.pop_back() } else { None };
        // What the rooms lack for the waiters in them comes first.
        let missing = if unbooked == 0 { Span::ZERO } else { unstored.saturating_sub(self.unbooked) };
        let mut spare = open.map_or(missing, |booked| sum(booked.room, missing));
        let mut waiters = self.waiters.range(unbooked..).peekable();
        let mut left = unstored.saturating_sub(missing);
        for moved in self.moved.drain(..) {
            let mut room = core::mem::take(&mut spare);
            while let Some((_, waiter)) = waiters.next_if(|(ticket, _)| **ticket <= moved.last) {
                room = sum(room, waiter.cost);
                left = left.saturating_sub(waiter.cost);
            }
            self.booked.push_back(Booked { last: moved.last, room, cost: moved.cost });
        }
        let room = sum(left, spare);
        self.unbooked = Span::ZERO;
        let last = self.booked.back().map_or(last, |booked| booked.last.max(last));
        match self.booked.back_mut() {
            Some(booked) if booked.last == last && room == Span::ZERO => booked.cost = sum(booked.cost, cost),
            _ => self.booked.push_back(Booked { last, room, cost }),
        }
    }

    /// Places a call by a larger limit behind all waiters.
    fn add_behind(&mut self, last: Ticket, unstored: Span, cost: Span) {
        let before = match (self.booked.back_mut(), self.moved.back_mut()) {
            // Nobody waits behind the booking: the call need not move. It would close a room that is open.
            (Some(booked), _) if booked.last >= last && unstored == Span::ZERO && !booked.is_open() => {
                &mut booked.cost
            }
            (_, Some(moved)) if moved.last == last => &mut moved.cost,
            _ => return self.moved.push_back(Moved { last, cost }),
        };
        *before = sum(*before, cost);
    }

    /// Takes `time` from the beginning of the first room.
    fn take_from_room(&mut self, time: Span) {
        if let Some(booked) = self.booked.front_mut() {
            booked.room = booked.room.saturating_sub(time);
            self.behind = self.behind.saturating_sub(time);
        }
    }

    /// The first booking, and the room before it, are before the first waiter now.
    fn pass_booking(&mut self) {
        if let Some(booked) = self.booked.pop_front() {
            self.behind = self.behind.saturating_sub(booked.room).saturating_sub(booked.cost);
        }
    }

    /// Brings the queue up to date with the state and the time. Every other function that is given a state
    /// does so by itself.
    ///
    /// Cost: as [`next_turn`](Self::next_turn).
    pub fn saw(&mut self, state: Option<Tat>, now: Instant) {
        let debt = |state: Option<Tat>| state.map_or(Span::ZERO, |tat| tat.since(now));
        let refunded = debt(self.known).saturating_sub(debt(state));
        self.known = state;
        let owes = state.is_some_and(|tat| tat > now);
        let Some((&first, &waiter)) = self.waiters.first_key_value().filter(|_| owes) else {
            self.booked.clear();
            self.moved.clear();
            (self.behind, self.short) = (Span::ZERO, false);
            return;
        };
        self.give_back(refunded);
        while let Some(&booked) = self.booked.front() {
            let late = if booked.is_open() { now } else { now.saturating_sub(waiter.limit.lateness()) };
            let lost = self.time_until(late).min(booked.room);
            self.take_from_room(lost);
            self.short |= lost > Span::ZERO;
            if self.booked.front().is_some_and(|booked| booked.has_room_for(first, waiter.cost)) {
                return;
            }
            self.pass_booking();
        }
        self.short = false;
        while let Some(moved) = self.moved.front().filter(|moved| moved.last < first) {
            self.behind = self.behind.saturating_sub(moved.cost);
            self.moved.pop_front();
        }
        // While the queue could move and did not (its timer was late), moved calls were served instead.
        self.lose(now);
    }

    /// The time from the first waiter's place to `instant`.
    fn time_until(&self, instant: Instant) -> Span {
        self.place().map_or(Span::ZERO, |place| instant.since(place))
    }

    /// Nobody in the queue may have a place before `until`.
    fn lose(&mut self, until: Instant) {
        while let Some(&booked) = self.booked.front() {
            let lost = self.time_until(until);
            self.short |= lost > Span::ZERO;
            if lost < booked.room || lost == Span::ZERO {
                return self.take_from_room(lost);
            }
            self.pass_booking();
        }
        while let Some(moved) = self.moved.front_mut() {
            let lost = self.known.map_or(Span::ZERO, |tat| until.since(tat.saturating_sub(self.behind)));
            let part = lost.min(moved.cost);
            moved.cost = moved.cost.saturating_sub(part);
            self.behind = self.behind.saturating_sub(part);
            if moved.cost > Span::ZERO {
                return;
            }
            self.moved.pop_front();
        }
    }

    /// Subtracts a refund from the calls that have moved and from the bookings, the latest first.
    fn give_back(&mut self, mut amount: Span) {
        let mut part_of = |cost: &mut Span, behind: &mut Span| {
            let part = amount.min(*cost);
            amount = amount.saturating_sub(part);
            *cost = cost.saturating_sub(part);
            *behind = behind.saturating_sub(part);
            amount > Span::ZERO
        };
        let mut more = true;
        while more && let Some(moved) = self.moved.back_mut() {
            more = part_of(&mut moved.cost, &mut self.behind);
            if moved.cost == Span::ZERO {
                self.moved.pop_back();
            }
        }
        while more && let Some(place) = self.booked.iter().rposition(|booked| !booked.is_open()) {
            let behind_it = self.booked.get(place.saturating_add(1)).copied();
            let Some(booked) = self.booked.get_mut(place) else { return };
            more = part_of(&mut booked.cost, &mut self.behind);
            if booked.cost == Span::ZERO
                && let Some(next) = behind_it
            {
                // Nothing is left between the two rooms.
                booked.room = sum(booked.room, next.room);
                booked.last = next.last;
                self.booked.truncate(place.saturating_add(1));
            }
        }
    }

    /// The answer to a waiter that was just admitted: for what remains, the costs of the others count as
    /// taken.
    fn as_seen_behind(
        &mut self,
        waiter: &Waiter,
        decision: &Decision<Tat>,
        now: Instant,
    ) -> Result<Answer, Error> {
        let seen = self.seen(self.known, now)?;
        gcra::peek(seen, &waiter.limit, now, 0).map(|seen| Answer {
            remaining: seen.remaining,
            reset_after: self.owed(now).since(now),
            ..decision.answer
        })
    }

    /// The longest remaining wait in the queue: a client that joins it does not wait less.
    ///
    /// Zero if all clients wait by its own limit, because it then waits longest of all, which follows from
    /// the key and the queue.
    fn last_turn(&self, limit: &Limit, now: Instant) -> Span {
        if self.shared == Some(*limit) {
            return Span::ZERO;
        }
        let first = self.owed(now).saturating_sub(self.behind);
        let walk = self.walk(first.since(now));
        walk.longest.saturating_sub(now.since(first)) // a place in a room may have begun
    }

    /// Walks through the queue as it would be served if nothing more happened. `place` is the time until the
    /// place of the first waiter begins, and the times of the result count from the same instant.
    fn walk(&self, mut place: Span) -> Walk {
        let mut walk = Walk::default();
        let mut booked = self.booked.iter().copied().peekable();
        let mut moved = self.moved.iter().peekable();
        for (ticket, waiter) in &self.waiters {
            while let Some(passed) = booked.next_if(|booked| !booked.has_room_for(*ticket, waiter.cost)) {
                place = sum(place, sum(passed.room, passed.cost));
            }
            let mut missing = waiter.cost;
            if let Some(booked) = booked.peek_mut() {
                missing = missing.saturating_sub(booked.room);
                booked.room = booked.room.saturating_sub(waiter.cost);
            } else {
                while let Some(passed) = moved.next_if(|moved| moved.last < *ticket) {
                    place = sum(place, passed.cost);
                }
            }
            place = sum(place, waiter.cost);
            walk.unstored = sum(walk.unstored, missing);
            walk.longest = walk.longest.max(place.saturating_sub(waiter.limit.tolerance));
        }
        walk
    }
}

/// How a queue would be served if nothing more happened.
#[derive(Default)]
struct Walk {
    /// The longest wait of a waiter.
    longest: Span,
    /// Their costs that are not stored in the key.
    unstored: Span,
}

fn sum(one: Span, other: Span) -> Span {
    one.checked_add(other).unwrap_or(Span::MAX)
}

impl Booked {
    /// Whether no booking is behind the room any more, so that a place in it can end later than the room.
    fn is_open(&self) -> bool {
        self.cost == Span::ZERO
    }

    /// Whether this waiter, as the first one, may have its place in the room.
    fn has_room_for(&self, ticket: Ticket, cost: Span) -> bool {
        let has_room = if self.is_open() { self.room > Span::ZERO } else { self.room >= cost };
        has_room && ticket <= self.last
    }
}

impl Waiter {
    /// The limiter's verdict on it when its place is behind `state`.
    fn decide(&self, state: Option<Tat>, now: Instant) -> Result<Decision<Tat>, Error> {
        gcra::throttle(state, &self.limit, now, self.quantity)
    }
}
