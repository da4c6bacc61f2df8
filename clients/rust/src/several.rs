//! Several limiters of any kind in one call.

use crate::limit::{invalid, rounded_up};
use crate::once::Attempts;
use crate::{
    Answer, Bucket, Difference, Fixed, Flow, Gcra, Limit, Once, Places, Rate, Together, Units, Wait, bytes,
};
use redis::{Cmd, RedisResult, ToSingleRedisArg};
use sealed::{Argument as _, Asked};
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
/// slot: give them the same hash tag, such as `{user7}`. If an argument cannot be sent, the call returns an
/// error.
///
/// # Example
/// ```
/// use redis_cell_client::{CellCommands, Difference, Fixed, FixedWindow, MSettle, MTake, Places, Rate,
/// Units}; use std::time::Duration;
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// # let mut connection = redis::Client::open(url)?.get_connection()?;
/// let (requests, month) = (Rate::per_minute(100).burst(99), Fixed::new(10_000_000, FixedWindow::month()));
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
///         .fixed("{several}:month", month, Difference::Refund(Units(350)))
///         .release("{several}:busy", Places(20), "req-5"),
/// )?;
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Several<V> {
    cmd: RedisResult<Cmd>,
    shadow: bool,
    age: Option<Duration>,
    /// The keys of the limiters, each with the quantity that an [`MTake`] takes.
    keys: Vec<(Vec<u8>, u64)>,
    /// The limits that are neither in shadow, nor places, nor in a chain.
    limits: Vec<Limit>,
    /// The units that an earlier call took, and of which an [`MSettle`] gives some back.
    taken: Option<TakenUnits>,
    flow: Option<Flow>,
    once: Option<Once>,
    /// The word that joins the next limiter to those before it.
    join: Option<&'static str>,
    /// The key of the holds, and what follows it.
    hold: Option<(Vec<u8>, Vec<Vec<u8>>)>,
    verb: PhantomData<V>,
}

/// Takes units: the type parameter of [`MTake`].
#[derive(Clone, Copy, Debug)]
pub struct Take;

/// Reads the state: the type parameter of [`MPeek`].
#[derive(Clone, Copy, Debug)]
pub struct Peek;

/// Settles the difference: the type parameter of [`MSettle`].
#[derive(Clone, Copy, Debug)]
pub struct Settle;

/// A command on several limiters, with the type of its quantities. Only this crate can implement it.
pub trait Verb: sealed::Verb {
    /// [`Units`], or [`Difference`] for [`MSettle`].
    type Quantity: sealed::Argument;
}

mod sealed {
    pub trait Verb {
        const NAME: &'static str;
    }

    pub trait Argument {
        fn asked(self) -> Asked;
    }

    /// What a quantity asks for.
    #[derive(Clone, Copy)]
    pub enum Asked {
        Take(u64),
        /// Charges, or settles what was used.
        Charge(u64),
        Refund(u64),
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
verb!(Settle, "CL.MSETTLE", Difference);

impl sealed::Argument for Units {
    fn asked(self) -> Asked {
        Asked::Take(self.0)
    }
}

impl sealed::Argument for Difference {
    fn asked(self) -> Asked {
        match self {
            Self::Charge(Units(units)) | Self::Used(Units(units)) => Asked::Charge(units),
            Self::Refund(Units(units)) => Asked::Refund(units),
        }
    }
}

impl Asked {
    fn write(self, cmd: &mut Cmd) {
        match self {
            Self::Take(units) | Self::Charge(units) | Self::Refund(units @ 0) => cmd.arg(units),
            Self::Refund(units) => cmd.arg(format!("-{units}")),
        };
    }
}

/// The assumed longest time in which a reply travels, after a wait. The server does not say how long a call
/// has waited.
const WAY: Duration = Duration::from_millis(100);

/// The answer of [`cl_mtake`](crate::CellCommands::cl_mtake) or
/// [`cl_bmtake`](crate::CellCommands::cl_bmtake). [`MSettle::of`] uses it to give back units of the call.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The answer of the limiters as one.
    pub combined: Answer,
    /// The answer of each limiter, in the order of the call.
    pub each: Vec<Answer>,
    units: TakenUnits,
}

impl Taken {
    /// The answer to a call of [`call::mtake`](crate::call::mtake) that was sent at `sent`.
    pub fn new(answer: Together<Answer>, limiters: &MTake, sent: Instant) -> Self {
        let admitted = answer.combined.admitted();
        let rows = limiters.keys.iter().zip(&answer.each).map(|((key, quantity), row)| {
            // A limiter in shadow that would have refused the call has taken nothing. With chains, each row
            // has the units that were taken.
            let units = row.taken.unwrap_or(if admitted && row.admitted() { *quantity } else { 0 });
            (key.clone(), (units, row.reset_after))
        });
        let units = TakenUnits { sent, rows: rows.collect() };
        Self { combined: answer.combined, each: answer.each, units }
    }

