//! A key, opened once: its value, and the ways to replace it.
//!
//! Every write here is complete: the value, the expiry, and the effect for replicas and the AOF. It cannot
//! fail. Its events are returned as an [`Announcement`], to be published later: for an event, the server may
//! look the key up and free its value, and it runs other modules' code, which may change any key.
//!
//! So nothing is announced while a key is open. The compiler checks this: an open [`Key`] borrows the
//! [`Handles`] of its call, and every function that may look keys up borrows them mutably.
//!
//! A key that has expired is deleted when it is opened, and other modules may act on that event, on any key.
//! So if a key expires while other keys of the call are open, these are *lost*: they are neither read nor
//! closed.

use core::cell::Cell;
use core::ffi::{CStr, c_int};
use core::marker::PhantomData;
use core::num::NonZeroU64;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redis_cell_core::Instant;
use redis_module::raw::{self, RedisModuleKey, RedisModuleString};

use super::announcement::{Announcement, Event};
use super::api::Api;
use super::call::{Arg, Call};
use super::needs::{self, Write};
use super::string::{self, SharedString};
use super::{clock, events};
use crate::error::Error;
use crate::faults;

/// The maximal number of restarts of a call after another module has interfered.
pub const ROUNDS: u32 = 16;

/// The access of a command to the key that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it; runs on replicas.
    Read,
    /// Replace its value.
    Write,
}

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
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
    pub names: &'static [&'static SharedString],
    /// Null for a missing field.
    pub values: [*mut RedisModuleString; MOST_READ],
}

/// The keys of a call. While one of them is open, nothing is called that may look keys up, except to open
/// another one.
#[derive(Debug, Default)]
pub struct Handles(());

/// Whether another module may have changed or deleted the keys that are open. It is not a field of
/// [`Handles`], because calls for one key need none. Of two calls inside each other, the outer one asks only
/// after the inner one has ended.
static ARE_LOST: AtomicBool = AtomicBool::new(false);

/// An open key. It is closed when dropped.
pub struct Key<'k, 'c> {
    handles: PhantomData<&'k Handles>,
    /// The context of the call, kept for fast access.
    pub(super) api: &'static Api,
    pub(super) call: &'k Call<'c>,
    pub(super) name: Arg<'c>,
    pub(super) access: Access,
    /// Null when a key that is opened for reading does not exist.
    pub(super) ptr: Cell<*mut RedisModuleKey>,
    /// The address of the string's bytes in the server, once they were read.
    string: Cell<Option<(NonNull<u8>, usize)>>,
    /// The millisecond at which the key expires, once it was read.
    expiry: Cell<Option<i64>>,
    /// The fields of the hash, once they were read.
    pub(super) fields: Cell<Option<Fields>>,
    /// The scores that the next write moves back.
    pub(super) ahead: Cell<Option<Ahead>>,
}

/// The scores of a sorted set that lie further ahead than the expiry of its key allows.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// The scores above this.
    pub above: u64,
    /// They are too high by this. After subtracting it, none of them is above [`above`](Self::above).
    pub by: NonZeroU64,
}

impl Handles {
    /// Opens the key called `name`, beside others.
    ///
    /// Beside other modules it is opened for writing, also to be read: so the server publishes no event if
    /// there is no such key (`keymiss`), in which others could act on the keys that are open.
    ///
    /// Opening for writing changes nothing: because of an option of the module (see `load.rs`), the server
    /// does not consider every key that is opened for writing as modified.
    ///
    /// # Errors
    /// [`Error::Busy`] when the server does not let the key be written to now, or if it has expired. Then all
    /// keys that are open are lost.
    #[inline]
    pub fn open<'k, 'c>(
        &'k self,
        call: &'k Call<'c>,
        name: Arg<'c>,
        access: Access,
    ) -> Result<Key<'k, 'c>, Error> {
        let access = if events::is_beside_others() { Access::Write } else { access };
        let expired = events::expired();
        let ptr = access.open(call, name);
        if events::expired() != expired {
            Access::close(call, ptr);
            return Err(Self::lose());
        }
        Self::opened(call, name, access, ptr)
    }

