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

use core::cell::Cell;

use redis_cell_core::several::{self, Columns, Join, Options, Parts, Prefix, Role, Row, Words};
use redis_cell_core::{Answer, Instant, Span, Taken, Unit, Verdict};

use smallvec::SmallVec;

use super::chains::{self, Loaded, Named, Plan};
use super::holds::{self, Held, Hold, Seen, Used};
use super::once::{Once, Stored};
use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Arg, Call, Handles, Key};
use crate::limiters::{Arguments, Limiter, Pending, Quantity, Target, Verb};
use crate::outcome::{FEW, Outcome, Repeated, Rows};
use crate::waiting::{self, Others};

/// The `reset_after` of a limiter that is never fully replenished by itself.
const NEVER: &[u8] = b"-1";

/// How often a call starts again at most, because another module has interfered.
const ROUNDS: u32 = 16;

/// The positions of the keys among the arguments of a call, counted from the name of the command at 0: the
/// keys of all complete limiters, and then the keys of `ONCE` and `HOLD` as they stand.
pub fn keys(call: &Call) -> Vec<usize> {
    keys_among(call, &several::Keyword::ALL)
}

/// The same for a settlement, in which `HOLD` has another form.
pub fn keys_of_settlement(call: &Call) -> Vec<usize> {
    keys_among(call, Verb::Settle.options())
}

fn keys_among(call: &Call, known: &[several::Keyword]) -> Vec<usize> {
    let parts = Parts::of(Behind(*call), Limiter::GRAMMARS);
    let options = parts.option_keys(known);
    parts.map(|part| part.key).chain(options).map(Behind::position).collect()
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
    /// Whether some of them are joined to chains.
    has_chains: bool,
    /// The unit of every time in the call and in its reply.
    pub unit: Unit,
    /// How long ago the units were taken that a settlement gives back.
    age: Option<Span>,
    /// Where the reply is stored, for calls that repeat this one.
    once: Option<Once<'c>>,
    /// What is held, settled or carried out. It is in a box because nearly all calls have none.
    hold: Option<Box<Hold<'c>>>,
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

/// A limiter that was decided: its open key, and the decision.
struct Decided<'k, 'c> {
    key: Key<'k, 'c>,
    pending: Pending<'c>,
}

/// What a look does with the clients that wait.
#[derive(Clone, Copy)]
enum Queues {
    /// What they wait for counts as taken.
    Count,
    /// It looks as if there were none.
    Ignore,
}

/// How a call ends.
enum End {
    /// As the rows say.
    Rows,
    /// With this verdict, whatever the rows say.
    Ruled(Verdict),
    /// With the reply of the call that it repeats.
    Repeated(Repeated),
}

/// The decisions of a call with `HOLD`, and the key for its reply.
struct HeldDecisions<'k, 'h, 'c> {
    now: Instant,
    verb: Verb,
    decided: AllDecided<'k, 'c>,
    plan: Option<Box<Plan>>,
    /// Whether a limiter or a chain refuses the call.
    refuses: bool,
    seen: Seen<'k, 'h, 'c>,
    reply: Option<(Box<Key<'k, 'c>>, Instant)>,
}

/// The decisions of a call. They are passed by reference, because they are large.
type AllDecided<'k, 'c> = SmallVec<[Decided<'k, 'c>; FEW]>;

/// The changes of a call, to be published when all of them are made and no key is open.
type Announcements<'c> = SmallVec<[Announcement<'c>; FEW]>;

/// The end of an attempt to carry out a call.
enum Attempt {
    /// The call is decided.
    Decided(End),
    /// Another module has interfered: nothing has changed.
    Again,
}

impl<'c> Request<'c> {
    /// Reads `key limiter [key limiter ...] [options]`, and runs the call. The request stays in its place,
    /// because it is large.
    ///
    /// # Errors
    /// [`Error::SYNTAX`], the errors of each limiter's own command, [`Error::SameKey`], and those of `run`.
    #[inline]
    pub fn run<T>(
        call: &Call<'c>,
        verb: Verb,
        run: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let parts = Parts::of(Behind(*call), Limiter::GRAMMARS);
        let mut request = Self::new(parts.likely_unit());
        if let Err(error) = request.parse(call, verb, parts) {
            request.parse_again(call, verb, error)?;
        }
        run(&mut request)
    }

    /// A request without limiters.
    #[inline]
    fn new(unit: Unit) -> Self {
        let (limiters, queued) = (SmallVec::new(), Queued::default());
        Self { limiters, has_chains: false, unit, age: None, once: None, hold: None, queued, is_turn: false }
    }

