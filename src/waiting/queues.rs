//! All queues, by key, by client and by time.
//!
//! Nothing in this file calls the server. Every function takes the lock, decides, and releases it; what the
//! server must do is returned. So the lock is never held while the server runs. The server may run another
//! module's code (a callback for a keyspace event, a command filter), and that code may call a limiter: it
//! finds the queues unlocked and consistent.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, TryLockError};

use redis_cell_core::fair::{self, Readiness, Request};
use redis_cell_core::gcra::{self, Limit, Tat};
use redis_cell_core::queue::{self, Queue, Ticket};
use redis_cell_core::{Change, Decision, Error, Instant, Span, Unit, Verdict};

use crate::error;
use crate::ffi::{Blocked, Call, Identity, Rejection, Timer};
use crate::outcome::Outcome;

static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);

/// The number of queues, for calls that need only know whether there are any.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of a queue. No other queue ever has the same.
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
    /// As the call would have ended without waiting.
    Outcome(Result<Outcome, error::Error>),
    /// With an error of the server, which is replied as it is.
    Rejected(String),
}

impl From<Rejection> for End {
    /// The end of a wait whose call the server would not run.
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Moved => Self::Outcome(Err(error::Error::Moved)),
            Rejection::ClusterDown => Self::Outcome(Err(error::Error::ClusterDown)),
            Rejection::NoPermission => Self::Outcome(Err(error::Error::NoPermission)),
            Rejection::Refused(text) => Self::Rejected(text),
        }
    }
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
    /// The number by which the server knows the client.
    pub number: u64,
    /// The command with which it waits.
    pub command: &'static CStr,
    /// The unit of its answer.
    pub unit: Unit,
    /// When it stops waiting.
    pub deadline: Option<Instant>,
    /// Its call, if it waits in a queue of flows.
    pub call: Option<Waiting>,
}

/// The call of a client in a queue of flows.
pub struct Waiting {
    pub arguments: Arc<[Box<[u8]>]>,
    /// The keys of its other limiters, which decide whether it is ready.
    pub others: Box<[Arc<[u8]>]>,
    /// The key of `ONCE`.
    pub once: Option<Arc<[u8]>>,
    pub turns: &'static dyn Turns,
}

/// Decides the call of a client in a queue of flows, whenever it is looked at. Each function is given the
/// call with its arguments.
pub trait Turns: Sync {
    /// The reply of the call that this one repeats, if there is one.
    ///
    /// # Errors
    /// An error if the key holds something else.
    fn repeated(&self, call: &Call) -> Result<Option<Vec<[i64; 5]>>, error::Error>;

    /// Whether the limiters but the first would admit the call.
    ///
    /// # Errors
    /// Those of any limiter.
    fn others_admit(&self, call: &Call) -> Result<Others, error::Error>;

    /// The time until the first limiter admits the call; `None` when it does.
    ///
    /// # Errors
    /// Those of the limiter.
    fn first_admits(&self, call: &Call) -> Result<Option<Span>, error::Error>;

    /// Takes from all limiters, or from none.
    ///
    /// # Errors
    /// Those of any limiter.
    fn take(&self, call: &Call) -> Result<Outcome, error::Error>;
}

/// Whether a client that waits may be admitted, as far as its other limiters are concerned.
pub enum Others {
    Ready,
    /// Not before this time has passed, unless one of their keys changes.
    Wait(Span),
}

/// A queue to look at now.
pub struct Due {
    pub id: Id,
    pub db: i32,
    /// The name of its key.
    pub name: Arc<[u8]>,
    pub has_flows: bool,
}

/// What to do next for a queue of flows. The client has not left it yet.
pub enum Step {
    /// Check whether the reply of its `ONCE` is there.
    Repeat(Head),
    /// [Check](checked) whether it is ready.
    Check(Head),
    /// It is next.
    Turn(Head),
    /// Nothing for now.
    None,
}

