//! Loading: the entry points that the server looks for in the file, and the registration of commands.

use core::ffi::{CStr, c_int};
use core::ptr::NonNull;
use std::ffi::CString;

use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};

use super::api::{self, Api};
use super::call::Call;
use super::{effects, guard, metadata};
use crate::commands::{Command, Flag, Keys};

/// The name under which `MODULE LIST` shows the module, the one that redis-cell has always had.
const NAME: &CStr = c"redis-cell";

/// The version that `MODULE LIST` shows: two digits each for minor and patch level.
const VERSION: c_int = match (
    c_int::from_str_radix(env!("CARGO_PKG_VERSION_MAJOR"), 10),
    c_int::from_str_radix(env!("CARGO_PKG_VERSION_MINOR"), 10),
    c_int::from_str_radix(env!("CARGO_PKG_VERSION_PATCH"), 10),
) {
    (Ok(major), Ok(minor), Ok(patch)) => (major * 100 + minor) * 100 + patch,
    _ => panic!("the package's version is three numbers"),
};

/// Valkey's number for a module that has nothing against slots that migrate in one go.
const HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

const OK: c_int = 0;
const ERR: c_int = 1;

/// The server, while it loads the module.
pub struct Loading {
    api: &'static Api,
    ctx: NonNull<RedisModuleCtx>,
    arguments: usize,
}

impl Loading {
    /// How many arguments stand behind the file's name in the `loadmodule` directive.
    pub fn arguments(&self) -> usize {
        self.arguments
    }

    /// Makes `C` a command of the server.
    ///
    /// # Errors
    /// The command's name, when the server refuses it because another module has taken it.
    pub fn register<C: Command>(&self) -> Result<(), String> {
        let (spec, ctx) = (C::SPEC, self.ctx.as_ptr());
        // Servers know the word `blocking` since they know command metadata (Redis 7.0), and refuse what they do not.
        let modern = self.api.set_command_info.is_some();
        let words =
            spec.flags.iter().filter(|&&flag| modern || flag != Flag::Blocking).map(|flag| flag.word());
        let by_position = spec.keys == Keys::First;
        let words = words.chain((!by_position).then_some("getkeys-api")).collect::<Vec<_>>().join(" ");
        let position = c_int::from(by_position);
        // SAFETY: `ctx` is the load's; the server copies the texts; `entry` has the type of a command function.
        let status = unsafe {
            let flags = text(&words);
            (self.api.create_command)(
                ctx,
                spec.name.as_ptr(),
                Some(entry::<C>),
                flags.as_ptr(),
                position,
                position,
                position,
            )
        };
        if status == OK && metadata::describe(self.api, ctx, &spec) {
            Ok(())
        } else {
            Err(format!("the server refuses the command {}", spec.name.to_string_lossy()))
        }
    }
}

/// What the server calls when it loads the file.
///
/// # Safety
/// `ctx` is valid during the call, as the server sees to.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // the server's name for it
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut RedisModuleCtx,
    _argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // First of all, because Rust's memory comes from the server by the pointers that this hands out.
    // SAFETY: `ctx` is the server's, the name is a C string.
    let fresh = unsafe { raw::Export_RedisModule_Init(ctx, NAME.as_ptr(), VERSION, 1) } == OK;
    guard::install();
    let loaded = guard::catch(|| {
        let api = api::resolve().map_err(|name| format!("this server is too old: it has no {name}"))?;
        let ctx = NonNull::new(ctx).ok_or("the server gave no context")?;
        if !fresh {
            return Err(String::from("a module called redis-cell is loaded already; unload it first"));
        }
        // SAFETY: `ctx` is the load's.
        unsafe { (api.set_module_options)(ctx.as_ptr(), options(api)) };
        effects::follow(api, ctx.as_ptr());
        crate::load(&Loading { api, ctx, arguments: usize::try_from(argc).unwrap_or_default() })
    });
    match loaded.unwrap_or_else(Err) {
        Ok(()) => OK,
        Err(reason) => {
            log(ctx, &format!("not loaded: {reason}"));
            ERR
        }
    }
}

/// What the server may take for granted about this module.
fn options(api: &Api) -> c_int {
    let options = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        // No data types of ours are in an RDB, so none of its errors can be ours.
        | raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    let options = c_int::try_from(options).unwrap_or_default();

    // Valkey 9 migrates slots in one go when no module objects. Our keys are plain keys, so there is nothing to object
    // to. The option's number is Valkey's alone: only a server that answers to Valkey's name for the question has it.
    let mut known: Option<unsafe extern "C" fn() -> c_int> = None;
    // SAFETY: the function takes a name and a place for a pointer; the one asked for takes nothing.
    let known = unsafe {
        (api.get_api)(c"ValkeyModule_GetModuleOptionsAll".as_ptr(), (&raw mut known).cast());
        known.map_or(0, |known| known())
    };
    options | (known & HANDLE_ATOMIC_SLOT_MIGRATION)
}

/// What the server calls before it unloads the file, when no client is blocked by it.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // the server's name for it
extern "C" fn RedisModule_OnUnload(_ctx: *mut RedisModuleCtx) -> c_int {
    crate::unload();
    OK
}

/// What the server calls for a command: arity, the command itself, its errors, and the net below it.
///
/// # Safety
/// `ctx` and the `argc` strings at `argv` are valid during the call, as the server sees to.
unsafe extern "C" fn entry<C: Command>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    let Some(api) = api::get() else { return ERR };
    // SAFETY: the server vouches for `ctx` and `argv` while it runs the command.
    let Some(call) = (unsafe { Call::new(api, ctx, argv, argc) }) else {
        return ERR;
    };
    let outcome = guard::catch(|| {
        #[cfg(feature = "faults")]
        crate::faults::strike();
        if metadata::answered_positions(&call, &C::SPEC) {
            return;
        }
        if call.len() < C::SPEC.least_words {
            call.reply_wrong_arity();
        } else if let Err(error) = C::run(&call) {
            call.reply_error(&text(&error.to_string()));
        }
    });
    if let Err(panic) = outcome {
        log(ctx, &format!("{}: {panic}", C::SPEC.name.to_string_lossy()));
        call.reply_error(c"ERR internal error in redis-cell, see the server's log");
    }
    OK
}

/// Writes a line to the server's log.
pub(super) fn log(ctx: *mut RedisModuleCtx, line: &str) {
    let Some(api) = api::get() else { return };
    // SAFETY: the server takes any context, even none; the line is an argument of a format, never the format.
    unsafe { (api.log)(ctx, c"warning".as_ptr(), c"%s".as_ptr(), text(line).as_ptr()) };
}

/// `text` for the server. None of our texts has a NUL in it; one that had would be cut there.
pub(super) fn text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}
