//! The arguments that several kinds have in common, as in the server's documentation.

use core::ffi::CStr;

use crate::ffi::{Argument, Type};

/// The numerator of a rate.
pub const COUNT: Argument =
    Argument::new(c"count", Type::Integer, c"Units per period in the long run, at least 1.");

/// The denominator of a rate, or the length of a window.
pub const PERIOD: Argument =
    Argument::new(c"period", Type::Integer, c"Length of the period in units of time, at least 1.");

/// The limit of a window.
pub const LIMIT: Argument = Argument::new(c"limit", Type::Integer, c"Units per period, at least 1.");

/// The quantity of one of several limiters.
pub const QUANTITY: Argument =
    Argument::new(c"quantity", Type::Integer, c"Units of this limiter; below 0 only for CL.MSETTLE.");

/// A kind among several limiters.
pub const fn kind(
    token: &'static CStr,
    name: &'static CStr,
    summary: &'static CStr,
    arguments: &'static [Argument],
) -> Argument {
    Argument::new(name, Type::Block(arguments), summary).after(token)
}
