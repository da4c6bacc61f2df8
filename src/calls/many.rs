//! Several limiters of any kind in one call: all of them are decided, and written only if the call is
//! admitted.
//!
//! The call opens each key once and decides all limiters at the same instant. Its changes are kept with the
//! open keys until the call is known to be admitted, so that a refusal or an error of any limiter changes
//! nothing. After the first write nothing can fail, because the needs of all changes were checked in the
//! server before.
//!
//! The server runs other modules' code for keyspace events, and that code may change any key, even an open
//! one. So the events of all changes are published after all of them are written and all keys are closed. The
//! server itself publishes two events earlier, which matters only if other modules are loaded:
//!
//! - `expired`, when an expired key is opened. So all keys are opened and closed once before the first one is
//!   decided: the server expires keys by a time that does not change while a call runs. In a timer of Redis
//!   7.0, where it does change, the call starts again without the keys that were open.
//! - `new`, while a key is written that did not exist (Redis 7.0). So those keys are written first, with no
//!   other key open, each only if it still does not exist. Then the others are decided again. If they no
//!   longer admit the call, or if one of the keys exists by then, the units that the call took are given
//!   back, and it starts again.
//!
//! From Redis 7.2 on, a module may also subscribe to the removal of keys (`RedisModuleEvent_Key`), of which
//! the server notifies it in the middle of a write that deletes one. In that event a module must not modify
//! any key, and the server deletes none that has expired. So whatever the module reads, open keys do not
//! change.
//!
//! The kinds are in [`crate::limiters`].

mod decisions;
mod looks;
mod request;
mod transaction;

pub use request::{Queued, Request, keys, keys_of_settlement};
