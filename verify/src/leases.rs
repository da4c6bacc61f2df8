//! Clients that lease units of one key: [`holding`](redis_cell_core::holding) and a server that decides by
//! [`gcra`](redis_cell_core::gcra), with a replica behind it, or by [`fixed`](redis_cell_core::fixed)
//! windows.
//!
//! Calls and answers travel, arrive late or get lost. A client crashes. The server's state reaches the
//! replica at times, and once the replica takes over: the units of which it has not received the state are
//! forgotten, and the bound grows by these units and no others. Windows end and open again; they have no
//! replica, because a failover forgets units of windows as it forgets others.
//!
//! One assumption of the essay holds here too: units that a client gives back reach the server within
//! [`Terms::reply`], or never.

use core::hash::{BuildHasher, BuildHasherDefault};
use std::hash::DefaultHasher;

use redis_cell_core::fixed::{self, Counter};
use redis_cell_core::gcra::{self, Tat};
use redis_cell_core::holding::{Holding, Spend, Terms};
use redis_cell_core::{Instant, Rate, Span, Taken, Unit};
use stateright::{Model, Property};

use crate::{Meter, Size, UNIT, after, at, span};

/// `max_burst + 1`.
const LIMIT: i64 = 2;
/// The most units that a client holds.
const MOST: i64 = 2;
/// How long a batch stays valid, in ticks. A tick brings one unit.
const HOLD: u64 = 2;
/// How long a window lasts, in ticks: as long as a batch that opens it, and less than one that comes later.
const WINDOW: i64 = 2;
/// The units of a window: more than the first batch takes.
const UNITS: i64 = MOST + 1;
/// How long a client waits for an answer, in ticks.
const REPLY: u64 = 1;
/// How long a message travels at most, in ticks.
const TRAVEL: u8 = 2;

/// A mistake of a client or of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// None.
    None,
    /// A batch stays valid for a tick longer.
    LongerHold,
    /// The hold counts from the answer, not from the call.
    HoldFromAnswer,
    /// Units that are given back can be spent as well.
    SpendsTwice,
    /// A client does not notice that an answer is lost.
    WaitsForever,
    /// A client requests one unit more than it may hold.
    AsksForMore,
    /// More units are forgotten in a failover than the replica has missed.
    ForgetsAll,
    /// A batch outlives the window from which it was taken.
    OutlivesWindow,
}

impl Defect {
    /// All defects except none, each with a property that it breaks.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::LongerHold, BY_HOLD),
        (Self::HoldFromAnswer, BY_HOLD),
        (Self::SpendsTwice, COVERED),
        (Self::WaitsForever, FORGOTTEN),
        (Self::AsksForMore, HELD),
        (Self::ForgetsAll, BY_HOLD),
        (Self::OutlivesWindow, BY_WINDOW),
    ];
}

const BY_HOLD: &str = "never more than the bound, L + W * r + h * r, and what a failover forgets";
const BY_WINDOW: &str = "a unit of a window is spent while that window lasts, never more than L of them";
const COVERED: &str = "no unit is spent that the server has not handed out, and none twice";
const FORGOTTEN: &str = "nobody is forgotten: a client that goes on asking is served";
const HELD: &str = "no client has more than it may in its batches, requested and on their way back";

/// The model.
#[derive(Clone, Debug)]
pub struct World {
    defect: Defect,
    calls: u8,
    ticks: u8,
    spends_all: bool,
    limit: gcra::Limit,
    window: fixed::Limit,
    terms: Terms,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    Take { units: i64 },
    Taken { units: i64, wait: Option<Span>, lasts: Option<Span> },
    GiveBack { units: i64, age: Span },
}

/// A message, when it was sent, and to which call of the client it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    tick: u8,
    call: u8,
    message: Message,
}

/// A call for units, or with units, whose answer has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    call: u8,
    tick: u8,
    units: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    holding: Holding,
    messages: Vec<Sent>,
    /// The call for units whose answer it waits for.
    asked: Option<Waiting>,
    /// The same for the units that it gives back.
    returning: Option<Waiting>,
    calls: u8,
    /// The units that it was handed, has not spent and has not given back.
    hand: i64,
}

/// What the server stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Tat(Option<Tat>),
    Counter(Option<Counter>),
}

impl Key {
    const fn is_window(self) -> bool {
        matches!(self, Self::Counter(_))
    }
}

