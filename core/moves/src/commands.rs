//! Commands about requests that wait: their connections move for another reason, or the turn has not ended.

use alloc::vec::Vec;

use spillway_transport::{Conn, Time};

use crate::application::RequestCommand;

/// The commands, and when they are due.
#[derive(Debug, Default)]
pub(crate) struct WaitingCommands {
    commands: Vec<(Conn, RequestCommand)>,
    due_at: Option<Time>,
}

impl WaitingCommands {
    /// The command is tried at this time, and those that wait with it.
    pub(crate) fn wait_until(&mut self, at: Time, conn: Conn, command: RequestCommand) {
        self.commands.push((conn, command));
        self.due_at = Some(self.due_at.map_or(at, |due_at| due_at.min(at)));
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
