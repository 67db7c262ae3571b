//! Files for the tests of the reader.

use std::path::{Path, PathBuf};

use crate::status::layout;

/// Writes a page that has only these words.
pub(super) fn write(path: &Path, header: &[(usize, u64)]) {
    let mut words = vec![0; layout::WORDS];
    header.iter().for_each(|(at, word)| words[*at] = *word);
    let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
    std::fs::write(path, bytes).unwrap();
}

pub(super) fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("spillway-{name}-{}", std::process::id()))
}
