//! Parses the values of a file, and collects the errors.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use spillway_values::{duration_text, is_name, parse_duration, parse_rate, parse_size, size_text};
use toml::Value;

use crate::problem::Problem;
use crate::schema::{Any, Texts};

/// Parses values, and collects their errors. A value that is missing or has an error is `None`.
#[derive(Debug)]
pub struct Values<'a> {
    /// The whole configuration, for the lines and columns of errors.
    text: &'a str,
    problems: Vec<Problem>,
}

impl<'a> Values<'a> {
    /// `text`: the whole configuration.
    pub fn new(text: &'a str) -> Values<'a> {
        Values { text, problems: Vec::new() }
    }

    /// `value`, or all errors that were collected, ordered by line.
    ///
    /// # Errors
    /// At least one error was collected.
    pub fn finish<T>(mut self, value: T) -> Result<T, Vec<Problem>> {
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        if self.problems.is_empty() { Ok(value) } else { Err(self.problems) }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, setting: &Any) -> Option<bool> {
        let value = setting.as_ref()?;
        let found = value.get_ref().as_bool();
        if found.is_none() {
            self.problem(value.span(), "give true or false");
        }
        found
    }

    /// A whole number in a range.
    pub fn number<N>(&mut self, setting: &Any, range: RangeInclusive<N>) -> Option<N>
    where
        N: TryFrom<i64> + PartialOrd + Display,
    {
        let value = setting.as_ref()?;
        let found = value.get_ref().as_integer().and_then(|number| N::try_from(number).ok());
        let found = found.filter(|number| range.contains(number));
        if found.is_none() {
            let message = format!("give a whole number from {} to {}", range.start(), range.end());
            self.problem(value.span(), message);
        }
        found
    }

    /// A time with its unit, in a range.
    pub fn time(&mut self, setting: &Any, range: RangeInclusive<Duration>) -> Option<Duration> {
        let (text, span) = self.string(setting)?;
        let time = self.checked(&span, parse_duration(&text))?;
        if range.contains(&time) {
            return Some(time);
        }
        let (min, max) = (duration_text(*range.start()), duration_text(*range.end()));
        self.problem(span, format!("give a time from {min} to {max}"));
        None
    }

    /// A size with its unit, in bytes, in a range.
    pub fn size(&mut self, setting: &Any, range: RangeInclusive<u64>) -> Option<u64> {
        let (text, span) = self.string(setting)?;
        let size = self.checked(&span, parse_size(&text))?;
        if range.contains(&size) {
            return Some(size);
        }
        let (min, max) = (size_text(*range.start()), size_text(*range.end()));
        self.problem(span, format!("give a size from {min} to {max}"));
        None
    }

    /// A rate with its unit, in bits per second, above 0.
    pub fn rate(&mut self, setting: &Any) -> Option<u64> {
        let (text, span) = self.string(setting)?;
        let bits = self.checked(&span, parse_rate(&text))?;
        if bits == 0 {
            self.problem(span, "give a rate above 0, or leave the key out");
            return None;
        }
        Some(bits)
    }

    /// The value of one of the given texts.
    pub fn choice<T: Copy>(&mut self, setting: &Any, choices: &[(&str, T)]) -> Option<T> {
        let (text, span) = self.string(setting)?;
        let found = choices.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            self.problem(span, format!("give {}", names.join(" or ")));
        }
        found.map(|(_, choice)| *choice)
    }

    /// A name, see [`is_name`].
    pub fn name(&mut self, setting: &Any) -> Option<String> {
        let (text, span) = self.string(setting)?;
        if is_name(&text) {
            return Some(text);
        }
        self.problem(span, "a name has 1 to 64 letters, digits, '-', '_' and '.'");
        None
    }

    /// An absolute path.
    pub fn path(&mut self, setting: &Any) -> Option<PathBuf> {
        let (text, span) = self.string(setting)?;
        if Path::new(&text).is_absolute() {
            return Some(text.into());
        }
        self.problem(span, "give an absolute path");
        None
    }

