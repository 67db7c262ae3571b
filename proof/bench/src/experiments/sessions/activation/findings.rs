//! Results of `activation` as rows.

use super::{Baseline, Course, Effort, Policy, RunResult};
use crate::results::{Results, Row, few, left_out};

const ROUNDS_MIN: usize = 3;
/// Name of the decision to move all sessions of a group; only the canaries have moved before.
pub(super) const ALL_MOVE: &str = "rest_moves";

const OVER: &str = "sum of 100 ms bins, by intended time, in which p99 of all requests was over the SLA";
const SWITCHES: &str = "moves of all sessions (between server and helpers, and between helpers) for each session; \
                        expected ≤ 2 in 60 s";
const RELIEVED: &str = "from the burst until three seconds in a row have a p99 within the SLA, as in burst; expected ≤ \
                        drain floor + 1,000";
const FLOOR: &str = "the least time in which the backlog can drain that gathered until half of the processes had \
                     decided to move all of their sessions";

pub(super) fn add_results(
    series: &[(Course, Policy, Vec<RunResult>)],
    baseline: &Baseline,
    effort: &Effort,
    results: &mut Results,
) {
    let mut baseline_row = |metric: &str, unit: &str, value: f64, note: &str| {
        results.rows.push(Row::new("server", metric, unit, &[value]).note(note));
    };
    baseline_row(
        "sla_ms",
        "ms",
        baseline.sla_us as f64 / 1000.0,
        "the larger of 1 ms and 3× p99 at a light load",
    );
    baseline_row(
        "threshold_per_s",
        "1/s",
        baseline.threshold_per_s,
        "the highest rate at which direct p99 was within the SLA",
    );
    baseline_row("direct_per_s", "1/s", baseline.direct_per_s, "saturated throughput, late replies included");
    baseline_row("helped_per_s", "1/s", baseline.helped_per_s, "saturated throughput, late replies included");
    for (course, policy, runs) in series {
        add_rows(*course, *policy, runs, effort, results);
    }
}

