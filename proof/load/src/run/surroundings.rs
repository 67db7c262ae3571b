//! What surrounds a run.

use std::io::Write;
use std::os::fd::OwnedFd;

/// Where commands come from and output goes to. Everything may be left out.
#[derive(Default)]
pub struct Surroundings {
    /// Lines of commands, as [`crate::control::Command::parse`] reads them; its end is no command.
    pub control: Option<OwnedFd>,
    /// Gets [`crate::report::Event`]s, one JSON line each.
    pub events: Option<Box<dyn Write + Send>>,
    /// Gets a line a second for people.
    pub progress: Option<Box<dyn Write + Send>>,
    /// Obey SIGINT and SIGTERM (stop), SIGUSR1 (move to the helper) and SIGUSR2 (move back) of this process.
    pub signals: bool,
}
