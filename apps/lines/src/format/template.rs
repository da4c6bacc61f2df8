//! Lines with a layout: fields, and the text between them.

use memchr::memmem::Finder;

use super::{NoFormat, Place};

/// A layout such as `<address> [<time>] "<request>"`. Each field ends where the text behind it begins.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The text before the first field.
    before: Vec<u8>,
    names: Vec<String>,
    /// The text behind each field; empty behind one that takes the rest.
    behind: Vec<Text>,
}

#[derive(Clone, Debug)]
struct Text {
    bytes: Vec<u8>,
    finder: Finder<'static>,
}

impl Layout {
    /// Reads a layout.
    ///
    /// # Errors
    /// [`NoFormat`] for a layout without fields, or with two fields that have no text between them.
    pub fn parse(text: &str) -> Result<Self, NoFormat> {
        let wrong = |why: &str| NoFormat(format!("the layout {text} {why}"));
        let (before, mut rest) = text.split_once('<').ok_or_else(|| wrong("has no fields"))?;
        let (mut names, mut behind) = (Vec::new(), Vec::new());
        loop {
            let (name, tail) = rest.split_once('>').ok_or_else(|| wrong("has a < without >"))?;
            let (literal, next) =
                tail.split_once('<').map_or((tail, None), |(text, next)| (text, Some(next)));
            if literal.is_empty() && next.is_some() {
                return Err(wrong("has two fields without text between them"));
            }
            names.push(name.to_owned());
            let bytes = literal.as_bytes().to_owned();
            behind.push(Text { finder: Finder::new(&bytes).into_owned(), bytes });
            match next {
                Some(next) => rest = next,
                None => return Ok(Self { before: before.as_bytes().to_owned(), names, behind }),
            }
        }
    }

    /// The names of the fields.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Finds the fields of a line. Returns false if the line has another layout.
    pub fn read(&self, line: &[u8], places: &mut [Place]) -> bool {
        let Some(mut rest) = line.strip_prefix(self.before.as_slice()) else { return false };
        let mut at = self.before.len();
        for (text, place) in self.behind.iter().zip(places) {
            let Some(length) = text.find(rest) else { return false };
            place.range = at..at.saturating_add(length);
            let next = length.saturating_add(text.bytes.len());
            at = at.saturating_add(next);
            rest = rest.get(next..).unwrap_or_default();
        }
        rest.is_empty()
    }
}

impl Text {
    /// Where this text begins in `rest`; the end, for no text.
    #[inline]
    fn find(&self, rest: &[u8]) -> Option<usize> {
        match self.bytes.as_slice() {
            [] => Some(rest.len()),
            [byte] if *byte != b'"' => memchr::memchr(*byte, rest),
            [b'"', ..] => self.find_quote(rest),
            _ => self.finder.find(rest),
        }
    }

    /// The same for a text that begins with a quotation mark: Apache writes one within a value as `\"`.
    fn find_quote(&self, rest: &[u8]) -> Option<usize> {
        let mut from = 0_usize;
        loop {
            let found = from.saturating_add(self.finder.find(rest.get(from..)?)?);
            let escapes = rest.get(..found)?.iter().rev().take_while(|&&byte| byte == b'\\').count();
            if escapes % 2 == 0 {
                return Some(found);
            }
            from = found.saturating_add(1);
        }
    }
}
