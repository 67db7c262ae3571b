//! The kernel threads that do an interface's receive work.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::LabError;

/// Ids of the NAPI threads of an interface: kernel threads named `napi/INTERFACE-ID`.
///
/// A thread's id changes whenever an XDP program is attached or detached.
pub(crate) fn threads_of(interface: &str) -> Vec<u32> {
    let prefix = format!("napi/{interface}-");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.starts_with(&prefix)) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}

/// Lets a thread run on one core only.
pub(crate) fn pin(thread: u32, core: usize) -> Result<(), LabError> {
    let raw = i32::try_from(thread).ok().and_then(Pid::from_raw);
    sched_setaffinity(raw, &only(core)?)
        .map_err(LabError::errno(format!("cannot pin thread {thread} to core {core}")))
}

/// Lets the calling thread run on one core only.
pub(crate) fn pin_current(core: usize) -> Result<(), LabError> {
    sched_setaffinity(None, &only(core)?)
        .map_err(LabError::errno(format!("cannot pin a thread to core {core}")))
}

/// The set of one core; refuses cores that the machine does not have.
pub(crate) fn only(core: usize) -> Result<CpuSet, LabError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).max(online());
    if core >= cores.min(CpuSet::MAX_CPU) {
        return Err(LabError::BadOption(format!(
            "there is no core {core}: this machine has cores 0 to {}",
            cores - 1
        )));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(set)
}

/// Highest core number of the machine plus one. The process's own mask may be narrower.
fn online() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    text.trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|last| last.parse::<usize>().ok())
        .map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_checked() {
        assert!(only(0).unwrap().is_set(0));
        assert!(matches!(only(100_000), Err(LabError::BadOption(_))));
    }

    #[test]
    fn no_thread_serves_an_interface_that_does_not_exist() {
        assert!(threads_of("no-such-interface").is_empty());
    }
}
