//! The commands as methods of connections.

#[cfg(feature = "aio")]
use crate::once::repeat_async;
use crate::once::{Attempts, MARGIN, repeat};
use crate::{
    Answer, Balance, Booking, Bucket, Fixed, Gcra, Places, Quantity, Rate, Reserve, Together, TopKey, Units,
};
use crate::{MPeek, MSettle, MTake, Taken, Wait, call};
use redis::{RedisResult, ToSingleRedisArg};
use std::time::Duration;

macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $(example { $(#[$example:meta])* })?
        fn $name:ident($($argument:ident: $type:ty),*) -> $reply:ty = $call:ident;
    )*) => {
        /// The commands of redis-cell on every blocking connection of `redis`: `Connection`, `Client`, pooled
        /// connections, and `cluster::ClusterConnection`.
        ///
        /// # Errors
        /// Every method returns the errors of its function in [`call`](crate::call), errors of the server,
        /// such as `WRONGTYPE`, and errors of the connection. A reply that does not fit the command is an
        /// error that shows the reply. After an error of the connection, the call may or may not have been
        /// counted. Only a call with a [`Once`](crate::Once) is sent twice, but a cluster's connection may
        /// repeat any call unless its retries are off: see [the crate](crate#clusters).
        #[allow(clippy::missing_errors_doc)] // above
        pub trait CellCommands: redis::ConnectionLike {
            $(
                $(#[$doc])*
                $($(#[$example])*)?
                fn $name(&mut self, $($argument: $type),*) -> RedisResult<$reply>
                where
                    Self: Sized,
                {
                    let cmd = call::$call($($argument),*)?;
                    cmd.query(self).map_err(|error| call::explained(&cmd, error))
                }
            )*

            /// `CL.MTAKE`: takes units from several limiters, from all or from none.
            /// [`Several`](crate::several::Several) has an example.
            fn cl_mtake(&mut self, limiters: MTake) -> RedisResult<Taken>
            where
                Self: Sized,
            {
                let mut attempts = Attempts::new(limiters.is_once());
                let answer = repeat(self, &mut attempts, |_| call::mtake(limiters.clone()))?;
                Ok(Taken::new(answer, &limiters, attempts.begin()))
            }

            /// `CL.BMTAKE`: takes units from several limiters, and waits in the server until all admit the
            /// call, fairly among flows. Returns `None` if they do not within the time of `wait`.
            ///
            /// The call waits in the queue of the first limiter. It is refused if it can never be admitted,
            /// or if it does not wait because of [`maxlen`](Wait::maxlen). It occupies the connection while
            /// it waits, like [`cl_bthrottle`](Self::cl_bthrottle).
            ///
            /// For [`MSettle::of`], the age of the units counts from a tenth of a second before the answer
            /// arrived, or from the start of the call if that was later.
            ///
            /// # Example
            /// ```
            /// use redis_cell_client::{CellCommands, Flow, MTake, Places, Wait};
            /// use std::time::Duration;
            /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
            /// # let mut connection = redis::Client::open(url)?.get_connection()?;
            /// let lease = Duration::from_secs(120);
            /// let gpu = MTake::new().lease("doc:gpu", Places(8), lease, "req-5");
            /// let wait = Wait::at_most(Duration::from_secs(30)).flow(Flow::new("tenant:acme").weight(2));
            /// let taken = connection.cl_bmtake(gpu, wait)?;
            /// assert!(taken.is_some_and(|taken| taken.combined.admitted()));
            /// # redis::RedisResult::Ok(())
            /// ```
            fn cl_bmtake(&mut self, limiters: MTake, wait: Wait) -> RedisResult<Option<Taken>>
            where
                Self: Sized,
            {
                let mut attempts = Attempts::waiting(limiters.is_once(), wait.longest(), MARGIN);
                let again = |passed| limiters.clone().waiting(&wait, passed);
                let answer: Option<_> = repeat(self, &mut attempts, again)?;
                Ok(answer.map(|answer| Taken::after_wait(answer, &limiters, &attempts)))
            }

            /// `CL.MSETTLE`: takes units from several limiters, or gives them back, whether they are
            /// available or not.
            fn cl_msettle(&mut self, limiters: MSettle) -> RedisResult<Together<Balance>>
            where
                Self: Sized,
            {
                let mut attempts = Attempts::new(limiters.is_once());
                repeat(self, &mut attempts, |_| call::msettle(limiters.clone()))
            }
        }

        /// The commands of redis-cell on every asynchronous connection of `redis`: `MultiplexedConnection`,
        /// `ConnectionManager`, and `cluster_async::ClusterConnection`.
        ///
        /// Its methods are the methods of [`CellCommands`], to be awaited.
        ///
        /// # Errors
        /// See [`CellCommands`].
        ///
        /// # Panics
        /// A call with [`Once`](crate::Once) panics if it is repeated outside a tokio runtime with a timer.
        #[cfg(feature = "aio")]
        #[allow(clippy::missing_errors_doc)] // see CellCommands
        pub trait AsyncCellCommands: redis::aio::ConnectionLike {
            $(
                $(#[$doc])*
                fn $name(&mut self, $($argument: $type),*) -> impl Future<Output = RedisResult<$reply>> + Send
                where
                    Self: Sized + Send,
                {
                    let cmd = call::$call($($argument),*);
                    async move {
                        let cmd = cmd?;
                        cmd.query_async(self).await.map_err(|error| call::explained(&cmd, error))
                    }
                }
            )*

            /// `CL.MTAKE`: takes units from several limiters, from all or from none.
            /// [`Several`](crate::several::Several) has an example.
            fn cl_mtake(&mut self, limiters: MTake) -> impl Future<Output = RedisResult<Taken>> + Send
            where
                Self: Sized + Send,
            {
                async move {
                    let mut attempts = Attempts::new(limiters.is_once());
                    let answer = repeat_async(self, &mut attempts, |_| call::mtake(limiters.clone())).await?;
                    Ok(Taken::new(answer, &limiters, attempts.begin()))
                }
            }

            /// `CL.BMTAKE`: takes units from several limiters, and waits in the server until all admit the
            /// call, fairly among flows. [`Waiter`](crate::Waiter) has connections for such calls.
            fn cl_bmtake(
                &mut self,
                limiters: MTake,
                wait: Wait,
            ) -> impl Future<Output = RedisResult<Option<Taken>>> + Send
            where
                Self: Sized + Send,
            {
                async move {
                    let mut attempts = Attempts::waiting(limiters.is_once(), wait.longest(), MARGIN);
                    let again = |passed| limiters.clone().waiting(&wait, passed);
                    let answer: Option<_> = repeat_async(self, &mut attempts, again).await?;
                    Ok(answer.map(|answer| Taken::after_wait(answer, &limiters, &attempts)))
                }
            }

            /// `CL.MSETTLE`: takes units from several limiters, or gives them back, whether they are
            /// available or not.
            fn cl_msettle(
                &mut self,
                limiters: MSettle,
            ) -> impl Future<Output = RedisResult<Together<Balance>>> + Send
            where
                Self: Sized + Send,
            {
                async move {
                    let mut attempts = Attempts::new(limiters.is_once());
                    repeat_async(self, &mut attempts, |_| call::msettle(limiters.clone())).await
                }
            }
        }
    };
}

impl<C: redis::ConnectionLike> CellCommands for C {}

#[cfg(feature = "aio")]
impl<C: redis::aio::ConnectionLike> AsyncCellCommands for C {}

commands! {
    /// `CL.THROTTLE`: takes units from a GCRA limiter, or returns how long to wait.
    example {
        ///
        /// # Example
        /// ```
        /// use redis_cell_client::{CellCommands, Decision, Rate, Saturate, Units};
        /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
        /// # let mut connection = redis::Client::open(url)?.get_connection()?;
        /// let limit = Rate::per_minute(30).burst(15);
        /// let answer = connection.cl_throttle("doc:throttle", limit, Units(4))?;
        /// assert!(answer.admitted());
        /// assert_eq!((answer.limit, answer.remaining), (16, 12));
        ///
        /// let answer = connection.cl_throttle("doc:throttle", limit, Units(17))?;
        /// assert_eq!(answer.decision, Decision::RefusedForever);
        ///
        /// let answer = connection.cl_throttle("doc:throttle", limit, Saturate(20))?;
        /// assert_eq!(answer.taken, Some(12));
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_throttle(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, quantity: impl Into<Quantity>) -> Answer = throttle;

    /// `CL.PEEK`: returns the answer that [`cl_throttle`](Self::cl_throttle) would return now. Takes nothing,
    /// and runs on replicas.
    fn cl_peek(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, units: Units) -> Answer = peek;

    /// `CL.REFUND`: gives units back. Pass the limit of the call that took them.
    fn cl_refund(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, units: Units) -> Balance = refund;

    /// `CL.CHARGE`: takes units even if they are not available, which leaves the limiter in debt.
    example {
        ///
        /// # Example
        /// ```
        /// use redis_cell_client::{CellCommands, Rate, Units};
        /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
        /// # let mut connection = redis::Client::open(url)?.get_connection()?;
        /// let balance = connection.cl_charge("doc:charge", Rate::per_hour(100).burst(99), Units(150))?;
        /// assert!(balance.over_limit && balance.retry_after.is_some());
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_charge(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, units: Units) -> Balance = charge;

    /// `CL.RESERVE`: books units, and returns how long to wait before using them.
    example {
        ///
        /// # Example
        /// ```
        /// use redis_cell_client::{BookingDecision, CellCommands, Rate, Reserve};
        /// use std::time::{Duration, Instant};
        /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
        /// # let mut connection = redis::Client::open(url)?.get_connection()?;
        /// let mails = Rate::per_hour(1);
        /// let first = connection.cl_reserve("doc:reserve", mails, Reserve::default())?;
        /// assert_eq!(first.decision, BookingDecision::Booked(Duration::ZERO));
        /// let soon = Reserve::default().max_wait(Duration::from_secs(60));
        /// let second = connection.cl_reserve("doc:reserve", mails, soon)?;
        /// let BookingDecision::TooLate(wait) = second.decision else { panic!("{second:?}") };
        /// assert!(wait > Duration::from_secs(3_000));
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_reserve(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, options: Reserve) -> Booking = reserve;

    /// `CL.BTHROTTLE`: takes units, and waits in the server until they are available. Returns `None` if they
    /// are not available within `timeout`. Without a `timeout`, the wait has no limit.
    ///
    /// The call occupies the connection while it waits. Use a separate connection with a longer timeout than
    /// `timeout`: a multiplexed connection has a timeout of 500 ms by default, and all later calls on it wait
    /// for this one.
    fn cl_bthrottle(
        key: impl ToSingleRedisArg,
        limit: impl Into<Gcra>,
        units: Units,
        timeout: Option<Duration>
    ) -> Option<Answer> = bthrottle;

    /// `CL.PAUSE`: admits nothing for the time of `wait`, and then single units at the limit's rate.
    fn cl_pause(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, wait: Duration) -> Balance = pause;

    /// `CL.FUNNEL`: pours units into a funnel.
    fn cl_funnel(key: impl ToSingleRedisArg, limit: Bucket, quantity: impl Into<Quantity>) -> Answer = funnel;

    /// `CL.BUCKET`: takes tokens from a bucket.
    example {
        ///
        /// # Example
        /// ```
        /// use redis_cell_client::{CellCommands, Rate, Units};
        /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
        /// # let mut connection = redis::Client::open(url)?.get_connection()?;
        /// let answer = connection.cl_bucket("doc:bucket", Rate::per_minute(20).capacity(30), Units(10))?;
        /// assert_eq!((answer.limit, answer.remaining), (30, 20));
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_bucket(key: impl ToSingleRedisArg, limit: Bucket, quantity: impl Into<Quantity>) -> Answer = bucket;

    /// `CL.FIXED`: takes units from a fixed window, such as a month.
    example {
        ///
        /// # Example
        /// ```
        /// use redis_cell_client::{CellCommands, Fixed, FixedWindow, Units};
        /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
        /// # let mut connection = redis::Client::open(url)?.get_connection()?;
        /// let billing = FixedWindow::month_from(15).utc_offset_minutes(60);
        /// let answer = connection.cl_fixed("doc:fixed", Fixed::new(10_000, billing), Units(1))?;
        /// assert_eq!(answer.remaining, 9_999);
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_fixed(key: impl ToSingleRedisArg, limit: Fixed, quantity: impl Into<Quantity>) -> Answer = fixed;

    /// `CL.WINDOW`: takes units from an estimated sliding window, which admits the rate's count in any
    /// period.
    fn cl_window(key: impl ToSingleRedisArg, limit: Rate, quantity: impl Into<Quantity>) -> Answer = window;

    /// `CL.LOG`: takes units from an exact sliding window, which admits the rate's count in any period.
    fn cl_log(key: impl ToSingleRedisArg, limit: Rate, quantity: impl Into<Quantity>) -> Answer = log;

    /// `CL.ACQUIRE`: acquires one of several places until a lease ends, or renews the lease.
    example {
        ///
        /// # Example
        /// ```
        /// use redis_cell_client::{CellCommands, Places};
        /// use std::time::{Duration, Instant};
        /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
        /// # let mut connection = redis::Client::open(url)?.get_connection()?;
        /// let lease = Duration::from_secs(30);
        /// assert!(connection.cl_acquire("doc:jobs", Places(1), lease, "worker-a")?.admitted());
        /// assert!(!connection.cl_acquire("doc:jobs", Places(1), lease, "worker-b")?.admitted());
        /// assert!(connection.cl_renew("doc:jobs", lease, "worker-a")?);
        /// assert!(connection.cl_release("doc:jobs", "worker-a")?);
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_acquire(
        key: impl ToSingleRedisArg,
        places: Places,
        lease: Duration,
        holder: impl ToSingleRedisArg
    ) -> Answer = acquire;

    /// `CL.RENEW`: sets a new end for a lease. Returns `false` if `holder` has no place.
    fn cl_renew(key: impl ToSingleRedisArg, lease: Duration, holder: impl ToSingleRedisArg) -> bool = renew;

    /// `CL.RELEASE`: gives a place back. Returns `false` if `holder` has no place.
    fn cl_release(key: impl ToSingleRedisArg, holder: impl ToSingleRedisArg) -> bool = release;

    /// `CL.MPEEK`: returns the answer that [`cl_mtake`](Self::cl_mtake) would return now. Takes nothing, and
    /// runs on replicas.
    fn cl_mpeek(limiters: MPeek) -> Together<Answer> = mpeek;

    /// `CL.TOP`: returns at most `rows` of the keys of this node and database that are refused most often.
    ///
    /// The command has no key: in a cluster, send it to each primary. See [the crate](crate#clusters).
    fn cl_top(rows: u64) -> Vec<TopKey> = top;

    /// `CL.TOP RESET`: clears the record of refusals.
    fn cl_top_reset() -> () = top_reset;
}