    /// A text that has a type of its own.
    pub fn parsed<T>(&mut self, setting: &Any) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let (text, span) = self.string(setting)?;
        self.checked(&span, text.parse())
    }

    /// The texts of a list that have a type of their own, without those that have an error.
    pub fn parsed_list<T>(&mut self, texts: &Texts) -> Vec<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let texts = texts.iter().flat_map(|list| list.get_ref());
        texts.filter_map(|text| self.checked(&text.span(), text.get_ref().parse())).collect()
    }

    /// A text, and its place in the configuration.
    pub fn string(&mut self, setting: &Any) -> Option<(String, Range<usize>)> {
        let value = setting.as_ref()?;
        match value.get_ref() {
            Value::String(text) => Some((text.clone(), value.span())),
            // This case includes a number without a unit (`max_delay = 5`): the message therefore mentions units.
            other => {
                let message =
                    format!("give a text in quotes, with its unit if it has one, not {}", kind_of(other));
                self.problem(value.span(), message);
                None
            }
        }
    }

    /// The value of a result, or `None` after its error is collected.
    pub fn checked<T, E: Display>(&mut self, span: &Range<usize>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.problem(span.clone(), error.to_string())).ok()
    }

    /// Collects an error at this place in the configuration.
    pub fn problem(&mut self, span: Range<usize>, message: impl Into<String>) {
        self.problems.push(Problem::at(self.text, span, message.into()));
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct One {
        key: Any,
    }

    /// Applies `read` to the value of a text; returns the value, or the only error.
    fn read<T>(value: &str, read: impl FnOnce(&mut Values<'_>, &Any) -> Option<T>) -> Result<T, String> {
        let text = format!("key = {value}\n");
        let one: One = toml::from_str(&text).unwrap();
        let mut values = Values::new(&text);
        let found = read(&mut values, &one.key);
        let found = values.finish(found).map_err(|problems| {
            assert_eq!(problems.len(), 1, "{problems:?}");
            format!("{}:{}: {}", problems[0].line, problems[0].column, problems[0].message)
        })?;
        Ok(found.expect("a value without an error"))
    }

    #[test]
    fn each_kind_has_its_error_with_the_next_step() {
        assert_eq!(read("7", |v, s| v.number(s, 1..=9_u8)), Ok(7));
        let second = Duration::from_secs(1);
        assert_eq!(read("\"1s\"", |v, s| v.time(s, Duration::ZERO..=second)), Ok(second));
        assert_eq!(read("\"2KiB\"", |v, s| v.size(s, 0..=4096)), Ok(2048));
        assert_eq!(read("\"2kbit\"", |v, s| v.rate(s)), Ok(2_000));
        let choices = [("on", 1), ("off", 0)];
        assert_eq!(read("\"off\"", |v, s| v.choice(s, &choices)), Ok(0));
        assert_eq!(read("false", |v, s| v.flag(s)), Ok(false));
        assert_eq!(read("\"10.0.0.1\"", |v, s| v.parsed(s)), Ok(std::net::Ipv4Addr::new(10, 0, 0, 1)));
        let errors = [
            (read("300", |v, s| v.number(s, 1..=9_u8)).map(drop), "1:7: give a whole number from 1 to 9"),
            (read("\"7\"", |v, s| v.number(s, 1..=9_u8)).map(drop), "1:7: give a whole number from 1 to 9"),
            (
                read("\"2s\"", |v, s| v.time(s, Duration::ZERO..=second)).map(drop),
                "1:7: give a time from 0s to 1s",
            ),
            (read("\"8KiB\"", |v, s| v.size(s, 0..=4096)).map(drop), "1:7: give a size from 0B to 4KiB"),
            (read("\"0kbit\"", |v, s| v.rate(s)).map(drop), "1:7: give a rate above 0, or leave the key out"),
            (read("\"2s\"", |v, s| v.rate(s)).map(drop), "1:7: give a rate with its unit"),
            (read("\"auto\"", |v, s| v.choice(s, &choices)).map(drop), "1:7: give \"on\" or \"off\""),
            (read("5", |v, s| v.string(s)).map(drop), "1:7: give a text in quotes, with its unit"),
            (read("\"a b\"", |v, s| v.name(s)).map(drop), "1:7: a name has 1 to 64"),
            (read("\"a\"", |v, s| v.path(s)).map(drop), "1:7: give an absolute path"),
            (read("\"a\"", |v, s| v.parsed::<u8>(s)).map(drop), "1:7: invalid digit"),
            (read("1", |v, s| v.flag(s)).map(drop), "1:7: give true or false"),
        ];
        for (result, expected) in errors {
            let error = result.expect_err(expected);
            assert!(error.starts_with(expected), "{error}; expected {expected}");
        }
    }

    #[test]
    fn a_list_keeps_the_values_without_an_error() {
        #[derive(Deserialize)]
        struct List {
            key: Texts,
        }
        let text = "key = [\"1\", \"a\", \"2\"]\n";
        let list: List = toml::from_str(text).unwrap();
        let mut values = Values::new(text);
        assert_eq!(values.parsed_list::<u8>(&list.key), [1, 2]);
        assert_eq!(values.parsed_list::<u8>(&None), []);
        let problems = values.finish(()).unwrap_err();
        assert_eq!(problems.iter().map(|problem| problem.column).collect::<Vec<_>>(), [13]);
    }

    #[test]
    fn errors_are_ordered_by_line() {
        let text = "a\nb\nc\n";
        let mut values = Values::new(text);
        values.problem(4..5, "second");
        values.problem(0..1, "first");
        let problems = values.finish(()).unwrap_err();
        assert_eq!(problems.iter().map(|problem| problem.line).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(Values::new(text).finish(5), Ok(5));
    }
}
