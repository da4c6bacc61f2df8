//! Words of a policy that contain fields of each call.

use redis_cell_core::Range;

use crate::policy::PolicyError;

/// The names of the fields that policies use, each once.
#[derive(Clone, Debug, Default)]
pub struct Fields(Vec<String>);

impl Fields {
    /// Returns the position of the field with this name, which is added if it is new.
    pub fn position(&mut self, name: &str) -> usize {
        let known = self.0.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len().saturating_sub(1)
        })
    }

    /// Returns all names, in the order of their positions.
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

/// Text that contains fields: in `{<user>}:rpm`, the value of the field `user` is between two pieces of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(usize),
}

impl Template {
    /// Reads a word in which each `<name>` stands for a field.
    ///
    /// # Errors
    /// Returns [`PolicyError::Field`] for a `<` without a name or without its `>`.
    pub fn parse(word: &str, fields: &mut Fields) -> Result<Self, PolicyError> {
        let mut pieces = Vec::new();
        let mut rest = word;
        while let Some((text, behind)) = rest.split_once('<') {
            let field = behind.split_once('>').filter(|(name, _)| !name.is_empty() && !name.contains('<'));
            let (name, behind) = field.ok_or_else(|| PolicyError::Field(word.to_owned()))?;
            if !text.is_empty() {
                pieces.push(Piece::Text(text.as_bytes().to_owned()));
            }
            pieces.push(Piece::Field(fields.position(name)));
            rest = behind;
        }
        if !rest.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Text(rest.as_bytes().to_owned()));
        }
        Ok(Self(pieces))
    }

    /// Returns the bytes for a call with these fields, or `None` if a field is missing or empty.
    ///
    /// They are in `buffer`, unless they are the value of a single field.
    pub fn render<'a>(&self, values: &[&'a [u8]], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let value = |field: &usize| values.get(*field).copied().filter(|value| !value.is_empty());
        if let [Piece::Field(field)] = self.0.as_slice() {
            return value(field);
        }
        buffer.clear();
        for piece in &self.0 {
            buffer.extend_from_slice(match piece {
                Piece::Text(text) => text,
                Piece::Field(field) => value(field)?,
            });
        }
        Some(buffer)
    }

    /// Returns the text before the first field, the template from the first to the last field, which is all
    /// that differs between calls, and the text after the last field.
    pub fn split(&self) -> (&[u8], Self, &[u8]) {
        let (before, rest) = match self.0.as_slice() {
            [Piece::Text(text), rest @ ..] => (text.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let (rest, behind) = match rest {
            [rest @ .., Piece::Text(text)] => (rest, text.as_slice()),
            rest => (rest, &[][..]),
        };
        (before, Self(rest.to_vec()), behind)
    }
}

/// A number in a policy: the same for all calls, or the value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// The same for all calls.
    Always(i64),
    /// The value of the field at this position.
    Field(usize),
}

impl Amount {
    /// Reads a number within `range`, or `<name>`.
    ///
    /// # Errors
    /// Returns [`PolicyError::Limiter`] for a number that is not an integer or is out of range.
    pub(crate) fn parse(word: &str, range: &Range, fields: &mut Fields) -> Result<Self, PolicyError> {
        match word.strip_prefix('<').and_then(|name| name.strip_suffix('>')) {
            Some(name) if !name.is_empty() => Ok(Self::Field(fields.position(name))),
            _ => Ok(Self::Always(range.parse(word.as_bytes())?)),
        }
    }

    /// Returns the number for a call with these fields. A missing field is 0, and a fraction is rounded up.
    ///
    /// Returns `None` if the value of the field is not a number, is negative, or is above 2^63 - 1.
    pub fn of(self, values: &[&[u8]]) -> Option<i64> {
        match self {
            Self::Always(number) => Some(number),
            Self::Field(field) => number(values.get(field).copied().unwrap_or_default()),
        }
    }
}

/// Reads a decimal number, and rounds it up to an integer.
fn number(value: &[u8]) -> Option<i64> {
    let mut integer: i64 = 0;
    let mut digits = value.iter();
    for byte in digits.by_ref() {
        match byte {
            b'0'..=b'9' => {
                integer = integer.checked_mul(10)?.checked_add(i64::from(byte.wrapping_sub(b'0')))?;
            }
            b'.' => {
                let rest = digits.as_slice();
                let more = rest.iter().any(|&digit| digit != b'0');
                return if rest.iter().all(u8::is_ascii_digit) {
                    integer.checked_add(i64::from(more))
                } else {
                    None
                };
            }
            _ => return None,
        }
    }
    Some(integer)
}
