//! The rate-limiting algorithms of redis-cell, independent of Redis.
//!
//! Nothing here reads a clock, does I/O, allocates in a decision or can panic: the caller passes the instant
//! and the stored state, and gets a [`Decision`] with the answer and the change to the state, if there is
//! one. Each algorithm has its own file, and its functions have the same shape:
//!
//! ```text
//! (stored state, limit, now, request) -> Result<Decision<state>, Error>
//! ```
//!
//! Four modules keep their state in memory: [`queue`] and [`fair`] (the clients that wait for their turn),
//! [`holding`] (the units that a client has leased) and [`top`] (the most refused keys). They are just as
//! pure, and so is [`merged`] (several callers in one call).
//!
//! Hidden items parse the arguments of the commands, for the other crates of the project. They may change in
//! any version.

#![forbid(unsafe_code)]

mod args;
pub mod bucket;
pub mod calendar;
pub mod chain;
mod decision;
mod error;
pub mod fair;
pub mod fixed;
pub mod gcra;
pub mod hold;
pub mod holding;
pub mod lease;
pub mod limiter;
pub mod log;
pub mod merged;
pub mod queue;
mod rate;
#[doc(hidden)]
pub mod several;
mod taken;
mod time;
pub mod timeline;
pub mod top;
pub mod window;

#[doc(hidden)]
pub use args::{DIFFERENCE, QUANTITY, Range, Tail, TailOption, parse_integer, parse_timeout};
pub use decision::{Answer, Change, Decision, Reply, Verdict};
pub use error::Error;
pub use rate::{COUNT, PERIOD, PerSecond, Rate};
pub use taken::Taken;
pub use time::{Instant, Span, Stretch, Unit};
