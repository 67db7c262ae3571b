//! The result of one check.

use std::fmt;

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ok,
    /// Works with a drawback, or for some purposes only.
    Warning,
    /// A requested feature cannot work.
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) state: State,
    pub(super) found: String,
    /// The next step; empty if nothing has to be done.
    pub(super) next: String,
}

impl Finding {
    pub(super) fn ok(what: &'static str, found: impl Into<String>) -> Finding {
        Finding { what, state: State::Ok, found: found.into(), next: String::new() }
    }

    pub(super) fn warning(what: &'static str, found: impl Into<String>, next: impl Into<String>) -> Finding {
        Finding { what, state: State::Warning, found: found.into(), next: next.into() }
    }

    pub(super) fn missing(what: &'static str, found: impl Into<String>, next: impl Into<String>) -> Finding {
        Finding { what, state: State::Missing, found: found.into(), next: next.into() }
    }

    pub(super) fn as_json(&self) -> Value {
        let next = (!self.next.is_empty()).then_some(&self.next);
        json!({ "what": self.what, "state": self.state.name(), "found": self.found, "next": next })
    }
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Missing => "missing",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8} {:16} {}", self.state.name(), self.what, self.found)?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "\n{:25}{}", "", self.next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_step_is_printed_on_its_own_line() {
        let finding = Finding::missing("kernel", "3.10", "use 4.14 or later");
        let text = finding.to_string();
        assert!(
            text.starts_with("missing  kernel")
                && text.ends_with("\n                         use 4.14 or later")
        );
        assert_eq!(Finding::ok("kernel", "6.1").to_string(), "ok       kernel           6.1");
        assert_eq!(finding.as_json()["state"], "missing");
        assert_eq!(Finding::ok("a", "b").as_json()["next"], Value::Null);
    }
}
