//! Input from a library client: grants, waiting bytes, and the events in them.

use alloc::vec::Vec;

use spillway_auth::KeyRing;
use spillway_batch::{AcceptorEvent, CloseReason, Control, Id, LinkError, Scratch};
use spillway_transport::{Conn, Time, Transport};

use super::{CLIENT_ID, LibraryClient};
use crate::clients::relayed::{ControlAction, DataAction, VirtualId};
use crate::links::Linked;
use crate::memory::Memory;

/// When the caller must handle received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleWhen {
    Now,
    /// When the transport has taken the batch of the server's link.
    LinkUncongested,
    EndOfTurn,
}

impl LibraryClient {
    /// Receives bytes, and stores them while the batch to the server is full. While bytes are stored, later ones are
    /// stored too, even if the client's connection to the server has ended, because records must be opened in order.
    pub(crate) fn receive(
        &mut self,
        conn: Conn,
        bytes: &[u8],
        linked: Option<&mut Linked>,
        memory: &mut Memory,
    ) -> HandleWhen {
        // A grant bounds all bytes in flight from the client, so it bounds `waiting` too.
        self.granted = self.granted.saturating_sub(bytes.len());
        if self.waiting.is_empty() && !linked.as_ref().is_some_and(|linked| linked.is_full()) {
            return HandleWhen::Now;
        }
        self.waiting.push(bytes, memory);
        match linked {
            Some(linked) => {
                self.wait_for_link(conn, linked);
                HandleWhen::LinkUncongested
            }
            None => HandleWhen::EndOfTurn,
        }
    }

    /// Whether stored bytes can be handled now, because the client has no connection on a server's link.
    pub(crate) fn can_resume(&self) -> bool {
        self.relayed.is_none() && !self.waiting.is_empty()
    }

    pub(crate) fn take_waiting(&mut self, memory: &mut Memory) -> Vec<u8> {
        self.waits_for_link = false;
        self.waiting.take(memory)
    }

    /// The client has finished its stream. False: bytes are stored, and the caller must handle the end after
    /// these bytes; until then [`has_stored_end`](Self::has_stored_end) is true.
    #[must_use]
    pub(crate) fn handle_finished(&mut self) -> bool {
        self.has_stored_end |= !self.waiting.is_empty();
        self.waiting.is_empty()
    }

    /// Whether the client has finished its stream while bytes were stored.
    pub(crate) fn has_stored_end(&self) -> bool {
        self.has_stored_end
    }

    /// Opens the records in received bytes. `ring`: the service's client keys, if it has any.
    pub(crate) fn unseal<'a>(
        &mut self,
        now: Time,
        ring: Option<&KeyRing>,
        bytes: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> &'a [u8] {
        if let Some(ring) = ring {
            return self.acceptor.unseal(now, ring, bytes, scratch);
        }
        // Without keys only loopback clients may authenticate. A reload may have removed the keys since this client
        // connected.
        let is_loopback = !self.is_established() && self.peer.ip().is_loopback();
        let ring = if is_loopback { KeyRing::loopback_only() } else { KeyRing::new() };
        self.acceptor.unseal(now, &ring, bytes, scratch)
    }

    /// The next event in unsealed bytes. Call this until `None`.
    pub(crate) fn decompose<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<AcceptorEvent<'a>>, LinkError> {
        self.acceptor.decompose(input)
    }

    pub(crate) fn request(&mut self, id: Id, bytes: &[u8]) -> DataAction {
        self.bytes_in += bytes.len() as u64;
        let relayed = self.relayed.as_mut().filter(|_| id == CLIENT_ID);
        let action = relayed.map_or(DataAction::Ignore, |relayed| relayed.request(bytes.len()));
        if action == DataAction::Ignore {
            self.acceptor.charge_ignored_data(bytes.len());
        }
        action
    }

    pub(crate) fn may_open(&self, id: Id) -> bool {
        id == CLIENT_ID && self.relayed.is_none()
    }

    pub(crate) fn handle_client_control(&mut self, id: Id, control: &Control) -> ControlAction {
        let relayed = self.relayed.as_mut().filter(|_| id == CLIENT_ID);
        relayed.map_or(ControlAction::Ignore, |relayed| relayed.handle_client_control(control))
    }

    /// Closes the connection because the client exceeded the server's credit. Returns the connection on the server's
    /// link, which the caller must close.
    pub(crate) fn close_over_credit(&mut self) -> Option<VirtualId> {
        let relayed = self.relayed.take()?;
        self.acceptor.control(CLIENT_ID, Control::Close(CloseReason::OverCredit));
        Some(relayed.virtual_id())
    }

    /// Grants more bytes when half of the last grant is used up. Grants nothing while the server's link is
    /// congested or received bytes are stored, while the client is throttled or does not read control
    /// messages, or while memory is scarce and the client does not read.
    pub(crate) fn grant<T: Transport>(
        &mut self,
        conn: Conn,
        linked: Option<&mut Linked>,
        memory: &mut Memory,
        out: &mut T,
    ) {
        if memory.is_scarce() && !self.unsent.is_empty() {
            if !core::mem::replace(&mut self.is_paused, true) {
                memory.count_pause();
            }
            return;
        }
        self.is_paused = false;
        let limit = memory.grant_bytes();
        if self.is_throttled
            || self.granted * 2 > limit
            || !self.waiting.is_empty()
            || !self.acceptor.may_read()
        {
            return;
        }
        if let Some(linked) = linked.filter(|linked| linked.is_congested()) {
            return self.wait_for_link(conn, linked);
        }
        let additional = limit - self.granted;
        self.granted += additional;
        #[expect(clippy::cast_possible_truncation, reason = "at most CLIENT_GRANT_BYTES")]
        out.grant(conn, additional as u32);
    }

    fn wait_for_link(&mut self, conn: Conn, linked: &mut Linked) {
        if !core::mem::replace(&mut self.waits_for_link, true) {
            linked.add_waiter(conn);
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether the caller must start the timer for an incomplete record. If so, the timer counts as running.
    #[must_use]
    pub(crate) fn starts_record_timer(&mut self) -> bool {
        self.acceptor.incomplete_since().is_some() && !core::mem::replace(&mut self.record_timer_runs, true)
    }

    pub(crate) fn record_timer_runs(&self) -> bool {
        self.record_timer_runs
    }

    /// Handles the timer for an incomplete record.
    ///
    /// # Errors
    /// A record has been incomplete for too long, although the client was granted bytes to send.
    pub(crate) fn record_timeout(&mut self, now: Time) -> Result<(), LinkError> {
        self.record_timer_runs = false;
        self.acceptor.handle_record_timeout(now, self.granted > 0)
    }

    /// Throttles the client if it has sent too many bytes other than data. True: start the throttle timer.
    #[must_use]
    pub(crate) fn starts_throttle(&mut self, now: Time) -> bool {
        !self.is_throttled && self.update_throttle(now)
    }

    /// Decides whether the client is throttled from now on.
    #[must_use]
    pub(crate) fn update_throttle(&mut self, now: Time) -> bool {
        self.is_throttled = self.acceptor.throttled_until(now).is_some();
        self.is_throttled
    }

    pub(crate) fn is_throttled(&self) -> bool {
        self.is_throttled
    }
}
