//! `CL.MTAKE` and `CL.MSETTLE` with `ONCE`, repeated by clients that have not received a reply:
//! [`several`](redis_cell_core::several) over [`gcra`](redis_cell_core::gcra) and
//! [`fixed`](redis_cell_core::fixed), and a server with a replica behind it.
//!
//! Calls and replies travel, get lost, and arrive late and twice. Each call takes from two limiters. One
//! client settles the units that it took. The server's keys reach the replica at times, all of one call
//! together, and once the replica takes over.
//!
//! A call has the steps of `Request::carry_out` in src/calls/many/transaction.rs where no other module is
//! loaded: a stored reply is the answer; otherwise all limiters are decided, and if none refuses, all are
//! written and then the reply. The core's own function parses its text, and it decides everything else.
//! Only the order of these steps, and the formatting of the text, are the model's own.
//!
//! One assumption: no call is repeated, and none arrives, later than the period after it was first sent.

use redis_cell_core::fixed::{self, Counter};
use redis_cell_core::gcra::{self, Tat};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::several::{self, Keyword, Options, Row};
use redis_cell_core::{Instant, Unit};
use stateright::{Model, Property};

use crate::{Meter, Size, UNIT, after, at};

/// The units of the two limiters at once.
const LIMITS: [i64; 2] = [3, 4];

/// The ticks for which a reply is stored.
const PERIOD: u8 = 3;

/// The calls, each repeated until there is a reply: the quantities of two calls that take, and a settlement
/// of the first.
const CALLS: [[i64; 2]; 3] = [[2, 2], [2, 2], [-1, 1]];

/// The call that settles the first.
const SETTLEMENT: usize = 2;

/// A mistake of the server or of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// None.
    None,
    /// No reply is stored.
    ForgetsReply,
    /// The reply is stored for a shorter time than calls are repeated.
    ShortPeriod,
    /// Two calls have the same key.
    SameKey,
    /// The first limiter is written before the second is decided.
    WritesAtOnce,
    /// The reply reaches the replica before the states.
    ReplyIsFirst,
    /// The reply of a refused call is stored.
    StoresRefusal,
    /// The stored reply is not the reply of the call.
    WrongRow,
    /// A call is charged whether it fits or not, like a settlement.
    Overdraws,
    /// A call that was carried out before gets no reply.
    DropsRepeated,
}

impl Defect {
    /// All defects except none, each with a property that it breaks.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::ForgetsReply, CHARGED),
        (Self::ShortPeriod, CHARGED),
        (Self::SameKey, SAME),
        (Self::WritesAtOnce, CHARGED),
        (Self::ReplyIsFirst, STANDS),
        (Self::StoresRefusal, STANDS),
        (Self::WrongRow, SAME),
        (Self::Overdraws, BOUND),
        (Self::DropsRepeated, FORGOTTEN),
    ];
}

const CHARGED: &str = "each call is charged exactly once, by all of its limiters or by none";
const BOUND: &str = "never more than the bound, by either limiter";
const STANDS: &str = "a stored reply stands for a call that was carried out, here and in every replica";
const SAME: &str = "a repeated call has the reply of the first";
const FORGOTTEN: &str = "nobody is forgotten: a client that goes on repeating has a reply";

/// The model.
#[derive(Clone, Debug)]
pub struct World {
    defect: Defect,
    /// How often each call is sent.
    attempts: [u8; 3],
    /// Whether the network repeats calls by itself.
    repeats: bool,
    ticks: u8,
    throttle: gcra::Limit,
    fixed: fixed::Limit,
}

/// A stored reply, and when it expires.
type Reply = Option<(Vec<u8>, Instant)>;

/// The keys of a server, and the calls carried out on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    throttle: Option<Tat>,
    fixed: Option<Counter>,
    /// One key for each call.
    replies: [Reply; 3],
    /// How often each call was carried out.
    done: [u8; 3],
    /// The units that the calls carried out have taken, each call counted once.
    taken: Meter,
    /// Whether a call was admitted beyond the second limit.
    overdrawn: bool,
    /// The first reply of each call that was carried out.
    first: [Option<Vec<[i64; 5]>>; 3],
}

impl Server {
    /// The units of the second limiter that are used.
    fn count(&self) -> i64 {
        self.fixed.map_or(0, |counter| counter.count)
    }
}

/// A message of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    call: usize,
    /// A reply, or a call.
    reply: Option<Vec<[i64; 5]>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Attempts {
    number: u8,
    /// When the call was first sent.
    first: Option<u8>,
    reply: Option<Vec<[i64; 5]>>,
}

impl Attempts {
    /// Whether the client has a reply with this number in `limited`.
    fn is_told(&self, limited: i64) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply[0][0] == limited)
    }
}

/// The state of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    server: Server,
    replica: Server,
    tick: u8,
    calls: [Attempts; 3],
    messages: Vec<Message>,
    failed_over: bool,
    differs: bool,
    repeated: bool,
    refused: bool,
}

