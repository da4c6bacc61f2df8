//! A limiter in the memory of this process, for use while the server is unavailable.

use crate::limit::invalid;
use crate::{Answer, Decision, Fixed, FixedWindow, Limit, Quantity, Saturate, Units, lock};
use redis::{Arg, Cmd, RedisResult};
use redis_cell_core::bucket::{self, Level};
use redis_cell_core::fixed::{self, Counter};
use redis_cell_core::gcra::{self, Tat};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::window::{self, Sliding};
use redis_cell_core::{Change, Error, Instant, QUANTITY, Span, Unit, Verdict, log};
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A limiter in the memory of this process, for the process's share of a limit.
///
/// It runs the same code as the commands, with one exception: it estimates a log like `CL.WINDOW`, because an
/// exact log would need memory for each unit. All clones share its memory. It does not know which units the
/// server has admitted, and the server does not learn which units it has admitted.
///
/// # Example
/// ```
/// use redis_cell_client::{LocalLimiter, Rate, Units};
/// use std::num::NonZeroU32;
/// let four_processes = NonZeroU32::new(4).unwrap();
/// let local = LocalLimiter::new(four_processes);
/// let limit = Rate::per_second(100).burst(99); // here: 25 at once, and 25 per second
/// assert_eq!(local.take("user:42", limit, Units(1))?.remaining, 24);
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalLimiter {
    processes: NonZeroU32,
    states: Arc<Mutex<States>>,
    /// The instant at which this limiter was made, on the wall clock and on a monotonic clock.
    started: (Instant, std::time::Instant),
}

impl LocalLimiter {
    /// The number of keys for which [`new`](Self::new) makes room.
    pub const KEYS: usize = 100_000;

    /// Creates a limiter for one of `processes` processes that share each limit, with room for
    /// [`KEYS`](Self::KEYS) keys.
    pub fn new(processes: NonZeroU32) -> Self {
        Self::with_keys(processes, Self::KEYS)
    }

    /// Like [`new`](Self::new), with room for `keys` keys. Each key needs about 100 bytes and its own length.
    ///
    /// When the room is used up, the least recently used keys are removed, half of the room at a time.
    /// Clients that can choose their keys can therefore make the limiter forget the units that they have
    /// taken.
    pub fn with_keys(processes: NonZeroU32, keys: usize) -> Self {
        let room = keys.div_ceil(2).max(1);
        let states = Arc::new(Mutex::new(States { room, ..States::default() }));
        Self { processes, states, started: (wall_clock(), std::time::Instant::now()) }
    }

    /// Returns the share of one process: the rate and the burst of `CL.THROTTLE`, the rate and the capacity
    /// of a bucket, or the units per window, divided by the number of processes. At least one unit can be
    /// taken at once.
    pub fn share(&self, limit: impl Into<Limit>) -> Limit {
        limit.into().share(self.processes.get())
    }

    /// Takes units from this process's share of `limit`.
    ///
    /// # Errors
    /// Returns an error if the limit or the quantity is out of the range that the command accepts.
    pub fn take(
        &self,
        key: impl AsRef<[u8]>,
        limit: impl Into<Limit>,
        quantity: impl Into<Quantity>,
    ) -> RedisResult<Answer> {
        let key = key.as_ref();
        let mut states = lock(&self.states);
        let (answer, state) = self.read(&states, key, limit.into(), quantity.into(), self.now())?;
        states.keep(key, state);
        Ok(answer)
    }

    /// Takes units from this process's share of several limits: from all that admit their quantity, or from
    /// none.
    ///
    /// `agrees` receives the answers that would be returned. If it returns `false`, nothing is taken, and the
    /// answers that admit show the state without the units. `agrees` must not call this limiter.
    ///
    /// # Errors
    /// Returns the errors of [`take`](Self::take), and an error if two keys are equal. Nothing is taken then.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::{Answer, LocalLimiter, Rate, Units};
    /// let local = LocalLimiter::new(std::num::NonZeroU32::MIN);
    /// let (wide, narrow) = (Rate::per_hour(9).burst(8).into(), Rate::per_hour(2).burst(1).into());
    /// let takes = [("wide", wide, Units(3)), ("narrow", narrow, Units(3))];
    /// let answers = local.take_together(&takes, |answers| answers.iter().all(Answer::admitted))?;
    /// assert!(!answers[1].admitted());
    /// assert_eq!(answers[0].remaining, 9); // nothing was taken
    /// # redis::RedisResult::Ok(())
    /// ```
    pub fn take_together<K: AsRef<[u8]>>(
        &self,
        takes: &[(K, Limit, Units)],
        agrees: impl FnOnce(&[Answer]) -> bool,
    ) -> RedisResult<Vec<Answer>> {
        let mut keys = HashSet::new();
        if !takes.iter().all(|(key, ..)| keys.insert(key.as_ref())) {
            return Err(invalid("the same key is named twice"));
        }
        let now = self.now();
        let mut states = lock(&self.states);
        let read = |states: &States, units: fn(Units) -> Units| {
            let read = |(key, limit, quantity): &(K, Limit, Units)| {
                self.read(states, key.as_ref(), *limit, units(*quantity).into(), now)
            };
            takes.iter().map(read).collect::<RedisResult<Vec<_>>>()
        };
        let (answers, changes): (Vec<Answer>, Vec<_>) = read(&states, |units| units)?.into_iter().unzip();
        if agrees(&answers) {
            for ((key, ..), state) in takes.iter().zip(changes) {
                states.keep(key.as_ref(), state);
            }
            return Ok(answers);
        }
        let untaken = read(&states, |_| Units(0))?;
        let rows = answers.into_iter().zip(untaken);
        Ok(rows.map(|(answer, (untaken, _))| if answer.admitted() { untaken } else { answer }).collect())
    }

