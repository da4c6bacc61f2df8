//! A layer in which requests wait for their turn.

use crate::http::{Refusal, Report, Responds, is_grpc, layer, seconds};
use crate::{MTake, Taken, Wait, Waiter, is_unavailable};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Either, Full};
use redis::RedisResult;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// Lets requests wait until several limiters admit them, fairly among flows, instead of refusing them.
///
/// A function returns the limiters and quantities of each request, its longest wait and its flow, or `None`
/// for a request that is not limited. A request reaches the service when it is admitted, with [`Taken`] in
/// its extensions: from it, the service settles the units that were used, or gives back a place. A request
/// that does not get its units in time gets 429. If it is refused because too many requests of its flow wait,
/// the response also has `Retry-After`. A request leaves the queue when its server drops it, for example
/// because the client has closed the connection.
///
/// The layer is always ready, and a waiting request reserves nothing in the service. At its turn, the request
/// takes its units, waits until a clone of the service is ready, and is then handled. So an outer layer, such
/// as a layer that sheds load, does not notice that the service is busy.
///
/// When the server is unavailable, a layer that [fails open](Self::fail_open) lets the request through
/// without `Taken`, and a layer that [fails closed](Self::fail_closed) responds with 503. After any other
/// error, the response is 500. gRPC requests get the codes of [`RateLimitLayer`](crate::RateLimitLayer).
///
/// # Example
/// ```
/// use http::Request;
/// use redis_cell_client::{Flow, MTake, Once, Rate, Units, Wait, WaitLayer, Waiter};
/// use std::time::Duration;
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let waiter = Waiter::new(redis::Client::open(url)?);
/// let layer = WaitLayer::fail_closed(waiter, |request: &Request<()>| {
///     let tenant = request.headers().get("x-tenant")?.to_str().ok()?;
///     let upstream = MTake::new().throttle("upstream", Rate::per_second(100), Units(1));
///     let wait = Wait::at_most(Duration::from_secs(10)).maxlen(50);
///     Some((upstream, wait.flow(Flow::new(format!("tenant:{tenant}")))))
/// });
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone)]
pub struct WaitLayer<K> {
    waiter: Waiter,
    takes_of: K,
    fails_open: bool,
    on_error: Option<Report>,
}

impl<K> fmt::Debug for WaitLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitLayer").field("fails_open", &self.fails_open).finish_non_exhaustive()
    }
}

impl<K> WaitLayer<K> {
    /// Creates a layer that lets requests through while the server is unavailable.
    pub const fn fail_open<B>(waiter: Waiter, takes_of: K) -> Self
    where
        K: Fn(&Request<B>) -> Option<(MTake, Wait)>,
    {
        Self { waiter, takes_of, fails_open: true, on_error: None }
    }

    /// Creates a layer that responds with 503 while the server is unavailable.
    pub const fn fail_closed<B>(waiter: Waiter, takes_of: K) -> Self
    where
        K: Fn(&Request<B>) -> Option<(MTake, Wait)>,
    {
        Self { waiter, takes_of, fails_open: false, on_error: None }
    }

    /// Returns the units to add to the request, or the reason why the request does not reach the service.
    fn decide(&self, answer: RedisResult<Option<Taken>>) -> Result<Option<Taken>, (Refusal, Option<u64>)> {
        match answer {
            Ok(Some(taken)) if taken.combined.admitted() => Ok(Some(taken)),
            Ok(Some(taken)) => Err((Refusal::Limited, taken.combined.retry_after().map(seconds))),
            Ok(None) => Err((Refusal::Limited, None)),
            Err(error) => {
                if let Some(report) = &self.on_error {
                    report(&error);
                }
                match is_unavailable(&error) {
                    true if self.fails_open => Ok(None),
                    true => Err((Refusal::Unavailable, None)),
                    false => Err((Refusal::Error, None)),
                }
            }
        }
    }
}

layer!(WaitLayer<K>, WaitForTurn);

impl<S, K, B, R> Service<Request<B>> for WaitForTurn<S, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    K: Fn(&Request<B>) -> Option<(MTake, Wait)> + Send + Sync + 'static,
    B: Send + 'static,
{
    type Response = Response<Either<R, Full<Bytes>>>;
    type Error = S::Error;
    type Future = Responds<Either<R, Full<Bytes>>, S::Error>;

    /// Always ready, because a service that is ready may have reserved resources for a request.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let mut inner = self.inner.clone();
        let layer = Arc::clone(&self.layer);
        let takes = (layer.takes_of)(&request);
        Box::pin(async move {
            let decided = match takes {
                Some((limiters, wait)) => layer.decide(layer.waiter.take(limiters, wait).await),
                None => Ok(None),
            };
            match decided {
                Ok(taken) => {
                    if let Some(taken) = taken {
                        request.extensions_mut().insert(taken);
                    }
                    std::future::poll_fn(|context| inner.poll_ready(context)).await?;
                    inner.call(request).await.map(|own| own.map(Either::Left))
                }
                Err((refusal, wait)) => Ok(refusal.respond(is_grpc(&request), wait).map(Either::Right)),
            }
        })
    }
}
