//! Rate limits in HTTP responses, as docs/http.md of redis-cell describes them.

use crate::{Answer, Limit, Limiter, LocalLimiter, Ruling, Units};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use redis::RedisError;
use redis::aio::ConnectionLike;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

/// A named limit of requests, of any kind. The name is that of the policy in the response, and a part of the
/// key.
///
/// A policy whose kind of limit changes needs another name: the kinds store different types.
///
/// # Example
/// ```
/// use redis_cell_client::{Limit, Policy, Quota, Rate, Window};
/// let steady = Policy::new("steady", Rate::per_minute(30).burst(2))?;
/// let monthly = Policy::new("monthly", Quota::new(10_000, Window::month()))?;
/// let exact = Policy::new("exact", Limit::Log(Rate::per_minute(30)))?;
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    name: Arc<str>,
    limit: Limit,
}

impl Policy {
    /// A limit of one unit per request.
    ///
    /// # Errors
    /// If the name has other characters than letters, digits, `-`, `_` and `.`, or the limit is one that the
    /// server rejects, so that each of its calls would be an error.
    pub fn new(name: &str, limit: impl Into<Limit>) -> redis::RedisResult<Self> {
        // No `:`, which ends the name in the key: the client `login:eve` of a policy `api` would have the key
        // of the client `eve` of a policy `api:login`.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(crate::limit::invalid("a policy's name has letters, digits, -, _ and . only"));
        }
        let limit = limit.into();
        LocalLimiter::with_keys(NonZeroU32::MIN, 1).take("", limit, Units(1))?;
        Ok(Self { name: name.into(), limit })
    }
}

/// What a request asks of [`RateLimitLayer`]: a key, and where they differ from those of others, a cost and a
/// limit.
///
/// # Example
/// ```
/// use redis_cell_client::{Demand, Rate};
/// let export = Demand::new("user:7").cost(20);
/// let customer = Demand::new("user:8").limit(Rate::per_minute(600).burst(99));
/// ```
#[derive(Clone, Debug)]
pub struct Demand {
    key: String,
    cost: u64,
    limit: Option<Limit>,
}

impl Demand {
    /// One unit of the policy's limit.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), cost: 1, limit: None }
    }

    /// So many units. 0 takes nothing, and is refused only beyond the limit. A request whose cost exceeds the
    /// limit is refused without `Retry-After`, because no wait helps.
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        Self { cost: units, ..self }
    }

    /// A limit other than the policy's, of the same kind, because the state of a key is that of its kind. A
    /// limit that the server rejects is an error of the request, which gets 500.
    #[must_use]
    pub fn limit(self, limit: impl Into<Limit>) -> Self {
        Self { limit: Some(limit.into()), ..self }
    }
}

/// What the function of [`RateLimitLayer`] may return of a request: a [`Demand`], or a key of any text.
pub trait IntoDemand {
    /// The demand.
    fn into_demand(self) -> Demand;
}

impl IntoDemand for Demand {
    fn into_demand(self) -> Demand {
        self
    }
}

impl<K: AsRef<str>> IntoDemand for K {
    fn into_demand(self) -> Demand {
        Demand::new(self.as_ref())
    }
}

/// Limits requests by a key that a function reads from each.
///
/// The function may return a [`Demand`] in place of a key: a cost, a limit and a key per request.
///
/// A response has the fields `RateLimit-Policy`, `RateLimit` and `X-RateLimit-*`. A request that is refused
/// gets 429 with `Retry-After`, and the service does not see it. When the server is unavailable,
/// [`WhenAway`](crate::WhenAway) of the [`Limiter`] decides: a request that fails open has none of these
/// fields, one that fails closed gets 503, and with a local limiter the fields have the numbers of this
/// process's share. Any other error of the limiter, such as a key of another type or a server without the
/// module, is a 500, whatever the choice. Requests of gRPC, which their `Content-Type` tells, get the code
/// `RESOURCE_EXHAUSTED` in place of 429, `UNAVAILABLE` of 503, and `INTERNAL` of 500, with the same fields.
///
/// The layer stands in front of a service with any body, in axum, hyper, tonic, or another layer. The body of
/// its response is that of the service, or its own.
///
/// The key in the server is `http:`, the policy's name, `:`, and the key of the request.
///
/// A service can have several of these layers, each with a policy of its own. The outermost one is asked
/// first. Each takes its unit by itself: a request that an inner one refuses has taken a unit of the outer
/// ones. The lists `RateLimit-Policy` and `RateLimit` have a member for each, and `X-RateLimit-*` describe
/// the limit of which least remains.
///
/// # Example
/// The crate's [example](crate) is a service of axum with this layer.
#[derive(Clone)]
pub struct RateLimitLayer<C, K> {
    limiter: Limiter<C>,
    policy: Policy,
    key_of: K,
    on_error: Option<Report>,
    answer: Option<Answering>,
}

