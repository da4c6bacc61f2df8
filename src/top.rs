//! The table of the most refused keys, fed by `outcome`, shown by `CL.TOP`.

use core::cell::RefCell;
use core::mem::{self, ManuallyDrop};

use redis_cell_core::Error;
use redis_cell_core::top::{Refused, Top};

use crate::ffi::{self, Arg, Call};

thread_local! {
    /// `None` while it is switched off. Everything runs on the server's main thread, so that there is one of these, and it
    /// costs no lock. What the thread would have to drop at its end would keep the file from being unloaded before.
    static TOP: RefCell<ManuallyDrop<Option<Top>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Does `work` with the table, if there is one.
fn with<T>(work: impl FnOnce(&mut Top) -> T) -> Option<T> {
    TOP.with(|top| top.try_borrow_mut().ok()?.as_mut().map(work))
}

/// Begins anew with room for `size` keys; none switches it off.
pub fn resize(size: usize) {
    TOP.with(|top| {
        if let Ok(mut top) = top.try_borrow_mut() {
            let new = ManuallyDrop::new((size > 0).then(|| Top::new(size)));
            drop(ManuallyDrop::into_inner(mem::replace(&mut *top, new)));
        }
    });
}

/// Counts a refusal of this call for `key`.
pub fn note(call: &Call, key: Arg) {
    // The instant at which the call was decided, without asking the clock again.
    with(|top| top.note(call.db(), call.bytes(key), ffi::last_now()));
}

/// The `most` keys refused most often in the database of the call.
///
/// # Errors
/// [`Error::TopOff`].
pub fn most(call: &Call, most: usize) -> Result<Vec<Refused>, Error> {
    with(|top| top.most(call.db(), most)).ok_or(Error::TopOff)
}

/// Forgets all refusals.
///
/// # Errors
/// [`Error::TopOff`].
pub fn reset() -> Result<(), Error> {
    with(Top::reset).ok_or(Error::TopOff)
}
