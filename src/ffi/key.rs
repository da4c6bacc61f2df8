//! A key, opened once: its value, and the ways to replace it.
//!
//! Every write here is complete: the value, the expiry, the server's bookkeeping (`WATCH`, client tracking,
//! keyspace events), and the effect for replicas and the AOF.

use core::cell::Cell;
use core::ffi::{CStr, c_int};
use core::ptr::{self, NonNull};
use core::slice;

use redis_cell_core::Instant;
use redis_module::raw::{self, RedisModuleKey, RedisModuleString, mstime_t};

use super::call::{Arg, Call};
use super::clock;
use super::needs::{self, failed};
use super::string::{self, SharedString};
use crate::error::Error;
use crate::faults;

type SetAbsExpire = unsafe extern "C" fn(*mut RedisModuleKey, mstime_t) -> c_int;

/// What a command may do to the key that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it; runs on replicas.
    Read,
    /// Replace its value.
    Write,
}

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is no such key.
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

/// The largest number of fields that a state is read from.
pub(super) const MOST_READ: usize = 3;

/// Fields of a hash, as they were read. The values are copies by the server, which the key frees.
#[derive(Clone, Copy)]
pub(super) struct Fields {
    /// Empty until they are read.
    pub names: &'static [&'static SharedString],
    /// Null for a field that is not there.
    pub values: [*mut RedisModuleString; MOST_READ],
}

impl Fields {
    /// No field was read.
    const NONE: Self = Self { names: &[], values: [ptr::null_mut(); MOST_READ] };
}

/// An open key. It is closed when dropped.
pub struct Key<'c> {
    pub(super) call: Call<'c>,
    pub(super) name: Arg<'c>,
    pub(super) access: Access,
    /// Null when a key that is opened for reading does not exist.
    pub(super) ptr: *mut RedisModuleKey,
    /// Where the server keeps the string's bytes, once they were read.
    string: Cell<Option<(NonNull<u8>, usize)>>,
    /// The millisecond at which the key expires, once it was read.
    expiry: Cell<Option<i64>>,
    /// The fields of the hash that were read.
    pub(super) fields: Cell<Fields>,
}

impl<'c> Key<'c> {
    /// Opens the key called `name`.
    ///
    /// Opening for writing changes nothing: by an option of the module (see [`load`](super::load)), the
    /// server does not take every key that is opened so for modified.
    pub fn open(call: Call<'c>, name: Arg<'c>, access: Access) -> Self {
        // SAFETY: `ctx` is the call's, and `name` is a string of it.
        let ptr = unsafe { (call.api.open_key)(call.ctx.as_ptr(), name.ptr.as_ptr(), access.mode()) };
        let (string, expiry, fields) = (Cell::new(None), Cell::new(None), Cell::new(Fields::NONE));
        Self { call, name, access, ptr, string, expiry, fields }
    }

    /// The type of the key's value.
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

