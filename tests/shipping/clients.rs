//! The statements of docs/clients.md about go-redis and node-redis, in a container that has both.

use crate::common::{Container, wait_until};
use crate::path;

/// Runs a program of clients/others, with a server in the same container.
fn as_the_page_says(command: &str) {
    let container = Container::idle("redis-cell-test:examples");
    container.copy(&path("clients/others"), "/clients");
    container.copy(&path("target/dist/libredis_cell.so"), "/usr/lib/libredis_cell.so");
    container.spawn("/tmp", &["redis-server", "--save", "", "--loadmodule", "/usr/lib/libredis_cell.so"]);
    wait_until("the server in the container", || container.exec(&["redis-cli", "-e", "PING"]));
    let seen = container.shell(&format!("timeout 120 {command}"));
    assert_eq!(seen.as_deref(), Ok("as docs/clients.md says"));
}

#[test]
fn go_redis() {
    as_the_page_says("go run /clients/waiting.go 127.0.0.1:6379");
}

#[test]
fn node_redis() {
    as_the_page_says("node /clients/waiting.js redis://127.0.0.1:6379");
}
