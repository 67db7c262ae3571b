//! Errors in case files, with their position.

use std::fmt;
use std::path::PathBuf;

/// A place in a text file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
}

/// A mistake in the text of a case file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The first character of the wrong word.
    pub position: Position,
    /// What is wrong, and what is expected instead.
    pub message: String,
}

impl TextError {
    pub(crate) fn new(position: Position, message: impl Into<String>) -> TextError {
        TextError { position, message: message.into() }
    }
}

/// A case file that cannot be used.
#[derive(Debug)]
pub enum CaseFileError {
    /// The file cannot be read.
    Read(PathBuf, std::io::Error),
    /// The file's text is wrong.
    Text(PathBuf, TextError),
}

impl fmt::Display for CaseFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaseFileError::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            CaseFileError::Text(path, TextError { position, message }) => {
                write!(f, "{}:{}:{}: {message}", path.display(), position.line, position.column)
            }
        }
    }
}

impl std::error::Error for CaseFileError {}
