//! The checks that the server makes before it runs a command, repeated for a client that has waited.
//!
//! A call that does not wait is checked by the server: memory, replicas, disk, the slot's node, the ACL. A
//! client that has waited is admitted by a timer, for which the server checks nothing. So the module has the
//! server run the client's command on the key once more. From Redis 7.2 on that is a dry run. Redis 7.0 has
//! the checks but no dry run, so the command is run with arguments that make it do nothing. Earlier servers
//! check only the slot, and the module looks up the memory limit.

use core::ffi::{CStr, c_int};
use core::ptr::{self, NonNull};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redis_module::raw::{self, RedisModuleCallReply};

use super::call::{Arg, Call};
use super::key::Handles;
use super::string::{self, Strings};
use crate::error::OUT_OF_MEMORY;

/// The reason why the server would not run a command.
pub enum Rejection {
    /// Another node serves the key.
    Moved,
    /// The cluster is down.
    ClusterDown,
    /// The user's permissions do not allow it.
    NoPermission,
    /// The server's own error.
    Refused(String),
}

/// Whether the server has dry runs.
static DRY_RUN: OnceLock<bool> = OnceLock::new();

/// The key of the call that is being checked with the server; 0 at other times.
static CHECKED: AtomicUsize = AtomicUsize::new(0);

impl Arg<'_> {
    /// Whether the server runs the call with this key only because the module [checks](Call::would_run)
    /// whether it would.
    pub fn is_being_checked(self) -> bool {
        CHECKED.load(Relaxed) == self.address()
    }

    /// The address of the server's string. Two arguments with one address are the same string.
    fn address(self) -> usize {
        self.ptr.as_ptr().addr()
    }
}

