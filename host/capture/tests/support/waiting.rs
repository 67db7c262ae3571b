//! How long tests wait, how often they move connections, and whether this machine can run them.

use std::time::{Duration, Instant};

use spillway_lab::unavailable;

/// Timeout of every wait in a test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether this machine cannot run these tests. Prints the reason.
pub fn skipped() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_some()
}

/// Number of moves of a test.
pub fn moves() -> usize {
    std::env::var("CAPTURE_MOVES").map_or(100, |text| text.parse().expect("CAPTURE_MOVES is a number"))
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}
