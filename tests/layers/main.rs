//! The layers of `src`: no file depends on a file that depends on it, and none on a layer above its own. The
//! core and the border to the server (`ffi/`) have no circles either. They are crates of their own, so the
//! compiler checks that they depend on nothing in `src`, and that `unsafe` is in `ffi/` only.
//!
//! A dependency is a path that a file names, whether in a `use` or in the code, and a method that another
//! file adds to its type. It counts twice: on the file that defines the item, and on every `mod.rs` that
//! passes it on. `mod` lines alone are no dependencies.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

mod graph;
mod house;

use graph::circles;
use house::House;
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

/// Every file below a folder of this repository with its text.
fn sources(folder: &str) -> Vec<(String, String)> {
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
    found.sort();
    found
}

/// The layer of a file: the last that names it, or its folder.
fn layer(file: &str) -> usize {
    let names = |layer: &&[&str]| {
        layer.iter().any(|name| file == *name || name.ends_with('/') && file.starts_with(name))
    };
    LAYERS.iter().rposition(names).unwrap_or_else(|| panic!("no layer has {file}"))
}

fn house(files: &[(&str, &str)]) -> House {
    House::new(&files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect::<Vec<_>>())
}

#[test]
fn no_file_depends_on_one_that_depends_on_it() {
    assert_no_circle("src");
    assert_no_circle("core/src");
    assert_no_circle("ffi/src");
}

fn assert_no_circle(folder: &str) {
    let dependencies = House::new(&sources(folder)).dependencies();
    if let Some(circle) = circles(&dependencies).first() {
        let ties = dependencies.iter().filter(|(file, on, _)| circle.contains(file) && circle.contains(on));
        let ties: Vec<String> = ties.map(|(file, on, name)| format!("{file} -> {on}: {name}")).collect();
        panic!("{folder} has a circle of {circle:?}:\n{}", ties.join("\n"));
    }
}

#[test]
fn no_file_depends_on_a_layer_above_its_own() {
    let house = House::new(&sources("src"));
    for (file, on, name) in house.dependencies() {
        assert!(layer(&file) >= layer(&on), "{file} depends on {on}, which is above it, for {name}");
    }
}

#[test]
fn the_ffi_knows_no_limiters() {
    let house = House::new(&sources("ffi/src"));
    for (file, path) in house.foreign_paths("redis_cell_core") {
        let named = path.split("::").nth(1).unwrap_or_default();
        let may = file == USES_A_LIMITER || CORE_IN_FFI.contains(&named);
        assert!(may, "{file} names {path}");
    }
}

/// The checks above are tested: they find each way of putting a circle back.
#[test]
fn a_circle_is_found() {
    let circle = |files: &[(&str, &str)]| circles(&house(files).dependencies());
    let lib = ("lib.rs", "mod a; mod b; mod ffi;");
    let ffi = ("ffi/mod.rs", "mod call; mod key; mod log; pub use call::Call; pub use key::Key;");
    let call = ("ffi/call.rs", "pub struct Call;");
    let key = ("ffi/key.rs", "use super::call::Call; pub struct Key(Call);");
    let log = ("ffi/log.rs", "");

    let none =
        [lib, ffi, call, key, log, ("a.rs", "use crate::ffi::Key; pub fn a() {}"), ("b.rs", "use crate::a;")];
    assert_eq!(circle(&none), Vec::<Vec<String>>::new());

    let with = |file: (&'static str, &'static str)| {
        let mut files = none;
        let place = files.iter().position(|(name, _)| *name == file.0).unwrap();
        files[place] = file;
        circle(&files)
    };
    let two = |one: &str, other: &str| vec![vec![one.to_owned(), other.to_owned()]];
    // By the file that defines an item.
    assert_eq!(
        with(("ffi/call.rs", "use super::key::Key; pub struct Call;")),
        two("ffi/call.rs", "ffi/key.rs")
    );
    // In the middle of a function, in an inline module, and in a macro.
    assert_eq!(
        with(("ffi/call.rs", "pub struct Call; fn f() { super::key::Key; }")),
        two("ffi/call.rs", "ffi/key.rs")
    );
    assert_eq!(
        with(("ffi/call.rs", "pub struct Call; mod inside { use crate::ffi::key; fn f() { key::Key; } }")),
        two("ffi/call.rs", "ffi/key.rs")
    );
    assert_eq!(
        with(("ffi/call.rs", "pub struct Call; fn f() { print!(\"{}\", crate::ffi::key::Key) }")),
        two("ffi/call.rs", "ffi/key.rs")
    );
    // By the facade: the folder's own file, which passes on the items of the file.
    assert_eq!(
        with(("ffi/key.rs", "use super::Call; pub struct Key(Call);")),
        two("ffi/key.rs", "ffi/mod.rs")
    );
    // By a method that another file adds to a type.
    let mut files = none;
    files[3] = ("ffi/key.rs", "pub struct Key; impl Key { fn f(&self) { self.write() } }");
    files[4] = ("ffi/log.rs", "use super::key::Key; impl Key { pub fn write(&self) {} }");
    assert_eq!(circle(&files), two("ffi/key.rs", "ffi/log.rs"));
    // By way of a third file.
    let mut files = none;
    files[2] = ("ffi/call.rs", "use crate::b; pub struct Call; fn f() { b::b() }");
    files[6] = ("b.rs", "use crate::a; pub fn b() { a::a() }");
    let found = circle(&files);
    assert_eq!(found, [["a.rs", "b.rs", "ffi/call.rs", "ffi/key.rs", "ffi/mod.rs"].map(str::to_owned)]);
}
