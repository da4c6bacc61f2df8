//! Clients that wait, and the timers and events that end their wait.
//!
//! The server keeps a blocked client; the module keeps its place in line (`crate::waiting`) and decides. All callbacks
//! run on the server's main thread, one after the other, like commands.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::{self, NonNull};

use redis_cell_core::{Error, Span, Unit};
use redis_module::raw::{
    self, RedisModuleBlockedClient, RedisModuleCtx, RedisModuleEvent, RedisModuleString, RedisModuleTimerID,
};

use super::call::{Arg, Call};
use super::{api, effects, guard};
use crate::commands::Command;
use crate::outcome::{Outcome, conclude};
use crate::waiting;

/// How a wait ends.
pub type End = Result<Outcome, Error>;

/// A client that the server keeps blocked. Only its identity is used outside of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocked(usize);

/// A timer that has not fired yet.
#[derive(Clone, Copy, Debug)]
pub struct Timer(RedisModuleTimerID);

impl Call<'_> {
    /// Whether the client may be kept waiting: not inside a transaction or a script.
    pub fn may_block(&self) -> bool {
        let never = raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & never == 0
    }

    /// Whether the keys may be written to outside of a command: on a primary that is not paused.
    pub fn may_write(&self) -> bool {
        // SAFETY: the function takes nothing.
        let paused = self.api.avoid_replica_traffic.is_some_and(|paused| unsafe { paused() } != 0);
        !paused && self.flags() & raw::REDISMODULE_CTX_FLAGS_MASTER != 0
    }

    /// Whether this node serves the key: always, but for a cluster whose slots have moved.
    pub fn is_here(&self, key: Arg) -> bool {
        if self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER == 0 {
            return true;
        }
        // The server refuses calls for keys of other nodes, and has no other way to ask.
        // SAFETY: the format names a string that is valid during the call.
        let reply = unsafe {
            (self.api.call)(self.ctx.as_ptr(), c"EXISTS".as_ptr(), c"s".as_ptr(), key.ptr.as_ptr())
        };
        if reply.is_null() {
            return false;
        }
        // SAFETY: `reply` is not null, so it is a reply of ours.
        unsafe { (self.api.free_call_reply)(reply) };
        true
    }

    fn flags(&self) -> u32 {
        // SAFETY: `ctx` is this call's.
        let flags = unsafe { (self.api.get_context_flags)(self.ctx.as_ptr()) };
        flags.cast_unsigned()
    }

    /// The database of the call.
    pub fn db(&self) -> c_int {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.get_selected_db)(self.ctx.as_ptr()) }
    }

    /// Goes to a database, for the rest of a callback.
    pub fn select(&self, db: c_int) {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.select_db)(self.ctx.as_ptr(), db) };
    }

    /// Runs `work` with a key's name that comes from us, not from the client.
    pub fn with_name<T>(&self, name: &[u8], work: impl FnOnce(Arg<'_>) -> T) -> Option<T> {
        let name = NonNull::new(self.make_string(name))?;
        let result = work(Arg::new(name));
        // SAFETY: the string is ours, and `work` could not keep it.
        unsafe { (self.api.free_string)(self.ctx.as_ptr(), name.as_ptr()) };
        Some(result)
    }

    /// Keeps the client of this call waiting until [`unblock`](Self::unblock).
    pub fn block<C: Command>(&self) -> Option<Blocked> {
        // SAFETY: `ctx` is this call's, which may block; the callbacks have the types asked for. No timeout: ours are
        // exact and do not follow the wall clock.
        unsafe {
            let client = (self.api.block_client)(
                self.ctx.as_ptr(),
                Some(reply::<C>),
                Some(timed_out::<C>),
                Some(free_end),
                0,
            );
            if client.is_null() {
                return None;
            }
            (self.api.set_disconnect_callback)(client, Some(disconnected));
            Some(Blocked(client.expose_provenance()))
        }
    }

    /// Ends the wait of a client, with what to tell it unless it is gone.
    pub fn unblock(&self, client: Blocked, end: Option<End>) {
        let end = end.map_or(ptr::null_mut(), |end| Box::into_raw(Box::new(end)).cast());
        let client = ptr::with_exposed_provenance_mut::<RedisModuleBlockedClient>(client.0);
        // SAFETY: `client` came from `block` and has not been unblocked, as `crate::waiting` forgets it when it is.
        unsafe { (self.api.unblock_client)(client, end) };
    }

    /// Has `crate::waiting` look at queue `id` in `wait`.
    pub fn set_timer(&self, wait: Span, id: u64) -> Timer {
        let data = ptr::without_provenance_mut(usize::try_from(id).unwrap_or_default());
        // SAFETY: `ctx` is this call's; the data is a number.
        Timer(unsafe {
            (self.api.create_timer)(self.ctx.as_ptr(), wait.ceil_to(Unit::Milliseconds), Some(fired), data)
        })
    }

    /// Stops a timer that has not fired.
    pub fn stop_timer(&self, timer: Timer) {
        // SAFETY: `ctx` is this call's; the server looks the number up.
        unsafe { (self.api.stop_timer)(self.ctx.as_ptr(), timer.0, ptr::null_mut()) };
    }

    /// Has `crate::waiting` told when a key is written or deleted, and when a database is.
    pub fn watch(&self) {
        let ctx = self.ctx.as_ptr();
        let classes = raw::REDISMODULE_NOTIFY_GENERIC
            | raw::REDISMODULE_NOTIFY_STRING
            | raw::REDISMODULE_NOTIFY_EXPIRED
            | raw::REDISMODULE_NOTIFY_EVICTED;
        // SAFETY: `ctx` is this call's; the callbacks have the types asked for.
        unsafe {
            (self.api.subscribe_to_keyspace_events)(ctx, classes, Some(key_changed));
            for id in [raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_EVENT_SWAPDB] {
                (self.api.subscribe_to_server_event)(ctx, effects::event(id), Some(databases_changed));
            }
            (self.api.subscribe_to_server_event)(
                ctx,
                effects::event(raw::REDISMODULE_EVENT_CRON_LOOP),
                Some(cron),
            );
        }
    }

    /// Answers that there is nothing to answer.
    pub fn reply_null(&self) {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.reply_with_null_array)(self.ctx.as_ptr()) };
    }
}

