//! `HOLD`: owners take units of a fixed window or a total, add to them, renew, settle, settle late, and die:
//! [`hold`](redis_cell_core::hold) over [`fixed`](redis_cell_core::fixed), and a server with a replica behind
//! it.
//!
//! A call has the steps of `src/calls/holds.rs`: what has run out comes back first, then the core decides,
//! and the window and the parts are written together. Only the order of these steps is the model's own.
//! Beside them a ledger notes what each owner holds, by the words of the page.

use redis_cell_core::fixed::{self, Counter};
use redis_cell_core::hold::{self, Origin, Part};
use redis_cell_core::limiter::Limiter as _;
use redis_cell_core::{Span, Unit};
use stateright::{Model, Property};

use crate::{Size, UNIT, after, at, offset, span};

/// The units of a window.
const LIMIT: i64 = 3;
/// The ticks of a window, and those of a hold.
const WINDOW: u8 = 3;
const HOLD: u8 = 2;
/// The owners.
const OWNERS: usize = 2;

/// A mistake of the code around the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// None.
    None,
    /// A part stays when its units have come back.
    KeepsPart,
    /// A part is removed, and its units do not come back.
    LosesUnits,
    /// Units come back to a window in which they were not taken.
    OtherWindow,
    /// A settlement leaves the part.
    SettlesTwice,
    /// A late settlement is charged the difference to what had run out.
    ForgivesLate,
    /// Units taken later replace those that are held.
    TopUpReplaces,
    /// A call decides before what has run out comes back.
    DecidesFirst,
    /// A call is charged whether it fits or not.
    Overdraws,
    /// The parts reach the replica before the window.
    PartsAreFirst,
    /// The window reaches the replica before the parts.
    WindowIsFirst,
}

impl Defect {
    /// All defects except none, each with a property that it breaks.
    pub const ALL: [(Self, &'static str); 10] = [
        (Self::KeepsPart, COUNTED),
        (Self::LosesUnits, STRANDED),
        (Self::OtherWindow, COUNTED),
        (Self::SettlesTwice, COUNTED),
        (Self::ForgivesLate, COUNTED),
        (Self::TopUpReplaces, STRANDED),
        (Self::DecidesFirst, EXACT),
        (Self::Overdraws, BOUND),
        (Self::PartsAreFirst, COUNTED),
        (Self::WindowIsFirst, STRANDED),
    ];
}

const COUNTED: &str = "a window counts what is held of it and what was used in it";
const BOUND: &str = "no take passes the limit";
const EXACT: &str = "a call is refused exactly if it does not fit beside what is held and used";
const STRANDED: &str = "when all owners have died and run out, a window counts what was used in it";

/// What an owner holds, by the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Held {
    /// Units of windows that have ended.
    earlier: i64,
    /// Units of the present window.
    present: i64,
    /// The tick at which they run out.
    end: u8,
}

/// The keys of a server, and the ledger of the calls carried out on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    window: Option<Counter>,
    parts: [Option<Part>; OWNERS],
    held: [Option<Held>; OWNERS],
    /// The units used in the present window, and the tick at which it ends.
    used: i64,
    window_end: Option<u8>,
}

impl Server {
    fn count(&self) -> i64 {
        self.window.map_or(0, |counter| counter.count)
    }

    fn held(&self) -> i64 {
        self.held.iter().flatten().map(|held| held.present).sum()
    }
}

/// The state of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// Whether the window has no end.
    is_total: bool,
    server: Server,
    replica: Server,
    tick: u8,
    failed_over: bool,
    overdrawn: bool,
    /// A call was refused that fits, or admitted that does not.
    inexact: bool,
    has_run_out: bool,
    settled_late: bool,
    added: bool,
    added_in_next: bool,
}

/// An action of the model. An owner that does nothing more has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An owner takes units; 0 renews.
    Take(usize, i64),
    /// An owner settles by what it used.
    Settle(usize, i64),
    /// A call of nobody carries out what has run out.
    Look,
    /// The replica receives all writes.
    Replicate,
    /// The replica takes over.
    FailOver,
    /// Time passes.
    Tick,
}