    /// The instant at which the key expires, in whole milliseconds of the wall clock; `None` for no expiry.
    pub fn expiry(&self) -> Option<Instant> {
        // Redis 8.2 does not check that there is a value.
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

    /// The bytes of the key's string; empty when it holds none.
    pub fn string(&self) -> &[u8] {
        match self.string_in_place() {
            // SAFETY: the server keeps `len` bytes there until the key is written to, for which `self` is
            // consumed.
            Some((start, len)) => unsafe { slice::from_raw_parts(start.as_ptr(), len) },
            None => &[],
        }
    }

    fn string_in_place(&self) -> Option<(NonNull<u8>, usize)> {
        if self.string.get().is_none() && !self.ptr.is_null() {
            let mut len = 0;
            // SAFETY: `ptr` is not null, so it is the open key, in this mode. For a value that is not a
            // string the server returns null, for no value a length of 0.
            let start = unsafe { (self.call.api.string_dma)(self.ptr, &raw mut len, self.access.mode()) };
            self.string.set(NonNull::new(start.cast()).map(|start| (start, len)));
        }
        self.string.get()
    }

    /// Sets the key to `value` until the millisecond `expire_at` of the Unix time.
    ///
    /// Replicas and the AOF get the same value and the same expiry.
    ///
    /// # Errors
    /// [`Error::Server`] when the server does not run or replicate one of its own commands. After
    /// [`Write::check`](super::Write::check) it does.
    pub fn set_string(mut self, value: &[u8], expire_at: i64) -> Result<(), Error> {
        let expire_at = faults::expiry(expire_at);
        // In place, because replacing the string costs the server as much as all the rest together.
        if self.can_expire_in_place() && self.overwrite_string(value) {
            let expires_anew = self.expire_in_place(expire_at);
            let (call, name) = self.close_modified();
            let replicated = call.propagate_set(name, value, expire_at);
            // Last of all, because other modules' callbacks run now, and may write to this very key.
            call.notify(raw::REDISMODULE_NOTIFY_STRING, c"set", name);
            if expires_anew {
                call.notify(raw::REDISMODULE_NOTIFY_GENERIC, c"expire", name);
            }
            return replicated;
        }
        // A server without absolute expiries in the module API (before Redis 6.2.8) has no PXAT to replicate
        // either; its own commands write and replicate the same in two steps.
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
        if set.is_null() {
            return failed(c"SET");
        }
        // SAFETY: the reply is not null, so it is the module's, and not freed yet.
        unsafe { (call.api.free_call_reply)(set) };
        call.expire_at(name, expire_at)
    }

    /// Closes the key, for the call to write to it by the server's own commands.
    pub fn close(self) -> (Call<'c>, Arg<'c>) {
        (self.call, self.name)
    }

    /// Closes a key that was written to, and invalidates `WATCH` and client-side caches.
    pub(super) fn close_modified(self) -> (Call<'c>, Arg<'c>) {
        let (call, name) = self.close();
        // SAFETY: `ctx` is the call's, and the name is a string of it.
        unsafe { (call.api.signal_modified_key)(call.ctx.as_ptr(), name.ptr.as_ptr()) };
        (call, name)
    }

    /// Deletes the key.
    ///
    /// # Errors
    /// As [`set_string`](Self::set_string).
    pub fn delete(self) -> Result<(), Error> {
        // SAFETY: `ptr` is the open key, or null; the server changes no key that is not open for writing.
        unsafe { (self.call.api.delete_key)(self.ptr) };
        self.deleted(c"DEL")
    }

    /// Deletes the key; its value is freed in the background if it is large.
    ///
    /// # Errors
    /// As [`set_string`](Self::set_string).
    pub fn unlink(self) -> Result<(), Error> {
        // SAFETY: `ptr` is the open key, or null; the server changes no key that is not open for writing.
        unsafe { (self.call.api.unlink_key)(self.ptr) };
        self.deleted(needs::unlink())
    }

    /// Replicates that the key was deleted, and publishes the event.
    fn deleted(self, command: &'static CStr) -> Result<(), Error> {
        let (call, name) = self.close_modified();
        let replicated = call.propagate(command, name, &[]);
        call.notify(raw::REDISMODULE_NOTIFY_GENERIC, c"del", name);
        replicated
    }

    /// Overwrites the key's bytes with `value`. False, without a change, when the server does not allow it.
    fn overwrite_string(&mut self, value: &[u8]) -> bool {
        if self.string_in_place().is_none_or(|(_, len)| len != value.len()) {
            self.string.set(None);
            // SAFETY: the key is open for writing and holds a string or nothing.
            unsafe { (self.call.api.string_truncate)(self.ptr, value.len()) };
        }
        let Some((start, _)) = self.string_in_place().filter(|&(_, len)| len == value.len()) else {
            return false;
        };
        // SAFETY: the server's buffer is `value.len()` bytes long, as just checked, is writable, and is not
        // `value`.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), start.as_ptr(), value.len()) };
        true
    }

    /// Whether [`expire_in_place`](Self::expire_in_place) is possible.
    pub(super) fn can_expire_in_place(&self) -> bool {
        self.set_abs_expire().is_some()
    }

    /// The function that sets the expiry of a key that is open for writing.
    fn set_abs_expire(&self) -> Option<SetAbsExpire> {
        self.call.api.set_abs_expire.filter(|_| self.access == Access::Write)
    }

    /// Sets the expiry to the millisecond `expire_at` of the Unix time. False when the key is known to have
    /// it already.
    ///
    /// The caller replicates this, and publishes the event last of all.
    pub(super) fn expire_in_place(&self, expire_at: i64) -> bool {
        // An expiry costs the server as much as a value, and that of a window stays the same until the window
        // ends.
        if self.expiry.get() == Some(expire_at) {
            return false;
        }
        if let Some(set_abs_expire) = self.set_abs_expire() {
            // SAFETY: the key is open for writing; the server ignores a key without a value.
            unsafe { set_abs_expire(self.ptr, expire_at) };
        }
        true
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        for value in self.fields.get().values.into_iter().filter(|value| !value.is_null()) {
            // SAFETY: it is not null, so the server has handed it over, and the key that had it is gone.
            unsafe { string::free(self.call.api, value) };
        }
        if !self.ptr.is_null() {
            // SAFETY: `ptr` is not null, so it is the open key, and nothing else closes it.
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
