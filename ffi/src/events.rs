//! The server's events: the only file that subscribes to them and passes them on.
//!
//! A module has one callback for each server event; a second subscription silently replaces the first. So no
//! other file subscribes. The receiver of an event interprets it: `super::effects` for the events that show
//! whether anything replicates, and a [`Watches`] for the events that change keys.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use redis_module::raw::{
    self, RedisModuleCtx, RedisModuleEvent, RedisModuleFlushInfo, RedisModuleModuleChange, RedisModuleString,
    RedisModuleSwapDbInfo,
};

use super::api::{Api, NAME};
use super::call::{Arg, Call};
use super::effects;
use super::panic::callback;

/// Acts on changes of the server's keys.
pub trait Watches {
    /// Whether anything is watched. If not, changes of keys are not passed on.
    fn is_watching() -> bool;
    /// A key of the call's database was written, was deleted, was evicted, or has expired.
    fn key_changed(call: &Call, name: &[u8]);
    /// A database was flushed or swapped; `None` for all of them.
    fn database_changed(call: &Call, db: Option<c_int>);
    /// The server's cron has run (10 times a second unless configured).
    fn ticked(call: &Call);
}

/// The watcher while nothing is watched.
impl Watches for () {
    fn is_watching() -> bool {
        false
    }
    fn key_changed(_: &Call, _: &[u8]) {}
    fn database_changed(_: &Call, _: Option<c_int>) {}
    fn ticked(_: &Call) {}
}

type Callback = unsafe extern "C" fn(*mut RedisModuleCtx, RedisModuleEvent, u64, *mut c_void);

/// The events after which something may replicate.
const LISTENERS: [RedisModuleEvent; 3] = [
    event(raw::REDISMODULE_EVENT_FORK_CHILD),
    event(raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED),
    event(raw::REDISMODULE_EVENT_REPLICA_CHANGE),
];

const FORK: RedisModuleEvent = event(raw::REDISMODULE_EVENT_FORK_CHILD);
const CRON: RedisModuleEvent = event(raw::REDISMODULE_EVENT_CRON_LOOP);

const MODULES: RedisModuleEvent = event(raw::REDISMODULE_EVENT_MODULE_CHANGE);

const FLUSH: RedisModuleEvent = event(raw::REDISMODULE_EVENT_FLUSHDB);
const SWAP: RedisModuleEvent = event(raw::REDISMODULE_EVENT_SWAPDB);

/// The keyspace events after which a key may have become a limiter, have changed, or be one no longer.
/// `SORT ... STORE` and `SUNIONSTORE` put a list and a set in the place of any key.
const CLASSES: c_int = raw::REDISMODULE_NOTIFY_GENERIC
    | raw::REDISMODULE_NOTIFY_STRING
    | raw::REDISMODULE_NOTIFY_HASH
    | raw::REDISMODULE_NOTIFY_ZSET
    | raw::REDISMODULE_NOTIFY_LIST
    | raw::REDISMODULE_NOTIFY_SET
    | raw::REDISMODULE_NOTIFY_EXPIRED
    | raw::REDISMODULE_NOTIFY_EVICTED;

/// Whether keys are watched.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Whether other modules are loaded, or were.
static BESIDE_OTHERS: AtomicBool = AtomicBool::new(false);

/// How many keys have expired beside other modules.
static EXPIRED: AtomicU64 = AtomicU64::new(0);

/// Whether the server reports every event after which something may replicate.
static FOLLOWED: AtomicBool = AtomicBool::new(false);

const fn event(id: u64) -> RedisModuleEvent {
    RedisModuleEvent { id, dataver: 1 }
}

/// Starts to follow whether anything replicates, on servers that report every such event and drop effects at
/// once when there are no listeners (Redis 7.0).
pub fn follow(api: &Api, ctx: *mut RedisModuleCtx) {
    // The knowledge of an earlier load is out of date, because nothing has been followed since it was
    // unloaded.
    effects::assume_listeners();
    WATCHED.store(false, Relaxed);
    let (Some(is_supported), Some(_)) = (api.is_sub_event_supported, api.set_command_info) else { return };
    // SAFETY: the function takes any number.
    if unsafe { is_supported(FORK, raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN) } == 0 {
        return;
    }
    for event in LISTENERS {
        subscribe(api, ctx, event, Some(begins_to_listen));
    }
    subscribe(api, ctx, CRON, Some(cron::<()>));
    FOLLOWED.store(true, Relaxed);
}

/// Ends the subscriptions of [`follow`]. A server forgets the commands of a module that fails to load, and
/// unloads the file, but would still call it for events (seen with Redis 7.0.15).
pub fn unfollow(api: &Api, ctx: *mut RedisModuleCtx) {
    if FOLLOWED.swap(false, Relaxed) {
        for event in LISTENERS.into_iter().chain([CRON]) {
            subscribe(api, ctx, event, None);
        }
    }
}

/// Whether the server reports enough for it to be certain that nothing replicates.
pub(super) fn are_followed() -> bool {
    FOLLOWED.load(Relaxed)
}

/// Starts to follow whether other modules are loaded, whose code the server runs for keyspace events. This is
/// the last step of a load, because a server that refuses the load would still run the callback.
pub(super) fn follow_modules(call: &Call) {
    // An earlier load's subscriptions ended with it.
    BESIDE_OTHERS.store(false, Relaxed);
    subscribe(call.api, call.ctx.as_ptr(), MODULES, Some(modules_changed));
    // This module is not listed yet.
    if call.modules().is_none_or(|modules| modules > 0) {
        is_joined(call);
    }
}

