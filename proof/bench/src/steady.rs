//! Keeps figures of a virtual machine steady, and detects stalls.

use std::time::Duration;

use spillway_lab::{IdlePolling, StallDetector};

/// Makes idle cores poll, and measures stalls of every core, until it is dropped. If the machine does not allow one of
/// them, figures are noisier, and the description in the results states it.
#[derive(Debug)]
pub(crate) struct Steady {
    idle_polling: Result<IdlePolling, String>,
    stalls: Result<StallDetector, String>,
}

impl Steady {
    /// Starts measuring stalls; with `polls`, also makes idle cores poll.
    pub(crate) fn start(polls: bool) -> Steady {
        let idle_polling = match polls {
            true => IdlePolling::start().map_err(|e| e.to_string()),
            false => Err("by the settings".into()),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Steady { idle_polling, stalls: StallDetector::watch(cores).map_err(|e| e.to_string()) }
    }

    /// Duration of stalls so far, summed over all cores.
    pub(crate) fn stalled(&self) -> Duration {
        self.stalls.as_ref().map(|stalls| stalls.stalled().iter().sum()).unwrap_or_default()
    }

    /// Entries for [`crate::machine::Machine::lab`].
    pub(crate) fn description(&self) -> [(String, String); 2] {
        let idle = self.idle_polling.as_ref().map_or_else(|why| format!("halt: {why}"), |_| "poll".into());
        let stalls = self.stalls.as_ref().map_or_else(
            |why| format!("not measured: {why}"),
            |_| "measured by a real-time thread on each core".into(),
        );
        [("idle cores".into(), idle), ("stalls".into(), stalls)]
    }
}