    /// Takes units from the chains of an account: from one pool of each, or from none. A pool is a row of
    /// limiters, each of which takes the units that do not fit the limiters before it. Returns whether it has
    /// taken.
    pub(crate) fn take_in_order(&self, chains: &[Chain<'_>]) -> RedisResult<bool> {
        let now = self.now();
        let mut states = lock(&self.states);
        let mut changes = Vec::new();
        for chain in chains {
            let mut admits = false;
            for (pool, Units(quantity)) in chain {
                let (begin, mut left) = (changes.len(), *quantity);
                for &(key, limit) in pool {
                    // A quantity of 0 is admitted by any limiter that has no debt, which this one never has.
                    let (answer, state) = self.read(&states, key, limit, Saturate(left).into(), now)?;
                    left = left.saturating_sub(answer.taken.unwrap_or_default());
                    changes.push((key, state));
                }
                admits = left == 0;
                if admits {
                    break;
                }
                changes.truncate(begin);
            }
            if !admits {
                return Ok(false);
            }
        }
        for (key, state) in changes {
            states.keep(key, state);
        }
        Ok(true)
    }

    /// Decides a call for a key. Also returns the key's new state, if it changes.
    fn read(
        &self,
        states: &States,
        key: &[u8],
        limit: Limit,
        quantity: Quantity,
        now: Now,
    ) -> RedisResult<(Answer, Option<State>)> {
        read(states.get(key), self.share(limit), quantity, now)
    }

    /// Returns the present instant. The steady instant is the instant at which this limiter was made plus the
    /// time since then, so it does not depend on later changes of the wall clock.
    fn now(&self) -> Now {
        let (wall, start) = self.started;
        let elapsed = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let steady = Instant::saturating_from_nanos(wall.as_nanos().saturating_add(elapsed));
        Now { steady, wall: wall_clock() }
    }
}

/// The present instant on a monotonic clock and on the wall clock.
#[derive(Clone, Copy)]
struct Now {
    steady: Instant,
    wall: Instant,
}

/// Decides with the limit that the server would read from the arguments of a call.
fn read(
    state: Option<State>,
    share: Limit,
    quantity: Quantity,
    now: Now,
) -> RedisResult<(Answer, Option<State>)> {
    let mut cmd = Cmd::new();
    share.write(&mut cmd)?;
    let arguments: Vec<&[u8]> = cmd
        .args_iter()
        .filter_map(|argument| if let Arg::Simple(bytes) = argument { Some(bytes) } else { None })
        .collect();
    decide(state, share, &arguments, quantity, now)
        .map_err(|error| (redis::ErrorKind::Client, "invalid arguments", error.to_string()).into())
}

/// Reads the limit from its arguments, and decides.
fn decide(
    state: Option<State>,
    share: Limit,
    arguments: &[&[u8]],
    quantity: Quantity,
    now: Now,
) -> Result<(Answer, Option<State>), Error> {
    match (share, arguments) {
        (Limit::Throttle(_), &[burst, count, period]) => {
            by(&gcra::Limit::parse([burst, count, period], UNIT)?, state, now.steady, quantity)
        }
        (Limit::Funnel(_) | Limit::Bucket(_), &[capacity, count, period]) => {
            by(&bucket::Limit::parse([capacity, count, period], UNIT)?, state, now.steady, quantity)
        }
        (Limit::Fixed(fixed), arguments) => {
            let mut arguments = arguments.iter().copied();
            let limit = fixed::Limit::parse_words(&mut arguments, UNIT)?;
            if arguments.next().is_some() {
                return Err(Error::Syntax); // an offset from UTC for a window that is not a calendar window
            }
            let now = if fixed.window.is_of_the_calendar() { now.wall } else { now.steady };
            by(&limit, state, now, quantity)
        }
        (Limit::Window(_) | Limit::Log(_), &[count, period]) => {
            // A log accepts fewer units per period and per call than a window.
            if matches!(share, Limit::Log(_)) {
                log::Limit::parse([count, period], UNIT)?;
                if let Quantity::Units(units) = quantity {
                    log::QUANTITY.check(number(units)?)?;
                }
            }
            by(&window::Limit::parse([count, period], UNIT)?, state, now.steady, quantity)
        }
        _ => Err(Error::Syntax),
    }
}

fn by<L: Limiter>(
    limit: &L,
    state: Option<State>,
    now: Instant,
    quantity: Quantity,
) -> Result<(Answer, Option<State>), Error>
where
    L::State: Kept,
{
    let state = state.and_then(L::State::from_state);
    let decision = match quantity {
        Quantity::Units(units) => limit.take(state, now, number(units)?)?,
        Quantity::Saturate(Saturate(most)) => limit.saturate(state, now, number(Units(most))?)?,
    };
    let state = match decision.change {
        Change::Store(state) => Some(state.into_state()),
        Change::Keep | Change::Delete => None,
    };
    let answer = decision.answer;
    let answer = Answer {
        decision: match answer.verdict {
            Verdict::Admitted | Verdict::Booked(_) => Decision::Admitted,
            Verdict::Later(wait) => Decision::RefusedFor(Duration::from_nanos(wait.as_nanos())),
            Verdict::Never => Decision::RefusedForever,
        },
        limit: answer.limit.unsigned_abs(),
        remaining: answer.remaining.unsigned_abs(),
        reset_after: match answer.reset_after {
            Span::MAX => Duration::MAX,
            left => Duration::from_nanos(left.as_nanos()),
        },
        taken: answer.taken.map(i64::unsigned_abs),
    };
    Ok((answer, state))
}

/// The unit of all times that this crate sends.
const UNIT: Unit = Unit::Microseconds;

fn wall_clock() -> Instant {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::saturating_from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn number(Units(units): Units) -> Result<i64, Error> {
    i64::try_from(units).map_err(|_| QUANTITY.error())
}

/// Reads the arguments as the server does, so that a call that it would reject is also an error without it.
/// Returns the answer of a limiter from which nothing has been taken.
///
/// # Errors
/// Returns an error if the limit or the quantity is out of the range that the command accepts.
pub(crate) fn check(limit: Limit, quantity: Quantity) -> RedisResult<Answer> {
    let limit = match limit {
        // Only the server knows whether its clock has passed the instant, and whether a window is open.
        Limit::Fixed(fixed) if fixed.window.ends_at_an_instant() => {
            Fixed::new(fixed.limit, FixedWindow::day()).into()
        }
        limit => limit,
    };
    let now = wall_clock();
    read(None, limit, quantity, Now { steady: now, wall: now }).map(|(answer, _)| answer)
}

/// Pools in order: the limiters of each pool, and its quantity.
pub(crate) type Chain<'a> = Vec<(Vec<(&'a [u8], Limit)>, Units)>;

