//! Several limiters of any kind in one call: all of them are decided, and written only when that is certain.
//!
//! The call opens each key once and decides each limiter by one instant. Its changes are kept beside the open
//! keys until the call is known to be admitted, so that a refusal or an error of any limiter leaves nothing
//! behind. From the first write on nothing can fail: what a change needs of the server is checked before.
//!
//! A kind of limiter is a file below this one and a line in the list of [`kinds`].

use redis_cell_core::fixed::Counter;
use redis_cell_core::gcra::Tat;
use redis_cell_core::several::{self, Grammar, Options, Parts, Prefix, Row, Words};
use redis_cell_core::window::Sliding;
use redis_cell_core::{Answer, Decision, Instant, Span, Taken, Unit};

use smallvec::SmallVec;

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Arg, Call, Key};
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

            fn carry_out(&self, pending: Pending<'c>, key: Key<'c>, call: &Call<'c>) -> Result<(), Error> {
                match (self, pending) {
                    $((Self::$kind(limiter), Pending::$kind(decision)) => {
                        store::carry_out(decision.change.map(|change| limiter.stored(change, call)), key)
                    })*
                    _ => Ok(()), // as above
                }
            }
        }

        impl<'c> Pending<'c> {
            fn answer(&self) -> Answer {
                match self {
                    $(Self::$kind(decision) => decision.answer,)*
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
    /// Those of any limiter, including those in shadow. Nothing was written then.
    pub fn take(&self, call: &Call<'c>) -> Result<Rows, Error> {
        let (now, mut decided) = (ffi::now(), AllDecided::new());
        self.decide(call, now, &mut decided, |named, at| named.limiter.take(at))?;
        let refuses = |(named, Decided { pending, .. }): (&Named, &Decided)| {
            !named.shadow && pending.answer().limited()
        };
        if !self.limiters.iter().zip(&decided).any(refuses) || faults::charges_refused() {
            return self.carry_out(call, now, &mut decided, Verb::Take);
        }
        // A refusal speaks of the state as it is. An admission that is not carried out has to be asked to.
        let rows = self.limiters.iter().zip(&decided).map(|(named, Decided { key, pending })| {
            let answer = pending.answer();
            let answer =
                if answer.limited() { answer } else { named.limiter.peek(&named.place(call, key, now))? };
            Ok(Row { answer, shadow: named.shadow })
        });
        rows.collect()
    }

    /// The answers that [`take`](Self::take) would give, with the numbers of the states as they are.
    ///
    /// # Errors
    /// Those of any limiter.
    pub fn peek(&self, call: &Call<'c>) -> Result<Rows, Error> {
        let now = ffi::now();
        let rows = self.limiters.iter().map(|named| {
            let key = Key::open(*call, named.key, Access::Read);
            Ok(Row { answer: named.limiter.peek(&named.place(call, &key, now))?, shadow: named.shadow })
        });
        rows.collect()
    }

    /// Settles all differences.
    ///
    /// # Errors
    /// Those of any limiter. Nothing was written then.
    pub fn settle(&self, call: &Call<'c>) -> Result<Rows, Error> {
        let (now, mut decided) = (ffi::now(), AllDecided::new());
        self.decide(call, now, &mut decided, |named, at| {
            let Self { age, unit, .. } = *self;
            let taken = age.map(|age| Taken { age, reset_after: named.reset_after, unit });
            named.limiter.settle(at, taken.as_ref())
        })?;
        self.carry_out(call, now, &mut decided, Verb::Settle)
    }

    /// Decides all limiters, and makes sure that each decision can be carried out.
    fn decide(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: &mut AllDecided<'c>,
        decide: impl Fn(&Named<'c>, &Place<'_, 'c>) -> Result<Pending<'c>, Error>,
    ) -> Result<(), Error> {
        for named in &self.limiters {
            let key = Key::open(*call, named.key, Access::Write);
            let pending = decide(named, &named.place(call, &key, now))?;
            pending.check()?;
            if faults::writes_at_once() {
                let written = decide(named, &named.place(call, &key, now))?;
                named.limiter.carry_out(written, Key::open(*call, named.key, Access::Write), call)?;
            }
            decided.push(Decided { key, pending });
        }
        Ok(())
    }

    /// Carries out all decisions of an admitted call.
    fn carry_out(
        &self,
        call: &Call<'c>,
        now: Instant,
        decided: &mut AllDecided<'c>,
        verb: Verb,
    ) -> Result<Rows, Error> {
        let mut rows = Rows::new();
        for (named, Decided { key, mut pending }) in self.limiters.iter().zip(decided.drain(..)) {
            named.limiter.complete(&mut pending, &named.place(call, &key, now), verb);
            rows.push(Row { answer: pending.answer(), shadow: named.shadow });
            named.limiter.carry_out(pending, key, call)?;
        }
        Ok(rows)
    }
}

impl<'c> Named<'c> {
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
