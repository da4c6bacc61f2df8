//! The arguments that several commands share, as in the server's documentation. The arguments of the kinds of
//! limiters are in `limiters`.

use core::ffi::CStr;

use crate::ffi::{Argument, Keys, Spec, Type, Use};

/// The description that most commands share: one key, which they read and may update in constant time.
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

/// The units that a call takes, gives back or checks.
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
