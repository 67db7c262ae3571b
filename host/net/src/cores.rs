//! The CPU cores that this process may use.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may run on, in ascending order; empty if the host does not tell.
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
    fn a_thread_stays_where_it_is_pinned() {
        let core = *allowed_cores().last().expect("a process runs somewhere");
        let pinned = std::thread::spawn(move || {
            pin_current_thread(core).expect("an allowed core");
            allowed_cores()
        });
        assert_eq!(pinned.join().expect("no panic"), [core]);
        assert!(pin_current_thread(usize::MAX).is_err());
    }
}
