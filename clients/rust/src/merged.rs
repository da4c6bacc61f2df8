//! Merged calls: calls for one key that are sent as a single call.

use crate::guard::ask;
use crate::leased::{core_rate, span};
use crate::{
    Answer, Decision, Limit, MTake, Quantity, Saturate, Taken, Together, Units, call, late, local, lock,
};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult};
use redis_cell_core::merged::{Grants, Limit as Mergeable, Line, Reply, tail};
use redis_cell_core::several::combine;
use redis_cell_core::{Answer as Granted, Verdict};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Sends calls for the same key and limit as one call, while another one is on its way.
///
/// For each key and limit, at most one call of this process is on its way. Callers that come during that time
/// wait, and one call with [`Saturate`] for the sum of their quantities follows. Its units are granted in the
/// order of arrival, and each caller gets the answer that its own call would have got at its place. No unit
/// is held in this process, none is lost, and the limit holds exactly as with separate calls. A caller waits
/// for at most one more round trip, and a single caller for none.
///
/// If the emission interval of a rate (the time of one unit) is not a whole number of microseconds, times can
/// be up to a microsecond longer. Quantities above 1 are merged only with enough smaller ones behind them,
/// because a single call would otherwise take units that no caller gets. A quantity that is not merged is
/// sent separately at the same time. So is every call for a [`Limit::Window`], a [`Limit::Log`] or a total,
/// whose answers do not follow from one reply. `redis_cell_core::merged` has the arithmetic with its proof.
///
/// [`mtake`](Self::mtake) merges calls for the same mix of limiters.
///
/// All clones share the rows of callers. A caller that is dropped takes nothing: if its call is on its way,
/// its units are given back when the answer arrives, as by [`MSettle::of`](crate::MSettle::of).
///
/// The callers of a row are served in the runtime of the first one. While that runtime is not driven, for
/// example after the `block_on` of a runtime with one thread, they wait until their timeout, and the units of
/// a dropped caller are not given back. When the runtime is dropped, the next caller serves the row.
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
    /// The callers that wait, for each row of which a call is on its way.
    rows: Mutex<HashMap<Arc<Name>, Row>>,
}

/// The keys and limits of a row.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Name {
    is_mix: bool,
    limits: Vec<(Box<[u8]>, Limit)>,
}

impl Name {
    /// Returns a call for these limiters, each with its units.
    fn mtake(&self, units: &[i64]) -> RedisResult<Cmd> {
        call::mtake(self.limits.iter().zip(units).fold(MTake::new(), |call, ((key, limit), units)| {
            call.limit(&**key, *limit, Units(units.unsigned_abs()))
        }))
    }
}

#[derive(Debug)]
enum Row {
    One(Vec<Caller<Answer>>),
    Mix(Line<Caller<Together<Answer>>>),
}

#[derive(Debug)]
struct Caller<A> {
    units: Box<[i64]>,
    answer: oneshot::Sender<Sent<A>>,
}

/// The answer to a call, and when it was sent.
type Sent<A> = RedisResult<(A, Instant)>;

impl<A> AsRef<[i64]> for Caller<A> {
    fn as_ref(&self) -> &[i64] {
        &self.units
    }
}

/// The outcome for a caller.
trait Told: FromRedisValue + Send + 'static {
    fn admitted(&self) -> bool;
    fn rows(&self) -> &[Answer];

    /// A row without callers.
    fn row(name: &Name) -> Row;
    fn push(row: &mut Row, caller: Caller<Self>);
}

impl Told for Answer {
    fn admitted(&self) -> bool {
        self.admitted()
    }

    fn rows(&self) -> &[Answer] {
        std::slice::from_ref(self)
    }

    fn row(_: &Name) -> Row {
        Row::One(Vec::new())
    }

    fn push(row: &mut Row, caller: Caller<Self>) {
        if let Row::One(callers) = row {
            callers.push(caller);
        }
    }
}

impl Told for Together<Answer> {
    fn admitted(&self) -> bool {
        self.combined.admitted()
    }

    fn rows(&self) -> &[Answer] {
        &self.each
    }

    fn row(name: &Name) -> Row {
        Row::Mix(Line::new(name.limits.iter().filter_map(|(_, limit)| mergeable(*limit))))
    }

    fn push(row: &mut Row, caller: Caller<Self>) {
        if let Row::Mix(line) = row {
            line.push(caller);
        }
    }
}

/// Returns the state of each limiter in a reply.
fn replies(together: &Together<Answer>) -> RedisResult<Vec<Reply>> {
    together.each.iter().map(|row| reply(row, 0)).collect()
}

