//! The index of all waiting clients: by key, by client and by time.
//!
//! Nothing in this file calls the server. Every function takes the lock, decides, releases the lock, and
//! returns the work for the server. So the lock is never held while the server runs. The server may run
//! another module's code (a callback for a keyspace event, a command filter), and that code may call a
//! limiter, and finds the index unlocked and consistent.
//!
//! Every event that can change a decision on a key is reported to one function, [`Index::changed`]: writes,
//! expiries, pauses, bookings, and clients that leave. It marks the key, in O(1). [`Index::gather`] processes
//! the marks later, a number of clients at a time: however often a key has changed, its waiting clients are
//! checked once.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::CStr;
use std::mem;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, TryLockError};

use redis_cell_core::queue::{self, Ticket};
use redis_cell_core::{Instant, Span, Unit, fair};

use crate::error::Error;
use crate::ffi::{Blocked, Call, Identity, Timer};
use crate::outcome::{Outcome, Repeated};

static INDEX: LazyLock<Mutex<Index>> = LazyLock::new(Mutex::default);

/// The number of queues, for calls that need only know whether there are any.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of clients that are woken, or keys that are marked, in one step.
const GATHERED: usize = 100;

/// The time after which it is checked again whether the server may write the key of a queue.
pub const PAUSE: Span = Span::from_nanos(10_000_000).unwrap();

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
    Outcome(Result<Outcome, Error>),
    /// With an error of the server, which is replied unchanged.
    Rejected(String),
}

/// A client that waits or is about to be blocked: its queue, and its ticket there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiter {
    pub id: Id,
    pub ticket: Ticket,
}

/// A client that waits.
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
    /// Its call, if it waits in a fair queue.
    pub call: Option<FairCall>,
}

/// The call of a client in a fair queue.
pub struct FairCall {
    pub arguments: Arc<[Box<[u8]>]>,
    /// The keys of its other limiters, which decide whether it is ready.
    pub others: Box<[Arc<[u8]>]>,
    /// The key of `ONCE`.
    pub once: Option<Arc<[u8]>>,
    pub decides: &'static dyn Decides,
}

/// Decides the call of a client in a fair queue, whenever it is looked at. Each function is given the call
/// with its arguments.
pub trait Decides: Sync {
    /// The reply of the call that this one repeats, if there is one.
    ///
    /// # Errors
    /// An error if the key holds something else.
    fn repeated(&self, call: &Call) -> Result<Option<Repeated>, Error>;

    /// Whether the limiters but the first would admit the call.
    ///
    /// # Errors
    /// Those of any limiter.
    fn others_admit(&self, call: &Call) -> Result<Others, Error>;

    /// The time until the first limiter admits the call; `None` when it does.
    ///
    /// # Errors
    /// Those of the limiter.
    fn first_admits(&self, call: &Call) -> Result<Option<Span>, Error>;

    /// Takes from all limiters, or from none.
    ///
    /// # Errors
    /// Those of any limiter.
    fn take(&self, call: &Call) -> Result<Outcome, Error>;
}

/// Whether the other limiters of a waiting client would admit it.
pub enum Others {
    Ready,
    /// Not before this time has passed, unless one of their keys changes.
    Wait(Span),
}

/// All that wait.
#[derive(Default)]
pub struct Index {
    by_id: HashMap<Id, Entry>,
    by_key: BTreeMap<i32, BTreeMap<Arc<[u8]>, Waiters>>,
    by_client: HashMap<Identity, Waiter>,
    next: Id,
    /// When to look at each queue.
    looks: BTreeSet<(Instant, Id)>,
    /// When clients stop waiting.
    pub deadlines: BTreeSet<(Instant, Waiter)>,
    /// The keys that have changed.
    marked: VecDeque<Mark>,
    /// The one of these keys whose clients are being woken, and the last client that was woken.
    waking: Option<(Mark, Waiter)>,
    /// The databases all of whose keys have changed.
    swept: BTreeMap<i32, Sweep>,
    /// Fair queues without clients that remember many flows, which are forgotten step by step.
    emptied: Vec<fair::Queue>,
    /// No queue is served before this instant, because the server may not write.
    pub paused_until: Option<Instant>,
    /// The timer that is set.
    pub timer: Option<(Timer, Alarm)>,
}

