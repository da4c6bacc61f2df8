//! One key of `CL.THROTTLE` and its queue: [`queue`](redis_cell_core::queue) over
//! [`gcra`](redis_cell_core::gcra).
//!
//! Clients wait, leave, call without waiting by the same limit and by a larger one, book, charge, give back
//! and pause, in any order. The queue is served when a turn has come or any number of ticks later: a timer
//! that is late, a process that stands still. Queue and clients are lost once, as in a failover, while the
//! key is not.

use redis_cell_core::gcra::{self, Booking, Limit, Tat};
use redis_cell_core::queue::{Joined, Queue, Ticket, Turn};
use redis_cell_core::{Decision, Span, Unit, Verdict};
use stateright::{Model, Property};

use crate::{Meter, Size, UNIT, after, at, offset, span};

/// The two limits, with the same rate: the one by which clients wait, and a larger one.
const CAPACITIES: [i64; 2] = [2, 3];

/// A mistake of the caller of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// None.
    None,
    /// The decision of a turn is not written.
    WriteIsLost,
    /// The decision of a turn is written twice.
    WritesTwice,
    /// A call that does not wait is decided by the key, without the queue.
    IgnoresQueue,
    /// The queue is not told of a booking.
    BookingIsNotTold,
    /// The queue is not told of a pause.
    PauseIsNotTold,
    /// A client whose timer is late goes to the end of the queue.
    ToTheEnd,
    /// The clients stay when the queue is lost.
    Forgets,
    /// A booking acts a tick before its time.
    ActsEarly,
    /// A timeout begins a tick before the call.
    BeginsEarly,
}

impl Defect {
    /// All defects except none, each with a property that it breaks.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::WriteIsLost, CHARGED),
        (Self::WritesTwice, CHARGED),
        (Self::IgnoresQueue, DELAYED),
        (Self::BookingIsNotTold, DELAYED),
        (Self::PauseIsNotTold, PAUSED),
        (Self::ToTheEnd, ORDER),
        (Self::Forgets, FORGOTTEN),
        (Self::ActsEarly, BOUND),
        (Self::BeginsEarly, TIMEOUT),
    ];
}

const BOUND: &str = "never more than the bound, by either limit";
const FORGOTTEN: &str = "nobody is forgotten: if nothing more happens, all clients are admitted";
const ORDER: &str = "clients that wait are admitted in the order of arrival";
const DELAYED: &str = "a client that comes later or leaves delays none that waits";
const PAUSED: &str = "nobody is admitted by its limit during a pause";
const CHARGED: &str = "a turn charges what the queue has counted for it, exactly once";
const TIMEOUT: &str =
    "a client is refused because of its timeout if its turn would come later, and only then";

/// The model.
#[derive(Clone, Debug)]
pub struct World {
    defect: Defect,
    /// The clients' calls of all kinds.
    calls: u8,
    ticks: u8,
    /// The length of a tick.
    tick: u64,
    limits: [Limit; 2],
}

/// A client that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    /// A number in the order of arrival.
    client: u8,
    ticket: Ticket,
    limit: usize,
    quantity: i64,
}

/// The state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    queue: Queue,
    key: Option<Tat>,
    tick: u8,
    calls: u8,
    clients: u8,
    waiting: Vec<Waiter>,
    /// Bookings that have not acted: when they will act, and their units.
    booked: Vec<(u64, i64)>,
    /// The buckets into which units flow when they act: one for the smaller limit, one for both.
    meters: [Meter; 2],
    /// The time that was given back.
    refunded: u64,
    paused: Option<u64>,
    last_served: Option<u8>,
    was_lost: bool,
    /// The queue was served late, or a turn has come and was not served yet.
    late: bool,
    admitted_in_room: bool,
    broken: Option<&'static str>,
}

/// An action of the model. Limits are named by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client waits by a limit for a quantity, as in `CL.BTHROTTLE`.
    Join(usize, i64),
    /// The waiting client with this index leaves.
    Leave(usize),
    /// A call by a limit that does not wait: `CL.THROTTLE`.
    Call(usize, i64),
    /// `CL.RESERVE`.
    Reserve(i64),
    /// `CL.CHARGE`.
    Charge,
    /// `CL.REFUND`.
    Refund,
    /// `CL.PAUSE`, for the time of one and a half units.
    Pause,
    /// The queue is served.
    Serve,
    /// Time passes.
    Tick,
    /// The queue is lost, and its clients with it.
    Lose,
}

