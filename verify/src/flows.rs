//! One key of `CL.BMTAKE` and its queue of flows: [`fair`](redis_cell_core::fair) over two limiters of
//! [`gcra`](redis_cell_core::gcra).
//!
//! Two flows share the first limiter, one without a name and of weight 1, one with a name and of weight 2.
//! The clients of both also need units of another limiter, which decides which of them are ready. Clients
//! join, leave and are served at once or late. Other clients take from both limiters without waiting, give
//! back, and settle.
//!
//! The model does what the module does around the queue, in the same order: `check`, `turn`, `look_again` and
//! `waits_for_turn` are those of src/waiting/fair.rs, and `step` is its `next`; `look_at` is that of
//! src/waiting/index.rs, `check_again` its `wake`, and `key_changed` its `gather`. The server looks at the
//! queue when the instant `look` has come. It may stop after any step, and anything may happen before the
//! next one.
//!
//! A client that times out is one that leaves. Not modelled are stored replies of `ONCE`, servers that may
//! not write, and a key that is the first one of some clients and another one of others.

use redis_cell_core::fair::{Queue, Readiness, Request, Ticket};
use redis_cell_core::gcra::{self, Limit, Tat};
use redis_cell_core::limiter::{self, Limiter};
use redis_cell_core::{Decision, Instant, Span, Taken, Unit};
use stateright::{Model, Property};

use crate::{Meter, Size, UNIT, after, at, offset};

/// The first limiter, for which clients wait.
const FIRST: usize = 0;
/// The other limiter of every client.
const OTHER: usize = 1;

/// What the first limiter and the other one admit at once.
const CAPACITIES: [i64; 2] = [2, 4];
/// The seconds that a unit of them takes.
const SECONDS: [i64; 2] = [1, 2];

/// The names and weights of the flows.
const FLOWS: [(Option<&[u8]>, u32); 2] = [(None, 1), (Some(b"f"), 2)];

/// A kind of client: its flow, and what it takes from the limiters.
struct Kind {
    flow: usize,
    quantities: [i64; 2],
}

/// Of the first limiter, those of the first flow need less. Of the other one, they need less or more: each
/// flow may be ready when the other is not.
const KINDS: [Kind; 3] = [
    Kind { flow: 0, quantities: [1, 1] },
    Kind { flow: 0, quantities: [1, 3] },
    Kind { flow: 1, quantities: [2, 2] },
];

/// What a call that does not wait takes from a limiter. From the other one it leaves a unit, which is enough
/// for one kind of client only.
const TAKES: [i64; 2] = [2, 3];

/// A settlement that gives units back comes too late: they have come back by themselves, and the key does not
/// change. What comes in time is [`Action::Refund`].
const LONG_AGO: Taken = Taken { age: SECOND, reset_after: Some(SECOND), unit: Unit::Seconds };

const SECOND: Span = Span::from_nanos(UNIT).unwrap();

/// More steps than a look at so few clients ever has.
const STEPS: u32 = 100;

/// More looks than so few clients ever wait for.
const LOOKS: u32 = 100;

/// The shortest wait of a timer.
const MILLISECOND: Span = Span::from_nanos(1_000_000).unwrap();