fn reply(answer: &Answer, of: i64) -> RedisResult<Reply> {
    let read = || {
        Some(Reply {
            taken: i64::try_from(answer.taken.unwrap_or_default()).ok()?,
            remaining: i64::try_from(answer.remaining).ok()?,
            retry_after: answer.retry_after().map(span).map_or(Some(None), |wait| Some(Some((wait?, of))))?,
            reset_after: span(answer.reset_after)?,
        })
    };
    read().ok_or_else(|| (ErrorKind::UnexpectedReturnType, "expected an answer of a rate limiter").into())
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
        let call = || {
            local::check(limit, quantity)?;
            call::take(key, limit, quantity)
        };
        let units = match (quantity, mergeable(limit)) {
            (Quantity::Units(Units(units)), Some(limit)) => {
                i64::try_from(units).ok().filter(|units| (1..=limit.most()).contains(units))
            }
            _ => None,
        };
        let Some(units) = units else { return self.shared.ask(&call()?).await };
        let name = Name { is_mix: false, limits: vec![(key.into(), limit)] };
        self.shared.join(name, Box::new([units]), call).await.map(|(answer, _)| answer)
    }

    /// Takes units from several limiters, from all or from none. Calls with the same keys and limits in the
    /// same order are merged, whatever their quantities are.
    ///
    /// A call takes the units of the callers that fit the `remaining` of the last reply; a caller that does
    /// not fit behind them is refused when they have their units. So a caller waits for at most two more
    /// round trips, and a refusal is up to one round trip old. If another client takes the units first, the
    /// reply to this call decides all callers again; a caller to which that has happened twice sends a call
    /// of its own.
    ///
    /// Calls with a place, a [`Limit::Window`], a [`Limit::Log`], a total, limiters in shadow, pools in
    /// order, a hold, or a quantity of 0 or above its limit, and calls that may be repeated, are sent
    /// separately.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    ///
    /// # Panics
    /// Panics outside a tokio runtime with a timer.
    pub async fn mtake(&self, limiters: MTake) -> RedisResult<Taken> {
        let mix: Option<(Vec<_>, Vec<_>)> = limiters.mix().and_then(|mix| {
            let limiter = |(key, limit, units): (&[u8], Limit, u64)| {
                let units = i64::try_from(units).ok().filter(|units| *units > 0);
                let units =
                    units.filter(|units| mergeable(limit).is_some_and(|limit| *units <= limit.most()));
                units.map(|units| ((key.into(), limit), units))
            };
            mix.map(limiter).collect()
        });
        let call = || call::mtake(limiters.clone());
        let (answer, sent) = if let Some((limits, units)) = mix {
            self.shared.join(Name { is_mix: true, limits }, units.into(), call).await?
        } else {
            Arc::clone(&self.shared).ask_timed(call()?).await?
        };
        Ok(Taken::new(answer, &limiters, sent))
    }
}

