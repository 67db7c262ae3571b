//! Occupies a share of a core with a real-time thread, to check results that were measured under a quota.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{ClockId, clock_nanosleep_relative};
use rustix::time::{Timespec, clock_gettime};

use crate::realtime::become_real_time;
use crate::{LabError, napi};

/// Above ordinary and NAPI threads, below the kernel's own real-time threads.
const PRIORITY: i32 = 10;

/// A real-time thread that uses a fixed part of every period of a core until it is dropped.
///
/// The server, its interface's NAPI thread and interrupts share the rest of the core. So unlike a quota, a
/// burner also limits kernel threads, and a flood of packets does not change its share.
#[derive(Debug)]
pub struct Burner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    started: Instant,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    burnt_ns: AtomicU64,
    late_periods: AtomicU64,
}

impl Burner {
    /// Burns `busy` of each `period` of a core, for example 900 of 1,000 µs.
    ///
    /// # Errors
    /// The process has no right to real-time scheduling, or the share exceeds the kernel's allowance for
    /// real-time threads: 95 % of each second by default, above which the kernel stops them for tens of ms.
    pub fn start(core: usize, busy: Duration, period: Duration) -> Result<Burner, LabError> {
        Burner::start_until(core, busy, period, None)
    }

    fn start_until(
        core: usize,
        busy: Duration,
        period: Duration,
        deadline: Option<Instant>,
    ) -> Result<Burner, LabError> {
        check(busy, period, real_time_share())?;
        napi::one_core(core)?;
        // Taken before the thread starts, because the first period begins while `recv` below waits.
        let started_at = Instant::now();
        let shared = Arc::new(Shared::default());
        let (report, started) = sync_channel(1);
        let thread_shared = Arc::clone(&shared);
        let work = move || match become_real_time(core, PRIORITY) {
            Ok(()) => {
                let _ = report.send(Ok(()));
                burn(&thread_shared, busy, period, deadline);
            }
            Err(e) => drop(report.send(Err(e))),
        };
        let thread = std::thread::Builder::new()
            .name("lab-burner".into())
            .spawn(work)
            .map_err(LabError::io("cannot start the burner's thread"))?;
        let ended =
            || LabError::NotReady { what: "the burner's thread ended at once".into(), output: String::new() };
        started.recv().map_err(|_| ended())??;
        Ok(Burner { shared, thread: Some(thread), started: started_at })
    }

    /// CPU time burnt so far, by the kernel's account.
    pub fn burnt(&self) -> Duration {
        Duration::from_nanos(self.shared.burnt_ns.load(Ordering::Relaxed))
    }

    /// Percent of the core burnt since the start.
    pub fn percent_of_core(&self) -> f64 {
        let elapsed = self.started.elapsed().as_secs_f64();
        if elapsed > 0.0 { 100.0 * self.burnt().as_secs_f64() / elapsed } else { 0.0 }
    }

    /// Periods skipped because the burner was scheduled too late. Many skipped periods make a run invalid.
    pub fn late_periods(&self) -> u64 {
        self.shared.late_periods.load(Ordering::Relaxed)
    }
}

/// Slows every core of this machine by burning a part of each short period, until dropped or a time limit.
///
/// Does not slow interrupts and the kernel's own real-time threads. The burnt time is in this process's
/// account, not in those of a lab's hosts.
#[derive(Debug)]
pub struct Slowdown {
    burners: Vec<Burner>,
    times: u32,
}

/// Short enough that a core appears slow rather than stopped.
const SLOWDOWN_PERIOD: Duration = Duration::from_micros(100);