/// The model.
#[derive(Clone, Debug)]
pub struct World {
    defect: Defect,
    ticks: u8,
    /// The quantities that are taken, and those that are used.
    taken: &'static [i64],
    used: &'static [i64],
}

impl World {
    /// The model of this size.
    pub fn new(size: Size, defect: Defect) -> Self {
        let (ticks, taken, used): (_, &[i64], &[i64]) = match size {
            Size::Short => (4, &[0, 2], &[0, 3]),
            Size::Long => (5, &[0, 1, 2], &[0, 1, 3]),
        };
        Self { defect, ticks, taken, used }
    }

    fn limit(state: &State) -> fixed::Limit {
        if state.is_total {
            fixed::Limit::total(LIMIT, None, Unit::Seconds).unwrap()
        } else {
            fixed::Limit::new(LIMIT, i64::from(WINDOW), Unit::Seconds).unwrap()
        }
    }

    fn period() -> Span {
        span(u64::from(HOLD) * UNIT)
    }

    /// What has run out comes back, for the core and in the ledger.
    fn carry_out(&self, state: &mut State) {
        let (now, tick) = (at(u64::from(state.tick) * UNIT), state.tick);
        let Server { window, parts, held, .. } = &mut state.server;
        for part in parts {
            let Some(ended) = part.filter(|part| part.has_ended(now)) else { continue };
            state.has_run_out = true;
            if self.defect != Defect::KeepsPart {
                *part = None;
            }
            if self.defect == Defect::LosesUnits {
                continue;
            }
            *window = window.and_then(|counter| match ended.comes_back(&counter) {
                0 if self.defect == Defect::OtherWindow => counter.without(ended.held()),
                0 => Some(counter),
                back => counter.without(back),
            });
        }
        for held in held {
            *held = held.filter(|held| held.end > tick);
        }
        Self::open(state);
    }

    /// In the ledger, a window opens with the first unit that is counted, and is gone when none is left.
    fn open(state: &mut State) {
        let (is_open, tick, is_total) =
            (state.server.held() + state.server.used > 0, state.tick, state.is_total);
        let end = &mut state.server.window_end;
        *end = if is_open { end.or((!is_total).then_some(tick + WINDOW)) } else { None };
    }

    fn take(&self, state: &mut State, owner: usize, quantity: i64) {
        let limit = Self::limit(state);
        let now = at(u64::from(state.tick) * UNIT);
        let early = limit.take(state.server.window, now, quantity).unwrap();
        self.carry_out(state);
        let fits = state.server.held() + state.server.used + quantity <= LIMIT;
        let mut decision = limit.take(state.server.window, now, quantity).unwrap();
        if self.defect == Defect::Overdraws {
            decision = limit.settle(state.server.window, now, quantity, None).unwrap();
        }
        let renews = quantity == 0;
        let limited = match self.defect {
            Defect::DecidesFirst => early.answer.limited(),
            Defect::Overdraws => false,
            _ => decision.answer.limited(),
        };
        state.inexact |= !renews && self.defect != Defect::Overdraws && limited == fits;
        if limited && !renews {
            return;
        }
        let before = state.server.parts[owner];
        if !renews {
            state.server.window = after(&decision, state.server.window);
            state.overdrawn |= state.server.count() > LIMIT;
        }
        let origin = match state.server.window {
            Some(counter) if !state.is_total => Origin::Window { end: counter.end },
            _ => Origin::Total { idles: false },
        };
        let kept = before.filter(|_| self.defect != Defect::TopUpReplaces || renews);
        state.server.parts[owner] = Part::taken(kept, quantity, origin, now, Self::period()).unwrap();
        let held = &mut state.server.held[owner];
        if !renews || held.is_some() {
            let had = held.unwrap_or_default();
            state.added |= held.is_some() && !renews;
            state.added_in_next |= had.earlier > 0 && !renews;
            *held = Some(Held { present: had.present + quantity, end: state.tick + HOLD, ..had });
        }
        Self::open(state);
    }

