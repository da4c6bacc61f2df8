//! Leases: places that are held by name, at most `limit` at a time, each until its lease ends.
//!
//! A plain counter loses a place when a holder crashes, because nobody decrements it. Here each holder has
//! its own entry with the instant at which its lease ends, and holds a place only until then:
//!
//! ```text
//! alive = leases that end later than now
//! the caller holds one of them: renewed, whatever the limit
//! admitted,                     when alive < limit
//! refused until so many have ended that alive < limit, otherwise
//! ```
//!
//! So the place of a crashed holder becomes free exactly when its lease ends. The lease does not stop a
//! holder: if it keeps working after its lease has ended, it works at the same time as its successor. Renew
//! in time, or take a lease longer than the work.
//!
//! Entries whose lease has ended are not counted. The next admitted call removes them, and the key expires
//! with the last lease. When the limit is lowered, present holders keep their places.
//!
//! # Names
//! An entry is named by the caller, so any sorted set of instants can be a set of leases, except a
//! [log](crate::log), whose entries are named after their scores. No lease looks like an entry of a log (see
//! [`score_of`]).
//!
//! Source: the semaphore with timeouts of the articles on Redis ("fair semaphores", "concurrency limiter"),
//! with lease ends as scores instead of beginnings, so that each holder may request its own time.

use crate::args::{Arity, Grammar, Range};
use crate::timeline::{LAST, Timeline, pruned, tick};
use crate::{Answer, Change, Decision, Error, Instant, Span, Unit, Verdict, log};

/// The syntax among several limiters: `LEASE limit lease id`.
pub const GRAMMAR: Grammar = Grammar { word: b"LEASE", arguments: Arity::Always(3) };

/// The number of places.
pub const LIMIT: Range = Range { name: "limit", min: 1, max: i64::MAX };
/// How long a place is held, in the unit of the call.
pub const LEASE: Range = Range { name: "lease", min: 1, max: i64::MAX };

/// The content of a key of this limiter, for the error of a key that holds something else.
pub const EXPECTED: &str =
    "a sorted set of holders and the ends of their leases in microseconds since the epoch";

/// The error for a key that holds something else.
pub const FOREIGN: Error = Error::Foreign { expected: EXPECTED };

/// How far a lease's end may lie from the clock when the key's expiry does not confirm it.
///
/// Ten years include ended leases that were not removed, clocks that disagree, and keys that have lost their
/// expiry. They exclude scores of a game, times in seconds, milliseconds or nanoseconds, and nearly all
/// positions of `GEOADD`, which are numbers of 52 bits.
const STRAY: Span = Span::from_nanos(10 * 365 * 86_400 * 1_000_000_000).unwrap();

/// A limit: the number of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(u64);

/// The time for which a place is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    span: Span,
    /// The unit in which it was given, for errors about it.
    unit: Unit,
}

/// The state for a caller: all leases, and its own.
#[derive(Debug)]
pub struct Places<'a, T: ?Sized> {
    /// The ends of all leases, ended ones among them.
    pub ends: &'a T,
    /// The end of the caller's lease, ended or not; one of `ends`.
    pub own: Option<Instant>,
}

/// The change of a call that gets or keeps a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// When the caller's lease ends, a whole microsecond.
    pub end: Instant,
    /// How many of the leases that end earliest are removed, once the caller's lease has its new end.
    pub pruned: u64,
    /// When the last lease ends.
    pub until: Instant,
}

/// The change of a call that gives its place back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// When the last of the leases that remain ends.
    pub until: Instant,
}

/// The change to a set of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The caller holds a place.
    Hold(Kept),
    /// The caller gives its place back.
    Free(Freed),
}

impl Limit {
    /// The limit given by the argument of a call.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is not an integer or below 1.
    pub fn parse(limit: &[u8]) -> Result<Self, Error> {
        Self::new(LIMIT.parse(limit)?)
    }

