//! Merged calls: calls for one key that are sent as a single call.

use crate::guard::ask;
use crate::leased::{core_rate, span};
use crate::{Answer, Decision, Limit, Quantity, Saturate, Units, call, local};
use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, RedisResult};
use redis_cell_core::merged::{Grants, Limit as Mergeable, Reply, tail};
use redis_cell_core::{Answer as Granted, Verdict};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Sends calls for the same key and limit as one call, while another one is on its way.
///
/// For each key and limit, at most one call of this process is on its way. Callers that come meanwhile line
/// up, and one call with [`Saturate`] for the sum of their quantities follows. What it takes is granted in
/// the order of arrival, and each caller gets the answer that its own call would have got at its place. No
/// unit is held in this process, none is lost, and the limit holds exactly as with calls of their own. A
/// caller waits for at most one round trip more, and alone it waits for none.
///
/// If the emission interval of a rate (the time of one unit) is not a whole number of microseconds, times can
/// be up to a microsecond longer. Quantities above 1 are merged only with enough smaller ones behind them,
/// because a single call would otherwise take units that no caller gets. A quantity that is not merged, and
/// every call for a [`Limit::Window`], a [`Limit::Log`] or a total, whose answers need more than one reply
/// says, is sent by itself, at the same time. `redis_cell_core::merged` has the arithmetic with its proof.
///
/// All clones share the rows of callers. A caller that is dropped before its call is sent takes nothing.
///
/// # Example
/// ```
/// use redis_cell_client::{Merged, Rate, Units};
/// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
/// let merged = Merged::new(connection);
/// let limit = Rate::per_second(10_000).burst(999);
/// let take = || merged.take("doc:merged", limit, Units(1));
/// let (first, second, third) = tokio::join!(take(), take(), take()); // two calls
/// assert!(first?.admitted() && second?.admitted() && third?.admitted());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Merged<C> {
    shared: Arc<Shared<C>>,
}

#[derive(Debug)]
struct Shared<C> {
    connection: C,
    timeout: Duration,
    /// The callers that wait, for each key and limit of which a call is on its way.
    rows: Mutex<HashMap<Name, Vec<Caller>>>,
}

/// A row's key and limit.
type Name = (Box<[u8]>, Limit);

#[derive(Debug)]
struct Caller {
    units: i64,
    answer: oneshot::Sender<RedisResult<Answer>>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Merged<C> {
    /// The default of [`timeout`](Self::timeout): 500 ms.
    pub const TIMEOUT: Duration = Duration::from_millis(500);

    /// Creates a client on a connection that can be cloned, such as a `ConnectionManager`.
    pub fn new(connection: C) -> Self {
        Self::with_timeout(connection, Self::TIMEOUT)
    }

    /// Returns a client with another timeout for a caller, which includes the time in the row.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self::with_timeout(self.shared.connection.clone(), timeout)
    }

    fn with_timeout(connection: C, timeout: Duration) -> Self {
        Self { shared: Arc::new(Shared { connection, timeout, rows: Mutex::default() }) }
    }

    /// Takes units or refuses the call, as the server decides.
    ///
    /// # Errors
    /// Returns an error of the kind [`ErrorKind::Client`] if the limit or the quantity is out of the range
    /// that the command accepts. It is found before anything is sent. Also returns the errors of the call,
    /// each of which all callers of a row get, and an error of the kind [`ErrorKind::Io`] if no answer
    /// arrives in time.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with a timer.
    pub async fn take(
        &self,
        key: impl AsRef<[u8]>,
        limit: impl Into<Limit>,
        quantity: impl Into<Quantity>,
    ) -> RedisResult<Answer> {
        let (key, limit, quantity) = (key.as_ref(), limit.into(), quantity.into());
        let shared = &self.shared;
        let most = local::check(limit, quantity)?.limit;
        let units = match quantity {
            Quantity::Units(Units(units)) if (1..=most).contains(&units) => i64::try_from(units).ok(),
            _ => None,
        };
        let Some(units) = units.filter(|_| mergeable(limit, most).is_some()) else {
            return shared.ask(key, limit, quantity).await;
        };
        let name: Name = (key.into(), limit);
        let Some(answer) = shared.line_up(&name, units) else {
            let _first = First(Some(Turn { shared: Arc::clone(shared), name, is_over: false }));
            return shared.ask(key, limit, quantity).await;
        };
        let gone = || (ErrorKind::Io, "the runtime that has sent the call is gone").into();
        match tokio::time::timeout(shared.timeout, answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err((ErrorKind::Io, "the server has not answered in time").into()),
        }
    }
}

/// Returns the limit as the arithmetic of merged calls has it, or `None` if its calls cannot be merged.
fn mergeable(limit: Limit, most: u64) -> Option<Mergeable> {
    let most = i64::try_from(most).ok()?;
    let rate = match limit {
        Limit::Throttle(limit) => limit.rate,
        Limit::Funnel(limit) | Limit::Bucket(limit) => limit.rate,
        Limit::Fixed(fixed) if !fixed.window.is_total() => return Some(Mergeable::Counted(most)),
        Limit::Fixed(_) | Limit::Window(_) | Limit::Log(_) => return None,
    };
    core_rate(rate).ok().map(|rate| Mergeable::Rated { rate, capacity: most })
}

