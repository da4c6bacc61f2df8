//! Hashes: fields are read one by one, and written together as one change.

use core::ptr::{self, NonNull};

use redis_module::raw::RedisModuleString;

use super::announcement::{Announcement, Event};
use super::api::Api;
use super::call::Arg;
use super::key::{Fields, Key, MOST_READ};
use super::string::{self, SharedString};
use crate::faults;

/// The largest number of fields that one change sets.
const MOST_SET: usize = 4;

impl<'c> Key<'_, 'c> {
    /// The values of the fields `names` of the key's hash, in their order.
    ///
    /// `None` for each missing field, and if the key does not hold a hash. The key keeps what it has read, so
    /// all calls must name the same fields.
    pub fn fields<const N: usize>(&self, names: &'static [&'static SharedString; N]) -> [Option<&[u8]>; N] {
        const { assert!(N <= MOST_READ) };
        if self.fields.get().is_none() {
            self.fields.set(Some(self.read_fields(names)));
        }
        let mut values = [None; N];
        values.iter_mut().enumerate().for_each(|(index, value)| *value = self.value(index));
        values
    }

    /// The value of the field at this index of those that were read.
    fn value(&self, index: usize) -> Option<&[u8]> {
        let value = self.fields.get()?.values.get(index).copied().and_then(NonNull::new)?;
        // It lives until `self` is dropped.
        Some(self.call.bytes(Arg::new(value)))
    }

    fn read_fields(&self, names: &'static [&'static SharedString]) -> Fields {
        let mut values = [ptr::null_mut(); MOST_READ];
        if !self.ptr.get().is_null() {
            let mut words = [ptr::null_mut(); MOST_READ];
            words.iter_mut().zip(names).for_each(|(place, name)| *place = name.string(self.api));
            let ([n1, n2, n3], [v1, v2, v3]) = (words, &mut values);
            let (v1, v2, v3) = (&raw mut *v1, &raw mut *v2, &raw mut *v3);
            let end: *const RedisModuleString = ptr::null();
            // SAFETY: `ptr` is not null, so it is the open key. Without flags, pairs of a string and a place
            // for its value follow, and the first null in place of a name ends them. The server rejects a
            // value that is not a hash.
            unsafe { (self.api.hash_get)(self.ptr.get(), 0, n1, v1, n2, v2, n3, v3, end) };
        }
        Fields { names, values }
    }

    /// Sets fields of the key's hash, and its expiry to `expire_at`, a Unix time in milliseconds.
    ///
    /// A field that was read and stays the same is not written; other fields of the hash stay as they are.
    /// Replicas and the AOF get the same changes.
    pub fn set_fields<const N: usize>(
        &mut self,
        names: [&'static SharedString; N],
        values: [&[u8]; N],
        expire_at: i64,
    ) -> Announcement<'c> {
        const { assert!(N <= MOST_SET) };
        if self.has_passed(expire_at) {
            return self.delete();
        }
        let expire_at = faults::expiry(expire_at);
        let changes = names.iter().zip(&values).filter(|(name, value)| !self.has(name, value));
        let changes = Changes::new(self.api, changes);
        let words = changes.words();
        self.set_in_place(words);
        let expires = self.expire_in_place(expire_at).then_some(expire_at);
        self.call.propagate_hset(self.name, words, expires);
        let set = (!words.is_empty()).then_some(Event::Hset);
        Announcement::new(self.name, set, expires.is_some())
    }

    /// Whether the field `name` was read, and has these bytes.
    fn has(&self, name: &SharedString, bytes: &[u8]) -> bool {
        let place = |fields: Fields| fields.names.iter().position(|read| ptr::eq(*read, name));
        self.fields.get().and_then(place).and_then(|index| self.value(index)) == Some(bytes)
    }

    /// Sets fields: `changes` alternates names and values.
    fn set_in_place(&self, changes: &[*mut RedisModuleString]) {
        if changes.is_empty() {
            return;
        }
        let mut words = [ptr::null_mut(); 2 * MOST_SET + 1];
        words.iter_mut().zip(changes).for_each(|(place, word)| *place = *word);
        let [n1, v1, n2, v2, n3, v3, n4, v4, end] = words;
        // SAFETY: the key is open for writing. Without flags, pairs of strings follow, and the first null in
        // place of a name ends them. The server copies the strings, and rejects a value that is not a hash.
        unsafe { (self.api.hash_set)(self.ptr.get(), 0, n1, v1, n2, v2, n3, v3, n4, v4, end) };
    }
}

/// Fields to be set, as strings of the server, alternating names and values. The values are freed when
/// dropped.
struct Changes {
    api: &'static Api,
    words: [*mut RedisModuleString; 2 * MOST_SET],
    len: usize,
}

impl Changes {
    fn new<'a>(
        api: &'static Api,
        changes: impl Iterator<Item = (&'a &'static SharedString, &'a &'a [u8])>,
    ) -> Self {
        let mut this = Self { api, words: [ptr::null_mut(); 2 * MOST_SET], len: 0 };
        let (places, _) = this.words.as_chunks_mut();
        for ([name, value], (word, bytes)) in places.iter_mut().zip(changes) {
            *name = word.string(api);
            *value = string::make(api, bytes);
            this.len = this.len.saturating_add(2);
        }
        this
    }

    fn words(&self) -> &[*mut RedisModuleString] {
        self.words.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        for value in self.words().iter().skip(1).step_by(2) {
            // SAFETY: `make` made the value, and nothing else frees it.
            unsafe { string::free(self.api, *value) };
        }
    }
}
