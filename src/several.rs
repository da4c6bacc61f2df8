//! Several limiters of any kind in one call: all of them are decided, and written only when that is certain.
//!
//! The call opens each key once and decides each limiter by one instant. Its changes are kept beside the open
//! keys until the call is known to be admitted, so that a refusal or an error of any limiter leaves nothing
//! behind. From the first write on nothing can fail: what a change needs of the server is checked before.
//!
//! The server runs other modules' code for keyspace events, and that code may change any key, also those that
//! are open. So the events of all changes are published when all of them are written and no key is open. The
//! server itself publishes two events at a worse time, and both matter only beside other modules:
//!
//! - `expired`, when a key is opened that has expired. So all keys are opened once, and closed, before the
//!   first one is decided: the time by which keys expire stands still while a call runs.
//! - `new`, while a key is written that did not exist (Redis 7.0). So those keys are written first, with no
//!   other key open, each only if it still does not exist. The others are decided again then. If they do not
//!   admit the call any more, or a key exists by now, what the call took is given back, and it starts again.
//!
//! A kind of limiter is a file below this one and a line in the list of [`kinds`].

use redis_cell_core::fixed::Counter;
use redis_cell_core::gcra::Tat;
use redis_cell_core::several::{self, Grammar, Options, Parts, Prefix, Row, Words};
use redis_cell_core::window::Sliding;
use redis_cell_core::{Answer, Change, Decision, Instant, Span, Taken, Unit};

use smallvec::SmallVec;

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Arg, Call, Key};
use crate::outcome::{FEW, Rows};
use crate::store;
use crate::store::bucket::{Bucket, Funnel};

pub use self::kind::Verb;
use self::kind::{Arguments, Kind, Place};
use self::lease::Held;
use self::log::Log;
use self::whole::Quantity;

mod kind;
mod lease;
mod log;
mod whole;

/// How often a call starts again at most, because another module has come between.
const ROUNDS: u32 = 16;

/// Declares all kinds: their limiters, and their decisions.
macro_rules! kinds {
    ($($kind:ident: $type:ty,)*) => {
        enum Limiter<'c> {
            $($kind($type),)*
        }

        /// A decision that is not carried out yet.
        enum Pending<'c> {
            $($kind(Decision<<$type as Kind<'c>>::Change>),)*
        }

        impl<'c> Limiter<'c> {
            const GRAMMARS: &'static [Grammar] = &[$(<$type as Kind<'c>>::GRAMMAR,)*];

            /// Reads the arguments of a limiter of the kind with this index.
            fn parse(kind: usize, arguments: &Arguments<'c>, verb: Verb, unit: Unit) -> Result<Self, Error> {
                let mut kinds = 0_usize..;
                $(if kinds.next() == Some(kind) {
                    return <$type>::parse(arguments, verb, unit).map(Self::$kind);
                })*
                Err(Error::SYNTAX)
            }

            fn take(&self, at: &Place<'_, 'c>) -> Result<Pending<'c>, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.take(at).map(Pending::$kind),)*
                }
            }

            fn peek(&self, at: &Place<'_, 'c>) -> Result<Answer, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.peek(at),)*
                }
            }

            fn settle(&self, at: &Place<'_, 'c>, taken: Option<&Taken>) -> Result<Pending<'c>, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.settle(at, taken).map(Pending::$kind),)*
                }
            }

            fn complete(&self, pending: &mut Pending<'c>, at: &Place<'_, 'c>, verb: Verb) {
                match (self, pending) {
                    $((Self::$kind(limiter), Pending::$kind(decision)) => limiter.complete(decision, at, verb),)*
                    _ => {} // a decision is always of its limiter's kind
                }
            }

            /// Gives back what the call has taken from a key that it has made.
            fn give_back(&self, at: &Place<'_, 'c>) -> Result<Pending<'c>, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.give_back(at).map(Pending::$kind),)*
                }
            }

            fn write(
                &self,
                pending: &Pending<'c>,
                key: &mut Key<'c>,
                call: &Call<'c>,
            ) -> Option<Announcement<'c>> {
                match (self, pending) {
                    $((Self::$kind(limiter), Pending::$kind(decision)) => {
                        store::write(decision.change.map(|change| limiter.stored(change, call)), key)
                    })*
                    _ => None, // as above
                }
            }
        }

        impl<'c> Pending<'c> {
            fn answer(&self) -> Answer {
                match self {
                    $(Self::$kind(decision) => decision.answer,)*
                }
            }

            fn stores(&self) -> bool {
                match self {
                    $(Self::$kind(decision) => matches!(decision.change, Change::Store(_)),)*
                }
            }

            fn adds(&self) -> bool {
                match self {
                    $(Self::$kind(Decision { change: Change::Store(change), .. }) => <$type as Kind<'c>>::adds(change),)*
                    _ => false,
                }
            }

            /// Makes sure that the decision can be carried out.
            fn check(&self) -> Result<(), Error> {
                match self {
                    $(Self::$kind(decision) => store::check::<<$type as Kind<'c>>::Stored>(&decision.change),)*
                }
            }
        }
    };
}

