//! Real-time threads (SCHED_FIFO).

use std::io;

use crate::cgroup::Layout;
use crate::{LabError, napi};

/// Priority of receive threads. The burner's is higher, and the stall detector's is the highest.
pub(crate) const RECEIVE_PRIORITY: i32 = 1;

pub(crate) fn become_real_time(core: usize, priority: i32) -> Result<(), LabError> {
    napi::pin_current(core)?;
    // With CONFIG_RT_GROUP_SCHED, only the root group of cgroup v1 has a real-time allowance by default.
    if let Ok(layout @ Layout::V1 { .. }) = Layout::detect() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        layout.move_to_root(thread.unsigned_abs());
    }
    set_first_in_first_out(0, priority).map_err(LabError::io(
        "cannot become a real-time thread (needs root, or CAP_SYS_NICE and a cpu group with real-time allowance)",
    ))
}

/// Schedules a thread with SCHED_FIFO: until the thread sleeps, it runs before ordinary threads and lower
/// priorities. `thread`: 0 for the calling thread. Fails if the thread's group has no real-time allowance.
pub(crate) fn set_first_in_first_out(thread: u32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` is a valid sched_param for the duration of the call.
    match unsafe { libc::sched_setscheduler(thread.cast_signed(), libc::SCHED_FIFO, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
