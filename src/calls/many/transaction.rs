//! Carries out a call: all of its decisions, or none.

use core::mem;

use redis_cell_core::several::{self, Row};
use redis_cell_core::{Answer, Instant, Verdict};

use smallvec::SmallVec;

use super::decisions::{AllDecided, Decided};
use super::looks::peek;
use super::request::{Queued, Request};
use crate::calls::chains::{Named, Plan};
use crate::calls::holds::{self, Seen};
use crate::calls::once::{Once, Stored};
use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Call, Handles, Key};
use crate::limiters::{Pending, Verb};
use crate::outcome::{FEW, Outcome, Repeated, Rows};
use crate::waiting;

/// How a call ends.
enum End {
    /// As the rows say.
    Rows,
    /// With this verdict in place of that of the rows.
    Ruled(Verdict),
    /// With the reply of the call that it repeats.
    Repeated(Repeated),
}

/// The decisions of a call with `HOLD`, and the key for its reply.
struct HeldDecisions<'d, 'k, 'h, 'c> {
    now: Instant,
    verb: Verb,
    decided: &'d mut AllDecided<'k, 'c>,
    plan: Option<&'d Plan>,
    /// Whether a limiter or a chain refuses the call.
    refuses: bool,
    seen: Box<Seen<'k, 'h, 'c>>,
    reply: Option<(Box<Key<'k, 'c>>, Instant)>,
}

/// The changes of a call, to be published when all of them are made and no key is open.
type Announcements<'c> = SmallVec<[Announcement<'c>; FEW]>;

impl<'c> Request<'c> {
    /// Takes from all limiters or from none.
    ///
    /// # Errors
    /// The errors of any limiter, also of one in shadow, and [`Error::Busy`]. After an error, nothing was
    /// taken.
    pub fn take(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        let mut rows = Rows::new();
        Ok(match self.carry_out(call, Verb::Take, &mut rows)? {
            End::Rows => Outcome::Several(rows, self.unit),
            End::Ruled(verdict) => Outcome::Ruled(rows, self.unit, verdict),
            End::Repeated(rows) => Outcome::Repeated(rows),
        })
    }

    /// Settles all differences.
    ///
    /// # Errors
    /// The errors of any limiter, [`Error::OutOfMemory`] and [`Error::Busy`]. After an error, nothing was
    /// settled.
    pub fn settle(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        let mut rows = Rows::new();
        if let End::Repeated(rows) = self.carry_out(call, Verb::Settle, &mut rows)? {
            return Ok(Outcome::Repeated(rows));
        }
        if self.queued.names_flow
            && let Some(first) = self.limiters.first()
            && !first.limiter.releases()
        {
            let Queued { flow, weight, .. } = self.queued;
            let difference = self.hold.as_ref().map_or(first.limiter.units(), |hold| hold.moved.get());
            waiting::settle(call, first.key, flow, weight, difference);
        }
        Ok(Outcome::SeveralStates(rows, self.unit))
    }

    /// Decides all limiters, carries out all decisions if none of them refuses, and returns the rows; or
    /// finds the reply of the call that this one repeats.
    fn carry_out(&self, call: &Call<'c>, verb: Verb, rows: &mut Rows) -> Result<End, Error> {
        self.undisturbed(call, Access::Write, |handles| {
            let mut announcements = Announcements::new();
            let end = if self.has_chains || self.hold.is_some() {
                self.attempt_any(call, handles, verb, rows, &mut announcements)
            } else {
                self.attempt::<true>(call, handles, verb, None, rows, &mut announcements)
            };
            // Other modules may call limiters in the events.
            let are_lost = handles.renew();
            handles.publish(call, announcements.iter().copied());
            if are_lost {
                Handles::lose();
            }
            end
        })
    }

    /// [`attempt`](Self::attempt) for a call that may have chains and `HOLD`.
    #[cold]
    fn attempt_any(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        verb: Verb,
        rows: &mut Rows,
        announcements: &mut Announcements<'c>,
    ) -> Result<End, Error> {
        let mut plan = Plan::default();
        let plan = self.has_chains.then_some(&mut plan);
        self.attempt::<false>(call, handles, verb, plan, rows, announcements)
    }

