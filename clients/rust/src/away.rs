//! What happens to a call when the server is unavailable.

use crate::local::check;
use crate::{Answer, Decision, Limit, LocalLimiter, Take};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whether an error means that no server decides now, so that the same call can succeed later: a connection
/// that cannot be made or breaks, no answer in time, and the answer of a server that cannot decide at the
/// moment, such as a replica, a server that loads its data, or one without memory.
///
/// All other errors are those of the call or of the set-up, and only a change of the program or of its
/// configuration mends them: an argument that the server rejects, a key with a value of another type, a
/// server without the module, a wrong password, missing permissions, a certificate that has expired or is not
/// trusted.
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
    // Replied on the way in, in place of the reply to the first command.
    let full = |text: &str| text.contains("max number of clients");
    match error.kind() {
        ErrorKind::Io => !is_of_tls(error),
        ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel // also if it is known to be down
        | ErrorKind::NoValidReplicasFoundBySentinel
        | ErrorKind::Server(BusyLoading | TryAgain | Ask | ClusterDown | MasterDown | ReadOnly) => true,
        ErrorKind::Extension => {
            matches!(error.code(), Some("OOM" | "MISCONF" | "NOREPLICAS" | "BUSY"))
        }
        ErrorKind::Server(ServerErrorKind::ResponseError) => error.detail().is_some_and(full),
        _ => false,
    }
}

/// Whether it is an error of TLS, such as a certificate that is not trusted. Those of rustls are
/// `InvalidData`, those of native-tls are no errors of I/O.
fn is_of_tls(error: &RedisError) -> bool {
    let Some(source) = error.source() else {
        return error.to_string().starts_with("SSL Handshake error");
    };
    // What redis-rs keeps of the error of another library.
    source.downcast_ref::<Arc<dyn Error + Send + Sync>>().is_some_and(|source| {
        let io = source.downcast_ref::<io::Error>();
        io.is_none_or(|error| error.kind() == io::ErrorKind::InvalidData)
    })
}

/// What to do with a call while the server is unavailable. There is no default, because only you know which
/// is worse: too many calls, or none.
///
/// [`is_unavailable`] says which errors these are. All others are errors of the call, whatever the choice.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WhenAway {
    /// Admit the call.
    FailOpen,
    /// Refuse the call.
    FailClosed,
    /// Decide by a limiter in this process.
    Local(LocalLimiter),
}

/// The outcome of a call of [`BlockingLimiter`](crate::BlockingLimiter) or `Limiter`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ruling {
    /// The server has answered.
    Server(Answer),
    /// The server is unavailable, and this process has decided: by its share of the limit, or, whatever the
    /// choice, because the quantity exceeds the limit, so that no server would ever admit it.
    Local {
        /// The answer, with the numbers of the share.
        answer: Answer,
        /// The share: the whole limit, unless the choice is [`WhenAway::Local`].
        share: Limit,
        /// Why the server is unavailable.
        error: RedisError,
    },
    /// The server is unavailable, and the call is admitted.
    FailedOpen(RedisError),
    /// The server is unavailable, and the call is refused.
    FailedClosed(RedisError),
}

impl Ruling {
    /// Whether the call may go ahead.
    pub const fn admitted(&self) -> bool {
        match self {
            Self::Server(answer) | Self::Local { answer, .. } => answer.admitted(),
            Self::FailedOpen(_) => true,
            Self::FailedClosed(_) => false,
        }
    }

    /// The answer, whoever gave it. `None` if nobody did.
    pub const fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Server(answer) | Self::Local { answer, .. } => Some(answer),
            Self::FailedOpen(_) | Self::FailedClosed(_) => None,
        }
    }

    /// Why the server is unavailable. `None` if it has answered.
    pub const fn error(&self) -> Option<&RedisError> {
        match self {
            Self::Server(_) => None,
            Self::Local { error, .. } | Self::FailedOpen(error) | Self::FailedClosed(error) => Some(error),
        }
    }

    /// Whether a refused call can never be admitted, because its quantity exceeds the limit.
    pub const fn refused_forever(&self) -> bool {
        matches!(self.answer(), Some(Answer { decision: Decision::RefusedForever, .. }))
    }
}

/// The choice, and whether the server is known to be unavailable. All clones share what is known.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    choice: WhenAway,
    /// How long a failure keeps other calls from asking the server.
    pub ask_again: Duration,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Why the last call that has asked was not decided. `None` if it was.
    error: Option<RedisError>,
    /// When a call asked, or learned that nobody answers.
    asked: Option<Instant>,
}

impl Outage {
    pub const ASK_AGAIN: Duration = Duration::from_secs(1);

    pub fn new(choice: WhenAway) -> Self {
        Self { choice, ask_again: Self::ASK_AGAIN, known: Arc::default() }
    }

    pub const fn choice(&self) -> &WhenAway {
        &self.choice
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this call asks the server. During an outage one call in `ask_again` does.
    ///
    /// # Errors
    /// If it does not: why the server is unavailable.
    pub fn asks(&self) -> RedisResult<()> {
        let mut known = self.known();
        if let Some(error) = &known.error
            && known.asked.is_some_and(|asked| asked.elapsed() < self.ask_again)
        {
            return Err(error.clone());
        }
        known.asked = Some(Instant::now());
        Ok(())
    }

    /// Notes what became of a call that has asked, and returns it.
    pub fn learn(&self, answer: RedisResult<Answer>) -> RedisResult<Answer> {
        let mut known = self.known();
        match &answer {
            Err(error) if is_unavailable(error) => {
                *known = Known { error: Some(error.clone()), asked: Some(Instant::now()) };
            }
            // An error of the set-up, such as that of a certificate: no server has answered.
            Err(error) if error.code().is_none() => {}
            _ => known.error = None,
        }
        drop(known);
        answer
    }

    /// The outcome of a call that has ended in `answer`.
    ///
    /// # Errors
    /// Those of the call, which do not mean that the server is unavailable; and if the share of the limit is
    /// out of the range that the command accepts.
    pub fn rule(
        &self,
        answer: RedisResult<Answer>,
        key: &[u8],
        limit: Limit,
        take: Take,
    ) -> RedisResult<Ruling> {
        let error = match answer {
            Ok(answer) => return Ok(Ruling::Server(answer)),
            Err(error) if is_unavailable(&error) => error,
            Err(error) => return Err(error),
        };
        if let WhenAway::Local(local) = &self.choice {
            let (answer, share) = (local.take(key, limit, take)?, local.share(limit));
            return Ok(Ruling::Local { answer, share, error });
        }
        let untouched = check(limit, take)?;
        Ok(match self.choice {
            _ if untouched.decision == Decision::RefusedForever => {
                Ruling::Local { answer: Answer { remaining: 0, ..untouched }, share: limit, error }
            }
            WhenAway::FailOpen => Ruling::FailedOpen(error),
            _ => Ruling::FailedClosed(error),
        })
    }
}
