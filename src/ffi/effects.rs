//! Effects: what replicas and the AOF are told, and knowing that there are none.
//!
//! A write costs the server less than telling of it, and by far most writes of a limiter happen on servers with neither
//! replicas nor AOF, where the telling is built and thrown away. The server has no call that says whether anybody
//! listens, but it can be known for certain:
//!
//! - between commands `INFO` tells it: a primary without AOF, replicas and backlog, and without a child that has been
//!   forked before (an AOF switched on in a transaction takes effect at once while a rewrite is under way);
//! - from then on nobody can begin to listen without a fork. A replica's stream begins at the snapshot that its full
//!   synchronisation forks, and the AOF's at the rewrite that switching it on forks; a partial synchronisation needs a
//!   backlog, and that is left by an earlier replica. The server tells modules of a fork when it has forked, before
//!   the next command;
//! - becoming a replica, the other way to a backlog, is told of as well.
//!
//! Not so in a cluster, where slots on their way to another node are one more listener, of which nothing tells. There it
//! is never certain.
//!
//! So any such event ends the certainty, and the next look at `INFO` may bring it back. While it lasts, the call itself
//! is handed to the server as the effect: that costs next to nothing, counts as a change for the save points like any
//! effect, and is dropped at once as nobody is there to get it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use redis_module::raw::{self, RedisModuleCtx, RedisModuleEvent, RedisModuleString};

use super::api::Api;
use super::block;
use super::call::{Arg, Call};

/// Whether it is certain that nobody listens.
static UNHEARD: AtomicBool = AtomicBool::new(false);

/// Whether the server tells enough for the certainty to be sought.
static FOLLOWED: AtomicBool = AtomicBool::new(false);

/// How many times the server's cron has run since `INFO` was last asked.
static TICKS: AtomicU32 = AtomicU32::new(0);

/// Every so many runs of the server's cron (10 a second unless configured) the certainty is sought again.
const LOOK_EVERY: u32 = 10;

impl Call<'_> {
    /// Tells replicas and the AOF that `name` holds `value` until the millisecond `expire_at`.
    pub(super) fn propagate_set(&self, name: Arg, value: &[u8], expire_at: i64) {
        if self.propagate_to_nobody() {
            return;
        }
        // SAFETY: the format names a string of the call, a buffer with its length, a C string and a long long.
        unsafe {
            (self.api.replicate)(
                self.ctx.as_ptr(),
                c"SET".as_ptr(),
                c"sbcl".as_ptr(),
                name.ptr.as_ptr(),
                value.as_ptr(),
                value.len(),
                c"PXAT".as_ptr(),
                expire_at,
            );
        }
    }

    /// Tells replicas and the AOF that fields of the hash `name` hold values, `words` being both in turn, until the
    /// millisecond `expire_at`. The server makes one transaction of the two commands.
    pub(super) fn propagate_hset(&self, name: Arg, words: &[*mut RedisModuleString], expire_at: i64) {
        if self.propagate_to_nobody() {
            return;
        }
        let ctx = self.ctx.as_ptr();
        // SAFETY: the formats name a string of the call, an array of strings with its length, and a long long.
        unsafe {
            (self.api.replicate)(
                ctx,
                c"HSET".as_ptr(),
                c"sv".as_ptr(),
                name.ptr.as_ptr(),
                words.as_ptr(),
                words.len(),
            );
            (self.api.replicate)(ctx, c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), name.ptr.as_ptr(), expire_at);
        }
    }

    /// Counts a change whose effect nobody would get; false, and nothing done, when somebody might.
    fn propagate_to_nobody(&self) -> bool {
        // A callback has no call to hand over.
        let unheard = UNHEARD.load(Relaxed) && self.len() > 0;
        if unheard {
            // SAFETY: `ctx` is this call's.
            unsafe { (self.api.replicate_verbatim)(self.ctx.as_ptr()) };
        }
        unheard
    }
}

/// Starts to follow who listens, on servers that tell enough of it and drop what nobody hears at once (Redis 7.0).
pub fn follow(api: &Api, ctx: *mut RedisModuleCtx) {
    // What an earlier load knew is out of date: nobody has followed since it was unloaded.
    UNHEARD.store(false, Relaxed);
    let event = |id| RedisModuleEvent { id, dataver: 1 };
    let forks = event(raw::REDISMODULE_EVENT_FORK_CHILD);
    let (Some(is_supported), Some(_)) = (api.is_sub_event_supported, api.set_command_info) else { return };
    // SAFETY: `ctx` is the load's; the callbacks have the type asked for.
    unsafe {
        if is_supported(forks, raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN) == 0 {
            return;
        }
        for event in [
            forks,
            event(raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED),
            event(raw::REDISMODULE_EVENT_REPLICA_CHANGE),
        ] {
            (api.subscribe_to_server_event)(ctx, event, Some(heard));
        }
        (api.subscribe_to_server_event)(ctx, event(raw::REDISMODULE_EVENT_CRON_LOOP), Some(block::cron));
    }
    FOLLOWED.store(true, Relaxed);
}

unsafe extern "C" fn heard(_: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, _: *mut c_void) {
    UNHEARD.store(false, Relaxed);
}

/// Seeks the certainty, every so often. To be called by the server's cron.
pub(super) fn look(call: &Call) {
    if !FOLLOWED.load(Relaxed)
        || UNHEARD.load(Relaxed)
        || !TICKS.fetch_add(1, Relaxed).is_multiple_of(LOOK_EVERY)
    {
        return;
    }
    UNHEARD.store(nobody_listens(call.api, call.ctx.as_ptr()), Relaxed);
}

/// Asks the server whether it is a primary outside of a cluster, without AOF, children, replicas and backlog.
fn nobody_listens(api: &Api, ctx: *mut RedisModuleCtx) -> bool {
    // SAFETY: `ctx` is the callback's.
    let flags = unsafe { (api.get_context_flags)(ctx) }.cast_unsigned();
    let others = raw::REDISMODULE_CTX_FLAGS_AOF
        | raw::REDISMODULE_CTX_FLAGS_LOADING
        | raw::REDISMODULE_CTX_FLAGS_ACTIVE_CHILD
        | raw::REDISMODULE_CTX_FLAGS_CLUSTER;
    if flags & (raw::REDISMODULE_CTX_FLAGS_MASTER | others) != raw::REDISMODULE_CTX_FLAGS_MASTER {
        return false;
    }
    // SAFETY: `ctx` is the callback's; the section is freed once, here, after its last use.
    unsafe {
        let section = (api.get_server_info)(ctx, c"replication".as_ptr());
        if section.is_null() {
            return false;
        }
        let is_zero = |field: &core::ffi::CStr| {
            let mut error: c_int = 0;
            (api.server_info_get_field_signed)(section, field.as_ptr(), &raw mut error) == 0 && error == 0
        };
        let nobody = is_zero(c"connected_slaves") && is_zero(c"repl_backlog_active");
        (api.free_server_info)(ctx, section);
        nobody
    }
}
