//! One key of `CL.BMTAKE` and its queue of flows: [`fair`](redis_cell_core::fair) over
//! [`gcra`](redis_cell_core::gcra).
//!
//! Two flows share a limiter, one without a name and of weight 1, one with a name and of weight 2. Their
//! clients join, leave and are served at once or late. The other limiters of a flow refuse at times, so that
//! it is not ready. Calls that do not wait come in between, and calls are settled.
//!
//! The model does what the module does around the queue (src/commands/bmtake.rs, src/waiting.rs): a call
//! joins if a client waits or if it is refused; first clients are checked before a turn, and again at their
//! turn.

use redis_cell_core::Unit;
use redis_cell_core::fair::{Queue, Readiness, Request, Ticket};
use redis_cell_core::gcra::{self, Limit, Tat};
use redis_cell_core::limiter::{self, Limiter};
use stateright::{Model, Property};

use crate::{Meter, Size, UNIT, after, at};

const CAPACITY: i64 = 2;

/// The names, weights and quantities of the flows.
const FLOWS: [(Option<&[u8]>, u32, i64); 2] = [(None, 1, 1), (Some(b"f"), 2, 2)];

/// A mistake of the caller of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// None.
    None,
    /// The units that a turn takes are not written.
    WriteIsLost,
    /// A client that is admitted leaves as if it had taken nothing.
    FlowIsNotCharged,
    /// Of the ready first clients, the one that came last has its turn.
    AnyFirst,
    /// The second client of a flow is admitted before the first.
    SecondFirst,
    /// A call that does not wait is decided by the key, without the queue.
    IgnoresQueue,
    /// The queue is not told that a client is to be checked again.
    ChangeIsNotTold,
    /// A client that leaves stays in the queue.
    LeaveIsNotTold,
}

impl Defect {
    /// All defects except none, each with the properties that it breaks.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::WriteIsLost, BOUND),
        (Self::FlowIsNotCharged, FAIR),
        (Self::AnyFirst, FAIR),
        (Self::SecondFirst, ORDER),
        (Self::IgnoresQueue, DELAYED),
        (Self::ChangeIsNotTold, FORGOTTEN),
        (Self::LeaveIsNotTold, FORGOTTEN),
        (Self::LeaveIsNotTold, COUNTED),
    ];
}

const BOUND: &str = "never more than the bound";
const FORGOTTEN: &str = "nobody is forgotten: once all are ready, all clients are admitted";
const ORDER: &str = "within a flow, clients are admitted in the order of arrival";
const FAIR: &str = "two flows that are ready differ by at most one call each";
const DELAYED: &str = "a call that does not wait delays no client that is ready";
const COUNTED: &str = "what counts as taken is what those wait for whose flow is ready";

/// The model.
#[derive(Clone, Debug)]
pub struct World {
    defect: Defect,
    calls: u8,
    ticks: u8,
    waiting: usize,
    limit: Limit,
}

/// A client that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    ticket: Ticket,
    flow: usize,
}

/// By how much the first flow has been given more than the second, each divided by its weight, since both
/// have been ready; and the smallest and the largest value of this difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Lead {
    now: i64,
    least: i64,
    most: i64,
}

/// The state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    queue: Queue,
    key: Option<Tat>,
    tick: u8,
    calls: u8,
    waiting: Vec<Waiter>,
    /// Whether another limiter of the flow refuses.
    blocked: [bool; 2],
    meter: Meter,
    /// Only while both flows are ready.
    lead: Option<Lead>,
    /// After a settlement the tags of a flow lie anywhere.
    settled: bool,
    last_served: [Option<Ticket>; 2],
    broken: Option<&'static str>,
}

/// An action of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `CL.BMTAKE` by a client of this flow.
    Join(usize),
    /// The waiting client with this index leaves.
    Leave(usize),
    /// `CL.MTAKE` of one unit.
    Call,
    /// `CL.MSETTLE` of one unit more or less by this flow.
    Settle(usize, i64),
    /// Another limiter of the flow begins or ceases to refuse.
    Turn(usize),
    /// The queue is served.
    Serve,
    /// Time passes.
    Tick,
}

impl World {
    /// The model of this size.
    pub fn new(size: Size, defect: Defect) -> Self {
        let (calls, ticks, waiting) = match size {
            Size::Short => (7, 4, 4),
            Size::Long => (10, 5, 5),
        };
        let limit = Limit::new(CAPACITY - 1, 1, 1, Unit::Seconds).unwrap();
        Self { defect, calls, ticks, waiting, limit }
    }

    fn now(state: &State) -> u64 {
        u64::from(state.tick) * UNIT
    }

    fn quantity(state: &State, ticket: Ticket) -> Option<(usize, i64)> {
        let waiter = state.waiting.iter().find(|waiter| waiter.ticket == ticket)?;
        Some((waiter.flow, FLOWS[waiter.flow].2))
    }

