//! The metadata of a command: its documentation, its arguments, its keys and its ACL categories.

use core::ffi::{CStr, c_int};
use core::mem;
use core::ptr;
use std::io;

use redis_module::raw::{
    self, RedisModuleCommandArg, RedisModuleCommandHistoryEntry, RedisModuleCommandInfo,
    RedisModuleCommandInfoVersion, RedisModuleCommandKeySpec,
};

use super::api::Api;
use super::spec::{Argument, Flag, Keys, Spec, Type, Use};
use super::string::text;

/// Registers the metadata on servers that have it (Redis 7.0). False when the server refuses it.
pub fn describe(api: &Api, ctx: *mut raw::RedisModuleCtx, spec: &Spec) -> bool {
    let (Some(get_command), Some(set_command_info)) = (api.get_command, api.set_command_info) else {
        return true;
    };
    let summary = text(&format!("{} {}", spec.summary, spec.reply));
    let mut key_specs = key_specs(spec);
    let mut arguments = Arguments::new(spec.arguments);
    let version = RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<RedisModuleCommandArg>(),
    };
    let info = RedisModuleCommandInfo {
        version: &raw const version,
        summary: summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: spec.since.as_ptr(),
        history: ptr::null_mut(),
        tips: if spec.tips.is_empty() { ptr::null() } else { spec.tips.as_ptr() },
        arity: c_int::try_from(spec.arity()).unwrap_or_default().wrapping_neg(),
        key_specs: key_specs.as_mut_ptr(),
        args: arguments.rows.as_mut_ptr(),
    };
    // SAFETY: `ctx` is the load's; `info` and what it points to live until the server has copied them.
    unsafe {
        let command = get_command(ctx, spec.name.as_ptr());
        !command.is_null() && set_command_info(command, &raw const info) == 0
    }
}

/// The ACL category that the module adds to servers that allow it (Redis 7.4).
pub const CATEGORY: &CStr = c"rate_limit";

/// Adds the category. False if the server does not allow that.
pub fn add_category(api: &Api, ctx: *mut raw::RedisModuleCtx) -> bool {
    let Some(add) = api.add_acl_category else { return false };
    // SAFETY: `ctx` is the load's; the server copies the name.
    let added = unsafe { add(ctx, CATEGORY.as_ptr()) } == 0;
    // The category may exist already, because the server keeps it when it unloads the module.
    added || io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY)
}

/// Puts a command into the categories that its flags imply, and into [`CATEGORY`] if `own` says that it
/// exists and the command has keys: `CL.TOP`, which shows all clients' keys, is not meant for every user of a
/// limiter. False when the server refuses it.
pub fn categorise(api: &Api, ctx: *mut raw::RedisModuleCtx, spec: &Spec, own: bool) -> bool {
    let (Some(get_command), Some(set_categories)) = (api.get_command, api.set_command_acl_categories) else {
        return true;
    };
    let own =
        if own && !matches!(spec.keys, Keys::None) { CATEGORY.to_str().unwrap_or_default() } else { "" };
    let speed = if spec.flags.contains(&Flag::Fast) { "" } else { "slow" };
    let names = spec.flags.iter().map(|flag| flag.categories()).chain([speed, own]);
    let names = text(&names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" "));
    // SAFETY: `ctx` is the load's; the server reads the names before it returns.
    unsafe {
        let command = get_command(ctx, spec.name.as_ptr());
        !command.is_null() && set_categories(command, names.as_ptr()) == 0
    }
}

/// The server's flags of a key with this use.
pub fn key_flags(uses: Use) -> u32 {
    let (access, update, delete) =
        (raw::REDISMODULE_CMD_KEY_ACCESS, raw::REDISMODULE_CMD_KEY_UPDATE, raw::REDISMODULE_CMD_KEY_DELETE);
    match uses {
        Use::None => 0,
        Use::Read => raw::REDISMODULE_CMD_KEY_RO | access,
        Use::ReadUpdate => raw::REDISMODULE_CMD_KEY_RW | access | update,
        Use::Update => raw::REDISMODULE_CMD_KEY_RW | update,
        Use::Delete => raw::REDISMODULE_CMD_KEY_RW | delete,
    }
}

/// The positions of the keys, and their use by the command. An empty entry ends the list.
fn key_specs(spec: &Spec) -> Vec<RedisModuleCommandKeySpec> {
    let mut keys = no_keys();
    keys.flags = key_flags(spec.uses).into();
    keys.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    keys.bs.index.pos = 1;
    match spec.keys {
        Keys::None => return vec![no_keys()],
        Keys::First => {
            keys.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            keys.fk.range.keystep = 1;
        }
        // The first key. For the others, the server asks the command.
        Keys::Found(_) => {
            keys.flags |= u64::from(raw::REDISMODULE_CMD_KEY_INCOMPLETE);
            keys.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            keys.fk.range.keystep = 1;
        }
    }
    vec![keys, no_keys()]
}

/// Arguments in the server's form, with the arguments inside them. An empty entry ends each list.
struct Arguments {
    rows: Vec<RedisModuleCommandArg>,
    /// The lists that `subargs` of `rows` point to.
    _inside: Vec<Arguments>,
}

impl Arguments {
    fn new(arguments: &[Argument]) -> Self {
        let (mut rows, mut inside) = (Vec::new(), Vec::new());
        for argument in arguments {
            let (kind, parts) = match argument.kind {
                Type::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, None),
                Type::String => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING, None),
                Type::Integer => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER, None),
                Type::Double => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE, None),
                Type::Token => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN, None),
                Type::OneOf(parts) => {
                    (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF, Some(parts))
                }
                Type::Block(parts) => {
                    (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK, Some(parts))
                }
            };
            let subargs = parts.map_or(ptr::null_mut(), |parts| {
                let mut parts = Self::new(parts);
                // Moving the parts does not move the list that they own.
                let rows = parts.rows.as_mut_ptr();
                inside.push(parts);
                rows
            });
            let flag = |given: bool, flag: u32| if given { flag } else { 0 };
            let flags = flag(argument.optional, raw::REDISMODULE_CMD_ARG_OPTIONAL)
                | flag(argument.multiple, raw::REDISMODULE_CMD_ARG_MULTIPLE);
            rows.push(RedisModuleCommandArg {
                name: argument.name.as_ptr(),
                type_: kind,
                token: argument.token.map_or(ptr::null(), CStr::as_ptr),
                summary: argument.summary.as_ptr(),
                flags: flags.cast_signed(),
                subargs,
                ..no_argument()
            });
        }
        rows.push(no_argument());
        Self { rows, _inside: inside }
    }
}

/// The empty entry that ends a list of arguments.
fn no_argument() -> RedisModuleCommandArg {
    // SAFETY: plain data of the server's header, for which zeros are the empty value.
    unsafe { mem::zeroed() }
}

/// The empty entry that ends a list of key specifications.
fn no_keys() -> RedisModuleCommandKeySpec {
    // SAFETY: plain data of the server's header, for which zeros are the empty value.
    unsafe { mem::zeroed() }
}
