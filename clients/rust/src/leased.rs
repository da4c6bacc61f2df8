//! Leased units: batches from the server that are spent in this process.

use crate::guard::ask;
use crate::limit::invalid;
use crate::{Answer, Decision, Difference, Fixed, Gcra, Limit, MSettle, Rate, Saturate, Units, call, lock};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult};
use redis_cell_core::holding::{Holding, Part, Spend, Terms};
use redis_cell_core::{Instant, Span, Unit, window};
use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The limit of [`Leased`]: a rate with a burst, or a count per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeasedLimit {
    /// `CL.THROTTLE`.
    Gcra(Gcra),
    /// `CL.FIXED`.
    Fixed(Fixed),
    /// `CL.WINDOW`. The units end with the window in which they were taken, or somewhat earlier if few units
    /// were taken in it and many in the window before.
    Window(Rate),
}

impl<G: Into<Gcra>> From<G> for LeasedLimit {
    fn from(limit: G) -> Self {
        Self::Gcra(limit.into())
    }
}

impl From<Fixed> for LeasedLimit {
    fn from(fixed: Fixed) -> Self {
        Self::Fixed(fixed)
    }
}

impl LeasedLimit {
    /// Returns the largest quantity that can be admitted at once.
    const fn at_once(self) -> u64 {
        match self {
            Self::Gcra(limit) => limit.at_once(),
            Self::Fixed(fixed) => fixed.limit,
            Self::Window(rate) => rate.count,
        }
    }

    /// Returns how long the window of an answer lasts at least.
    fn lasts(self, answer: &Answer) -> Option<Span> {
        // It is rounded up to a whole microsecond.
        let reset_after = span(answer.reset_after.saturating_sub(Duration::from_micros(1)))?;
        let Self::Window(rate) = self else { return Some(reset_after) };
        let (count, micros) = (i64::try_from(rate.count), i64::try_from(rate.period.as_micros()));
        let limit = window::Limit::new(count.ok()?, micros.ok()?, Unit::Microseconds).ok()?;
        Some(limit.lasts(i64::try_from(answer.remaining).ok()?, reset_after))
    }

    const fn limit(self) -> Limit {
        match self {
            Self::Gcra(limit) => Limit::Throttle(limit),
            Self::Fixed(fixed) => Limit::Fixed(fixed),
            Self::Window(rate) => Limit::Window(rate),
        }
    }

    fn give_back(self, key: &[u8], units: i64, age: Span) -> RedisResult<Cmd> {
        let units = Units(units.unsigned_abs());
        if let Self::Gcra(limit) = self {
            return call::refund(key, limit, units);
        }
        let back = MSettle::new().limit(key, self.limit(), Difference::Refund(units));
        call::msettle(back.ago(Duration::from_nanos(age.as_nanos())))
    }
}

/// Limits calls with units that are taken from the server in batches.
///
/// One call to the server brings a batch of units, which this process spends without further calls. A refusal
/// is remembered, so calls for an exhausted key rarely reach the server, however frequent they are here. Use
/// it for keys with more calls than one server can handle. `docs/scaling.md` of the project has the proof and
/// the measurements.
///
/// Together, the clients may exceed the limit by a bounded amount: if `N` of them hold at most `b` units each
/// for at most `h`, they admit at most `min(h * rate, N * b)` units more than the server would alone, and
/// none more in a window. Units that a client holds but does not need are unavailable to other clients
/// until the hold ends.
///
/// All clones share the held units. A call waits only for a batch that was already requested, and waiting
/// calls are served in order. For each key, one call to the server runs at a time, and none is sent twice.
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

