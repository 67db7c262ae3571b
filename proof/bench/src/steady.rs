//! Keeps figures of a virtual machine steady, and detects stalls.

use std::time::Duration;

use spillway_lab::{Canary, IdlePolling};

/// Makes idle cores poll, and measures stalls of every core, until it is dropped. If the machine does not allow one of
/// them, figures are noisier, and the description in the results states it.
#[derive(Debug)]
pub(crate) struct Steady {
    awake: Result<IdlePolling, String>,
    canary: Result<Canary, String>,
}

impl Steady {
    /// Starts measuring stalls; with `awake`, also makes idle cores poll.
    pub(crate) fn hold(awake: bool) -> Steady {
        let awake = match awake {
            true => IdlePolling::hold().map_err(|e| e.to_string()),
            false => Err("as asked for".into()),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Steady { awake, canary: Canary::watch(cores).map_err(|e| e.to_string()) }
    }

    /// Duration of stalls so far, summed over all cores.
    pub(crate) fn stalled(&self) -> Duration {
        self.canary.as_ref().map(|canary| canary.stalled().iter().sum()).unwrap_or_default()
    }

    /// Entries for [`crate::machine::Machine::lab`].
    pub(crate) fn description(&self) -> [(String, String); 2] {
        let idle = self.awake.as_ref().map_or_else(|why| format!("halt: {why}"), |_| "poll".into());
        let stalls = self.canary.as_ref().map_or_else(
            |why| format!("not seen: {why}"),
            |_| "seen by a real-time thread on each core".into(),
        );
        [("idle cores".into(), idle), ("stalls".into(), stalls)]
    }
}