    /// Reads the arguments again if their unit is another one.
    #[cold]
    fn parse_again(&mut self, call: &Call<'c>, verb: Verb, error: Error) -> Result<(), Error> {
        let parts = Parts::of(Behind(*call), Limiter::GRAMMARS);
        // Options that the call does not accept are an error behind those of its limiters.
        let known = if verb == Verb::Settle { verb.options() } else { &several::Keyword::ALL };
        let unit = parts.unit(known);
        if unit == self.unit {
            return Err(error);
        }
        *self = Self::new(unit);
        self.parse(call, verb, parts)
    }

    /// Reads the arguments, if their unit is that of the request.
    fn parse(
        &mut self,
        call: &Call<'c>,
        verb: Verb,
        mut parts: Parts<'static, Behind<'c>>,
    ) -> Result<(), Error> {
        let unit = self.unit;
        for part in parts.by_ref() {
            let (shadow, reset_after) = match (part.prefix, verb) {
                (Prefix::None, _) => (false, None),
                (Prefix::Shadow, Verb::Take | Verb::Wait) => (faults::shadow(true), None),
                (Prefix::Reset(at), Verb::Settle) => (false, Some(parse_reset(call, at, unit)?)),
                _ => return Err(Error::SYNTAX),
            };
            let args = call.args(Behind::position(part.arguments.start), part.arguments.len());
            let limiter = Limiter::parse(part.kind, &Arguments { call: *call, args }, verb, unit)?;
            if reset_after == Some(Span::MAX) && !limiter.is_endless() {
                several::parse_reset(NEVER, unit)?;
            }
            let key = call.arg(Behind::position(part.key)).ok_or(Error::SYNTAX)?;
            let (name, join, is_pool) = (call.bytes(key), part.join, false);
            self.limiters.push(Named { key, name, join, is_pool, shadow, reset_after, limiter });
            if join != Join::None {
                self.has_chains = true;
                chains::join_last(&mut self.limiters, verb)?;
            }
        }
        let options = Options::parse(parts.rest(), verb.options())?;
        if options.unit != unit {
            return Err(Error::SYNTAX); // the arguments are read again
        }
        if verb == Verb::Settle {
            let begins_with_chain = self.limiters.first().is_some_and(|first| first.is_pool);
            let is_wrong = match options.hold {
                None => self.has_chains,
                Some(_) => options.age.is_some() || begins_with_chain && options.flow.is_some(),
            };
            if is_wrong {
                return Err(Error::SYNTAX);
            }
        }
        let Options { age, once, timeout, flow, weight, max_len, hold, .. } = options;
        let lacks_age = |named: &Named| named.reset_after.is_some() && age.is_none();
        if self.limiters.is_empty() || self.limiters.iter().any(lacks_age) {
            return Err(Error::SYNTAX);
        }
        if names_a_key_twice(&self.limiters) {
            return Err(Error::SameKey);
        }
        self.queued = Queued { timeout, flow, weight, max_len, names_flow: flow.is_some() };
        self.age = faults::age(age);
        if let Some(option) = once {
            self.once = Some(self.parse_once(call, parts.end(), option)?);
        }
        if let Some(option) = hold {
            self.hold = Some(self.parse_hold(call, parts.end(), option, verb)?);
        }
        Ok(())
    }

