//! The border to the server: the only crate of the module that contains `unsafe`.
//!
//! Every function that can be called from outside this crate is safe, whatever the server, the client or the
//! clock does. Each file wraps one concept of the module API, in blocks of a few lines whose `SAFETY` line
//! cites the check just made. No file depends on limiters, or on anything else that is built on this crate:
//! the callbacks of the server (a command, the end of a wait, a timer, an event, a setting, the section of
//! `INFO`) implement traits of this crate. The functions that load and unload the module are named in
//! [`entry_points`].
//!
//! The files, from the lowest layer up:
//!
//! - `api`, `alloc`, `clock`, `string`, `server_log`: the functions of the server, its memory, the time, its
//!   strings, its log
//! - `call`: one call, its arguments, its context and its replies; `panic`: what happens to a panic in a call
//! - `spec`, `server_info`, `rm_call`, `needs`, `permission`: the server's knowledge of commands, itself and
//!   clients
//! - `effects`, `announcement`, `key`, `hash`, `zset`: writes, here and on replicas
//! - `events`, `timer`, `block`, `section`, `setting`, `metadata`, `command`: the callbacks of the server
//! - `load`, `entry`: what happens when the module is loaded and unloaded
//!
//! Every layer of the module uses `error`, the errors that a user reads, and `faults`, the faults for the
//! tests.

#![allow(unsafe_code)] // the rest of the workspace denies it

mod alloc;
mod announcement;
mod api;
mod block;
mod call;
mod clock;
mod cluster;
mod command;
mod effects;
#[doc(hidden)] // for the macro `entry_points`
pub mod entry;
pub mod error;
mod events;
pub mod faults;
mod hash;
mod key;
mod load;
mod metadata;
mod needs;
mod panic;
mod permission;
mod rm_call;
mod section;
mod server_info;
mod server_log;
mod setting;
mod spec;
mod string;
mod timer;
mod zset;

pub use alloc::ServerMemory;
pub use announcement::{Announcement, Event};
pub use block::{Blocked, Identity, Waits};
pub use call::{Arg, Call};
pub use clock::{expiry_at, is_ahead, last_now, lead, now, stretches, wall};
pub use cluster::Slots;
pub use command::{Serve, Served, served};
pub use effects::{may_have_listeners, propagation};
pub use events::{Watches, expired, is_beside_others};
pub use key::{Access, Ahead, Handles, Key, ROUNDS, ValueType};
pub use load::LoadContext;
pub use needs::Write;
pub use permission::Rejection;
pub use section::{Report, Section};
pub use setting::{Number, Setting, Switch};
pub use spec::{Argument, Flag, Keys, Spec, Type, Use};
pub use string::{SharedString, free_shared};
pub use timer::{Rings, Timer};
pub use zset::{Changed, Lives, Removed, Score, Side};
