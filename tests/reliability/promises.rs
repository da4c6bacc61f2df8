//! The pages that promise something name the tests that verify it.

use crate::common::root;
use std::path::Path;

/// The suites that a page can name, each with the folder of its tests.
const SUITES: [(&str, &str); 7] = [
    ("core", "core/tests"),
    ("live", "tests/live"),
    ("reliability", "tests/reliability"),
    ("simulator", "verify/simulator/tests"),
    ("shipping", "tests/shipping"),
    ("rust", "clients/rust/tests/client"),
    ("python", "clients/python/tests"),
];

/// The folder of a suite, or `None` for a name that is not a suite.
fn folder(suite: &str) -> Option<&'static str> {
    SUITES.iter().find(|(name, _)| *name == suite).map(|(_, folder)| *folder)
}

/// The names between backticks that are paths of tests: suite, file, modules in it, and function; or of the
/// tests of a file.
fn named_tests(page: &str) -> Vec<Vec<&str>> {
    let quoted = page.split('`').skip(1).step_by(2).map(|name| name.split("::").collect::<Vec<_>>());
    quoted.filter(|path| path.len() >= 2 && !path[1].is_empty() && folder(path[0]).is_some()).collect()
}

/// Whether the source, in this language, has a test of this name in these modules. A macro can make a module.
fn has_test(source: &str, is_python: bool, modules: &[&str], function: &str) -> bool {
    if is_python {
        return function.starts_with("test_")
            && source.lines().any(|line| {
                line.strip_prefix("async ").unwrap_or(line).starts_with(&format!("def {function}("))
            });
    }
    let has_module =
        |name: &&str| source.contains(&format!("mod {name} {{")) || source.contains(&format!("!({name}, "));
    modules.iter().all(has_module)
        && source.match_indices(&format!("fn {function}(")).any(|(at, _)| {
            let before = &source[..at];
            // Only attributes and comments between the two.
            let since = before.rfind("#[test]").max(before.rfind("#[tokio::test")).map(|at| &before[at..]);
            since.is_some_and(|between| !between.contains('}'))
        })
}

#[test]
fn each_names_a_test_that_exists() {
    let root = root();
    let read = |file: &Path| {
        std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    };
    for (page, at_least) in [("docs/guarantees.md", 70), ("SECURITY.md", 5), ("docs/clients.md", 3)] {
        let text = read(Path::new(page));
        let tests = named_tests(&text);
        assert!(tests.len() >= at_least, "{page} names {} tests", tests.len());
        for path in tests {
            let folder = folder(path[0]).expect("a suite: the names are chosen by it");
            let is_python = path[0] == "python";
            let source = Path::new(folder).join(path[1]).with_extension(if is_python { "py" } else { "rs" });
            let source = read(&source);
            let Some((function, modules)) = path[2..].split_last() else { continue };
            assert!(has_test(&source, is_python, modules, function), "{page}: no test {}", path.join("::"));
        }
    }
}
