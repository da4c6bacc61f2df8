//! A log of one or more files, which is read from the beginning to the end as often as needed.

use core::error::Error;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use redis_cell_core::{Instant, Span};
use redis_cell_policy::{CallError, Fields};
use serde::Serialize;
use serde_json::Value;

use crate::faults;
use crate::input::{Lines, SHOWN_BYTES, Source, TOO_LONG};
use crate::report::{LogReport, seconds, time};
use redis_cell_lines::format::{Format, Hints, Pattern, Unreadable};
use redis_cell_lines::time::Times;

/// The number of lines of a file that are read to recognize its format.
const SAMPLE: u64 = 100;

/// The number of unreadable lines that are kept to be shown.
const SHOWN: usize = 3;

/// The largest difference, in nanoseconds, at which a late line is believed. A server may write a line when a
/// call ends, with the time at which it began.
const BELIEVED: u64 = 60_000_000_000;

/// The files of a log, sorted by their first times.
#[derive(Debug)]
pub struct Log {
    files: Vec<Opened>,
    /// The names of files without a line for a call.
    empty: Vec<String>,
    fields: Vec<String>,
    paths: Vec<Pattern>,
    zone: i32,
}

/// A file whose format is known.
#[derive(Debug)]
struct Opened {
    source: Source,
    format: Format,
    first: Option<Instant>,
    /// The names in its first line, if only its lines have them.
    names: String,
    /// Standard input, which cannot be opened again.
    begun: Option<Lines>,
}

/// A file.
#[derive(Clone, Debug, Serialize)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its format.
    pub format: String,
    /// Whether all its times are whole seconds.
    pub whole_seconds: bool,
}

/// A line that cannot be read.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The name of the file and the number of the line.
    pub at: String,
    /// Why it cannot be read.
    pub why: String,
    /// The beginning of the line.
    pub text: String,
}

impl Log {
    /// Opens all files and recognizes their formats.
    ///
    /// # Errors
    /// Returns the errors of reading and of [`Format::recognize`].
    pub fn open(
        sources: Vec<Source>,
        hints: &Hints,
        fields: &Fields,
        zone: i32,
    ) -> Result<Self, Box<dyn Error>> {
        let (mut files, mut empty, mut why) = (Vec::new(), Vec::new(), None);
        for source in sources {
            let name = source.name();
            match Opened::new(source, hints, fields, zone).map_err(|error| format!("{name}: {error}"))? {
                Ok(file) => files.push(file),
                Err(nothing) => {
                    why.get_or_insert_with(|| format!("{name}: {nothing}"));
                    empty.push(name);
                }
            }
        }
        if let Some(why) = why.filter(|_| files.is_empty()) {
            return Err(why.into());
        }
        // A file without any time sorts last.
        files.sort_by_key(|file| file.first.map_or((1, Instant::default()), |first| (0, first)));
        Ok(Self { files, empty, fields: fields.names().to_vec(), paths: hints.paths.clone(), zone })
    }

    /// Returns whether the log can be read more than once.
    pub fn can_be_read_again(&self) -> bool {
        !self.files.iter().any(|file| file.source == Source::Stdin)
    }