    /// Checks all first clients that must be checked.
    fn check(state: &mut State) {
        while let Some(ticket) = state.queue.to_check(at(Self::now(state))) {
            let blocked = Self::quantity(state, ticket).is_some_and(|(flow, _)| state.blocked[flow]);
            let readiness = if blocked { Readiness::NotBefore(None) } else { Readiness::Ready };
            state.queue.checked(ticket, readiness);
        }
    }

    /// The client whose turn it is, if it is still ready.
    fn next(&self, state: &mut State) -> Option<Ticket> {
        loop {
            Self::check(state);
            let next = state.queue.next()?;
            // A client that has left, but is still in the queue, is never admitted.
            let Some((flow, _)) = Self::quantity(state, next) else { return Some(next) };
            if state.blocked[flow] {
                state.queue.changed(next);
                continue;
            }
            let mut others = state.waiting.iter().map(|waiter| (waiter.ticket, waiter.flow));
            let other = match self.defect {
                Defect::SecondFirst => others.filter(|(_, other)| *other == flow).nth(1),
                Defect::AnyFirst => others.rfind(|(other, _)| state.queue.is_ready(*other)),
                _ => None,
            };
            return Some(other.map_or(next, |(other, _)| other));
        }
    }

    /// Serves all whose turn has come.
    fn serve(&self, state: &mut State, mut admitted: impl FnMut(Ticket)) {
        let now = Self::now(state);
        while let Some(next) = self.next(state) {
            let Some((flow, quantity)) = Self::quantity(state, next) else { return };
            let decision = gcra::throttle(state.key, &self.limit, at(now), quantity).unwrap();
            if decision.answer.limited() {
                return;
            }
            if self.defect != Defect::WriteIsLost {
                state.key = after(&decision, state.key);
            }
            if self.defect == Defect::FlowIsNotCharged {
                state.queue.leave(next);
            } else {
                state.queue.admitted(next);
            }
            state.waiting.retain(|waiter| waiter.ticket != next);
            if state.last_served[flow].is_some_and(|last| next < last)
                || state.waiting.iter().any(|waiter| waiter.flow == flow && waiter.ticket < next)
            {
                state.broken = Some(ORDER);
            }
            state.last_served[flow] = Some(next);
            state.meter.acts(now, quantity);
            Self::gave(state, flow, quantity);
            admitted(next);
        }
    }

    /// A flow was given a quantity.
    fn gave(state: &mut State, flow: usize, quantity: i64) {
        let Some(lead) = &mut state.lead else { return };
        let given = quantity * SCALE / i64::from(FLOWS[flow].1);
        lead.now += if flow == 0 { given } else { -given };
        lead.least = lead.least.min(lead.now);
        lead.most = lead.most.max(lead.now);
        // The bound of the essay: the largest q / w of each flow.
        let bound: i64 =
            FLOWS.iter().map(|&(_, weight, quantity)| quantity * SCALE / i64::from(weight)).sum();
        if !state.settled && (lead.now - lead.least > bound || lead.most - lead.now > bound) {
            state.broken = state.broken.or(Some(FAIR));
        }
        Self::compare(state);
    }

    /// Begins or ends the stretch in which both flows are ready.
    fn compare(state: &mut State) {
        let ready =
            |flow: usize| !state.blocked[flow] && state.waiting.iter().any(|waiter| waiter.flow == flow);
        let both = ready(0) && ready(1);
        state.lead = if both { Some(state.lead.unwrap_or_default()) } else { None };
    }

    /// Which client is admitted when, in ticks from now, if nothing more happens.
    fn turns(&self, state: &State) -> Vec<(Ticket, u8)> {
        let mut state = state.clone();
        let mut turns = Vec::new();
        // Enough for everything that may be owed and waited for.
        let end = state.tick + 30;
        while state.tick < end {
            let tick = state.tick;
            self.serve(&mut state, |ticket| turns.push((ticket, tick)));
            if state.waiting.is_empty() {
                break;
            }
            state.tick += 1;
        }
        turns
    }

    fn request(&self, flow: usize) -> Request<'static> {
        let (flow, weight, quantity) = FLOWS[flow];
        let cost = Limiter::cost(&self.limit, quantity).unwrap();
        Request { flow, weight: Some(weight), quantity: quantity.unsigned_abs(), cost }
    }

    fn counts_right(&self, state: &State) -> bool {
        let first = |flow| state.waiting.iter().find(|waiter| waiter.flow == flow);
        let counts = |flow| first(flow).is_some_and(|first| state.queue.is_ready(first.ticket));
        let costs = state.waiting.iter().filter(|waiter| counts(waiter.flow));
        let taken: u64 = costs.map(|waiter| self.request(waiter.flow).cost).sum();
        state.queue.taken() == u128::from(taken)
    }
}

