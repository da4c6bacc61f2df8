//! Health, metrics and rules over HTTP.

use crate::decide::{Decider, Failure};
use crate::json;
use crate::proto::Code;
use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use prost_reflect::SerializeOptions;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The conditions of health.
#[derive(Debug, Default)]
pub struct Health {
    /// Whether the process has received a signal to end.
    pub is_ending: AtomicBool,
    /// Whether the service is healthy only with a domain.
    pub needs_domain: bool,
    /// Whether the service is healthy only with the server.
    pub needs_server: bool,
}

impl Health {
    /// Returns whether requests should be sent to this process.
    pub async fn is_healthy(&self, decider: &Decider) -> bool {
        !self.is_ending.load(Relaxed)
            && (!self.needs_domain || decider.config().domains() > 0)
            && (!self.needs_server || decider.can_server_decide().await)
    }
}

/// Decides a request in JSON.
async fn decide(decider: &Decider, body: &[u8]) -> Response {
    let request = match json::request(body) {
        Ok(request) => request,
        Err(text) => return (StatusCode::BAD_REQUEST, text).into_response(),
    };
    let response = match decider.decide(&request, None).await {
        Ok(response) => response,
        Err(Failure::Request(text)) => return (StatusCode::BAD_REQUEST, text).into_response(),
        Err(Failure::Server(error)) => {
            return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response();
        }
    };
    let is_over = response.overall_code() == Code::OverLimit;
    let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let name = "envoy.service.ratelimit.v3.RateLimitResponse";
    match json::written(name, &response, &SerializeOptions::new()) {
        Ok(json) => (status, [(header::CONTENT_TYPE, "application/json")], json.to_string()).into_response(),
        Err(text) => (StatusCode::INTERNAL_SERVER_ERROR, text).into_response(),
    }
}

/// Returns the routes `/healthcheck`, `/json`, `/rlconfig` and `/metrics`.
pub fn routes(decider: &Arc<Decider>, health: &Arc<Health>) -> Router {
    let of_health = (Arc::clone(decider), Arc::clone(health));
    let healthcheck = async move || {
        let (decider, health) = &of_health;
        if health.is_healthy(decider).await {
            (StatusCode::OK, "OK")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "not healthy")
        }
    };
    let of_rules = Arc::clone(decider);
    let rules = async move || {
        let mut text = String::new();
        for rule in of_rules.config().rules() {
            let (levels, place) = (rule.levels.join("."), &rule.place);
            let (count, unit) = (rule.requests_per_unit, rule.unit.as_str_name());
            let (shadow, quota) = (rule.shadow, rule.quota);
            // Writing to a String does not fail.
            let _: Result<(), std::fmt::Error> = writeln!(
                text,
                "{levels}: unit={unit} requests_per_unit={count}, shadow_mode: {shadow}, quota_mode: {quota} ({place})"
            );
        }
        text
    };
    let of_json = Arc::clone(decider);
    let json = async move |body: Bytes| decide(&of_json, &body).await;
    Router::new()
        .route("/healthcheck", get(healthcheck))
        .route("/json", post(json))
        .route("/rlconfig", get(rules))
        .merge(metrics(decider, "/metrics"))
}

/// Returns a route for the metrics at this path.
pub fn metrics(decider: &Arc<Decider>, path: &str) -> Router {
    let decider = Arc::clone(decider);
    let text = async move || {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], decider.metrics().text()).into_response()
    };
    Router::new().route(path, get(text))
}
