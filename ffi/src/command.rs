//! Commands: their registration, and the function that the server runs for every call of them.

use core::ffi::c_int;

use redis_module::raw::{RedisModuleCtx, RedisModuleString};

use super::api::{self, Api};
use super::call::Call;
use super::spec::{Flag, Keys, Spec};
use super::string::text;
use super::{metadata, panic};
use crate::faults;

const OK: c_int = 0;
const ERR: c_int = 1;

/// A command.
pub trait Serve {
    /// Its description for the server.
    const SPEC: Spec;

    /// Runs a call that has at least as many arguments as the command requires, and replies once, unless it
    /// blocks the client.
    fn serve(call: &Call);
}

/// The registration of a command.
pub struct Served {
    /// Its description for the server.
    pub spec: Spec,
    run: unsafe extern "C" fn(*mut RedisModuleCtx, *mut *mut RedisModuleString, c_int) -> c_int,
}

/// The registration of `C`.
pub const fn served<C: Serve>() -> Served {
    Served { spec: C::SPEC, run: run::<C> }
}

/// Registers a command with its metadata, in the category of limiters if there is one. False when the server
/// refuses it.
pub fn register(api: &Api, ctx: *mut RedisModuleCtx, command: &Served, own_category: bool) -> bool {
    let spec = &command.spec;
    // The flag `blocking` came with command metadata (Redis 7.0); earlier servers refuse a flag that they do
    // not know.
    let modern = api.set_command_info.is_some();
    let flags = spec.flags.iter().filter(|&&flag| modern || flag != Flag::Blocking).map(|flag| flag.name());
    let found = matches!(spec.keys, Keys::Found(_)).then_some("getkeys-api");
    let flags = text(&flags.chain(found).collect::<Vec<_>>().join(" "));
    let position = c_int::from(!matches!(spec.keys, Keys::None));
    let (name, run) = (spec.name.as_ptr(), Some(command.run));
    // SAFETY: `ctx` is the load's; the server copies the texts; `run` has the type of a command function.
    let status =
        unsafe { (api.create_command)(ctx, name, run, flags.as_ptr(), position, position, position) };
    status == OK && metadata::describe(api, ctx, spec) && metadata::categorise(api, ctx, spec, own_category)
}

/// The function that the server runs for a call of `C`: checks the arity, serves the call, and turns a panic
/// into an error reply.
///
/// # Safety
/// `ctx` and the `argc` strings at `argv` are valid during the call. The server guarantees this.
unsafe extern "C" fn run<C: Serve>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    let Some(api) = api::get() else { return ERR };
    // SAFETY: the caller vouches for `ctx` and `argv`.
    let Some(call) = (unsafe { Call::new(api, ctx, argv, argc) }) else { return ERR };
    let outcome = panic::catch(|| {
        faults::begin_call();
        if replied_positions(&call, &C::SPEC) {
            return;
        }
        if call.len() < const { C::SPEC.arity() } {
            call.reply_wrong_arity();
        } else {
            C::serve(&call);
        }
    });
    if let Err(message) = outcome {
        panic::report(ctx, &C::SPEC.name.to_string_lossy(), &message);
        call.reply_error(&"ERR internal error in redis-cell, see the server's log");
    }
    OK
}

/// Returns the positions of the keys to the server, if it requests them instead of running the call; false if
/// it does not.
fn replied_positions(call: &Call, spec: &Spec) -> bool {
    let Keys::Found(find) = spec.keys else { return false };
    let (api, ctx) = (call.api, call.ctx.as_ptr());
    // SAFETY: `ctx` is this call's.
    if unsafe { (api.is_keys_position_request)(ctx) } == 0 {
        return false;
    }
    let flags = metadata::key_flags(spec.uses).cast_signed();
    for position in find(call).into_iter().filter_map(|position| c_int::try_from(position).ok()) {
        // SAFETY: the server requests positions, as just checked.
        unsafe {
            match api.key_at_pos_with_flags {
                Some(key_at_pos) => key_at_pos(ctx, position, flags),
                None => (api.key_at_pos)(ctx, position),
            }
        }
    }
    true
}
