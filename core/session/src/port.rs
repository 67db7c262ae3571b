//! A server's port with sessions, without sockets. Holds the table of sessions, and decides which sessions have data or
//! messages to send, when acknowledgements without data are due, which sessions are on the wrong carrier under the
//! operator's override, and which return to the server first.
//!
//! The driver moves bytes: it passes events of links to [`Port::handle_data`] and [`Port::handle_control`], and calls
//! [`Port::transmit`] for each session that [`Port::poll_dirty`] returns.

mod placement;
mod send_schedule;

use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_auth::KeyRing;
use spillway_batch::ConsumedTooMuch;
use spillway_transport::Time;
use spillway_wire::preamble::Role;
use spillway_wire::session::SessionId;
use spillway_wire::{CloseReason, Control};

pub use self::placement::Placement;
use self::send_schedule::SendSchedule;
use crate::expired::Expired;
use crate::opened::Opened;
use crate::slots::SessionHandle;
use crate::stream::{Carrier, StreamEvent};
use crate::table::{OpeningMessage, SessionInfo, Sessions, TableLimits};

/// The effects of a session's control message on the driver.
#[derive(Debug, PartialEq, Eq)]
pub struct ControlEffects {
    /// An event for the application.
    pub event: Option<StreamEvent>,
    /// The session may have data or messages to send: it is [dirty](Port::poll_dirty).
    pub is_dirty: bool,
    /// The client has closed this carrier, and the session is detached or over: close the carrier, as
    /// [moved](CloseReason::Moved).
    pub closes_carrier: bool,
}

/// A server's sessions. `C` identifies a carrier: a link and a virtual connection on it.
#[derive(Debug)]
pub struct Port<C> {
    table: Sessions<C>,
    /// Indexed by slot.
    records: Vec<Option<Record>>,
    sending: SendSchedule,
}

/// What a port records of a session besides its stream.
#[derive(Debug)]
struct Record {
    session: SessionHandle,
    /// The client's address on the session's first carrier.
    client: SocketAddr,
    /// Role of the link that carries the session, or carried it last.
    role: Role,
    /// Number of requests to return to the server since the session was attached to this carrier.
    return_requests: u32,
}

impl<C: Copy + PartialEq> Port<C> {
    /// A port without sessions. `random`: a number that differs between two starts of a server.
    pub fn new(limits: TableLimits, random: u64) -> Port<C> {
        Port { table: Sessions::new(limits, random), records: Vec::new(), sending: SendSchedule::default() }
    }

    // Input from links.

    /// A session begins or continues on a carrier on a link of this role: see [`Sessions::open`]. A session that
    /// continues is [dirty](Self::poll_dirty) afterwards.
    pub fn open(&mut self, now: Time, ring: &KeyRing, message: &OpeningMessage<C>, role: Role) -> Opened<C> {
        let opened = self.table.open(now, ring, message);
        match &opened {
            Opened::New { session, .. } => {
                let record = Record { session: *session, client: message.client, role, return_requests: 0 };
                let slot = session.slot() as usize;
                if self.records.len() <= slot {
                    self.records.resize_with(slot + 1, || None);
                }
                self.records[slot] = Some(record);
            }
            Opened::Resumed { session, .. } => {
                if let Some(record) = self.record_mut(*session) {
                    (record.role, record.return_requests) = (role, 0);
                }
                self.mark_dirty(*session);
                self.schedule_acknowledgement(*session);
            }
            Opened::AlreadyClosed { .. } | Opened::Refused(_) => {}
        }
        opened
    }

    /// See [`Sessions::handle_data`].
    pub fn handle_data(
        &mut self,
        now: Time,
        session: SessionHandle,
        carrier: C,
        bytes: usize,
    ) -> Result<bool, StreamEvent> {
        let outcome = self.table.handle_data(now, session, carrier, bytes);
        if outcome == Ok(true) {
            self.schedule_acknowledgement(session);
        }
        outcome
    }

    /// See [`Sessions::handle_control`].
    pub fn handle_control(
        &mut self,
        now: Time,
        session: SessionHandle,
        carrier: C,
        control: &Control,
    ) -> ControlEffects {
        let event = self.table.handle_control(now, session, carrier, control);
        // An acknowledgement that requests no answer comes with nearly every request and only frees memory: after it,
        // only an ending session can have a message to send.
        let only_frees_memory =
            matches!(control, Control::Acknowledge(acknowledge) if !acknowledge.requests_answer);
        let is_dirty = !only_frees_memory || self.table.is_ending(session);
        if is_dirty {
            self.schedule_acknowledgement(session);
            self.mark_dirty(session);
        }
        self.remove_if_over(session);
        let closes_carrier =
            matches!(control, Control::Close(_)) && self.table.carrier(session) != Some(carrier);
        ControlEffects { event, is_dirty, closes_carrier }
    }

