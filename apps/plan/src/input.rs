//! The lines of files and of standard input, plain or compressed.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::PathBuf;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use crate::faults;

/// The most bytes of a line that is read, with its end. Longer lines count as unreadable.
const MOST: u64 = 1 << 20;

/// What is before the beginning of a line that is too long, and in no other line: a line feed.
pub const TOO_LONG: &[u8] = b"\n";

/// The number of bytes that are kept of a line that is shown because it cannot be read.
pub const SHOWN_BYTES: usize = 160;

/// A source of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl Source {
    /// Returns the name for messages.
    pub fn name(&self) -> String {
        match self {
            Self::Stdin => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// Returns the number of bytes, or 0 if it is unknown.
    pub fn size(&self) -> u64 {
        match self {
            Self::Stdin => 0,
            Self::File(path) => path.metadata().map_or(0, |metadata| metadata.len()),
        }
    }

    /// Opens the source. Bytes are added to `count` as they are read, before decompression.
    ///
    /// # Errors
    /// Returns the errors of opening and reading files.
    pub fn open(&self, count: &Rc<Cell<u64>>) -> io::Result<Lines> {
        let raw: Box<dyn Read> = match self {
            Self::Stdin => Box::new(io::stdin()),
            Self::File(path) => Box::new(File::open(path)?),
        };
        Ok(Lines::new(decompressed(Counted { raw, count: Rc::clone(count) })?))
    }
}

/// A reader that counts bytes.
struct Counted {
    raw: Box<dyn Read>,
    count: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.raw.read(buffer)?;
        self.count.set(self.count.get().saturating_add(u64::try_from(read).unwrap_or(u64::MAX)));
        Ok(read)
    }
}

/// Returns the content, decompressed if it begins like gzip or zstd.
fn decompressed(mut raw: Counted) -> io::Result<Box<dyn Read>> {
    let mut magic = Vec::new();
    raw.by_ref().take(4).read_to_end(&mut magic)?;
    let whole = Cursor::new(magic.clone()).chain(raw);
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(1 << 16, whole))),
        ZSTD => Box::new(Zstd(Frames::Between(Box::new(whole)))),
        _ => Box::new(whole),
    })
}

/// The first bytes of a zstd frame.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The frames of a zstd file, one after the other.
struct Zstd(Frames);

enum Frames {
    Between(Box<dyn Read>),
    Within(Box<StreamingDecoder<Box<dyn Read>, ruzstd::decoding::FrameDecoder>>),
    Ended,
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match core::mem::replace(&mut self.0, Frames::Ended) {
                Frames::Ended => return Ok(0),
                Frames::Between(mut raw) => {
                    let mut first = Vec::new();
                    raw.by_ref().take(1).read_to_end(&mut first)?;
                    if !first.is_empty() {
                        let raw: Box<dyn Read> = Box::new(Cursor::new(first).chain(raw));
                        let decoder = StreamingDecoder::new(raw).map_err(io::Error::other)?;
                        self.0 = Frames::Within(Box::new(decoder));
                    }
                }
                Frames::Within(mut decoder) => {
                    let read = decoder.read(buffer)?;
                    if read > 0 || buffer.is_empty() {
                        self.0 = Frames::Within(decoder);
                        return Ok(read);
                    }
                    self.0 = Frames::Between(decoder.into_inner());
                }
            }
        }
    }
}

/// The lines of a source, without their line ends.
pub struct Lines {
    reader: BufReader<Box<dyn Read>>,
    /// The line that was read last.
    line: Vec<u8>,
    /// Lines that come before the others, in reverse order.
    before: Vec<Vec<u8>>,
}

impl core::fmt::Debug for Lines {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lines").field("line", &self.line).finish_non_exhaustive()
    }
}

impl Lines {
    fn new(reader: Box<dyn Read>) -> Self {
        let reader = BufReader::with_capacity(1 << 16, reader);
        Self { reader, line: Vec::new(), before: Vec::new() }
    }

    /// Returns these lines again before the ones that follow.
    #[must_use]
    pub fn after(self, mut lines: Vec<Vec<u8>>) -> Self {
        lines.reverse();
        Self { before: lines, ..self }
    }

    /// Returns the line that was read last.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// Reads and returns the next line, or [`TOO_LONG`] and its beginning.
    ///
    /// # Errors
    /// Returns the errors of reading and of decompression.
    pub fn read(&mut self) -> io::Result<Option<&[u8]>> {
        if let Some(line) = self.before.pop() {
            self.line = line;
            return Ok(Some(&self.line));
        }
        match self.find() {
            Err(_) if faults::has("cut-is-the-end") => Ok(None),
            found => Ok(found?.then_some(self.line.as_slice())),
        }
    }

    /// Reads the next line. Returns `false` at the end.
    fn find(&mut self) -> io::Result<bool> {
        self.line.clear();
        let read = self.reader.by_ref().take(MOST).read_until(b'\n', &mut self.line)?;
        let has_end = self.line.pop_if(|byte| *byte == b'\n').is_some();
        self.line.pop_if(|byte| *byte == b'\r');
        if !has_end && u64::try_from(read).is_ok_and(|read| read == MOST) {
            self.reader.skip_until(b'\n')?;
            self.line.truncate(SHOWN_BYTES);
            self.line.splice(..0, TOO_LONG.iter().copied());
        }
        Ok(read > 0)
    }
}
