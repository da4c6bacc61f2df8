//! Leases of units: batches from the server, spent in this process.

use crate::limit::invalid;
use crate::limiter::ask;
use crate::{Answer, Decision, Gcra, MSettle, Quota, Settlement, Units, UpTo, call};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult};
use redis_cell_core::holding::{Holding, Spend, Terms};
use redis_cell_core::{Instant, Span, Unit};
use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The limit of [`Leased`]: a rate with a burst, or a quota per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeasedLimit {
    /// `CL.THROTTLE`.
    Gcra(Gcra),
    /// `CL.FIXED`.
    Quota(Quota),
}

impl<G: Into<Gcra>> From<G> for LeasedLimit {
    fn from(limit: G) -> Self {
        Self::Gcra(limit.into())
    }
}

impl From<Quota> for LeasedLimit {
    fn from(quota: Quota) -> Self {
        Self::Quota(quota)
    }
}

impl LeasedLimit {
    /// The largest quantity that can be admitted at once.
    const fn at_once(self) -> u64 {
        match self {
            Self::Gcra(limit) => limit.at_once(),
            Self::Quota(quota) => quota.limit,
        }
    }

    fn batch(self, key: &[u8], units: i64) -> RedisResult<Cmd> {
        let up_to = UpTo(units.unsigned_abs());
        match self {
            Self::Gcra(limit) => call::throttle(key, limit, up_to),
            Self::Quota(quota) => call::fixed(key, quota, up_to),
        }
    }

    fn direct(self, key: &[u8], units: Units) -> RedisResult<Cmd> {
        match self {
            Self::Gcra(limit) => call::throttle(key, limit, units),
            Self::Quota(quota) => call::fixed(key, quota, units),
        }
    }

    fn give_back(self, key: &[u8], units: i64, age: Span) -> RedisResult<Cmd> {
        let units = Units(units.unsigned_abs());
        match self {
            Self::Gcra(limit) => call::refund(key, limit, units),
            Self::Quota(quota) => call::msettle(
                MSettle::new()
                    .fixed(key, quota, Settlement::GiveBack(units))
                    .ago(Duration::from_nanos(age.as_nanos())),
            ),
        }
    }
}

/// Limits calls with units that are taken from the server in batches.
///
/// One call to the server brings a batch of units, which this process spends without asking again. A refusal
/// is remembered, so that a key that is exhausted costs the server nothing, however often it is asked for
/// here. It is meant for keys that are hotter than a server; `docs/scaling.md` of the project has the proof
/// and the numbers.
///
/// The limit holds with a bound. With `N` clients that hold at most `b` units each for at most `h`, all of
/// them together admit in any stretch of time at most `min(h * rate, N * b)` units more than the server alone
/// would. Units that a client holds and does not need are missing elsewhere until the hold is over.
///
/// All clones share what they hold. A call waits only for a batch that is on its way; those that wait are
/// served in the order of their calls. There is one call at a time for each key, and none is sent twice.
///
/// # Example
/// ```
/// use redis_cell_client::{Decision, Leased, Rate, Units};
/// use std::time::Duration;
/// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
/// let limit = Rate::per_second(10_000).burst(999);
/// let leased = Leased::new(connection, limit, 10..=100, Duration::from_millis(300))?;
/// for _ in 0..50 {
///     assert_eq!(leased.take("doc:leased", Units(1)).await?, Decision::Admitted);
/// }
/// leased.give_back().await?; // before the process ends
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Leased<C> {
    shared: Arc<Shared<C>>,
}

#[derive(Debug)]
struct Shared<C> {
    connection: C,
    limit: LeasedLimit,
    terms: Terms,
    most_keys: usize,
    started: std::time::Instant,
    shares: Mutex<HashMap<Box<[u8]>, Share>>,
}

