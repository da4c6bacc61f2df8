//! The layer in services of axum, with real requests. docs/http.md explains the fields.

use crate::client;
use crate::common::Server;
use crate::unavailable::{NOBODY, PATIENCE, manager};
use axum::{Router, extract::Request, routing::get};
use redis_cell_client::{
    Demand, Fixed, FixedWindow, Guard, Limit, LocalLimiter, Policy, Rate, RateLimitLayer, Refusal,
    WhenUnavailable,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    head: String,
    body: String,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub fn body(&self) -> &str {
        &self.body
    }

    /// The fields of a rate limit, in the order of docs/http.md.
    pub fn limits(&self) -> [Option<&str>; 6] {
        [
            "ratelimit-policy",
            "ratelimit",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "retry-after",
        ]
        .map(|name| self.field(name))
    }
}

pub fn try_request(to: SocketAddr, key: &str) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect(to)?;
    write!(stream, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok(Response { status, head: head.to_owned(), body: body.to_owned() })
}

pub fn request(to: SocketAddr, key: &str) -> Response {
    try_request(to, key).unwrap()
}

/// Serves an application on a free port.
pub async fn listen(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// A service that admits two requests an hour.
async fn serve(
    redis: u16,
    when_unavailable: WhenUnavailable,
) -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    serve_by(redis, when_unavailable, Policy::new("two", Rate::per_hour(2).burst(1)).unwrap()).await
}