/// Returns the limit in the form for merged calls, or `None` if its calls cannot be merged.
fn mergeable(limit: Limit) -> Option<Mergeable> {
    let rated = |rate, capacity| {
        let (rate, capacity) = (core_rate(rate).ok()?, i64::try_from(capacity).ok()?);
        Some(Mergeable::Rated { rate, capacity })
    };
    match limit {
        Limit::Throttle(limit) => rated(limit.rate, limit.at_once()),
        Limit::Funnel(limit) | Limit::Bucket(limit) => rated(limit.rate, limit.capacity),
        Limit::Fixed(fixed) if !fixed.window.is_total() => {
            Some(Mergeable::Counted(i64::try_from(fixed.limit).ok()?))
        }
        Limit::Fixed(_) | Limit::Window(_) | Limit::Log(_) => None,
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared<C> {
    async fn ask<T: FromRedisValue>(&self, cmd: &Cmd) -> RedisResult<T> {
        ask(&self.connection, self.timeout, cmd).await
    }

    async fn ask_timed<A: Told>(self: Arc<Self>, cmd: Cmd) -> Sent<A> {
        let sent = Instant::now();
        self.ask(&cmd).await.map(|reply| (reply, sent))
    }

    /// Sends a call, or waits for the one on its way and for one that is shared with others. `cmd` is a call
    /// that is sent alone; if there is a row of these limits, they have been checked.
    async fn join<A: Told>(
        self: &Arc<Self>,
        name: Name,
        units: Box<[i64]>,
        cmd: impl FnOnce() -> RedisResult<Cmd>,
    ) -> Sent<A> {
        let (name, shared) = (Arc::new(name), Arc::clone(self));
        let (sender, answer) = oneshot::channel();
        let first = {
            let mut rows = lock(&self.rows);
            if let Some(row) = rows.get_mut(&name) {
                A::push(row, Caller { units: units.clone(), answer: sender });
                None
            } else {
                let cmd = cmd()?;
                rows.insert(Arc::clone(&name), A::row(&name));
                Some(cmd)
            }
        };
        if let Some(cmd) = first {
            let call = Box::pin(Arc::clone(self).ask_timed(cmd));
            return First { turn: Some(Turn { shared, name, is_over: false }), units, call: Some(call) }
                .await;
        }
        let mut waits = Waits { shared, name, units, answer };
        let gone = || (ErrorKind::Io, "the runtime that has sent the call is gone").into();
        match tokio::time::timeout(self.timeout, &mut waits.answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(late()),
        }
    }

    /// Gives back the units of a dropped caller.
    fn give_back<A: Told>(self: &Arc<Self>, name: &Name, units: &[i64], unread: &Sent<A>) {
        let (Ok((told, sent)), Ok(runtime)) = (unread, Handle::try_current()) else { return };
        let back = |cmd: Cmd| call::giving_back(&cmd, told.rows(), false, sent.elapsed());
        if let Some(back) = name.mtake(units).ok().filter(|_| told.admitted()).and_then(back) {
            let shared = Arc::clone(self);
            // Units whose settlement does not arrive are lost, as after a crash of the process.
            runtime.spawn(async move { shared.ask::<redis::Value>(&back).await });
        }
    }

    /// Passes an answer to its caller.
    fn tell<A: Told>(self: &Arc<Self>, name: &Name, caller: Caller<A>, told: Sent<A>) {
        let Caller { units, answer } = caller;
        if let Err(unread) = answer.send(told) {
            self.give_back(name, &units, &unread);
        }
    }

    /// Sends one call for callers that it decides exactly, and passes each of them its answer.
    async fn send(self: &Arc<Self>, name: &Name, callers: Vec<Caller<Answer>>) {
        let (sent, is_alone) = (Instant::now(), callers.len() == 1);
        let Some((key, limit)) = name.limits.first() else { return };
        let sum = callers
            .iter()
            .flat_map(|caller| &caller.units)
            .fold(0_i64, |sum, units| sum.saturating_add(*units));
        let sum = sum.unsigned_abs();
        let sum = if is_alone { Quantity::Units(Units(sum)) } else { Saturate(sum).into() };
        let answer: RedisResult<Answer> = match call::take(&**key, *limit, sum) {
            Ok(cmd) => self.ask(&cmd).await,
            Err(error) => Err(error),
        };
        let mut grants = answer.as_ref().map_err(Clone::clone).and_then(|answer| grants(*limit, answer));
        for caller in callers {
            let units = caller.units.first().copied().unwrap_or_default();
            let own = match &mut grants {
                _ if is_alone => answer.clone(),
                Ok(grants) => Ok(told(&grants.next(units))),
                Err(error) => Err(error.clone()),
            };
            self.tell(name, caller, own.map(|own| (own, sent)));
        }
    }

    /// Sends the next calls of a row. Returns whether there were any.
    async fn call(self: &Arc<Self>, name: &Arc<Name>) -> bool {
        let next = {
            let mut rows = lock(&self.rows);
            match rows.get_mut(name) {
                None => return false,
                Some(Row::One(callers)) => {
                    callers.retain(|caller| !caller.answer.is_closed());
                    let callers = std::mem::take(callers);
                    if callers.is_empty() {
                        rows.remove(name);
                        return false;
                    }
                    Ok(callers)
                }
                Some(Row::Mix(line)) => {
                    line.retain(|caller| !caller.answer.is_closed());
                    let next = line.next_call();
                    if next.sum.is_empty() {
                        rows.remove(name);
                    }
                    Err(next)
                }
            }
        };
        let next = match next {
            Err(next) => next,
            Ok(mut row) => {
                let mut parts = Vec::new();
                while !row.is_empty() {
                    let units = |caller: &Caller<Answer>| caller.units.first().copied();
                    let merged = tail(row.iter().rev().map(units));
                    parts.push(self.send(name, row.split_off(row.len().saturating_sub(merged))));
                }
                parts.reverse(); // so that they are sent in the order of the row
                all(parts).await;
                return true;
            }
        };
        let sent = Instant::now();
        for (caller, rows) in next.refused {
            self.tell(name, caller, together(&rows).map(|rows| (rows, sent)));
        }
        for caller in next.alone {
            let (shared, name) = (Arc::clone(self), Arc::clone(name));
            tokio::spawn(async move {
                let told = match name.mtake(&caller.units) {
                    Ok(cmd) => Arc::clone(&shared).ask_timed(cmd).await,
                    Err(error) => Err(error),
                };
                shared.tell(&name, caller, told);
            });
        }
        if next.sum.is_empty() {
            return false;
        }
        let reply: RedisResult<Together<Answer>> = match name.mtake(&next.sum) {
            Ok(cmd) => self.ask(&cmd).await,
            Err(error) => Err(error),
        };
        let reply = reply.and_then(|reply| Ok((reply.combined.admitted(), replies(&reply)?)));
        let decided: Vec<_> = {
            let mut rows = lock(&self.rows);
            let Some(Row::Mix(line)) = rows.get_mut(name) else { return false };
            match reply {
                Ok((admitted, rows)) => {
                    let decided = line.answered(admitted, rows).into_iter();
                    decided.map(|(caller, rows)| (caller, together(&rows))).collect()
                }
                Err(error) => line.failed().into_iter().map(|caller| (caller, Err(error.clone()))).collect(),
            }
        };
        for (caller, rows) in decided {
            self.tell(name, caller, rows.map(|rows| (rows, sent)));
        }
        true
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Turn<C> {
    /// Sends calls for the row until it is empty.
    async fn serve(mut self) {
        while self.shared.call(&self.name).await {}
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
    let odd = || RedisError::from((ErrorKind::UnexpectedReturnType, "expected an answer to SATURATE"));
    let limit = mergeable(limit).filter(|_| answer.taken.is_some()).ok_or_else(odd)?;
    Ok(Grants::new(limit, reply(answer, 1)?))
}

fn together(rows: &[Granted]) -> RedisResult<Together<Answer>> {
    let combined = combine(rows.iter().copied()).ok_or((ErrorKind::Client, "the call names no limiter"))?;
    Ok(Together { combined: told(&combined), each: rows.iter().map(told).collect() })
}

fn told(granted: &Granted) -> Answer {
    // Rounds up to whole microseconds, like the server.
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
    name: Arc<Name>,
    is_over: bool,
}

impl<C> Drop for Turn<C> {
    fn drop(&mut self) {
        if !self.is_over {
            drop(lock(&self.shared.rows).remove(&self.name));
        }
    }
}

/// The call of the first caller. When it is answered, a task serves the callers behind it. If the caller is
/// dropped before, the task waits for the answer, and gives the units back.
struct First<C: ConnectionLike + Clone + Send + Sync + 'static, A: Told> {
    turn: Option<Turn<C>>,
    units: Box<[i64]>,
    call: Option<Pin<Box<dyn Future<Output = Sent<A>> + Send>>>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static, A: Told> Future for First<C, A> {
    type Output = Sent<A>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Sent<A>> {
        let Some(call) = &mut self.call else { return Poll::Pending };
        let answer = call.as_mut().poll(context);
        if answer.is_ready() {
            self.call = None;
        }
        answer
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static, A: Told> Drop for First<C, A> {
    fn drop(&mut self) {
        let Some(mut turn) = self.turn.take() else { return };
        let (call, units) = (self.call.take(), std::mem::take(&mut self.units));
        if call.is_none() {
            let mut rows = lock(&turn.shared.rows);
            let is_empty = match rows.get(&turn.name) {
                None => true,
                Some(Row::One(callers)) => callers.is_empty(),
                Some(Row::Mix(line)) => line.is_empty(),
            };
            if is_empty {
                rows.remove(&turn.name);
                turn.is_over = true;
            }
            drop(rows);
            if is_empty {
                return;
            }
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Some(call) = call {
                    let answer = call.await;
                    turn.shared.give_back(&turn.name, &units, &answer);
                }
                turn.serve().await;
            });
        }
    }
}

/// A caller that waits. If it is dropped before it reads its answer, its units are given back.
struct Waits<C: ConnectionLike + Clone + Send + Sync + 'static, A: Told> {
    shared: Arc<Shared<C>>,
    name: Arc<Name>,
    units: Box<[i64]>,
    answer: oneshot::Receiver<Sent<A>>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static, A: Told> Drop for Waits<C, A> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(unread) = self.answer.try_recv() {
            self.shared.give_back(&self.name, &self.units, &unread);
        }
    }
}
