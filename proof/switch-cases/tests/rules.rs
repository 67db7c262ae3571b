//! All cases through the rules in Rust.

use std::collections::BTreeSet;

use spillway_switch_cases::case::read_all;
use spillway_switch_cases::message::{KINDS, STATUSES, name};
use spillway_switch_cases::random::reachable_answers;
use spillway_switch_cases::rules::Rules;
use spillway_switch_cases::run::{Coverage, run};
use spillway_switch_cases::switch::{VERDICTS, Verdict};

/// Minimum number of steps of all cases: with fewer, some files were not read.
const STEPS_MIN: usize = 400;

#[test]
fn cases_get_their_outcomes() {
    let files = read_all().unwrap_or_else(|error| panic!("{error}"));
    let mut coverage = Coverage::default();
    let mut failures = Vec::new();
    let mut steps = BTreeSet::new();
    for file in &files {
        for case in &file.cases {
            steps.extend(case.steps.iter().map(|step| (&file.path, step.position.line)));
            let mut switch = Rules::new(&case.setup);
            if let Err(failure) = run(case, &mut switch, &mut coverage, |_, _| Ok(())) {
                let path = file.path.display();
                failures.push(format!(
                    "{path}:{}: case \"{}\": {}",
                    failure.position.line, case.name, failure.message
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{} cases fail:\n{}", failures.len(), failures.join("\n\n"));
    assert!(steps.len() >= STEPS_MIN, "only {} steps", steps.len());
    let unused: Vec<&str> = VERDICTS
        .iter()
        .enumerate()
        .filter(|(index, _)| !coverage.verdicts.contains_key(&Verdict(*index)))
        .map(|(_, name)| *name)
        .collect();
    assert!(unused.is_empty(), "no case has these verdicts: {unused:?}");
    let missing: Vec<String> = reachable_answers()
        .difference(&coverage.answers)
        .map(|(kind, status)| format!("{} to {}", name(&STATUSES, *status), name(&KINDS, *kind)))
        .collect();
    assert!(missing.is_empty(), "no case has these answers: {missing:?}");
    println!("{} steps in {} files\n{}", steps.len(), files.len(), coverage.show_answers());
}