/// A client in a queue of flows.
pub struct Head {
    pub seat: Seat,
    pub arguments: Arc<[Box<[u8]>]>,
    pub command: &'static CStr,
    pub number: u64,
    pub turns: &'static dyn Turns,
}

/// How long queues wait before they check again whether the server may write.
pub const PAUSE: Span = Span::from_nanos(10_000_000).unwrap();

/// The unit of time in which keys expire: a key expires once its instant has passed, not when it is reached.
pub const MILLISECOND: Span = Span::from_nanos(1_000_000).unwrap();

/// What happens to a client that asks to wait.
pub enum Joined {
    /// It need not wait, or waiting is useless.
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
    /// The queues of `CL.BTHROTTLE`.
    by_key: ByKey<Id>,
    /// The queues of flows.
    flows: ByKey<Id>,
    /// The first clients of flows that a key keeps, or may keep, from being ready.
    others: ByKey<BTreeSet<(Id, Ticket)>>,
    /// The clients by the keys of their `ONCE`.
    once: ByKey<BTreeSet<(Id, Ticket)>>,
    by_client: HashMap<Identity, Seat>,
    /// When to look at each queue.
    turns: BTreeSet<(Instant, Id)>,
    /// When clients stop waiting.
    deadlines: BTreeSet<(Instant, Id, Ticket)>,
    /// No turn comes before this instant, because the server may not write.
    paused_until: Option<Instant>,
    /// The timer that is set.
    timer: Option<(Timer, Alarm)>,
    next: Id,
}

/// Something for keys, by database and name.
type ByKey<T> = BTreeMap<i32, HashMap<Arc<[u8]>, T>>;

/// The clients that wait for one key.
enum Line {
    /// First come, first served.
    Gcra(Queue),
    /// Fair among flows, and the clients whose `ONCE` is to be looked up.
    Flows(fair::Queue, BTreeSet<Ticket>),
}

impl Line {
    fn is_empty(&self) -> bool {
        match self {
            Self::Gcra(queue) => queue.is_empty(),
            Self::Flows(queue, _) => queue.is_empty(),
        }
    }

    fn leave(&mut self, ticket: Ticket) {
        match self {
            Self::Gcra(queue) => queue.leave(ticket),
            Self::Flows(queue, repeats) => {
                repeats.remove(&ticket);
                queue.leave(ticket);
            }
        }
    }
}

/// The queue of one key.
struct Entry {
    db: i32,
    name: Arc<[u8]>,
    line: Line,
    clients: BTreeMap<Ticket, Client>,
    /// When the key is known to expire, on this module's clock. If many keys expire, the server reports it
    /// much later.
    expires: Option<Instant>,
    /// When to look at it.
    turn: Instant,
}

/// Does `work` under the lock. It must not call the server.
fn locked<T>(work: impl FnOnce(&mut Queues) -> T) -> T {
    // A panic under the lock was replied and logged, and the queues are still consistent.
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
        Some((_, queue)) => queue.seen(state, now),
        None => Ok(state),
    })
}

