//! One call of a command: its arguments, its reply, its log lines.

use core::ffi::{CStr, c_int, c_long, c_longlong};
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::slice;

use redis_cell_core::top::Refused;
use redis_cell_core::{Error, Reply};
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};

use super::api::Api;
use super::load;

/// A call in progress. Copies stand for the same call.
#[derive(Clone, Copy)]
pub struct Call<'c> {
    pub(super) api: &'static Api,
    pub(super) ctx: NonNull<RedisModuleCtx>,
    args: &'c [Arg<'c>],
}

/// An argument: the server's own string, valid while the call is.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Arg<'c> {
    pub(super) ptr: NonNull<RedisModuleString>,
    call: PhantomData<&'c RedisModuleString>,
}

impl Arg<'_> {
    /// Wraps a string of the server. Valid for as long as the caller lets it live.
    pub(super) fn new(ptr: NonNull<RedisModuleString>) -> Self {
        Self { ptr, call: PhantomData }
    }
}

impl<'c> Call<'c> {
    /// Wraps what the server passes to a command.
    ///
    /// `None` when the server passes no context or no arguments, which it never does.
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
        // SAFETY: the caller vouches for `argc` valid strings during 'c; Arg has the layout of a pointer to one.
        let args = unsafe { slice::from_raw_parts(argv.as_ptr().cast::<Arg<'c>>(), argc) };
        Some(Self { api, ctx, args })
    }

    /// Wraps the context of a callback, which has no words of a client.
    pub(super) fn without_arguments(api: &'static Api, ctx: NonNull<RedisModuleCtx>) -> Self {
        Self { api, ctx, args: &[] }
    }

    /// How many words the call has, its name included.
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// The first `N` arguments behind the command's name.
    ///
    /// # Errors
    /// [`Error::Syntax`] when there are fewer, which the arity in the command's table row has excluded.
    pub fn positional<const N: usize>(&self) -> Result<[Arg<'c>; N], Error> {
        self.args.get(1..).and_then(<[_]>::first_chunk).copied().ok_or(Error::Syntax)
    }

    /// `count` words from the `from`th on, the command's name being the 0th; none when there are fewer.
    pub fn words(&self, from: usize, count: usize) -> &'c [Arg<'c>] {
        self.args.get(from..).and_then(|args| args.get(..count)).unwrap_or_default()
    }

    /// The bytes of the arguments from the `from`th on, the command's name being the 0th.
    pub fn rest(&self, from: usize) -> impl Iterator<Item = &'c [u8]> + use<'c> {
        let api = self.api;
        self.args.get(from..).unwrap_or_default().iter().map(move |arg| bytes(api, *arg))
    }

