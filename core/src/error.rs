//! Errors in the words that the caller reads.

use core::fmt;

/// The reason why a call was not decided. [`Display`](fmt::Display) gives the reply's text, with Redis' error
/// code in front.
///
/// No text repeats bytes from the client: they may be anything, and a line break in an error would break the
/// protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too many arguments, or an option that is unknown or repeated.
    Syntax,
    /// An argument that is not an integer, or lies outside its range, on its own or because of the other
    /// arguments.
    OutOfRange {
        /// The argument's name in the command's synopsis.
        name: &'static str,
        /// The smallest value it may have.
        min: i64,
        /// The largest value it may have in this call.
        max: i64,
    },
    /// A window that is neither a period nor a word for one.
    Window {
        /// The longest period, in the unit of the call.
        longest: i64,
    },
    /// A count that would read as the state of another limiter.
    Ambiguous,
    /// Limiters that `SPILL` joins with different quantities.
    Quantities,
    /// A place beside `SPILL`, which has no parts.
    SpiltLease,
    /// A timeout that is not a number of seconds, is negative, or is above 292 years.
    Timeout,
    /// The new state would lie past the last instant that a state can hold.
    BeyondTime,
    /// The key holds a value of the right type that no limiter of this kind has written.
    Foreign {
        /// The expected content of the key.
        expected: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Syntax => f.write_str("ERR syntax error"),
            Self::OutOfRange { name, min, max } => {
                write!(f, "ERR {name} must be an integer from {min} to {max}")
            }
            Self::Window { longest } => write!(
                f,
                "ERR period must be an integer from 1 to {longest}, or HOUR, DAY, WEEK, MONTH, YEAR, UNTIL or TOTAL"
            ),
            Self::Ambiguous => f.write_str(
                "ERR quantity is out of range: the count would be the end of its window in nanoseconds, a state of CL.THROTTLE",
            ),
            Self::Quantities => f.write_str("ERR quantity must be the same for all limiters that SPILL joins"),
            Self::SpiltLease => f.write_str("ERR a LEASE cannot stand beside SPILL"),
            Self::Timeout => f.write_str("ERR timeout must be a number of seconds from 0 to 9223372036"),
            Self::BeyondTime => f.write_str(
                "ERR quantity is out of range: the state would reach past the year 2262, the end of 64-bit nanoseconds",
            ),
            Self::Foreign { expected } => {
                write!(f, "ERR the key does not hold this limiter's state: expected {expected}")
            }
        }
    }
}

impl core::error::Error for Error {}
