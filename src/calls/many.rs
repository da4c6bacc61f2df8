//! Several limiters of any kind in one call: all of them are decided, and are written only if the call is
//! admitted.
//!
//! The call opens each key once and decides all limiters at the same instant. Its changes are kept beside the
//! open keys until it is known to be admitted, so that a refusal or an error of any limiter changes nothing.
//! From the first write on nothing can fail: whatever a change needs from the server is checked before.
//!
//! The server runs other modules' code for keyspace events, and that code may change any key, even an open
//! one. So the events of all changes are published after all of them are written and all keys are closed. The
//! server itself publishes two events earlier, which matters only if other modules are loaded:
//!
//! - `expired`, when a key is opened that has expired. So all keys are opened and closed once before the
//!   first one is decided: the server expires keys by a time that stands still while a call runs.
//! - `new`, while a key is written that did not exist (Redis 7.0). So those keys are written first, with no
//!   other key open, each only if it still does not exist. Then the others are decided again. If they no
//!   longer admit the call, or if one of the keys exists by then, the units that the call took are given
//!   back, and it starts again.
//!
//! The kinds are in [`crate::limiters`].

use redis_cell_core::several::{self, Options, Parts, Prefix, Row, Words};
use redis_cell_core::{Instant, Span, Taken, Unit, Verdict};

use smallvec::SmallVec;

use super::once::{Once, Stored};
use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Arg, Call, Key};
use crate::limiters::{Arguments, Limiter, Pending, Target, Verb};
use crate::outcome::{FEW, Outcome, Rows};
use crate::store;
use crate::waiting::{self, Others};

/// How often a call starts again at most, because another module has interfered.
const ROUNDS: u32 = 16;

/// The positions of the keys among the arguments of a call, counted from the name of the command at 0: the
/// keys of all complete limiters, and then the key of `ONCE`.
pub fn keys(call: &Call) -> Vec<usize> {
    let parts = Parts::of(Behind(*call), Limiter::GRAMMARS);
    let once = parts.once_key();
    parts.map(|part| part.key).chain(once).map(Behind::position).collect()
}

/// The arguments of a call, without the name of the command.
#[derive(Clone)]
struct Behind<'c>(Call<'c>);

impl Behind<'_> {
    /// The position of an argument in the call.
    fn position(at: usize) -> usize {
        at.saturating_add(1)
    }
}

impl<'c> Words<'c> for Behind<'c> {
    fn count(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    fn word(&self, at: usize) -> Option<&'c [u8]> {
        self.0.arg(Self::position(at)).map(|arg| self.0.bytes(arg))
    }
}

/// The arguments of a call for several limiters.
pub struct Request<'c> {
    limiters: SmallVec<[Named<'c>; FEW]>,
    /// The unit of every time in the call and in its reply.
    pub unit: Unit,
    /// How long ago the units were taken that a settlement gives back.
    age: Option<Span>,
    /// Where the reply is stored, for calls that repeat this one.
    once: Option<Once<'c>>,
    /// How the call waits, and its flow.
    pub queued: Queued<'c>,
    /// Whether it is this client's turn at its first limiter.
    is_turn: bool,
}

/// The options of a call for the queue of its first limiter.
#[derive(Clone, Copy, Default)]
pub struct Queued<'c> {
    pub timeout: Option<Span>,
    pub flow: Option<&'c [u8]>,
    pub weight: Option<u32>,
    pub max_len: Option<u64>,
    /// Whether the call names a flow.
    pub names_flow: bool,
}

/// A limiter and its key.
struct Named<'c> {
    key: Arg<'c>,
    name: &'c [u8],
    shadow: bool,
    /// The `reset_after` of the call that took the units that a settlement gives back.
    reset_after: Option<Span>,
    limiter: Limiter<'c>,
}

/// A limiter that was decided: its open key, and the decision.
struct Decided<'c> {
    key: Key<'c>,
    pending: Pending<'c>,
}

/// The decisions of a call. They are passed by reference, because they are large.
type AllDecided<'c> = SmallVec<[Decided<'c>; FEW]>;

