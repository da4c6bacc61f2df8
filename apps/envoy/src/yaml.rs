//! The values of a YAML file, each with its line and the path of keys that leads to it.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use saphyr::{MarkedYaml, Scalar, ScalarStyle, YamlData, YamlLoader};
use saphyr_parser::{Event, Parser};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// An error in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line, starting at 1.
    pub line: usize,
    /// The keys that lead to the value, such as `descriptors[0].rate_limit.unit`. Empty for the file as a
    /// whole.
    pub path: String,
    /// The description of the error.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, path, text } = self;
        write!(f, "{file}:{line}: ")?;
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        f.write_str(text)
    }
}

/// A value and its position.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    file: &'a str,
    /// The line of the key, if the value has one, otherwise of the value.
    line: usize,
    path: String,
    yaml: &'a MarkedYaml<'a>,
}

/// The keys of a mapping that have not been read yet.
#[derive(Debug)]
pub struct Fields<'a> {
    left: Vec<(&'a str, Node<'a>)>,
}

/// How many lists and mappings may be inside of each other. The parser and its readers take the stack for
/// each.
const MOST_LEVELS: usize = 100;

/// Returns the line at which there are too many levels, with those that aliases stand for.
fn too_deep(text: &str) -> Option<usize> {
    // For each list and mapping that has begun: its anchor, and how many levels are in it.
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut anchors: HashMap<usize, usize> = HashMap::new();
    // An error of the parser is found again when the text is loaded.
    for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
        let inside = match event {
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                open.push((anchor, 0));
                0
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let (anchor, levels) = open.pop()?;
                let levels = levels.saturating_add(1);
                anchors.insert(anchor, levels);
                levels
            }
            Event::Alias(anchor) => anchors.get(&anchor).copied().unwrap_or_default(),
            _ => 0,
        };
        if open.len().saturating_add(inside) > MOST_LEVELS {
            return Some(span.start.line());
        }
        if let Some((_, levels)) = open.last_mut() {
            *levels = inside.max(*levels);
        }
    }
    None
}

