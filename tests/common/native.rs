//! Libraries in C that a test loads into a server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Compiles `<name>.c` of `tests` to a shared library.
pub fn compile_library(name: &str) -> PathBuf {
    // One at a time, because tests that need the same library may run concurrently.
    static COMPILER: Mutex<()> = Mutex::new(());
    let _compiler = COMPILER.lock();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Packages in subfolders have tests of this kind, too.
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut sources = packages.map(|package| package.join(format!("tests/{name}.c")));
    let source = sources.find(|source| source.is_file()).unwrap_or_else(|| panic!("no tests/{name}.c"));
    let name = source.file_stem().unwrap().display();
    let (library, part) =
        (folder.join(format!("{name}.so")), folder.join(format!("{name}-{}.so", std::process::id())));
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&part, &source])
        .status()
        .expect("no C compiler: `cc`");
    assert!(compiled.success(), "{} does not compile", source.display());
    std::fs::rename(part, &library).unwrap();
    library
}
