//! Where states live: native values under the very key given, readable and deletable without this module.

use redis_cell_core::{Answer, Change, Decision, Error, Instant, gcra};

use crate::ffi::{self, Access, Arg, Call, Key, Kind};
use crate::waiting;

/// A state that can be kept under a key.
pub trait State: Sized {
    /// What the key holds; `None` when there is no such key.
    ///
    /// # Errors
    /// [`Error::WrongType`] and [`Error::Foreign`] when it holds something else.
    fn load(key: &Key, now: Instant) -> Result<Option<Self>, Error>;

    /// Makes the key hold this state, with an expiry not before it is as good as new.
    fn save(&self, key: Key);
}

/// Decides a call that may write, and carries out what was decided.
///
/// A refusal, a look and an error leave the key untouched.
///
/// # Errors
/// Those of [`State::load`] and of `decide`.
pub fn update<S: State>(
    call: &Call,
    key: Arg,
    decide: impl FnOnce(Option<S>, Instant) -> Result<Decision<S>, Error>,
) -> Result<Answer, Error> {
    let now = ffi::now();
    let key = Key::open(*call, key, Access::Write);
    let decision = decide(S::load(&key, now)?, now)?;
    carry_out(decision.change, key);
    Ok(decision.answer)
}

/// Writes what was decided.
pub fn carry_out<S: State>(change: Change<S>, key: Key) {
    match change {
        Change::Keep => {}
        Change::Store(state) => state.save(key),
        Change::Delete => key.delete(),
    }
}

/// Decides a call that only looks.
///
/// # Errors
/// Those of [`State::load`] and of `decide`.
pub fn look<S: State>(
    call: &Call,
    key: Arg,
    decide: impl FnOnce(Option<S>, Instant) -> Result<Answer, Error>,
) -> Result<Answer, Error> {
    let now = ffi::now();
    let key = Key::open(*call, key, Access::Read);
    decide(S::load(&key, now)?, now)
}

/// [`update`] for a GCRA limiter whose callers may have to queue: to a call that does not wait, what those in line
/// wait for counts as taken.
///
/// # Errors
/// As [`update`].
pub fn update_behind_line(
    call: &Call,
    key: Arg,
    decide: impl FnOnce(Option<gcra::Tat>, Instant) -> Result<Decision<gcra::Tat>, Error>,
) -> Result<Answer, Error> {
    update(call, key, |tat, now| waiting::overtake(call, key, tat, now, |tat| decide(tat, now)))
}

/// The state of GCRA: the TAT's digits in a string, as redis-cell has always kept it.
impl State for gcra::Tat {
    fn load(key: &Key, now: Instant) -> Result<Option<Self>, Error> {
        match key.kind() {
            Kind::Empty => Ok(None),
            Kind::String => gcra::decode(key.string(), now, || key.expiry()).map(Some),
            Kind::Other => Err(Error::WrongType),
        }
    }

    fn save(&self, key: Key) {
        let mut digits = itoa::Buffer::new();
        key.set_string(digits.format(self.as_nanos()).as_bytes(), self.as_millis_ceil().cast_signed());
    }
}
