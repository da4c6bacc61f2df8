//! `make bench-scale`: how far a server goes, and what a cluster and more threads add. The measured tables of
//! `docs/scaling.md` and `bench/scaling.md`.

mod cluster;
mod io_threads;
mod kinds;
mod memory;

use std::error::Error;
use std::fs;
use std::path::Path;

use crate::report::{between, now, version};
use crate::server::Binaries;

/// Where each part leaves its table.
const RESULTS: &str = "target/bench/scale";
/// The pages that have the tables.
const PAGES: [&str; 2] = ["docs/scaling.md", "bench/scaling.md"];

/// Runs a part, prints its table, and writes it to `target/bench/scale`.
pub fn run(binaries: &Binaries, part: &str, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let table = match part {
        "kinds" => kinds::run(binaries)?,
        "cluster" => cluster::run(binaries)?,
        "memory" => return memory::run(binaries, arguments),
        "io-threads" => io_threads::run(binaries, arguments)?,
        _ => return Err(format!("not a part of this benchmark: {part}").into()),
    };
    keep(part, &table)
}

/// Prints a table and writes it to `target/bench/scale`.
fn keep(name: &str, table: &str) -> Result<(), Box<dyn Error>> {
    print!("{table}");
    fs::create_dir_all(RESULTS)?;
    Ok(fs::write(Path::new(RESULTS).join(name).with_extension("md"), table)?)
}

/// Puts the tables of `target/bench/scale` into the pages, each between the marks of its name.
pub fn publish() -> Result<(), Box<dyn Error>> {
    for page in PAGES {
        let mut text = fs::read_to_string(page)?;
        for file in fs::read_dir(RESULTS)? {
            let file = file?.path();
            // What a measurement that was ended has left has another extension.
            if file.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let name = file.file_stem().and_then(|name| name.to_str()).ok_or("a file without a name")?;
            let mark = format!("measured: {name}");
            if text.contains(&format!("<!-- {mark} -->")) {
                text = between(&text, &mark, &fs::read_to_string(&file)?)?;
            }
        }
        fs::write(page, text)?;
    }
    Ok(())
}

/// When the table was measured, and with which server.
fn heading(binaries: &Binaries) -> Result<String, Box<dyn Error>> {
    Ok(format!("{}, {}", now()?, version(&binaries.server)?))
}
