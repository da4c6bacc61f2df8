//! Loading: the entry points that the server looks for in the file, and the registration of commands.

use core::ffi::{CStr, c_int};
use core::ptr::NonNull;
use std::ffi::CString;

use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};

use super::api::{self, Api};
use super::call::Call;
use super::{config, effects, guard, info, metadata};
use crate::commands::{Command, Flag, Keys, Spec};
use crate::config::Settings;
use crate::outcome::conclude;

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
pub struct Loading<'c> {
    /// The load as a call, whose words are the arguments behind the file's name.
    call: Call<'c>,
    own_category: bool,
}

impl<'c> Loading<'c> {
    /// What stands behind the file's name in the `loadmodule` directive.
    pub fn arguments(&self) -> impl Iterator<Item = &'c [u8]> + use<'c> {
        self.call.rest(0)
    }

    /// Makes a row of the table a command of the server.
    ///
    /// # Errors
    /// The command's name, when the server refuses it because another module has taken it.
    pub fn register(&self, row: &Row) -> Result<(), String> {
        let (spec, api, ctx) = (&row.spec, self.call.api, self.call.ctx.as_ptr());
        // Servers know the word `blocking` since they know command metadata (Redis 7.0), and refuse what they do not.
        let modern = api.set_command_info.is_some();
        let words =
            spec.flags.iter().filter(|&&flag| modern || flag != Flag::Blocking).map(|flag| flag.word());
        let counted = (spec.keys == Keys::Counted).then_some("getkeys-api");
        let words = words.chain(counted).collect::<Vec<_>>().join(" ");
        let position = c_int::from(spec.keys == Keys::First);
        // SAFETY: `ctx` is the load's; the server copies the texts; `entry` has the type of a command function.
        let status = unsafe {
            let flags = text(&words);
            (api.create_command)(
                ctx,
                spec.name.as_ptr(),
                Some(row.entry),
                flags.as_ptr(),
                position,
                position,
                position,
            )
        };
        if status == OK
            && metadata::describe(api, ctx, spec)
            && metadata::categorise(api, ctx, spec, self.own_category)
        {
            Ok(())
        } else {
            Err(format!("the server refuses the command {}", spec.name.to_string_lossy()))
        }
    }

    /// Has the server ask for the module's section when somebody asks it for `INFO`.
    pub fn register_info(&self) {
        info::register(self.call.api, self.call.ctx.as_ptr());
    }

    /// Puts the settings into force, where the server knows settings of modules with its own configuration on top.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn configure(&self, settings: Settings) -> Result<(), String> {
        if settings.notify_refusals && !self.call.has_module_events() {
            return Err(String::from(
                "this server has no keyspace events of modules, which notify-refusals needs",
            ));
        }
        settings.apply();
        config::register(self.call.api, self.call.ctx.as_ptr(), settings)
    }

    /// Writes the one line that says what was found: the server, what it offers, and the settings.
    pub fn announce(&self) {
        let api = self.call.api;
        let features = [
            ("expiries as instants", api.set_abs_expire.is_some()),
            ("events of forks", effects::are_followed()),
            ("keyspace events of modules", self.call.has_module_events()),
            ("command metadata", api.set_command_info.is_some()),
            ("module configuration", api.load_configs.is_some()),
            ("ACL categories of commands", api.set_command_acl_categories.is_some()),
            ("ACL category rate_limit", self.own_category),
        ];
        let named = |there: bool| {
            let names: Vec<&str> =
                features.iter().filter(|(_, found)| *found == there).map(|(name, _)| *name).collect();
            if names.is_empty() { String::from("nothing") } else { names.join(", ") }
        };
        let settings = Settings::current();
        let line = format!(
            "version {} on {}; found {}; missing {}; top-size {}, notify-refusals {}",
            env!("CARGO_PKG_VERSION"),
            self.call.server(),
            named(true),
            named(false),
            settings.top_size,
            if settings.notify_refusals { "yes" } else { "no" },
        );
        write_log(self.call.ctx.as_ptr(), c"notice", &line);
    }
}

/// A row in the table of commands.
pub struct Row {
    /// How the server sees the command.
    pub spec: Spec,
    entry: unsafe extern "C" fn(*mut RedisModuleCtx, *mut *mut RedisModuleString, c_int) -> c_int,
}

/// The row of `C`.
pub const fn row<C: Command>() -> Row {
    Row { spec: C::SPEC, entry: entry::<C> }
}

/// What the server calls when it loads the file.
///
/// # Safety
/// `ctx` and the `argc` strings at `argv` are valid during the call, as the server sees to.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // the server's name for it
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
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
        // Before any command can be put into it.
        let own_category = metadata::add_category(api, ctx.as_ptr());
        // SAFETY: the server vouches for `ctx` and `argv` while it loads the module.
        let call = unsafe { Call::new(api, ctx.as_ptr(), argv, argc) };
        // Without arguments there is not even a list of them.
        let call = call.unwrap_or_else(|| Call::without_arguments(api, ctx));
        crate::load(&Loading { call, own_category })
    });
    match loaded.unwrap_or_else(Err) {
        Ok(()) => OK,
        Err(reason) => {
            log(ctx, &format!("not loaded: {reason}"));
            // One that is loaded already goes on with all it has: it is the same file, and these are its statics.
            if fresh && let Some(api) = api::get() {
                effects::unfollow(api, ctx);
                crate::unload();
            }
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
        if call.len() < const { C::SPEC.least_words() } {
            call.reply_wrong_arity();
        } else {
            conclude::<C>(&call, &C::run(&call));
        }
    });
    if let Err(panic) = outcome {
        guard::report(ctx, &C::SPEC.name.to_string_lossy(), &panic);
        call.reply_error_text(c"ERR internal error in redis-cell, see the server's log");
    }
    OK
}

/// Warns in the server's log.
pub(super) fn log(ctx: *mut RedisModuleCtx, line: &str) {
    write_log(ctx, c"warning", line);
}

/// Writes a line to the server's log.
fn write_log(ctx: *mut RedisModuleCtx, level: &CStr, line: &str) {
    let Some(api) = api::get() else { return };
    // SAFETY: the server takes any context, even none; the line is an argument of a format, never the format.
    unsafe { (api.log)(ctx, level.as_ptr(), c"%s".as_ptr(), text(line).as_ptr()) };
}

/// `text` for the server. None of our texts has a NUL in it; one that had would be cut there.
pub(super) fn text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}