impl<'c> Request<'c> {
    /// Reads `key limiter [key limiter ...] [options]`.
    ///
    /// # Errors
    /// [`Error::SYNTAX`], the errors of each limiter's own command, and [`Error::SameKey`].
    #[inline]
    pub fn parse(call: &Call<'c>, verb: Verb) -> Result<Self, Error> {
        let mut parts = Parts::of(Behind(*call), Limiter::GRAMMARS);
        let unit = parts.unit();
        let mut limiters = SmallVec::new();
        for part in parts.by_ref() {
            let (shadow, reset_after) = match (part.prefix, verb) {
                (Prefix::None, _) => (false, None),
                (Prefix::Shadow, Verb::Take | Verb::Wait) => (faults::shadow(true), None),
                (Prefix::Reset(at), Verb::Settle) => (false, Some(parse_reset(call, at, unit)?)),
                _ => return Err(Error::SYNTAX),
            };
            let args = call.args(Behind::position(part.arguments.start), part.arguments.len());
            let limiter = Limiter::parse(part.kind, &Arguments { call: *call, args }, verb, unit)?;
            let key = call.arg(Behind::position(part.key)).ok_or(Error::SYNTAX)?;
            limiters.push(Named { key, name: call.bytes(key), shadow, reset_after, limiter });
        }
        let Options { unit, age, once, timeout, flow, weight, max_len } =
            Options::parse(parts.rest(), verb.options())?;
        let lacks_age = |named: &Named| named.reset_after.is_some() && age.is_none();
        if limiters.is_empty() || limiters.iter().any(lacks_age) {
            return Err(Error::SYNTAX);
        }
        if names_a_key_twice(&limiters) {
            return Err(Error::SameKey);
        }
        let queued = Queued { timeout, flow, weight, max_len, names_flow: flow.is_some() };
        let age = faults::age(age);
        let mut request = Self { limiters, unit, age, once: None, queued, is_turn: false };
        if let Some(option) = once {
            request.once = Some(request.parse_once(call, parts.end(), option)?);
        }
        Ok(request)
    }

    /// Finds the key of `ONCE`, with the options beginning at `options`.
    #[cold]
    fn parse_once(&self, call: &Call<'c>, options: usize, option: several::Once) -> Result<Once<'c>, Error> {
        let position = Behind::position(options.saturating_add(option.key));
        let key = call.arg(position).ok_or(Error::SYNTAX)?;
        let name = call.bytes(key);
        if self.limiters.iter().any(|named| named.name == name) {
            return Err(Error::SameKey);
        }
        Ok(Once { key, option })
    }

    /// Takes from all limiters or from none.
    ///
    /// # Errors
    /// The errors of any limiter, also of one in shadow, and [`Error::Busy`]. After an error, nothing was
    /// taken.
    pub fn take(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        let mut rows = Rows::new();
        let repeated = self.carry_out(call, Verb::Take, &mut rows)?;
        Ok(repeated.map_or_else(|| Outcome::Several(rows, self.unit), Outcome::Repeated))
    }

    /// The answers that [`take`](Self::take) would give, with the numbers of the states as they are.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn peek(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        let now = ffi::now();
        let rows: Result<Rows, Error> = self
            .limiters
            .iter()
            .map(|named| {
                let key = Key::open(*call, named.key, Access::Read)?;
                let at = self.target(named, call, &key, now);
                Ok(Row { answer: named.limiter.peek(&at)?, shadow: named.shadow })
            })
            .collect();
        Ok(Outcome::SeveralStates(rows?, self.unit))
    }

    /// Settles all differences.
    ///
    /// # Errors
    /// The errors of any limiter, [`Error::OutOfMemory`] and [`Error::Busy`]. After an error, nothing was
    /// settled.
    pub fn settle(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        let mut rows = Rows::new();
        let repeated = self.carry_out(call, Verb::Settle, &mut rows)?;
        if repeated.is_none()
            && self.queued.names_flow
            && let Some(first) = self.limiters.first()
            && !first.limiter.releases()
        {
            let Queued { flow, weight, .. } = self.queued;
            waiting::settle(call, first.key, flow, weight, first.limiter.units());
        }
        Ok(repeated.map_or_else(|| Outcome::SeveralStates(rows, self.unit), Outcome::Repeated))
    }