    /// One attempt, which adds the events to `announcements`. If another module has interfered, the keys are
    /// lost, and nothing has changed. A `PLAIN` call has neither chains nor `HOLD`, and is compiled without
    /// them.
    #[inline(always)]
    fn attempt<const PLAIN: bool>(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        verb: Verb,
        mut plan: Option<&mut Plan>,
        rows: &mut Rows,
        announcements: &mut Announcements<'c>,
    ) -> Result<End, Error> {
        let (now, mut decided) = (ffi::now(), AllDecided::new());
        let reply = match self.reply(call, handles, now)? {
            None => None,
            Some((Stored::Nothing(key), until)) => Some((key, until)),
            Some((Stored::Reply(rows), _)) => return Ok(End::Repeated(rows)),
        };
        let seen =
            if PLAIN || self.hold.is_none() { None } else { self.look(call, handles, Access::Write, now)? };
        if let Some(plan) = plan.as_deref_mut() {
            self.decide_chains(call, handles, (now, verb), seen.as_deref(), (plan, &mut decided))?;
        } else {
            for (index, named) in self.limiters.iter().enumerate() {
                let seen = seen.as_deref().map(|seen| (seen, index));
                let key = named.open(call, handles)?;
                let pending = self.decide(call, handles, (named, &key), (now, verb), seen)?;
                decided.push(Decided { key, pending });
            }
        }
        if Handles::are_lost() {
            return Err(Error::Busy);
        }
        let plan = plan.as_deref();
        let refuses = plan.is_some_and(Plan::refuses)
            || self
                .limiters
                .iter()
                .zip(&decided)
                .any(|(named, decided)| named.refuses(&decided.pending, verb));
        if let Some(seen) = seen {
            let all = HeldDecisions { now, verb, decided: &mut decided, plan, refuses, seen, reply };
            return self.attempt_holds(call, all, rows, announcements);
        }
        if refuses {
            return self.refusal(call, now, &decided, plan, None, rows).map(|()| End::Rows);
        }
        // For CL.MTAKE, the server has checked this.
        if verb == Verb::Settle
            && (reply.is_some() || decided.iter().any(Decided::grows))
            && call.is_out_of_memory()
        {
            return Err(Error::OutOfMemory);
        }
        if self.creates_beside_others(&decided, false) {
            drop(reply);
            let end = self.write_new_first(call, (now, verb), (decided, plan, false), rows, announcements);
            return end.ok_or_else(Handles::lose);
        }
        // No other module's code runs before all are written, because no key is created while other modules
        // are loaded.
        for (named, decided) in self.limiters.iter().zip(&mut decided) {
            rows.push(named.write(call, now, decided, verb, announcements));
        }
        if let Some(plan) = plan {
            plan.complete(&self.limiters, rows, false);
        }
        if let Some((mut key, until)) = reply {
            // The reply may be a new key, and in its event other modules may change these keys.
            decided.clear();
            let combined = several::combine_rows(rows);
            announcements.push(Once::store(&mut key, rows, combined, self.unit, until));
        }
        Ok(End::Rows)
    }

    /// Runs `work` on the keys of the call, and repeats it if another module may have changed keys that were
    /// open, or if a key has expired meanwhile: Redis 6.2 and older then tell another expiry at each reading.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Busy`].
    #[inline(always)]
    pub(super) fn undisturbed<T>(
        &self,
        call: &Call<'c>,
        access: Access,
        mut work: impl FnMut(&mut Handles) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut handles = Handles::default();
        handles.renew(); // a call that ended in a panic may have left keys that are lost
        for _ in 0..ffi::ROUNDS {
            if self.is_disturbed() {
                self.let_expire(call, &mut handles, access)?;
            }
            let result = work(&mut handles);
            handles.renew();
            if !matches!(result, Err(Error::Busy)) {
                return result;
            }
        }
        Err(Error::Busy)
    }

    /// Whether other modules may change a key of the call while another key is open.
    #[inline]
    fn is_disturbed(&self) -> bool {
        ffi::is_beside_others() && (self.limiters.len() > 1 || self.once.is_some() || self.hold.is_some())
    }