/// The state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    key: Key,
    replica: Key,
    tick: u8,
    calls: u8,
    clients: [Client; 2],
    crashed: bool,
    failed_over: bool,
    /// The time of the units that the failover has forgotten.
    forgotten: u64,
    spent: Meter,
    /// The end of the window in which units were spent last, and how many; and the number of such windows.
    spent_in: (Instant, i64),
    windows: u8,
    came_back: bool,
}

/// An action of the model, by a client or about its messages. A lost message is one that never arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The client requests units, if it should.
    Ask(usize),
    /// The client spends a unit; in the short form, all units that it can.
    Spend(usize),
    /// The client ends its batches, and gives back the units that may go back.
    End(usize),
    /// The client gives back the units that it should.
    GiveBack(usize),
    /// The client's message with this index arrives.
    Arrive(usize, usize),
    /// The client crashes, and another one takes its place.
    Crash(usize),
    /// The replica receives all writes.
    Replicate,
    /// The replica takes over.
    FailOver,
    /// Time passes.
    Tick,
}

impl World {
    /// The model of this size.
    pub fn new(size: Size, defect: Defect) -> Self {
        let (calls, ticks) = match size {
            Size::Short => (3, 3),
            Size::Long => (4, 4),
        };
        let limit = gcra::Limit::new(LIMIT - 1, 1, 1, Unit::Seconds).unwrap();
        let window = fixed::Limit::new(UNITS, WINDOW, Unit::Seconds).unwrap();
        let hold = HOLD + u64::from(defect == Defect::LongerHold);
        let terms = Terms {
            rate: Some(Rate::new(1, 1, Unit::Seconds).unwrap()),
            least: 1,
            most: MOST,
            hold: span(hold * UNIT),
            reply: span(REPLY * UNIT),
        };
        Self { defect, calls, ticks, spends_all: size == Size::Short, limit, window, terms }
    }

    /// The terms of clients of this key.
    fn terms(&self, key: Key) -> Terms {
        Terms { rate: self.terms.rate.filter(|_| !key.is_window()), ..self.terms }
    }

    fn now(state: &State) -> u64 {
        u64::from(state.tick) * UNIT
    }

    fn spend(&self, state: &mut State, client: usize) -> bool {
        let (now, terms) = (Self::now(state), self.terms(state.key));
        let one = &mut state.clients[client];
        if one.holding.spend(&terms, at(now), 1) != Spend::Spent {
            return false;
        }
        one.hand -= 1;
        let Key::Counter(window) = state.key else {
            state.spent.acts(now, 1);
            return true;
        };
        // A unit that is spent in no window is one too many.
        let open =
            window.filter(|window| at(now) < window.end).map_or((Instant::MAX, UNITS), |open| (open.end, 0));
        if state.spent_in.0 != open.0 {
            state.spent_in = open;
            state.windows += 1;
        }
        state.spent_in.1 += 1;
        true
    }

    fn ask(&self, state: &mut State, client: usize, wanted: i64) -> Option<Sent> {
        let tick = state.tick;
        let late = if self.defect == Defect::HoldFromAnswer { REPLY * UNIT } else { 0 };
        let now = at(Self::now(state) + late);
        let mut terms = self.terms(state.key);
        if self.defect == Defect::AsksForMore {
            terms.most += 1;
        }
        let client = &mut state.clients[client];
        let units = client.holding.ask(&terms, now, wanted)?;
        client.calls += 1;
        client.asked = Some(Waiting { call: client.calls, tick, units });
        Some(Sent { tick, call: client.calls, message: Message::Take { units } })
    }

    fn give_back(&self, state: &mut State, client: usize) {
        let (tick, now, terms) = (state.tick, at(Self::now(state)), self.terms(state.key));
        let client = &mut state.clients[client];
        let Some((units, age)) = client.holding.give_back(&terms, now) else { return };
        client.calls += 1;
        client.returning = Some(Waiting { call: client.calls, tick, units });
        client.messages.push(Sent { tick, call: client.calls, message: Message::GiveBack { units, age } });
        // The rest of the batch is dropped.
        client.hand = (client.hand - units).min(client.holding.held());
    }

