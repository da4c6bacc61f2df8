//! Hashes: reading single fields, and writing several as one change.

use core::ops::Deref;
use core::ptr::{self, NonNull};
use core::slice;

use redis_module::raw::{self, RedisModuleString};

use super::call::Call;
use super::key::Key;
use super::native::{Strings, Word};

/// The value of a field. It is the server's copy, freed when dropped.
pub struct Field<'c> {
    call: Call<'c>,
    value: NonNull<RedisModuleString>,
}

/// The most fields that one change sets.
const MOST_FIELDS: usize = 4;

impl<'c> Key<'c> {
    /// The value of the field `name` of the hash that the key holds.
    ///
    /// `None` when there is no such field, or no hash.
    pub fn field(&self, name: &Word) -> Option<Field<'c>> {
        let end: *const RedisModuleString = ptr::null();
        let mut value: *mut RedisModuleString = ptr::null_mut();
        if !self.ptr.is_null() {
            let name = name.string(self.call.api);
            // SAFETY: `ptr` is not null, so it is the open key; a string, a place for its value, and the end follow, as no
            // flag says otherwise. What is no hash is left alone.
            unsafe { (self.call.api.hash_get)(self.ptr, 0, name, &raw mut value, end) };
        }
        NonNull::new(value).map(|value| Field { call: self.call, value })
    }

    /// Gives fields of the hash that the key holds new values, until the millisecond `expire_at` of the Unix time.
    ///
    /// Other fields stay as they are. Replicas and the AOF get the same values and the same expiry.
    pub fn set_fields<const N: usize>(self, names: [&Word; N], values: [&[u8]; N], expire_at: i64) {
        const { assert!(N <= MOST_FIELDS) };
        #[cfg(feature = "faults")]
        let expire_at = crate::faults::expiry(expire_at);
        if self.can_expire_in_place() {
            let api = self.call.api;
            let strings = Strings::new(self.call, &values);
            let fields = names.iter().map(|name| name.string(api)).zip(strings.0.iter().copied());
            let fields = fields.flat_map(|(name, value)| [name, value]);
            let mut words = [ptr::null_mut(); 2 * MOST_FIELDS + 1];
            words.iter_mut().zip(fields.clone()).for_each(|(place, word)| *place = word);
            let [n1, v1, n2, v2, n3, v3, n4, v4, end] = words;
            // SAFETY: the key is open for writing; pairs of strings and the end follow, as no flag says otherwise: the
            // first null in a name's place is where the server stops. It copies the strings; what is no hash it leaves
            // alone.
            unsafe { (api.hash_set)(self.ptr, 0, n1, v1, n2, v2, n3, v3, n4, v4, end) };
            self.announce(raw::REDISMODULE_NOTIFY_HASH, c"hset");
            self.expire_in_place(expire_at);
            let (call, name) = self.close_modified();
            call.propagate_hset(name, fields, expire_at);
            return;
        }
        // A server without absolute expiries in the module API (before Redis 6.2.8): its own commands do the same.
        let (call, name) = self.close();
        let words: Vec<&[u8]> =
            names.iter().zip(values).flat_map(|(name, value)| [name.text.to_bytes(), value]).collect();
        let _ = call.effect(c"HSET", name, &words);
        call.expire_at(name, expire_at);
    }
}

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