/// The state of a key.
#[derive(Clone, Copy, Debug)]
enum State {
    Tat(Tat),
    Level(Level),
    Counter(Counter),
    Sliding(Sliding),
}

/// The state of one kind of limiter. To the other kinds, a key with this state has none.
trait Kept: Sized {
    fn from_state(state: State) -> Option<Self>;
    fn into_state(self) -> State;
}

macro_rules! kept {
    ($($state:ident)*) => {$(
        impl Kept for $state {
            fn from_state(state: State) -> Option<Self> {
                if let State::$state(state) = state { Some(state) } else { None }
            }

            fn into_state(self) -> State {
                State::$state(self)
            }
        }
    )*};
}
kept!(Tat Level Counter Sliding);

/// The states, in two halves. A key that changes moves to the younger half. When this half is full, it
/// replaces the older half, whose keys were not used since, and which is dropped.
#[derive(Debug, Default)]
struct States {
    room: usize,
    young: HashMap<Box<[u8]>, State>,
    old: HashMap<Box<[u8]>, State>,
}

impl States {
    fn get(&self, key: &[u8]) -> Option<State> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }

    /// Stores the new state of a key, if there is one.
    fn keep(&mut self, key: &[u8], state: Option<State>) {
        let Some(state) = state else { return };
        if let Some(young) = self.young.get_mut(key) {
            *young = state;
            return;
        }
        if self.young.len() >= self.room {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(key);
        self.young.insert(key.into(), state);
    }
}