impl World {
    /// The model of this size.
    pub fn new(size: Size, defect: Defect) -> Self {
        let (calls, ticks, tick) = match size {
            Size::Short => (5, 5, UNIT),
            Size::Long => (7, 5, UNIT),
        };
        let limits = CAPACITIES.map(|capacity| Limit::new(capacity - 1, 1, 1, Unit::Seconds).unwrap());
        Self { defect, calls, ticks, tick, limits }
    }

    fn now(&self, state: &State) -> u64 {
        u64::from(state.tick) * self.tick
    }

    /// When each client that waits is admitted, if nothing more happens; `None` if one never is.
    fn turns(&self, state: &State) -> Option<Vec<(Ticket, u64)>> {
        let (mut queue, mut key, mut now) = (state.queue.clone(), state.key, self.now(state));
        let mut turns = Vec::new();
        loop {
            match queue.turn(key, at(now)) {
                Turn::Admitted(ticket, decision) => {
                    key = after(&decision, key);
                    turns.push((ticket, now));
                }
                Turn::Failed(..) => return None,
                Turn::NotYet => match queue.next_turn(key, at(now)) {
                    None => return Some(turns),
                    // A turn that has come and is not served, or a wait without an end.
                    Some(Span::ZERO) => return None,
                    Some(_) if now > 1_000 * UNIT => return None,
                    Some(wait) => now += wait.as_nanos(),
                },
            }
        }
    }

    /// Whether every client that waited before still waits, and not longer.
    fn delays_nobody(&self, before: &State, after: &State, left: Option<Ticket>) -> bool {
        let (Some(before), Some(after)) = (self.turns(before), self.turns(after)) else { return true };
        let turn = |ticket: Ticket| after.iter().find(|(other, _)| *other == ticket).map(|&(_, at)| at);
        let mut others = before.iter().filter(|(ticket, _)| Some(*ticket) != left);
        others.all(|&(ticket, at)| turn(ticket).is_some_and(|then| then <= at))
    }

    /// Whether a client that would wait, and does so in `after`, is refused if its timeout ends before its
    /// turn, and only then.
    fn is_timeout_exact(&self, before: &State, after: &State, client: Waiter) -> bool {
        let Some((_, turn)) = self.turns(after).and_then(|turns| turns.last().copied()) else { return true };
        let now = self.now(before);
        let begun = if self.defect == Defect::BeginsEarly { self.tick } else { 0 };
        let waits = |timeout: u64| {
            let timeout = Some(span(timeout.saturating_sub(begun)));
            let joined = before.queue.clone().join(
                before.key,
                &self.limits[client.limit],
                at(now),
                client.quantity,
                timeout,
            );
            joined.unwrap() == Joined::Waiting(client.ticket)
        };
        waits(turn - now) && (turn == now || !waits(turn - now - 1))
    }

    /// A call that does not wait, decided on the state that the queue returns for it.
    fn behind(&self, state: &mut State, decide: impl Fn(Option<Tat>) -> Decision<Tat>) -> Decision<Tat> {
        let now = at(self.now(state));
        if self.defect == Defect::IgnoresQueue {
            let decision = decide(state.key);
            state.key = after(&decision, state.key);
            return decision;
        }
        let mut decision = decide(state.queue.seen(state.key, now).unwrap());
        let told = self.defect != Defect::BookingIsNotTold
            || !matches!(decision.answer.verdict, Verdict::Booked(wait) if wait > Span::ZERO);
        if told {
            state.queue.took(now, &mut decision).unwrap();
        }
        state.key = after(&decision, state.key);
        decision
    }

    /// Units act by a limit.
    fn act(&self, state: &mut State, limit: usize, units: i64) {
        let now = self.now(state);
        // A pause ends by the limit that it names. By a larger one there may be room before.
        if limit == 0 && state.paused.is_some_and(|until| now < until) {
            state.broken = Some(PAUSED);
        }
        for meter in &mut state.meters[limit..] {
            meter.acts(now, units);
        }
    }

