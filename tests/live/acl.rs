//! Permissions: by category where the server has them, by name everywhere, and always by key.

use crate::common::{COMMANDS, Client, Command, Server, module_path, requires};

/// The commands that have keys.
fn limiters() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().filter(|command| command.has_keys())
}

/// The command's call, with keys that begin with `limits:`.
fn limits(command: &Command) -> String {
    command.on(&format!("limits:{}", command.name)).replace("first", "limits:first")
}

/// The same call, with a second key that begins otherwise.
fn elsewhere(command: &Command) -> String {
    command.on("other:k").replace("first", "limits:first")
}

/// A connection of a user with these rules.
fn user(server: &Server, rules: &str) -> Client {
    let mut client = server.connect();
    client.call(&format!("ACL SETUSER somebody reset on nopass {rules}"));
    client.call("AUTH somebody anything");
    client
}

fn assert_denied(client: &mut Client, call: &str) {
    let error = client.error(call);
    assert!(error.starts_with("NOPERM"), "{call}: {error}");
}

fn has_category(client: &mut Client) -> bool {
    // Servers with `HEXPIRE` have categories of modules.
    client.has_command("HEXPIRE") || client.ask("ACL CAT rate_limit").is_ok()
}

/// Whether the commands of modules can be in categories.
fn has_categories(client: &mut Client) -> bool {
    client.has_command("WAITAOF") // as new as the function of the module API: Redis 7.2
}

/// Asserts that the user can call each command on its keys, and nothing else.
fn check_limiter(client: &mut Client) {
    for command in limiters() {
        client.call(&limits(command));
        assert_denied(client, &elsewhere(command));
    }
    for call in
        ["GET limits:a", "DEL limits:a", "SET limits:a 1", "CL.TOP", "CL.TOP RESET", "INFO", "KEYS *", "PING"]
    {
        assert_denied(client, call);
    }
}

#[test]
fn by_the_category() {
    let server = Server::start();
    requires!(has_category(&mut server.connect()), "no category of a module's own");
    check_limiter(&mut user(&server, "+@rate_limit ~limits:*"));
}

#[test]
fn a_module_that_is_loaded_again_finds_its_category() {
    let (server, mut client) = Server::with_client();
    requires!(has_category(&mut client), "no category of a module's own");
    let mut limiter = user(&server, "+@rate_limit ~limits:*");
    client.call("MODULE UNLOAD redis-cell");
    client.call(&["MODULE", "LOAD", &module_path().display().to_string()]);
    check_limiter(&mut user(&server, "+@rate_limit ~limits:*"));
    check_limiter(&mut limiter);
}

#[test]
fn by_their_names() {
    let server = Server::start();
    let rules: Vec<String> = limiters().map(|command| format!("+{}", command.lower())).collect();
    check_limiter(&mut user(&server, &format!("{} ~limits:*", rules.join(" "))));
}

#[test]
fn who_may_only_read_can_peek() {
    let (server, mut client) = Server::with_client();
    let read = if has_categories(&mut client) { "+@read" } else { "+cl.peek +cl.mpeek" };
    // Permissions to read are new in 7.0.
    let keys = if client.has_command("COMMAND|DOCS") { "%R~limits:*" } else { "~limits:*" };
    let mut client = user(&server, &format!("{read} {keys}"));
    for command in limiters() {
        if command.has("readonly") {
            client.call(&limits(command));
            assert_denied(&mut client, &elsewhere(command));
        } else {
            assert_denied(&mut client, &limits(command));
        }
    }
}

#[test]
fn a_permission_to_read_the_key_is_not_enough_to_take() {
    let server = Server::start();
    requires!(server.connect().has_command("COMMAND|DOCS"), "no permissions to read alone");
    let mut client = user(&server, "+@all %R~limits:*");
    for command in limiters() {
        if command.has("readonly") {
            client.call(&limits(command));
        } else {
            assert_denied(&mut client, &limits(command));
        }
    }
}

#[test]
fn the_table_of_refusals_is_not_for_every_limiter() {
    let server = Server::start();
    assert_denied(&mut user(&server, "+@all -cl.top ~*"), "CL.TOP");
    let mut client = user(&server, "+cl.top");
    client.call("CL.TOP");
    client.call("CL.TOP RESET");
}

#[test]
fn the_table_of_refusals_is_in_the_categories_of_administrators() {
    let server = Server::start();
    requires!(has_categories(&mut server.connect()), "commands of modules are in no category");
    user(&server, "+@admin").call("CL.TOP");
    assert_denied(&mut user(&server, "+@all -@dangerous ~*"), "CL.TOP");
    assert_denied(&mut user(&server, "+@read +@write ~*"), "CL.TOP");
}
