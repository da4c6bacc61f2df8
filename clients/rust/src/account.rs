//! Accounts: pools in order, and units that come back when their owner crashes.

use crate::local::Chain;
use crate::several::{Several, Verb};
use crate::{
    Answer, Balance, BlockingGuard, Difference, Limit, LocalLimiter, MSettle, MTake, Once, TimedConnection,
    Together, Units, WhenUnavailable, bytes, call, is_unavailable, local, lock,
};
use redis::{Cmd, RedisError, RedisResult, ToSingleRedisArg};
use redis_cell_core::log;
use sealed::Caller as _;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(feature = "aio")]
mod aio;

/// Pools in order, of which requests hold units until their usage is known.
///
/// For example, a plan includes a million tokens a month; then requests use tokens that were bought, then
/// money. A request [holds](Account::hold) an estimate, reports its [usage](Held::used), and
/// [settles](Held::settle) the difference, at the latest when its [`Held`] is dropped. Until then, the hold
/// is renewed in the background. If the process crashes, held units of fixed windows come back after the
/// [period](Self::period).
///
/// An account has the pools of one customer. It is cheap, so create one for each request, with the limits of
/// the customer's plan. Its calls are those of a `Guard` or of a [`BlockingGuard`], over any connection that
/// these accept: to the module, or to the function library. While the server is unavailable,
/// [`WhenUnavailable`] decides. Usage during that time is charged if the server is available at the
/// settlement.
///
/// # Example
/// ```
/// use redis_cell_client::{Account, BlockingGuard, Fixed, FixedWindow, Units, WhenUnavailable};
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let guard = BlockingGuard::new(redis::Client::open(url)?, WhenUnavailable::FailOpen);
/// let (month, total) = (FixedWindow::month(), FixedWindow::total());
/// let account = Account::new(guard, "{o7}:holds")
///     .pool("{o7}:included", Fixed::new(1_000_000, month))
///     .spill("{o7}:bought", Fixed::new(5_000_000, total)) // the tokens that are not included
///     .pool("{o7}:cents", Fixed::new(20_000, total)) // if there are not enough tokens
///     .price(|tokens| tokens.div_ceil(33));
///
/// let held = account.hold("req-5", Units(1_200))?;
/// if held.admitted() {
///     held.used(Units(600)); // whenever it is known
///     held.used(Units(274));
///     held.settle()?; // 326 tokens come back, or 10 cents
/// }
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Account<G> {
    guard: G,
    plan: Plan,
    report: Report,
}

impl<G> Account<G> {
    /// The default of [`period`](Self::period): a minute.
    pub const PERIOD: Duration = Duration::from_secs(60);

    /// Creates an account without pools, whose holds are stored under the key `holds`. In a cluster it must
    /// be in the slot of the pools: give all of them the same hash tag.
    pub fn new(guard: G, holds: impl ToSingleRedisArg) -> Self {
        let plan = Plan { holds: bytes(&holds), period: Self::PERIOD, members: Vec::new() };
        Self { guard, plan, report: Report(None) }
    }

    /// Adds a pool, from which units are taken if the pools before it do not have enough (`ELSE`).
    #[must_use]
    pub fn pool(self, key: impl ToSingleRedisArg, limit: impl Into<Limit>) -> Self {
        self.with(Join::Else, &key, limit.into())
    }

    /// Adds a limiter to the last pool: it gives the units that do not fit the limiters before it (`SPILL`).
    #[must_use]
    pub fn spill(self, key: impl ToSingleRedisArg, limit: impl Into<Limit>) -> Self {
        self.with(Join::Spill, &key, limit.into())
    }

    /// Adds a pool that must admit each request as well, such as a rate, or the first of further pools in
    /// order.
    #[must_use]
    pub fn also(self, key: impl ToSingleRedisArg, limit: impl Into<Limit>) -> Self {
        self.with(Join::And, &key, limit.into())
    }

    /// Sets the quantity that is taken from the last pool for a number of units of the account: their price,
    /// or one request. Without it, that number itself is taken.
    #[must_use]
    pub fn price(mut self, price: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Self {
        if let Some(first) = self.plan.members.iter_mut().rfind(|member| member.join != Join::Spill) {
            first.price = Some(Price(Arc::new(price)));
        }
        self
    }

    fn with(mut self, join: Join, key: &impl ToSingleRedisArg, limit: Limit) -> Self {
        // The first limiter of an account is joined to none.
        let join = if self.plan.members.is_empty() { Join::And } else { join };
        self.plan.members.push(Member { key: bytes(key), limit, join, price: None });
        self
    }

    /// Sets the time for which units stay held after their owner has crashed. A running owner renews them
    /// after each third of this time. It is rounded up to a whole microsecond.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.plan.period = period;
        self
    }