    /// Reads all lines in the order of their times, and calls `call` with the time and the fields of each.
    ///
    /// # Errors
    /// Returns the errors of opening and reading files, and an error if a field has no value in any line.
    pub fn read(
        &mut self,
        what: &str,
        mut call: impl FnMut(Instant, &[&[u8]]) -> Result<(), CallError>,
    ) -> Result<LogReport, Box<dyn Error>> {
        let count = Rc::new(Cell::new(0));
        let progress = progress(what, self.files.iter().map(|file| file.source.size()).sum());
        let mut pass = Pass {
            report: LogReport::default(),
            span: None,
            latest_by: Span::ZERO,
            present: Vec::new(),
            latest: tomorrow(),
        };
        let mut later = self.files.iter_mut().peekable();
        // The open files, each with the time of its next line. A file is opened when its time has come, so
        // that of a hundred rotated files one is open.
        let mut open: Vec<(Instant, Reader)> = Vec::new();
        loop {
            let next =
                open.iter().enumerate().min_by_key(|(_, (now, _))| *now).map(|(at, (now, _))| (at, *now));
            let is_due = |file: &&mut Opened| {
                next.is_none_or(|(_, now)| {
                    file.first.is_some_and(|first| first <= now) && !faults::has("one-by-one")
                })
            };
            if let Some(file) = later.next_if(is_due) {
                let (name, format) = (file.source.name(), file.format.name().to_owned());
                let group = pass.present.iter().position(|group| group.format == format);
                let group = group.unwrap_or_else(|| {
                    let (names, fields) = (file.names.clone(), vec![false; self.fields.len()]);
                    let (file, format) = (name.clone(), format.clone());
                    pass.present.push(Present { file, format, names, fields });
                    pass.present.len().saturating_sub(1)
                });
                let place = pass.report.files.len();
                pass.report.files.push(File { name, format, whole_seconds: false });
                let mut reader = Reader::new(file, [group, place], self.zone, &count)?;
                match reader.next(&mut pass)? {
                    Some(now) => open.push((now, reader)),
                    None => reader.end(&mut pass.report)?,
                }
                continue;
            }
            let Some((at, _)) = next else { break };
            let others = open.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, (now, _))| *now);
            let until = others.chain(later.peek().and_then(|file| file.first)).min().unwrap_or(Instant::MAX);
            let Some((now, reader)) = open.get_mut(at) else { break };
            let ended = loop {
                pass.call(*now, reader, &mut call);
                if reader.number.is_multiple_of(65_536) {
                    progress.set_position(count.get());
                }
                match reader.next(&mut pass)? {
                    None => break true,
                    Some(next) => *now = next,
                }
                if *now > until {
                    break false;
                }
            };
            if ended {
                open.remove(at).1.end(&mut pass.report)?;
            }
        }
        progress.finish_and_clear();
        drop(open);
        let Pass { report, present, span, latest_by, .. } = pass;
        let (first, last) =
            span.ok_or_else(|| none_read(report.unreadable, report.first_unreadable.first()))?;
        let several = present.len() > 1;
        for Present { file, format, names, fields } in present {
            let absent = self.fields.iter().zip(fields).find(|(_, present)| !present);
            if let Some((name, _)) = absent.filter(|_| !faults::has("absent-is-silent")) {
                let place = if several { format!("{file} ({format}): ") } else { String::new() };
                let there = if names.is_empty() { names } else { format!(" Its first line has {names}.") };
                let why = format!("no line has a value for <{name}>: is it spelt as in the log?");
                return Err((place + &why + &there).into());
            }
        }
        Ok(LogReport {
            first: time(first),
            last: time(last),
            seconds: seconds(last.since(first).as_nanos() / 1_000),
            latest_by_seconds: seconds(latest_by.as_nanos() / 1_000),
            whole_seconds: report.files.iter().any(|file| file.whole_seconds),
            empty: self.empty.clone(),
            unused_paths: (0..)
                .zip(&self.paths)
                .filter(|(number, _)| !self.files.iter().any(|file| file.format.has_used(*number)))
                .map(|(_, pattern)| pattern.0.clone())
                .collect(),
            ..report
        })
    }
}

impl Opened {
    /// Opens a file and recognizes its format. The inner error says why a file has no line for a call.
    fn new(
        source: Source,
        hints: &Hints,
        fields: &Fields,
        zone: i32,
    ) -> Result<Result<Self, &'static str>, Box<dyn Error>> {
        let mut lines = source.open(&Rc::default())?;
        let mut sample = Vec::new();
        for number in 0..SAMPLE {
            let Some(line) = lines.read().map_err(|error| cut(number, &error))? else { break };
            sample.push(line.to_owned());
        }
        if sample.is_empty() {
            return Ok(Err("it is empty"));
        }
        // The line with the fields is the header of a format.
        let says_nothing =
            |line: &Vec<u8>| line.is_empty() || line.starts_with(b"#") && !line.starts_with(b"#Fields:");
        let is_whole = u64::try_from(sample.len()).is_ok_and(|count| count < SAMPLE);
        if is_whole && sample.iter().all(says_nothing) {
            return Ok(Err("it has empty lines and comments only"));
        }
        let mut format = Format::recognize(hints, fields, &sample)?;
        let mut times = Times::new(zone);
        let first = sample.iter().find_map(|line| times.parse(format.read_time(line).ok()?));
        let mut names = Vec::new();
        if let Some(object) = sample.iter().find_map(|line| serde_json::from_slice(line).ok()) {
            add_names("", &object, &mut names);
        }
        let begun = (source == Source::Stdin).then(|| lines.after(sample));
        Ok(Ok(Self { source, format, first, names: names.join(", "), begun }))
    }
}

