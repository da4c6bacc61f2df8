//! Announcements: the notification of clients that watch or track a key that was written, and its keyspace
//! events. Both happen after the last write, by the name of the key.
//!
//! The server runs other modules' code for each event, at once. That code may write to any key, delete it, or
//! call a limiter of this very module. Redis 8.6 looks a key up when it is signalled as modified, and frees
//! its value if it has expired. So at that time no key is open and no decision is pending.

use core::ffi::{CStr, c_int};

use redis_module::raw;

use super::call::{Arg, Call};

/// A change that was made to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A string was set.
    Set,
    /// Fields of a hash were set.
    Hset,
    /// A member was added to a sorted set, or its score was set.
    Zadd,
    /// A member of a sorted set was removed.
    Zrem,
    /// The key was deleted.
    Del,
}

/// A change that has been made to one key, which is closed now, and that is to be announced.
#[must_use = "the change has been made, and nobody has been told"]
#[derive(Clone, Copy)]
pub struct Announcement<'c> {
    name: Arg<'c>,
    event: Option<Event>,
    removed: bool,
    expires: bool,
}

impl<'c> Announcement<'c> {
    /// The key `name` was changed by `event`, and now expires at another time.
    #[inline]
    pub(super) fn new(name: Arg<'c>, event: Option<Event>, expires: bool) -> Self {
        Self { name, event, removed: false, expires }
    }

    /// The same, and members of the sorted set were removed by their ranks.
    pub(super) fn after_removal(self) -> Self {
        Self { removed: true, ..self }
    }

    /// Invalidates `WATCH` and client-side caches, and publishes the events.
    #[inline]
    pub(super) fn publish(self, call: &Call) {
        // SAFETY: `ctx` is the call's, and the name is a string of it.
        unsafe { (call.api.signal_modified_key)(call.ctx.as_ptr(), self.name.ptr.as_ptr()) };
        if let Some(event) = self.event {
            let (class, text) = event.name();
            call.notify(class, text, self.name);
        }
        if self.removed {
            call.notify(raw::REDISMODULE_NOTIFY_ZSET, c"zremrangebyrank", self.name);
        }
        if self.expires {
            call.notify(raw::REDISMODULE_NOTIFY_GENERIC, c"expire", self.name);
        }
    }
}

impl Event {
    /// The class and the name of the event.
    #[inline]
    fn name(self) -> (c_int, &'static CStr) {
        match self {
            Self::Set => (raw::REDISMODULE_NOTIFY_STRING, c"set"),
            Self::Hset => (raw::REDISMODULE_NOTIFY_HASH, c"hset"),
            Self::Zadd => (raw::REDISMODULE_NOTIFY_ZSET, c"zadd"),
            Self::Zrem => (raw::REDISMODULE_NOTIFY_ZSET, c"zrem"),
            Self::Del => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
        }
    }
}
