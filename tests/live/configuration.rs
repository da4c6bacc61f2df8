//! Settings: arguments of `loadmodule` on every server, `CONFIG` where the server has module settings.

use crate::common::{Client, Options, Server, module_path, requires, wait_until};

const NO_CONFIG: &str = "no settings of modules in CONFIG";

/// The settings in force, from INFO, which has them on every server.
fn settings(client: &mut Client) -> (String, String) {
    let fields = crate::info::fields(client);
    (fields["top_size"].clone(), fields["notify_refusals"].clone())
}

fn are(size: &str, notify: &str) -> (String, String) {
    (size.to_owned(), notify.to_owned())
}

/// Whether `CONFIG` has module settings.
fn has_config(client: &mut Client) -> bool {
    // Both are new in 7.0.
    client.has_command("COMMAND|DOCS")
}

fn load(client: &mut Client, arguments: &str) -> Result<redis::Value, String> {
    let path = module_path().display().to_string();
    let words = ["MODULE", "LOAD", path.as_str()].into_iter().chain(arguments.split_whitespace());
    client.ask(&words.collect::<Vec<_>>())
}

#[test]
fn by_arguments_of_the_load() {
    for (arguments, expected) in [
        ("", are("128", "no")),
        ("top-size 7", are("7", "no")),
        ("TOP-SIZE 0 Notify-Refusals No", are("0", "no")),
        ("notify-refusals no top-size 10000", are("10000", "no")),
        ("top-size 5 top-size 6", are("6", "no")),
    ] {
        let server = Options::new().module_arguments(arguments).start();
        assert_eq!(settings(&mut server.connect()), expected, "{arguments}");
    }
}

#[test]
fn a_wrong_argument_refuses_the_load_and_says_why() {
    let server = Options::new().without_module().set("hz", "500").start();
    let mut client = server.connect();
    for (arguments, why) in [
        ("top-size", "top-size must be an integer from 0 to 10000"),
        ("top-size x", "top-size must be an integer from 0 to 10000"),
        ("top-size -1", "top-size must be an integer from 0 to 10000"),
        ("top-size 10001", "top-size must be an integer from 0 to 10000"),
        ("notify-refusals", "notify-refusals must be yes or no"),
        ("notify-refusals maybe", "notify-refusals must be yes or no"),
        ("top-size 5 topsize 6", "unknown setting topsize; the settings are top-size and notify-refusals"),
        ("%s%n", "unknown setting %s%n; the settings are top-size and notify-refusals"),
    ] {
        assert!(load(&mut client, arguments).is_err(), "{arguments}");
        let log = server.log();
        let last = log.lines().rfind(|line| line.contains("<redis-cell>")).unwrap_or_default();
        assert!(last.ends_with(&format!("not loaded: {why}")), "{arguments}: {last}");
        assert!(!client.has_command("CL.THROTTLE"), "{arguments}");
        // The server's cron deletes this key. It must not call the unloaded module.
        client.call("SET cron-has-run x PX 1");
        wait_until("the server's cron", || match client.int("DBSIZE") {
            0 => Ok(()),
            keys => Err(format!("{keys} keys")),
        });
        server.assert_alive(arguments);
    }
    load(&mut client, "top-size 5").unwrap();
    assert_eq!(settings(&mut client), are("5", "no"), "nothing is left of the attempts");
}

#[test]
fn a_reload_begins_with_its_own_arguments() {
    let server = Options::new().module_arguments("top-size 5").start();
    let mut client = server.connect();
    client.call("CL.THROTTLE k 0 1 60 2");
    for (arguments, size) in [("", "128"), ("top-size 9", "9"), ("top-size 9", "9")] {
        client.call("MODULE UNLOAD redis-cell");
        load(&mut client, arguments).unwrap();
        assert_eq!(settings(&mut client), are(size, "no"));
        assert_eq!(client.call("CL.TOP"), redis::Value::Array(vec![]), "a new record");
        client.call("CL.THROTTLE k 0 1 60 2");
    }
}

