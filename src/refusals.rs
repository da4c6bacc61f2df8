//! The record of refusals behind `CL.TOP`; `redis_cell_core::top` has the algorithm.

use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};

use redis_cell_core::top::{Refused, Top};

use crate::config;
use crate::error::Error;
use crate::ffi::{self, Arg, Call};

/// The record; `None` while it is switched off.
///
/// Calls come from the server's main thread, and from threads of other modules that hold the server's lock.
/// So no thread ever waits here: if the lock is taken, this thread holds it.
static RECORD: Mutex<Option<Top>> = Mutex::new(None);

/// The number of keys for which the record has room; 0 while it is switched off.
static SIZE: AtomicUsize = AtomicUsize::new(0);

fn lock() -> Option<MutexGuard<'static, Option<Top>>> {
    match RECORD.try_lock() {
        Ok(record) => Some(record),
        // After a panic in the middle of a change, counts may be wrong, but they are still useful.
        Err(TryLockError::Poisoned(record)) => Some(record.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Runs `work` on the record and returns its result, or `None` without a record.
fn with<T>(work: impl FnOnce(&mut Top) -> T) -> Option<T> {
    lock()?.as_mut().map(work)
}

/// Whether refusals are recorded. Starts a new record when the configured size has changed.
///
/// This does not happen when the setting changes: a `CONFIG SET` with several settings sets them one by one,
/// and sets them back if a later one is wrong or cannot be applied. At the next refusal, it has either
/// succeeded or failed.
pub fn is_on() -> bool {
    let size = usize::try_from(config::TOP_SIZE.get()).unwrap_or_default();
    if SIZE.load(Relaxed) != size {
        resize(size);
    }
    size > 0
}

/// Starts a new record with room for `size` keys; 0 switches it off.
#[cold]
fn resize(size: usize) {
    let new = (size > 0).then(|| Top::new(size));
    if let Some(mut record) = lock() {
        drop(mem::replace(&mut *record, new));
        SIZE.store(size, Relaxed);
    }
}

/// Frees the record.
pub fn unload() {
    resize(0);
}

/// Records a refusal of this call for `key`, if [`is_on`].
pub fn record(call: &Call, key: Arg) {
    // The instant at which the call was decided, without reading the clock again.
    let (db, key, now) = (call.db(), call.bytes(key), ffi::last_now());
    with(|top| top.note(db, key, now));
}

/// The `most` keys refused most often in the database of the call.
///
/// # Errors
/// [`Error::TopOff`].
pub fn most(call: &Call, most: usize) -> Result<Vec<Refused>, Error> {
    if !is_on() {
        return Err(Error::TopOff);
    }
    let db = call.db();
    with(|top| top.most(db, most)).ok_or(Error::TopOff)
}

/// Forgets all refusals.
///
/// # Errors
/// [`Error::TopOff`].
pub fn reset() -> Result<(), Error> {
    if !is_on() {
        return Err(Error::TopOff);
    }
    with(Top::reset).ok_or(Error::TopOff)
}
