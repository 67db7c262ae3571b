//! Results of `burst` as rows, ratios and checks.
//!
//! - `goodput`: rows of each series of ramps; `early_ends`: what ramps that ended early mean for them
//! - `ratios`: helped over direct and over rivals
//! - `relief`: rows of relieved bursts
//! - `migration`: rows of data migration

mod early_ends;
mod goodput;
mod migration;
mod ratios;
mod relief;

use super::{Measured, ROUNDS, ROUNDS_QUICK};
use crate::experiments::Options;
use crate::results::{Check, Results};

pub(super) fn add_results(measured: &Measured, options: &Options, results: &mut Results) {
    for series in &measured.series {
        goodput::add_goodput_rows(series, results);
    }
    ratios::add_ratios(measured, results);
    relief::add_relief_rows(measured, options, results);
    ratios::add_rival_ratios(measured, results);
    migration::add_migration_rows(measured, results);
    results.checks = measured.tally.checks();
    let unmoved = measured.burst_runs.iter().filter(|run| run.moved_ms().is_none()).count();
    results.checks.push(Check::none(
        "all_moved",
        unmoved as u64,
        &format!("{} bursts left clients unmoved", measured.burst_runs.len()),
    ));
    if measured.quick {
        let quick = format!("--quick: {ROUNDS_QUICK} rounds instead of {ROUNDS}");
        results.machine.lab.insert("quick".into(), quick.clone());
        results.ratios.iter_mut().for_each(|ratio| *ratio = ratio.clone().void_if([&quick]));
    }
    for note in measured.calibration.notes.iter().chain(&measured.left_out) {
        results.machine.lab.insert(format!("note {}", results.machine.lab.len()), note.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::Series;
    use super::super::rivals::Migration;
    use super::*;
    use crate::calibrate::Calibration;
    use crate::goodput::{RampResult, Tally};
    use crate::machine::Machine;
    use crate::measure::{Step, Used};
    use crate::programs::Programs;
    use crate::ramp::Goodput;
    use crate::scene::{Setting, System};

    fn series(system: System, goodputs: &[f64]) -> Series {
        let round = |&kept: &f64| {
            Some(RampResult {
                goodput: Goodput { kept_per_s: Some(kept), failed_per_s: Some(kept * 1.05) },
                best: Some(Step {
                    used: Used { seconds: 2.0, server_process_s: 0.2, ..Used::default() },
                    ..Step::default()
                }),
                ..RampResult::default()
            })
        };
        Series {
            system,
            sla_us: 1_000,
            max_delay: Duration::from_micros(300),
            has_burner: false,
            is_repetition: false,
            iso_percent: None,
            rounds: goodputs.iter().map(round).collect(),
        }
    }

    fn measured(series: Vec<Series>) -> Measured {
        Measured {
            prefix: String::new(),
            quick: false,
            calibration: Calibration { direct_per_s: 3_000.0, sla_us: 1_000, ..Calibration::default() },
            series,
            burst_runs: Vec::new(),
            probed: Vec::new(),
            migrations: Vec::new(),
            burnt_percent: None,
            left_out: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn results_of(measured: &Measured) -> Results {
        let mut results = Results::new("burst", Machine::default());
        let options = Options {
            quick: measured.quick,
            only: Vec::new(),
            setting: Setting::new(Programs::in_directory(Path::new(""))),
        };
        add_results(measured, &options, &mut results);
        results
    }

    #[test]
    fn helped_is_compared_with_the_better_direct_system_round_by_round() {
        let results = results_of(&measured(vec![
            series(System::Plain, &[3_000.0; 5]),
            series(System::Shimmed, &[2_000.0, 4_000.0, 4_000.0, 4_000.0, 4_000.0]),
            series(System::Helped, &[16_000.0; 5]),
        ]));
        let ratio = &results.ratios[0];
        assert_eq!(ratio.name, "goodput_helped_over_direct");
        assert_eq!((ratio.median, ratio.min, ratio.max), (Some(4.0), Some(4.0), Some(8.0)));
        assert_eq!((ratio.valid, ratio.upper95), (true, Some(8.0)));
        assert!(ratio.why.contains("against direct, with shim"), "{}", ratio.why);
    }

    #[test]
    fn a_direct_ramp_that_ended_early_voids_the_ratio_and_a_helped_one_does_not() {
        let mut helped = series(System::Helped, &[16_000.0; 5]);
        helped.rounds[1].as_mut().unwrap().trouble = Some("the helper used 81 % of a core".into());
        let early_helped = measured(vec![series(System::Plain, &[3_000.0; 5]), helped]);
        let results = results_of(&early_helped);
        assert!(results.ratios[0].valid && results.ratios[0].why.contains("lower bound: round 2"));

        let mut plain = series(System::Plain, &[3_000.0; 5]);
        plain.rounds[0].as_mut().unwrap().trouble = Some("the clients lagged".into());
        let results = results_of(&measured(vec![plain, series(System::Helped, &[16_000.0; 5])]));
        assert!(!results.ratios[0].valid && results.ratios[0].why.contains("round 1: the clients lagged"));
        let goodput = results.rows.iter().find(|row| row.metric == "goodput").unwrap();
        assert!(!goodput.valid);
    }

    #[test]
    fn ratios_of_a_quick_run_are_void() {
        let mut quick =
            measured(vec![series(System::Plain, &[3_000.0; 2]), series(System::Helped, &[16_000.0; 2])]);
        quick.quick = true;
        let results = results_of(&quick);
        assert!(!results.ratios[0].valid && results.ratios[0].why.contains("--quick"));
        assert_eq!(results.ratios[0].upper95, None);
        assert!(results.machine.lab["quick"].contains("2 rounds instead of 5"));
        assert!(results.passed());
    }

    #[test]
    fn all_required_rows_are_present() {
        let results = results_of(&measured(vec![
            series(System::Plain, &[3_000.0]),
            series(System::Helped, &[16_000.0]),
        ]));
        for metric in
            ["goodput", "moved_ms", "relief_ms", "drain_floor_ms", "total_cpu_us_per_request", "nr_throttled"]
        {
            assert!(results.rows.iter().any(|row| row.metric == metric), "{metric}");
        }
        let moved = results.rows.iter().find(|row| row.metric == "moved_ms").unwrap();
        assert!(!moved.valid, "without a burst there is no time to move");
    }

    #[test]
    fn ratios_of_the_helped_server_to_its_rivals_are_added() {
        let mut iso = series(System::Plain, &[8_000.0; 5]);
        iso.iso_percent = Some(42.0);
        let results = results_of(&measured(vec![
            iso,
            series(System::Plain, &[3_000.0; 5]),
            series(System::Helped, &[16_000.0; 5]),
            series(System::Nutcracker, &[4_000.0; 5]),
        ]));
        let median = |name: &str| results.ratios.iter().find(|ratio| ratio.name == name).unwrap().median;
        assert_eq!(median("goodput_helped_over_direct"), Some(16.0 / 3.0));
        assert_eq!(median("goodput_helped_over_nutcracker"), Some(4.0));
        assert_eq!(median("goodput_helped_over_iso_cpu"), Some(2.0));
        assert!(results.rows.iter().any(|row| row.params.contains_key("iso_cpu_percent")));
    }

    #[test]
    fn migrations_are_reported_with_their_volume() {
        let mut all = measured(vec![series(System::Plain, &[3_000.0; 5])]);
        let copied = Migration { copy_ms: Some(2_000.0), relief_ms: Some(2_400), ..Migration::default() };
        let never = Migration { relief_ms: None, ..copied.clone() };
        let spoilt = Migration { spoilt: vec!["a stall".into()], ..copied.clone() };
        all.migrations = vec![copied, never, spoilt, Migration { helped: true, ..Migration::default() }];
        let results = results_of(&all);
        let row = |metric: &str| {
            results.rows.iter().find(|r| r.system == "data migration" && r.metric == metric).unwrap()
        };
        assert_eq!((row("copy_ms").median, row("copy_ms").runs), (Some(2_000.0), 2));
        assert_eq!(
            (row("copy_rate").median, row("copy_rate").params["copied_mb"].as_f64()),
            (Some(20.0), Some(40.0))
        );
        let relief = row("relief_ms");
        assert!(
            !relief.valid
                && relief.why.contains("1 of 2 runs not relieved")
                && relief.why.contains("a stall")
        );
    }
}
