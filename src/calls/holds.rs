//! `HOLD key period id`: the units that a call takes are held, and come back when their owner neither settles
//! nor renews in time. [`redis_cell_core::hold`] says how.
//!
//! The key of holds is read before the limiters are decided. What has run out is given back to the fixed
//! windows on which they decide, and is written with them, so that no other call sees one without the other.

use core::cell::Cell;

use redis_cell_core::fixed::Counter;
use redis_cell_core::hold::{self, Class, MOST_ENDED, MOST_PARTS, Origin, Part};
use redis_cell_core::limiter::Limiter as _;
use redis_cell_core::several;
use redis_cell_core::{Answer, Change, Decision, Instant, Span};

use smallvec::SmallVec;

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Arg, Call, Handles, Write};
use crate::limiters::{Limiter, Pending, Quantity, Target, Verb};
use crate::outcome::FEW;
use crate::store::hold::{Book, Changes, Entry};
use crate::tally;

/// The option of a call, and its key.
pub struct Hold<'c> {
    pub key: Arg<'c>,
    pub option: several::Hold<'c>,
    /// The difference by which a settlement has moved its first limiter.
    pub moved: Cell<i64>,
}

/// A limiter of the call and the name of its key.
#[derive(Clone, Copy)]
pub struct Held<'a, 'c> {
    pub name: &'c [u8],
    pub limiter: &'a Limiter<'c>,
}

/// What the key of holds says of one limiter of a call.
#[derive(Default)]
struct Of {
    /// What the owner holds.
    own: Option<Entry>,
    /// The parts that have run out.
    ended: Vec<Entry>,
}

/// The key of holds as one decision of a call sees it.
pub struct Seen<'k, 'h, 'c> {
    hold: &'h Hold<'c>,
    book: Book<'k, 'c>,
    /// For each limiter.
    of: Vec<Of>,
    /// What an owner that settles holds of keys that the call does not name.
    others: Vec<(Vec<u8>, Entry)>,
    now: Instant,
}

/// What a call has taken from one limiter.
#[derive(Clone, Copy)]
pub struct Took {
    pub quantity: i64,
    pub origin: Origin,
    /// The millisecond at which the limiter's key expires.
    pub expiry: Option<i64>,
}

impl<'c> Hold<'c> {
    /// Whether the call settles.
    fn settles(&self) -> bool {
        self.option.id.is_some() && self.option.period.is_none()
    }

    /// Reads what the key says of the limiters.
    ///
    /// # Errors
    /// The errors of [`Book`], and [`Error::Server`] when the server lacks a command that a write needs.
    pub fn look<'k, 'h, 'a>(
        &'h self,
        call: &'k Call<'c>,
        handles: &'k Handles,
        access: Access,
        limiters: &(impl Iterator<Item = Held<'a, 'c>> + Clone),
        now: Instant,
    ) -> Result<Seen<'k, 'h, 'c>, Error>
    where
        'c: 'a,
    {
        let book = Book::open(call, handles, self.key, access)?;
        if let Some(period) = self.option.period {
            hold::end_of(now, period)?;
        }
        if access == Access::Write {
            Write::Holds.check()?;
        }
        let mut of: Vec<Of> = limiters.clone().map(|_| Of::default()).collect();
        let mut left = MOST_ENDED;
        let mut others = Vec::new();
        if let Some(id) = self.option.id {
            let keys: SmallVec<[_; FEW]> = limiters.clone().map(|held| held.name).collect();
            let own = book.own(id, &keys, self.settles().then_some(MOST_ENDED))?;
            others = own.others;
            others.retain(|(_, entry)| !entry.part.has_ended(now));
            for ((this, own), held) in of.iter_mut().zip(own.named).zip(limiters.clone()) {
                match own {
                    Some(ended) if ended.part.has_ended(now) && !held.limiter.releases() => {
                        this.ended.push(ended);
                        left = left.saturating_sub(1);
                    }
                    own => this.own = own.filter(|_| !held.limiter.releases()),
                }
            }
        }
        let mut carry_out = |are_windows: bool, of: &mut Vec<Of>| -> Result<(), Error> {
            let is_one = |held: &Held| {
                !held.limiter.releases() && matches!(held.limiter, Limiter::Fixed(_)) == are_windows
            };
            for (Held { name, limiter }, this) in limiters.clone().zip(of).filter(|(held, _)| is_one(held)) {
                let found = book.ended(class(limiter), name, now, left)?;
                left = left.saturating_sub(found.len());
                let is_new = |entry: &Entry| !this.ended.iter().any(|own| own.is(entry));
                let found: Vec<_> = found.into_iter().filter(is_new).collect();
                this.ended.extend(found);
            }
            Ok(())
        };
        carry_out(true, &mut of)?;
        // Parts of rates only take memory when they have ended. They are removed when units of an owner have
        // run out, by calls without windows, and before memory is scarce.
        let has_windows = limiters.clone().any(|held| matches!(held.limiter, Limiter::Fixed(_)));
        if !has_windows || of.iter().any(|of| !of.ended.is_empty()) || book.parts() > MOST_PARTS / 2 {
            carry_out(false, &mut of)?;
        }
        Ok(Seen { hold: self, book, of, others, now })
    }
}

