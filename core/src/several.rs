//! Several limiters in one call: where each of them begins and ends among the arguments, and the row for all
//! of them.
//!
//! The arguments are `key limiter [key limiter ...] [options]`. A limiter is the word for its kind and the
//! arguments that this kind has, which end with a quantity (or the name of a holder); the word `SHADOW`, or
//! `RESET` and a time, may precede it. An argument after a complete limiter is a key when a limiter follows
//! it; else it is `ELSE` or `SPILL` before the next key of a [chain](crate::chain), or begins the options. So
//! the arguments are unambiguous for all names of keys, and the keys are found without parsing a number.

use core::ops;

use crate::args::once;
use crate::hold::HOLD;
use crate::{Answer, Error, Instant, Range, Span, Unit, Verdict, parse_integer, parse_timeout};
use crate::{bucket, fixed, gcra, lease, log, window};

pub use crate::args::{Arity, Grammar};

/// All kinds of limiters, in the order of the module's own list.
pub const GRAMMARS: &[Grammar] = &[
    gcra::GRAMMAR,
    bucket::FUNNEL,
    bucket::BUCKET,
    fixed::GRAMMAR,
    window::GRAMMAR,
    log::GRAMMAR,
    lease::GRAMMAR,
];

/// The word for a limiter that refuses nothing.
pub const SHADOW: &[u8] = b"SHADOW";

/// The word before the `reset_after` of the call that took the units that a settlement gives back.
pub const RESET: Range = Range { name: "RESET", min: 0, max: i64::MAX };

/// The arguments of a call. Each is read when it is needed, because reading one costs the server a call.
pub trait Words<'w>: Clone {
    /// The number of arguments.
    fn count(&self) -> usize;

    /// The argument at this position.
    fn word(&self, at: usize) -> Option<&'w [u8]>;

    /// The arguments from this position on.
    fn from(&self, at: usize) -> impl Iterator<Item = &'w [u8]> {
        (at..self.count()).map_while(|at| self.word(at))
    }
}

impl<'w> Words<'w> for &'w [&'w [u8]] {
    fn count(&self) -> usize {
        self.len()
    }

    fn word(&self, at: usize) -> Option<&'w [u8]> {
        self.get(at).copied()
    }
}

/// The word between two pools, of which the second is taken if the first does not admit the call.
pub const ELSE: &[u8] = b"ELSE";

/// The word between two limiters that are one pool.
pub const SPILL: &[u8] = b"SPILL";

/// How a limiter is joined to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// It is not joined: it is outside of chains, or begins a chain.
    None,
    /// `ELSE`: it begins the next pool of a chain.
    Else,
    /// `SPILL`: it belongs to the same pool.
    Spill,
}

/// A key and its limiter: positions among the arguments of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// How the limiter is joined to the one before it.
    pub join: Join,
    /// The key.
    pub key: usize,
    /// What precedes the word for the kind.
    pub prefix: Prefix,
    /// The kind: its index in the list of grammars.
    pub kind: usize,
    /// The arguments of the limiter, after the word for its kind.
    pub arguments: ops::Range<usize>,
}

/// What precedes the kind of a limiter, after its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// Nothing.
    None,
    /// `SHADOW`
    Shadow,
    /// `RESET` and a time, which is at this position.
    Reset(usize),
}

/// The keys and limiters of a call, one after the other.
///
/// They end where no key with a complete limiter follows. The other arguments are the options of the call, or
/// unknown words.
#[derive(Clone, Debug)]
pub struct Parts<'k, W> {
    words: W,
    kinds: &'k [Grammar],
    at: usize,
}

impl<'k, 'w, W: Words<'w>> Parts<'k, W> {
    /// The keys and limiters at the beginning of the arguments `words`.
    ///
    /// Keywords are matched in upper and lower case.
    ///
    /// Cost: O(n) for n arguments, no allocation.
    pub const fn of(words: W, kinds: &'k [Grammar]) -> Self {
        Self { words, kinds, at: 0 }
    }

