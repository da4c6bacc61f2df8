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

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use redis_module::raw::{self, RedisModuleCtx, RedisModuleEvent, RedisModuleString};

use super::api::{self, Api};
use super::block;
use super::call::{Arg, Call};
use super::native::{Strings, Word};

/// The word before an expiry in the effect of a string.
pub static PXAT: Word = Word::new(c"PXAT");

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
        // As text, because the server makes one string of that and two of a number.
        let mut digits = itoa::Buffer::new();
        let expire_at = digits.format(expire_at);
        // SAFETY: the format names a string of the call, a buffer with its length, a string and such a buffer.
        unsafe {
            (self.api.replicate)(
                self.ctx.as_ptr(),
                c"SET".as_ptr(),
                c"sbsb".as_ptr(),
                name.ptr.as_ptr(),
                value.as_ptr(),
                value.len(),
                PXAT.string(self.api),
                expire_at.as_ptr(),
                expire_at.len(),
            );
        }
    }

    /// Tells replicas and the AOF that fields of the hash `name` hold values, `words` being both in turn, and that it
    /// expires at the millisecond `expires`, of what has changed. The server makes one transaction of the two commands.
    pub(super) fn propagate_hset(&self, name: Arg, words: &[*mut RedisModuleString], expires: Option<i64>) {
        if self.propagate_to_nobody() {
            return;
        }
        let (ctx, name) = (self.ctx.as_ptr(), name.ptr.as_ptr());
        if !words.is_empty() {
            // SAFETY: the format names a string of the call, and an array of strings with its length.
            unsafe {
                (self.api.replicate)(ctx, c"HSET".as_ptr(), c"sv".as_ptr(), name, words.as_ptr(), words.len())
            };
        }
        if let Some(expire_at) = expires {
            // SAFETY: the format names a string of the call, and a long long.
            unsafe { (self.api.replicate)(ctx, c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), name, expire_at) };
        }
    }

    /// Propagates a command on the key `name`.
    pub(super) fn propagate(&self, command: &'static CStr, name: Arg, words: &[&[u8]]) {
        if self.propagate_to_nobody() {
            return;
        }
        let words = Strings::new(*self, words);
        // SAFETY: the format names a string of the call, and an array of strings with its length.
        unsafe {
            (self.api.replicate)(
                self.ctx.as_ptr(),
                command.as_ptr(),
                c"sv".as_ptr(),
                name.ptr.as_ptr(),
                words.0.as_ptr(),
                words.0.len(),
            );
        }
    }

    /// Counts a change whose effect nobody would get; false, and nothing done, when somebody might.
    fn propagate_to_nobody(&self) -> bool {
        // A callback has no call to hand over.
        let unheard = UNHEARD.load(Relaxed) && self.len() > 0;
        #[cfg(feature = "faults")]
        let unheard = unheard || crate::faults::is(crate::faults::Fault::Verbatim) && self.len() > 0;
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
    let (Some(is_supported), Some(_)) = (api.is_sub_event_supported, api.set_command_info) else { return };
    // SAFETY: the function takes any number.
    if unsafe { is_supported(EVENTS[0].0, raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN) } == 0 {
        return;
    }
    subscribe(api, ctx, Some);
    FOLLOWED.store(true, Relaxed);
}

/// Ends what [`follow`] has begun. A server forgets the commands of a module that fails to load, and unloads the file,
/// but would still call it for events (seen with Redis 7.0.15).
pub fn unfollow(api: &Api, ctx: *mut RedisModuleCtx) {
    if FOLLOWED.swap(false, Relaxed) {
        subscribe(api, ctx, |_| None);
    }
}

type Callback = unsafe extern "C" fn(*mut RedisModuleCtx, RedisModuleEvent, u64, *mut c_void);

/// The events that are followed, and who is told of them.
const EVENTS: [(RedisModuleEvent, Callback); 4] = [
    (event(raw::REDISMODULE_EVENT_FORK_CHILD), begins_to_listen),
    (event(raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED), begins_to_listen),
    (event(raw::REDISMODULE_EVENT_REPLICA_CHANGE), begins_to_listen),
    (event(raw::REDISMODULE_EVENT_CRON_LOOP), block::cron),
];

/// The server event with this number.
pub(super) const fn event(id: u64) -> RedisModuleEvent {
    RedisModuleEvent { id, dataver: 1 }
}

/// Has the server tell of each event whom `told` makes of its callback: nobody, where that is `None`.
fn subscribe(api: &Api, ctx: *mut RedisModuleCtx, told: impl Fn(Callback) -> Option<Callback>) {
    for (event, callback) in EVENTS {
        // SAFETY: `ctx` is the load's; the callbacks have the type asked for.
        unsafe { (api.subscribe_to_server_event)(ctx, event, told(callback)) };
    }
}

/// How a limiter's new state is told: by one command where the server takes expiries as instants, else by two.
pub fn propagation() -> &'static str {
    let in_place = api::get().is_some_and(|api| api.set_abs_expire.is_some());
    if in_place { "SET PXAT" } else { "SET, PEXPIREAT" }
}

/// Whether the server tells enough for it to be known that nobody listens.
pub(super) fn are_followed() -> bool {
    FOLLOWED.load(Relaxed)
}

/// Whether replicas or an AOF may be listening, so that effects have to be told.
pub fn heard() -> bool {
    !UNHEARD.load(Relaxed)
}

unsafe extern "C" fn begins_to_listen(_: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, _: *mut c_void) {
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
        let is_zero = |field: &CStr| {
            let mut error: c_int = 0;
            (api.server_info_get_field_signed)(section, field.as_ptr(), &raw mut error) == 0 && error == 0
        };
        let nobody = is_zero(c"connected_slaves") && is_zero(c"repl_backlog_active");
        (api.free_server_info)(ctx, section);
        nobody
    }
}