    /// Creates a `Taken` from an answer that has just arrived after a wait: the units were taken at its end.
    /// If the call was `repeated`, they may have been taken as early as the first attempt.
    pub(crate) fn after_wait(answer: Together<Answer>, limiters: &MTake, attempts: &Attempts) -> Self {
        let sent = match Instant::now().checked_sub(WAY) {
            Some(turn) if !attempts.repeated => attempts.begin().max(turn),
            _ => attempts.begin(),
        };
        Self::new(answer, limiters, sent)
    }
}

/// The instant at which units were taken, and for each key their number and the `reset_after` of its row.
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
    /// Creates a call without limiters.
    pub fn new() -> Self {
        Self {
            cmd: Ok(redis::cmd(V::NAME)),
            shadow: false,
            age: None,
            keys: Vec::new(),
            limits: Vec::new(),
            taken: None,
            flow: None,
            once: None,
            join: None,
            hold: None,
            verb: PhantomData,
        }
    }

    /// Adds a `CL.THROTTLE` limiter.
    pub fn throttle(self, key: impl ToSingleRedisArg, limit: impl Into<Gcra>, quantity: V::Quantity) -> Self {
        self.limit(key, Limit::Throttle(limit.into()), quantity)
    }

    /// Adds a `CL.FUNNEL` limiter.
    pub fn funnel(self, key: impl ToSingleRedisArg, limit: Bucket, quantity: V::Quantity) -> Self {
        self.limit(key, Limit::Funnel(limit), quantity)
    }

    /// Adds a `CL.BUCKET` limiter.
    pub fn bucket(self, key: impl ToSingleRedisArg, limit: Bucket, quantity: V::Quantity) -> Self {
        self.limit(key, Limit::Bucket(limit), quantity)
    }

    /// Adds a `CL.FIXED` limiter.
    pub fn fixed(self, key: impl ToSingleRedisArg, limit: Fixed, quantity: V::Quantity) -> Self {
        self.limit(key, limit, quantity)
    }

    /// Adds a `CL.WINDOW` limiter.
    pub fn window(self, key: impl ToSingleRedisArg, limit: Rate, quantity: V::Quantity) -> Self {
        self.limit(key, Limit::Window(limit), quantity)
    }

    /// Adds a `CL.LOG` limiter.
    pub fn log(self, key: impl ToSingleRedisArg, limit: Rate, quantity: V::Quantity) -> Self {
        self.limit(key, Limit::Log(limit), quantity)
    }

    /// Adds a limiter of the kind of `limit`.
    pub fn limit(
        mut self,
        key: impl ToSingleRedisArg,
        limit: impl Into<Limit>,
        quantity: V::Quantity,
    ) -> Self {
        let (limit, asked) = (limit.into(), quantity.asked());
        if !self.shadow && self.join.is_none() {
            self.limits.push(limit);
        }
        let (Asked::Refund(units @ 1..), Some(taken)) = (asked, &self.taken) else {
            let takes = if let Asked::Take(units) = asked { units } else { 0 };
            return self.add(key, None, limit.word(), takes, |cmd| {
                limit.write(cmd)?;
                asked.write(cmd);
                Ok(())
            });
        };
        let row = taken.rows.get(&bytes(&key)).copied();
        // Of a total, all is given back whenever it was taken.
        let reset = row.filter(|(_, reset_after)| *reset_after < Duration::MAX);
        let reset = reset.map(|(_, reset_after)| rounded_up(reset_after));
        self.add(key, reset, limit.word(), 0, |cmd| {
            let (most, _) = row.ok_or_else(|| invalid("the call that took the units has no such key"))?;
            limit.write(cmd)?;
            Asked::Refund(units.min(most)).write(cmd);
            Ok(())
        })
    }

