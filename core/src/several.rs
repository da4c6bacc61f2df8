//! Several limiters in one call: where each of them begins and ends among the arguments, and the row for all
//! of them.
//!
//! The arguments are `key limiter [key limiter ...] [options]`. A limiter is the word for its kind and the
//! arguments that this kind has, which end with a quantity (or the name of a holder); the word `SHADOW` may
//! precede it. An argument behind a complete limiter is a key when a kind or `SHADOW` follows it, and begins
//! the options otherwise. So the arguments are unambiguous whatever the keys are called, and the keys are
//! found without reading a number.

use core::ops;

use crate::args::once;
use crate::{Answer, Error, Range, Span, Unit, Verdict};

/// The word that makes a limiter one that refuses nothing.
pub const SHADOW: &[u8] = b"SHADOW";

/// A kind of limiter, as far as its arguments are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Grammar {
    /// The word that begins it, in upper case.
    pub word: &'static [u8],
    /// The number of arguments behind that word, for a limiter that begins with these; `None` when some are
    /// missing.
    pub arguments: fn(&[&[u8]]) -> Option<usize>,
}

/// A key and its limiter: positions among the arguments of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The key.
    pub key: usize,
    /// Whether the limiter begins with `SHADOW`.
    pub shadow: bool,
    /// The kind: its index in the list of grammars.
    pub kind: usize,
    /// The arguments of the limiter, behind the word for its kind.
    pub arguments: ops::Range<usize>,
}

/// The keys and limiters of a call with the arguments `words`, and the position at which the options begin.
///
/// Keywords are matched in upper and lower case.
///
/// Cost: O(n) for n arguments.
///
/// # Errors
/// [`Error::Syntax`] when there is no complete limiter behind a key.
pub fn split(words: &[&[u8]], kinds: &[Grammar]) -> Result<(Vec<Part>, usize), Error> {
    let mut parts = Vec::with_capacity(words.len() / 5);
    let mut at = 0;
    loop {
        let part = part(words, at, kinds).ok_or(Error::Syntax)?;
        at = part.arguments.end;
        parts.push(part);
        // Another key has a kind behind it, or the word that may precede one.
        let next = words.get(at.saturating_add(1));
        if !next.is_some_and(|word| is_shadow(word) || kind_of(word, kinds).is_some()) {
            return Ok((parts, at));
        }
    }
}

/// The key at this position and its limiter, if it is complete.
fn part(words: &[&[u8]], key: usize, kinds: &[Grammar]) -> Option<Part> {
    let behind = key.checked_add(1)?;
    let shadow = is_shadow(words.get(behind)?);
    let word = if shadow { behind.checked_add(1)? } else { behind };
    let kind = kind_of(words.get(word)?, kinds)?;
    let start = word.checked_add(1)?;
    let rest = words.get(start..)?;
    let count = (kinds.get(kind)?.arguments)(rest).filter(|&count| count <= rest.len())?;
    Some(Part { key, shadow, kind, arguments: start..start.checked_add(count)? })
}

fn is_shadow(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(SHADOW)
}

fn kind_of(word: &[u8], kinds: &[Grammar]) -> Option<usize> {
    kinds.iter().position(|kind| word.eq_ignore_ascii_case(kind.word))
}

/// What follows the last limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The unit of every time in the call and in its reply.
    pub unit: Unit,
    /// How long ago was taken what a settlement gives back.
    pub age: Option<Span>,
}

/// How long ago, in the unit of the call.
const AGO: Range = Range { name: "AGO", min: 0, max: i64::MAX };

impl Options {
    /// Reads `[AGO age] [unit]`, in any order; `AGO` is known to settlements alone.
    ///
    /// # Errors
    /// [`Error::Syntax`] for an option that is unknown, repeated or lacks its value; [`Error::OutOfRange`]
    /// for an age that is not an integer, is negative or is above 292 years.
    pub fn parse(words: &[&[u8]], settles: bool) -> Result<Self, Error> {
        let (mut unit, mut age) = (None, None);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if settles && word.eq_ignore_ascii_case(b"AGO") {
                once(&mut age, *words.next().ok_or(Error::Syntax)?)?;
            } else {
                once(&mut unit, Unit::parse(word).ok_or(Error::Syntax)?)?;
            }
        }
        let unit = unit.unwrap_or_default();
        let age = age.map(|age| AGO.parse_span(age, unit));
        Ok(Self { unit, age: age.transpose()? })
    }
}

/// The answer that stands for all `rows`.
///
/// Limited when one of them is; `limit` and `remaining` of the tightest, which is the row with the smallest
/// `remaining`; the longest wait, or never when one never admits; the longest `reset_after`. `None` for
/// no rows.
///
/// Cost: O(n), no allocation.
pub fn combine(rows: impl IntoIterator<Item = Answer>) -> Option<Answer> {
    rows.into_iter().reduce(|all, row| {
        let tightest = if row.remaining < all.remaining { row } else { all };
        Answer {
            verdict: combined(all.verdict, row.verdict),
            limit: tightest.limit,
            remaining: tightest.remaining,
            reset_after: all.reset_after.max(row.reset_after),
            taken: None,
        }
    })
}

/// The verdict on two calls that are admitted together or not at all.
fn combined(one: Verdict, other: Verdict) -> Verdict {
    use Verdict::{Admitted, Booked, Later, Never};
    match (one, other) {
        (Never, _) | (_, Never) => Never,
        (Later(one), Later(other)) => Later(one.max(other)),
        (Later(wait), _) | (_, Later(wait)) => Later(wait),
        (Booked(one), Booked(other)) => Booked(one.max(other)),
        (Booked(wait), Admitted) | (Admitted, Booked(wait)) => Booked(wait),
        (Admitted, Admitted) => Admitted,
    }
}

/// The answer of one limiter of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What its own command would answer.
    pub answer: Answer,
    /// Whether it is in shadow, so that it refuses nothing.
    pub shadow: bool,
}

impl Row {
    /// Whether this limiter refuses the call.
    pub const fn refuses(&self) -> bool {
        !self.shadow && self.answer.limited()
    }

    /// Whether this limiter would refuse the call if it were not in shadow.
    pub const fn would_refuse(&self) -> bool {
        self.shadow && self.answer.limited()
    }
}

/// The answer that stands for all rows but those in shadow.
///
/// When all rows are in shadow, the call is admitted, and the numbers are those of all rows. `None` for no
/// rows.
///
/// Cost: O(n), no allocation.
pub fn combine_rows(rows: &[Row]) -> Option<Answer> {
    combine(rows.iter().filter(|row| !row.shadow).map(|row| row.answer)).or_else(|| {
        let all = combine(rows.iter().map(|row| row.answer))?;
        Some(Answer { verdict: Verdict::Admitted, ..all })
    })
}