/// A mistake of the caller of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// None.
    None,
    /// The units that a turn takes are not written.
    WriteIsLost,
    /// The units that a turn takes from the other limiter are not written.
    WritesHalf,
    /// A client whose first limiter admits it is admitted, even if the other one refuses.
    TakesInPart,
    /// A client that is admitted leaves as if it had taken nothing.
    FlowIsNotCharged,
    /// Of the ready first clients, the one that came last has its turn.
    AnyFirst,
    /// The second client of a flow is admitted before the first.
    SecondFirst,
    /// A call that does not wait is decided by the key, without the queue.
    IgnoresQueue,
    /// The queue is not looked at when a client joins others that wait.
    JoinIsNotTold,
    /// A client that leaves stays in the queue.
    LeaveIsNotTold,
    /// A client that is refused at its turn leaves the queue, but waits for its reply.
    DropsRefused,
    /// The queue is not looked at when the key of the first limiter changes.
    FirstKeyIsNotTold,
    /// The queue is not told that the key of the other limiter has changed.
    OtherKeyIsNotTold,
    /// The queue is not told this if the client was ready, not even if it is its turn.
    ReadyIsNotTold,
    /// The queue is not looked at after a settlement.
    SettlementIsNotTold,
    /// A client that was ready once is not checked again at its turn.
    ReadyOnce,
    /// The queue is told that each client that was checked is ready.
    AlwaysReady,
    /// The queue is not told when a client that is not ready is to be checked again.
    ChecksAreNotPlanned,
    /// The next look is when it is the turn of a client, even if another is to be checked before.
    ChecksAreLate,
    /// No look is planned when the first limiter does not admit the client whose turn it is.
    TurnsAreNotPlanned,
}

impl Defect {
    /// All defects except none, each with the properties that it breaks.
    pub const ALL: [(Self, &'static str); 27] = [
        (Self::WriteIsLost, BOUND),
        (Self::WriteIsLost, CHARGED),
        (Self::WritesHalf, BOUND),
        (Self::WritesHalf, CHARGED),
        (Self::TakesInPart, CHARGED),
        (Self::FlowIsNotCharged, FAIR),
        (Self::AnyFirst, FAIR),
        (Self::SecondFirst, ORDER),
        (Self::IgnoresQueue, DELAYED),
        (Self::JoinIsNotTold, PROMPT),
        (Self::LeaveIsNotTold, KNOWN),
        (Self::LeaveIsNotTold, COUNTED),
        (Self::LeaveIsNotTold, ENDS),
        (Self::DropsRefused, KNOWN),
        (Self::FirstKeyIsNotTold, PROMPT),
        (Self::OtherKeyIsNotTold, PROMPT),
        (Self::OtherKeyIsNotTold, COUNTED),
        (Self::ReadyIsNotTold, HELD_UP),
        (Self::SettlementIsNotTold, PROMPT),
        (Self::ReadyOnce, HELD_UP),
        (Self::ReadyOnce, PROMPT),
        (Self::AlwaysReady, HELD_UP),
        (Self::AlwaysReady, ENDS),
        (Self::ChecksAreNotPlanned, FORGOTTEN),
        (Self::ChecksAreLate, PROMPT),
        (Self::TurnsAreNotPlanned, FORGOTTEN),
        (Self::TurnsAreNotPlanned, ENDS),
    ];
}

const BOUND: &str = "never more than the bound, by either limiter";
const CHARGED: &str = "each client is charged exactly once, by both limiters or by none";
const KNOWN: &str = "the queue knows each client that waits, and nobody else";
const FORGOTTEN: &str = "nobody is forgotten: while a client waits, the server will look again";
const ENDS: &str = "if nothing more happens, each look ends, and all clients are admitted";
const HELD_UP: &str = "no client that is ready is held up by one that is not";
const PROMPT: &str = "the client whose turn it is is admitted by the next look, once all limiters admit it";
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
    limits: [Limit; 2],
}

/// A client that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    ticket: Ticket,
    kind: usize,
}

impl Waiter {
    fn flow(self) -> usize {
        KINDS[self.kind].flow
    }

    fn quantity(self, limiter: usize) -> i64 {
        KINDS[self.kind].quantities[limiter]
    }
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
    keys: [Option<Tat>; 2],
    tick: u8,
    calls: u8,
    /// In the order of arrival.
    waiting: Vec<Waiter>,
    /// When the server looks at the queue.
    look: Instant,
    /// The client whose turn it is, and before when its first limiter does not admit it.
    blocked: Option<(Ticket, Instant)>,
    /// Whether the last step was a turn.
    was_turn: bool,
    /// The buckets into which units flow, as the keys should have them.
    meters: [Meter; 2],
    /// Only while both flows are ready.
    lead: Option<Lead>,
    /// The difference of the settlement, if there was one. The tags of its flow lie anywhere after it.
    settled: Option<i64>,
    broken: Option<&'static str>,
}