    /// Opens the only key that is open.
    ///
    /// If it expires by being opened, other modules may act on that event, even on this very key. Then it is
    /// opened again.
    ///
    /// # Errors
    /// [`Error::Busy`] when the server does not let the key be written to now, or if it expires each time it
    /// is opened.
    #[inline]
    pub fn open_alone<'k, 'c>(
        &'k mut self,
        call: &'k Call<'c>,
        name: Arg<'c>,
        access: Access,
    ) -> Result<Key<'k, 'c>, Error> {
        let expired = events::expired();
        let mut ptr = access.open(call, name);
        if events::expired() != expired {
            ptr = access.open_again(call, name, ptr)?;
        }
        Self::opened(call, name, access, ptr)
    }

    /// Another module may have acted on any key, so the keys that are open are lost.
    #[cold]
    pub fn lose() -> Error {
        ARE_LOST.store(true, Relaxed);
        Error::Busy
    }

    /// Whether the keys that are open are lost.
    #[inline]
    pub fn are_lost() -> bool {
        ARE_LOST.load(Relaxed)
    }

    /// Begins again when no key is in use. Returns whether the keys were lost.
    #[inline]
    pub fn renew(&mut self) -> bool {
        let are_lost = Self::are_lost();
        ARE_LOST.store(false, Relaxed);
        are_lost
    }

    #[inline(always)]
    fn opened<'k, 'c>(
        call: &'k Call<'c>,
        name: Arg<'c>,
        access: Access,
        ptr: *mut RedisModuleKey,
    ) -> Result<Key<'k, 'c>, Error> {
        if access == Access::Write && ptr.is_null() {
            return Err(Error::Busy);
        }
        let (string, expiry, fields) = (Cell::new(None), Cell::new(None), Cell::new(None));
        let (ptr, ahead, handles) = (Cell::new(ptr), Cell::new(None), PhantomData);
        Ok(Key { handles, api: call.api, call, name, access, ptr, string, expiry, fields, ahead })
    }

    /// Notifies clients that watch or track the keys, and publishes the keyspace events. Afterwards, any key
    /// may have changed.
    #[inline(always)]
    pub fn publish<'c>(&mut self, call: &Call, changes: impl IntoIterator<Item = Announcement<'c>>) {
        for change in changes {
            change.publish(call);
        }
    }
}

