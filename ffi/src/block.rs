//! Clients that wait: the server blocks a client until the module unblocks it.
//!
//! All callbacks run on the server's main thread, one after the other, like commands.

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::ptr;

use redis_module::raw::{self, RedisModuleBlockedClient, RedisModuleCtx, RedisModuleString};

use super::call::Call;
use super::panic::callback;

/// The waits of the clients of a command.
pub trait Waits {
    /// How a wait ends.
    type End;

    /// Replies to a client whose wait has ended with `end`, or was ended by the server (`CLIENT UNBLOCK`) if
    /// that is `None`.
    fn answer(call: &Call, end: Option<&Self::End>);

    /// The client has disconnected, or the server has ended its wait. The owner of its [`Blocked`] must still
    /// unblock it.
    fn gone(call: &Call, client: Identity);
}

/// A client that the server keeps blocked, until it is [unblocked](Call::unblock) with an `E`.
pub struct Blocked<E> {
    identity: Identity,
    end: PhantomData<fn(E)>,
}

/// The identity of a blocked client.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity(usize);

impl<E> Blocked<E> {
    /// The client's identity.
    pub fn identity(&self) -> Identity {
        self.identity
    }
}

impl Call<'_> {
    /// Whether the client may be blocked, which is impossible in a transaction or a script.
    pub fn may_block(&self) -> bool {
        let never = raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & never == 0
    }

    /// Keeps the client of this call waiting until it is [unblocked](Self::unblock).
    pub fn block<W: Waits>(&self) -> Option<Blocked<W::End>> {
        // SAFETY: `ctx` is this call's, and the callbacks have the required types. No timeout: the module's
        // own timeouts are exact and do not follow the wall clock.
        let client = unsafe {
            (self.api.block_client)(
                self.ctx.as_ptr(),
                Some(answer::<W>),
                Some(unblocked::<W>),
                Some(free::<W>),
                0,
            )
        };
        if client.is_null() {
            return None;
        }
        // SAFETY: `client` is not null, so it was just blocked; the callback has the required type.
        unsafe { (self.api.set_disconnect_callback)(client, Some(disconnected::<W>)) };
        Some(Blocked { identity: Identity(client.expose_provenance()), end: PhantomData })
    }

    /// Ends the wait of a client. A client that has disconnected receives no reply.
    pub fn unblock<E>(&self, Blocked { identity, .. }: Blocked<E>, end: Option<E>) {
        let end = end.map_or(ptr::null_mut(), |end| Box::into_raw(Box::new(end)).cast());
        let client = ptr::with_exposed_provenance_mut::<RedisModuleBlockedClient>(identity.0);
        // SAFETY: `client` came from `block`, and its only `Blocked` is consumed here. `free` takes an `E`
        // there.
        unsafe { (self.api.unblock_client)(client, end) };
    }
}

/// The wait was ended by [`Call::unblock`].
unsafe extern "C" fn answer<W: Waits>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes this to the callback of a blocked client.
    unsafe { reply::<W>(ctx, argv, argc) };
    0
}

/// The wait was ended by `CLIENT UNBLOCK`.
unsafe extern "C" fn unblocked<W: Waits>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passes this to the callback of a blocked client.
    unsafe { reply::<W>(ctx, argv, argc) };
    callback(ctx, c"timeout", |call| {
        // SAFETY: `ctx` is the callback's.
        let client = unsafe { (call.api.get_blocked_client_handle)(call.ctx.as_ptr()) };
        W::gone(call, Identity(client.expose_provenance()));
    });
    0
}

/// Replies to a client.
///
/// # Safety
/// `ctx` and the `argc` strings at `argv`, the arguments of its call, are valid during the callback of a
/// client that [`Call::block`] has blocked for `W`.
unsafe fn reply<W: Waits>(ctx: *mut RedisModuleCtx, argv: *mut *mut RedisModuleString, argc: c_int) {
    callback(ctx, c"reply", |call| {
        // SAFETY: the caller vouches for `ctx`. The data is what `unblock` passed, a `W::End`, or null.
        let end = unsafe {
            (call.api.get_blocked_client_private_data)(call.ctx.as_ptr()).cast::<W::End>().as_ref()
        };
        // SAFETY: the caller vouches for `ctx` and `argv`.
        let with_arguments = unsafe { Call::new(call.api, ctx, argv, argc) };
        W::answer(with_arguments.as_ref().unwrap_or(call), end);
    });
}

/// The client has disconnected, or the server has ended its wait with an error.
unsafe extern "C" fn disconnected<W: Waits>(ctx: *mut RedisModuleCtx, client: *mut RedisModuleBlockedClient) {
    callback(ctx, c"disconnect", |call| W::gone(call, Identity(client.expose_provenance())));
}

unsafe extern "C" fn free<W: Waits>(_: *mut RedisModuleCtx, end: *mut c_void) {
    if !end.is_null() {
        // SAFETY: it is not null, so it is the box that `unblock` gave away, and the server frees it once.
        drop(unsafe { Box::from_raw(end.cast::<W::End>()) });
    }
}