/// Leads are counted in half units.
const SCALE: i64 = 2;

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            queue: Queue::default(),
            key: None,
            tick: 0,
            calls: 0,
            waiting: Vec::new(),
            blocked: [false; 2],
            meter: Meter::default(),
            lead: None,
            settled: false,
            last_served: [None; 2],
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        if state.tick < self.ticks {
            actions.push(Action::Tick);
        }
        if !state.waiting.is_empty() {
            actions.push(Action::Serve);
        }
        if state.calls == self.calls {
            return;
        }
        if state.waiting.len() < self.waiting {
            actions.extend([0, 1].map(Action::Join));
        }
        actions.extend((0..state.waiting.len()).map(Action::Leave));
        actions.push(Action::Call);
        actions.extend([0, 1].map(Action::Turn));
        if !state.settled && !state.waiting.is_empty() {
            actions.extend([(0, 1), (0, -1), (1, 1)].map(|(flow, units)| Action::Settle(flow, units)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = Self::now(last);
        state.calls += u8::from(!matches!(action, Action::Serve | Action::Tick));
        match action {
            Action::Tick => {
                state.tick += 1;
                state.meter.pass(now + UNIT);
            }
            Action::Serve => {
                let mut served = false;
                self.serve(&mut state, |_| served = true);
                if !served {
                    return None;
                }
            }
            Action::Join(flow) => {
                let quantity = FLOWS[flow].2;
                let alone = state.queue.is_empty() && !state.blocked[flow];
                let decision = gcra::throttle(state.key, &self.limit, at(now), quantity).unwrap();
                if alone && !decision.answer.limited() {
                    state.key = after(&decision, state.key);
                    state.meter.acts(now, quantity);
                } else {
                    let ticket = state.queue.join(self.request(flow));
                    state.waiting.push(Waiter { ticket, flow });
                }
            }
            Action::Leave(place) => {
                let waiter = state.waiting.remove(place);
                if self.defect != Defect::LeaveIsNotTold {
                    state.queue.leave(waiter.ticket);
                }
            }
            Action::Call => {
                let costs = u64::try_from(state.queue.taken()).unwrap();
                let costs = if self.defect == Defect::IgnoresQueue { 0 } else { costs };
                let take = |key| gcra::throttle(key, &self.limit, at(now), 1);
                let decision = limiter::behind(&self.limit, state.key, at(now), 1, costs, take).unwrap();
                state.key = after(&decision, state.key);
                if !decision.answer.limited() {
                    state.meter.acts(now, 1);
                    let before = self.turns(last);
                    let turns = self.turns(&state);
                    let then =
                        |ticket| turns.iter().find(|(other, _)| *other == ticket).map(|&(_, tick)| tick);
                    if before.iter().any(|&(ticket, tick)| then(ticket).is_none_or(|then| then > tick)) {
                        state.broken = Some(DELAYED);
                    }
                }
            }
            Action::Settle(flow, difference) => {
                let (name, weight, _) = FLOWS[flow];
                state.queue.settle(name, Some(weight), difference);
                state.settled = true;
            }
            Action::Turn(flow) => {
                state.blocked[flow] = !state.blocked[flow];
                if self.defect != Defect::ChangeIsNotTold {
                    for waiter in state.waiting.iter().filter(|waiter| waiter.flow == flow) {
                        if !state.queue.is_ready(waiter.ticket) {
                            state.queue.changed(waiter.ticket);
                        }
                    }
                }
            }
        }
        Self::check(&mut state);
        Self::compare(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BOUND, |_, state: &State| state.meter.level <= CAPACITY.unsigned_abs() * UNIT),
            Property::always(FORGOTTEN, |world: &Self, state: &State| {
                let mut ready = state.clone();
                for flow in [0, 1] {
                    if ready.blocked[flow] {
                        ready = world.next_state(&ready, Action::Turn(flow)).unwrap();
                    }
                }
                state.queue.len() == state.waiting.len() && world.turns(&ready).len() == state.waiting.len()
            }),
            Property::always(ORDER, |_, state: &State| state.broken != Some(ORDER)),
            Property::always(FAIR, |_, state: &State| state.broken != Some(FAIR)),
            Property::always(DELAYED, |_, state: &State| state.broken != Some(DELAYED)),
            Property::always(COUNTED, Self::counts_right),
            Property::sometimes(
                "one flow is served three times while another is ready",
                |_, state: &State| state.lead.is_some_and(|lead| (lead.most - lead.least) >= 2 * SCALE),
            ),
            Property::sometimes("one flow waits while the other is not ready", |_, state: &State| {
                state.blocked[0]
                    && state.waiting.iter().any(|waiter| waiter.flow == 0)
                    && state.lead.is_none()
            }),
        ]
    }
}
