//! What is wrong in a configuration file, and where.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// One thing to be put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Of the file, from 1; 0 when it concerns the file as a whole.
    pub line: usize,
    /// Of the line, from 1, in characters.
    pub column: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Problem {
    /// At a range of the text's bytes.
    pub(crate) fn at(text: &str, place: Range<usize>, what: String) -> Problem {
        let mut start = place.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        Problem { line, column: 1 + before[line_start..].chars().count(), what }
    }
}

/// Everything that is wrong in a configuration file, in the order of its lines; at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The file.
    pub path: PathBuf,
    /// What is wrong in it.
    pub problems: Vec<Problem>,
}

/// As compilers say it: one problem a line, `FILE:LINE:COLUMN: what`.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (index, Problem { line, column, what }) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            match line {
                0 => write!(f, "{path}: {what}")?,
                _ => write!(f, "{path}:{line}:{column}: {what}")?,
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
    fn places_are_lines_and_characters() {
        let text = "ä = 1\n  béta = 2\n";
        let place = |at| Problem::at(text, at..at, String::new());
        assert_eq!((place(0).line, place(0).column), (1, 1));
        let second = text.find("béta").unwrap();
        assert_eq!((place(second).line, place(second).column), (2, 3));
        let value = text.find('2').unwrap();
        assert_eq!((place(value).line, place(value).column), (2, 10));
        assert_eq!(place(1).column, 1, "within a character");
        assert_eq!((place(999).line, place(999).column), (3, 1));
    }
}