kinds! {
    Throttle: Quantity<Tat>,
    Funnel: Quantity<Funnel>,
    Bucket: Quantity<Bucket>,
    Fixed: Quantity<Counter>,
    Window: Quantity<Sliding>,
    Log: Log,
    Lease: Held<'c>,
}

/// The positions of the keys among the arguments of a call, the name of the command being at 0: those of all
/// complete limiters.
pub fn keys(call: &Call) -> Vec<usize> {
    Parts::of(Behind(*call), Limiter::GRAMMARS).map(|part| Behind::position(part.key)).collect()
}

/// The arguments of a call, of which the first is behind the name of the command.
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
    /// How long ago was taken what a settlement gives back.
    age: Option<Span>,
}

/// A limiter and its key.
struct Named<'c> {
    key: Arg<'c>,
    name: &'c [u8],
    shadow: bool,
    /// The `reset_after` of the call that took what a settlement gives back.
    reset_after: Option<Span>,
    limiter: Limiter<'c>,
}

/// A limiter that is decided: its open key, and the decision.
struct Decided<'c> {
    key: Key<'c>,
    pending: Pending<'c>,
}

/// The decisions of a call, which are lent out and not moved: they are large.
type AllDecided<'c> = SmallVec<[Decided<'c>; FEW]>;

impl<'c> Request<'c> {
    /// Reads `key limiter [key limiter ...] [options]`.
    ///
    /// # Errors
    /// [`Error::SYNTAX`], those of each limiter's own command, and [`Error::SameKey`].
    #[inline]
    pub fn parse(call: &Call<'c>, verb: Verb) -> Result<Self, Error> {
        let mut parts = Parts::of(Behind(*call), Limiter::GRAMMARS);
        let unit = parts.unit();
        let mut limiters = SmallVec::new();
        for part in parts.by_ref() {
            let (shadow, reset_after) = match (part.prefix, verb) {
                (Prefix::None, _) => (false, None),
                (Prefix::Shadow, Verb::Take) => (faults::shadow(true), None),
                (Prefix::Reset(at), Verb::Settle) => (false, Some(parse_reset(call, at, unit)?)),
                _ => return Err(Error::SYNTAX),
            };
            let args = call.args(Behind::position(part.arguments.start), part.arguments.len());
            let limiter = Limiter::parse(part.kind, &Arguments { call: *call, args }, verb, unit)?;
            let key = call.arg(Behind::position(part.key)).ok_or(Error::SYNTAX)?;
            limiters.push(Named { key, name: call.bytes(key), shadow, reset_after, limiter });
        }
        let Options { unit, age } = Options::parse(parts.rest(), verb == Verb::Settle)?;
        let lacks_age = |named: &Named| named.reset_after.is_some() && age.is_none();
        if limiters.is_empty() || limiters.iter().any(lacks_age) {
            return Err(Error::SYNTAX);
        }
        if names_a_key_twice(&limiters) {
            return Err(Error::SameKey);
        }
        Ok(Self { limiters, unit, age: faults::age(age) })
    }

    /// Takes from all limiters or from none.
    ///
    /// # Errors
    /// Those of any limiter, including those in shadow, and [`Error::Busy`]. Nothing was taken then.
    pub fn take(&self, call: &Call<'c>) -> Result<Rows, Error> {
        self.carry_out(call, Verb::Take)
    }

    /// The answers that [`take`](Self::take) would give, with the numbers of the states as they are.
    ///
    /// # Errors
    /// Those of any limiter.
    pub fn peek(&self, call: &Call<'c>) -> Result<Rows, Error> {
        let now = ffi::now();
        let rows = self.limiters.iter().map(|named| {
            let key = Key::open(*call, named.key, Access::Read)?;
            Ok(Row { answer: named.limiter.peek(&named.place(call, &key, now))?, shadow: named.shadow })
        });
        rows.collect()
    }

    /// Settles all differences.
    ///
    /// # Errors
    /// Those of any limiter, [`Error::OutOfMemory`] and [`Error::Busy`]. Nothing was settled then.
    pub fn settle(&self, call: &Call<'c>) -> Result<Rows, Error> {
        self.carry_out(call, Verb::Settle)
    }

