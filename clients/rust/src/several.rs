//! Several limiters of any kind in one call.

use crate::limit::{invalid, rounded_up};
use crate::once::Attempts;
use crate::{Answer, Bucket, Flow, Gcra, Once, Places, Quota, Rate, Settlement, Together, Units, Wait};
use redis::{Cmd, RedisResult, ToSingleRedisArg};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// The limiters of [`cl_mtake`](crate::CellCommands::cl_mtake).
pub type MTake = Several<Take>;

/// The limiters of [`cl_mpeek`](crate::CellCommands::cl_mpeek).
pub type MPeek = Several<Peek>;

/// The limiters of [`cl_msettle`](crate::CellCommands::cl_msettle).
pub type MSettle = Several<Settle>;

/// Several limiters with their keys: [`MTake`], [`MPeek`] or [`MSettle`].
///
/// Each method adds a limiter with the arguments of its own command. In a cluster, all keys must be in one
/// slot: give them the same hash tag, such as `{user7}`. An argument that cannot be sent is an error of the
/// call.
///
/// # Example
/// ```
/// use redis_cell_client::{CellCommands, MSettle, MTake, Places, Quota, Rate, Settlement, Units, Window};
/// use std::time::Duration;
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// # let mut connection = redis::Client::open(url)?.get_connection()?;
/// let (requests, month) = (Rate::per_minute(100).burst(99), Quota::new(10_000_000, Window::month()));
/// let took = connection.cl_mtake(
///     MTake::new()
///         .throttle("{several}:rpm", requests, Units(1))
///         .fixed("{several}:month", month, Units(1_200))
///         .lease("{several}:busy", Places(20), Duration::from_secs(120), "req-5")
///         .shadow(|new| new.log("{several}:new", Rate::per_second(5), Units(1))),
/// )?;
/// assert!(took.combined.admitted());
///
/// // The request needed 850 tokens, and is finished.
/// connection.cl_msettle(
///     MSettle::of(&took)
///         .fixed("{several}:month", month, Settlement::GiveBack(Units(350)))
///         .release("{several}:busy", Places(20), "req-5"),
/// )?;
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Several<V> {
    cmd: RedisResult<Cmd>,
    limiters: usize,
    shadow: bool,
    age: Option<Duration>,
    /// The keys of an [`MTake`], each with its quantity.
    keys: Vec<(Vec<u8>, u64)>,
    /// What the call took whose units an [`MSettle`] gives back.
    taken: Option<TakenUnits>,
    flow: Option<Flow>,
    once: Option<Once>,
    verb: PhantomData<V>,
}

/// What is done to the limiters: marks [`MTake`].
#[derive(Clone, Copy, Debug)]
pub struct Take;

/// What is done to the limiters: marks [`MPeek`].
#[derive(Clone, Copy, Debug)]
pub struct Peek;

/// What is done to the limiters: marks [`MSettle`].
#[derive(Clone, Copy, Debug)]
pub struct Settle;

/// A command on several limiters, with the type of its quantities. Only this crate implements it.
pub trait Verb: sealed::Verb {
    /// [`Units`], or [`Settlement`] for [`MSettle`].
    type Quantity: sealed::Quantity;
}

mod sealed {
    pub trait Verb {
        const NAME: &'static str;
    }

    pub trait Quantity: Copy {
        fn write(self, cmd: &mut redis::Cmd);

        /// The units to take, of a call that takes.
        fn taken(self) -> u64;

        /// The units to give back, and 0 of a call that takes.
        fn given_back(self) -> u64;

        /// The same, with no more units to give back.
        fn giving_back_at_most(self, units: u64) -> Self;
    }
}

macro_rules! verb {
    ($verb:ty, $name:literal, $quantity:ty) => {
        impl sealed::Verb for $verb {
            const NAME: &'static str = $name;
        }
        impl Verb for $verb {
            type Quantity = $quantity;
        }
    };
}
verb!(Take, "CL.MTAKE", Units);
verb!(Peek, "CL.MPEEK", Units);
verb!(Settle, "CL.MSETTLE", Settlement);

impl sealed::Quantity for Units {
    fn write(self, cmd: &mut Cmd) {
        cmd.arg(self.0);
    }

