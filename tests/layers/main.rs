//! The layers of `src`: no file depends on a file that depends on it, and none on a layer above its own. The
//! core and the border to the server (`ffi/`) have no circles either. They are crates of their own, so the
//! compiler checks that they depend on nothing in `src`, and that `unsafe` is in `ffi/` only.
//!
//! A dependency is a path that begins with `crate`, `super` or a module of the file, in a `use` or elsewhere.
//! It counts twice: on the file that defines the item, and on every file that passes it on. `mod` lines alone
//! are no dependencies.
//!
//! And the files, wherever they are, that must know every kind of limiter.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The layers, ground first. A file may depend on its own layer and on those before it.
const LAYERS: [&[&str]; 8] = [
    &["tally.rs"],
    // Data that is kept beside the states.
    &["config.rs", "refusals.rs"],
    // How a call ends, and where states are kept.
    &["outcome.rs", "store.rs", "store/"],
    &["waiting.rs", "waiting/"],
    &["limiters.rs", "limiters/"],
    &["calls.rs", "calls/"],
    &["commands/", "info.rs"],
    &["lib.rs"],
];

/// The items that `ffi/` takes from the core: times, integers and errors.
const CORE_IN_FFI: [&str; 6] = ["Error", "Instant", "Span", "Stretch", "Unit", "parse_integer"];

/// The one file of `ffi/` that uses a limiter, for itself: it limits how often panics are logged.
const USES_A_LIMITER: &str = "panic.rs";

/// The files that know every kind of limiter, by its word in CL.MTAKE.
const KNOW_ALL_KINDS: &[&str] = &[
    // What decides, or writes calls and limits as their readers do.
    "functions/50_several.lua",
    "clients/rust/src/call.rs",
    "clients/rust/src/commands.rs",
    "clients/rust/src/several.rs",
    "clients/python/src/redis_cell/commands.py",
    "clients/python/src/redis_cell/limiters.py",
    "clients/python/src/redis_cell/local.py",
    "clients/python/src/redis_cell/wire.py",
    "apps/envoy/src/config.rs",
    "apps/policy/src/policy.rs",
    "apps/playground/src/copy.rs",
    "apps/playground/src/words.rs",
    "apps/playground/page/play.js",
    // What tests and measures them.
    "tests/common/commands.rs",
    "tests/common/functions.rs",
    "tests/common/model.rs",
    "tests/functions/calls.rs",
    "tests/live/several.rs",
    "tests/reliability/clock.rs",
    "tests/reliability/hostile.rs",
    "tests/reliability/nested.c",
    "verify/simulator/src/contract.rs",
    "verify/simulator/src/writer.rs",
    "bench/src/instructions.rs",
    "bench/src/scale/kinds.rs",
    // Pages.
    "README.md",
    "docs/choosing.md",
    "docs/functions.md",
    "docs/guarantees.md",
    "docs/scaling.md",
    "docs/commands/README.md",
    "docs/commands/cl.mtake.md",
    "docs/commands/cl.msettle.md",
];

/// The same for kinds with quantities: all but leases.
const KNOW_QUANTITIES: &[&str] = &[
    "clients/rust/src/kind.rs",
    "clients/rust/src/local.rs",
    "clients/rust/src/merged.rs",
    "clients/python/src/redis_cell/refusals.py",
    "tests/reliability/keys.rs",
];

/// Module paths, and the files that they are. The crate's own is empty.
type Files = BTreeMap<Vec<String>, (String, String)>;

/// Every file below a folder of this repository, without its comments.
fn sources(folder: &str) -> Files {
    fn visit(folder: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, root, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    visit(&root, &root, &mut found);
    files(found)
}

fn files(found: Vec<(String, String)>) -> Files {
    let module = |name: &str| {
        let name = name.trim_end_matches(".rs").trim_end_matches("/mod");
        name.split('/').filter(|part| *part != "lib").map(str::to_owned).collect()
    };
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
    found.into_iter().map(|(name, text)| (module(&name), (name, text.lines().map(code).collect()))).collect()
}

/// The paths that begin with a word in a text, without the word, each with the text before it.
fn paths<'a>(text: &'a str, first: &str) -> Vec<(Vec<String>, &'a str)> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in text.match_indices(&format!("{first}::")) {
        if !text[..at].ends_with(|c| is_name(c) || c == ':') {
            let mut tails = Vec::new();
            branches(&text[at + first.len() + 2..], &Vec::new(), &mut tails);
            found.extend(tails.into_iter().map(|tail| (tail, &text[..at])));
        }
    }
    found
}

