//! The kernel threads that do an interface's receive work.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::LabError;

/// Thread ids of an interface's NAPI threads. The kernel names them `napi/INTERFACE-N`, where N is the id of
/// the NAPI instance. Attaching or detaching an XDP program replaces the threads.
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

pub(crate) fn pin(thread: u32, core: usize) -> Result<(), LabError> {
    // Never `None`, which would pin the calling thread: the kernel's thread ids are positive `i32`.
    let raw = i32::try_from(thread).ok().and_then(Pid::from_raw);
    sched_setaffinity(raw, &one_core(core)?)
        .map_err(LabError::errno(format!("cannot pin thread {thread} to core {core}")))
}

pub(crate) fn pin_current(core: usize) -> Result<(), LabError> {
    sched_setaffinity(None, &one_core(core)?)
        .map_err(LabError::errno(format!("cannot pin a thread to core {core}")))
}

/// The CPU set of one core. Refuses cores that the machine does not have.
pub(crate) fn one_core(core: usize) -> Result<CpuSet, LabError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).max(online_cores_end());
    if core >= cores.min(CpuSet::MAX_CPU) {
        return Err(LabError::BadOption(format!(
            "core {core} does not exist: this machine has cores 0 to {}",
            cores - 1
        )));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(set)
}

/// One more than the highest number of an online core, whether or not this process may run on that core; 0 if
/// unknown.
fn online_cores_end() -> usize {
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
    fn cores_that_do_not_exist_are_refused() {
        assert!(one_core(0).unwrap().is_set(0));
        assert!(matches!(one_core(100_000), Err(LabError::BadOption(_))));
    }

    #[test]
    fn an_unknown_interface_has_no_threads() {
        assert!(threads_of("no-such-interface").is_empty());
    }
}
