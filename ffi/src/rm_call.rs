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
        self.run(command, c"!sv", name, words)?.integer(&[]).map_or_else(|| failed(command), Ok)
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
        self.report(c"MODULE", c"LIST").map(|list| list.len(&[]))
    }

    /// Runs a command that reports on the server; `None` when its configuration has renamed the command.
    pub(super) fn report(&self, command: &CStr, what: &CStr) -> Option<Reply<'_>> {
        // SAFETY: the format names a C string.
        let reply =
            unsafe { (self.api.call)(self.ctx.as_ptr(), command.as_ptr(), c"c".as_ptr(), what.as_ptr()) };
        NonNull::new(reply).map(|ptr| Reply { call: *self, ptr })
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

/// A path names a part of a reply: the index of an element, then that of an element of the element, and so
/// on. The empty path names the whole.
impl Reply<'_> {
    /// A part as an integer.
    pub fn integer(&self, path: &[usize]) -> Option<i64> {
        let (api, part) = (self.call.api, self.part(path)?);
        // SAFETY: `part` is a reply that is not freed yet.
        let kind = unsafe { (api.call_reply_type)(part.as_ptr()) };
        let integer = isize::try_from(kind) == Ok(raw::REDISMODULE_REPLY_INTEGER);
        // SAFETY: the reply is an integer, as just checked.
        integer.then(|| unsafe { (api.call_reply_integer)(part.as_ptr()) })
    }

    /// The number of elements of a part that is an array; 0 for any other part.
    pub fn len(&self, path: &[usize]) -> usize {
        // SAFETY: the part is a reply that is not freed yet.
        self.part(path).map_or(0, |part| unsafe { (self.call.api.call_reply_length)(part.as_ptr()) })
    }

    /// A part that is a string.
    pub fn text(&self, path: &[usize]) -> Option<&str> {
        let (api, part) = (self.call.api, self.part(path)?);
        let mut len = 0;
        // SAFETY: the part is a reply that is not freed yet. A reply that is not a string has no bytes.
        let start = unsafe { (api.call_reply_string)(part.as_ptr(), &raw mut len) };
        let start = NonNull::new(start.cast_mut())?;
        // SAFETY: the server keeps `len` bytes there for as long as the reply, which `self` borrows.
        let bytes = unsafe { slice::from_raw_parts(start.as_ptr().cast::<u8>(), len) };
        core::str::from_utf8(bytes).ok()
    }

    /// A part, which is freed with the whole.
    fn part(&self, path: &[usize]) -> Option<NonNull<RedisModuleCallReply>> {
        path.iter().try_fold(self.ptr, |array, index| {
            // SAFETY: `array` is a reply that is not freed yet. A reply that is not an array has no elements.
            NonNull::new(unsafe { (self.call.api.call_reply_array_element)(array.as_ptr(), *index) })
        })
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        // SAFETY: `ptr` is a reply that is not freed yet, and nothing else frees it.
        unsafe { (self.call.api.free_call_reply)(self.ptr.as_ptr()) };
    }
}
