//! Models of the core, which a machine checks state by state.
//!
//! Each model is a small world: a key, a few clients, a clock that ticks. Its actions call the functions of
//! the core that the module calls, in every order that is possible within its [`Size`]; the model itself
//! decides nothing. A property of one state is a function of that state. A property of a step is checked in
//! the step, and the result is kept in the state.
//!
//! Each model has defects: mistakes of the callers of the core, or of the network between the processes. With
//! a defect, the checker must find a property that does not hold; otherwise the property is worthless.
//!
//! `sometimes` properties assert that a model reaches the situations that it is about. Without them, a model
//! in which nothing happens would satisfy all other properties.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::missing_panics_doc,
    reason = "a model that panics has found something"
)]
#![allow(clippy::struct_excessive_bools, reason = "the state of a model is what has happened")]

pub mod histories;
pub mod leases;
pub mod queue;
pub mod table;

use core::fmt::Debug;
use core::hash::Hash;

use redis_cell_core::{Change, Decision, Instant, Span};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// How much of a world is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A few seconds in an optimized build: for every run of the tests.
    Short,
    /// Ten million states or more.
    Long,
}

/// The result of a check.
#[derive(Debug)]
pub struct Report {
    /// The number of distinct states.
    pub states: usize,
    /// The longest sequence of actions.
    pub depth: usize,
    /// The properties that do not hold, each with the actions that show it.
    pub broken: Vec<(&'static str, String)>,
    /// The situations that the model should reach and did not.
    pub missed: Vec<&'static str>,
}

/// Explores every state of a model.
pub fn check_all<M>(model: M) -> Report
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    // Depth first, which keeps few states besides their fingerprints.
    report(&model.checker().threads(THREADS).finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join())
}

/// Explores the states of a model until this property does not hold, states after fewer actions first.
pub fn find<M>(model: M, property: &'static str) -> Report
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let found = HasDiscoveries::AnyOf([property].into());
    report(&model.checker().threads(THREADS).finish_when(found).spawn_bfs().join())
}

const THREADS: usize = 2;

fn report<M: Model>(checker: &impl Checker<M>) -> Report
where
    M::State: Clone + Debug + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let found = checker.discoveries();
    let (mut broken, mut missed) = (Vec::new(), Vec::new());
    for property in checker.model().properties() {
        match (property.expectation, found.get(property.name)) {
            (Expectation::Sometimes, None) => missed.push(property.name),
            (Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => {
                broken.push((property.name, format!("{:?}", path.clone().into_actions())));
            }
        }
    }
    Report { states: checker.unique_state_count(), depth: checker.max_depth(), broken, missed }
}

/// The instant at which every world begins.
const BEGINNING: u64 = 1_700_000_000_000_000_000;

/// The time that a unit takes in every world: a second.
const UNIT: u64 = 1_000_000_000;

/// The instant this many nanoseconds after the beginning.
fn at(nanos: u64) -> Instant {
    Instant::from_nanos(BEGINNING + nanos).unwrap()
}

/// How many nanoseconds after the beginning an instant is; 0 before it.
fn offset(instant: Instant) -> u64 {
    instant.as_nanos().saturating_sub(BEGINNING)
}

fn span(nanos: u64) -> Span {
    Span::from_nanos(nanos).unwrap()
}

/// The state after a decision, with `before` as the state before it.
fn after<S>(decision: &Decision<S>, before: Option<S>) -> Option<S>
where
    S: Copy,
{
    match decision.change {
        Change::Keep => before,
        Change::Store(state) => Some(state),
        Change::Delete => None,
    }
}

/// The level of a bucket into which units flow when they act, and which leaks at the rate of the limit.
///
/// It never exceeds the tolerance if and only if, in every stretch of time, no more units act than the
/// tolerance and the units that leak in the stretch. That is the bound in a form that needs only one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Meter {
    level: u64,
    at: u64,
}

impl Meter {
    /// Units that act at an instant, which is not before any other.
    fn acts(&mut self, at: u64, units: i64) {
        self.pass(at);
        self.level += units.unsigned_abs() * UNIT;
    }

    fn pass(&mut self, at: u64) {
        self.level = self.level.saturating_sub(at - self.at);
        self.at = at;
    }
}
