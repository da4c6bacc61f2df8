//! Hashes: reading single fields, and writing several as one change.

use core::ptr::{self, NonNull};

use redis_module::raw::{self, RedisModuleString};

use super::call::{Arg, Call};
use super::key::Key;
use super::native::Word;

/// The most fields that a state is read from, and the most that one change sets.
const MOST_READ: usize = 3;
const MOST_SET: usize = 4;

/// Fields of a hash, as they were read. The values are the server's copies, freed with the key that they belong to.
#[derive(Clone, Copy)]
pub struct Fields {
    /// Empty until they are read.
    names: &'static [&'static Word],
    /// Null where there is no such field.
    values: [*mut RedisModuleString; MOST_READ],
}

impl Fields {
    /// None were read.
    pub const NONE: Self = Self { names: &[], values: [ptr::null_mut(); MOST_READ] };
}

impl Key<'_> {
    /// The values of the fields `names` of the hash that the key holds, in their order.
    ///
    /// `None` for each field that is not there, or when the key holds no hash. To be asked for one list of names: a key
    /// remembers what its fields were.
    pub fn fields<const N: usize>(&self, names: &'static [&'static Word; N]) -> [Option<&[u8]>; N] {
        const { assert!(N <= MOST_READ) };
        if self.fields.get().names.is_empty() {
            self.fields.set(self.read_fields(names));
        }
        let mut values = [None; N];
        values.iter_mut().enumerate().for_each(|(index, value)| *value = self.value(index));
        values
    }

    /// The bytes of the value of the field with this index among those that were read, if there is such a field.
    fn value(&self, index: usize) -> Option<&[u8]> {
        let value = self.fields.get().values.get(index).copied().and_then(NonNull::new)?;
        // It lives until `self` is dropped.
        Some(self.call.bytes(Arg::new(value)))
    }

    fn read_fields(&self, names: &'static [&'static Word]) -> Fields {
        let mut values = [ptr::null_mut(); MOST_READ];
        if !self.ptr.is_null() {
            let mut words = [ptr::null_mut(); MOST_READ];
            words.iter_mut().zip(names).for_each(|(place, name)| *place = name.string(self.call.api));
            let ([n1, n2, n3], [v1, v2, v3]) = (words, &mut values);
            let (v1, v2, v3) = (&raw mut *v1, &raw mut *v2, &raw mut *v3);
            let end: *const RedisModuleString = ptr::null();
            // SAFETY: `ptr` is not null, so it is the open key; pairs of a string and a place for its value follow, and the
            // end, as no flag says otherwise: the first null in a name's place is where the server stops. What is no hash
            // is left alone.
            unsafe { (self.call.api.hash_get)(self.ptr, 0, n1, v1, n2, v2, n3, v3, end) };
        }
        Fields { names, values }
    }

    /// Gives fields of the hash that the key holds new values, until the millisecond `expire_at` of the Unix time.
    ///
    /// What was read and stays the same is not written; other fields stay as they are. Replicas and the AOF get the same
    /// changes.
    pub fn set_fields<const N: usize>(self, names: [&Word; N], values: [&[u8]; N], expire_at: i64) {
        const { assert!(N <= MOST_SET) };
        #[cfg(feature = "faults")]
        let expire_at = crate::faults::expiry(expire_at);
        let changes = names.iter().zip(&values).filter(|(name, value)| !self.has(name, value));
        if self.can_expire_in_place() {
            let changes = Changes::new(self.call, changes);
            self.set_in_place(changes.words());
            let expires = self.expire_in_place(expire_at).then_some(expire_at);
            let (call, name) = self.close_modified();
            call.propagate_hset(name, changes.words(), expires);
            return;
        }
        // A server without absolute expiries in the module API (before Redis 6.2.8): its own commands do the same.
        let words: Vec<&[u8]> = changes.flat_map(|(name, value)| [name.text.to_bytes(), *value]).collect();
        let (call, name) = self.close();
        if !words.is_empty() {
            let _ = call.effect(c"HSET", name, &words);
        }
        call.expire_at(name, expire_at);
    }

    /// Whether the field `name` was read, and has these bytes.
    fn has(&self, name: &Word, bytes: &[u8]) -> bool {
        let index = self.fields.get().names.iter().position(|read| ptr::eq(*read, name));
        index.and_then(|index| self.value(index)) == Some(bytes)
    }

    /// Gives the values of the fields that were read back to the server.
    pub(super) fn free_fields(&mut self) {
        for value in self.fields.replace(Fields::NONE).values.into_iter().filter(|value| !value.is_null()) {
            // SAFETY: the server has handed the string over to us, and it is freed only here, as it has just been taken from
            // its place.
            unsafe { (self.call.api.free_string)(self.call.ctx.as_ptr(), value) };
        }
    }

    /// Sets fields: `changes` are names and values in turn.
    fn set_in_place(&self, changes: &[*mut RedisModuleString]) {
        if changes.is_empty() {
            return;
        }
        let mut words = [ptr::null_mut(); 2 * MOST_SET + 1];
        words.iter_mut().zip(changes).for_each(|(place, word)| *place = *word);
        let [n1, v1, n2, v2, n3, v3, n4, v4, end] = words;
        // SAFETY: the key is open for writing; pairs of strings and the end follow, as no flag says otherwise: the first
        // null in a name's place is where the server stops. It copies the strings; what is no hash it leaves alone.
        unsafe { (self.call.api.hash_set)(self.ptr, 0, n1, v1, n2, v2, n3, v3, n4, v4, end) };
        self.announce(raw::REDISMODULE_NOTIFY_HASH, c"hset");
    }
}

/// Fields to be set, as strings of the server: names, which are kept, and values in turn, which are freed when dropped.
struct Changes<'c> {
    call: Call<'c>,
    words: [*mut RedisModuleString; 2 * MOST_SET],
    len: usize,
}

impl<'c> Changes<'c> {
    fn new<'a>(call: Call<'c>, changes: impl Iterator<Item = (&'a &'a Word, &'a &'a [u8])>) -> Self {
        let mut this = Self { call, words: [ptr::null_mut(); 2 * MOST_SET], len: 0 };
        let (places, _) = this.words.as_chunks_mut();
        for ([name, value], (word, bytes)) in places.iter_mut().zip(changes) {
            *name = word.string(call.api);
            *value = call.make_string(bytes);
            this.len = this.len.saturating_add(2);
        }
        this
    }

    fn words(&self) -> &[*mut RedisModuleString] {
        self.words.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        for value in self.words().iter().skip(1).step_by(2) {
            // SAFETY: the value is ours; whoever else needs it has counted itself in.
            unsafe { (self.call.api.free_string)(self.call.ctx.as_ptr(), *value) };
        }
    }
}
