//! The states of one limiter, one for each of its keys, and its decisions.

use std::collections::VecDeque;

use redis_cell_core::lease::{self, Held, Lease, Places};
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
    Log(log::Limit, Vec<Log>),
    Lease(lease::Limit, Unit, Vec<Leases>),
}

/// What a call takes.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The key.
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
            Kind::Log(limit, _) => Self::Log(*limit, Vec::new()),
            Kind::Lease(limit, ..) => Self::Lease(*limit, unit, Vec::new()),
        }
    }

    /// Takes what the call asks for, if that is admitted.
    pub fn take(&mut self, call: &Request) -> Result<Answer, Error> {
        match self {
            Self::Throttle(whole) => whole.take(call),
            Self::Bucket(whole) => whole.take(call),
            Self::Fixed(whole) => whole.take(call),
            Self::Window(whole) => whole.take(call),
            Self::Log(limit, logs) => {
                let log = slot(logs, call.key);
                let decision = log::take(&log.0, limit, call.now, call.amount)?;
                if let Change::Store(entries) = decision.change {
                    log.add(&entries);
                }
                Ok(decision.answer)
            }
            Self::Lease(limit, unit, keys) => {
                let (leases, lease) = (slot(keys, call.key), Lease::new(call.amount, *unit)?);
                let decision = lease::acquire(&leases.places(call.id), limit, call.now, &lease)?;
                if let Change::Store(held) = decision.change {
                    leases.hold(call.id, &held);
                }
                Ok(decision.answer)
            }
        }
    }

    /// The verdict of [`take`](Self::take), which changes nothing. The other numbers are those of the state
    /// as it is.
    pub fn peek(&self, call: &Request) -> Result<Answer, Error> {
        match self {
            Self::Throttle(whole) => whole.peek(call),
            Self::Bucket(whole) => whole.peek(call),
            Self::Fixed(whole) => whole.peek(call),
            Self::Window(whole) => whole.peek(call),
            Self::Log(limit, logs) => {
                static NONE: Log = Log(Instants(VecDeque::new()));
                log::peek(&logs.get(call.key).unwrap_or(&NONE).0, limit, call.now, call.amount)
            }
            Self::Lease(limit, unit, keys) => {
                static NONE: Leases = Leases(Vec::new());
                let leases = keys.get(call.key).unwrap_or(&NONE);
                lease::peek(&leases.places(call.id), limit, call.now, &Lease::new(call.amount, *unit)?)
            }
        }
    }
}

/// The place of a key, made if it is new.
fn slot<S: Default>(states: &mut Vec<S>, key: usize) -> &mut S {
    if states.len() <= key {
        states.resize_with(key.saturating_add(1), S::default);
    }
    // It is there now.
    #[expect(clippy::indexing_slicing, reason = "the line above has made the list long enough")]
    &mut states[key]
}

/// A limit whose states are values.
#[derive(Clone, Debug)]
pub struct Whole<L: Limiter> {
    limit: L,
    states: Vec<Option<L::State>>,
}

impl<L: Limiter> Whole<L> {
    fn new(limit: L) -> Self {
        Self { limit, states: Vec::new() }
    }

    fn take(&mut self, call: &Request) -> Result<Answer, Error> {
        let state = slot(&mut self.states, call.key);
        let decision = self.limit.take(*state, call.now, call.amount)?;
        if let Change::Store(new) = decision.change {
            *state = Some(new);
        }
        Ok(decision.answer)
    }

    fn peek(&self, call: &Request) -> Result<Answer, Error> {
        let state = self.states.get(call.key).copied().flatten();
        self.limit.peek(state, call.now, call.amount)
    }
}

/// The entries of a log, in the order of time.
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
        // The clock does not go back, so they are the latest.
        all.extend(core::iter::repeat_n(entries.at, index(entries.count)));
    }
}

/// Holders and the ends of their leases, in the order of a sorted set: by the end, then by the name.
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

    fn hold(&mut self, id: &[u8], held: &Held) {
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
