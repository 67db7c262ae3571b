//! What makes figures of a virtual machine steady, and what tells when they are not.

use std::time::Duration;

use spillway_lab::{Awake, Canary};

/// While this lives, idle cores poll, and stalls of any core are seen. Where the machine allows neither, figures are
/// noisier, and say so.
#[derive(Debug)]
pub(crate) struct Steady {
    awake: Result<Awake, String>,
    canary: Result<Canary, String>,
}

impl Steady {
    /// Keeps idle cores awake if asked to, and watches all of them.
    pub(crate) fn hold(awake: bool) -> Steady {
        let awake = match awake {
            true => Awake::hold().map_err(|e| e.to_string()),
            false => Err("as asked for".into()),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Steady { awake, canary: Canary::watch(cores).map_err(|e| e.to_string()) }
    }

    /// How long cores were away so far, all together.
    pub(crate) fn stalled(&self) -> Duration {
        self.canary.as_ref().map(|canary| canary.stalled().iter().sum()).unwrap_or_default()
    }

    /// For the description of the laboratory.
    pub(crate) fn words(&self) -> [(String, String); 2] {
        let idle = self.awake.as_ref().map_or_else(|why| format!("halt: {why}"), |_| "poll".into());
        let stalls = self.canary.as_ref().map_or_else(
            |why| format!("not seen: {why}"),
            |_| "seen by a real-time thread on each core".into(),
        );
        [("idle cores".into(), idle), ("stalls".into(), stalls)]
    }
}
