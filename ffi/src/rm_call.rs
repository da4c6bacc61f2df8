//! The server's own commands, run by the module: for reads that the module API does not offer, and for
//! writes.
//!
//! A command that is run as an effect does everything that it does for a client: it writes, invalidates
//! `WATCH` and client-side caches, publishes keyspace events, counts as a change to be saved, and is
//! replicated as it is. The server makes several effects of one call one transaction.

use core::ffi::CStr;
use core::ptr::NonNull;
use core::slice;

use redis_module::raw::{self, RedisModuleCallReply};

use super::call::{Arg, Call};
use super::needs::failed;
use super::string::Strings;
use crate::error::Error;

/// The reply of one of the server's commands. Freed when dropped.
pub(super) struct Reply<'c> {
    call: Call<'c>,
    ptr: NonNull<RedisModuleCallReply>,
}

impl Call<'_> {
    /// Runs a command that writes to the key `name`, here, on replicas and in the AOF, and returns its
    /// integer reply.
    ///
    /// No handle to the key may be open.
    ///
    /// # Errors
    /// [`Error::Server`] when the server does not run it, because its configuration has renamed the command.
    pub fn effect(&self, command: &'static CStr, name: Arg, words: &[&[u8]]) -> Result<i64, Error> {
        self.run(command, c"!sv", name, words)?.integer().map_or_else(|| failed(command), Ok)
    }

    /// Runs a command that only reads the key `name`.
    ///
    /// # Errors
    /// As [`effect`](Self::effect).
    pub(super) fn query(
        &self,
        command: &'static CStr,
        name: Arg,
        words: &[&[u8]],
    ) -> Result<Reply<'_>, Error> {
        self.run(command, c"sv", name, words)
    }

    /// The number of modules that the server lists; `None` when its configuration has renamed `MODULE`.
    pub(super) fn modules(&self) -> Option<usize> {
        // SAFETY: the format names a C string.
        let reply = unsafe {
            (self.api.call)(self.ctx.as_ptr(), c"MODULE".as_ptr(), c"c".as_ptr(), c"LIST".as_ptr())
        };
        NonNull::new(reply).map(|ptr| Reply { call: *self, ptr }.len())
    }

    /// Runs a command; `format` says that a string and a vector of strings follow.
    fn run(
        &self,
        command: &'static CStr,
        format: &CStr,
        name: Arg,
        words: &[&[u8]],
    ) -> Result<Reply<'_>, Error> {
        let strings = Strings::new(self.api, words);
        // SAFETY: the format names a string that is valid during the call, and a vector of such strings with
        // its length.
        let reply = unsafe {
            (self.api.call)(
                self.ctx.as_ptr(),
                command.as_ptr(),
                format.as_ptr(),
                name.ptr.as_ptr(),
                strings.0.as_ptr(),
                strings.0.len(),
            )
        };
        NonNull::new(reply).map_or_else(|| failed(command), |ptr| Ok(Reply { call: *self, ptr }))
    }
}

impl Reply<'_> {
    /// The reply as an integer.
    pub fn integer(&self) -> Option<i64> {
        let api = self.call.api;
        // SAFETY: `ptr` is a reply that is not freed yet.
        let kind = unsafe { (api.call_reply_type)(self.ptr.as_ptr()) };
        let integer = isize::try_from(kind) == Ok(raw::REDISMODULE_REPLY_INTEGER);
        // SAFETY: the reply is an integer, as just checked.
        integer.then(|| unsafe { (api.call_reply_integer)(self.ptr.as_ptr()) })
    }

    /// The number of elements of a reply that is an array; 0 for any other reply.
    pub fn len(&self) -> usize {
        // SAFETY: `ptr` is a reply that is not freed yet.
        unsafe { (self.call.api.call_reply_length)(self.ptr.as_ptr()) }
    }

    /// The string at `index` of a reply that is an array of strings.
    pub fn text(&self, index: usize) -> Option<&str> {
        let api = self.call.api;
        // SAFETY: `ptr` is a reply that is not freed yet. A reply that is not an array has no elements.
        let element = NonNull::new(unsafe { (api.call_reply_array_element)(self.ptr.as_ptr(), index) })?;
        let mut len = 0;
        // SAFETY: the element is not null, so it is a reply too. A reply that is not a string has no bytes.
        let start = unsafe { (api.call_reply_string)(element.as_ptr(), &raw mut len) };
        let start = NonNull::new(start.cast_mut())?;
        // SAFETY: the server keeps `len` bytes there for as long as the reply, which `self` borrows.
        let bytes = unsafe { slice::from_raw_parts(start.as_ptr().cast::<u8>(), len) };
        core::str::from_utf8(bytes).ok()
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        // SAFETY: `ptr` is a reply that is not freed yet, and nothing else frees it.
        unsafe { (self.call.api.free_call_reply)(self.ptr.as_ptr()) };
    }
}
