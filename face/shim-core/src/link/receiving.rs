//! Receives from a link's socket, and ends the link when its peer is silent for too long.

use spillway_batch::ServerLink;
use spillway_transport::Time;

use super::{Inner, Lost};
use crate::epoll_set::Buffers;
use crate::notify::notify_all;
use crate::wakes::Wakes;
use crate::{connections, handshakes, sys};

impl Inner {
    pub(crate) fn receive_or_lose(&mut self, buffers: &mut Buffers, wakes: &mut Wakes) {
        match self.receive(buffers, wakes) {
            Ok(()) => self.send_soon(wakes),
            Err(lost) => self.lose(lost, wakes),
        }
    }

    /// Receives once. If bytes are left, epoll reports the socket again.
    fn receive(&mut self, buffers: &mut Buffers, wakes: &mut Wakes) -> Result<(), Lost> {
        let Buffers { received, scratch } = buffers;
        // Paused: `flush` or `handle_timeout` resumes reading.
        if !self.endpoint.as_ref().is_some_and(|endpoint| endpoint.may_read()) {
            return Ok(());
        }
        let length = match sys::receive(self.socket.descriptor(), received) {
            Ok(0) => return Err(Lost::ClosedByPeer),
            Ok(length) => length,
            Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
            Err(error) => return Err(Lost::Socket(error)),
        };
        let messages = |endpoint: &Option<Box<ServerLink>>| {
            endpoint.as_ref().map_or(0, |endpoint| endpoint.counters().messages_received)
        };
        let messages_before = messages(&self.endpoint);
        let now = sys::now();
        let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
        let mut input = endpoint.unseal(now, &received[..length], scratch);
        let outcome = loop {
            let Some(endpoint) = &mut self.endpoint else { break Ok(()) };
            match endpoint.decompose(now, &mut input) {
                Ok(Some(event)) => self.handle(now, event, wakes),
                Ok(None) => break Ok(()),
                Err(error) => break Err(Lost::Broken(error)),
            }
        };
        notify_all(self.raised.iter().filter_map(|&index| connections::get(index)), wakes);
        self.raised.clear();
        self.update_reading();
        if messages(&self.endpoint) != messages_before {
            self.batches_received += 1;
            self.received_at.get_or_insert(now);
        }
        if self.authentication.is_silent()
            && self.endpoint.as_ref().is_some_and(|endpoint| endpoint.has_named_key())
        {
            self.authentication.note_named_key();
        }
        self.update_status_page();
        self.announce_room(wakes);
        outcome
    }

    /// Updates the watched events and the read timeout, after received bytes or a timeout.
    fn update_reading(&mut self) {
        self.update_interest();
        self.set_read_timeout(self.endpoint.as_ref().is_some_and(|endpoint| endpoint.has_read_timeout()));
    }

    pub(super) fn set_read_timeout(&mut self, has_one: bool) {
        if core::mem::replace(&mut self.has_read_timeout, has_one) != has_one {
            handshakes::count_read_timeout(has_one);
        }
    }

    /// Ends the link if authentication, or the rest of a record, is overdue. Otherwise resumes paused reading.
    pub(crate) fn handle_timeout(&mut self, now: Time, wakes: &mut Wakes) {
        match self.endpoint.as_mut().map(|endpoint| endpoint.handle_timeout(now)) {
            Some(Ok(())) => self.update_reading(),
            Some(Err(error)) => self.lose(Lost::Broken(error), wakes),
            None => {}
        }
    }
}
