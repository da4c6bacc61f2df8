//! The kinds of limiters: each with its word, its arguments, its limit and its state, and with the verbs that
//! a call for one or for many limiters uses.
//!
//! A kind is a file in the directory of this module, a line among the modules, and a line in the list of
//! [`kinds`]. A limiter whose state is loaded and stored as a whole implements [`Whole`](whole::Whole); the
//! others implement [`Kind`].

use redis_cell_core::fixed::Counter;
use redis_cell_core::gcra::Tat;
use redis_cell_core::several::{self, Grammar};
use redis_cell_core::window::Sliding;
use redis_cell_core::{Answer, Change, Decision, Range, Taken, Unit};

use crate::error::Error;
use crate::ffi::{Announcement, Argument, Call, Key};
use crate::store;
use crate::store::bucket::{Bucket, Funnel};

pub use kind::{Arguments, Kind, Target, Verb};
pub use lease::LeaseCall;
pub use log::Log;
pub use whole::{Whole, WholeCall};

pub mod arguments;
pub mod bucket;
pub mod fixed;
pub mod gcra;
mod kind;
pub mod lease;
pub mod log;
mod whole;
mod window;

/// Declares all kinds: an enum of their limiters, and an enum of their decisions.
macro_rules! kinds {
    ($($kind:ident: $type:ty,)*) => {
        /// A limiter of any kind, as a call describes it.
        pub enum Limiter<'c> {
            $($kind($type),)*
        }

        /// A decision that is not carried out yet.
        pub enum Pending<'c> {
            $($kind(Decision<<$type as Kind<'c>>::Change>),)*
        }

        impl<'c> Limiter<'c> {
            /// The words for the kinds, and their arguments.
            pub const GRAMMARS: &'static [Grammar] = &[$(<$type as Kind<'c>>::GRAMMAR,)*];

            /// The same, as in the server's documentation.
            pub const DOCUMENTED: &'static [Argument] = &[$(<$type as Kind<'c>>::DOCUMENTED,)*];

            /// Reads the arguments of a limiter of the kind with this index.
            pub fn parse(kind: usize, arguments: &Arguments<'c>, verb: Verb, unit: Unit) -> Result<Self, Error> {
                let mut kinds = 0_usize..;
                $(if kinds.next() == Some(kind) {
                    return <$type>::parse(arguments, verb, unit).map(Self::$kind);
                })*
                Err(Error::SYNTAX)
            }

            #[inline(always)]
            pub fn take(&self, at: &Target<'_, 'c>) -> Result<Pending<'c>, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.take(at).map(Pending::$kind),)*
                }
            }

            /// The quantities of a settlement of a hold.
            pub fn most_used(&self) -> Range {
                match self {
                    $(Self::$kind(_) => <$type as Kind<'c>>::most_used(),)*
                }
            }

            pub fn units(&self) -> i64 {
                match self {
                    $(Self::$kind(limiter) => limiter.units(),)*
                }
            }

            /// The same limiter, with another quantity.
            pub fn with_units(&self, units: i64) -> Self {
                match self {
                    $(Self::$kind(limiter) => Self::$kind(limiter.with_units(units)),)*
                }
            }

            pub fn is_held(&self, at: &Target<'_, 'c>) -> Result<bool, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.is_held(at),)*
                }
            }

            /// The decision to change nothing, with this answer.
            pub fn keep(&self, answer: Answer) -> Pending<'c> {
                match self {
                    $(Self::$kind(_) => Pending::$kind(Decision::keep(answer)),)*
                }
            }

            pub fn cost(&self) -> Result<u64, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.cost(),)*
                }
            }

            pub fn is_endless(&self) -> bool {
                match self {
                    $(Self::$kind(limiter) => limiter.is_endless(),)*
                }
            }

            pub fn releases(&self) -> bool {
                match self {
                    $(Self::$kind(_) => <$type as Kind<'c>>::RELEASES,)*
                }
            }

            pub fn peek(&self, at: &Target<'_, 'c>) -> Result<Answer, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.peek(at),)*
                }
            }

            pub fn settle(&self, at: &Target<'_, 'c>, taken: Option<&Taken>) -> Result<Pending<'c>, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.settle(at, taken).map(Pending::$kind),)*
                }
            }

            pub fn complete(&self, pending: &mut Pending<'c>, at: &Target<'_, 'c>, verb: Verb) {
                match (self, pending) {
                    $((Self::$kind(limiter), Pending::$kind(decision)) => limiter.complete(decision, at, verb),)*
                    _ => {} // a decision is always of its limiter's kind
                }
            }

            /// Gives back the units that the call has taken from a key that it has created.
            pub fn give_back(&self, at: &Target<'_, 'c>) -> Result<Pending<'c>, Error> {
                match self {
                    $(Self::$kind(limiter) => limiter.give_back(at).map(Pending::$kind),)*
                }
            }

            pub fn write(
                &self,
                pending: &Pending<'c>,
                key: &mut Key<'_, 'c>,
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
            /// The fixed window that the decision stores.
            pub fn window(&self) -> Option<Counter> {
                match self {
                    Self::Fixed(Decision { change: Change::Store(counter), .. }) => Some(*counter),
                    _ => None,
                }
            }

            pub fn answer(&self) -> Answer {
                match self {
                    $(Self::$kind(decision) => decision.answer,)*
                }
            }

            pub fn set_remaining(&mut self, remaining: i64) {
                match self {
                    $(Self::$kind(decision) => decision.answer.remaining = remaining,)*
                }
            }

            pub fn stores(&self) -> bool {
                match self {
                    $(Self::$kind(decision) => matches!(decision.change, Change::Store(_)),)*
                }
            }

            pub fn adds(&self) -> bool {
                match self {
                    $(Self::$kind(Decision { change: Change::Store(change), .. }) => <$type as Kind<'c>>::adds(change),)*
                    _ => false,
                }
            }

            /// Makes sure that the decision can be carried out.
            #[inline(always)]
            pub fn check(&self) -> Result<(), Error> {
                match self {
                    $(Self::$kind(decision) => store::check::<<$type as Kind<'c>>::Stored>(&decision.change),)*
                }
            }
        }
    };
}

kinds! {
    Throttle: WholeCall<Tat>,
    Funnel: WholeCall<Funnel>,
    Bucket: WholeCall<Bucket>,
    Fixed: WholeCall<Counter>,
    Window: WholeCall<Sliding>,
    Log: Log,
    Lease: LeaseCall<'c>,
}

const _: () =
    assert!(Limiter::GRAMMARS.len() == several::GRAMMARS.len(), "core/src/several.rs has all kinds, too");
