//! The results of a run, on the terminal and as JSON.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::server::{Binaries, Cores, output};

/// The results of a whole run.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// The server, such as `redis-7.0`.
    pub server: String,
    pub when: String,
    pub machine: Vec<(String, String)>,
    pub rounds: usize,
    pub round_ms: u64,
    pub lines: Vec<Measured>,
}

/// The measured results of a line of the table.
#[derive(Serialize, Deserialize)]
pub struct Measured {
    pub name: String,
    pub ours: String,
    pub against: String,
    pub target: Option<f64>,
    /// The unit of both sides.
    pub unit: String,
    /// The module's side compared with the other side.
    pub other: Compared,
}

/// The module's side compared with another side in the same rounds.
#[derive(Serialize, Deserialize)]
pub struct Compared {
    /// By processor time of the server's main thread, which limits the throughput, and which other programs
    /// on the machine affect least.
    pub cpu: Option<Ratio>,
    /// Measured by the clock or, for memory, in bytes.
    pub wall: Ratio,
}

/// How many times as fast or as small as the other side.
#[derive(Serialize, Deserialize)]
pub struct Ratio {
    /// The medians of both sides.
    pub ours: f64,
    pub against: f64,
    pub times: f64,
    /// The quartiles of the ratios of each round.
    pub low: f64,
    pub high: f64,
}

impl Ratio {
    /// Compares the module's side, the first in each round, with side number `other`.
    pub fn of<T>(rounds: &[Vec<T>], other: usize, measure: impl Fn(&T) -> f64) -> Self {
        let median = |side: usize| quantile(rounds.iter().map(|round| measure(&round[side])), 0.5);
        let (ours, against) = (median(0), median(other));
        let each = || rounds.iter().map(|round| measure(&round[other]) / measure(&round[0]));
        Self {
            ours,
            against,
            times: against / ours,
            low: quantile(each(), 0.25),
            high: quantile(each(), 0.75),
        }
    }
}

impl Measured {
    fn verdict(&self) -> &'static str {
        match self.target.map(|target| (self.other.ratio().times * 100.0).round() >= (target * 100.0).round())
        {
            Some(true) => "met",
            Some(false) => "not met",
            None => "",
        }
    }

    pub fn to_be(&self) -> String {
        self.target.map_or(String::new(), |target| format!("{target:.2}"))
    }
}

impl Compared {
    /// Returns the ratio that counts: by processor time if there is one.
    pub fn ratio(&self) -> &Ratio {
        self.cpu.as_ref().unwrap_or(&self.wall)
    }

    /// Returns the ratio by the clock, if there is also a ratio by processor time.
    pub fn by_clock(&self) -> String {
        self.cpu.as_ref().map_or(String::new(), |_| format!("{:.2}", self.wall.times))
    }
}

impl Ratio {
    pub fn quartiles(&self) -> String {
        format!("{:.2}..{:.2}", self.low, self.high)
    }
}

/// Returns the value below which a fraction `q` of the values lies.
pub fn quantile(values: impl Iterator<Item = f64>, q: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((q * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Formats a number with commas between groups of three digits.
pub fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Returns the table for the terminal.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    for (what, value) in &report.machine {
        let _ = writeln!(text, "{what:<9} {value}");
    }
    let _ = writeln!(
        text,
        "\n{:<38} {:>6} {:<40} {:>6} {:<8} {:>6} {:>12} {:>8} {:>7} {:<8}",
        "ours", "", "against", "", "", "times", "quartiles", "by clock", "target", ""
    );
    for line in &report.lines {
        let ratio = line.other.ratio();
        let _ = writeln!(
            text,
            "{:<38} {:>6.0} {:<40} {:>6.0} {:<8} {:>6.2} {:>12} {:>8} {:>7} {:<8}",
            line.ours,
            ratio.ours,
            line.against,
            ratio.against,
            line.unit,
            ratio.times,
            ratio.quartiles(),
            line.other.by_clock(),
            line.to_be(),
            line.verdict()
        );
    }
    text
}

/// Returns the hardware and software on which the results depend.
pub fn machine(binaries: &Binaries, cores: Option<Cores>) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let pinned = cores.map_or("nothing pinned".to_owned(), |cores| {
        format!("server on core {}, load on core {}", cores.server, cores.load)
    });
    let mut rows = vec![
        ("processor", format!("{}, {pinned}", model.map_or("unknown", |(_, model)| model))),
        ("system", output(Command::new("uname").args(["-srm"]))?),
        ("server", output(Command::new(&binaries.server).arg("--version"))?),
        (
            "module",
            format!("commit {}", output(Command::new("git").args(["describe", "--always", "--dirty"]))?),
        ),
        ("compiler", output(Command::new("rustc").arg("--version"))?),
    ];
    if binaries.peer.is_some() {
        rows.push(("peer", "the module named in PEER".to_owned()));
    }
    Ok(rows.into_iter().map(|(what, value)| (what.to_owned(), value)).collect())
}

/// Returns the name of a server with its version: `Redis 7.0.15`.
pub fn version(server: &str) -> Result<String, Box<dyn Error>> {
    let line = output(Command::new(server).arg("--version"))?;
    // Valkey 7.2 omits its name.
    let family = line.split(' ').next().filter(|family| *family != "Server").unwrap_or("Valkey");
    let version = line.split_once(" v=").and_then(|(_, rest)| rest.split(' ').next());
    Ok(format!("{family} {}", version.ok_or("a server without a version")?))
}

/// Returns the name of the server's version, for files and pages: `redis-7.0`.
pub fn server(binaries: &Binaries) -> Result<String, Box<dyn Error>> {
    let name = version(&binaries.server)?.to_lowercase().replace(' ', "-");
    Ok(name.rsplit_once('.').map_or(name.as_str(), |(name, _)| name).to_owned())
}

/// Returns the date of a run.
pub fn now() -> Result<String, Box<dyn Error>> {
    output(Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"]))
}

/// Replaces the text between the marks of this name.
pub fn between(page: &str, name: &str, text: &str) -> Result<String, Box<dyn Error>> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let lost = || format!("the page has lost the marks of {name:?}");
    let (head, rest) = page.split_once(&begin).ok_or_else(lost)?;
    let (_, tail) = rest.split_once(&end).ok_or_else(lost)?;
    Ok(format!("{head}{begin}{text}{end}{tail}"))
}
