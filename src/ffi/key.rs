//! A key, opened once: what it holds, and the ways of replacing that.
//!
//! Every write here is a whole one: value, expiry, the server's own bookkeeping (WATCH, client tracking, keyspace
//! events), and the effect for replicas and the AOF.

use core::cell::Cell;
use core::ffi::{CStr, c_int};
use core::ptr::{self, NonNull};
use core::slice;

use redis_cell_core::Instant;
use redis_module::raw::{self, RedisModuleKey, mstime_t};

use super::call::{Arg, Call};
use super::clock;
use super::hash::Fields;

type SetAbsExpire = unsafe extern "C" fn(*mut RedisModuleKey, mstime_t) -> c_int;

/// What a command may do to the key that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Look at it; runs on replicas.
    Read,
    /// Replace what it holds.
    Write,
}

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: there is no such key.
    Empty,
    /// A string.
    String,
    /// A hash.
    Hash,
    /// A sorted set.
    ZSet,
    /// Anything else.
    Other,
}

/// An open key. It is closed when dropped.
pub struct Key<'c> {
    pub(super) call: Call<'c>,
    pub(super) name: Arg<'c>,
    pub(super) access: Access,
    /// Null when a key that is opened for reading does not exist.
    pub(super) ptr: *mut RedisModuleKey,
    /// Where the server keeps the string's bytes, once asked for.
    string: Cell<Option<(NonNull<u8>, usize)>>,
    /// The millisecond at which the key expires, once asked for.
    expiry: Cell<Option<i64>>,
    /// The fields of the hash that were asked for.
    pub(super) fields: Cell<Fields>,
}

impl<'c> Key<'c> {
    /// Opens the key called `name`.
    ///
    /// Opening for writing changes nothing and tells nobody: the module has asked the server not to take every such
    /// key for modified (see [`load`](super::load)).
    pub fn open(call: Call<'c>, name: Arg<'c>, access: Access) -> Self {
        // SAFETY: `call` and `name` are those of the call in progress.
        let ptr = unsafe { (call.api.open_key)(call.ctx.as_ptr(), name.ptr.as_ptr(), access.mode()) };
        let (string, expiry, fields) = (Cell::new(None), Cell::new(None), Cell::new(Fields::NONE));
        Self { call, name, access, ptr, string, expiry, fields }
    }

    /// What the key holds.
    pub fn kind(&self) -> Kind {
        if self.ptr.is_null() {
            return Kind::Empty;
        }
        // SAFETY: `ptr` is not null, so it is the open key.
        match unsafe { (self.call.api.key_type)(self.ptr) }.try_into() {
            Ok(raw::REDISMODULE_KEYTYPE_EMPTY) => Kind::Empty,
            Ok(raw::REDISMODULE_KEYTYPE_STRING) => Kind::String,
            Ok(raw::REDISMODULE_KEYTYPE_HASH) => Kind::Hash,
            Ok(raw::REDISMODULE_KEYTYPE_ZSET) => Kind::ZSet,
            _ => Kind::Other,
        }
    }

    /// When the key expires, to the millisecond of the wall clock; `None` when it never does.
    pub fn expiry(&self) -> Option<Instant> {
        // Redis 8.2 takes it for granted that there is a value.
        if self.kind() == Kind::Empty {
            return None;
        }
        let millis = match self.call.api.get_abs_expire {
            Some(get_abs_expire) => {
                // SAFETY: `ptr` is not null, so it is the open key.
                let at = unsafe { get_abs_expire(self.ptr) };
                self.expiry.set(Some(at));
                u64::try_from(at).ok()?
            }
            None => clock::between_ticks(|now| {
                // SAFETY: `ptr` is not null, so it is the open key.
                let left = unsafe { (self.call.api.get_expire)(self.ptr) };
                u64::try_from(left).ok().map(|left| now.saturating_add(left))
            })?,
        };
        Some(Instant::saturating_from_nanos(millis.saturating_mul(1_000_000)))
    }

    /// The bytes of the string that the key holds; empty when it holds none.
    pub fn string(&self) -> &[u8] {
        match self.string_in_place() {
            // SAFETY: the server keeps `len` bytes there until the key is written to, for which `self` is consumed.
            Some((start, len)) => unsafe { slice::from_raw_parts(start.as_ptr(), len) },
            None => &[],
        }
    }

    fn string_in_place(&self) -> Option<(NonNull<u8>, usize)> {
        if self.string.get().is_none() && !self.ptr.is_null() {
            let mut len = 0;
            // SAFETY: `ptr` is not null, so it is the open key, in this mode. Of what is no string the server gives nothing,
            // of no value a place without length.
            let start = unsafe { (self.call.api.string_dma)(self.ptr, &raw mut len, self.access.mode()) };
            self.string.set(NonNull::new(start.cast()).map(|start| (start, len)));
        }
        self.string.get()
    }