impl Call<'_> {
    /// Whether keys may be written to outside a command: the server is neither paused nor a read-only
    /// replica.
    pub fn may_write(&self) -> bool {
        // SAFETY: the function takes nothing.
        let paused = self.api.avoid_replica_traffic.is_some_and(|paused| unsafe { paused() } != 0);
        !paused && !self.is_read_only()
    }

    /// Whether the server is a read-only replica.
    pub fn is_read_only(&self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_READONLY != 0
    }

    /// Whether the server has reached `maxmemory`, and does not make room by evicting keys.
    pub fn is_out_of_memory(&self) -> bool {
        let (full, evicts) = (raw::REDISMODULE_CTX_FLAGS_OOM, raw::REDISMODULE_CTX_FLAGS_EVICT);
        self.flags() & (full | evicts) == full
    }

    /// The number by which the server knows the client of this call.
    pub fn client(&self) -> u64 {
        // SAFETY: `ctx` is this call's.
        unsafe { (self.api.get_client_id)(self.ctx.as_ptr()) }
    }

    /// Whether the server would run `command`, one of the module's own, on `key` with `arguments` for this
    /// client. Without a command, only whether this node serves the key.
    ///
    /// No key may be open: the server may run the command, and other modules' code.
    ///
    /// # Errors
    /// The reason why the server would not run it.
    pub fn would_run(
        &self,
        _: &mut Handles,
        command: &CStr,
        key: Arg,
        arguments: &[&[u8]],
        client: Option<u64>,
    ) -> Result<(), Rejection> {
        CHECKED.store(key.address(), Relaxed);
        let answer = self.ask(command, key, arguments, client);
        CHECKED.store(0, Relaxed);
        answer
    }

    fn ask(
        &self,
        command: &CStr,
        key: Arg,
        arguments: &[&[u8]],
        client: Option<u64>,
    ) -> Result<(), Rejection> {
        let has_checks = self.api.set_command_info.is_some();
        let flags = self.flags();
        let in_cluster = flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0;
        let Some(client) = client.or_else(|| in_cluster.then_some(0)) else { return Ok(()) };
        if has_checks && !self.has_permission(command, key, arguments, client) {
            return Err(Rejection::NoPermission);
        }
        // The module checks this even if the server does too: outside a command, the server uses the memory
        // figure of the last command, which may be too high or too low. A server that may evict keys makes
        // room for the next command.
        if self.is_out_of_memory() {
            return Err(Rejection::Refused(OUT_OF_MEMORY.to_owned()));
        }
        let full = flags & raw::REDISMODULE_CTX_FLAGS_OOM != 0;
        if !has_checks && !in_cluster {
            return Ok(());
        }
        // M: memory. S: replicas and disk. E: errors as replies. D: a dry run, which has no reply unless it
        // is an error.
        let dry = has_checks && self.has_dry_run(command);
        let format = match (dry, has_checks, full) {
            (true, _, true) => c"DMSsv",
            (true, _, false) => c"DSsv",
            (false, true, true) => c"EMSsv",
            (false, true, false) => c"ESsv",
            (false, false, _) => c"sv",
        };
        let strings = Strings::new(self.api, arguments);
        // SAFETY: `ctx` is this call's; the format names a string that is valid during the call, and a vector
        // of strings with its length.
        let reply = unsafe {
            (self.api.call)(
                self.ctx.as_ptr(),
                command.as_ptr(),
                format.as_ptr(),
                key.ptr.as_ptr(),
                strings.0.as_ptr(),
                strings.0.len(),
            )
        };
        let errno = io::Error::last_os_error().raw_os_error();
        let Some(reply) = NonNull::new(reply) else {
            return if dry { Ok(()) } else { Err(Rejection::Moved) };
        };
        let rejection = match (self.error_text(reply), errno) {
            (None, _) => Ok(()),
            // The server's answer to a call for another node's key, for which it would redirect a client.
            (Some(_), Some(libc::EPERM | libc::EROFS)) => Err(Rejection::Moved),
            (Some(_), Some(libc::ENETDOWN)) => Err(Rejection::ClusterDown),
            (Some(text), _) => Err(Rejection::Refused(text)),
        };
        // SAFETY: the reply is the module's, and not used any more.
        unsafe { (self.api.free_call_reply)(reply.as_ptr()) };
        rejection
    }

    /// Whether the ACL allows the client's user this command on this key. A client that is not connected has
    /// no user.
    fn has_permission(&self, command: &CStr, key: Arg, arguments: &[&[u8]], client: u64) -> bool {
        let api = self.api;
        let (Some(user_name), Some(user), Some(free_user), Some(check)) =
            (api.client_user_name, api.module_user, api.free_module_user, api.check_permissions)
        else {
            return true;
        };
        // SAFETY: `ctx` is this call's; the server looks the number up.
        let Some(name) = NonNull::new(unsafe { user_name(self.ctx.as_ptr(), client) }) else { return true };
        // SAFETY: `name` is not null, so it is a string, which is the module's to free after its last use.
        let user = unsafe {
            let user = user(name.as_ptr());
            string::free(api, name.as_ptr());
            user
        };
        if user.is_null() {
            return true;
        }
        let words: Vec<&[u8]> =
            [command.to_bytes(), self.bytes(key)].into_iter().chain(arguments.iter().copied()).collect();
        let mut words = Strings::new(api, &words);
        let (start, count) = (words.0.as_mut_ptr(), c_int::try_from(words.0.len()).unwrap_or_default());
        // SAFETY: `user` is not null, so it is a user, freed after its last use; `count` strings are at
        // `start`.
        unsafe {
            let checked = match api.check_permissions_in {
                // Without a database, a user who is restricted to certain databases would be allowed none.
                Some(check_in) => check_in(user, start, count, self.db(), ptr::null_mut()),
                None => check(user, start, count),
            };
            free_user(user);
            checked == 0
        }
    }

    /// Whether the server has dry runs. A server without them does not look at the arguments, which are too
    /// few.
    fn has_dry_run(&self, command: &CStr) -> bool {
        *DRY_RUN.get_or_init(|| {
            // SAFETY: `ctx` is this call's; the format names no argument.
            let reply = unsafe { (self.api.call)(self.ctx.as_ptr(), command.as_ptr(), c"D".as_ptr()) };
            if reply.is_null() {
                return false;
            }
            // SAFETY: the reply is not null, so it is the module's, and not used any more.
            unsafe { (self.api.free_call_reply)(reply) };
            true
        })
    }

    /// The text of a reply that is an error.
    fn error_text(&self, reply: NonNull<RedisModuleCallReply>) -> Option<String> {
        // SAFETY: `reply` is not freed yet.
        let kind = unsafe { (self.api.call_reply_type)(reply.as_ptr()) };
        if isize::try_from(kind) != Ok(raw::REDISMODULE_REPLY_ERROR) {
            return None;
        }
        let mut len = 0;
        // SAFETY: `reply` is an error that is not freed yet, of which the server has the text.
        let start = unsafe { (self.api.call_reply_string)(reply.as_ptr(), &raw mut len) };
        if start.is_null() {
            return None;
        }
        // SAFETY: `start` is not null, so `len` bytes are there until the reply is freed.
        let text = unsafe { core::slice::from_raw_parts(start.cast::<u8>(), len) };
        Some(String::from_utf8_lossy(text).into_owned())
    }
}
