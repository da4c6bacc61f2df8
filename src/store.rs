//! Where states live: native values under the very key given, readable and deletable without this module.

use redis_cell_core::{Answer, Change, Decision, Error, Instant, gcra, lease, log};

#[cfg(feature = "faults")]
use crate::faults::{self, Fault};
use crate::ffi::{self, Access, Arg, Call, Key, Kind, Scores};
use crate::waiting;

pub mod bucket;
pub mod window;

/// Forgets what the server ends when it unloads the module.
pub fn unload() {
    for word in bucket::FIELDS.iter().chain(&window::FIELDS).chain([&&ffi::PXAT]) {
        word.forget();
    }
}

/// A state that can be kept under a key.
pub trait State: Sized {
    /// What the key holds; `None` when there is no such key.
    ///
    /// # Errors
    /// [`Error::WrongType`] and [`Error::Foreign`] when it holds something else.
    fn load(key: &Key, now: Instant) -> Result<Option<Self>, Error>;
}

/// What a key is made to hold: a state, and the limit that it was decided under where that shows in the key too.
pub trait Save {
    /// Makes the key hold this state, with an expiry not before it is as good as new.
    fn save(&self, key: Key);
}

/// Decides a call that may write, and carries out what was decided.
///
/// A refusal, a look and an error leave the key untouched.
///
/// # Errors
/// Those of [`State::load`] and of `decide`.
pub fn update<S: State, W: Save>(
    call: &Call,
    key: Arg,
    decide: impl FnOnce(Option<S>, Instant) -> Result<Decision<W>, Error>,
) -> Result<Answer, Error> {
    let now = ffi::now();
    let key = Key::open(*call, key, Access::Write);
    let decision = decide(S::load(&key, now)?, now)?;
    carry_out(decision.change, key);
    Ok(decision.answer)
}

/// Writes what was decided.
pub fn carry_out<S: Save>(change: Change<S>, key: Key) {
    match change {
        #[cfg(feature = "faults")]
        Change::Keep if faults::is(Fault::WriteOnRefusal) => faults::write(key),
        #[cfg(feature = "faults")]
        Change::Store(_) if faults::loses() => {}
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
            _ => Err(Error::WrongType),
        }
    }
}

impl Save for gcra::Tat {
    fn save(&self, key: Key) {
        let mut digits = itoa::Buffer::new();
        key.set_string(digits.format(self.as_nanos()).as_bytes(), self.as_millis_ceil().cast_signed());
    }
}

/// A change to a sorted set, of which not the whole is replaced.
pub trait Edit {
    /// Carries it out under an open key, with an expiry not before the limiter is as good as new.
    ///
    /// # Errors
    /// [`Error::Server`] when the server lacks one of its own commands.
    fn apply(&self, key: Key) -> Result<(), Error>;
}

/// Decides a call on a sorted set of instants, and carries out what was decided.
///
/// A refusal, a look and an error leave the key untouched.
///
/// # Errors
/// Those of [`Scores::load`], `decide` and [`Edit::apply`].
pub fn edit<E: Edit, T>(
    call: &Call,
    key: Arg,
    decide: impl FnOnce(&Scores, Instant) -> Result<(T, Change<E>), Error>,
) -> Result<T, Error> {
    let now = ffi::now();
    let key = Key::open(*call, key, Access::Write);
    let (answer, change) = decide(&Scores::load(&key, now)?, now)?;
    match change {
        #[cfg(feature = "faults")]
        Change::Keep if faults::is(Fault::WriteOnRefusal) => faults::write(key),
        #[cfg(feature = "faults")]
        Change::Store(_) if faults::loses() => {}
        Change::Keep => {}
        Change::Store(edit) => edit.apply(key)?,
        Change::Delete => key.delete(),
    }
    Ok(answer)
}

/// How many names are sought in vain for the entries of one call.
const MISSES: u64 = 1_000;

/// The log: a member per unit, `<score>-<k>`, k counting those with one score.
impl Edit for log::Entries {
    fn apply(&self, key: Key) -> Result<(), Error> {
        let mut digits = itoa::Buffer::new();
        let score = digits.format(self.at.as_micros()).as_bytes();
        let mut members = Vec::new();
        // A name is taken when entries with this score were removed by hand; the next ones are not. Who has written
        // names by hand as well gets an error in the end, not a server that hangs.
        let end = self.there.saturating_add(self.count).saturating_add(MISSES);
        for k in self.there..end {
            if self.count == u64::try_from(members.len()).unwrap_or(u64::MAX) {
                break;
            }
            let member = [score, b"-", itoa::Buffer::new().format(k).as_bytes()].concat();
            if key.add(&member, self.at) {
                members.push(member);
            }
        }
        if members.is_empty() {
            return Err(Error::Server { command: "ZADD" }); // nothing was changed, so nothing is told
        }
        let mut words: Vec<&[u8]> = vec![b"NX"];
        words.extend(members.iter().flat_map(|member| [score, member]));
        key.finish(c"ZADD", &words, self.pruned, self.until)?;
        let all = self.count == u64::try_from(members.len()).unwrap_or(u64::MAX);
        if all { Ok(()) } else { Err(Error::Server { command: "ZADD" }) }
    }
}

/// The leases: a member per holder, by its own name, with the end of its lease as score.
pub struct Holder<'a, C> {
    /// The call, whose `id` is the holder's name.
    pub call: &'a Call<'a>,
    /// The holder's name.
    pub id: Arg<'a>,
    /// What becomes of its lease.
    pub change: C,
}

impl Edit for Holder<'_, lease::Held> {
    fn apply(&self, key: Key) -> Result<(), Error> {
        let mut digits = itoa::Buffer::new();
        let end = digits.format(self.change.end.as_micros()).as_bytes();
        key.put(self.id, self.change.end);
        key.finish(c"ZADD", &[end, self.call.bytes(self.id)], self.change.pruned, self.change.until)
    }
}

impl Edit for Holder<'_, lease::Freed> {
    fn apply(&self, key: Key) -> Result<(), Error> {
        key.remove(self.id);
        key.finish(c"ZREM", &[self.call.bytes(self.id)], 0, self.change.until)
    }
}