/// When the timer is due.
#[derive(Clone, Copy)]
pub struct Alarm {
    pub wait: Span,
    pub at: Instant,
    pub lead: Span,
}

/// A key that has changed, and the instant since which it is to be processed.
struct Mark {
    since: Instant,
    db: i32,
    name: Arc<[u8]>,
}

/// The instant since which all keys of a database are to be processed.
struct Sweep {
    since: Instant,
    /// The last key that was marked.
    last: Option<Arc<[u8]>>,
}

/// The clients that wait for a key.
#[derive(Default)]
struct Waiters {
    first_come: Option<Id>,
    fair: Option<Id>,
    /// Clients of other queues that name the key.
    clients: BTreeMap<Waiter, Naming>,
    is_marked: bool,
}

impl Waiters {
    fn is_empty(&self) -> bool {
        self.first_come.is_none() && self.fair.is_none() && self.clients.is_empty()
    }

    fn of(&mut self, queue: &AnyQueue) -> &mut Option<Id> {
        match queue {
            AnyQueue::FirstCome(_) => &mut self.first_come,
            AnyQueue::Fair(..) => &mut self.fair,
        }
    }
}

/// The role of a key in the call of a client in a fair queue.
#[derive(Clone, Copy)]
enum Naming {
    /// It is the key of a limiter that may have to admit the client, the first of its flow, before the client
    /// is ready.
    Other,
    /// The key of its `ONCE`.
    Once,
}

/// The clients that are queued for one key.
pub enum AnyQueue {
    /// First come, first served.
    FirstCome(queue::Queue),
    /// Fair among flows.
    Fair(fair::Queue, Looks),
}

/// The state of a fair queue in addition to its order.
#[derive(Default)]
pub struct Looks {
    /// The clients for which a stored reply of `ONCE` is to be looked up.
    pub repeats: BTreeSet<Ticket>,
    /// The client that has the turn, and the instant before which its first limiter does not admit it unless
    /// something happens.
    pub blocked: Option<(Ticket, Instant)>,
    /// Whether the last step was a turn, so that the next one is a check.
    pub was_turn: bool,
}

impl AnyQueue {
    fn is_empty(&self) -> bool {
        match self {
            Self::FirstCome(queue) => queue.is_empty(),
            Self::Fair(queue, _) => queue.is_empty(),
        }
    }

    fn leave(&mut self, ticket: Ticket) {
        match self {
            Self::FirstCome(queue) => queue.leave(ticket),
            Self::Fair(queue, looks) => {
                looks.repeats.remove(&ticket);
                queue.leave(ticket);
            }
        }
    }
}

/// The queue of one key.
pub struct Entry {
    pub db: i32,
    pub name: Arc<[u8]>,
    pub queue: AnyQueue,
    pub clients: BTreeMap<Ticket, Client>,
    /// When to look at it.
    look: Instant,
}

impl Entry {
    /// Whether it is to be served by this instant.
    pub fn is_due(&self, now: Instant) -> bool {
        self.look <= now
    }
}

