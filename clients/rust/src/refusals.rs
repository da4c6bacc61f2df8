//! Refusals that are remembered until their keys change.

use crate::{Answer, Decision, Limit, MPeek, Quantity, Together, Units, call, lock};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisResult,
    Value,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

/// Remembers refusals, so that calls for refused keys rarely reach the server: for
/// [`Guard::refusals`](crate::Guard::refusals) and
/// [`BlockingGuard::refusals`](crate::BlockingGuard::refusals).
///
/// A call that the server has refused is refused in this process until its wait is over or its key changes:
/// the same key, limit and quantity. Refused calls change nothing, but a refund or a deletion does. The
/// server announces these changes by client-side caching (`CLIENT TRACKING`), so a remembered refusal is
/// exact up to the delay of this message. A connection of its own reads each refused key once, with
/// `CL.MPEEK`. While this connection is lost, or silent for [`SILENCE`](Self::SILENCE), nothing is
/// remembered, and every call goes to the server.
///
/// The `remaining` of a remembered refusal is that at the time of the refusal. If clients wait for the key in
/// the server and one gives up, a remembered wait is not shortened, because the key does not change. It needs
/// the module in a single server of version 6.0 or newer: with the function library or a cluster, nothing is
/// remembered.
///
/// # Example
/// ```
/// use redis_cell_client::{Guard, Rate, Refusals, Units, WhenUnavailable};
/// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let client = redis::Client::open(url)?;
/// let connection = client.get_multiplexed_async_connection().await?;
/// let guard = Guard::new(connection, WhenUnavailable::FailOpen).refusals(Refusals::new(&client)?);
/// assert!(guard.take("doc:refusals", Rate::per_second(100).burst(99), Units(1)).await?.admitted());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Refusals {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    least: Duration,
    most_keys: usize,
    memory: Mutex<Memory>,
    recalled: AtomicU64,
    more: Notify,
}

type Asked = (Limit, u64);

/// A key that is read. The number distinguishes readings of the same key before and after a change.
type Reading = (Vec<u8>, Asked, u64);

#[derive(Debug, Default)]
struct Memory {
    known: HashMap<Vec<u8>, HashMap<Asked, Refusal>>,
    /// The keys that are being read and have not changed since, with the numbers of their readings.
    asked: HashMap<Vec<u8>, HashMap<Asked, u64>>,
    queue: Vec<Reading>,
    readings: u64,
    /// The instant of the last message of the server, while its announcements arrive.
    heard: Option<Instant>,
    /// Whether there is a task for the connection.
    is_tracked: bool,
    /// When the next attempt to connect can begin.
    again: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    answer: Answer,
    received: Instant,
    /// The server's wait is over by then: it counts from the instant at which the call was sent.
    until: Instant,
}

impl Refusals {
    /// The default of [`least`](Self::least): 10 ms.
    pub const LEAST: Duration = Duration::from_millis(10);

    /// The default of [`keys`](Self::keys): 10,000.
    pub const KEYS: usize = 10_000;

    /// How long the server may be silent before everything is forgotten: one second.
    pub const SILENCE: Duration = Duration::from_secs(1);

    /// The time between two pings.
    const BEAT: Duration = Duration::from_millis(250);

    /// How many keys are read in one write.
    const BATCH: usize = 256;

