//! The programs of examples/, run with a server that is down: either nothing listens on its port, or it is
//! frozen, which means that it accepts connections and never replies. Each prints examples/expected.txt. Also
//! the tests that Laravel, proxies and rack-attack have of their own.
//!
//! The Rust example runs on this machine. All others run in a container that has their runtimes.

use crate::common::{Container, Server, run, wait_until};
use crate::path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// A port on which nothing listens.
const NO_SERVER: u16 = 1;

#[test]
fn rust_without_a_server() {
    let server = Server::start();
    assert_prints_expected(&|script| run("sh", &["-c", script]), &rust(server.port(), NO_SERVER));
}

#[test]
fn rust_with_a_frozen_server() {
    let (server, frozen) = (Server::start(), Server::start());
    frozen.signal("STOP");
    assert_prints_expected(&|script| run("sh", &["-c", script]), &rust(server.port(), frozen.port()));
}

fn rust(port: u16, down: u16) -> String {
    let program = path("target/debug/examples/throttle");
    format!("cd / && timeout 60 {program} redis://127.0.0.1:{port} redis://127.0.0.1:{down}")
}

/// The tests of a language: one for each way to be down.
macro_rules! language {
    ($name:ident, $command:expr) => {
        mod $name {
            #[test]
            fn without_a_server() {
                super::in_container($command, false);
            }

            #[test]
            fn with_a_frozen_server() {
                super::in_container($command, true);
            }
        }
    };
}

static C: LazyLock<&str> = LazyLock::new(|| {
    compiled("cc -Wall -Wextra -Werror -o /tmp/c examples/c/throttle.c -lhiredis");
    "timeout 60 /tmp/c"
});
static GO: LazyLock<&str> = LazyLock::new(|| {
    compiled("go build -o /tmp/go examples/go/throttle.go");
    "timeout 60 /tmp/go"
});

/// `$port` and `$down` are the ports of the two servers.
const URLS: &str = "redis://127.0.0.1:$port redis://127.0.0.1:$down";
const HOSTS: &str = "127.0.0.1 $port 127.0.0.1 $down";

language!(c, &format!("{} {}", *super::C, super::HOSTS));
language!(go, &format!("{} {}", *super::GO, super::URLS));
language!(node, &format!("timeout 60 node examples/node/throttle.js {}", super::URLS));
language!(php, &format!("timeout 60 php examples/php/throttle.php {}", super::HOSTS));
language!(python, &format!("timeout 60 python3 examples/python/throttle.py {}", super::URLS));
language!(ruby, &format!("timeout 60 ruby examples/ruby/throttle.rb {}", super::URLS));
language!(shell, &format!("timeout 60 examples/shell/throttle.sh {}", super::URLS));

#[test]
fn laravel_passes_its_tests() {
    passes_its_tests("laravel");
}

#[test]
fn proxies_pass_their_tests() {
    passes_its_tests("proxies");
}

#[test]
fn rack_attack_passes_its_tests() {
    passes_its_tests("rack");
}

/// Runs the tests in Python of a folder of examples/, with a server.
fn passes_its_tests(folder: &str) {
    let port = start_server();
    CONTAINER
        .shell(&format!(
            "REDIS_URL=redis://127.0.0.1:{port} PYTHONPATH=examples \
             timeout 300 python3 -m unittest discover --start-directory examples/{folder}"
        ))
        .unwrap();
}

static CONTAINER: LazyLock<Container> = LazyLock::new(|| {
    let container = Container::idle("redis-cell-test:examples");
    container.copy(&path("examples"), "/redis-cell/examples");
    container.copy(&path("target/dist/libredis_cell.so"), "/usr/lib/libredis_cell.so");
    container
});

/// Compiles a program, in a second try if need be: fuse-overlayfs has listed a file of Go's library twice,
/// when two compilers read it at once.
fn compiled(command: &str) {
    CONTAINER.shell(command).or_else(|_| CONTAINER.shell(command)).unwrap();
}

fn in_container(command: &str, frozen: bool) {
    let port = start_server();
    let down = if frozen { start_server() } else { NO_SERVER };
    if frozen {
        freeze(down);
    }
    assert_prints_expected(&|script| CONTAINER.shell(script), &format!("port={port} down={down}; {command}"));
}

/// Starts a server with the module in the container and returns its port.
fn start_server() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(7000);
    let port = NEXT.fetch_add(1, Relaxed);
    let text = port.to_string();
    let pidfile = format!("/tmp/{port}.pid");
    let module = "/usr/lib/libredis_cell.so";
    let options = ["--port", &text, "--pidfile", &pidfile, "--save", "", "--loadmodule", module];
    CONTAINER.spawn("/tmp", &[&["redis-server"], &options[..]].concat());
    wait_until("the server in the container", || CONTAINER.exec(&["redis-cli", "-e", "-p", &text, "PING"]));
    port
}

fn freeze(port: u16) {
    CONTAINER.shell(&format!("kill -STOP $(cat /tmp/{port}.pid)")).unwrap();
}

/// Tries up to three times: on a machine that stalls for a second an example prints other numbers.
fn assert_prints_expected(shell: &dyn Fn(&str) -> Result<String, String>, script: &str) {
    let expected = std::fs::read_to_string(path("examples/expected.txt")).unwrap();
    let mut seen = Ok(String::new());
    for _ in 0..3 {
        seen = shell(script);
        if seen.as_deref() == Ok(expected.trim()) {
            return;
        }
    }
    assert_eq!(seen.as_deref(), Ok(expected.trim()), "{script}");
}
