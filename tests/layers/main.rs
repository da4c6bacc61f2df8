//! The layers of `src`: no file names a module of a layer above its own. The core and the border to the
//! server (`ffi/`) are crates of their own, so the compiler checks that they depend on nothing in `src`, and
//! that `unsafe` is in `ffi/` only.
//!
//! And the files, wherever they are, that must know every kind of limiter.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

use std::collections::BTreeSet;
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
    "tests/common/model.rs",
    "tests/functions/calls.rs",
    "tests/live/arguments.rs",
    "tests/reliability/clock.rs",
    "tests/reliability/nested.c",
    "verify/simulator/src/contract.rs",
    "verify/simulator/src/writer.rs",
    "bench/src/instructions.rs",
    "bench/src/scale.rs",
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

/// The folder of the checkout.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The Rust files below a folder of this repository, with their texts without comments.
fn sources(folder: &str) -> Vec<(String, String)> {
    fn visit(folder: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, root, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                let text = fs::read_to_string(&path).unwrap();
                found.push((
                    name,
                    text.lines().map(|line| line.split("//").next().unwrap().to_owned() + "\n").collect(),
                ));
            }
        }
    }
    let root = Path::new(ROOT).join(folder);
    let mut found = Vec::new();
    visit(&root, &root, &mut found);
    found
}

/// The names behind `first::` in a text, also those in braces: `a` and `b` of `first::{a::C, b}`.
fn names_behind(text: &str, first: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, prefix) in text.match_indices(&format!("{first}::")) {
        if text[..at].ends_with(|c| is_name(c) || c == ':') {
            continue;
        }
        let (mut depth, mut begins) = (0, true);
        let rest = &text[at + prefix.len()..];
        for (at, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' => begins = depth == 1,
                _ if is_name(c) && begins => {
                    let name = &rest[at..];
                    found.push(name[..name.find(|c| !is_name(c)).unwrap_or(name.len())].to_owned());
                    begins = false;
                }
                _ => {}
            }
            if depth <= 0 && !begins {
                break;
            }
        }
    }
    found
}

/// The layer of a file or of a module of the crate; `None` for what the root has from other crates.
fn layer(name: &str) -> Option<usize> {
    let is_in = |part: &&str| {
        part.trim_end_matches(".rs") == name.trim_end_matches(".rs")
            || part.ends_with('/') && name.starts_with(*part)
    };
    LAYERS.iter().rposition(|layer| layer.iter().any(is_in))
}

#[test]
fn no_file_depends_on_a_layer_above_its_own() {
    let mut checked = 0;
    for (file, text) in sources("src") {
        let own = layer(&file).unwrap_or_else(|| panic!("no layer has {file}"));
        for on in names_behind(&text, "crate") {
            // `commands` is a folder, and `ffi` another crate.
            let of = layer(&on).or_else(|| layer(&format!("{on}/")));
            assert!(of.is_none_or(|of| own >= of), "{file} depends on {on}, which is above it");
            checked += usize::from(of.is_some());
        }
    }
    assert!(checked > 100, "{checked} dependencies");
}

#[test]
fn names_in_braces_are_found() {
    let text = "use crate::{a::{b, C}, d, e::F}; crate::g::h(); other_crate::i; use crate::j;";
    assert_eq!(names_behind(text, "crate"), ["a", "d", "e", "g", "j"]);
}

#[test]
fn the_ffi_knows_no_limiters() {
    for (file, text) in sources("ffi/src") {
        for name in names_behind(&text, "redis_cell_core") {
            let may = file == USES_A_LIMITER || CORE_IN_FFI.contains(&name.as_str());
            assert!(may, "{file} names {name}");
        }
    }
}

#[test]
fn every_kind_is_known_where_all_are() {
    let words = |text: &str| -> Vec<String> {
        let after = text.split("word: b\"").skip(1);
        after.filter_map(|rest| Some(rest.split_once('"')?.0.to_lowercase())).collect()
    };
    let kinds: BTreeSet<_> = sources("core/src").iter().flat_map(|(_, text)| words(text)).collect();
    assert!(kinds.contains("throttle") && kinds.len() > 6, "{kinds:?}");
    let mut unknown = Vec::new();
    for (files, left_out) in [(KNOW_ALL_KINDS, ""), (KNOW_QUANTITIES, "lease")] {
        for file in files {
            let text = fs::read_to_string(Path::new(ROOT).join(file)).unwrap().to_lowercase();
            let missing = kinds.iter().filter(|kind| *kind != left_out && !text.contains(kind.as_str()));
            unknown.extend(missing.map(|kind| format!("{file} does not know {kind}")));
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}