/// Runs a callback of the server with its context, below the same net as a command.
fn callback(ctx: *mut RedisModuleCtx, what: &CStr, work: impl FnOnce(&Call)) {
    let Some(api) = api::get() else { return };
    let Some(ctx) = NonNull::new(ctx) else { return };
    if let Err(panic) = guard::catch(|| work(&Call::without_arguments(api, ctx))) {
        guard::report(ctx.as_ptr(), &what.to_string_lossy(), &panic);
    }
}

/// The client's wait has been ended by [`Call::unblock`]: tell it.
unsafe extern "C" fn reply<C: Command>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: what the server passes to the callback of a blocked client.
    unsafe { end_wait::<C>(ctx, argv, argc) };
    0
}

/// Somebody has sent `CLIENT UNBLOCK`: tell the client, and have it leave the line.
unsafe extern "C" fn timed_out<C: Command>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: what the server passes to the callback of a blocked client.
    unsafe { end_wait::<C>(ctx, argv, argc) };
    callback(ctx, c"timeout", |call| {
        // SAFETY: `ctx` is the callback's.
        let client = unsafe { (call.api.get_blocked_client_handle)(call.ctx.as_ptr()) };
        waiting::leave(call, Blocked(client.expose_provenance()));
    });
    0
}

/// Concludes the call that a client has waited with.
///
/// # Safety
/// `ctx` and the `argc` strings at `argv`, the words of that call, are valid during the callback of a blocked client.
unsafe fn end_wait<C: Command>(ctx: *mut RedisModuleCtx, argv: *mut *mut RedisModuleString, argc: c_int) {
    callback(ctx, c"reply", |call| {
        // SAFETY: the caller vouches for `ctx` and `argv`; what we have passed to the server is an End or nothing.
        let (words, end) = unsafe {
            let end = (call.api.get_blocked_client_private_data)(call.ctx.as_ptr()).cast::<End>();
            (Call::new(call.api, ctx, argv, argc), end.as_ref())
        };
        conclude::<C>(words.as_ref().unwrap_or(call), end.unwrap_or(&Ok(Outcome::Null)));
    });
}

/// The client is gone, or its wait was ended by the server: have it leave the line.
unsafe extern "C" fn disconnected(ctx: *mut RedisModuleCtx, client: *mut RedisModuleBlockedClient) {
    callback(ctx, c"disconnect", |call| waiting::leave(call, Blocked(client.expose_provenance())));
}

unsafe extern "C" fn free_end(_: *mut RedisModuleCtx, end: *mut c_void) {
    if !end.is_null() {
        // SAFETY: it is not null, so it is the box that `unblock` has given away, and the server frees it once.
        drop(unsafe { Box::from_raw(end.cast::<End>()) });
    }
}

unsafe extern "C" fn fired(ctx: *mut RedisModuleCtx, id: *mut c_void) {
    callback(ctx, c"timer", |call| waiting::fired(call, u64::try_from(id.addr()).unwrap_or_default()));
}

unsafe extern "C" fn key_changed(
    ctx: *mut RedisModuleCtx,
    _: c_int,
    _: *const core::ffi::c_char,
    key: *mut RedisModuleString,
) -> c_int {
    if let Some(key) = NonNull::new(key) {
        callback(ctx, c"keyspace event", |call| waiting::key_changed(call, call.bytes(Arg::new(key))));
    }
    0
}

unsafe extern "C" fn databases_changed(
    ctx: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    _: u64,
    _: *mut c_void,
) {
    callback(ctx, c"server event", waiting::everything_changed);
}

/// What the server's cron does for us. A module has one callback for an event: subscribing again replaces it.
pub(super) unsafe extern "C" fn cron(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, _: *mut c_void) {
    callback(ctx, c"cron", |call| {
        effects::look(call);
        waiting::ticked(call);
    });
}