    fn arrive(&self, state: &mut State, client: usize, sent: Sent) {
        let now = at(Self::now(state));
        let answer = |message| Sent { message, tick: state.tick, ..sent };
        match sent.message {
            Message::Take { units } => {
                let given = match &mut state.key {
                    Key::Tat(tat) => {
                        let decision = gcra::saturate(*tat, &self.limit, now, units).unwrap();
                        *tat = after(&decision, *tat);
                        decision.answer
                    }
                    Key::Counter(counter) => {
                        let decision = fixed::saturate(*counter, &self.window, now, units).unwrap();
                        *counter = after(&decision, *counter);
                        decision.answer
                    }
                };
                let (units, wait) = (given.taken.unwrap(), given.verdict.wait().filter(|_| given.limited()));
                let lasts = state.key.is_window() && self.defect != Defect::OutlivesWindow;
                let lasts = lasts.then_some(given.reset_after);
                let answer = answer(Message::Taken { units, wait, lasts });
                state.clients[client].messages.push(answer);
            }
            Message::GiveBack { units, age } => {
                let before = state.key;
                match &mut state.key {
                    Key::Tat(tat) => {
                        *tat = after(&gcra::refund(*tat, &self.limit, now, units).unwrap(), *tat);
                    }
                    Key::Counter(counter) => {
                        let taken = Taken { age, reset_after: None, unit: Unit::Microseconds };
                        let decision =
                            fixed::settle(*counter, &self.window, now, -units, Some(&taken)).unwrap();
                        *counter = after(&decision, *counter);
                    }
                }
                state.came_back |= state.key != before;
                // Its answer has the same effect as no answer.
                let client = &mut state.clients[client];
                if client.returning.is_some_and(|own| own.call == sent.call) {
                    client.returning = None;
                    client.holding.returned();
                }
            }
            Message::Taken { units, wait, lasts } => {
                let terms = self.terms(state.key);
                let client = &mut state.clients[client];
                if client.asked.is_some_and(|own| own.call == sent.call) {
                    client.asked = None;
                    client.holding.answered(&terms, now, units, wait, lasts);
                    client.hand += units;
                }
            }
        }
    }

    /// Lets time pass, and lets clients notice lost messages.
    fn tick(&self, state: &mut State) {
        state.tick += 1;
        let (tick, now, terms) = (state.tick, Self::now(state), self.terms(state.key));
        let is_late = |sent: u8| u64::from(tick - sent) > REPLY;
        for client in &mut state.clients {
            if self.defect != Defect::WaitsForever && client.asked.is_some_and(|own| is_late(own.tick)) {
                client.asked = None;
                client.holding.lost(&terms, at(now));
            }
            if client.returning.is_some_and(|own| is_late(own.tick)) {
                client.returning = None;
                client.holding.returned();
            }
            client.messages.retain(|sent| match sent.message {
                Message::GiveBack { .. } => !is_late(sent.tick),
                Message::Take { .. } | Message::Taken { .. } => tick - sent.tick <= TRAVEL,
            });
        }
        state.spent.pass(now);
    }

