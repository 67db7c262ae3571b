//! The CPU cores that this process may use.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may run on, in ascending order; empty if the kernel does not report them.
pub fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Pins the calling thread to one core.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_thread_may_use_only_its_core() {
        let core = *allowed_cores().last().expect("a process should have a core");
        let pinned = std::thread::spawn(move || {
            pin_current_thread(core).unwrap();
            allowed_cores()
        });
        assert_eq!(pinned.join().unwrap(), [core]);
        assert!(pin_current_thread(usize::MAX).is_err());
    }
}
