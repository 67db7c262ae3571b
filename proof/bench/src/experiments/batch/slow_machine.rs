//! The demo on slower machines: relief must succeed with every core slowed to a half and to a third of its
//! speed, because the demo calibrates itself.

use std::io::{self, Write};

use crate::calibrate::Neighbours;
use crate::demo::{self, Demo};
use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{measurement_order, print_line};
use crate::goodput::Tally;
use crate::machine::Machine;
use crate::results::{Check, Results, Row, few};
use crate::scene::Setting;

/// The number of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Factors by which all cores are slowed.
    pub slowdown_factors: Vec<u32>,
    /// Valid runs with each factor.
    pub runs: usize,
    /// Maximum number of repetitions of spoilt runs, with each factor.
    pub spoilt_max: usize,
}

impl Effort {
    /// The effort that the promise in SPECIFICATION.md needs.
    pub fn full() -> Effort {
        Effort { slowdown_factors: vec![2, 3], runs: 10, spoilt_max: 5 }
    }

    /// One run with each factor; takes three minutes.
    pub fn quick() -> Effort {
        Effort { runs: 1, spoilt_max: 0, ..Effort::full() }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct DemoRun {
    capacity_per_s: f64,
    quota_percent: f64,
    sla_ms: f64,
    messages_per_batch: Option<f64>,
    relief_ms: Option<u64>,
    spoilt: Vec<String>,
}

#[derive(Clone, Debug)]
struct Series {
    slowdown_factor: u32,
    runs: Vec<DemoRun>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let mut series: Vec<Series> = effort
        .slowdown_factors
        .iter()
        .map(|&slowdown_factor| Series { slowdown_factor, runs: Vec::new() })
        .collect();
    let mut tally = Tally::default();
    let mut machine = Machine::here();
    let outcome =
        measurement_order(effort.runs + effort.spoilt_max, series.len()).try_for_each(|(round, index)| {
            let Series { slowdown_factor, runs } = &mut series[index];
            let valid = runs.iter().filter(|run| run.spoilt.is_empty()).count();
            if valid == effort.runs {
                return Ok(());
            }
            let setting = Setting { slowdown_factor: Some(*slowdown_factor), ..setting.clone() };
            let demo = demo::run_without_files(
                &demo::Options { neighbours: Neighbours::Accepted, ..demo::Options::new(setting) },
                &mut io::sink(),
            )?;
            tally.add(demo.tally());
            machine = demo.results.machine.clone();
            let demo_run = DemoRun::of(&demo);
            print_line(
                out,
                format_args!("run {}, {slowdown_factor} times slower: {}", round + 1, demo_run.description()),
            );
            runs.push(demo_run);
            Ok(())
        });
    machine.lab.remove("cores");
    let mut results = Results::new("slow-machine", machine);
    series.iter().for_each(|series| add_results(series, effort, &mut results));
    results.checks.extend(tally.checks());
    Ok(results.with_outcome(outcome))
}

impl DemoRun {
    fn of(demo: &Demo) -> DemoRun {
        let calibration = demo.calibration();
        DemoRun {
            capacity_per_s: calibration.direct_per_s,
            quota_percent: calibration.quota.map_or(f64::NAN, |quota| quota.percent_of_core),
            sla_ms: calibration.sla_us as f64 / 1000.0,
            messages_per_batch: demo.messages_per_batch(),
            relief_ms: demo.relief_ms(),
            spoilt: demo.spoilt(),
        }
    }

    fn description(&self) -> String {
        let DemoRun { capacity_per_s, quota_percent, sla_ms, messages_per_batch, relief_ms, spoilt } = self;
        let relief = relief_ms.map_or("NOT relieved".into(), |ms| format!("relieved after {ms} ms"));
        let spoilt =
            if spoilt.is_empty() { String::new() } else { format!(" (spoilt: {})", spoilt.join("; ")) };
        format!(
            "{capacity_per_s:.0}/s alone with {quota_percent:.1} % of a core, SLA {sla_ms:.1} ms, {:.1} messages a batch: \
             {relief}{spoilt}",
            messages_per_batch.unwrap_or(0.0)
        )
    }
}

fn add_results(series: &Series, effort: &Effort, results: &mut Results) {
    let valid: Vec<&DemoRun> = series.runs.iter().filter(|run| run.spoilt.is_empty()).collect();
    let spoilt: Vec<String> = series.runs.iter().flat_map(|run| run.spoilt.first().cloned()).collect();
    let left_out = crate::results::left_out(&spoilt, series.runs.len());
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&DemoRun) -> Option<f64>| {
        let values: Vec<f64> = valid.iter().filter_map(|run| value(run)).collect();
        let row = Row::new("helped", metric, unit, &values).param("slowed_times", series.slowdown_factor);
        results.rows.push(row.note(&left_out).void_if(few(valid.len(), "runs", effort.runs)));
    };
    row("capacity_per_s", "1/s", &|run| Some(run.capacity_per_s));
    row("quota_percent", "% of a core", &|run| Some(run.quota_percent));
    row("sla_ms", "ms", &|run| Some(run.sla_ms));
    row("messages_per_batch", "messages", &|run| run.messages_per_batch);
    row("relief_ms", "ms", &|run| run.relief_ms.map(|ms| ms as f64));
    let relieved = valid.iter().filter(|run| run.relief_ms.is_some()).count();
    let name = format!("relieved_slowed_{}_times", series.slowdown_factor);
    let detail = format!(
        "{relieved} of {} runs, {} of them needed; {} spoilt",
        valid.len(),
        effort.runs,
        spoilt.len()
    );
    results.checks.push(Check::new(&name, relieved == effort.runs, detail));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo_run(relief_ms: Option<u64>, spoilt: &[&str]) -> DemoRun {
        DemoRun {
            capacity_per_s: 2_800.0,
            quota_percent: 7.0,
            sla_ms: 1.2,
            messages_per_batch: Some(4.2),
            relief_ms,
            spoilt: spoilt.iter().map(|&why| why.to_owned()).collect(),
        }
    }

    fn results_of(runs: Vec<DemoRun>) -> Results {
        let mut results = Results::new("slow-machine", Machine::default());
        let effort = Effort { runs: 3, ..Effort::full() };
        add_results(&Series { slowdown_factor: 2, runs }, &effort, &mut results);
        results
    }

    #[test]
    fn a_valid_run_without_relief_fails_the_check_and_spoilt_runs_do_not_count() {
        let valid = || demo_run(Some(900), &[]);
        let results = results_of(vec![valid(), demo_run(None, &["a stall"]), valid(), valid()]);
        assert!(results.passed(), "{:?}", results.checks);
        let relief = results.rows.iter().find(|row| row.metric == "relief_ms").unwrap();
        assert!(relief.valid && relief.runs == 3 && relief.why.contains("a stall"), "{relief:?}");
        assert_eq!(relief.params["slowed_times"], 2);

        let results = results_of(vec![valid(), demo_run(None, &[]), valid()]);
        assert!(!results.passed() && results.checks[0].detail.starts_with("2 of 3 runs"));
        let results = results_of(vec![valid(), valid()]);
        assert!(!results.passed() && results.rows.iter().all(|row| !row.valid));
    }
}
