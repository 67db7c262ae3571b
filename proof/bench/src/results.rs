//! The layout of all experiments' results.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::machine::Machine;
use crate::stats::{Spread, paired_ratios, upper95};

/// Minimum number of rounds of a valid ratio. [`upper95`] needs as many.
const ROUNDS_MIN: usize = 5;

/// Results of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The experiment's name on the command line of `spillway-lab bench`.
    pub experiment: String,
    /// The commit from which the program was built.
    pub commit: String,
    /// The machine, and settings of the laboratory.
    pub machine: Machine,
    /// Figures that each describe one system.
    pub rows: Vec<Row>,
    /// Figures that compare two systems.
    pub ratios: Vec<Ratio>,
    /// Conditions that must hold at any speed of the machine.
    pub checks: Vec<Check>,
    /// Whether an error, a signal or a panic stopped the experiment before its end. Rows, ratios and checks then cover
    /// the measurements made before.
    #[serde(default)]
    pub incomplete: bool,
    /// Why the experiment stopped; empty if it is complete.
    #[serde(default)]
    pub why: String,
}

/// One figure of one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the system.
    pub system: String,
    /// Conditions of the measurement.
    pub params: BTreeMap<String, Value>,
    /// Name of the figure.
    pub metric: String,
    /// Unit of the figure.
    pub unit: String,
    /// Median over the valid runs; `null` without any.
    pub median: Option<f64>,
    /// Minimum over the valid runs.
    pub min: Option<f64>,
    /// Maximum over the valid runs.
    pub max: Option<f64>,
    /// Number of valid runs.
    pub runs: usize,
    /// Whether the figure may be cited.
    pub valid: bool,
    /// Why it must not be cited, and other notes.
    pub why: String,
}

/// One figure that compares systems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the comparison.
    pub name: String,
    /// Median over the rounds; `null` without any.
    pub median: Option<f64>,
    /// Minimum over the rounds.
    pub min: Option<f64>,
    /// Maximum over the rounds.
    pub max: Option<f64>,
    /// Number of rounds.
    pub runs: usize,
    /// See [`upper95`]; `null` with fewer than five rounds.
    pub upper95: Option<f64>,
    /// Whether the figure may be cited.
    pub valid: bool,
    /// Why it must not be cited, and other notes.
    pub why: String,
}

/// A condition that must hold. A failed check fails the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the check.
    pub name: String,
    /// Whether the condition held.
    pub ok: bool,
    /// The counts or events behind `ok`.
    pub detail: String,
}

impl Row {
    /// A row with one value for each valid run; without values, the row is not valid.
    pub fn new(system: &str, metric: &str, unit: &str, values: &[f64]) -> Row {
        let spread = Spread::of(values);
        Row {
            system: system.into(),
            params: BTreeMap::new(),
            metric: metric.into(),
            unit: unit.into(),
            median: spread.map(|spread| spread.median),
            min: spread.map(|spread| spread.min),
            max: spread.map(|spread| spread.max),
            runs: spread.map_or(0, |spread| spread.runs),
            valid: spread.is_some(),
            why: if spread.is_some() { String::new() } else { "no valid run".into() },
        }
    }

    /// Adds a condition of the measurement.
    pub fn param(mut self, name: &str, value: impl Into<Value>) -> Row {
        self.params.insert(name.into(), value.into());
        self
    }

    /// Adds a note to `why` and leaves `valid` as it is.
    pub fn note(mut self, why: impl AsRef<str>) -> Row {
        append(&mut self.why, why.as_ref());
        self
    }

    /// Marks the figure as not valid if there is a reason, and adds the reasons to `why`.
    pub fn void_if<S: AsRef<str>>(mut self, reasons: impl IntoIterator<Item = S>) -> Row {
        for reason in reasons {
            self.valid = false;
            append(&mut self.why, reason.as_ref());
        }
        self
    }
}

impl Ratio {
    /// A ratio with one value for each round; without values, the ratio is not valid.
    pub fn new(name: &str, values: &[f64]) -> Ratio {
        let spread = Spread::of(values);
        Ratio {
            name: name.into(),
            median: spread.map(|spread| spread.median),
            min: spread.map(|spread| spread.min),
            max: spread.map(|spread| spread.max),
            runs: spread.map_or(0, |spread| spread.runs),
            upper95: upper95(values),
            valid: spread.is_some(),
            why: if spread.is_some() { String::new() } else { "no valid round".into() },
        }
    }

    /// The ratio of two systems' figures of the same rounds; not valid with fewer than five rounds.
    pub fn paired(name: &str, numerators: &[Option<f64>], denominators: &[Option<f64>]) -> Ratio {
        let rounds = paired_ratios(numerators, denominators);
        Ratio::new(name, &rounds).void_if(few(rounds.len(), "rounds", ROUNDS_MIN))
    }

    /// Adds a note to `why` and leaves `valid` as it is.
    pub fn note(mut self, why: impl AsRef<str>) -> Ratio {
        append(&mut self.why, why.as_ref());
        self
    }

    /// Marks the figure as not valid if there is a reason, and adds the reasons to `why`.
    pub fn void_if<S: AsRef<str>>(mut self, reasons: impl IntoIterator<Item = S>) -> Ratio {
        for reason in reasons {
            self.valid = false;
            append(&mut self.why, reason.as_ref());
        }
        self
    }
}

impl Check {
    /// A check with its detail.
    pub fn new(name: &str, ok: bool, detail: impl Into<String>) -> Check {
        Check { name: name.into(), ok, detail: detail.into() }
    }

