//! The lines of files and of standard input, plain or compressed.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::PathBuf;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use crate::faults;

/// The length of the longest line that is read. Longer lines count as unreadable.
pub const LONGEST: usize = 1 << 20;

/// What is read in place of a line that is too long. No line has a line feed.
pub const TOO_LONG: &[u8] = b"\n";

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
    reader: Box<dyn Read>,
    buffer: Vec<u8>,
    /// The range of the buffer that was read and not yet returned.
    unread: core::ops::Range<usize>,
    /// The range of the present line.
    line: core::ops::Range<usize>,
    /// Lines that come before the others, in reverse order, and the present line if it is not in the buffer.
    before: Vec<Vec<u8>>,
    present: Option<Vec<u8>>,
    ended: bool,
}

impl core::fmt::Debug for Lines {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lines").field("unread", &self.unread).finish_non_exhaustive()
    }
}

impl Lines {
    fn new(reader: Box<dyn Read>) -> Self {
        let buffer = vec![0; LONGEST];
        Self { reader, buffer, unread: 0..0, line: 0..0, before: Vec::new(), present: None, ended: false }
    }

    /// Returns these lines again before the ones that follow.
    #[must_use]
    pub fn after(self, mut lines: Vec<Vec<u8>>) -> Self {
        lines.reverse();
        Self { before: lines, ..self }
    }

    /// Returns the line that was read last.
    pub fn line(&self) -> &[u8] {
        match &self.present {
            Some(line) => line,
            None => self.buffer.get(self.line.clone()).unwrap_or_default(),
        }
    }

    /// Reads and returns the next line, or [`TOO_LONG`].
    ///
    /// # Errors
    /// Returns the errors of reading and of decompression.
    pub fn read(&mut self) -> io::Result<Option<&[u8]>> {
        self.present = self.before.pop();
        let found = self.present.is_some() || self.find()?;
        Ok(found.then(|| self.line()))
    }

    /// Finds the next line in the buffer. Returns `false` at the end.
    fn find(&mut self) -> io::Result<bool> {
        let mut too_long = false;
        loop {
            let unread = self.buffer.get(self.unread.clone()).unwrap_or_default();
            let end = memchr::memchr(b'\n', unread);
            if end.is_some() || self.ended {
                let length = end.unwrap_or(unread.len());
                let line = unread.get(..length).unwrap_or_default();
                let line = line.strip_suffix(b"\r").unwrap_or(line).len();
                self.present = too_long.then(|| TOO_LONG.to_vec());
                let start = self.unread.start;
                self.line = start..start.saturating_add(line);
                let behind = start.saturating_add(length).saturating_add(1);
                self.unread.start = behind.min(self.unread.end);
                return Ok(end.is_some() || length > 0 || too_long);
            }
            too_long |= self.fill()?;
        }
    }

    /// Appends more bytes to the unread ones. If that fills the buffer, empties it and returns `true`.
    fn fill(&mut self) -> io::Result<bool> {
        let unread = core::mem::take(&mut self.unread);
        let length = unread.len();
        let full = length >= self.buffer.len();
        if !full {
            self.buffer.copy_within(unread, 0);
            self.unread = 0..length;
        }
        let free = self.buffer.get_mut(self.unread.end..).unwrap_or_default();
        let read = loop {
            match self.reader.read(free) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if faults::has("cut-is-the-end") => break 0,
                read => break read?,
            }
        };
        self.ended = read == 0;
        self.unread.end = self.unread.end.saturating_add(read);
        Ok(full)
    }
}
