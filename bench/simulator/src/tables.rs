//! The tables of `docs/scaling.md` and `bench/scaling.md`.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::draw;
use crate::measure::{Outcome, count};
use crate::world::{Scenario, Way};

/// The ways to share the limit that the tables compare.
const WAYS: [(&str, Way); 6] = [
    ("direct calls", Way::Direct),
    ("leases of at most 10", Way::Leased { most: 10, hold_ms: 300 }),
    ("leases of at most 100", Way::Leased { most: 100, hold_ms: 300 }),
    ("leases of at most 1,000", Way::Leased { most: 1_000, hold_ms: 300 }),
    ("key split into 16", Way::Split(16)),
    ("local shares", Way::Shares),
];

/// The ways to share the limit that the tables of regions compare.
const REGIONAL_WAYS: [(&str, Way); 4] = [
    ("home region, direct calls", Way::Direct),
    ("home region, leases of at most 100", Way::Leased { most: 100, hold_ms: 1_000 }),
    ("a share for each region", Way::Regional),
    ("a share for each gateway", Way::Shares),
];

/// Requests per second for one hot key.
const DEMANDS: [f64; 4] = [1e4, 1e5, 1e6, 1e7];

/// Numbers of gateways with one hot key.
const GATEWAYS: [u32; 5] = [1, 10, 100, 1_000, 10_000];

/// Numbers of keys.
const KEYS: [u32; 3] = [100, 10_000, 1_000_000];

/// The page that explains the tables, and the page with the tables that the first one omits.
const PAGES: [&str; 2] = ["docs/scaling.md", "bench/scaling.md"];

/// Runs all scenarios, and writes the tables and pictures into the project in this folder.
pub fn write(folder: &Path) -> Result<(), Box<dyn Error>> {
    let files = PAGES.map(|page| folder.join(page));
    let mut pages = Vec::new();
    for file in &files {
        pages.push(fs::read_to_string(file)?);
    }
    let mut series = Vec::new();
    for (name, way) in WAYS {
        let rows = DEMANDS.map(|demand| {
            eprintln!("one key, {demand} requests a second, {name}");
            // With ten million requests in each second, two seconds are enough.
            let seconds = if demand > 2e6 { 2.0 } else { 10.0 };
            (count(demand), Scenario { demand, seconds, way, ..Scenario::default() }.run())
        });
        series.push((name, rows));
    }
    for (place, demand) in DEMANDS.into_iter().enumerate() {
        let rows = series.iter().map(|(name, rows)| (String::from(*name), &rows[place].1));
        replace(&mut pages, &format!("demand {demand}"), &table("", rows))?;
    }
    draw::all(&folder.join("docs/plots"), &DEMANDS, &series)?;

    let way = Way::Leased { most: 100, hold_ms: 300 };
    let rows = GATEWAYS.map(|gateways| {
        eprintln!("one key, {gateways} gateways");
        (count(f64::from(gateways)), Scenario { gateways, way, ..Scenario::default() }.run())
    });
    replace(&mut pages, "gateways", &table("gateways", rows.iter().map(|(name, row)| (name.clone(), row))))?;

    for (name, way) in [WAYS[0], WAYS[2]] {
        let rows = KEYS.map(|keys| {
            eprintln!("{keys} keys, {name}");
            let limits = Scenario { burst: 100, rate: 100, demand: 2e5, ..Scenario::default() };
            (count(f64::from(keys)), Scenario { keys, way, ..limits }.run())
        });
        let marker = format!("keys, {name}");
        replace(&mut pages, &marker, &table("keys", rows.iter().map(|(name, row)| (name.clone(), row))))?;
    }

    for (name, cut) in [("together", 0.0), ("cut", 3.0)] {
        let rows = REGIONAL_WAYS.map(|(row, way)| {
            eprintln!("regions, {name}, {row}");
            let regions =
                Scenario { regions: 3, gateways: 300, demand: 3e4, seconds: 10.0, ..Scenario::default() };
            (String::from(row), Scenario { cut, way, ..regions }.run())
        });
        let table = table("", rows.iter().map(|(name, row)| (name.clone(), row)));
        replace(&mut pages, &format!("regions, {name}"), &table)?;
    }
    for (file, page) in files.iter().zip(pages) {
        fs::write(file, page)?;
    }
    Ok(())
}

/// Returns a table with one row for each outcome.
pub fn table<'a>(head: &str, rows: impl IntoIterator<Item = (String, &'a Outcome)>) -> String {
    let mut text = format!(
        "| {head} | requests/s | admitted/s | calls/s | at the busiest server | above the limit | unused | fairness \
         | added wait, mean | p99 |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    for (name, outcome) in rows {
        let [mean, p99] = outcome.waits.map(|micros| format!("{:.2} ms", micros / 1e3));
        writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {:.0} | {:.1} % | {:.2} | {mean} | {p99} |",
            count(outcome.wanted),
            count(outcome.admitted),
            count(outcome.calls),
            count(outcome.busiest),
            outcome.above,
            outcome.unused * 100.0,
            outcome.fairness,
        )
        .expect("a String takes everything");
    }
    text
}

/// Writes `table` between the markers with this name, in the page that has them.
fn replace(pages: &mut [String], name: &str, table: &str) -> Result<(), Box<dyn Error>> {
    let (begin, end) = (format!("<!-- simulated: {name} -->\n"), "<!-- /simulated -->");
    let page = pages.iter_mut().find(|page| page.contains(&begin));
    let page = page.ok_or_else(|| format!("no marker: {}", begin.trim()))?;
    let from = page.find(&begin).ok_or("no marker")? + begin.len();
    let rest = page.get(from..).ok_or("no text behind a marker")?;
    let to = from + rest.find(end).ok_or("a marker without its end")?;
    page.replace_range(from..to, table);
    Ok(())
}
