//! What can be wrong with a call, in the words that the caller reads.

use core::fmt;

/// Why a call was not decided. [`Display`](fmt::Display) gives the reply's text, with Redis' error code in front.
///
/// No text repeats bytes of the client: they may be anything, and a line break in an error would break the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too many arguments, or an option that is unknown or given twice.
    Syntax,
    /// An argument that is not an integer, or lies outside what it may be on its own or beside the others.
    OutOfRange {
        /// The argument's name in the command's synopsis.
        name: &'static str,
        /// The smallest value it may have.
        min: i64,
        /// The largest value it may have in this call.
        max: i64,
    },
    /// A timeout that is no number of seconds, is negative, or is above 292 years.
    Timeout,
    /// The new state would lie past the last instant that the state can hold.
    BeyondTime,
    /// A call for several keys names one twice.
    SameKey,
    /// The key holds a value of another type.
    WrongType,
    /// The key holds a value of the right type that no limiter of this kind has written.
    Foreign {
        /// What the key should hold.
        expected: &'static str,
    },
    /// The key has moved to another node of the cluster while the caller waited.
    Moved,
    /// Refusals are not recorded.
    TopOff,
    /// The server has no such command of its own, because its configuration renames or disables it.
    Server {
        /// The command's name.
        command: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Syntax => f.write_str("ERR syntax error"),
            Self::OutOfRange { name, min, max } => {
                write!(f, "ERR {name} must be an integer from {min} to {max}")
            }
            Self::Timeout => f.write_str("ERR timeout must be a number of seconds from 0 to 9223372036"),
            Self::BeyondTime => f.write_str(
                "ERR quantity is out of range: the state would reach past the year 2262, the end of 64-bit nanoseconds",
            ),
            Self::SameKey => f.write_str("ERR the same key is named twice"),
            Self::WrongType => {
                f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value")
            }
            Self::Moved => f.write_str("TRYAGAIN The key has moved to another node while waiting"),
            Self::TopOff => f.write_str("ERR refusals are not recorded: the setting top-size is 0"),
            Self::Server { command } => write!(f, "ERR this limiter needs the server's {command}, which fails"),
            Self::Foreign { expected } => {
                write!(f, "ERR the key does not hold this limiter's state: expected {expected}")
            }
        }
    }
}
