//! `HOLD key period id`: the units that a call takes are held, and come back if their owner neither settles
//! nor renews in time. [`redis_cell_core::hold`] has the rules.
//!
//! The key of holds is read before the limiters are decided. Units that have run out are given back to the
//! fixed windows before the decision, and both are written together, so that no other call sees one without
//! the other.

use core::cell::Cell;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use redis_cell_core::fixed::Counter;
use redis_cell_core::hold::{self, MOST_ENDED, MOST_PARTS, MOST_UNNAMED, Origin, Part, RATES_EACH};
use redis_cell_core::limiter::Limiter as _;
use redis_cell_core::several;
use redis_cell_core::{Answer, Change, Decision, Instant, Span, Unit};

use smallvec::SmallVec;

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Arg, Call, Handles, Write};
use crate::limiters::{Limiter, Pending, Target, Verb, WholeCall};
use crate::outcome::FEW;
use crate::store::hold::{Book, Lasting, Owner};
use crate::tally;

/// The option of a call, and its key.
pub struct Hold<'c> {
    pub key: Arg<'c>,
    pub option: several::Hold<'c>,
    /// The unit of its period.
    pub unit: Unit,
    /// The difference by which a settlement has changed its first limiter.
    pub moved: Cell<i64>,
}

/// A limiter of the call and the name of its key.
#[derive(Clone, Copy)]
pub struct Held<'a, 'c> {
    pub name: &'c [u8],
    pub limiter: &'a Limiter<'c>,
}

/// The content of the key of holds for one limiter of a call.
struct Of<'c> {
    /// The name of its key.
    name: &'c [u8],
    /// The part that the owner of the call holds.
    own: Option<Part>,
    /// The parts that have run out.
    ended: Vec<Part>,
    /// The instant at which the next part of any owner runs out.
    next: Option<Instant>,
    /// Whether any owner held something before the call.
    is_held: bool,
    /// Whether other owners hold something after the call.
    are_left: bool,
    /// Whether a total that is forgotten when it is idle has lived without a break, if parts of it have run
    /// out.
    has_lived: bool,
}

impl Of<'_> {
    /// Whether a part of a total that is forgotten when it is idle is read.
    fn is_idle(&self) -> bool {
        self.ended.iter().chain(&self.own).any(Part::is_idle)
    }
}

/// The key of holds during one decision of a call.
pub struct Seen<'k, 'h, 'c> {
    hold: &'h Hold<'c>,
    book: Book<'k, 'c>,
    /// For each limiter.
    of: SmallVec<[Of<'c>; FEW]>,
    /// The owner of the call.
    owner: Option<Owner<'c>>,
    /// Other owners whose parts have run out, by their names.
    others: BTreeMap<Vec<u8>, Owner<'static>>,
    /// Whether a limiter, or a part that is read, is a total that is forgotten when it is idle.
    has_idle: bool,
    now: Instant,
}

/// The units that a call has taken from one limiter.
#[derive(Clone, Copy)]
pub struct Took {
    pub quantity: i64,
    pub origin: Origin,
    /// The millisecond at which the limiter's key expires.
    pub expiry: Option<i64>,
}

