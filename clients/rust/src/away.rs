//! What becomes of a call when the server is away.

use crate::{Answer, Decision, Limit, LocalLimiter, Take};
use redis::{RedisError, RedisResult};

/// What to do with a call that the server has not answered. There is no default, because only you know which
/// is worse: too many calls, or none.
#[derive(Clone, Debug)]
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
pub enum Ruling {
    /// The server has answered.
    Server(Answer),
    /// The server has not answered, and this process has decided by its share of the limit.
    Local {
        /// The answer, with the numbers of the share.
        answer: Answer,
        /// The share.
        share: Limit,
        /// Why there is no answer of the server.
        error: RedisError,
    },
    /// The server has not answered, and the call is admitted.
    FailedOpen(RedisError),
    /// The server has not answered, and the call is refused.
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

    /// Why the server has not answered. `None` if it has.
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

impl WhenAway {
    /// The outcome of a call that has ended in `answer`.
    ///
    /// # Errors
    /// If the share of the limit is out of the range that the command accepts.
    pub(crate) fn rule(
        &self,
        answer: RedisResult<Answer>,
        key: &[u8],
        limit: Limit,
        take: Take,
    ) -> RedisResult<Ruling> {
        let error = match answer {
            Ok(answer) => return Ok(Ruling::Server(answer)),
            Err(error) => error,
        };
        Ok(match self {
            Self::FailOpen => Ruling::FailedOpen(error),
            Self::FailClosed => Ruling::FailedClosed(error),
            Self::Local(local) => {
                let (answer, share) = (local.take(key, limit, take)?, local.share(limit));
                Ruling::Local { answer, share, error }
            }
        })
    }
}