    /// At most `limit` at a time.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn new(limit: i64) -> Result<Self, Error> {
        u64::try_from(limit).ok().filter(|&limit| limit >= 1).map(Self).ok_or_else(|| LIMIT.error())
    }

    /// The answer of a call after which `alive` hold a place, the last until `reset_after`.
    fn admitted(self, alive: u64, reset_after: Span) -> Answer {
        Answer {
            verdict: Verdict::Admitted,
            // At most 2^63 - 1, both of them: the sign bit is free.
            limit: self.0.cast_signed(),
            remaining: self.0.saturating_sub(alive).cast_signed(),
            reset_after,
            taken: None,
        }
    }
}

impl Lease {
    /// The time given by the argument of a call, in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is not an integer, below 1 or above 292 years.
    pub fn parse(lease: &[u8], unit: Unit) -> Result<Self, Error> {
        Self::new(LEASE.up_to(unit.max()).parse(lease)?, unit)
    }

    /// The time given by the argument of a settlement, in `unit`s; `None` for 0, which gives the place back.
    ///
    /// # Errors
    /// As [`Lease::parse`], except for 0.
    pub fn parse_settlement(lease: &[u8], unit: Unit) -> Result<Option<Self>, Error> {
        let range = Range { min: 0, ..LEASE }.up_to(unit.max());
        match range.parse(lease)? {
            0 => Ok(None),
            lease => Self::new(lease, unit).map(Some),
        }
    }

    /// `lease` units of time.
    ///
    /// # Errors
    /// As [`Lease::parse`].
    pub fn new(lease: i64, unit: Unit) -> Result<Self, Error> {
        let span = u64::try_from(lease).ok().filter(|&lease| lease >= 1);
        let span = span.and_then(|lease| Span::from_units(lease, unit));
        span.map(|span| Self { span, unit }).ok_or_else(|| LEASE.up_to(unit.max()).error())
    }

    /// How long it lasts.
    pub const fn span(&self) -> Span {
        self.span
    }

    /// The end of a lease that begins at `now`.
    fn end(&self, now: Instant) -> Result<Instant, Error> {
        now.checked_add(self.span).filter(|&end| end <= LAST).ok_or_else(|| {
            let left = LAST.since(now).as_nanos() / self.unit.nanos();
            LEASE.up_to(left.cast_signed()).error()
        })
    }
}

impl<T: Timeline + ?Sized> Places<'_, T> {
    /// Whether the caller holds a place.
    pub fn holds(&self, now: Instant) -> bool {
        self.own.is_some_and(|end| end > now)
    }

    /// The time until somebody without a place could get one, while `alive` hold one.
    fn next_place(&self, limit: Limit, alive: u64, now: Instant) -> Result<Span, T::Error> {
        if alive < limit.0 {
            return Ok(Span::ZERO);
        }
        // The leases in the order of their ends: when this one ends, limit - 1 are left.
        let place = self.ends.at(self.ends.len().saturating_sub(limit.0))?;
        Ok(place.map_or(Span::ZERO, |end| end.since(now)))
    }

    /// The time until the last lease ends.
    fn reset_after(&self, now: Instant) -> Result<Span, T::Error> {
        Ok(self.ends.latest()?.map_or(Span::ZERO, |end| end.since(now)))
    }

    /// When the last lease of all the others ends.
    fn last_other(&self) -> Result<Option<Instant>, T::Error> {
        let latest = self.ends.latest()?;
        if self.own.is_none() || self.own != latest {
            return Ok(latest);
        }
        // The caller is the last, or one of several that end last.
        self.ends.len().checked_sub(2).map_or(Ok(None), |rank| self.ends.at(rank))
    }

    /// The change after which the caller's lease ends at `end`, and `pruned` others are removed.
    fn held(&self, end: Instant, pruned: u64) -> Result<Kept, T::Error> {
        let until = self.last_other()?.map_or(end, |other| other.max(end));
        Ok(Kept { end, pruned, until })
    }
}

