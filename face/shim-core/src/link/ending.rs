//! Ends a link when the process ends in order, or when the application closes the link's event loop.

use spillway_batch::{CloseReason, Id};
use spillway_session::ServerLinkCarrier;

use super::{Inner, Lost, Referent, Referents};
use crate::lock_deadline::LockDeadline;
use crate::wakes::Wakes;
use crate::{sessions, sys};

/// Maximum number of unread request bytes that are read before the socket is closed: the kernel resets a socket that is
/// closed with unread bytes, and the peer would lose the replies that it has not received yet.
const UNREAD_BYTES_MAX: usize = 1 << 20;
const DISCARD_BYTES: usize = 16 * 1024;

impl Inner {
    /// Closes everything that the link carries, and its socket, because the process ends.
    pub(crate) fn end_with_process(&mut self, lock_deadline: &LockDeadline) {
        if self.endpoint.is_none() {
            return;
        }
        self.close_all(lock_deadline, None);
        // Threads that still run find no connection or session here.
        self.referents = Referents::new();
        sys::shut_down(self.socket.descriptor(), libc::SHUT_WR);
        self.discard_unread();
        sys::shut_down(self.socket.descriptor(), libc::SHUT_RDWR);
    }

    /// Closes everything that the link carries, because its event loop is closed. The process may continue, so
    /// connections in other event loops are informed.
    pub(crate) fn end_with_loop(&mut self, wakes: &mut Wakes) {
        self.close_all(&LockDeadline::new(), Some(wakes));
        self.discard_unread();
        self.lose(Lost::EventLoopClosed, wakes);
    }

    /// Closes everything that the link carries, and sends as much as the socket accepts. The link must not be used
    /// afterwards. With `wakes`, the application is informed of the end of its sessions.
    fn close_all(&mut self, lock_deadline: &LockDeadline, mut wakes: Option<&mut Wakes>) {
        let ids: Vec<Id> = self.referents.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.close_one(id, lock_deadline, wakes.as_deref_mut());
        }
        self.send_last();
    }

    fn close_one(&mut self, id: Id, lock_deadline: &LockDeadline, wakes: Option<&mut Wakes>) {
        let (referent, carrier) = (self.referent(id), (self.index, id));
        let Some(link) = self.endpoint.as_deref_mut() else { return };
        match referent {
            Referent::Nothing => {}
            Referent::Connection(_) => link.close(id, CloseReason::Normal),
            Referent::Session(name) => {
                let output = &mut ServerLinkCarrier { link, id };
                sessions::end_with_server(sys::now(), (name, carrier), output, lock_deadline, wakes);
            }
        }
    }

    fn discard_unread(&self) {
        let (mut buffer, mut discarded) = ([0; DISCARD_BYTES], 0);
        while discarded < UNREAD_BYTES_MAX {
            match sys::receive(self.socket.descriptor(), &mut buffer) {
                Ok(length @ 1..) => discarded += length,
                _ => break,
            }
        }
    }

    /// Sends like `flush`, but does not inform connections of room, because that takes further locks.
    fn send_last(&mut self) {
        // After an error nothing more can be sent.
        let _ = self.push();
    }
}
