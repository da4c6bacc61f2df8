//! Lines with a layout: fields and the text between them.

use super::{NoFormat, Place};

/// A layout such as `<address> [<time>] "<request>"`. Each field ends where the text after it begins.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The text before the first field.
    before: Vec<u8>,
    names: Vec<String>,
    /// The text after each field. Empty after a field that takes the rest of the line.
    behind: Vec<Text>,
}

#[derive(Clone, Debug)]
struct Text(Vec<u8>);

impl Layout {
    /// Reads a layout.
    ///
    /// # Errors
    /// Returns [`NoFormat`] if the layout has no fields, or two fields without text between them.
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
            behind.push(Text(literal.as_bytes().to_owned()));
            match next {
                Some(next) => rest = next,
                None => return Ok(Self { before: before.as_bytes().to_owned(), names, behind }),
            }
        }
    }

    /// Returns the names of the fields.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Finds the fields of a line. Returns `false` if the line has another layout.
    pub fn read(&self, line: &[u8], places: &mut [Place]) -> bool {
        let Some(mut rest) = line.strip_prefix(self.before.as_slice()) else { return false };
        let mut at = self.before.len();
        for (text, place) in self.behind.iter().zip(places) {
            let Some(length) = text.find(rest) else { return false };
            place.range = at..at.saturating_add(length);
            let next = length.saturating_add(text.0.len());
            at = at.saturating_add(next);
            rest = rest.get(next..).unwrap_or_default();
        }
        rest.is_empty()
    }
}

impl Text {
    /// Returns where this text begins in `rest`, or the end if the text is empty. Fields seldom contain the
    /// first byte, so this is faster than a search for the whole text.
    #[inline]
    fn find(&self, rest: &[u8]) -> Option<usize> {
        let Some((&first, behind)) = self.0.split_first() else { return Some(rest.len()) };
        let mut from = 0_usize;
        loop {
            let left = rest.get(from..)?;
            let at = memchr::memchr(first, left)?;
            let found = from.saturating_add(at);
            from = found.saturating_add(1);
            if rest.get(from..)?.starts_with(behind) && !(first == b'"' && is_escaped(rest, found)) {
                return Some(found);
            }
        }
    }
}

/// Returns whether the quotation mark at this position is part of a value, which Apache writes as `\"`.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the fields of a line, or `None` if it has another layout.
    fn fields<'a>(layout: &str, line: &'a str) -> Option<Vec<&'a str>> {
        let layout = Layout::parse(layout).ok()?;
        let mut places = vec![Place::default(); layout.names().len()];
        let read = layout.read(line.as_bytes(), &mut places);
        read.then(|| places.iter().filter_map(|place| line.get(place.range.clone())).collect())
    }

    #[test]
    fn a_field_ends_where_the_whole_text_behind_it_begins() {
        let layout = "<a> [<b>] \"<c>\" <d>";
        assert_eq!(fields(layout, "x y [z]w] \"u\" v"), Some(vec!["x y", "z]w", "u", "v"]));
        assert_eq!(fields(layout, "x [y] \"\" "), Some(vec!["x", "y", "", ""]));
        for line in ["", "x", "x [y] z", "x [y] \"z\"", "x [y] \"z", "x [y"] {
            assert_eq!(fields(layout, line), None, "{line}");
        }
        assert_eq!(fields("<a>;", "x;y"), None);
    }

    #[test]
    fn a_quotation_mark_behind_a_backslash_is_part_of_a_field() {
        let layout = "\"<a>\" <b> \"<c>\"";
        let line = r#""a\" 1 "b" 2 "c\\\"""#;
        assert_eq!(fields(layout, line), Some(vec![r#"a\" 1 "b"#, "2", r#"c\\\""#]));
        assert_eq!(fields(layout, r#""a\\" 1 "c\\""#), Some(vec![r"a\\", "1", r"c\\"]));
        assert_eq!(fields(layout, line.strip_suffix('"').unwrap_or_default()), None);
    }
}
