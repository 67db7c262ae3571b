//! The sending direction of a connection, and the acknowledgements of the peer's TCP.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{Shutdown, shutdown};
use spillway_transport::Chunk;

use crate::outgoing::{FlushEnd, Outgoing, Pool};
use crate::sys::unacknowledged;

#[derive(Debug, Default)]
pub(super) struct Sending {
    queue: Outgoing,
    /// Bytes written to the socket.
    sent: u64,
    /// The socket is not writable; an event will report when it is.
    is_blocked: bool,
    room: Room,
    end: End,
    /// The connection is in the thread's list `dirty`.
    in_dirty: bool,
    acknowledgements: Acknowledgements,
}

/// Whether the application waits for room, and whether room is to be reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Room {
    #[default]
    NotWanted,
    Wanted,
    /// There is room, which is not reported yet.
    ToReport,
    /// Room is not reported yet, and the application waits for more room already.
    ToReportAndWanted,
}

/// The state of the end of this direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    /// The application may send.
    #[default]
    Open,
    /// The application has finished; the socket is shut down after the last byte.
    Finishing,
    /// The socket is shut down for writing.
    Shut,
}

/// Acknowledgements of the peer's TCP.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledgements {
    /// Acknowledgements are reported to the application.
    are_watched: bool,
    /// The connection is in the thread's list `watch`.
    in_watch: bool,
    /// Bytes acknowledged, as last reported.
    through: u64,
}

impl Sending {
    pub(super) fn is_open(&self) -> bool {
        self.end == End::Open
    }

    /// The bytes that wait to be written.
    pub(super) fn queue_bytes(&self) -> Vec<u8> {
        self.queue.to_vec()
    }

    /// Whether the application waits for room, or is to be told of it.
    pub(super) fn wants_room(&self) -> bool {
        self.room != Room::NotWanted
    }

    /// Continues a connection. `has_ended`: the application has finished. `wants_room`: it is told that there is room.
    pub(super) fn resume(&mut self, has_ended: bool, wants_room: bool) {
        if has_ended {
            // Shutting a socket down again has no effect.
            self.end = End::Finishing;
        }
        if wants_room {
            self.room = Room::ToReport;
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    pub(super) fn is_watched(&self) -> bool {
        self.acknowledgements.are_watched
    }

    /// Whether data or the end waits to be sent.
    pub(super) fn has_output(&self) -> bool {
        !self.queue.is_empty() || self.end == End::Finishing
    }

    /// Whether all data and the end were written and, if acknowledgements are watched, all data was acknowledged.
    pub(super) fn has_ended(&self) -> bool {
        self.end == End::Shut && self.queue.is_empty() && !self.awaits_acknowledgement()
    }

    fn awaits_acknowledgement(&self) -> bool {
        self.acknowledgements.are_watched && self.acknowledgements.through < self.sent
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn held(&self) -> usize {
        self.queue.held()
    }

    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.queue.clear(pool);
    }

    pub(super) fn room(&self, max: usize) -> usize {
        max.saturating_sub(self.queue.len())
    }

    pub(super) fn send(&mut self, bytes: &[u8], max: usize, pool: &mut Pool) -> usize {
        let accepted = bytes.len().min(self.room(max));
        if accepted < bytes.len() {
            self.want_room();
        }
        self.queue.gather(&bytes[..accepted], pool);
        accepted
    }

    /// Queues a chunk as a whole. An empty queue accepts a chunk of any size.
    pub(super) fn send_chunk(&mut self, chunk: Chunk, max: usize, pool: &mut Pool) -> Result<(), Chunk> {
        if !self.queue.is_empty() && self.queue.len() + chunk.len() > max {
            self.want_room();
            return Err(chunk);
        }
        self.queue.push(chunk, pool);
        Ok(())
    }

    pub(super) fn want_room(&mut self) {
        self.room = match self.room {
            Room::NotWanted | Room::Wanted => Room::Wanted,
            Room::ToReport | Room::ToReportAndWanted => Room::ToReportAndWanted,
        };
    }

    /// Whether room must be reported now.
    pub(super) fn take_room(&mut self) -> bool {
        let (room, is_to_report) = match self.room {
            Room::NotWanted => (Room::NotWanted, false),
            Room::Wanted => (Room::Wanted, false),
            Room::ToReport => (Room::NotWanted, true),
            Room::ToReportAndWanted => (Room::Wanted, true),
        };
        self.room = room;
        is_to_report && self.is_open()
    }

    pub(super) fn finish(&mut self) {
        debug_assert!(self.is_open(), "the application should finish once");
        self.end = End::Finishing;
    }

    pub(super) fn unblock(&mut self) -> bool {
        std::mem::take(&mut self.is_blocked)
    }

    pub(super) fn enter_dirty(&mut self) -> bool {
        !self.is_blocked && !std::mem::replace(&mut self.in_dirty, true)
    }

    pub(super) fn leave_dirty(&mut self) {
        self.in_dirty = false;
    }

    /// Writes as much as the kernel accepts, and then the end. Also returns whether room must be reported: the
    /// application waits for it and at most `room_below` bytes remain queued.
    pub(super) fn flush(
        &mut self,
        fd: BorrowedFd<'_>,
        pool: &mut Pool,
        room_below: usize,
    ) -> (FlushEnd, bool) {
        let (sent, end) = self.queue.flush(fd, pool);
        self.sent += sent as u64;
        match end {
            FlushEnd::Failed(_) => return (end, false),
            FlushEnd::Blocked => self.is_blocked = true,
            FlushEnd::Empty if self.end == End::Finishing => {
                // Fails only if the connection is already broken, which a read reports.
                let _ = shutdown(fd, Shutdown::Write);
                self.end = End::Shut;
            }
            FlushEnd::Empty => {}
        }
        let is_wanted = matches!(self.room, Room::Wanted | Room::ToReportAndWanted);
        let has_room = is_wanted && sent > 0 && self.queue.len() <= room_below;
        if has_room {
            self.room = Room::ToReport;
        }
        (end, has_room)
    }

    pub(super) fn watch(&mut self, on: bool) {
        self.acknowledgements.are_watched = on;
    }

    pub(super) fn enter_watch(&mut self) -> bool {
        self.awaits_acknowledgement() && !std::mem::replace(&mut self.acknowledgements.in_watch, true)
    }

    pub(super) fn is_in_watch(&self) -> bool {
        self.acknowledgements.in_watch
    }

    pub(super) fn query_acknowledged(&mut self, fd: &OwnedFd, is_dead: bool) -> Option<u64> {
        self.acknowledgements.in_watch = false;
        if !self.acknowledgements.are_watched || is_dead {
            return None;
        }
        let end = u64::from(self.end == End::Shut);
        let outstanding = unacknowledged(fd).unwrap_or(0);
        let through = (self.sent + end).saturating_sub(outstanding).min(self.sent);
        let has_grown = through > self.acknowledgements.through;
        self.acknowledgements.through = self.acknowledgements.through.max(through);
        has_grown.then_some(through)
    }
}
