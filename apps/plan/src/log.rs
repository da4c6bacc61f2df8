//! A log of one or more files, which is read from the beginning to the end as often as needed.

use core::error::Error;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use redis_cell_core::{Instant, Span};
use redis_cell_policy::{CallError, Fields};

use crate::faults;
use crate::input::{Lines, Source};
use redis_cell_lines::format::{Format, Hints, Unreadable};
use redis_cell_lines::time::Times;

/// The number of lines of a file that are read to recognize its format.
const SAMPLE: usize = 100;

/// The number of unreadable lines that are kept to be shown.
const SHOWN: usize = 3;

/// The number of bytes that are kept of an unreadable line.
const SHOWN_BYTES: usize = 160;

/// The files of a log, sorted by their first times.
#[derive(Debug)]
pub struct Log {
    files: Vec<Opened>,
    zone: i32,
}

/// A file whose format is known.
#[derive(Debug)]
struct Opened {
    source: Source,
    format: Format,
    first: Option<Instant>,
    /// The lines that were read from standard input, which cannot be read again.
    begun: Option<Begun>,
}

struct Begun {
    sample: Vec<Vec<u8>>,
    lines: Lines,
}

impl core::fmt::Debug for Begun {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Begun").field("sample", &self.sample.len()).finish_non_exhaustive()
    }
}

/// A summary of the lines.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The names of the files and their formats, in the order in which they were read.
    pub files: Vec<(String, String)>,
    /// Lines with a call.
    pub read: u64,
    /// Lines that cannot be read.
    pub unreadable: u64,
    /// The first unreadable lines.
    pub shown: Vec<Shown>,
    /// The times of the first and the last call.
    pub span: Option<(Instant, Instant)>,
    /// The number of lines with an earlier time than a line before them, and the largest difference.
    pub late: (u64, Span),
    /// Whether all times were whole seconds.
    pub whole_seconds: bool,
}

/// A line that cannot be read.
#[derive(Clone, Debug)]
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
        let mut files = Vec::new();
        for source in sources {
            let name = source.name();
            let file =
                Opened::new(source, hints, fields, zone).map_err(|error| format!("{name}: {error}"))?;
            files.push(file);
        }
        // A file without any time sorts last.
        if !faults::has("files-as-named") {
            files.sort_by_key(|file| file.first.map_or((1, Instant::default()), |first| (0, first)));
        }
        Ok(Self { files, zone })
    }

    /// Returns whether the log can be read more than once.
    pub fn can_be_read_again(&self) -> bool {
        !self.files.iter().any(|file| file.source == Source::Stdin)
    }

    /// Reads all lines, and calls `call` with the time and the fields of each.
    ///
    /// # Errors
    /// Returns the errors of opening files.
    pub fn read(
        &mut self,
        what: &str,
        mut call: impl FnMut(Instant, &[&[u8]]) -> Result<(), CallError>,
    ) -> Result<Summary, Box<dyn Error>> {
        let mut summary = Summary::default();
        let mut times = Times::new(self.zone);
        let latest = tomorrow();
        let count = Rc::new(Cell::new(0));
        let progress = progress(what, self.files.iter().map(|file| file.source.size()).sum());
        for file in &mut self.files {
            summary.files.push((file.source.name(), file.format.name().to_owned()));
            let begun = match file.begun.take() {
                Some(begun) => begun,
                None => Begun { sample: Vec::new(), lines: file.source.open(&count)? },
            };
            let Begun { sample, mut lines } = begun;
            let mut pass = Pass {
                summary: &mut summary,
                times: &mut times,
                file: &file.source,
                format: &mut file.format,
                number: 0,
                latest,
            };
            for line in &sample {
                pass.line(line, &mut call);
            }
            loop {
                match lines.read() {
                    Ok(Some(line)) => pass.line(line, &mut call),
                    Ok(None) => break,
                    Err(error) => {
                        pass.unreadable(&format!("the rest of the file: {error}"), b"");
                        break;
                    }
                }
                if pass.number.is_multiple_of(65_536) {
                    progress.set_position(count.get());
                }
            }
        }
        progress.finish_and_clear();
        summary.whole_seconds = times.are_whole_seconds();
        Ok(summary)
    }
}

