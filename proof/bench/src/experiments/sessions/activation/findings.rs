//! Results of `activation` as rows.

use super::{Course, Effort, Known, Policy, RunResult};
use crate::results::{Results, Row, few, left_out};

const ROUNDS_MIN: usize = 3;
/// Name of the decision to move all sessions of a group; only the canaries have moved before.
pub(super) const ALL_MOVE: &str = "rest_moves";

const OVER: &str = "100 ms, by intended time, in which p99 of all requests was over the SLA";
const SWITCHES: &str = "moves of all sessions, between server and helpers and from helper to helper, by their number; \
                        expected ≤ 2 in 60 s";
const RELIEVED: &str = "from the burst until three seconds in a row have a p99 within the SLA, as in burst; expected ≤ \
                        drain floor + 1,000";
const FLOOR: &str = "the least time in which the backlog can drain that gathered until most processes had decided to \
                     move all of their sessions";

pub(super) fn add_results(
    series: &[(Course, Policy, Vec<RunResult>)],
    known: &Known,
    effort: &Effort,
    results: &mut Results,
) {
    let mut one = |metric: &str, unit: &str, value: f64, note: &str| {
        results.rows.push(Row::new("server", metric, unit, &[value]).note(note));
    };
    one("sla_ms", "ms", known.sla_us as f64 / 1000.0, "the larger of 1 ms and 3× p99 at a light load");
    one("threshold_per_s", "1/s", known.threshold_per_s, "the most at which direct p99 was within the SLA");
    one("direct_per_s", "1/s", known.direct_per_s, "replies without regard to time");
    one("helped_per_s", "1/s", known.helped_per_s, "replies without regard to time");
    for (course, policy, seen) in series {
        rows(*course, *policy, seen, effort, results);
    }
}

fn rows(course: Course, policy: Policy, seen: &[RunResult], effort: &Effort, results: &mut Results) {
    let good: Vec<&RunResult> = seen.iter().filter(|seen| seen.spoilt.is_none()).collect();
    let reasons: Vec<String> = seen.iter().filter_map(|seen| seen.spoilt.clone()).collect();
    let spoilt = left_out(&reasons, seen.len());
    let few = few(good.len(), "runs", ROUNDS_MIN);
    let (name, seconds) = match course {
        Course::Swing => ("swing", effort.swing.as_secs()),
        Course::Burst => ("burst", effort.burst.as_secs()),
    };
    let mut row = |metric: &str, unit: &str, value: &dyn Fn(&RunResult) -> Option<f64>, note: &str| {
        let values: Vec<f64> = good.iter().filter_map(|seen| value(seen)).collect();
        let missing = good.len() - values.len();
        let missing = (missing > 0).then(|| format!("{missing} of {} runs have none", good.len()));
        let row = Row::new(policy.name(), metric, unit, &values)
            .param("course", name)
            .param("seconds", seconds)
            .param("sessions", effort.connections)
            .param("sessions_a_process", effort.group)
            .note(note);
        results.rows.push(row.void_if(missing).void_if(few.clone()).note(&spoilt));
    };
    row("switches_per_client", "moves", &|seen| Some(seen.switches_per_client), SWITCHES);
    row(
        "on_time_share",
        "share",
        &|seen| Some(seen.on_time_share),
        "replies within the SLA, of all requests",
    );
    let over = match course {
        Course::Burst => format!("{OVER}; expected ≤ drain floor + 1,000"),
        Course::Swing => OVER.to_owned(),
    };
    row("time_over_sla_ms", "ms", &|seen| Some(seen.over_sla_ms as f64), &over);
    if course == Course::Burst {
        row("relieved_ms", "ms", &|seen| seen.relieved_ms.map(|ms| ms as f64), RELIEVED);
    }
    if course == Course::Burst && policy == Policy::Decides {
        row(
            "decided_ms",
            "ms",
            &|seen| seen.decided_ms.map(|ms| ms as f64),
            "from the burst to the first decision",
        );
        row(
            "all_told_ms",
            "ms",
            &|seen| seen.all_moving_ms.map(|ms| ms as f64),
            "to the decision by which half of the processes move whole",
        );
        row("drain_floor_ms", "ms", &|seen| seen.floor_ms, FLOOR);
        let over_floor = |seen: &RunResult| Some(seen.over_sla_ms as f64 - seen.floor_ms?);
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

    const KNOWN: Known =
        Known { sla_us: 1_000, threshold_per_s: 8_000.0, direct_per_s: 8_000.0, helped_per_s: 20_000.0 };

    /// A burst at 5 s, with late replies until 5.6 s.
    fn report() -> Report {
        let bin = |at_ms: u64| {
            let mut bin = Bin { at_ms, offered: 100, ..Bin::default() };
            bin.direct.answered = 100;
            bin.direct.latency_us.record(if (5_000..5_600).contains(&at_ms) { 9_000 } else { 300 }, 100);
            bin.carried_on = u64::from(at_ms == 5_500) * 200;
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
    fn a_burst_is_late_until_it_is_relieved() {
        let seen = RunResult::of(&report(), (5_000, 10_000), Course::Burst, &KNOWN);
        assert_eq!((seen.over_sla_ms, seen.switches_per_client), (600, 1.0));
        assert_eq!((seen.decided_ms, seen.all_moving_ms), (Some(400), Some(400)));
        assert_eq!((seen.late_spans.as_str(), seen.relieved_ms), ("0.0–0.6", Some(600)));
        assert_eq!(seen.decisions, BTreeMap::from([("rest_moves".into(), 1)]));
        // A backlog of 4,000/s for 0.4 s drains at 8,000/s.
        assert_eq!(seen.floor_ms, Some(200.0));
        let within = Known { direct_per_s: 12_000.0, ..KNOWN };
        let seen = RunResult::of(&report(), (5_000, 10_000), Course::Burst, &within);
        assert_eq!(seen.floor_ms, Some(0.0), "the direct server can serve the burst: no backlog");
        assert_eq!(decided_after("12.5 s: group 0: word: x", 12_000), Some((500, "word")));
        assert_eq!(decided_after("12.5 s: group 0: word: x", 13_000), None);
        assert_eq!(decided_after("nonsense", 0), None);
    }

    #[test]
    fn rows_contain_valid_runs_and_note_missing_figures() {
        let good = RunResult { over_sla_ms: 600, floor_ms: Some(200.0), ..RunResult::default() };
        let spoilt = RunResult { spoilt: Some("a stall".into()), over_sla_ms: 9_000, ..RunResult::default() };
        let series = [(Course::Burst, Policy::Decides, vec![good.clone(), good.clone(), good, spoilt])];
        let mut results = Results::new("activation", Machine::default());
        add_results(&series, &KNOWN, &Effort::full(), &mut results);
        let row = |metric: &str| results.rows.iter().find(|row| row.metric == metric).unwrap();
        assert!(row("time_over_sla_ms").valid && row("time_over_sla_ms").max == Some(600.0));
        assert_eq!(row("time_over_sla_beyond_floor_ms").median, Some(400.0));
        assert!(!row("decided_ms").valid && row("decided_ms").why.contains("3 of 3 runs have none"));
    }
}
