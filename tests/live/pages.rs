//! The command reference: every example is replayed from the page itself, and the server must answer as it
//! shows.

use crate::common::{
    COMMANDS, Client, Clock, Command, Options, SECOND, Server, requires, wait_until, wall_ns,
};
use redis::Value;
use std::path::Path;

/// The template of a command page, in this order.
const HEADINGS: [&str; 10] = [
    "Syntax",
    "Example",
    "Required arguments",
    "Optional arguments",
    "Reply",
    "Errors",
    "Notes",
    "Storage",
    "Replication",
    "See also",
];

/// The beginnings of lines that must be the same on every page that has them.
const COMMON: [&str; 8] = [
    "| argument |",
    "| `key` |",
    "| `max_burst count period` |",
    "| `capacity` | units",
    "| `lease` |",
    "| `id` |",
    "| `SATURATE` |",
    "| `S`, `MS`, `US` |",
];

/// The page about all commands.
const SHARED: &str = include_str!("../../docs/commands/README.md");

/// A call and the lines of its answer.
struct Step<'p> {
    call: &'p str,
    answer: Vec<&'p str>,
    /// Time passes before it: it is repeated until it answers as printed. It therefore only checks.
    later: bool,
}

/// The calls of a page, in the order of its blocks marked `console`: `> ` and the call, then the lines of its
/// answer. A line such as `# a second later` lets time pass before the next call.
fn steps(page: &str) -> Vec<Step<'_>> {
    let blocks = page.split("\n```console\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    let mut steps: Vec<Step> = Vec::new();
    let mut later = false;
    for line in blocks.flat_map(str::lines) {
        match (line.strip_prefix("> "), steps.last_mut()) {
            (Some(call), _) => {
                steps.push(Step { call, answer: Vec::new(), later });
                later = false;
            }
            (None, _) if line.starts_with("# ") && line.ends_with(" later") => later = true,
            (None, Some(step)) => step.answer.push(line),
            (None, None) => panic!("an answer before the first call: {line}"),
        }
    }
    steps
}

/// An answer as text: items separated by spaces, nested arrays on a line each.
fn shown(answer: &Result<Value, String>) -> String {
    let item = |item: &Value| shown(&Ok(item.clone()));
    match answer {
        Ok(Value::Nil) => "null".to_owned(),
        Ok(Value::Int(n)) => n.to_string(),
        Ok(Value::Okay) => "OK".to_owned(),
        Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Ok(Value::SimpleString(text)) | Err(text) => text.clone(),
        Ok(Value::Array(items)) => {
            let nested = items.iter().any(|item| matches!(item, Value::Array(_)));
            items.iter().map(item).collect::<Vec<_>>().join(if nested { "\n" } else { " " })
        }
        Ok(other) => format!("{other:?}"),
    }
}

/// A `*` on a page matches anything.
fn is_as_printed(seen: &str, printed: &str) -> bool {
    let (seen, printed): (Vec<&str>, Vec<&str>) =
        (seen.split([' ', '\n']).collect(), printed.split([' ', '\n']).collect());
    seen.len() == printed.len()
        && seen.iter().zip(printed).all(|(seen, printed)| *seen == printed || printed == "*")
}

impl Step<'_> {
    fn check(&self, client: &mut Client) -> Result<(), String> {
        let (seen, printed) = (shown(&client.ask(self.call)), self.answer.join("\n"));
        if seen.lines().count() == self.answer.len() && is_as_printed(&seen, &printed) {
            return Ok(());
        }
        Err(format!("{}\nanswered\n{seen}\nbut the page shows\n{printed}", self.call))
    }
}

/// Waits until the day is older than the units that the settlements of the pages give back: in another month,
/// they would have been taken from another window.
fn wait_for_todays_window(steps: &[Step]) {
    const OLDEST: i64 = 20; // seconds
    if steps.iter().any(|step| step.call.contains(" AGO ")) {
        wait_until("a day that is old enough", || match wall_ns() / SECOND % 86_400 {
            age if age > OLDEST => Ok(()),
            age => Err(format!("{age} seconds after midnight")),
        });
    }
}

/// Replays steps, and calls `before` before each of them.
fn replay(client: &mut Client, steps: &[Step], before: &mut dyn FnMut()) -> Result<(), String> {
    wait_for_todays_window(steps);
    client.call("FLUSHALL");
    for step in steps {
        before();
        if step.later {
            wait_until("the time that the page lets pass", || step.check(client));
        } else {
            step.check(client)?;
        }
    }
    Ok(())
}