/// An action of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `CL.BMTAKE` by a client of this kind.
    Join(usize),
    /// The waiting client with this index leaves.
    Leave(usize),
    /// `CL.THROTTLE` with the key of this limiter.
    Call(usize),
    /// `CL.REFUND` of one unit of this limiter.
    Refund(usize),
    /// `CL.MSETTLE` of one unit more or less by this flow.
    Settle(usize, i64),
    /// The server looks at the queue, and takes one step.
    Step,
    /// Time passes.
    Tick,
}

/// Leads are counted in half units.
const SCALE: i64 = 2;

impl State {
    fn now(&self) -> Instant {
        at(self.nanos())
    }

    fn nanos(&self) -> u64 {
        u64::from(self.tick) * UNIT
    }

    /// Whether it is time to look at the queue.
    fn is_due(&self) -> bool {
        self.look <= self.now()
    }

    fn find(&self, ticket: Ticket) -> Option<Waiter> {
        self.waiting.iter().copied().find(|waiter| waiter.ticket == ticket)
    }

    /// The first client of a flow.
    fn first_of(&self, flow: usize) -> Option<Waiter> {
        self.waiting.iter().copied().find(|waiter| waiter.flow() == flow)
    }

    /// Units act.
    fn acts(&mut self, limiter: usize, units: i64) {
        let now = self.nanos();
        self.meters[limiter].acts(now, units * SECONDS[limiter]);
    }

    /// The units of a client act.
    fn act_for(&mut self, waiter: Waiter) {
        for limiter in [FIRST, OTHER] {
            self.acts(limiter, waiter.quantity(limiter));
        }
    }

    fn gives_back(&mut self, limiter: usize, units: i64) {
        let now = self.nanos();
        self.meters[limiter].gives_back(now, units * SECONDS[limiter]);
    }

    /// How long the units that a key has counted take to come back.
    fn debt(&self, limiter: usize) -> u64 {
        self.keys[limiter].map_or(0, |tat| tat.since(self.now()).as_nanos())
    }

    /// Time passes. Keys expire.
    fn pass(&mut self, ticks: u8) {
        self.tick += ticks;
        let (nanos, now) = (self.nanos(), self.now());
        self.meters.iter_mut().for_each(|meter| meter.pass(nanos));
        for key in &mut self.keys {
            *key = key.filter(|tat| *tat > now);
        }
    }

    /// Something has happened to the queue.
    fn look_now(&mut self) {
        self.blocked = None;
        self.look = self.look.min(self.now());
    }

    /// Looks at the queue again when a client is to be checked, or may be admitted.
    fn look_again(&mut self) {
        let turn =
            self.blocked.filter(|(ticket, _)| self.queue.next() == Some(*ticket)).map(|(_, turn)| turn);
        self.look = turn.into_iter().chain(self.queue.next_check()).min().unwrap_or(Instant::MAX);
    }

    /// A client leaves, with or without having been admitted. A queue that is empty is dropped.
    fn leaves(&mut self, ticket: Ticket) {
        self.waiting.retain(|waiter| waiter.ticket != ticket);
        self.look_now();
        if self.queue.is_empty() {
            (self.look, self.was_turn) = (Instant::MAX, false);
        }
    }

    /// A flow was given a quantity.
    fn gave(&mut self, flow: usize, quantity: i64) {
        let Some(lead) = &mut self.lead else { return };
        let given = quantity * SCALE / i64::from(FLOWS[flow].1);
        lead.now += if flow == 0 { given } else { -given };
        lead.least = lead.least.min(lead.now);
        lead.most = lead.most.max(lead.now);
        // The bound of the essay: the largest q / w of each flow.
        let share = |kind: &Kind| kind.quantities[FIRST] * SCALE / i64::from(FLOWS[kind.flow].1);
        let largest = |flow| KINDS.iter().filter(|kind| kind.flow == flow).map(share).max().unwrap();
        let bound: i64 = largest(0) + largest(1);
        if self.settled.is_none() && (lead.now - lead.least > bound || lead.most - lead.now > bound) {
            self.broken = self.broken.or(Some(FAIR));
        }
    }
}

