//! Idle cores that poll instead of halting.

use std::fs::{File, OpenOptions};
use std::io::Write;

use crate::LabError;

/// The kernel's power management takes its latency limit here, for as long as the file is open.
const LATENCY_LIMIT: &str = "/dev/cpu_dma_latency";
/// In µs.
const NO_LATENCY: i32 = 0;

/// While this lives, no core halts when it is idle, as on hosts that are tuned for latency.
///
/// On a virtual machine a halted core costs an exit to its host, and waking it costs the waker an interrupt between
/// processors: tens of µs for each packet, charged to whoever sends it. Both drown what a packet costs elsewhere.
/// Polling is idle time to every account.
#[derive(Debug)]
pub struct Awake {
    _limit: File,
}

impl Awake {
    /// Asks the kernel for it.
    ///
    /// # Errors
    /// Without root, or where the kernel has no such interface.
    pub fn hold() -> Result<Awake, LabError> {
        let refused = || format!("cannot keep idle cores awake by {LATENCY_LIMIT}");
        let mut limit =
            OpenOptions::new().write(true).open(LATENCY_LIMIT).map_err(LabError::io(refused()))?;
        limit.write_all(&NO_LATENCY.to_ne_bytes()).map_err(LabError::io(refused()))?;
        Ok(Awake { _limit: limit })
    }
}