impl<'c> Hold<'c> {
    /// Reads the content of the key for the limiters.
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
    ) -> Result<Box<Seen<'k, 'h, 'c>>, Error>
    where
        'c: 'a,
    {
        let book = Book::open(call, handles, self.key, access)?;
        if let Some(period) = self.option.period {
            hold::end_of(now, period, self.unit)?;
        }
        if access == Access::Write {
            Write::Holds.check()?;
        }
        let of = limiters.clone().map(|held| Of {
            name: held.name,
            own: None,
            ended: Vec::new(),
            next: None,
            is_held: false,
            are_left: false,
            has_lived: false,
        });
        let of = of.collect();
        let others = BTreeMap::new();
        let mut seen = Box::new(Seen { hold: self, book, of, owner: None, others, has_idle: false, now });
        let mut left = MOST_ENDED;
        if let Some(id) = self.option.id {
            let names = limiters.clone().map(|held| held.name);
            // Only a settlement names an owner and no period.
            let unnamed = self.option.period.map_or(MOST_UNNAMED, |_| 0);
            let mut owner = seen.book.owner(Cow::Borrowed(id), names, unnamed)?;
            for (of, Held { name, limiter }) in seen.of.iter_mut().zip(limiters.clone()) {
                match owner.named(name).filter(|_| !limiter.releases()) {
                    Some(part) if part.has_ended(now) => {
                        of.ended.push(part);
                        // A refusal removes no parts of rates, and would find them again and again.
                        left = left.saturating_sub(usize::from(matches!(limiter, Limiter::Fixed(_))));
                        owner.remove_ended(name, now);
                    }
                    own => {
                        seen.has_idle |= own.is_some_and(|part| part.is_idle());
                        of.own = own;
                    }
                }
            }
            seen.owner = Some(owner);
        }
        let is_window = |held: &Held| matches!(held.limiter, Limiter::Fixed(_));
        seen.carry_out(limiters.clone().map(|held| is_window(&held).then_some(held)), &mut left)?;
        // Parts of rates that have ended only take memory. They are removed when units of an owner have run
        // out, when the number of parts passes a multiple of `RATES_EACH`, and when there are many parts.
        let parts = seen.book.parts();
        let most = parts.saturating_add(u64::try_from(seen.of.len()).unwrap_or(u64::MAX));
        let must = parts > MOST_PARTS / 2 || seen.of.iter().any(|of| !of.ended.is_empty());
        if must || self.option.period.is_some() && most / RATES_EACH > parts / RATES_EACH {
            if !must {
                // This is more than calls add in between. A refusal removes none, and the next call finds
                // them again.
                let each = usize::try_from(RATES_EACH).unwrap_or(0).saturating_add(seen.of.len());
                left = left.min(each.saturating_mul(2));
            }
            let is_rate = |held: &Held| !is_window(held) && !held.limiter.releases();
            seen.carry_out(limiters.clone().map(|held| is_rate(&held).then_some(held)), &mut left)?;
        }
        Ok(seen)
    }
}