type Answering = Arc<dyn Fn(Refusal, Option<&Answer>) -> Response<Bytes> + Send + Sync>;
pub(crate) type Report = Arc<dyn Fn(&RedisError) + Send + Sync>;

impl<C, K> RateLimitLayer<C, K> {
    /// A layer that limits requests by `policy`. `key_of` returns what identifies the client, such as a user,
    /// an API key or an address, or `None` for a request that is not limited.
    pub const fn new<B, I>(limiter: Limiter<C>, policy: Policy, key_of: K) -> Self
    where
        K: Fn(&Request<B>) -> Option<I>,
        I: IntoDemand,
    {
        Self { limiter, policy, key_of, on_error: None, answer: None }
    }

    /// Answers requests that the service does not see by a function, in place of the layer's own answers. The
    /// answer of the limiter is `None` if nobody has decided. The fields of the rate limit are added to it.
    ///
    /// # Example
    /// ```
    /// # use redis_cell_client::{Limiter, Policy, Rate, RateLimitLayer, WhenAway};
    /// # async fn layer(connection: redis::aio::ConnectionManager) -> redis::RedisResult<()> {
    /// use http::{Request, Response, StatusCode};
    /// use redis_cell_client::Refusal;
    ///
    /// let limiter = Limiter::new(connection, WhenAway::FailClosed);
    /// let policy = Policy::new("api", Rate::per_minute(30))?;
    /// let all = |_: &Request<()>| Some("all");
    /// let layer = RateLimitLayer::new(limiter, policy, all).answer(|refusal, _| {
    ///     let limited = matches!(refusal, Refusal::Limited);
    ///     let body = if limited { "Slow down" } else { "Come back later" };
    ///     let mut response = Response::new(body.into());
    ///     *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    ///     response
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn answer(
        self,
        answer: impl Fn(Refusal, Option<&Answer>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Self { answer: Some(Arc::new(answer)), ..self }
    }

    /// Calls `report` with the error of each request that the server has not decided, for a log or a metric.
    #[must_use]
    pub fn on_error(self, report: impl Fn(&RedisError) + Send + Sync + 'static) -> Self {
        Self { on_error: Some(Arc::new(report)), ..self }
    }
}

impl<S, C: Clone, K: Clone> Layer<S> for RateLimitLayer<C, K> {
    type Service = RateLimit<S, C, K>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, layer: Arc::new(self.clone()) }
    }
}

/// The service that [`RateLimitLayer`] makes of another one.
pub struct RateLimit<S, C, K> {
    inner: S,
    layer: Arc<RateLimitLayer<C, K>>,
}

impl<S: Clone, C, K> Clone for RateLimit<S, C, K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: Arc::clone(&self.layer) }
    }
}

impl<S, C, K, I, B, R> Service<Request<B>> for RateLimit<S, C, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    C: ConnectionLike + Clone + Send + Sync + 'static,
    K: Fn(&Request<B>) -> Option<I> + Send + Sync + 'static,
    I: IntoDemand,
    B: Send + 'static,
{
    type Response = Response<Either<R, Full<Bytes>>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready goes with the request.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let layer = Arc::clone(&self.layer);
        let demand = (layer.key_of)(&request).map(IntoDemand::into_demand);
        let grpc = is_grpc(&request);
        Box::pin(async move {
            let Some(demand) = demand else {
                return inner.call(request).await.map(|own| own.map(Either::Left));
            };
            let key = format!("http:{}:{}", layer.policy.name, demand.key);
            let limit = demand.limit.unwrap_or(layer.policy.limit);
            let ruling = layer.limiter.take(key, limit, Units(demand.cost)).await;
            let error = ruling.as_ref().map_or_else(Some, Ruling::error);
            if let (Some(report), Some(error)) = (&layer.on_error, error) {
                report(error);
            }
            let refusal = match &ruling {
                Err(_) => Some(Refusal::Error),
                Ok(ruling) if ruling.admitted() => None,
                Ok(ruling) if ruling.answer().is_none() => Some(Refusal::Unavailable),
                Ok(_) => Some(Refusal::Limited),
            };
            let mut response = match refusal {
                None => inner.call(request).await?.map(Either::Left),
                Some(refusal) if grpc => refusal.in_grpc().map(Either::Right),
                Some(refusal) => match &layer.answer {
                    None => refusal.in_http().map(Either::Right),
                    Some(own) => {
                        let answer = ruling.as_ref().ok().and_then(Ruling::answer);
                        own(refusal, answer).map(|body| Either::Right(Full::from(body)))
                    }
                },
            };
            let Ok(ruling) = ruling else { return Ok(response) };
            let numbers = match &ruling {
                Ruling::Server(answer) => Some((answer, limit)),
                Ruling::Local { answer, share, .. } => Some((answer, *share)),
                Ruling::FailedOpen(_) | Ruling::FailedClosed(_) => None,
            };
            if let Some((answer, limit)) = numbers {
                describe(response.headers_mut(), &layer.policy.name, limit, answer);
            }
            Ok(response)
        })
    }
}