/// A service with the layer on a free port, and how often its handler and its report of errors were called.
async fn serve_by(
    redis: u16,
    when_unavailable: WhenUnavailable,
    policy: Policy,
) -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (handled, reported) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    // A server that is there answers, however busy the machine is.
    let timeout = if redis == NOBODY { Duration::from_millis(500) } else { PATIENCE };
    let key_of = |request: &Request| {
        let key = request.headers()["x-api-key"].to_str().unwrap().to_owned();
        (key != "free").then_some(key)
    };
    let layer = RateLimitLayer::new(
        Guard::new(manager(client(redis)), when_unavailable).timeout(timeout),
        policy,
        key_of,
    )
    .on_error({
        let reported = Arc::clone(&reported);
        move |_| _ = reported.fetch_add(1, Relaxed)
    });
    let handler = {
        let handled = Arc::clone(&handled);
        async move || _ = handled.fetch_add(1, Relaxed)
    };
    let app = Router::new().route("/", get(handler)).layer(layer);
    let address = listen(app).await;
    (address, handled, reported)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_does_not_reach_the_service() {
    let server = Server::start();
    let (address, handled, reported) = serve(server.port(), WhenUnavailable::FailClosed).await;
    let statuses: Vec<u16> = (0..5).map(|_| request(address, "a").status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    assert_eq!(request(address, "a").field("retry-after"), Some("1800"));
    assert_eq!((handled.load(Relaxed), reported.load(Relaxed)), (2, 0));
    // No key, no limit.
    assert!((0..5).all(|_| request(address, "free").limits() == [None; 6]));
    assert_eq!(handled.load(Relaxed), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_decision_the_choice_responds_and_an_error_is_a_500_in_every_choice() {
    let server = Server::start();
    server.connect().call("LPUSH http:two:a x");
    let local = WhenUnavailable::Local(LocalLimiter::new(NonZeroU32::MIN));
    let closed = r#"{"title": "Rate limiter unavailable", "status": 503}"#;
    let error = r#"{"title": "Rate limiter error", "status": 500}"#;
    for (port, choice, status, body) in [
        (NOBODY, WhenUnavailable::FailOpen, 200, ""),
        (NOBODY, WhenUnavailable::FailClosed, 503, closed),
        (server.port(), WhenUnavailable::FailOpen, 500, error),
        (server.port(), WhenUnavailable::FailClosed, 500, error),
        (server.port(), local, 500, error),
    ] {
        let (address, handled, reported) = serve(port, choice).await;
        for _ in 0..3 {
            let response = request(address, "a");
            let seen = (response.status, response.limits(), response.body.as_str());
            assert_eq!(seen, (status, [None; 6], body));
        }
        let served = if status == 200 { 3 } else { 0 };
        assert_eq!((handled.load(Relaxed), reported.load(Relaxed)), (served, 3));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn local_limits_by_the_share_of_the_process() {
    let local = LocalLimiter::new(NonZeroU32::new(2).unwrap());
    let (address, handled, _) = serve(NOBODY, WhenUnavailable::Local(local)).await;
    let response = request(address, "a");
    assert_eq!((response.status, response.field("ratelimit-policy")), (200, Some(r#""two";q=1;w=3600"#)));
    let response = request(address, "a");
    assert_eq!((response.status, response.field("retry-after")), (429, Some("3600")));
    assert_eq!(handled.load(Relaxed), 1);
}

/// Two an hour by a limiter of each kind, with the parameters `w` of `RateLimit-Policy` and `t` of
/// `RateLimit`, of the first response and of the refusal, in seconds. `-1` for one that is not there, `None`
/// for one that depends on the clock.
type Kind = (&'static str, Limit, i64, Option<i64>, Option<i64>);

fn kinds() -> [Kind; 9] {
    let hourly = Rate::per_hour(2);
    let fixed = |window| Fixed::new(2, window).into();
    [
        ("throttle", hourly.burst(1).into(), 3_600, Some(1_800), Some(1_800)),
        ("funnel", Limit::Funnel(hourly.capacity(2)), 3_600, Some(1_800), Some(1_800)),
        ("bucket", Limit::Bucket(hourly.capacity(2)), 3_600, Some(1_800), Some(1_800)),
        ("fixed", fixed(FixedWindow::period(Duration::from_secs(3_600))), 3_600, Some(3_600), Some(3_600)),
        ("day", fixed(FixedWindow::day().utc_offset_minutes(-300)), 86_400, None, None),
        ("month", fixed(FixedWindow::month_from(15)), -1, None, None),
        (
            "until",
            fixed(FixedWindow::until(SystemTime::now() + Duration::from_secs(7_200))),
            -1,
            Some(7_200),
            Some(7_200),
        ),
        ("window", Limit::Window(hourly), 3_600, Some(-1), None),
        ("log", Limit::Log(hourly), 3_600, Some(-1), Some(3_600)),
    ]
}

/// A parameter of a field in seconds, -1 if it has none of that name.
fn parameter(response: &Response, field: &str, name: &str) -> i64 {
    let value = response.field(field).unwrap_or_else(|| panic!("no {field}: {}", response.head));
    let found = value.split(';').find_map(|parameter| parameter.strip_prefix(name)?.strip_prefix('='));
    found.map_or(-1, |number| number.parse().unwrap())
}

/// Requests to a service with a limit of this kind have the right statuses and fields.
async fn assert_limits(redis: u16, when_unavailable: WhenUnavailable, (name, limit, w, t, refused_t): Kind) {
    let (address, handled, _) = serve_by(redis, when_unavailable, Policy::new(name, limit).unwrap()).await;
    let responses: Vec<Response> = (0..4).map(|_| request(address, "a")).collect();
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    assert_eq!((statuses.as_slice(), handled.load(Relaxed)), (&[200, 200, 429, 429][..], 2), "{name}");
    // A few seconds may pass on a busy machine.
    let is = |seen: i64, expected: i64| {
        seen == expected || (expected > 0 && (expected - 60..expected).contains(&seen))
    };
    for (response, remaining, t) in
        [(&responses[0], 1, t), (&responses[1], 0, None), (&responses[2], 0, refused_t)]
    {
        let head = &response.head;
        assert_eq!(parameter(response, "ratelimit-policy", "q"), 2, "{head}");
        assert_eq!(parameter(response, "ratelimit-policy", "w"), w, "{head}");
        assert_eq!(parameter(response, "ratelimit", "r"), remaining, "{head}");
        let seen = parameter(response, "ratelimit", "t");
        assert!(t.is_none_or(|t| is(seen, t)), "{head}");
        let reset: i64 = response.field("x-ratelimit-reset").unwrap().parse().unwrap();
        assert!(seen <= reset, "{head}");
        // Waiting for Retry-After is long enough, and not longer than `t` says.
        let wait = response.field("retry-after").map_or(-1, |wait| wait.parse().unwrap());
        assert_eq!(wait, if response.status == 429 { seen } else { -1 }, "{head}");
    }
    assert!(parameter(&responses[2], "ratelimit", "t") > 0, "{}", responses[2].head);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_every_kind() {
    let server = Server::start();
    for kind in kinds() {
        assert_limits(server.port(), WhenUnavailable::FailClosed, kind).await;
        assert_eq!(server.connect().int(&format!("EXISTS http:{}:a", kind.0)), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_every_kind_in_this_process() {
    for kind in kinds() {
        let local = WhenUnavailable::Local(LocalLimiter::new(NonZeroU32::MIN));
        // A log is estimated there.
        let kind = if kind.0 == "log" { (kind.0, kind.1, kind.2, kind.3, None) } else { kind };
        assert_limits(NOBODY, local, kind).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_layers_have_a_policy_each() {
    let server = Server::start();
    let guard = Guard::new(manager(client(server.port())), WhenUnavailable::FailClosed).timeout(PATIENCE);
    let layer = |name: &str, limit: Limit| {
        let policy = Policy::new(name, limit).unwrap();
        RateLimitLayer::new(guard.clone(), policy, |_: &Request| Some("a"))
    };
    let inner = layer("inner", Fixed::new(2, FixedWindow::period(Duration::from_secs(3_600))).into());
    let outer = layer("outer", Rate::per_hour(9).burst(8).into());
    let app = Router::new().route("/", get(async || ())).layer(inner).layer(outer);
    let address = listen(app).await;
    let responses: Vec<Response> = (0..3).map(|_| request(address, "")).collect();
    for (response, status, inner, outer) in
        [(&responses[0], 200, 1, 8), (&responses[1], 200, 0, 7), (&responses[2], 429, 0, 6)]
    {
        assert_eq!(response.status, status);
        let policies = Some(r#""inner";q=2;w=3600, "outer";q=9;w=3600"#);
        assert_eq!(response.field("ratelimit-policy"), policies);
        let (first, second) = response.field("ratelimit").unwrap().split_once(", ").unwrap();
        assert!(first.starts_with(&format!(r#""inner";r={inner};t="#)), "{first}");
        assert!(second.starts_with(&format!(r#""outer";r={outer};t="#)), "{second}");
        assert_eq!(response.field("x-ratelimit-limit"), Some("2"));
        assert_eq!(response.field("x-ratelimit-remaining"), Some(inner.to_string().as_str()));
        assert_eq!(response.field("retry-after").is_some(), status == 429);
    }
}

#[test]
fn a_policy_has_a_name_that_a_field_can_hold() {
    assert!(Policy::new("a-b_c.d9", Rate::per_second(1)).is_ok());
    // With a `:`, the client `login:eve` of `api` would have the key of the client `eve` of `api:login`.
    for name in ["", "two words", "quote\"", "naïve", "line\n", "api:login"] {
        let error = Policy::new(name, Rate::per_second(1)).err().unwrap_or_else(|| panic!("{name:?}"));
        assert!(error.to_string().contains("a policy's name has letters"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_a_cost_a_limit_and_an_answer_of_their_own() {
    let server = Server::start();
    let guard = Guard::new(manager(client(server.port())), WhenUnavailable::FailClosed).timeout(PATIENCE);
    // A key such as `3/10/a` is a cost, a limit and a client.
    let demand = |request: &Request| {
        let mut parts = request.headers()["x-api-key"].to_str().unwrap().split('/');
        let (cost, most) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Demand::new(parts.next()?).cost(cost).limit(Rate::per_hour(1).burst(most)))
    };
    let policy = Policy::new("own", Rate::per_hour(1)).unwrap();
    let layer = RateLimitLayer::new(guard, policy, demand).answer(|refusal, answer| {
        assert_eq!(refusal, Refusal::Limited);
        let remaining = answer.unwrap().remaining;
        http::Response::builder().status(420).body(format!("{remaining} left").into()).unwrap()
    });
    let app = Router::new().route("/", get(async || "served")).layer(layer);
    let to = listen(app).await;
    let seen = tokio::task::spawn_blocking(move || {
        ["4/9/a", "4/9/a", "4/9/a", "0/9/a", "2/9/a", "11/9/b", "5/99/b", "none"].map(|key| {
            let response = request(to, key);
            let remaining = response.field("x-ratelimit-remaining").map(str::to_owned);
            (response.status, response.body.clone(), remaining, response.field("retry-after").is_some())
        })
    })
    .await
    .unwrap();
    let served = |remaining: &str| (200, "served".to_owned(), Some(remaining.to_owned()), false);
    let refused =
        |remaining: &str, retry| (420, format!("{remaining} left"), Some(remaining.to_owned()), retry);
    assert_eq!(
        seen,
        [
            served("6"),
            served("2"),
            refused("2", true),
            served("2"),
            served("0"),
            refused("10", false), // no wait helps
            served("95"),
            (200, "served".to_owned(), None, false),
        ]
    );
}
