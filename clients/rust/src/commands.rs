//! The commands as methods of connections.

#[cfg(feature = "aio")]
use crate::once::repeat_async;
use crate::once::{Attempts, repeat};
use crate::{
    Answer, Balance, Booking, Bucket, Gcra, Places, Quota, Rate, Refused, Reserve, Take, Together, Units,
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
        /// The commands of redis-cell on every blocking connection of `redis`: `Connection`, `Client`, those
        /// of pools, and `cluster::ClusterConnection`.
        ///
        /// # Errors
        /// Every method returns the errors of its function in [`call`](crate::call), those of the server,
        /// such as `WRONGTYPE`, those of the connection, and an error that shows the reply if it is not one
        /// of the command. After an error of the connection nobody knows whether the call was counted. No
        /// method sends a call twice that has no [`Once`](crate::Once), but a cluster's connection does
        /// unless its retries are off: see [the crate](crate#clusters).
        #[allow(clippy::missing_errors_doc)] // above
        pub trait CellCommands: redis::ConnectionLike {
            $(
                $(#[$doc])*
                $($(#[$example])*)?
                fn $name(&mut self, $($argument: $type),*) -> RedisResult<$reply>
                where
                    Self: Sized,
                {
                    call::$call($($argument),*)?.query(self)
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
            /// call, fairly among flows. `None` if they cannot within the time of `wait`.
            ///
            /// The first limiter is the one that all clients wait for. A call that can never be admitted, and
            /// one that does not wait because of [`maxlen`](Wait::maxlen), is a refusal. The connection is
            /// occupied while it waits, as by [`cl_bthrottle`](Self::cl_bthrottle).
            ///
            /// The age of the units, for [`MSettle::of`], counts from a tenth of a second before the answer
            /// came, or from the call if that was later.
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
                let mut attempts = Attempts::new(limiters.is_once());
                let again = |passed| limiters.clone().waiting(&wait, passed);
                let answer: Option<_> = repeat(self, &mut attempts, again)?;
                Ok(answer.map(|answer| Taken::after_wait(answer, &limiters, &attempts)))
            }

            /// `CL.MSETTLE`: takes or gives back units of several limiters, whether they are available or
            /// not.
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
        /// The methods are those of [`CellCommands`], to be awaited.
        ///
        /// # Errors
        /// As [`CellCommands`].
        ///
        /// # Panics
        /// A call with [`Once`](crate::Once) that is repeated panics outside of a tokio runtime with a timer.
        #[cfg(feature = "aio")]
        #[allow(clippy::missing_errors_doc)] // those of CellCommands
        pub trait AsyncCellCommands: redis::aio::ConnectionLike {
            $(
                $(#[$doc])*
                fn $name(&mut self, $($argument: $type),*) -> impl Future<Output = RedisResult<$reply>> + Send
                where
                    Self: Sized + Send,
                {
                    let cmd = call::$call($($argument),*);
                    async move { cmd?.query_async(self).await }
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
                    let mut attempts = Attempts::new(limiters.is_once());
                    let again = |passed| limiters.clone().waiting(&wait, passed);
                    let answer: Option<_> = repeat_async(self, &mut attempts, again).await?;
                    Ok(answer.map(|answer| Taken::after_wait(answer, &limiters, &attempts)))
                }
            }

            /// `CL.MSETTLE`: takes or gives back units of several limiters, whether they are available or
            /// not.
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
        /// use redis_cell_client::{CellCommands, Decision, Rate, Units, UpTo};
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
        /// let answer = connection.cl_throttle("doc:throttle", limit, UpTo(20))?;
        /// assert_eq!(answer.taken, Some(12));
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_throttle(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, take: impl Into<Take>) -> Answer = throttle;

    /// `CL.PEEK`: what [`cl_throttle`](Self::cl_throttle) would return now. Takes nothing, and runs on
    /// replicas.
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
        /// use redis_cell_client::{CellCommands, Rate, Reserve, Slot};
        /// use std::time::{Duration, Instant};
        /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
        /// # let mut connection = redis::Client::open(url)?.get_connection()?;
        /// let mails = Rate::per_hour(1);
        /// let first = connection.cl_reserve("doc:reserve", mails, Reserve::default())?;
        /// assert_eq!(first.slot, Slot::Booked(Duration::ZERO));
        /// let soon = Reserve::default().max_wait(Duration::from_secs(60));
        /// let second = connection.cl_reserve("doc:reserve", mails, soon)?;
        /// assert!(matches!(second.slot, Slot::TooLate(wait) if wait > Duration::from_secs(3_000)));
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_reserve(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, options: Reserve) -> Booking = reserve;

    /// `CL.BTHROTTLE`: takes units, and waits in the server until they are available. `None` if they cannot
    /// be within `timeout`; a timeout of `None` waits without a limit.
    ///
    /// The connection is occupied until then. Use one of its own, whose timeout is longer than `timeout`:
    /// that of a multiplexed connection is 500 ms if you do not set it, and all later calls on it wait for
    /// this one.
    fn cl_bthrottle(
        key: impl ToSingleRedisArg,
        limit: impl Into<Gcra>,
        units: Units,
        timeout: Option<Duration>
    ) -> Option<Answer> = bthrottle;

    /// `CL.PAUSE`: admits nothing for a time, and then one unit after the other.
    fn cl_pause(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, wait: Duration) -> Balance = pause;

    /// `CL.FUNNEL`: pours units into a funnel.
    fn cl_funnel(key: impl ToSingleRedisArg, limit: Bucket, take: impl Into<Take>) -> Answer = funnel;

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
    fn cl_bucket(key: impl ToSingleRedisArg, limit: Bucket, take: impl Into<Take>) -> Answer = bucket;

    /// `CL.FIXED`: takes units from a fixed window, such as a month.
    example {
        ///
        /// # Example
        /// ```
        /// use redis_cell_client::{CellCommands, Quota, Units, Window};
        /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
        /// # let mut connection = redis::Client::open(url)?.get_connection()?;
        /// let billing = Window::month_from(15).utc_offset_minutes(60);
        /// let answer = connection.cl_fixed("doc:fixed", Quota::new(10_000, billing), Units(1))?;
        /// assert_eq!(answer.remaining, 9_999);
        /// # redis::RedisResult::Ok(())
        /// ```
    }
    fn cl_fixed(key: impl ToSingleRedisArg, limit: Quota, take: impl Into<Take>) -> Answer = fixed;

    /// `CL.WINDOW`: takes units from a sliding window, which is estimated: the rate's count in any of its
    /// periods.
    fn cl_window(key: impl ToSingleRedisArg, limit: Rate, take: impl Into<Take>) -> Answer = window;

    /// `CL.LOG`: takes units from a sliding window, which is counted exactly: the rate's count in any of its
    /// periods.
    fn cl_log(key: impl ToSingleRedisArg, limit: Rate, take: impl Into<Take>) -> Answer = log;

    /// `CL.ACQUIRE`: acquires one of several places for the time of a lease, or renews it.
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
        id: impl ToSingleRedisArg
    ) -> Answer = acquire;

    /// `CL.RENEW`: sets a new end for a lease. False if `id` holds no place.
    fn cl_renew(key: impl ToSingleRedisArg, lease: Duration, id: impl ToSingleRedisArg) -> bool = renew;

    /// `CL.RELEASE`: gives a place back. False if `id` holds no place.
    fn cl_release(key: impl ToSingleRedisArg, id: impl ToSingleRedisArg) -> bool = release;

    /// `CL.MPEEK`: what [`cl_mtake`](Self::cl_mtake) would return now. Takes nothing, and runs on replicas.
    fn cl_mpeek(limiters: MPeek) -> Together<Answer> = mpeek;

    /// `CL.TOP`: at most `rows` of the keys that are refused most often, on this node and in this database.
    ///
    /// The command has no key. In a cluster, ask each primary: see [the crate](crate#clusters).
    fn cl_top(rows: u64) -> Vec<Refused> = top;

    /// `CL.TOP RESET`: forgets all refusals.
    fn cl_top_reset() -> () = top_reset;
}