/// Whether these can be leases, judging by the earliest and the latest end.
///
/// Each must lie within ten years of `now`, or ahead and not after the key's `expiry`, at which the last
/// lease ends. The expiry is read only when it matters.
pub fn may_be([first, last]: [Instant; 2], now: Instant, expiry: impl Fn() -> Option<Instant>) -> bool {
    let near = |end: Instant| end.since(now) <= STRAY && now.since(end) <= STRAY;
    let confirmed = |end: Instant| end > now && expiry().is_some_and(|expiry| end <= expiry);
    (near(first) || confirmed(first)) && (near(last) || confirmed(last))
}

/// The score of the holder `id` whose lease ends at `end`: that instant, or the microsecond before it if an
/// entry of a [log](crate::log) could have this name and this score.
///
/// Callers may choose any name, so no name of a holder may turn a set of leases into a valid log.
pub fn score_of(id: &[u8], end: Instant) -> Instant {
    let before = || Instant::from_micros(end.as_micros().saturating_sub(1));
    if log::is_entry(id, end) { before().unwrap_or(end) } else { end }
}

/// `CL.ACQUIRE`: gets a place for `lease`, or renews the one that the caller holds.
///
/// Cost: four entries of the state are looked up and a range of it counted, no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a lease that ends past the year 2255; [`Error::BeyondTime`] after that year;
/// the errors of the state.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, lease::{self, Lease, Limit, Places}};
/// let (limit, lease) = (Limit::new(2)?, Lease::new(30, Unit::Seconds)?);
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let first = lease::acquire(&Places { ends: &[][..], own: None }, &limit, now, &lease)?;
/// assert_eq!(first.answer.reply(Unit::Seconds).five, [0, 2, 1, -1, 30]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn acquire<T: Timeline + ?Sized>(
    state: &Places<T>,
    limit: &Limit,
    now: Instant,
    lease: &Lease,
) -> Result<Decision<Kept>, T::Error> {
    let now = tick(now)?;
    let end = lease.end(now)?;
    let alive = state.ends.later_than(now)?;
    let renews = state.holds(now);
    if !renews && alive >= limit.0 {
        let verdict = Verdict::Later(state.next_place(*limit, alive, now)?);
        let answer = limit.admitted(alive, state.reset_after(now)?);
        return Ok(Decision::keep(Answer { verdict, ..answer }));
    }
    // An ended lease of the caller's is not removed but gets its new end.
    let reused = u64::from(!renews && state.own.is_some());
    let ended = state.ends.len().saturating_sub(alive).saturating_sub(reused);
    let held = state.held(end, pruned(ended, 1))?;
    let alive = if renews { alive } else { alive.saturating_add(1) };
    Ok(Decision::store(limit.admitted(alive, held.until.since(now)), held))
}

/// `CL.RENEW`: sets another end for the caller's lease, earlier or later.
///
/// Nothing changes if the caller holds no place.
///
/// Cost: three entries of the state are looked up, no allocation.
///
/// # Errors
/// As [`acquire`].
pub fn renew<T: Timeline + ?Sized>(
    state: &Places<T>,
    now: Instant,
    lease: &Lease,
) -> Result<Change<Kept>, T::Error> {
    let now = tick(now)?;
    let end = lease.end(now)?;
    if !state.holds(now) {
        return Ok(Change::Keep);
    }
    Ok(Change::Store(state.held(end, 0)?))
}

/// `CL.RELEASE`: gives the caller's place back.
///
/// Nothing changes if the caller holds no place. When the caller is the last to hold one, the state is
/// deleted, and with it all leases that have ended.
///
/// Cost: two entries of the state are looked up, no allocation.
///
/// # Errors
/// [`Error::BeyondTime`] after the year 2255; the errors of the state.
pub fn release<T: Timeline + ?Sized>(state: &Places<T>, now: Instant) -> Result<Change<Freed>, T::Error> {
    let now = tick(now)?;
    if !state.holds(now) {
        return Ok(Change::Keep);
    }
    Ok(match state.last_other()? {
        Some(until) if until > now => Change::Store(Freed { until }),
        _ => Change::Delete,
    })
}

