//! Results of `failover` as rows and checks.

use super::{Effort, Fault, RunResult};
use crate::results::{Check, Results, Row, few, left_out};

const ROUNDS_MIN: usize = 5;
const RECOVERED: &str = "from the fault to the first moment, checked every 10 ms, from which three 100 ms bins in a \
                         row each have ≥ 95 % of the throughput of the second before; only correct replies within 50 ms \
                         count, at the time at which they were due";
const THROUGHPUT: &str =
    "like recovered_ms, but all correct replies count, at their arrival, also those to a backlog";
const LOST: &str = "requests without a reply when the run ended";
const REPEATED: &str = "bytes without a pending request: a session has one request under way, so a repeated reply \
                        is either too long, or has no request, or shifts all later ones";
const REORDERED: &str = "replies that do not match their request: a reply contains its key, and its value follows from \
                         the key, so altered bytes, replies to other requests and missing replies are found";

pub(super) fn add_results(series: &[(Fault, Vec<RunResult>); 3], effort: &Effort, results: &mut Results) {
    for (fault, runs) in series {
        add_rows(*fault, runs, effort, results);
    }
    let all = || series.iter().flat_map(|(_, runs)| runs);
    let sum = |count: fn(&RunResult) -> u64| all().map(count).sum::<u64>();
    let replies = format!("{} replies", sum(|run| run.replies));
    let problem =
        all().flat_map(|run| &run.problems).find(|problem| !problem.contains("not carried any more"));
    for (name, count) in [
        ("lost", sum(|run| run.lost)),
        ("repeated", sum(|run| run.repeated)),
        ("reordered", sum(|run| run.reordered)),
        ("resets", sum(|run| run.resets)),
    ] {
        let mut check = Check::none(name, count, &replies);
        if let Some(problem) = problem.filter(|_| !check.ok) {
            check.detail.push_str(&format!(" (first: {problem})"));
        }
        results.checks.push(check);
    }
    let faults = all().count();
    let moved = all().filter(|run| run.carried_on > 0).count();
    let detail = format!("after {moved} of {faults} faults sessions moved to another helper");
    results.checks.push(Check::new("faults_felt", moved == faults, detail));
}