/// Another module is loaded: from now on, expired keys are counted.
fn is_joined(call: &Call) {
    if !BESIDE_OTHERS.swap(true, Relaxed) {
        let (ctx, class) = (call.ctx.as_ptr(), raw::REDISMODULE_NOTIFY_EXPIRED);
        // SAFETY: `ctx` is this call's; the callback has the required type.
        unsafe { (call.api.subscribe_to_keyspace_events)(ctx, class, Some(key_expired)) };
    }
}

/// Whether the server may run other modules' code for a keyspace event: other modules are loaded, or were.
pub fn is_beside_others() -> bool {
    BESIDE_OTHERS.load(Relaxed)
}

/// A number that changes when a key expires beside other modules, which may have acted on that.
#[inline]
pub fn expired() -> u64 {
    EXPIRED.load(Relaxed)
}

impl Call<'_> {
    /// Passes changes of keys and databases, and runs of the cron, on to `W`. Only the first call has an
    /// effect.
    pub fn watch<W: Watches>(&self) {
        if WATCHED.swap(true, Relaxed) {
            return;
        }
        let (api, ctx) = (self.api, self.ctx.as_ptr());
        // SAFETY: `ctx` is this call's; the callback has the required type.
        unsafe { (api.subscribe_to_keyspace_events)(ctx, CLASSES, Some(key_changed::<W>)) };
        subscribe(api, ctx, FLUSH, Some(flushed::<W>));
        subscribe(api, ctx, SWAP, Some(swapped::<W>));
        subscribe(api, ctx, CRON, Some(cron::<W>));
    }

    /// Stops passing on changes of keys, where the server can end a subscription. Must not be called while
    /// the server runs callbacks for a keyspace event, because it keeps a pointer to the next one.
    ///
    /// The subscriptions to the server's events stay. They cost nothing until the next flush.
    pub fn unwatch<W: Watches>(&self) {
        if let Some(unsubscribe) = self.api.unsubscribe_from_keyspace_events
            && WATCHED.swap(false, Relaxed)
        {
            // SAFETY: `ctx` is this call's; the callback is the one that was subscribed.
            unsafe { unsubscribe(self.ctx.as_ptr(), CLASSES, Some(key_changed::<W>)) };
        }
    }
}

/// Subscribes to an event with this callback, in place of the one before; `None` unsubscribes.
fn subscribe(api: &Api, ctx: *mut RedisModuleCtx, event: RedisModuleEvent, callback: Option<Callback>) {
    // SAFETY: `ctx` is the call's or the load's; the callback has the required type.
    unsafe { (api.subscribe_to_server_event)(ctx, event, callback) };
}

unsafe extern "C" fn modules_changed(
    ctx: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    // SAFETY: the data that the server passes with this event, or null.
    let Some(change) = (unsafe { data.cast::<RedisModuleModuleChange>().as_ref() }) else { return };
    // SAFETY: the server passes the name as a C string.
    let is_own = !change.module_name.is_null() && unsafe { CStr::from_ptr(change.module_name) } == NAME;
    if subevent == raw::REDISMODULE_SUBEVENT_MODULE_LOADED && !is_own {
        callback(ctx, c"module event", is_joined);
    }
}

unsafe extern "C" fn key_expired(
    _: *mut RedisModuleCtx,
    _: c_int,
    _: *const c_char,
    _: *mut RedisModuleString,
) -> c_int {
    EXPIRED.store(expired().wrapping_add(1), Relaxed);
    0
}

unsafe extern "C" fn begins_to_listen(_: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, _: *mut c_void) {
    effects::assume_listeners();
}

unsafe extern "C" fn cron<W: Watches>(ctx: *mut RedisModuleCtx, _: RedisModuleEvent, _: u64, _: *mut c_void) {
    callback(ctx, c"cron", |call| {
        if are_followed() {
            effects::look_for_listeners(call);
        }
        W::ticked(call);
    });
}

unsafe extern "C" fn key_changed<W: Watches>(
    ctx: *mut RedisModuleCtx,
    _: c_int,
    _: *const c_char,
    key: *mut RedisModuleString,
) -> c_int {
    if W::is_watching()
        && let Some(key) = NonNull::new(key)
    {
        callback(ctx, c"keyspace event", |call| W::key_changed(call, call.bytes(Arg::new(key))));
    }
    0
}

unsafe extern "C" fn flushed<W: Watches>(
    ctx: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    if !W::is_watching() || subevent != raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
        return;
    }
    // SAFETY: the data that the server passes with this event, or null.
    let db = unsafe { data.cast::<RedisModuleFlushInfo>().as_ref() }.map(|info| info.dbnum);
    // A negative number stands for all databases.
    callback(ctx, c"flush event", |call| W::database_changed(call, db.filter(|&db| db >= 0)));
}

unsafe extern "C" fn swapped<W: Watches>(
    ctx: *mut RedisModuleCtx,
    _: RedisModuleEvent,
    _: u64,
    data: *mut c_void,
) {
    // SAFETY: the data that the server passes with this event, or null.
    let Some(info) = (unsafe { data.cast::<RedisModuleSwapDbInfo>().as_ref() }) else { return };
    if W::is_watching() {
        callback(ctx, c"swap event", |call| {
            W::database_changed(call, Some(info.dbnum_first));
            W::database_changed(call, Some(info.dbnum_second));
        });
    }
}