/// The units that are held for a key, and the calls that wait for more.
#[derive(Debug, Default)]
struct Share {
    holding: Holding,
    waiting: VecDeque<Caller>,
    /// The error of the last call to the server, if it returned no answer.
    unavailable: Option<RedisError>,
    /// Whether the last batch was refused, and no wait helps.
    is_used_up: bool,
    /// The task of [`Shared::tend`].
    tended: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Caller {
    units: i64,
    served: oneshot::Sender<Served>,
}

/// The outcome of a call that has waited for a batch.
#[derive(Debug)]
enum Served {
    /// With the units that were spent for it.
    Decided(RedisResult<Decision>, Option<Part>),
    /// No batch can be fetched for the call now: the server decides it.
    Direct,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Leased<C> {
    /// The default of [`timeout`](Self::timeout): 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// The default of [`keys`](Self::keys): 10,000.
    pub const KEYS: usize = 10_000;

    /// Creates a client on a connection that can be cloned, such as a `ConnectionManager`.
    ///
    /// `batch` starts with the size of the smallest batch, and ends with the largest number of units that
    /// this client holds for a key, including units on their way from and to the server. Between the two,
    /// batches grow and shrink with the traffic. A batch can be spent within `hold` of its call; the units
    /// left then are given back.
    ///
    /// # Errors
    /// Returns an error if the range is empty, starts at 0 or ends above 2^63 - 1, if `hold` is zero or
    /// longer than 292 years, or if the limit is out of the range that the command accepts.
    pub fn new(
        connection: C,
        limit: impl Into<LeasedLimit>,
        batch: RangeInclusive<u64>,
        hold: Duration,
    ) -> RedisResult<Self> {
        let limit = limit.into();
        let rate = match limit {
            LeasedLimit::Gcra(Gcra { rate, .. }) => Some(core_rate(rate)?),
            LeasedLimit::Fixed(_) | LeasedLimit::Window(_) => None,
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

    /// Returns a client with another timeout for the server's answers. It starts without units.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        let terms = Terms { reply: span(timeout).unwrap_or(Span::MAX), ..self.shared.terms };
        Self { shared: Arc::new(Shared { terms, ..self.shared.empty() }) }
    }

    /// Returns a client with another limit on the number of keys for which it holds units at the same time.
    /// Calls for further keys go directly to the server. It starts without units.
    #[must_use]
    pub fn keys(self, most_keys: usize) -> Self {
        Self { shared: Arc::new(Shared { most_keys, ..self.shared.empty() }) }
    }

    /// Returns the number of keys for which units are held or requested, or a refusal is remembered.
    pub fn keys_in_use(&self) -> usize {
        lock(&self.shared.shares).len()
    }

    /// Returns the number of units that are held for a key now.
    pub fn held(&self, key: impl AsRef<[u8]>) -> u64 {
        let shares = lock(&self.shared.shares);
        shares.get(key.as_ref()).map_or(0, |share| share.holding.held().unsigned_abs())
    }

    /// Takes units, from the held units if there are enough. If the quantity is larger than the largest batch
    /// or the limit, or the key is one too many for [`keys`](Self::keys), the server decides the call
    /// directly. Once a total is used up, no wait helps: [`Decision::RefusedForever`].
    ///
    /// All units of a call must be held at the same time. Once the limit is exhausted, units arrive only at
    /// its rate and go back when the hold ends, so a call for more than `hold * rate` may never be admitted.
    /// Choose a longer hold, or take such quantities from the server, with `cl_throttle` or `cl_fixed` on the
    /// same key.
    ///
    /// # Errors
    /// Returns an error if the server has not answered the call for a batch, or has answered it with an
    /// error. Calls during the pause that follows return the same error immediately. While the server [is
    /// unavailable](crate::is_unavailable), the caller decides: admit, refuse, or use a
    /// [`LocalLimiter`](crate::LocalLimiter).
    ///
    /// # Panics
    /// Panics outside a tokio runtime with a timer.
    pub async fn take(&self, key: impl AsRef<[u8]>, units: Units) -> RedisResult<Decision> {
        let key = key.as_ref();
        let shared = &self.shared;
        let held = |&quantity: &i64| quantity <= shared.terms.most && units.0 <= shared.limit.at_once();
        let mut unread = match i64::try_from(units.0).ok().filter(held) {
            Some(quantity) => match shared.take(key, quantity) {
                Outcome::Decided(decision) => return decision,
                Outcome::Waiting(waiting) => Unread { shared, key, waiting },
                Outcome::Direct => return shared.direct(key, units).await,
            },
            None => return shared.direct(key, units).await,
        };
        match (&mut unread.waiting).await {
            Ok(Served::Decided(decision, _)) => decision,
            // The runtime that was fetching the batch has ended.
            Ok(Served::Direct) | Err(_) => shared.direct(key, units).await,
        }
    }

    /// Gives the held units back, as far as the server still accepts them. Call it before the process ends;
    /// otherwise the units are lost.
    ///
    /// Cost: one call per key, one after the other, up to the first one that the server does not answer.
    ///
    /// # Errors
    /// Returns the error of the first call that fails. No units are held afterwards, even after an error.
    pub async fn give_back(&self) -> RedisResult<()> {
        let (shared, terms) = (&self.shared, &self.shared.terms);
        let now = shared.now();
        let mut keys = Vec::new();
        for (key, share) in lock(&shared.shares).iter_mut() {
            share.holding.end(terms, now);
            keys.push(key.clone());
        }
        let mut outcome = Ok(());
        for key in keys {
            // The clock is read for each key, because the age of the units counts until the call is sent.
            let give_back = |share: &mut Share| share.holding.give_back(terms, shared.now());
            let Some((units, age)) = lock(&shared.shares).get_mut(&key).and_then(give_back) else { continue };
            let back = shared.give_back(&key, units, age).await;
            // Each further call could also wait for the timeout, and would delay the end of the process.
            let unanswered = back.as_ref().is_err_and(|error| error.code().is_none());
            outcome = outcome.and(back);
            if unanswered {
                break;
            }
        }
        outcome
    }
}

/// A call that waits, whose future may be dropped.
struct Unread<'a, C> {
    shared: &'a Shared<C>,
    key: &'a [u8],
    waiting: oneshot::Receiver<Served>,
}

impl<C> Drop for Unread<'_, C> {
    /// Takes back the units of a future that was dropped before it could read its answer.
    fn drop(&mut self) {
        self.waiting.close(); // from now on, who serves it learns that nobody reads it
        let Ok(served) = self.waiting.try_recv() else { return };
        if let Some(share) = lock(&self.shared.shares).get_mut(self.key) {
            share.unspend(&self.shared.terms, self.shared.now(), &served);
        }
    }
}

/// The outcome of a call before it waits.
enum Outcome {
    Decided(RedisResult<Decision>),
    Waiting(oneshot::Receiver<Served>),
    Direct,
}

impl Share {
    /// Decides from the held units. Returns `None` if the server must decide.
    fn decide(&mut self, terms: &Terms, now: Instant, units: i64) -> Option<RedisResult<Decision>> {
        match self.holding.spend(terms, now, units) {
            Spend::Spent => Some(Ok(Decision::Admitted)),
            Spend::Refused(wait) => Some(match &self.unavailable {
                Some(error) => Err(error.clone()),
                None if self.is_used_up => Ok(Decision::RefusedForever),
                None => Ok(Decision::RefusedFor(Duration::from_nanos(wait.as_nanos()))),
            }),
            Spend::Short => None,
        }
    }

