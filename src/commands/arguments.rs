//! The arguments that several commands share: how the server describes them, and how a call's are read.

use core::ffi::CStr;

use redis_cell_core::{Keyword, Tail, bucket, gcra};

use crate::error::Error;
use crate::ffi::{Arg, Argument, Call, Keys, Spec, Type, Use};

/// What most commands have in common: one key, which they read and may update in constant time.
pub const LIMITER: Spec = Spec {
    name: c"",
    summary: "",
    reply: "Replies five integers: limited, limit, remaining, retry_after, reset_after.",
    complexity: c"O(1)",
    since: c"1.0.0",
    arguments: &[],
    flags: &[],
    keys: Keys::First,
    uses: Use::ReadUpdate,
    tips: NONDETERMINISTIC,
};

/// The tip for a reply that depends on the time.
const NONDETERMINISTIC: &CStr = c"nondeterministic_output";

/// The key of a limiter.
pub const KEY: Argument = Argument::new(c"key", Type::Key, c"Key that holds the state.");

/// The burst of GCRA.
pub const MAX_BURST: Argument =
    Argument::new(c"max_burst", Type::Integer, c"Units allowed at once on top of one, at least 0.");

/// The depth of funnel and bucket.
pub const CAPACITY: Argument =
    Argument::new(c"capacity", Type::Integer, c"Units allowed at once, at least 1.");

/// The numerator of a rate.
pub const COUNT: Argument =
    Argument::new(c"count", Type::Integer, c"Units per period in the long run, at least 1.");

/// The denominator of a rate, or the length of a window.
pub const PERIOD: Argument =
    Argument::new(c"period", Type::Integer, c"Length of the period in units of time, at least 1.");

/// The limit of a window.
pub const LIMIT: Argument = Argument::new(c"limit", Type::Integer, c"Units per period, at least 1.");

/// The limit of a log, whose entries cost memory.
pub const LOG_LIMIT: Argument = Argument::new(c"limit", Type::Integer, c"Units per period, 1 to 1,000,000.");

/// The limit of a set of leases.
pub const PLACES: Argument = Argument::new(c"limit", Type::Integer, c"Holders allowed at once, at least 1.");

/// The units that a call takes, gives back or asks for.
pub const QUANTITY: Argument =
    Argument::new(c"quantity", Type::Integer, c"Units of this call, at least 0; 1 by default.").optional();

/// The option to take a part of the quantity.
pub const SATURATE: Argument = Argument::token(
    c"SATURATE",
    c"saturate",
    c"Take as much of the quantity as fits, instead of all or nothing.",
)
.optional();

/// The reply of a command with this option.
pub const WITH_TAKEN: &str =
    "Replies limited, limit, remaining, retry_after, reset_after; with SATURATE also the quantity taken.";

/// The holder of a lease.
pub const ID: Argument = Argument::new(c"id", Type::String, c"Name of the holder.");

/// The length of a lease.
pub const LEASE: Argument =
    Argument::new(c"lease", Type::Integer, c"Time until the lease expires, in units of time, at least 1.");

/// The unit of time.
pub const UNIT: Argument = Argument::new(
    c"unit",
    Type::OneOf(&[
        Argument::token(c"S", c"seconds", c"Seconds, the default."),
        Argument::token(c"MS", c"milliseconds", c"Milliseconds."),
        Argument::token(c"US", c"microseconds", c"Microseconds."),
    ]),
    c"Unit of every time in the call and in its reply.",
)
.optional();

/// Reads `key max_burst count period [quantity] [options]`, the arguments of GCRA.
///
/// # Errors
/// Those of [`Tail::parse`] and [`gcra::Limit::parse`].
pub fn gcra_args<'c>(call: &Call<'c>, known: &[Keyword]) -> Result<(Arg<'c>, gcra::Limit, Tail), Error> {
    let [key, limit @ ..] = call.positional::<4>()?;
    let tail = Tail::parse(call.rest(5), known)?;
    let limit = gcra::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
    Ok((key, limit, tail))
}

/// Reads `key capacity count period [quantity] [SATURATE] [unit]`, the arguments of funnel and bucket.
///
/// # Errors
/// Those of [`Tail::parse`] and [`bucket::Limit::parse`].
pub fn bucket_args<'c>(call: &Call<'c>) -> Result<(Arg<'c>, bucket::Limit, Tail), Error> {
    let [key, limit @ ..] = call.positional::<4>()?;
    let tail = Tail::parse(call.rest(5), &[Keyword::Saturate])?;
    let limit = bucket::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
    Ok((key, limit, tail))
}
