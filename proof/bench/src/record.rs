//! Runs an experiment and writes its results, even if a signal, an error or a panic ends it early.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::error::Error;
use crate::machine::Machine;
use crate::results::Results;

/// Runs an experiment and writes its results to `file`, also when it stops early.
///
/// # Errors
/// The results cannot be written. Errors of the experiment are in the results: see [`Results::incomplete`].
pub fn run_and_record(
    name: &str,
    file: &Path,
    experiment: impl FnOnce() -> Result<Results, Error>,
) -> Result<Results, Error> {
    let empty = || Results::new(name, Machine::here());
    // Unwind safe: no state of a panicked experiment is used afterwards.
    let results = match catch_unwind(AssertUnwindSafe(experiment)) {
        Ok(Ok(results)) => results,
        Ok(Err(error)) => empty().with_outcome(Err(error)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            empty().with_outcome(Err(Error::process(format!("a panic: {text}"), "")))
        }
    };
    results.write(file).map_err(Error::writing(file))?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Row;

    fn record_and_read(
        test: &str,
        experiment: impl FnOnce() -> Result<Results, Error>,
    ) -> (Results, Results) {
        let name = format!("spillway-bench-stop-{test}-{}.json", std::process::id());
        let file = std::env::temp_dir().join(name);
        let results = run_and_record("burst", &file, experiment).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        (results, serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn results_are_written_after_success_errors_and_panics() {
        let complete = || {
            let mut results = Results::new("burst", Machine::here());
            results.rows.push(Row::new("helped", "moved_ms", "ms", &[140.0]));
            Ok(results)
        };
        let (returned, read) = record_and_read("complete", complete);
        assert!(returned == read && read.passed() && read.rows.len() == 1);

        let failed = || Err(Error::process("a driver failed: a wrong reply", ""));
        let (_, read) = record_and_read("error", failed);
        assert!(read.incomplete && read.experiment == "burst" && read.why.contains("a wrong reply"));

        let (_, read) = record_and_read("panic", || panic!("round {} is impossible", 7));
        assert!(read.incomplete && read.why.contains("round 7 is impossible"), "{}", read.why);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error() {
        let file = Path::new("/proc/no-such-directory/burst.json");
        let results = run_and_record("burst", file, || Ok(Results::new("burst", Machine::default())));
        assert!(matches!(results, Err(Error::System { .. })));
    }
}