    fn settle(&self, state: &mut State, owner: usize, used: i64) {
        let limit = Self::limit(state);
        let now = at(u64::from(state.tick) * UNIT);
        let stale = state.server.parts[owner].filter(|_| self.defect == Defect::ForgivesLate);
        state.settled_late |= state.server.held[owner].is_some_and(|held| held.end <= state.tick);
        self.carry_out(state);
        let Server { window, parts, held, .. } = &mut state.server;
        let part = parts[owner].or(stale);
        let difference = hold::settles_window(part.as_ref(), window.as_ref(), used);
        *window = after(&limit.settle(*window, now, difference, None).unwrap(), *window);
        if self.defect != Defect::SettlesTwice {
            parts[owner] = None;
        }
        let earlier = held[owner].take().map_or(0, |held| held.earlier);
        state.server.used += (used - earlier).max(0);
        Self::open(state);
    }

    fn pass(state: &mut State) {
        state.tick += 1;
        let tick = state.tick;
        for server in [&mut state.server, &mut state.replica] {
            // The key expires.
            server.window = server.window.filter(|counter| offset(counter.end) > u64::from(tick) * UNIT);
            if server.window_end.is_some_and(|end| end <= tick) {
                (server.window_end, server.used) = (None, 0);
                for held in server.held.iter_mut().flatten() {
                    (held.earlier, held.present) = (held.earlier + held.present, 0);
                }
            }
        }
    }

    /// All owners die, and a call names the keys when their holds have run out.
    fn leaves_what_was_used(&self, state: &State) -> bool {
        let mut state = state.clone();
        for _ in 0..HOLD {
            Self::pass(&mut state);
        }
        self.carry_out(&mut state);
        let stays = self.defect != Defect::KeepsPart && state.server.parts.iter().any(Option::is_some);
        state.server.count() == state.server.used && !stays
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        [false, true].map(|is_total| State { is_total, ..State::default() }).to_vec()
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
        actions.push(Action::Look);
        for owner in 0..OWNERS {
            actions.extend(self.taken.iter().map(|quantity| Action::Take(owner, *quantity)));
            // Debts do not grow beyond that.
            let used = self.used.iter().filter(|used| **used == 0 || state.server.used < 2 * LIMIT);
            actions.extend(used.map(|used| Action::Settle(owner, *used)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Take(owner, quantity) => self.take(&mut state, owner, quantity),
            Action::Settle(owner, used) => self.settle(&mut state, owner, used),
            Action::Look => self.carry_out(&mut state),
            Action::Replicate => state.replica = state.server.clone(),
            Action::FailOver => {
                let lost = core::mem::replace(&mut state.server, state.replica.clone());
                match self.defect {
                    Defect::PartsAreFirst => state.server.parts = lost.parts,
                    Defect::WindowIsFirst => state.server.window = lost.window,
                    _ => {}
                }
                state.replica = state.server.clone();
                state.failed_over = true;
            }
            Action::Tick => Self::pass(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(COUNTED, |_, state: &State| {
                [&state.server, &state.replica]
                    .into_iter()
                    .all(|server| server.count() == server.held() + server.used)
            }),
            Property::always(BOUND, |_, state: &State| !state.overdrawn),
            Property::always(EXACT, |_, state: &State| !state.inexact),
            Property::always(STRANDED, |world: &Self, state: &State| world.leaves_what_was_used(state)),
            Property::sometimes("a hold runs out", |_, state: &State| state.has_run_out),
            Property::sometimes("a hold that ran out is settled late", |_, state: &State| state.settled_late),
            Property::sometimes("an owner adds to its hold", |_, state: &State| state.added),
            Property::sometimes("an owner adds to its hold in the next window", |_, state: &State| {
                state.added_in_next
            }),
            Property::sometimes("what was used leaves a debt", |_, state: &State| state.server.used > LIMIT),
            Property::sometimes("a failover forgets a hold", |_, state: &State| {
                state.failed_over && state.added && state.server.held() == 0
            }),
        ]
    }
}
