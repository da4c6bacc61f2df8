//! The server's own commands that the module replicates or runs, and whether this server has them.
//!
//! `rename-command` in the server's configuration can remove a command. Renames are fixed when the server
//! starts, so the commands are looked up once, when the module loads. A write that needs a missing command is
//! an error before anything is written; otherwise a state would change here but not on replicas.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::io;

use super::api;
use super::call::Call;
use super::server_log;
use crate::error::Error;

/// A kind of write, for which the server must have certain commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The value and the expiry of a string.
    String,
    /// Fields and the expiry of a hash.
    Hash,
    /// Entries and the expiry of a sorted set.
    SortedSet,
    /// The parts of holds and the expiry of their sorted set.
    Holds,
    /// Deletes the key.
    Delete,
    /// Deletes the key, and frees its value in the background if it is large.
    Unlink,
}

/// Every command that the module replicates or runs.
const COMMANDS: [&CStr; 11] = [
    c"SET",
    c"HSET",
    c"PEXPIREAT",
    c"PERSIST",
    c"ZADD",
    c"ZREM",
    c"ZREMRANGEBYRANK",
    c"ZRANGE",
    c"ZCOUNT",
    c"DEL",
    c"UNLINK",
];

/// The commands that this server does not have, a bit for each of [`COMMANDS`].
static MISSING: AtomicU32 = AtomicU32::new(0);

impl Write {
    /// The commands that carry out this write here, on replicas and in the AOF.
    fn commands(self) -> &'static [&'static CStr] {
        match self {
            Self::String if api::get().is_some_and(|api| api.set_abs_expire.is_some()) => &[c"SET"],
            Self::String => &[c"SET", c"PEXPIREAT"],
            Self::Hash => &[c"HSET", c"PEXPIREAT"],
            Self::SortedSet => &[c"ZADD", c"ZREM", c"ZREMRANGEBYRANK", c"PEXPIREAT"],
            Self::Holds => &[c"ZADD", c"ZREM", c"PEXPIREAT", c"PERSIST"],
            Self::Unlink if !is_missing(c"UNLINK") => &[c"UNLINK"],
            Self::Delete | Self::Unlink => &[c"DEL"],
        }
    }

    /// Makes sure that the server has the commands for this write.
    ///
    /// # Errors
    /// [`Error::Server`] naming the first command that is missing.
    #[inline]
    pub fn check(self) -> Result<(), Error> {
        if MISSING.load(Relaxed) == 0 { Ok(()) } else { self.find_missing() }
    }

    #[cold]
    fn find_missing(self) -> Result<(), Error> {
        self.commands().iter().find(|command| is_missing(command)).map_or(Ok(()), |command| failed(command))
    }
}

/// The error of a call that needs a command that the server does not run.
pub(super) fn failed<T>(command: &'static CStr) -> Result<T, Error> {
    Err(Error::Server { command: command.to_str().unwrap_or_default() })
}

/// The command that replicates [`Write::Unlink`].
pub(super) fn unlink() -> &'static CStr {
    if is_missing(c"UNLINK") { c"DEL" } else { c"UNLINK" }
}

/// Whether the server lacks one of [`COMMANDS`].
fn is_missing(command: &CStr) -> bool {
    let missing = MISSING.load(Relaxed);
    COMMANDS.iter().zip(0..u32::BITS).any(|(name, bit)| *name == command && missing >> bit & 1 == 1)
}

/// Looks the commands up, and logs which ones are missing.
pub(super) fn look_up(call: &Call) {
    let missing = COMMANDS.iter().zip(0..u32::BITS).filter(|(command, _)| !call.knows(command));
    MISSING.store(missing.clone().fold(0, |bits, (_, bit)| bits | 1 << bit), Relaxed);
    let names: Vec<_> = missing.map(|(command, _)| command.to_string_lossy()).collect();
    if !names.is_empty() {
        let names = names.join(", ");
        server_log::warning(
            call.ctx.as_ptr(),
            &format!(
                "not available on this server: {names}; calls that cannot do without are answered with an error"
            ),
        );
    }
}

impl Call<'_> {
    /// Whether the server knows a command. It must be one that takes arguments.
    fn knows(&self, command: &CStr) -> bool {
        // SAFETY: the format says that no arguments follow, so a command that requires arguments is not run.
        let reply = unsafe { (self.api.call)(self.ctx.as_ptr(), command.as_ptr(), c"".as_ptr()) };
        let error = io::Error::last_os_error().raw_os_error();
        if !reply.is_null() {
            // SAFETY: the reply is not null, so it is ours, and not freed yet.
            unsafe { (self.api.free_call_reply)(reply) };
            return true;
        }
        error != Some(libc::ENOENT)
    }

    /// Checks the result of `RM_Replicate` for `command`: the server rejects a command that it does not know.
    /// After [`Write::check`], it knows the command.
    pub(super) fn replicated(&self, status: c_int, command: &'static CStr) {
        if status != 0 {
            let line = format!("the effect {} was not replicated", command.to_string_lossy());
            server_log::warning(self.ctx.as_ptr(), &line);
        }
    }
}
