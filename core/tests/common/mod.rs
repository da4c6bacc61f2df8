//! Shared by the tests of the core: one fixed instant, and times relative to it.

#![allow(dead_code, reason = "each test binary takes what it needs")]

use proptest::prelude::{Just, Strategy, prop_oneof};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::log::{self, Edit};
use redis_cell_core::{Answer, Change, Decision, Error, Instant, Span, Taken, Unit};
use std::fmt::Debug;

/// The instant that the tests call now, in November 2023.
pub const NOW: i64 = 1_700_000_000_123_456_789;

/// A microsecond in nanoseconds.
pub const US: i64 = 1_000;
/// A millisecond in nanoseconds.
pub const MS: i64 = 1_000_000;
/// A second in nanoseconds.
pub const S: i64 = 1_000_000_000;
/// A day in nanoseconds.
pub const DAY: i64 = 86_400 * S;

/// The instant `offset` nanoseconds from [`NOW`].
pub fn at(offset: i64) -> Instant {
    instant(i128::from(NOW) + i128::from(offset))
}

/// The instant `nanos` nanoseconds after the epoch.
pub fn instant(nanos: i128) -> Instant {
    Instant::from_nanos(u64::try_from(nanos).unwrap()).unwrap()
}

/// A span of `nanos` nanoseconds.
pub fn span(nanos: i64) -> Span {
    Span::from_nanos(u64::try_from(nanos).unwrap()).unwrap()
}

/// Any unit of time.
pub fn unit() -> impl Strategy<Value = Unit> {
    prop_oneof![Just(Unit::Seconds), Just(Unit::Milliseconds), Just(Unit::Microseconds)]
}

/// Units that were taken `age` nanoseconds ago, by a call whose reply the settlement does not know.
pub fn ago(age: i64) -> Taken {
    Taken { age: span(age), reset_after: None, unit: Unit::Microseconds }
}

/// An instant as nanoseconds from [`NOW`].
pub fn offset(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap() - NOW
}

/// The length of a span in nanoseconds.
pub fn nanos(span: Span) -> i64 {
    i64::try_from(span.as_nanos()).unwrap()
}

/// The five numbers of an answer, its times in nanoseconds.
pub fn in_nanos(answer: &Answer) -> [i64; 5] {
    let retry = answer.verdict.wait().map_or(-1, nanos);
    [answer.limited().into(), answer.limit, answer.remaining, retry, nanos(answer.reset_after)]
}

/// The state after a decision, with `before` as the state before it.
pub fn after<S>(decision: &Decision<S>, before: Option<S>) -> Option<S>
where
    S: Copy,
{
    match decision.change {
        Change::Keep => before,
        Change::Store(state) => Some(state),
        Change::Delete => None,
    }
}

/// A row of a table: the case; the state before; the limit; now; the quantity, or the difference of a
/// settlement; the five numbers of the answer in milliseconds; the change of the state.
pub type Row<L, S> = (&'static str, Option<S>, L, i64, i64, [i64; 5], Change<S>);

/// Calls take, row by row.
pub fn takes<L: Limiter>(rows: &[Row<L, L::State>])
where
    L::State: Debug + PartialEq,
{
    row_by_row(rows, L::take);
}

/// Settlements take and give back, row by row.
pub fn settles<L: Limiter>(rows: &[Row<L, L::State>])
where
    L::State: Debug + PartialEq,
{
    row_by_row(rows, |limit, state, now, difference| limit.settle(state, now, difference, None));
}

fn row_by_row<L: Limiter>(
    rows: &[Row<L, L::State>],
    decide: impl Fn(&L, Option<L::State>, Instant, i64) -> Result<Decision<L::State>, Error>,
) where
    L::State: Debug + PartialEq,
{
    for (shows, before, limit, now, quantity, answer, change) in rows {
        let decision = decide(limit, *before, at(*now), *quantity).unwrap();
        assert_eq!(decision.answer.reply(Unit::Milliseconds).five, *answer, "{shows}");
        assert_eq!(decision.change, *change, "{shows}");
    }
}

/// A rate as the contract defines it, in integers too wide to overflow.
#[derive(Clone, Copy, Debug)]
pub struct Exact {
    /// Units per period.
    pub count: i128,
    /// The period in nanoseconds.
    pub period: i128,
}

impl Exact {
    /// The rate of `count` per `period` units of time.
    pub fn new(count: i64, period: i64, unit: Unit) -> Self {
        Self { count: count.into(), period: i128::from(period) * i128::from(unit.nanos().get()) }
    }

    /// The nanoseconds that `quantity` units take, rounded down once.
    pub fn cost(self, quantity: i128) -> i128 {
        (quantity * self.period).div_euclid(self.count)
    }

    /// The most units that take no longer than `time`, found by bisection.
    pub fn units(self, time: i128) -> i128 {
        let (mut fits, mut exceeds) = (0, time + 2);
        while exceeds - fits > 1 {
            let middle = i128::midpoint(fits, exceeds);
            if self.cost(middle) <= time {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
        fits
    }

    /// Whether a unit takes a whole number of nanoseconds.
    pub fn is_whole(self) -> bool {
        self.period % self.count == 0
    }
}

/// Numbers that depend only on their seed: splitmix64.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// A number from 0 up to `end`.
    pub fn below(&mut self, end: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        i64::try_from((z ^ (z >> 31)) % u64::try_from(end).unwrap()).unwrap()
    }
}

/// A log in memory, which only the core's decisions change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    pub entries: Vec<Instant>,
    pub until: Option<Instant>,
}

impl Log {
    pub fn take(&mut self, limit: &log::Limit, now: Instant, quantity: i64) -> Answer {
        let decision = log::take(&self.entries[..], limit, now, quantity).unwrap();
        self.carry_out(decision.change.map(Edit::Add));
        decision.answer
    }

    pub fn settle(
        &mut self,
        limit: &log::Limit,
        now: Instant,
        difference: i64,
        taken: Option<&Taken>,
    ) -> Answer {
        let decision = log::settle(&self.entries[..], limit, now, difference, taken).unwrap();
        self.carry_out(decision.change);
        decision.answer
    }

    fn carry_out(&mut self, change: Change<Edit>) {
        let place = |count: u64| usize::try_from(count).unwrap();
        match change {
            Change::Keep => {}
            Change::Store(Edit::Add(change)) => {
                let there = self.entries.iter().filter(|&&entry| entry == change.at).count();
                assert_eq!(place(change.there), there, "names would collide");
                self.entries.extend((0..change.count).map(|_| change.at));
                self.entries.sort();
                self.entries.drain(..place(change.pruned));
                self.until = Some(change.until);
            }
            Change::Store(Edit::Remove { count, newer, until, .. }) => {
                assert!(place(count) < self.entries.len(), "what is empty is deleted");
                let end = self.entries.len() - place(newer);
                self.entries.drain(end - place(count)..end);
                self.until = Some(until);
            }
            Change::Delete => *self = Self::default(),
        }
    }
}
