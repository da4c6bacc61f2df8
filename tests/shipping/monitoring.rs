//! packaging/prometheus as docs/prometheus.md describes it: a server, `redis_exporter` and Prometheus, all of
//! Debian, in one container.

use crate::common::{Container, wait_until};
use crate::path;
use std::sync::LazyLock;

const FOLDER: &str = "/prometheus";

static SHARED: LazyLock<Container> = LazyLock::new(|| {
    let container = Container::idle("redis-cell-test:monitoring");
    container.copy(&path("target/dist/libredis_cell.so"), "/usr/lib/libredis_cell.so");
    container.copy(&path("packaging/prometheus/."), FOLDER);
    let server =
        ["redis-server", "--loadmodule", "/usr/lib/libredis_cell.so", "--save", "", "--daemonize", "yes"];
    container.exec(&server).unwrap();
    wait_until("the server to answer", || container.exec(&["redis-cli", "-e", "PING"]));
    // The exporter has no more rights than the page gives it.
    let page = std::fs::read_to_string(path("docs/prometheus.md")).unwrap();
    let acl = page.lines().find(|line| line.starts_with("ACL SETUSER")).expect("the page creates a user");
    container.exec(&["redis-cli", "-e"].into_iter().chain(acl.split(' ')).collect::<Vec<_>>()).unwrap();
    let user = ["--redis.user", "exporter", "--redis.password", "secret"];
    container
        .spawn(FOLDER, &[&["prometheus-redis-exporter", "--script", "redis-cell.lua"], &user[..]].concat());
    // Fifteen seconds are too long for a test.
    let config = "sed 's/interval: 15s/interval: 1s/' prometheus.yml >test.yml";
    container.shell(&format!("cd {FOLDER} && {config}")).unwrap();
    container.spawn(FOLDER, &["prometheus", "--config.file", "test.yml", "--storage.tsdb.path", "/tmp/data"]);
    container
});

#[test]
fn the_configuration_is_valid() {
    SHARED.shell(&format!("cd {FOLDER} && promtool check config prometheus.yml")).unwrap();
}

#[test]
fn the_rules_pass_their_tests() {
    SHARED.shell(&format!("cd {FOLDER} && promtool test rules rules_test.yml")).unwrap();
}

/// One call is admitted, two are refused, one is an error, and one client waits.
#[test]
fn calls_become_series() {
    for call in ["0 1 600", "0 1 600", "0 1 600", "none 1 600"] {
        SHARED.shell(&format!("redis-cli CL.THROTTLE key {call}")).unwrap();
    }
    SHARED.spawn("/", &["redis-cli", "CL.BTHROTTLE", "key", "0", "1", "600", "1", "0"]);
    let query = "redis_cell_calls_total{command=\"throttle\"} or redis_cell_blocked_clients";
    let expected = [
        "redis_cell_blocked_clients{} => 1",
        "redis_cell_calls_total{command=\"throttle\", result=\"admitted\"} => 1",
        "redis_cell_calls_total{command=\"throttle\", result=\"errors\"} => 1",
        "redis_cell_calls_total{command=\"throttle\", result=\"refused\"} => 2",
    ];
    wait_until("the series in Prometheus", || {
        let answer = SHARED.exec(&["promtool", "query", "instant", "http://127.0.0.1:9090", query])?;
        let mut seen: Vec<String> = answer.lines().map(series).collect();
        seen.sort();
        if seen == expected { Ok(()) } else { Err(format!("{seen:#?}")) }
    });
}

/// A line of the answer without its time and without the labels that every series has.
fn series(line: &str) -> String {
    let (series, _time) = line.split_once(" @").unwrap_or((line, ""));
    let common = "instance=\"127.0.0.1:9121\", job=\"redis-cell\"";
    series.replace(&format!("{common}, "), "").replace(common, "")
}