    fn taken(self) -> u64 {
        self.0
    }

    fn given_back(self) -> u64 {
        0
    }

    fn giving_back_at_most(self, _: u64) -> Self {
        self
    }
}

impl sealed::Quantity for Settlement {
    fn write(self, cmd: &mut Cmd) {
        match self {
            Self::Charge(Units(units)) | Self::GiveBack(Units(units @ 0)) => cmd.arg(units),
            Self::GiveBack(Units(units)) => cmd.arg(format!("-{units}")),
        };
    }

    fn taken(self) -> u64 {
        0
    }

    fn given_back(self) -> u64 {
        match self {
            Self::Charge(_) => 0,
            Self::GiveBack(Units(units)) => units,
        }
    }

    fn giving_back_at_most(self, most: u64) -> Self {
        match self {
            Self::Charge(_) => self,
            Self::GiveBack(Units(units)) => Self::GiveBack(Units(units.min(most))),
        }
    }
}

/// How long the reply of a call that has waited is taken to be on its way at most. The server does not say
/// how long a call has waited.
const WAY: Duration = Duration::from_millis(100);

/// The answer of [`cl_mtake`](crate::CellCommands::cl_mtake) or
/// [`cl_bmtake`](crate::CellCommands::cl_bmtake), and what [`MSettle::of`] needs to give back
/// units of that call later.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The limiters as one.
    pub combined: Answer,
    /// Each limiter, in the order of the call.
    pub each: Vec<Answer>,
    units: TakenUnits,
}

impl Taken {
    /// The answer of a call that was sent at `sent`, for a call that [`call::mtake`](crate::call::mtake) has
    /// built.
    pub fn new(answer: Together<Answer>, limiters: &MTake, sent: Instant) -> Self {
        let admitted = answer.combined.admitted();
        let rows = limiters.keys.iter().zip(&answer.each).map(|((key, quantity), row)| {
            // A limiter in shadow that would have refused has taken nothing.
            let units = if admitted && row.admitted() { *quantity } else { 0 };
            (key.clone(), (units, row.reset_after))
        });
        let units = TakenUnits { sent, rows: rows.collect() };
        Self { combined: answer.combined, each: answer.each, units }
    }

    /// The answer of a call that has waited, and has just been received: the units were taken at the end of
    /// the wait. If the call was `repeated`, they may have been taken since the first attempt.
    pub(crate) fn after_wait(answer: Together<Answer>, limiters: &MTake, attempts: &Attempts) -> Self {
        let sent = match Instant::now().checked_sub(WAY) {
            Some(turn) if !attempts.repeated => attempts.begin().max(turn),
            _ => attempts.begin(),
        };
        Self::new(answer, limiters, sent)
    }
}

/// When units were taken, how many of each key, and the `reset_after` of its row.
#[derive(Clone, Debug)]
struct TakenUnits {
    sent: Instant,
    rows: HashMap<Vec<u8>, (u64, Duration)>,
}

impl<V: Verb> Default for Several<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Verb> Several<V> {
    /// No limiters yet.
    pub fn new() -> Self {
        Self {
            cmd: Ok(redis::cmd(V::NAME)),
            limiters: 0,
            shadow: false,
            age: None,
            keys: Vec::new(),
            taken: None,
            flow: None,
            once: None,
            verb: PhantomData,
        }
    }

    /// Adds a limiter of `CL.THROTTLE`.
    pub fn throttle(self, key: impl ToSingleRedisArg, limit: impl Into<Gcra>, quantity: V::Quantity) -> Self {
        self.with(key, "THROTTLE", |cmd| limit.into().write(cmd), quantity)
    }

    /// Adds a limiter of `CL.FUNNEL`.
    pub fn funnel(self, key: impl ToSingleRedisArg, limit: Bucket, quantity: V::Quantity) -> Self {
        self.with(key, "FUNNEL", |cmd| limit.write(cmd), quantity)
    }

    /// Adds a limiter of `CL.BUCKET`.
    pub fn bucket(self, key: impl ToSingleRedisArg, limit: Bucket, quantity: V::Quantity) -> Self {
        self.with(key, "BUCKET", |cmd| limit.write(cmd), quantity)
    }

