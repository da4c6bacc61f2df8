//! The formats of logs, and the fields of a line.

mod csv;
mod json;
mod template;
mod w3c;

use core::cell::Cell;
use core::fmt;
use core::ops::Range;

use redis_cell_policy::Fields;
use smallvec::SmallVec;

use self::csv::Columns;
use self::json::Tree;
use self::template::Layout;
use crate::time::Times;

/// The layouts that are recognized automatically. Their fields have the names that policies use.
const LAYOUTS: [(&str, &str); 5] = [
    (
        "vhost",
        "<host> <address> <ident> <user> [<time>] \"<request>\" <status> <bytes> \"<referer>\" \"<agent>\"<rest>",
    ),
    (
        "combined",
        "<address> <ident> <user> [<time>] \"<request>\" <status> <bytes> \"<referer>\" \"<agent>\"<rest>",
    ),
    ("common", "<address> <ident> <user> [<time>] \"<request>\" <status> <bytes>"),
    (
        "haproxy-syslog",
        "<syslog>]: <client:port> [<time>] <frontend> <backend>/<server> <timers> <status> <bytes> <more>\"<request>\"<rest>",
    ),
    (
        "haproxy",
        "<client:port> [<time>] <frontend> <backend>/<server> <timers> <status> <bytes> <more>\"<request>\"<rest>",
    ),
];

/// The name of the format of a layout that the user has written.
const OWN: &str = "own";

/// The sources of each field, under the names that common servers use. The first source that a line has is
/// used.
const KNOWN: [(&str, &str); 11] = [
    ("time", "time ts timestamp @timestamp start_time time_iso8601 time_local msec datetime"),
    (
        "address",
        "address client:port request.client_ip request.remote_ip client_ip remote_ip remote_addr \
         downstream_remote_address downstream_remote_address_without_port client_address ip c-ip",
    ),
    ("user", "user user_id remote_user request.user cs-username"),
    ("method", "method request.method request_method cs-method"),
    ("host", "host request.host authority :authority http_host x-host-header cs-host cs(Host)"),
    ("uri", "uri request.uri x-envoy-original-path request_uri path url request_path cs-uri-stem"),
    ("status", "status response_code status_code sc-status"),
    ("bytes", "bytes size bytes_sent body_bytes_sent bytes_out sc-bytes"),
    ("duration", "duration request_time latency time-taken"),
    ("agent", "agent user_agent request.headers.User-Agent http_user_agent user-agent cs(User-Agent)"),
    ("referer", "referer cs(Referer)"),
];

/// How a field is read from a line.
#[derive(Clone, Debug)]
struct Field {
    /// The sources, of which the first one present is used.
    sources: SmallVec<[usize; 4]>,
    /// The whole first line of a request, which contains the method and the path.
    request: Option<usize>,
    part: Part,
}

impl Field {
    fn is_there(&self) -> bool {
        !self.sources.is_empty() || self.request.is_some()
    }
}

/// The part of a source that becomes the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The whole source.
    Whole,
    /// An address, without its port if it has one.
    Address,
    /// An address with a port, of which the port is omitted.
    Client,
    /// The method of a request.
    Method,
    /// The target of a request.
    Uri,
    /// The target without its query, or the pattern that it matches.
    Path,
    /// One segment of the path, by its number.
    Segment(usize),
}

/// The user's settings for a log.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The name of a format, or a layout. Without one, the format is recognized.
    pub format: Option<String>,
    /// The user's sources for fields: the name of the field, and its source.
    pub fields: Vec<(String, String)>,
    /// Patterns of paths.
    pub paths: Vec<Pattern>,
    /// The columns of a CSV file without a header.
    pub columns: Option<String>,
}

/// A path in which `*` stands for a segment, and `**` for all segments that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Pattern {
    /// Returns whether a path matches.
    fn matches(&self, path: &[u8]) -> bool {
        let mut segments = path.split(|&byte| byte == b'/');
        for expected in self.0.as_bytes().split(|&byte| byte == b'/') {
            if expected == b"**" {
                return true;
            }
            match segments.next() {
                Some(segment) if expected == b"*" && !segment.is_empty() || segment == expected => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }
}

/// The position of a value: in the line itself, or in the buffer of the format.
#[derive(Clone, Debug, Default)]
struct Place {
    range: Range<usize>,
    buffered: bool,
}

/// A format, and the fields to find in it, starting with the time.
#[derive(Debug)]
pub struct Format {
    syntax: Syntax,
    name: String,
    fields: Vec<Field>,
    /// The patterns, and whether each has replaced a path.
    patterns: Vec<(Pattern, Cell<bool>)>,
    /// The positions of the values in the present line.
    places: Vec<Place>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Syntax {
    Layout(Layout),
    Json(Tree),
    Csv(Box<Columns>),
    W3c(w3c::Columns),
}

/// The values of a line: the time, and then the fields of the policies.
pub type Values<'a> = SmallVec<[&'a [u8]; 8]>;

/// Why a line cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It does not have the format.
    Format,
    /// It has no time.
    NoTime,
    /// Its time cannot be read.
    Time,
    /// Its time is more than a day ahead of this machine's clock.
    Future,
    /// It is longer than 1 MiB.
    TooLong,
    /// A quantity is not a number.
    Quantity,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Format => "not a line of this format",
            Self::NoTime => "no time",
            Self::Time => "a time that cannot be read",
            Self::Future => "a time in the future",
            Self::TooLong => "a line above 1 MiB",
            Self::Quantity => "a quantity that is not a number",
        })
    }
}