    /// Whether the call creates one of its keys, or the key of its holds, while other modules may change the
    /// other keys.
    #[inline]
    fn creates_beside_others(&self, decided: &[Decided<'_, 'c>], creates_holds: bool) -> bool {
        self.is_disturbed() && (creates_holds || decided.iter().any(Decided::creates))
    }

    /// Opens and closes all keys until none of them expires, so that the events of all expiries come before
    /// the decision.
    #[cold]
    fn let_expire(&self, call: &Call<'c>, handles: &mut Handles, access: Access) -> Result<(), Error> {
        let options = self.once.iter().map(|once| once.key).chain(self.hold.iter().map(|hold| hold.key));
        for _ in 0..ffi::ROUNDS {
            let expired = ffi::expired();
            for key in self.limiters.iter().map(|named| named.key).chain(options.clone()) {
                handles.open_alone(call, key, access)?;
            }
            if ffi::expired() == expired {
                return Ok(());
            }
        }
        Err(Error::Busy)
    }

    /// The rows of a refusal, which describe the states as they are.
    fn refusal(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: &[Decided<'_, 'c>],
        plan: Option<&Plan>,
        seen: Option<&Seen<'_, '_, 'c>>,
        rows: &mut Rows,
    ) -> Result<(), Error> {
        for (index, (named, Decided { key, pending })) in self.limiters.iter().zip(decided).enumerate() {
            let answer = pending.answer();
            let answer = match plan {
                Some(plan) if named.is_pool => plan.answer(index),
                _ if answer.limited() && seen.is_none() => answer,
                // An admission that is not carried out has the numbers of a check, and so has a total that
                // would have lived as long as its held units.
                _ => peek(named, index, &self.target(named, call, key, now), seen)
                    .inspect_err(|_| rows.clear())?,
            };
            rows.push(Row::of(answer, named.shadow));
        }
        if let Some(plan) = plan {
            plan.complete(&self.limiters, rows, true);
        }
        Ok(())
    }

    /// Carries out the decisions of a call with `HOLD`.
    #[cold]
    fn attempt_holds(
        &self,
        call: &Call<'c>,
        all: HeldDecisions<'_, '_, '_, 'c>,
        rows: &mut Rows,
        announcements: &mut Announcements<'c>,
    ) -> Result<End, Error> {
        let HeldDecisions { now, verb, decided, plan, refuses, seen, reply } = all;
        let answers = || {
            let Some(plan) = plan else {
                let answer = |(named, own): (&Named, &Decided)| Row::of(own.pending.answer(), named.shadow);
                return self.limiters.iter().zip(&*decided).map(answer).collect();
            };
            let mut planned: Rows = self.planned(plan).collect();
            plan.complete(&self.limiters, &mut planned, refuses);
            planned
        };
        let ruling = if verb == Verb::Settle { None } else { self.ruling(answers, plan, Some(&*seen)) };
        let end = ruling.map_or(End::Rows, End::Ruled);
        if ruling.map_or(refuses, Verdict::is_limited) {
            self.refusal(call, now, decided, plan, Some(&*seen), rows)?;
            // If the key is full, parts that have run out make room for later calls.
            if seen.has_run_out(self.limiters.iter().map(|named| &named.limiter))
                || ruling.is_some() && seen.removed() > 0
            {
                self.write_run_out(call, now, mem::take(decided), seen, announcements)?;
            }
            return Ok(end);
        }
        if verb == Verb::Settle
            && (reply.is_some() || decided.iter().any(Decided::grows))
            && call.is_out_of_memory()
        {
            return Err(Error::OutOfMemory);
        }
        if self.creates_beside_others(decided, seen.creates()) {
            drop((reply, seen));
            let all = (mem::take(decided), plan, ruling.is_some());
            let end = self.write_new_first(call, (now, verb), all, rows, announcements);
            return end.ok_or_else(Handles::lose);
        }
        let mut took = SmallVec::<[_; FEW]>::new();
        for (at, (named, decided)) in self.limiters.iter().zip(&mut *decided).enumerate() {
            let counter = decided.pending.window();
            let row = named.write(call, now, decided, verb, announcements);
            took.push(holds::took(&named.limiter, self.quantity_of(at, plan), counter, &row.answer, now));
            rows.push(row);
        }
        if let Some(plan) = plan {
            plan.complete_for(verb, &self.limiters, rows);
        }
        seen.remember_difference(self.limiters.first().map(|first| &first.limiter));
        announcements.extend(seen.write(self.held(), &took));
        if let Some((mut key, until)) = reply {
            decided.clear(); // as in `attempt`
            announcements.push(Once::store(&mut key, rows, combined(rows, ruling), self.unit, until));
        }
        Ok(end)
    }

