//! The gRPC method `ShouldRateLimit`.

use crate::decide::{Decider, Failure};
use crate::proto::{METHOD, RateLimitRequest, RateLimitResponse, SERVICE};
use redis_cell_client::is_unavailable;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The service, for a tonic server.
#[derive(Clone, Debug)]
pub struct RateLimitService(pub Arc<Decider>);

impl NamedService for RateLimitService {
    const NAME: &'static str = SERVICE;
}

type Pinned<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Service<http::Request<Body>> for RateLimitService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pinned<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() == METHOD {
                let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
                return Ok(Grpc::new(codec).unary(service, request).await);
            }
            Ok(Status::unimplemented("the only method is ShouldRateLimit").into_http())
        })
    }
}

impl UnaryService<RateLimitRequest> for RateLimitService {
    type Response = RateLimitResponse;
    type Future = Pinned<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let decider = Arc::clone(&self.0);
        Box::pin(async move {
            let patience =
                request.metadata().get("grpc-timeout").and_then(|value| patience(value.to_str().ok()?));
            match decider.decide(request.get_ref(), patience).await {
                Ok(response) => Ok(Response::new(response)),
                Err(Failure::Request(text)) => Err(Status::invalid_argument(text)),
                Err(Failure::Server(error)) if is_unavailable(&error) => {
                    Err(Status::unavailable(error.to_string()))
                }
                Err(Failure::Server(error)) => Err(Status::internal(error.to_string())),
            }
        })
    }
}

/// Reads the header `grpc-timeout`: a number of at most eight digits, and a letter for the unit.
fn patience(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number.checked_mul(3_600)?)),
        "M" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}
