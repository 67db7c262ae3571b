//! A short run of the experiment `attacks`: each attacker runs, and all rows and ratios are present. Needs root,
//! memcached, and the `spillway` command and its preload library in the directory of this test.

mod support;

use std::time::Duration;

use spillway_bench::experiments::batch::attacks;
use spillway_bench::scene::Setting;
use support::programs;

#[test]
fn all_attacks_complete_with_their_rows_and_ratios() {
    let programs = match programs(&["memcached"]) {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: {why}"),
    };
    let full = attacks::Effort::full();
    let effort = attacks::Effort {
        rounds: 1,
        spoilt_max: 0,
        settle: Duration::from_millis(300),
        length: Duration::from_millis(500),
        ..full.clone()
    };
    let mut output = Vec::new();
    let results = attacks::run_with(&Setting::new(programs), &effort, &mut output).unwrap();
    let output = String::from_utf8_lossy(&output);
    assert!(!results.incomplete, "{}\n{output}", results.why);
    for id in full.attacks {
        let name = format!("p99_under_attack_over_quiet_{id}");
        assert!(results.ratios.iter().any(|ratio| ratio.name == name), "no ratio {name}\n{output}");
        let rows = |metric: &str| {
            let rows_of_attack =
                results.rows.iter().filter(|row| row.params.get("attack").is_some_and(|attack| attack == id));
            rows_of_attack.filter(|row| row.metric == metric).count()
        };
        assert_eq!((rows("p99_us"), rows("rss_mib"), rows("failed_requests")), (6, 1, 1), "{id}\n{output}");
    }
    assert!(results.rows.iter().any(|row| row.metric == "rss_over_max_memory"));
}