    /// The unit that the call probably has, in O(1): its last argument, if that is a unit. A caller compares
    /// it with that of its [`Options`], and asks [`unit`](Self::unit) if they differ or something is wrong.
    pub fn likely_unit(&self) -> Unit {
        let last = self.words.count().checked_sub(1).and_then(|last| self.words.word(last));
        last.and_then(Unit::parse).unwrap_or_default()
    }

    /// The positions of the keys of `ONCE` and `HOLD` among the options after all limiters, in their order.
    /// The call accepts the options that are `known`.
    ///
    /// None where the options are wrong.
    pub fn option_keys(&self, known: &[Keyword]) -> impl Iterator<Item = usize> + use<W> {
        let mut all = self.clone();
        all.by_ref().for_each(drop);
        let scanned = Scanned::of(all.rest(), known).unwrap_or_default();
        let (once, hold) = (scanned.once.map(|once| once.key), scanned.hold.map(|hold| hold.key));
        let keys = match (once, hold) {
            (Some(once), Some(hold)) if hold < once => [Some(hold), Some(once)],
            both => both.into(),
        };
        keys.into_iter().flatten().filter_map(move |key| all.at.checked_add(key))
    }

    /// The unit among the options after all limiters, in any order; the default if they are wrong.
    #[cold]
    pub fn unit(&self, known: &[Keyword]) -> Unit {
        let mut all = self.clone();
        all.by_ref().for_each(drop);
        Scanned::of(all.rest(), known).ok().and_then(|options| options.unit).unwrap_or_default()
    }

    /// The position of the first argument after the last limiter that was read.
    pub const fn end(&self) -> usize {
        self.at
    }

    /// The arguments after the last limiter that was read.
    pub fn rest(&self) -> impl Iterator<Item = &'w [u8]> {
        self.words.from(self.at)
    }
}

impl<'w, W: Words<'w>> Iterator for Parts<'_, W> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let part = match part(&self.words, self.at, self.kinds) {
            Some(part) => part,
            None if self.at < self.words.count() => self.joined()?,
            None => return None,
        };
        self.at = part.arguments.end;
        Some(part)
    }
}

impl<'w, W: Words<'w>> Parts<'_, W> {
    /// The next limiter, if a word before its key joins it to the one before it.
    #[cold]
    fn joined(&self) -> Option<Part> {
        let word = self.words.word(self.at).filter(|_| self.at > 0)?;
        let join = match () {
            () if is(word, ELSE) => Join::Else,
            () if is(word, SPILL) => Join::Spill,
            () => return None,
        };
        let part = part(&self.words, self.at.checked_add(1)?, self.kinds)?;
        Some(Part { join, ..part })
    }
}

/// The key at this position and its limiter, if it is complete.
#[inline(always)]
fn part<'w>(words: &impl Words<'w>, key: usize, kinds: &[Grammar]) -> Option<Part> {
    let kind_at = |at| words.word(at).and_then(|name| kinds.iter().position(|kind| is(name, kind.word)));
    let mut at = key.checked_add(1)?;
    let mut prefix = Prefix::None;
    let kind = if let Some(kind) = kind_at(at) {
        kind
    } else {
        (prefix, at) = prefix_at(words, at)?;
        kind_at(at)?
    };
    let start = at.checked_add(1)?;
    let arguments = match kinds.get(kind)?.arguments {
        Arity::Always(number) => number,
        Arity::Counted(count) => count(&mut words.from(start))?,
    };
    let end = start.checked_add(arguments)?;
    (end <= words.count()).then_some(Part { join: Join::None, key, prefix, kind, arguments: start..end })
}

/// The prefix at this position, and the position of the word for the kind after it.
fn prefix_at<'w>(words: &impl Words<'w>, at: usize) -> Option<(Prefix, usize)> {
    let (name, next) = (words.word(at)?, at.checked_add(1)?);
    if is(name, SHADOW) {
        Some((Prefix::Shadow, next))
    } else if is(name, RESET.name.as_bytes()) {
        Some((Prefix::Reset(next), next.checked_add(1)?))
    } else {
        None
    }
}

