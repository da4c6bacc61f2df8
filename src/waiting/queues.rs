//! All queues, by key, by client and by time.
//!
//! Nothing in this file calls the server. Every function takes the lock, decides, and releases it; what the
//! server must do is returned. So the lock is never held while the server runs, which may run another
//! module's code (a callback for a keyspace event, a command filter), which may call a limiter: it finds the
//! queues unlocked and consistent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, TryLockError};

use redis_cell_core::gcra::{self, Limit, Tat};
use redis_cell_core::queue::{self, Queue, Ticket};
use redis_cell_core::{Change, Decision, Error, Instant, Span, Unit, Verdict};

use crate::error;
use crate::ffi::{Blocked, Identity, Timer};
use crate::outcome::Outcome;

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);

/// The number of queues, for calls that need only know whether there are any.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The name of a queue for as long as it exists. No other queue ever has the same.
pub type Id = u64;

/// A key: its database and its name.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub db: i32,
    pub name: &'a [u8],
}

/// How a wait ends.
#[expect(clippy::large_enum_variant, reason = "nearly every end is an outcome, and none lasts")]
pub enum End {
    /// As a call ends that has not waited.
    Outcome(Result<Outcome, error::Error>),
    /// In an error of the server, which is replied as it is.
    Rejected(String),
}

/// A place in a queue, for a client that is about to be blocked.
#[derive(Clone, Copy)]
pub struct Seat {
    id: Id,
    ticket: Ticket,
}

/// A client in a queue.
pub struct Client {
    pub blocked: Blocked<End>,
    /// The server's number of the client.
    pub number: u64,
    /// The command that it waits with.
    pub command: &'static CStr,
    /// The unit of its answer.
    pub unit: Unit,
    /// When it stops waiting.
    pub deadline: Option<Instant>,
}

/// What becomes of a client that asks to wait.
pub enum Joined {
    /// It need not wait, or waiting is of no use.
    Decided(Decision<Tat>),
    /// Its turn would come too late.
    TooLate,
    /// It has a place in the queue, to be [taken](sit) or [given up](rise).
    Waiting(Seat),
}

/// What must be done for a queue. The client named has left it.
pub enum Turn {
    /// Write the decision, and answer the client.
    Admitted(Client, Decision<Tat>),
    /// Answer the client.
    Failed(Client, Error),
    /// Nothing for now.
    NotYet,
}

/// A change of the server's timer.
#[derive(Default)]
pub struct Rearm {
    pub stop: Option<Timer>,
    pub set: Option<Alarm>,
}

/// When the timer is due.
#[derive(Clone, Copy)]
pub struct Alarm {
    pub wait: Span,
    at: Instant,
    lead: Span,
}

#[derive(Default)]
struct Queues {
    by_id: HashMap<Id, Entry>,
    by_key: BTreeMap<i32, HashMap<Arc<[u8]>, Id>>,
    by_client: HashMap<Identity, Seat>,
    /// When to look at each queue.
    turns: BTreeSet<(Instant, Id)>,
    /// When clients stop waiting.
    deadlines: BTreeSet<(Instant, Id, Ticket)>,
    /// No turn comes before this: the server may not write.
    paused_until: Option<Instant>,
    /// The timer that is set.
    timer: Option<(Timer, Alarm)>,
    next: Id,
}

/// The queue of one key.
struct Entry {
    db: i32,
    name: Arc<[u8]>,
    queue: Queue,
    clients: BTreeMap<Ticket, Client>,
    /// When the key is known to expire, on this module's clock. The server tells of it much later if many
    /// keys expire.
    expires: Option<Instant>,
    /// When to look at it.
    turn: Instant,
}