impl Slowdown {
    /// Makes ordinary work take `times` as long: 2 leaves a half of each core, 3 a third. Ends after `limit`.
    ///
    /// # Errors
    /// As [`Burner::start`], or `times` is not 2 to 10.
    pub fn start(times: u32, limit: Duration) -> Result<Slowdown, LabError> {
        if !(2..=10).contains(&times) {
            return Err(LabError::BadOption(format!("cores can be slowed 2 to 10 times, not {times} times")));
        }
        let busy = SLOWDOWN_PERIOD - SLOWDOWN_PERIOD / times;
        let deadline = Instant::now() + limit;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |core| Burner::start_until(core, busy, SLOWDOWN_PERIOD, Some(deadline));
        Ok(Slowdown { burners: (0..cores).map(start).collect::<Result<_, _>>()?, times })
    }

    /// The share of each core that is left to other work, 0 to 1.
    pub fn speed(&self) -> f64 {
        1.0 / f64::from(self.times)
    }

    /// Percent of each core burnt since the start.
    pub fn percent_of_cores(&self) -> Vec<f64> {
        self.burners.iter().map(Burner::percent_of_core).collect()
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn burn(shared: &Shared, busy: Duration, period: Duration, deadline: Option<Instant>) {
    let mut period_start = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) && deadline.is_none_or(|deadline| period_start < deadline) {
        while period_start.elapsed() < busy {
            std::hint::spin_loop();
        }
        shared.burnt_ns.store(thread_cpu_ns(), Ordering::Relaxed);
        period_start += period;
        match period_start.checked_duration_since(Instant::now()) {
            Some(rest) => sleep(rest),
            None => {
                // Restart the schedule: catching up would occupy the core for longer than a period.
                shared.late_periods.fetch_add(1, Ordering::Relaxed);
                sleep(period - busy);
                period_start = Instant::now();
            }
        }
    }
}

fn sleep(rest: Duration) {
    let rest = Timespec { tv_sec: 0, tv_nsec: i64::from(rest.subsec_nanos()) };
    // A signal may end the sleep early; the caller's schedule still follows the clock.
    let _ = clock_nanosleep_relative(ClockId::Monotonic, &rest);
}

fn thread_cpu_ns() -> u64 {
    let used = clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(used.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(used.tv_nsec).unwrap_or(0)
}

/// The kernel's allowance for real-time threads, as a share of a core (0 to 1).
fn real_time_share() -> f64 {
    let setting = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<f64>().ok()
    };
    match (setting("sched_rt_runtime_us"), setting("sched_rt_period_us")) {
        (Some(runtime), Some(period)) if runtime >= 0.0 && period > 0.0 => runtime / period,
        _ => 1.0,
    }
}

fn check(busy: Duration, period: Duration, share: f64) -> Result<(), LabError> {
    let is_valid = !busy.is_zero() && busy < period && period <= Duration::from_millis(100);
    if is_valid && busy.as_secs_f64() / period.as_secs_f64() < share {
        return Ok(());
    }
    Err(LabError::BadOption(format!(
        "cannot burn {busy:?} in each {period:?}: the period is at most 100 ms, and real-time threads may have \
         {:.0} % of a core here (kernel.sched_rt_runtime_us)",
        share * 100.0
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdowns_outside_2_to_10_times_are_refused() {
        for times in [0, 1, 11] {
            let refused = Slowdown::start(times, Duration::from_secs(1)).unwrap_err();
            assert!(refused.to_string().contains("slowed"), "{refused}");
        }
    }

    #[test]
    fn a_burner_ends_at_its_deadline_without_a_stop() {
        let (us, shared) = (Duration::from_micros, Shared::default());
        burn(&shared, us(10), us(100), Some(Instant::now() + Duration::from_millis(2)));
        assert!(!shared.stop.load(Ordering::Relaxed));
    }

    #[test]
    fn shares_beyond_the_kernels_allowance_are_refused() {
        let us = Duration::from_micros;
        assert!(check(us(900), us(1_000), 0.95).is_ok());
        assert!(check(us(950), us(1_000), 0.95).is_err());
        assert!(check(us(1_000), us(1_000), 1.0).is_err());
        assert!(check(us(0), us(1_000), 0.95).is_err());
        assert!(check(us(1_000), us(200_000), 0.95).is_err());
    }
}