    /// Makes the next limiter a pool that is taken from if those before it do not admit their quantities
    /// (`ELSE`). It has a quantity of its own.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::{CellCommands, Fixed, FixedWindow, MTake, Units};
    /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
    /// # let mut connection = redis::Client::open(url)?.get_connection()?;
    /// let (month, total) = (FixedWindow::month(), FixedWindow::total());
    /// let pools = MTake::new()
    ///     .fixed("{pools}:included", Fixed::new(1_000, month), Units(1_200))
    ///     .spill()
    ///     .fixed("{pools}:bought", Fixed::new(5_000, total), Units(1_200)) // the same units
    ///     .or_else()
    ///     .fixed("{pools}:cents", Fixed::new(20_000, total), Units(36)); // their price
    /// let took = connection.cl_mtake(pools)?;
    /// assert_eq!(took.each.iter().map(|row| row.taken).collect::<Vec<_>>(), [1_000, 200, 0].map(Some));
    /// # redis::RedisResult::Ok(())
    /// ```
    pub fn or_else(self) -> Self {
        self.joined("ELSE")
    }

    /// Joins the next limiter to the one before it as one pool (`SPILL`): what does not fit the one is taken
    /// from the other. Both have the same quantity.
    pub fn spill(self) -> Self {
        self.joined("SPILL")
    }

    fn joined(mut self, word: &'static str) -> Self {
        if self.keys.is_empty() || self.join.is_some() {
            self.cmd = self.cmd.and(Err(invalid("or_else and spill stand between two limiters")));
        }
        self.join = Some(word);
        self
    }

    fn with_hold(self, key: impl ToSingleRedisArg, words: Vec<Vec<u8>>) -> Self {
        Self { hold: Some((bytes(&key), words)), ..self }
    }