    /// Makes the key hold `value` until the millisecond `expire_at` of the Unix time.
    ///
    /// Replicas and the AOF get the same value and the same expiry.
    pub fn set_string(mut self, value: &[u8], expire_at: i64) {
        #[cfg(feature = "faults")]
        let expire_at = crate::faults::expiry(expire_at);
        // In place, because the server's way of setting a string anew costs as much as all the rest together.
        if self.can_expire_in_place() && self.overwrite_string(value) {
            self.announce(raw::REDISMODULE_NOTIFY_STRING, c"set");
            self.expire_in_place(expire_at);
            let (call, name) = self.close_modified();
            call.propagate_set(name, value, expire_at);
            return;
        }
        // A server without absolute expiries in the module API (before Redis 6.2.8) has no PXAT to replicate either;
        // its own commands write and replicate the same in two steps.
        let (call, name) = self.close();
        // SAFETY: the format names a string of the call, and a buffer with its length.
        let set = unsafe {
            (call.api.call)(
                call.ctx.as_ptr(),
                c"SET".as_ptr(),
                c"!sb".as_ptr(),
                name.ptr.as_ptr(),
                value.as_ptr(),
                value.len(),
            )
        };
        if !set.is_null() {
            // SAFETY: the reply is ours, and not freed yet.
            unsafe { (call.api.free_call_reply)(set) };
        }
        call.expire_at(name, expire_at);
    }

    /// Closes the key, to write to it by effects: commands of the server's own that a call runs.
    pub fn close(self) -> (Call<'c>, Arg<'c>) {
        (self.call, self.name)
    }

    /// Closes a key that has been written to, and tells those who watch or track it.
    pub(super) fn close_modified(self) -> (Call<'c>, Arg<'c>) {
        let (call, name) = self.close();
        // SAFETY: the context and the name are those of the call in progress.
        unsafe { (call.api.signal_modified_key)(call.ctx.as_ptr(), name.ptr.as_ptr()) };
        (call, name)
    }

    /// Deletes the key.
    pub fn delete(self) {
        // SAFETY: a key that is open for writing is not null, and one that is not is left alone by the server.
        unsafe { (self.call.api.delete_key)(self.ptr) };
        self.announce(raw::REDISMODULE_NOTIFY_GENERIC, c"del");
        let (call, name) = self.close_modified();
        call.propagate(c"DEL", name, &[]);
    }

    /// Writes `value` over the bytes that the key holds; false, and nothing done, when the server has no way to.
    fn overwrite_string(&mut self, value: &[u8]) -> bool {
        if self.string_in_place().is_none_or(|(_, len)| len != value.len()) {
            self.string.set(None);
            // SAFETY: the key is open for writing and holds a string or nothing.
            unsafe { (self.call.api.string_truncate)(self.ptr, value.len()) };
        }
        let Some((start, _)) = self.string_in_place().filter(|&(_, len)| len == value.len()) else {
            return false;
        };
        // SAFETY: the server's buffer is `value.len()` long, as just checked, was asked for writing, and is not ours.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), start.as_ptr(), value.len()) };
        true
    }

    /// Whether [`expire_in_place`](Self::expire_in_place) can.
    pub(super) fn can_expire_in_place(&self) -> bool {
        self.set_abs_expire().is_some()
    }

    /// The way of setting the expiry of a key that is open for writing.
    fn set_abs_expire(&self) -> Option<SetAbsExpire> {
        self.call.api.set_abs_expire.filter(|_| self.access == Access::Write)
    }

    /// Lets the key expire at the millisecond `expire_at` of the Unix time; false when it is known to do so already.
    ///
    /// Replicas and the AOF are not told.
    pub(super) fn expire_in_place(&self, expire_at: i64) -> bool {
        // An expiry costs the server as much as a value; a window's is the same from its first call to its last.
        if self.expiry.get() == Some(expire_at) {
            return false;
        }
        if let Some(set_abs_expire) = self.set_abs_expire() {
            // SAFETY: the key is open for writing; one that holds nothing the server leaves alone.
            unsafe { set_abs_expire(self.ptr, expire_at) };
            self.announce(raw::REDISMODULE_NOTIFY_GENERIC, c"expire");
        }
        true
    }

    /// Tells those who listen to keyspace events.
    pub(super) fn announce(&self, class: c_int, event: &CStr) {
        // SAFETY: the context and the name are those of the call in progress.
        unsafe {
            (self.call.api.notify_keyspace_event)(
                self.call.ctx.as_ptr(),
                class,
                event.as_ptr(),
                self.name.ptr.as_ptr(),
            )
        };
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        self.free_fields();
        if !self.ptr.is_null() {
            // SAFETY: `ptr` is not null, so it is the open key, and nobody else closes it.
            unsafe { (self.call.api.close_key)(self.ptr) };
        }
    }
}

impl Access {
    fn mode(self) -> c_int {
        let mode = match self {
            Self::Read => raw::REDISMODULE_READ,
            Self::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        c_int::try_from(mode).unwrap_or_default()
    }
}