    /// Writes the changes of a refused call: units of other owners that have run out come back. No key is
    /// created.
    fn write_run_out(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: AllDecided<'_, 'c>,
        seen: Box<Seen<'_, '_, 'c>>,
        announcements: &mut Announcements<'c>,
    ) -> Result<(), Error> {
        let mut changes = Vec::new();
        for (index, (named, Decided { key, .. })) in self.limiters.iter().zip(&decided).enumerate() {
            changes.push(seen.gives_back(index, &named.limiter, &named.target(call, key, now))?);
        }
        for ((named, change), Decided { mut key, .. }) in self.limiters.iter().zip(changes).zip(decided) {
            announcements.extend(change.and_then(|pending| named.limiter.write(&pending, &mut key, call)));
        }
        announcements.extend(seen.write_refused());
        Ok(())
    }

    /// Carries out all decisions of an admitted call if keys have to be created while other modules are
    /// loaded. If another module has interfered, gives the units back and returns `None`.
    #[cold]
    fn write_new_first(
        &self,
        call: &Call<'c>,
        (now, verb): (Instant, Verb),
        (decided, plan, renews): (AllDecided<'_, 'c>, Option<&Plan>, bool),
        rows: &mut Rows,
        announcements: &mut Announcements<'c>,
    ) -> Option<End> {
        let mut took: Vec<_> = self.limiters.iter().map(|_| None).collect();
        let (mut alone, handles) = (Handles::default(), Handles::default());
        // This closes all keys.
        let new: Vec<_> = decided.into_iter().map(|one| one.creates().then_some(one.pending)).collect();
        let mut written: Vec<_> = self.limiters.iter().map(|_| None).collect();
        let all_written = (|| {
            for (((named, pending), written), took) in
                self.limiters.iter().zip(new).zip(&mut written).zip(&mut took)
            {
                if let Some(pending) = pending {
                    let key = alone.open_alone(call, named.key, Access::Write).ok();
                    let key = key.filter(|key| key.value_type() == ffi::ValueType::Empty)?;
                    let mut decided = Decided { key, pending };
                    *took = Some(decided.pending.window());
                    *written = Some(named.write(call, now, &mut decided, verb, announcements));
                }
            }
            // The others exist, or change nothing.
            let now = ffi::now();
            let seen = self.look(call, &handles, Access::Write, now).ok()?;
            let mut others = Vec::new();
            let all = self.limiters.iter().zip(&mut written).zip(&mut took).enumerate();
            for (index, ((named, written), took)) in all.filter(|(_, ((_, row), _))| row.is_none()) {
                let seen = seen.as_deref();
                let key = named.open(call, &handles).ok()?;
                let pending = match plan {
                    None => {
                        let seen = seen.map(|seen| (seen, index));
                        self.decide_any(call, &handles, (named, &key), (now, verb), seen)
                    }
                    Some(plan) => {
                        self.decide_share(call, (named, &key), (now, verb), (plan, index, None), seen)
                    }
                };
                let pending = pending.ok()?;
                if verb != Verb::Settle && plan.is_some_and(|plan| plan.has_lost(index, &pending)) {
                    return None;
                }
                let decided = Decided { key, pending };
                let refuses = !renews && named.refuses(&decided.pending, verb);
                if decided.creates() || refuses {
                    return None;
                }
                others.push((named, decided, written, took));
            }
            // A call that ran in between may have stored another reply.
            let reply = match self.reply(call, &handles, now).ok()? {
                None => None,
                Some((Stored::Nothing(key), until)) => Some((key, until)),
                Some(_) => return None,
            };
            if Handles::are_lost() {
                return None;
            }
            for (named, mut decided, written, took) in others {
                *took = Some(decided.pending.window());
                *written = Some(named.write(call, now, &mut decided, verb, announcements));
            }
            Some((reply, seen))
        })();
        let Some((reply, seen)) = all_written else {
            alone.renew();
            self.give_back(call, alone, &written, plan, announcements);
            return None;
        };
        rows.extend(written.into_iter().flatten());
        let took: Vec<_> = self
            .limiters
            .iter()
            .zip(rows.iter())
            .zip(took)
            .enumerate()
            .map(|(at, ((named, row), counter))| {
                holds::took(&named.limiter, self.quantity_of(at, plan), counter.flatten(), &row.answer, now)
            })
            .collect();
        // An existing key of holds is written before any key is created, and a new one after all others.
        let creates = seen.as_deref().is_some_and(Seen::creates);
        if let Some(seen) = seen {
            seen.remember_difference(self.limiters.first().map(|first| &first.limiter));
            if !creates {
                announcements.extend(seen.write(self.held(), &took));
            }
        }
        if let Some(plan) = plan {
            plan.complete_for(verb, &self.limiters, rows);
        }
        let ruling = Some(Verdict::Admitted).filter(|_| renews);
        if let Some((mut key, until)) = reply {
            announcements.push(Once::store(&mut key, rows, combined(rows, ruling), self.unit, until));
        }
        if creates {
            // If it cannot be opened, the units are taken nevertheless.
            let _ = self.undisturbed(call, Access::Write, |handles| {
                let seen = self.look(call, handles, Access::Write, now)?;
                announcements.extend(seen.and_then(|seen| seen.write(self.held(), &took)));
                Ok(())
            });
        }
        Some(ruling.map_or(End::Rows, End::Ruled))
    }

