//! Effects: the changes that are sent to replicas and to the AOF, and the condition under which neither
//! exists.
//!
//! A write costs the server less than its replication. On a server with neither replicas nor AOF, the effect
//! would be built and thrown away. No function of the server reports whether there are listeners, but the
//! module can be certain that there are none:
//!
//! - `INFO`, read between commands, shows a primary without AOF, replicas and backlog, and without a forked
//!   child (an AOF that is switched on in a transaction takes effect at once while a rewrite is under way).
//! - After that, a listener cannot appear without a fork. A replica's stream begins at the snapshot of its
//!   full synchronisation, and the stream of an AOF at the rewrite when it is switched on; the server forks
//!   for both. A partial synchronisation needs a backlog, which exists only after an earlier replica. The
//!   server notifies modules of a fork before the next command.
//! - A backlog also appears when the server becomes a replica, which is an event as well.
//!
//! In a cluster it is never certain: a slot that moves to another node is one more listener, and no event
//! reports it.
//!
//! So each of these events ends the certainty, and the next reading of `INFO` may restore it. While the
//! module is certain, it passes the call itself to the server as the effect. That costs almost nothing,
//! counts as a change for the save points like every effect, and is dropped at once, because there is no
//! listener.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use redis_module::raw::{self, RedisModuleString};

use super::api;
use super::call::{Arg, Call};
use super::string::{SharedString, Strings};
use crate::faults;

/// The option of `SET` that precedes the expiry in the effect of a string.
static PXAT: SharedString = SharedString::new(c"PXAT");

/// Whether it is certain that there are no listeners.
static NO_LISTENERS: AtomicBool = AtomicBool::new(false);

/// How many times the server's cron has run while it was not certain.
static TICKS: AtomicU32 = AtomicU32::new(0);

/// `INFO` is read once in this number of runs of the server's cron, which runs 10 times a second by default.
const LOOK_EVERY: u32 = 10;

impl Call<'_> {
    /// Replicates that `name` holds `value` until the millisecond `expire_at`.
    #[inline(always)]
    pub(super) fn propagate_set(&self, name: Arg, value: &[u8], expire_at: i64) {
        if !self.counts_only() {
            self.replicate_set(name, value, expire_at);
        }
    }

    /// Replicates by one command, or by two if the server does not accept expiries as instants.
    fn replicate_set(&self, name: Arg, value: &[u8], expire_at: i64) {
        if !accepts_expiries() {
            self.replicate(c"SET", name, &[value]);
            self.replicate(c"PEXPIREAT", name, &[itoa::Buffer::new().format(expire_at).as_bytes()]);
            return;
        }
        // As text, because the server makes one string from a text, and two from a number.
        let mut digits = itoa::Buffer::new();
        let expire_at = digits.format(expire_at);
        // SAFETY: the format names a string of the call, a buffer with its length, a string and such a
        // buffer.
        let status = unsafe {
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
            )
        };
        self.replicated(status, c"SET");
    }

    /// Replicates that fields of the hash `name` hold values, and that it expires at the millisecond
    /// `expires`; each only if it has changed. `words` are fields and values, alternating. The server makes
    /// both one transaction.
    pub(super) fn propagate_hset(&self, name: Arg, words: &[*mut RedisModuleString], expires: Option<i64>) {
        if self.counts_only() {
            return;
        }
        let (ctx, name) = (self.ctx.as_ptr(), name.ptr.as_ptr());
        if !words.is_empty() {
            // SAFETY: the format names a string of the call, and an array of strings with its length.
            let status = unsafe {
                (self.api.replicate)(ctx, c"HSET".as_ptr(), c"sv".as_ptr(), name, words.as_ptr(), words.len())
            };
            self.replicated(status, c"HSET");
        }
        let Some(expire_at) = expires else { return };
        // SAFETY: the format names a string of the call, and a long long.
        let status =
            unsafe { (self.api.replicate)(ctx, c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), name, expire_at) };
        self.replicated(status, c"PEXPIREAT");
    }

    /// Replicates a command on the key `name`.
    pub(super) fn propagate(&self, command: &'static CStr, name: Arg, words: &[&[u8]]) {
        if !self.counts_only() {
            self.replicate(command, name, words);
        }
    }

    /// Replicates a command on the key `name` when there may be listeners.
    pub(super) fn replicate(&self, command: &'static CStr, name: Arg, words: &[&[u8]]) {
        let words = Strings::new(self.api, words);
        // SAFETY: the format names a string of the call, and an array of strings with its length.
        let status = unsafe {
            (self.api.replicate)(
                self.ctx.as_ptr(),
                command.as_ptr(),
                c"sv".as_ptr(),
                name.ptr.as_ptr(),
                words.0.as_ptr(),
                words.0.len(),
            )
        };
        self.replicated(status, command);
    }

    /// Counts a change without an effect if it is certain that there are no listeners. Otherwise does nothing
    /// and returns false.
    #[inline(always)]
    pub(super) fn counts_only(&self) -> bool {
        // A callback has no call that could be the effect.
        let counts_only = (NO_LISTENERS.load(Relaxed) || faults::replicates_calls()) && self.is_running;
        if faults::loses_effects() {
            return true;
        }
        if counts_only {
            // SAFETY: `ctx` is this call's. The server rejects no call that it is running.
            unsafe { (self.api.replicate_verbatim)(self.ctx.as_ptr()) };
        }
        counts_only
    }
}

/// How a limiter's new state is replicated: by one command if the server accepts expiries as instants,
/// otherwise by two.
pub fn propagation() -> &'static str {
    if accepts_expiries() { "SET PXAT" } else { "SET, PEXPIREAT" }
}

/// Whether the server accepts expiries as instants, both in its module API and in `SET`.
fn accepts_expiries() -> bool {
    api::get().is_some_and(|api| api.set_abs_expire.is_some())
}

/// Whether there may be replicas or an AOF, so that effects have to be replicated.
pub fn may_have_listeners() -> bool {
    !NO_LISTENERS.load(Relaxed)
}

/// Ends the certainty: from now on there may be replicas or an AOF.
pub(super) fn assume_listeners() {
    NO_LISTENERS.store(false, Relaxed);
}

/// Looks for listeners from time to time; called by the server's cron.
pub(super) fn look_for_listeners(call: &Call) {
    if NO_LISTENERS.load(Relaxed) || !TICKS.fetch_add(1, Relaxed).is_multiple_of(LOOK_EVERY) {
        return;
    }
    NO_LISTENERS.store(has_no_listeners(call), Relaxed);
}

/// Whether the server is a primary outside a cluster, without AOF, children, replicas and backlog.
fn has_no_listeners(call: &Call) -> bool {
    let others = raw::REDISMODULE_CTX_FLAGS_AOF
        | raw::REDISMODULE_CTX_FLAGS_LOADING
        | raw::REDISMODULE_CTX_FLAGS_ACTIVE_CHILD
        | raw::REDISMODULE_CTX_FLAGS_CLUSTER;
    if call.flags() & (raw::REDISMODULE_CTX_FLAGS_MASTER | others) != raw::REDISMODULE_CTX_FLAGS_MASTER {
        return false;
    }
    let Some(replication) = call.server_info(c"replication") else { return false };
    [c"connected_slaves", c"repl_backlog_active"].iter().all(|field| replication.integer(field) == Some(0))
}