/// Whether a word is this keyword, which most clients write in upper case.
fn is(word: &[u8], keyword: &[u8]) -> bool {
    word == keyword || word.eq_ignore_ascii_case(keyword)
}

/// Reads the time after `RESET`.
///
/// # Errors
/// [`Error::OutOfRange`] for a time that is not an integer, is negative or is above 292 years.
pub fn parse_reset(time: &[u8], unit: Unit) -> Result<Span, Error> {
    RESET.parse_span(time, unit)
}

/// Whether a word is meant as a number. No option begins with a digit, a sign or a point.
fn begins_a_number(word: &[u8]) -> bool {
    word.first().is_some_and(|first| first.is_ascii_digit() || b"+-.".contains(first))
}

/// A word that begins an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyword {
    /// `AGO age`: how long ago the units were taken that a settlement gives back.
    Ago,
    /// `ONCE key period`: the call may be repeated.
    Once,
    /// `TIMEOUT seconds`: how long the call waits.
    Timeout,
    /// `FLOW flow [WEIGHT weight]`: the flow of the call, and the weight of the flow.
    Flow,
    /// `MAXLEN count`: the most clients of its flow that may wait before the call.
    MaxLen,
    /// `HOLD key [period id]`: the units that the call takes are held, and units that have run out come back.
    Hold,
    /// `HOLD key id`: the settlement of an owner's parts.
    HoldOf,
}

impl Keyword {
    /// All options, except the form of `HOLD` in a settlement.
    pub const ALL: [Self; 6] = [Self::Ago, Self::Once, Self::Timeout, Self::Flow, Self::MaxLen, Self::Hold];

    /// The options of a settlement.
    pub const OF_SETTLEMENTS: [Self; 4] = [Self::Ago, Self::Once, Self::Flow, Self::HoldOf];

    fn token(self) -> &'static [u8] {
        match self {
            Self::Ago => AGO.name.as_bytes(),
            Self::Once => ONCE.name.as_bytes(),
            Self::Timeout => b"TIMEOUT",
            Self::Flow => b"FLOW",
            Self::MaxLen => MAXLEN.name.as_bytes(),
            Self::Hold | Self::HoldOf => HOLD.name.as_bytes(),
        }
    }
}

/// The options after the last limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'w> {
    /// The unit of every time in the call and in its reply.
    pub unit: Unit,
    /// How long ago the units were taken that a settlement gives back.
    pub age: Option<Span>,
    /// Where the reply is kept, if the call may be repeated.
    pub once: Option<Once>,
    /// How long the call waits at most; `None` for as long as it takes.
    pub timeout: Option<Span>,
    /// Its flow. All calls without one are one flow.
    pub flow: Option<&'w [u8]>,
    /// The new weight of the flow.
    pub weight: Option<u32>,
    /// The most clients of its flow that may wait before it.
    pub max_len: Option<u64>,
    /// The holds that the call takes, renews, settles or brings back.
    pub hold: Option<Hold<'w>>,
}

/// `HOLD key [period id]`, or `HOLD key id` of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold<'w> {
    /// The position of the key, counted from the first option.
    pub key: usize,
    /// The owner; `None` for a call that holds nothing.
    pub id: Option<&'w [u8]>,
    /// The time for which the owner holds the units; `None` for a settlement.
    pub period: Option<Span>,
}

/// `ONCE key period`: where the reply of the call is kept, for a client that sends the call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// The position of the key, counted from the first option.
    pub key: usize,
    /// For how long the reply is kept.
    pub period: Span,
}

/// How long ago, in the unit of the call.
const AGO: Range = Range { name: "AGO", min: 0, max: i64::MAX };

/// For how long, in the unit of the call.
const ONCE: Range = Range { name: "ONCE", min: 1, max: i64::MAX };

