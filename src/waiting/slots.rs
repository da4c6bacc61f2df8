//! Keys that another node of a cluster now serves: their waiting clients are redirected.
//!
//! A slot may leave without any change of its keys: Redis 8.4 moves slots at once, and trims the keys without
//! a keyspace event. So the server's own table of slots is read while clients wait, as the server does for
//! clients that its own commands block. If a slot has left and come back between two readings, with other
//! keys or without any, the node's configuration epoch has changed.

use std::cell::OnceCell;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis_cell_core::{Instant, Span};

use super::index::{self, End, Id, locked};
use crate::error::Error;
use crate::ffi::{self, Call, Rejection, Slots};

/// How often the table is read.
const EVERY: Span = Span::from_nanos(400_000_000).unwrap();

static DEPARTURE: Mutex<Departure> = Mutex::new(Departure::NONE);

struct Departure {
    /// When to read the table again.
    next_look: Option<Instant>,
    /// The queues whose clients are being redirected, each with the error for them.
    queues: Vec<(Id, String)>,
    /// The configuration epoch of this node at the last reading.
    epoch: u64,
}

impl Departure {
    const NONE: Self = Self { next_look: None, queues: Vec::new(), epoch: 0 };
}

fn departure() -> MutexGuard<'static, Departure> {
    DEPARTURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets everything, and frees the memory.
pub fn clear() {
    *departure() = Departure::NONE;
}

/// Finds the clients whose keys another node now serves. The timer [redirects them](send_away).
pub fn look(call: &Call) {
    let now = ffi::now();
    let is_early = |departure: &Departure| {
        !departure.queues.is_empty() || departure.next_look.is_some_and(|next| now < next)
    };
    if is_early(&departure()) {
        return;
    }
    departure().next_look = now.checked_add(EVERY);
    let Some(slots) = call.slots() else { return };
    let epoch = mem::replace(&mut departure().epoch, slots.epoch);
    if epoch != slots.epoch {
        index::all_changed(None, now);
    }
    departure().queues = locked(|index| index.find(|name| slots.redirection(name)));
}

/// Whether clients are to be redirected.
pub fn is_anybody_leaving() -> bool {
    !departure().queues.is_empty()
}

/// Redirects one of the clients; false when there is none.
pub fn send_away(call: &Call) -> bool {
    let Some((id, text)) = departure().queues.last().cloned() else { return false };
    match index::dismiss(id, ffi::now()) {
        Some(client) => call.unblock(client.blocked, Some(End::Rejected(text))),
        None => drop(departure().queues.pop()),
    }
    true
}

/// The table of slots as one turn of the timer sees it, in which the server handles no message of another
/// node. To read it takes four calls of the server, however many clients of a slot that moves are sent away.
#[derive(Default)]
pub struct Table(OnceCell<Option<Slots>>);

impl Table {
    fn redirection(&self, call: &Call, key: &[u8]) -> Option<String> {
        self.0.get_or_init(|| call.slots()).as_ref()?.redirection(key)
    }
}

/// The end of a wait whose call the server would not run on the key.
pub fn end(call: &Call, table: &Table, key: &[u8], rejection: Rejection) -> End {
    let error = match rejection {
        Rejection::Moved => match table.redirection(call, key) {
            Some(text) => return End::Rejected(text),
            // The slot is still here, and the key is being moved.
            None => Error::Moved,
        },
        Rejection::ClusterDown => Error::ClusterDown,
        Rejection::NoPermission => Error::NoPermission,
        Rejection::Refused(text) => return End::Rejected(text),
    };
    End::Outcome(Err(error))
}
