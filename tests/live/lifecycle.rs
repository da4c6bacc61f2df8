//! The module in the server: loading, unloading, flags, permissions, memory, and a fault inside.

use crate::common::{Client, Options, Server, faulty_module_path, module_path, requires};
use redis::Value;

/// The versions of the loaded modules that are called `redis-cell`.
fn versions(client: &mut Client) -> Vec<i64> {
    let Value::Array(modules) = client.call("MODULE LIST") else { panic!("MODULE LIST answered no array") };
    let named = |module: Value| match module {
        Value::Array(fields) => {
            let name: String = redis::from_redis_value(fields[1].clone()).unwrap();
            (name == "redis-cell").then(|| redis::from_redis_value(fields[3].clone()).unwrap())
        }
        seen => panic!("MODULE LIST: {seen:?}"),
    };
    modules.into_iter().filter_map(named).collect()
}

#[test]
fn is_listed_under_its_name_with_its_version() {
    let server = Server::start();
    let numbers = env!("CARGO_PKG_VERSION").split('.').map(|number| number.parse::<i64>().unwrap());
    let version = numbers.fold(0, |version, number| 100 * version + number);
    let mut client = server.connect();
    assert_eq!(versions(&mut client), [version]);
    let (listed, is_modern) = (client.text("INFO modules"), client.has_command("FUNCTION"));
    for (option, is_known) in [("handle-io-errors", true), ("handle-repl-async-load", is_modern)] {
        assert_eq!(listed.contains(option), is_known, "{option}: {listed}");
    }
}

#[test]
fn loading_it_twice_is_an_error() {
    let (server, mut client) = Server::with_client();
    client.throttle_checked("k", "9 10 3600 4");
    let before = client.snapshot("k");
    let error = client.error(&["MODULE", "LOAD", &module_path().display().to_string()]);
    assert!(error.starts_with("ERR "), "{error}");
    server.assert_alive("a second MODULE LOAD");
    assert_eq!(versions(&mut client).len(), 1);
    assert_eq!(client.snapshot("k"), before);
    assert_eq!(client.throttle_checked("k", "9 10 3600 7")[0], 1);
}

#[test]
fn unloading_and_loading_keeps_the_state() {
    let (_server, mut client) = Server::with_client();
    client.throttle_checked("k", "9 10 3600 4");
    let before = client.snapshot("k");
    for _ in 0..3 {
        client.call("MODULE UNLOAD redis-cell");
        assert!(client.error("CL.THROTTLE k 9 10 3600").contains("unknown command"));
        assert!(versions(&mut client).is_empty());
        client.call(&["MODULE", "LOAD", &module_path().display().to_string()]);
        assert_eq!(client.snapshot("k"), before);
        assert_eq!(client.throttle_checked("k", "9 10 3600 7")[0], 1);
    }
    assert_eq!(client.throttle_checked("k", "9 10 3600 6")[0], 0);
}

#[test]
fn loads_into_a_running_server() {
    let server = Options::new().without_module().start();
    let mut client = server.connect();
    client.call(&["MODULE", "LOAD", &module_path().display().to_string()]);
    assert_eq!(client.throttle_checked("k", "15 30 60"), [0, 16, 15, -1, 2]);
}

#[test]
fn a_fault_inside_is_an_error_and_a_line_in_the_log() {
    let server = Options::new().module(faulty_module_path()).environment("REDIS_CELL_FAULT", "panic").start();
    let mut client = server.connect();
    for nth in 0..8 {
        // As large as the memory that a panic needs, whose address differs each time. It was once aligned to
        // 8 instead of 16, and unwinding then crashed every other server.
        client.call(&["SET", &format!("pad{nth}"), &"x".repeat(36)]);
        let error = client.error("CL.THROTTLE k 15 30 60");
        assert!(error.starts_with("ERR "), "{error}");
        for command in ["MULTI", "CL.THROTTLE k 15 30 60", "PING"] {
            client.call(command);
        }
        let Value::Array(replies) = client.call("EXEC") else { panic!("EXEC answered no array") };
        assert!(matches!(replies[0], Value::ServerError(_)), "{replies:?}");
        assert_eq!(replies.len(), 2);
    }
    server.assert_alive("a fault inside the module");
    assert_eq!(client.int("DBSIZE"), 8);
    let log = server.log();
    assert!(
        log.lines().any(|line| line.to_lowercase().contains("panic")),
        "no line about it in the log:\n{log}"
    );
}

/// One allocator serves the module and the server, on every platform.
#[test]
fn the_memory_of_deleted_limiters_comes_back() {
    let (_server, mut client) = Server::with_client();
    let calls = |n: usize| {
        [
            format!("CL.THROTTLE gcra:{n} 0 1 60"),
            format!("CL.THROTTLE gcra:{n} 0 1 60"),
            format!("CL.THROTTLE gcra:{n} 0 -1 60"),
            format!("CL.BUCKET bucket:{n} 5 1 60"),
            format!("CL.WINDOW window:{n} 5 60"),
            format!("CL.LOG log:{n} 5 60"),
            format!("CL.ACQUIRE lease:{n} 5 60 me"),
        ]
    };
    let calls: Vec<String> = (0..200).flat_map(calls).collect();
    let mut round = || {
        client.pipeline(&calls.iter().collect::<Vec<_>>());
        assert_eq!(client.int("DBSIZE"), 1_000);
        client.call("FLUSHALL");
        client.used_memory()
    };
    // The first round pays for memory that is kept: the record of refusals, and the buffers of the
    // connection.
    round();
    let before = round();
    let after = (0..5).map(|_| round()).last().unwrap();
    let grown = after - before;
    assert!(grown < 65_536, "{grown} bytes more after {} further calls", 5 * calls.len());
}

#[test]
fn a_released_module_has_no_seeded_fault() {
    let server = Options::new().environment("REDIS_CELL_FAULT", "panic").start();
    assert_eq!(server.connect().throttle_checked("k", "15 30 60"), [0, 16, 15, -1, 2]);
}

#[test]
fn a_bare_server_knows_nothing_of_it() {
    // A test of the harness: the other tests see the module's own behavior.
    let server = Options::new().without_module().start();
    let mut client = server.connect();
    requires!(versions(&mut client).is_empty(), "the server brings its own");
    assert!(!client.has_command("CL.THROTTLE"));
}
