//! What a kind of limiter is to a call for several: its arguments, and its verbs on an open key.

use redis_cell_core::several::Grammar;
use redis_cell_core::{Answer, DIFFERENCE, Decision, Instant, QUANTITY, Range, Span, Unit};

use crate::error::Error;
use crate::ffi::{Arg, Call, Key};
use crate::store::Save;

/// A limiter of one kind, with the quantity or the place that a call asks it for.
pub trait Kind<'c>: Sized {
    /// The word for the kind, and its arguments.
    const GRAMMAR: Grammar;

    /// What a decision stores.
    type Stored: Save;

    /// Reads the arguments of the limiter: as many as [`GRAMMAR`](Self::GRAMMAR) counts.
    fn parse(arguments: &Arguments<'_, 'c>, verb: Verb, unit: Unit) -> Result<Self, Error>;

    /// Takes the quantity, if it is admitted.
    fn take(&self, at: &Place<'_, 'c>) -> Result<Decision<Self::Stored>, Error>;

    /// The answer that [`take`](Self::take) would give, with the numbers of the state as it is.
    fn peek(&self, at: &Place<'_, 'c>) -> Result<Answer, Error>;

    /// Settles the quantity as a difference; what is given back was taken `age` ago.
    fn settle(&self, at: &Place<'_, 'c>, age: Option<Span>) -> Result<Decision<Self::Stored>, Error>;

    /// Completes the decision, which is carried out next: all limiters are decided by now. This cannot fail.
    fn complete(&self, _: &mut Decision<Self::Stored>, _: &Place<'_, 'c>, _: Verb) {}
}

/// The arguments of one limiter, behind the word for its kind.
pub struct Arguments<'w, 'c> {
    pub args: &'c [Arg<'c>],
    pub words: &'w [&'c [u8]],
}

/// A key of the call, open.
pub struct Place<'k, 'c> {
    pub call: Call<'c>,
    pub name: Arg<'c>,
    pub key: &'k Key<'c>,
    pub now: Instant,
}

/// What a call does with its limiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It takes from all of them or from none.
    Take,
    /// It looks.
    Peek,
    /// It settles differences.
    Settle,
}

impl Verb {
    /// The range of a quantity.
    pub const fn quantity(self) -> Range {
        match self {
            Self::Take | Self::Peek => QUANTITY,
            Self::Settle => DIFFERENCE,
        }
    }
}
