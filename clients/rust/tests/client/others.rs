//! The crates of others that send CL.THROTTLE, as published: `redis-cell-rs` and `tower-redis-cell`.

use crate::common::Server;
use crate::http::request;
use axum::http::{Request, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::{Router, body::Body, routing::get};
use redis_cell_rs::{Cmd, Key, Policy, Verdict};
use std::time::Duration;
use tower_redis_cell::{Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule};

fn connect(server: &Server) -> redis::Connection {
    redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap().get_connection().unwrap()
}

fn throttle(connection: &mut redis::Connection, policy: &Policy) -> redis::RedisResult<Verdict> {
    redis::Cmd::from(Cmd::new(&Key::pair("user123", "/api"), policy)).query(connection)
}

#[test]
fn redis_cell_rs_understands_the_answers() {
    let server = Server::start();
    let mut connection = connect(&server);
    let policy = Policy::from_tokens_per_day(1).max_burst(1);
    for remaining in [1, 0] {
        let verdict = throttle(&mut connection, &policy).unwrap();
        assert!(
            matches!(&verdict, Verdict::Allowed(details) if details.total == 2 && details.remaining == remaining),
            "{verdict:?}"
        );
    }
    let verdict = throttle(&mut connection, &policy).unwrap();
    assert!(
        matches!(&verdict, Verdict::Blocked(details) if details.retry_after > 0 && details.retry_after <= 86_400),
        "{verdict:?}"
    );
}

/// The limits of the crate that docs/client-rust.md states.
#[test]
fn redis_cell_rs_has_limits_of_its_own() {
    let server = Server::start();
    let mut connection = connect(&server);
    let policy = Policy::from_tokens_per_day(1).apply_tokens(2);
    let error = throttle(&mut connection, &policy).unwrap_err();
    assert!(error.to_string().contains("retry_after"), "{error}"); // refused forever
    let policy = Policy::from_tokens_per_period(1, Duration::from_millis(500));
    let error = throttle(&mut connection, &policy).unwrap_err();
    assert!(error.to_string().contains("period must be an integer from 1"), "{error}");
}

#[derive(Clone)]
struct ByApiKey;

impl<T> ProvideRule<Request<T>> for ByApiKey {
    fn provide<'a>(&self, request: &'a Request<T>) -> ProvideRuleResult<'a> {
        let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
        let policy = Policy::from_tokens_per_hour(2).max_burst(1);
        Ok(Some(Rule::new(key.ok_or("no x-api-key")?, policy)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tower_redis_cell_limits_a_service_of_axum() {
    let server = Server::start();
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    let config = RateLimitConfig::new(ByApiKey, |error, _: &Request<Body>| -> Response {
        match error {
            Error::RateLimit(refusal) => {
                let wait = AppendHeaders([(header::RETRY_AFTER, refusal.details.retry_after)]);
                (StatusCode::TOO_MANY_REQUESTS, wait).into_response()
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    });
    let patient = redis::aio::ConnectionManagerConfig::new().set_response_timeout(None);
    let connection = client.get_connection_manager_with_config(patient).await.unwrap();
    let app =
        Router::new().route("/", get(async || "Hello\n")).layer(RateLimitLayer::new(config, connection));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });

    let responses: Vec<_> = (0..3).map(|_| request(address, "a")).collect();
    assert_eq!(responses.iter().map(|response| response.status).collect::<Vec<_>>(), [200, 200, 429]);
    assert_eq!(responses[2].field("retry-after"), Some("1800"));
}