impl<'c> Seen<'_, '_, 'c> {
    /// Decides the limiter with this index.
    ///
    /// # Errors
    /// Those of the limiter.
    pub fn decide(
        &self,
        index: usize,
        limiter: &Limiter<'c>,
        at: &Target<'_, 'c>,
        verb: Verb,
    ) -> Result<Pending<'c>, Error> {
        match limiter {
            _ if verb == Verb::Settle => self.settle(index, limiter, at, Used::All),
            Limiter::Fixed(window) => {
                let (stored, now) = window.seen(at, verb)?;
                let state = self.restored(index, stored, now);
                let mut decision = window.take_on(state, now, at.ahead)?;
                self.prolong(index, window, &mut decision, state, now);
                Ok(Pending::Fixed(with_restored(decision, stored, state)))
            }
            _ => limiter.take(at),
        }
    }

    /// Settles the limiter with this index by what was used of it.
    ///
    /// # Errors
    /// Those of the limiter.
    pub fn settle(
        &self,
        index: usize,
        limiter: &Limiter<'c>,
        at: &Target<'_, 'c>,
        used: Used,
    ) -> Result<Pending<'c>, Error> {
        let own = self.own(index);
        let units = match used {
            Used::All => Some(limiter.units()),
            Used::Share(share) => share,
        };
        if let Limiter::Fixed(window) = limiter {
            let (stored, now) = window.seen(at, Verb::Settle)?;
            let state = self.restored(index, stored, now);
            let difference = units.map_or(0, |units| hold::settles_window(own, state.as_ref(), units));
            let decision = window.limit.settle(state, now, difference, None)?;
            return Ok(Pending::Fixed(with_restored(decision, stored, state)));
        }
        if limiter.releases() {
            return limiter.settle(at, None);
        }
        let (difference, taken) = match (own, used) {
            // Along a chain of which something is held, a rate is charged as a window is.
            (None, Used::Share(Some(units))) => (units, None),
            _ => hold::settles_rate(own, instant_of(limiter, at.now), units.unwrap_or(0)),
        };
        limiter.with_units(difference).settle(at, taken.as_ref())
    }

    /// Whether a settlement changes a limiter that is in no chain, so that its key bears what was used.
    pub fn bears(&self, index: usize, limiter: &Limiter<'c>) -> bool {
        matches!(limiter, Limiter::Fixed(_)) || self.own(index).is_some_and(Part::is_of_rate)
    }

    /// What the owner holds of the limiter with this index.
    pub fn held_of(&self, index: usize) -> Option<i64> {
        self.own(index).map(Part::held)
    }

    /// Lets a total that is forgotten when it is idle live as long as what is held of it.
    fn prolong(
        &self,
        index: usize,
        window: &Quantity<Counter>,
        decision: &mut Decision<Counter>,
        state: Option<Counter>,
        now: Instant,
    ) {
        let holds = match decision.change {
            Change::Store(counter) => Some(counter),
            _ => state.filter(|_| self.own(index).is_some() && window.units == 0),
        };
        let end = self.hold.option.period.and_then(|period| self.now.checked_add(period));
        if let Some(counter) = holds
            && let Some(end) = end
            && let Ok(millis) = u64::try_from(ffi::expiry_at(end))
        {
            let lasting =
                window.limit.lasts(counter, Instant::saturating_from_nanos(millis.saturating_mul(1_000_000)));
            if lasting != counter {
                decision.change = Change::Store(lasting);
                decision.answer.reset_after = lasting.end.since(now);
            }
        }
    }

    /// The answer that a call that takes would get from the limiter with this index.
    ///
    /// # Errors
    /// Those of the limiter.
    pub fn peek(&self, index: usize, limiter: &Limiter<'c>, at: &Target<'_, 'c>) -> Result<Answer, Error> {
        let Limiter::Fixed(window) = limiter else { return limiter.peek(at) };
        let (stored, now) = window.seen(at, Verb::Peek)?;
        Ok(window.peek_on(self.restored(index, stored, now), now, at.ahead)?)
    }

    /// What a refusal changes in the limiter with this index: what has run out comes back.
    ///
    /// # Errors
    /// Those of the limiter.
    pub fn gives_back(
        &self,
        index: usize,
        limiter: &Limiter<'c>,
        at: &Target<'_, 'c>,
    ) -> Result<Option<Pending<'c>>, Error> {
        let Limiter::Fixed(window) = limiter else { return Ok(None) };
        let (stored, now) = window.seen(at, Verb::Take)?;
        let state = self.restored(index, stored, now);
        let decision = Quantity { units: 0, ..*window }.take_on(state, now, 0)?;
        let pending = Pending::Fixed(with_restored(decision, stored, state));
        pending.check()?;
        Ok(Some(pending))
    }

    /// The state of a window after what has run out has come back.
    fn restored(&self, index: usize, state: Option<Counter>, now: Instant) -> Option<Counter> {
        let Some(counter) = state.filter(|counter| now < counter.end) else { return state };
        let ended = self.of.get(index).map(|of| of.ended.as_slice()).unwrap_or_default();
        if faults::forgets_holds() {
            return state;
        }
        let back = ended.iter().fold(0_i64, |sum, entry| sum.saturating_add(entry.part.comes_back(&counter)));
        if back == 0 { state } else { counter.without(back) }
    }

    fn own(&self, index: usize) -> Option<&Part> {
        self.of.get(index)?.own.as_ref().map(|entry| &entry.part)
    }

    /// Whether units of a window have run out.
    pub fn has_run_out(&self) -> bool {
        self.run_out().next().is_some()
    }

    fn run_out(&self) -> impl Iterator<Item = &Entry> {
        self.of.iter().flat_map(|of| &of.ended).filter(|entry| !entry.part.is_of_rate())
    }

    /// Whether the call only renews what its owner holds: it takes nothing, and the owner holds something.
    pub fn renews<'a>(&self, mut limiters: impl Iterator<Item = &'a Limiter<'c>>) -> bool
    where
        'c: 'a,
    {
        self.hold.option.period.is_some()
            && self.of.iter().any(|of| of.own.is_some())
            && limiters.all(|limiter| limiter.releases() || limiter.units() == 0)
    }

    /// The wait of a call whose `new` parts have no room, because its owner is new; `None` when there is
    /// room.
    ///
    /// # Errors
    /// The errors of [`Book`].
    pub fn is_full<'a>(
        &self,
        limiters: impl Iterator<Item = Held<'a, 'c>>,
        new: usize,
    ) -> Result<Option<Span>, Error>
    where
        'c: 'a,
    {
        let (Some(id), Some(_)) = (self.hold.option.id, self.hold.option.period) else { return Ok(None) };
        let new = u64::try_from(new).unwrap_or(u64::MAX);
        let ended: usize = self.of.iter().map(|of| of.ended.len()).sum();
        let left = self.book.parts().saturating_sub(u64::try_from(ended).unwrap_or_default());
        if new == 0 || left.saturating_add(new) <= MOST_PARTS {
            return Ok(None);
        }
        if self.book.knows(id) {
            return Ok(None);
        }
        let mut next: Option<Instant> = None;
        for Held { name, limiter } in limiters {
            let end = self.book.next_end(class(limiter), name)?;
            next = next.into_iter().chain(end).min();
        }
        let next = next.or_else(|| self.book.lives_until());
        Ok(Some(next.map_or(Span::MAX, |end| end.since(self.now)).max(Span::NANOSECOND)))
    }

    /// The time until the next part of the limiter runs out; `None` when none will, or what is held does not
    /// come back.
    ///
    /// # Errors
    /// The errors of [`Book`].
    pub fn runs_out_in(&self, held: Held<'_, 'c>) -> Result<Option<Span>, Error> {
        if !matches!(held.limiter, Limiter::Fixed(_)) {
            return Ok(None);
        }
        let end = self.book.next_end_after(class(held.limiter), held.name, self.now)?;
        Ok(end.map(|end| end.since(self.now)))
    }

    /// Whether the key is created by the call.
    pub fn creates(&self) -> bool {
        self.book.is_empty() && self.hold.option.period.is_some()
    }

    /// Writes what a refusal changes.
    pub fn write_refused(self) -> Option<Announcement<'c>> {
        self.count_run_out();
        let mut changes = Changes::default();
        remove_ended(&self.of, &mut changes);
        self.book.write(changes)
    }

    /// Writes what an admitted call or a settlement changes.
    pub fn write<'a>(
        self,
        limiters: impl Iterator<Item = Held<'a, 'c>> + Clone,
        took: &[Option<Took>],
    ) -> Option<Announcement<'c>>
    where
        'c: 'a,
    {
        self.count_run_out();
        let Self { hold, book, of, others, now } = self;
        let mut changes = Changes::default();
        remove_ended(&of, &mut changes);
        // What others hold of a total comes back as long as the total lives.
        for (Held { name, limiter }, took) in limiters.clone().zip(took) {
            if let Some(Took { origin: Origin::Total { .. }, expiry: Some(expiry), .. }) = took
                && book.next_end(class(limiter), name).is_ok_and(|end| end.is_some())
            {
                changes.prolong(*expiry);
            }
        }
        match (hold.option.id, hold.option.period) {
            (Some(id), Some(period)) => {
                for ((Held { name, .. }, of), took) in limiters.zip(&of).zip(took) {
                    let Some(took) = took else { continue };
                    let own = of.own.as_ref().map(|entry| entry.part);
                    let part = Part::taken(own, took.quantity, took.origin, now, period);
                    if let Ok(Some(part)) = part {
                        of.own.iter().for_each(|entry| changes.remove(entry));
                        changes.add(name, id, &part, took.expiry);
                    }
                }
            }
            (Some(_), None) => {
                let is_known = of.iter().any(|of| of.own.is_some()) || !others.is_empty();
                of.iter().flat_map(|of| &of.own).for_each(|entry| changes.remove(entry));
                // They have run out, and those of rates are forgotten.
                for (key, entry) in &others {
                    if entry.part.is_of_rate() {
                        changes.remove(entry);
                    } else {
                        changes.end(key, entry, now);
                    }
                }
                if is_known { tally::HOLDS_SETTLED.add(1) } else { tally::HOLDS_UNKNOWN.add(1) }
            }
            (None, _) => {}
        }
        book.write(changes)
    }

    /// Counts the owners whose units have run out.
    fn count_run_out(&self) {
        let mut ids: Vec<&[u8]> = self.run_out().map(|entry| entry.id.as_slice()).collect();
        ids.sort_unstable();
        ids.dedup();
        tally::HOLDS_RUN_OUT.add(ids.len());
    }

    /// Remembers by how much a settlement moves its first limiter.
    pub fn remember_difference(&self, first: Option<&Limiter<'c>>) {
        let used = first.map_or(0, Limiter::units);
        if self.hold.settles() {
            self.hold.moved.set(used.saturating_sub(self.own(0).map_or(0, Part::held)));
        }
    }
}