/// Whether a limiter refuses.
fn is_refused(decisions: &[Decision<Tat>; 2]) -> bool {
    decisions.iter().any(|decision| decision.answer.limited())
}

impl World {
    /// The model of this size.
    pub fn new(size: Size, defect: Defect) -> Self {
        let (calls, ticks, waiting) = match size {
            Size::Short => (5, 3, 4),
            Size::Long => (7, 5, 5),
        };
        let limits = [FIRST, OTHER]
            .map(|limiter| Limit::new(CAPACITIES[limiter] - 1, 1, SECONDS[limiter], Unit::Seconds).unwrap());
        Self { defect, calls, ticks, waiting, limits }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    /// The time until a limiter admits a quantity; `None` if it does.
    fn wait(&self, state: &State, limiter: usize, quantity: i64) -> Option<Span> {
        let answer = gcra::peek(state.keys[limiter], &self.limits[limiter], state.now(), quantity).unwrap();
        answer.limited().then(|| answer.verdict.wait().unwrap())
    }

    /// Whether the other limiter would admit a client.
    fn is_ready(&self, state: &State, waiter: Waiter) -> bool {
        self.wait(state, OTHER, waiter.quantity(OTHER)).is_none()
    }

    /// What both limiters decide about a client.
    fn take(&self, state: &State, waiter: Waiter) -> [Decision<Tat>; 2] {
        [FIRST, OTHER].map(|limiter| {
            let (key, limit) = (state.keys[limiter], &self.limits[limiter]);
            gcra::throttle(key, limit, state.now(), waiter.quantity(limiter)).unwrap()
        })
    }

    /// Writes decisions, and tells the queue about the keys that have changed.
    fn write<const N: usize>(&self, state: &mut State, decisions: [(usize, Decision<Tat>); N]) {
        for (limiter, decision) in &decisions {
            state.keys[*limiter] = after(decision, state.keys[*limiter]);
        }
        for (limiter, decision) in decisions {
            if !decision.change.is_keep() {
                self.key_changed(state, limiter);
            }
        }
    }

    /// The key of a limiter was changed. Of the clients, only the first of a flow are ever checked, so only
    /// they are told.
    fn key_changed(&self, state: &mut State, limiter: usize) {
        if state.queue.is_empty() {
            return; // there is no queue
        }
        if limiter == FIRST {
            if !self.has(Defect::FirstKeyIsNotTold) {
                state.look_now();
            }
        } else if !self.has(Defect::OtherKeyIsNotTold) {
            let mut firsts: Vec<Waiter> =
                [0, 1].into_iter().filter_map(|flow| state.first_of(flow)).collect();
            firsts.sort_unstable_by_key(|waiter| waiter.ticket);
            for first in firsts {
                self.check_again(state, first.ticket);
            }
        }
    }

    /// The key of the other limiter of a first client has changed.
    fn check_again(&self, state: &mut State, ticket: Ticket) {
        let now = state.now();
        state.queue.wake(ticket, now);
        let is_next = !self.has(Defect::ReadyIsNotTold) && self.next(state) == Some(ticket);
        if !state.queue.is_ready(ticket) || is_next {
            state.look_now();
        }
    }

    /// The client whose turn it is, as the queue knows it.
    fn next(&self, state: &State) -> Option<Ticket> {
        if self.has(Defect::AnyFirst) {
            let mut tickets = state.waiting.iter().map(|waiter| waiter.ticket);
            return tickets.rfind(|ticket| state.queue.is_ready(*ticket));
        }
        state.queue.next()
    }

    /// Takes one step for the queue; false when there is nothing to do for now.
    fn step(&self, state: &mut State) -> bool {
        let now = state.now();
        let is_blocked = |next| state.blocked.is_some_and(|(ticket, until)| ticket == next && now < until);
        let (check, next) = (state.queue.to_check(now), self.next(state).filter(|next| !is_blocked(*next)));
        let is_check = state.queue.unchecked().is_some() || next.is_none() || state.was_turn;
        state.was_turn = !is_check;
        let head = |ticket: Option<Ticket>| ticket.and_then(|ticket| state.find(ticket));
        match (head(check), head(next)) {
            (Some(head), next) if is_check || next.is_none() => {
                self.check(state, head);
                true
            }
            (_, Some(head)) => self.turn(state, head),
            _ => {
                state.look_again();
                false
            }
        }
    }

    /// Checks whether a client is ready.
    fn check(&self, state: &mut State, head: Waiter) {
        let readiness = match self.wait(state, OTHER, head.quantity(OTHER)) {
            None => Readiness::Ready,
            Some(_) if self.has(Defect::AlwaysReady) => Readiness::Ready,
            Some(_) if self.has(Defect::ChecksAreNotPlanned) => Readiness::NotBefore(None),
            Some(wait) => Readiness::NotBefore(state.now().checked_add(wait.max(MILLISECOND))),
        };
        state.queue.checked(head.ticket, readiness);
    }

    /// Admits the client that is next, if its first limiter admits it.
    fn turn(&self, state: &mut State, head: Waiter) -> bool {
        if let Some(wait) = self.wait(state, FIRST, head.quantity(FIRST)) {
            let turn = state.now().checked_add(wait).unwrap();
            if self.has(Defect::ReadyOnce) {
                return !self.waits_for_turn(state, head, turn);
            }
            self.check(state, head);
            return !self.waits_for_turn(state, head, turn);
        }
        let decisions = self.take(state, head);
        if is_refused(&decisions) && !self.has(Defect::TakesInPart) {
            if self.has(Defect::DropsRefused) {
                state.queue.leave(head.ticket);
            }
            self.check(state, head);
            return true;
        }
        let [first, other] = decisions;
        match self.defect {
            Defect::WriteIsLost => {}
            Defect::WritesHalf => self.write(state, [(FIRST, first)]),
            _ => self.write(state, [(FIRST, first), (OTHER, other)]),
        }
        self.admit(state, head);
        true
    }

    /// The client has taken its units, and leaves the queue.
    fn admit(&self, state: &mut State, head: Waiter) {
        let second = state.waiting.iter().copied().filter(|waiter| waiter.flow() == head.flow()).nth(1);
        let head = second.filter(|_| self.has(Defect::SecondFirst)).unwrap_or(head);
        if self.has(Defect::FlowIsNotCharged) {
            state.queue.leave(head.ticket);
        } else {
            state.queue.admitted(head.ticket);
        }
        state.leaves(head.ticket);
        if state.first_of(head.flow()).is_some_and(|waiter| waiter.ticket < head.ticket) {
            state.broken = Some(ORDER);
        }
        state.act_for(head);
        state.gave(head.flow(), head.quantity(FIRST));
    }

    /// The first limiter does not admit the client, which is ready, before this instant. True if the queue is
    /// looked at again then, and nothing else is to be done now.
    fn waits_for_turn(&self, state: &mut State, head: Waiter, turn: Instant) -> bool {
        if self.next(state) != Some(head.ticket) {
            return false;
        }
        state.blocked = Some((head.ticket, turn));
        let is_done = state.queue.to_check(state.now()).is_none();
        if is_done {
            state.look_again();
            match self.defect {
                Defect::ChecksAreLate => state.look = turn,
                Defect::TurnsAreNotPlanned => state.look = state.queue.next_check().unwrap_or(Instant::MAX),
                _ => {}
            }
        }
        is_done
    }

    /// Which client is admitted when, in ticks from the beginning, if nothing more happens; `None` if a look
    /// does not end, or if a client is never admitted.
    fn turns(&self, state: &State) -> Option<Vec<(Ticket, u8)>> {
        let mut state = state.clone();
        let mut turns = Vec::new();
        for _ in 0..LOOKS {
            let mut steps = 0;
            while state.is_due() {
                let before = state.waiting.clone();
                self.step(&mut state);
                let admitted = before.iter().filter(|waiter| !state.waiting.contains(waiter));
                turns.extend(admitted.map(|waiter| (waiter.ticket, state.tick)));
                steps += 1;
                if steps == STEPS {
                    return None;
                }
            }
            if state.waiting.is_empty() {
                return Some(turns);
            }
            if state.look == Instant::MAX {
                return None;
            }
            let ticks = (offset(state.look) - state.nanos()).div_ceil(UNIT);
            state.pass(u8::try_from(ticks).unwrap());
        }
        None
    }

    /// When each client is admitted whose flow counts in the state `before`, if those stay ready and the
    /// others do not become ready.
    fn turns_of_counting(&self, before: &State, state: &State) -> Vec<(Ticket, u8)> {
        let mut state = state.clone();
        for waiter in state.waiting.clone() {
            if !Self::counts(before, waiter.flow()) {
                state.queue.leave(waiter.ticket);
                state.leaves(waiter.ticket);
            }
        }
        state.keys[OTHER] = None;
        let large = Limit::new(1_000_000, 1, 1, Unit::Seconds).unwrap();
        let world = Self { limits: [self.limits[FIRST], large], ..self.clone() };
        world.turns(&state).unwrap_or_default()
    }

    /// Whether the queue counts what the clients of a flow wait for as taken: if its first client was ready
    /// when it was last checked, or is to be checked now because something has happened.
    fn counts(state: &State, flow: usize) -> bool {
        let Some(first) = state.first_of(flow) else { return false };
        let mut queue = state.queue.clone();
        while let Some(ticket) = queue.unchecked() {
            queue.checked(ticket, Readiness::Ready);
        }
        queue.is_ready(first.ticket)
    }

    /// Whether what counts as taken is right.
    ///
    /// A flow that was ready when it was last checked counts until it is its turn, even if it is not ready
    /// any more. A flow that is ready always counts, unless the server is late.
    fn counts_right(&self, state: &State) -> bool {
        let counts = [0, 1].map(|flow| Self::counts(state, flow));
        let costs = state.waiting.iter().filter(|waiter| counts[waiter.flow()]);
        let taken: u64 = costs.map(|waiter| self.request(*waiter).cost).sum();
        let is_ready = |flow| state.first_of(flow).is_some_and(|first| self.is_ready(state, first));
        state.queue.taken() == u128::from(taken)
            && (state.is_due() || [0, 1].into_iter().all(|flow| counts[flow] || !is_ready(flow)))
    }

    /// The client whose turn it is, if all first clients are checked now.
    fn truly_next(&self, state: &State) -> Option<Waiter> {
        let mut queue = state.queue.clone();
        for first in [0, 1].into_iter().filter_map(|flow| state.first_of(flow)) {
            let is_ready = self.is_ready(state, first);
            queue.checked(first.ticket, if is_ready { Readiness::Ready } else { Readiness::NotBefore(None) });
        }
        queue.next().and_then(|ticket| state.find(ticket))
    }

    /// Whether the server waits for a client that is not ready, while another one is.
    fn holds_up(&self, state: &State) -> bool {
        !state.is_due() && self.has_lapsed(state) && self.truly_next(state).is_some()
    }

    /// Whether the server waits although a client could be admitted.
    fn is_late(&self, state: &State) -> bool {
        let admits = |next: Waiter| self.wait(state, FIRST, next.quantity(FIRST)).is_none();
        !state.is_due() && self.truly_next(state).is_some_and(admits)
    }

    /// Whether a client is next although the first one of the other flow came before it, and is not ready.
    fn passes_one(&self, state: &State) -> bool {
        let is_passed = |next: Waiter| {
            let other = state.first_of(1 - next.flow());
            other.is_some_and(|other| other.ticket < next.ticket && !self.is_ready(state, other))
        };
        self.truly_next(state).is_some_and(is_passed)
    }

    /// Whether the client whose turn it is was ready, and is not any more.
    fn has_lapsed(&self, state: &State) -> bool {
        let next = self.next(state).and_then(|ticket| state.find(ticket));
        next.is_some_and(|next| !self.is_ready(state, next))
    }

    /// Whether both flows have clients that are ready, as was known when they were last checked.
    fn are_both_ready(&self, state: &State) -> bool {
        let counts = |flow| Self::counts(state, flow);
        let is_ready = |first| self.is_ready(state, first);
        [0, 1].into_iter().all(|flow| counts(flow) && state.first_of(flow).is_some_and(is_ready))
    }

    fn request(&self, waiter: Waiter) -> Request<'static> {
        let ((flow, weight), quantity) = (FLOWS[waiter.flow()], waiter.quantity(FIRST));
        let cost = Limiter::cost(&self.limits[FIRST], quantity).unwrap();
        Request { flow, weight: Some(weight), quantity: quantity.unsigned_abs(), cost }
    }

