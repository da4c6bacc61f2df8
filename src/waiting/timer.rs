//! The one timer of all queues, and the work when it fires.
//!
//! An event of a key only [marks](super::index) it and sets the timer. The work is done when the timer fires,
//! after the commands that came before: waits that have timed out and queues that are to be served, in the
//! order of their instants, for at most a millisecond. The rest is done when the timer fires again.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant as Processor;

use redis_cell_core::{Instant, Span};

use super::index::{Alarm, AnyQueue, Client, End, Id, Index, PAUSE, locked};
use super::{fair, first_come, slots};
use crate::error::Error;
use crate::ffi::{self, Call, Rings, Timer};
use crate::outcome::Outcome;

/// The time for which clients are answered and queues are served before the server runs other commands. A
/// decision that has begun is completed.
const BUDGET: Duration = Duration::from_millis(1);

/// The most steps in that time, also while the clock stands still. To read an argument of a client is a step.
const STEPS: usize = 2_000;

/// How far the wall clock must have been set back for the timer to be set again.
const STEP: Span = Span::from_nanos(50_000_000).unwrap();

/// The rest of that time, by the processor's clock, which is never set, and of those steps; and the table of
/// slots, which is read at most once in that time.
pub struct Budget {
    end: Processor,
    left: usize,
    pub table: slots::Table,
}

impl Budget {
    fn new() -> Self {
        let now = Processor::now();
        Self { end: now.checked_add(BUDGET).unwrap_or(now), left: STEPS, table: slots::Table::default() }
    }

    /// This many arguments of a client are read.
    pub fn read(&mut self, arguments: usize) {
        self.left = self.left.saturating_sub(arguments);
    }

    /// Whether nothing is left for the next step.
    fn is_spent(&mut self) -> bool {
        self.left = if Processor::now() < self.end { self.left.saturating_sub(1) } else { 0 };
        self.left == 0
    }
}

/// What is due first.
enum Next {
    /// The wait of this client, which has left its queue, has timed out.
    TimedOut(Client),
    /// A queue is to be served.
    Look(Due),
    /// Clients were woken, and further clients may have to be woken.
    Again,
    /// Nothing.
    Nothing,
}

/// A queue to serve now: its number, its database and the name of its key.
struct Due {
    id: Id,
    db: i32,
    name: Arc<[u8]>,
    is_fair: bool,
}

/// A change of the server's timer.
#[derive(Default)]
struct Rearm {
    stop: Option<Timer>,
    set: Option<Alarm>,
}

/// The timer.
struct Ring;

impl Rings for Ring {
    fn rings(call: &Call) {
        let may_write = call.may_write();
        locked(|index| {
            index.timer = None;
            index.paused_until = if may_write { None } else { ffi::now().checked_add(PAUSE) };
        });
        let mut budget = Budget::new();
        if call.is_read_only() {
            end_all(call, &mut budget);
        }
        while !budget.is_spent() && slots::send_away(call) {}
        while !budget.is_spent() && go_on(call, may_write, &mut budget) {}
        arm(call);
    }
}

/// Does the work that is due first; false if there is nothing to do now.
fn go_on(call: &Call, may_write: bool, budget: &mut Budget) -> bool {
    let Due { id, db, name, is_fair } = match next(ffi::now(), may_write) {
        Next::Look(due) => due,
        Next::TimedOut(client) => {
            call.unblock(client.blocked, Some(End::Outcome(Ok(Outcome::Null))));
            return true;
        }
        Next::Again => return true,
        Next::Nothing => return false,
    };
    call.select(db);
    let served = if is_fair {
        while !budget.is_spent() && fair::step(call, id, budget) {}
        true
    } else {
        let served = call
            .with_name(&name, |key| while !budget.is_spent() && first_come::step(call, id, key, budget) {});
        served.is_some()
    };
    if budget.is_spent() {
        // After all other queues that are to be served now, and after the waits that have timed out by now.
        locked(|index| {
            let now = ffi::now();
            if index.entry(id).is_some_and(|entry| entry.is_due(now)) {
                index.plan(id, now);
            }
        });
    }
    served
}

/// What is due first by this instant.
///
/// A client whose turn came in time does not time out because the timer was late. But a queue does not delay
/// a timeout that is earlier than its own instant.
fn next(now: Instant, may_write: bool) -> Next {
    locked(|index| {
        let look = index.first_look().filter(|_| may_write);
        let timed_out = index.deadlines.first().copied();
        if let Some((deadline, waiter)) = timed_out
            && deadline <= now
            && look.is_none_or(|look| deadline < look)
            && let Some(client) = index.leave(waiter, now)
        {
            return Next::TimedOut(client);
        }
        if !may_write {
            return Next::Nothing;
        }
        let gathered = index.gather(now);
        let queue = index.due(now).and_then(|id| {
            let entry = index.entry(id)?;
            let is_fair = matches!(entry.queue, AnyQueue::Fair(..));
            Some(Due { id, db: entry.db, name: Arc::clone(&entry.name), is_fair })
        });
        match queue {
            Some(due) => Next::Look(due),
            None if gathered => Next::Again,
            None => Next::Nothing,
        }
    })
}

/// Ends all waits because the server has become a replica, whose keys only its primary may write. Most
/// servers do that themselves; Valkey 9.1 in a cluster does not.
fn end_all(call: &Call, budget: &mut Budget) {
    while !budget.is_spent()
        && let Some(id) = locked(|index| index.any())
    {
        first_come::dismiss(call, id, ffi::now(), End::Outcome(Err(Error::Demoted)));
    }
}

/// Forgets the flows of queues that have emptied, as long as the budget lasts. The server's cron does this,
/// not the timer, which would keep the server from unloading the module.
pub fn tidy() {
    let mut budget = Budget::new();
    while locked(Index::tidy) && !budget.is_spent() {}
}

/// Sets the timer if it would not fire in time.
pub fn arm(call: &Call) {
    let rearm = rearm(ffi::now(), ffi::lead());
    if let Some(timer) = rearm.stop {
        call.stop_timer(timer);
    }
    if let Some(alarm) = rearm.set {
        let timer = call.set_timer::<Ring>(alarm.wait);
        locked(|index| index.timer = Some((timer, alarm)));
    }
}

/// The change of the server's timer that makes it fire in time. `lead` is the time by which the wall clock,
/// which the server's timers follow, has been set back; a timer that was set when that time was shorter than
/// `lead` less [`STEP`] is set again.
fn rearm(now: Instant, lead: Span) -> Rearm {
    locked(|index| {
        let look = index.first_look().map(|look| index.paused_until.map_or(look, |until| look.max(until)));
        let deadline = index.deadlines.first().map(|&(deadline, _)| deadline);
        let leaving = slots::is_anybody_leaving().then_some(now);
        let Some(at) = look.into_iter().chain(deadline).chain(leaving).min() else {
            return Rearm { stop: index.timer.take().map(|(timer, _)| timer), set: None };
        };
        if index.timer.as_ref().is_some_and(|(_, set)| set.at <= at && lead.saturating_sub(set.lead) <= STEP)
        {
            return Rearm::default();
        }
        let set = Some(Alarm { wait: at.since(now), at, lead });
        Rearm { stop: index.timer.take().map(|(timer, _)| timer), set }
    })
}
