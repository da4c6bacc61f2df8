//! The pages that promise something name the tests that verify it.

use std::path::Path;

/// The suites that a page can name, each with the folder of its tests.
const SUITES: [(&str, &str); 6] = [
    ("core", "core/tests"),
    ("live", "tests/live"),
    ("reliability", "tests/reliability"),
    ("shipping", "tests/shipping"),
    ("rust", "clients/rust/tests/client"),
    ("python", "clients/python/tests"),
];

/// The folder of a suite, or `None` for a name that is not a suite.
fn folder(suite: &str) -> Option<&'static str> {
    SUITES.iter().find(|(name, _)| *name == suite).map(|(_, folder)| *folder)
}

/// The names between backticks that are paths of tests: suite, file and function.
fn named_tests(page: &str) -> Vec<Vec<&str>> {
    let quoted = page.split('`').skip(1).step_by(2).map(|name| name.split("::").collect::<Vec<_>>());
    quoted.filter(|path| path.len() == 3 && folder(path[0]).is_some()).collect()
}

#[test]
fn each_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &Path| {
        std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    };
    for (page, at_least) in [("docs/guarantees.md", 70), ("SECURITY.md", 5), ("docs/clients.md", 3)] {
        let text = read(Path::new(page));
        let tests = named_tests(&text);
        assert!(tests.len() >= at_least, "{page} names {} tests", tests.len());
        for path in tests {
            let folder = folder(path[0]).expect("a suite: the names are chosen by it");
            if path[0] == "python" {
                let source = read(&Path::new(folder).join(path[1]).with_extension("py"));
                let is_test = path[1].starts_with("test_") && path[2].starts_with("test_");
                let written = source.lines().any(|line| {
                    let line = line.strip_prefix("async ").unwrap_or(line);
                    line.starts_with(&format!("def {}(", path[2]))
                });
                assert!(is_test && written, "{page}: no test {}", path.join("::"));
                continue;
            }
            let source = read(&Path::new(folder).join(path[1]).with_extension("rs"));
            let function = source.find(&format!("fn {}(", path[2]));
            let before = &source[..function.unwrap_or_else(|| panic!("{page}: no test {}", path.join("::")))];
            // A function of this name that is a test: only attributes and comments between the two.
            let since = before.rfind("#[test]").max(before.rfind("#[tokio::test")).map(|at| &before[at..]);
            assert!(
                since.is_some_and(|between| !between.contains('}')),
                "{page}: {} is not a test",
                path.join("::")
            );
        }
    }
}