fn add_rows(course: Course, policy: Policy, runs: &[RunResult], effort: &Effort, results: &mut Results) {
    let valid: Vec<&RunResult> = runs.iter().filter(|run| run.spoilt.is_none()).collect();
    let reasons: Vec<String> = runs.iter().filter_map(|run| run.spoilt.clone()).collect();
    let spoilt = left_out(&reasons, runs.len());
    let too_few = few(valid.len(), "runs", ROUNDS_MIN);
    let (name, seconds) = match course {
        Course::Swing => ("swing", effort.swing.as_secs()),
        Course::Burst => ("burst", effort.burst.as_secs()),
    };
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&RunResult) -> Option<f64>, note: &str| {
        let values: Vec<f64> = valid.iter().filter_map(|run| value(run)).collect();
        let missing = valid.len() - values.len();
        let missing = (missing > 0).then(|| format!("{missing} of {} runs have no value", valid.len()));
        let row = Row::new(policy.name(), metric, unit, &values)
            .param("course", name)
            .param("seconds", seconds)
            .param("sessions", effort.connections)
            .param("sessions_a_process", effort.group)
            .note(note);
        results.rows.push(row.void_if(missing).void_if(too_few.clone()).note(&spoilt));
    };
    row("switches_per_client", "moves", &|run| Some(run.switches_per_client), SWITCHES);
    row("on_time_share", "share", &|run| Some(run.on_time_share), "replies within the SLA, of all requests");
    let over = match course {
        Course::Burst => format!("{OVER}; expected ≤ drain floor + 1,000"),
        Course::Swing => OVER.to_owned(),
    };
    row("time_over_sla_ms", "ms", &|run| Some(run.over_sla_ms as f64), &over);
    if course == Course::Burst {
        row("relieved_ms", "ms", &|run| run.relieved_ms.map(|ms| ms as f64), RELIEVED);
    }
    if course == Course::Burst && policy == Policy::Decides {
        row(
            "decided_ms",
            "ms",
            &|run| run.decided_ms.map(|ms| ms as f64),
            "from the burst to the first decision",
        );
        row(
            "all_told_ms",
            "ms",
            &|run| run.all_moving_ms.map(|ms| ms as f64),
            "median time to a process's decision to move all of its sessions",
        );
        row("drain_floor_ms", "ms", &|run| run.floor_ms, FLOOR);
        let over_floor = |run: &RunResult| Some(run.over_sla_ms as f64 - run.floor_ms?);
        row("time_over_sla_beyond_floor_ms", "ms", &over_floor, "expected ≤ 1,000");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use spillway_load::report::{Bin, Report};

    use super::super::decided_after;
    use super::*;
    use crate::machine::Machine;

    const BASELINE: Baseline =
        Baseline { sla_us: 1_000, threshold_per_s: 8_000.0, direct_per_s: 8_000.0, helped_per_s: 20_000.0 };

    /// A burst at 5 s, with late replies until 5.6 s.
    fn report() -> Report {
        let bin = |at_ms: u64| {
            let mut bin = Bin { at_ms, offered: 100, ..Bin::default() };
            bin.direct.answered = 100;
            bin.direct.latency_us.record(if (5_000..5_600).contains(&at_ms) { 9_000 } else { 300 }, 100);
            bin.carrier_changes = u64::from(at_ms == 5_500) * 200;
            bin
        };
        let decisions =
            vec!["4.000 s: group 1: calm_again: x".into(), format!("5.400 s: group 3: {ALL_MOVE}: 9 of 10")];
        Report {
            bins: (0..100).map(|n| bin(n * 100)).collect(),
            connections: 200,
            decisions,
            ..Report::default()
        }
    }

    #[test]
    fn replies_are_late_from_the_burst_to_its_relief() {
        let run = RunResult::of(&report(), (5_000, 10_000), Course::Burst, &BASELINE);
        assert_eq!((run.over_sla_ms, run.switches_per_client), (600, 1.0));
        assert_eq!((run.decided_ms, run.all_moving_ms), (Some(400), Some(400)));
        assert_eq!((run.late_spans.as_str(), run.relieved_ms), ("0.0–0.6", Some(600)));
        assert_eq!(run.decisions, BTreeMap::from([("rest_moves".into(), 1)]));
        // A backlog of 4,000/s for 0.4 s drains at 8,000/s.
        assert_eq!(run.floor_ms, Some(200.0));
        let below_capacity = Baseline { direct_per_s: 12_000.0, ..BASELINE };
        let run = RunResult::of(&report(), (5_000, 10_000), Course::Burst, &below_capacity);
        assert_eq!(run.floor_ms, Some(0.0), "a server that can serve the burst has no backlog");
        assert_eq!(decided_after("12.5 s: group 0: name: x", 12_000), Some((500, "name")));
        assert_eq!(decided_after("12.5 s: group 0: name: x", 13_000), None);
        assert_eq!(decided_after("nonsense", 0), None);
    }

    #[test]
    fn rows_contain_valid_runs_and_note_missing_figures() {
        let valid = RunResult { over_sla_ms: 600, floor_ms: Some(200.0), ..RunResult::default() };
        let spoilt = RunResult { spoilt: Some("a stall".into()), over_sla_ms: 9_000, ..RunResult::default() };
        let series = [(Course::Burst, Policy::Decides, vec![valid.clone(), valid.clone(), valid, spoilt])];
        let mut results = Results::new("activation", Machine::default());
        add_results(&series, &BASELINE, &Effort::full(), &mut results);
        let row = |metric: &str| results.rows.iter().find(|row| row.metric == metric).unwrap();
        assert!(row("time_over_sla_ms").valid && row("time_over_sla_ms").max == Some(600.0));
        assert_eq!(row("time_over_sla_beyond_floor_ms").median, Some(400.0));
        assert!(!row("decided_ms").valid && row("decided_ms").why.contains("3 of 3 runs have no value"));
    }
}
