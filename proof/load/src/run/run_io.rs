use std::io::Write;
use std::os::fd::OwnedFd;

/// Inputs and outputs of a run, all optional.
#[derive(Default)]
pub struct RunIo {
    /// Source of command lines for [`crate::control::Command::parse`]. The run continues after the end of this input.
    pub control: Option<OwnedFd>,
    /// Output of [`crate::report::Event`]s, one JSON line each.
    pub events: Option<Box<dyn Write + Send>>,
    /// Output for people, one line a second.
    pub progress: Option<Box<dyn Write + Send>>,
    /// Whether SIGINT and SIGTERM stop the run, SIGUSR1 moves connections to helpers, and SIGUSR2 moves them back.
    pub signals: bool,
}
