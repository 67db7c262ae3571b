//! Runs many seeds in parallel.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs `run_one` for each seed on all cores; passes each finished report to `on_report`, in any order, one at a time.
pub fn run_seeds<R>(seeds: Range<u64>, run_one: impl Fn(u64) -> R + Sync, on_report: impl FnMut(R) + Send) {
    let (next, on_report) = (AtomicU64::new(seeds.start), Mutex::new(on_report));
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let report = run_one(seed);
            on_report.lock().unwrap_or_else(PoisonError::into_inner)(report);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
}