impl<'c> Key<'_, 'c> {
    /// The call that has opened the key.
    pub fn call(&self) -> Call<'c> {
        *self.call
    }

    /// The type of the key's value.
    #[inline]
    pub fn value_type(&self) -> ValueType {
        if self.ptr.get().is_null() {
            return ValueType::Empty;
        }
        // SAFETY: `ptr` is not null, so it is the open key.
        match unsafe { (self.api.key_type)(self.ptr.get()) }.try_into() {
            Ok(raw::REDISMODULE_KEYTYPE_EMPTY) => ValueType::Empty,
            Ok(raw::REDISMODULE_KEYTYPE_STRING) => ValueType::String,
            Ok(raw::REDISMODULE_KEYTYPE_HASH) => ValueType::Hash,
            Ok(raw::REDISMODULE_KEYTYPE_ZSET) => ValueType::ZSet,
            _ => ValueType::Other,
        }
    }

    /// The instant at which the key expires, in whole milliseconds of the wall clock; `None` for no expiry.
    #[inline]
    pub fn expiry(&self) -> Option<Instant> {
        self.type_and_expiry().1
    }

    /// The type of the key's value and its expiry, which together cost less than one after the other.
    #[inline]
    pub fn type_and_expiry(&self) -> (ValueType, Option<Instant>) {
        let kind = self.value_type();
        // Redis 8.2 does not check that there is a value.
        (kind, if kind == ValueType::Empty { None } else { self.expiry_of_value() })
    }

    /// The expiry of a key that holds a value.
    #[inline]
    fn expiry_of_value(&self) -> Option<Instant> {
        let millis = match self.api.get_abs_expire {
            Some(get_abs_expire) => {
                // SAFETY: `ptr` is not null, so it is the open key.
                let at = unsafe { get_abs_expire(self.ptr.get()) };
                self.expiry.set(Some(at));
                u64::try_from(at).ok()?
            }
            None => clock::between_ticks(|now| {
                // SAFETY: `ptr` is not null, so it is the open key.
                let left = unsafe { (self.api.get_expire)(self.ptr.get()) };
                u64::try_from(left).ok().map(|left| now.saturating_add(left))
            })?,
        };
        Some(Instant::saturating_from_nanos(millis.saturating_mul(1_000_000)))
    }

    /// The instant of the module's clock at which the key expires; `None` for no expiry.
    pub fn lives_until(&self) -> Option<Instant> {
        // A write changes the expiry even if it was not read before, and so do replicas.
        let known = self.expiry.get();
        let expiry = self.expiry();
        self.expiry.set(known);
        Some(expiry?.checked_add(clock::lead()).unwrap_or(Instant::MAX))
    }

    /// The bytes of the key's string; empty when it holds none.
    #[inline]
    pub fn string(&self) -> &[u8] {
        match self.string_in_place() {
            // SAFETY: the server keeps `len` bytes there until the key is written to, which borrows `self`
            // mutably.
            Some((start, len)) => unsafe { slice::from_raw_parts(start.as_ptr(), len) },
            None => &[],
        }
    }

    #[inline]
    fn string_in_place(&self) -> Option<(NonNull<u8>, usize)> {
        if self.string.get().is_none() && !self.ptr.get().is_null() {
            let mut len = 0;
            // SAFETY: `ptr` is not null, so it is the open key, in this mode. For a value that is not a
            // string the server returns null, for no value a length of 0.
            let start = unsafe { (self.api.string_dma)(self.ptr.get(), &raw mut len, self.access.mode()) };
            self.string.set(NonNull::new(start.cast()).map(|start| (start, len)));
        }
        self.string.get()
    }

    /// Sets the key to `value` until `expire_at`, a Unix time in milliseconds.
    ///
    /// Replicas and the AOF get the same value and the same expiry. If the expiry has passed, the key is
    /// deleted instead, as by the other writes.
    #[inline(always)]
    pub fn set_string(&mut self, value: &[u8], expire_at: i64) -> Announcement<'c> {
        if self.has_passed(expire_at) {
            return self.delete();
        }
        let expire_at = faults::expiry(expire_at);
        // In place, because replacing the string would cost the server as much as everything else together.
        self.overwrite_string(value);
        let expires_anew = self.expire_in_place(expire_at);
        self.call.propagate_set(self.name, value, expire_at);
        Announcement::new(self.name, Some(Event::Set), expires_anew)
    }

    /// Sets the key to `value` without an expiry. One after the last instant, in the year 2262, stays as it
    /// is.
    ///
    /// Replicas and the AOF get the same value and the same expiry.
    #[cold]
    pub fn set_lasting_string(&mut self, value: &[u8]) -> Announcement<'c> {
        let expiry = self.expiry();
        let lasting = self.expiry.get().filter(|_| expiry == Some(Instant::MAX));
        self.overwrite_string(value);
        if expiry.is_some() && lasting.is_none() {
            self.persist();
        }
        match lasting {
            Some(expire_at) => self.call.propagate_set(self.name, value, expire_at),
            None => self.call.propagate(c"SET", self.name, &[value]),
        }
        Announcement::new(self.name, Some(Event::Set), false)
    }

    /// The name of the key.
    pub fn name(&self) -> Arg<'c> {
        self.name
    }

    /// Whether an expiry has passed by the server's clock. While the server runs a command its clock stands
    /// still, and the module has read the wall clock since, so nothing that a command sets has passed.
    #[inline(always)]
    pub(super) fn has_passed(&self, expire_at: i64) -> bool {
        !self.call.is_running && clock::has_passed(expire_at) && Write::Delete.check().is_ok()
    }

    /// Deletes the key.
    pub fn delete(&mut self) -> Announcement<'c> {
        // SAFETY: `ptr` is the open key, or null; the server changes no key that is not open for writing.
        unsafe { (self.api.delete_key)(self.ptr.get()) };
        self.deleted(c"DEL")
    }

    /// Deletes the key; its value is freed in the background if it is large.
    pub fn unlink(&mut self) -> Announcement<'c> {
        // SAFETY: `ptr` is the open key, or null; the server changes no key that is not open for writing.
        unsafe { (self.api.unlink_key)(self.ptr.get()) };
        self.deleted(needs::unlink())
    }

    /// Replicates that the key was deleted.
    fn deleted(&mut self, command: &'static CStr) -> Announcement<'c> {
        self.string.set(None);
        self.call.propagate(command, self.name, &[]);
        Announcement::new(self.name, Some(Event::Del), false)
    }

    /// Overwrites the key's bytes with `value`. The key is open for writing and holds a string or nothing.
    #[inline]
    fn overwrite_string(&mut self, value: &[u8]) {
        if self.string_in_place().is_none_or(|(_, len)| len != value.len()) {
            self.string.set(None);
            // SAFETY: `ptr` is the open key; the server does not touch a value that is not a string, or a key
            // that is not open for writing.
            unsafe { (self.api.string_truncate)(self.ptr.get(), value.len()) };
        }
        if let Some((start, _)) = self.string_in_place().filter(|&(_, len)| len == value.len()) {
            // SAFETY: the server's buffer is `value.len()` bytes long, as just checked, is writable, and is
            // not `value`.
            unsafe { ptr::copy_nonoverlapping(value.as_ptr(), start.as_ptr(), value.len()) };
        }
    }

    /// Removes the expiry.
    fn persist(&self) {
        let no_expiry = raw::REDISMODULE_NO_EXPIRE.into();
        let set_expire = self.api.set_abs_expire.unwrap_or(self.api.set_expire);
        // SAFETY: `ptr` is the open key; the server ignores a key without a value, or not open for writing.
        unsafe { set_expire(self.ptr.get(), no_expiry) };
    }

    /// Sets the expiry to `expire_at`, a Unix time in milliseconds. False when the key is known to have it
    /// already.
    ///
    /// The caller replicates and announces this.
    #[inline(always)]
    pub(super) fn expire_in_place(&self, expire_at: i64) -> bool {
        // Setting an expiry costs the server as much as setting a value, and a window keeps its expiry until
        // it ends.
        if self.expiry.get() == Some(expire_at) {
            return false;
        }
        match self.api.set_abs_expire {
            // SAFETY: `ptr` is the open key; the server ignores a key without a value, or not open for
            // writing.
            Some(set_abs_expire) => unsafe { set_abs_expire(self.ptr.get(), expire_at) },
            None => clock::between_ticks(|now| {
                // A negative number stands for no expiry.
                let left = if expire_at < 0 { -1 } else { expire_at.saturating_sub_unsigned(now).max(0) };
                // SAFETY: as above.
                unsafe { (self.api.set_expire)(self.ptr.get(), left) }
            }),
        };
        true
    }
}

