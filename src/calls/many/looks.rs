//! The answers that the limiters of a call would give, without taking anything.

use redis_cell_core::several::{self, Row};
use redis_cell_core::{Answer, Instant, Span, Verdict};

use super::request::Request;
use crate::calls::chains::{self, Keys, Named, Plan};
use crate::calls::holds::Seen;
use crate::calls::once::Stored;
use crate::error::Error;
use crate::ffi::{self, Access, Call, Handles, Key};
use crate::limiters::Target;
use crate::outcome::{Outcome, Repeated, Rows};
use crate::waiting::{self, Others};

/// How a check treats the clients that wait.
#[derive(Clone, Copy)]
enum Queues {
    /// The units that they wait for count as taken.
    Count,
    /// The check ignores them.
    Ignore,
}

impl<'c> Request<'c> {
    /// The answers that [`take`](Self::take) would give, with the numbers of the present states.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn peek(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        self.undisturbed(call, Access::Read, |handles| {
            let now = ffi::now();
            let seen = self.look(call, handles, Access::Read, now)?;
            let (mut rows, plan) = self.rows(call, handles, (now, Queues::Count), seen.as_deref())?;
            Ok(match self.ruling(|| rows.clone(), plan.as_ref(), seen.as_deref()) {
                Some(verdict) => {
                    if let Some(plan) = plan {
                        plan.say_taken(&mut rows, verdict.is_limited());
                    }
                    Outcome::RuledStates(rows, self.unit, verdict)
                }
                None => Outcome::SeveralStates(rows, self.unit),
            })
        })
    }

    /// The rows of the answers that the limiters would give.
    fn rows(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        (now, queues): (Instant, Queues),
        seen: Option<&Seen<'_, '_, 'c>>,
    ) -> Result<(Rows, Option<Plan>), Error> {
        if self.has_chains {
            let (rows, plan) = self.rows_of_chains(call, handles, (now, queues), seen)?;
            return Ok((rows, Some(plan)));
        }
        let rows = self.limiters.iter().enumerate().map(|(index, named)| {
            let key = handles.open(call, named.key, Access::Read)?;
            let at = self.target_among(queues, named, call, &key, now);
            Ok(Row::of(peek(named, index, &at, seen)?, named.shadow))
        });
        Ok((rows.collect::<Result<_, Error>>()?, None))
    }

    /// The same for a call with chains.
    #[cold]
    fn rows_of_chains(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        (now, queues): (Instant, Queues),
        seen: Option<&Seen<'_, '_, 'c>>,
    ) -> Result<(Rows, Plan), Error> {
        let (mut plan, mut rows) = (Plan::default(), Rows::new());
        for chain in self.chains() {
            let mut keys = Keys::new();
            chains::open(call, handles, chain, Access::Read, &mut keys)?;
            let all = chain.iter().zip(&keys);
            let targets = all.map(|(named, key)| self.target_among(queues, named, call, key, now));
            plan.decide(chain, targets, seen)?;
        }
        rows.extend(self.planned(&plan));
        let refuses = |(row, named): (&Row, &Named)| row.refuses() && !named.is_pool;
        let refused = plan.refuses() || rows.iter().zip(&self.limiters).any(refuses);
        plan.complete(&self.limiters, &mut rows, refused);
        Ok((rows, plan))
    }

    /// The answer of each limiter to its whole quantity before anything is taken.
    pub(super) fn planned(&self, plan: &Plan) -> impl Iterator<Item = Row> {
        self.limiters.iter().zip(0..).map(|(named, at)| Row::of(plan.answer(at), named.shadow))
    }

    /// The verdict on the call in the cases in which its limiters do not decide: the call renews the parts of
    /// its owner, or its owner is new and the key has the largest number of parts.
    #[inline]
    pub(super) fn ruling(
        &self,
        rows: impl FnOnce() -> Rows,
        plan: Option<&Plan>,
        seen: Option<&Seen<'_, '_, 'c>>,
    ) -> Option<Verdict> {
        let seen = seen?;
        if seen.renews(self.limiters.iter().map(|named| &named.limiter)) {
            let rows = rows();
            let mut places = rows.iter().enumerate().filter(|(at, row)| self.releases(*at, row.role));
            return Some(Verdict::Admitted).filter(|_| !places.any(|(_, row)| row.refuses()));
        }
        let wait = seen.is_full(self.parts(plan))?;
        let own = several::combine_rows(&rows()).map(|answer| answer.verdict);
        Some(own.map_or(Verdict::Later(wait), |own| several::combined(own, Verdict::Later(wait))))
    }

    /// How many parts the call adds to the key of `HOLD`, if all limiters admit it.
    fn parts(&self, plan: Option<&Plan>) -> usize {
        let takes = |at: usize| self.quantity_of(at, plan) > 0;
        self.limiters.iter().zip(0..).filter(|(named, at)| !named.limiter.releases() && takes(*at)).count()
    }

    /// The time until the key of `HOLD` may have room for the call; `None` if it has room.
    fn wait_for_room(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        seen: Option<&Seen<'_, '_, 'c>>,
        now: Instant,
    ) -> Result<Option<Span>, Error> {
        let Some(seen) = seen.filter(|seen| seen.is_full(self.limiters.len()).is_some()) else {
            return Ok(None);
        };
        if seen.has_more() {
            return Ok(None); // its turn goes on with what is not carried out at once
        }
        // The limiters from which a call takes in chains, and so the number of parts that it adds, depend on
        // the states.
        let (_, plan) = self.rows(call, handles, (now, Queues::Count), Some(seen))?;
        Ok(seen.is_full(self.parts(plan.as_ref())))
    }

    /// The units that the call takes from the limiter at this position, if all admit it.
    pub(super) fn quantity_of(&self, at: usize, plan: Option<&Plan>) -> i64 {
        let Some(named) = self.limiters.get(at) else { return 0 };
        match plan {
            Some(plan) if named.is_pool => plan.taken(at).unwrap_or(0),
            _ => named.limiter.units(),
        }
    }

    /// Whether the first limiter takes nothing, because the call renews a place that its caller holds.
    ///
    /// # Errors
    /// The errors of the limiter.
    pub fn renews(&self, call: &Call<'c>) -> Result<bool, Error> {
        let Some(first) = self.limiters.first().filter(|first| first.limiter.releases()) else {
            return Ok(false);
        };
        let mut handles = Handles::default();
        let key = handles.open_alone(call, first.key, Access::Read)?;
        // Behind this many clients, no client gets a place.
        let at = Target { ahead: u64::MAX, ..first.target(call, &key, ffi::now()) };
        Ok(!first.limiter.peek(&at)?.limited())
    }

    /// Whether some limiter cannot admit the call within its timeout, whatever other clients do: clients that
    /// wait may leave, and places may be given back.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn is_too_late(&self, call: &Call<'c>) -> Result<bool, Error> {
        let Some(timeout) = self.queued.timeout else { return Ok(false) };
        let rows = self.without_queues(call)?;
        let is_late =
            |row: &Row| row.refuses() && row.answer.verdict.wait().is_some_and(|wait| wait > timeout);
        let all = || rows.iter().enumerate();
        if !all().any(|(at, row)| is_late(row) && !self.releases(at, row.role)) {
            return Ok(false);
        }
        Ok(!self.may_be_given_back(call, &rows, is_late)?)
    }

    /// Whether each limiter or chain whose row `refuses` may still admit the call, because the key of `HOLD`
    /// holds units of it.
    ///
    /// # Errors
    /// The errors of [`Seen`].
    pub fn may_be_given_back(
        &self,
        call: &Call<'c>,
        rows: &[Row],
        refuses: impl Fn(&Row) -> bool,
    ) -> Result<bool, Error> {
        self.undisturbed(call, Access::Read, |handles| {
            let Some(seen) = self.look(call, handles, Access::Read, ffi::now())? else { return Ok(false) };
            Ok(rows.iter().enumerate().filter(|(_, row)| refuses(row)).all(|(at, row)| {
                let mut is_held = self.releases(at, row.role);
                let mut fits = false;
                for (at, named) in (row.role.first().unwrap_or(at)..).zip(self.behind(at, row.role)) {
                    fits |= named.limiter.units() <= row.answer.limit;
                    is_held |= seen.runs_out_in(at, &named.limiter).is_some();
                }
                fits && is_held
            }))
        })
    }

    /// The outcome of the call if no client of any flow waited.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn alone(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        Ok(Outcome::Several(self.without_queues(call)?, self.unit))
    }

    /// The rows of the call if no client of any flow waited.
    ///
    /// # Errors
    /// The errors of any limiter.
    fn without_queues(&self, call: &Call<'c>) -> Result<Rows, Error> {
        self.undisturbed(call, Access::Read, |handles| {
            let now = ffi::now();
            let seen = self.look(call, handles, Access::Read, now)?;
            Ok(self.rows(call, handles, (now, Queues::Ignore), seen.as_deref())?.0)
        })
    }

    /// The reply of the call that this one repeats, if there is one.
    ///
    /// # Errors
    /// The errors of [`Once::look_up`].
    pub fn repeated(&self, call: &Call<'c>) -> Result<Option<Repeated>, Error> {
        self.undisturbed(call, Access::Write, |handles| {
            Ok(match self.reply(call, handles, ffi::now())? {
                Some((Stored::Reply(rows), _)) => Some(rows),
                _ => None,
            })
        })
    }

    /// Whether the other limiters would admit the call, and the key of `HOLD` has room for it.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn others_admit(&self, call: &Call<'c>) -> Result<Others, Error> {
        self.undisturbed(call, Access::Write, |handles| {
            let now = ffi::now();
            let seen = self.look(call, handles, Access::Read, now)?;
            let room = self.wait_for_room(call, handles, seen.as_deref(), now)?;
            if self.has_chains {
                return self.chains_admit(call, handles, seen.as_deref(), (now, room));
            }
            let mut waits = room;
            let others = self.limiters.iter().enumerate().skip(1);
            for (index, named) in others.filter(|(_, named)| !named.shadow) {
                waits = waits.max(self.wait_for((named, index), call, handles, seen.as_deref(), now)?);
            }
            Ok(waits.map_or(Others::Ready, Others::Wait))
        })
    }

    /// The same for a call with chains.
    #[cold]
    fn chains_admit(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        seen: Option<&Seen<'_, '_, 'c>>,
        (now, mut waits): (Instant, Option<Span>),
    ) -> Result<Others, Error> {
        let mut at = 0_usize;
        for chain in self.chains() {
            let first = at;
            at = at.saturating_add(chain.len());
            if first == 0 || chain.iter().all(|named| named.shadow) {
                continue;
            }
            let wait = if let [named] = chain {
                self.wait_for((named, first), call, handles, seen, now)?
            } else {
                let mut keys = Keys::new();
                chains::open(call, handles, chain, Access::Write, &mut keys)?;
                let targets = chain.iter().zip(&keys).map(|(named, key)| self.target(named, call, key, now));
                let mut plan = Plan::behind(first);
                plan.decide(chain, targets, seen)?;
                let expiries = keys.iter().filter_map(|key| waiting::expires(key, now));
                let mut wait =
                    plan.wait().map(|wait| expiries.fold(wait, |wait, at| at.since(now).min(wait)));
                let ends =
                    (first..).zip(chain).filter_map(|(at, named)| seen?.runs_out_in(at, &named.limiter));
                let next = ends.min().unwrap_or(Span::MAX);
                wait = wait.filter(|_| next > Span::ZERO).map(|wait| wait.min(next)); // as in `wait_for`
                wait
            };
            waits = waits.max(wait);
        }
        Ok(waits.map_or(Others::Ready, Others::Wait))
    }

    /// The time until the first limiter admits the call; `None` when it does.
    ///
    /// # Errors
    /// The errors of the limiter.
    pub fn first_admits(&self, call: &Call<'c>) -> Result<Option<Span>, Error> {
        let Some(named) = self.limiters.first().filter(|named| !named.shadow) else { return Ok(None) };
        self.undisturbed(call, Access::Write, |handles| {
            let now = ffi::now();
            let seen = self.look(call, handles, Access::Read, now)?;
            self.wait_for((named, 0), call, handles, seen.as_deref(), now)
        })
    }

    /// The time until a limiter admits the call, or until its key expires or units of it run out if that is
    /// earlier; `None` if the limiter admits it, or if only a call that takes can find out.
    fn wait_for(
        &self,
        (named, index): (&Named<'c>, usize),
        call: &Call<'c>,
        handles: &Handles,
        seen: Option<&Seen<'_, '_, 'c>>,
        now: Instant,
    ) -> Result<Option<Span>, Error> {
        let key = named.open(call, handles)?;
        let mut wait = match peek(named, index, &self.target(named, call, &key, now), seen)?.verdict {
            Verdict::Admitted | Verdict::Booked(_) => return Ok(None),
            Verdict::Later(wait) => wait,
            Verdict::Never => Span::MAX,
        };
        if let Some(end) = seen.and_then(|seen| seen.runs_out_in(index, &named.limiter)) {
            if end == Span::ZERO {
                return Ok(None); // more has run out than is carried out at once, which its turn goes on with
            }
            wait = wait.min(end);
        }
        Ok(Some(waiting::expires(&key, now).map_or(wait, |at| at.since(now).min(wait))))
    }

    pub(super) fn target<'k>(
        &self,
        named: &Named<'c>,
        call: &Call<'c>,
        key: &'k Key<'k, 'c>,
        now: Instant,
    ) -> Target<'k, 'c> {
        let own = self.is_turn && self.limiters.first().is_some_and(|first| core::ptr::eq(first, named));
        let ahead = if own { 0 } else { waiting::ahead(call, named.key) };
        Target { call: *call, name: named.key, key, now, ahead }
    }

    fn target_among<'k>(
        &self,
        queues: Queues,
        named: &Named<'c>,
        call: &Call<'c>,
        key: &'k Key<'k, 'c>,
        now: Instant,
    ) -> Target<'k, 'c> {
        match queues {
            Queues::Count => self.target(named, call, key, now),
            Queues::Ignore => named.target(call, key, now),
        }
    }
}

/// The answer that a call that takes would get, with the numbers of the present state.
#[inline]
pub(super) fn peek<'c>(
    named: &Named<'c>,
    index: usize,
    at: &Target<'_, 'c>,
    seen: Option<&Seen<'_, '_, 'c>>,
) -> Result<Answer, Error> {
    match seen {
        None => named.limiter.peek(at),
        Some(seen) => seen.peek(index, &named.limiter, at),
    }
}
