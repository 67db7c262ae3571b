//! Results of the attacks as rows, ratios and checks.

use crate::results::{Check, Ratio, Results, Row, few, left_out};

use super::{AttackResult, MAX_MEMORY_MIB, PATHS, Round};

const ROUNDS_MIN: usize = 5;
/// Memory of a helper that `max_memory` does not count, in MiB.
const RSS_ALLOWANCE_MIB: f64 = 32.0;
/// Replaces a percentile among unanswered requests, in µs; larger than any measured latency.
const NEVER_US: f64 = 10e6;

/// The largest ratio of all paths in a round. `None` if a path has no p99 in the quiet measurement.
fn ratio(round: &Round) -> Option<f64> {
    let pairs = round.quiet_us.iter().zip(&round.attacked_us);
    let ratios: Option<Vec<f64>> =
        pairs.map(|(quiet, attacked)| quiet.map(|quiet| attacked.unwrap_or(NEVER_US) / quiet)).collect();
    ratios?.into_iter().reduce(f64::max)
}

/// The helper's peak memory less the allowance, divided by its limit.
fn rss_over_max_memory(result: &AttackResult) -> f64 {
    ((result.helper_rss_mib - RSS_ALLOWANCE_MIB) / MAX_MEMORY_MIB as f64).max(0.0)
}

pub(super) fn summary(result: &AttackResult) -> String {
    let valid_rounds = result.rounds.iter().filter(|round| round.spoilt.is_none());
    let ratios: Vec<f64> = valid_rounds.filter_map(ratio).collect();
    let ratio = crate::stats::median(&ratios)
        .map_or("no p99".into(), |ratio| format!("p99 {ratio:.2} times the quiet one"));
    let ended = result.ended.as_ref().map_or(String::new(), |why| format!("; ENDED: {why}"));
    let problem = result.problems.first().map_or(String::new(), |problem| format!(" (first: {problem})"));
    format!(
        "{ratio}; {} of {} requests failed{problem}; helper {:.0} MiB, server +{:.0} MiB{ended}",
        result.failed, result.requests, result.helper_rss_mib, result.server_grown_mib
    )
}

pub(super) fn add_results(attack_results: &[AttackResult], results: &mut Results) {
    let (mut failed, mut requests, mut first) = (0, 0, String::new());
    for result in attack_results {
        add_attack(result, results);
        failed += result.failed;
        requests += result.requests;
        if first.is_empty()
            && let Some(problem) = result.problems.first()
        {
            first = format!(" (first, {}: {problem})", result.attack.id);
        }
    }
    let worst = attack_results.iter().map(rss_over_max_memory).fold(f64::NAN, f64::max);
    let note =
        format!("of the worst attack; RSS − {RSS_ALLOWANCE_MIB} MiB, over max_memory; expected ≤ 1.25");
    results.rows.push(Row::new("helper", "rss_over_max_memory", "", &[worst]).note(note));
    let detail = format!("{failed} of {requests} requests{first}");
    results.checks.push(Check::new("failed_requests", failed == 0, detail));
}

