//! The arguments of a call for several limiters.

use core::cell::Cell;

use redis_cell_core::several::{self, Columns, Join, Options, Parts, Prefix, Role, Words};
use redis_cell_core::{Instant, Span, Unit};

use smallvec::SmallVec;

use crate::calls::chains::{self, Named};
use crate::calls::holds::{Held, Hold, Seen};
use crate::calls::once::{Once, Stored};
use crate::error::Error;
use crate::faults;
use crate::ffi::{Access, Arg, Call, Handles, Key};
use crate::limiters::{Arguments, Limiter, Target, Verb};
use crate::outcome::FEW;

/// The `reset_after` of a limiter that is never fully replenished by itself.
const NEVER: &[u8] = b"-1";

/// The positions of the keys among the arguments of a call, counted from the name of the command at 0: the
/// keys of all complete limiters, and then the keys of `ONCE` and `HOLD` in their order.
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
    pub(super) limiters: SmallVec<[Named<'c>; FEW]>,
    /// Whether some of them are joined to chains.
    pub(super) has_chains: bool,
    /// The unit of every time in the call and in its reply.
    pub unit: Unit,
    /// How long ago the units were taken that a settlement gives back.
    pub(super) age: Option<Span>,
    /// Where the reply is stored, for calls that repeat this one.
    pub(super) once: Option<Once<'c>>,
    /// The holds that the call takes, settles or brings back. It is in a box because nearly all calls have
    /// none.
    pub(super) hold: Option<Hold<'c>>,
    /// The options for waiting, and the flow.
    pub queued: Queued<'c>,
    /// Whether this client has its turn at its first limiter.
    pub(super) is_turn: bool,
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

    /// Reads the arguments again if their unit is not the assumed one.
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

    /// Finds the key of `HOLD`, with the options beginning at `options`. With it, the quantities of a
    /// settlement are the units that were used, not differences.
    #[cold]
    fn parse_hold(
        &self,
        call: &Call<'c>,
        options: usize,
        option: several::Hold<'c>,
        verb: Verb,
    ) -> Result<Hold<'c>, Error> {
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
        Ok(Hold { key, option, unit: self.unit, moved: Cell::new(0) })
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

    /// The limiters in groups: a chain, or one limiter.
    pub(super) fn chains(&self) -> impl Iterator<Item = &[Named<'c>]> {
        self.limiters.chunk_by(|_, next| next.join != Join::None)
    }

    /// The limiters and the names of their keys.
    pub(super) fn held(&self) -> impl Iterator<Item = Held<'_, 'c>> + Clone {
        self.limiters.iter().map(|Named { name, limiter, .. }| Held { name, limiter })
    }

    /// The content of the key of `HOLD`, if the call has one.
    #[inline]
    pub(super) fn look<'k>(
        &self,
        call: &'k Call<'c>,
        handles: &'k Handles,
        access: Access,
        now: Instant,
    ) -> Result<Option<Box<Seen<'k, '_, 'c>>>, Error> {
        self.hold.as_ref().map(|hold| hold.look(call, handles, access, &self.held(), now)).transpose()
    }

    /// The content of the key of `ONCE`, if the call has one, and the instant at which a reply that is stored
    /// now would expire.
    #[inline]
    pub(super) fn reply<'k>(
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

    /// The key of the first limiter, for which the call waits.
    ///
    /// # Errors
    /// [`Error::SYNTAX`] if there is none, which parsing excludes.
    pub fn first(&self) -> Result<Arg<'c>, Error> {
        self.limiters.first().map(|named| named.key).ok_or(Error::SYNTAX)
    }

    /// The keys of the limiters that may refuse the call.
    pub fn refusing(&self) -> impl Iterator<Item = Arg<'c>> {
        self.limiters.iter().filter(|named| !named.shadow).map(|named| named.key)
    }

    /// The keys of the other limiters for which the call may wait, and the key of `HOLD`, because a
    /// settlement of another owner can bring units back at once.
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

    /// Whether units of the limiter or the chain of this row may be given back at any time.
    pub(super) fn releases(&self, at: usize, role: Role) -> bool {
        self.behind(at, role).iter().any(|named| named.limiter.releases())
    }

    /// The limiter or the limiters of the chain of this row.
    pub(super) fn behind(&self, at: usize, role: Role) -> &[Named<'c>] {
        let Some(first) = role.first() else {
            return self.limiters.get(at..).and_then(|rest| rest.get(..1)).unwrap_or_default();
        };
        let chain = self.limiters.get(first..).unwrap_or_default();
        chain.chunk_by(|_, next| next.join != Join::None).next().unwrap_or_default()
    }

    /// The same call at its turn, when no client in its own queue is before it.
    pub fn at_its_turn(&mut self) -> &Self {
        self.is_turn = true;
        self
    }
}

impl<'c> Named<'c> {
    pub(super) fn open<'k>(&self, call: &'k Call<'c>, handles: &'k Handles) -> Result<Key<'k, 'c>, Error> {
        handles.open(call, self.key, Access::Write)
    }

    pub(super) fn target<'k>(&self, call: &Call<'c>, key: &'k Key<'k, 'c>, now: Instant) -> Target<'k, 'c> {
        Target { call: *call, name: self.key, key, now, ahead: 0 }
    }
}

/// Reads the time after `RESET`; the longest time for -1, which only some limiters return.
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
        // Compares all pairs, which needs no memory.
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
