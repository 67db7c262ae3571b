//! Reads the test vectors in `core/wire/golden`: a name in brackets, then its bytes in hex; `#` begins a comment.
#![allow(dead_code, reason = "no test program uses all of this module")]

use std::collections::BTreeMap;

/// Vectors by name.
pub struct Vectors(BTreeMap<&'static str, Vec<u8>>);

impl Vectors {
    /// Parses the text of a vector file.
    pub fn read(text: &'static str) -> Vectors {
        let mut vectors = BTreeMap::new();
        let mut name = None;
        for line in text.lines() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if let Some(rest) = content.strip_prefix('[') {
                let next = rest.strip_suffix(']').unwrap_or_else(|| panic!("a name without an end: {line}"));
                assert!(vectors.insert(next, Vec::new()).is_none(), "two vectors are called {next:?}");
                name = Some(next);
            } else if !content.is_empty() {
                let vector = name.and_then(|name| vectors.get_mut(name)).expect("a name comes first");
                assert!(content.len().is_multiple_of(2), "half a byte: {line}");
                vector.extend((0..content.len()).step_by(2).map(|at| {
                    u8::from_str_radix(&content[at..at + 2], 16).unwrap_or_else(|_| panic!("no hex: {line}"))
                }));
            }
        }
        Vectors(vectors)
    }

    /// The bytes of a vector.
    pub fn bytes(&self, name: &str) -> &[u8] {
        self.0.get(name).unwrap_or_else(|| panic!("there is no vector {name:?}"))
    }

    /// The bytes of a vector of known length.
    pub fn array<const N: usize>(&self, name: &str) -> [u8; N] {
        self.bytes(name).try_into().unwrap_or_else(|_| panic!("{name:?} has not {N} bytes"))
    }

    /// All vectors with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (*name, bytes.as_slice()))
    }
}

/// Bytes in hex, as in the vector files; for messages.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
