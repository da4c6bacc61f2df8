//! Every error that a caller can read: the errors of the core, and of the server's side.

use core::fmt;

/// The server's error for a call that needs memory when it is out of memory.
pub const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// The reason why a call was not answered. [`Display`](fmt::Display) gives the reply's text, with Redis'
/// error code in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// An error of the core about the arguments, the stored state or the time.
    Core(redis_cell_core::Error),
    /// The same key is given twice in a call for several keys.
    SameKey,
    /// The key holds a value of another type.
    WrongType,
    /// The key has moved to another node of the cluster while the caller waited.
    Moved,
    /// The cluster is down when the turn of a waiting caller comes.
    ClusterDown,
    /// The server has become a replica while the caller waited.
    Demoted,
    /// The caller has lost its permissions while it waited.
    NoPermission,
    /// Refusals are not recorded.
    TopOff,
    /// The server is out of memory, and the call would create a key or entries.
    OutOfMemory,
    /// The key cannot be written to at the moment.
    Busy,
    /// The server does not run one of its own commands, because its configuration renames or disables it.
    Server {
        /// The command's name.
        command: &'static str,
    },
}

impl Error {
    /// Too many arguments, or an option that is unknown or repeated.
    pub const SYNTAX: Self = Self::Core(redis_cell_core::Error::Syntax);
}

impl From<redis_cell_core::Error> for Error {
    fn from(error: redis_cell_core::Error) -> Self {
        Self::Core(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Core(error) => error.fmt(f),
            Self::SameKey => f.write_str("ERR the same key is named twice"),
            Self::WrongType => {
                f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value")
            }
            Self::Moved => f.write_str("TRYAGAIN The key has moved to another node while waiting"),
            Self::ClusterDown => f.write_str("CLUSTERDOWN The cluster is down"),
            Self::Demoted => f.write_str(
                "UNBLOCKED force unblock from blocking operation, instance state changed (primary -> replica?)",
            ),
            Self::NoPermission => {
                f.write_str("NOPERM this user has no permissions any more to run this command on this key")
            }
            Self::TopOff => f.write_str("ERR refusals are not recorded: the setting top-size is 0"),
            Self::OutOfMemory => f.write_str(OUT_OF_MEMORY),
            Self::Busy => f.write_str("TRYAGAIN The key is in use by the server, try again"),
            Self::Server { command } => {
                write!(f, "ERR command {command} is not available on this server")
            }
        }
    }
}

impl core::error::Error for Error {}