    /// Whether a client that continues to call is served, if no more messages are lost.
    fn is_served(&self, state: &State, client: usize) -> bool {
        let mut state = state.clone();
        state.clients.iter_mut().for_each(|client| client.messages.clear());
        for _ in 0..30 {
            if self.spend(&mut state, client) {
                return true;
            }
            let (now, terms) = (at(Self::now(&state)), self.terms(state.key));
            let holding = &mut state.clients[client].holding;
            if holding.give_back(&terms, now).is_some() {
                holding.returned();
            }
            if let Some(call) = self.ask(&mut state, client, 1) {
                self.arrive(&mut state, client, call);
                let answer = state.clients[client].messages.pop().unwrap();
                self.arrive(&mut state, client, answer);
                continue;
            }
            self.tick(&mut state);
        }
        false
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        [Key::Tat(None), Key::Counter(None)]
            .map(|key| State {
                key,
                replica: key,
                tick: 0,
                calls: 0,
                clients: Default::default(),
                crashed: false,
                failed_over: false,
                forgotten: 0,
                spent: Meter::default(),
                spent_in: (Instant::MAX, UNITS),
                windows: 0,
                came_back: false,
            })
            .into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.tick < self.ticks {
            actions.push(Action::Tick);
        }
        if state.key != state.replica && !state.key.is_window() {
            actions.push(Action::Replicate);
            if !state.failed_over {
                actions.push(Action::FailOver);
            }
        }
        for (index, client) in state.clients.iter().enumerate() {
            for message in 0..client.messages.len() {
                actions.push(Action::Arrive(index, message));
            }
            actions.push(Action::Spend(index));
            if state.calls < self.calls {
                actions.extend([Action::Ask(index), Action::GiveBack(index)]);
                if client.holding.held() > 0 {
                    actions.push(Action::End(index));
                }
                if !state.crashed {
                    actions.push(Action::Crash(index));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Ask(client) => {
                let call =
                    self.ask(&mut state, client, MOST + i64::from(self.defect == Defect::AsksForMore))?;
                state.clients[client].messages.push(call);
                state.calls += 1;
            }
            Action::Spend(client) => {
                if !self.spend(&mut state, client) {
                    return None;
                }
                while self.spends_all && self.spend(&mut state, client) {}
            }
            Action::End(client) => {
                let before = state.clients[client].holding;
                state.clients[client].holding.end(&self.terms(last.key), at(Self::now(last)));
                self.give_back(&mut state, client);
                state.calls += 1;
                if self.defect == Defect::SpendsTwice {
                    state.clients[client].holding = before;
                }
            }
            Action::GiveBack(client) => {
                self.give_back(&mut state, client);
                if state == *last {
                    return None;
                }
            }
            Action::Arrive(client, message) => {
                let sent = state.clients[client].messages.remove(message);
                self.arrive(&mut state, client, sent);
            }
            Action::Crash(client) => {
                let from_client =
                    |sent: &Sent| matches!(sent.message, Message::Take { .. } | Message::GiveBack { .. });
                let client = &mut state.clients[client];
                client.messages.retain(from_client);
                *client = Client {
                    messages: core::mem::take(&mut client.messages),
                    calls: client.calls,
                    ..Client::default()
                };
                state.crashed = true;
            }
            Action::Replicate => state.replica = state.key,
            Action::FailOver => {
                let debt = |key: Key| match key {
                    Key::Tat(Some(tat)) => tat.since(at(Self::now(last))).as_nanos(),
                    _ => 0,
                };
                state.forgotten = debt(state.key).saturating_sub(debt(state.replica));
                state.key = if self.defect == Defect::ForgetsAll { Key::Tat(None) } else { state.replica };
                state.replica = state.key;
                state.failed_over = true;
            }
            Action::Tick => self.tick(&mut state),
        }
        // An answer that no client waits for is ignored.
        for client in &mut state.clients {
            let awaited = |call: u8| client.asked.is_some_and(|own| own.call == call);
            let is_taken = |sent: &Sent| matches!(sent.message, Message::Taken { .. });
            client.messages.retain(|sent| !is_taken(sent) || awaited(sent.call));
        }
        // The clients are interchangeable: their order does not matter.
        let [one, other] = state
            .clients
            .each_ref()
            .map(|client| BuildHasherDefault::<DefaultHasher>::default().hash_one(client));
        if one > other {
            state.clients.swap(0, 1);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BY_HOLD, |_, state: &State| {
                // The last tick in which a batch is spent is the one before its hold is over.
                state.spent.level <= (LIMIT.unsigned_abs() + HOLD - 1) * UNIT + state.forgotten
            }),
            Property::always(BY_WINDOW, |_, state: &State| state.spent_in.1 <= UNITS),
            Property::always(COVERED, |_, state: &State| {
                state.clients.iter().all(|client| client.hand >= client.holding.held())
            }),
            Property::always(HELD, |_, state: &State| {
                state.clients.iter().all(|client| {
                    let waiting = [client.asked, client.returning].into_iter().flatten();
                    client.holding.held() + waiting.map(|own| own.units).sum::<i64>() <= MOST
                })
            }),
            Property::always(FORGOTTEN, |world: &Self, state: &State| {
                (0..state.clients.len()).all(|client| world.is_served(state, client))
            }),
            Property::sometimes("a failover forgets units", |_, state: &State| state.forgotten > 0),
            Property::sometimes("more is spent than the limit alone allows", |_, state: &State| {
                state.spent.level > LIMIT.unsigned_abs() * UNIT
            }),
            Property::sometimes("units come back", |_, state: &State| {
                state.came_back && !state.key.is_window()
            }),
            Property::sometimes("units come back to a window", |_, state: &State| {
                state.came_back && state.key.is_window()
            }),
            Property::sometimes("a window that is not the first is used up", |_, state: &State| {
                let (end, units) = state.spent_in;
                units == UNITS && end < Instant::MAX && state.windows > 1
            }),
        ]
    }
}