/// Why no format matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoFormat(pub String);

impl fmt::Display for NoFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for NoFormat {}

impl Format {
    /// Recognizes the format of a log that begins with these lines.
    ///
    /// # Errors
    /// Returns [`NoFormat`] if no format matches, or if the named one cannot have the fields of the policies.
    pub fn recognize(hints: &Hints, fields: &Fields, sample: &[Vec<u8>]) -> Result<Self, NoFormat> {
        match hints.format.as_deref() {
            Some("json") => Self::json(hints, fields),
            Some("csv") => Self::csv(hints, fields, sample),
            Some("w3c") => Self::w3c(hints, fields, sample),
            Some(layout) if layout.contains('<') => Self::layout(OWN, layout, hints, fields),
            Some(name) => {
                let known = LAYOUTS.iter().find(|(known, _)| *known == name);
                let (name, layout) = known.ok_or_else(|| {
                    NoFormat(format!(
                        "{name} is not a format: combined, common, vhost, haproxy, haproxy-syslog, json, csv, w3c, or a \
                         layout such as '<address> [<time>] <bytes>'"
                    ))
                })?;
                Self::layout(name, layout, hints, fields)
            }
            None => Self::guess(hints, fields, sample),
        }
    }

    fn guess(hints: &Hints, fields: &Fields, sample: &[Vec<u8>]) -> Result<Self, NoFormat> {
        let fits = |text: &str, line: &[u8]| {
            Layout::parse(text).is_ok_and(|layout| {
                let mut places = vec![Place::default(); layout.names().len()];
                let fits = layout.read(line, &mut places);
                let value = |field: &str| {
                    let place = layout.names().iter().position(|name| name == field)?;
                    line.get(places.get(place)?.range.clone())
                };
                // If the layout has a host and the line has none, the identity, `-`, would be read as the
                // address.
                fits && value("time").is_some_and(|time| Times::new(0).parse(time).is_some())
                    && value("address") != Some(b"-")
            })
        };
        let first = sample.first().map(Vec::as_slice).unwrap_or_default();
        if first.contains(&0) {
            return Err(NoFormat(
                "it begins like a binary file: if it is a log, use cell-plan --format".to_owned(),
            ));
        }
        for line in sample {
            if line.first() == Some(&b'{') {
                return Self::json(hints, fields);
            }
            if w3c::Columns::parse(line).is_some() {
                return Self::w3c(hints, fields, sample);
            }
            if let Some((name, layout)) = LAYOUTS.iter().find(|(_, layout)| fits(layout, line)) {
                return Self::layout(name, layout, hints, fields);
            }
        }
        let header = first.contains(&b',') && str::from_utf8(first).is_ok();
        if hints.columns.is_some() || header {
            return Self::csv(hints, fields, sample);
        }
        Err(NoFormat("the format of the log is not recognized: name it with cell-plan --format".to_owned()))
    }

    fn layout(name: &str, text: &str, hints: &Hints, fields: &Fields) -> Result<Self, NoFormat> {
        let layout = Layout::parse(text)?;
        let names = layout.names().to_vec();
        Self::with_names(Syntax::Layout(layout), name, &names, hints, fields)
    }

    fn json(hints: &Hints, fields: &Fields) -> Result<Self, NoFormat> {
        let mut tree = Tree::default();
        // JSON may have any field: only the lines can show which.
        let fields = fields_of(hints, fields, &mut |name| Some(tree.add(name)), "")?;
        let places = tree.len();
        Ok(Self::new(Syntax::Json(tree), "json", fields, places, hints))
    }

    fn csv(hints: &Hints, fields: &Fields, sample: &[Vec<u8>]) -> Result<Self, NoFormat> {
        let header = match &hints.columns {
            Some(columns) => columns.as_bytes(),
            None => sample.first().map(Vec::as_slice).unwrap_or_default(),
        };
        let columns = Columns::parse(header, hints.columns.is_none());
        let names = columns.names().to_vec();
        Self::with_names(Syntax::Csv(Box::new(columns)), "csv", &names, hints, fields)
    }