    fn serve(&self, state: &mut State) {
        let now = self.now(state);
        if self.defect == Defect::ToTheEnd && state.late && state.waiting.len() > 1 {
            let first = state.waiting.remove(0);
            state.queue.dismiss();
            let joined =
                state.queue.join(state.key, &self.limits[first.limit], at(now), first.quantity, None);
            match joined.unwrap() {
                Joined::Waiting(ticket) => state.waiting.push(Waiter { ticket, ..first }),
                Joined::Decided(decision) => state.key = after(&decision, state.key),
                Joined::TooLate => panic!("too late for a client without a timeout"),
            }
        }
        loop {
            let counted = |queue: &Queue, key| {
                let seen = queue.clone().seen(key, at(now)).unwrap();
                seen.map_or(now, offset).max(now)
            };
            let before = counted(&state.queue, state.key);
            match state.queue.turn(state.key, at(now)) {
                Turn::Admitted(ticket, decision) => {
                    if decision.change.is_keep() {
                        state.admitted_in_room = true;
                    }
                    if self.defect != Defect::WriteIsLost {
                        state.key = after(&decision, state.key);
                    }
                    let first = state.waiting.remove(0);
                    if self.defect == Defect::WritesTwice {
                        let again =
                            gcra::charge(state.key, &self.limits[0], at(now), first.quantity).unwrap();
                        state.key = after(&again, state.key);
                    }
                    if counted(&state.queue, state.key) != before {
                        state.broken = Some(CHARGED);
                    }
                    if ticket != first.ticket || state.last_served.is_some_and(|last| first.client < last) {
                        state.broken = Some(ORDER);
                    }
                    state.last_served = Some(first.client);
                    self.act(state, first.limit, first.quantity);
                }
                Turn::Failed(_, error) => panic!("{error}"),
                Turn::NotYet => break,
            }
        }
        state.late = false;
    }