/// Adds the paths of a tree such as `a::{b, c::d}`, and returns the text behind it.
fn branches<'a>(text: &'a str, before: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = branches(rest, before, found).trim_start().trim_start_matches(',').trim_start();
            if let Some(rest) = rest.strip_prefix('}') {
                return rest;
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let path = [before, &[text[..end].to_owned()]].concat();
    match text[end..].strip_prefix("::") {
        Some(rest) if !rest.starts_with('<') => branches(rest, &path, found),
        _ => {
            found.push(path);
            &text[end.max(1).min(text.len())..]
        }
    }
}

/// The paths in a file, from the root of its crate, and whether the file passes them on.
fn named(files: &Files, module: &[String]) -> Vec<(Vec<String>, bool)> {
    let text = &files[module].1;
    let above = &module[..module.len().saturating_sub(1)];
    let children = files.keys().filter(|path| path.len() == module.len() + 1 && path.starts_with(module));
    let mut firsts = vec![("crate", vec![]), ("super", above.to_vec())];
    firsts.extend(children.map(|path| (path[module.len()].as_str(), path.clone())));
    let mut all = Vec::new();
    for (first, root) in firsts {
        for (tail, before) in paths(text, first) {
            // In a module inside the file, `super` is the file.
            let item = before.rsplit("\n}\n").next().unwrap_or_default();
            let is_inside = item.lines().any(|line| {
                line.trim_start_matches("pub ").starts_with("mod ") && line.trim_end().ends_with('{')
            });
            let root = if first == "super" && is_inside { module } else { &root };
            let statement = before.rsplit([';', '}']).next().unwrap_or_default().trim();
            all.push(([root, &tail].concat(), statement.starts_with("pub") && statement.ends_with("use")));
        }
    }
    all
}

/// The files that a path leads to: the file that it names, and those from which this one has the item.
fn behind(files: &Files, path: &[String], depth: usize, found: &mut BTreeSet<String>) {
    let module =
        (0..=path.len()).rev().map(|end| &path[..end]).find(|&part| files.contains_key(part)).unwrap();
    // What the root has from another crate is no file's.
    let of_others = |line: &str| line.starts_with("use redis_cell_ffi") && line.contains(&path[0]);
    if !files[module].1.lines().any(of_others) {
        found.insert(files[module].0.clone());
    }
    for (source, is_passed_on) in named(files, module) {
        if is_passed_on
            && depth > 0
            && path.len() > module.len()
            && source.last() == Some(&path[module.len()])
        {
            behind(files, &source, depth - 1, found);
        }
    }
}

/// The files that each file depends on.
fn dependencies(files: &Files) -> BTreeMap<String, BTreeSet<String>> {
    let of = |(module, (name, _)): (&Vec<String>, &(String, String))| {
        let mut found = BTreeSet::new();
        for (path, _) in named(files, module) {
            behind(files, &path, 4, &mut found);
        }
        found.remove(name);
        (name.clone(), found)
    };
    files.iter().map(of).collect()
}

/// The files that depend on themselves by others.
fn circle(files: &Files) -> Vec<String> {
    let direct = dependencies(files);
    let is_in_one = |file: &&String| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![*file]);
        while let Some(one) = next.pop() {
            next.extend(direct[one].iter().filter(|&on| reached.insert(on.clone())));
        }
        reached.contains(*file)
    };
    direct.keys().filter(is_in_one).cloned().collect()
}

