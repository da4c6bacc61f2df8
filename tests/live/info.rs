//! `INFO redis-cell`: admitted and refused calls, errors, waiting clients, and how effects are propagated.

use crate::common::{
    COMMANDS, Client, Options, Server, Waiter, module_path, read_aof, wait_for_blocked, wait_until,
};
use std::collections::BTreeMap;

/// The fields of the module's section, without the module's name.
pub fn fields(client: &mut Client) -> BTreeMap<String, String> {
    let text = client.text("INFO redis-cell");
    let fields = text.lines().filter_map(|line| line.strip_prefix("redis-cell_")?.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Waits until the module is certain that there is neither a replica nor an append-only file. Before Redis
/// 7.0 it never is, because these servers do not report forks to modules.
pub fn wait_for_no_listeners(client: &mut Client) {
    if client.has_command("COMMAND|DOCS") {
        wait_until("no listeners", || match &fields(client)["propagation_listeners"] {
            seen if seen == "none" => Ok(()),
            seen => Err(seen.to_owned()),
        });
    }
}

/// The counts of a command: admitted, refused, errors.
fn counts(client: &mut Client, command: &str) -> [u64; 3] {
    let fields = fields(client);
    ["admitted", "refused", "errors"].map(|what| {
        let name = format!("{command}_{what}");
        fields.get(&name).unwrap_or_else(|| panic!("no {name} in {fields:?}")).parse().unwrap()
    })
}

#[test]
fn each_command_counts_what_it_answers() {
    let (_server, mut client) = Server::with_client();
    for command in COMMANDS.iter().filter(|command| command.has_keys()) {
        let ([admitted, refused, wrong], name) = (command.counted, command.lower().replace("cl.", ""));
        client.call("FLUSHALL");
        client.call("CL.CHARGE debt 0 1 60 9");
        client.call("CL.ACQUIRE held 1 60 me");
        let before = fields(&mut client);
        client.call(admitted);
        client.call(refused);
        client.call(refused);
        for _ in 0..3 {
            client.error(wrong);
        }
        let mut expected = before;
        for (what, more) in [("admitted", 1), ("refused", 2), ("errors", 3)] {
            let count = expected.get_mut(&format!("{name}_{what}")).unwrap_or_else(|| panic!("{name}"));
            *count = (count.parse::<u64>().unwrap() + more).to_string();
        }
        // Whether there may be listeners is tested elsewhere.
        let (mut seen, mut expected) = (fields(&mut client), expected);
        seen.remove("propagation_listeners");
        expected.remove("propagation_listeners");
        assert_eq!(seen, expected, "{name}");
    }
}

#[test]
fn what_the_server_refuses_itself_is_not_counted() {
    let (_server, mut client) = Server::with_client();
    client.error("CL.THROTTLE k");
    client.error("CL.RELEASE");
    assert_eq!(counts(&mut client, "throttle"), [0, 0, 0]);
    assert_eq!(counts(&mut client, "release"), [0, 0, 0]);
}

#[test]
fn calls_in_transactions_and_scripts_count() {
    let (_server, mut client) = Server::with_client();
    client.call("MULTI");
    client.call("CL.THROTTLE k 0 1 60");
    client.call("CL.BTHROTTLE k 0 1 60 1 0");
    client.call("EXEC");
    client.call(&["EVAL", "return redis.call('CL.THROTTLE', KEYS[1], 0, 1, 60)", "1", "k"]);
    assert_eq!(counts(&mut client, "throttle"), [1, 1, 0]);
    assert_eq!(counts(&mut client, "bthrottle"), [0, 1, 0], "a null");
}

#[test]
fn a_wait_counts_when_it_ends() {
    let (server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 3600");
    let mut waiters: Vec<Waiter> =
        (0..4).map(|_| Waiter::ask(&server, "CL.BTHROTTLE k 0 1 3600 1 0")).collect();
    wait_for_blocked(&mut client, 4);
    assert_eq!(fields(&mut client)["blocked_clients"], "4");
    assert_eq!(counts(&mut client, "bthrottle"), [0, 0, 0]);

    client.call("CL.REFUND k 0 1 3600");
    assert!(waiters.remove(0).answer().starts_with("0 "));
    assert_eq!(counts(&mut client, "bthrottle"), [1, 0, 0], "admitted");

    client.call(&format!("CLIENT UNBLOCK {}", waiters[0].id));
    assert_eq!(waiters.remove(0).answer(), "null");
    assert_eq!(counts(&mut client, "bthrottle"), [1, 1, 0], "a null");

    drop(waiters.remove(0));
    wait_for_blocked(&mut client, 1);
    assert_eq!(counts(&mut client, "bthrottle"), [1, 1, 0], "who hangs up is not answered");

    client.call("SET k foreign");
    assert!(waiters.remove(0).answer().starts_with("ERR "));
    assert_eq!(counts(&mut client, "bthrottle"), [1, 1, 1], "an error");
    assert_eq!(fields(&mut client)["blocked_clients"], "0");
}

#[test]
fn the_section_is_there_for_those_who_ask() {
    let (_server, mut client) = Server::with_client();
    for section in ["INFO redis-cell", "INFO everything", "INFO modules"] {
        assert!(client.text(section).contains("# redis-cell\r\nredis-cell_version:"), "{section}");
    }
    for section in ["INFO", "INFO server"] {
        assert!(!client.text(section).contains("redis-cell_"), "{section}");
    }
    assert_eq!(fields(&mut client)["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn how_effects_are_propagated() {
    let server = Options::new().append_only().start();
    let mut client = server.connect();
    client.call("CL.THROTTLE k 0 1 3600");
    let seen = fields(&mut client);
    let in_one = read_aof(&server).iter().any(|effect| effect.command.contains("PXAT"));
    let expected = if in_one { "SET PXAT" } else { "SET, PEXPIREAT" };
    assert_eq!(seen["propagation"], expected);
    assert_eq!(seen["propagation_listeners"], "possible", "there is an append-only file");

    let (_server, mut client) = Server::with_client();
    wait_for_no_listeners(&mut client);
}

#[test]
fn counts_begin_with_the_module_and_outlive_resetstat() {
    let (_server, mut client) = Server::with_client();
    client.call("CL.THROTTLE k 0 1 60");
    client.call("CONFIG RESETSTAT");
    assert_eq!(counts(&mut client, "throttle"), [1, 0, 0], "the server does not tell modules of it");
    client.call("MODULE UNLOAD redis-cell");
    client.call(&["MODULE", "LOAD", &module_path().display().to_string()]);
    assert_eq!(counts(&mut client, "throttle"), [0, 0, 0]);
}