/// [`acquire`] for a call that comes after other clients who wait for a place. A holder keeps its place.
///
/// Cost: three times the cost of [`acquire`].
///
/// # Errors
/// As [`acquire`].
pub fn acquire_behind<T: Timeline + ?Sized>(
    state: &Places<T>,
    limit: &Limit,
    now: Instant,
    lease: &Lease,
    clients: u64,
) -> Result<Decision<Kept>, T::Error> {
    let own = acquire(state, limit, now, lease)?;
    if own.answer.limited() || state.holds(tick(now)?) {
        return Ok(own);
    }
    if let Some(left) = limit.0.checked_sub(clients).filter(|left| *left > 0) {
        let decision = acquire(state, &Limit(left), now, lease)?;
        return Ok(Decision { answer: Answer { limit: own.answer.limit, ..decision.answer }, ..decision });
    }
    // The clients before it are about to be admitted, or it would be refused even without them.
    let seen = peek(state, limit, now, lease)?;
    Ok(Decision::keep(Answer { verdict: Verdict::Later(Span::NANOSECOND), remaining: 0, ..seen }))
}

/// `CL.MPEEK`: the answer that [`acquire`] would give, with `remaining` and `reset_after` of the leases as
/// they are.
///
/// Cost: the same as [`acquire`].
///
/// # Errors
/// As [`acquire`].
pub fn peek<T: Timeline + ?Sized>(
    state: &Places<T>,
    limit: &Limit,
    now: Instant,
    lease: &Lease,
) -> Result<Answer, T::Error> {
    let verdict = acquire(state, limit, now, lease)?.answer.verdict;
    let now = tick(now)?;
    Ok(Answer { verdict, ..limit.admitted(state.ends.later_than(now)?, state.reset_after(now)?) })
}

/// `CL.MSETTLE`: renews the caller's lease, or with `None` gives its place back.
///
/// Nothing changes if the caller holds no place. The answer describes the leases after the call: limited when
/// the caller wanted to keep a place and holds none, and then with the time until somebody could get one.
///
/// Cost: four entries of the state are looked up and a range of it counted, no allocation.
///
/// # Errors
/// As [`acquire`].
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, lease::{self, Lease, Limit, Places}};
/// let (limit, lease) = (Limit::new(2)?, Lease::new(30, Unit::Seconds)?);
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// // Nobody holds a place, so there is nothing to renew, and nothing to give back.
/// let nobody = Places { ends: &[][..], own: None };
/// let renewed = lease::settle(&nobody, &limit, now, Some(&lease))?;
/// assert_eq!(renewed.answer.reply(Unit::Seconds).five, [1, 2, 2, 0, 0]);
/// let released = lease::settle(&nobody, &limit, now, None)?;
/// assert_eq!(released.answer.reply(Unit::Seconds).five, [0, 2, 2, -1, 0]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn settle<T: Timeline + ?Sized>(
    state: &Places<T>,
    limit: &Limit,
    now: Instant,
    lease: Option<&Lease>,
) -> Result<Decision<Edit>, T::Error> {
    let change = match lease {
        Some(lease) => renew(state, now, lease)?.map(Edit::Hold),
        None => release(state, now)?.map(Edit::Free),
    };
    let now = tick(now)?;
    let alive = state.ends.later_than(now)?;
    let answer = match change {
        Change::Keep if lease.is_some() => {
            let verdict = Verdict::Later(state.next_place(*limit, alive, now)?);
            Answer { verdict, ..limit.admitted(alive, state.reset_after(now)?) }
        }
        Change::Keep => limit.admitted(alive, state.reset_after(now)?),
        Change::Store(Edit::Hold(held)) => limit.admitted(alive, held.until.since(now)),
        Change::Store(Edit::Free(freed)) => limit.admitted(alive.saturating_sub(1), freed.until.since(now)),
        Change::Delete => limit.admitted(0, Span::ZERO),
    };
    Ok(Decision { answer, change })
}