    /// Creates a memory of refusals, with a connection to the server of `client`. No connection is made
    /// before the first refusal.
    ///
    /// # Errors
    /// Returns the errors of [`Client::open`].
    pub fn new(client: &Client) -> RedisResult<Self> {
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings).into_connection_info()?)?;
        Ok(Self::with(client, Self::LEAST, Self::KEYS))
    }

    fn with(client: Client, least: Duration, most_keys: usize) -> Self {
        let (memory, more) = (Mutex::default(), Notify::new());
        let recalled = AtomicU64::new(0);
        Self { shared: Arc::new(Shared { client, least, most_keys, memory, recalled, more }) }
    }

    /// Returns an empty memory that remembers only waits of at least this time: reading a key takes a call.
    #[must_use]
    pub fn least(self, least: Duration) -> Self {
        Self::with(self.shared.client.clone(), least, self.shared.most_keys)
    }

    /// Returns an empty memory for another number of keys. Calls for further keys go to the server.
    #[must_use]
    pub fn keys(self, most_keys: usize) -> Self {
        Self::with(self.shared.client.clone(), self.shared.least, most_keys)
    }

    /// Returns the number of keys of which a refusal is remembered.
    pub fn keys_in_use(&self) -> usize {
        lock(&self.shared.memory).known.len()
    }

    /// Returns the number of calls that were refused without the server.
    pub fn recalled(&self) -> u64 {
        self.shared.recalled.load(Ordering::Relaxed)
    }

    /// Returns the refusal of a call that the server would refuse now, if it is remembered.
    pub fn recall(&self, key: &[u8], limit: impl Into<Limit>, units: Units) -> Option<Answer> {
        let now = Instant::now();
        let refusal = {
            let memory = lock(&self.shared.memory);
            // After a pause of the process, announcements may not have been read yet.
            memory.heard.filter(|&heard| now.saturating_duration_since(heard) < Self::SILENCE)?;
            *memory.known.get(key)?.get(&(limit.into(), units.0))?
        };
        let wait = refusal.answer.retry_after().filter(|_| now < refusal.until)?;
        let passed = now.saturating_duration_since(refusal.received);
        self.shared.recalled.fetch_add(1, Ordering::Relaxed);
        let wait = wait.saturating_sub(passed).max(Duration::from_micros(1));
        let reset_after = refusal.answer.reset_after.saturating_sub(passed);
        Some(Answer { decision: Decision::RefusedFor(wait), reset_after, ..refusal.answer })
    }

    /// Returns the refusal of a call, if it is remembered.
    pub(crate) fn recall_call(&self, key: &[u8], limit: Limit, quantity: Quantity) -> Option<Answer> {
        if let Quantity::Units(units) = quantity { self.recall(key, limit, units) } else { None }
    }

    /// Begins to remember the refusal in the server's answer to a call. The connection is served by a task of
    /// this tokio runtime, or by a thread of its own outside one.
    pub fn learn(&self, key: &[u8], limit: impl Into<Limit>, quantity: impl Into<Quantity>, answer: &Answer) {
        let (shared, Quantity::Units(units)) = (&self.shared, quantity.into()) else { return };
        if answer.retry_after().is_none_or(|wait| wait < shared.least) {
            return;
        }
        let (asked, now) = ((limit.into(), units.0), Instant::now());
        let mut memory = lock(&shared.memory);
        let has_room = memory.has_room(shared.most_keys, now);
        if !has_room || memory.again.is_some_and(|again| now < again) {
            return;
        }
        let number = memory.readings;
        if let Entry::Vacant(entry) = memory.asked.entry(key.to_vec()).or_default().entry(asked) {
            entry.insert(number);
            memory.readings = number.wrapping_add(1);
            memory.queue.push((key.to_vec(), asked, number));
            shared.more.notify_one();
        }
        if !memory.is_tracked {
            memory.is_tracked = true;
            drop(memory);
            let track = Track(Arc::downgrade(shared));
            match Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(track.run())),
                // If no thread can start, nothing is remembered, as without a connection.
                Err(_) => drop(std::thread::Builder::new().spawn(move || track.run_in_thread())),
            }
        }
    }
}

impl Memory {
    /// Returns whether another key can be remembered. Forgets keys whose waits are over, if they fill it.
    fn has_room(&mut self, most: usize, now: Instant) -> bool {
        let len = |memory: &Self| memory.known.len().saturating_add(memory.asked.len());
        if len(self) >= most {
            self.known.retain(|_, known| known.values().any(|refusal| now < refusal.until));
        }
        len(self) < most
    }

    /// Returns the next keys to read.
    fn next(&mut self) -> Vec<Reading> {
        let most = self.queue.len().min(Refusals::BATCH);
        self.queue.drain(..most).collect()
    }

    /// Forgets everything, because the server may not announce changes.
    fn forget(&mut self) {
        self.known.clear();
        self.asked.clear();
        self.queue.clear();
        self.heard = None;
    }
}