    /// Adds a limiter of `CL.FIXED`.
    pub fn fixed(self, key: impl ToSingleRedisArg, limit: Quota, quantity: V::Quantity) -> Self {
        self.with(key, "FIXED", |cmd| limit.write_before_quantity(cmd), quantity)
    }

    /// Adds a limiter of `CL.WINDOW`.
    pub fn window(self, key: impl ToSingleRedisArg, limit: Rate, quantity: V::Quantity) -> Self {
        self.with(key, "WINDOW", |cmd| limit.write(cmd), quantity)
    }

    /// Adds a limiter of `CL.LOG`.
    pub fn log(self, key: impl ToSingleRedisArg, limit: Rate, quantity: V::Quantity) -> Self {
        self.with(key, "LOG", |cmd| limit.write(cmd), quantity)
    }

    fn with(
        self,
        key: impl ToSingleRedisArg,
        kind: &str,
        limit: impl FnOnce(&mut Cmd) -> RedisResult<()>,
        quantity: V::Quantity,
    ) -> Self {
        use sealed::Quantity as _;
        let Some(taken) = self.taken.as_ref().filter(|_| quantity.given_back() > 0) else {
            return self.add(key, None, kind, quantity.taken(), |cmd| {
                limit(cmd)?;
                quantity.write(cmd);
                Ok(())
            });
        };
        let row = taken.rows.get(&bytes(&key)).copied();
        let reset = row.map(|(_, reset_after)| rounded_up(reset_after));
        self.add(key, reset, kind, 0, |cmd| {
            let (units, _) = row.ok_or_else(|| invalid("the call that took the units has no such key"))?;
            limit(cmd)?;
            quantity.giving_back_at_most(units).write(cmd);
            Ok(())
        })
    }

    fn with_lease(
        self,
        key: impl ToSingleRedisArg,
        places: Places,
        micros: u64,
        id: impl ToSingleRedisArg,
    ) -> Self {
        self.add(key, None, "LEASE", 0, |cmd| {
            cmd.arg(places.0).arg(micros).arg(id);
            Ok(())
        })
    }

    fn add(
        mut self,
        key: impl ToSingleRedisArg,
        reset: Option<u64>,
        kind: &str,
        quantity: u64,
        arguments: impl FnOnce(&mut Cmd) -> RedisResult<()>,
    ) -> Self {
        let shadow = self.shadow;
        self.keys.push((bytes(&key), quantity));
        self.limiters = self.limiters.saturating_add(1);
        self.cmd = self.cmd.and_then(|mut cmd| {
            cmd.arg(key);
            if shadow {
                cmd.arg("SHADOW");
            }
            if let Some(reset_after) = reset {
                cmd.arg("RESET").arg(reset_after);
            }
            cmd.arg(kind);
            arguments(&mut cmd).map(|()| cmd)
        });
        self
    }

    pub(crate) fn finish(self) -> RedisResult<Cmd> {
        self.end(|_| Ok(()))
    }

    /// The command with its options, `options` among them.
    fn end(self, options: impl FnOnce(&mut Cmd) -> RedisResult<()>) -> RedisResult<Cmd> {
        let mut cmd = self.cmd?;
        if self.limiters == 0 {
            return Err(invalid("the call names no limiter"));
        }
        if let Some(age) = self.age.or_else(|| self.taken.map(|taken| taken.sent.elapsed())) {
            cmd.arg("AGO").arg(rounded_up(age));
        }
        options(&mut cmd)?;
        if let Some(flow) = self.flow {
            flow.write(&mut cmd)?;
        }
        if let Some(once) = self.once {
            once.write(&mut cmd);
        }
        cmd.arg("US");
        Ok(cmd)
    }

    pub(crate) const fn is_once(&self) -> Option<&Once> {
        self.once.as_ref()
    }
}

impl Several<Take> {
    /// The call may be repeated, and takes its units once.
    pub fn once(self, once: Once) -> Self {
        Self { once: Some(once), ..self }
    }