    /// Gives back the units taken from keys that the call has created.
    fn give_back(
        &self,
        call: &Call<'c>,
        mut handles: Handles,
        written: &[Option<Row>],
        plan: Option<&Plan>,
        announcements: &mut Announcements<'c>,
    ) {
        let now = ffi::now();
        let all = self.limiters.iter().zip(0..).zip(written);
        for ((named, at), _) in all.filter(|(_, written)| written.is_some()) {
            let units = plan.and_then(|plan| plan.taken(at)).unwrap_or(named.limiter.units());
            let mut back = || {
                handles.renew();
                let mut key = handles.open_alone(call, named.key, Access::Write)?;
                let pending = named.limiter.with_units(units).give_back(&named.target(call, &key, now))?;
                announcements.extend(named.limiter.write(&pending, &mut key, call));
                Ok(())
            };
            // If the key now holds something else, it belongs to another module.
            let _ = (0..ffi::ROUNDS).find(|_| !matches!(back(), Err(Error::Busy)));
        }
    }
}

impl<'c> Named<'c> {
    /// Whether the limiter refuses the call.
    pub(super) fn refuses(&self, pending: &Pending<'c>, verb: Verb) -> bool {
        verb == Verb::Take
            && !self.shadow
            && pending.answer().limited()
            && !self.is_pool
            && !faults::charges_refused()
    }

    /// Carries out the decision.
    #[inline(always)]
    fn write(
        &self,
        call: &Call<'c>,
        now: Instant,
        Decided { key, pending }: &mut Decided<'_, 'c>,
        verb: Verb,
        announcements: &mut Announcements<'c>,
    ) -> Row {
        self.limiter.complete(pending, &self.target(call, key, now), verb);
        if let Some(announcement) = self.limiter.write(pending, key, call) {
            announcements.push(announcement);
        }
        Row::of(pending.answer(), self.shadow)
    }
}

/// The combined answer of a call, whose verdict may differ from that of its limiters.
fn combined(rows: &[Row], ruling: Option<Verdict>) -> Option<Answer> {
    let answer = several::combine_rows(rows)?;
    Some(Answer { verdict: ruling.unwrap_or(answer.verdict), ..answer })
}
