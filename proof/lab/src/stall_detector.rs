//! Detects times in which the hypervisor or the kernel withheld a core from the laboratory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{ClockId, clock_nanosleep_relative};
use rustix::time::Timespec;

use crate::LabError;
use crate::realtime::become_real_time;

/// Above every thread that a lab starts or pins.
const PRIORITY: i32 = 50;
const CHECK_PERIOD: Duration = Duration::from_millis(1);
/// Minimum delay of a wake-up that counts as a stall. Interrupts and kernel work cause shorter ones.
const STALL_MIN: Duration = Duration::from_micros(300);

/// One thread on each watched core sleeps for 1 ms at a time and sums up the delays of its wake-ups.
///
/// The thread has the highest priority on the core, so no process of the laboratory can delay it. A delay
/// means that the hypervisor gave the core to another guest, or that the kernel had disabled interrupts.
/// Costs about 0.3 % of each core.
#[derive(Debug)]
pub struct StallDetector {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    stalled_ns: Vec<AtomicU64>,
}

impl StallDetector {
    /// Watches the first `cores` cores.
    ///
    /// # Errors
    /// The process has no right to real-time scheduling.
    pub fn watch(cores: usize) -> Result<StallDetector, LabError> {
        let stalled_ns = (0..cores).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), stalled_ns });
        let mut detector = StallDetector { shared: Arc::clone(&shared), threads: Vec::with_capacity(cores) };
        for core in 0..cores {
            let thread_shared = Arc::clone(&shared);
            let (report, started) = sync_channel(1);
            let work = move || {
                let ready = become_real_time(core, PRIORITY);
                let watching = ready.is_ok();
                let _ = report.send(ready);
                if watching {
                    watch_core(&thread_shared, core);
                }
            };
            let thread = std::thread::Builder::new()
                .name("lab-stalls".into())
                .spawn(work)
                .map_err(LabError::io("cannot start the stall detector's thread"))?;
            detector.threads.push(thread);
            let ended = || LabError::NotReady {
                what: "the stall detector's thread ended at once".into(),
                output: String::new(),
            };
            started.recv().map_err(|_| ended())??;
        }
        Ok(detector)
    }

    /// Sum of each core's stalls so far.
    pub fn stalled(&self) -> Vec<Duration> {
        self.shared.stalled_ns.iter().map(|ns| Duration::from_nanos(ns.load(Ordering::Relaxed))).collect()
    }
}

impl Drop for StallDetector {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn watch_core(shared: &Shared, core: usize) {
    let period = Timespec { tv_sec: 0, tv_nsec: i64::from(CHECK_PERIOD.subsec_nanos()) };
    while !shared.stop.load(Ordering::Relaxed) {
        let started_at = Instant::now();
        // A sleep that a signal ends early records no stall.
        let _ = clock_nanosleep_relative(ClockId::Monotonic, &period);
        let late = started_at.elapsed().saturating_sub(CHECK_PERIOD);
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
    fn a_core_held_by_another_thread_counts_as_stalled() {
        let Ok(detector) = StallDetector::watch(1) else {
            println!("skipped: no right to real-time scheduling here (run as root)");
            return;
        };
        // Only a thread of higher priority delays a detector.
        let hold = || {
            become_real_time(0, PRIORITY + 1).unwrap();
            let started_at = Instant::now();
            while started_at.elapsed() < Duration::from_millis(30) {
                std::hint::spin_loop();
            }
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        // A hold that begins while the detector is awake is not detected: repeat it.
        while detector.stalled()[0] < Duration::from_millis(20) {
            assert!(Instant::now() < deadline, "no stall seen: {:?}", detector.stalled());
            std::thread::spawn(hold).join().unwrap();
        }
    }
}
