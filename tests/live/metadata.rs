//! Descriptions of the commands: one in the source, the same in `COMMAND` and on the pages.

use crate::common::{COMMANDS, Client, Command, Server, requires};
use redis::Value;

const NO_DOCS: &str = "no COMMAND DOCS";

/// The field of a map, which RESP2 writes as a list.
fn field<'v>(map: &'v Value, name: &str) -> Option<&'v Value> {
    let Value::Array(items) = map else { panic!("no map: {map:?}") };
    items.chunks(2).find(|pair| text(&pair[0]) == name).map(|pair| &pair[1])
}

fn text(value: &Value) -> String {
    redis::from_redis_value(value.clone()).unwrap_or_else(|e| panic!("{value:?}: {e}"))
}

fn texts(value: Option<&Value>) -> Vec<String> {
    value.map_or_else(Vec::new, |value| list(value).iter().map(text).collect())
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(items) | Value::Set(items) => items,
        seen => panic!("no list: {seen:?}"),
    }
}

fn docs(client: &mut Client, name: &str) -> Value {
    let answer = client.call(&["COMMAND", "DOCS", name]);
    field(&answer, name).unwrap_or_else(|| panic!("COMMAND DOCS knows no {name}")).clone()
}

fn arguments(described: &Value) -> &[Value] {
    field(described, "arguments").map_or(&[], list)
}

/// An argument as a synopsis shows it, and the least number of words it takes.
fn shown(argument: &Value) -> (String, usize) {
    let value = |name| field(argument, name).map(text);
    let parts: Vec<(String, usize)> = arguments(argument).iter().map(shown).collect();
    let joined = |by: &str| parts.iter().map(|(part, _)| part.as_str()).collect::<Vec<_>>().join(by);
    let (bare, words) = match value("type").unwrap().as_str() {
        "pure-token" => (String::new(), 0),
        // Alternatives with arguments of their own are shown by the name that the page explains.
        "oneof"
            if arguments(argument)
                .iter()
                .any(|part| field(part, "type").map(text).as_deref() == Some("block")) =>
        {
            (value("name").unwrap(), parts.iter().map(|(_, words)| *words).min().unwrap_or_default())
        }
        "oneof" => (joined("|"), 1),
        "block" => (joined(" "), parts.iter().map(|(_, words)| words).sum()),
        _ => (value("name").unwrap(), 1),
    };
    let (once, words) = match value("token") {
        Some(token) => (format!("{token} {bare}").trim_end().to_owned(), words + 1),
        None => (bare, words),
    };
    let flags = texts(field(argument, "flags"));
    let has = |flag: &str| flags.iter().any(|seen| seen == flag);
    let often = if has("multiple") { format!("{once} [{once} ...]") } else { once };
    if has("optional") { (format!("[{often}]"), 0) } else { (often, words) }
}

fn synopsis(name: &str, described: &Value) -> (String, usize) {
    let arguments: Vec<(String, usize)> = arguments(described).iter().map(shown).collect();
    let words = arguments.iter().map(|(_, words)| words).sum::<usize>();
    let shown: Vec<String> = arguments.into_iter().map(|(shown, _)| shown).collect();
    (format!("{} {}", name.to_uppercase(), shown.join(" ")), words + 1)
}

/// The row of `COMMAND INFO`.
fn row(client: &mut Client, name: &str) -> Vec<Value> {
    let answer = client.call(&["COMMAND", "INFO", name]);
    list(&list(&answer)[0]).to_vec()
}

#[test]
fn every_page_shows_the_synopsis_that_the_server_tells() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("COMMAND|DOCS"), NO_DOCS);
    for Command { name, page, .. } in COMMANDS {
        let name = &name.to_lowercase();
        let (seen, _) = synopsis(name, &docs(&mut client, name));
        let section = page.split("\n## Syntax\n").nth(1).unwrap_or_default();
        let printed = section.lines().find(|line| !line.is_empty() && !line.starts_with("```"));
        assert_eq!(printed, Some(seen.as_str()), "{name}: the page, and what COMMAND DOCS says");
    }
    let (seen, _) = synopsis("cl.throttle", &docs(&mut client, "cl.throttle"));
    assert!(
        include_str!("../../README.md").contains(&format!("\n{seen}\n")),
        "the README shows another than {seen}"
    );
}

#[test]
fn every_command_is_described_in_full() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("COMMAND|DOCS"), NO_DOCS);
    for command @ Command { name, page, .. } in COMMANDS {
        let name = &name.to_lowercase();
        let described = docs(&mut client, name);
        let value = |field_name| field(&described, field_name).map(text).unwrap_or_default();
        assert!(
            value("summary").ends_with('.') && value("summary").contains(". Replies "),
            "{name}: {described:?}"
        );
        let replies_null = value("summary").contains(" null when not admitted in time.");
        assert_eq!(replies_null, command.has("blocking"), "{name}: {described:?}");
        assert!(value("complexity").starts_with("O("), "{name}: {described:?}");
        let cost =
            page.split("\n- Time complexity: ").nth(1).and_then(|rest| rest.split("\n- ").next()).unwrap();
        let order = value("complexity").split(" where ").next().unwrap().to_owned();
        assert!(cost.contains(&order), "{name}: the server tells of {order}, the page of {cost}");
        assert_eq!(value("since"), "1.0.0", "{name}");
        assert_eq!(value("group"), "module", "{name}");
        let mut unseen = arguments(&described).to_vec();
        while let Some(argument) = unseen.pop() {
            assert!(field(&argument, "summary").is_some(), "{name}: {argument:?}");
            unseen.extend(arguments(&argument).iter().cloned());
        }
    }
}

