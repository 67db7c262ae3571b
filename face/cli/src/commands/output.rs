//! What commands print: lines for people, or with `--json` one envelope for programs.

use std::fmt::Display;
use std::io::{self, BufWriter, Write, stdout};
use std::process::ExitCode;

use serde_json::{Value, json};
use spillway_daemon::deprecated;

/// Version of the envelope's format.
const SCHEMA: u32 = 1;

#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Lines on standard output without `--json`.
    pub lines: Vec<String>,
    /// The field `result` of the envelope.
    pub result: Value,
    /// Problems that do not make the command fail; also printed on standard error.
    pub warnings: Vec<String>,
    /// Reasons of a failure; also printed on standard error.
    pub errors: Vec<String>,
    /// Makes the exit code 1 without an error text, as for findings of `doctor`.
    pub is_failure: bool,
}

impl Report {
    /// The report of a command that did nothing because of an error.
    pub fn failed(error: impl Display) -> Report {
        Report { errors: vec![error.to_string()], ..Report::default() }
    }

    /// Collects the outcomes of several actions. An error of one action does not discard the others' results.
    pub fn gather<T>(outcomes: impl IntoIterator<Item = Result<T, String>>) -> (Vec<T>, Report) {
        let (mut results, mut report) = (Vec::new(), Report::default());
        for outcome in outcomes {
            match outcome {
                Ok(result) => results.push(result),
                Err(error) => report.errors.push(error),
            }
        }
        (results, report)
    }

    pub fn print(self, command: &str, as_json: bool) -> ExitCode {
        self.print_texts();
        let exit_code = self.exit_code();
        if as_json {
            return print_and_end([format!("{:#}", self.envelope(command))], exit_code);
        }
        print_and_end(self.lines, exit_code)
    }

    /// Prints the envelope on one line, for a command that prints several envelopes. Returns the exit code.
    pub fn print_on_one_line(self, command: &str) -> ExitCode {
        self.print_texts();
        let exit_code = self.exit_code();
        print_and_end([self.envelope(command)], exit_code)
    }

    fn print_texts(&self) {
        for text in self.warnings.iter().chain(&self.errors) {
            eprintln!("spillway: {text}");
        }
    }

    fn exit_code(&self) -> ExitCode {
        if self.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// The document for programs; docs/commands.md has its schema.
    pub fn envelope(self, command: &str) -> Value {
        let mut envelope = json!({
            "schema": SCHEMA,
            "command": command,
            "ok": self.is_ok(),
            "warnings": self.warnings,
            "errors": self.errors,
        });
        deprecated::copy_result_to_top_level(&mut envelope, &self.result);
        envelope["result"] = self.result;
        envelope
    }

    fn is_ok(&self) -> bool {
        self.errors.is_empty() && !self.is_failure
    }
}

/// Prints lines on standard output. A reader that closes the pipe early (`| head`) is not a failure.
pub(crate) fn print(lines: impl IntoIterator<Item: Display>) -> ExitCode {
    print_and_end(lines, ExitCode::SUCCESS)
}

/// Prints lines, and returns `exit_code` unless they cannot be printed.
fn print_and_end(lines: impl IntoIterator<Item: Display>, exit_code: ExitCode) -> ExitCode {
    let mut out = BufWriter::new(stdout().lock());
    let printed = lines.into_iter().try_for_each(|line| writeln!(out, "{line}")).and_then(|()| out.flush());
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("spillway: cannot print: {error}");
            ExitCode::FAILURE
        }
        _ => exit_code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_contains_results_and_errors() {
        let (done, report) = Report::gather([Ok(1), Err("two".to_owned()), Ok(3)]);
        let report = Report { result: json!({ "done": done }), warnings: vec!["slow".into()], ..report };
        let expected = json!({
            "schema": 1, "command": "count", "ok": false, "warnings": ["slow"], "errors": ["two"],
            "result": { "done": [1, 3] },
            "done": [1, 3],
        });
        assert_eq!(report.envelope("count"), expected);
        let failed = Report { result: json!([]), is_failure: true, ..Report::default() }.envelope("x");
        assert_eq!(
            (&failed["ok"], &failed["result"], &failed["errors"]),
            (&json!(false), &json!([]), &json!([]))
        );
    }

    #[test]
    fn a_result_does_not_replace_the_envelopes_own_fields() {
        let result = json!({ "command": "other", "ok": 7 });
        let envelope = Report { result: result.clone(), ..Report::default() }.envelope("status");
        assert_eq!(
            (&envelope["command"], &envelope["ok"], &envelope["result"]),
            (&json!("status"), &json!(true), &result)
        );
    }
}