    /// Finds the key of `HOLD`, with the options beginning at `options`. A settlement then says what was
    /// used.
    #[cold]
    fn parse_hold(
        &self,
        call: &Call<'c>,
        options: usize,
        option: several::Hold<'c>,
        verb: Verb,
    ) -> Result<Box<Hold<'c>>, Error> {
        let position = Behind::position(options.saturating_add(option.key));
        let key = call.arg(position).ok_or(Error::SYNTAX)?;
        let name = call.bytes(key);
        let is_once = self.once.as_ref().is_some_and(|once| call.bytes(once.key) == name);
        if is_once || self.limiters.iter().any(|named| named.name == name) {
            return Err(Error::SameKey);
        }
        if verb == Verb::Settle {
            for Named { limiter, .. } in self.limiters.iter().filter(|named| !named.limiter.releases()) {
                limiter.most_used().check(limiter.units())?;
            }
        }
        Ok(Box::new(Hold { key, option, moved: Cell::new(0) }))
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
        Ok(match self.carry_out(call, Verb::Take, &mut rows)? {
            End::Rows => Outcome::Several(rows, self.unit),
            End::Ruled(verdict) => Outcome::Ruled(rows, self.unit, verdict),
            End::Repeated(rows) => Outcome::Repeated(rows),
        })
    }

    /// The answers that [`take`](Self::take) would give, with the numbers of the states as they are.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn peek(&self, call: &Call<'c>) -> Result<Outcome, Error> {
        let (now, handles) = (ffi::now(), Handles::default());
        let seen = self.look(call, &handles, Access::Read, now)?;
        let (rows, plan) = self.rows(call, &handles, (now, Queues::Count), seen.as_ref())?;
        Ok(match self.ruling(|| rows.clone(), plan.as_ref(), seen.as_ref())? {
            Some(verdict) => Outcome::RuledStates(rows, self.unit, verdict),
            None => Outcome::SeveralStates(rows, self.unit),
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
            let keys = chains::open(call, handles, chain, Access::Read)?;
            let all = chain.iter().zip(&keys);
            let targets = all.map(|(named, key)| self.target_among(queues, named, call, key, now));
            plan.decide(chain, targets.collect(), seen)?;
        }
        rows.extend(self.planned(&plan));
        let refuses = |(row, named): (&Row, &Named)| row.refuses() && !named.is_pool;
        let refused = plan.refuses() || rows.iter().zip(&self.limiters).any(refuses);
        plan.complete(&self.limiters, &mut rows, refused);
        Ok((rows, plan))
    }

    /// What each limiter says of its whole quantity before anything is taken.
    fn planned(&self, plan: &Plan) -> impl Iterator<Item = Row> {
        self.limiters.iter().zip(0..).map(|(named, at)| Row::of(plan.answer(at), named.shadow))
    }

    /// The limiters in groups: a chain, or one limiter.
    fn chains(&self) -> impl Iterator<Item = &[Named<'c>]> {
        self.limiters.chunk_by(|_, next| next.join != Join::None)
    }

    /// The verdict on the call where its limiters have none: it renews what its owner holds, whatever they
    /// say, or its owner is new, and there are as many parts as there may be.
    #[inline]
    fn ruling(
        &self,
        rows: impl FnOnce() -> Rows,
        plan: Option<&Plan>,
        seen: Option<&Seen<'_, '_, 'c>>,
    ) -> Result<Option<Verdict>, Error> {
        let Some(seen) = seen else { return Ok(None) };
        if seen.renews(self.limiters.iter().map(|named| &named.limiter)) {
            let rows = rows();
            let mut places = rows.iter().enumerate().filter(|(at, row)| self.releases(*at, row.role));
            return Ok(Some(Verdict::Admitted).filter(|_| !places.any(|(_, row)| row.refuses())));
        }
        let takes = |at: usize| self.quantity_of(at, plan) > 0;
        let new =
            self.limiters.iter().enumerate().filter(|(at, named)| !named.limiter.releases() && takes(*at));
        let Some(wait) = seen.is_full(new.count()) else { return Ok(None) };
        let own = several::combine_rows(&rows()).map(|answer| answer.verdict);
        Ok(Some(own.map_or(Verdict::Later(wait), |own| several::combined(own, Verdict::Later(wait)))))
    }

    /// The units that the call takes from the limiter at this position, if all admit it.
    fn quantity_of(&self, at: usize, plan: Option<&Plan>) -> i64 {
        let Some(named) = self.limiters.get(at) else { return 0 };
        match plan {
            Some(plan) if named.is_pool => plan.taken(at).unwrap_or(0),
            _ => named.limiter.units(),
        }
    }

    /// The limiters and the names of their keys.
    fn held(&self) -> impl Iterator<Item = Held<'_, 'c>> + Clone {
        self.limiters.iter().map(|Named { name, limiter, .. }| Held { name, limiter })
    }

    /// What the key of `HOLD` says, if the call has one.
    #[inline]
    fn look<'k>(
        &self,
        call: &'k Call<'c>,
        handles: &'k Handles,
        access: Access,
        now: Instant,
    ) -> Result<Option<Seen<'k, '_, 'c>>, Error> {
        self.hold.as_ref().map(|hold| hold.look(call, handles, access, &self.held(), now)).transpose()
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

    /// The key of the first limiter, for which the call waits.
    ///
    /// # Errors
    /// [`Error::SYNTAX`] when there is none, which parsing rules out.
    pub fn first(&self) -> Result<Arg<'c>, Error> {
        self.limiters.first().map(|named| named.key).ok_or(Error::SYNTAX)
    }

    /// The keys of the limiters that may refuse the call.
    pub fn refusing(&self) -> impl Iterator<Item = Arg<'c>> {
        self.limiters.iter().filter(|named| !named.shadow).map(|named| named.key)
    }

    /// The keys of the other limiters that may keep the call waiting, and that of `HOLD`: a settlement of
    /// another owner can make units run out at once.
    pub fn others(&self, call: &Call<'c>) -> impl Iterator<Item = &'c [u8]> {
        let limiters = self.limiters.iter().skip(1).filter(|named| !named.shadow).map(|named| named.name);
        limiters.chain(self.hold.as_ref().map(|hold| call.bytes(hold.key)))
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

    /// Whether the first limiter takes nothing, because the call renews a place that its caller holds.
    ///
    /// # Errors
    /// The errors of the limiter.
    pub fn renews(&self, call: &Call<'c>) -> Result<bool, Error> {
        let Some(first) = self.limiters.first().filter(|first| first.limiter.releases()) else {
            return Ok(false);
        };
        let handles = Handles::default();
        let key = handles.open(call, first.key, Access::Read)?;
        // Behind so many clients, nobody gets a place.
        let at = Target { ahead: u64::MAX, ..first.target(call, &key, ffi::now()) };
        Ok(!first.limiter.peek(&at)?.limited())
    }

    /// Whether the call cannot be admitted within its timeout, as far as each limiter knows by itself.
    /// Clients that wait may leave, and places may be given back.
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
        let handles = Handles::default();
        let Some(seen) = self.look(call, &handles, Access::Read, ffi::now())? else { return Ok(false) };
        for (at, row) in rows.iter().enumerate().filter(|(_, row)| refuses(row)) {
            let mut is_held = self.releases(at, row.role);
            let mut fits = false;
            for named in self.behind(at, row.role) {
                fits |= named.limiter.units() <= row.answer.limit;
                is_held |= seen.runs_out_in(named.held()).is_some();
            }
            if !fits || !is_held {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether anything taken from the limiter or the chain of this row may be given back at any time.
    fn releases(&self, at: usize, role: Role) -> bool {
        self.behind(at, role).iter().any(|named| named.limiter.releases())
    }

    /// The limiter or the limiters of the chain of this row.
    fn behind(&self, at: usize, role: Role) -> &[Named<'c>] {
        let Some(first) = role.first() else {
            return self.limiters.get(at..).and_then(|rest| rest.get(..1)).unwrap_or_default();
        };
        let chain = self.limiters.get(first..).unwrap_or_default();
        chain.chunk_by(|_, next| next.join != Join::None).next().unwrap_or_default()
    }

    /// The same call, when it is its turn at its first limiter: nobody in its own queue is before it.
    pub fn at_its_turn(&mut self) -> &Self {
        self.is_turn = true;
        self
    }

    /// The rows by which the limiters would decide the call if no client of any flow waited.
    ///
    /// # Errors
    /// The errors of any limiter.
    fn without_queues(&self, call: &Call<'c>) -> Result<Rows, Error> {
        let (now, handles) = (ffi::now(), Handles::default());
        let seen = self.look(call, &handles, Access::Read, now)?;
        Ok(self.rows(call, &handles, (now, Queues::Ignore), seen.as_ref())?.0)
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
    pub fn repeated(&self, call: &Call<'c>) -> Result<Option<Repeated>, Error> {
        Ok(match self.reply(call, &Handles::default(), ffi::now())? {
            Some((Stored::Reply(rows), _)) => Some(rows),
            _ => None,
        })
    }

    /// Whether the other limiters would admit the call.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn others_admit(&self, call: &Call<'c>) -> Result<Others, Error> {
        let (now, handles) = (ffi::now(), Handles::default());
        let seen = self.look(call, &handles, Access::Read, now)?;
        if self.has_chains {
            return self.chains_admit(call, seen.as_ref(), now);
        }
        let mut waits = None;
        let others = self.limiters.iter().enumerate().skip(1);
        for (index, named) in others.filter(|(_, named)| !named.shadow) {
            waits = waits.max(self.wait_for(named, index, call, seen.as_ref(), now)?);
        }
        Ok(waits.map_or(Others::Ready, Others::Wait))
    }

    /// The same for a call with chains.
    #[cold]
    fn chains_admit(
        &self,
        call: &Call<'c>,
        seen: Option<&Seen<'_, '_, 'c>>,
        now: Instant,
    ) -> Result<Others, Error> {
        let (mut waits, mut at, handles) = (None, 0_usize, Handles::default());
        for chain in self.chains() {
            let first = at;
            at = at.saturating_add(chain.len());
            if first == 0 || chain.iter().all(|named| named.shadow) {
                continue;
            }
            let wait = if let [named] = chain {
                self.wait_for(named, first, call, seen, now)?
            } else {
                let keys = chains::open(call, &handles, chain, Access::Write)?;
                let targets = chain.iter().zip(&keys).map(|(named, key)| self.target(named, call, key, now));
                let mut plan = Plan::behind(first);
                plan.decide(chain, targets.collect(), seen)?;
                let expiries = keys.iter().filter_map(|key| waiting::expires(key, now));
                let mut wait =
                    plan.wait().map(|wait| expiries.fold(wait, |wait, at| at.since(now).min(wait)));
                for named in chain {
                    if let (Some(wait), Some(seen)) = (&mut wait, seen) {
                        *wait = seen.runs_out_in(named.held()).map_or(*wait, |end| end.min(*wait));
                    }
                }
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
        match self.limiters.first().filter(|named| !named.shadow) {
            Some(named) => {
                let (now, handles) = (ffi::now(), Handles::default());
                let seen = self.look(call, &handles, Access::Read, now)?;
                self.wait_for(named, 0, call, seen.as_ref(), now)
            }
            None => Ok(None),
        }
    }

    /// The time until a limiter admits the call, or until its key expires or units of it run out if that is
    /// earlier; `None` when it admits it.
    fn wait_for(
        &self,
        named: &Named<'c>,
        index: usize,
        call: &Call<'c>,
        seen: Option<&Seen<'_, '_, 'c>>,
        now: Instant,
    ) -> Result<Option<Span>, Error> {
        let handles = Handles::default();
        let key = named.open(call, &handles)?;
        let mut wait = match peek(named, index, &self.target(named, call, &key, now), seen)?.verdict {
            Verdict::Admitted | Verdict::Booked(_) => return Ok(None),
            Verdict::Later(wait) => wait,
            Verdict::Never => Span::MAX,
        };
        if let Some(seen) = seen {
            wait = wait.min(seen.runs_out_in(named.held()).unwrap_or(Span::MAX));
        }
        Ok(Some(waiting::expires(&key, now).map_or(wait, |at| at.since(now).min(wait))))
    }

    fn target<'k>(
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

    /// Decides all limiters, carries out all decisions if none of them refuses, and returns the rows; or
    /// finds the reply of the call that this one repeats.
    fn carry_out(&self, call: &Call<'c>, verb: Verb, rows: &mut Rows) -> Result<End, Error> {
        let has_option_keys = self.once.is_some() || self.hold.is_some();
        let careful = (self.limiters.len() > 1 || has_option_keys) && ffi::is_beside_others();
        let mut handles = Handles::default();
        for _ in 0..ROUNDS {
            if careful {
                self.let_expire(call, &handles)?;
            }
            let mut announcements = Announcements::new();
            let attempt = if self.has_chains || self.hold.is_some() {
                self.attempt_any(call, &handles, (verb, careful), rows, &mut announcements)
            } else {
                self.attempt::<true>(call, &handles, (verb, careful), rows, &mut announcements)
            };
            handles.publish(call, announcements.iter().copied());
            if let Attempt::Decided(end) = attempt? {
                return Ok(end);
            }
        }
        Err(Error::Busy)
    }

    /// [`attempt`](Self::attempt) for a call that may have chains and `HOLD`.
    #[cold]
    fn attempt_any(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        how: (Verb, bool),
        rows: &mut Rows,
        announcements: &mut Announcements<'c>,
    ) -> Result<Attempt, Error> {
        self.attempt::<false>(call, handles, how, rows, announcements)
    }

    /// Does so once, `careful` if other modules are loaded. What is to be published is added to
    /// `announcements`. A call that is `PLAIN` has neither chains nor `HOLD`, and pays for none.
    #[inline(always)]
    fn attempt<const PLAIN: bool>(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        (verb, careful): (Verb, bool),
        rows: &mut Rows,
        announcements: &mut Announcements<'c>,
    ) -> Result<Attempt, Error> {
        let (now, expired, mut decided) = (ffi::now(), ffi::expired(), AllDecided::new());
        let reply = match self.reply(call, handles, now)? {
            None => None,
            Some((Stored::Nothing(key), until)) => Some((key, until)),
            Some((Stored::Reply(rows), _)) => return Ok(Attempt::Decided(End::Repeated(rows))),
        };
        let seen = if PLAIN { None } else { self.look(call, handles, Access::Write, now)? };
        let mut plan = None;
        if !PLAIN && self.has_chains {
            let seen = seen.as_ref();
            plan = Some(self.decide_chains(call, handles, (now, verb), seen, &mut decided)?);
        } else {
            for (index, named) in self.limiters.iter().enumerate() {
                let seen = seen.as_ref().map(|seen| (seen, index));
                let key = named.open(call, handles)?;
                let pending = self.decide(call, handles, (named, &key), (now, verb), seen)?;
                decided.push(Decided { key, pending });
            }
        }
        if ffi::expired() != expired {
            return Ok(Attempt::Again);
        }
        let refuses = plan.as_deref().is_some_and(Plan::refuses)
            || self
                .limiters
                .iter()
                .zip(&decided)
                .any(|(named, decided)| named.refuses(&decided.pending, verb));
        if let Some(seen) = seen {
            let all = HeldDecisions { now, verb, decided, plan, refuses, seen, reply };
            return self.attempt_holds(call, handles, all, careful, rows, announcements);
        }
        if refuses {
            return self
                .refusal(call, now, &decided, plan.as_deref(), None, rows)
                .map(|()| Attempt::Decided(End::Rows));
        }
        // For CL.MTAKE, the server has checked this.
        if verb == Verb::Settle
            && (reply.is_some() || decided.iter().any(Decided::grows))
            && call.is_out_of_memory()
        {
            return Err(Error::OutOfMemory);
        }
        if careful && decided.iter().any(Decided::creates) {
            drop(reply);
            let plan = plan.as_deref();
            return Ok(self.write_new_first(
                call,
                handles,
                (now, verb),
                (decided, plan, false),
                rows,
                announcements,
            ));
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
            let combined = several::combine_rows(rows);
            announcements.push(Once::store(&mut key, rows, combined, self.unit, until));
        }
        Ok(Attempt::Decided(End::Rows))
    }

    /// The content of the key of `ONCE`, if the call has one, and the instant at which a reply that is stored
    /// now would expire.
    #[inline]
    fn reply<'k>(
        &self,
        call: &'k Call<'c>,
        handles: &'k Handles,
        now: Instant,
    ) -> Result<Option<(Stored<'k, 'c>, Instant)>, Error> {
        match &self.once {
            Some(once) if !faults::forgets_replies() => {
                let until = once.option.until(now, self.unit)?;
                let columns = if self.has_chains { Columns::Six } else { Columns::Five };
                Ok(Some((once.look_up(call, handles, self.limiters.len(), columns)?, until)))
            }
            _ => Ok(None),
        }
    }

    /// Opens and closes all keys until opening them makes none of them expire, so that other modules have
    /// acted on the expiries.
    fn let_expire(&self, call: &Call<'c>, handles: &Handles) -> Result<(), Error> {
        for _ in 0..ROUNDS {
            let expired = ffi::expired();
            for named in &self.limiters {
                named.open(call, handles)?;
            }
            if let Some(once) = &self.once {
                handles.open(call, once.key, Access::Write)?;
            }
            if let Some(hold) = &self.hold {
                handles.open(call, hold.key, Access::Write)?;
            }
            if ffi::expired() == expired {
                return Ok(());
            }
        }
        Err(Error::Busy)
    }

    /// Decides the limiters of a call with chains.
    #[cold]
    fn decide_chains<'k>(
        &self,
        call: &'k Call<'c>,
        handles: &'k Handles,
        (now, verb): (Instant, Verb),
        seen: Option<&Seen<'_, '_, 'c>>,
        decided: &mut AllDecided<'k, 'c>,
    ) -> Result<Box<Plan>, Error> {
        let mut plan = Box::<Plan>::default();
        for chain in self.chains() {
            let first = decided.len();
            if let [named] = chain
                && verb != Verb::Settle
            {
                let key = named.open(call, handles)?;
                let seen = seen.map(|seen| (seen, first));
                let pending = self.decide_any(call, handles, (named, &key), (now, verb), seen)?;
                plan.add(named, &self.target(named, call, &key, now), pending.answer())?;
                decided.push(Decided { key, pending });
                continue;
            }
            let keys = chains::open(call, handles, chain, Access::Write)?;
            let targets = chain.iter().zip(&keys).map(|(named, key)| self.target(named, call, key, now));
            match seen {
                Some(seen) if verb == Verb::Settle => {
                    plan.settle(chain, &targets.collect::<SmallVec<[_; FEW]>>(), seen)?;
                }
                _ => plan.decide(chain, targets.collect(), seen)?,
            }
            for ((named, key), at) in chain.iter().zip(keys).zip(first..) {
                let loaded = plan.loaded.get(at.saturating_sub(first)).copied().flatten();
                let own = self.decide_share(call, named, key, (now, verb), (&plan, at, loaded), seen)?;
                if verb != Verb::Settle && plan.has_lost(at, &own.pending) {
                    return Err(Error::Busy);
                }
                decided.push(own);
            }
        }
        Ok(plan)
    }

    /// Decides a limiter of a call with chains for its share, and makes sure that the decision can be carried
    /// out.
    fn decide_share<'k>(
        &self,
        call: &'k Call<'c>,
        named: &Named<'c>,
        key: Key<'k, 'c>,
        (now, verb): (Instant, Verb),
        (plan, at, loaded): (&Plan, usize, Option<Loaded>),
        seen: Option<&Seen<'_, '_, 'c>>,
    ) -> Result<Decided<'k, 'c>, Error> {
        let target = self.target(named, call, &key, now);
        let share = plan.taken(at).map(|units| faults::part(units, named.limiter.units()));
        let mut pending = match seen {
            Some(seen) if !named.is_pool => seen.decide(at, &named.limiter, &target, verb)?,
            Some(seen) if verb == Verb::Settle => {
                seen.settle(at, &named.limiter, &target, Used::Share(share))?
            }
            None if !named.is_pool => named.limiter.take(&target)?,
            _ if named.limiter.releases() && share.is_none() => named.limiter.keep(plan.answer(at)),
            // What has run out comes back to limiters that are passed over, too.
            Some(seen) => seen.decide(at, &named.limiter.with_units(share.unwrap_or(0)), &target, verb)?,
            None => match (share, &named.limiter, loaded) {
                (Some(units), Limiter::Fixed(window), Some((counter, now))) => {
                    Pending::Fixed(Quantity { units, ..*window }.take_on(counter, now, target.ahead)?)
                }
                (Some(units), limiter, _) => limiter.with_units(units).take(&target)?,
                (None, limiter, _) => limiter.keep(plan.answer(at)),
            },
        };
        pending.check()?;
        if self.is_turn && !named.is_pool {
            self.count_behind(named, &target, seen.map(|seen| (seen, at)), &mut pending);
        }
        Ok(Decided { key, pending })
    }

    /// [`decide`](Self::decide) where the size of the code matters more than its speed.
    #[cold]
    fn decide_any(
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
    fn decide(
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
            self.count_behind(named, &self.target(named, call, key, now), seen, &mut pending);
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

    /// In what remains of the first limiter, the costs of the clients that go on waiting count as taken.
    #[cold]
    fn count_behind(
        &self,
        named: &Named<'c>,
        at: &Target<'_, 'c>,
        seen: Option<(&Seen<'_, '_, 'c>, usize)>,
        pending: &mut Pending<'c>,
    ) {
        let is_first = self.limiters.first().is_some_and(|first| core::ptr::eq(first, named));
        let Ok((_, cost)) = self.share() else { return };
        let ahead = waiting::ahead(&at.call, named.key).saturating_sub(cost);
        if !is_first || ahead == 0 {
            return;
        }
        let behind = Target { ahead, ..*at };
        let remaining = if pending.answer().limited() {
            peek(named, 0, &behind, seen.map(|(seen, _)| seen)).map(|answer| answer.remaining)
        } else {
            // If it would be refused behind them, they wait for all that remains.
            let taken = match seen {
                Some((seen, index)) => seen.decide(index, &named.limiter, &behind, Verb::Take),
                None => named.limiter.take(&behind),
            };
            let taken = taken.map(|taken| taken.answer());
            taken.map(|answer| if answer.limited() { 0 } else { answer.remaining })
        };
        if let Ok(remaining) = remaining {
            pending.set_remaining(remaining);
        }
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
                // would have lived as long as what is held of it.
                _ => peek(named, index, &self.target(named, call, key, now), seen)?,
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
        handles: &Handles,
        all: HeldDecisions<'_, '_, 'c>,
        careful: bool,
        rows: &mut Rows,
        announcements: &mut Announcements<'c>,
    ) -> Result<Attempt, Error> {
        let HeldDecisions { now, verb, mut decided, plan, refuses, seen, reply } = all;
        let plan = plan.as_deref();
        let answers = || {
            let Some(plan) = plan else {
                let answer = |(named, own): (&Named, &Decided)| Row::of(own.pending.answer(), named.shadow);
                return self.limiters.iter().zip(&decided).map(answer).collect();
            };
            let mut planned: Rows = self.planned(plan).collect();
            plan.complete(&self.limiters, &mut planned, refuses);
            planned
        };
        let ruling = if verb == Verb::Settle { None } else { self.ruling(answers, plan, Some(&seen))? };
        let end = Attempt::Decided(ruling.map_or(End::Rows, End::Ruled));
        if ruling.map_or(refuses, Verdict::is_limited) {
            self.refusal(call, now, &decided, plan, Some(&seen), rows)?;
            if seen.has_run_out() {
                self.write_run_out(call, now, decided, seen, announcements)?;
            }
            return Ok(end);
        }
        if verb == Verb::Settle
            && (reply.is_some() || decided.iter().any(Decided::grows))
            && call.is_out_of_memory()
        {
            return Err(Error::OutOfMemory);
        }
        if careful && (decided.iter().any(Decided::creates) || seen.creates()) {
            drop((reply, seen));
            let renews = ruling.is_some();
            return Ok(self.write_new_first(
                call,
                handles,
                (now, verb),
                (decided, plan, renews),
                rows,
                announcements,
            ));
        }
        let mut took = SmallVec::<[_; FEW]>::new();
        for (at, (named, decided)) in self.limiters.iter().zip(&mut decided).enumerate() {
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
            announcements.push(Once::store(&mut key, rows, combined(rows, ruling), self.unit, until));
        }
        Ok(end)
    }

    /// Writes what a refused call changes: the units of others that have run out come back. No key is
    /// created.
    fn write_run_out(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: AllDecided<'_, 'c>,
        seen: Seen<'_, '_, 'c>,
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
    /// loaded. If another module has interfered, gives back what was taken.
    #[cold]
    fn write_new_first(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        (now, verb): (Instant, Verb),
        (decided, plan, renews): (AllDecided<'_, 'c>, Option<&Plan>, bool),
        rows: &mut Rows,
        announcements: &mut Announcements<'c>,
    ) -> Attempt {
        let mut took: Vec<_> = self.limiters.iter().map(|_| None).collect();
        // This closes all keys.
        let new: Vec<_> = decided.into_iter().map(|one| one.creates().then_some(one.pending)).collect();
        let mut written: Vec<_> = self.limiters.iter().map(|_| None).collect();
        let all_written = (|| {
            for (((named, pending), written), took) in
                self.limiters.iter().zip(new).zip(&mut written).zip(&mut took)
            {
                if let Some(pending) = pending {
                    let key = named.open(call, handles).ok().filter(|key| key.kind() == ffi::Kind::Empty)?;
                    let mut decided = Decided { key, pending };
                    *took = Some(decided.pending.window());
                    *written = Some(named.write(call, now, &mut decided, verb, announcements));
                }
            }
            // The others exist, or change nothing.
            let (now, expired) = (ffi::now(), ffi::expired());
            let seen = self.look(call, handles, Access::Write, now).ok()?;
            let mut others = Vec::new();
            let all = self.limiters.iter().zip(&mut written).zip(&mut took).enumerate();
            for (index, ((named, written), took)) in all.filter(|(_, ((_, row), _))| row.is_none()) {
                let seen = seen.as_ref();
                let key = named.open(call, handles).ok()?;
                let decided = match plan {
                    None => {
                        let seen = seen.map(|seen| (seen, index));
                        let pending = self.decide_any(call, handles, (named, &key), (now, verb), seen);
                        pending.map(|pending| Decided { key, pending })
                    }
                    Some(plan) => self.decide_share(call, named, key, (now, verb), (plan, index, None), seen),
                };
                let decided = decided.ok()?;
                if verb != Verb::Settle && plan.is_some_and(|plan| plan.has_lost(index, &decided.pending)) {
                    return None;
                }
                let refuses = !renews && named.refuses(&decided.pending, verb);
                if decided.creates() || refuses || ffi::expired() != expired {
                    return None;
                }
                others.push((named, decided, written, took));
            }
            // A call that ran in between may have stored another reply.
            let reply = match self.reply(call, handles, now).ok()? {
                None => None,
                Some((Stored::Nothing(key), until)) if ffi::expired() == expired => Some((key, until)),
                Some(_) => return None,
            };
            for (named, mut decided, written, took) in others {
                *took = Some(decided.pending.window());
                *written = Some(named.write(call, now, &mut decided, verb, announcements));
            }
            Some((reply, seen))
        })();
        let Some((reply, seen)) = all_written else {
            self.give_back(call, handles, &written, plan, announcements);
            return Attempt::Again;
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
        let creates = seen.as_ref().is_some_and(Seen::creates);
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
        if creates && let Ok(Some(seen)) = self.look(call, handles, Access::Write, now) {
            announcements.extend(seen.write(self.held(), &took));
        }
        Attempt::Decided(ruling.map_or(End::Rows, End::Ruled))
    }

    /// Gives back the units taken from keys that the call has created.
    fn give_back(
        &self,
        call: &Call<'c>,
        handles: &Handles,
        written: &[Option<Row>],
        plan: Option<&Plan>,
        announcements: &mut Announcements<'c>,
    ) {
        let now = ffi::now();
        let all = self.limiters.iter().zip(0..).zip(written);
        for ((named, at), _) in all.filter(|(_, written)| written.is_some()) {
            // If the key holds something else by now, it belongs to another module.
            let Ok(mut key) = named.open(call, handles) else { continue };
            let units = plan.and_then(|plan| plan.taken(at)).unwrap_or(named.limiter.units());
            let limiter = named.limiter.with_units(units);
            let Ok(pending) = limiter.give_back(&named.target(call, &key, now)) else { continue };
            announcements.extend(named.limiter.write(&pending, &mut key, call));
        }
    }
}

impl Decided<'_, '_> {
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
    fn held(&self) -> Held<'_, 'c> {
        Held { name: self.name, limiter: &self.limiter }
    }

    fn open<'k>(&self, call: &'k Call<'c>, handles: &'k Handles) -> Result<Key<'k, 'c>, Error> {
        handles.open(call, self.key, Access::Write)
    }

    /// Whether the limiter refuses the call.
    fn refuses(&self, pending: &Pending<'c>, verb: Verb) -> bool {
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

    fn target<'k>(&self, call: &Call<'c>, key: &'k Key<'k, 'c>, now: Instant) -> Target<'k, 'c> {
        Target { call: *call, name: self.key, key, now, ahead: 0 }
    }
}

/// The combined answer of a call, whose verdict may be another than that of its limiters.
fn combined(rows: &[Row], ruling: Option<Verdict>) -> Option<Answer> {
    let answer = several::combine_rows(rows)?;
    Some(Answer { verdict: ruling.unwrap_or(answer.verdict), ..answer })
}

/// The answer that a call that takes would get, with the numbers of the state as it is.
#[inline]
fn peek<'c>(
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

/// Reads the time after `RESET`; the longest for -1, which only some limiters reply.
fn parse_reset(call: &Call, at: usize, unit: Unit) -> Result<Span, Error> {
    match call.bytes(call.arg(Behind::position(at)).ok_or(Error::SYNTAX)?) {
        NEVER => Ok(Span::MAX),
        time => Ok(several::parse_reset(time, unit)?),
    }
}

/// Whether two of the limiters have the same key.
#[inline(always)]
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