    /// The session's carrier has room again.
    pub fn carrier_has_room(&mut self, session: SessionHandle) {
        self.mark_dirty(session);
    }

    /// A carrier is lost. Its session waits for another one.
    pub fn detach(&mut self, now: Time, session: SessionHandle, carrier: C) {
        self.table.detach(now, session, carrier);
    }

    // Calls of the application.

    /// See [`Sessions::accept`].
    pub fn accept(&mut self, session: SessionHandle) -> Option<C> {
        self.mark_dirty(session);
        self.table.accept(session)
    }

    /// See [`Sessions::refuse`].
    pub fn refuse(&mut self, session: SessionHandle) -> Option<C> {
        let carrier = self.table.refuse(session);
        self.remove_if_over(session);
        carrier
    }

    /// See [`Sessions::withdraw`].
    pub fn withdraw(&mut self, session: SessionHandle) {
        self.table.withdraw(session);
        self.remove_if_over(session);
    }

    /// See [`Sessions::write`].
    pub fn write(&mut self, session: SessionHandle, bytes: &[u8]) -> usize {
        let taken = self.table.write(session, bytes);
        if taken > 0 {
            self.mark_dirty(session);
        }
        taken
    }

    /// See [`Sessions::consumed`].
    ///
    /// # Errors
    /// `bytes` exceeds the unread bytes; nothing has changed.
    pub fn consumed(&mut self, session: SessionHandle, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.table.consumed(session, bytes)?;
        self.mark_dirty(session);
        Ok(())
    }

    /// See [`Sessions::finish`].
    pub fn finish(&mut self, session: SessionHandle) {
        self.table.finish(session);
        self.mark_dirty(session);
    }

    /// See [`Sessions::close`].
    pub fn close(&mut self, now: Time, session: SessionHandle, reason: CloseReason) {
        self.table.close(now, session, reason);
        self.mark_dirty(session);
    }

    // Output to carriers.

    /// A session that may have data or messages to send, and its carrier: call [`transmit`](Self::transmit). Call until
    /// `None` at the end of a turn.
    #[must_use]
    pub fn poll_dirty(&mut self) -> Option<(SessionHandle, C)> {
        loop {
            let session = self.sending.poll_dirty()?;
            if let Some(carrier) = self.table.carrier(session) {
                return Some((session, carrier));
            }
        }
    }

    /// Whether [`poll_dirty`](Self::poll_dirty) must be called.
    pub fn is_dirty(&self) -> bool {
        self.sending.is_dirty()
    }

    /// Sends a session's due data and messages. Returns whether the session is over, and its carrier free.
    pub fn transmit(&mut self, now: Time, session: SessionHandle, on: &mut impl Carrier) -> bool {
        self.sending.mark_clean(session);
        self.table.transmit(now, session, on);
        self.remove_if_over(session)
    }

    // Placement of clients.

    /// The *drain* to send after *accepted* if the session is on the wrong carrier.
    pub fn drain_for(&self, session: SessionHandle, placement: Placement) -> Option<Control> {
        placement.drain_for(self.role(session)?)
    }

    /// The sessions on wrong carriers, with these carriers and the *drain* to send there.
    pub fn misplaced_sessions(&self, placement: Placement) -> Vec<(SessionHandle, C, Control)> {
        let with_drain = |(session, role, carrier)| Some((session, carrier, placement.drain_for(role)?));
        self.carried_sessions().filter_map(with_drain).collect()
    }

    /// Asks `count` helped sessions to return to the server's own port. Returns the sessions, their carriers, and the
    /// *drain* to send there. Sessions that were asked least often on their present carrier come first.
    pub fn ask_to_return(&mut self, count: usize) -> Vec<(SessionHandle, C, Control)> {
        if count == 0 {
            return Vec::new();
        }
        let helped = self.carried_sessions().filter(|(_, role, _)| *role == Role::Helper);
        let requests = |session| self.record(session).map_or(0, |record| record.return_requests);
        let mut helped: Vec<_> =
            helped.map(|(session, _, carrier)| (requests(session), session, carrier)).collect();
        helped.sort_by_key(|(requests, ..)| *requests);
        helped.truncate(count);
        for (_, session, _) in &helped {
            if let Some(record) = self.record_mut(*session) {
                record.return_requests += 1;
            }
        }
        let drain = Control::Drain { deadline_ms: 0 };
        helped.into_iter().map(|(_, session, carrier)| (session, carrier, drain)).collect()
    }

