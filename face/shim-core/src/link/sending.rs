//! Sends what a link's endpoint has composed: soon, or at once.

use super::{Inner, Lost, Referent};
use crate::connections;
use crate::notify::notify;
use crate::wakes::Wakes;
use crate::{release_timer, sys, threads};

/// Unsent replies of this many bytes are sent at once, without waiting for the replies to other clients.
const FLUSH_BYTES: usize = 64 * 1024;

impl Inner {
    /// Defers sending until the thread's ready list is empty. A thread without an event loop sends at once.
    pub(crate) fn send_soon(&mut self, wakes: &mut Wakes) {
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.pending() > 0)
            && !threads::defer(self.index)
        {
            self.flush_or_lose(wakes);
        }
    }

    /// Like [`send_soon`](Self::send_soon), but sends a batch of [`FLUSH_BYTES`] or more at once.
    pub(crate) fn send_soon_unless_large(&mut self, wakes: &mut Wakes) {
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.pending() >= FLUSH_BYTES) {
            self.flush_or_lose(wakes);
        } else {
            self.send_soon(wakes);
        }
    }

    pub(crate) fn flush_or_lose(&mut self, wakes: &mut Wakes) {
        if let Err(lost) = self.flush(wakes) {
            self.lose(lost, wakes);
        }
    }

    /// Sends until nothing is left or the socket is full.
    pub(super) fn push(&mut self) -> Result<(), Lost> {
        let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
        let fd = self.socket.descriptor();
        let next = |spent| {
            endpoint.recycle(spent);
            endpoint.flush(sys::now())
        };
        self.unsent.send_all(next, |bytes| match sys::send(fd, bytes) {
            Ok(sent) => Ok(Some(sent)),
            Err(libc::EINTR) => Ok(Some(0)),
            Err(libc::EAGAIN) => Ok(None),
            Err(error) => Err(Lost::Socket(error)),
        })
    }

    /// Sends, and informs connections that have room again.
    fn flush(&mut self, wakes: &mut Wakes) -> Result<(), Lost> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        let batches_before = endpoint.counters().batches_sent;
        self.push()?;
        self.update_interest();
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.counters().batches_sent != batches_before) {
            self.update_status_page();
            if let Some(received_at) = self.received_at.take() {
                release_timer::record_service_time(sys::now().since(received_at));
            }
        }
        self.announce_room(wakes);
        Ok(())
    }

    /// Informs the connections that have room again, and sends for the sessions that have.
    pub(super) fn announce_room(&mut self, wakes: &mut Wakes) {
        while let Some(id) = self.endpoint.as_mut().and_then(|endpoint| endpoint.poll_room()) {
            match self.referent(id) {
                Referent::Session(name) => self.carry(id, name),
                Referent::Connection(index) => {
                    if let Some(connection) = connections::get(index) {
                        connection.readiness.set_can_send(true);
                        notify(connection, wakes);
                    }
                }
                Referent::Nothing => {}
            }
        }
    }
}
