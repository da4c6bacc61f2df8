//! A layer in which requests hold units of an account.

use crate::http::{Refusal, Report, Responds, is_grpc, layer, seconds};
use crate::{Account, Guard, Held, Units};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use redis::aio::ConnectionLike;
use redis::{RedisResult, ToSingleRedisArg};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// Lets requests [hold](Account::hold) units of an account until their responses have ended.
///
/// A function returns the account of each request, the owner of its hold, which is not used again, and the
/// units, or `None` for a request that is not limited. A request reaches the service when it is admitted,
/// with its [`Held`] in its extensions: the service reports what it [used](Held::used).
///
/// The hold is renewed until the body of the response has ended, and is then settled. Without reported usage,
/// the request has used all held units, or none if its status is a server error (5xx). If the client
/// disconnects before, the usage that was reported until then is charged.
///
/// A refused request gets 429, with `Retry-After` if a wait helps. While the server is unavailable, the
/// [`WhenUnavailable`](crate::WhenUnavailable) of the account's guard decides: a request that it refuses gets
/// 503, or 429 from the shares of this process. After any other error, the response is 500. gRPC requests get
/// the codes of [`RateLimitLayer`](crate::RateLimitLayer). The errors of settlements are those of
/// [`Account::on_error`].
///
/// # Example
/// ```
/// use http::Request;
/// use redis::aio::ConnectionManager;
/// use redis_cell_client::{Account, AccountLayer, Fixed, FixedWindow, Guard, Units};
///
/// type Hold = (Account<Guard<ConnectionManager>>, String, Units);
///
/// fn budget(
///     guard: Guard<ConnectionManager>,
/// ) -> AccountLayer<impl Fn(&Request<()>) -> Option<Hold> + Clone> {
///     AccountLayer::new(move |request: &Request<()>| {
///         let text = |name| request.headers().get(name)?.to_str().ok();
///         let (tenant, id) = (text("x-tenant")?, text("x-request-id")?.to_owned());
///         let included = Fixed::new(1_000_000, FixedWindow::month());
///         let account = Account::new(guard.clone(), format!("{{{tenant}}}:holds"))
///             .pool(format!("{{{tenant}}}:included"), included);
///         Some((account, id, Units(4_000)))
///     })
/// }
/// ```
#[derive(Clone)]
pub struct AccountLayer<K> {
    hold_of: K,
    on_error: Option<Report>,
}

impl<K> fmt::Debug for AccountLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountLayer").finish_non_exhaustive()
    }
}

impl<K> AccountLayer<K> {
    /// Creates a layer. `hold_of` returns the account of a request, the owner of its hold, and its units.
    pub const fn new<B, C, I>(hold_of: K) -> Self
    where
        K: Fn(&Request<B>) -> Option<(Account<Guard<C>>, I, Units)>,
    {
        Self { hold_of, on_error: None }
    }
}

layer!(AccountLayer<K>, HoldUnits);

impl<S, K, B, R, C, I> Service<Request<B>> for HoldUnits<S, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    C: ConnectionLike + Clone + Send + Sync + 'static,
    K: Fn(&Request<B>) -> Option<(Account<Guard<C>>, I, Units)> + Send + Sync + 'static,
    I: ToSingleRedisArg,
    B: Send + 'static,
    R: Body,
{
    type Response = Response<Either<Kept<R, C>, Full<Bytes>>>;
    type Error = S::Error;
    type Future = Responds<Either<Kept<R, C>, Full<Bytes>>, S::Error>;

    /// Always ready, as [`WaitForTurn`](crate::WaitForTurn).
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let mut inner = self.inner.clone();
        let layer = Arc::clone(&self.layer);
        let hold = (layer.hold_of)(&request).map(|(account, owner, units)| {
            let owner = owner.to_redis_args().concat();
            async move { account.hold(owner, units).await }
        });
        Box::pin(async move {
            let held = match hold {
                Some(hold) => match layer.decide(hold.await) {
                    Ok(held) => Some(held),
                    Err((refusal, wait)) => {
                        return Ok(refusal.respond(is_grpc(&request), wait).map(Either::Right));
                    }
                },
                None => None,
            };
            if let Some(held) = &held {
                request.extensions_mut().insert(held.clone());
            }
            std::future::poll_fn(|context| inner.poll_ready(context)).await?;
            let response = inner.call(request).await?;
            let fails = response.status().is_server_error();
            Ok(response.map(|body| {
                let mut kept = Kept { body: Box::pin(body), held, fails };
                kept.look();
                Either::Left(kept)
            }))
        })
    }
}

impl<K> AccountLayer<K> {
    /// Returns the units that the request holds, or the reason why it does not reach the service.
    fn decide<C: ConnectionLike + Clone + Send + Sync + 'static>(
        &self,
        held: RedisResult<Held<Guard<C>>>,
    ) -> Result<Held<Guard<C>>, (Refusal, Option<u64>)> {
        if let (Some(report), Some(error)) = (&self.on_error, held.as_ref().map_or_else(Some, Held::error)) {
            report(error);
        }
        match held {
            Err(_) => Err((Refusal::Error, None)),
            Ok(held) if held.admitted() => Ok(held),
            Ok(held) => Err(match held.answer() {
                Some(answer) => (Refusal::Limited, answer.combined.retry_after().map(seconds)),
                None if held.is_local() => (Refusal::Limited, None),
                None => (Refusal::Unavailable, None),
            }),
        }
    }
}

/// The body of a response, which keeps the [`Held`] of its request until it has ended.
#[derive(Debug)]
pub struct Kept<R, C: ConnectionLike + Clone + Send + Sync + 'static> {
    body: Pin<Box<R>>,
    held: Option<Held<Guard<C>>>,
    fails: bool,
}

impl<R: Body, C: ConnectionLike + Clone + Send + Sync + 'static> Kept<R, C> {
    /// Settles when the body has ended.
    fn look(&mut self) {
        if self.body.is_end_stream() {
            self.end();
        }
    }

    fn end(&mut self) {
        if let Some(held) = self.held.take().filter(|_| !self.fails) {
            held.end();
        }
    }
}

impl<R: Body, C: ConnectionLike + Clone + Send + Sync + 'static> Body for Kept<R, C> {
    type Data = R::Data;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, R::Error>>> {
        let frame = self.body.as_mut().poll_frame(context);
        match &frame {
            Poll::Ready(None) => self.end(),
            Poll::Ready(Some(Ok(_))) => self.look(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
