//! What the server is told about a command beside its name: what it does, its arguments, its keys and its categories.

use core::ffi::{CStr, c_int};
use core::mem;
use core::ptr;
use std::io;

use redis_module::raw::{
    self, RedisModuleCommandArg, RedisModuleCommandHistoryEntry, RedisModuleCommandInfo,
    RedisModuleCommandInfoVersion, RedisModuleCommandKeySpec,
};

use super::api::Api;
use super::call::Call;
use super::load::text;
use crate::commands::{Argument, Flag, Keys, Kind, Spec, Use};

/// Tells a server that has room for it (Redis 7.0) all that `spec` says. False when the server refuses it.
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
        arity: c_int::try_from(spec.least_words()).unwrap_or_default().wrapping_neg(),
        key_specs: key_specs.as_mut_ptr(),
        args: arguments.rows.as_mut_ptr(),
    };
    // SAFETY: `ctx` is the load's; the server copies what `info` points to, which lives until it has.
    unsafe {
        let command = get_command(ctx, spec.name.as_ptr());
        !command.is_null() && set_command_info(command, &raw const info) == 0
    }
}

/// The category of the ACL that a server with room for it (Redis 7.4) has of ours.
pub const CATEGORY: &CStr = c"rate_limit";

/// Adds the category. False when the server has no room for it.
pub fn add_category(api: &Api, ctx: *mut raw::RedisModuleCtx) -> bool {
    let Some(add) = api.add_acl_category else { return false };
    // SAFETY: `ctx` is the load's; the server copies the name.
    let added = unsafe { add(ctx, CATEGORY.as_ptr()) } == 0;
    // It may be there already: the server leaves it behind when it unloads the module.
    added || io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY)
}

/// Puts a command into the categories that its flags imply, and into our own if there is one and its keys are all that
/// it can tell of. False when the server refuses it.
pub fn categorise(api: &Api, ctx: *mut raw::RedisModuleCtx, spec: &Spec, own: bool) -> bool {
    let (Some(get_command), Some(set_categories)) = (api.get_command, api.set_command_acl_categories) else {
        return true;
    };
    let own = if own && spec.keys != Keys::None { CATEGORY.to_str().unwrap_or_default() } else { "" };
    let speed = if spec.flags.contains(&Flag::Fast) { "" } else { "slow" };
    let words: Vec<&str> = spec.flags.iter().map(|flag| flag.categories()).chain([speed, own]).collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    // SAFETY: `ctx` is the load's; the server reads the words before it returns.
    unsafe {
        let command = get_command(ctx, spec.name.as_ptr());
        !command.is_null() && set_categories(command, text(&words.join(" ")).as_ptr()) == 0
    }
}

/// Where the keys stand and what they are used for, ending in an empty entry.
fn key_specs(spec: &Spec) -> Vec<RedisModuleCommandKeySpec> {
    let (access, update, delete) =
        (raw::REDISMODULE_CMD_KEY_ACCESS, raw::REDISMODULE_CMD_KEY_UPDATE, raw::REDISMODULE_CMD_KEY_DELETE);
    let flags = match spec.uses {
        Use::Nothing => 0,
        Use::Look => raw::REDISMODULE_CMD_KEY_RO | access,
        Use::Take => raw::REDISMODULE_CMD_KEY_RW | access | update,
        Use::Change => raw::REDISMODULE_CMD_KEY_RW | update,
        Use::Delete => raw::REDISMODULE_CMD_KEY_RW | delete,
    };
    // SAFETY: plain data of the server's header, for which zeros are the empty value.
    let (mut keys, end): (RedisModuleCommandKeySpec, RedisModuleCommandKeySpec) = unsafe { mem::zeroed() };
    keys.flags = flags.into();
    keys.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    keys.bs.index.pos = 1;
    match spec.keys {
        Keys::None => return vec![end],
        Keys::First => {
            keys.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            keys.fk.range.keystep = 1;
        }
        Keys::Counted => {
            keys.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            keys.fk.keynum.firstkey = 1;
            keys.fk.keynum.keystep = 1;
        }
    }
    vec![keys, end]
}

/// Arguments in the server's own form, ending in an empty one, and those inside of them.
struct Arguments {
    rows: Vec<RedisModuleCommandArg>,
    /// What `subargs` of `rows` point to.
    _inside: Vec<Arguments>,
}

impl Arguments {
    fn new(arguments: &[Argument]) -> Self {
        let (mut rows, mut inside) = (Vec::new(), Vec::new());
        for argument in arguments {
            let (kind, parts) = match argument.kind {
                Kind::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, None),
                Kind::String => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING, None),
                Kind::Integer => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER, None),
                Kind::Double => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE, None),
                Kind::Token => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN, None),
                Kind::OneOf(parts) => {
                    (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF, Some(parts))
                }
                Kind::Block(parts) => {
                    (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK, Some(parts))
                }
            };
            let subargs = parts.map_or(ptr::null_mut(), |parts| {
                let mut parts = Self::new(parts);
                // Moving the parts does not move what they own.
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

/// What ends a list of arguments.
fn no_argument() -> RedisModuleCommandArg {
    // SAFETY: plain data of the server's header, for which zeros are the empty value.
    unsafe { mem::zeroed() }
}

/// Answers the server's question for the keys of a call, if that is what it is; false when it is a call.
pub fn answered_positions(call: &Call, spec: &Spec) -> bool {
    if spec.keys != Keys::Counted {
        return false;
    }
    let (api, ctx) = (call.api, call.ctx.as_ptr());
    // SAFETY: `ctx` is this call's.
    if unsafe { (api.is_keys_position_request)(ctx) } == 0 {
        return false;
    }
    for position in spec.keys.positions(call) {
        if let Ok(position) = c_int::try_from(position) {
            // SAFETY: `ctx` is that of a question for positions, as just checked.
            unsafe { (api.key_at_pos)(ctx, position) };
        }
    }
    true
}