    /// Calls `report` with the error of each call that was made in the background, of renewals and of
    /// settlements of a [`Held`] that was dropped, for a log or a metric.
    #[must_use]
    pub fn on_error(self, report: impl Fn(&RedisError) + Send + Sync + 'static) -> Self {
        Self { report: Report(Some(Arc::new(report))), ..self }
    }
}

/// The function for the errors of calls in the background.
#[derive(Clone)]
pub struct Report(Option<Arc<Reporting>>);

type Reporting = dyn Fn(&RedisError) + Send + Sync;

impl Report {
    fn error<T>(&self, outcome: &RedisResult<T>) {
        if let (Some(report), Err(error)) = (&self.0, outcome) {
            report(error);
        }
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "set" } else { "none" })
    }
}

/// The pools of an account, and how long units are held.
#[derive(Clone, Debug)]
struct Plan {
    holds: Vec<u8>,
    period: Duration,
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Member {
    key: Vec<u8>,
    limit: Limit,
    join: Join,
    /// The price of the first limiter of a pool.
    price: Option<Price>,
}

/// How a limiter is joined to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    And,
    Else,
    Spill,
}

impl Join {
    /// Returns a call whose next limiter is joined to those that it has.
    fn to<V: Verb>(self, call: Several<V>) -> Several<V> {
        match self {
            Self::And => call,
            Self::Else => call.or_else(),
            Self::Spill => call.spill(),
        }
    }
}

#[derive(Clone)]
struct Price(Arc<dyn Fn(u64) -> u64 + Send + Sync>);

impl fmt::Debug for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Price")
    }
}

impl Plan {
    /// Returns each limiter with its quantity for `units` of the account, or with 0 for a renewal.
    fn with_quantities(&self, units: Option<u64>) -> impl Iterator<Item = (&Member, Units)> {
        let mut quantity = 0;
        self.members.iter().map(move |member| {
            if let (Some(units), false) = (units, member.join == Join::Spill) {
                quantity = member.price.as_ref().map_or(units, |Price(price)| price(units));
            }
            (member, Units(quantity))
        })
    }

    fn take(&self, owner: &[u8], units: Option<u64>) -> RedisResult<Cmd> {
        let mut take = MTake::new();
        for (Member { key, limit, join, .. }, quantity) in self.with_quantities(units) {
            // What the server would reject is an error while it is unavailable, too.
            local::check(*limit, quantity.into())?;
            take = join.to(take).limit(key, *limit, quantity);
        }
        call::mtake(take.hold(&self.holds, self.period, owner))
    }

    fn settle(&self, owner: &[u8], used: u64, held: u64, once: Option<Once>) -> RedisResult<Cmd> {
        let mut settle = MSettle::new();
        let quantities = self.with_quantities(Some(used)).zip(self.with_quantities(Some(held)));
        let quantities: Vec<_> = quantities.map(|((member, used), (_, held))| (member, used, held)).collect();
        // The server would refuse larger usage, and then charge nothing.
        for pool in quantities.chunk_by(|_, (next, ..)| next.join == Join::Spill) {
            let mut most = pool.iter().map(|(member, ..)| member.limit.most_used()).min().unwrap_or(u64::MAX);
            // The last limiter is charged what does not fit the others.
            if let Some((Member { limit: Limit::Log(_), .. }, _, Units(held))) = pool.last() {
                most = most.min(held.saturating_add(log::QUANTITY.max.unsigned_abs()));
            }
            for &(Member { key, limit, join, .. }, Units(used), _) in pool {
                settle = join.to(settle).limit(key, *limit, Difference::Used(Units(used.min(most))));
            }
        }
        settle = once.into_iter().fold(settle, MSettle::once);
        call::msettle(settle.hold(&self.holds, owner))
    }

    /// Allows a settlement to be repeated: otherwise it would charge the usage twice if it is sent twice.
    fn once(&self, owner: &[u8]) -> Once {
        Once::new([&self.holds, b":".as_slice(), owner].concat(), self.period.max(SETTLED))
    }

