//! The server's own commands, run by the module: to look at what its module API cannot, and to write.
//!
//! A command that is run as an effect does everything that it would do for a client: it writes, tells those who watch,
//! track or listen, counts as a change to be saved, and reaches replicas and the AOF, word by word. Several effects of
//! one call are one transaction there; the server sees to that.

use core::ffi::CStr;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use redis_cell_core::Error;
use redis_module::raw::{self, RedisModuleCallReply, RedisModuleString};

use super::api::{self, Api};
use super::call::{Arg, Call};

/// What the server answers to one of its commands. Freed when dropped.
pub(super) struct Reply<'c> {
    call: Call<'c>,
    ptr: NonNull<RedisModuleCallReply>,
}

impl Call<'_> {
    /// Runs a command on the key `name` that writes, here and wherever the data is kept; the answer is its integer.
    ///
    /// No handle to the key may be open.
    ///
    /// # Errors
    /// [`Error::Server`] when the server does not run it, because its configuration has renamed the command.
    pub fn effect(&self, command: &'static CStr, name: Arg, words: &[&[u8]]) -> Result<i64, Error> {
        self.run(command, c"!sv", name, words)?.integer().ok_or_else(|| failed(command))
    }

    /// Lets the key `name` expire at the millisecond `at` of the Unix time, here and wherever the data is kept.
    pub(super) fn expire_at(&self, name: Arg, at: i64) {
        // A server that has renamed the command has no other way.
        let _ = self.effect(c"PEXPIREAT", name, &[itoa::Buffer::new().format(at).as_bytes()]);
    }

    /// A string of the server made of our bytes, for the caller to free.
    pub(super) fn make_string(&self, bytes: &[u8]) -> *mut RedisModuleString {
        // SAFETY: `ctx` is this call's; the server copies the bytes.
        unsafe { (self.api.create_string)(self.ctx.as_ptr(), bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Runs a command on the key `name` that only looks.
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

    /// Runs a command; `format` says that a string and a vector of strings follow.
    fn run(
        &self,
        command: &'static CStr,
        format: &CStr,
        name: Arg,
        words: &[&[u8]],
    ) -> Result<Reply<'_>, Error> {
        let strings = Strings::new(*self, words);
        // SAFETY: the format names a string that is valid during the call, and a vector of such strings with its length.
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
        NonNull::new(reply).map(|ptr| Reply { call: *self, ptr }).ok_or_else(|| failed(command))
    }
}

pub(super) fn failed(command: &'static CStr) -> Error {
    Error::Server { command: command.to_str().unwrap_or_default() }
}

impl Reply<'_> {
    /// The integer that the reply is.
    pub fn integer(&self) -> Option<i64> {
        // SAFETY: `ptr` is a reply that is not freed yet, of the type just asked for.
        unsafe {
            let kind = (self.call.api.call_reply_type)(self.ptr.as_ptr());
            let integer = isize::try_from(kind) == Ok(raw::REDISMODULE_REPLY_INTEGER);
            integer.then(|| (self.call.api.call_reply_integer)(self.ptr.as_ptr()))
        }
    }

    /// The text of the `index`th of the strings that the reply is an array of.
    pub fn text(&self, index: usize) -> Option<&str> {
        let api = self.call.api;
        // SAFETY: `ptr` is a reply that is not freed yet; an element that is not null lives as long, and so do its
        // bytes. Of what is no array there are no elements, and of what is no string no bytes.
        let bytes = unsafe {
            let element = NonNull::new((api.call_reply_array_element)(self.ptr.as_ptr(), index))?;
            let mut len = 0;
            let start = NonNull::new((api.call_reply_string)(element.as_ptr(), &raw mut len).cast_mut())?;
            core::slice::from_raw_parts(start.as_ptr().cast::<u8>(), len)
        };
        core::str::from_utf8(bytes).ok()
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        // SAFETY: `ptr` is a reply that is not freed yet, and nobody else frees it.
        unsafe { (self.call.api.free_call_reply)(self.ptr.as_ptr()) };
    }
}

/// A constant word, as a string of the server: made when it is first needed, kept until the module is unloaded.
pub struct Word {
    pub(super) text: &'static CStr,
    string: AtomicPtr<RedisModuleString>,
}

impl Word {
    /// The word `text`.
    pub const fn new(text: &'static CStr) -> Self {
        Self { text, string: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The server's string.
    pub(super) fn string(&self, api: &Api) -> *mut RedisModuleString {
        let made = self.string.load(Relaxed);
        if !made.is_null() {
            return made;
        }
        let bytes = self.text.to_bytes();
        // SAFETY: a string that belongs to no call needs no context; the server copies the bytes.
        let made = unsafe { (api.create_string)(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()) };
        self.string.store(made, Relaxed);
        made
    }

    /// Gives the server's string back.
    pub fn forget(&self) {
        let made = self.string.swap(ptr::null_mut(), Relaxed);
        if let Some(api) = api::get().filter(|_| !made.is_null()) {
            // SAFETY: the string is ours, and nobody else has it, as it has just been taken from its place.
            unsafe { (api.free_string)(ptr::null_mut(), made) };
        }
    }
}

/// Strings of the server made of our bytes. Freed when dropped.
pub(super) struct Strings<'c>(pub Vec<*mut RedisModuleString>, Call<'c>);

impl<'c> Strings<'c> {
    pub fn new(call: Call<'c>, words: &[&[u8]]) -> Self {
        Self(words.iter().map(|word| call.make_string(word)).collect(), call)
    }
}

impl Drop for Strings<'_> {
    fn drop(&mut self) {
        let Self(strings, call) = self;
        for string in strings {
            // SAFETY: the string is ours; whoever else needs it has counted itself in.
            unsafe { (call.api.free_string)(call.ctx.as_ptr(), *string) };
        }
    }
}
