//! Leases: places that are held by name, at most `limit` at a time, each until its lease ends.
//!
//! A counter of permits leaks when a holder dies: nobody counts down for it. Here a holder has an entry of its own with
//! the instant at which its lease ends, and holds a place only while that is ahead:
//!
//! ```text
//! alive = leases that end later than now
//! the caller holds one of them: renewed, whatever the limit
//! admitted,                     when alive < limit
//! refused until so many have ended that alive < limit, otherwise
//! ```
//!
//! So a place comes back exactly when the lease of a crashed holder ends, and until then nobody gets in by mistake. The
//! protection is for the limiter, not for the holder: one that goes on working after its lease has ended works beside
//! its successor. Renew in time, or take a lease longer than the work.
//!
//! Entries whose lease has ended are not counted and are removed by the next admitted call; the key expires with the
//! last lease. When the limit is lowered, those who hold a place keep it.
//!
//! Source: the semaphore with timeouts of the articles on Redis ("fair semaphores", "concurrency limiter"), with lease
//! ends as scores instead of beginnings, so that each holder may ask for its own time.

use crate::timeline::{LAST, Timeline, pruned, tick};
use crate::{Answer, Change, Decision, Error, Instant, Range, Retry, Span, Unit};

/// How many may hold a place at a time.
pub const LIMIT: Range = Range { name: "limit", min: 1, max: i64::MAX };
/// How long a place is held, in the unit of the call.
pub const LEASE: Range = Range { name: "lease", min: 1, max: i64::MAX };

/// A limit: how many may hold a place at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(u64);

/// The time for which a place is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    span: Span,
    /// The unit in which it was given, for errors about it.
    unit: Unit,
}

/// The state as a caller sees it: all leases, and its own.
#[derive(Debug)]
pub struct Places<'a, T: ?Sized> {
    /// The ends of all leases, ended ones among them.
    pub ends: &'a T,
    /// The end of the caller's lease, ended or not; one of `ends`.
    pub own: Option<Instant>,
}

/// What a call changes that gets or keeps a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// When the caller's lease ends, a whole microsecond.
    pub end: Instant,
    /// How many go, of those that end earliest when the caller has its new end.
    pub pruned: u64,
    /// When the last lease ends.
    pub until: Instant,
}

/// What a call changes that gives its place back to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// When the last of the leases that remain ends.
    pub until: Instant,
}

impl Limit {
    /// The limit that the argument of a call spells.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is no integer or below 1.
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
            limited: false,
            // At most 2^63 - 1, both of them: the sign bit is free.
            limit: self.0.cast_signed(),
            remaining: self.0.saturating_sub(alive).cast_signed(),
            retry_after: Retry::Never,
            reset_after,
            taken: None,
        }
    }
}

impl Lease {
    /// The time that the argument of a call spells, in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is no integer, below 1 or above 292 years.
    pub fn parse(lease: &[u8], unit: Unit) -> Result<Self, Error> {
        Self::new(LEASE.up_to(unit.max()).parse(lease)?, unit)
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
    fn holds(&self, now: Instant) -> bool {
        self.own.is_some_and(|end| end > now)
    }

    /// When the last lease of all the others ends.
    fn last_other(&self) -> Result<Option<Instant>, Error> {
        let latest = self.ends.latest()?;
        if self.own.is_none() || self.own != latest {
            return Ok(latest);
        }
        // The caller is the last, or one of several that end last.
        self.ends.len().checked_sub(2).map_or(Ok(None), |rank| self.ends.at(rank))
    }

    /// What becomes of the places when the caller's lease ends at `end`, with `pruned` others gone.
    fn held(&self, end: Instant, pruned: u64) -> Result<Held, Error> {
        let until = self.last_other()?.map_or(end, |other| other.max(end));
        Ok(Held { end, pruned, until })
    }
}

/// `CL.ACQUIRE`: gets a place for `lease`, or renews the one that the caller holds.
///
/// Cost: four entries of the state are looked up and a range of it counted, no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a lease that ends past the year 2255; [`Error::BeyondTime`] after it; those of the state.
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
) -> Result<Decision<Held>, Error> {
    let now = tick(now)?;
    let end = lease.end(now)?;
    let alive = state.ends.later_than(now)?;
    let renews = state.holds(now);
    if !renews && alive >= limit.0 {
        // The leases in the order of their ends: when this one ends, limit - 1 are left.
        let place = state.ends.at(state.ends.len().saturating_sub(limit.0))?.unwrap_or(now);
        let last = state.ends.latest()?.unwrap_or(now);
        let answer = limit.admitted(alive, last.since(now));
        let retry_after = Retry::After(place.since(now));
        return Ok(Decision::keep(Answer { limited: true, retry_after, ..answer }));
    }
    // An ended lease of the caller's is not removed but gets its new end.
    let reused = u64::from(!renews && state.own.is_some());
    let ended = state.ends.len().saturating_sub(alive).saturating_sub(reused);
    let held = state.held(end, pruned(ended, 1))?;
    let alive = if renews { alive } else { alive.saturating_add(1) };
    Ok(Decision::store(limit.admitted(alive, held.until.since(now)), held))
}

/// `CL.RENEW`: sets the end of the caller's lease anew, earlier or later.
///
/// Kept as it is when the caller holds no place.
///
/// Cost: three entries of the state are looked up, no allocation.
///
/// # Errors
/// As [`acquire`].
pub fn renew<T: Timeline + ?Sized>(
    state: &Places<T>,
    now: Instant,
    lease: &Lease,
) -> Result<Change<Held>, Error> {
    let now = tick(now)?;
    let end = lease.end(now)?;
    if !state.holds(now) {
        return Ok(Change::Keep);
    }
    Ok(Change::Store(state.held(end, 0)?))
}

/// `CL.RELEASE`: gives the caller's place back.
///
/// Kept as it is when the caller holds no place. When it is the last to hold one, the state goes, with whatever has
/// ended in it.
///
/// Cost: two entries of the state are looked up, no allocation.
///
/// # Errors
/// [`Error::BeyondTime`] after the year 2255; those of the state.
pub fn release<T: Timeline + ?Sized>(state: &Places<T>, now: Instant) -> Result<Change<Freed>, Error> {
    let now = tick(now)?;
    if !state.holds(now) {
        return Ok(Change::Keep);
    }
    Ok(match state.last_other()? {
        Some(until) if until > now => Change::Store(Freed { until }),
        _ => Change::Delete,
    })
}
