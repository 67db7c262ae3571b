//! Shared code of the tests.

#![allow(dead_code, reason = "not every test uses all functions")]

use std::path::Path;
use std::time::Duration;

use spillway_bench::programs::Programs;
use spillway_bench::results::Results;

/// Length of a measurement whose figures are not checked.
pub const SHORT: Duration = Duration::from_millis(200);

/// Asserts that the experiment is complete, that every check held, and that rows of these metrics are present.
pub fn assert_complete(results: &Results, output: &[u8], metrics: &[&str]) {
    let output = String::from_utf8_lossy(output);
    assert!(!results.incomplete, "{}\n{output}", results.why);
    for check in &results.checks {
        assert!(check.ok, "{}: {}\n{output}", check.name, check.detail);
    }
    for metric in metrics {
        assert!(results.rows.iter().any(|row| row.metric == *metric), "no row {metric}\n{output}");
    }
}

/// The built programs, or the reason why experiments cannot run here.
pub fn programs(peers: &[&str]) -> Result<Programs, String> {
    if let Some(why) = spillway_lab::unavailable() {
        return Err(why);
    }
    let test = std::env::current_exe().map_err(|e| e.to_string())?;
    let directory = test.parent().and_then(Path::parent).ok_or("the test program has no parent directory")?;
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
