//! Several limiters of any kind in one call: all of them are decided, and are written only if the call is
//! admitted.
//!
//! The call opens each key once and decides all limiters at the same instant. Its changes are kept beside the
//! open keys until it is known to be admitted, so that a refusal or an error of any limiter changes nothing.
//! From the first write on nothing can fail: whatever a change needs from the server is checked before.
//!
//! The server runs other modules' code for keyspace events, and that code may change any key, even an open
//! one. So the events of all changes are published after all of them are written and all keys are closed. The
//! server itself publishes two events earlier, which matters only if other modules are loaded:
//!
//! - `expired`, when a key is opened that has expired. So all keys are opened and closed once before the
//!   first one is decided: the server expires keys by a time that stands still while a call runs. Where it
//!   does not, in a timer of Redis 7.0, the call starts again without the keys that were open.
//! - `new`, while a key is written that did not exist (Redis 7.0). So those keys are written first, with no
//!   other key open, each only if it still does not exist. Then the others are decided again. If they no
//!   longer admit the call, or if one of the keys exists by then, the units that the call took are given
//!   back, and it starts again.
//!
//! From Redis 7.2 on, a module may also subscribe to the removal of keys (`RedisModuleEvent_Key`), of which
//! the server notifies it in the middle of a write that deletes one. In that event a module must not modify
//! any key, and the server deletes none that has expired. So whatever the module reads, the keys that are
//! open stay as they are.
//!
//! The kinds are in [`crate::limiters`].

mod decisions;
mod looks;
mod request;
mod transaction;

pub use request::{Queued, Request, keys, keys_of_settlement};
