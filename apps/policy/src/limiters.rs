//! A limiter, with one state for each of its keys.

use std::collections::VecDeque;

use redis_cell_core::lease::{self, Kept, Lease, Places};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::log::{self, Entries};
use redis_cell_core::timeline::Timeline;
use redis_cell_core::{Answer, Change, Error, Instant, Unit, bucket, fixed, gcra, window};

use crate::policy::Kind;

/// A limiter with the states of its keys.
#[derive(Clone, Debug)]
pub enum Running {
    Throttle(Whole<gcra::Limit>),
    Bucket(Whole<bucket::Limit>),
    Fixed(Whole<fixed::Limit>),
    Window(Whole<window::Limit>),
    Log(log::Limit, Vec<Log>, Option<Entries>),
    Lease(lease::Limit, Unit, Vec<Leases>, Option<Kept>),
}

/// The request of a call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The number of the key.
    pub key: usize,
    /// The instant of the call.
    pub now: Instant,
    /// The quantity, or the length of the lease.
    pub amount: i64,
    /// The holder of a lease.
    pub id: &'a [u8],
}

impl Running {
    pub fn new(kind: &Kind, unit: Unit) -> Self {
        match kind {
            Kind::Throttle(limit, _) => Self::Throttle(Whole::new(*limit)),
            Kind::Bucket(limit, _) => Self::Bucket(Whole::new(*limit)),
            Kind::Fixed(limit, _) => Self::Fixed(Whole::new(*limit)),
            Kind::Window(limit, _) => Self::Window(Whole::new(*limit)),
            Kind::Log(limit, _) => Self::Log(*limit, Vec::new(), None),
            Kind::Lease(limit, ..) => Self::Lease(*limit, unit, Vec::new(), None),
        }
    }

    /// Decides the call. Nothing is taken before [`commit`](Self::commit).
    pub fn decide(&mut self, call: &Call) -> Result<Answer, Error> {
        match self {
            Self::Throttle(whole) => whole.decide(call),
            Self::Bucket(whole) => whole.decide(call),
            Self::Fixed(whole) => whole.decide(call),
            Self::Window(whole) => whole.decide(call),
            Self::Log(limit, logs, pending) => {
                let log = slot(logs, call.key);
                let decision = log::take(&log.0, limit, call.now, call.amount)?;
                *pending = stored(decision.change);
                Ok(decision.answer)
            }
            Self::Lease(limit, unit, keys, pending) => {
                let (leases, lease) = (slot(keys, call.key), Lease::new(call.amount, *unit)?);
                let decision = lease::acquire(&leases.places(call.id), limit, call.now, &lease)?;
                *pending = stored(decision.change);
                Ok(decision.answer)
            }
        }
    }

    /// Whether the caller holds a place already, which the call would renew.
    pub fn is_held(&self, call: &Call) -> bool {
        let Self::Lease(_, _, keys, _) = self else { return false };
        keys.get(call.key).and_then(|leases| leases.places(call.id).own).is_some_and(|end| end > call.now)
    }

    /// Takes the units of the call that was decided last.
    pub fn commit(&mut self, call: &Call) {
        match self {
            Self::Throttle(whole) => whole.commit(call),
            Self::Bucket(whole) => whole.commit(call),
            Self::Fixed(whole) => whole.commit(call),
            Self::Window(whole) => whole.commit(call),
            Self::Log(_, logs, pending) => {
                if let Some(entries) = pending.take() {
                    slot(logs, call.key).add(&entries);
                }
            }
            Self::Lease(_, _, keys, pending) => {
                if let Some(held) = pending.take() {
                    slot(keys, call.key).hold(call.id, &held);
                }
            }
        }
    }

    /// Returns the verdict of [`decide`](Self::decide), with the other numbers of the present state.
    pub fn peek(&self, call: &Call) -> Result<Answer, Error> {
        match self {
            Self::Throttle(whole) => whole.peek(call),
            Self::Bucket(whole) => whole.peek(call),
            Self::Fixed(whole) => whole.peek(call),
            Self::Window(whole) => whole.peek(call),
            Self::Log(limit, logs, _) => {
                static NONE: Log = Log(Instants(VecDeque::new()));
                log::peek(&logs.get(call.key).unwrap_or(&NONE).0, limit, call.now, call.amount)
            }
            Self::Lease(limit, unit, keys, _) => {
                static NONE: Leases = Leases(Vec::new());
                let leases = keys.get(call.key).unwrap_or(&NONE);
                lease::peek(&leases.places(call.id), limit, call.now, &Lease::new(call.amount, *unit)?)
            }
        }
    }
}