#[test]
fn no_file_depends_on_one_that_depends_on_it() {
    for folder in ["src", "core/src", "ffi/src"] {
        let files = sources(folder);
        let found = circle(&files);
        assert!(found.is_empty(), "{folder} has a circle among {found:?}: {:#?}", dependencies(&files));
    }
}

#[test]
fn no_file_depends_on_a_layer_above_its_own() {
    let layer = |file: &str| {
        let names = |layer: &&[&str]| {
            layer.iter().any(|name| file == *name || name.ends_with('/') && file.starts_with(name))
        };
        LAYERS.iter().rposition(names).unwrap_or_else(|| panic!("no layer has {file}"))
    };
    for (file, others) in dependencies(&sources("src")) {
        for on in others {
            assert!(layer(&file) >= layer(&on), "{file} depends on {on}, which is above it");
        }
    }
}

#[test]
fn the_ffi_knows_no_limiters() {
    for (file, text) in sources("ffi/src").values() {
        for (path, _) in paths(text, "redis_cell_core") {
            let may = file == USES_A_LIMITER || CORE_IN_FFI.contains(&path[0].as_str());
            assert!(may, "{file} names {path:?}");
        }
    }
}

#[test]
fn every_kind_is_known_where_all_are() {
    let words = |text: &str| -> Vec<String> {
        let after = text.split("word: b\"").skip(1);
        after.filter_map(|rest| Some(rest.split_once('"')?.0.to_lowercase())).collect()
    };
    let kinds: BTreeSet<_> = sources("core/src").values().flat_map(|(_, text)| words(text)).collect();
    assert!(kinds.contains("throttle") && kinds.len() > 6, "{kinds:?}");
    let mut unknown = Vec::new();
    for (files, left_out) in [(KNOW_ALL_KINDS, ""), (KNOW_QUANTITIES, "lease")] {
        for file in files {
            let text =
                fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap().to_lowercase();
            let missing = kinds.iter().filter(|kind| *kind != left_out && !text.contains(kind.as_str()));
            unknown.extend(missing.map(|kind| format!("{file} does not know {kind}")));
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// The checks above are tested: they find each way of putting a circle back.
#[test]
fn a_circle_is_found() {
    let good = [
        ("lib.rs", "mod a; mod b; mod ffi;"),
        ("ffi/mod.rs", "mod call; mod key; pub use call::Call; pub use key::Key;"),
        ("ffi/call.rs", "pub struct Call; // crate::a\nmod inside {\nuse super::ffi;\n}\n"),
        ("ffi/key.rs", "use super::call::Call; pub struct Key(Call);"),
        ("a.rs", "use crate::ffi::{self, Key}; pub fn a() {}"),
        ("b.rs", "use crate::a;"),
    ];
    let found = |changes: &[(&str, &str)]| {
        let text = |name: &str, text: &str| {
            changes.iter().find(|(other, _)| *other == name).map_or(text, |c| c.1).to_owned()
        };
        circle(&files(good.map(|(name, was)| (name.to_owned(), text(name, was))).to_vec()))
    };
    assert_eq!(found(&[]), Vec::<String>::new());
    let own = ["ffi/call.rs", "ffi/key.rs"];
    // By the file that defines an item, in the middle of a function, in a list, and in a macro.
    for text in [
        "use super::key::Key;",
        "fn f() { super::key::Key; }",
        "use crate::{a::A, ffi::{key}};",
        "p!(crate::ffi::key::Key)",
    ] {
        assert!(
            own.iter().all(|file| found(&[("ffi/call.rs", text)]).contains(&(*file).to_owned())),
            "{text}"
        );
    }
    // By the file that passes an item on, and by way of a third file.
    assert_eq!(found(&[("ffi/key.rs", "use super::Call;")]), ["ffi/key.rs", "ffi/mod.rs"]);
    let third = found(&[("ffi/call.rs", "use crate::b;"), ("b.rs", "use crate::a::a;")]);
    assert_eq!(third, ["a.rs", "b.rs", "ffi/call.rs", "ffi/key.rs", "ffi/mod.rs"]);
}