    fn join(&self, state: &mut State, kind: usize) {
        let waiter = Waiter { ticket: 0, kind };
        let decisions = self.take(state, waiter);
        if state.queue.is_empty() && !is_refused(&decisions) {
            let [first, other] = decisions;
            self.write(state, [(FIRST, first), (OTHER, other)]);
            state.act_for(waiter);
            return;
        }
        let is_told = state.queue.is_empty() || !self.has(Defect::JoinIsNotTold);
        let ticket = state.queue.join(self.request(waiter));
        state.waiting.push(Waiter { ticket, ..waiter });
        if is_told {
            state.look_now();
        }
    }

    fn call(&self, state: &mut State, limiter: usize) {
        let (now, units, limit) = (state.now(), TAKES[limiter], &self.limits[limiter]);
        let costs = if limiter == OTHER || self.has(Defect::IgnoresQueue) { 0 } else { state.queue.taken() };
        let costs = u64::try_from(costs).unwrap();
        let take = |key| gcra::throttle(key, limit, now, units);
        let decision = limiter::behind(limit, state.keys[limiter], now, units, costs, take).unwrap();
        if decision.answer.limited() {
            return;
        }
        let before = state.clone();
        state.acts(limiter, units);
        self.write(state, [(limiter, decision)]);
        if limiter == FIRST && !before.waiting.is_empty() {
            let turns = self.turns_of_counting(&before, state);
            let then = |ticket| turns.iter().find(|(other, _)| *other == ticket).map(|&(_, tick)| tick);
            let mut expected = self.turns_of_counting(&before, &before).into_iter();
            if expected.any(|(ticket, tick)| then(ticket).is_none_or(|then| then > tick)) {
                state.broken = Some(DELAYED);
            }
        }
    }