    /// The key of the first limiter, for which the call waits.
    ///
    /// # Errors
    /// [`Error::SYNTAX`] when there is none, which parsing rules out.
    pub fn first(&self) -> Result<Arg<'c>, Error> {
        self.limiters.first().map(|named| named.key).ok_or(Error::SYNTAX)
    }

    /// The keys of the other limiters that may keep the call waiting.
    pub fn others(&self) -> impl Iterator<Item = &'c [u8]> {
        self.limiters.iter().skip(1).filter(|named| !named.shadow).map(|named| named.name)
    }

    /// The key of `ONCE`.
    pub fn once_key(&self, call: &Call<'c>) -> Option<&'c [u8]> {
        self.once.as_ref().map(|once| call.bytes(once.key))
    }

    /// The units of the first limiter that the call takes, and the cost that counts as taken from it while
    /// the call waits.
    ///
    /// # Errors
    /// The errors of the limiter.
    pub fn share(&self) -> Result<(u64, u64), Error> {
        let Some(first) = self.limiters.first() else { return Ok((0, 0)) };
        let cost = if first.shadow { 0 } else { first.limiter.cost()? };
        Ok((first.limiter.units().unsigned_abs(), cost))
    }

    /// Whether the call cannot be admitted within its timeout, as far as each limiter knows by itself.
    /// Clients that wait may leave, and places may be given back.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn is_too_late(&self, call: &Call<'c>) -> Result<bool, Error> {
        let Some(timeout) = self.queued.timeout else { return Ok(false) };
        let rows = self.without_queues(call)?;
        Ok(self.limiters.iter().zip(&rows).any(|(named, row)| {
            row.refuses()
                && !named.limiter.releases()
                && row.answer.verdict.wait().is_some_and(|wait| wait > timeout)
        }))
    }

    /// The same call, when it is its turn at its first limiter: nobody in its own queue is before it.
    pub fn at_its_turn(self) -> Self {
        Self { is_turn: true, ..self }
    }

    /// The rows by which the limiters would decide the call if no client of any flow waited.
    ///
    /// # Errors
    /// The errors of any limiter.
    fn without_queues(&self, call: &Call<'c>) -> Result<Rows, Error> {
        let now = ffi::now();
        let rows = self.limiters.iter().map(|named| {
            let key = Key::open(*call, named.key, Access::Read)?;
            let at = Target { call: *call, name: named.key, key: &key, now, ahead: 0 };
            Ok(Row { answer: named.limiter.peek(&at)?, shadow: named.shadow })
        });
        rows.collect()
    }

    /// The outcome by which the limiters would decide the call if no client of any flow waited.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn alone(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        Ok(Outcome::Several(self.without_queues(call)?, self.unit))
    }

    /// The reply of the call that this one repeats, if there is one.
    ///
    /// # Errors
    /// The errors of [`Once::look_up`].
    pub fn repeated(&self, call: &Call<'c>) -> Result<Option<Vec<[i64; 5]>>, Error> {
        Ok(match self.reply(call, ffi::now())? {
            Some((Stored::Reply(rows), _)) => Some(rows),
            _ => None,
        })
    }

    /// Whether the other limiters would admit the call.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn others_admit(&self, call: &Call<'c>) -> Result<Others, Error> {
        let now = ffi::now();
        let mut waits = None;
        for named in self.limiters.iter().skip(1).filter(|named| !named.shadow) {
            waits = waits.max(self.wait_for(named, call, now)?);
        }
        Ok(waits.map_or(Others::Ready, Others::Wait))
    }

    /// The time until the first limiter admits the call; `None` when it does.
    ///
    /// # Errors
    /// The errors of the limiter.
    pub fn first_admits(&self, call: &Call<'c>) -> Result<Option<Span>, Error> {
        match self.limiters.first().filter(|named| !named.shadow) {
            Some(named) => self.wait_for(named, call, ffi::now()),
            None => Ok(None),
        }
    }

    /// The time until a limiter admits the call, or until its key expires if that is earlier; `None` when it
    /// admits it.
    fn wait_for(&self, named: &Named<'c>, call: &Call<'c>, now: Instant) -> Result<Option<Span>, Error> {
        let key = named.open(call)?;
        let wait = match named.limiter.peek(&self.target(named, call, &key, now))?.verdict {
            Verdict::Admitted | Verdict::Booked(_) => return Ok(None),
            Verdict::Later(wait) => wait,
            Verdict::Never => Span::MAX,
        };
        Ok(Some(waiting::expires(&key, now).map_or(wait, |at| at.since(now).min(wait))))
    }

    fn target<'k>(
        &self,
        named: &Named<'c>,
        call: &Call<'c>,
        key: &'k Key<'c>,
        now: Instant,
    ) -> Target<'k, 'c> {
        let own = self.is_turn && self.limiters.first().is_some_and(|first| core::ptr::eq(first, named));
        let ahead = if own { 0 } else { waiting::ahead(call, named.key) };
        Target { call: *call, name: named.key, key, now, ahead }
    }

    /// Decides all limiters, carries out all decisions if none of them refuses, and returns the rows; or
    /// finds the reply of the call that this one repeats.
    fn carry_out(
        &self,
        call: &Call<'c>,
        verb: Verb,
        rows: &mut Rows,
    ) -> Result<Option<Vec<[i64; 5]>>, Error> {
        let careful = (self.limiters.len() > 1 || self.once.is_some()) && ffi::is_beside_others();
        for _ in 0..ROUNDS {
            if careful {
                self.let_expire(call)?;
            }
            let (now, expired, mut decided) = (ffi::now(), ffi::expired(), AllDecided::new());
            let reply = match self.reply(call, now)? {
                None => None,
                Some((Stored::Nothing(key), until)) => Some((key, until)),
                Some((Stored::Reply(rows), _)) => return Ok(Some(rows)),
            };
            self.decide(call, now, verb, &mut decided)?;
            if ffi::expired() != expired {
                continue;
            }
            if self
                .limiters
                .iter()
                .zip(&decided)
                .any(|(named, decided)| named.refuses(&decided.pending, verb))
            {
                return self.refusal(call, now, &decided, rows).map(|()| None);
            }
            // For CL.MTAKE, the server has checked this.
            if verb == Verb::Settle
                && (reply.is_some() || decided.iter().any(Decided::grows))
                && call.is_out_of_memory()
            {
                return Err(Error::OutOfMemory);
            }
            if !careful || !decided.iter().any(Decided::creates) {
                self.write(call, now, &mut decided, verb, reply, rows);
                return Ok(None);
            }
            drop(reply);
            if let Some(written) = self.write_new_first(call, now, decided, verb) {
                *rows = written;
                return Ok(None);
            }
        }
        Err(Error::Busy)
    }

    /// The content of the key of `ONCE`, if the call has one, and the instant at which a reply that is stored
    /// now would expire.
    #[inline]
    fn reply(&self, call: &Call<'c>, now: Instant) -> Result<Option<(Stored<'c>, Instant)>, Error> {
        match &self.once {
            Some(once) if !faults::forgets_replies() => {
                let until = once.option.until(now, self.unit)?;
                Ok(Some((once.look_up(call, self.limiters.len())?, until)))
            }
            _ => Ok(None),
        }
    }

    /// Opens and closes all keys until opening them makes none of them expire, so that other modules have
    /// acted on the expiries.
    fn let_expire(&self, call: &Call<'c>) -> Result<(), Error> {
        for _ in 0..ROUNDS {
            let expired = ffi::expired();
            for named in &self.limiters {
                named.open(call)?;
            }
            if let Some(once) = &self.once {
                Key::open(*call, once.key, Access::Write)?;
            }
            if ffi::expired() == expired {
                return Ok(());
            }
        }
        Err(Error::Busy)
    }

    /// Decides all limiters, and makes sure that each decision can be carried out.
    fn decide(
        &self,
        call: &Call<'c>,
        now: Instant,
        verb: Verb,
        decided: &mut AllDecided<'c>,
    ) -> Result<(), Error> {
        for named in &self.limiters {
            decided.push(self.decide_one(call, named, now, verb)?);
        }
        Ok(())
    }

    #[inline]
    fn decide_one(
        &self,
        call: &Call<'c>,
        named: &Named<'c>,
        now: Instant,
        verb: Verb,
    ) -> Result<Decided<'c>, Error> {
        let decide = |at: &Target<'_, 'c>| match verb {
            Verb::Settle => {
                let Self { age, unit, .. } = *self;
                let taken = age.map(|age| Taken { age, reset_after: named.reset_after, unit });
                named.limiter.settle(at, taken.as_ref())
            }
            Verb::Take | Verb::Wait | Verb::Peek => named.limiter.take(at),
        };
        let key = named.open(call)?;
        let pending = decide(&self.target(named, call, &key, now))?;
        pending.check()?;
        if faults::writes_at_once() {
            let written = decide(&self.target(named, call, &key, now))?;
            named.limiter.write(&written, &mut named.open(call)?, call);
        }
        Ok(Decided { key, pending })
    }

    /// The rows of a refusal, which describe the states as they are.
    fn refusal(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: &[Decided<'c>],
        rows: &mut Rows,
    ) -> Result<(), Error> {
        for (named, Decided { key, pending }) in self.limiters.iter().zip(decided) {
            let answer = pending.answer();
            // An admission that is not carried out has the numbers of a check.
            let answer = if answer.limited() {
                answer
            } else {
                named.limiter.peek(&self.target(named, call, key, now))?
            };
            rows.push(Row { answer, shadow: named.shadow });
        }
        Ok(())
    }

    /// In the row of the first limiter, the costs of waiting clients count as taken.
    #[cold]
    fn count_behind(&self, call: &Call<'c>, now: Instant, rows: &mut [Row]) {
        let (Some(first), Some(row), Ok((_, cost))) = (self.limiters.first(), rows.first_mut(), self.share())
        else {
            return;
        };
        let ahead = waiting::ahead(call, first.key).saturating_sub(cost);
        if ahead == 0 {
            return;
        }
        let Ok(key) = first.open(call) else { return };
        let at = Target { call: *call, name: first.key, key: &key, now, ahead };
        if let Ok(seen) = first.limiter.peek(&at) {
            row.answer.remaining = seen.remaining;
            row.answer.reset_after = seen.reset_after;
        }
    }

    /// Carries out all decisions of an admitted call. No other module's code runs before all are written,
    /// because no key is created while other modules are loaded.
    fn write(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: &mut AllDecided<'c>,
        verb: Verb,
        reply: Option<(Box<Key<'c>>, Instant)>,
        rows: &mut Rows,
    ) {
        let mut announcements = SmallVec::<[_; FEW]>::new();
        for (named, decided) in self.limiters.iter().zip(&mut *decided) {
            let (row, announcement) = named.write(call, now, decided, verb);
            rows.push(row);
            announcements.extend(announcement);
        }
        decided.clear(); // which closes all keys
        if self.is_turn {
            self.count_behind(call, now, rows);
        }
        if let Some((mut key, until)) = reply {
            announcements.push(Once::store(&mut key, rows, self.unit, until));
        }
        announcements.into_iter().for_each(|announcement| announcement.publish(call));
    }

    /// The same if keys have to be created while other modules are loaded. `None`, with nothing taken, if
    /// another module has interfered.
    #[cold]
    fn write_new_first(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: AllDecided<'c>,
        verb: Verb,
    ) -> Option<Rows> {
        // This closes all keys.
        let new: Vec<_> = decided.into_iter().map(|one| one.creates().then_some(one.pending)).collect();
        let mut written: Vec<_> = self.limiters.iter().map(|_| None).collect();
        let all_written = (|| {
            for ((named, pending), written) in self.limiters.iter().zip(new).zip(&mut written) {
                if let Some(pending) = pending {
                    let key = named.open(call).ok().filter(|key| key.kind() == ffi::Kind::Empty)?;
                    *written = Some(named.write(call, now, &mut Decided { key, pending }, verb));
                }
            }
            // The others exist, or change nothing.
            let (now, expired) = (ffi::now(), ffi::expired());
            let mut others = Vec::new();
            for (named, written) in self.limiters.iter().zip(&mut written).filter(|(_, row)| row.is_none()) {
                let decided = self.decide_one(call, named, now, verb).ok()?;
                if decided.creates() || named.refuses(&decided.pending, verb) || ffi::expired() != expired {
                    return None;
                }
                others.push((named, decided, written));
            }
            // A call that ran in between may have stored another reply.
            let reply = match self.reply(call, now).ok()? {
                None => None,
                Some((Stored::Nothing(key), until)) if ffi::expired() == expired => Some((key, until)),
                Some(_) => return None,
            };
            for (named, decided, written) in &mut others {
                **written = Some(named.write(call, now, decided, verb));
            }
            Some(reply)
        })();
        let Some(reply) = all_written else {
            self.give_back(call, &written);
            return None;
        };
        let (mut rows, mut announcements): (Rows, Vec<_>) = written.into_iter().flatten().unzip();
        if self.is_turn {
            self.count_behind(call, now, &mut rows);
        }
        if let Some((mut key, until)) = reply {
            announcements.push(Some(Once::store(&mut key, &rows, self.unit, until)));
        }
        announcements.into_iter().flatten().for_each(|announcement| announcement.publish(call));
        Some(rows)
    }

    /// Gives back the units taken from keys that the call has created.
    fn give_back<T>(&self, call: &Call<'c>, written: &[Option<T>]) {
        let now = ffi::now();
        for (named, _) in self.limiters.iter().zip(written).filter(|(_, written)| written.is_some()) {
            // If the key holds something else by now, it belongs to another module.
            let Ok(mut key) = named.open(call) else { continue };
            let Ok(pending) = named.limiter.give_back(&named.target(call, &key, now)) else { continue };
            let announcement = named.limiter.write(&pending, &mut key, call);
            drop(key);
            store::publish(call, announcement);
        }
    }
}

impl Decided<'_> {
    /// Whether carrying out the decision creates the key, or adds entries to it.
    fn grows(&self) -> bool {
        self.creates() || self.pending.adds()
    }

    /// Whether carrying out the decision creates the key.
    fn creates(&self) -> bool {
        self.key.kind() == ffi::Kind::Empty && self.pending.stores()
    }
}

