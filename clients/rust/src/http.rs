//! Rate limits in HTTP responses, as described in docs/http.md of redis-cell.

use crate::{Answer, DecidedBy, Guard, Limit, LocalLimiter, Units};
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
use tower_service::Service;

/// A named limit of any kind for requests. The name identifies the policy in the response, and is part of the
/// key.
///
/// If the kind of the limit changes, give the policy another name: the kinds store different types.
///
/// # Example
/// ```
/// use redis_cell_client::{Fixed, FixedWindow, Limit, Policy, Rate};
/// let steady = Policy::new("steady", Rate::per_minute(30).burst(2))?;
/// let monthly = Policy::new("monthly", Fixed::new(10_000, FixedWindow::month()))?;
/// let exact = Policy::new("exact", Limit::Log(Rate::per_minute(30)))?;
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    name: Arc<str>,
    limit: Limit,
}

impl Policy {
    /// Creates a policy that takes one unit per request.
    ///
    /// # Errors
    /// Returns an error if the name has characters other than letters, digits, `-`, `_` and `.`, or if the
    /// limit is one that the server would reject in every call.
    pub fn new(name: &str, limit: impl Into<Limit>) -> redis::RedisResult<Self> {
        // A `:` ends the name in the key. If names could have one, the client `login:eve` of the policy `api`
        // would share its key with the client `eve` of the policy `api:login`.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(crate::limit::invalid("a policy's name has letters, digits, -, _ and . only"));
        }
        let limit = limit.into();
        LocalLimiter::with_keys(NonZeroU32::MIN, 1).take("", limit, Units(1))?;
        Ok(Self { name: name.into(), limit })
    }
}

/// The key of a request for [`RateLimitLayer`], with a cost and a limit if they differ from the policy's.
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
    /// Creates a demand for one unit of the policy's limit.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), cost: 1, limit: None }
    }

    /// Sets the number of units. A request with a cost of 0 takes nothing, and is refused only over the
    /// limit. A request whose cost exceeds the limit is refused without `Retry-After`, because no wait helps.
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        Self { cost: units, ..self }
    }

    /// Sets a limit other than the policy's. It must be of the same kind, because each kind stores its own
    /// type. A request with a limit that the server rejects gets 500.
    #[must_use]
    pub fn limit(self, limit: impl Into<Limit>) -> Self {
        Self { limit: Some(limit.into()), ..self }
    }
}

/// The result of the function of [`RateLimitLayer`]: a [`Demand`], or any text as a key.
pub trait IntoDemand {
    /// Converts the value into a demand.
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

/// Limits requests by a key that a function reads from each request.
///
/// Instead of a key, the function may return a [`Demand`]: a key, a cost and a limit for this request.
///
/// A response has the fields `RateLimit-Policy`, `RateLimit` and `X-RateLimit-*`. A refused request gets 429
/// with `Retry-After`, and does not reach the service. When the server is unavailable, the
/// [`WhenUnavailable`](crate::WhenUnavailable) of the [`Guard`] decides: a request that fails open has none
/// of these fields, a request that fails closed gets 503, and with a local limiter the fields show this
/// process's share. After any other error of the guard, such as a key of another type or a server without the
/// module, the request gets 500. A gRPC request, recognized by its `Content-Type`, gets `RESOURCE_EXHAUSTED`
/// instead of 429, `UNAVAILABLE` instead of 503, and `INTERNAL` instead of 500, with the same fields.
///
/// The layer wraps a service with any body, in axum, hyper, tonic, or another layer. The body of a response
/// is the body of the service or of the layer.
///
/// The key in the server is `http:`, the policy's name, `:`, and the key of the request.
///
/// A service can have several of these layers, each with its own policy. The outermost layer decides first.
/// Each layer takes its own unit: a request that an inner layer refuses has already taken a unit in the outer
/// ones. The lists `RateLimit-Policy` and `RateLimit` have a member for each layer, and `X-RateLimit-*`
/// describe the limit with the fewest units left.
///
/// # Example
/// The [example](crate) of the crate is an axum service with this layer.
#[derive(Clone)]
pub struct RateLimitLayer<C, K> {
    guard: Guard<C>,
    policy: Policy,
    key_of: K,
    on_error: Option<Report>,
    answer: Option<Answering>,
}

type Answering = Arc<dyn Fn(Refusal, Option<&Answer>) -> Response<Bytes> + Send + Sync>;
pub(crate) type Report = Arc<dyn Fn(&RedisError) + Send + Sync>;

impl<C, K> RateLimitLayer<C, K> {
    /// Creates a layer that limits requests by `policy`. `key_of` returns the identity of the client, such as
    /// a user, an API key or an address, or `None` for a request that is not limited.
    pub const fn new<B, I>(guard: Guard<C>, policy: Policy, key_of: K) -> Self
    where
        K: Fn(&Request<B>) -> Option<I>,
        I: IntoDemand,
    {
        Self { guard, policy, key_of, on_error: None, answer: None }
    }