/// What is held of a key.
#[derive(Debug, Default)]
struct Share {
    holding: Holding,
    waiting: VecDeque<Waiter>,
    /// Why the last call brought no answer.
    away: Option<RedisError>,
    /// The task of [`Shared::tend`].
    tended: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Waiter {
    units: i64,
    served: oneshot::Sender<Served>,
}

/// What becomes of a call that has waited for a batch.
#[derive(Debug)]
enum Served {
    Decided(RedisResult<Decision>),
    /// No batch can be fetched for it now: the server decides.
    Direct,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Leased<C> {
    /// How long to wait for an answer of the server, for a client that sets no other time: 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// The number of keys of a client that sets no other number.
    pub const KEYS: usize = 10_000;

    /// A client that takes batches over `connection`, which can be cloned, such as a `ConnectionManager`.
    ///
    /// The first number of `batch` is the size of the smallest batch. The last one is the largest number of
    /// units that this client holds of a key, in its batches, on their way, and on their way back. Sizes
    /// follow the traffic between the two. A batch is spent within `hold` of its call; what is left then is
    /// given back.
    ///
    /// # Errors
    /// If the range is empty, begins at 0 or ends above 2^63 - 1, if `hold` is zero or longer than 292 years,
    /// or if the limit is out of the range that the command accepts.
    pub fn new(
        connection: C,
        limit: impl Into<LeasedLimit>,
        batch: RangeInclusive<u64>,
        hold: Duration,
    ) -> RedisResult<Self> {
        let limit = limit.into();
        let rate = match limit {
            LeasedLimit::Gcra(Gcra { rate, .. }) => Some(core_rate(rate)?),
            LeasedLimit::Quota(_) => None,
        };
        let number = |number: u64| {
            let number = i64::try_from(number).ok().filter(|&number| number > 0);
            number.ok_or_else(|| invalid("a batch has from 1 to 9223372036854775807 units"))
        };
        let terms = Terms {
            rate,
            least: number(*batch.start())?,
            most: number(*batch.end())?,
            hold: span(hold)
                .filter(|&hold| hold > Span::ZERO)
                .ok_or_else(|| invalid("a hold lasts from 1 ns to 292 years"))?,
            reply: span(Self::TIMEOUT).unwrap_or_default(),
        };
        if terms.least > terms.most {
            return Err(invalid("the range of the batch is empty"));
        }
        let shared = Shared {
            connection,
            limit,
            terms,
            most_keys: Self::KEYS,
            started: std::time::Instant::now(),
            shares: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The same client with another time to wait for an answer of the server. It begins with no units.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        let terms = Terms { reply: span(timeout).unwrap_or(Span::MAX), ..self.shared.terms };
        Self { shared: Arc::new(Shared { terms, ..self.shared.empty() }) }
    }

    /// The same client with another number of keys of which it holds units at the same time. Calls for
    /// further keys go to the server directly. It begins with no units.
    #[must_use]
    pub fn keys(self, most_keys: usize) -> Self {
        Self { shared: Arc::new(Shared { most_keys, ..self.shared.empty() }) }
    }

    /// The number of keys of which units are held, awaited, or remembered to be refused.
    pub fn keys_in_use(&self) -> usize {
        self.shared.shares().len()
    }

    /// The units of a key that are held now.
    pub fn held(&self, key: impl AsRef<[u8]>) -> u64 {
        let shares = self.shared.shares();
        shares.get(key.as_ref()).map_or(0, |share| share.holding.held().unsigned_abs())
    }

    /// Takes units, from those that are held if there are enough of them. More units than can be held, or
    /// than the limit has, are taken from the server directly, and so are those of a key beyond
    /// [`keys`](Self::keys).
    ///
    /// Several units must be held together. Once the limit is used up, they arrive at its rate, and go back
    /// when their hold is over: a call for more than `hold * rate` units may then never be admitted. Choose a
    /// longer hold, or take such quantities from the server, with `cl_throttle` or `cl_fixed` on the same
    /// key.
    ///
    /// # Errors
    /// If the server has not answered the call for the batch, or has answered it with an error. The calls
    /// that come in the pause after that get the same error at once. What to do while the server
    /// [is unavailable](crate::is_unavailable) is the caller's choice: admit, refuse, or ask a
    /// [`LocalLimiter`](crate::LocalLimiter).
    ///
    /// # Panics
    /// Outside of a tokio runtime with a timer.
    pub async fn take(&self, key: impl AsRef<[u8]>, units: Units) -> RedisResult<Decision> {
        let key = key.as_ref();
        let shared = &self.shared;
        let held = |&quantity: &i64| quantity <= shared.terms.most && units.0 <= shared.limit.at_once();
        let waiting = match i64::try_from(units.0).ok().filter(held) {
            Some(quantity) => match shared.take(key, quantity) {
                Taken::Decided(decision) => return decision,
                Taken::Waiting(waiting) => waiting,
                Taken::Direct => return shared.direct(key, units).await,
            },
            None => return shared.direct(key, units).await,
        };
        match waiting.await {
            Ok(Served::Decided(decision)) => decision,
            // The runtime that fetched the batch is gone.
            Ok(Served::Direct) | Err(_) => shared.direct(key, units).await,
        }
    }

    /// Gives back what is held, as far as it can be given back. To be called before the process ends;
    /// otherwise the units are lost.
    ///
    /// Cost: one call for each key, one after the other, up to the first one that the server does not answer.
    ///
    /// # Errors
    /// That of the first call that fails. What is held is gone in any case.
    pub async fn give_back(&self) -> RedisResult<()> {
        let (shared, terms) = (&self.shared, &self.shared.terms);
        let now = shared.now();
        let mut keys = Vec::new();
        for (key, share) in shared.shares().iter_mut() {
            share.holding.end(terms, now);
            keys.push(key.clone());
        }
        let mut outcome = Ok(());
        for key in keys {
            // The age of the units is that at their own call.
            let give_back = |share: &mut Share| share.holding.give_back(terms, shared.now());
            let Some((units, age)) = shared.shares().get_mut(&key).and_then(give_back) else { continue };
            let back = shared.give_back(&key, units, age).await;
            // Each further call could take as long, and a process that ends has to end.
            let unanswered = back.as_ref().is_err_and(|error| error.code().is_none());
            outcome = outcome.and(back);
            if unanswered {
                break;
            }
        }
        outcome
    }
}

/// What becomes of a call at once.
enum Taken {
    Decided(RedisResult<Decision>),
    Waiting(oneshot::Receiver<Served>),
    Direct,
}

impl Share {
    /// Decides by what is held. `None` if the server must be asked.
    fn decide(&mut self, terms: &Terms, now: Instant, units: i64) -> Option<RedisResult<Decision>> {
        match self.holding.spend(terms, now, units) {
            Spend::Spent => Some(Ok(Decision::Admitted)),
            Spend::Refused(wait) => Some(match &self.away {
                Some(error) => Err(error.clone()),
                None => Ok(Decision::RefusedFor(Duration::from_nanos(wait.as_nanos()))),
            }),
            Spend::Short => None,
        }
    }

    /// Serves the calls that wait, in order. The size of the batch to fetch for the rest of them, or in
    /// advance.
    fn serve(&mut self, terms: &Terms, now: Instant) -> Option<i64> {
        // A caller that is gone needs no units.
        self.waiting.retain(|waiter| !waiter.served.is_closed());
        while let Some(units) = self.waiting.front().map(|waiter| waiter.units) {
            let served = match self.decide(terms, now, units) {
                Some(decision) => Served::Decided(decision),
                None => match self.holding.ask(terms, now, units) {
                    Some(batch) => return Some(batch),
                    None if self.holding.is_asking() => return None,
                    None => Served::Direct,
                },
            };
            if let Some(waiter) = self.waiting.pop_front() {
                // The units of a caller that has gone this very moment are lost.
                let _: Result<(), Served> = waiter.served.send(served);
            }
        }
        self.holding.ask(terms, now, 0)
    }
}

impl<C> Shared<C> {
    fn now(&self) -> Instant {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::saturating_from_nanos(elapsed)
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Share>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared<C> {
    /// The same settings with nothing held.
    fn empty(&self) -> Self {
        Self {
            connection: self.connection.clone(),
            limit: self.limit,
            terms: self.terms,
            most_keys: self.most_keys,
            started: self.started,
            shares: Mutex::default(),
        }
    }

    fn take(self: &Arc<Self>, key: &[u8], units: i64) -> Taken {
        let now = self.now();
        let mut shares = self.shares();
        if !shares.contains_key(key) {
            if shares.len() >= self.most_keys {
                return Taken::Direct;
            }
            shares.insert(key.into(), Share::default());
        }
        let Some(share) = shares.get_mut(key) else { return Taken::Direct };
        // The key is new, or the runtime of its task is gone, with what was on its way back.
        if share.tended.as_ref().is_none_or(JoinHandle::is_finished) {
            share.holding.returned();
            share.tended = Some(tokio::spawn(Arc::clone(self).tend(key.into())));
        }
        // A call does not pass those that wait.
        if share.waiting.is_empty()
            && let Some(decision) = share.decide(&self.terms, now, units)
        {
            let batch = share.holding.ask(&self.terms, now, 0);
            drop(shares);
            self.fetch(key, batch);
            return Taken::Decided(decision);
        }
        let (served, waiting) = oneshot::channel();
        share.waiting.push_back(Waiter { units, served });
        let batch = share.serve(&self.terms, now);
        drop(shares);
        self.fetch(key, batch);
        Taken::Waiting(waiting)
    }

    /// Fetches a batch, if one is due, while the caller goes on.
    fn fetch(self: &Arc<Self>, key: &[u8], batch: Option<i64>) {
        if batch.is_some() {
            tokio::spawn(Fetch { shared: Arc::clone(self), key: key.into(), asked: batch }.batches());
        }
    }

    /// Gives back what is left at the end of each hold, and forgets the key when nothing is left of it.
    async fn tend(self: Arc<Self>, key: Box<[u8]>) {
        loop {
            let wait = self.shares().get(&key).map(|share| share.holding.ends_in(&self.terms, self.now()));
            let wait = wait.flatten().unwrap_or(self.terms.hold);
            tokio::time::sleep(Duration::from_nanos(wait.as_nanos())).await;
            let back = {
                let now = self.now();
                let mut shares = self.shares();
                let Some(share) = shares.get_mut(&key) else { return };
                let back = share.holding.give_back(&self.terms, now);
                if back.is_none() && share.waiting.is_empty() && share.holding.is_idle(now) {
                    shares.remove(&key);
                    return;
                }
                back
            };
            if let Some((units, age)) = back {
                // Without an answer they are lost, as those of a crashed client are.
                let _: RedisResult<()> = self.give_back(&key, units, age).await;
            }
        }
    }

    async fn give_back(&self, key: &[u8], units: i64, age: Span) -> RedisResult<()> {
        let answer = match self.limit.give_back(key, units, age) {
            Ok(cmd) => self.query::<redis::Value>(&cmd).await,
            Err(error) => Err(error),
        };
        if let Some(share) = self.shares().get_mut(key) {
            share.holding.returned();
        }
        answer.map(drop)
    }

    async fn direct(&self, key: &[u8], units: Units) -> RedisResult<Decision> {
        let answer: Answer = self.query(&self.limit.direct(key, units)?).await?;
        Ok(answer.decision)
    }

    async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> RedisResult<T> {
        ask(&self.connection, Duration::from_nanos(self.terms.reply.as_nanos()), cmd).await
    }
}

/// The task that fetches the batches of a key.
struct Fetch<C> {
    shared: Arc<Shared<C>>,
    key: Box<[u8]>,
    /// The size of the batch that was asked for and has not arrived.
    asked: Option<i64>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Fetch<C> {
    /// Fetches a batch, and then others as long as somebody waits for more.
    async fn batches(mut self) {
        while let Some(units) = self.asked {
            let answer: RedisResult<Answer> = match self.shared.limit.batch(&self.key, units) {
                Ok(cmd) => self.shared.query(&cmd).await,
                Err(error) => Err(error),
            };
            let (now, terms) = (self.shared.now(), &self.shared.terms);
            let mut shares = self.shared.shares();
            let Some(share) = shares.get_mut(&self.key) else { return };
            match answer {
                Ok(answer) => {
                    let taken = i64::try_from(answer.taken.unwrap_or_default()).unwrap_or_default();
                    let (wait, reset) = (answer.retry_after().and_then(span), span(answer.reset_after));
                    share.holding.answered(terms, now, taken, wait, reset);
                    share.away = None;
                }
                Err(error) => {
                    share.holding.lost(terms, now);
                    share.away = Some(error);
                }
            }
            self.asked = share.serve(terms, now);
        }
    }
}

impl<C> Drop for Fetch<C> {
    /// Ends a call whose runtime has ended: otherwise the key would never be asked for again.
    fn drop(&mut self) {
        if self.asked.is_none() {
            return;
        }
        let now = self.shared.now();
        if let Some(share) = self.shared.shares().get_mut(&self.key) {
            share.holding.lost(&self.shared.terms, now);
            share.away = Some((ErrorKind::Io, "the runtime that has asked the server is gone").into());
            // Those that wait, perhaps in another runtime, hear of it by their channels.
            share.waiting.clear();
        }
    }
}

fn span(duration: Duration) -> Option<Span> {
    u64::try_from(duration.as_nanos()).ok().and_then(Span::from_nanos)
}

fn core_rate(rate: crate::Rate) -> RedisResult<redis_cell_core::Rate> {
    let (count, micros) = (i64::try_from(rate.count), i64::try_from(rate.period.as_micros()));
    let (Ok(count), Ok(micros)) = (count, micros) else { return Err(invalid("the rate is out of range")) };
    redis_cell_core::Rate::new(count, micros, Unit::Microseconds)
        .map_err(|error| (ErrorKind::Client, "invalid limit", error.to_string()).into())
}