    /// Takes units from the shares of this process, in the order of the pools.
    fn take_locally(&self, local: &LocalLimiter, units: u64) -> RedisResult<bool> {
        let mut chains: Vec<Chain<'_>> = Vec::new();
        for (member, quantity) in self.with_quantities(Some(units)) {
            let limiter = (member.key.as_slice(), member.limit);
            match (member.join, chains.last_mut().and_then(|chain| chain.last_mut())) {
                (Join::Spill, Some((pool, _))) => pool.push(limiter),
                (Join::And, _) => chains.push(vec![(vec![limiter], quantity)]),
                _ => chains.last_mut().into_iter().for_each(|chain| chain.push((vec![limiter], quantity))),
            }
        }
        local.take_in_order(&chains)
    }

    /// Decides by the server's answer, or without one.
    fn decide(
        &self,
        choice: &WhenUnavailable,
        units: u64,
        answer: RedisResult<Together<Answer>>,
    ) -> RedisResult<Outcome> {
        let (admitted, answer, error) = match answer {
            Ok(answer) => (answer.combined.admitted(), Some(answer), None),
            Err(error) if is_unavailable(&error) => {
                let admitted = match choice {
                    WhenUnavailable::FailOpen => true,
                    WhenUnavailable::FailClosed => false,
                    WhenUnavailable::Local(local) => self.take_locally(local, units)?,
                };
                (admitted, None, Some(error))
            }
            Err(error) => return Err(error),
        };
        Ok(Outcome { units, admitted, answer, error })
    }
}

/// The minimal time for which the reply to a settlement is stored, so that the settlement can be sent again.
const SETTLED: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Outcome {
    /// The units of the request.
    units: u64,
    admitted: bool,
    answer: Option<Together<Answer>>,
    error: Option<RedisError>,
}

/// The units of an [`Account`] that a request holds, or the reason why it holds none.
///
/// It is settled by [`settle`](Held::settle), or else when its last clone is dropped, for example after an
/// error or when a client has disconnected. Then only the units that were reported as [used](Self::used) are
/// charged, and all others are given back. So report usage at once, for example with each part of a stream.
#[derive(Debug)]
pub struct Held<G: Caller> {
    shared: Arc<Shared<G>>,
}

impl<G: Caller> Clone for Held<G> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<G: Caller> {
    account: Account<G>,
    owner: Vec<u8>,
    outcome: Outcome,
    state: Mutex<State<G>>,
}

#[derive(Debug)]
struct State<G: Caller> {
    used: Option<u64>,
    is_settled: bool,
    /// Until it is dropped, the hold is renewed.
    renewal: Option<G::Renewal>,
}

/// A guard whose calls an [`Account`] makes: `Guard` or [`BlockingGuard`]. Only this crate can implement it.
pub trait Caller: sealed::Caller {}

pub(crate) mod sealed {
    use super::Report;
    use crate::{Once, WhenUnavailable};
    use redis::Cmd;
    use std::time::Duration;

    pub trait Caller: Clone + 'static {
        /// Calls are repeated until it is dropped.
        type Renewal: std::fmt::Debug + Send;

        fn choice(&self) -> &WhenUnavailable;

        /// Repeats a call that renews a hold.
        fn renew(&self, every: Duration, cmd: Cmd, report: Report) -> Self::Renewal;

        /// Sends a settlement in the background.
        fn send_at_last(&self, cmd: Cmd, once: Option<Once>, report: Report);
    }
}

impl<G: Caller> Shared<G> {
    /// Ends the renewal, and returns the call that settles, if one is needed. A request that `has_ended`
    /// without reported usage has used all units that it holds.
    fn settlement(&self, has_ended: bool) -> Option<(RedisResult<Cmd>, Once)> {
        let mut state = lock(&self.state);
        state.renewal = None;
        let (outcome, plan) = (&self.outcome, &self.account.plan);
        let used = state.used.or(has_ended.then_some(outcome.units));
        // Usage while the server was unavailable is charged if the server is available again.
        let is_needed = outcome.admitted && (outcome.answer.is_some() || used.is_some());
        if std::mem::replace(&mut state.is_settled, true) || !is_needed {
            return None;
        }
        let once = plan.once(&self.owner);
        let settles = plan.settle(&self.owner, used.unwrap_or_default(), outcome.units, Some(once.clone()));
        Some((settles, once))
    }
}

impl<G: Caller> Drop for Shared<G> {
    fn drop(&mut self) {
        if let Some((Ok(cmd), once)) = self.settlement(false) {
            self.account.guard.send_at_last(cmd, Some(once), self.account.report.clone());
        }
    }
}