#[test]
fn documented_ranges_equal_the_ranges_in_errors() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("COMMAND|DOCS"), NO_DOCS);
    for (call, argument, documented, error) in [
        ("CL.THROTTLE k 1 0 60", "count", "at least 1", "count must be an integer from 1 "),
        ("CL.THROTTLE k -1 1 60", "max_burst", "at least 0", "max_burst must be an integer from 0 "),
        ("CL.BUCKET k 0 1 60", "capacity", "at least 1", "capacity must be an integer from 1 "),
        ("CL.FIXED k 0 60", "limit", "at least 1", "limit must be an integer from 1 to 9"),
        ("CL.LOG k 0 60", "limit", "1 to 1,000,000", "limit must be an integer from 1 to 1000000"),
        ("CL.LOG k 9 60 -1", "quantity", "0 to 10,000", "quantity must be an integer from 0 to 10000"),
        ("CL.ACQUIRE k 0 60 me", "limit", "at least 1", "limit must be an integer from 1 to 9"),
        ("CL.ACQUIRE k 9 0 me", "lease", "at least 1", "lease must be an integer from 1 "),
    ] {
        let name = call.split(' ').next().unwrap().to_lowercase();
        let described = docs(&mut client, &name);
        let named = |value: &&Value| field(value, "name").map(text).as_deref() == Some(argument);
        let summary = arguments(&described).iter().find(named).and_then(|value| field(value, "summary"));
        let summary = summary.map(text).unwrap_or_default();
        assert!(summary.contains(documented), "{name} {argument}: {summary}");
        let seen = client.error(call);
        assert!(seen.starts_with(&format!("ERR {error}")), "{call}: {seen}");
    }
}

#[test]
fn the_arity_follows_from_the_arguments() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("COMMAND|DOCS"), NO_DOCS);
    for name in &COMMANDS.iter().map(Command::lower).collect::<Vec<_>>() {
        let (shown, words) = synopsis(name, &docs(&mut client, name));
        assert_eq!(row(&mut client, name)[1], Value::Int(-i64::try_from(words).unwrap()), "{shown}");
        if words == 1 {
            continue; // the name alone is a call
        }
        let short: Vec<&str> =
            std::iter::once(name.as_str()).chain(std::iter::repeat_n("1", words - 2)).collect();
        let error = client.error(&short);
        assert_eq!(error, format!("ERR wrong number of arguments for '{name}' command"));
    }
}

#[test]
fn what_a_command_does_with_its_keys() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("COMMAND|GETKEYSANDFLAGS"), "no COMMAND GETKEYSANDFLAGS");
    let several = "CL.BMTAKE FIRST LOG 1 60 1 KEY SHADOW LOG 1 60 1 FLOW f WEIGHT 2 ONCE STORED 60";
    let row = |command: &Command| (command.call, command.uses);
    let rows = COMMANDS.iter().filter(|command| command.has_keys()).map(row);
    for (call, uses) in rows.chain([(several, &["RW", "access", "update"][..])]) {
        let keys = call.split(' ').filter(|word| ["FIRST", "KEY", "STORED"].contains(word));
        let answer = client.call(&format!("COMMAND GETKEYSANDFLAGS {call}"));
        let seen: Vec<(String, Vec<String>)> =
            list(&answer).iter().map(|pair| (text(&list(pair)[0]), texts(list(pair).get(1)))).collect();
        let expected: Vec<(String, Vec<String>)> =
            keys.map(|key| (key.to_owned(), uses.iter().map(|&flag| flag.to_owned()).collect())).collect();
        assert_eq!(seen, expected, "{call}");
    }
    assert!(client.error("COMMAND GETKEYSANDFLAGS CL.TOP RESET").contains("no key arguments"));
}

#[test]
fn tips_say_whose_answers_change_with_the_time() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("COMMAND|DOCS"), NO_DOCS);
    for name in &COMMANDS.iter().map(Command::lower).collect::<Vec<_>>() {
        let tips = texts(row(&mut client, name).get(7));
        let timed = !["cl.renew", "cl.release"].contains(&name.as_str());
        assert_eq!(tips.iter().any(|tip| tip == "nondeterministic_output"), timed, "{name}: {tips:?}");
    }
}

#[test]
fn every_command_is_in_the_acl_categories_of_its_page() {
    let (_server, mut client) = Server::with_client();
    requires!(client.has_command("WAITAOF"), "commands of modules are in no category");
    let has_own = client.ask("ACL CAT rate_limit").is_ok();
    for command in COMMANDS {
        let line = command.page.lines().find_map(|line| line.strip_prefix("- ACL categories: ")).unwrap();
        let mut told: Vec<&str> = line.split(", ").map(|category| category.trim_matches('`')).collect();
        told.retain(|category| has_own || *category != "@rate_limit");
        told.sort_unstable();
        let mut seen = texts(row(&mut client, &command.lower()).get(6));
        seen.sort_unstable();
        assert_eq!(seen, told, "{}", command.name);
    }
}
