//! Hashes: reading single fields, and writing several as one change.

use core::ffi::CStr;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use core::slice;

use redis_module::raw::{self, RedisModuleString};

use super::call::Call;
use super::key::{Access, Key};
use super::native::Strings;

/// The value of a field. It is the server's copy, freed when dropped.
pub struct Field<'c> {
    call: Call<'c>,
    value: NonNull<RedisModuleString>,
}

impl<'c> Key<'c> {
    /// The value of the field `name` of the hash that the key holds.
    ///
    /// `None` when there is no such field, or no hash.
    pub fn field(&self, name: &CStr) -> Option<Field<'c>> {
        let end: *const RedisModuleString = ptr::null();
        let mut value: *mut RedisModuleString = ptr::null_mut();
        if !self.ptr.is_null() {
            // SAFETY: `ptr` is not null, so it is the open key; a C string, a place for its value, and the end follow, as
            // the flag says. What is no hash is left alone.
            unsafe { (self.call.api.hash_get)(self.ptr, CFIELDS, name.as_ptr(), &raw mut value, end) };
        }
        NonNull::new(value).map(|value| Field { call: self.call, value })
    }

    /// Gives fields of the hash that the key holds new values, until the millisecond `expire_at` of the Unix time.
    ///
    /// Other fields stay as they are. Replicas and the AOF get the same values and the same expiry.
    pub fn set_fields(self, fields: &[(&CStr, &[u8])], expire_at: i64) {
        let words: Vec<&[u8]> = fields.iter().flat_map(|&(name, value)| [name.to_bytes(), value]).collect();
        if let (Access::Write, Some(set_abs_expire)) = (self.access, self.call.api.set_abs_expire) {
            let strings = Strings::new(self.call, &words);
            let end: *const RedisModuleString = ptr::null();
            for field in strings.0.chunks_exact(2) {
                if let [name, value] = *field {
                    // SAFETY: the key is open for writing; a pair of strings and the end follow, as no flag says
                    // otherwise. The server copies both; what is no hash it leaves alone.
                    unsafe { (self.call.api.hash_set)(self.ptr, 0, name, value, end) };
                }
            }
            // SAFETY: the key is open for writing, and holds a hash.
            unsafe { set_abs_expire(self.ptr, expire_at) };
            self.announce(raw::REDISMODULE_NOTIFY_HASH, c"hset");
            self.announce(raw::REDISMODULE_NOTIFY_GENERIC, c"expire");
            let (call, name) = self.close_modified();
            call.propagate_hset(name, &strings.0, expire_at);
            return;
        }
        // A server without absolute expiries in the module API (before Redis 6.2.8): its own commands do the same.
        let (call, name) = self.close();
        let _ = call.effect(c"HSET", name, &words);
        call.expire_at(name, expire_at);
    }
}

const CFIELDS: core::ffi::c_int = raw::REDISMODULE_HASH_CFIELDS.cast_signed();

impl Deref for Field<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: the value is not freed before `self` is, and the server keeps its bytes in place for as long.
        unsafe {
            let start = (self.call.api.string_ptr_len)(self.value.as_ptr(), &raw mut len);
            if start.is_null() { &[] } else { slice::from_raw_parts(start.cast::<u8>(), len) }
        }
    }
}

impl Drop for Field<'_> {
    fn drop(&mut self) {
        // SAFETY: the server has handed the string over to us, and it is freed only here.
        unsafe { (self.call.api.free_string)(self.call.ctx.as_ptr(), self.value.as_ptr()) };
    }
}
