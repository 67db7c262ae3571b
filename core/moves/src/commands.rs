//! Commands about requests that wait, because their connections move for another reason.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::{Conn, Time};

use crate::application::RequestCommand;

/// Time after which the commands are tried again.
const WAIT: Duration = Duration::from_millis(1);

/// The commands, and when they are due.
#[derive(Debug, Default)]
pub(crate) struct WaitingCommands {
    commands: Vec<(Conn, RequestCommand)>,
    due_at: Option<Time>,
}

impl WaitingCommands {
    pub(crate) fn wait(&mut self, now: Time, conn: Conn, command: RequestCommand) {
        self.commands.push((conn, command));
        self.due_at.get_or_insert(now + WAIT);
    }

    /// Removes and returns all commands, if they are due.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<(Conn, RequestCommand)> {
        if self.due_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.due_at = None;
        core::mem::take(&mut self.commands)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.due_at
    }
}