impl<G: Caller> Held<G> {
    fn new(account: &Account<G>, owner: &[u8], outcome: Outcome) -> RedisResult<Self> {
        let Account { guard, plan, report } = account;
        let mut renewal = None;
        if outcome.admitted && outcome.answer.is_some() {
            let every = plan.period.checked_div(3).unwrap_or_default().max(Duration::from_millis(1));
            renewal = Some(guard.renew(every, plan.take(owner, None)?, report.clone()));
        }
        let state = Mutex::new(State { used: None, is_settled: false, renewal });
        Ok(Self {
            shared: Arc::new(Shared { account: account.clone(), owner: owner.to_vec(), outcome, state }),
        })
    }

    /// Returns whether the request is admitted: it holds its units, or the choice for an unavailable server
    /// admits it.
    pub fn admitted(&self) -> bool {
        self.shared.outcome.admitted
    }

    /// Returns the server's answer, with a row for each limiter of the account in the order in which they
    /// were added, or `None` if the server was unavailable. With several pools in order, [`Answer::taken`] of
    /// a row is the number of units taken from its limiter.
    pub fn answer(&self) -> Option<&Together<Answer>> {
        self.shared.outcome.answer.as_ref()
    }

    /// Returns why the server was unavailable, or `None` if it has answered: log it.
    pub fn error(&self) -> Option<&RedisError> {
        self.shared.outcome.error.as_ref()
    }

    /// Returns whether the shares of this process have decided.
    #[cfg(feature = "tower")]
    pub(crate) fn is_local(&self) -> bool {
        let choice = self.shared.account.guard.choice();
        self.error().is_some() && matches!(choice, WhenUnavailable::Local(_))
    }

    /// Adds to the units that the request has used. Sends nothing.
    pub fn used(&self, Units(units): Units) {
        let mut state = lock(&self.shared.state);
        state.used = Some(state.used.unwrap_or_default().saturating_add(units));
    }
}

impl<C: TimedConnection + Send + 'static> Account<BlockingGuard<C>> {
    /// Holds units of the first pool that has enough, for an owner, such as a request. Give each hold an
    /// owner of its own, which is not used again.
    ///
    /// While the result is alive, a thread renews the hold.
    ///
    /// # Errors
    /// Returns an error of the kind [`Client`](redis::ErrorKind::Client) if a limit or a quantity is out of
    /// the range that the command accepts. It is found before anything is sent. Also returns any other error
    /// of the call or of the setup, such as a key of another type. An unavailable server is not an error.
    pub fn hold(&self, owner: impl ToSingleRedisArg, units: Units) -> RedisResult<Held<BlockingGuard<C>>> {
        let owner = bytes(&owner);
        let answer = self.guard.call(&self.plan.take(&owner, Some(units.0))?, None);
        let outcome = self.plan.decide(self.guard.choice(), units.0, answer)?;
        Held::new(self, &owner, outcome)
    }
}

impl<C: TimedConnection + Send + 'static> Held<BlockingGuard<C>> {
    /// Ends the hold: charges or gives back the difference between the held and the [used](Self::used) units.
    /// Without reported usage, all held units are used. Returns the balance of the account, or `None` if
    /// there is nothing to settle: the request was refused, or is settled already.
    ///
    /// # Errors
    /// Returns the errors of the call. It is repeated like a call with [`Once`], and charges once.
    pub fn settle(&self) -> RedisResult<Option<Together<Balance>>> {
        let Some((cmd, once)) = self.shared.settlement(true) else { return Ok(None) };
        self.shared.account.guard.call(&cmd?, Some(&once)).map(Some)
    }
}

impl<C: TimedConnection + Send + 'static> Caller for BlockingGuard<C> {}

impl<C: TimedConnection + Send + 'static> sealed::Caller for BlockingGuard<C> {
    type Renewal = Sender<()>;

    fn choice(&self) -> &WhenUnavailable {
        self.when_unavailable()
    }

    fn renew(&self, every: Duration, cmd: Cmd, report: Report) -> Self::Renewal {
        let (renewal, ended) = channel();
        let (guard, reports) = (self.clone(), report.clone());
        let renews = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                reports.error(&guard.call::<Together<Answer>>(&cmd, None));
            }
        };
        let thread = std::thread::Builder::new().name("redis-cell-hold".to_owned()).spawn(renews);
        report.error(&thread.map_err(RedisError::from));
        renewal
    }

    fn send_at_last(&self, cmd: Cmd, once: Option<Once>, report: Report) {
        report.error(&self.call::<Together<Balance>>(&cmd, once.as_ref()));
    }
}
