//! Strict readers of JSON and YAML: they accept only texts that all readers of these formats understand alike.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reads JSON. Refuses a key that appears twice, because JSON readers differ in which value they use.
pub fn json(text: &str) -> Value {
    let Unique(value) = serde_json::from_str(text).unwrap();
    value
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        deserializer.deserialize_any(AnyValue).map(Unique)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some((key, Unique(value))) = entries.next_entry::<String, Unique>()? {
            if all.insert(key.clone(), value).is_some() {
                return Err(A::Error::custom(format!("{key} appears twice")));
            }
        }
        Ok(all.into())
    }
}

/// Reads a subset of YAML: maps and lists by indentation, and texts on one line. Panics on everything else, such as
/// anchors, lists in brackets and folded texts.
pub fn yaml(text: &str) -> Value {
    let mut lines: Vec<(usize, &str)> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
        assert!(
            !line.contains('\t') && line.trim_end() == line,
            "no tabs and no trailing white space: {line}"
        );
        let content = line.trim_start();
        lines.push((line.len() - content.len(), content));
    }
    let (value, rest) = block(lines);
    assert!(rest.is_empty(), "indented less than the first line: {rest:?}");
    value
}

/// Reads the lines with the indentation of the first one, and returns the remaining lines.
fn block(mut lines: Vec<(usize, &str)>) -> (Value, Vec<(usize, &str)>) {
    let indent = lines.first().unwrap().0;
    if lines[0].1.starts_with("- ") {
        let mut items = Vec::new();
        while lines.first().is_some_and(|(column, content)| *column == indent && content.starts_with("- ")) {
            // An item is a block that begins two columns to the right.
            lines[0] = (indent + 2, &lines[0].1[2..]);
            let (item, rest) = block(lines);
            items.push(item);
            lines = rest;
        }
        return (items.into(), lines);
    }
    let mut map = Map::new();
    while let Some((column, content)) = lines.first().copied().filter(|(column, _)| *column >= indent) {
        assert_eq!(column, indent, "a key should have the indentation of its map: {content}");
        let (key, value) = content.split_once(':').unwrap_or_else(|| panic!("no key: {content}"));
        assert!(key.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_'), "{content}");
        lines.remove(0);
        let value = match value.strip_prefix(' ') {
            Some(text) => scalar(text).into(),
            None => {
                assert!(
                    value.is_empty() && lines.first().is_some_and(|(column, _)| *column > indent),
                    "{content}"
                );
                let (value, rest) = block(lines);
                lines = rest;
                value
            }
        };
        assert!(map.insert(key.to_owned(), value).is_none(), "{key} appears twice");
    }
    (map.into(), lines)
}

fn scalar(text: &str) -> String {
    if let Some(inside) = text.strip_prefix('\'') {
        let inside = inside.strip_suffix('\'').unwrap_or_else(|| panic!("no closing quote: {text}"));
        assert!(
            !inside.replace("''", "").contains('\''),
            "a quote within the text should be doubled: {text}"
        );
        return inside.replace("''", "'");
    }
    if text.starts_with('"') {
        // JSON's escapes have the same meaning in YAML.
        return serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    assert!(
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.bytes().all(is_plain),
        "a text with other characters should be in quotes: {text}"
    );
    text.to_owned()
}
