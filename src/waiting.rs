//! The callers that `CL.BTHROTTLE` keeps waiting: a line for each key, and what moves it.
//!
//! A line moves when its timer fires (the turn of the first in line, or the end of somebody's patience) and when
//! something happens to its key: every such event sets the timer to now, and the work is done when it fires, outside of
//! whatever command caused it.
//!
//! As long as nobody waits, none of this costs anything: the server's events are subscribed to when the first caller
//! has to wait, and commands look at a single counter.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};

use redis_cell_core::gcra::{Limit, Tat};
use redis_cell_core::line::{Joined, Line, Ticket, Turn};
use redis_cell_core::{Decision, Error, Instant, Span, Unit};

use crate::commands::Bthrottle;
use crate::ffi::{self, Access, Arg, Blocked, Call, End, Key, Timer};
use crate::outcome::Outcome;
use crate::store::{self, State};

/// How long a line that may not move (the server is paused) waits before it looks again.
const PAUSE: Span = Span::from_nanos(10_000_000).unwrap();

/// How much further the wall clock must have been set back for timers to be set anew.
const STEP: Span = Span::from_nanos(50_000_000).unwrap();

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);
/// How many queues there are, for those who only want to know whether there are any.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static WATCHING: AtomicBool = AtomicBool::new(false);

/// All queues, by number, by key and by client.
#[derive(Default)]
struct Queues {
    by_id: HashMap<u64, Queue>,
    by_key: HashMap<Place, u64>,
    by_client: HashMap<Blocked, (u64, Ticket)>,
    next: u64,
    /// How far the wall clock had been set back when timers were last set anew.
    lead: Span,
}

/// Where a key is: its database and its name.
type Place = (i32, Box<[u8]>);

/// The line of one key, with the clients behind its tickets.
struct Queue {
    place: Place,
    line: Line,
    clients: BTreeMap<Ticket, Client>,
    deadlines: BTreeSet<(Instant, Ticket)>,
    timer: Option<Timer>,
}

struct Client {
    blocked: Blocked,
    unit: Unit,
    deadline: Option<Instant>,
}