/// Whether the client expects the status of gRPC, which stands in a field of its own.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|content_type| content_type.starts_with(b"application/grpc"))
}

/// Why the service does not see a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// The limit is reached.
    Limited,
    /// The server is unavailable.
    Unavailable,
    /// An error of the call.
    Error,
}

impl Refusal {
    const fn title(self) -> &'static str {
        match self {
            Self::Limited => "Too many requests",
            Self::Unavailable => "Rate limiter unavailable",
            Self::Error => "Rate limiter error",
        }
    }

    pub(crate) fn in_http(self) -> Response<Full<Bytes>> {
        let (status, kind) = match self {
            Self::Limited => (
                StatusCode::TOO_MANY_REQUESTS,
                r#""type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "#,
            ),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, ""),
            Self::Error => (StatusCode::INTERNAL_SERVER_ERROR, ""),
        };
        let body = format!(r#"{{{kind}"title": "{}", "status": {}}}"#, self.title(), status.as_u16());
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, problem);
        response
    }

    /// A response without a body, whose fields are also its trailers.
    pub(crate) fn in_grpc(self) -> Response<Full<Bytes>> {
        let code = match self {
            Self::Limited => "8",      // RESOURCE_EXHAUSTED
            Self::Unavailable => "14", // UNAVAILABLE
            Self::Error => "13",       // INTERNAL
        };
        let mut response = Response::new(Full::default());
        let message = self.title().replace(' ', "%20");
        set(response.headers_mut(), "grpc-status", code.to_owned());
        set(response.headers_mut(), "grpc-message", message);
        set(response.headers_mut(), "content-type", "application/grpc".to_owned());
        response
    }
}

/// Adds the fields that describe a decision, to those of another layer if there are some.
fn describe(headers: &mut HeaderMap, name: &str, limit: Limit, answer: &Answer) {
    let Answer { limit: most, remaining, reset_after, .. } = *answer;
    let parameter = |name: &str, time: Option<Duration>| {
        time.map(|time| format!(";{name}={}", seconds(time))).unwrap_or_default()
    };
    let (window, next) = (parameter("w", limit.window(most)), parameter("t", limit.next(answer)));
    for (list, member) in [
        ("ratelimit-policy", format!("\"{name}\";q={most}{window}")),
        ("ratelimit", format!("\"{name}\";r={remaining}{next}")),
    ] {
        // The last policy of a list is that of the outermost layer.
        let there = headers.get(list).and_then(|there| there.to_str().ok());
        let value = there.map_or_else(|| member.clone(), |there| format!("{there}, {member}"));
        set(headers, list, value);
    }
    // Of several limits, these fields have the one of which least remains.
    let least = headers.get(REMAINING).and_then(|there| there.to_str().ok()?.parse().ok());
    if least.is_none_or(|least: u64| remaining < least) {
        set(headers, "x-ratelimit-limit", most.to_string());
        set(headers, REMAINING, remaining.to_string());
        set(headers, "x-ratelimit-reset", seconds(reset_after).to_string());
    }
    if let Some(wait) = answer.retry_after() {
        set(headers, "retry-after", seconds(wait).to_string());
    }
}

const REMAINING: &str = "x-ratelimit-remaining";

pub(crate) fn set(headers: &mut HeaderMap, name: &'static str, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Rounds up: a client that waits for this time must not be refused because of rounding.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
