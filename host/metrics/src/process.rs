//! The metrics that Prometheus' conventions define for every process, from `/proc` and from system calls.

use std::fs;
use std::time::Duration;

use crate::exposition::{Exposition, Metric};

const CPU: Metric =
    Metric::counter("process_cpu_seconds_total", &[], "User and system CPU time of the process.");
const RESIDENT: Metric =
    Metric::gauge("process_resident_memory_bytes", &[], "Resident memory of the process.");
const OPEN_FILES: Metric = Metric::gauge("process_open_fds", &[], "Open file descriptors of the process.");
const FILES_MAX: Metric =
    Metric::gauge("process_max_fds", &[], "File descriptors that the process may open.");
const START: Metric =
    Metric::gauge("process_start_time_seconds", &[], "When the process started, since the epoch.");

/// The metrics that [`expose`] writes.
pub const METRICS: &[Metric] = &[CPU, RESIDENT, OPEN_FILES, FILES_MAX, START];

/// Writes this process's metrics. `started`: when the process started, in seconds since the Unix epoch.
pub fn expose(exposition: &mut Exposition, started: f64) {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    exposition.family(&CPU).sample(&[], cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9);
    if let Some(bytes) = resident_bytes() {
        exposition.family(&RESIDENT).count(&[], bytes);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        exposition.family(&OPEN_FILES).count(&[], files.count() as u64);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    exposition.family(&FILES_MAX).sample(&[], limit.current.map_or(f64::INFINITY, |files| files as f64));
    exposition.family(&START).sample(&[], started);
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
