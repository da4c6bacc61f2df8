//! The table of the most refused keys, fed by `outcome`, shown by `CL.TOP`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use redis_cell_core::Error;
use redis_cell_core::top::{Refused, Top};

use crate::ffi::{self, Arg, Call};

/// `None` while it is switched off.
static TOP: Mutex<Option<Top>> = Mutex::new(None);

/// Everything runs on the server's main thread, so nobody waits for this lock.
fn top() -> MutexGuard<'static, Option<Top>> {
    TOP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins anew with room for `size` keys; none switches it off.
pub fn resize(size: usize) {
    *top() = (size > 0).then(|| Top::new(size));
}

/// Counts a refusal of this call for `key`.
pub fn note(call: &Call, key: Arg) {
    if let Some(top) = top().as_mut() {
        // The instant at which the call was decided, without asking the clock again.
        top.note(call.db(), call.bytes(key), ffi::last_now());
    }
}

/// The `most` keys refused most often in the database of the call.
///
/// # Errors
/// [`Error::TopOff`].
pub fn most(call: &Call, most: usize) -> Result<Vec<Refused>, Error> {
    top().as_ref().map(|top| top.most(call.db(), most)).ok_or(Error::TopOff)
}

/// Forgets all refusals.
///
/// # Errors
/// [`Error::TopOff`].
pub fn reset() -> Result<(), Error> {
    top().as_mut().map(Top::reset).ok_or(Error::TopOff)
}