/// Does `work` under the lock. It must not call the server.
fn locked<T>(work: impl FnOnce(&mut Queues) -> T) -> T {
    // A panic under the lock was replied and logged; the queues are as good as before it.
    work(&mut QUEUES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether there are queues.
pub fn exist() -> bool {
    COUNT.load(Relaxed) != 0
}

/// The number of clients that wait.
pub fn clients() -> usize {
    // A crash report, which may interrupt a function of this file, must not wait for the lock.
    match QUEUES.try_lock() {
        Ok(queues) => queues.by_client.len(),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().by_client.len(),
        Err(TryLockError::WouldBlock) => 0,
    }
}

/// Forgets everything.
pub fn clear() {
    locked(|queues| *queues = Queues::default());
    COUNT.store(0, Relaxed);
}

/// [`Queue::seen`] for the queue of a key, if it has one.
///
/// # Errors
/// Those of [`Queue::seen`].
#[cold] // the common key has no queue
pub fn seen(place: Place, state: Option<Tat>, now: Instant) -> Result<Option<Tat>, Error> {
    locked(|queues| match queues.at(place) {
        Some((_, entry)) => entry.queue.seen(state, now),
        None => Ok(state),
    })
}

/// [`Queue::saw`] for the queue of a key, if it has one.
#[cold] // the common key has no queue
pub fn saw(place: Place, state: Option<Tat>, now: Instant) {
    locked(|queues| {
        if let Some((_, entry)) = queues.at(place) {
            entry.queue.saw(state, now);
        }
    });
}

/// Tells the queue of a key, if it has one, of a decision.
///
/// # Errors
/// Those of `told`.
#[cold] // the common key has no queue
pub fn tell(
    place: Place,
    now: Instant,
    decision: &mut Decision<Tat>,
    told: impl FnOnce(&mut Queue, &mut Decision<Tat>) -> Result<(), Error>,
) -> Result<(), Error> {
    locked(|queues| {
        let Some((id, entry)) = queues.at(place) else { return Ok(()) };
        told(&mut entry.queue, decision)?;
        if !decision.change.is_keep() {
            queues.look_at(id, now);
        }
        Ok(())
    })
}

/// [`Queue::pause`] for the queue of a key; `decide` alone where it has none.
///
/// # Errors
/// Those of `decide`.
#[cold] // the common key has no queue
pub fn pause(
    place: Place,
    state: Option<Tat>,
    now: Instant,
    decide: impl Fn(Option<Tat>) -> Result<Decision<Tat>, Error>,
) -> Result<Decision<Tat>, Error> {
    locked(|queues| {
        let Some((id, entry)) = queues.at(place) else { return decide(state) };
        let decision = entry.queue.pause(state, now, decide);
        queues.look_at(id, now);
        decision
    })
}

/// [`Queue::join`] for the queue of a key, which is made when the first client joins it.
///
/// # Errors
/// Those of [`Queue::join`].
pub fn join(
    place: Place,
    state: Option<Tat>,
    (limit, quantity, patience): (&Limit, i64, Option<Span>),
    now: Instant,
) -> Result<Joined, Error> {
    locked(|queues| {
        let id = queues.at(place).map(|(id, _)| id);
        if id.is_none() {
            // Most clients need not wait, and no queue is made for them.
            let decision = gcra::throttle(state, limit, now, quantity)?;
            if !matches!(decision.answer.verdict, Verdict::Later(_)) {
                return Ok(Joined::Decided(decision));
            }
        }
        let mut new = Queue::default();
        let queue = id.and_then(|id| queues.by_id.get_mut(&id)).map_or(&mut new, |entry| &mut entry.queue);
        let joined = queue.join(state, limit, now, quantity, patience);
        let id = match (id, &joined) {
            // A new queue is looked at now, for it to be known when its key expires.
            (None, Ok(queue::Joined::Waiting(_))) => Some(queues.insert(place, new, now)),
            (None, _) => None,
            (Some(id), joined) => {
                let state = match joined {
                    Ok(queue::Joined::Decided(Decision { change: Change::Store(tat), .. })) => Some(*tat),
                    _ => state,
                };
                queues.schedule(id, state, now);
                Some(id)
            }
        };
        Ok(match joined? {
            queue::Joined::Decided(decision) => Joined::Decided(decision),
            queue::Joined::Waiting(ticket) if let Some(id) = id => Joined::Waiting(Seat { id, ticket }),
            queue::Joined::Waiting(_) | queue::Joined::TooLate => Joined::TooLate,
        })
    })
}

/// The client of this seat is blocked. It is returned if its queue is gone.
pub fn sit(seat: Seat, client: Client) -> Option<Client> {
    locked(|queues| {
        let Some(entry) = queues.by_id.get_mut(&seat.id) else { return Some(client) };
        queues.deadlines.extend(client.deadline.map(|deadline| (deadline, seat.id, seat.ticket)));
        queues.by_client.insert(client.blocked.identity(), seat);
        entry.clients.insert(seat.ticket, client)
    })
}

/// The client of this seat could not be blocked.
pub fn rise(seat: Seat, now: Instant) {
    locked(|queues| queues.leave(seat, now));
}

/// Takes a client out of its queue, if it has not left it yet.
pub fn leave(client: Identity, now: Instant) -> Option<Client> {
    locked(|queues| {
        let seat = queues.by_client.get(&client).copied()?;
        queues.leave(seat, now)
    })
}

/// The key was changed: its queue is looked at now. False when it has none; the clock is not read then.
pub fn key_changed(place: Place, now: impl FnOnce() -> Instant) -> bool {
    locked(|queues| {
        let Some((id, _)) = queues.at(place) else { return false };
        queues.look_at(id, now());
        true
    })
}

/// All keys of a database (`None`: of all) were changed.
pub fn database_changed(db: Option<i32>, now: Instant) {
    locked(|queues| {
        let dbs = queues.by_key.iter().filter(|(changed, _)| db.is_none_or(|db| db == **changed));
        let ids: Vec<Id> = dbs.flat_map(|(_, ids)| ids.values().copied()).collect();
        for id in ids {
            queues.look_at(id, now);
        }
    });
}

/// A queue to look at now, with its database and the name of its key.
pub fn next(now: Instant) -> Option<(Id, i32, Arc<[u8]>)> {
    locked(|queues| {
        let &(_, id) = queues.turns.first().filter(|(turn, _)| *turn <= now)?;
        queues.by_id.get(&id).map(|entry| (id, entry.db, Arc::clone(&entry.name)))
    })
}

/// Whether it is anybody's turn: with which command, and the number of the client that it is for. `None` for
/// not yet. The key `expires` then, if it does, on this module's clock.
pub fn due(
    id: Id,
    state: Option<Tat>,
    expires: Option<Instant>,
    now: Instant,
) -> Option<(&'static CStr, u64)> {
    locked(|queues| {
        queues.by_id.get_mut(&id)?.expires = expires;
        queues.schedule(id, state, now);
        let entry = queues.by_id.get(&id).filter(|entry| entry.turn <= now)?;
        entry.clients.first_key_value().map(|(_, client)| (client.command, client.number))
    })
}

/// [`Queue::turn`].
pub fn turn(id: Id, state: Option<Tat>, now: Instant) -> Turn {
    locked(|queues| {
        let Some(entry) = queues.by_id.get_mut(&id) else { return Turn::NotYet };
        let turn = match entry.queue.turn(state, now) {
            queue::Turn::Admitted(ticket, decision) => {
                queues.forget(Seat { id, ticket }).map(|client| Turn::Admitted(client, decision))
            }
            queue::Turn::Failed(ticket, error) => {
                queues.forget(Seat { id, ticket }).map(|client| Turn::Failed(client, error))
            }
            queue::Turn::NotYet => None,
        };
        if let Some(turn) = turn {
            queues.look_at(id, now);
            return turn;
        }
        queues.schedule(id, state, now);
        Turn::NotYet
    })
}

/// Takes the first client out of a queue, or drops a queue that has none.
pub fn dismiss(id: Id, now: Instant) -> Option<Client> {
    locked(|queues| {
        let ticket = queues.by_id.get_mut(&id).and_then(|entry| entry.queue.dismiss());
        let client = ticket.and_then(|ticket| queues.forget(Seat { id, ticket }));
        if client.is_none() {
            queues.drop(id);
        } else {
            queues.look_at(id, now);
        }
        client
    })
}

/// Takes a client whose deadline has come out of its queue.
pub fn timed_out(now: Instant) -> Option<Client> {
    locked(|queues| {
        let &(_, id, ticket) = queues.deadlines.first().filter(|(deadline, ..)| *deadline <= now)?;
        queues.leave(Seat { id, ticket }, now)
    })
}

/// A queue is looked at again at this instant.
pub fn come_again(id: Id, at: Instant) {
    locked(|queues| queues.look_at(id, at));
}

/// A queue, if there is any.
pub fn any() -> Option<Id> {
    locked(|queues| queues.turns.first().map(|&(_, id)| id))
}

/// No turn comes before `until`.
pub fn wait_until(until: Option<Instant>) {
    locked(|queues| queues.paused_until = until);
}

/// The timer has fired.
pub fn fired() {
    locked(|queues| queues.timer = None);
}

/// How the server's timer must be changed, so that it fires in time. `lead` says how far the wall clock,
/// which the server's timers follow, has been set back; a timer that was set when it had been set back by
/// less than `lead` less `step` is set again.
pub fn rearm(now: Instant, lead: Span, step: Span) -> Rearm {
    locked(|queues| {
        let turn = queues.turns.first().map(|&(turn, _)| turn);
        let turn = turn.map(|turn| queues.paused_until.map_or(turn, |until| turn.max(until)));
        let deadline = queues.deadlines.first().map(|&(deadline, ..)| deadline);
        let Some(at) = turn.into_iter().chain(deadline).min() else {
            return Rearm { stop: queues.timer.take().map(|(timer, _)| timer), set: None };
        };
        if queues.timer.as_ref().is_some_and(|(_, set)| set.at <= at && lead.saturating_sub(set.lead) <= step)
        {
            return Rearm::default();
        }
        let set = Some(Alarm { wait: at.since(now), at, lead });
        Rearm { stop: queues.timer.take().map(|(timer, _)| timer), set }
    })
}

/// The timer was set.
pub fn armed(timer: Timer, alarm: Alarm) {
    locked(|queues| queues.timer = Some((timer, alarm)));
}

impl Queues {
    fn at(&mut self, place: Place) -> Option<(Id, &mut Entry)> {
        let id = *self.by_key.get(&place.db)?.get(place.name)?;
        self.by_id.get_mut(&id).map(|entry| (id, entry))
    }

    fn insert(&mut self, place: Place, queue: Queue, now: Instant) -> Id {
        self.next = self.next.wrapping_add(1);
        let (id, name) = (self.next, Arc::from(place.name));
        self.by_key.entry(place.db).or_default().insert(Arc::clone(&name), id);
        let entry = Entry { db: place.db, name, queue, clients: BTreeMap::new(), expires: None, turn: now };
        self.by_id.insert(id, entry);
        self.turns.insert((now, id));
        COUNT.store(self.by_id.len(), Relaxed);
        id
    }

    /// Plans the next look at a queue whose key holds `state`; an empty queue is dropped.
    fn schedule(&mut self, id: Id, state: Option<Tat>, now: Instant) {
        let Some(entry) = self.by_id.get_mut(&id) else { return };
        match entry.queue.next_turn(state, now) {
            Some(wait) => {
                let turn = now.checked_add(wait).unwrap_or(Instant::MAX);
                let at = entry.expires.map_or(turn, |expires| expires.min(turn));
                self.look_at(id, at);
            }
            None => self.drop(id),
        }
    }

    fn look_at(&mut self, id: Id, at: Instant) {
        if let Some(entry) = self.by_id.get_mut(&id) {
            self.turns.remove(&(entry.turn, id));
            entry.turn = at;
            self.turns.insert((at, id));
        }
    }

    /// Takes a client out of a queue, of which those behind it move up.
    fn leave(&mut self, seat: Seat, now: Instant) -> Option<Client> {
        if let Some(entry) = self.by_id.get_mut(&seat.id) {
            entry.queue.leave(seat.ticket);
        }
        let client = self.forget(seat);
        self.look_at(seat.id, now);
        client
    }

    /// Forgets a client that has left its queue; a queue that is empty is dropped.
    fn forget(&mut self, seat: Seat) -> Option<Client> {
        let entry = self.by_id.get_mut(&seat.id)?;
        let client = entry.clients.remove(&seat.ticket);
        if let Some(client) = &client {
            self.by_client.remove(&client.blocked.identity());
            if let Some(deadline) = client.deadline {
                self.deadlines.remove(&(deadline, seat.id, seat.ticket));
            }
        }
        if entry.queue.is_empty() {
            self.drop(seat.id);
        }
        client
    }

    fn drop(&mut self, id: Id) {
        if let Some(entry) = self.by_id.remove(&id) {
            self.turns.remove(&(entry.turn, id));
            if let Some(ids) = self.by_key.get_mut(&entry.db) {
                ids.remove(&entry.name);
                if ids.is_empty() {
                    self.by_key.remove(&entry.db);
                }
            }
            COUNT.store(self.by_id.len(), Relaxed);
        }
    }
}