impl<C> Shared<C> {
    fn rows(&self) -> MutexGuard<'_, HashMap<Name, Vec<Caller>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a caller to the row behind the call that is on its way. Returns `None` if there is no such
    /// call: the caller sends its own, and others line up behind it.
    fn line_up(&self, name: &Name, units: i64) -> Option<oneshot::Receiver<RedisResult<Answer>>> {
        let mut rows = self.rows();
        let Some(row) = rows.get_mut(name) else {
            rows.insert(name.clone(), Vec::new());
            return None;
        };
        let (sender, answer) = oneshot::channel();
        row.push(Caller { units, answer: sender });
        Some(answer)
    }

    /// Returns the callers that wait for the next call. If there are none, no call is on its way any more.
    fn next(&self, name: &Name) -> Option<Vec<Caller>> {
        let mut rows = self.rows();
        let mut row = std::mem::take(rows.get_mut(name)?);
        row.retain(|caller| !caller.answer.is_closed());
        if row.is_empty() {
            rows.remove(name);
            return None;
        }
        Some(row)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared<C> {
    async fn ask(&self, key: &[u8], limit: Limit, quantity: impl Into<Quantity>) -> RedisResult<Answer> {
        ask(&self.connection, self.timeout, &call::take(key, limit, quantity)?).await
    }

    /// Sends one call for callers that it decides exactly, and tells each of them its answer.
    async fn send(&self, (key, limit): &Name, callers: Vec<Caller>) {
        if let [caller] = callers.as_slice() {
            let answer = self.ask(key, *limit, Units(caller.units.unsigned_abs())).await;
            for caller in callers {
                // The caller may be gone, as after a call of its own.
                let _: Result<(), _> = caller.answer.send(answer.clone());
            }
            return;
        }
        let sum = callers.iter().fold(0_u64, |sum, caller| sum.saturating_add(caller.units.unsigned_abs()));
        let mut grants =
            self.ask(key, *limit, Saturate(sum)).await.and_then(|answer| grants(*limit, &answer));
        for caller in callers {
            let answer = match &mut grants {
                Ok(grants) => Ok(answer(&grants.next(caller.units))),
                Err(error) => Err(error.clone()),
            };
            let _: Result<(), _> = caller.answer.send(answer);
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Turn<C> {
    /// Sends calls for the row until it is empty.
    async fn serve(mut self) {
        while let Some(mut row) = self.shared.next(&self.name) {
            let mut parts = Vec::new();
            while !row.is_empty() {
                let merged = tail(row.iter().rev().map(|caller| Some(caller.units)));
                let part = row.split_off(row.len().saturating_sub(merged));
                parts.push(self.shared.send(&self.name, part));
            }
            parts.reverse(); // so that they are sent in the order of the row
            all(parts).await;
        }
        self.is_over = true; // another caller may have its turn by now
    }
}

/// Polls all futures, from the first to the last, until each of them is complete.
async fn all(futures: Vec<impl Future<Output = ()>>) {
    let mut futures: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Returns the answers of a row from the reply to its call.
fn grants(limit: Limit, answer: &Answer) -> RedisResult<Grants> {
    let read = || {
        let reply = Reply {
            taken: i64::try_from(answer.taken?).ok()?,
            remaining: i64::try_from(answer.remaining).ok()?,
            retry_after: answer.retry_after().map(span).map_or(Some(None), |wait| wait.map(Some))?,
            reset_after: span(answer.reset_after)?,
        };
        Some(Grants::new(mergeable(limit, answer.limit)?, reply))
    };
    let odd = || RedisError::from((ErrorKind::UnexpectedReturnType, "expected an answer to SATURATE"));
    read().ok_or_else(odd)
}

fn answer(granted: &Granted) -> Answer {
    // As the server, which rounds up to whole microseconds.
    let micros = |time: redis_cell_core::Span| Duration::from_micros(time.as_nanos().div_ceil(1_000));
    Answer {
        decision: match granted.verdict {
            Verdict::Later(wait) => Decision::RefusedFor(micros(wait)),
            Verdict::Never => Decision::RefusedForever,
            Verdict::Admitted | Verdict::Booked(_) => Decision::Admitted,
        },
        limit: granted.limit.unsigned_abs(),
        remaining: granted.remaining.unsigned_abs(),
        reset_after: micros(granted.reset_after),
        taken: None,
    }
}

/// The right to send the next call for a row. If this is dropped, its callers see that their channels are
/// closed, and the next caller sends its own call.
struct Turn<C> {
    shared: Arc<Shared<C>>,
    name: Name,
    is_over: bool,
}

impl<C> Drop for Turn<C> {
    fn drop(&mut self) {
        if !self.is_over {
            drop(self.shared.rows().remove(&self.name));
        }
    }
}

/// The call of the first caller. When it is answered, or the caller is gone, a task serves those behind it.
struct First<C: ConnectionLike + Clone + Send + Sync + 'static>(Option<Turn<C>>);

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for First<C> {
    fn drop(&mut self) {
        let Some(mut turn) = self.0.take() else { return };
        let mut rows = turn.shared.rows();
        let is_empty = rows.get(&turn.name).is_none_or(Vec::is_empty);
        if is_empty {
            rows.remove(&turn.name);
        }
        drop(rows);
        turn.is_over = is_empty;
        if let (false, Ok(runtime)) = (is_empty, Handle::try_current()) {
            runtime.spawn(turn.serve());
        }
    }
}