    /// Serves the waiting calls in order. Returns the size of the batch to fetch for the remaining calls, or
    /// in advance.
    fn serve(&mut self, terms: &Terms, now: Instant) -> Option<i64> {
        // A call whose future was dropped needs no units.
        self.waiting.retain(|waiter| !waiter.served.is_closed());
        while let Some(units) = self.waiting.front().map(|waiter| waiter.units) {
            let part = self.holding.part(terms, now, units);
            let served = match self.decide(terms, now, units) {
                Some(decision) => Served::Decided(decision, part),
                None => match self.holding.ask(terms, now, units) {
                    Some(batch) => return Some(batch),
                    None if self.holding.is_asking() => return None,
                    None => Served::Direct,
                },
            };
            if let Some(waiter) = self.waiting.pop_front()
                && let Err(served) = waiter.served.send(served)
            {
                self.unspend(terms, now, &served);
            }
        }
        self.holding.ask(terms, now, 0)
    }

    /// Takes back the units of a call whose future was dropped.
    fn unspend(&mut self, terms: &Terms, now: Instant, served: &Served) {
        if let Served::Decided(Ok(Decision::Admitted), Some(part)) = served {
            self.holding.unspend(terms, now, *part);
        }
    }
}

impl<C> Shared<C> {
    fn now(&self) -> Instant {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::saturating_from_nanos(elapsed)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared<C> {
    /// Returns the same settings, without units.
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

    fn take(self: &Arc<Self>, key: &[u8], units: i64) -> Outcome {
        let now = self.now();
        let mut shares = lock(&self.shares);
        if !shares.contains_key(key) {
            if shares.len() >= self.most_keys {
                return Outcome::Direct;
            }
            shares.insert(key.into(), Share::default());
        }
        let Some(share) = shares.get_mut(key) else { return Outcome::Direct };
        // The key is new, or the runtime of its task has ended, and with it the call that gave units back.
        if share.tended.as_ref().is_none_or(JoinHandle::is_finished) {
            share.holding.returned();
            share.tended = Some(tokio::spawn(Arc::clone(self).tend(key.into())));
        }
        // A call is not decided before the calls that wait already.
        if share.waiting.is_empty()
            && let Some(decision) = share.decide(&self.terms, now, units)
        {
            let batch = share.holding.ask(&self.terms, now, 0);
            drop(shares);
            self.fetch(key, batch);
            return Outcome::Decided(decision);
        }
        let (served, waiting) = oneshot::channel();
        share.waiting.push_back(Caller { units, served });
        let batch = share.serve(&self.terms, now);
        drop(shares);
        self.fetch(key, batch);
        Outcome::Waiting(waiting)
    }

    /// Fetches a batch, if one is due, in a task of its own.
    fn fetch(self: &Arc<Self>, key: &[u8], batch: Option<i64>) {
        if batch.is_some() {
            tokio::spawn(Fetch { shared: Arc::clone(self), key: key.into(), asked: batch }.batches());
        }
    }

    /// Gives back the units that are left at the end of each hold. Removes the key when it has none left.
    async fn tend(self: Arc<Self>, key: Box<[u8]>) {
        loop {
            let wait = lock(&self.shares).get(&key).map(|share| share.holding.ends_in(self.now()));
            let wait = wait.flatten().unwrap_or(self.terms.hold);
            tokio::time::sleep(Duration::from_nanos(wait.as_nanos())).await;
            let back = {
                let now = self.now();
                let mut shares = lock(&self.shares);
                let Some(share) = shares.get_mut(&key) else { return };
                let back = share.holding.give_back(&self.terms, now);
                if back.is_none() && share.waiting.is_empty() && share.holding.is_idle(now) {
                    shares.remove(&key);
                    return;
                }
                back
            };
            if let Some((units, age)) = back {
                // Without an answer, the units are lost, as when a client crashes.
                let _: RedisResult<()> = self.give_back(&key, units, age).await;
            }
        }
    }

    async fn give_back(&self, key: &[u8], units: i64, age: Span) -> RedisResult<()> {
        let answer = match self.limit.give_back(key, units, age) {
            Ok(cmd) => self.query::<redis::Value>(&cmd).await,
            Err(error) => Err(error),
        };
        if let Some(share) = lock(&self.shares).get_mut(key) {
            share.holding.returned();
        }
        answer.map(drop)
    }

    async fn direct(&self, key: &[u8], units: Units) -> RedisResult<Decision> {
        let answer: Answer = self.query(&call::take(key, self.limit.limit(), units)?).await?;
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
    /// The size of the batch that was requested and has not arrived.
    asked: Option<i64>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Fetch<C> {
    /// Fetches a batch, and then further batches while calls wait for more units.
    async fn batches(mut self) {
        while let Some(units) = self.asked {
            let answer: RedisResult<Answer> =
                match call::take(&*self.key, self.shared.limit.limit(), Saturate(units.unsigned_abs())) {
                    Ok(cmd) => self.shared.query(&cmd).await,
                    Err(error) => Err(error),
                };
            let (now, terms) = (self.shared.now(), &self.shared.terms);
            let mut shares = lock(&self.shared.shares);
            let Some(share) = shares.get_mut(&self.key) else { return };
            match answer {
                Ok(answer) => {
                    let taken = i64::try_from(answer.taken.unwrap_or_default()).unwrap_or_default();
                    let lasts = self.shared.limit.lasts(&answer);
                    let wait = answer.retry_after().and_then(span);
                    share.holding.answered(terms, now, taken, wait, lasts);
                    share.unavailable = None;
                    share.is_used_up = answer.decision == Decision::RefusedForever;
                }
                Err(error) => {
                    share.holding.lost(terms, now);
                    share.unavailable = Some(error);
                }
            }
            self.asked = share.serve(terms, now);
        }
    }
}

impl<C> Drop for Fetch<C> {
    /// Counts the call as ended if its runtime has been shut down: its key would get no more batches
    /// otherwise.
    fn drop(&mut self) {
        if self.asked.is_none() {
            return;
        }
        let now = self.shared.now();
        if let Some(share) = lock(&self.shared.shares).get_mut(&self.key) {
            share.holding.lost(&self.shared.terms, now);
            share.unavailable = Some((ErrorKind::Io, "the runtime that has asked the server is gone").into());
            // The waiting calls, perhaps in another runtime, see that their channels are closed.
            share.waiting.clear();
        }
    }
}

pub(crate) fn span(duration: Duration) -> Option<Span> {
    u64::try_from(duration.as_nanos()).ok().and_then(Span::from_nanos)
}

pub(crate) fn core_rate(rate: Rate) -> RedisResult<redis_cell_core::Rate> {
    let (count, micros) = (i64::try_from(rate.count), i64::try_from(rate.period.as_micros()));
    let (Ok(count), Ok(micros)) = (count, micros) else { return Err(invalid("the rate is out of range")) };
    redis_cell_core::Rate::new(count, micros, Unit::Microseconds)
        .map_err(|error| (ErrorKind::Client, "invalid limit", error.to_string()).into())
}