    /// `CL.BMTAKE` with these limiters, `passed` after its first attempt.
    pub(crate) fn waiting(mut self, wait: &Wait, passed: Duration) -> RedisResult<Cmd> {
        let mut cmd = redis::cmd("CL.BMTAKE");
        for word in self.cmd?.args_iter().skip(1) {
            if let redis::Arg::Simple(word) = word {
                cmd.arg(word);
            }
        }
        self.cmd = Ok(cmd);
        self.end(|cmd| wait.write(cmd, passed))
    }

    /// Adds a place that is held by `id` for `lease`, rounded up to a whole microsecond.
    pub fn lease(
        self,
        key: impl ToSingleRedisArg,
        places: Places,
        lease: Duration,
        id: impl ToSingleRedisArg,
    ) -> Self {
        self.with_lease(key, places, rounded_up(lease), id)
    }

    /// The limiters that `add` adds refuse nothing: for trying limits on real traffic.
    ///
    /// A limiter in shadow takes its quantity if it admits it and the call is admitted. Otherwise its row
    /// says that it would have refused. The combined answer leaves it out.
    pub fn shadow(mut self, add: impl FnOnce(Self) -> Self) -> Self {
        self.shadow = true;
        let mut this = add(self);
        this.shadow = false;
        this
    }
}

impl Several<Peek> {
    /// Adds a place that `id` would hold.
    pub fn lease(self, key: impl ToSingleRedisArg, places: Places, id: impl ToSingleRedisArg) -> Self {
        self.with_lease(key, places, 1, id)
    }
}

fn bytes(key: &impl ToSingleRedisArg) -> Vec<u8> {
    key.to_redis_args().into_iter().next().unwrap_or_default()
}

impl Several<Settle> {
    /// The call may be repeated, and settles once.
    pub fn once(self, once: Once) -> Self {
        Self { once: Some(once), ..self }
    }

    /// Changes what the flow was charged, too, in the queue of the first key: flows share by what was used.
    pub fn flow(self, flow: Flow) -> Self {
        Self { flow: Some(flow), ..self }
    }

    /// Gives back units that a call of [`cl_mtake`](crate::CellCommands::cl_mtake) took: at most as many of
    /// each key as it took, and only what is still there of them.
    ///
    /// Sends the age of that call (`AGO`), and with the units of each key that are given back the
    /// `reset_after` of its row (`RESET`): on a busy limiter everything comes back, on an idle one nothing,
    /// because the units have come back already. What is charged in addition, and what is renewed or
    /// released, is as without it. A server that does not know `RESET` rejects the call, and nothing is
    /// settled.
    ///
    /// The age is that at which the command is built: send it at once. Units of a key that the call did not
    /// take are an error.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::{CellCommands, MSettle, MTake, Rate, Settlement, Units};
    /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
    /// # let mut connection = redis::Client::open(url)?.get_connection()?;
    /// let tokens = Rate::per_minute(100_000);
    /// let took = connection.cl_mtake(MTake::new().throttle("of:tpm", tokens, Units(1_200)))?;
    /// // ... 850 were needed.
    /// let unused = Settlement::GiveBack(Units(350));
    /// connection.cl_msettle(MSettle::of(&took).throttle("of:tpm", tokens, unused))?;
    /// # redis::RedisResult::Ok(())
    /// ```
    pub fn of(taken: &Taken) -> Self {
        Self { taken: Some(taken.units.clone()), ..Self::new() }
    }

    /// Adds a lease to renew: it ends `lease` from now, rounded up to a whole microsecond.
    ///
    /// A lease of zero is taken for one microsecond: [`release`](Self::release) gives a place back.
    pub fn renew(
        self,
        key: impl ToSingleRedisArg,
        places: Places,
        lease: Duration,
        id: impl ToSingleRedisArg,
    ) -> Self {
        self.with_lease(key, places, rounded_up(lease).max(1), id)
    }

    /// Adds a place to give back.
    pub fn release(self, key: impl ToSingleRedisArg, places: Places, id: impl ToSingleRedisArg) -> Self {
        self.with_lease(key, places, 0, id)
    }

    /// The units that are given back were taken so long ago, rounded up to a whole microsecond. What can no
    /// longer be there is not given back. [`of`](Self::of) knows the age, and more.
    pub fn ago(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }
}
