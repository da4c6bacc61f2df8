//! The decisions of a call on its open keys, before any of them is carried out.

use redis_cell_core::{Instant, Taken};

use smallvec::SmallVec;

use super::looks::peek;
use super::request::Request;
use crate::calls::chains::{self, Keys, Loaded, Named, Plan};
use crate::calls::holds::{Seen, Used};
use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Call, Handles, Key};
use crate::limiters::{Limiter, Pending, Target, Verb, WholeCall};
use crate::outcome::FEW;
use crate::waiting;

/// A limiter that was decided: its open key, and the decision.
pub(super) struct Decided<'k, 'c> {
    pub(super) key: Key<'k, 'c>,
    pub(super) pending: Pending<'c>,
}

/// The decisions of a call. They are passed by reference, because they are large.
pub(super) type AllDecided<'k, 'c> = SmallVec<[Decided<'k, 'c>; FEW]>;

impl<'c> Request<'c> {
    /// Decides the limiters of a call with chains.
    #[cold]
    pub(super) fn decide_chains<'k>(
        &self,
        call: &'k Call<'c>,
        handles: &'k Handles,
        (now, verb): (Instant, Verb),
        seen: Option<&Seen<'_, '_, 'c>>,
        (plan, decided): (&mut Plan, &mut AllDecided<'k, 'c>),
    ) -> Result<(), Error> {
        for chain in self.chains() {
            let first = decided.len();
            if let [named] = chain
                && verb != Verb::Settle
            {
                let key = named.open(call, handles)?;
                let seen = seen.map(|seen| (seen, first));
                let pending = self.decide_any(call, handles, (named, &key), (now, verb), seen)?;
                let is_held =
                    named.limiter.releases() && named.limiter.is_held(&named.target(call, &key, now))?;
                plan.add(pending.answer(), if is_held { 0 } else { named.limiter.units() });
                decided.push(Decided { key, pending });
                continue;
            }
            let mut keys = Keys::new();
            chains::open(call, handles, chain, Access::Write, &mut keys)?;
            let targets = chain.iter().zip(&keys).map(|(named, key)| self.target(named, call, key, now));
            match seen {
                Some(seen) if verb == Verb::Settle => {
                    plan.settle(chain, &targets.collect::<SmallVec<[_; FEW]>>(), seen)?;
                }
                _ => plan.decide(chain, targets, seen)?,
            }
            for (named, key) in chain.iter().zip(keys.drain(..)) {
                let at = decided.len();
                let loaded = plan.loaded.get(at.saturating_sub(first)).copied().flatten();
                let pending =
                    self.decide_share(call, (named, &key), (now, verb), (plan, at, loaded), seen)?;
                if verb != Verb::Settle && plan.has_lost(at, &pending) {
                    return Err(Error::Busy);
                }
                decided.push(Decided { key, pending });
            }
        }
        Ok(())
    }

    /// Decides a limiter of a call with chains for its share, and makes sure that the decision can be carried
    /// out.
    pub(super) fn decide_share(
        &self,
        call: &Call<'c>,
        (named, key): (&Named<'c>, &Key<'_, 'c>),
        (now, verb): (Instant, Verb),
        (plan, at, loaded): (&Plan, usize, Option<Loaded>),
        seen: Option<&Seen<'_, '_, 'c>>,
    ) -> Result<Pending<'c>, Error> {
        let target = self.target(named, call, key, now);
        let share = plan.taken(at).map(|units| faults::part(units, named.limiter.units()));
        let pending = match seen {
            Some(seen) if !named.is_pool => seen.decide(at, &named.limiter, &target, verb)?,
            Some(seen) if verb == Verb::Settle => {
                seen.settle(at, &named.limiter, &target, Used::Share(share))?
            }
            None if !named.is_pool => named.limiter.take(&target)?,
            _ if named.limiter.releases() && share.is_none() => named.limiter.keep(plan.answer(at)),
            // Units that have run out come back to limiters that are passed over, too.
            Some(seen) => seen.decide(at, &named.limiter.with_units(share.unwrap_or(0)), &target, verb)?,
            None => match (share, &named.limiter, loaded) {
                (Some(units), Limiter::Fixed(window), Some((counter, now))) => {
                    Pending::Fixed(WholeCall { units, ..*window }.take_on(counter, now, target.ahead)?)
                }
                (Some(units), limiter, _) => limiter.with_units(units).take(&target)?,
                (None, limiter, _) => limiter.keep(plan.answer(at)),
            },
        };
        pending.check()?;
        Ok(pending)
    }

    /// [`decide`](Self::decide) where the size of the code matters more than its speed.
    #[cold]
    pub(super) fn decide_any(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        limiter: (&Named<'c>, &Key<'_, 'c>),
        how: (Instant, Verb),
        seen: Option<(&Seen<'_, '_, 'c>, usize)>,
    ) -> Result<Pending<'c>, Error> {
        self.decide(call, handles, limiter, how, seen)
    }

    /// Decides a limiter on its open key, and makes sure that the decision can be carried out.
    #[inline(always)]
    pub(super) fn decide(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        (named, key): (&Named<'c>, &Key<'_, 'c>),
        (now, verb): (Instant, Verb),
        seen: Option<(&Seen<'_, '_, 'c>, usize)>,
    ) -> Result<Pending<'c>, Error> {
        let mut pending = self.decision(named, &self.target(named, call, key, now), verb, seen)?;
        pending.check()?;
        if self.is_turn {
            self.count_behind(named, &self.target(named, call, key, now), seen, &mut pending)?;
        }
        if faults::writes_at_once() {
            let written = self.decision(named, &self.target(named, call, key, now), verb, seen)?;
            let _ = named.limiter.write(&written, &mut named.open(call, handles)?, call);
        }
        Ok(pending)
    }

    #[inline(always)]
    fn decision(
        &self,
        named: &Named<'c>,
        at: &Target<'_, 'c>,
        verb: Verb,
        seen: Option<(&Seen<'_, '_, 'c>, usize)>,
    ) -> Result<Pending<'c>, Error> {
        match verb {
            _ if let Some((seen, index)) = seen => seen.decide(index, &named.limiter, at, verb),
            Verb::Settle => {
                let Self { age, unit, .. } = *self;
                let taken = age.map(|age| Taken { age, reset_after: named.reset_after, unit });
                named.limiter.settle(at, taken.as_ref())
            }
            Verb::Take | Verb::Wait | Verb::Peek => named.limiter.take(at),
        }
    }

    /// In the `remaining` of the first limiter, the costs of the clients that still wait count as taken.
    #[cold]
    fn count_behind(
        &self,
        named: &Named<'c>,
        at: &Target<'_, 'c>,
        seen: Option<(&Seen<'_, '_, 'c>, usize)>,
        pending: &mut Pending<'c>,
    ) -> Result<(), Error> {
        let is_first = self.limiters.first().is_some_and(|first| core::ptr::eq(first, named));
        let Ok((_, cost)) = self.share() else { return Ok(()) };
        let ahead = waiting::ahead(&at.call, named.key).saturating_sub(cost);
        if !is_first || ahead == 0 {
            return Ok(());
        }
        let behind = Target { ahead, ..*at };
        let remaining = if pending.answer().limited() {
            peek(named, 0, &behind, seen.map(|(seen, _)| seen)).map(|answer| answer.remaining)
        } else {
            // If the call would be refused behind them, they wait for all units that remain.
            let taken = match seen {
                Some((seen, index)) => seen.decide(index, &named.limiter, &behind, Verb::Take),
                None => named.limiter.take(&behind),
            };
            let taken = taken.map(|taken| taken.answer());
            taken.map(|answer| if answer.limited() { 0 } else { answer.remaining })
        };
        match remaining {
            Ok(remaining) => pending.set_remaining(remaining),
            Err(Error::Busy) => return Err(Error::Busy), // the key is not open any more
            Err(_) => {}
        }
        Ok(())
    }
}

impl Decided<'_, '_> {
    /// Whether carrying out the decision creates the key, or adds entries to it.
    pub(super) fn grows(&self) -> bool {
        self.creates() || self.pending.adds()
    }

    /// Whether carrying out the decision creates the key.
    pub(super) fn creates(&self) -> bool {
        self.key.value_type() == ffi::ValueType::Empty && self.pending.stores()
    }
}