/// What was used of a limiter.
#[derive(Clone, Copy, Debug)]
pub enum Used {
    /// The quantity of the call.
    All,
    /// The share of a limiter of a chain; `None` for one that is left alone.
    Share(Option<i64>),
}

/// What a limiter has given to an admitted call that takes `quantity` from it, by its decision and its
/// answer.
pub fn took(
    limiter: &Limiter,
    quantity: i64,
    counter: Option<Counter>,
    answer: &Answer,
    now: Instant,
) -> Option<Took> {
    if limiter.releases() {
        return None;
    }
    let quantity = if answer.limited() { 0 } else { quantity };
    Some(match (limiter, counter) {
        (Limiter::Fixed(window), Some(counter)) => {
            let is_total = window.limit.is_total();
            let idles = !window.limit.never_expires();
            let origin = if is_total { Origin::Total { idles } } else { Origin::Window { end: counter.end } };
            let expiry = counter.end.as_millis_ceil().cast_signed();
            Took { quantity, origin, expiry: Some(expiry).filter(|_| !window.limit.never_expires()) }
        }
        // Nothing is taken: what is held of it stays as it is.
        (Limiter::Fixed(_), None) => {
            Took { quantity: 0, origin: Origin::Total { idles: false }, expiry: None }
        }
        _ => {
            let at = instant_of(limiter, now);
            let origin = Origin::Rate { at, reset_after: answer.reset_after };
            Took { quantity, origin, expiry: None }
        }
    })
}

/// The kind of the limiter's parts.
fn class(limiter: &Limiter) -> Class {
    match limiter {
        Limiter::Fixed(window) if window.limit.never_expires() => Class::Total,
        Limiter::Fixed(window) if window.limit.is_total() => Class::Idle,
        _ => Class::Part,
    }
}

/// Removes the parts that have run out.
fn remove_ended(of: &[Of], changes: &mut Changes) {
    if !faults::keeps_holds() {
        of.iter().flat_map(|of| &of.ended).for_each(|entry| changes.remove(entry));
    }
}

/// The instant of a take, as the limiter stores it.
fn instant_of(limiter: &Limiter, now: Instant) -> Instant {
    match limiter {
        Limiter::Log(_) => Instant::from_micros(now.as_micros_ceil()).unwrap_or(now),
        _ => now,
    }
}

/// A decision on a state to which units have come back, which are written even if nothing else is.
fn with_restored(
    decision: Decision<Counter>,
    stored: Option<Counter>,
    state: Option<Counter>,
) -> Decision<Counter> {
    if !decision.change.is_keep() || stored == state {
        return decision;
    }
    Decision { change: state.map_or(Change::Delete, Change::Store), ..decision }
}
