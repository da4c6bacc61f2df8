//! Lines of the W3C's extended log format, as IIS and `CloudFront` write them.

use super::Place;

/// The beginning of the line that names the columns.
const FIELDS: &[u8] = b"#Fields:";

/// The columns of a file.
#[derive(Debug)]
pub struct Columns {
    names: Vec<String>,
    /// The columns with the date and with the time of day.
    when: Option<(usize, usize)>,
}

impl Columns {
    /// Reads the names of the columns from a line. Returns `None` if the line does not name them.
    ///
    /// The column `time` of these logs has the time of day. It is called `time-of-day` here, and `time` is a
    /// further column with the date and the time.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let names = String::from_utf8_lossy(line.strip_prefix(FIELDS)?).into_owned();
        let mut names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
        let find = |wanted: &str| names.iter().position(|name| name.eq_ignore_ascii_case(wanted));
        let when = find("date").zip(find("time"));
        if let Some(name) = when.and_then(|(_, time)| names.get_mut(time)) {
            "time-of-day".clone_into(name);
            names.push("time".to_owned());
        }
        Some(Self { names, when })
    }

    /// Returns the names of the columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns whether a line names other columns than these.
    pub fn are_others(&self, line: &[u8]) -> bool {
        Self::parse(line).is_some_and(|other| other.names != self.names)
    }

    /// Finds the fields of a line. Returns `false` if the line has fewer fields than there are columns, or a
    /// quotation mark without its counterpart.
    pub fn read(&self, line: &[u8], places: &mut [Place], buffer: &mut Vec<u8>) -> bool {
        let columns = self.names.len().saturating_sub(usize::from(self.when.is_some()));
        let mut start = 0;
        for place in places.iter_mut().take(columns) {
            let Some(rest) = line.get(start..).filter(|rest| !rest.is_empty()) else { return false };
            let (from, length) = match rest.strip_prefix(b"\"") {
                Some(quoted) => {
                    let Some(end) = memchr::memchr(b'"', quoted) else { return false };
                    (start.saturating_add(1), end)
                }
                None => (start, memchr::memchr2(b' ', b'\t', rest).unwrap_or(rest.len())),
            };
            let until = from.saturating_add(length);
            *place = Place { range: from..until, buffered: false };
            start = until.saturating_add(from.saturating_sub(start)).saturating_add(1);
        }
        buffer.clear();
        if let Some((date, time)) = self.when {
            let text = |column: usize| line.get(places.get(column)?.range.clone());
            buffer.extend_from_slice(text(date).unwrap_or_default());
            buffer.push(b' ');
            buffer.extend_from_slice(text(time).unwrap_or_default());
            if let Some(place) = places.get_mut(columns) {
                *place = Place { range: 0..buffer.len(), buffered: true };
            }
        }
        true
    }
}