    fn w3c(hints: &Hints, fields: &Fields, sample: &[Vec<u8>]) -> Result<Self, NoFormat> {
        let columns = sample.iter().find_map(|line| w3c::Columns::parse(line));
        let columns = columns.ok_or_else(|| NoFormat("no line begins with #Fields:".to_owned()))?;
        let names = columns.names().to_vec();
        Self::with_names(Syntax::W3c(columns), "w3c", &names, hints, fields)
    }

    /// Creates a format whose lines have these fields, whose names may have other capitals.
    fn with_names(
        syntax: Syntax,
        name: &str,
        names: &[String],
        hints: &Hints,
        fields: &Fields,
    ) -> Result<Self, NoFormat> {
        let mut find = |name: &str| names.iter().position(|known| known.eq_ignore_ascii_case(name));
        let fields = fields_of(hints, fields, &mut find, &names.join(", "))?;
        Ok(Self::new(syntax, name, fields, names.len(), hints))
    }

    fn new(syntax: Syntax, name: &str, fields: Vec<Field>, places: usize, hints: &Hints) -> Self {
        let places = vec![Place::default(); places];
        Self {
            syntax,
            name: name.to_owned(),
            fields,
            patterns: hints.paths.iter().map(|pattern| (pattern.clone(), Cell::new(false))).collect(),
            places,
            buffer: Vec::new(),
        }
    }

    /// Returns the name of the format.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the pattern with this number has replaced a path.
    pub fn has_used(&self, pattern: usize) -> bool {
        self.patterns.get(pattern).is_some_and(|(_, used)| used.get())
    }

    /// Returns whether this line is not meant to be a call: a CSV header, a comment, an empty line.
    pub fn is_no_call(&self, line: &[u8]) -> bool {
        line.is_empty()
            || match &self.syntax {
                Syntax::Csv(columns) => columns.is_header(line),
                Syntax::W3c(_) | Syntax::Json(_) => line.starts_with(b"#"),
                Syntax::Layout(_) => line.starts_with(b"#") && self.name != OWN,
            }
    }

    /// Returns whether this line sets other columns for the lines after it.
    pub fn is_another(&self, line: &[u8]) -> bool {
        matches!(&self.syntax, Syntax::W3c(columns) if columns.are_others(line))
    }

    /// Reads a line. The first value is the time.
    ///
    /// # Errors
    /// Returns [`Unreadable::Format`] if the line does not have this format.
    pub fn read<'a>(&'a mut self, line: &'a [u8]) -> Result<Values<'a>, Unreadable> {
        self.read_time(line)?;
        Ok(self.values(line))
    }

    /// Reads a line, and returns its time.
    ///
    /// # Errors
    /// Returns [`Unreadable::Format`] if the line does not have this format.
    pub fn read_time<'a>(&'a mut self, line: &'a [u8]) -> Result<&'a [u8], Unreadable> {
        let Self { syntax, places, buffer, .. } = self;
        let read = match syntax {
            Syntax::Layout(layout) => layout.read(line, places),
            Syntax::Json(tree) => tree.read(line, places, buffer),
            Syntax::Csv(columns) => columns.read(line, places, buffer),
            Syntax::W3c(columns) => columns.read(line, places, buffer),
        };
        let time = self.fields.first().filter(|_| read).ok_or(Unreadable::Format)?;
        Ok(self.value(time, line))
    }

    /// Returns the values of the line that was read last.
    pub fn values<'a>(&'a self, line: &'a [u8]) -> Values<'a> {
        self.fields.iter().map(|field| self.value(field, line)).collect()
    }

    fn value<'a>(&'a self, field: &Field, line: &'a [u8]) -> &'a [u8] {
        let raw = |source: &usize| {
            let place = self.places.get(*source)?;
            let text = if place.buffered { self.buffer.as_slice() } else { line };
            text.get(place.range.clone()).filter(|value| !value.is_empty() && *value != b"-")
        };
        let value = field.sources.iter().find_map(raw);
        let request = || field.request.as_ref().and_then(raw);
        let uri = || value.or_else(|| request().and_then(|request| word(request, 1))).unwrap_or_default();
        match field.part {
            Part::Whole => value.unwrap_or_default(),
            Part::Address => address(value.unwrap_or_default()),
            Part::Client => {
                let client = value.unwrap_or_default();
                client.get(..memchr::memrchr(b':', client).unwrap_or(client.len())).unwrap_or_default()
            }
            Part::Method => {
                value.or_else(|| request().and_then(|request| word(request, 0))).unwrap_or_default()
            }
            Part::Uri => uri(),
            Part::Path => {
                let path = path(uri());
                let pattern = self.patterns.iter().find(|(pattern, _)| pattern.matches(path));
                pattern.map_or(path, |(pattern, used)| {
                    used.set(true);
                    pattern.0.as_bytes()
                })
            }
            Part::Segment(number) => path(uri()).split(|&byte| byte == b'/').nth(number).unwrap_or_default(),
        }
    }
}

