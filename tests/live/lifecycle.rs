//! The module as the server sees it: loading, unloading, flags, permissions, memory, and a fault inside.

use crate::common::{Client, Options, Server, faulty_module_path, module_path, requires, wait_until};
use redis::Value;

fn module_names(client: &mut Client) -> Vec<String> {
    let Value::Array(modules) = client.call("MODULE LIST") else { panic!("MODULE LIST answered no array") };
    let name = |module: Value| match module {
        Value::Array(fields) => redis::from_redis_value::<String>(fields[1].clone()).unwrap(),
        seen => panic!("MODULE LIST: {seen:?}"),
    };
    modules.into_iter().map(name).collect()
}

#[test]
fn is_listed_under_its_name() {
    let server = Server::start();
    // Some servers come with modules of their own.
    let names = module_names(&mut server.connect());
    assert_eq!(names.iter().filter(|name| *name == "redis-cell").count(), 1, "{names:?}");
}

#[test]
fn loading_it_twice_is_an_error() {
    let server = Server::start();
    let mut client = server.connect();
    client.throttle_checked("k", "9 10 3600 4");
    let before = client.snapshot("k");
    let error = client.error(&["MODULE", "LOAD", &module_path().display().to_string()]);
    assert!(error.starts_with("ERR "), "{error}");
    server.assert_alive("a second MODULE LOAD");
    assert_eq!(module_names(&mut client).iter().filter(|name| *name == "redis-cell").count(), 1);
    assert_eq!(client.snapshot("k"), before);
    assert_eq!(client.throttle_checked("k", "9 10 3600 7")[0], 1);
}

#[test]
fn unloading_and_loading_keeps_the_state() {
    let server = Server::start();
    let mut client = server.connect();
    client.throttle_checked("k", "9 10 3600 4");
    let before = client.snapshot("k");
    for _ in 0..3 {
        client.call("MODULE UNLOAD redis-cell");
        assert!(client.error("CL.THROTTLE k 9 10 3600").contains("unknown command"));
        assert!(!module_names(&mut client).contains(&"redis-cell".to_owned()));
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
fn tells_the_server_what_kind_of_command_it_is() {
    let server = Server::start();
    let mut client = server.connect();
    let Value::Array(rows) = client.call("COMMAND INFO CL.THROTTLE") else { panic!("no COMMAND INFO") };
    let Value::Array(row) = &rows[0] else { panic!("{rows:?}") };
    let flags: Vec<String> = match &row[2] {
        Value::Array(flags) | Value::Set(flags) => {
            flags.iter().map(|flag| redis::from_redis_value(flag.clone()).unwrap()).collect()
        }
        seen => panic!("flags: {seen:?}"),
    };
    for flag in ["write", "denyoom", "fast"] {
        assert!(flags.iter().any(|f| f == flag), "not flagged {flag}: {flags:?}");
    }
    for flag in ["readonly", "admin", "noscript", "random", "blocking", "movablekeys"] {
        assert!(!flags.iter().any(|f| f == flag), "flagged {flag}: {flags:?}");
    }
    let key_positions =
        [&row[3], &row[4], &row[5]].map(|n| redis::from_redis_value::<i64>(n.clone()).unwrap());
    assert_eq!(key_positions, [1, 1, 1], "first key, last key, step");

    let keys: Vec<String> = client.get("COMMAND GETKEYS CL.THROTTLE user123 15 30 60 1 SATURATE MS");
    assert_eq!(keys, ["user123"]);
}

#[test]
fn permissions_apply_to_its_key() {
    let server = Server::start();
    let mut client = server.connect();
    client.call("ACL SETUSER limiter on nopass ~limit:* +cl.throttle");
    client.call("AUTH limiter any");
    assert_eq!(client.ints("CL.THROTTLE limit:a 15 30 60"), [0, 16, 15, -1, 2]);
    for call in ["CL.THROTTLE other:a 15 30 60", "GET limit:a"] {
        let error = client.error(call);
        assert!(error.starts_with("NOPERM "), "{call}: {error}");
    }
}

#[test]
fn in_a_cluster_the_key_decides_the_slot() {
    let server =
        Options::new().set("cluster-enabled", "yes").set("cluster-require-full-coverage", "no").start();
    let mut client = server.connect();
    // {a} hashes to slot 15495, {b} to 3300: only the first is served.
    client.call("CLUSTER ADDSLOTS 15495");
    wait_until("the cluster to be up", || match client.text("CLUSTER INFO") {
        info if info.contains("cluster_state:ok") => Ok(()),
        info => Err(info),
    });
    assert_eq!(client.ints("CL.THROTTLE {a}1 15 30 60"), [0, 16, 15, -1, 2]);
    let error = client.error("CL.THROTTLE {b}1 15 30 60");
    assert!(error.starts_with("CLUSTERDOWN "), "{error}");
}

#[test]
fn out_of_memory_is_the_servers_own_error_and_changes_nothing() {
    let server = Server::start();
    let mut client = server.connect();
    client.throttle_checked("used", "9 10 3600 4");
    client.call("CONFIG SET maxmemory 1");
    let expected = client.error("SET some value");
    assert!(expected.starts_with("OOM "), "{expected}");
    for key in ["used", "fresh"] {
        let before = client.snapshot(key);
        for arguments in ["9 10 3600", "9 10 3600 7", "9 10 3600 99 SATURATE", "9 10 3600 0"] {
            assert_eq!(
                client.error(&format!("CL.THROTTLE {key} {arguments}")),
                expected,
                "{key} {arguments}"
            );
        }
        assert_eq!(client.snapshot(key), before, "{key}");
    }
    server.assert_alive("being out of memory");
    client.call("CONFIG SET maxmemory 0");
    assert_eq!(client.throttle_checked("used", "9 10 3600 6")[0], 0, "continues from the same state");
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
    let server = Server::start();
    let mut client = server.connect();
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
    requires!(!module_names(&mut client).contains(&"redis-cell".to_owned()), "the server brings its own");
    assert!(!client.has_command("CL.THROTTLE"));
}
