//! Ends a link when the process ends in order, or when the event loop that served the link is closed.

use spillway_batch::{CloseReason, Id, IdTable};
use spillway_session::OnServerLink;

use super::{Inner, Lost, Named};
use crate::patience::Patience;
use crate::wakes::Wakes;
use crate::{sessions, sys};

/// Most bytes of unread requests that are taken from the socket: the kernel resets a socket that is closed with
/// unread bytes, and the peer would lose what it has yet to receive.
const UNREAD_BYTES_MAX: usize = 1 << 20;
const DISCARD_BYTES: usize = 16 * 1024;

impl Inner {
    /// Closes everything that the link carries, and its socket, because the process ends.
    pub(crate) fn end_with_process(&mut self, patience: &Patience) {
        if self.end.is_none() {
            return;
        }
        self.close_all(patience, None);
        self.named = IdTable::new(); // other threads may still run: they find nothing here
        sys::shut_down(self.fd, libc::SHUT_WR);
        self.discard_unread();
        sys::shut_down(self.fd, libc::SHUT_RDWR);
    }

    /// Closes everything that the link carries, because its event loop is closed. The process may go on, so
    /// connections in other event loops are informed.
    pub(crate) fn end_with_loop(&mut self, wakes: &mut Wakes) {
        self.close_all(&Patience::new(), Some(wakes));
        self.discard_unread();
        self.lose(Lost::Unserved, wakes);
    }

    /// Closes everything that the link carries, and sends as much of that as the socket takes. The link must not be
    /// used afterwards. With `wakes`, the application is informed of the end of its sessions.
    fn close_all(&mut self, patience: &Patience, mut wakes: Option<&mut Wakes>) {
        let ids: Vec<Id> = self.named.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.close_one(id, patience, wakes.as_deref_mut());
        }
        self.send_last();
    }

    fn close_one(&mut self, id: Id, patience: &Patience, wakes: Option<&mut Wakes>) {
        let (named, carrier) = (self.named(id), (self.index, id));
        let Some(link) = self.end.as_deref_mut() else { return };
        match named {
            Named::Nobody => {}
            Named::Connection(_) => link.close(id, CloseReason::Normal),
            Named::Session(name) => {
                let on = &mut OnServerLink { link, id };
                sessions::end_with_server(sys::now(), (name, carrier), on, patience, wakes);
            }
        }
    }

    fn discard_unread(&self) {
        let (mut buffer, mut taken) = ([0; DISCARD_BYTES], 0);
        while taken < UNREAD_BYTES_MAX {
            match sys::receive(self.fd, &mut buffer) {
                Ok(length @ 1..) => taken += length,
                _ => break,
            }
        }
    }

    /// Sends without informing connections of room, as `flush` does, because that takes further locks.
    fn send_last(&mut self) {
        // An error means that the peer is gone.
        let _ = self.push();
    }
}