/// Adds the names of a JSON object, in the form that policies have.
fn add_names(before: &str, object: &serde_json::Map<String, Value>, names: &mut Vec<String>) {
    for (name, value) in object {
        match value {
            Value::Object(inner) => add_names(&format!("{before}{name}."), inner, names),
            _ => names.push(format!("{before}{name}")),
        }
    }
}

/// Says that a file ends in an error behind this line.
fn cut(line: u64, error: &io::Error) -> String {
    format!("what follows line {line} cannot be read: {error}")
}

/// A file that is being read.
struct Reader<'a> {
    file: &'a Source,
    format: &'a mut Format,
    lines: Lines,
    /// The number of the present line.
    number: u64,
    times: Times,
    /// The index of its format in [`Pass::present`].
    group: usize,
    /// Its index in [`LogReport::files`].
    place: usize,
    calls: u64,
    unreadable: Cell<u64>,
}

impl<'a> Reader<'a> {
    fn new(
        file: &'a mut Opened,
        [group, place]: [usize; 2],
        zone: i32,
        count: &Rc<Cell<u64>>,
    ) -> io::Result<Self> {
        let lines = match file.begun.take() {
            Some(begun) => begun,
            None => file.source.open(count)?,
        };
        let (file, format) = (&file.source, &mut file.format);
        let times = Times::new(zone);
        Ok(Self {
            file,
            format,
            lines,
            number: 0,
            times,
            group,
            place,
            calls: 0,
            unreadable: Cell::default(),
        })
    }

    /// Reports whether the file, which has ended, has whole seconds.
    ///
    /// # Errors
    /// Returns an error if no line of it could be read: a check must not pass without the calls of a file. A
    /// file may have no lines but those that are no calls.
    fn end(&self, log: &mut LogReport) -> Result<(), Box<dyn Error>> {
        if let Some(file) = log.files.get_mut(self.place) {
            file.whole_seconds = self.calls > 0 && self.times.are_whole_seconds();
        }
        if self.calls > 0 || self.unreadable.get() == 0 || faults::has("unread-file-is-silent") {
            return Ok(());
        }
        let name = self.file.name();
        let shown = log.first_unreadable.iter().find(|shown| shown.at.starts_with(&format!("{name}:")));
        Err(format!("{name}: {}", none_read(self.unreadable.get(), shown)).into())
    }

    /// Goes to the next line with a time, and returns that time.
    ///
    /// # Errors
    /// Returns an error if the rest of the file cannot be read.
    #[inline]
    fn next(&mut self, pass: &mut Pass) -> Result<Option<Instant>, Box<dyn Error>> {
        loop {
            let found = self.lines.read().map(|line| line.is_some());
            if !found.map_err(|error| format!("{}: {}", self.file.name(), cut(self.number, &error)))? {
                return Ok(None);
            }
            self.number = self.number.saturating_add(1);
            let line = self.lines.line();
            if self.format.is_another(line) {
                let (file, number) = (self.file.name(), self.number);
                return Err(
                    format!("{file}: line {number} names other columns: divide the file there").into()
                );
            }
            if self.format.is_no_call(line) && !faults::has("header-is-a-call") {
                continue;
            }
            match pass.time(self.format, &mut self.times, line) {
                Ok(now) => return Ok(Some(now)),
                Err(why) => pass.unreadable(self, why),
            }
        }
    }
}

/// The fields for which a line of a format had a value.
struct Present {
    /// The first file in the format.
    file: String,
    format: String,
    names: String,
    fields: Vec<bool>,
}