/// Replays the examples of a page until the server answers what the page shows.
fn assert_replays(client: &mut Client, name: &str, steps: &[Step]) {
    assert!(steps.len() >= 2, "{name}: examples of {} calls", steps.len());
    // A machine that stalls for a second in between shows another number.
    let attempts: Vec<String> = (0..5).map_while(|_| replay(client, steps, &mut || ()).err()).collect();
    assert!(attempts.len() < 5, "{name}: {attempts:#?}");
}

#[test]
fn every_example_is_what_the_server_answers() {
    let (_server, mut client) = Server::with_client();
    for Command { name, page, .. } in COMMANDS {
        let steps = steps(page);
        assert!(steps.iter().any(|step| step.call.starts_with(name)), "{name}: not in its example");
        assert_replays(&mut client, name, &steps);
    }
}

#[test]
fn every_recipe_is_what_the_server_answers() {
    let server = Server::start();
    let recipes = include_str!("../../docs/recipes.md");
    assert_replays(&mut server.connect(), "recipes", &steps(recipes));
}

/// A program sends the calls at once, and a person types one in five seconds.
#[test]
fn the_tutorial_is_what_the_server_answers_at_any_speed() {
    // The clock is a library that is compiled from the sources, which a container does not have.
    requires!(Path::new(env!("CARGO_TARGET_TMPDIR")).is_dir(), "the sources of the tests are not here");
    let steps = steps(include_str!("../../docs/tutorial.md"));
    assert!(steps.len() > 20, "{} calls", steps.len());
    for seconds in [0, 5] {
        let mut clock = Clock::ahead_by(0);
        let server = clock.start(Options::new());
        let replayed = replay(&mut server.connect(), &steps, &mut || clock.pass(seconds * SECOND));
        assert_eq!(replayed, Ok(()), "a call each {seconds} s");
    }
}

/// The session at the top of a README as the steps of a page: `redis-cli` prints a line for each integer.
fn session(readme: &str) -> String {
    let lines = readme.lines().filter_map(|line| line.split("# ").next());
    let steps = lines.filter_map(|line| {
        let call = line.strip_prefix("127.0.0.1:6379> ").map(|call| format!("\n> {call}\n"));
        call.or_else(|| Some(format!("{} ", line.split_once(") (integer) ")?.1.trim())))
    });
    format!("\n```console{}\n```\n", steps.collect::<String>().replace(" \n", "\n").trim_end())
}

#[test]
fn the_session_of_each_readme_is_what_the_server_answers() {
    let (_server, mut client) = Server::with_client();
    for (name, readme) in [
        ("README.md", include_str!("../../README.md")),
        ("README.zh-CN.md", include_str!("../../README.zh-CN.md")),
    ] {
        let session = session(readme);
        let steps = steps(&session);
        assert_eq!(steps.len(), 2, "{name}: {session}");
        assert_replays(&mut client, name, &steps);
    }
}

#[test]
fn every_page_has_the_same_headings_in_the_same_order() {
    for Command { name, page, .. } in COMMANDS {
        assert!(page.starts_with(&format!("# {name}\n\n")), "{name}");
        let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "{name}");
        for part in page.split("\n## ").skip(1) {
            let (heading, text) = part.split_once('\n').unwrap();
            assert!(!text.trim().is_empty(), "{name}: nothing under {heading}");
        }
    }
}

#[test]
fn every_page_names_the_acl_categories_of_its_flags() {
    const OF_FLAGS: [(&str, &str); 4] = [
        ("readonly", "read"),
        ("write", "write"),
        ("admin", "admin`, `@dangerous"),
        ("blocking", "blocking"),
    ];
    for command in COMMANDS {
        let own = OF_FLAGS.iter().filter(|(flag, _)| command.has(flag)).map(|(_, category)| *category);
        let speed = if command.has("fast") { "fast" } else { "slow" };
        let all = own.chain([speed]).chain(command.has_keys().then_some("rate_limit")).collect::<Vec<_>>();
        let line = format!("\n- ACL categories: `@{}`\n", all.join("`, `@"));
        assert!(command.page.contains(&line), "{}: {line}", command.name);
    }
}

#[test]
fn no_page_repeats_what_holds_for_all_commands() {
    const LONG: usize = 60;
    for Command { name, page, .. } in COMMANDS {
        let repeated =
            page.lines().find(|line| line.len() > LONG && SHARED.lines().any(|shared| shared == *line));
        assert_eq!(repeated, None, "{name}: it stands in docs/commands/README.md");
    }
}

