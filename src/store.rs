//! The storage of states: native values under the key of the call, which can be read and deleted without this
//! module.
//!
//! For each state there is a file with the code that reads it from a key and saves it. Whatever the state,
//! only [`write`] writes a change to its key.

use redis_cell_core::{Change, Instant};

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Arg, Call, Handles, Key, Write};

pub mod bucket;
pub mod fixed;
pub mod gcra;
pub mod hold;
pub mod lease;
pub mod log;
pub mod timeline;
pub mod window;

/// A state that can be kept under a key.
pub trait State: Sized {
    /// The limit by which it is decided.
    type Limit;

    /// The state that the key holds; `None` if the key does not exist. `now` is an instant of the module's
    /// clock. If the state follows another clock, it becomes the instant of that clock.
    ///
    /// The wall clock may have been wrong when the state was written. So a state that ends later than its
    /// key expires is moved back to end with the key. Reading the key's expiry costs a few percent of a call,
    /// so it is read only for a state that owes more than the limit allows, or that lies ahead.
    ///
    /// # Errors
    /// [`Error::WrongType`] and [`Error::Foreign`] when it holds something else.
    fn load(key: &Key, now: &mut Instant, limit: &Self::Limit) -> Result<Option<Self>, Error>;
}

/// A state to be stored, or a change to one that is not replaced as a whole; with the limit by which it was
/// decided, if the key stores that too.
pub trait Save {
    /// The write that saves it.
    const WRITE: Write;
    /// The write that deletes it.
    const DELETE: Write = Write::Delete;

    /// Stores this state under the key, which expires when the limiter is fully replenished or later.
    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c>;
}

/// Decides a call that may write, by its open key, and carries out the decision.
///
/// A refusal, a check and an error leave the key untouched.
///
/// # Errors
/// The errors of `decide` and of [`carry_out`].
#[inline]
pub fn change<'c, W: Save, T>(
    call: &Call<'c>,
    key: Arg<'c>,
    decide: impl FnOnce(&Key<'_, 'c>, Instant) -> Result<(T, Change<W>), Error>,
) -> Result<T, Error> {
    let now = ffi::now();
    let mut handles = Handles::default();
    let mut key = handles.open_alone(call, key, Access::Write)?;
    let (answer, change) = decide(&key, now)?;
    let announcement = carry_out(change, &mut key)?;
    drop(key);
    handles.publish(call, announcement);
    Ok(answer)
}

/// [`check`] and [`write`].
///
/// # Errors
/// [`Error::Server`] when the server lacks one of its own commands that this needs. Then nothing has been
/// written.
#[inline(always)]
pub fn carry_out<'c, S: Save>(
    change: Change<S>,
    key: &mut Key<'_, 'c>,
) -> Result<Option<Announcement<'c>>, Error> {
    check::<S>(&change)?;
    Ok(write(change, key))
}

/// Carries out a decision's change: the only function that writes, which cannot fail after [`check`]. The
/// caller publishes its events when nothing is left to write.
#[inline(always)]
pub fn write<'c, S: Save>(change: Change<S>, key: &mut Key<'_, 'c>) -> Option<Announcement<'c>> {
    match change {
        Change::Keep if faults::writes_refusals() => {
            let _ = key.call().effect(c"PEXPIRE", key.name(), &[b"3600000"]);
            None
        }
        Change::Store(_) if faults::loses_admissions() => None,
        Change::Keep => None,
        Change::Store(state) => Some(state.save(key)),
        Change::Delete if S::DELETE == Write::Unlink => Some(key.unlink()),
        Change::Delete => Some(key.delete()),
    }
}

/// Makes sure that the server has the commands that are needed to carry out a change.
///
/// # Errors
/// [`Error::Server`] naming the first command that is missing.
#[inline]
pub fn check<S: Save>(change: &Change<impl Sized>) -> Result<(), Error> {
    match change {
        Change::Keep => Ok(()),
        Change::Store(_) => S::WRITE.check(),
        Change::Delete => S::DELETE.check(),
    }
}