    /// A check that `count` is 0.
    pub fn none(name: &str, count: u64, of: &str) -> Check {
        Check::new(name, count == 0, format!("{count} of {of}"))
    }
}

impl Results {
    /// Results without figures.
    pub fn new(experiment: &str, machine: Machine) -> Results {
        Results {
            experiment: experiment.into(),
            commit: env!("SPILLWAY_COMMIT").into(),
            machine,
            rows: Vec::new(),
            ratios: Vec::new(),
            checks: Vec::new(),
            incomplete: false,
            why: String::new(),
        }
    }

    /// Whether the experiment is complete and every check held. Slow figures do not fail a run.
    pub fn passed(&self) -> bool {
        !self.incomplete && self.checks.iter().all(|check| check.ok)
    }

    /// Marks the results as incomplete if the experiment ended with an error.
    pub fn with_outcome(mut self, outcome: Result<(), Error>) -> Results {
        if let Err(error) = outcome {
            self.incomplete = true;
            append(&mut self.why, &crate::stop::reason(&error));
        }
        self
    }

    /// Writes the results to a JSON file, and creates its directory if needed.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        write_json(path, self)
    }
}

const REASONS_MAX: usize = 2;

/// Why a figure is not valid if it comes from fewer than `min` rounds, pairs or runs; `unit` is their plural.
pub(crate) fn few(count: usize, unit: &str, min: usize) -> Option<String> {
    (count < min).then(|| format!("{count} {unit}, not {min}"))
}

/// The note on rows that leave out spoilt measurements; empty if `reasons` is empty.
pub(crate) fn left_out(reasons: &[String], measurements: usize) -> String {
    if reasons.is_empty() {
        return String::new();
    }
    let first = reasons[..reasons.len().min(REASONS_MAX)].join(", ");
    format!("{} of {measurements} measurements spoilt and left out (first: {first})", reasons.len())
}

/// Writes a JSON file, and creates its directory if needed.
pub(crate) fn write_json(path: &Path, document: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(document)?;
    text.push(b'\n');
    write_file(path, &text)
}

/// Writes a file, and creates its directory if needed.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, bytes)
}

fn append(text: &mut String, more: &str) {
    if more.is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push_str("; ");
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::new("burst", Machine::default());
        results.rows.push(Row::new("helped", "moved_ms", "ms", &[140.0, 120.0]).param("connections", 660));
        results.ratios.push(Ratio::new("goodput_helped_over_direct", &[5.0; 5]).note("SLA 1 ms"));
        results.checks.push(Check::none("wrong", 0, "10 replies"));
        results
    }

    #[test]
    fn results_have_the_expected_json_keys_and_are_read_back() {
        let results = results();
        let text = serde_json::to_string(&results).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results);
        let value: Value = serde_json::from_str(&text).unwrap();
        let keys = |value: &Value| {
            let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys.join(" ")
        };
        assert_eq!(keys(&value), "checks commit experiment incomplete machine ratios rows why");
        assert_eq!((&value["incomplete"], &value["why"]), (&Value::Bool(false), &Value::from("")));
        assert_eq!(keys(&value["rows"][0]), "max median metric min params runs system unit valid why");
        assert_eq!(keys(&value["ratios"][0]), "max median min name runs upper95 valid why");
        assert_eq!(keys(&value["checks"][0]), "detail name ok");
        assert_eq!(value["rows"][0]["median"], 130.0);
        assert_eq!(value["rows"][0]["params"]["connections"], 660);
        assert_eq!(value["ratios"][0]["upper95"], 5.0);
    }

    #[test]
    fn rows_without_runs_are_void_and_reasons_are_joined() {
        let row = Row::new("direct", "goodput", "1/s", &[]).void_if(["lag"]).note("quick");
        assert_eq!((row.valid, row.runs, row.median), (false, 0, None));
        assert_eq!(row.why, "no valid run; lag; quick");
        let none: [&str; 0] = [];
        let row = Row::new("direct", "goodput", "1/s", &[1.0]).void_if(none);
        assert!(row.valid && row.why.is_empty());
    }

    #[test]
    fn failed_checks_fail_a_run_and_void_rows_do_not() {
        let mut results = results();
        results.rows[0].valid = false;
        assert!(results.passed());
        results.checks.push(Check::none("lost", 1, "10 replies"));
        assert!(!results.passed());
    }

    #[test]
    fn results_of_a_failed_experiment_are_incomplete_and_do_not_pass() {
        assert!(results().with_outcome(Ok(())).passed());
        let stopped = results().with_outcome(Err(Error::process("a load generator ended early", "")));
        assert!(stopped.incomplete && !stopped.passed());
        assert_eq!(stopped.why, "a load generator ended early");
        assert_eq!(stopped.rows, results().rows, "rows measured before the error should be kept");
        // Files of older versions lack the two fields and are complete.
        let mut value = serde_json::to_value(results()).unwrap();
        value.as_object_mut().unwrap().retain(|name, _| name != "incomplete" && name != "why");
        assert_eq!(serde_json::from_value::<Results>(value).unwrap(), results());
    }

    #[test]
    fn a_missing_directory_is_created() {
        let directory = std::env::temp_dir().join(format!("spillway-bench-results-{}", std::process::id()));
        let file = directory.join("deep/burst.json");
        results().write(&file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results());
        fs::remove_dir_all(directory).unwrap();
    }
}