/// The weight of a flow, in the range [`crate::fair::WEIGHTS`].
const WEIGHT: Range = Range { name: "WEIGHT", min: 1, max: 1_000_000 };

/// A number of clients.
const MAXLEN: Range = Range { name: "MAXLEN", min: 0, max: i64::MAX };

impl Once {
    /// The instant at which a reply that is stored now expires.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] past the year 2262.
    pub fn until(&self, now: Instant, unit: Unit) -> Result<Instant, Error> {
        ONCE.end(now, self.period, unit)
    }
}

impl<'w> Options<'w> {
    /// Reads `[AGO age] [ONCE key period] [TIMEOUT seconds] [FLOW flow [WEIGHT weight]] [MAXLEN count]
    /// [HOLD key [period id]] [unit]`, in any order; the call accepts those that are `known`.
    ///
    /// # Errors
    /// [`Error::Syntax`] for an option that is unknown, repeated or lacks a value; [`Error::OutOfRange`] for
    /// a number that is not an integer or is out of range, and [`Error::Timeout`].
    pub fn parse(words: impl IntoIterator<Item = &'w [u8]>, known: &[Keyword]) -> Result<Self, Error> {
        let mut words = words.into_iter().peekable();
        if words.peek().is_none() {
            return Ok(Self::default()); // by far most calls
        }
        let Scanned { unit, age, once, timeout, flow, max_len, hold } = Scanned::of(words, known)?;
        let unit = unit.unwrap_or_default();
        let age = age.map(|age| AGO.parse_span(age, unit)).transpose()?;
        let once =
            once.map(|ScannedOnce { key, period }| Ok(Once { key, period: ONCE.parse_span(period, unit)? }));
        let timeout = timeout.map_or(Ok(None), parse_timeout)?;
        let weight = flow.and_then(|flow| flow.weight).map(|weight| WEIGHT.parse(weight)).transpose()?;
        let max_len = max_len.map(|count| MAXLEN.parse(count)).transpose()?;
        let hold = hold.map(|ScannedHold { key, period, id }| {
            Ok(Hold { key, id, period: period.map(|period| HOLD.parse_span(period, unit)).transpose()? })
        });
        Ok(Self {
            unit,
            age,
            once: once.transpose()?,
            timeout,
            flow: flow.map(|flow| flow.name),
            weight: weight.and_then(|weight| u32::try_from(weight).ok()),
            max_len: max_len.map(i64::unsigned_abs),
            hold: hold.transpose()?,
        })
    }
}

/// The options, before their numbers are read.
#[derive(Default)]
struct Scanned<'w> {
    unit: Option<Unit>,
    age: Option<&'w [u8]>,
    once: Option<ScannedOnce<'w>>,
    timeout: Option<&'w [u8]>,
    flow: Option<ScannedFlow<'w>>,
    max_len: Option<&'w [u8]>,
    hold: Option<ScannedHold<'w>>,
}

struct ScannedHold<'w> {
    key: usize,
    period: Option<&'w [u8]>,
    id: Option<&'w [u8]>,
}

#[derive(Clone, Copy)]
struct ScannedFlow<'w> {
    name: &'w [u8],
    weight: Option<&'w [u8]>,
}

struct ScannedOnce<'w> {
    key: usize,
    period: &'w [u8],
}