fn add_rows(fault: Fault, runs: &[RunResult], effort: &Effort, results: &mut Results) {
    let valid: Vec<&RunResult> = runs.iter().filter(|run| run.spoilt.is_none()).collect();
    let reasons: Vec<String> = runs.iter().filter_map(|run| run.spoilt.clone()).collect();
    let spoilt = left_out(&reasons, runs.len());
    let name = fault.name();
    let base = |metric: &str, unit: &str, values: &[f64]| {
        Row::new("sessions", metric, unit, values)
            .param("fault", name)
            .param("sessions", effort.connections)
            .param("offered_per_s", effort.rate_per_s)
    };
    let too_few = few(valid.len(), "runs", ROUNDS_MIN);
    let never = |value: fn(&RunResult) -> Option<u64>| {
        let never = valid.iter().filter(|run| value(run).is_none()).count();
        (never > 0).then(|| format!("{never} of {} runs without recovery", valid.len()))
    };
    let mut row = |metric: &str, value: fn(&RunResult) -> Option<u64>, note: &str| {
        let values: Vec<f64> = valid.iter().filter_map(|run| value(run)).map(|ms| ms as f64).collect();
        let row = base(&format!("{metric}_{name}"), "ms", &values).note(note);
        results.rows.push(row.void_if(never(value)).void_if(too_few.clone()).note(&spoilt));
    };
    let expected = if fault == Fault::Kill { "expected ≤ 150" } else { "expected ≤ 400" };
    row(
        "recovered_ms",
        |run| run.recovered_ms,
        &format!("{RECOVERED}; {expected}, paper 1 s timeout + 0.4 s"),
    );
    row("throughput_again_ms", |run| run.throughput_again_ms, THROUGHPUT);
    row("first_carried_on_ms", |run| run.carried_on_ms.map(|(first, _)| first), "");
    row("all_carried_on_ms", |run| run.carried_on_ms.map(|(_, last)| last), "");
    row("silence_ms", |run| Some(run.silence_ms), "the longest time without any reply");
    let mut row = |metric: &str, unit: &str, value: fn(&RunResult) -> f64, note: &str| {
        let values: Vec<f64> = valid.iter().map(|run| value(run)).collect();
        results.rows.push(base(metric, unit, &values).note(note).note(&spoilt));
    };
    row("slowest_ms", "ms", |run| run.slowest_ms, "of all requests around the fault");
    row(
        "strike_ms",
        "ms",
        |run| run.strike_ms,
        "duration of the call that causes the fault; recovery counts from the start of the call",
    );
    row(
        "machine_stalled_ms",
        "ms",
        |run| run.stalled_ms,
        "in the measured time after the fault, sum of all cores",
    );
    // Counts of spoilt runs are valid too: disturbances of the machine must not lose or repeat bytes.
    let mut row = |metric: &str, value: fn(&RunResult) -> u64, note: &str| {
        let values: Vec<f64> = runs.iter().map(|run| value(run) as f64).collect();
        results.rows.push(base(metric, "each run", &values).note(note));
    };
    row("lost", |run| run.lost, LOST);
    row("repeated", |run| run.repeated, REPEATED);
    row("reordered", |run| run.reordered, REORDERED);
    row(
        "carried_on",
        |run| run.carried_on,
        "moves of sessions to another helper; a session can move more than once",
    );
    for (n, (at_ms, _)) in runs.first().iter().flat_map(|run| &run.throughput_course).enumerate() {
        let rates = valid.iter().filter_map(|run| run.throughput_course.get(n));
        let values: Vec<f64> = rates.map(|(_, per_s)| *per_s).collect();
        results.rows.push(base("throughput_per_s", "1/s", &values).param("at_ms", *at_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn run_result(recovered_ms: Option<u64>, lost: u64) -> RunResult {
        RunResult {
            recovered_ms,
            lost,
            carried_on: 1_000,
            replies: 5,
            throughput_course: vec![(-100, 5_000.0), (0, 0.0)],
            ..RunResult::default()
        }
    }

    fn results_of(kill: Vec<RunResult>, cut: Vec<RunResult>) -> Results {
        let mut results = Results::new("failover", Machine::default());
        let series = [(Fault::Kill, kill), (Fault::Stop, Vec::new()), (Fault::Cut, cut)];
        add_results(&series, &Effort::full(), &mut results);
        results
    }

    #[test]
    fn rows_use_valid_runs_and_checks_use_all_runs() {
        let spoilt = RunResult { spoilt: Some("a stall".into()), ..run_result(Some(900), 1) };
        let mut runs = vec![run_result(Some(80), 0); 5];
        runs.push(spoilt);
        let results = results_of(runs, vec![run_result(None, 0)]);
        let row = |metric: &str| results.rows.iter().find(|row| row.metric == metric).unwrap();
        let kill = row("recovered_ms_kill");
        assert!(kill.valid && kill.median == Some(80.0) && kill.max == Some(80.0), "{kill:?}");
        assert!(kill.why.contains("1 of 6 measurements spoilt"), "{kill:?}");
        let cut = row("recovered_ms_cut");
        assert!(!cut.valid && cut.why.contains("1 of 1 runs without recovery"), "{cut:?}");
        assert!(!row("recovered_ms_stop").valid);
        let course: Vec<_> = results.rows.iter().filter(|row| row.metric == "throughput_per_s").collect();
        assert!(course.len() == 4 && course[0].params["at_ms"] == -100 && course[1].median == Some(0.0));
        let check = |name: &str| results.checks.iter().find(|check| check.name == name).unwrap().ok;
        assert!(!check("lost") && check("repeated") && check("reordered") && check("faults_felt"));
    }

    #[test]
    fn a_fault_without_moved_sessions_fails_a_check() {
        let results = results_of(vec![RunResult { carried_on: 0, ..run_result(Some(80), 0) }], Vec::new());
        assert!(!results.passed());
    }
}
