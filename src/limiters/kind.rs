//! The interface of a kind of limiter to a call: its arguments, and its verbs on an open key.

use redis_cell_core::hold::USED;
use redis_cell_core::several::{Grammar, Keyword};
use redis_cell_core::{Answer, DIFFERENCE, Decision, Instant, QUANTITY, Range, Taken, Unit};

use crate::error::Error;
use crate::ffi::{Arg, Argument, Call, Key};
use crate::store::Save;

/// A limiter of one kind, with the quantity or the place that a call takes.
pub trait Kind<'c>: Sized {
    /// The word for the kind among several limiters, and its arguments.
    const GRAMMAR: Grammar;
    /// The same, as in the server's documentation.
    const DOCUMENTED: Argument;

    /// The change that a decision makes.
    type Change;
    /// The form in which it is stored.
    type Stored: Save;

    /// Reads the arguments of the limiter: as many as [`GRAMMAR`](Self::GRAMMAR) counts.
    fn parse(arguments: &Arguments<'c>, verb: Verb, unit: Unit) -> Result<Self, Error>;

    /// Takes the quantity, if it is admitted.
    fn take(&self, at: &Target<'_, 'c>) -> Result<Decision<Self::Change>, Error>;

    /// The quantities of a settlement of a hold: the units that were used.
    fn most_used() -> Range {
        USED
    }

    /// The units that the call takes, by which flows share the limiter.
    fn units(&self) -> i64;

    /// The same limiter, with another quantity.
    #[must_use]
    fn with_units(&self, units: i64) -> Self;

    /// Whether the caller holds a place already, which the call would renew.
    fn is_held(&self, _: &Target<'_, 'c>) -> Result<bool, Error> {
        Ok(false)
    }

    /// The cost that counts as taken while the call waits.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn cost(&self) -> Result<u64, Error>;

    /// Whether its `reset_after` may be -1, which means never.
    fn is_endless(&self) -> bool {
        false
    }

    /// Whether units may be given back at any time, so that no wait is known.
    const RELEASES: bool = false;

    /// The answer that [`take`](Self::take) would give, with the numbers of the state as it is.
    fn peek(&self, at: &Target<'_, 'c>) -> Result<Answer, Error>;

    /// Settles the quantity as a difference. `taken` says when the units were taken that are given back, if
    /// the call does.
    fn settle(&self, at: &Target<'_, 'c>, taken: Option<&Taken>) -> Result<Decision<Self::Change>, Error>;

    /// Gives back the units that the call has just taken or charged, from a state that it has created.
    fn give_back(&self, at: &Target<'_, 'c>) -> Result<Decision<Self::Change>, Error>;

    /// Whether a change adds entries, which take memory.
    fn adds(_: &Self::Change) -> bool {
        false
    }

    /// The form in which a change is stored.
    fn stored(&self, change: Self::Change, call: &Call<'c>) -> Self::Stored;

    /// Completes the decision after all limiters were decided and before it is carried out. This cannot fail.
    fn complete(&self, _: &mut Decision<Self::Change>, _: &Target<'_, 'c>, _: Verb) {}
}

/// The arguments of one limiter, after the word for its kind.
pub struct Arguments<'c> {
    pub call: Call<'c>,
    pub args: &'c [Arg<'c>],
}

impl<'c> Arguments<'c> {
    /// The arguments before the last one, and the last one.
    ///
    /// # Errors
    /// [`Error::SYNTAX`] when there are none.
    pub fn split_last(&self) -> Result<(Self, Arg<'c>), Error> {
        let (last, args) = self.args.split_last().ok_or(Error::SYNTAX)?;
        Ok((Self { call: self.call, args }, *last))
    }

    /// Their bytes, if there are exactly `N` arguments.
    ///
    /// # Errors
    /// [`Error::SYNTAX`] when there are more or fewer.
    pub fn words<const N: usize>(&self) -> Result<[&'c [u8]; N], Error> {
        let args: &[Arg<'c>; N] = self.args.try_into().map_err(|_| Error::SYNTAX)?;
        Ok(args.map(|arg| self.call.bytes(arg)))
    }

    /// Their bytes, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &'c [u8]> + Clone {
        self.args.iter().map(|arg| self.call.bytes(*arg))
    }
}

/// The target of a verb: an open key of the call.
#[derive(Clone, Copy)]
pub struct Target<'k, 'c> {
    pub call: Call<'c>,
    pub name: Arg<'c>,
    pub key: &'k Key<'k, 'c>,
    pub now: Instant,
    /// The sum of the [costs](Kind::cost) of the clients before the call.
    pub ahead: u64,
}

/// The verb that a call applies to its limiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It takes: from all of them, or from none.
    Take,
    /// The same, as soon as it is admitted.
    Wait,
    /// It looks.
    Peek,
    /// It settles differences.
    Settle,
}

impl Verb {
    /// The options that a call with this verb may have.
    pub const fn options(self) -> &'static [Keyword] {
        match self {
            Self::Take => &[Keyword::Once, Keyword::Hold],
            Self::Wait => &[Keyword::Once, Keyword::Timeout, Keyword::Flow, Keyword::MaxLen, Keyword::Hold],
            Self::Peek => &[Keyword::Hold],
            Self::Settle => &Keyword::OF_SETTLEMENTS,
        }
    }

    /// The range of a quantity.
    pub const fn quantity(self) -> Range {
        match self {
            Self::Take | Self::Wait | Self::Peek => QUANTITY,
            Self::Settle => DIFFERENCE,
        }
    }
}
