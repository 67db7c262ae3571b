//! Values of the settings: parses one value of each kind, and collects the errors.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_batch::AddressRange;
use spillway_daemon::AdminGroup;
use spillway_values::{duration_text, parse_duration, parse_rate, parse_size, server_address, size_text};
use toml::Value;

use crate::config::Problem;
use crate::config::name::is_name;
use crate::config::schema::{Any, Texts};

/// Parses values, and collects their errors. A value that is missing or has an error is `None`.
pub(super) struct Values<'a> {
    /// The whole configuration, for the lines and columns of errors.
    text: &'a str,
    problems: Vec<Problem>,
}

impl<'a> Values<'a> {
    pub(super) fn new(text: &'a str) -> Values<'a> {
        Values { text, problems: Vec::new() }
    }

    /// All errors so far, in the order in which they were found.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    pub(super) fn flag(&mut self, setting: &Any) -> Option<bool> {
        let value = setting.as_ref()?;
        let found = value.get_ref().as_bool();
        if found.is_none() {
            self.problem(value.span(), "give true or false");
        }
        found
    }

    pub(super) fn number(&mut self, setting: &Any, range: RangeInclusive<i64>) -> Option<i64> {
        let value = setting.as_ref()?;
        match value.get_ref() {
            Value::Integer(number) if range.contains(number) => Some(*number),
            _ => {
                let message = format!("give a whole number from {} to {}", range.start(), range.end());
                self.problem(value.span(), message);
                None
            }
        }
    }

    pub(super) fn time(&mut self, setting: &Any, range: RangeInclusive<Duration>) -> Option<Duration> {
        let (text, span) = self.string(setting)?;
        let time = self.checked(&span, parse_duration(&text))?;
        if range.contains(&time) {
            return Some(time);
        }
        let (min, max) = (duration_text(*range.start()), duration_text(*range.end()));
        self.problem(span, format!("give a time from {min} to {max}"));
        None
    }

    pub(super) fn size(&mut self, setting: &Any, range: RangeInclusive<u64>) -> Option<u64> {
        let (text, span) = self.string(setting)?;
        let size = self.checked(&span, parse_size(&text))?;
        if range.contains(&size) {
            return Some(size);
        }
        let (min, max) = (size_text(*range.start()), size_text(*range.end()));
        self.problem(span, format!("give a size from {min} to {max}"));
        None
    }

    pub(super) fn rate(&mut self, setting: &Any) -> Option<u64> {
        let (text, span) = self.string(setting)?;
        let bits = self.checked(&span, parse_rate(&text))?;
        if bits == 0 {
            self.problem(span, "give a rate above 0, or leave the key out");
            return None;
        }
        Some(bits)
    }

    pub(super) fn choice<T: Copy>(&mut self, setting: &Any, choices: &[(&str, T)]) -> Option<T> {
        let (text, span) = self.string(setting)?;
        let found = choices.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            self.problem(span, format!("give {}", names.join(" or ")));
        }
        found.map(|(_, choice)| *choice)
    }

    pub(super) fn name(&mut self, setting: &Any) -> Option<String> {
        let (text, span) = self.string(setting)?;
        if is_name(&text) {
            return Some(text);
        }
        self.problem(span, "a name has 1 to 64 letters, digits, '-', '_' and '.'");
        None
    }

    pub(super) fn path(&mut self, setting: &Any) -> Option<PathBuf> {
        let (text, span) = self.string(setting)?;
        if Path::new(&text).is_absolute() {
            return Some(text.into());
        }
        self.problem(span, "give an absolute path");
        None
    }

    pub(super) fn group(&mut self, setting: &Any) -> Option<AdminGroup> {
        let (text, span) = self.string(setting)?;
        self.checked(&span, text.parse())
    }

    /// The address of a server; looks a host name up.
    pub(super) fn address(&mut self, setting: &Any) -> Option<SocketAddr> {
        let (text, span) = self.string(setting)?;
        self.checked(&span, server_address(&text))
    }

    pub(super) fn ranges(&mut self, texts: &Texts) -> Vec<AddressRange> {
        let texts = texts.iter().flat_map(|list| list.get_ref());
        texts.filter_map(|text| self.checked(&text.span(), text.get_ref().parse())).collect()
    }

    /// A text, and its place in the configuration.
    pub(super) fn string(&mut self, setting: &Any) -> Option<(String, Range<usize>)> {
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
    pub(super) fn checked<T, E: Display>(&mut self, span: &Range<usize>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.problem(span.clone(), error.to_string())).ok()
    }

    /// Collects an error at this place in the configuration.
    pub(super) fn problem(&mut self, span: Range<usize>, message: impl Into<String>) {
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
