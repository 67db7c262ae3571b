//! What goes to the peer, and what of it the peer's TCP has acknowledged.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{Shutdown, shutdown};
use spillway_transport::Chunk;

use crate::outgoing::{Flush, Outgoing, Pool};
use crate::sys::unacknowledged;

/// The direction from us to the peer.
#[derive(Debug, Default)]
pub(super) struct Sending {
    out: Outgoing,
    /// Bytes the kernel has taken.
    sent: u64,
    /// The kernel took no more and will tell when it does.
    is_blocked: bool,
    room: Room,
    end: End,
    /// Waits in the list of connections to flush at the end of the turn.
    in_dirty: bool,
    acknowledgements: Acknowledgements,
}

/// What the application is to hear of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Room {
    /// It has not asked.
    #[default]
    NotWanted,
    /// It was told that there is none.
    Wanted,
    /// There is some, which is to be told.
    ToTell,
    /// There was some, which is to be told; since then it was told that there is none.
    ToTellAndWanted,
}

/// How far the end of our direction has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    /// The application may send.
    #[default]
    Open,
    /// It sends no more.
    Finishing,
    /// The kernel knows that, too.
    Shut,
}

/// What the peer's TCP has acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledgements {
    /// Somebody waits for them.
    are_watched: bool,
    /// Waits in the list of connections whose acknowledgements are asked for.
    in_watch: bool,
    /// Bytes acknowledged, as last told.
    through: u64,
}

impl Sending {
    pub(super) fn is_open(&self) -> bool {
        self.end == End::Open
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    pub(super) fn is_watched(&self) -> bool {
        self.acknowledgements.are_watched
    }

    /// Whether something waits to be sent, be it the end.
    pub(super) fn has_something(&self) -> bool {
        !self.out.is_empty() || self.end == End::Finishing
    }

    /// Whether the kernel has everything and the end, and the peer has acknowledged it where that is watched.
    pub(super) fn is_over(&self) -> bool {
        self.end == End::Shut && self.out.is_empty() && !self.awaits_acknowledgement()
    }

    fn awaits_acknowledgement(&self) -> bool {
        self.acknowledgements.are_watched && self.acknowledgements.through < self.sent
    }

    pub(super) fn queued(&self) -> usize {
        self.out.len()
    }

    pub(super) fn held(&self) -> usize {
        self.out.held()
    }

    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.out.clear(pool);
    }

    pub(super) fn room(&self, max: usize) -> usize {
        max.saturating_sub(self.out.len())
    }

    pub(super) fn send(&mut self, bytes: &[u8], max: usize, pool: &mut Pool) -> usize {
        let taken = bytes.len().min(self.room(max));
        if taken < bytes.len() {
            self.want_room();
        }
        self.out.gather(&bytes[..taken], pool);
        taken
    }

    /// A chunk is taken whole, whatever its size, where nothing waits.
    pub(super) fn send_chunk(&mut self, chunk: Chunk, max: usize, pool: &mut Pool) -> Result<(), Chunk> {
        if !self.out.is_empty() && self.out.len() + chunk.len() > max {
            self.want_room();
            return Err(chunk);
        }
        self.out.push(chunk, pool);
        Ok(())
    }

    pub(super) fn want_room(&mut self) {
        self.room = match self.room {
            Room::NotWanted | Room::Wanted => Room::Wanted,
            Room::ToTell | Room::ToTellAndWanted => Room::ToTellAndWanted,
        };
    }

    /// Whether the application is to hear of room now.
    pub(super) fn take_room(&mut self) -> bool {
        let (room, is_to_tell) = match self.room {
            Room::NotWanted => (Room::NotWanted, false),
            Room::Wanted => (Room::Wanted, false),
            Room::ToTell => (Room::NotWanted, true),
            Room::ToTellAndWanted => (Room::Wanted, true),
        };
        self.room = room;
        is_to_tell && self.is_open()
    }

    pub(super) fn finish(&mut self) {
        debug_assert!(self.is_open(), "an end is told once");
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

    /// Gives the kernel as much as it takes, and the end after that. Whether the application is to hear of room, which is
    /// below `room_below` bytes.
    pub(super) fn flush(&mut self, fd: BorrowedFd<'_>, pool: &mut Pool, room_below: usize) -> (Flush, bool) {
        let (sent, end) = self.out.flush(fd, pool);
        self.sent += sent as u64;
        match end {
            Flush::Failed(_) => return (end, false),
            Flush::Blocked => self.is_blocked = true,
            Flush::Empty if self.end == End::Finishing => {
                // Fails only where the connection is already broken, which reading tells.
                let _ = shutdown(fd, Shutdown::Write);
                self.end = End::Shut;
            }
            Flush::Empty => {}
        }
        let is_wanted = matches!(self.room, Room::Wanted | Room::ToTellAndWanted);
        let has_room = is_wanted && sent > 0 && self.out.len() <= room_below;
        if has_room {
            self.room = Room::ToTell;
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

    pub(super) fn ask_acknowledged(&mut self, fd: &OwnedFd, is_dead: bool) -> Option<u64> {
        self.acknowledgements.in_watch = false;
        if !self.acknowledgements.are_watched || is_dead {
            return None;
        }
        let end = u64::from(self.end == End::Shut);
        let outstanding = unacknowledged(fd).unwrap_or(0);
        let through = (self.sent + end).saturating_sub(outstanding).min(self.sent);
        let is_news = through > self.acknowledgements.through;
        self.acknowledgements.through = self.acknowledgements.through.max(through);
        is_news.then_some(through)
    }
}
