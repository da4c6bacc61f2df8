//! What the server is told about a command beside its name: where its keys stand, and what they are used for.

use core::ffi::c_int;
use core::mem;
use core::ptr;

use redis_module::raw::{
    self, RedisModuleCommandArg, RedisModuleCommandHistoryEntry, RedisModuleCommandInfo,
    RedisModuleCommandInfoVersion, RedisModuleCommandKeySpec,
};

use super::api::Api;
use super::call::Call;
use crate::commands::{Flag, Keys, Spec};

/// Tells a server that has room for it (Redis 7.0) all that `spec` says. False when the server refuses it.
pub fn describe(api: &Api, ctx: *mut raw::RedisModuleCtx, spec: &Spec) -> bool {
    let (Some(get_command), Some(set_command_info)) = (api.get_command, api.set_command_info) else {
        return true;
    };
    let use_of_keys = if spec.flags.contains(&Flag::ReadOnly) {
        raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS
    } else {
        raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE
    };
    // SAFETY: plain data of the server's header, for which zeros are the empty value.
    let (mut keys, end): (RedisModuleCommandKeySpec, RedisModuleCommandKeySpec) = unsafe { mem::zeroed() };
    keys.flags = use_of_keys.into();
    keys.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    keys.bs.index.pos = 1;
    match spec.keys {
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
    let mut key_specs = [keys, end];
    let version = RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<RedisModuleCommandArg>(),
    };
    let info = RedisModuleCommandInfo {
        version: &raw const version,
        summary: spec.summary.as_ptr(),
        complexity: spec.complexity.as_ptr(),
        since: spec.since.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: c_int::try_from(spec.least_words).unwrap_or_default().wrapping_neg(),
        key_specs: key_specs.as_mut_ptr(),
        args: ptr::null_mut(),
    };
    // SAFETY: `ctx` is the load's; the server copies what `info` points to, which lives until it has.
    unsafe {
        let command = get_command(ctx, spec.name.as_ptr());
        !command.is_null() && set_command_info(command, &raw const info) == 0
    }
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
    for position in Keys::counted(call) {
        if let Ok(position) = c_int::try_from(position) {
            // SAFETY: `ctx` is that of a question for positions, as just checked.
            unsafe { (api.key_at_pos)(ctx, position) };
        }
    }
    true
}
