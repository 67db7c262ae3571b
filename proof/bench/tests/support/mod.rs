//! What experiments in tests need.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::path::Path;
use std::time::Duration;

use spillway_bench::programs::Programs;
use spillway_bench::results::Results;

/// Of a measurement whose figures nobody looks at.
pub const SHORT: Duration = Duration::from_millis(200);

/// That every check held, and that these rows are there.
pub fn assert_whole(results: &Results, told: &[u8], metrics: &[&str]) {
    let told = String::from_utf8_lossy(told);
    assert!(!results.incomplete, "{}\n{told}", results.why);
    for check in &results.checks {
        assert!(check.ok, "{}: {}\n{told}", check.name, check.detail);
    }
    for metric in metrics {
        assert!(results.rows.iter().any(|row| row.metric == *metric), "no row {metric}\n{told}");
    }
}

/// The built commands, or why there can be no experiment.
pub fn programs(peers: &[&str]) -> Result<Programs, String> {
    if let Some(why) = spillway_lab::unavailable() {
        return Err(why);
    }
    let test = std::env::current_exe().map_err(|e| e.to_string())?;
    let directory = test.parent().and_then(Path::parent).ok_or("this test is nowhere")?;
    for file in ["spillway", "spillway-lab", "libspillway_shim.so"] {
        if !directory.join(file).exists() {
            return Err(format!("{file} is not in {}: build the whole workspace first", directory.display()));
        }
    }
    for peer in peers {
        if !["/usr/bin", "/usr/sbin"].iter().any(|directory| Path::new(directory).join(peer).exists()) {
            return Err(format!("{peer} is not installed"));
        }
    }
    Ok(Programs::in_directory(directory))
}
