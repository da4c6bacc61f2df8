//! Several limiters of any kind in one call: all of them are decided, and written only when that is certain.
//!
//! The call opens each key once and decides each limiter by one instant. Its changes are kept beside the open
//! keys until the call is known to be admitted, so that a refusal or an error of any limiter leaves nothing
//! behind. From the first write on nothing can fail: what a change needs of the server is checked before.
//!
//! A kind of limiter is a file below this one and a line in the list of [`kinds`].

use std::collections::BTreeSet;

use redis_cell_core::fixed::Counter;
use redis_cell_core::gcra::Tat;
use redis_cell_core::several::{Grammar, Options, Row, split};
use redis_cell_core::window::Sliding;
use redis_cell_core::{Answer, Decision, Instant, Span, Unit};

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Arg, Call, Key};
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
            $($kind(Decision<<$type as Kind<'c>>::Stored>),)*
        }

        impl<'c> Limiter<'c> {
            const GRAMMARS: &'static [Grammar] = &[$(<$type as Kind<'c>>::GRAMMAR,)*];

            /// Reads the arguments of a limiter of the kind with this index.
            fn parse(kind: usize, arguments: &Arguments<'_, 'c>, verb: Verb, unit: Unit) -> Result<Self, Error> {
                let parsers: &[Parser<'c>] = &[$(|arguments, verb, unit| {
                    <$type>::parse(arguments, verb, unit).map(Self::$kind)
                },)*];
                parsers.get(kind).ok_or(Error::SYNTAX)?(arguments, verb, unit)
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

            fn settle(&self, at: &Place<'_, 'c>, age: Option<Span>) -> Result<Pending<'c>, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.settle(at, age).map(Pending::$kind),)*
                }
            }

            fn decided(&self, pending: Pending<'c>, at: &Place<'_, 'c>, verb: Verb) -> Pending<'c> {
                match (self, pending) {
                    $((Self::$kind(limiter), Pending::$kind(decision)) => {
                        Pending::$kind(limiter.decided(decision, at, verb))
                    })*
                    (_, pending) => pending, // a decision is always of its limiter's kind
                }
            }
        }

        impl<'c> Pending<'c> {
            fn answer(&self) -> Answer {
                match self {
                    $(Self::$kind(decision) => decision.answer,)*
                }
            }

            fn check(&self) -> Result<(), Error> {
                match self {
                    $(Self::$kind(decision) => store::check(&decision.change),)*
                }
            }

            fn carry_out(self, key: Key) -> Result<(), Error> {
                match self {
                    $(Self::$kind(decision) => store::carry_out(decision.change, key),)*
                }
            }
        }
    };
}

/// Reads the arguments of a limiter of one kind.
type Parser<'c> = fn(&Arguments<'_, 'c>, Verb, Unit) -> Result<Limiter<'c>, Error>;

kinds! {
    Throttle: Quantity<Tat>,
    Funnel: Quantity<Funnel>,
    Bucket: Quantity<Bucket>,
    Fixed: Quantity<Counter>,
    Window: Quantity<Sliding>,
    Log: Log,
    Lease: Held<'c>,
}

/// The positions of the keys among the arguments of a call, the name of the command being at 0; none when
/// they cannot be told.
pub fn keys(call: &Call) -> Vec<usize> {
    let words: Vec<&[u8]> = call.rest(1).collect();
    let parts = split(&words, Limiter::GRAMMARS).map(|(parts, _)| parts).unwrap_or_default();
    parts.into_iter().map(|part| part.key.saturating_add(1)).collect()
}

/// The arguments of a call for several limiters.
pub struct Request<'c> {
    limiters: Vec<Named<'c>>,
    /// The unit of every time in the call and in its reply.
    pub unit: Unit,
    /// How long ago was taken what a settlement gives back.
    age: Option<Span>,
}

/// A limiter and its key.
struct Named<'c> {
    key: Arg<'c>,
    shadow: bool,
    limiter: Limiter<'c>,
}

