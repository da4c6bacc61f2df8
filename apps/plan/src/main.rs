//! `cell-plan`: reports which calls rate limits would have refused yesterday.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use cell_plan::input::Source;
use cell_plan::plan::{Question, run};
use cell_plan::report::{Check, Report};
use cell_plan::{faults, html, table};
use clap::Parser;
use redis_cell_lines::format::{Hints, Pattern};

/// Runs an access log through rate limits and reports which calls would have been refused.
///
/// A policy is like a CL.MTAKE call: keys with their limiters. <name> stands for a field of the log, and ?
/// for the smallest number that stays within --max-refused or --max-refused-keys.
///
///   cell-plan -p 'ip:<address> THROTTLE 15 30 60 1' access.log.1.gz access.log
///
/// The exit status is 0, or 1 if the last policy refuses more than is allowed, or 2 if there was an error.
#[derive(Debug, Parser)]
#[command(name = "cell-plan", version, verbatim_doc_comment)]
struct Arguments {
    /// Keys and limiters as in CL.MTAKE; several policies are compared.
    #[arg(short, long = "policy", value_name = "POLICY", required = true)]
    policies: Vec<String>,

    /// The log, plain or compressed with gzip or zstd; standard input by default.
    files: Vec<PathBuf>,

    /// combined, common, vhost, haproxy, haproxy-syslog, json, csv, w3c, or a layout such as '<address>
    /// [<time>] <bytes>'; recognized by default.
    #[arg(short, long)]
    format: Option<String>,

    /// The field or column for a name, such as time=created or user=claims.sub.
    #[arg(long = "field", value_name = "NAME=FIELD", value_parser = field)]
    fields: Vec<(String, String)>,

    /// The names of the CSV columns, separated by commas, if the first line does not have them.
    #[arg(long)]
    columns: Option<String>,

    /// A path with * for a segment and ** for all that follow; if it matches, <path> is this pattern.
    #[arg(long = "path", value_name = "PATTERN")]
    paths: Vec<String>,

    /// How far times without a zone are ahead of UTC, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-840..=840))]
    utc: i32,

    /// The share of calls that may be refused, such as 0.1%.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    max_refused: Option<f64>,

    /// The share of keys that may be refused at least once.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    max_refused_keys: Option<f64>,

    /// The share of lines that may be unreadable, or late by more than a minute.
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "10%")]
    max_unreadable: f64,

    /// The share of calls that may lack the key of a limiter, if the policy is checked.
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "10%")]
    max_exempt: f64,

    /// The number of most refused keys to show.
    #[arg(long, default_value_t = 10)]
    top: usize,

    /// Writes the report as JSON; - means standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Writes the report as a page with pictures; - means standard output.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The error for too many late lines.
const LATE: &str = "are earlier than one before them by over a minute";

fn field(text: &str) -> Result<(String, String), String> {
    let (name, source) = text.split_once('=').ok_or("it is written NAME=FIELD")?;
    Ok((name.to_owned(), source.to_owned()))
}

/// Reads a share such as `0.1%` or `0.001`.
fn share(text: &str) -> Result<f64, String> {
    let (digits, whole) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent.trim_end(), 100.0));
    if text == "1" {
        return Err("1 would be all of them: write 1% or 100%".to_owned());
    }
    let share = digits.parse::<f64>().map_err(|_| "it is written 0.1% or 0.001")? / whole;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("it is between 0% and 100%".to_owned()) }
}

fn main() -> ExitCode {
    match plan(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // An error may have words of the log. If standard error is closed too, nothing is left to do.
            let text: Vec<String> = error.to_string().lines().map(table::shown).collect();
            drop(writeln!(io::stderr(), "cell-plan: {}", text.join("\n")));
            ExitCode::from(2)
        }
    }
}

/// Runs the planner. Returns whether the check has passed, or `true` if there is none.
fn plan(arguments: Arguments) -> Result<bool, Box<dyn Error>> {
    let (max_refused, max_refused_keys) = (arguments.max_refused, arguments.max_refused_keys);
    let check =
        max_refused.or(max_refused_keys).map(|_| Check { max_refused, max_refused_keys, passed: false });
    let mut sources: Vec<Source> = arguments.files.into_iter().map(source).collect();
    if sources.is_empty() {
        sources.push(Source::Stdin);
    }
    let question = Question {
        policies: arguments.policies,
        check,
        sources,
        hints: Hints {
            format: arguments.format,
            fields: arguments.fields,
            paths: arguments.paths.into_iter().map(Pattern).collect(),
            columns: arguments.columns,
        },
        zone: arguments.utc,
        top: arguments.top,
    };
    let to_stdout = |file: &Option<PathBuf>| file.as_deref() == Some(Path::new("-"));
    let outputs = [&arguments.json, &arguments.html].map(to_stdout);
    if outputs == [true; 2] {
        return Err("standard output cannot have both --json and --html".into());
    }
    let mut report = run(&question)?;
    report.error = wrong(&report, arguments.max_unreadable, arguments.max_exempt);
    report.check =
        report.check.map(|check| Check { passed: check.passed && report.error.is_none(), ..check });
    if let Some(file) = &arguments.json {
        let mut text = serde_json::to_string_pretty(&report)?;
        text.push('\n');
        write(file, &text)?;
    }
    if let Some(file) = &arguments.html {
        write(file, &html::render(&report)?)?;
    }
    if outputs == [false; 2] {
        let text = table::render(&report)?;
        write(Path::new("-"), &painted(text))?;
    }
    if let Some(error) = report.error {
        return Err(error.into());
    }
    Ok(report.check.is_none_or(|check| check.passed) || faults::has("always-passes"))
}

/// Returns why the log cannot answer: more of its lines than these shares are unreadable, late, or without a
/// key.
fn wrong(report: &Report, max_unreadable: f64, max_exempt: f64) -> Option<String> {
    let log = &report.log;
    let all = log.read.saturating_add(log.unreadable);
    let mut shares = vec![
        ("cannot be read".to_owned(), log.unreadable, all, "unreadable", max_unreadable),
        (LATE.to_owned(), log.too_late, all, "unreadable", max_unreadable),
    ];
    // A check must not pass because a limiter saw few of the calls.
    if let (Some(_), Some(policy)) = (&report.check, report.policies.last()) {
        shares.extend(policy.limiters.iter().map(|limiter| {
            let how = format!("have no key {}", limiter.key);
            (how, limiter.exempt, log.read, "exempt", max_exempt)
        }));
    }
    shares.into_iter().find_map(|(how, lines, all, option, allowed)| {
        let share = cell_plan::report::share(lines, all);
        let [shown, most] = [share, allowed].map(table::percent);
        (share > allowed && !faults::has(&format!("any-{option}")))
            .then(|| format!("{shown} of the lines {how}, and --max-{option} allows {most}"))
    })
}

fn source(file: PathBuf) -> Source {
    if file == Path::new("-") { Source::Stdin } else { Source::File(file) }
}

/// Colours the verdict if the output is a terminal.
fn painted(text: String) -> String {
    if !io::stdout().is_terminal() || env::var_os("NO_COLOR").is_some() {
        return text;
    }
    text.replace("\nFAILED ", "\n\u{1b}[31mFAILED\u{1b}[0m ")
        .replace("\npassed ", "\n\u{1b}[32mpassed\u{1b}[0m ")
}

/// Writes to a file or to standard output, whose reader may close it early.
fn write(file: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    if file != Path::new("-") {
        return fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()).into());
    }
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
