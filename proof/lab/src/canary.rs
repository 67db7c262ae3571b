//! Tells when a core was taken away from the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{ClockId, clock_nanosleep_relative};
use rustix::time::Timespec;

use crate::LabError;
use crate::realtime::become_real_time;

/// Above every thread that a lab makes or adopts.
const PRIORITY: i32 = 50;
/// Between two looks.
const PERIOD: Duration = Duration::from_millis(1);
/// A look that comes later than this is a stall. Interrupts and the kernel's own work delay one by less.
const STALL_MIN: Duration = Duration::from_micros(300);

/// A thread on each of some cores that sleeps for a millisecond, over and over, and adds up how much too late it woke.
///
/// It runs before everything else there, so that what holds it up is no process of the laboratory: the machine's own
/// host gave the core to somebody else, or the kernel kept interrupts away. It costs about 0.3 % of each core.
#[derive(Debug)]
pub struct Canary {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Of each core, in ns.
    stalled_ns: Vec<AtomicU64>,
}

impl Canary {
    /// Watches the first `cores` cores.
    ///
    /// # Errors
    /// Without the right to real-time scheduling.
    pub fn watch(cores: usize) -> Result<Canary, LabError> {
        let stalled_ns = (0..cores).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), stalled_ns });
        let mut canary = Canary { shared: Arc::clone(&shared), threads: Vec::with_capacity(cores) };
        for core in 0..cores {
            let theirs = Arc::clone(&shared);
            let (report, started) = sync_channel(1);
            let work = move || {
                let ready = become_real_time(core, PRIORITY);
                let watching = ready.is_ok();
                let _ = report.send(ready);
                if watching {
                    look(&theirs, core);
                }
            };
            let thread = std::thread::Builder::new()
                .name("lab-canary".into())
                .spawn(work)
                .map_err(LabError::io("cannot start the canary's thread"))?;
            canary.threads.push(thread);
            let ended = || LabError::NotReady {
                what: "the canary's thread ended at once".into(),
                output: String::new(),
            };
            started.recv().map_err(|_| ended())??;
        }
        Ok(canary)
    }

    /// How long each core was away so far.
    pub fn stalled(&self) -> Vec<Duration> {
        self.shared.stalled_ns.iter().map(|ns| Duration::from_nanos(ns.load(Ordering::Relaxed))).collect()
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Each ends within a period; should one have panicked there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

fn look(shared: &Shared, core: usize) {
    let period = Timespec { tv_sec: 0, tv_nsec: i64::from(PERIOD.subsec_nanos()) };
    while !shared.stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        // Woken early by a signal it sees no stall, and looks again.
        let _ = clock_nanosleep_relative(ClockId::Monotonic, &period);
        let late = begun.elapsed().saturating_sub(PERIOD);
        if late >= STALL_MIN {
            let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
            shared.stalled_ns[core].fetch_add(late_ns, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_held_by_somebody_else_is_seen() {
        let Ok(canary) = Canary::watch(1) else {
            println!("skipped: no right to real-time scheduling here (run as root)");
            return;
        };
        // Above the canary, as nothing in a laboratory is.
        let hold = || {
            become_real_time(0, PRIORITY + 1).unwrap();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(30) {
                std::hint::spin_loop();
            }
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        // The canary may just not be asleep on its core when the hold begins; then it is held again.
        while canary.stalled()[0] < Duration::from_millis(20) {
            assert!(Instant::now() < deadline, "no stall seen: {:?}", canary.stalled());
            std::thread::spawn(hold).join().unwrap();
        }
    }
}
