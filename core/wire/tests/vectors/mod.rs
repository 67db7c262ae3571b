//! Reads the test vectors in `core/wire/golden`: a name in brackets, then its bytes in hex; `#` begins a comment.
#![allow(dead_code, reason = "no test program uses all of this module")]

use std::collections::BTreeMap;

pub struct Vectors(BTreeMap<&'static str, Vec<u8>>);

impl Vectors {
    pub fn read(text: &'static str) -> Vectors {
        let mut vectors = BTreeMap::new();
        let mut name = None;
        for line in text.lines() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if let Some(rest) = content.strip_prefix('[') {
                let next = rest
                    .strip_suffix(']')
                    .unwrap_or_else(|| panic!("missing ] after a vector's name: {line}"));
                assert!(
                    vectors.insert(next, Vec::new()).is_none(),
                    "no two vectors should have the name {next:?}"
                );
                name = Some(next);
            } else if !content.is_empty() {
                let vector = name
                    .and_then(|name| vectors.get_mut(name))
                    .expect("a vector file should begin with a name");
                assert!(content.len().is_multiple_of(2), "the number of hex digits should be even: {line}");
                vector.extend((0..content.len()).step_by(2).map(|offset| {
                    u8::from_str_radix(&content[offset..offset + 2], 16)
                        .unwrap_or_else(|_| panic!("not hex: {line}"))
                }));
            }
        }
        Vectors(vectors)
    }

    pub fn bytes(&self, name: &str) -> &[u8] {
        self.0.get(name).unwrap_or_else(|| panic!("vector {name:?} is missing"))
    }

    /// The bytes of a vector of known length.
    pub fn array<const N: usize>(&self, name: &str) -> [u8; N] {
        self.bytes(name).try_into().unwrap_or_else(|_| panic!("vector {name:?} should have {N} bytes"))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (*name, bytes.as_slice()))
    }
}

/// Bytes in hex, as in the vector files; for messages.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