#[test]
fn by_config_set() {
    let (_server, mut client) = Server::with_client();
    requires!(has_config(&mut client), NO_CONFIG);
    client.call("CL.THROTTLE k 0 1 60 2");
    for (name, value) in
        [("top-size", "64"), ("notify-refusals", "yes"), ("top-size", "0"), ("notify-refusals", "no")]
    {
        let name = format!("redis-cell.{name}");
        client.call(&["CONFIG", "SET", &name, value]);
        let seen: Vec<String> = client.get(&["CONFIG", "GET", &name]);
        assert_eq!(seen, [name.as_str(), value]);
    }
    assert_eq!(settings(&mut client), are("0", "no"));
    for (name, value) in
        [("top-size", "10001"), ("top-size", "-1"), ("top-size", "x"), ("notify-refusals", "maybe")]
    {
        client.error(&format!("CONFIG SET redis-cell.{name} {value}"));
    }
    assert_eq!(settings(&mut client), are("0", "no"));

    client.call("CONFIG SET redis-cell.top-size 2");
    assert_eq!(client.call("CL.TOP"), redis::Value::Array(vec![]), "another size begins a new record");
    client.call("CL.THROTTLE k 0 1 60 2");
    client.call("CONFIG SET redis-cell.top-size 2");
    let redis::Value::Array(rows) = client.call("CL.TOP") else { panic!("no array") };
    assert_eq!(rows.len(), 1, "the same size does not");
}

#[test]
fn the_configuration_goes_before_the_arguments() {
    let server = Server::start();
    requires!(has_config(&mut server.connect()), NO_CONFIG);
    let server = Options::new()
        .set("redis-cell.top-size", "7")
        .module_arguments("top-size 5 notify-refusals yes")
        .start();
    let mut client = server.connect();
    assert_eq!(settings(&mut client), are("7", "yes"));

    client.call("MODULE UNLOAD redis-cell");
    let path = module_path().display().to_string();
    let load =
        format!("MODULE LOADEX {path} CONFIG redis-cell.top-size 9 ARGS top-size 4 notify-refusals no");
    client.call(&load);
    assert_eq!(settings(&mut client), are("9", "no"));

    client.call("MODULE UNLOAD redis-cell");
    client.error(&format!("MODULE LOADEX {path} CONFIG redis-cell.top-size 10001"));
    assert!(
        server.log().contains("not loaded: a setting in the server's configuration is wrong"),
        "{}",
        server.log()
    );
}

#[test]
fn one_line_in_the_log_says_what_was_found() {
    let server = Options::new().module_arguments("top-size 7").start();
    let mut client = server.connect();
    let log = server.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("<redis-cell>")).collect();
    let [line] = lines[..] else { panic!("{lines:?}") };
    let version = client.text("INFO server");
    let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    let server_name = field("valkey_version:").map_or_else(
        || format!("Redis {}", field("redis_version:").unwrap()),
        |version| format!("Valkey {version}"),
    );
    assert!(
        line.contains(&format!("version {} on {server_name}; found ", env!("CARGO_PKG_VERSION"))),
        "{line}"
    );
    assert!(line.ends_with("; top-size 7, notify-refusals no"), "{line}");
    let (found, missing) = line.split_once("; missing ").unwrap();
    let has = has_config(&mut client);
    for feature in ["command metadata", "module configuration"] {
        assert_eq!(found.contains(feature), has, "{line}");
        assert_eq!(missing.contains(feature), !has, "{line}");
    }
}

/// The server sets the values of a `CONFIG SET` one by one, and sets them back when a later one is wrong.
#[test]
fn a_config_set_that_fails_keeps_the_record_of_refusals() {
    let (_server, mut client) = Server::with_client();
    requires!(has_config(&mut client), NO_CONFIG);
    client.call("CL.THROTTLE k 0 1 60 2");
    let before = client.call("CL.TOP");
    assert!(matches!(&before, redis::Value::Array(rows) if rows.len() == 1), "{before:?}");
    for call in [
        "CONFIG SET redis-cell.top-size 64 maxmemory abc",
        "CONFIG SET maxmemory abc redis-cell.top-size 64",
        "CONFIG SET redis-cell.top-size 64 port 65536",
        "CONFIG SET redis-cell.top-size 0 redis-cell.notify-refusals maybe",
        // This one fails when all values are set: the address is nobody's.
        "CONFIG SET redis-cell.top-size 64 bind 192.0.2.1",
    ] {
        client.error(call);
        assert_eq!(settings(&mut client), are("128", "no"), "{call}");
        assert_eq!(client.call("CL.TOP"), before, "{call}");
    }
    client.call("CL.THROTTLE k 0 1 60 2");
    assert_ne!(client.call("CL.TOP"), before, "refusals are still recorded");

    client.call("CONFIG SET redis-cell.top-size 64 maxmemory 0");
    assert_eq!(client.call("CL.TOP"), redis::Value::Array(vec![]), "another size starts a new record");
}
