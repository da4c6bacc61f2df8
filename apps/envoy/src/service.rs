//! The gRPC method `ShouldRateLimit`.

use crate::decide::{Decider, Failure};
use crate::proto::rate_limit_service_server::RateLimitService;
use crate::proto::{RateLimitRequest, RateLimitResponse};
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status, async_trait};

/// The service, for a tonic server.
#[derive(Debug)]
pub struct Service(pub Arc<Decider>);

#[async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let patience = request.metadata().get("grpc-timeout").and_then(|text| patience(text.to_str().ok()?));
        match self.0.decide(request.get_ref(), patience).await {
            Ok(response) => Ok(Response::new(response)),
            Err(Failure::Request(text)) => Err(Status::invalid_argument(text)),
            Err(Failure::Server(error)) => Err(Status::unavailable(error.to_string())),
        }
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
