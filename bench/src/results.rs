//! The stored results: `bench/results.tsv`, which has every line for every server, and the pages that quote
//! it.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;

use crate::report::{Measured, Report, between};

const STORE: &str = "bench/results.tsv";
const COLUMNS: &str = "# server\tours\tagainst\tunit\tours, median\tagainst, median\ttimes\tquartiles\t\
                       by the clock\ttarget";

/// The markers of the tables below, and the pages that contain them.
const QUOTES: [(&str, &str, Table); 5] = [
    ("circumstances", "docs/benchmarks.md", circumstances),
    ("targets", "docs/benchmarks.md", |results| targets(results, Row::is_aimed)),
    ("functions", "docs/functions.md", |results| targets(results, Row::is_function)),
    ("speed", "README.md", |results| speed(results, SPEED)),
    ("speed", "README.zh-CN.md", |results| speed(results, SPEED_ZH)),
];

/// The paragraph in each README. Its numbers are the first server's.
const SPEED: &str = "\
An admitted call takes {us} µs: {set} times the speed of the server's own `SET key value PX ms`, {peer} times that of
brandur/redis-cell, and {lua} times that of the same limiter in Lua (pipelined, {server}; runs differ by about 5 %).
";
const SPEED_ZH: &str = "\
一次被放行的调用耗时 {us} µs：速度是服务器自己的 `SET key value PX ms` 的 {set} 倍，是
brandur/redis-cell 的 {peer} 倍，是用 Lua 实现的同一限流器的 {lua} 倍（使用管道，{server}，各次运行之间约有 5 % 的波动）。
";

type Table = fn(&Results) -> String;

/// The contents of the file.
pub struct Results {
    /// Server, property and value, such as `redis-8.6`, `module`, `commit 1234567`.
    about: Vec<[String; 3]>,
    rows: Vec<Row>,
}

/// A line of the benchmark on one server, as the columns of the file.
struct Row([String; 10]);

impl Results {
    /// Reads the file.
    pub fn read() -> Result<Self, Box<dyn Error>> {
        let (mut about, mut rows) = (Vec::new(), Vec::new());
        for line in fs::read_to_string(STORE)?.lines().filter(|line| *line != COLUMNS) {
            let bad = |_| format!("{STORE} has another number of columns: {line}");
            if let Some(line) = line.strip_prefix("# ") {
                about.push(columns(line).try_into().map_err(bad)?);
            } else {
                rows.push(Row(columns(line).try_into().map_err(bad)?));
            }
        }
        Ok(Self { about, rows })
    }

    /// Replaces the results of a server. A run of only some lines replaces only these lines.
    pub fn take(&mut self, report: &Report) {
        let server = &report.server;
        let when = format!("{}, {} rounds of {} ms", report.when, report.rounds, report.round_ms);
        self.about.retain(|[name, ..]| name != server);
        let about = [("measured".to_owned(), when)].into_iter().chain(report.machine.iter().cloned());
        self.about.extend(about.map(|(what, value)| [server.clone(), what, value]));
        let new: Vec<Row> = report.lines.iter().map(|line| Row::new(server, line)).collect();
        self.rows.retain(|row| !new.iter().any(|new| new.0[..4] == row.0[..4]));
        self.rows.extend(new);
        self.about.sort_by(|one, other| one[0].cmp(&other[0])); // a stable sort keeps the order of each server's lines
        self.rows.sort_by(|one, other| one.0[0].cmp(&other.0[0]));
    }

    /// Writes the file, and the tables of the pages that quote it.
    pub fn write(&self) -> Result<(), Box<dyn Error>> {
        let mut text = String::new();
        for line in &self.about {
            writeln!(text, "# {}", line.join("\t"))?;
        }
        writeln!(text, "{COLUMNS}")?;
        for Row(columns) in &self.rows {
            writeln!(text, "{}", columns.join("\t"))?;
        }
        fs::write(STORE, text)?;
        for (mark, page, table) in QUOTES {
            fs::write(page, between(&fs::read_to_string(page)?, mark, &table(self))?)?;
        }
        Ok(())
    }

    /// Fails if a page does not quote the file in its present state.
    pub fn check(&self) -> Result<(), Box<dyn Error>> {
        for (mark, page, table) in QUOTES {
            let text = fs::read_to_string(page)?;
            if between(&text, mark, &table(self))? != text {
                return Err(format!("{page} does not quote {STORE} in {mark:?}: make bench-publish").into());
            }
        }
        Ok(())
    }

    fn servers(&self) -> Vec<&str> {
        let names: BTreeSet<&str> = self.rows.iter().map(Row::server).collect();
        names.into_iter().collect()
    }

    /// Returns the row of this line for a server.
    fn at(&self, server: &str, line: &Row) -> Option<&Row> {
        self.rows.iter().find(|row| row.server() == server && row.0[1..4] == line.0[1..4])
    }

