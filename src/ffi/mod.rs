//! The border to the server: the only files of the module with `unsafe` in them.
//!
//! What is safe to call from outside of this folder is safe whatever the server, the client or the clock does. Each
//! file wraps one thing of the module API, in blocks of a few lines whose `SAFETY` line cites the check just made.

#![allow(unsafe_code)] // the rest of the workspace denies it

mod alloc;
mod api;
mod block;
mod call;
mod clock;
mod config;
mod effects;
mod guard;
mod hash;
mod info;
mod key;
mod load;
mod metadata;
mod native;
mod zset;

pub use alloc::ServerMemory;
pub use block::{Blocked, End, Timer};
pub use call::{Arg, Call};
pub use clock::{last_now, lead, now};
pub use effects::{PXAT, heard, propagation};
pub use info::Section;
pub use key::{Access, Key, Kind};
pub use load::{Loading, Row, row};
pub use native::Word;
pub use zset::Scores;
