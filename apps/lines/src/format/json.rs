//! Lines of JSON: finds the values of some paths without parsing the rest.

use core::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Place;

/// The paths of the values to find, as a tree.
#[derive(Debug, Default)]
pub struct Tree {
    root: Node,
    count: usize,
}

#[derive(Debug, Default)]
struct Node {
    children: Vec<(String, Node)>,
    /// The number of the path that ends here.
    number: Option<usize>,
}

impl Tree {
    /// Returns the number of a path such as `request.headers.User-Agent`, which is added if it is new.
    ///
    /// A dot may also be part of a name.
    pub fn add(&mut self, path: &str) -> usize {
        let number = *self.root.child(path).number.get_or_insert(self.count);
        let (mut node, mut rest) = (&mut self.root, path);
        while let Some((name, behind)) = rest.split_once('.') {
            node = node.child(name);
            node.child(behind).number = Some(number);
            rest = behind;
        }
        self.count = self.count.max(number.saturating_add(1));
        number
    }

    /// Returns the number of paths.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Finds the values of a line. Returns `false` if the line is not an object.
    pub fn read(&self, line: &[u8], places: &mut [Place], buffer: &mut Vec<u8>) -> bool {
        places.fill(Place { range: 0..0, buffered: true });
        buffer.clear();
        let mut json = serde_json::Deserializer::from_slice(line);
        let values = Values { node: &self.root, places, buffer };
        json.deserialize_map(values).is_ok() && json.end().is_ok()
    }
}

impl Node {
    fn child(&mut self, name: &str) -> &mut Self {
        let at = self.children.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.children.push((name.to_owned(), Self::default()));
            self.children.len().saturating_sub(1)
        });
        #[expect(clippy::indexing_slicing, reason = "the position was just found or made")]
        &mut self.children[at].1
    }
}

/// Copies the values below a node.
struct Values<'t, 'b> {
    node: &'t Node,
    places: &'b mut [Place],
    buffer: &'b mut Vec<u8>,
}

impl<'de> Visitor<'de> for Values<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { node, places, buffer } = self;
        while let Some(child) = map.next_key_seed(Name(node))? {
            match child {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(child) => {
                    let raw: &'de RawValue = map.next_value()?;
                    if raw.get().starts_with('{') {
                        let mut json = serde_json::Deserializer::from_str(raw.get());
                        let values = Values { node: child, places: &mut *places, buffer: &mut *buffer };
                        json.deserialize_map(values).map_err(A::Error::custom)?;
                    } else if let Some(place) = child.number.and_then(|number| places.get_mut(number)) {
                        let start = buffer.len();
                        copy(raw.get(), buffer);
                        *place = Place { range: start..buffer.len(), buffered: true };
                    }
                }
            }
        }
        Ok(())
    }
}

/// Copies a value as text: a string without quotation marks, the first value of a list, and nothing for null.
fn copy(raw: &str, buffer: &mut Vec<u8>) {
    let inside = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
    match inside {
        Some(plain) if !plain.contains('\\') => buffer.extend_from_slice(plain.as_bytes()),
        Some(_) => {
            let text: String = serde_json::from_str(raw).unwrap_or_default();
            buffer.extend_from_slice(text.as_bytes());
        }
        None if raw.starts_with('[') => {
            let list: Vec<&RawValue> = serde_json::from_str(raw).unwrap_or_default();
            if let Some(first) = list.first().filter(|first| !first.get().starts_with('[')) {
                copy(first.get(), buffer);
            }
        }
        None if raw == "null" => {}
        None => buffer.extend_from_slice(raw.as_bytes()),
    }
}

/// Finds the child of a node that has a name.
struct Name<'t>(&'t Node);

impl<'de, 't> DeserializeSeed<'de> for Name<'t> {
    type Value = Option<&'t Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'t> Visitor<'_> for Name<'t> {
    type Value = Option<&'t Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.children.iter().find(|(known, _)| known == name).map(|(_, child)| child))
    }
}
