//! The times of the core's decisions: the results of criterion in `target/criterion`.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Returns the table for a page, or `None` if nothing was measured.
pub fn markdown() -> Result<Option<String>, Box<dyn Error>> {
    let Ok(folder) = fs::read_dir("target/criterion/decisions") else { return Ok(None) };
    let mut rows = Vec::new();
    for entry in folder {
        let new = entry?.path().join("new");
        // Criterion also writes a report of all benchmarks.
        if new.exists() {
            let name = read(&new.join("benchmark.json"))?["function_id"].as_str().map(str::to_owned);
            let median = read(&new.join("estimates.json"))?["median"].take();
            let ends = &median["confidence_interval"];
            let number = |value: &Value| value.as_f64().ok_or("criterion has left something else");
            rows.push((
                name.ok_or("criterion has left no name")?,
                number(&median["point_estimate"])?,
                number(&ends["lower_bound"])?,
                number(&ends["upper_bound"])?,
            ));
        }
    }
    rows.sort_by(|one, other| one.0.cmp(&other.0));
    let mut text = "| decision | median | 95 % sure |\n|---|--:|---|\n".to_owned();
    for (name, median, low, high) in rows {
        writeln!(text, "| {name} | {median:.1} ns | {low:.1}..{high:.1} |")?;
    }
    Ok(Some(text))
}

fn read(file: &Path) -> Result<Value, Box<dyn Error>> {
    Ok(serde_json::from_str(&fs::read_to_string(file)?)?)
}