/// [`Queue::saw`] for the queue of a key, if it has one.
#[cold] // the common key has no queue
pub fn saw(place: Place, state: Option<Tat>, now: Instant) {
    locked(|queues| {
        if let Some((_, queue)) = queues.at(place) {
            queue.saw(state, now);
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
        let Some((id, queue)) = queues.at(place) else { return Ok(()) };
        told(queue, decision)?;
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
        let Some((id, queue)) = queues.at(place) else { return decide(state) };
        let decision = queue.pause(state, now, decide);
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
        let queue = queues.at(place).map_or(&mut new, |(_, queue)| queue);
        let joined = queue.join(state, limit, now, quantity, patience);
        let id = match (id, &joined) {
            // A new queue is looked at now, so that it is known when its key expires.
            (None, Ok(queue::Joined::Waiting(_))) => Some(queues.insert(place, Line::Gcra(new), now)),
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

/// The client of this seat has been blocked. It is returned if its queue is gone.
pub fn sit(seat: Seat, client: Client) -> Option<Client> {
    locked(|queues| {
        let Some(entry) = queues.by_id.get_mut(&seat.id) else { return Some(client) };
        queues.deadlines.extend(client.deadline.map(|deadline| (deadline, seat.id, seat.ticket)));
        queues.by_client.insert(client.blocked.identity(), seat);
        if let Some(name) = client.call.as_ref().and_then(|call| call.once.clone()) {
            let of_db = queues.once.entry(entry.db).or_default();
            of_db.entry(name).or_default().insert((seat.id, seat.ticket));
        }
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
        let ids =
            [&queues.by_key, &queues.flows].map(|by_key| Some(*by_key.get(&place.db)?.get(place.name)?));
        let (others, once) = (of(&queues.others, place), of(&queues.once, place));
        if ids == [None, None] && others.is_empty() && once.is_empty() {
            return false;
        }
        let now = now();
        ids.into_iter().flatten().for_each(|id| queues.look_at(id, now));
        for seat in others {
            queues.check_again(seat, now);
        }
        for seat in once {
            queues.repeat(seat, now);
        }
        true
    })
}

/// What is kept for a key.
fn of(by_key: &ByKey<BTreeSet<(Id, Ticket)>>, place: Place) -> Vec<(Id, Ticket)> {
    let clients = by_key.get(&place.db).and_then(|of_db| of_db.get(place.name));
    clients.map(|clients| clients.iter().copied().collect()).unwrap_or_default()
}

/// All keys of a database (`None`: of all) were changed.
///
/// Cost: that of the queues and clients with keys in these databases, however many there are in others.
pub fn database_changed(db: Option<i32>, now: Instant) {
    fn changed<T>(by_key: &ByKey<T>, db: Option<i32>) -> impl Iterator<Item = &T> {
        let of_dbs = by_key.iter().filter(move |&(of, _)| db.is_none_or(|db| db == *of));
        of_dbs.flat_map(|(_, of_db)| of_db.values())
    }
    locked(|queues| {
        let ids: Vec<Id> = changed(&queues.by_key, db).chain(changed(&queues.flows, db)).copied().collect();
        for id in ids {
            queues.look_at(id, now);
        }
        let clients: Vec<_> = changed(&queues.others, db).flatten().copied().collect();
        for seat in clients {
            queues.check_again(seat, now);
        }
        let repeats: Vec<_> = changed(&queues.once, db).flatten().copied().collect();
        for seat in repeats {
            queues.repeat(seat, now);
        }
    });
}

/// A queue to look at now, with its database and the name of its key.
pub fn next(now: Instant) -> Option<Due> {
    locked(|queues| {
        let &(_, id) = queues.turns.first().filter(|(turn, _)| *turn <= now)?;
        queues.by_id.get(&id).map(|entry| Due {
            id,
            db: entry.db,
            name: Arc::clone(&entry.name),
            has_flows: matches!(entry.line, Line::Flows(..)),
        })
    })
}

/// Whose turn it is: the command and the number of the client; `None` if it is nobody's turn yet. `expires`
/// is when the key expires, if it does, on this module's clock.
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
        let Some(queue) = queues.gcra(id) else { return Turn::NotYet };
        let turn = match queue.turn(state, now) {
            queue::Turn::Admitted(ticket, decision) => {
                queues.forget(Seat { id, ticket }, now).map(|client| Turn::Admitted(client, decision))
            }
            queue::Turn::Failed(ticket, error) => {
                queues.forget(Seat { id, ticket }, now).map(|client| Turn::Failed(client, error))
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
        let first = queues.by_id.get(&id).and_then(|entry| entry.clients.first_key_value());
        let ticket = first.map(|(ticket, _)| *ticket);
        let client = ticket.and_then(|ticket| queues.leave(Seat { id, ticket }, now));
        if client.is_none() {
            queues.drop(id);
        }
        client
    })
}

/// When to look at the queue that is to be looked at first.
pub fn first_turn() -> Option<Instant> {
    locked(|queues| queues.turns.first().map(|&(turn, _)| turn))
}

/// Takes a client whose deadline has come by this instant out of its queue.
pub fn timed_out(by: Instant, now: Instant) -> Option<Client> {
    locked(|queues| {
        let &(_, id, ticket) = queues.deadlines.first().filter(|(deadline, ..)| *deadline <= by)?;
        queues.leave(Seat { id, ticket }, now)
    })
}

/// The costs of the clients that come before a call on this key that does not wait.
#[cold] // the common key has no queue
pub fn ahead(place: Place) -> u64 {
    locked(|queues| {
        let taken = queues.fair_at(place).map_or(0, |(_, queue)| queue.taken());
        u64::try_from(taken).unwrap_or(u64::MAX)
    })
}

/// The clients that wait for a key, and those of a flow.
pub fn waiting(place: Place, flow: Option<&[u8]>) -> Option<usize> {
    locked(|queues| queues.fair_at(place).map(|(_, queue)| queue.clients_of(flow)))
}

/// [`fair::Queue::settle`] for the queue of flows of a key, if it has one. It may be another client's turn
/// then, which may want less.
pub fn settle(place: Place, flow: Option<&[u8]>, weight: Option<u32>, difference: i64, now: Instant) {
    locked(|queues| {
        if let Some((id, queue)) = queues.fair_at(place) {
            queue.settle(flow, weight, difference);
            queues.look_at(id, now);
        }
    });
}

/// Joins the queue of flows of a key, which is made when the first client joins it.
pub fn join_flow(place: Place, request: Request, now: Instant) -> Seat {
    locked(|queues| {
        let id = queues.fair_at(place).map(|(id, _)| id);
        let id = id.unwrap_or_else(|| {
            queues.insert(place, Line::Flows(fair::Queue::default(), BTreeSet::new()), now)
        });
        let ticket = queues.fair(id).map(|queue| queue.join(request)).unwrap_or_default();
        queues.look_at(id, now);
        Seat { id, ticket }
    })
}

/// What to do next for a queue of flows.
pub fn step(id: Id, now: Instant) -> Step {
    locked(|queues| {
        let Some(Entry { line: Line::Flows(queue, repeats), clients, .. }) = queues.by_id.get_mut(&id) else {
            return Step::None;
        };
        let head = |ticket: Ticket| {
            let client = clients.get(&ticket)?;
            let Waiting { arguments, turns, .. } = client.call.as_ref()?;
            let Client { command, number, .. } = *client;
            let (seat, arguments) = (Seat { id, ticket }, Arc::clone(arguments));
            Some(Head { seat, arguments, command, number, turns: *turns })
        };
        if let Some(head) = repeats.pop_first().and_then(head) {
            return Step::Repeat(head);
        }
        let (check, next) = (queue.to_check(now), queue.next());
        if let Some(head) = check.and_then(head) {
            return Step::Check(head);
        }
        next.and_then(head).map_or(Step::None, Step::Turn)
    })
}

/// The client was checked: it is ready, or is to be checked again at an instant, or when one of its other
/// keys changes.
pub fn checked(seat: Seat, readiness: Readiness, now: Instant) {
    locked(|queues| {
        let Some(entry) = queues.by_id.get_mut(&seat.id) else { return };
        let Line::Flows(queue, _) = &mut entry.line else { return };
        let taken = queue.taken();
        queue.checked(seat.ticket, readiness);
        let counts_less = queue.taken() < taken;
        let call = entry.clients.get(&seat.ticket).and_then(|client| client.call.as_ref());
        for name in call.into_iter().flat_map(|call| &call.others) {
            let of_db = queues.others.entry(entry.db).or_default();
            of_db.entry(Arc::clone(name)).or_default().insert((seat.id, seat.ticket));
        }
        if counts_less {
            let (db, name) = (entry.db, Arc::clone(&entry.name));
            queues.counts_less(Place { db, name: &name }, now);
        }
    });
}

/// Looks at a queue again at this instant, when the client, which is ready, may be admitted by its first
/// limiter. False, with nothing done, if it is not the one whose turn it is.
pub fn waits_for_turn(seat: Seat, at: Instant) -> bool {
    let is_next = locked(|queues| {
        let queue = queues.fair(seat.id)?;
        Some(queue.next() == Some(seat.ticket) && queue.to_check(Instant::default()).is_none())
    });
    let waits = is_next == Some(true);
    if waits {
        look_again(seat.id, at);
    }
    waits
}

/// The client is admitted, and leaves its queue.
pub fn admitted(seat: Seat, now: Instant) -> Option<Client> {
    locked(|queues| {
        queues.fair(seat.id)?.admitted(seat.ticket);
        queues.leave(seat, now)
    })
}

/// The client leaves its queue without having taken anything.
pub fn withdraw(seat: Seat, now: Instant) -> Option<Client> {
    locked(|queues| queues.leave(seat, now))
}

/// A queue of flows is looked at again at this instant, or when a client is to be checked.
pub fn look_again(id: Id, at: Instant) {
    locked(|queues| {
        let check = queues.fair(id).and_then(|queue| queue.next_check());
        queues.look_at(id, check.map_or(at, |check| check.min(at)));
    });
}

/// The flows that all queues remember.
pub fn remembered() -> usize {
    let count = |queues: &Queues| {
        let lines = queues.by_id.values().map(|entry| match &entry.line {
            Line::Gcra(_) => 0,
            Line::Flows(queue, _) => queue.flows(),
        });
        lines.sum()
    };
    match QUEUES.try_lock() {
        Ok(queues) => count(&queues),
        Err(TryLockError::Poisoned(poisoned)) => count(&poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => 0,
    }
}

/// Looks at a queue again later, because the server does not let its key be written to now. False, because
/// nothing is left to do for now.
pub fn come_again(id: Id, now: Instant) -> bool {
    locked(|queues| queues.look_at(id, now.checked_add(PAUSE).unwrap_or(Instant::MAX)));
    false
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
    fn at(&mut self, place: Place) -> Option<(Id, &mut Queue)> {
        let id = *self.by_key.get(&place.db)?.get(place.name)?;
        self.gcra(id).map(|queue| (id, queue))
    }

    fn gcra(&mut self, id: Id) -> Option<&mut Queue> {
        match &mut self.by_id.get_mut(&id)?.line {
            Line::Gcra(queue) => Some(queue),
            Line::Flows(..) => None,
        }
    }

    fn fair(&mut self, id: Id) -> Option<&mut fair::Queue> {
        match &mut self.by_id.get_mut(&id)?.line {
            Line::Gcra(_) => None,
            Line::Flows(queue, _) => Some(queue),
        }
    }

    fn fair_at(&mut self, place: Place) -> Option<(Id, &mut fair::Queue)> {
        let id = *self.flows.get(&place.db)?.get(place.name)?;
        self.fair(id).map(|queue| (id, queue))
    }

    /// The key of another limiter of the client has changed.
    ///
    /// One that was ready stays so until it is its turn: it is checked again then. So an event on a key that
    /// many flows share does not cost a check of each of them.
    fn check_again(&mut self, (id, ticket): (Id, Ticket), now: Instant) {
        let Some(queue) = self.fair(id) else { return };
        if !queue.is_ready(ticket) {
            queue.changed(ticket);
        } else if queue.next() != Some(ticket) {
            return;
        }
        self.look_at(id, now);
    }

    /// Less counts as taken of what clients wait for at this key. Clients of other queues, for which it is
    /// the key of another limiter, may be ready now.
    fn counts_less(&mut self, place: Place, now: Instant) {
        for (id, ticket) in of(&self.others, place) {
            let Some(queue) = self.fair(id) else { continue };
            queue.wake(ticket);
            self.look_at(id, now);
        }
    }

    /// The key of the client's `ONCE` has changed.
    fn repeat(&mut self, (id, ticket): (Id, Ticket), now: Instant) {
        if let Some(Entry { line: Line::Flows(_, repeats), .. }) = self.by_id.get_mut(&id) {
            repeats.insert(ticket);
            self.look_at(id, now);
        }
    }

    fn insert(&mut self, place: Place, line: Line, now: Instant) -> Id {
        self.next = self.next.wrapping_add(1);
        let (id, name) = (self.next, Arc::from(place.name));
        let by_key = match &line {
            Line::Gcra(_) => &mut self.by_key,
            Line::Flows(..) => &mut self.flows,
        };
        by_key.entry(place.db).or_default().insert(Arc::clone(&name), id);
        let entry = Entry { db: place.db, name, line, clients: BTreeMap::new(), expires: None, turn: now };
        self.by_id.insert(id, entry);
        self.turns.insert((now, id));
        COUNT.store(self.by_id.len(), Relaxed);
        id
    }

    /// Plans the next look at a queue whose key holds `state`; an empty queue is dropped.
    fn schedule(&mut self, id: Id, state: Option<Tat>, now: Instant) {
        let Some(queue) = self.gcra(id) else { return };
        match queue.next_turn(state, now) {
            Some(wait) => {
                let turn = now.checked_add(wait).unwrap_or(Instant::MAX);
                let expires = self.by_id.get(&id).and_then(|entry| entry.expires);
                self.look_at(id, expires.map_or(turn, |expires| expires.min(turn)));
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

    /// Removes a client from a queue. Those behind it move up.
    fn leave(&mut self, seat: Seat, now: Instant) -> Option<Client> {
        if let Some(entry) = self.by_id.get_mut(&seat.id) {
            entry.line.leave(seat.ticket);
        }
        let client = self.forget(seat, now);
        self.look_at(seat.id, now);
        client
    }

    /// Forgets a client that has left its queue; a queue that is empty is dropped.
    fn forget(&mut self, seat: Seat, now: Instant) -> Option<Client> {
        let entry = self.by_id.get_mut(&seat.id)?;
        let client = entry.clients.remove(&seat.ticket);
        if let Some(client) = &client {
            self.by_client.remove(&client.blocked.identity());
            if let Some(deadline) = client.deadline {
                self.deadlines.remove(&(deadline, seat.id, seat.ticket));
            }
        }
        let (db, name, is_empty) = (entry.db, Arc::clone(&entry.name), entry.line.is_empty());
        if let Some(call) = client.as_ref().and_then(|client| client.call.as_ref()) {
            let key = (seat.id, seat.ticket);
            call.others.iter().for_each(|name| remove(&mut self.others, db, name, key));
            call.once.iter().for_each(|name| remove(&mut self.once, db, name, key));
            self.counts_less(Place { db, name: &name }, now);
        }
        // For clients of flows, the costs of those who wait for one limiter count as taken.
        let flows = self.flows.get(&db).and_then(|of_db| of_db.get(&name)).copied();
        if let Some(id) = flows.filter(|id| *id != seat.id) {
            self.look_at(id, now);
        }
        if is_empty {
            self.drop(seat.id);
        }
        client
    }

    fn drop(&mut self, id: Id) {
        if let Some(entry) = self.by_id.remove(&id) {
            self.turns.remove(&(entry.turn, id));
            let by_key = match entry.line {
                Line::Gcra(_) => &mut self.by_key,
                Line::Flows(..) => &mut self.flows,
            };
            if let Some(ids) = by_key.get_mut(&entry.db) {
                ids.remove(&entry.name);
                if ids.is_empty() {
                    by_key.remove(&entry.db);
                }
            }
            COUNT.store(self.by_id.len(), Relaxed);
        }
    }
}

/// Removes a client from what is kept for a key.
fn remove(by_key: &mut ByKey<BTreeSet<(Id, Ticket)>>, db: i32, name: &Arc<[u8]>, client: (Id, Ticket)) {
    let Some(of_db) = by_key.get_mut(&db) else { return };
    if let Some(clients) = of_db.get_mut(name) {
        clients.remove(&client);
        if clients.is_empty() {
            of_db.remove(name);
        }
    }
    if of_db.is_empty() {
        by_key.remove(&db);
    }
}
