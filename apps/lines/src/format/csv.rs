//! Lines of CSV. Each line is one record.

use csv_core::{ReadRecordResult, Reader};

use super::Place;

/// The columns of a file.
#[derive(Debug)]
pub struct Columns {
    names: Vec<String>,
    /// The line with the names of the columns, if the file has one.
    header: Option<Vec<u8>>,
    reader: Reader,
    ends: Vec<usize>,
}

impl Columns {
    /// Reads the names of the columns from a line. `in_file`: whether it is the first line of the file.
    pub fn parse(line: &[u8], in_file: bool) -> Self {
        let header = in_file.then(|| line.to_owned());
        let mut columns = Self { names: Vec::new(), header, reader: Reader::new(), ends: Vec::new() };
        let (mut places, mut buffer) = (Vec::new(), Vec::new());
        let count = line.split(|&byte| byte == b',').count();
        places.resize(count, Place::default());
        columns.names.resize(count, String::new());
        columns.read(line, &mut places, &mut buffer);
        let name = |place: &Place| buffer.get(place.range.clone()).map(String::from_utf8_lossy);
        columns.names = places.iter().filter_map(name).map(|name| name.trim().to_owned()).collect();
        columns
    }

    /// Returns the names of the columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns whether this line is the header.
    pub fn is_header(&self, line: &[u8]) -> bool {
        self.header.as_deref() == Some(line)
    }

    /// Finds the fields of a line. Returns `false` if the line has fewer fields than there are columns, or a
    /// quotation mark without its counterpart.
    pub fn read(&mut self, line: &[u8], places: &mut [Place], buffer: &mut Vec<u8>) -> bool {
        self.reader.reset();
        buffer.resize(line.len().saturating_add(1), 0);
        self.ends.resize(line.len().saturating_add(2), 0);
        let (_, read, written, mut fields) = self.reader.read_record(line, buffer, &mut self.ends);
        let mut result = ReadRecordResult::InputEmpty;
        if read == line.len() {
            // Without more input, the record ends, unless it is within quotation marks.
            let quoted = memchr::memchr_iter(b'"', line).count() % 2 == 1;
            let buffer = buffer.get_mut(written..).unwrap_or_default();
            let ends = self.ends.get_mut(fields..).unwrap_or_default();
            let (ended, _, _, more) = self.reader.read_record(&[], buffer, ends);
            fields = fields.saturating_add(more);
            result = if quoted { ReadRecordResult::InputEmpty } else { ended };
        }
        let mut start = 0;
        for (place, &end) in places.iter_mut().zip(self.ends.get(..fields).unwrap_or_default()) {
            *place = Place { range: start..end, buffered: true };
            start = end;
        }
        matches!(result, ReadRecordResult::Record) && fields >= self.names.len()
    }
}