impl Drop for Key<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(Fields { values, .. }) = self.fields.get() {
            for value in values.into_iter().filter(|value| !value.is_null()) {
                // SAFETY: it is not null, so the server has handed it over, and the key that had it is gone.
                unsafe { string::free(self.api, value) };
            }
        }
        // A lost key stays open, because the server reads a key's value to close it. A small struct and the
        // name remain allocated, because the module does not use the server's automatic memory.
        if !Handles::are_lost() {
            // SAFETY: `ptr` is the open key, or null, which the server ignores; nothing else closes it, and
            // no other module has acted since it was opened.
            unsafe { (self.api.close_key)(self.ptr.get()) };
        }
    }
}

impl Access {
    /// Opens a key.
    #[inline]
    pub(super) fn open(self, call: &Call, name: Arg) -> *mut RedisModuleKey {
        // SAFETY: `ctx` is the call's, and `name` is a string of it.
        unsafe { (call.api.open_key)(call.ctx.as_ptr(), name.ptr.as_ptr(), self.mode()) }
    }

    /// Opens a key again, in place of `ptr`, until it no longer expires by being opened.
    #[cold]
    fn open_again(
        self,
        call: &Call,
        name: Arg,
        mut ptr: *mut RedisModuleKey,
    ) -> Result<*mut RedisModuleKey, Error> {
        for _ in 0..ROUNDS {
            Self::close(call, ptr);
            let expired = events::expired();
            ptr = self.open(call, name);
            if events::expired() == expired {
                return Ok(ptr);
            }
        }
        Self::close(call, ptr);
        Err(Error::Busy)
    }

    /// Closes a key that was opened after the last event, or has expired by being opened.
    #[cold]
    pub(super) fn close(call: &Call, ptr: *mut RedisModuleKey) {
        // SAFETY: `ptr` is the open key, or null, which the server ignores. No other module has acted since.
        unsafe { (call.api.close_key)(ptr) };
    }

    #[inline]
    fn mode(self) -> c_int {
        let mode = match self {
            Self::Read => raw::REDISMODULE_READ,
            Self::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        c_int::try_from(mode).unwrap_or_default()
    }
}