/// Parses the document in a file, and calls `read` with it.
///
/// # Errors
/// Returns an error if the text is not YAML or does not have exactly one document.
pub fn document<T>(file: &str, text: &str, read: impl FnOnce(Node<'_>) -> T) -> Result<T, Problem> {
    let problem = |line, text: String| Problem { file: file.to_owned(), line, path: String::new(), text };
    if let Some(line) = too_deep(text) {
        return Err(problem(line, format!("there are more than {MOST_LEVELS} levels of lists and mappings")));
    }
    let mut parser = Parser::new_from_str(text);
    let mut loader = YamlLoader::<MarkedYaml<'_>>::default();
    loader.early_parse(false); // keeps `value: 007` a string
    let loaded = parser.load(&mut loader, true);
    if let Some(error) = loaded.err().or_else(|| loader.error().cloned()) {
        let (line, column) = (error.marker().line(), error.marker().col());
        let mut info = error.info().to_owned();
        if info.starts_with("duplicated key") {
            // The error does not name the key, which is where it points to.
            let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
            info.push_str(": ");
            info.extend(line.chars().skip(column).take_while(|c| *c != ':'));
        }
        return Err(problem(line, info));
    }
    let mut documents = loader.into_documents();
    // Templates leave a `---` at the end.
    let is_empty = |document: &MarkedYaml<'_>| is_null(&document.data);
    while documents.len() > 1 && documents.last().is_some_and(is_empty) {
        documents.pop();
    }
    match documents.as_slice() {
        [node] => Ok(read(Node { file, line: node.span.start.line(), path: String::new(), yaml: node })),
        [] => Err(problem(1, "the file is empty".to_owned())),
        [_, second, ..] => {
            Err(problem(second.span.start.line(), "a file has one document, with one domain".to_owned()))
        }
    }
}

impl<'a> Node<'a> {
    /// Returns an error at this value.
    pub fn problem(&self, text: impl Into<String>) -> Problem {
        Problem { file: self.file.to_owned(), line: self.line, path: self.path.clone(), text: text.into() }
    }

    /// Returns the position as `file:line`.
    pub fn place(&self) -> String {
        format!("{}:{}", self.file, self.line)
    }

    /// Returns whether the value is empty, `~` or `null`.
    pub fn is_null(&self) -> bool {
        is_null(&self.yaml.data)
    }

    /// Returns a scalar as it is written, without quotes.
    ///
    /// # Errors
    /// Returns an error if the value is a list or a mapping.
    pub fn text(&self) -> Result<&'a str, Problem> {
        match &self.yaml.data {
            YamlData::Representation(text, _, _) if !self.is_null() => Ok(text),
            YamlData::Representation(..) => Ok(""),
            _ => Err(self.problem("must be a text")),
        }
    }

    /// Returns a boolean: `true`, `false`, or another YAML 1.1 word for one of them.
    ///
    /// # Errors
    /// Returns an error if the value is not a boolean.
    pub fn boolean(&self) -> Result<bool, Problem> {
        match self.text()?.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => Ok(true),
            "false" | "no" | "off" | "n" => Ok(false),
            other => Err(self.problem(format!("must be true or false, and is '{other}'"))),
        }
    }

    /// Returns a number from `least` to `most`.
    ///
    /// # Errors
    /// Returns an error if the value is not such a number.
    pub fn number<N>(&self, least: N, most: N) -> Result<N, Problem>
    where
        N: std::str::FromStr + PartialOrd + fmt::Display + Copy,
    {
        let text = self.text()?;
        // YAML 1.1 has `_` between digits, and reads a number that begins with 0 as octal.
        let is_decimal =
            !(text.len() > 1 && text.starts_with('0')) && text.split('_').all(|part| !part.is_empty());
        let number = text.replace('_', "").parse().ok();
        let number = number.filter(|number| is_decimal && *number >= least && *number <= most);
        number.ok_or_else(|| {
            self.problem(format!("must be a whole number from {least} to {most}, and is '{text}'"))
        })
    }

    /// Returns the elements of a list. An empty list if the value is null.
    ///
    /// # Errors
    /// Returns an error if the value is not a list.
    pub fn list(&self) -> Result<Vec<Node<'a>>, Problem> {
        match &self.yaml.data {
            YamlData::Sequence(items) => {
                let item = |(index, node): (usize, &'a MarkedYaml<'a>)| Node {
                    file: self.file,
                    line: node.span.start.line(),
                    path: format!("{}[{index}]", self.path),
                    yaml: node,
                };
                Ok(items.iter().enumerate().map(item).collect())
            }
            _ if self.is_null() => Ok(Vec::new()),
            _ => Err(self.problem("must be a list")),
        }
    }

    /// Returns the keys of a mapping with their values. Keys that are no word of `known` are added to
    /// `problems`, even if there are other errors.
    ///
    /// # Errors
    /// See [`mapping`](Self::mapping).
    pub fn fields(&self, known: &str, problems: &mut Vec<Problem>) -> Result<Fields<'a>, Problem> {
        let mut fields = self.mapping()?;
        fields.left.retain(|(name, node)| {
            let is_known = known.split(' ').any(|known| known == *name);
            if !is_known {
                let text = format!("unknown key '{name}'; known here are {}", known.replace(' ', ", "));
                problems.push(node.problem(text));
            }
            is_known
        });
        Ok(fields)
    }

    /// Returns the keys of a mapping with their values, whatever the keys are. The merge key `<<` stands for
    /// the keys of another mapping, or of several.
    ///
    /// # Errors
    /// Returns an error if the value is not a mapping, or if a key is not a string.
    pub fn mapping(&self) -> Result<Fields<'a>, Problem> {
        let YamlData::Mapping(mapping) = &self.yaml.data else {
            return Err(self.problem("must be a mapping of keys to values"));
        };
        let field = |(key, node): (&'a MarkedYaml<'a>, &'a MarkedYaml<'a>)| {
            let (file, line) = (self.file, key.span.start.line());
            let YamlData::Representation(name, _, _) = &key.data else {
                let at = Node { file, line, path: self.path.clone(), yaml: key };
                return Err(at.problem("a key must be a text"));
            };
            let dot = if self.path.is_empty() { "" } else { "." };
            Ok((&**name, Node { file, line, path: format!("{}{dot}{name}", self.path), yaml: node }))
        };
        let mut left = mapping.iter().map(field).collect::<Result<Vec<_>, _>>()?;
        // The parser takes keys with and without quotes for different ones.
        let mut names = HashSet::new();
        if let Some((_, node)) = left.iter().find(|(name, _)| !names.insert(*name)) {
            return Err(node.problem("the key is given twice"));
        }
        let is_merge = |(key, _): &(&MarkedYaml<'a>, _)| matches!(&key.data, YamlData::Representation(name, ScalarStyle::Plain, None) if name == "<<");
        if mapping.iter().any(|field| is_merge(&field)) {
            let merged = left.iter().position(|(name, _)| *name == "<<").map(|index| left.remove(index).1);
            for merged in merged.iter().flat_map(|node| node.list().unwrap_or_else(|_| vec![node.clone()])) {
                let YamlData::Mapping(_) = merged.yaml.data else {
                    return Err(merged.problem("must be a mapping of keys to values"));
                };
                // An error in it is at its line, and at the path of the mapping that it is merged into.
                for (name, node) in (Node { path: self.path.clone(), ..merged }).mapping()?.left {
                    if left.iter().all(|(known, _)| *known != name) {
                        left.push((name, node));
                    }
                }
            }
        }
        Ok(Fields { left })
    }

    /// Returns any value, for dynamic metadata.
    ///
    /// # Errors
    /// Returns an error if a key is not a string or a value has a tag.
    pub fn value(&self) -> Result<Value, Problem> {
        let kind = match &self.yaml.data {
            YamlData::Mapping(_) => Kind::StructValue(self.structure()?),
            YamlData::Sequence(_) => {
                let values = self.list()?.iter().map(Node::value).collect::<Result<_, _>>()?;
                Kind::ListValue(ListValue { values })
            }
            YamlData::Representation(text, style, tag) => {
                match Scalar::parse_from_cow_and_metadata(text.clone(), *style, tag.as_ref()) {
                    Some(Scalar::Null) => Kind::NullValue(0),
                    Some(Scalar::Boolean(value)) => Kind::BoolValue(value),
                    // A JSON number.
                    Some(Scalar::Integer(_) | Scalar::FloatingPoint(_)) => {
                        Kind::NumberValue(text.parse().map_err(|_| self.problem("must be a decimal number"))?)
                    }
                    Some(Scalar::String(text)) => Kind::StringValue(text.into_owned()),
                    None => return Err(self.problem("has not the form that its tag names")),
                }
            }
            _ => return Err(self.problem("has a tag, which means nothing here")),
        };
        Ok(Value { kind: Some(kind) })
    }

    /// Returns a mapping of any values.
    ///
    /// # Errors
    /// See [`value`](Self::value).
    pub fn structure(&self) -> Result<Struct, Problem> {
        let fields = self.mapping()?.left.into_iter();
        let fields = fields.map(|(name, node)| Ok((name.to_owned(), node.value()?)));
        Ok(Struct { fields: fields.collect::<Result<_, Problem>>()? })
    }
}

impl<'a> Fields<'a> {
    /// Returns the value of a key, which then counts as read. `None` if it is missing or null.
    pub fn take(&mut self, name: &str) -> Option<Node<'a>> {
        let index = self.left.iter().position(|(field, _)| *field == name)?;
        let (_, node) = self.left.remove(index);
        Some(node).filter(|node| !node.is_null())
    }

    /// Returns all keys that have not been read, with their values.
    pub fn rest(self) -> Vec<(&'a str, Node<'a>)> {
        self.left
    }
}

fn is_null<'a>(data: &YamlData<'a, MarkedYaml<'a>>) -> bool {
    match data {
        YamlData::Representation(text, ScalarStyle::Plain, None) => {
            matches!(&**text, "" | "~" | "null" | "Null" | "NULL")
        }
        _ => false,
    }
}

/// Returns the value. Adds an error to `problems`, so that reading continues and finds other errors.
pub fn noted<T>(result: Result<T, Problem>, problems: &mut Vec<Problem>) -> Option<T> {
    result.map_err(|problem| problems.push(problem)).ok()
}
