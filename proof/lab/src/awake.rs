//! Makes idle cores poll instead of halt.

use std::fs::{File, OpenOptions};
use std::io::Write;

use crate::LabError;

/// The kernel's PM QoS interface: a limit in µs written here holds until the file is closed.
const LATENCY_LIMIT: &str = "/dev/cpu_dma_latency";
const LATENCY_US_MAX: i32 = 0;

/// Keeps idle cores from halting until dropped, as on hosts that are tuned for latency.
///
/// On a virtual machine, halting a core costs an exit to the hypervisor, and waking it an inter-processor
/// interrupt: tens of µs of the sender's CPU time for each packet, more than the packet itself. CPU accounts
/// count polling as idle time.
#[derive(Debug)]
pub struct IdlePolling {
    _limit: File,
}

impl IdlePolling {
    /// Limits the wake-up latency of all cores to 0 µs.
    ///
    /// # Errors
    /// The process is not root, or the kernel has no `/dev/cpu_dma_latency`.
    pub fn start() -> Result<IdlePolling, LabError> {
        let failure = || format!("cannot keep idle cores from halting: {LATENCY_LIMIT}");
        let mut limit =
            OpenOptions::new().write(true).open(LATENCY_LIMIT).map_err(LabError::io(failure()))?;
        limit.write_all(&LATENCY_US_MAX.to_ne_bytes()).map_err(LabError::io(failure()))?;
        Ok(IdlePolling { _limit: limit })
    }
}