    /// Returns the first row of each line.
    fn lines(&self) -> Vec<&Row> {
        let mut seen = BTreeSet::new();
        self.rows.iter().filter(|row| seen.insert(&row.0[1..4])).collect()
    }
}

impl Row {
    fn new(server: &str, line: &Measured) -> Self {
        let ratio = line.other.ratio();
        Self([
            server.to_owned(),
            line.ours.clone(),
            line.against.clone(),
            line.unit.clone(),
            format!("{:.0}", ratio.ours),
            format!("{:.0}", ratio.against),
            format!("{:.2}", ratio.times),
            ratio.quartiles(),
            line.other.by_clock(),
            line.to_be(),
        ])
    }

    fn server(&self) -> &str {
        &self.0[0]
    }

    fn target(&self) -> &str {
        &self.0[9]
    }

    fn is_aimed(&self) -> bool {
        !self.target().is_empty()
    }

    fn is_function(&self) -> bool {
        self.0[1].starts_with("FCALL") || self.0[2].starts_with("FCALL")
    }

    /// Returns the ratio, in bold if it reaches its target.
    fn times(&self) -> String {
        let (times, target) = (&self.0[6], self.target());
        let is_met = times.parse().ok().zip(target.parse().ok()).is_some_and(|(is, of): (f64, f64)| is >= of);
        if is_met { format!("**{times}**") } else { times.clone() }
    }

    /// Returns the compared calls, with the unit unless it is the time in pipelines.
    fn call(&self) -> String {
        let [_, ours, against, unit, ..] = &self.0;
        let unit = match unit.split_once(' ') {
            _ if unit == "ns" => String::new(),
            Some((_, percentile)) => format!(" ({percentile})"),
            None => format!(" ({unit})"),
        };
        format!("{ours}{unit} | {against}")
    }
}

fn columns(line: &str) -> Vec<String> {
    line.split('\t').map(str::to_owned).collect()
}

/// Formats `redis-8.6` for a page: `Redis 8.6`.
fn title(server: &str) -> String {
    let (family, version) = server.split_once('-').unwrap_or((server, ""));
    let mut letters = family.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    format!("{}{} {version}", first.map_or(String::new(), String::from), letters.as_str())
}

/// Returns a paragraph with the speed of an admitted call and the calls that it is compared with.
fn speed(results: &Results, paragraph: &str) -> String {
    let against = |other: &str| {
        let row = results.rows.iter().find(|row| row.0[1..4] == ["CL.THROTTLE admitted", other, "ns"]);
        row.map_or([f64::NAN; 2], |row| [&row.0[4], &row.0[6]].map(|n| n.parse().unwrap_or(f64::NAN)))
    };
    let [nanos, set] = against("SET key value PX ms");
    let [[_, peer], [_, lua]] = ["CL.THROTTLE admitted, the peer's", "GCRA in Lua, EVALSHA"].map(against);
    let server = results.about.iter().find(|[_, what, _]| what == "server");
    let server = server.map_or(String::new(), |[name, _, line]| {
        let version = line.split_once(" v=").and_then(|(_, rest)| rest.split(' ').next());
        let title = title(name);
        format!("{} {}", title.split(' ').next().unwrap_or_default(), version.unwrap_or_default())
    });
    paragraph
        .replace("{us}", &format!("{:.1}", nanos / 1e3))
        .replace("{set}", &format!("{set:.2}"))
        .replace("{peer}", &format!("{peer:.1}"))
        .replace("{lua}", &format!("{lua:.1}"))
        .replace("{server}", &server)
}

/// Returns when and on which machine each server was measured.
fn circumstances(results: &Results) -> String {
    let mut text = "| | measured | processor | module |\n|---|---|---|---|\n".to_owned();
    for server in results.servers() {
        let about = results.about.iter().filter(|[name, ..]| name == server);
        let about: Vec<_> = about
            .filter(|[_, what, _]| ["measured", "processor", "module"].contains(&what.as_str()))
            .map(|[_, _, value]| value.as_str())
            .collect();
        let _ = writeln!(text, "| {} | {} |", title(server), about.join(" | "));
    }
    text
}

/// Returns the ratios of some lines on all servers, and their targets.
fn targets(results: &Results, is_wanted: fn(&Row) -> bool) -> String {
    let lines: Vec<_> = results.lines().into_iter().filter(|row| is_wanted(row)).collect();
    let has_targets = lines.iter().any(|line| line.is_aimed());
    let servers = results.servers();
    let mut text = "| ours | against |".to_owned();
    text += if has_targets { " target |" } else { "" };
    for server in &servers {
        let _ = write!(text, " {} |", title(server));
    }
    text += "\n|---|---|";
    text += &"--:|".repeat(servers.len() + usize::from(has_targets));
    text += "\n";
    for line in lines {
        let _ = write!(text, "| {} |", line.call());
        if has_targets {
            let _ = write!(text, " {} |", line.target());
        }
        for server in &servers {
            let _ = write!(text, " {} |", results.at(server, line).map_or(String::new(), Row::times));
        }
        text += "\n";
    }
    text
}