/// One pass through all files.
struct Pass {
    /// The counts, without the times.
    report: LogReport,
    /// The times of the first and the last call.
    span: Option<(Instant, Instant)>,
    /// The largest difference of a late line.
    latest_by: Span,
    /// What each format had.
    present: Vec<Present>,
    /// Later times count as wrong.
    latest: Instant,
}

impl Pass {
    /// Reads a line, and returns its time.
    #[inline]
    fn time(&self, format: &mut Format, times: &mut Times, line: &[u8]) -> Result<Instant, Unreadable> {
        if line.starts_with(TOO_LONG) {
            return Err(Unreadable::TooLong);
        }
        let time = format.read_time(line)?;
        if time.is_empty() {
            return Err(Unreadable::NoTime);
        }
        let now = times.parse(time).ok_or(Unreadable::Time)?;
        if now > self.latest && !faults::has("any-future") {
            return Err(Unreadable::Future);
        }
        Ok(now)
    }

    /// Passes on the line that was read last.
    #[inline]
    fn call(
        &mut self,
        now: Instant,
        reader: &mut Reader,
        call: &mut impl FnMut(Instant, &[&[u8]]) -> Result<(), CallError>,
    ) {
        let values = reader.format.values(reader.lines.line());
        let fields = values.get(1..).unwrap_or_default();
        if call(now, fields).is_err() {
            self.unreadable(reader, Unreadable::Quantity);
            return;
        }
        if let Some(group) = self.present.get_mut(reader.group) {
            for (present, value) in group.fields.iter_mut().zip(fields) {
                *present |= !value.is_empty();
            }
        }
        reader.calls = reader.calls.saturating_add(1);
        let LogReport { read, late, too_late, .. } = &mut self.report;
        *read = read.saturating_add(1);
        let (_, last) = self.span.get_or_insert((now, now));
        if now < *last && !faults::has("late-is-silent") {
            let by = last.since(now);
            *late = late.saturating_add(1);
            self.latest_by = self.latest_by.max(by);
            *too_late = too_late.saturating_add(u64::from(by.as_nanos() > BELIEVED));
        }
        *last = now.max(*last);
    }

    #[cold]
    fn unreadable(&mut self, reader: &Reader, why: Unreadable) {
        if faults::has("unreadable-is-silent") {
            return;
        }
        reader.unreadable.set(reader.unreadable.get().saturating_add(1));
        self.report.unreadable = self.report.unreadable.saturating_add(1);
        if self.report.first_unreadable.len() < SHOWN {
            let line = reader.lines.line();
            let line = line.strip_prefix(TOO_LONG).unwrap_or(line);
            let text = line.get(..SHOWN_BYTES.min(line.len())).unwrap_or_default();
            self.report.first_unreadable.push(Shown {
                at: format!("{}:{}", reader.file.name(), reader.number),
                why: why.to_string(),
                text: String::from_utf8_lossy(text).into_owned(),
            });
        }
    }
}

/// Returns the instant in 24 hours. A single line with a later time would set the clock for all later lines.
fn tomorrow() -> Instant {
    let now = SystemTime::now().checked_add(Duration::from_secs(86_400));
    let since = now.and_then(|now| now.duration_since(UNIX_EPOCH).ok());
    let nanos = since.and_then(|since| u64::try_from(since.as_nanos()).ok());
    nanos.and_then(Instant::from_nanos).unwrap_or(Instant::MAX)
}

/// Returns a progress bar, which is hidden if there is no terminal.
fn progress(what: &str, size: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    let bar = if size == 0 { ProgressBar::hidden() } else { ProgressBar::new(size) };
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what.to_owned())
}

/// Says that none of these lines can be read, and shows the first.
fn none_read(lines: u64, first: Option<&Shown>) -> String {
    let (none, which) = match lines {
        1 => ("the only line cannot be read".to_owned(), ["", ""]),
        _ => (format!("none of the {lines} lines can be read"), ["the first, ", ","]),
    };
    let [before, after] = which;
    let shown = first.map(|first| format!("; {before}{}{after} is {}: {}", first.at, first.why, first.text));
    none + &shown.unwrap_or_default()
}