/// Returns the time and the fields of the policies, with the sources that `find` returns.
fn fields_of(
    hints: &Hints,
    fields: &Fields,
    find: &mut dyn FnMut(&str) -> Option<usize>,
    there: &str,
) -> Result<Vec<Field>, NoFormat> {
    let names = core::iter::once("time").chain(fields.names().iter().map(String::as_str));
    let all = names.map(|name| {
        let field = field_of(name, hints, find);
        let own = hints.fields.iter().find(|(named, _)| named == name);
        let wanted = own.map_or_else(|| name.to_owned(), |(name, source)| format!("{source} for <{name}>"));
        if field.is_there() {
            return Ok(field);
        }
        // Those that are parts of others, or have other names in policies.
        let known = KNOWN.iter().map(|(known, _)| *known).chain(["path"]);
        let more = known.filter(|known| {
            !there.split(", ").any(|name| name == *known) && field_of(known, hints, find).is_there()
        });
        let there: Vec<&str> = there.split(", ").filter(|name| *name != "rest").chain(more).collect();
        Err(NoFormat(format!("the log has no field {wanted}, only: {}", there.join(", "))))
    });
    all.collect()
}

fn field_of(name: &str, hints: &Hints, find: &mut dyn FnMut(&str) -> Option<usize>) -> Field {
    if let Some((_, source)) = hints.fields.iter().find(|(named, _)| named == name) {
        let part = if name == "address" { Part::Address } else { Part::Whole };
        return Field { sources: find(source).into_iter().collect(), request: None, part };
    }
    let (known, part) = match name {
        "path" => ("uri", Part::Path),
        "uri" => ("uri", Part::Uri),
        "method" => ("method", Part::Method),
        "address" if find("client:port").is_some() && find("address").is_none() => ("address", Part::Client),
        "address" => ("address", Part::Address),
        _ => match name.strip_prefix("path/").and_then(|number| number.parse().ok()) {
            Some(number) => ("uri", Part::Segment(number)),
            None => (name, Part::Whole),
        },
    };
    let from_request = matches!(part, Part::Path | Part::Uri | Part::Method | Part::Segment(_));
    // A field that the user has defined is also a source for fields derived from it.
    let own = hints.fields.iter().find(|(named, _)| named == known).map(|(_, source)| source.as_str());
    let usual = KNOWN.iter().find(|(field, _)| *field == known).map_or("", |(_, sources)| sources);
    let mut sources: SmallVec<[usize; 4]> = SmallVec::new();
    for source in own.into_iter().chain(usual.split_whitespace()).chain([name]) {
        if let Some(place) = find(source).filter(|place| !sources.contains(place)) {
            sources.push(place);
        }
    }
    let request = from_request.then(|| find("request")).flatten();
    Field { sources, request, part }
}

/// Returns a word of the first line of a request.
fn word(request: &[u8], number: usize) -> Option<&[u8]> {
    request.split(|&byte| byte == b' ').nth(number)
}

/// Returns the path of a target, without the query, the scheme and the host.
fn path(uri: &[u8]) -> &[u8] {
    let uri = match memchr::memmem::find(uri, b"://") {
        Some(scheme) if !uri.starts_with(b"/") => {
            let host = uri.get(scheme.saturating_add(3)..).unwrap_or_default();
            host.get(memchr::memchr(b'/', host).unwrap_or(host.len())..).unwrap_or_default()
        }
        _ => uri,
    };
    uri.get(..memchr::memchr2(b'?', b'#', uri).unwrap_or(uri.len())).unwrap_or_default()
}

/// Removes the port of an address: `192.0.2.1:443`, `[2001:db8::1]:443`.
fn address(text: &[u8]) -> &[u8] {
    if let Some(rest) = text.strip_prefix(b"[") {
        return rest.get(..memchr::memchr(b']', rest).unwrap_or(rest.len())).unwrap_or_default();
    }
    let Some(first) = memchr::memchr(b':', text) else { return text };
    let (before, behind) = text.split_at_checked(first).unwrap_or_default();
    // Several colons mean an IPv6 address without a port.
    if memchr::memchr(b':', behind.get(1..).unwrap_or_default()).is_some() { text } else { before }
}