fn add_attack(result: &AttackResult, results: &mut Results) {
    let id = result.attack.id;
    let valid_rounds: Vec<&Round> = result.rounds.iter().filter(|round| round.spoilt.is_none()).collect();
    let spoilt: Vec<String> = result.rounds.iter().filter_map(|round| round.spoilt.clone()).collect();
    let left_out = left_out(&spoilt, result.rounds.len());
    let too_few = || few(valid_rounds.len(), "rounds", ROUNDS_MIN);
    let row = |system: &str, metric: &str, unit: &str, values: &[f64]| {
        let not_started = (result.requests == 0).then_some("a program did not start under this attack");
        Row::new(system, metric, unit, values).param("attack", id).void_if(not_started)
    };
    for (path, name) in PATHS.iter().enumerate() {
        let quiet: Vec<f64> = valid_rounds.iter().filter_map(|round| round.quiet_us[path]).collect();
        let attacked: Vec<f64> =
            valid_rounds.iter().map(|round| round.attacked_us[path].unwrap_or(NEVER_US)).collect();
        results.rows.push(row(name, "p99_us", "µs", &quiet).param("when", "quiet").void_if(too_few()));
        let note = "a percentile among requests without a reply counts as 10 s";
        let attacked = row(name, "p99_us", "µs", &attacked).param("when", "under attack");
        results.rows.push(attacked.note(note).void_if(too_few()));
    }
    let links: Vec<f64> = result.rounds.iter().filter_map(|round| round.link_ms).collect();
    results
        .rows
        .push(row("helper", "new_link_ms", "ms", &links).note("a helper that is started under attack"));
    results
        .rows
        .push(row("all", "failed_requests", "", &[result.failed as f64]).note(result.problems.join("; ")));
    results.rows.push(row("helper", "rss_mib", "MiB", &[result.helper_rss_mib]).note("peak"));
    results.rows.push(row("helper", "rss_over_max_memory", "", &[rss_over_max_memory(result)]));
    results.rows.push(row("server", "rss_grown_mib", "MiB", &[result.server_grown_mib]).note("peak"));

    let ratios: Vec<f64> = valid_rounds.iter().filter_map(|round| ratio(round)).collect();
    let name = format!("p99_under_attack_over_quiet_{id}");
    let note = format!("of the path with the largest ratio; expected ≤ 2; {}", result.attack.description);
    results.ratios.push(Ratio::new(&name, &ratios).note(note).note(&left_out).void_if(too_few()));

    let missing = result.rounds.iter().filter(|round| round.link_ms.is_none()).count();
    let detail =
        format!("{missing} of {} helpers that were started under attack got no link", result.rounds.len());
    results.checks.push(Check::new(&format!("linked_{id}"), missing == 0, detail));
    let ended = result.ended.clone();
    let detail = ended.clone().unwrap_or_else(|| "every program kept running".into());
    results.checks.push(Check::new(&format!("alive_{id}"), ended.is_none(), detail));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::batch::attacks::ATTACKS;
    use crate::machine::Machine;

    fn result(rounds: Vec<Round>) -> AttackResult {
        AttackResult {
            rounds,
            requests: 9_000,
            helper_rss_mib: 96.0,
            server_grown_mib: 3.0,
            ..AttackResult::new(ATTACKS[2])
        }
    }

    fn round(attacked_us: [Option<f64>; 3]) -> Round {
        let quiet_us = [Some(500.0), Some(300.0), Some(600.0)];
        Round { quiet_us, attacked_us, link_ms: Some(80.0), spoilt: None }
    }

    #[test]
    fn the_ratio_of_an_attack_is_that_of_its_worst_path() {
        let unaffected = round([Some(500.0), Some(450.0), Some(600.0)]);
        assert_eq!(ratio(&unaffected), Some(1.5));
        // One path without a p99 under attack: its ratio uses `NEVER_US`.
        assert!(ratio(&round([None, Some(300.0), Some(600.0)])).unwrap() > 1_000.0);
        assert_eq!(ratio(&Round::default()), None);

        let mut results = Results::new("attacks", Machine::default());
        let mut rounds = vec![unaffected; 5];
        rounds.push(Round { spoilt: Some("a stall".into()), ..round([None; 3]) });
        add_results(&[result(rounds)], &mut results);
        assert!(results.passed(), "{:?}", results.checks);
        let ratio = &results.ratios[0];
        assert_eq!((ratio.name.as_str(), ratio.median), ("p99_under_attack_over_quiet_D4", Some(1.5)));
        assert!(ratio.valid && ratio.why.contains("a stall"), "{}", ratio.why);
        let worst = results.rows.last().unwrap();
        assert_eq!((worst.metric.as_str(), worst.median), ("rss_over_max_memory", Some(1.0)));
    }

    #[test]
    fn failures_missing_links_and_ended_programs_fail_the_run() {
        let unaffected = || vec![round([Some(500.0), Some(300.0), Some(600.0)]); 5];
        let failed_checks = |result: AttackResult| {
            let mut results = Results::new("attacks", Machine::default());
            add_results(&[result], &mut results);
            let failed = results.checks.into_iter().filter(|check| !check.ok);
            failed.map(|check| check.name).collect::<Vec<_>>()
        };
        assert_eq!(failed_checks(result(unaffected())), Vec::<String>::new());
        assert_eq!(failed_checks(AttackResult { failed: 1, ..result(unaffected()) }), ["failed_requests"]);
        assert_eq!(
            failed_checks(AttackResult { ended: Some("the helper ended".into()), ..result(unaffected()) }),
            ["alive_D4"]
        );
        let mut rounds = unaffected();
        rounds[3].link_ms = None;
        assert_eq!(failed_checks(result(rounds)), ["linked_D4"]);
    }
}
