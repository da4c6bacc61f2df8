//! Figures that tests measure, for the summary at the end of `make test-reliability`.

use std::fs::OpenOptions;
use std::io::Write;

/// Records a figure: a description, and the value with its unit.
pub fn figure(what: &str, value: impl core::fmt::Display) {
    // A build with a fault yields no figures.
    if crate::common::has_fault() {
        return;
    }
    println!("figure: {what}: {value}");
    if let Some(path) = std::env::var_os("REDIS_CELL_FIGURES") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let mut file = file.unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()));
        writeln!(file, "{what}\t{value}").unwrap_or_else(|e| panic!("cannot write a figure: {e}"));
    }
}

/// Whether the long form of the tests was requested.
pub fn long() -> bool {
    std::env::var_os("REDIS_CELL_LONG").is_some_and(|value| value != "0")
}