#[test]
fn every_page_says_the_same_thing_in_the_same_words() {
    for start in COMMON {
        let lines = COMMANDS.iter().flat_map(|Command { name, page, .. }| {
            page.lines().filter(move |line| line.starts_with(start)).map(move |line| (*name, line))
        });
        let lines: Vec<(&str, &str)> = lines.collect();
        let (first, words) = lines.first().unwrap_or_else(|| panic!("no page says {start}"));
        for (name, line) in &lines {
            assert_eq!(line, words, "{name} and {first}");
        }
    }
}

/// Whether a page lists the error, or refers to the errors of all commands, which have it. CL.MTAKE refers
/// to them for the commands that refer to its errors.
fn is_documented(page: &str, error: &str) -> bool {
    let refers = ["(README.md#errors)", "(cl.mtake.md#errors)"].iter().any(|link| page.contains(link));
    lists(page, error) || refers && lists(SHARED, error)
}

/// Whether the list of errors on a page has this one. `...` stands for the rest of an error, `<name>` for a
/// word.
fn lists(page: &str, error: &str) -> bool {
    let section = page.split("\n## Errors\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let listed = section.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next());
    let seen: Vec<&str> = error.split(' ').collect();
    listed.map(|error| error.split(' ').collect::<Vec<_>>()).any(|printed| {
        let (printed, open) = match printed.strip_suffix(&["..."]) {
            Some(beginning) => (beginning, true),
            None => (&printed[..], false),
        };
        (seen.len() == printed.len() || open && seen.len() > printed.len())
            && seen.iter().zip(printed).all(|(seen, word)| seen == word || word.starts_with('<'))
    })
}

#[test]
fn every_error_that_a_call_provokes_is_on_its_page_or_among_those_of_all_commands() {
    let (_server, mut client) = Server::with_client();
    for Command { name, page, .. } in COMMANDS {
        let mut provoke = |call: &str| match client.ask(call) {
            Err(error) => assert!(is_documented(page, &error), "{name}: {call}: not on the page: {error}"),
            Ok(answer) => panic!("{name}: {call}: {answer:?}"),
        };
        let steps = steps(page);
        let call = steps.iter().find(|step| step.call.starts_with(name)).unwrap().call;
        provoke(&format!("{call} nonsense nonsense"));
        if *name == "CL.TOP" {
            provoke("CL.TOP 0");
            continue;
        }
        provoke(&name.to_lowercase()); // Redis 6 repeats the word of the call in its error
        let words: Vec<&str> = call.split(' ').collect();
        for (at, _) in words.iter().enumerate().skip(2).filter(|(_, word)| word.parse::<u8>().is_ok()) {
            let mut words = words.clone();
            words[at] = "-1";
            provoke(&words.join(" "));
        }
        // Any word of the call may be its key.
        for (command, value) in [("RPUSH", "v"), ("SET", "v"), ("HSET", "f v"), ("ZADD", "0.5 v")] {
            client.call("FLUSHALL");
            for key in &words[1..] {
                client.call(&format!("{command} {key} {value}"));
            }
            let error = client.error(call);
            assert!(is_documented(page, &error), "{name}: {command}: not on the page: {error}");
        }
    }
}

#[test]
fn every_command_has_its_page() {
    let (_server, mut client) = Server::with_client();
    for Command { name, .. } in COMMANDS {
        assert!(client.has_command(name), "{name}");
    }
    let Value::Array(commands) = client.call("COMMAND") else { panic!("no COMMAND") };
    let mut ours = 0;
    for command in commands {
        let Value::Array(row) = command else { panic!("{command:?}") };
        let name: String = redis::from_redis_value(row[0].clone()).unwrap();
        if name.starts_with("cl.") {
            assert!(COMMANDS.iter().any(|command| command.lower() == name), "{name} is not in the table");
            ours += 1;
        }
    }
    assert_eq!(ours, COMMANDS.len());
}

#[test]
fn no_page_is_missing_from_the_list() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands");
    let Ok(files) = std::fs::read_dir(&folder) else { return }; // not where it was built
    for file in files {
        let name = file.unwrap().file_name().into_string().unwrap();
        let listed = COMMANDS.iter().any(|command| name == format!("{}.md", command.lower()));
        assert!(listed || !name.starts_with("cl."), "{name} is not replayed");
    }
}
