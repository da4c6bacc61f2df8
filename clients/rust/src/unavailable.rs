//! Decisions while the server is unavailable.

use crate::local::check;
use crate::{Answer, Decision, Limit, LocalLimiter, Quantity, lock};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Returns whether an error means that no server can decide now, and that the same call can succeed later: no
/// connection can be made or it breaks, no answer arrives in time, or the server cannot decide at the moment,
/// because it is a replica, is loading its data, or has no memory left.
///
/// All other errors are errors of the call or of the configuration, and need a change of the program or its
/// configuration: an argument that the server rejects, a key with a value of another type, a server without
/// the module, a wrong password, missing permissions, a certificate that has expired or is not trusted.
///
/// # Example
/// ```
/// use redis_cell_client::{Units, is_unavailable};
/// use redis::{ErrorKind, RedisError};
/// assert!(is_unavailable(&RedisError::from((ErrorKind::Io, "connection refused"))));
/// assert!(!is_unavailable(&RedisError::from((ErrorKind::AuthenticationFailed, "wrong password"))));
/// ```
pub fn is_unavailable(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
    // The server sends it in place of the reply to the first command.
    let full = |text: &str| text.contains("max number of clients");
    match error.kind() {
        ErrorKind::Io => !is_of_tls(error),
        ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel // also if the primary is known to be down
        | ErrorKind::NoValidReplicasFoundBySentinel
        | ErrorKind::Server(BusyLoading | TryAgain | Ask | ClusterDown | MasterDown | ReadOnly) => true,
        ErrorKind::Extension => {
            matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS" | "BUSY"))
        }
        ErrorKind::Server(ServerErrorKind::ResponseError) => error.detail().is_some_and(full),
        _ => false,
    }
}

/// Returns whether this is a TLS error, such as a certificate that is not trusted. The errors of rustls are
/// `InvalidData`, and the errors of native-tls are not I/O errors.
fn is_of_tls(error: &RedisError) -> bool {
    let Some(source) = error.source() else {
        return error.to_string().starts_with("SSL Handshake error");
    };
    // redis-rs wraps an error of another library in this type.
    source.downcast_ref::<Arc<dyn Error + Send + Sync>>().is_some_and(|source| {
        let io = source.downcast_ref::<io::Error>();
        io.is_none_or(|error| error.kind() == io::ErrorKind::InvalidData)
    })
}

/// How to decide a call while the server is unavailable. There is no default, because only you know which is
/// worse: too many calls, or none.
///
/// [`is_unavailable`] recognizes the errors of an unavailable server. For all other errors, the call returns
/// the error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WhenUnavailable {
    /// Admit the call.
    FailOpen,
    /// Refuse the call.
    FailClosed,
    /// Decide with a limiter in this process.
    Local(LocalLimiter),
}

/// The outcome of a call of [`BlockingGuard`](crate::BlockingGuard) or `Guard`, and where it was decided.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The server has answered.
    Server(Answer),
    /// The server is unavailable, and this process has decided: from its share of the limit, or, with any
    /// choice, because the quantity exceeds the limit and no server would ever admit it.
    Local {
        /// The answer, for this process's share of the limit.
        answer: Answer,
        /// The share. It is the whole limit unless the choice is [`WhenUnavailable::Local`].
        share: Limit,
        /// Why the server is unavailable.
        error: RedisError,
    },
    /// The server is unavailable, and the call is admitted.
    FailedOpen(RedisError),
    /// The server is unavailable, and the call is refused.
    FailedClosed(RedisError),
}

impl DecidedBy {
    /// Returns whether the call is admitted.
    pub const fn admitted(&self) -> bool {
        match self {
            Self::Server(answer) | Self::Local { answer, .. } => answer.admitted(),
            Self::FailedOpen(_) => true,
            Self::FailedClosed(_) => false,
        }
    }

    /// Returns the answer of the server or of this process, or `None` if neither has one.
    pub const fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Server(answer) | Self::Local { answer, .. } => Some(answer),
            Self::FailedOpen(_) | Self::FailedClosed(_) => None,
        }
    }

    /// Returns why the server is unavailable, or `None` if it has answered.
    pub const fn error(&self) -> Option<&RedisError> {
        match self {
            Self::Server(_) => None,
            Self::Local { error, .. } | Self::FailedOpen(error) | Self::FailedClosed(error) => Some(error),
        }
    }

    /// Returns whether the call is refused and no wait helps: see [`Decision::RefusedForever`].
    pub const fn refused_forever(&self) -> bool {
        matches!(self.answer(), Some(Answer { decision: Decision::RefusedForever, .. }))
    }
}

/// The choice, and whether the server is known to be unavailable. All clones share this knowledge.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    choice: WhenUnavailable,
    /// How long after a failure other calls are not sent to the server.
    pub ask_again: Duration,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// The error of the last call that was sent, or `None` if the server answered it.
    error: Option<RedisError>,
    /// The instant at which the last call was sent, or at which its error was known.
    asked: Option<Instant>,
}

impl Outage {
    pub const ASK_AGAIN: Duration = Duration::from_secs(1);

    pub fn new(choice: WhenUnavailable) -> Self {
        Self { choice, ask_again: Self::ASK_AGAIN, known: Arc::default() }
    }

    pub const fn choice(&self) -> &WhenUnavailable {
        &self.choice
    }

    /// Decides whether this call is sent to the server. During an outage, one call per `ask_again` is sent.
    ///
    /// # Errors
    /// Returns the reason why the server is unavailable if the call is not sent.
    pub fn asks(&self) -> RedisResult<()> {
        let mut known = lock(&self.known);
        if let Some(error) = &known.error
            && known.asked.is_some_and(|asked| asked.elapsed() < self.ask_again)
        {
            return Err(error.clone());
        }
        known.asked = Some(Instant::now());
        Ok(())
    }

    /// Records the answer to a call that was sent, and returns it.
    pub fn learn<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        let mut known = lock(&self.known);
        match &answer {
            Err(error) if is_unavailable(error) => {
                *known = Known { error: Some(error.clone()), asked: Some(Instant::now()) };
            }
            // A configuration error, such as an expired certificate: no server has answered.
            Err(error) if error.code().is_none() => {}
            _ => known.error = None,
        }
        drop(known);
        answer
    }

    /// Returns the outcome of a call that ended in `answer`.
    ///
    /// # Errors
    /// Returns the error of the call, unless it means that the server is unavailable. Returns an error if the
    /// share of the limit is out of the range that the command accepts.
    pub fn decide(
        &self,
        answer: RedisResult<Answer>,
        key: &[u8],
        limit: Limit,
        quantity: Quantity,
    ) -> RedisResult<DecidedBy> {
        let error = match answer {
            Ok(answer) => return Ok(DecidedBy::Server(answer)),
            Err(error) if is_unavailable(&error) => error,
            Err(error) => return Err(error),
        };
        if let WhenUnavailable::Local(local) = &self.choice {
            let (answer, share) = (local.take(key, limit, quantity)?, local.share(limit));
            return Ok(DecidedBy::Local { answer, share, error });
        }
        let untouched = check(limit, quantity)?;
        Ok(match self.choice {
            _ if untouched.decision == Decision::RefusedForever => {
                DecidedBy::Local { answer: Answer { remaining: 0, ..untouched }, share: limit, error }
            }
            WhenUnavailable::FailOpen => DecidedBy::FailedOpen(error),
            _ => DecidedBy::FailedClosed(error),
        })
    }
}