impl Shared {
    /// Reads an announcement: keys that have changed, or nil for all keys.
    fn told(&self, push: &PushInfo) {
        let mut memory = lock(&self.memory);
        match (&push.kind, push.data.first()) {
            (PushKind::Invalidate, Some(Value::Array(keys))) => {
                for key in keys {
                    if let Value::BulkString(key) = key {
                        memory.known.remove(key);
                        memory.asked.remove(key);
                    }
                }
            }
            (PushKind::Invalidate | PushKind::Disconnection, _) => memory.forget(),
            _ => {}
        }
    }

    /// Remembers a refusal, unless its key has changed since it was read.
    fn answered(&self, reading: Reading, answer: RedisResult<Together<Answer>>, sent: Instant) {
        let (key, asked, number) = reading;
        let mut memory = lock(&self.memory);
        let Some(others) = memory.asked.get_mut(&key) else { return };
        if others.get(&asked) != Some(&number) {
            return;
        }
        others.remove(&asked);
        if others.is_empty() {
            memory.asked.remove(&key);
        }
        let answer = answer.ok().and_then(|together| together.each.into_iter().next());
        let wait = answer.and_then(|answer| answer.retry_after()).filter(|&wait| wait >= self.least);
        let until = wait.and_then(|wait| sent.checked_add(wait));
        if let (Some(answer), Some(until)) = (answer, until) {
            let refusal = Refusal { answer, received: Instant::now(), until };
            memory.known.entry(key).or_default().insert(asked, refusal);
        }
    }
}

/// The task of a connection. When it ends, nothing is remembered.
struct Track(std::sync::Weak<Shared>);

impl Drop for Track {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            let mut memory = lock(&shared.memory);
            memory.forget();
            memory.is_tracked = false;
            memory.again = Instant::now().checked_add(Refusals::SILENCE);
        }
    }
}

impl Track {
    /// Reads refused keys and sends pings, until the connection is lost or no [`Refusals`] is left.
    async fn run(self) {
        // The calls, which are then all sent to the server, return the error.
        let _: RedisResult<()> = self.follow().await;
    }

    fn run_in_thread(self) {
        if let Ok(runtime) = Builder::new_current_thread().enable_all().build() {
            runtime.block_on(self.run());
        }
    }

    async fn follow(&self) -> RedisResult<()> {
        let Some(client) = self.0.upgrade().map(|shared| shared.client.clone()) else { return Ok(()) };
        let memory = self.0.clone();
        let told = move |push: PushInfo| -> Result<(), redis::aio::SendError> {
            memory.upgrade().ok_or(redis::aio::SendError)?.told(&push);
            Ok(())
        };
        let config = AsyncConnectionConfig::new()
            .set_push_sender(told)
            .set_connection_timeout(Some(Refusals::SILENCE))
            .set_response_timeout(Some(Refusals::SILENCE));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection).await?;
        while let Some(shared) = self.0.upgrade() {
            let batch = lock(&shared.memory).next();
            if batch.is_empty() {
                redis::cmd("PING").exec_async(&mut connection).await?;
            } else {
                read(&shared, &mut connection, batch).await?;
            }
            lock(&shared.memory).heard = Some(Instant::now());
            if lock(&shared.memory).queue.is_empty() {
                let _: Result<(), _> = tokio::time::timeout(Refusals::BEAT, shared.more.notified()).await;
            }
        }
        Ok(())
    }
}

/// Reads keys, whose next changes the server then announces. They share a round trip, because reading the
/// keys of a flood one after the other would be slower than the flood.
async fn read(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    readings: Vec<Reading>,
) -> RedisResult<()> {
    let (mut looks, mut read, sent) = (redis::pipe(), Vec::new(), Instant::now());
    for reading in readings {
        let (key, (limit, units), _) = &reading;
        match call::mpeek(MPeek::new().limit(key, *limit, Units(*units))) {
            Ok(look) => {
                looks.add_command(look);
                read.push(reading);
            }
            Err(error) => shared.answered(reading, Err(error), sent),
        }
    }
    if read.is_empty() {
        return Ok(());
    }
    // The replies are read as values, because one reply that is not an answer would otherwise be an error for
    // all.
    let answers: Vec<RedisResult<Value>> = looks.ignore_errors().query_async(connection).await?;
    for (reading, answer) in read.into_iter().zip(answers) {
        let answer = answer.and_then(|answer| Ok(redis::from_redis_value(answer)?));
        shared.answered(reading, answer, sent);
    }
    Ok(())
}
