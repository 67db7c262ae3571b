//! Threads that run before all ordinary ones.

use crate::cgroup::Layout;
use crate::{LabError, napi};

/// Makes the calling thread a real-time thread on one core. Priorities here: 1 for receive threads that run first, 10
/// for the burner, more for the canary, which must see what holds those up.
pub(crate) fn become_real_time(core: usize, priority: i32) -> Result<(), LabError> {
    napi::pin_current(core)?;
    // With CONFIG_RT_GROUP_SCHED only the root group of cgroup v1 has real-time allowance by default.
    if let Ok(layout @ Layout::V1 { .. }) = Layout::detect() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        layout.release(thread.unsigned_abs());
    }
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` is a valid sched_param for the duration of the call; 0 names the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) } == 0 {
        return Ok(());
    }
    Err(LabError::io(
        "cannot become a real-time thread (needs root, or CAP_SYS_NICE and a cpu group with real-time allowance)",
    )(std::io::Error::last_os_error()))
}
