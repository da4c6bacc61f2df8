//! Decisions of the service by gRPC, with a real server for the limiters.

use crate::common::Server;
use crate::harness::{Client, Service, back, descriptor, is_ok, request, row, rows, rules, with_hits};
use prost_types::value::Kind;
use redis_cell_envoy::proto::{Code, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};

/// A server, the service with these rules of a domain `d`, and a client.
async fn start(lines: &str, settings: &[(&str, &str)]) -> (Server, Service, Client) {
    let server = Server::start();
    let service = Service::with(&server, &rules(lines), settings);
    let client = service.client().await;
    (server, service, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn all_descriptors_of_a_request_are_charged_or_none() {
    let (server, _service, client) = start(
        "  - {key: narrow, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: wide, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: gcra, rate_limit: {unit: day, requests_per_unit: 10, algorithm: gcra}}
",
        &[("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false")], // which would be a call
    )
    .await;
    let all = || ["wide=1", "narrow=1", "gcra=1", "unknown=1"].map(descriptor).to_vec();
    for left in [1, 0] {
        let response = client.ask(all()).await;
        assert!(is_ok(&response));
        assert_eq!(rows(&response), [(true, 8 + left), (true, left), (true, 8 + left), (true, 0)]);
        assert_eq!(response.statuses[3].current_limit, None);
    }
    for _ in 0..3 {
        let response = client.ask(all()).await;
        assert!(!is_ok(&response));
        assert_eq!(rows(&response), [(true, 8), (false, 0), (true, 8), (true, 0)]);
        let limit = response.statuses[1].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit), (2, i32::from(Unit::Hour)));
        let wait = response.statuses[1].duration_until_reset.unwrap().seconds;
        assert!((1..=3_600).contains(&wait), "{wait}");
    }
    // Five requests of four descriptors were five calls.
    let calls = server.connect().text("INFO commandstats");
    assert!(calls.contains("cmdstat_cl.mtake:calls=5,"), "{calls}");
    assert!(!calls.contains("cmdstat_cl.msettle"), "{calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_are_those_of_the_descriptor_or_of_the_request() {
    let (_server, _service, client) = start(
        "  - {key: k, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: other, rate_limit: {unit: hour, requests_per_unit: 100}}
",
        &[],
    )
    .await;
    let request = |hits_addend, descriptors| RateLimitRequest { hits_addend, ..request(descriptors) };
    let response = client.send(request(3, vec![descriptor("k=1"), with_hits("other=1", 5)])).await.unwrap();
    assert_eq!(rows(&response), [(true, 7), (true, 95)]);
    // All or none: 8 do not fit.
    let response = client.send(request(8, vec![descriptor("k=1"), descriptor("other=1")])).await.unwrap();
    assert_eq!(rows(&response), [(false, 7), (true, 95)]);
    // The same descriptor twice is one limiter with the sum.
    let response = client.send(request(3, vec![descriptor("k=1"), descriptor("k=1")])).await.unwrap();
    assert_eq!(rows(&response), [(true, 1), (true, 1)]);
    assert_eq!(client.admitted(1, &["k=1", "k=1"]).await, 0);
    assert_eq!(client.admitted(2, &["k=1"]).await, 1);
    // More than any limit, and more than an integer of the server.
    let response = client.send(request(0, vec![with_hits("k=2", u64::MAX)])).await.unwrap();
    assert_eq!(rows(&response), [(false, 10)]);
    assert_eq!(response.statuses[0].duration_until_reset.unwrap().seconds, 3_600);
    // Refused for itself, so that nothing else is charged.
    let response = client.send(request(0, vec![descriptor("k=2")])).await.unwrap();
    assert_eq!(row(&response.statuses[0]), (true, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_of_0_decide_for_their_descriptor_of_their_request_alone() {
    let (_server, mut service, client) = start(
        "  - {key: a, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: b, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: debt, rate_limit: {unit: year, requests_per_unit: 10, overdraft: true}}
  - {key: hot, rate_limit: {unit: year, requests_per_unit: 10, batch: 5}}
",
        &[],
    )
    .await;
    let asked = async |descriptors| rows(&client.ask(descriptors).await);
    let one = |text: &str| with_hits(text, 1);
    for (descriptors, expected) in [
        (vec![with_hits("a=1", 0)], vec![(true, 2)]),
        (vec![one("a=1"), one("b=1")], vec![(true, 1), (true, 9)]),
        (vec![with_hits("a=1", 0), one("b=1")], vec![(true, 1), (true, 8)]),
        (vec![with_hits("a=1", 2), one("b=1")], vec![(false, 1), (true, 8)]),
        // Unconditional charges and hits that are given back charge other limits only if these admit the
        // request.
        (vec![with_hits("debt=1", 9), with_hits("a=1", 2)], vec![(true, 1), (false, 1)]),
        (vec![with_hits("debt=1", 9), one("b=1")], vec![(false, 0), (true, 8)]),
        (vec![one("b=1"), one("debt=1"), one("hot=1")], vec![(true, 8), (false, 0), (true, 10)]),
        (vec![back("debt=1", 14), one("b=1"), one("hot=1")], vec![(true, 5), (true, 7), (true, 0)]),
        (vec![back("b=1", 2), with_hits("a=1", 2)], vec![(true, 9), (false, 1)]),
    ] {
        assert_eq!(asked(descriptors.clone()).await, expected, "{descriptors:?}");
    }
    // A rule that does not say what its charges do is named.
    let logged = service.process.logged("rules.yaml:3: a request has 0 hits. ");
    assert!(logged.contains("needs overdraft: true"), "{logged}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_in_shadow_mode_refuses_nothing_and_says_so() {
    let (_server, service, client) = start(
        "  - {key: new, rate_limit: {unit: hour, requests_per_unit: 2}, shadow_mode: true}
  - {key: old, rate_limit: {unit: hour, requests_per_unit: 4}}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}, shadow_mode: true}
",
        &[],
    )
    .await;
    assert_eq!(client.admitted(6, &["new=1", "old=1"]).await, 4);
    assert_eq!(client.admitted(3, &["none=1", "old=2"]).await, 3);
    let metrics = service.get("/metrics").1;
    for line in [
        "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"new\"} 6",
        "ratelimit_service_rate_limit_shadow_mode{domain=\"d\",key1=\"new\"} 4",
        "ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"old\"} 2",
        "ratelimit_service_rate_limit_within_limit{domain=\"d\",key1=\"old\"} 7",
        "ratelimit_service_rate_limit_near_limit{domain=\"d\",key1=\"old\"} 1",
        "ratelimit_service_rate_limit_shadow_mode{domain=\"d\",key1=\"none\"} 3",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 9",
        "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"} 9",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_global_shadow_mode_admits_everything_and_shows_what_is_over() {
    let text = "  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}\n";
    let (_server, service, client) = start(text, &[("SHADOW_MODE", "true")]).await;
    assert_eq!(client.admitted(3, &["k=1"]).await, 3);
    let response = client.ask(vec![descriptor("k=1")]).await;
    assert_eq!((response.overall_code, row(&response.statuses[0])), (i32::from(Code::Ok), (false, 0)));
    assert!(service.get("/metrics").1.contains("\nratelimit_service_global_shadow_mode 3\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_with_quota_mode_refuse_only_together() {
    let (_server, _service, client) = start(
        "  - {key: s, value: one, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1},
     metadata: {pool: {name: one, rank: 1}}}
  - {key: s, value: two, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2},
     metadata: {pool: {name: two, spare: true}}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}
",
        &[("RESPONSE_DYNAMIC_METADATA", "true")],
    )
    .await;
    let all = || ["s=one", "s=two", "user=1"].map(descriptor).to_vec();
    let pool = |response: &redis_cell_envoy::proto::RateLimitResponse| {
        let fields = &response.dynamic_metadata.as_ref().unwrap().fields;
        let inner = |name: &str, kind: &Kind| match kind {
            Kind::StructValue(inner) => inner.fields.get(name).and_then(|value| value.kind.clone()),
            _ => None,
        };
        let metadata = fields.get("metadata").and_then(|value| value.kind.clone())?;
        match inner("name", &inner("pool", &metadata)?)? {
            Kind::StringValue(name) => Some(name),
            _ => None,
        }
    };
    let first = client.ask(all()).await;
    assert_eq!((is_ok(&first), pool(&first).as_deref()), (true, Some("one")));
    let second = client.ask(all()).await;
    assert_eq!((is_ok(&second), pool(&second).as_deref()), (true, Some("two")));
    // Both are used up: the request is refused, and the user's limit gets back what it gave.
    for _ in 0..4 {
        let third = client.ask(all()).await;
        assert_eq!((is_ok(&third), pool(&third)), (false, None));
    }
    assert_eq!(client.admitted(5, &["user=1"]).await, 3);
    let domain = first.dynamic_metadata.unwrap().fields.get("domain").cloned().unwrap();
    assert_eq!(domain.kind, Some(Kind::StringValue("d".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_rules_that_limit_the_request_refuse_it_by_quota() {
    let (_server, _service, client) = start(
        "  - {key: one, quota_mode: true, rate_limit: {name: one, unit: hour, requests_per_unit: 1}}
  - {key: free, quota_mode: true, rate_limit: {unlimited: true}}
  - {key: other, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: two, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1, replaces: [{name: one}]}}
",
        &[],
    )
    .await;
    // A rule without a limit, and a rule that is replaced, do not admit what the others of their kind refuse.
    assert_eq!(client.admitted(4, &["one=1", "free=1", "other=1"]).await, 1);
    assert_eq!(client.admitted(4, &["one=2", "two=2", "other=2"]).await, 1);
    let free = client.ask(vec![descriptor("free=1")]).await;
    assert_eq!((rows(&free), free.statuses[0].current_limit.as_ref()), (vec![(true, u32::MAX)], None));
    // Each request that is admitted is charged for all its rules, and no other.
    for other in ["other=1", "other=2"] {
        assert_eq!(client.admitted(12, &[other]).await, 9, "{other}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_quota_mode_for_all_rules_a_descriptor_without_a_rule_admits() {
    let (_server, _service, client) = start(
        "  - {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: other, rate_limit: {unit: hour, requests_per_unit: 3}}
",
        &[("QUOTA_MODE", "true")],
    )
    .await;
    assert_eq!(client.admitted(4, &["one=1"]).await, 1);
    assert_eq!(client.admitted(5, &["one=2", "other=2"]).await, 3);
    assert_eq!(client.admitted(5, &["one=3", "unknown=3"]).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_the_reference_counts() {
    let (_server, service, client) = start(
        "  - {key: tenth, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: old, rate_limit: {name: old, unit: hour, requests_per_unit: 10}}
  - {key: new, rate_limit: {unit: hour, requests_per_unit: 10, replaces: [{name: old}]}}
  - {key: long, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: empty, value_to_metric: true, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: burst, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: gcra, burst: 10}}
",
        &[],
    )
    .await;
    // Of 15 hits after 70, five are near the limit, which begins at 80.
    client.ask(vec![with_hits("tenth=1", 70)]).await;
    client.ask(vec![with_hits("tenth=1", 15)]).await;
    client.ask(vec![with_hits("tenth=1", 2)]).await;
    // Of 9 at once, one is near the 10 that are possible at once.
    client.ask(vec![with_hits("burst=1", 9)]).await;
    assert!(client.admits(&["old=1", "new=1"]).await);
    assert!(client.admits(&["empty="]).await);
    // A value of any length has no metric of its own: callers must not fill the memory.
    assert!(client.admits(&[&format!("long={}", "x".repeat(100_000))]).await);
    for without_meaning in [RateLimitRequest::default(), request(vec![])] {
        let error = client.send(without_meaning).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
    }
    assert!(client.of("e").admits(&["k=1"]).await);
    let metrics = service.get("/metrics").1;
    for line in [
        "ratelimit_service_rate_limit_near_limit{domain=\"d\",key1=\"tenth\"} 7",
        "ratelimit_service_rate_limit_within_limit{domain=\"d\",key1=\"tenth\"} 87",
        "ratelimit_service_rate_limit_near_limit{domain=\"d\",key1=\"burst\"} 1",
        "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"new\"} 1",
        "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"empty\"} 1",
        "ratelimit_service_rate_limit_total_hits{domain=\"d\"} 1",
        "ratelimit_service_domain_not_found 1",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 10",
        "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
    }
    // A replaced rule has no hits.
    assert!(!metrics.contains("key1=\"old\""), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_of_one_limiter_are_one_decision() {
    let (_server, _service, client) = start(
        "  - {key: k, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: call, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: lease}}
",
        &[],
    )
    .await;
    client.ask(vec![with_hits("k=1", 5)]).await;
    // Hits that are given back and hits that are charged are one difference.
    let response = client.ask(vec![back("k=1", 3), with_hits("k=1", 4)]).await;
    assert_eq!(rows(&response), [(true, 4), (true, 4)]);
    let response = client.ask(vec![with_hits("k=1", 1), back("k=1", 5)]).await;
    assert_eq!(rows(&response), [(true, 8), (true, 8)]);
    // Two places are two requests: with one of them, the other would not be counted.
    let error = client.error(&["call=a", "call=b"]).await;
    assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    assert!(client.admits(&["call=a", "call=a"]).await);
    assert_eq!(client.admitted(1, &["call=b"]).await, 1);
    assert_eq!(client.admitted(1, &["call=c"]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_many_descriptors_takes_no_time_per_pair() {
    let (_server, _service, client) =
        start("  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}\n", &[]).await;
    let many: Vec<_> = (0..40_000).map(|index| descriptor(&format!("none={index}"))).collect();
    let response = client.ask(many);
    let response = tokio::time::timeout(std::time::Duration::from_secs(60), response).await.unwrap();
    assert_eq!((is_ok(&response), response.statuses.len()), (false, 40_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_can_bring_its_limit_along() {
    let (_server, _service, client) =
        start("  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1}}\n", &[]).await;
    let limit =
        |requests_per_unit, unit: Unit| Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
    let with = |limit| RateLimitDescriptor { limit, ..descriptor("user=1") };
    for expected in [true, true, false] {
        let response = client.ask(vec![with(limit(2, Unit::Month))]).await;
        assert_eq!(is_ok(&response), expected);
        let limit = response.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit), (2, i32::from(Unit::Month)));
    }
    assert!(!is_ok(&client.ask(vec![with(limit(0, Unit::Day))]).await));
    // An unknown domain has no limits at all.
    assert!(is_ok(&client.of("e").ask(vec![with(limit(0, Unit::Day))]).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_have_algorithms_of_any_kind() {
    let mut text = String::new();
    for kind in ["fixed", "gcra", "window", "log", "bucket", "funnel"] {
        let limit = format!("{{unit: day, requests_per_unit: 3, algorithm: {kind}}}");
        text = format!("{text}  - {{key: {kind}, rate_limit: {limit}}}\n");
    }
    text.push_str(
        "  - {key: burst, rate_limit: {unit: day, requests_per_unit: 100, algorithm: gcra, burst: 2}}\n",
    );
    text.push_str(
        "  - {key: month, rate_limit: {unit: month, requests_per_unit: 3, from: 15, utc_offset: '+01:00'}}\n",
    );
    text.push_str("  - {key: five, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 3}}\n");
    let (_server, _service, client) = start(&text, &[]).await;
    for kind in ["fixed", "gcra", "window", "log", "bucket", "funnel", "month", "five"] {
        assert_eq!(client.admitted(5, &[&format!("{kind}=1")]).await, 3, "{kind}");
        // A refusal says when the next one would be admitted.
        let response = client.ask(vec![descriptor(&format!("{kind}=1"))]).await;
        assert!(response.statuses[0].duration_until_reset.unwrap().seconds >= 1, "{kind}: {response:?}");
    }
    assert_eq!(client.admitted(5, &["burst=1"]).await, 2);
    // All of them in one call.
    let all: Vec<String> = ["fixed", "gcra", "window", "log", "bucket", "funnel", "month"]
        .map(|kind| format!("{kind}=2"))
        .into();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(client.admitted(5, &all).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_refuses_everything_until_it_is_over() {
    let (server, _service, client) = start(
        "  - {key: login, rate_limit: {unit: second, requests_per_unit: 2, ban: 1h}}
  - {key: forever, rate_limit: {unit: year, requests_per_unit: 1, ban: 36500d}}\n",
        &[("RETRY_AFTER_HEADER", "Retry-After")],
    )
    .await;
    // The window may end in between: the ban begins with the first refusal in any case.
    let mut admitted = 0;
    while client.admits(&["login=eve"]).await {
        admitted += 1;
        assert!(admitted < 1_000);
    }
    // The window ends, and the ban does not.
    server.connect().call("DEL {d};login=eve|fixed:second");
    let response = client.ask(vec![descriptor("login=eve")]).await;
    assert!(!is_ok(&response));
    let wait = response.statuses[0].duration_until_reset.unwrap().seconds;
    assert!((3_000..=3_600).contains(&wait), "{wait}");
    assert_eq!(response.response_headers_to_add[0].key, "retry-after");
    assert_eq!(response.response_headers_to_add[0].value, wait.to_string());
    assert!(client.admits(&["login=adam"]).await);
    assert_eq!(client.admitted(2, &["forever=1"]).await, 1);
    let response = client.ask(vec![descriptor("forever=1")]).await;
    assert!(response.statuses[0].duration_until_reset.unwrap().seconds > 36_499 * 86_400);
    server.connect().call("DEL {d};login=eve|fixed:second|ban");
    assert!(client.admits(&["login=eve"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_stands_when_its_ban_cannot_begin() {
    let server = Server::start();
    let mut admin = server.connect();
    admin.call("ACL SETUSER limits on >secret ~* +@all -cl.pause");
    let mut service = Service::with(
        &server,
        &rules("  - {key: login, rate_limit: {unit: year, requests_per_unit: 2, ban: 1h}}\n"),
        &[("REDIS_AUTH", "limits:secret"), ("SERVER_UNAVAILABLE", "open")],
    );
    let client = service.client().await;
    assert_eq!(client.admitted(9, &["login=eve"]).await, 2);
    service.process.logged("a ban has not begun");
    assert_eq!(admin.int("EXISTS {d};login=eve|fixed:year|ban"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_held_by_requests_until_they_are_given_back() {
    let (_server, _service, client) = start(
        "  - key: pool
    descriptors:
      - {key: request, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: lease}}
",
        &[],
    )
    .await;
    assert!(client.admits(&["pool=a,request=1"]).await);
    assert!(client.admits(&["pool=a,request=2"]).await);
    assert!(!client.admits(&["pool=a,request=3"]).await);
    assert!(client.admits(&["pool=b,request=3"]).await);
    client.ask(vec![back("pool=a,request=1", 1)]).await;
    assert!(client.admits(&["pool=a,request=3"]).await);
    assert!(!client.admits(&["pool=a,request=4"]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_headers_of_their_own() {
    let (_server, _service, client) = start(
        "  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1, headers: {X-Plan: free}}}
  - {key: wide, rate_limit: {unit: hour, requests_per_unit: 5}}
",
        &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_LIMIT_HEADER", "x-limit")],
    )
    .await;
    let headers = async || {
        let response = client.ask(vec![descriptor("wide=1"), descriptor("k=1")]).await;
        let headers = response.response_headers_to_add.into_iter();
        headers.map(|header| (header.key, header.value)).collect::<Vec<_>>()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let first = headers().await;
    assert_eq!(first[..2], [pair("x-limit", "1"), pair("ratelimit-remaining", "0")]);
    assert_eq!(first[2].0, "ratelimit-reset");
    assert_eq!(first.len(), 3);
    let second = headers().await;
    assert_eq!(second[..2], [pair("x-limit", "1"), pair("ratelimit-remaining", "0")]);
    assert_eq!(second[3], pair("x-plan", "free"));
}

/// A port on which nobody listens. One that was free a moment ago is taken by the next service that starts.
const NOBODY: &str = "127.0.0.1:1";

#[tokio::test(flavor = "multi_thread")]
async fn the_setting_decides_whatever_the_server_lacks() {
    let text = rules(
        "  - {key: k, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: hot, rate_limit: {unit: year, requests_per_unit: 4, batch: 2}}
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
",
    );
    let bare = crate::common::Options::new().without_module().start();
    let server = Server::start();
    server.connect().call("ACL SETUSER limits on >secret ~* +@all -cl.mtake");
    let [bare, server] = [bare.port(), server.port()].map(|port| format!("127.0.0.1:{port}"));
    for (address, variable, value, keys) in [
        (NOBODY, "REDIS_TIMEOUT", "200ms", &["k=1", "hot=1"][..]),
        (&bare, "REDIS_TIMEOUT", "2s", &["k=1"]),
        (&server, "REDIS_AUTH", "limits:wrong", &["k=1", "hot=1"]),
        (&server, "REDIS_AUTH", "limits:secret", &["k=1"]),
        (&server, "REDIS_TLS", "true", &["k=1"]),
    ] {
        // Two instances share the limit of 4.
        for (mode, expected) in [("error", None), ("open", Some(6)), ("closed", Some(0)), ("local", Some(2))]
        {
            let settings = [("SERVER_UNAVAILABLE", mode), ("INSTANCES", "2"), (variable, value)];
            let service = Service::at(address, &text, &settings);
            let client = service.client().await;
            for key in keys {
                let what = format!("{variable}={value}, {mode}, {key}");
                match expected {
                    Some(expected) => assert_eq!(client.admitted(6, &[key]).await, expected, "{what}"),
                    None => assert_eq!(client.error(&[key]).await.code(), tonic::Code::Unavailable, "{what}"),
                }
                if mode == "closed" {
                    let response = client.ask(vec![descriptor(key)]).await;
                    assert_eq!(response.statuses[0].duration_until_reset.unwrap().seconds, 1, "{what}");
                }
                // A request that needs no server is always decided.
                assert!(!client.admits(&["none=1"]).await, "{what}");
                assert!(!client.admits(&["none=1", key, "unknown=1"]).await, "{what}");
                assert!(client.admits(&["unknown=1"]).await, "{what}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn local_limiters_charge_all_descriptors_of_a_request_or_none() {
    let text = rules(
        "  - {key: wide, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 2, algorithm: gcra}}
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: new, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: s, value: one, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: s, value: two, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
",
    );
    let settings = [("SERVER_UNAVAILABLE", "local"), ("REDIS_TIMEOUT", "200ms")];
    let service = Service::at(NOBODY, &text, &settings);
    let client = service.client().await;
    let asked = async |descriptors: &[&str]| {
        let response = client.ask(descriptors.iter().map(|text| descriptor(text)).collect()).await;
        (is_ok(&response), rows(&response))
    };
    // The first rule refuses, or the last one, or a rule without a limiter.
    assert_eq!(asked(&["wide=1", "narrow=1"]).await, (true, vec![(true, 9), (true, 1)]));
    assert_eq!(asked(&["wide=1", "narrow=1"]).await, (true, vec![(true, 8), (true, 0)]));
    for _ in 0..3 {
        assert_eq!(asked(&["wide=1", "narrow=1"]).await, (false, vec![(true, 8), (false, 0)]));
        assert_eq!(asked(&["narrow=1", "wide=1"]).await, (false, vec![(false, 0), (true, 8)]));
        assert_eq!(asked(&["wide=1", "none=1"]).await, (false, vec![(true, 8), (false, 0)]));
    }
    // A rule in shadow mode refuses nothing.
    assert_eq!(asked(&["wide=1", "new=1"]).await, (true, vec![(true, 7), (true, 0)]));
    assert_eq!(asked(&["wide=1", "new=1"]).await, (true, vec![(true, 6), (true, 0)]));
    // Rules with quota_mode refuse together.
    assert_eq!(client.admitted(5, &["s=one", "s=two", "wide=1"]).await, 2);
    assert_eq!(asked(&["wide=1"]).await, (true, vec![(true, 3)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_module_decides_by_the_function_library() {
    let server = crate::common::Options::new().without_module().start();
    crate::common::load_functions(&mut server.connect(), &crate::common::FUNCTIONS);
    let service =
        Service::start(&server, &rules("  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3}}\n"));
    let client = service.client().await;
    assert_eq!(client.admitted(5, &["k=1"]).await, 3);
    assert!(client.ask(vec![descriptor("k=2")]).await.statuses[0].duration_until_reset.unwrap().seconds > 0);
}
