//! The words of a case file.
//!
//! A line that begins with white space continues the line before it. `#` at the beginning of a word starts a comment.
//! `:` and `,` at the end of a word are words of their own. A word in double quotes may contain white space.

use std::net::IpAddr;
use std::str::FromStr;

use crate::error::{Position, TextError};

/// A word with its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    pub(crate) position: Position,
}

impl Word<'_> {
    pub(crate) fn error(&self, message: impl Into<String>) -> TextError {
        TextError::new(self.position, message)
    }
}

/// A line with its continuations, read word by word.
#[derive(Clone, Debug)]
pub(crate) struct Line<'a> {
    words: Vec<Word<'a>>,
    next: usize,
    end: Position,
}

/// Splits a text into lines. Empty lines and comments are left out.
pub(crate) fn lines(text: &str) -> Result<Vec<Line<'_>>, TextError> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (number, row) in text.lines().enumerate() {
        let words = words(row, number + 1)?;
        if words.is_empty() {
            continue;
        }
        let end = Position { line: number + 1, column: row.chars().count() + 1 };
        if row.starts_with(char::is_whitespace) {
            let line = lines.last_mut().ok_or_else(|| {
                words[0]
                    .error("the first line must not begin with white space: such a line continues another")
            })?;
            line.words.extend(words);
            line.end = end;
        } else {
            lines.push(Line { words, next: 0, end });
        }
    }
    Ok(lines)
}

fn words(row: &str, line: usize) -> Result<Vec<Word<'_>>, TextError> {
    let mut words = Vec::new();
    let mut rest = row;
    loop {
        rest = rest.trim_start();
        let start = row.len() - rest.len();
        let position = Position { line, column: row[..start].chars().count() + 1 };
        if rest.is_empty() || rest.starts_with('#') {
            return Ok(words);
        }
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted
                .find('"')
                .ok_or_else(|| TextError::new(position, "the closing quotation mark is missing"))?;
            words.push(Word { text: &quoted[..end], position });
            rest = &quoted[end + 1..];
            continue;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        match word.strip_suffix([':', ',']) {
            Some(stem) if !stem.is_empty() => {
                words.push(Word { text: stem, position });
                let column = position.column + stem.chars().count();
                words.push(Word { text: &word[stem.len()..], position: Position { line, column } });
            }
            _ => words.push(Word { text: word, position }),
        }
    }
}

impl<'a> Line<'a> {
    /// The next word, which stays.
    pub(crate) fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).map(|word| word.text)
    }

    /// Whether all words are read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.next == self.words.len()
    }

    /// Position of the next word, or of the end.
    pub(crate) fn position(&self) -> Position {
        self.words.get(self.next).map_or(self.end, |word| word.position)
    }

    /// An error at the next word.
    pub(crate) fn error(&self, message: impl Into<String>) -> TextError {
        TextError::new(self.position(), message)
    }

    /// Reads a word. `what` describes the word for the error.
    pub(crate) fn word(&mut self, what: &str) -> Result<Word<'a>, TextError> {
        let word =
            self.words.get(self.next).copied().ok_or_else(|| self.error(format!("{what} is missing")))?;
        if matches!(word.text, ":" | ",") {
            return Err(word.error(format!("expected {what}, not `{}`", word.text)));
        }
        self.next += 1;
        Ok(word)
    }

    /// Reads this word if it is the next one.
    pub(crate) fn accept(&mut self, text: &str) -> bool {
        let is_next = self.peek() == Some(text);
        self.next += usize::from(is_next);
        is_next
    }

    /// Reads this word.
    pub(crate) fn expect(&mut self, text: &str) -> Result<(), TextError> {
        if self.accept(text) { Ok(()) } else { Err(self.error(format!("expected `{text}`"))) }
    }

    /// Checks that all words are read.
    pub(crate) fn end(&self) -> Result<(), TextError> {
        match self.peek() {
            None => Ok(()),
            Some(text) => Err(self.error(format!("unexpected `{text}`"))),
        }
    }

    /// Reads a word that is parsed by its type.
    pub(crate) fn parse<T: FromStr>(&mut self, what: &str) -> Result<T, TextError> {
        let word = self.word(what)?;
        word.text.parse().map_err(|_| word.error(format!("`{}` is not {what}", word.text)))
    }

    /// Reads a word that is parsed by its type, if the next word is one.
    pub(crate) fn accept_parsed<T: FromStr>(&mut self) -> Option<T> {
        let value = self.peek()?.parse().ok()?;
        self.next += 1;
        Some(value)
    }

    /// Reads a number: decimal, or hexadecimal after `0x`.
    pub(crate) fn number<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T, TextError> {
        let word = self.word(what)?;
        number(word.text)
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| word.error(format!("`{}` is not {what}", word.text)))
    }

    /// Reads a time: `0`, `10ms`, `1.5s`, `20us` or `7ns`. The result is in nanoseconds.
    pub(crate) fn time(&mut self, what: &str) -> Result<u64, TextError> {
        let word = self.word(what)?;
        time(word.text).ok_or_else(|| {
            word.error(format!("`{}` is not {what}: write 0, 7ns, 20us, 10ms or 1.5s", word.text))
        })
    }

    /// Reads an address.
    pub(crate) fn address(&mut self) -> Result<IpAddr, TextError> {
        self.parse("an IP address")
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn time(text: &str) -> Option<u64> {
    let (digits, unit_ns) = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)]
        .iter()
        .find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, *ns)))
        .or((text == "0").then_some((text, 1)))?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut ns = whole.parse::<u64>().ok()?.checked_mul(unit_ns)?;
    let mut place_ns = unit_ns;
    for digit in fraction.chars() {
        place_ns /= 10;
        ns += u64::from(digit.to_digit(10)?) * place_ns;
    }
    Some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_positions() {
        let text = "# comment\nat 10ms clients: tcp \"a b\",\n   more # comment\n\nend";
        let lines = lines(text).unwrap();
        let shown: Vec<Vec<(&str, usize, usize)>> = lines
            .iter()
            .map(|line| line.words.iter().map(|w| (w.text, w.position.line, w.position.column)).collect())
            .collect();
        let first = vec![
            ("at", 2, 1),
            ("10ms", 2, 4),
            ("clients", 2, 9),
            (":", 2, 16),
            ("tcp", 2, 18),
            ("a b", 2, 22),
            (",", 2, 27),
            ("more", 3, 4),
        ];
        assert_eq!(shown, [first, vec![("end", 5, 1)]]);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("0"), Some(0));
        assert_eq!(time("1.5s"), Some(1_500_000_000));
        assert_eq!(time("20us"), Some(20_000));
        assert_eq!(time("7ns"), Some(7));
        for wrong in ["7", "s", "1.xs", "", "-1s", "99999999999999s"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn errors_name_the_word() {
        let error = |text| {
            let mut line = lines(text).unwrap().remove(0);
            line.word("a keyword").unwrap();
            line.number::<u8>("a number up to 255").unwrap_err()
        };
        assert_eq!(error("port 300").position, Position { line: 1, column: 6 });
        assert_eq!(error("port 300").message, "`300` is not a number up to 255");
        assert_eq!(error("port").position, Position { line: 1, column: 5 });
        assert_eq!(error("port").message, "a number up to 255 is missing");
        assert!(lines("\"open").is_err());
        assert!(lines("  text").is_err());
    }
}
