//! One call of a command: its arguments, its context and its replies.

use core::ffi::{CStr, c_int, c_long};
use core::fmt::Display;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::slice;

use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};

use super::api::Api;
use super::string::{self, text};
use crate::error::Error;

/// A call in progress. Copies refer to the same call.
#[derive(Clone, Copy)]
pub struct Call<'c> {
    pub(super) api: &'static Api,
    pub(super) ctx: NonNull<RedisModuleCtx>,
    args: &'c [Arg<'c>],
    /// Whether the server is running the call, and so can replicate it verbatim.
    pub(super) is_running: bool,
}

/// An argument: the server's own string, valid for as long as the call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Arg<'c> {
    pub(super) ptr: NonNull<RedisModuleString>,
    call: PhantomData<&'c RedisModuleString>,
}

impl Arg<'_> {
    /// Wraps a string of the server. It is valid for as long as the caller keeps the string.
    pub(super) fn new(ptr: NonNull<RedisModuleString>) -> Self {
        Self { ptr, call: PhantomData }
    }
}

impl<'c> Call<'c> {
    /// Wraps what the server passes to a command. `None` when there is no context or no argument.
    ///
    /// # Safety
    /// - `ctx` is null or valid during `'c`
    /// - `argv` is null or points to `argc` valid strings that stay as they are during `'c`
    pub(super) unsafe fn new(
        api: &'static Api,
        ctx: *mut RedisModuleCtx,
        argv: *mut *mut RedisModuleString,
        argc: c_int,
    ) -> Option<Self> {
        let (ctx, argv) = (NonNull::new(ctx)?, NonNull::new(argv)?);
        let argc = usize::try_from(argc).ok()?;
        // SAFETY: the caller vouches for `argc` valid strings during 'c; Arg has the layout of a pointer to
        // one.
        let args = unsafe { slice::from_raw_parts(argv.as_ptr().cast::<Arg<'c>>(), argc) };
        Some(Self { api, ctx, args, is_running: true })
    }

    /// Wraps the context of a callback, which has no arguments.
    pub(super) fn without_arguments(api: &'static Api, ctx: NonNull<RedisModuleCtx>) -> Self {
        Self { api, ctx, args: &[], is_running: false }
    }

    /// The number of arguments, counting the command's name.
    #[allow(clippy::len_without_is_empty)] // only the call of a callback has none
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// The first `N` arguments after the command's name.
    ///
    /// # Errors
    /// [`Error::SYNTAX`] when there are fewer, which the command's arity rules out.
    pub fn positional<const N: usize>(&self) -> Result<[Arg<'c>; N], Error> {
        self.args.get(1..).and_then(<[_]>::first_chunk).copied().ok_or(Error::SYNTAX)
    }

    /// The argument at this index; the command's name is at 0.
    pub fn arg(&self, at: usize) -> Option<Arg<'c>> {
        self.args.get(at).copied()
    }

    /// `count` arguments from index `from` on, where the command's name is at 0; empty when there are fewer.
    pub fn args(&self, from: usize, count: usize) -> &'c [Arg<'c>] {
        self.args.get(from..).and_then(|args| args.get(..count)).unwrap_or_default()
    }

    /// The bytes of all arguments from index `from` on; the command's name is at 0.
    pub fn rest(&self, from: usize) -> impl Iterator<Item = &'c [u8]> + Clone + use<'c> {
        let api = self.api;
        self.args.get(from..).unwrap_or_default().iter().map(move |arg| bytes(api, *arg))
    }