    /// Sets a function that answers the requests that do not reach the service, except gRPC requests. It
    /// receives the guard's answer, or `None` if there is none. The layer adds its fields to the response.
    ///
    /// # Example
    /// ```
    /// # use redis_cell_client::{Guard, Policy, Rate, RateLimitLayer, WhenUnavailable};
    /// # async fn layer(connection: redis::aio::ConnectionManager) -> redis::RedisResult<()> {
    /// use http::{Request, Response, StatusCode};
    /// use redis_cell_client::Refusal;
    ///
    /// let guard = Guard::new(connection, WhenUnavailable::FailClosed);
    /// let policy = Policy::new("api", Rate::per_minute(30))?;
    /// let all = |_: &Request<()>| Some("all");
    /// let layer = RateLimitLayer::new(guard, policy, all).answer(|refusal, _| {
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
}

/// What all layers have: a function for errors, and the service that they wrap around another one.
macro_rules! layer {
    ($layer:ident<$($parameter:ident),+>, $service:ident) => {
        impl<$($parameter),+> $layer<$($parameter),+> {
            /// Calls `report` with the error of each request that the server has not decided, for a log or a
            /// metric.
            #[must_use]
            pub fn on_error(self, report: impl Fn(&redis::RedisError) + Send + Sync + 'static) -> Self {
                Self { on_error: Some(std::sync::Arc::new(report)), ..self }
            }
        }

        impl<S, $($parameter: Clone),+> tower_layer::Layer<S> for $layer<$($parameter),+> {
            type Service = $service<S, $($parameter),+>;

            fn layer(&self, inner: S) -> Self::Service {
                $crate::http::Layered::new(inner, self)
            }
        }

        #[doc = concat!("The service that [`", stringify!($layer), "`] wraps around another service.")]
        pub type $service<S, $($parameter),+> = $crate::http::Layered<S, $layer<$($parameter),+>>;
    };
}
pub(crate) use layer;

layer!(RateLimitLayer<C, K>, RateLimit);

/// A service with a layer around it.
#[derive(Debug)]
pub struct Layered<S, L> {
    pub(crate) inner: S,
    pub(crate) layer: Arc<L>,
}

impl<S, L: Clone> Layered<S, L> {
    pub(crate) fn new(inner: S, layer: &L) -> Self {
        Self { inner, layer: Arc::new(layer.clone()) }
    }
}

impl<S: Clone, L> Clone for Layered<S, L> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: Arc::clone(&self.layer) }
    }
}

/// The future of a service, whose response has the body of the service or that of a layer.
pub(crate) type Responds<R, E> = Pin<Box<dyn Future<Output = Result<Response<R>, E>> + Send>>;

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
    type Future = Responds<Either<R, Full<Bytes>>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that is ready handles this request; its clone handles the next one.
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
            let decided = layer.guard.take(key, limit, Units(demand.cost)).await;
            let error = decided.as_ref().map_or_else(Some, DecidedBy::error);
            if let (Some(report), Some(error)) = (&layer.on_error, error) {
                report(error);
            }
            let refusal = match &decided {
                Err(_) => Some(Refusal::Error),
                Ok(decided) if decided.admitted() => None,
                Ok(decided) if decided.answer().is_none() => Some(Refusal::Unavailable),
                Ok(_) => Some(Refusal::Limited),
            };
            let mut response = match refusal {
                None => inner.call(request).await?.map(Either::Left),
                Some(refusal) if grpc => refusal.in_grpc().map(Either::Right),
                Some(refusal) => match &layer.answer {
                    None => refusal.in_http().map(Either::Right),
                    Some(own) => {
                        let answer = decided.as_ref().ok().and_then(DecidedBy::answer);
                        own(refusal, answer).map(|body| Either::Right(Full::from(body)))
                    }
                },
            };
            let Ok(decided) = decided else { return Ok(response) };
            let numbers = match &decided {
                DecidedBy::Server(answer) => Some((answer, limit)),
                DecidedBy::Local { answer, share, .. } => Some((answer, *share)),
                DecidedBy::FailedOpen(_) | DecidedBy::FailedClosed(_) => None,
            };
            if let Some((answer, limit)) = numbers {
                describe(response.headers_mut(), &layer.policy.name, limit, answer);
            }
            Ok(response)
        })
    }
}

/// Returns whether the client expects a gRPC status, which is in a field of its own.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|content_type| content_type.starts_with(b"application/grpc"))
}

/// Why a request does not reach the service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// The limit is reached.
    Limited,
    /// The server is unavailable.
    Unavailable,
    /// The call returned an error.
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

    fn in_http(self) -> Response<Full<Bytes>> {
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

    /// Returns the response to a request, with a wait in seconds if one helps.
    pub(crate) fn respond(self, grpc: bool, wait: Option<u64>) -> Response<Full<Bytes>> {
        let mut response = if grpc { self.in_grpc() } else { self.in_http() };
        if let Some(wait) = wait {
            set(response.headers_mut(), "retry-after", wait.to_string());
        }
        response
    }

    /// Returns a response without a body, whose fields also serve as trailers.
    fn in_grpc(self) -> Response<Full<Bytes>> {
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

/// Adds the fields that describe a decision to the fields of other layers.
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
        // Each list ends with the policy of the outermost layer.
        let there = headers.get(list).and_then(|there| there.to_str().ok());
        let value = there.map_or_else(|| member.clone(), |there| format!("{there}, {member}"));
        set(headers, list, value);
    }
    // Among several limits, these fields describe the limit with the fewest units left.
    let least = headers.get(REMAINING).and_then(|there| there.to_str().ok()?.parse().ok());
    if least.is_none_or(|least: u64| remaining < least) {
        set(headers, "x-ratelimit-limit", most.to_string());
        set(headers, REMAINING, remaining.to_string());
        if reset_after < Duration::MAX {
            set(headers, "x-ratelimit-reset", seconds(reset_after).to_string());
        } else {
            headers.remove("x-ratelimit-reset");
        }
    }
    if let Some(wait) = answer.retry_after() {
        set(headers, "retry-after", seconds(wait).to_string());
    }
}

const REMAINING: &str = "x-ratelimit-remaining";

fn set(headers: &mut HeaderMap, name: &'static str, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Rounds up, so that a client that waits for this time is not refused because of rounding.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
