//! The command reference: every example is what the server answers, replayed from the page itself.

use crate::common::{Client, Server};
use redis::Value;
use std::path::Path;

/// The pages as they were when this was built: it also runs where there is no checkout.
macro_rules! pages {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../docs/commands/", $name, ".md")))),*]
    };
}

pub const PAGES: &[(&str, &str)] = &pages![
    "cl.acquire"
    "cl.bthrottle"
    "cl.bucket"
    "cl.charge"
    "cl.fixed"
    "cl.funnel"
    "cl.log"
    "cl.mthrottle"
    "cl.peek"
    "cl.refund"
    "cl.release"
    "cl.renew"
    "cl.reserve"
    "cl.throttle"
    "cl.top"
    "cl.window"
];

const HEADINGS: [&str; 8] =
    ["Synopsis", "Arguments", "Reply", "Errors", "Cost", "Storage", "Propagation", "Example"];

/// A call and the lines of its answer.
type Step<'p> = (&'p str, Vec<&'p str>);

fn steps(page: &str) -> Vec<Step<'_>> {
    let example = page.split("## Example").nth(1).and_then(|rest| rest.split("```text").nth(1));
    let example = example.and_then(|rest| rest.split("```").next()).unwrap_or_default();
    let mut steps: Vec<Step> = Vec::new();
    for line in example.trim().lines() {
        match (line.strip_prefix("> "), steps.last_mut()) {
            (Some(call), _) => steps.push((call, Vec::new())),
            (None, Some((_, answer))) => answer.push(line),
            (None, None) => panic!("an answer before the first call: {line}"),
        }
    }
    steps
}

/// An answer as a person sees it: items separated by spaces, arrays of arrays on a line each.
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

/// Where a page shows `*`, anything may stand.
fn is_as_printed(seen: &str, printed: &str) -> bool {
    let (seen, printed): (Vec<&str>, Vec<&str>) =
        (seen.split([' ', '\n']).collect(), printed.split([' ', '\n']).collect());
    seen.len() == printed.len()
        && seen.iter().zip(printed).all(|(seen, printed)| *seen == printed || printed == "*")
}

fn replay(client: &mut Client, steps: &[Step]) -> Result<(), String> {
    client.call("FLUSHALL");
    for (call, answer) in steps {
        let (seen, printed) = (shown(&client.ask(*call)), answer.join("\n"));
        if seen.lines().count() != answer.len() || !is_as_printed(&seen, &printed) {
            return Err(format!("{call}\nanswered\n{seen}\nbut the page shows\n{printed}"));
        }
    }
    Ok(())
}

#[test]
fn every_example_is_what_the_server_answers() {
    let server = Server::start();
    let mut client = server.connect();
    for (name, page) in PAGES {
        let steps = steps(page);
        assert!(steps.len() >= 3, "{name}: an example of {} calls", steps.len());
        assert!(
            steps.iter().any(|(call, _)| call.starts_with(&name.to_uppercase())),
            "{name}: not in its example"
        );
        // A machine that stands still for a second in between shows another number.
        let attempts: Vec<String> = (0..5).map_while(|_| replay(&mut client, &steps).err()).collect();
        assert!(attempts.len() < 5, "{name}: {attempts:#?}");
    }
}

#[test]
fn every_page_has_its_headings() {
    for (name, page) in PAGES {
        assert!(page.starts_with(&format!("# {}\n", name.to_uppercase())), "{name}");
        for heading in HEADINGS {
            assert_eq!(page.matches(&format!("\n## {heading}\n")).count(), 1, "{name}: {heading}");
        }
    }
}

#[test]
fn every_command_has_its_page() {
    let server = Server::start();
    let mut client = server.connect();
    for (name, _) in PAGES {
        assert!(client.has_command(name), "{name}");
    }
    let Value::Array(commands) = client.call("COMMAND") else { panic!("no COMMAND") };
    let mut ours = 0;
    for command in commands {
        let Value::Array(row) = command else { panic!("{command:?}") };
        let name: String = redis::from_redis_value(row[0].clone()).unwrap();
        if name.starts_with("cl.") {
            assert!(PAGES.iter().any(|(page, _)| *page == name), "{name} has no page in the list");
            ours += 1;
        }
    }
    assert_eq!(ours, PAGES.len());
}

#[test]
fn no_page_is_missing_from_the_list() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/commands");
    let Ok(files) = std::fs::read_dir(&folder) else { return }; // not where it was built
    for file in files {
        let name = file.unwrap().file_name().into_string().unwrap();
        let listed = PAGES.iter().any(|(page, _)| name == format!("{page}.md"));
        assert!(listed || !name.starts_with("cl."), "{name} is not replayed");
    }
}
