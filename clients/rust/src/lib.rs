#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod away;
mod backend;
mod blocking;
pub mod call;
mod commands;
#[cfg(feature = "tower")]
mod http;
#[cfg(feature = "tower")]
mod http_wait;
mod kind;
#[cfg(feature = "aio")]
mod leased;
mod limit;
#[cfg(feature = "aio")]
mod limiter;
mod local;
mod once;
mod reply;
pub mod several;
mod wait;
#[cfg(feature = "aio")]
mod waiter;

pub use away::{Ruling, WhenAway, is_unavailable};
pub use backend::{Backend, CellConnection};
pub use blocking::{BlockingLimiter, TimedConnection};
pub use call::Reserve;
#[cfg(feature = "aio")]
pub use commands::AsyncCellCommands;
pub use commands::CellCommands;
#[cfg(feature = "tower")]
pub use http::{Demand, IntoDemand, Policy, RateLimit, RateLimitLayer, Refusal};
#[cfg(feature = "tower")]
pub use http_wait::{WaitForTurn, WaitLayer};
pub use kind::Limit;
#[cfg(feature = "aio")]
pub use leased::{Leased, LeasedLimit};
pub use limit::{Bucket, Gcra, Places, Quota, Rate, Settlement, Take, Units, UpTo, Weekday, Window};
#[cfg(feature = "aio")]
pub use limiter::{Limiter, ask};
pub use local::LocalLimiter;
pub use once::Once;
pub use reply::{Answer, Balance, Booking, Decision, Refused, Slot, Together};
pub use several::{MPeek, MSettle, MTake, Taken};
pub use wait::{Flow, Wait};
#[cfg(feature = "aio")]
pub use waiter::Waiter;