    /// The bytes of an argument.
    pub fn bytes(&self, arg: Arg<'c>) -> &'c [u8] {
        bytes(self.api, arg)
    }

    /// The database of the call.
    pub fn db(&self) -> c_int {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.get_selected_db)(self.ctx.as_ptr()) }
    }

    /// Selects a database, for the rest of a callback.
    pub fn select(&self, db: c_int) {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.select_db)(self.ctx.as_ptr(), db) };
    }

    /// The server's flags for the context of the call.
    pub(super) fn flags(&self) -> u32 {
        // SAFETY: `ctx` is this call's.
        let flags = unsafe { (self.api.get_context_flags)(self.ctx.as_ptr()) };
        flags.cast_unsigned()
    }

    /// Runs `work` with the name of a key that comes from the module, not from the client.
    pub fn with_name<T>(&self, name: &[u8], work: impl FnOnce(Arg<'_>) -> T) -> Option<T> {
        let name = NonNull::new(string::make(self.api, name))?;
        let result = work(Arg::new(name));
        // SAFETY: `make` made it just above, and `work` could not keep it.
        unsafe { string::free(self.api, name.as_ptr()) };
        Some(result)
    }

    /// Runs `work` with a call of these arguments, which a client made earlier. The command's name is the
    /// first.
    pub fn with_arguments<T>(&self, words: &[Box<[u8]>], work: impl FnOnce(&Call<'_>) -> T) -> T {
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let mut strings = string::Strings::new(self.api, &words);
        let count = c_int::try_from(strings.0.len()).unwrap_or_default();
        // SAFETY: `ctx` is this call's, and `count` strings are there until `strings` is dropped, after
        // `work`, which cannot keep them.
        let call = unsafe { Call::new(self.api, self.ctx.as_ptr(), strings.0.as_mut_ptr(), count) };
        work(&call.map_or(Call { args: &[], ..*self }, |call| Call { is_running: false, ..call }))
    }

    /// The bytes of all arguments, starting with the command's name.
    pub fn copy_arguments(&self) -> Box<[Box<[u8]>]> {
        self.args.iter().map(|arg| Box::from(self.bytes(*arg))).collect()
    }

    /// Starts an array, whose `len` elements are replied next.
    pub fn reply_array(&self, len: usize) {
        // No array in memory has more elements than a c_long can count.
        let len = c_long::try_from(len).unwrap_or(c_long::MAX);
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.reply_with_array)(self.ctx.as_ptr(), len) };
    }

    /// Replies an integer.
    pub fn reply_integer(&self, integer: i64) {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.reply_with_long_long)(self.ctx.as_ptr(), integer) };
    }

    /// Replies a bulk string.
    pub fn reply_bytes(&self, bytes: &[u8]) {
        // SAFETY: `ctx` is this call's; the server copies as many bytes as the slice has.
        unsafe { (self.api.reply_with_string_buffer)(self.ctx.as_ptr(), bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Replies with null, in place of an array.
    pub fn reply_null(&self) {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.reply_with_null_array)(self.ctx.as_ptr()) };
    }

    /// Replies OK.
    pub fn reply_ok(&self) {
        // SAFETY: `ctx` is this call's; the server copies the text.
        unsafe { (self.api.reply_with_simple_string)(self.ctx.as_ptr(), c"OK".as_ptr()) };
    }

    /// Replies with an error. Its text starts with the error's code.
    pub fn reply_error(&self, error: &impl Display) {
        let error = text(&error.to_string());
        // SAFETY: `ctx` is this call's; the server copies the text.
        unsafe { (self.api.reply_with_error)(self.ctx.as_ptr(), error.as_ptr()) };
    }

    /// Replies with the server's error for a wrong number of arguments.
    pub(super) fn reply_wrong_arity(&self) {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.wrong_arity)(self.ctx.as_ptr()) };
    }

    /// Publishes a keyspace event of the module's own.
    pub fn notify_module_event(&self, event: &CStr, key: Arg) {
        self.notify(raw::REDISMODULE_NOTIFY_MODULE, event, key);
    }

    /// Publishes a keyspace event.
    pub(super) fn notify(&self, class: c_int, event: &CStr, key: Arg) {
        // SAFETY: `ctx` is this call's, and `key` is a string of it; the server copies the event's name.
        unsafe {
            (self.api.notify_keyspace_event)(self.ctx.as_ptr(), class, event.as_ptr(), key.ptr.as_ptr())
        };
    }
}

fn bytes<'c>(api: &'static Api, arg: Arg<'c>) -> &'c [u8] {
    let mut len = 0;
    // SAFETY: `arg` is a valid string during 'c, and the server keeps its bytes in place for as long.
    unsafe {
        let start = (api.string_ptr_len)(arg.ptr.as_ptr(), &raw mut len);
        // A string always has a buffer, even an empty one.
        if start.is_null() { &[] } else { slice::from_raw_parts(start.cast::<u8>(), len) }
    }
}