impl<'c> Named<'c> {
    fn open(&self, call: &Call<'c>) -> Result<Key<'c>, Error> {
        Key::open(*call, self.key, Access::Write)
    }

    /// Whether the limiter refuses the call.
    fn refuses(&self, pending: &Pending<'c>, verb: Verb) -> bool {
        verb == Verb::Take && !self.shadow && pending.answer().limited() && !faults::charges_refused()
    }

    /// Carries out the decision.
    #[inline]
    fn write(
        &self,
        call: &Call<'c>,
        now: Instant,
        Decided { key, pending }: &mut Decided<'c>,
        verb: Verb,
    ) -> (Row, Option<Announcement<'c>>) {
        self.limiter.complete(pending, &self.target(call, key, now), verb);
        let row = Row { answer: pending.answer(), shadow: self.shadow };
        (row, self.limiter.write(pending, key, call))
    }

    fn target<'k>(&self, call: &Call<'c>, key: &'k Key<'c>, now: Instant) -> Target<'k, 'c> {
        Target { call: *call, name: self.key, key, now, ahead: 0 }
    }
}

/// Reads the time after `RESET`.
fn parse_reset(call: &Call, at: usize, unit: Unit) -> Result<Span, Error> {
    let time = call.arg(Behind::position(at)).ok_or(Error::SYNTAX)?;
    Ok(several::parse_reset(call.bytes(time), unit)?)
}

/// Whether two of the limiters have the same key.
fn names_a_key_twice(limiters: &[Named]) -> bool {
    if limiters.len() <= 4 * FEW {
        // All pairs are compared, which needs no memory.
        let mut rest = limiters.iter();
        while let Some(one) = rest.next() {
            if rest.clone().any(|other| one.name == other.name) {
                return true;
            }
        }
        return false;
    }
    let mut names: Vec<_> = limiters.iter().map(|named| named.name).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| matches!(pair, [one, next] if one == next))
}
