//! Results of `failover` as rows and checks.

use super::{Effort, Fault, RunResult};
use crate::results::{Check, Results, Row, few, left_out};

const ROUNDS_MIN: usize = 5;
const RECOVERED: &str = "from the fault to the first moment, looked for every 10 ms, from which three 100 ms bins in a \
                         row each have ≥ 95 % of the throughput of the second before; counted are right replies within \
                         50 ms, by the time at which they were due";
const THROUGHPUT: &str =
    "the same, counting all right replies by the time at which they came: a backlog helps";
const LOST: &str = "requests without a reply when the run ended";
const REPEATED: &str = "bytes without a pending request: a session has one request under way, so a repeated reply \
                        is either too long, or has no request, or shifts all later ones";
const REORDERED: &str = "replies to another request: values follow from their key, and the reply names it, so an \
                         altered byte, another request's reply and a missing reply are all found";

pub(super) fn add_results(series: &[(Fault, Vec<RunResult>); 3], effort: &Effort, results: &mut Results) {
    for (fault, seen) in series {
        rows(*fault, seen, effort, results);
    }
    let all = || series.iter().flat_map(|(_, seen)| seen);
    let sum = |count: fn(&RunResult) -> u64| all().map(count).sum::<u64>();
    let of = format!("{} replies", sum(|seen| seen.replies));
    let trouble = all().flat_map(|seen| &seen.troubles).find(|what| !what.contains("not carried any more"));
    for (name, count) in [
        ("lost", sum(|seen| seen.lost)),
        ("repeated", sum(|seen| seen.repeated)),
        ("reordered", sum(|seen| seen.reordered)),
        ("resets", sum(|seen| seen.resets)),
    ] {
        let mut check = Check::none(name, count, &of);
        if let Some(trouble) = trouble.filter(|_| !check.ok) {
            check.detail.push_str(&format!(" (first: {trouble})"));
        }
        results.checks.push(check);
    }
    let runs = all().count();
    let felt = all().filter(|seen| seen.carried_on > 0).count();
    let detail = format!("after {felt} of {runs} faults sessions were carried on elsewhere");
    results.checks.push(Check::new("faults_felt", felt == runs, detail));
}

