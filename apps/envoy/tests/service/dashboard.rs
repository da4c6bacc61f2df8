//! The dashboard for Grafana: each of its queries runs in a real Prometheus that scrapes the service.

use crate::common::{Server, free_port};
use crate::harness::{Process, Service, get};
use crate::operation::monitoring;
use redis_cell_envoy::proto::RateLimitRequest;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::Duration;

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: {unit: second, requests_per_unit: 2}
    descriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 2}}]
  - key: shadow
    descriptors: [{key: user, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 2}}]
";

/// A Prometheus that scrapes these ports of this machine each second, and its own port.
fn prometheus(ports: &[u16]) -> (Process, u16) {
    let binary = std::env::var("REDIS_CELL_PROMETHEUS").expect("REDIS_CELL_PROMETHEUS names Prometheus");
    let folder = tempfile::Builder::new().prefix("redis-cell-prometheus-").tempdir().unwrap();
    let targets: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let jobs = format!("[{{job_name: envoy, static_configs: [{{targets: {targets:?}}}]}}]");
    let config = format!("global: {{scrape_interval: 1s}}\nscrape_configs: {jobs}\n");
    fs::write(folder.path().join("prometheus.yml"), config).unwrap();
    let mut command = Command::new(binary);
    command.args([
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        "--web.listen-address=127.0.0.1:0",
    ]);
    command.current_dir(folder.path());
    let mut process = Process::start(&mut command, folder);
    let port = process.logged("msg=\"Listening on\" address=127.0.0.1:").parse().unwrap();
    (process, port)
}

/// The series that answer a query now, each with its labels and its value.
fn ask(port: u16, query: &str) -> Vec<Value> {
    let mut encoded = String::new();
    for byte in query.bytes() {
        write!(encoded, "%{byte:02X}").unwrap();
    }
    let text = get(port, &format!("/api/v1/query?query={encoded}"), &[]).1;
    let (begin, end) = (text.find('{').unwrap(), text.rfind('}').unwrap());
    let answer: Value = serde_json::from_str(&text[begin..=end]).unwrap();
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    answer["data"]["result"].as_array().unwrap().clone()
}

/// Whether a line of the panel would be drawn above 0, with each label that its legend names.
fn is_drawn(port: u16, expr: &str, legend: &str) -> bool {
    ask(port, expr).iter().any(|series| {
        let value: f64 = series["value"][1].as_str().unwrap().parse().unwrap();
        let mut named = legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap());
        value > 0.0 && named.all(|label| series["metric"].get(label).is_some())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_dashboard_is_answered() {
    let server = Server::start();
    let services = [
        Service::start(&server, RULES),
        Service::with(&server, RULES, &[("SHADOW_MODE", "true")]),
        Service::at(&format!("127.0.0.1:{}", free_port()), RULES, &[("SERVER_UNAVAILABLE", "open")]),
    ];
    let (_process, port) = prometheus(&services.each_ref().map(|service| service.http));

    let dashboard: Value = serde_json::from_str(&monitoring("envoy-dashboard.json")).unwrap();
    let mut left = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let [expr, legend] = ["expr", "legendFormat"].map(|name| target[name].as_str().unwrap());
            let expr = expr.replace("$__rate_interval", "10s").replace("$instance", ".*");
            left.push((panel["title"].as_str().unwrap(), expr, legend.to_owned()));
        }
    }
    assert!(left.len() >= 20, "{left:?}");
    let variable = dashboard["templating"]["list"][1]["query"].as_str().unwrap();
    let metric = variable.strip_prefix("label_values(").unwrap().strip_suffix(", instance)").unwrap();
    left.push(("the variable", metric.to_owned(), "{{instance}}".to_owned()));

    let mut clients = Vec::new();
    for service in &services {
        clients.push(service.client().await);
    }
    let mut admin = server.connect();
    let mut round = 0;
    while !left.is_empty() {
        round += 1;
        assert!(round < 40, "not answered: {left:#?}");
        for client in &clients {
            for descriptors in [["k=1", "shadow=1,user=1"], ["k=1,user=1", "shadow=1,user=1"]] {
                client.admitted(3, &descriptors).await;
            }
            client.of("unknown").admits(&["k=1"]).await;
            client.send(RateLimitRequest::default()).await.unwrap_err();
        }
        admin.call("CLIENT KILL TYPE normal SKIPME yes");
        // Files that stay for three seconds are loaded, or are not, because of an error.
        let rules = if round % 6 < 3 { RULES.to_owned() } else { RULES.replace("second", "moment") };
        services[0].write(&rules);
        left.retain(|(_, expr, legend)| !is_drawn(port, expr, legend));
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }
}