    fn with_lease(
        self,
        key: impl ToSingleRedisArg,
        places: Places,
        micros: u64,
        holder: impl ToSingleRedisArg,
    ) -> Self {
        self.add(key, None, "LEASE", 0, |cmd| {
            cmd.arg(places.0).arg(micros).arg(holder);
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
        let (shadow, join) = (self.shadow, self.join.take());
        self.keys.push((bytes(&key), quantity));
        self.cmd = self.cmd.and_then(|mut cmd| {
            cmd.arg(join);
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

    /// Returns the command with all options, including those that `options` appends.
    fn end(self, options: impl FnOnce(&mut Cmd) -> RedisResult<()>) -> RedisResult<Cmd> {
        let mut cmd = self.cmd?;
        if self.keys.is_empty() {
            return Err(invalid("the call names no limiter"));
        }
        if self.join.is_some() {
            return Err(invalid("or_else and spill stand between two limiters"));
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
        if let Some((key, words)) = self.hold {
            cmd.arg("HOLD").arg(key).arg(words);
        }
        cmd.arg("US");
        Ok(cmd)
    }

    pub(crate) const fn is_once(&self) -> Option<&Once> {
        self.once.as_ref()
    }
}

impl Several<Take> {
    /// Remembers under `key` what the call takes, for its owner `id` (`HOLD`). What it takes of fixed windows
    /// comes back after `period`, rounded up to a whole microsecond, unless the owner settles before, with
    /// [`MSettle::hold`], or renews it, with a call whose quantities are all 0.
    ///
    /// An [`Account`](crate::Account) does all of this.
    pub fn hold(self, key: impl ToSingleRedisArg, period: Duration, id: impl ToSingleRedisArg) -> Self {
        let period = rounded_up(period).max(1).to_string().into_bytes();
        self.with_hold(key, vec![period, bytes(&id)])
    }

    /// Lets what has run out of the holds under `key` come back before the call, which holds nothing itself.
    pub fn holds(self, key: impl ToSingleRedisArg) -> Self {
        self.with_hold(key, Vec::new())
    }

    /// Allows the call to be repeated; its units are taken once.
    pub fn once(self, once: Once) -> Self {
        Self { once: Some(once), ..self }
    }

    #[cfg(all(feature = "aio", feature = "cluster"))]
    pub(crate) fn first_key(&self) -> Option<&[u8]> {
        self.keys.first().map(|(key, _)| key.as_slice())
    }

    /// Returns the keys and limits with the quantities, if the call is made of them and of nothing else.
    #[cfg(feature = "aio")]
    pub(crate) fn mix(&self) -> Option<impl Iterator<Item = (&[u8], Limit, u64)>> {
        // A chain begins with a limit, and its other pools are not among them.
        let is_plain = self.limits.len() == self.keys.len() && self.once.is_none() && self.hold.is_none();
        let keys = self.keys.iter().map(|(key, quantity)| (key.as_slice(), *quantity));
        is_plain.then(|| keys.zip(&self.limits).map(|((key, quantity), limit)| (key, *limit, quantity)))
    }

    /// Returns `CL.BMTAKE` with these limiters, for an attempt that starts `passed` after the first one.
    pub(crate) fn waiting(mut self, wait: &Wait, passed: Duration) -> RedisResult<Cmd> {
        let mut cmd = redis::cmd("CL.BMTAKE");
        for argument in self.cmd?.args_iter().skip(1) {
            if let redis::Arg::Simple(argument) = argument {
                cmd.arg(argument);
            }
        }
        self.cmd = Ok(cmd);
        self.end(|cmd| wait.write(cmd, passed))
    }

    /// Adds a place, which `holder` has for the time of `lease`, rounded up to a whole microsecond.
    pub fn lease(
        self,
        key: impl ToSingleRedisArg,
        places: Places,
        lease: Duration,
        holder: impl ToSingleRedisArg,
    ) -> Self {
        self.with_lease(key, places, rounded_up(lease), holder)
    }

    /// Makes the limiters that `add` adds refuse nothing, for trying limits on real traffic.
    ///
    /// A limiter in shadow takes its quantity if it would admit the call and the call is admitted. If it
    /// would refuse the call, its row says so. The combined answer does not include it.
    pub fn shadow(mut self, add: impl FnOnce(Self) -> Self) -> Self {
        self.shadow = true;
        let mut this = add(self);
        this.shadow = false;
        this
    }
}

impl Several<Peek> {
    /// Counts what has run out of the holds under `key` as available.
    pub fn holds(self, key: impl ToSingleRedisArg) -> Self {
        self.with_hold(key, Vec::new())
    }

    /// Adds a place that `holder` would acquire.
    pub fn lease(self, key: impl ToSingleRedisArg, places: Places, holder: impl ToSingleRedisArg) -> Self {
        self.with_lease(key, places, 1, holder)
    }
}

impl Several<Settle> {
    /// Settles what the owner `id` holds under `key`: each quantity is [`Difference::Used`]. Of an owner that
    /// holds nothing, as after the period of its hold, fixed windows are charged what was used.
    pub fn hold(self, key: impl ToSingleRedisArg, id: impl ToSingleRedisArg) -> Self {
        self.with_hold(key, vec![bytes(&id)])
    }

    /// Allows the call to be repeated; it settles once.
    pub fn once(self, once: Once) -> Self {
        Self { once: Some(once), ..self }
    }

    /// Also adjusts the units charged to the flow in the queue of the first key, so that flows share by the
    /// units that they actually used.
    pub fn flow(self, flow: Flow) -> Self {
        Self { flow: Some(flow), ..self }
    }

    /// Gives back units that a call of [`cl_mtake`](crate::CellCommands::cl_mtake) took: for each key at most
    /// as many as the call took, and only units that have not become available again since.
    ///
    /// Sends the age of that call (`AGO`), and for each refund the `reset_after` of its key's row (`RESET`):
    /// a busy limiter gets all units back, and an idle one none, because all its units are available already.
    /// Charges, renewals and releases in the same call are not affected. A server that does not know `RESET`
    /// rejects the call, and settles nothing.
    ///
    /// The age is measured when the command is built, so send it immediately. A refund to a key that the
    /// earlier call did not name is an error.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::{CellCommands, Difference, MSettle, MTake, Rate, Units};
    /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
    /// # let mut connection = redis::Client::open(url)?.get_connection()?;
    /// let tokens = Rate::per_minute(100_000);
    /// let took = connection.cl_mtake(MTake::new().throttle("of:tpm", tokens, Units(1_200)))?;
    /// // ... 850 were needed.
    /// let unused = Difference::Refund(Units(350));
    /// connection.cl_msettle(MSettle::of(&took).throttle("of:tpm", tokens, unused))?;
    /// # redis::RedisResult::Ok(())
    /// ```
    pub fn of(taken: &Taken) -> Self {
        Self { taken: Some(taken.units.clone()), ..Self::new() }
    }

    /// Adds a lease to renew. It ends `lease` from now, rounded up to a whole microsecond.
    ///
    /// A `lease` of zero is sent as one microsecond: use [`release`](Self::release) to give a place back.
    pub fn renew(
        self,
        key: impl ToSingleRedisArg,
        places: Places,
        lease: Duration,
        holder: impl ToSingleRedisArg,
    ) -> Self {
        self.with_lease(key, places, rounded_up(lease).max(1), holder)
    }

    /// Adds a place to give back.
    pub fn release(self, key: impl ToSingleRedisArg, places: Places, holder: impl ToSingleRedisArg) -> Self {
        self.with_lease(key, places, 0, holder)
    }

    /// Sets the age of the units to give back, rounded up to a whole microsecond. Units that have become
    /// available again since are not given back twice. [`of`](Self::of) also sets the age.
    pub fn ago(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }
}
