//! The load of the module, during which it reads its arguments, registers, and logs the server's features.

use core::ffi::c_int;

use redis_module::raw;

use super::api::Api;
use super::call::Call;
use super::command::{self, Served};
use super::section::{self, Report};
use super::setting::{self, Setting};
use super::{events, metadata, needs, server_log};

/// Valkey's option for modules that do not object to the atomic migration of slots.
const HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Valkey's option for modules that accept that a key cannot be opened for writing while the server saves it
/// without a fork (Valkey 9.2).
const HANDLE_FORKLESS: c_int = 1 << 6;

/// The server while it loads the module.
pub struct LoadContext<'c> {
    /// The load as a call, with the arguments of `loadmodule` after the file's name.
    call: Call<'c>,
    own_category: bool,
}

impl<'c> LoadContext<'c> {
    /// Sets the module's options, follows the server's events, looks its commands up, and adds the ACL
    /// category, which must exist before the commands are registered.
    pub(super) fn new(call: Call<'c>) -> Self {
        let (api, ctx) = (call.api, call.ctx.as_ptr());
        // SAFETY: `ctx` is the load's.
        unsafe { (api.set_module_options)(ctx, options(api)) };
        events::follow(api, ctx);
        needs::look_up(&call);
        Self { call, own_category: metadata::add_category(api, ctx) }
    }

    /// The arguments of `loadmodule` after the file's name.
    pub fn arguments(&self) -> impl Iterator<Item = &'c [u8]> + use<'c> {
        self.call.rest(0)
    }

    /// Registers a command.
    ///
    /// # Errors
    /// If the server refuses it, because another module has a command of that name.
    pub fn register(&self, command: &Served) -> Result<(), String> {
        if command::register(self.call.api, self.call.ctx.as_ptr(), command, self.own_category) {
            Ok(())
        } else {
            Err(format!("the server refuses the command {}", command.spec.name.to_string_lossy()))
        }
    }

    /// Registers the section of `INFO`.
    pub fn register_info<R: Report>(&self) {
        section::register::<R>(self.call.api, self.call.ctx.as_ptr());
    }

    /// Registers settings on servers that keep settings of modules, which sets them to the values of the
    /// server's configuration. Their defaults are the values that they have now.
    ///
    /// # Errors
    /// If a value in the server's configuration is wrong.
    pub fn register_settings(&self, settings: &[Setting]) -> Result<(), String> {
        if setting::register(self.call.api, self.call.ctx.as_ptr(), settings) {
            Ok(())
        } else {
            Err(String::from("a setting in the server's configuration is wrong, see above"))
        }
    }

    /// Starts to follow whether other modules are loaded: the last step, which cannot fail.
    pub fn follow_modules(&self) {
        events::follow_modules(&self.call);
    }

    /// Whether the server has module keyspace events (Redis 6.2).
    pub fn has_module_events(&self) -> bool {
        // SAFETY: the function takes nothing.
        let classes = self.call.api.keyspace_classes.map_or(0, |classes| unsafe { classes() });
        classes & raw::REDISMODULE_NOTIFY_MODULE != 0
    }

    /// Logs one line about the version, the server, its features, and `settings`.
    pub fn announce(&self, settings: &str) {
        let api = self.call.api;
        let features = [
            ("expiries as instants", api.set_abs_expire.is_some()),
            ("fork events", events::are_followed()),
            ("module keyspace events", self.has_module_events()),
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
        let (version, server) = (env!("CARGO_PKG_VERSION"), self.server());
        let (found, missing) = (named(true), named(false));
        let line = format!("version {version} on {server}; found {found}; missing {missing}; {settings}");
        server_log::notice(self.call.ctx.as_ptr(), &line);
    }

    /// The server's name and version.
    fn server(&self) -> String {
        let version = |field| self.call.server_info(c"server").and_then(|info| info.text(field));
        let valkey = version(c"valkey_version").map(|version| format!("Valkey {version}"));
        let redis = || version(c"redis_version").map(|version| format!("Redis {version}"));
        valkey.or_else(redis).unwrap_or_else(|| String::from("an unknown server"))
    }
}

/// The module's options.
fn options(api: &Api) -> c_int {
    let options = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        // The module has no data types of its own in an RDB, so no read error can be about one.
        | raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    let options = c_int::try_from(options).unwrap_or_default();

    // Valkey 9 migrates slots atomically unless a module objects. This one objects neither to that nor to
    // saves without a fork, because limiters live under plain keys. The numbers of these options are Valkey's
    // own, so they are set only on a server that has the function of this Valkey name. SAFETY: the function
    // takes nothing.
    let known = api.known_options.map_or(0, |known| unsafe { known() });
    options | (known & (HANDLE_ATOMIC_SLOT_MIGRATION | HANDLE_FORKLESS))
}
