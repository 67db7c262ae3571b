//! A connection that is on its way from one stack to another: the program may use it meanwhile.

use spillway_handoff::Cause;
use spillway_transport::{Conn, Transport};

/// What the program did with the connection, for the stack that continues it.
#[derive(Clone, Debug, Default)]
pub(super) struct Transit {
    granted: u32,
    released: Option<u64>,
    is_finished: bool,
    is_aborted: bool,
    wants_room: bool,
    watches: Option<bool>,
    /// The first reason why one end of the move has given the connection up.
    pub(super) cause: Option<Cause>,
}

impl Transit {
    /// Nothing can be sent now: the program waits for room.
    pub(super) fn want_room(&mut self) {
        self.wants_room = true;
    }

    pub(super) fn grant(&mut self, bytes: u32) {
        self.granted += bytes;
    }

    pub(super) fn release(&mut self, through: u64) {
        self.released = self.released.max(Some(through));
    }

    pub(super) fn watch(&mut self, on: bool) {
        self.watches = Some(on);
    }

    pub(super) fn finish(&mut self) {
        self.is_finished = true;
    }

    pub(super) fn abort(&mut self) {
        self.is_aborted = true;
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    /// Repeats on the new stack what the program did.
    pub(super) fn apply(&self, stack: &mut impl Transport, conn: Conn) {
        if self.is_aborted {
            return stack.abort(conn);
        }
        if let Some(on) = self.watches {
            stack.watch_acknowledged(conn, on);
        }
        if self.granted > 0 {
            stack.grant(conn, self.granted);
        }
        if let Some(through) = self.released {
            stack.release(conn, through);
        }
        if self.is_finished {
            stack.finish(conn);
        }
        if self.wants_room {
            stack.want_room(conn);
        }
    }
}