impl<'c> Seen<'_, '_, 'c> {
    /// Finds parts of these limiters that have run out, at most `left` of them.
    fn carry_out<'a>(
        &mut self,
        limiters: impl Iterator<Item = Option<Held<'a, 'c>>>,
        left: &mut usize,
    ) -> Result<(), Error>
    where
        'c: 'a,
    {
        let Self { book, of, owner, others, has_idle, now, .. } = self;
        let limiters = limiters.zip(of).filter_map(|(held, of)| held.map(|held| (held, of)));
        for (Held { name, limiter }, of) in limiters {
            let idles = matches!(limiter, Limiter::Fixed(window) if window.limit.idles());
            let own = owner.as_ref().map(|owner| &*owner.id).filter(|_| idles);
            *has_idle |= idles;
            let ends = book.ends(name, own, *now, *left)?;
            (of.next, of.is_held, of.are_left) = (ends.next, ends.are_some, ends.are_left);
            *left = left.saturating_sub(ends.ended.len());
            for id in ends.ended {
                if owner.as_ref().is_some_and(|owner| *owner.id == *id) {
                    continue; // its parts are known
                }
                let other = match others.entry(id) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(free) => {
                        let id = Cow::Owned(free.key().clone());
                        free.insert(book.owner(id, core::iter::empty(), 0)?)
                    }
                };
                book.find(other, name);
                if other.has_removed(name) {
                    continue; // a rate, with a window that ended before it
                }
                let part = other.named(name).filter(|part| part.has_ended(*now));
                of.ended.push(part.ok_or(hold::FOREIGN)?);
                other.remove_ended(name, *now);
            }
            if !of.ended.is_empty() || of.next.is_some_and(|next| next <= *now) {
                *has_idle |= of.is_idle();
                of.has_lived = *has_idle && book.has_lived(name, *now);
            }
        }
        Ok(())
    }

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

    /// Settles the limiter with this index by its used units.
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
            let difference = units.map_or(0, |units| hold::settles_window(own, state.as_ref(), now, units));
            let decision = window.limit.settle(state, now, difference, None)?;
            return Ok(Pending::Fixed(with_restored(decision, stored, state)));
        }
        if limiter.releases() {
            return limiter.settle(at, None);
        }
        let (difference, taken) = match (own, used) {
            // In a chain of which units are held, a rate is charged like a window.
            (None, Used::Share(Some(units))) => (units, None),
            _ => hold::settles_rate(own, instant_of(limiter, at.now), units.unwrap_or(0)),
        };
        limiter.with_units(difference).settle(at, taken.as_ref())
    }

    /// Whether a settlement changes a limiter outside of chains, so that the used units are charged to its
    /// key.
    pub fn bears(&self, index: usize, limiter: &Limiter<'c>) -> bool {
        matches!(limiter, Limiter::Fixed(_)) || self.own(index).is_some_and(Part::is_of_rate)
    }

    /// The part that the owner holds of the limiter with this index.
    pub fn held_of(&self, index: usize) -> Option<i64> {
        self.own(index).map(Part::held)
    }

    /// Lets a total with an idle time live as long as the parts that are held of it.
    fn prolong(
        &self,
        index: usize,
        window: &WholeCall<Counter>,
        decision: &mut Decision<Counter>,
        state: Option<Counter>,
        now: Instant,
    ) {
        let holds = match decision.change {
            Change::Store(counter) => Some(counter),
            // Nothing is taken, not even in shadow, and the parts are renewed.
            _ => state.filter(|counter| counter.end > now && self.own(index).is_some()),
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

    /// The answer that the limiter with this index would give to a call that takes.
    ///
    /// # Errors
    /// Those of the limiter.
    pub fn peek(&self, index: usize, limiter: &Limiter<'c>, at: &Target<'_, 'c>) -> Result<Answer, Error> {
        let Limiter::Fixed(window) = limiter else { return limiter.peek(at) };
        let (stored, now) = window.seen(at, Verb::Peek)?;
        Ok(window.peek_on(self.restored(index, stored, now), now, at.ahead)?)
    }

    /// The change that a refusal makes to the limiter with this index: units that have run out come back.
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
        let decision = WholeCall { units: 0, ..*window }.take_on(state, now, 0)?;
        let pending = Pending::Fixed(with_restored(decision, stored, state));
        pending.check()?;
        Ok(Some(pending))
    }

    /// The state of a window after the units that have run out have come back.
    #[inline]
    fn restored(&self, index: usize, state: Option<Counter>, now: Instant) -> Option<Counter> {
        let Some(counter) = state.filter(|counter| now < counter.end) else { return state };
        let Some(of) = self.of.get(index).filter(|_| !faults::forgets_holds()) else { return state };
        let ended = of.ended.iter().filter(|part| of.has_lived || !part.is_idle());
        let back = ended.fold(0_i64, |sum, part| sum.saturating_add(part.comes_back(&counter, now)));
        if back == 0 { state } else { counter.without(back) }
    }

    fn own(&self, index: usize) -> Option<&Part> {
        self.of.get(index)?.own.as_ref()
    }

    /// Whether a refusal brings units back: those of windows, because clients wait for them.
    pub fn has_run_out<'a>(&self, limiters: impl Iterator<Item = &'a Limiter<'c>>) -> bool
    where
        'c: 'a,
    {
        self.of
            .iter()
            .zip(limiters)
            .any(|(of, limiter)| matches!(limiter, Limiter::Fixed(_)) && !of.ended.is_empty())
    }

    /// Whether the call only renews the parts of its owner: it takes nothing, and the owner holds something.
    pub fn renews<'a>(&self, mut limiters: impl Iterator<Item = &'a Limiter<'c>>) -> bool
    where
        'c: 'a,
    {
        self.hold.option.period.is_some()
            && self.of.iter().any(|of| of.own.is_some())
            && limiters.all(|limiter| limiter.releases() || limiter.units() == 0)
    }

    /// The wait of a call of a new owner if the key has no room for its `new` parts; `None` when there is
    /// room.
    pub fn is_full(&self, new: usize) -> Option<Span> {
        let owner = self.owner.as_ref().filter(|_| self.hold.option.period.is_some())?;
        let new = u64::try_from(new).unwrap_or(u64::MAX);
        if new == 0 || owner.is_known || self.book.parts().saturating_add(new) <= MOST_PARTS {
            return None;
        }
        if self.book.parts().saturating_sub(self.removed()).saturating_add(new) <= MOST_PARTS {
            return None;
        }
        let next = self.of.iter().filter_map(|of| of.next).min().or_else(|| self.book.lives_until());
        Some(next.map_or(Span::MAX, |end| end.since(self.now)).max(Span::NANOSECOND))
    }

    /// How many parts the call removes.
    pub fn removed(&self) -> u64 {
        self.owners().map(Owner::removed).sum()
    }

    /// Whether more parts may have run out than the call brings back.
    pub fn has_more(&self) -> bool {
        self.of.iter().any(|of| of.next.is_some_and(|next| next <= self.now))
    }

    fn owners(&self) -> impl Iterator<Item = &Owner<'_>> {
        self.owner.iter().chain(self.others.values())
    }

    /// The time until the next part of the limiter with this index runs out; `None` if none will, or if held
    /// units of it do not come back.
    pub fn runs_out_in(&self, index: usize, limiter: &Limiter<'c>) -> Option<Span> {
        let next = self.of.get(index)?.next.filter(|_| matches!(limiter, Limiter::Fixed(_)))?;
        Some(next.since(self.now))
    }

    /// Whether the key is created by the call.
    pub fn creates(&self) -> bool {
        self.book.parts() == 0 && self.hold.option.period.is_some()
    }

    /// Writes the changes of a refusal.
    pub fn write_refused(mut self: Box<Self>) -> Option<Announcement<'c>> {
        self.save(Lasting::default(), &[])
    }

    /// Writes the changes of an admitted call or a settlement.
    pub fn write<'a>(
        mut self: Box<Self>,
        limiters: impl Iterator<Item = Held<'a, 'c>> + Clone,
        took: &[Option<Took>],
    ) -> Option<Announcement<'c>>
    where
        'c: 'a,
    {
        let Self { hold, of, owner, now, .. } = &mut *self;
        let mut lasting = Lasting::default();
        // Units that other owners hold of a total come back as long as the total lives.
        for (_, took) in of.iter().zip(took).filter(|(of, _)| of.is_held) {
            if let Some(Took { origin: Origin::Total { .. }, expiry: Some(expiry), .. }) = took {
                lasting.until = lasting.until.max(*expiry);
            }
        }
        match (owner, hold.option.period) {
            (Some(owner), Some(period)) => {
                for ((Held { name, .. }, of), took) in limiters.zip(of.iter()).zip(took) {
                    let Some(took) = took else { continue };
                    let part = Part::taken(of.own, took.quantity, took.origin, *now, period);
                    if let Ok(Some(part)) = part {
                        lasting.add(&part, took.expiry);
                        owner.set(name, part);
                    }
                }
            }
            (Some(owner), None) => {
                let mut is_known = owner.end_unnamed(*now);
                for of in of.iter().filter(|of| of.own.is_some()) {
                    is_known = true;
                    owner.remove(of.name);
                }
                if is_known { tally::HOLDS_SETTLED.add(1) } else { tally::HOLDS_UNKNOWN.add(1) }
            }
            (None, _) => {}
        }
        self.save(lasting, took)
    }

    /// Writes the parts of all owners, and counts the owners whose units have run out.
    fn save(&mut self, lasting: Lasting, took: &[Option<Took>]) -> Option<Announcement<'c>> {
        tally::HOLDS_RUN_OUT.add(self.owners().filter(|owner| owner.has_run_out).count());
        let mut idle = Vec::new();
        for (at, of) in self.of.iter().enumerate().filter(|_| self.has_idle) {
            let expiry = match took.get(at) {
                Some(Some(Took { origin: Origin::Total { idles: true }, expiry, .. })) => *expiry,
                _ if of.is_idle() => None,
                _ => continue,
            };
            if of.are_left || self.owner.as_mut().is_some_and(|owner| owner.holds(of.name)) {
                // Parts of an earlier life that are left must not be taken for parts of the present one.
                let are_mixed = !of.has_lived && of.next.is_some_and(|next| next <= self.now);
                if let Some(expiry) = expiry.filter(|_| !are_mixed) {
                    idle.push((of.name, Some(expiry.unsigned_abs())));
                }
            } else if of.is_idle() {
                idle.push((of.name, None));
            }
        }
        let Self { book, owner, others, .. } = self;
        book.write(owner.iter().chain(others.values()), &idle, lasting)
    }

    /// Stores the difference by which a settlement changes its first limiter.
    pub fn remember_difference(&self, first: Option<&Limiter<'c>>) {
        let used = first.map_or(0, Limiter::units);
        self.hold.moved.set(used.saturating_sub(self.own(0).map_or(0, Part::held)));
    }
}

/// The units of a limiter that were used.
#[derive(Clone, Copy, Debug)]
pub enum Used {
    /// The quantity of the call.
    All,
    /// The share of a limiter of a chain; `None` for a limiter that does not change.
    Share(Option<i64>),
}

/// The units that a limiter has given to an admitted call that takes `quantity` from it, by its decision and
/// its answer.
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
    Some(if let (Limiter::Fixed(window), Some(counter)) = (limiter, counter) {
        let is_total = window.limit.is_total();
        let idles = !window.limit.never_expires();
        let origin = if is_total { Origin::Total { idles } } else { Origin::Window { end: counter.end } };
        let expiry = counter.end.as_millis_ceil().cast_signed();
        Took { quantity, origin, expiry: Some(expiry).filter(|_| !window.limit.never_expires()) }
    } else {
        // Nothing is taken from a window without a state, so this value is never read.
        let origin = Origin::Rate { at: instant_of(limiter, now), reset_after: answer.reset_after };
        Took { quantity, origin, expiry: None }
    })
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