fn rows(fault: Fault, seen: &[RunResult], effort: &Effort, results: &mut Results) {
    let good: Vec<&RunResult> = seen.iter().filter(|seen| seen.spoilt.is_none()).collect();
    let reasons: Vec<String> = seen.iter().filter_map(|seen| seen.spoilt.clone()).collect();
    let spoilt = left_out(&reasons, seen.len());
    let name = fault.name();
    let base = |metric: &str, unit: &str, values: &[f64]| {
        Row::new("sessions", metric, unit, values)
            .param("fault", name)
            .param("sessions", effort.connections)
            .param("offered_per_s", effort.rate_per_s)
    };
    let few = few(good.len(), "runs", ROUNDS_MIN);
    let never = |value: fn(&RunResult) -> Option<u64>| {
        let never = good.iter().filter(|seen| value(seen).is_none()).count();
        (never > 0).then(|| format!("{never} of {} runs did not get there", good.len()))
    };
    let mut row = |metric: &str, value: fn(&RunResult) -> Option<u64>, note: &str| {
        let values: Vec<f64> = good.iter().filter_map(|seen| value(seen)).map(|ms| ms as f64).collect();
        let row = base(&format!("{metric}_{name}"), "ms", &values).note(note);
        results.rows.push(row.void_if(never(value)).void_if(few.clone()).note(&spoilt));
    };
    let expected = if fault == Fault::Kill { "expected ≤ 150" } else { "expected ≤ 400" };
    row(
        "recovered_ms",
        |seen| seen.recovered_ms,
        &format!("{RECOVERED}; {expected}, paper 1 s timeout + 0.4 s"),
    );
    row("throughput_again_ms", |seen| seen.throughput_again_ms, THROUGHPUT);
    row("first_carried_on_ms", |seen| seen.carried_on_ms.map(|(first, _)| first), "");
    row("all_carried_on_ms", |seen| seen.carried_on_ms.map(|(_, last)| last), "");
    row("silence_ms", |seen| Some(seen.silence_ms), "the longest time without any reply");
    let mut row = |metric: &str, unit: &str, value: fn(&RunResult) -> f64, note: &str| {
        let values: Vec<f64> = good.iter().map(|seen| value(seen)).collect();
        results.rows.push(base(metric, unit, &values).note(note).note(&spoilt));
    };
    row("slowest_ms", "ms", |seen| seen.slowest_ms, "of all requests around the fault");
    row(
        "strike_ms",
        "ms",
        |seen| seen.strike_ms,
        "what it took to bring the fault about; recovery counts from its beginning",
    );
    row(
        "machine_stalled_ms",
        "ms",
        |seen| seen.stalled_ms,
        "while the run was looked at after the fault, all cores",
    );
    // Counts of spoilt runs are valid too: disturbances of the machine must not lose or repeat bytes.
    let mut row = |metric: &str, value: fn(&RunResult) -> u64, note: &str| {
        let values: Vec<f64> = seen.iter().map(|seen| value(seen) as f64).collect();
        results.rows.push(base(metric, "each run", &values).note(note));
    };
    row("lost", |seen| seen.lost, LOST);
    row("repeated", |seen| seen.repeated, REPEATED);
    row("reordered", |seen| seen.reordered, REORDERED);
    row(
        "carried_on",
        |seen| seen.carried_on,
        "sessions that went on elsewhere, again and again counted again",
    );
    for (n, (at_ms, _)) in seen.first().iter().flat_map(|seen| &seen.course).enumerate() {
        let rates = good.iter().filter_map(|seen| seen.course.get(n));
        let values: Vec<f64> = rates.map(|(_, per_s)| *per_s).collect();
        results.rows.push(base("throughput_per_s", "1/s", &values).param("at_ms", *at_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn seen(recovered_ms: Option<u64>, lost: u64) -> RunResult {
        RunResult {
            recovered_ms,
            lost,
            carried_on: 1_000,
            replies: 5,
            course: vec![(-100, 5_000.0), (0, 0.0)],
            ..RunResult::default()
        }
    }

    fn stated(kill: Vec<RunResult>, cut: Vec<RunResult>) -> Results {
        let mut results = Results::new("failover", Machine::default());
        let series = [(Fault::Kill, kill), (Fault::Stop, Vec::new()), (Fault::Cut, cut)];
        add_results(&series, &Effort::full(), &mut results);
        results
    }

    #[test]
    fn figures_are_of_good_runs_and_checks_of_all() {
        let spoilt = RunResult { spoilt: Some("a stall".into()), ..seen(Some(900), 1) };
        let mut runs = vec![seen(Some(80), 0); 5];
        runs.push(spoilt);
        let results = stated(runs, vec![seen(None, 0)]);
        let row = |metric: &str| results.rows.iter().find(|row| row.metric == metric).unwrap();
        let kill = row("recovered_ms_kill");
        assert!(kill.valid && kill.median == Some(80.0) && kill.max == Some(80.0), "{kill:?}");
        assert!(kill.why.contains("1 of 6 measurements spoilt"), "{kill:?}");
        let cut = row("recovered_ms_cut");
        assert!(!cut.valid && cut.why.contains("1 of 1 runs did not get there"), "{cut:?}");
        assert!(!row("recovered_ms_stop").valid);
        let course: Vec<_> = results.rows.iter().filter(|row| row.metric == "throughput_per_s").collect();
        assert!(course.len() == 4 && course[0].params["at_ms"] == -100 && course[1].median == Some(0.0));
        let check = |name: &str| results.checks.iter().find(|check| check.name == name).unwrap().ok;
        assert!(!check("lost") && check("repeated") && check("reordered") && check("faults_felt"));
    }

    #[test]
    fn a_fault_that_moved_no_session_fails_a_check() {
        let results = stated(vec![RunResult { carried_on: 0, ..seen(Some(80), 0) }], Vec::new());
        assert!(!results.passed());
    }
}