    /// The number of sessions on links of this role.
    pub fn carried_by(&self, role: Role) -> usize {
        self.carried_sessions().filter(|(_, carried_by, _)| *carried_by == role).count()
    }

    // Time.

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_expired`](Self::poll_expired) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.sending.next_due().into_iter().chain(self.table.poll_timeout()).min()
    }

    /// Marks the sessions whose acknowledgements are due as [dirty](Self::poll_dirty).
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(session) = self.sending.pop_due(now) {
            match self.table.poll_transmit_timeout(session) {
                Some(at) if at <= now => self.mark_dirty(session),
                // An acknowledgement was sent meanwhile; the one for later bytes is due at `at`.
                Some(at) => self.sending.schedule_acknowledgement(at, session),
                None => {}
            }
        }
    }

    /// See [`Sessions::poll_expired`].
    #[must_use]
    pub fn poll_expired(&mut self, now: Time) -> Option<Expired<C>> {
        let expired = self.table.poll_expired(now)?;
        let (Expired::Abandoned(session) | Expired::Lingered(session, _) | Expired::Overflowed(session, _)) =
            expired;
        self.remove_if_over(session);
        Some(expired)
    }

    // State.

    /// See [`Sessions::info`].
    pub fn info(&self, session: SessionHandle) -> Option<SessionInfo<C>> {
        self.table.info(session)
    }

    /// The session's present carrier.
    pub fn carrier(&self, session: SessionHandle) -> Option<C> {
        self.table.carrier(session)
    }

    /// The role of the link that carries a session, or carried it last.
    pub fn role(&self, session: SessionHandle) -> Option<Role> {
        self.record(session).map(|record| record.role)
    }

    /// The client's address on the session's first carrier.
    pub fn client(&self, session: SessionHandle) -> Option<SocketAddr> {
        self.record(session).map(|record| record.client)
    }

    /// Whether the session still exists.
    pub fn contains(&self, session: SessionHandle) -> bool {
        self.table.contains(session)
    }

    /// See [`Sessions::has_id`].
    pub fn has_id(&self, id: SessionId) -> bool {
        self.table.has_id(id)
    }

    /// How many bytes [`write`](Self::write) would take now.
    pub fn room(&self, session: SessionHandle) -> usize {
        self.table.room(session)
    }

    /// See [`Sessions::is_overflowing`].
    pub fn is_overflowing(&self) -> bool {
        self.table.is_overflowing()
    }

    /// See [`TableLimits::memory_bytes_max`].
    pub fn memory_bytes_max(&self) -> usize {
        self.table.memory_bytes_max()
    }

    /// The number of sessions, including closed ones that linger.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn carried_sessions(&self) -> impl Iterator<Item = (SessionHandle, Role, C)> + '_ {
        let records = self.records.iter().flatten();
        records.filter_map(|record| Some((record.session, record.role, self.table.carrier(record.session)?)))
    }

    fn record(&self, session: SessionHandle) -> Option<&Record> {
        self.records.get(session.slot() as usize)?.as_ref().filter(|record| record.session == session)
    }

    fn record_mut(&mut self, session: SessionHandle) -> Option<&mut Record> {
        self.records.get_mut(session.slot() as usize)?.as_mut().filter(|record| record.session == session)
    }

    /// Marks a session as dirty. A session without a carrier is marked by [`open`](Self::open) when it gets one.
    fn mark_dirty(&mut self, session: SessionHandle) {
        if self.table.carrier(session).is_some() {
            self.sending.mark_dirty(session);
        }
    }

    /// Schedules the session's acknowledgement for the case that no data is sent before.
    fn schedule_acknowledgement(&mut self, session: SessionHandle) {
        if let Some(at) = self.table.poll_transmit_timeout(session) {
            self.sending.schedule_acknowledgement(at, session);
        }
    }

    fn remove_if_over(&mut self, session: SessionHandle) -> bool {
        let is_over = !self.table.contains(session);
        if is_over && self.record(session).is_some() {
            self.records[session.slot() as usize] = None;
            self.sending.mark_clean(session);
        }
        is_over
    }
}