/// An action of the model. A lost message is one that never arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A call is sent, or sent again.
    Send(usize),
    /// The message with this index arrives.
    Arrive(usize),
    /// The message with this index arrives, and will arrive once more.
    ArriveTwice(usize),
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
        let (attempts, repeats, ticks) = match size {
            Size::Short => ([2, 1, 1], false, 3),
            Size::Long => ([2, 2, 1], true, 4),
        };
        let throttle = gcra::Limit::new(LIMITS[0] - 1, 1, 1, Unit::Seconds).unwrap();
        let fixed = fixed::Limit::new(LIMITS[1], 60, Unit::Seconds).unwrap();
        Self { defect, attempts, repeats, ticks, throttle, fixed }
    }

    fn now(state: &State) -> u64 {
        u64::from(state.tick) * UNIT
    }

    /// A call arrives at the server, which answers.
    fn carry_out(&self, server: &mut Server, tick: u8, call: usize) -> (Vec<[i64; 5]>, bool) {
        let now = u64::from(tick) * UNIT;
        let period = if self.defect == Defect::ShortPeriod { 1 } else { PERIOD };
        let words = [&b"ONCE"[..], b"key", &[b'0' + period]];
        let once = Options::parse(words, &[Keyword::Once]).unwrap().once.unwrap();
        let key = if self.defect == Defect::SameKey { 0 } else { call };
        let stored = server.replies[key].clone().filter(|(_, until)| *until > at(now));
        if let Some((text, _)) = stored {
            let integers = several::read_reply(&text, LIMITS.len(), several::Columns::Five).unwrap();
            return (integers.as_chunks().0.to_vec(), true);
        }
        let [quantity, units] = CALLS[call];
        let settles = call == SETTLEMENT || self.defect == Defect::Overdraws;
        let first = if settles {
            Limiter::settle(&self.throttle, server.throttle, at(now), quantity, None).unwrap()
        } else {
            self.throttle.take(server.throttle, at(now), quantity).unwrap()
        };
        if self.defect == Defect::WritesAtOnce {
            server.throttle = after(&first, server.throttle);
        }
        let second = if settles {
            Limiter::settle(&self.fixed, server.fixed, at(now), units, None).unwrap()
        } else {
            self.fixed.take(server.fixed, at(now), units).unwrap()
        };
        let mut rows = [first.answer, second.answer].map(|answer| Row::of(answer, false));
        let refused = !settles && rows.iter().any(Row::refuses);
        if refused {
            // An admission that is not carried out is decided again.
            rows[0].answer = self.throttle.peek(server.throttle, at(now), quantity).unwrap();
            rows[1].answer = self.fixed.peek(server.fixed, at(now), units).unwrap();
        } else {
            server.throttle = after(&first, server.throttle);
            server.fixed = after(&second, server.fixed);
        }
        let combined = several::combine_rows(&rows).unwrap();
        let answers = [combined, rows[0].answer, rows[1].answer];
        let fives = answers.map(|answer| answer.reply(Unit::Seconds).five).to_vec();
        let stores = !refused || self.defect == Defect::StoresRefusal;
        if stores && self.defect != Defect::ForgetsReply {
            let mut stored = fives.clone();
            if self.defect == Defect::WrongRow {
                stored.swap(0, 2);
            }
            let integers: Vec<_> = stored.iter().flatten().map(i64::to_string).collect();
            let until = once.until(at(now), Unit::Seconds).unwrap();
            server.replies[key] = Some((integers.join(" ").into_bytes(), until));
        }
        server.overdrawn |= !refused && call != SETTLEMENT && server.count() > LIMITS[1];
        if !refused {
            if server.done[call] == 0 {
                server.first[call] = Some(fives.clone());
                server.taken.pass(now);
                server.taken.level = if quantity < 0 {
                    server.taken.level.saturating_sub(quantity.unsigned_abs() * UNIT)
                } else {
                    server.taken.level + quantity.unsigned_abs() * UNIT
                };
            }
            server.done[call] += 1;
        }
        (fives, false)
    }

    fn arrive(&self, state: &mut State, message: Message) {
        let call = message.call;
        let Some(reply) = message.reply else {
            let before = state.server.first[call].clone();
            let (reply, repeated) = self.carry_out(&mut state.server, state.tick, call);
            state.repeated |= repeated;
            state.refused |= !repeated && reply[0][0] == 1;
            state.differs |= repeated && before.as_ref() != Some(&reply);
            if !repeated || self.defect != Defect::DropsRepeated {
                state.messages.push(Message { call, reply: Some(reply) });
            }
            return;
        };
        state.calls[call].reply.get_or_insert(reply);
    }

    /// The client continues to repeat, and no more messages are lost.
    fn is_answered(&self, state: &State, call: usize) -> bool {
        let mut state = State { messages: Vec::new(), ..state.clone() };
        self.arrive(&mut state, Message { call, reply: None });
        if let Some(reply) = state.messages.pop() {
            self.arrive(&mut state, reply);
        }
        state.calls[call].reply.is_some()
    }

    fn is_charged_once(state: &State) -> bool {
        let (server, now) = (&state.server, Self::now(state));
        let debt = server.throttle.map_or(0, |tat| tat.since(at(now)).as_nanos());
        let mut taken = server.taken;
        taken.pass(now);
        let done = |call: usize| if server.done[call] > 0 { CALLS[call][1] } else { 0 };
        let units: i64 = (0..CALLS.len()).map(done).sum();
        server.done.iter().all(|times| *times <= 1) && debt == taken.level && server.count() == units
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.tick < self.ticks {
            actions.push(Action::Tick);
        }
        if state.replica != state.server {
            actions.push(Action::Replicate);
            if !state.failed_over {
                actions.push(Action::FailOver);
            }
        }
        for (call, attempts) in state.calls.iter().enumerate() {
            let in_time = attempts.first.is_none_or(|first| state.tick - first < PERIOD);
            // Only an admitted call is settled.
            let may = call != SETTLEMENT || state.calls[0].is_told(0);
            if may && in_time && attempts.reply.is_none() && attempts.number < self.attempts[call] {
                actions.push(Action::Send(call));
            }
        }
        for (index, message) in state.messages.iter().enumerate() {
            actions.push(Action::Arrive(index));
            let calls = state.messages.iter().filter(|other| other.call == message.call);
            if self.repeats && message.reply.is_none() && calls.count() < 2 {
                actions.push(Action::ArriveTwice(index));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Send(call) => {
                let attempts = &mut state.calls[call];
                attempts.number += 1;
                attempts.first.get_or_insert(last.tick);
                state.messages.push(Message { call, reply: None });
            }
            Action::Arrive(index) => {
                let message = state.messages.remove(index);
                self.arrive(&mut state, message);
            }
            Action::ArriveTwice(index) => {
                let message = state.messages[index].clone();
                self.arrive(&mut state, message);
            }
            Action::Replicate => state.replica = state.server.clone(),
            Action::FailOver => {
                let replies = state.server.replies.clone();
                state.server = state.replica.clone();
                if self.defect == Defect::ReplyIsFirst {
                    state.server.replies = replies;
                }
                state.replica = state.server.clone();
                state.failed_over = true;
                // Its clock may be behind the clock of its calls by no more than the time since.
                state.server.taken.pass(Self::now(last));
                state.replica.taken.pass(Self::now(last));
            }
            Action::Tick => {
                state.tick += 1;
                let (tick, calls) = (state.tick, state.calls.clone());
                let in_time = |call: usize| calls[call].first.is_some_and(|first| tick - first < PERIOD);
                state.messages.retain(|message| message.reply.is_some() || in_time(message.call));
                state.server.taken.pass(Self::now(&state));
                state.replica.taken.pass(Self::now(&state));
            }
        }
        // No client waits any longer for a reply that it has. The order of the others is not theirs.
        let calls = &state.calls;
        state.messages.retain(|message| message.reply.is_none() || calls[message.call].reply.is_none());
        state.messages.sort_unstable();
        state.messages.dedup();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(CHARGED, |_, state: &State| Self::is_charged_once(state)),
            Property::always(BOUND, |_, state: &State| {
                // The settlement charges a unit of the second limiter, whatever there is.
                let settled = i64::from(state.server.done[SETTLEMENT] > 0);
                let within = state.server.count() <= LIMITS[1] + settled && !state.server.overdrawn;
                state.server.taken.level <= LIMITS[0].unsigned_abs() * UNIT && within
            }),
            Property::always(STANDS, |_, state: &State| {
                [&state.server, &state.replica].into_iter().all(|server| {
                    server.replies.iter().zip(server.done).all(|(reply, done)| reply.is_none() || done > 0)
                })
            }),
            Property::always(SAME, |_, state: &State| !state.differs),
            Property::always(FORGOTTEN, |world: &Self, state: &State| {
                (0..CALLS.len()).all(|call| world.is_answered(state, call))
            }),
            Property::sometimes("a reply is repeated", |_, state: &State| state.repeated),
            Property::sometimes("a call is refused", |_, state: &State| state.refused),
            Property::sometimes(
                "a client is told of a refusal, and a late attempt is admitted",
                |_, state: &State| {
                    (0..2).any(|call| state.calls[call].is_told(1) && state.server.done[call] > 0)
                },
            ),
            Property::sometimes("a call is settled", |_, state: &State| state.server.done[SETTLEMENT] > 0),
            Property::sometimes("a failover forgets a call", |_, state: &State| {
                let is_lost = |call: usize| state.calls[call].is_told(0) && state.server.done[call] == 0;
                state.failed_over && (0..2).any(is_lost)
            }),
        ]
    }
}