/// Returns the new state, if the change has one. Taking units never deletes a state.
fn stored<S>(change: Change<S>) -> Option<S> {
    match change {
        Change::Store(state) => Some(state),
        Change::Keep | Change::Delete => None,
    }
}

/// Returns the state of a key, which is created if it is new.
fn slot<S: Default>(states: &mut Vec<S>, key: usize) -> &mut S {
    if states.len() <= key {
        states.resize_with(key.saturating_add(1), S::default);
    }
    // The index is now within the bounds.
    #[expect(clippy::indexing_slicing, reason = "the line above has made the list long enough")]
    &mut states[key]
}

/// A limit with one value as the state of each key.
#[derive(Clone, Debug)]
pub struct Whole<L: Limiter> {
    limit: L,
    states: Vec<Option<L::State>>,
    /// The state after the call that was decided last.
    pending: Option<L::State>,
}

impl<L: Limiter> Whole<L> {
    fn new(limit: L) -> Self {
        Self { limit, states: Vec::new(), pending: None }
    }

    fn state(&self, key: usize) -> Option<L::State> {
        self.states.get(key).copied().flatten()
    }

    fn decide(&mut self, call: &Call) -> Result<Answer, Error> {
        let decision = self.limit.take(self.state(call.key), call.now, call.amount)?;
        self.pending = stored(decision.change);
        Ok(decision.answer)
    }

    fn commit(&mut self, call: &Call) {
        if let Some(state) = self.pending.take() {
            *slot(&mut self.states, call.key) = Some(state);
        }
    }

    fn peek(&self, call: &Call) -> Result<Answer, Error> {
        self.limit.peek(self.state(call.key), call.now, call.amount)
    }
}

/// The entries of a log, sorted by time.
#[derive(Clone, Debug, Default)]
pub struct Log(Instants);

#[derive(Clone, Debug, Default)]
struct Instants(VecDeque<Instant>);

impl Timeline for Instants {
    type Error = Error;

    fn len(&self) -> u64 {
        count(self.0.len())
    }

    fn at(&self, rank: u64) -> Result<Option<Instant>, Error> {
        Ok(usize::try_from(rank).ok().and_then(|rank| self.0.get(rank)).copied())
    }

    fn later_than(&self, instant: Instant) -> Result<u64, Error> {
        let first = self.0.partition_point(|&entry| entry <= instant);
        Ok(count(self.0.len().saturating_sub(first)))
    }
}

impl Log {
    fn add(&mut self, entries: &Entries) {
        let Instants(all) = &mut self.0;
        all.drain(..index(entries.pruned).min(all.len()));
        // The clock does not go back, so these entries are the latest.
        all.extend(core::iter::repeat_n(entries.at, index(entries.count)));
    }
}

/// The holders and the ends of their leases, in the order of a sorted set: by end, and then by name.
#[derive(Clone, Debug, Default)]
pub struct Leases(Vec<(Instant, Box<[u8]>)>);

impl Timeline for Leases {
    type Error = Error;

    fn len(&self) -> u64 {
        count(self.0.len())
    }

    fn at(&self, rank: u64) -> Result<Option<Instant>, Error> {
        Ok(usize::try_from(rank).ok().and_then(|rank| self.0.get(rank)).map(|(end, _)| *end))
    }

    fn later_than(&self, instant: Instant) -> Result<u64, Error> {
        let first = self.0.partition_point(|(end, _)| *end <= instant);
        Ok(count(self.0.len().saturating_sub(first)))
    }
}

impl Leases {
    fn places(&self, id: &[u8]) -> Places<'_, Self> {
        let own = self.0.iter().find(|(_, holder)| **holder == *id).map(|(end, _)| *end);
        Places { ends: self, own }
    }

    fn hold(&mut self, id: &[u8], held: &Kept) {
        self.0.retain(|(_, holder)| **holder != *id);
        let lease = (lease::score_of(id, held.end), id.into());
        let rank = self.0.partition_point(|other| *other < lease);
        self.0.insert(rank, lease);
        self.0.drain(..index(held.pruned).min(self.0.len()));
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
