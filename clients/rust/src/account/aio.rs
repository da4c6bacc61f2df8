//! Accounts of asynchronous code.

use super::sealed::Caller as _;
use super::{Account, Caller, Held, Report, sealed};
use crate::{Answer, Balance, Guard, Once, Together, Units, WhenUnavailable, bytes};
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisResult, ToSingleRedisArg};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// Ends the task when it is dropped.
#[derive(Debug)]
pub struct Renewal(AbortHandle);

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Caller for Guard<C> {}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> sealed::Caller for Guard<C> {
    type Renewal = Renewal;

    fn choice(&self) -> &WhenUnavailable {
        self.when_unavailable()
    }

    fn renew(&self, every: Duration, cmd: Cmd, report: Report) -> Renewal {
        let guard = self.clone();
        let renews = tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                report.error(&guard.call::<Together<Answer>>(&cmd, None).await);
            }
        });
        Renewal(renews.abort_handle())
    }

    fn send_at_last(&self, cmd: Cmd, once: Option<Once>, report: Report) {
        let guard = self.clone();
        let settles = async move {
            report.error(&guard.call::<Together<Balance>>(&cmd, once.as_ref()).await);
        };
        // Without a runtime, the process ends, and the units come back by themselves.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(settles);
        }
    }
}

/// A hold that is being taken. If its future is dropped, it is settled as if nothing had been used.
struct Asking<'a, C: ConnectionLike + Clone + Send + Sync + 'static> {
    account: &'a Account<Guard<C>>,
    owner: &'a [u8],
    is_over: bool,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Asking<'_, C> {
    fn drop(&mut self) {
        let Account { guard, plan, report } = self.account;
        if !self.is_over
            && let Ok(cmd) = plan.settle(self.owner, 0, 0, None)
        {
            guard.send_at_last(cmd, None, report.clone());
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Account<Guard<C>> {
    /// Holds units of the first pool that has enough, for an owner, such as a request. Give each hold an
    /// owner of its own, which is not used again.
    ///
    /// While the result is alive, a task renews the hold. If the future is dropped before the server has
    /// answered, the units are given back.
    ///
    /// # Errors
    /// See `hold` of an account of blocking code.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with a timer.
    ///
    /// # Example
    /// ```
    /// use redis_cell_client::{Account, Fixed, FixedWindow, Guard, Units, WhenUnavailable};
    /// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
    /// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
    /// let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    /// let guard = Guard::new(connection, WhenUnavailable::FailOpen);
    /// let run = Fixed::new(250_000, FixedWindow::total());
    /// let account = Account::new(guard, "{run4}:holds").pool("{run4}:tokens", run);
    /// let held = account.hold("step-1", Units(3_000)).await?;
    /// for part in [600, 1_274] {
    ///     held.used(Units(part));
    /// }
    /// held.settle().await?;
    /// # Ok(()) }
    /// ```
    pub async fn hold(&self, owner: impl ToSingleRedisArg, units: Units) -> RedisResult<Held<Guard<C>>> {
        let owner = bytes(&owner);
        let cmd = self.plan.take(&owner, Some(units.0))?;
        let mut asking = Asking { account: self, owner: &owner, is_over: false };
        let answer = self.guard.call(&cmd, None).await;
        asking.is_over = true;
        let outcome = self.plan.decide(self.guard.choice(), units.0, answer)?;
        Held::new(self, &owner, outcome)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Held<Guard<C>> {
    /// Ends the hold: charges or gives back the difference between the held and the [used](Self::used) units.
    /// Without reported usage, all held units are used. Returns the balance of the account, or `None` if
    /// there is nothing to settle: the request was refused, or is settled already.
    ///
    /// # Errors
    /// Returns the errors of the call. It is repeated like a call with [`Once`], and charges once. It does
    /// not end if its future is dropped.
    ///
    /// # Panics
    /// Panics outside a tokio runtime with a timer.
    pub async fn settle(&self) -> RedisResult<Option<Together<Balance>>> {
        let Some((cmd, once)) = self.shared.settlement(true) else { return Ok(None) };
        let (cmd, guard) = (cmd?, self.shared.account.guard.clone());
        let settles = tokio::spawn(async move { guard.call(&cmd, Some(&once)).await });
        let gone = |_| (ErrorKind::Io, "the runtime that has sent the call is gone").into();
        settles.await.unwrap_or_else(|error| Err(gone(error))).map(Some)
    }

    /// Settles in the background, like [`settle`](Self::settle).
    #[cfg(feature = "tower")]
    pub(crate) fn end(&self) {
        if let Some((Ok(cmd), once)) = self.shared.settlement(true) {
            let Account { guard, report, .. } = &self.shared.account;
            guard.send_at_last(cmd, Some(once), report.clone());
        }
    }
}