impl<'w> Scanned<'w> {
    fn of(words: impl IntoIterator<Item = &'w [u8]>, known: &[Keyword]) -> Result<Self, Error> {
        let mut all = Self::default();
        let mut words = words.into_iter().enumerate().peekable();
        while let Some((_, word)) = words.next() {
            if let Some(unit) = Unit::parse(word) {
                once(&mut all.unit, unit)?;
                continue;
            }
            let mut value = || words.next().ok_or(Error::Syntax);
            match known.iter().find(|keyword| is(word, keyword.token())).ok_or(Error::Syntax)? {
                Keyword::Ago => once(&mut all.age, value()?.1)?,
                Keyword::Once => {
                    let ((key, _), (_, period)) = (value()?, value()?);
                    once(&mut all.once, ScannedOnce { key, period })?;
                }
                Keyword::Timeout => once(&mut all.timeout, value()?.1)?,
                Keyword::HoldOf => {
                    let ((key, _), (_, id)) = (value()?, value()?);
                    once(&mut all.hold, ScannedHold { key, period: None, id: Some(id) })?;
                }
                Keyword::Hold => {
                    let (key, _) = value()?;
                    let period = words.next_if(|(_, word)| begins_a_number(word)).map(|(_, period)| period);
                    let id = period.map(|_| words.next().ok_or(Error::Syntax)).transpose()?;
                    once(&mut all.hold, ScannedHold { key, period, id: id.map(|(_, id)| id) })?;
                }
                Keyword::MaxLen => once(&mut all.max_len, value()?.1)?,
                Keyword::Flow => {
                    let (_, name) = value()?;
                    // With more behind it, it would be read as a key and its limiter.
                    if GRAMMARS.iter().any(|kind| name.eq_ignore_ascii_case(kind.word)) {
                        return Err(Error::Syntax);
                    }
                    let weighs = words.next_if(|(_, word)| is(word, WEIGHT.name.as_bytes())).is_some();
                    let weight = if weighs { Some(words.next().ok_or(Error::Syntax)?.1) } else { None };
                    once(&mut all.flow, ScannedFlow { name, weight })?;
                }
            }
        }
        Ok(all)
    }
}

/// The error for a key of `ONCE` that holds something else.
const STORED: Error = Error::Foreign { expected: "a reply of as many limiters, stored by ONCE" };

/// The columns of a reply: the integers of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// The five of every answer.
    Five,
    /// The five, and what was taken.
    Six,
}

impl Columns {
    /// Their number.
    pub const fn count(self) -> usize {
        match self {
            Self::Five => 5,
            Self::Six => 6,
        }
    }
}

/// The rows of a stored reply to a call for this number of `limiters`, one after the other: the combined one,
/// and one for each. A reply of six columns has their number before its rows.
///
/// # Errors
/// [`Error::Foreign`] for anything but the integers of such rows, separated by spaces.
pub fn read_reply(stored: &[u8], limiters: usize, columns: Columns) -> Result<Vec<i64>, Error> {
    let mut integers = stored.split(|byte| *byte == b' ').map(|integer| parse_integer(integer).ok_or(STORED));
    if columns == Columns::Six && integers.next() != Some(Ok(6)) {
        return Err(STORED);
    }
    let mut rows = Vec::with_capacity(limiters.saturating_add(1).saturating_mul(columns.count()));
    for _ in 0..=limiters {
        let mut row = [0; 6];
        for place in row.iter_mut().take(columns.count()) {
            *place = integers.next().ok_or(STORED)??;
        }
        let [limited, limit, remaining, retry_after, reset_after, taken] = row;
        let in_range = matches!(limited, 0 | 1) && limit >= 1 && remaining.min(taken) >= 0;
        if !in_range || retry_after.min(reset_after) < -1 {
            return Err(STORED);
        }
        rows.extend(row.into_iter().take(columns.count()));
    }
    if integers.next().is_some() { Err(STORED) } else { Ok(rows) }
}

/// The combined answer of all `rows`.
///
/// Limited if one of them is; `limit` and `remaining` of the tightest, which is the row with the smallest
/// `remaining`; the longest wait, or never if one never admits; the longest `reset_after`. `None` for no
/// rows.
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
pub fn combined(one: Verdict, other: Verdict) -> Verdict {
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

/// The answer of one limiter of the call, or of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The answer of its own command.
    pub answer: Answer,
    /// Its part in the call.
    pub role: Role,
}

