#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod account;
mod backend;
mod blocking;
pub mod call;
mod commands;
#[cfg(feature = "aio")]
mod guard;
#[cfg(feature = "tower")]
mod http;
#[cfg(feature = "tower")]
mod http_account;
#[cfg(feature = "tower")]
mod http_wait;
mod kind;
#[cfg(feature = "aio")]
mod leased;
mod limit;
mod local;
#[cfg(feature = "aio")]
mod merged;
mod once;
#[cfg(feature = "aio")]
mod refusals;
mod reply;
pub mod several;
mod unavailable;
mod wait;
#[cfg(feature = "aio")]
mod waiter;

use redis::{ErrorKind, RedisError, ToSingleRedisArg};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use account::{Account, Caller, Held};
pub use backend::{Backend, CellConnection};
pub use blocking::{BlockingGuard, TimedConnection};
pub use call::Reserve;
#[cfg(feature = "aio")]
pub use commands::AsyncCellCommands;
pub use commands::CellCommands;
#[cfg(feature = "aio")]
pub use guard::{Guard, ask};
#[cfg(feature = "tower")]
pub use http::{Demand, IntoDemand, Layered, Policy, RateLimit, RateLimitLayer, Refusal};
#[cfg(feature = "tower")]
pub use http_account::{AccountLayer, HoldUnits, Kept};
#[cfg(feature = "tower")]
pub use http_wait::{WaitForTurn, WaitLayer};
pub use kind::Limit;
#[cfg(feature = "aio")]
pub use leased::{Leased, LeasedLimit};
pub use limit::{
    Bucket, Difference, Fixed, FixedWindow, Gcra, Places, Quantity, Rate, Saturate, Units, Weekday,
};
pub use local::LocalLimiter;
#[cfg(feature = "aio")]
pub use merged::Merged;
pub use once::Once;
#[cfg(feature = "aio")]
pub use refusals::Refusals;
pub use reply::{Answer, Balance, Booking, BookingDecision, Decision, Together, TopKey};
pub use several::{MPeek, MSettle, MTake, Taken};
pub use unavailable::{DecidedBy, WhenUnavailable, is_unavailable};
pub use wait::{Flow, Wait};
#[cfg(feature = "aio")]
pub use waiter::Waiter;

/// Locks a mutex. What a thread that has panicked has left in it is valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(argument: &impl ToSingleRedisArg) -> Vec<u8> {
    argument.to_redis_args().into_iter().next().unwrap_or_default()
}

/// The error of a call that has no answer within its timeout.
fn late() -> RedisError {
    (ErrorKind::Io, "the server has not answered in time").into()
}
