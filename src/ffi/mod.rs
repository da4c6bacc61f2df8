//! The border to the server: the only files of the module with `unsafe` in them.
//!
//! What is safe to call from outside of this folder is safe whatever the server, the client or the clock does. Each
//! file wraps one thing of the module API, in blocks of a few lines whose `SAFETY` line cites the check just made.

#![allow(unsafe_code)] // the rest of the workspace denies it

mod api;
mod block;
mod call;
mod clock;
mod effects;
mod guard;
mod hash;
mod key;
mod load;
mod metadata;
mod native;
mod zset;

pub use block::{Blocked, Outcome, Timer};
pub use call::{Arg, Call};
pub use clock::{lead, now};
pub use key::{Access, Key, Kind};
pub use load::Loading;
pub use zset::Scores;
