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
    let each = round.quiet_us.iter().zip(&round.attacked_us);
    let ratios: Option<Vec<f64>> =
        each.map(|(quiet, attacked)| quiet.map(|quiet| attacked.unwrap_or(NEVER_US) / quiet)).collect();
    ratios?.into_iter().reduce(f64::max)
}

/// The helper's peak memory less the allowance, divided by its limit.
fn rss_over_max_memory(seen: &AttackResult) -> f64 {
    ((seen.helper_rss_mib - RSS_ALLOWANCE_MIB) / MAX_MEMORY_MIB as f64).max(0.0)
}

pub(super) fn summary(seen: &AttackResult) -> String {
    let good = seen.rounds.iter().filter(|round| round.spoilt.is_none());
    let ratios: Vec<f64> = good.filter_map(ratio).collect();
    let ratio = crate::stats::median(&ratios)
        .map_or("no p99".into(), |ratio| format!("p99 {ratio:.2} times the quiet one"));
    let ended = seen.ended.as_ref().map_or(String::new(), |why| format!("; ENDED: {why}"));
    let trouble = seen.troubles.first().map_or(String::new(), |trouble| format!(" (first: {trouble})"));
    format!(
        "{ratio}; {} of {} requests failed{trouble}; helper {:.0} MiB, server +{:.0} MiB{ended}",
        seen.failed, seen.requests, seen.helper_rss_mib, seen.server_grown_mib
    )
}

pub(super) fn add_results(all: &[AttackResult], results: &mut Results) {
    let (mut failed, mut requests, mut first) = (0, 0, String::new());
    for seen in all {
        add_attack(seen, results);
        failed += seen.failed;
        requests += seen.requests;
        if first.is_empty()
            && let Some(trouble) = seen.troubles.first()
        {
            first = format!(" (first, {}: {trouble})", seen.attack.id);
        }
    }
    let worst = all.iter().map(rss_over_max_memory).fold(f64::NAN, f64::max);
    let note =
        format!("of the worst attack; RSS − {RSS_ALLOWANCE_MIB} MiB, over max_memory; expected ≤ 1.25");
    results.rows.push(Row::new("helper", "rss_over_max_memory", "", &[worst]).note(note));
    let detail = format!("{failed} of {requests} requests{first}");
    results.checks.push(Check::new("failed_requests", failed == 0, detail));
}

fn add_attack(seen: &AttackResult, results: &mut Results) {
    let id = seen.attack.id;
    let good: Vec<&Round> = seen.rounds.iter().filter(|round| round.spoilt.is_none()).collect();
    let spoilt: Vec<String> = seen.rounds.iter().filter_map(|round| round.spoilt.clone()).collect();
    let left_out = left_out(&spoilt, seen.rounds.len());
    let few = || few(good.len(), "rounds", ROUNDS_MIN);
    let row = |system: &str, metric: &str, unit: &str, values: &[f64]| {
        let never = (seen.requests == 0).then_some("a program did not start under this attack");
        Row::new(system, metric, unit, values).param("attack", id).void_if(never)
    };
    for (path, name) in PATHS.iter().enumerate() {
        let quiet: Vec<f64> = good.iter().filter_map(|round| round.quiet_us[path]).collect();
        let attacked: Vec<f64> =
            good.iter().map(|round| round.attacked_us[path].unwrap_or(NEVER_US)).collect();
        results.rows.push(row(name, "p99_us", "µs", &quiet).param("when", "quiet").void_if(few()));
        let note = "a percentile among requests without a reply counts as 10 s";
        let attacked = row(name, "p99_us", "µs", &attacked).param("when", "under attack");
        results.rows.push(attacked.note(note).void_if(few()));
    }
    let links: Vec<f64> = seen.rounds.iter().filter_map(|round| round.link_ms).collect();
    results
        .rows
        .push(row("helper", "new_link_ms", "ms", &links).note("a helper that is started under attack"));
    results
        .rows
        .push(row("all", "failed_requests", "", &[seen.failed as f64]).note(seen.troubles.join("; ")));
    results.rows.push(row("helper", "rss_mib", "MiB", &[seen.helper_rss_mib]).note("the most"));
    results.rows.push(row("helper", "rss_over_max_memory", "", &[rss_over_max_memory(seen)]));
    results.rows.push(row("server", "rss_grown_mib", "MiB", &[seen.server_grown_mib]).note("the most"));

    let ratios: Vec<f64> = good.iter().filter_map(|round| ratio(round)).collect();
    let name = format!("p99_under_attack_over_quiet_{id}");
    let note = format!("of the way that suffers most; expected ≤ 2; {}", seen.attack.description);
    results.ratios.push(Ratio::new(&name, &ratios).note(note).note(&left_out).void_if(few()));

    let missing = seen.rounds.iter().filter(|round| round.link_ms.is_none()).count();
    let detail =
        format!("{missing} of {} helpers that were started under attack got no link", seen.rounds.len());
    results.checks.push(Check::new(&format!("linked_{id}"), missing == 0, detail));
    let ended = seen.ended.clone();
    let detail = ended.clone().unwrap_or_else(|| "every program went on".into());
    results.checks.push(Check::new(&format!("alive_{id}"), ended.is_none(), detail));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::batch::attacks::ATTACKS;
    use crate::machine::Machine;

    fn seen(rounds: Vec<Round>) -> AttackResult {
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
    fn the_path_with_the_largest_ratio_counts() {
        let calm = round([Some(500.0), Some(450.0), Some(600.0)]);
        assert_eq!(ratio(&calm), Some(1.5));
        // One path without a p99 under attack: its ratio uses `NEVER_US`.
        assert!(ratio(&round([None, Some(300.0), Some(600.0)])).unwrap() > 1_000.0);
        assert_eq!(ratio(&Round::default()), None);

        let mut results = Results::new("attacks", Machine::default());
        let mut rounds = vec![calm; 5];
        rounds.push(Round { spoilt: Some("a stall".into()), ..round([None; 3]) });
        add_results(&[seen(rounds)], &mut results);
        assert!(results.passed(), "{:?}", results.checks);
        let ratio = &results.ratios[0];
        assert_eq!((ratio.name.as_str(), ratio.median), ("p99_under_attack_over_quiet_D4", Some(1.5)));
        assert!(ratio.valid && ratio.why.contains("a stall"), "{}", ratio.why);
        let worst = results.rows.last().unwrap();
        assert_eq!((worst.metric.as_str(), worst.median), ("rss_over_max_memory", Some(1.0)));
    }

    #[test]
    fn failures_missing_links_and_ended_programs_fail_the_run() {
        let calm = || vec![round([Some(500.0), Some(300.0), Some(600.0)]); 5];
        let failed = |seen: AttackResult| {
            let mut results = Results::new("attacks", Machine::default());
            add_results(&[seen], &mut results);
            let failed = results.checks.into_iter().filter(|check| !check.ok);
            failed.map(|check| check.name).collect::<Vec<_>>()
        };
        assert_eq!(failed(seen(calm())), Vec::<String>::new());
        assert_eq!(failed(AttackResult { failed: 1, ..seen(calm()) }), ["failed_requests"]);
        assert_eq!(
            failed(AttackResult { ended: Some("the helper ended".into()), ..seen(calm()) }),
            ["alive_D4"]
        );
        let mut rounds = calm();
        rounds[3].link_ms = None;
        assert_eq!(failed(seen(rounds)), ["linked_D4"]);
    }
}