impl<'c> Request<'c> {
    /// Reads `key limiter [key limiter ...] [options]`.
    ///
    /// # Errors
    /// [`Error::SYNTAX`], those of each limiter's own command, and [`Error::SameKey`].
    pub fn parse(call: &Call<'c>, verb: Verb) -> Result<Self, Error> {
        let words: Vec<&[u8]> = call.rest(1).collect();
        let (parts, options) = split(&words, Limiter::GRAMMARS)?;
        let options = Options::parse(words.get(options..).unwrap_or_default(), verb == Verb::Settle)?;
        let mut names = BTreeSet::new();
        let mut limiters = Vec::with_capacity(parts.len());
        for part in &parts {
            if part.shadow && verb != Verb::Take {
                return Err(Error::SYNTAX);
            }
            // The name of the command is not among the positions of the parts.
            let args = call.args(part.arguments.start.saturating_add(1), part.arguments.len());
            let arguments = Arguments { args, words: words.get(part.arguments.clone()).unwrap_or_default() };
            let limiter = Limiter::parse(part.kind, &arguments, verb, options.unit)?;
            let [key] = *call.args(part.key.saturating_add(1), 1) else { return Err(Error::SYNTAX) };
            if !names.insert(call.bytes(key)) {
                return Err(Error::SameKey);
            }
            limiters.push(Named { key, shadow: faults::shadow(part.shadow), limiter });
        }
        Ok(Self { limiters, unit: options.unit, age: faults::age(options.age) })
    }

    /// Takes from all limiters or from none.
    ///
    /// # Errors
    /// Those of any limiter, including those in shadow. Nothing was written then.
    pub fn take(&self, call: &Call<'c>) -> Result<Vec<Row>, Error> {
        let now = ffi::now();
        let decided = self.decide(call, now, Limiter::take)?;
        let refuses =
            |(named, (_, pending)): (&Named, &(Key, Pending))| !named.shadow && pending.answer().limited();
        if !self.limiters.iter().zip(&decided).any(refuses) || faults::charges_refused() {
            return self.carry_out(call, now, Verb::Take, decided);
        }
        // A refusal speaks of the state as it is. An admission that is not carried out has to be asked to.
        let rows = self.limiters.iter().zip(&decided).map(|(named, (key, pending))| {
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
    pub fn peek(&self, call: &Call<'c>) -> Result<Vec<Row>, Error> {
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
    pub fn settle(&self, call: &Call<'c>) -> Result<Vec<Row>, Error> {
        let now = ffi::now();
        let decided = self.decide(call, now, |limiter, at| limiter.settle(at, self.age))?;
        self.carry_out(call, now, Verb::Settle, decided)
    }

    /// Decides all limiters, and makes sure that each decision can be carried out.
    fn decide(
        &self,
        call: &Call<'c>,
        now: Instant,
        decide: impl Fn(&Limiter<'c>, &Place<'_, 'c>) -> Result<Pending<'c>, Error>,
    ) -> Result<Vec<(Key<'c>, Pending<'c>)>, Error> {
        let decided = self.limiters.iter().map(|named| {
            let key = Key::open(*call, named.key, Access::Write);
            let pending = decide(&named.limiter, &named.place(call, &key, now))?;
            pending.check()?;
            if faults::writes_at_once() {
                let written = decide(&named.limiter, &named.place(call, &key, now))?;
                written.carry_out(Key::open(*call, named.key, Access::Write))?;
            }
            Ok((key, pending))
        });
        decided.collect()
    }

    /// Carries out all decisions of an admitted call.
    fn carry_out(
        &self,
        call: &Call<'c>,
        now: Instant,
        verb: Verb,
        decided: Vec<(Key<'c>, Pending<'c>)>,
    ) -> Result<Vec<Row>, Error> {
        let rows = self.limiters.iter().zip(decided).map(|(named, (key, pending))| {
            let pending = named.limiter.decided(pending, &named.place(call, &key, now), verb);
            let answer = pending.answer();
            pending.carry_out(key)?;
            Ok(Row { answer, shadow: named.shadow })
        });
        rows.collect()
    }
}

impl<'c> Named<'c> {
    fn place<'k>(&self, call: &Call<'c>, key: &'k Key<'c>, now: Instant) -> Place<'k, 'c> {
        Place { call: *call, name: self.key, key, now }
    }
}