    fn settle(&self, state: &mut State, flow: usize, difference: i64) {
        let (now, limit) = (state.now(), &self.limits[FIRST]);
        let decision = gcra::settle(state.keys[FIRST], limit, now, difference, Some(&LONG_AGO)).unwrap();
        state.acts(FIRST, difference.max(0));
        self.write(state, [(FIRST, decision)]);
        let (name, weight) = FLOWS[flow];
        state.queue.settle(name, Some(weight), difference);
        state.settled = Some(difference);
        if !self.has(Defect::SettlementIsNotTold) {
            state.look_now();
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            queue: Queue::default(),
            keys: [None; 2],
            tick: 0,
            calls: 0,
            waiting: Vec::new(),
            look: Instant::MAX,
            blocked: None,
            was_turn: false,
            meters: [Meter::default(); 2],
            lead: None,
            settled: None,
            broken: None,
        };
        // The first limiter has just been used up. Otherwise a call would have to do that before any client
        // waits.
        let all = gcra::throttle(None, &self.limits[FIRST], state.now(), CAPACITIES[FIRST]).unwrap();
        state.keys[FIRST] = after(&all, None);
        state.acts(FIRST, CAPACITIES[FIRST]);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        if state.tick < self.ticks {
            actions.push(Action::Tick);
        }
        if state.is_due() {
            actions.push(Action::Step);
        }
        if state.calls == self.calls {
            return;
        }
        if state.waiting.len() < self.waiting {
            actions.extend((0..KINDS.len()).map(Action::Join));
        }
        actions.extend((0..state.waiting.len()).map(Action::Leave));
        actions.extend([FIRST, OTHER].map(Action::Call));
        actions.extend(
            [FIRST, OTHER].into_iter().filter(|limiter| state.keys[*limiter].is_some()).map(Action::Refund),
        );
        if state.settled.is_none() && !state.waiting.is_empty() {
            actions.extend([(0, -1), (1, 1)].map(|(flow, units)| Action::Settle(flow, units)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.calls += u8::from(!matches!(action, Action::Step | Action::Tick));
        match action {
            Action::Tick => state.pass(1),
            Action::Step => drop(self.step(&mut state)),
            Action::Join(kind) => self.join(&mut state, kind),
            Action::Leave(place) => {
                let ticket = state.waiting[place].ticket;
                if !self.has(Defect::LeaveIsNotTold) {
                    state.queue.leave(ticket);
                }
                state.leaves(ticket);
            }
            Action::Call(limiter) => self.call(&mut state, limiter),
            Action::Refund(limiter) => {
                let limit = &self.limits[limiter];
                let decision = gcra::refund(state.keys[limiter], limit, state.now(), 1).unwrap();
                state.gives_back(limiter, 1);
                self.write(&mut state, [(limiter, decision)]);
            }
            Action::Settle(flow, difference) => self.settle(&mut state, flow, difference),
        }
        state.lead = if self.are_both_ready(&state) { Some(state.lead.unwrap_or_default()) } else { None };
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BOUND, |_, state: &State| {
                // A settlement charges whatever the limit.
                let charged = [state.settled.map_or(0, |difference| difference.max(0)), 0];
                [FIRST, OTHER].into_iter().all(|limiter| {
                    let units = (CAPACITIES[limiter] + charged[limiter]) * SECONDS[limiter];
                    state.meters[limiter].level <= units.unsigned_abs() * UNIT
                })
            }),
            Property::always(CHARGED, |_, state: &State| {
                [FIRST, OTHER].into_iter().all(|limiter| state.meters[limiter].level == state.debt(limiter))
            }),
            Property::always(KNOWN, |_, state: &State| {
                let waiting = |flow| state.waiting.iter().filter(|waiter| waiter.flow() == flow).count();
                [0, 1].into_iter().all(|flow| state.queue.clients_of(FLOWS[flow].0) == waiting(flow))
            }),
            Property::always(FORGOTTEN, |_, state: &State| {
                state.waiting.is_empty() || state.look < Instant::MAX
            }),
            Property::always(ENDS, |world: &Self, state: &State| {
                state.waiting.is_empty() || world.turns(state).is_some()
            }),
            Property::always(HELD_UP, |world: &Self, state: &State| !world.holds_up(state)),
            Property::always(PROMPT, |world: &Self, state: &State| !world.is_late(state)),
            Property::always(ORDER, |_, state: &State| state.broken != Some(ORDER)),
            Property::always(FAIR, |_, state: &State| state.broken != Some(FAIR)),
            Property::always(DELAYED, |_, state: &State| state.broken != Some(DELAYED)),
            Property::always(COUNTED, Self::counts_right),
            Property::sometimes(
                "two flows that are ready differ by as much as they may",
                |_, state: &State| state.lead.is_some_and(|lead| (lead.most - lead.least) >= 2 * SCALE),
            ),
            Property::sometimes("a client is not ready, and one that came later is", Self::passes_one),
            Property::sometimes("a client that was ready is not any more at its turn", Self::has_lapsed),
            Property::sometimes("the server looks late", |_, state: &State| {
                state.look < state.now() && state.waiting.len() > 1
            }),
        ]
    }
}
