//! Policies of several limiters, through which the calls of a log run in memory.
//!
//! A [`Policy`] is the content of a call of `CL.MTAKE`: keys, each with its limiter. Its keys and quantities
//! are built from the fields of each call, such as `<address>`. A [`Replay`] runs calls through one or more
//! policies, and returns the answers that the module would give. Decisions, grammar and parsers are the
//! core's own.
//!
//! Nothing here reads a clock, a file or an environment variable: the caller provides the instant and the
//! fields of each call. It therefore also compiles to WebAssembly.
//!
//! # Example
//! ```
//! use redis_cell_policy::{Fields, Policy, Replay};
//! use redis_cell_core::{Instant, Unit};
//!
//! let mut fields = Fields::default();
//! let policy = Policy::parse("ip:<address> THROTTLE 15 30 60 1", &mut fields)?;
//! let mut replay = Replay::new(vec![policy]);
//! let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
//! for refused in [0; 16].into_iter().chain([1; 4]) {
//!     replay.call(now, &[b"203.0.113.7"])?;
//!     let rows = replay.decide(0)?;
//!     assert_eq!(rows[0].answer.reply(Unit::Seconds).five[0], refused);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod keys;
mod limiters;
mod policy;
mod replay;
mod template;

pub use policy::{Kind, Limiter, Policy, PolicyError};
pub use replay::{CallError, Names, Replay, Taken, combined};
pub use template::{Amount, Fields, Template};
