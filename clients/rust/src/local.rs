//! A limiter in this process, for when the server is away.

use crate::{Answer, Decision, Gcra, Take, Units, UpTo};
use redis_cell_core::{Instant, Unit, Verdict, gcra, gcra::Tat};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A limiter in the memory of this process, with this process's share of the limit.
///
/// It decides as `CL.THROTTLE` does, by the same code. All clones share their memory. It knows nothing of
/// what the server has admitted, and the server learns nothing of what this limiter has admitted.
///
/// # Example
/// ```
/// use redis_cell_client::{LocalLimiter, Rate, Units};
/// use std::num::NonZeroU32;
/// let four_processes = NonZeroU32::new(4).unwrap();
/// let local = LocalLimiter::new(four_processes);
/// let limit = Rate::per_second(100).burst(99); // here: 25 at once, and 25 per second
/// assert_eq!(local.throttle("user:42", limit, Units(1))?.remaining, 24);
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalLimiter {
    processes: NonZeroU32,
    states: Arc<Mutex<States>>,
    started: std::time::Instant,
}

impl LocalLimiter {
    /// The number of keys of a limiter that [`new`](Self::new) returns.
    pub const KEYS: usize = 100_000;

    /// A limiter for one of `processes` processes that share each limit, with room for [`KEYS`](Self::KEYS)
    /// keys.
    pub fn new(processes: NonZeroU32) -> Self {
        Self::with_keys(processes, Self::KEYS)
    }

    /// The same, with room for `keys` keys. One key needs about 100 bytes, and its own length.
    ///
    /// When the room is used up, the keys that were not used for the longest time are forgotten, half of the
    /// room at a time: clients that can choose their keys can so make the limiter forget what they have
    /// taken.
    pub fn with_keys(processes: NonZeroU32, keys: usize) -> Self {
        let room = keys.div_ceil(2).max(1);
        let states = Arc::new(Mutex::new(States { room, ..States::default() }));
        Self { processes, states, started: std::time::Instant::now() }
    }

    /// The share of one process: the rate and the burst, divided by the number of processes. At least one
    /// unit can be taken at once.
    pub fn share(&self, limit: impl Into<Gcra>) -> Gcra {
        let Gcra { rate, max_burst } = limit.into();
        let at_once = max_burst.saturating_add(1).div_euclid(self.processes.get().into());
        let period = rate.period.saturating_mul(self.processes.get());
        crate::Rate { period, ..rate }.burst(at_once.saturating_sub(1))
    }

    /// Takes units from this process's share of `limit`.
    ///
    /// # Errors
    /// If the limit or the quantity is out of the range that `CL.THROTTLE` accepts.
    pub fn throttle(
        &self,
        key: impl AsRef<[u8]>,
        limit: impl Into<Gcra>,
        take: impl Into<Take>,
    ) -> redis::RedisResult<Answer> {
        self.decide(key.as_ref(), self.share(limit), take.into())
            .map_err(|error| (redis::ErrorKind::Client, "invalid limit", error.to_string()).into())
    }

    fn decide(&self, key: &[u8], share: Gcra, take: Take) -> Result<Answer, redis_cell_core::Error> {
        let (burst, count) = (saturate(share.max_burst), saturate(share.rate.count));
        let micros = i64::try_from(share.rate.period.as_micros()).unwrap_or(i64::MAX);
        let limit = gcra::Limit::new(burst, count, micros, Unit::Microseconds)?;
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = Instant::saturating_from_nanos(elapsed);
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.get(key);
        let decision = match take {
            Take::Units(Units(units)) => gcra::throttle(state, &limit, now, saturate(units))?,
            Take::UpTo(UpTo(most)) => gcra::saturate(state, &limit, now, saturate(most))?,
        };
        if let redis_cell_core::Change::Store(tat) = decision.change {
            states.set(key, tat);
        }
        drop(states);
        let answer = decision.answer;
        Ok(Answer {
            decision: match answer.verdict {
                Verdict::Admitted | Verdict::Booked(_) => Decision::Admitted,
                Verdict::Later(wait) => Decision::RefusedFor(Duration::from_nanos(wait.as_nanos())),
                Verdict::Never => Decision::RefusedForever,
            },
            limit: answer.limit.unsigned_abs(),
            remaining: answer.remaining.unsigned_abs(),
            reset_after: Duration::from_nanos(answer.reset_after.as_nanos()),
            taken: answer.taken.map(i64::unsigned_abs),
        })
    }
}

fn saturate(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The states in two halves. A key that is used moves to the younger half. When that is full, it becomes the
/// older one, and the keys of the older one, which were not used since, are forgotten.
#[derive(Debug, Default)]
struct States {
    room: usize,
    young: HashMap<Box<[u8]>, Tat>,
    old: HashMap<Box<[u8]>, Tat>,
}

impl States {
    fn get(&self, key: &[u8]) -> Option<Tat> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }

    fn set(&mut self, key: &[u8], tat: Tat) {
        if let Some(state) = self.young.get_mut(key) {
            *state = tat;
            return;
        }
        if self.young.len() >= self.room {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(key);
        self.young.insert(key.into(), tat);
    }
}