fn queues() -> MutexGuard<'static, Queues> {
    // A panic while it was held has been answered and logged; the queues are as good as they were.
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_queues() -> Option<MutexGuard<'static, Queues>> {
    match QUEUES.try_lock() {
        Ok(queues) => Some(queues),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// How many callers wait.
pub fn clients() -> usize {
    // While the lock is held, nobody can ask but a crash report, which must not wait.
    try_queues().map_or(0, |queues| queues.by_client.len())
}

/// Decides a call that does not wait, but may find a line before it: what the line waits for counts as taken.
///
/// # Errors
/// Those of `decide`.
pub fn overtake(
    call: &Call,
    key: Arg,
    state: Option<Tat>,
    now: Instant,
    decide: impl FnOnce(Option<Tat>) -> Result<Decision<Tat>, Error>,
) -> Result<Decision<Tat>, Error> {
    if COUNT.load(Relaxed) == 0 {
        return decide(state);
    }
    let mut queues = queues();
    match queues.at(call.db(), call.bytes(key)) {
        Some((_, queue)) => queue.line.overtake(state, now, decide),
        None => decide(state),
    }
}

/// The state of a key as a call that does not wait sees it: what a line waits for counts as taken.
///
/// # Errors
/// [`Error::BeyondTime`] when the line reaches past the year 2262.
pub fn seen(call: &Call, key: Arg, state: Option<Tat>, now: Instant) -> Result<Option<Tat>, Error> {
    if COUNT.load(Relaxed) == 0 {
        return Ok(state);
    }
    match queues().at(call.db(), call.bytes(key)) {
        Some((_, queue)) => queue.line.seen(state, now),
        None => Ok(state),
    }
}

/// Decides a call that is ready to wait for `patience` (`None`: for ever).
///
/// [`Outcome::Waiting`] when the client waits, and will be answered later.
///
/// # Errors
/// Those of the limiter.
pub fn join(
    call: &Call,
    key: Arg,
    (limit, quantity, unit): (&Limit, i64, Unit),
    patience: Option<Span>,
) -> Result<Outcome, Error> {
    let now = ffi::now();
    let mut queues = queues();
    let open = Key::open(*call, key, Access::Write);
    let state = Tat::load(&open, now)?;
    let id = queues.queue(call.db(), call.bytes(key));
    let Some(queue) = queues.by_id.get_mut(&id) else { return Ok(Outcome::Null) };

    let joined = queue.line.join(state, limit, now, quantity, patience);
    let ticket = match joined {
        Ok(Joined::Waiting(ticket)) => ticket,
        Ok(Joined::Decided(decision)) => {
            queues.drop_if_empty(call, id);
            // The server's events about our own write find the queues locked, and leave them alone.
            store::carry_out(decision.change, open);
            return Ok(Outcome::Verdict(decision.answer, unit));
        }
        Ok(Joined::TooLate) => {
            queues.drop_if_empty(call, id);
            return Ok(Outcome::Null);
        }
        Err(error) => {
            queues.drop_if_empty(call, id);
            return Err(error);
        }
    };
    drop(open);
    if !WATCHING.swap(true, Relaxed) {
        call.watch();
    }
    let Some(blocked) = call.block::<Bthrottle>() else {
        queue.line.leave(ticket);
        queues.drop_if_empty(call, id);
        return Ok(Outcome::Null);
    };
    let deadline = patience.and_then(|patience| now.checked_add(patience));
    queue.clients.insert(ticket, Client { blocked, unit, deadline });
    queue.deadlines.extend(deadline.map(|deadline| (deadline, ticket)));
    // Only the first in line, and the first to lose patience, can change when to look next.
    if queue.clients.len() == 1 || queue.deadlines.first().is_some_and(|&(_, first)| first == ticket) {
        queue.set_timer(call, id, now, state);
    }
    queues.by_client.insert(blocked, (id, ticket));
    Ok(Outcome::Waiting)
}

/// Has a client that is gone, or has been told already, leave its line.
pub fn leave(call: &Call, blocked: Blocked) {
    let mut queues = queues();
    let Some((id, ticket)) = queues.by_client.remove(&blocked) else { return };
    if let Some(queue) = queues.by_id.get_mut(&id) {
        let was_first = queue.clients.first_key_value().is_some_and(|(&first, _)| first == ticket);
        queue.forget(ticket);
        if was_first {
            queue.set_timer_to(call, id, Span::ZERO);
        }
    }
    call.unblock(blocked, None);
    queues.drop_if_empty(call, id);
}

/// Moves a line whose timer has fired.
pub fn fired(call: &Call, id: u64) {
    let mut queues = queues();
    let Queues { by_id, by_client, .. } = &mut *queues;
    let Some(queue) = by_id.get_mut(&id) else { return };
    queue.timer = None;
    let (db, name) = queue.place.clone();
    call.select(db);
    call.with_name(&name, |key| {
        queue.serve(call, id, key, |blocked| {
            by_client.remove(&blocked);
        });
    });
    queues.drop_if_empty(call, id);
}

/// Has the line of a key looked at, if it has one.
pub fn key_changed(call: &Call, name: &[u8]) {
    // A write of this file's comes while the lock is held, and looks at the line itself.
    let Some(mut queues) = COUNT.load(Relaxed).ne(&0).then(try_queues).flatten() else { return };
    if let Some((id, queue)) = queues.at(call.db(), name) {
        queue.set_timer_to(call, id, Span::ZERO);
    }
}

/// Has all lines looked at.
pub fn everything_changed(call: &Call) {
    let Some(mut queues) = try_queues() else { return };
    for (&id, queue) in &mut queues.by_id {
        queue.set_timer_to(call, id, Span::ZERO);
    }
}

/// Looks whether the wall clock has been set back: the server's timers go by it, and would fire that much later.
pub fn ticked(call: &Call) {
    if COUNT.load(Relaxed) == 0 {
        return;
    }
    let Some(mut queues) = try_queues() else { return };
    let lead = ffi::lead();
    let before = core::mem::replace(&mut queues.lead, lead);
    drop(queues);
    if lead.saturating_sub(before) > STEP {
        everything_changed(call);
    }
}

/// Forgets that the server's events were subscribed to: it ends all subscriptions of a module that it unloads. Nobody
/// waits then, but the tables that were once full hold memory, which would stay behind.
pub fn unload() {
    WATCHING.store(false, Relaxed);
    *queues() = Queues::default();
}

impl Queues {
    fn at(&mut self, db: i32, name: &[u8]) -> Option<(u64, &mut Queue)> {
        if self.by_key.is_empty() {
            return None;
        }
        let id = *self.by_key.get(&(db, Box::from(name)))?;
        self.by_id.get_mut(&id).map(|queue| (id, queue))
    }

    /// The number of the key's queue, an empty one if there was none.
    fn queue(&mut self, db: i32, name: &[u8]) -> u64 {
        let place: Place = (db, Box::from(name));
        if let Some(&id) = self.by_key.get(&place) {
            return id;
        }
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        self.by_key.insert(place.clone(), id);
        let queue = Queue {
            place,
            line: Line::default(),
            clients: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            timer: None,
        };
        self.by_id.insert(id, queue);
        COUNT.store(self.by_id.len(), Relaxed);
        id
    }

    fn drop_if_empty(&mut self, call: &Call, id: u64) {
        let Some(queue) = self.by_id.get_mut(&id) else { return };
        if queue.clients.is_empty() {
            if let Some(timer) = queue.timer.take() {
                call.stop_timer(timer);
            }
            self.by_key.remove(&queue.place);
            self.by_id.remove(&id);
            COUNT.store(self.by_id.len(), Relaxed);
        }
    }
}

impl Queue {
    /// Ends the waits that are over, and sets the timer for the next one.
    fn serve(&mut self, call: &Call, id: u64, key: Arg, mut forget: impl FnMut(Blocked)) {
        if !call.may_write() {
            self.set_timer_to(call, id, PAUSE);
            return;
        }
        let here = call.is_here(key);
        let now = ffi::now();
        let mut end = |queue: &mut Self, ticket, told: &dyn Fn(Unit) -> End| {
            if let Some(client) = queue.forget(ticket) {
                forget(client.blocked);
                call.unblock(client.blocked, Some(told(client.unit)));
            }
        };
        let state = loop {
            let open = Key::open(*call, key, Access::Write);
            let state = if here { Tat::load(&open, now).map_err(Some) } else { Err(None) };
            match state.map(|state| (state, self.line.turn(state, now))) {
                Ok((state, Turn::Nobodys)) => break state,
                Ok((_, Turn::Admitted(ticket, decision))) => {
                    store::carry_out(decision.change, open);
                    end(self, ticket, &|unit| Ok(Outcome::Verdict(decision.answer, unit)));
                }
                Ok((_, Turn::Failed(ticket, error))) => end(self, ticket, &|_| Err(error)),
                Err(reason) => {
                    let Some(ticket) = self.line.dismiss() else { break None };
                    end(self, ticket, &|_| Err(reason.unwrap_or(Error::Moved)));
                }
            }
        };
        // After the turns: who was in time is not told that it was not because the timer was late.
        while let Some(&(_, ticket)) = self.deadlines.first().filter(|&&(deadline, _)| deadline <= now) {
            end(self, ticket, &|_| Ok(Outcome::Null));
        }
        self.set_timer(call, id, now, state);
    }

    /// Has a client leave the line, without a word to it.
    fn forget(&mut self, ticket: Ticket) -> Option<Client> {
        self.line.leave(ticket);
        let client = self.clients.remove(&ticket)?;
        if let Some(deadline) = client.deadline {
            self.deadlines.remove(&(deadline, ticket));
        }
        Some(client)
    }

    /// Sets the timer to the next turn or the next lost patience.
    fn set_timer(&mut self, call: &Call, id: u64, now: Instant, state: Option<Tat>) {
        let turn = self.line.next_turn(state, now);
        let patience = self.deadlines.first().map(|(deadline, _)| deadline.since(now));
        if let Some(wait) = turn.into_iter().chain(patience).min() {
            self.set_timer_to(call, id, wait);
        }
    }

    fn set_timer_to(&mut self, call: &Call, id: u64, wait: Span) {
        if let Some(timer) = self.timer.take() {
            call.stop_timer(timer);
        }
        self.timer = Some(call.set_timer(wait, id));
    }
}
