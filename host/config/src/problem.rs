//! Errors in a configuration file.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// One error in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line number, from 1; 0 for an error of the whole file.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The error, and how to correct it.
    pub message: String,
}

impl Problem {
    /// An error at a range of bytes in `text`. Control characters of a value that the message quotes are escaped, because
    /// messages are printed to terminals.
    pub fn at(text: &str, bytes: Range<usize>, message: String) -> Problem {
        let mut start = bytes.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        Problem { line, column: 1 + before[line_start..].chars().count(), message: escaped(&message) }
    }

    /// An error of the whole file.
    pub fn of_file(message: String) -> Problem {
        Problem { line: 0, column: 0, message }
    }
}

fn escaped(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() && c != '\n' { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}

/// All errors of a configuration file, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// Path of the file.
    pub path: PathBuf,
    /// The errors, ordered by line.
    pub problems: Vec<Problem>,
}

/// In the format of compilers, one error on each line: `FILE:LINE:COLUMN: message`.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (index, Problem { line, column, message }) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            match line {
                0 => write!(f, "{path}: {message}")?,
                _ => write!(f, "{path}:{line}:{column}: {message}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_counted_in_lines_and_characters() {
        let text = "ä = 1\n  béta = 2\n";
        let position = |at| Problem::at(text, at..at, String::new());
        assert_eq!((position(0).line, position(0).column), (1, 1));
        let second = text.find("béta").unwrap();
        assert_eq!((position(second).line, position(second).column), (2, 3));
        let value = text.find('2').unwrap();
        assert_eq!((position(value).line, position(value).column), (2, 10));
        assert_eq!(position(1).column, 1, "a position within a character should be that of the character");
        assert_eq!((position(999).line, position(999).column), (3, 1));
    }

    #[test]
    fn control_characters_are_escaped() {
        let problem = Problem::at("a", 0..1, "\u{1b}[31m is\nno name\u{9b}".to_owned());
        assert_eq!(problem.message, "\\u{1b}[31m is\nno name\\u{9b}");
    }
}