    /// The bytes of an argument.
    pub fn bytes(&self, arg: Arg<'c>) -> &'c [u8] {
        bytes(self.api, arg)
    }

    /// Answers the integers of a limiter.
    pub fn reply(&self, reply: &Reply) {
        let (api, ctx) = (self.api, self.ctx.as_ptr());
        let len = if reply.taken.is_some() { 6 } else { 5 };
        // SAFETY: `ctx` is this call's, and exactly `len` elements follow the array's head.
        unsafe {
            (api.reply_with_array)(ctx, len);
            for integer in reply.five.iter().chain(&reply.taken) {
                (api.reply_with_long_long)(ctx, *integer);
            }
        }
    }

    /// Answers the integers of several limiters, an array each.
    pub fn reply_rows(&self, rows: &[Reply]) {
        let len = c_long::try_from(rows.len()).unwrap_or_default();
        // SAFETY: `ctx` is this call's, and exactly `len` arrays follow: memory holds no more than a c_long counts.
        unsafe { (self.api.reply_with_array)(self.ctx.as_ptr(), len) };
        for row in rows {
            self.reply(row);
        }
    }

    /// Answers one integer: 1 for yes, 0 for no.
    pub fn reply_whether(&self, yes: bool) {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.reply_with_long_long)(self.ctx.as_ptr(), yes.into()) };
    }

    /// Answers a row for each key: its name and three integers.
    pub fn reply_most_refused(&self, rows: &[Refused]) {
        let (api, ctx) = (self.api, self.ctx.as_ptr());
        let len = c_long::try_from(rows.len()).unwrap_or_default();
        // SAFETY: `ctx` is this call's, and exactly `len` rows follow: memory holds no more than a c_long counts.
        unsafe { (api.reply_with_array)(ctx, len) };
        for row in rows {
            let number = |number: u64| c_longlong::try_from(number).unwrap_or(c_longlong::MAX);
            // SAFETY: `ctx` is this call's, exactly four elements follow the array's head, and the server copies the
            // bytes.
            unsafe {
                (api.reply_with_array)(ctx, 4);
                (api.reply_with_string_buffer)(ctx, row.key.as_ptr().cast(), row.key.len());
                (api.reply_with_long_long)(ctx, number(row.refusals));
                (api.reply_with_long_long)(ctx, number(row.error));
                (api.reply_with_long_long)(ctx, number(row.last.as_micros() / 1_000));
            }
        }
    }

    /// Answers OK.
    pub fn reply_okay(&self) {
        // SAFETY: `ctx` is this call's; the text has the lifetime of the module.
        unsafe { (self.api.reply_with_simple_string)(self.ctx.as_ptr(), c"OK".as_ptr()) };
    }

    /// Tells those who have subscribed to the keyspace events of modules that this call was refused for `key`.
    pub fn notify_refused(&self, key: Arg) {
        // SAFETY: `ctx` is this call's; the text is a C string, `key` a string of the call.
        unsafe {
            let (ctx, key) = (self.ctx.as_ptr(), key.ptr.as_ptr());
            (self.api.notify_keyspace_event)(
                ctx,
                raw::REDISMODULE_NOTIFY_MODULE,
                c"cl.refused".as_ptr(),
                key,
            );
        }
    }

    /// Whether the server has keyspace events of modules (Redis 6.2).
    pub(super) fn has_module_events(&self) -> bool {
        // SAFETY: the function takes nothing.
        let classes = self.api.keyspace_classes.map_or(0, |classes| unsafe { classes() });
        classes & raw::REDISMODULE_NOTIFY_MODULE != 0
    }

    /// The server's name and version, as it tells them.
    pub(super) fn server(&self) -> String {
        let (api, ctx) = (self.api, self.ctx.as_ptr());
        // SAFETY: `ctx` is this call's; the section is freed once, here, after its last use; a field that is not null is a
        // C string that lives as long.
        unsafe {
            let section = (api.get_server_info)(ctx, c"server".as_ptr());
            if section.is_null() {
                return String::from("an unknown server");
            }
            let field = |name: &CStr| {
                let value = (api.server_info_get_field)(section, name.as_ptr());
                (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
            };
            let valkey = field(c"valkey_version").map(|version| format!("Valkey {version}"));
            let server = valkey.or_else(|| field(c"redis_version").map(|version| format!("Redis {version}")));
            (api.free_server_info)(ctx, section);
            server.unwrap_or_else(|| String::from("an unknown server"))
        }
    }

    /// Answers that the number of arguments is wrong, in the server's words.
    pub fn reply_wrong_arity(&self) {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.wrong_arity)(self.ctx.as_ptr()) };
    }

    /// Answers an error.
    pub fn reply_error(&self, error: &Error) {
        self.reply_error_text(&load::text(&error.to_string()));
    }

    /// Answers an error. `text` starts with the error's code.
    pub(super) fn reply_error_text(&self, text: &CStr) {
        // SAFETY: `ctx` is this call's; the server copies the text.
        unsafe { (self.api.reply_with_error)(self.ctx.as_ptr(), text.as_ptr()) };
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