/// Runs `work` under the lock. `work` must not call the server.
pub fn locked<T>(work: impl FnOnce(&mut Index) -> T) -> T {
    // A panic under the lock was logged and replied as an error, and the index is still consistent.
    work(&mut INDEX.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether anybody waits.
pub fn is_anybody() -> bool {
    COUNT.load(Relaxed) != 0
}

/// A number for `INFO`; 0 while the index is locked.
fn count(of: impl FnOnce(&Index) -> usize) -> usize {
    // A crash report may interrupt a function of this folder, so it must not wait for the lock.
    match INDEX.try_lock() {
        Ok(index) => of(&index),
        Err(TryLockError::Poisoned(poisoned)) => of(&poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => 0,
    }
}

/// The number of clients that wait.
pub fn clients() -> usize {
    count(|index| index.by_client.len())
}

/// The flows that all queues remember.
pub fn remembered() -> usize {
    let flows = |entry: &Entry| match &entry.queue {
        AnyQueue::FirstCome(_) => 0,
        AnyQueue::Fair(queue, _) => queue.flows(),
    };
    count(|index| index.by_id.values().map(flows).sum())
}

/// Forgets everything.
pub fn clear() {
    locked(|index| *index = Index::default());
    COUNT.store(0, Relaxed);
}

/// Adds a client that has been blocked to its queue. Returns it if the queue is gone.
pub fn attach(waiter: Waiter, client: Client) -> Option<Client> {
    locked(|index| {
        let Some(entry) = index.by_id.get_mut(&waiter.id) else { return Some(client) };
        index.deadlines.extend(client.deadline.map(|deadline| (deadline, waiter)));
        index.by_client.insert(client.blocked.identity(), waiter);
        let once = client.call.as_ref().and_then(|call| call.once.clone());
        let (db, replaced) = (entry.db, entry.clients.insert(waiter.ticket, client));
        if let Some(name) = once {
            index.waiters(db, &name).clients.insert(waiter, Naming::Once);
        }
        replaced
    })
}

/// Removes a client that has taken nothing from its queue, unless it has left the queue already.
pub fn leave(waiter: Waiter, now: Instant) -> Option<Client> {
    locked(|index| index.leave(waiter, now))
}

/// The same for a client with a number of the server.
pub fn gone(client: Identity, now: Instant) -> Option<Client> {
    locked(|index| {
        let waiter = index.by_client.get(&client).copied()?;
        index.leave(waiter, now)
    })
}

/// [`Index::changed`].
pub fn changed(place: Place, now: impl FnOnce() -> Instant) -> bool {
    locked(|index| index.changed(place, now))
}

/// All keys of a database (`None`: of all) were changed.
///
/// Cost: O(1) for each database, however many clients wait there.
pub fn all_changed(db: Option<i32>, now: Instant) {
    locked(|index| {
        let dbs = index.by_key.keys().filter(|of| db.is_none_or(|db| db == **of));
        for &db in dbs {
            // A key that has been marked already may have changed again.
            index.swept.entry(db).or_insert(Sweep { since: now, last: None }).last = None;
        }
    });
}

/// Removes the first client from a queue, or drops a queue that has none.
pub fn dismiss(id: Id, now: Instant) -> Option<Client> {
    locked(|index| {
        let first = index.by_id.get(&id).and_then(|entry| entry.clients.first_key_value());
        let ticket = first.map(|(ticket, _)| *ticket);
        let client = ticket.and_then(|ticket| index.leave(Waiter { id, ticket }, now));
        if client.is_none() {
            index.drop(id);
        }
        client
    })
}

/// Serves a queue later, because the server does not allow a write to its key now. Returns false, because
/// nothing is left to do for now.
pub fn come_again(id: Id, now: Instant) -> bool {
    locked(|index| index.plan(id, now.checked_add(PAUSE).unwrap_or(Instant::MAX)));
    false
}

impl Index {
    pub fn entry(&mut self, id: Id) -> Option<&mut Entry> {
        self.by_id.get_mut(&id)
    }

    /// The queue of a key that is served first come, first served.
    pub fn first_come_at(&mut self, place: Place) -> Option<(Id, &mut queue::Queue)> {
        let id = self.by_key.get(&place.db)?.get(place.name)?.first_come?;
        self.first_come(id).map(|queue| (id, queue))
    }

    pub fn first_come(&mut self, id: Id) -> Option<&mut queue::Queue> {
        match &mut self.by_id.get_mut(&id)?.queue {
            AnyQueue::FirstCome(queue) => Some(queue),
            AnyQueue::Fair(..) => None,
        }
    }

    /// The fair queue of a key.
    pub fn fair_at(&mut self, place: Place) -> Option<(Id, &mut fair::Queue)> {
        let id = self.by_key.get(&place.db)?.get(place.name)?.fair?;
        self.fair(id).map(|(queue, _)| (id, queue))
    }

    pub fn fair(&mut self, id: Id) -> Option<(&mut fair::Queue, &mut Looks)> {
        match &mut self.by_id.get_mut(&id)?.queue {
            AnyQueue::FirstCome(_) => None,
            AnyQueue::Fair(queue, looks) => Some((queue, looks)),
        }
    }

    /// Reports that decisions on a key may have changed, for every event that may lead to the admission of a
    /// client. The clients that wait for the key are checked once, however often this function is called
    /// until then. Returns false if there are none; the clock is not read then.
    ///
    /// Cost: O(log n) for n keys, however many clients wait for this one.
    pub fn changed(&mut self, Place { db, name }: Place, now: impl FnOnce() -> Instant) -> bool {
        let Some(of_db) = self.by_key.get_mut(&db) else { return false };
        let Some(waiters) = of_db.get_mut(name) else { return false };
        if !waiters.is_marked {
            waiters.is_marked = true;
            if let Some((name, _)) = of_db.get_key_value(name) {
                self.marked.push_back(Mark { since: now(), db, name: Arc::clone(name) });
            }
        }
        true
    }

    /// [`changed`](Self::changed) for the key of a queue.
    pub fn changed_for(&mut self, id: Id, now: Instant) {
        if let Some(Entry { db, name, .. }) = self.by_id.get(&id) {
            let (db, name) = (*db, Arc::clone(name));
            self.changed(Place { db, name: &name }, || now);
        }
    }

    /// Checks some of the clients that wait for keys that have changed. False if none is left.
    pub fn gather(&mut self, now: Instant) -> bool {
        let (mark, last) = match self.waking.take() {
            Some((mark, last)) => (Some(mark), Some(last)),
            None => (self.marked.pop_front(), None),
        };
        let Some(mark) = mark else { return self.sweep() };
        let waiters = self.by_key.get_mut(&mark.db).and_then(|of_db| of_db.get_mut(&mark.name));
        let Some(waiters) = waiters else { return true };
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let clients = waiters.clients.range((from, Bound::Unbounded)).take(GATHERED);
        let clients: Vec<_> = clients.map(|(&waiter, &naming)| (waiter, naming)).collect();
        if last.is_none() {
            waiters.is_marked = false;
            let queues = [waiters.first_come, waiters.fair];
            queues.into_iter().flatten().for_each(|id| self.look_at(id, now));
        }
        for &(waiter, naming) in &clients {
            self.wake(waiter, naming, now);
        }
        self.waking = clients.last().map(|&(waiter, _)| (mark, waiter));
        true
    }

    /// Marks some of the keys of databases all of whose keys have changed. False if none is left.
    fn sweep(&mut self) -> bool {
        let Some((db, Sweep { since, last })) = self.swept.pop_first() else { return false };
        let Some(of_db) = self.by_key.get_mut(&db) else { return true };
        let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (name, waiters) in of_db.range_mut::<[u8], _>((from, Bound::Unbounded)).take(GATHERED) {
            if !mem::replace(&mut waiters.is_marked, true) {
                self.marked.push_back(Mark { since, db, name: Arc::clone(name) });
            }
            last = Some(Arc::clone(name));
        }
        if last.is_some() {
            self.swept.insert(db, Sweep { since, last });
        }
        true
    }

    /// A key that a client names has changed.
    ///
    /// A client that was ready counts as ready until its turn, when it is checked again.
    fn wake(&mut self, Waiter { id, ticket }: Waiter, naming: Naming, now: Instant) {
        let Some((queue, looks)) = self.fair(id) else { return };
        match naming {
            Naming::Once => drop(looks.repeats.insert(ticket)),
            Naming::Other => queue.wake(ticket, now),
        }
        if matches!(naming, Naming::Once) || !queue.is_ready(ticket) || queue.next() == Some(ticket) {
            self.look_at(id, now);
        }
    }

    /// Forgets some of the flows of queues that have emptied. False if none is left.
    pub fn tidy(&mut self) -> bool {
        let Some(queue) = self.emptied.last_mut() else { return false };
        if !queue.tidy() {
            self.emptied.pop();
        }
        true
    }

    /// The earliest instant at which a queue or a key is to be processed.
    pub fn first_look(&self) -> Option<Instant> {
        let look = self.looks.first().map(|&(look, _)| look);
        let marks = self.waking.as_ref().map(|(mark, _)| mark).into_iter().chain(self.marked.front());
        let swept = self.swept.values().map(|sweep| sweep.since).min();
        look.into_iter().chain(marks.map(|mark| mark.since)).chain(swept).min()
    }

    /// The queue that is to be served first, if its instant has come.
    pub fn due(&self, now: Instant) -> Option<Id> {
        self.looks.first().filter(|(look, _)| *look <= now).map(|&(_, id)| id)
    }

    /// The queues for whose keys `what` returns a value, each with that value.
    pub fn find<T>(&self, what: impl Fn(&[u8]) -> Option<T>) -> Vec<(Id, T)> {
        self.by_id.iter().filter_map(|(id, entry)| Some((*id, what(&entry.name)?))).collect()
    }

    /// A queue, if there is any.
    pub fn any(&self) -> Option<Id> {
        self.looks.first().map(|&(_, id)| id)
    }

    /// Something has happened to the queue: it is served by this instant.
    pub fn look_at(&mut self, id: Id, at: Instant) {
        let Some(entry) = self.by_id.get_mut(&id) else { return };
        if let AnyQueue::Fair(_, looks) = &mut entry.queue {
            looks.blocked = None;
        }
        let at = at.min(entry.look);
        self.plan(id, at);
    }

    /// Sets the next instant at which the queue is served.
    pub fn plan(&mut self, id: Id, at: Instant) {
        if let Some(entry) = self.by_id.get_mut(&id) {
            self.looks.remove(&(entry.look, id));
            entry.look = at;
            self.looks.insert((at, id));
        }
    }

    /// Creates the queue of a key, which is served now.
    pub fn insert(&mut self, Place { db, name }: Place, queue: AnyQueue, now: Instant) -> Id {
        self.next = self.next.wrapping_add(1);
        let (id, name) = (self.next, Arc::from(name));
        *self.waiters(db, &name).of(&queue) = Some(id);
        let entry = Entry { db, name, queue, clients: BTreeMap::new(), look: now };
        self.by_id.insert(id, entry);
        self.looks.insert((now, id));
        COUNT.store(self.by_id.len(), Relaxed);
        id
    }

    /// The client is also listed under the other keys of its call.
    pub fn name(&mut self, Waiter { id, ticket }: Waiter) {
        let Some(entry) = self.by_id.get(&id) else { return };
        let call = entry.clients.get(&ticket).and_then(|client| client.call.as_ref());
        for name in call.into_iter().flat_map(|call| &call.others) {
            let of_db = self.by_key.entry(entry.db).or_default();
            let waiters = of_db.entry(Arc::clone(name)).or_default();
            waiters.clients.insert(Waiter { id, ticket }, Naming::Other);
        }
    }

    /// Removes a client from a queue. Those behind it move up.
    pub fn leave(&mut self, waiter: Waiter, now: Instant) -> Option<Client> {
        self.by_id.get_mut(&waiter.id)?.queue.leave(waiter.ticket);
        self.forget(waiter, now)
    }

    /// Forgets a client that has left its queue; a queue that is empty is dropped.
    pub fn forget(&mut self, waiter: Waiter, now: Instant) -> Option<Client> {
        let entry = self.by_id.get_mut(&waiter.id)?;
        let client = entry.clients.remove(&waiter.ticket);
        let (db, name, is_empty) = (entry.db, Arc::clone(&entry.name), entry.queue.is_empty());
        if let Some(client) = &client {
            self.by_client.remove(&client.blocked.identity());
            if let Some(deadline) = client.deadline {
                self.deadlines.remove(&(deadline, waiter));
            }
            for name in client.call.iter().flat_map(|call| call.others.iter().chain(&call.once)) {
                self.stops(db, name, |waiters| {
                    waiters.clients.remove(&waiter);
                });
            }
        }
        if is_empty {
            self.drop(waiter.id);
        }
        self.changed(Place { db, name: &name }, || now);
        client
    }

    /// Drops a queue.
    pub fn drop(&mut self, id: Id) {
        if let Some(Entry { db, name, queue, look, .. }) = self.by_id.remove(&id) {
            self.looks.remove(&(look, id));
            self.stops(db, &name, |waiters| *waiters.of(&queue) = None);
            if let AnyQueue::Fair(queue, _) = queue
                && queue.flows() > 0
            {
                self.emptied.push(queue);
            }
            COUNT.store(self.by_id.len(), Relaxed);
            if self.by_id.is_empty() {
                (self.waking, self.marked, self.swept) = Default::default();
            }
        }
    }

    fn waiters(&mut self, db: i32, name: &Arc<[u8]>) -> &mut Waiters {
        self.by_key.entry(db).or_default().entry(Arc::clone(name)).or_default()
    }

    /// A client no longer waits for a key.
    fn stops(&mut self, db: i32, name: &[u8], remove: impl FnOnce(&mut Waiters)) {
        let Some(of_db) = self.by_key.get_mut(&db) else { return };
        let Some(waiters) = of_db.get_mut(name) else { return };
        remove(waiters);
        if waiters.is_empty() {
            of_db.remove(name);
            if of_db.is_empty() {
                self.by_key.remove(&db);
            }
        }
    }
}
