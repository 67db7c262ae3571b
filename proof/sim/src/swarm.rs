//! Runs many seeds in parallel.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs `one` for each seed on all cores; passes each report to `tell` when complete, in any order, one at a time.
pub fn swarm<R>(seeds: Range<u64>, one: impl Fn(u64) -> R + Sync, tell: impl FnMut(R) + Send) {
    let (next, tell) = (AtomicU64::new(seeds.start), Mutex::new(tell));
    let worker = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let report = one(seed);
            tell.lock().unwrap_or_else(PoisonError::into_inner)(report);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
}