impl Opened {
    fn new(source: Source, hints: &Hints, fields: &Fields, zone: i32) -> Result<Self, Box<dyn Error>> {
        let mut lines = source.open(&Rc::default())?;
        let mut sample = Vec::new();
        while sample.len() < SAMPLE {
            match lines.read() {
                Ok(Some(line)) => sample.push(line.to_owned()),
                Err(error) if sample.is_empty() => return Err(error.into()),
                Ok(None) | Err(_) => break, // the next pass reports the error
            }
        }
        let mut format = Format::recognize(hints, fields, &sample)?;
        let mut times = Times::new(zone);
        let first = sample.iter().find_map(|line| times.parse(format.read(line).ok()?.first()?));
        let begun = (source == Source::Stdin).then_some(Begun { sample, lines });
        Ok(Self { source, format, first, begun })
    }
}

/// One pass through one file.
struct Pass<'a> {
    summary: &'a mut Summary,
    times: &'a mut Times,
    file: &'a Source,
    format: &'a mut Format,
    number: u64,
    /// Later times count as wrong.
    latest: Instant,
}

impl Pass<'_> {
    #[inline]
    fn line(&mut self, line: &[u8], call: &mut impl FnMut(Instant, &[&[u8]]) -> Result<(), CallError>) {
        self.number = self.number.saturating_add(1);
        if self.number == 1 && self.format.is_header(line) && !faults::has("header-is-a-call") {
            return;
        }
        if let Err(why) = self.read(line, call) {
            self.unreadable(&why.to_string(), line);
        }
    }

    #[inline]
    fn read(
        &mut self,
        line: &[u8],
        call: &mut impl FnMut(Instant, &[&[u8]]) -> Result<(), CallError>,
    ) -> Result<(), Unreadable> {
        if line.is_empty() {
            return Err(Unreadable::TooLong);
        }
        let values = self.format.read(line)?;
        let Some((time, fields)) = values.split_first() else { return Err(Unreadable::NoTime) };
        if time.is_empty() {
            return Err(Unreadable::NoTime);
        }
        let now = self.times.parse(time).ok_or(Unreadable::Time)?;
        if now > self.latest && !faults::has("any-future") {
            return Err(Unreadable::Future);
        }
        call(now, fields).map_err(|_| Unreadable::Quantity)?;
        let Summary { read, span, late, .. } = &mut *self.summary;
        *read = read.saturating_add(1);
        let (_, last) = span.get_or_insert((now, now));
        if now < *last && !faults::has("late-is-silent") {
            *late = (late.0.saturating_add(1), late.1.max(last.since(now)));
        }
        *last = now.max(*last);
        Ok(())
    }

    #[cold]
    fn unreadable(&mut self, why: &str, line: &[u8]) {
        if faults::has("unreadable-is-silent") {
            return;
        }
        self.summary.unreadable = self.summary.unreadable.saturating_add(1);
        if self.summary.shown.len() < SHOWN {
            let text = line.get(..SHOWN_BYTES.min(line.len())).unwrap_or_default();
            self.summary.shown.push(Shown {
                at: format!("{}:{}", self.file.name(), self.number),
                why: why.to_owned(),
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

/// Returns an error if no line could be read.
///
/// # Errors
/// Returns an error if no line could be read.
pub fn demand_lines(summary: &Summary) -> io::Result<()> {
    if summary.read > 0 {
        return Ok(());
    }
    let first = summary.shown.first().map_or_else(String::new, |shown| {
        format!("; the first, {}, is {}: {}", shown.at, shown.why, shown.text.escape_debug())
    });
    Err(io::Error::other(format!("none of the {} lines can be read{first}", summary.unreadable)))
}
