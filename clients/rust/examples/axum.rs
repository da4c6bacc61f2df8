//! A service of axum whose clients can send three requests at once, and one every two seconds in the long
//! run.

use axum::{Router, extract::Request, routing::get};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis_cell_client::{Guard, LocalLimiter, Policy, Rate, RateLimitLayer, WhenUnavailable};
use std::env::var;
use std::num::NonZeroU32;

/// The identity of a client. Requests without one are not limited.
fn client_of(request: &Request) -> Option<String> {
    if request.uri().path() == "/health" {
        return None;
    }
    let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    Some(key.unwrap_or("anonymous").to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let listen = var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());

    // The service starts, and serves, whether the server is available or not.
    let client = redis::Client::open(redis)?;
    // One attempt to connect for each call, so that its error is known within the call's timeout.
    let once = ConnectionManagerConfig::new().set_number_of_retries(0);
    let connection = ConnectionManager::new_lazy_with_config(client, once)?;
    // While it is unavailable, this process, the only one, limits by itself.
    let guard = Guard::new(connection, WhenUnavailable::Local(LocalLimiter::new(NonZeroU32::MIN)));
    let policy = Policy::new("default", Rate::per_minute(30).burst(2))?;
    let limit = RateLimitLayer::new(guard, policy, client_of)
        .on_error(|error| eprintln!("the rate limiter has not decided: {error}"));

    let app =
        Router::new().route("/", get(async || "Hello\n")).route("/health", get(async || "ok\n")).layer(limit);
    let listener = tokio::net::TcpListener::bind(listen).await?;
    axum::serve(listener, app).await?;
    Ok(())
}