/// The part of a row in the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A limiter, which admits or refuses the call.
    Limiter,
    /// A limiter in shadow, which refuses nothing.
    Shadow,
    /// A limiter of a chain, which decides with the others.
    Pool,
    /// A chain. Its row follows those of all limiters, is combined in their place, and is not replied.
    Chain {
        /// The position of its first limiter. It is short, because rows are copied in every call.
        first: u32,
    },
}

impl Role {
    /// The part of a chain whose first limiter is at this position.
    pub fn chain(first: usize) -> Self {
        Self::Chain { first: u32::try_from(first).unwrap_or(u32::MAX) }
    }

    /// The position of the first limiter of a chain; `None` for a limiter.
    pub fn first(self) -> Option<usize> {
        let Self::Chain { first } = self else { return None };
        usize::try_from(first).ok()
    }
}

impl Row {
    /// The row of a limiter, which may be in shadow.
    pub const fn of(answer: Answer, shadow: bool) -> Self {
        Self { answer, role: if shadow { Role::Shadow } else { Role::Limiter } }
    }

    /// Whether this limiter or chain refuses the call.
    pub const fn refuses(&self) -> bool {
        matches!(self.role, Role::Limiter | Role::Chain { .. }) && self.answer.limited()
    }

    /// Whether this limiter would refuse the call if it were not in shadow.
    pub const fn would_refuse(&self) -> bool {
        matches!(self.role, Role::Shadow) && self.answer.limited()
    }

    /// Whether the row is replied: that of a limiter.
    pub const fn is_replied(&self) -> bool {
        !matches!(self.role, Role::Chain { .. })
    }
}

/// The combined answer of all rows except those in shadow. Chains count as one limiter each.
///
/// When all rows are in shadow, the call is admitted, and all rows count for the numbers. `None` for no rows.
/// If a row says what was taken, nothing was taken from the combined one.
///
/// Cost: O(n), no allocation.
pub fn combine_rows(rows: &[Row]) -> Option<Answer> {
    if rows.last().is_some_and(|last| !last.is_replied()) {
        return combine_with_chains(rows);
    }
    combine(rows.iter().filter(|row| row.role == Role::Limiter).map(|row| row.answer)).or_else(|| {
        let all = combine(rows.iter().map(|row| row.answer))?;
        Some(Answer { verdict: Verdict::Admitted, ..all })
    })
}

/// The same with the rows of chains, which are the last ones.
#[cold]
fn combine_with_chains(rows: &[Row]) -> Option<Answer> {
    let mut chains = rows.iter().filter(|row| !row.is_replied());
    let counted = rows.iter().enumerate().filter_map(|(at, row)| match row.role {
        Role::Limiter => Some(row.answer),
        // In the place of its first limiter.
        Role::Pool => chains.clone().next().filter(|chain| chain.role.first() == Some(at)).map(|chain| {
            chains.next();
            chain.answer
        }),
        Role::Shadow | Role::Chain { .. } => None,
    });
    Some(Answer { taken: rows.first().and_then(|row| row.answer.taken).map(|_| 0), ..combine(counted)? })
}

/// The answer of a chain with this verdict, from the rows of its limiters, each with its [`Join`].
///
/// `remaining` and `limit` are what it can give now and if nothing is taken: the largest of its pools, and
/// the sum for limiters that are joined to one pool. `reset_after` is the longest.
///
/// Cost: O(n), no allocation.
pub fn combine_chain(verdict: Verdict, rows: impl IntoIterator<Item = (Join, Answer)>) -> Answer {
    let mut all = Answer { verdict, limit: 0, remaining: 0, reset_after: Span::ZERO, taken: None };
    let (mut limit, mut remaining) = (0_i64, 0_i64);
    for (join, row) in rows {
        if join != Join::Spill {
            (limit, remaining) = (0, 0);
        }
        (limit, remaining) = (limit.saturating_add(row.limit), remaining.saturating_add(row.remaining));
        all.limit = all.limit.max(limit);
        all.remaining = all.remaining.max(remaining);
        all.reset_after = all.reset_after.max(row.reset_after);
    }
    all
}
