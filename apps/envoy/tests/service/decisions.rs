//! Decisions of the service by gRPC, with a real server for the limiters.

use crate::common::Server;
use crate::harness::{Service, back, descriptor, is_ok, limits, request, row, rows, rules, start, with_hits};
use prost_types::value::Kind;
use redis_cell_envoy::proto::{Code, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};

#[tokio::test(flavor = "multi_thread")]
async fn all_descriptors_of_a_request_are_charged_or_none() {
    let settings = [("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false")]; // which would be a call
    let rules = limits("narrow => 2; wide => 10; gcra => 10, algorithm: gcra");
    let (server, _service, client) = start(&rules, &settings).await;
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
        assert_eq!((limit.requests_per_unit, limit.unit), (2, i32::from(Unit::Year)));
        let wait = response.statuses[1].duration_until_reset.unwrap().seconds;
        assert!((1..=366 * 86_400).contains(&wait), "{wait}");
    }
    // Five requests of four descriptors were five calls.
    let calls = server.connect().text("INFO commandstats");
    assert!(calls.contains("cmdstat_cl.mtake:calls=5,"), "{calls}");
    assert!(!calls.contains("cmdstat_cl.msettle"), "{calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_are_those_of_the_descriptor_or_of_the_request() {
    let (_server, _service, client) = start(&limits("k => 10; other => 100"), &[]).await;
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
    assert_eq!(response.statuses[0].duration_until_reset.unwrap().seconds, 365 * 86_400);
    // Refused for itself, so that nothing else is charged.
    let response = client.send(request(0, vec![descriptor("k=2")])).await.unwrap();
    assert_eq!(row(&response.statuses[0]), (true, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_of_0_decide_for_their_descriptor_of_their_request_alone() {
    let rules = limits("a => 2; b => 10; debt => 10, overdraft: true; hot => 10, batch: 5");
    let (_server, mut service, client) = start(&rules, &[]).await;
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
    let rules = limits("new, shadow_mode: true => 2; old => 4; none, shadow_mode: true => 0");
    let (_server, service, client) = start(&rules, &[]).await;
    assert_eq!(client.admitted(6, &["new=1", "old=1"]).await, 4);
    assert_eq!(client.admitted(3, &["none=1", "old=2"]).await, 3);
    let counts = r#"
        rate_limit_total_hits{domain="d",key1="new"} 6
        rate_limit_shadow_mode{domain="d",key1="new"} 4
        rate_limit_over_limit{domain="d",key1="old"} 2
        rate_limit_within_limit{domain="d",key1="old"} 7
        rate_limit_near_limit{domain="d",key1="old"} 1
        rate_limit_shadow_mode{domain="d",key1="none"} 3
        total_requests{grpc_method="ShouldRateLimit"} 9
        response_time_seconds_count{grpc_method="ShouldRateLimit"} 9
    "#;
    service.assert_counts(counts);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_global_shadow_mode_admits_everything_and_shows_what_is_over() {
    let (_server, service, client) = start(&limits("k => 1"), &[("SHADOW_MODE", "true")]).await;
    assert_eq!(client.admitted(3, &["k=1"]).await, 3);
    let response = client.ask(vec![descriptor("k=1")]).await;
    assert_eq!((response.overall_code, row(&response.statuses[0])), (i32::from(Code::Ok), (false, 0)));
    assert!(service.get("/metrics").1.contains("\nratelimit_service_global_shadow_mode 3\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_with_quota_mode_refuse_only_together() {
    let rules = limits(
        "s, value: one, quota_mode: true, metadata: {pool: {name: one, rank: 1}} => 1; \
         s, value: two, quota_mode: true, metadata: {pool: {name: two, spare: true}} => 2; user => 5",
    );
    let (_server, _service, client) = start(&rules, &[("RESPONSE_DYNAMIC_METADATA", "true")]).await;
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
    let rules = limits(
        "one, quota_mode: true => 1, name: one; other => 10; \
         two, quota_mode: true => 1, replaces: [{name: one}]",
    );
    let free = "  - {key: free, quota_mode: true, rate_limit: {unlimited: true}}\n";
    let (_server, _service, client) = start(&(rules + free), &[]).await;
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
    let (_server, _service, client) = start(&limits("one => 1; other => 3"), &[("QUOTA_MODE", "true")]).await;
    assert_eq!(client.admitted(4, &["one=1"]).await, 1);
    assert_eq!(client.admitted(5, &["one=2", "other=2"]).await, 3);
    assert_eq!(client.admitted(5, &["one=3", "unknown=3"]).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_the_reference_counts() {
    let rules = limits(
        "tenth => 100; old => 10, name: old; new => 10, replaces: [{name: old}]; \
         long, detailed_metric: true => 10; empty, value_to_metric: true => 10; \
         burst => 100, algorithm: gcra, burst: 10",
    );
    let (_server, service, client) = start(&rules, &[]).await;
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
    let counts = r#"
        rate_limit_near_limit{domain="d",key1="tenth"} 7
        rate_limit_within_limit{domain="d",key1="tenth"} 87
        rate_limit_near_limit{domain="d",key1="burst"} 1
        rate_limit_total_hits{domain="d",key1="new"} 1
        rate_limit_total_hits{domain="d",key1="empty"} 1
        rate_limit_total_hits{domain="d"} 1
        domain_not_found 1
        total_requests{grpc_method="ShouldRateLimit"} 10
        should_rate_limit_error{err_type="service_error"} 2
    "#;
    service.assert_counts(counts);
    // A replaced rule has no hits.
    assert!(!metrics.contains("key1=\"old\""), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_of_one_limiter_are_one_decision() {
    let (_server, _service, client) = start(&limits("k => 10; call => 2, algorithm: lease"), &[]).await;
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
    let (_server, _service, client) = start(&limits("none => 0"), &[]).await;
    let many: Vec<_> = (0..40_000).map(|index| descriptor(&format!("none={index}"))).collect();
    let response = client.ask(many);
    let response = tokio::time::timeout(std::time::Duration::from_secs(60), response).await.unwrap();
    assert_eq!((is_ok(&response), response.statuses.len()), (false, 40_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_can_bring_its_limit_along() {
    let (_server, _service, client) = start(&limits("k => 1"), &[]).await;
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
    let kinds = ["fixed", "gcra", "window", "log", "bucket", "funnel"];
    let mut rules = limits("burst => 100, algorithm: gcra, burst: 2");
    rules.extend(kinds.map(|kind| limits(&format!("{kind} => 3, algorithm: {kind}"))));
    rules.push_str(
        "  - {key: month, rate_limit: {unit: month, requests_per_unit: 3, from: 15, utc_offset: '+01:00'}}
  - {key: five, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 3}}\n",
    );
    let (_server, _service, client) = start(&rules, &[]).await;
    for kind in kinds.into_iter().chain(["month", "five"]) {
        assert_eq!(client.admitted(5, &[&format!("{kind}=1")]).await, 3, "{kind}");
        // A refusal says when the next one would be admitted.
        let response = client.ask(vec![descriptor(&format!("{kind}=1"))]).await;
        assert!(response.statuses[0].duration_until_reset.unwrap().seconds >= 1, "{kind}: {response:?}");
    }
    assert_eq!(client.admitted(5, &["burst=1"]).await, 2);
    // All of them in one call.
    let all = kinds.map(|kind| format!("{kind}=2"));
    assert_eq!(client.admitted(5, &all.each_ref().map(String::as_str)).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_refuses_everything_until_it_is_over() {
    let rules = "  - {key: login, rate_limit: {unit: second, requests_per_unit: 2, ban: 1h}}\n".to_owned();
    let rules = rules + &limits("forever => 1, ban: 36500d");
    let (server, _service, client) = start(&rules, &[("RETRY_AFTER_HEADER", "Retry-After")]).await;
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
    let settings = [("REDIS_AUTH", "limits:secret"), ("SERVER_UNAVAILABLE", "open")];
    let mut service = Service::with(&server, &rules(&limits("login => 2, ban: 1h")), &settings);
    let client = service.client().await;
    assert_eq!(client.admitted(9, &["login=eve"]).await, 2);
    service.process.logged("a ban has not begun");
    assert_eq!(admin.int("EXISTS {d};login=eve|fixed:year|ban"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_held_by_requests_until_they_are_given_back() {
    let rules = format!("  - key: pool\n    descriptors:\n    {}", limits("request => 2, algorithm: lease"));
    let (_server, _service, client) = start(&rules, &[]).await;
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
    let settings = [("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_LIMIT_HEADER", "x-limit")];
    let rules = limits("k => 1, headers: {X-Plan: free}; wide => 5");
    let (_server, _service, client) = start(&rules, &settings).await;
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
    let text = rules(&limits("k => 4; hot => 4, batch: 2; none => 0"));
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
    let text = rules(&limits(
        "wide => 10; narrow => 2, algorithm: gcra; none => 0; new, shadow_mode: true => 1; \
         s, value: one, quota_mode: true => 1; s, value: two, quota_mode: true => 2",
    ));
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
    let service = Service::start(&server, &rules(&limits("k => 3")));
    let client = service.client().await;
    assert_eq!(client.admitted(5, &["k=1"]).await, 3);
    assert!(client.ask(vec![descriptor("k=2")]).await.statuses[0].duration_until_reset.unwrap().seconds > 0);
}