    fn tick(&self, state: &mut State) {
        let turn_had_come = state.queue.next_turn(state.key, at(self.now(state))) == Some(Span::ZERO);
        state.late |= turn_had_come;
        let before = self.now(state);
        state.tick += 1;
        let now = self.now(state);
        if state.paused.is_some_and(|until| until <= now) {
            state.paused = None;
        }
        let early = if self.defect == Defect::ActsEarly { self.tick } else { 0 };
        let due = |acts: u64| acts <= now + early;
        // A booking acts at its time, also during a pause that came later.
        for &(acts, quantity) in state.booked.iter().filter(|(acts, _)| due(*acts)) {
            let acts = acts.saturating_sub(early).max(before);
            state.meters.iter_mut().for_each(|meter| meter.acts(acts, quantity));
        }
        state.booked.retain(|(acts, _)| !due(*acts));
        state.meters.iter_mut().for_each(|meter| meter.pass(now));
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            queue: Queue::default(),
            key: None,
            tick: 0,
            calls: 0,
            clients: 0,
            waiting: Vec::new(),
            booked: Vec::new(),
            meters: [Meter::default(); 2],
            refunded: 0,
            paused: None,
            last_served: None,
            was_lost: false,
            late: false,
            admitted_in_room: false,
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
        if state.queue.clone().next_turn(state.key, at(self.now(state))) == Some(Span::ZERO) {
            actions.push(Action::Serve);
        }
        if state.calls == self.calls {
            return;
        }
        actions.extend([Action::Join(0, 1), Action::Join(0, 2), Action::Join(1, 3)]);
        actions.extend((0..state.waiting.len()).map(Action::Leave));
        actions.extend([Action::Call(0, 1), Action::Call(0, 2), Action::Call(1, 1), Action::Call(1, 3)]);
        actions.extend([1, 2].map(Action::Reserve));
        actions.push(Action::Charge);
        if state.key.is_some() && state.refunded == 0 {
            actions.push(Action::Refund);
        }
        if state.paused.is_none() {
            actions.push(Action::Pause);
        }
        if !state.was_lost && !state.waiting.is_empty() {
            actions.push(Action::Lose);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let (now, small) = (self.now(last), &self.limits[0]);
        state.calls += u8::from(!matches!(action, Action::Serve | Action::Tick));
        let mut left = None;
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Serve => self.serve(&mut state),
            Action::Join(limit, quantity) => {
                match state.queue.join(state.key, &self.limits[limit], at(now), quantity, None).unwrap() {
                    Joined::Decided(decision) => {
                        state.key = after(&decision, state.key);
                        self.act(&mut state, limit, quantity);
                    }
                    Joined::Waiting(ticket) => {
                        let waiter = Waiter { client: state.clients, ticket, limit, quantity };
                        state.waiting.push(waiter);
                        state.clients += 1;
                        // What a refund leaves of the room before a booking may serve a client earlier
                        // than the queue expects.
                        if last.refunded == 0 && !self.is_timeout_exact(last, &state, waiter) {
                            state.broken = Some(TIMEOUT);
                        }
                    }
                    Joined::TooLate => panic!("too late for a client without a timeout"),
                }
            }
            Action::Leave(place) => {
                let waiter = state.waiting.remove(place);
                state.queue.leave(waiter.ticket);
                left = Some(waiter.ticket);
            }
            Action::Call(limit, quantity) => {
                let call = |tat| gcra::throttle(tat, &self.limits[limit], at(now), quantity).unwrap();
                if !self.behind(&mut state, call).answer.limited() {
                    self.act(&mut state, limit, quantity);
                }
            }
            Action::Reserve(quantity) => {
                let call = |tat| gcra::reserve(tat, small, at(now), quantity, Booking::default()).unwrap();
                match self.behind(&mut state, call).answer.verdict {
                    Verdict::Booked(Span::ZERO) => self.act(&mut state, 0, quantity),
                    Verdict::Booked(wait) => {
                        state.booked.push((now + wait.as_nanos(), quantity));
                        state.booked.sort_unstable();
                    }
                    other => panic!("{other:?} of a booking without a longest wait"),
                }
            }
            Action::Charge => {
                state.queue.saw(state.key, at(now));
                let decision = gcra::charge(state.key, small, at(now), 1).unwrap();
                state.queue.charged(at(now), &decision);
                state.key = after(&decision, state.key);
            }
            Action::Refund => {
                let debt = |key: Option<Tat>| key.map_or(0, |tat| tat.since(at(now)).as_nanos());
                let decision = gcra::refund(state.key, small, at(now), 1).unwrap();
                state.key = after(&decision, state.key);
                state.refunded += debt(last.key) - debt(state.key);
                state.paused = None;
            }
            Action::Pause => {
                let pause = |tat| gcra::pause(tat, small, at(now), span(3 * UNIT / 2)).unwrap();
                let decision = if self.defect == Defect::PauseIsNotTold {
                    pause(state.key)
                } else {
                    state.queue.pause(state.key, at(now), |tat| Ok(pause(tat))).unwrap()
                };
                state.key = after(&decision, state.key);
                state.paused = Some(now + 3 * UNIT / 2);
            }
            Action::Lose => {
                state.queue = Queue::default();
                if self.defect != Defect::Forgets {
                    state.waiting.clear();
                }
                state.was_lost = true;
            }
        }
        let comes_or_leaves =
            matches!(action, Action::Join(..) | Action::Call(..) | Action::Reserve(_) | Action::Leave(_));
        if comes_or_leaves && !last.waiting.is_empty() && !self.delays_nobody(last, &state, left) {
            state.broken = Some(DELAYED);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BOUND, |_, state: &State| {
                // A place in a room may be a tenth of a unit's time late.
                let limits = CAPACITIES.map(|capacity| capacity.unsigned_abs() * UNIT);
                let room = |limit: u64| limit + state.refunded + UNIT / 10;
                limits.into_iter().zip(state.meters).all(|(limit, meter)| meter.level <= room(limit))
            }),
            Property::always(FORGOTTEN, |world: &Self, state: &State| {
                let turns = world.turns(state);
                let tickets = turns.into_iter().flatten().map(|(ticket, _)| ticket);
                tickets.eq(state.waiting.iter().map(|waiter| waiter.ticket))
            }),
            Property::always(ORDER, |_, state: &State| state.broken != Some(ORDER)),
            Property::always(DELAYED, |_, state: &State| state.broken != Some(DELAYED)),
            Property::always(PAUSED, |_, state: &State| state.broken != Some(PAUSED)),
            Property::always(CHARGED, |_, state: &State| state.broken != Some(CHARGED)),
            Property::always(TIMEOUT, |_, state: &State| state.broken != Some(TIMEOUT)),
            Property::sometimes("a client is admitted to a room", |_, state: &State| state.admitted_in_room),
            Property::sometimes("the queue is served late", |_, state: &State| {
                state.late && state.waiting.len() > 1
            }),
            Property::sometimes("a client waits behind a booking", |_, state: &State| {
                !state.booked.is_empty() && state.waiting.len() > 1
            }),
        ]
    }
}