    /// Decides all limiters, and carries out all decisions if none of them refuses.
    fn carry_out(&self, call: &Call<'c>, verb: Verb) -> Result<Rows, Error> {
        let careful = self.limiters.len() > 1 && ffi::is_beside_others();
        for _ in 0..ROUNDS {
            if careful {
                self.let_expire(call)?;
            }
            let (now, expired, mut decided) = (ffi::now(), ffi::expired(), AllDecided::new());
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
                return self.refusal(call, now, &decided);
            }
            // CL.MTAKE has been checked by the server.
            if verb == Verb::Settle && decided.iter().any(Decided::grows) && call.is_out_of_memory() {
                return Err(Error::OutOfMemory);
            }
            if !careful || !decided.iter().any(Decided::creates) {
                return Ok(self.write(call, now, &mut decided, verb));
            }
            if let Some(rows) = self.write_new_first(call, now, decided, verb) {
                return Ok(rows);
            }
        }
        Err(Error::Busy)
    }

    /// Opens and closes all keys until none of them expires by that, with all that other modules do then.
    fn let_expire(&self, call: &Call<'c>) -> Result<(), Error> {
        for _ in 0..ROUNDS {
            let expired = ffi::expired();
            for named in &self.limiters {
                named.open(call)?;
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
        let decide = |at: &Place<'_, 'c>| match verb {
            Verb::Settle => {
                let Self { age, unit, .. } = *self;
                let taken = age.map(|age| Taken { age, reset_after: named.reset_after, unit });
                named.limiter.settle(at, taken.as_ref())
            }
            Verb::Take | Verb::Peek => named.limiter.take(at),
        };
        let key = named.open(call)?;
        let pending = decide(&named.place(call, &key, now))?;
        pending.check()?;
        if faults::writes_at_once() {
            let written = decide(&named.place(call, &key, now))?;
            named.limiter.write(&written, &mut named.open(call)?, call);
        }
        Ok(Decided { key, pending })
    }

    /// The rows of a refusal, which speak of the states as they are.
    fn refusal(&self, call: &Call<'c>, now: Instant, decided: &[Decided<'c>]) -> Result<Rows, Error> {
        // An admission that is not carried out has to be asked to.
        let rows = self.limiters.iter().zip(decided).map(|(named, Decided { key, pending })| {
            let answer = pending.answer();
            let answer =
                if answer.limited() { answer } else { named.limiter.peek(&named.place(call, key, now))? };
            Ok(Row { answer, shadow: named.shadow })
        });
        rows.collect()
    }

    /// Carries out all decisions of an admitted call. No other module's code runs before all are written,
    /// because none of them makes a key beside other modules.
    fn write(&self, call: &Call<'c>, now: Instant, decided: &mut AllDecided<'c>, verb: Verb) -> Rows {
        let (mut rows, mut announcements) = (Rows::new(), SmallVec::<[_; FEW]>::new());
        for (named, decided) in self.limiters.iter().zip(&mut *decided) {
            let (row, announcement) = named.write(call, now, decided, verb);
            rows.push(row);
            announcements.extend(announcement);
        }
        decided.clear(); // which closes all keys
        announcements.into_iter().for_each(|announcement| announcement.publish(call));
        rows
    }

    /// The same where keys have to be made, beside other modules. `None`, with nothing taken, when another
    /// module has come between.
    #[cold]
    fn write_new_first(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: AllDecided<'c>,
        verb: Verb,
    ) -> Option<Rows> {
        // All keys are closed by this.
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
            for (named, decided, written) in &mut others {
                **written = Some(named.write(call, now, decided, verb));
            }
            Some(())
        })();
        if all_written.is_none() {
            self.give_back(call, &written);
            return None;
        }
        let (rows, announcements): (Rows, Vec<_>) = written.into_iter().flatten().unzip();
        announcements.into_iter().flatten().for_each(|announcement| announcement.publish(call));
        Some(rows)
    }

    /// Gives back what was taken from keys that the call has made.
    fn give_back<T>(&self, call: &Call<'c>, written: &[Option<T>]) {
        let now = ffi::now();
        for (named, _) in self.limiters.iter().zip(written).filter(|(_, written)| written.is_some()) {
            // A key that holds something else by now is another module's.
            let Ok(mut key) = named.open(call) else { continue };
            let Ok(pending) = named.limiter.give_back(&named.place(call, &key, now)) else { continue };
            let announcement = named.limiter.write(&pending, &mut key, call);
            drop(key);
            store::publish(call, announcement);
        }
    }
}

impl Decided<'_> {
    /// Whether carrying out the decision makes the key, or adds entries to it.
    fn grows(&self) -> bool {
        self.creates() || self.pending.adds()
    }

    /// Whether carrying out the decision makes the key.
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
        self.limiter.complete(pending, &self.place(call, key, now), verb);
        let row = Row { answer: pending.answer(), shadow: self.shadow };
        (row, self.limiter.write(pending, key, call))
    }

    fn place<'k>(&self, call: &Call<'c>, key: &'k Key<'c>, now: Instant) -> Place<'k, 'c> {
        Place { call: *call, name: self.key, key, now }
    }
}

/// Reads the time behind `RESET`.
fn parse_reset(call: &Call, at: usize, unit: Unit) -> Result<Span, Error> {
    let time = call.arg(Behind::position(at)).ok_or(Error::SYNTAX)?;
    Ok(several::parse_reset(call.bytes(time), unit)?)
}

/// Whether two of the limiters have the same key.
fn names_a_key_twice(limiters: &[Named]) -> bool {
    if limiters.len() <= 4 * FEW {
        // Each is compared with each, which takes no memory.
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
