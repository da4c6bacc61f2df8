//! `make bench-scale`: measures the limits of a server. The tables are in `docs/scaling.md` and
//! `bench/scaling.md`.

mod kinds;
mod memory;

use std::error::Error;
use std::fs;
use std::path::Path;

use crate::report::{between, machine, now, version};
use crate::server::Binaries;

/// The folder for the tables of the parts.
const RESULTS: &str = "target/bench/scale";
/// The pages that contain the tables.
const PAGES: [&str; 2] = ["docs/scaling.md", "bench/scaling.md"];

/// Runs a part, prints its table, and writes it to `target/bench/scale`.
pub fn run(binaries: &Binaries, part: &str, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let table = match part {
        "kinds" => kinds::run(binaries)?,
        "memory" => return memory::run(binaries, arguments),
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

/// Copies the tables of `target/bench/scale` to the pages, each between the markers with its name.
pub fn publish() -> Result<(), Box<dyn Error>> {
    for page in PAGES {
        let mut text = fs::read_to_string(page)?;
        for file in fs::read_dir(RESULTS)? {
            let file = file?.path();
            // A measurement that was interrupted leaves a file with another extension.
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

/// Returns when the table was measured, with which server and module, and on which processor.
fn heading(binaries: &Binaries) -> Result<String, Box<dyn Error>> {
    let about = machine(binaries, None)?;
    let value = |wanted| about.iter().find(|(what, _)| what == wanted).map_or("", |(_, value)| value);
    let processor = value("processor").split(',').next().unwrap_or_default();
    Ok(format!("{}, {}, {processor}, {}", now()?, version(&binaries.server)?, value("module")))
}
