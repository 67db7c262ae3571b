//! A server's port with sessions, without sockets: the table of sessions; which sessions have something to send; when
//! acknowledgements are due that do not go along with data; which sessions are on the wrong carrier under the operator's
//! override; and which return to the server first.
//!
//! The driver moves bytes: it passes events of links to [`Port::handle_data`] and [`Port::handle_control`], and calls
//! [`Port::transmit`] for each session that [`Port::poll_dirty`] returns.

mod owing;
mod placement;

use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_auth::KeyRing;
use spillway_batch::ConsumedTooMuch;
use spillway_transport::Time;
use spillway_wire::preamble::Role;
use spillway_wire::session::SessionId;
use spillway_wire::{CloseReason, Control};

use self::owing::Owing;
pub use self::placement::Placement;
use crate::expired::Expired;
use crate::opened::Opened;
use crate::slots::SessionHandle;
use crate::stream::{Carrier, StreamEvent};
use crate::table::{OpeningMessage, SessionInfo, Sessions, TableLimits};

/// The effects of a session's control message on the driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Heard {
    /// An event for the application.
    pub event: Option<StreamEvent>,
    /// The session may have something to send: it is [dirty](Port::poll_dirty).
    pub gives: bool,
    /// The client has closed this carrier, and the session is detached or over: close the carrier, as
    /// [moved](CloseReason::Moved).
    pub leaves: bool,
}

/// A server's sessions. `C` names a carrier: a link and a virtual connection on it.
#[derive(Debug)]
pub struct Port<C> {
    table: Sessions<C>,
    /// Indexed by slot.
    records: Vec<Option<Record>>,
    owing: Owing,
}

/// What a port records of a session besides its stream.
#[derive(Debug)]
struct Record {
    session: SessionHandle,
    /// The client's address on the session's first carrier.
    client: SocketAddr,
    /// Role of the link that carries the session, or carried it last.
    role: Role,
    /// How often the session was asked to return to the server since it was attached to this carrier.
    asked_home: u32,
}

impl<C: Copy + PartialEq> Port<C> {
    /// A port without sessions. `random`: a number that differs between two starts of a server.
    pub fn new(limits: TableLimits, random: u64) -> Port<C> {
        Port { table: Sessions::new(limits, random), records: Vec::new(), owing: Owing::default() }
    }

    // Input from links.

    /// A session begins or continues on a carrier on a link of this role: see [`Sessions::open`]. A session that continues
    /// is [dirty](Self::poll_dirty) afterwards.
    pub fn open(&mut self, now: Time, ring: &KeyRing, words: &OpeningMessage<C>, role: Role) -> Opened<C> {
        let opened = self.table.open(now, ring, words);
        match &opened {
            Opened::New { session, .. } => {
                let record = Record { session: *session, client: words.client, role, asked_home: 0 };
                let slot = session.slot() as usize;
                if self.records.len() <= slot {
                    self.records.resize_with(slot + 1, || None);
                }
                self.records[slot] = Some(record);
            }
            Opened::Resumed { session, .. } => {
                if let Some(record) = self.record_mut(*session) {
                    (record.role, record.asked_home) = (role, 0);
                }
                self.mark(*session);
                self.owe(*session);
            }
            Opened::Over { .. } | Opened::Refused(_) => {}
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
            self.owe(session);
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
    ) -> Heard {
        let event = self.table.handle_control(now, session, carrier, control);
        // A plain acknowledgement comes with nearly every request and only frees memory: only an ending session has
        // something to send after it.
        let is_plain = matches!(control, Control::Acknowledge(acknowledge) if !acknowledge.answer);
        let gives = !is_plain || self.table.is_ending(session);
        if gives {
            self.owe(session);
            self.mark(session);
        }
        self.forget_if_over(session);
        let leaves = matches!(control, Control::Close(_)) && self.table.carrier(session) != Some(carrier);
        Heard { event, gives, leaves }
    }

    /// The session's carrier has room again.
    pub fn has_room(&mut self, session: SessionHandle) {
        self.mark(session);
    }

    /// A carrier is lost. Its session waits for another one.
    pub fn detach(&mut self, now: Time, session: SessionHandle, carrier: C) {
        self.table.detach(now, session, carrier);
    }

    // The application's verbs.

    /// See [`Sessions::accept`].
    pub fn accept(&mut self, session: SessionHandle) -> Option<C> {
        self.mark(session);
        self.table.accept(session)
    }

    /// See [`Sessions::refuse`].
    pub fn refuse(&mut self, session: SessionHandle) -> Option<C> {
        let carrier = self.table.refuse(session);
        self.forget_if_over(session);
        carrier
    }

    /// See [`Sessions::take_back`].
    pub fn take_back(&mut self, session: SessionHandle) {
        self.table.take_back(session);
        self.forget_if_over(session);
    }

    /// See [`Sessions::write`].
    pub fn write(&mut self, session: SessionHandle, bytes: &[u8]) -> usize {
        let taken = self.table.write(session, bytes);
        if taken > 0 {
            self.mark(session);
        }
        taken
    }

    /// See [`Sessions::consumed`].
    ///
    /// # Errors
    /// `bytes` exceeds the unread bytes; nothing has changed.
    pub fn consumed(&mut self, session: SessionHandle, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.table.consumed(session, bytes)?;
        self.mark(session);
        Ok(())
    }

    /// See [`Sessions::finish`].
    pub fn finish(&mut self, session: SessionHandle) {
        self.table.finish(session);
        self.mark(session);
    }

    /// See [`Sessions::close`].
    pub fn close(&mut self, now: Time, session: SessionHandle, reason: CloseReason) {
        self.table.close(now, session, reason);
        self.mark(session);
    }

    // Output to carriers.

    /// A session that may have something to send, and its carrier: call [`transmit`](Self::transmit). Call until `None` at
    /// the end of a turn.
    #[must_use]
    pub fn poll_dirty(&mut self) -> Option<(SessionHandle, C)> {
        loop {
            let session = self.owing.poll_dirty()?;
            if let Some(carrier) = self.table.carrier(session) {
                return Some((session, carrier));
            }
        }
    }

    /// Whether [`poll_dirty`](Self::poll_dirty) must be called.
    pub fn is_dirty(&self) -> bool {
        self.owing.is_dirty()
    }

    /// Sends on a session's carrier what is due. Returns whether the session is over, and the carrier's connection free.
    pub fn transmit(&mut self, now: Time, session: SessionHandle, on: &mut impl Carrier) -> bool {
        self.owing.clean(session);
        self.table.transmit(now, session, on);
        self.forget_if_over(session)
    }

    // Placement of clients.

    /// The *drain* to send after *accepted* if the session is on the wrong carrier.
    pub fn drains(&self, session: SessionHandle, placement: Placement) -> Option<Control> {
        placement.drains(self.role(session)?)
    }

    /// The sessions on the wrong carriers, their carriers, and the *drain* to send there.
    pub fn misplaced(&self, placement: Placement) -> Vec<(SessionHandle, C, Control)> {
        let of = |(session, role, carrier)| Some((session, carrier, placement.drains(role)?));
        self.carried().filter_map(of).collect()
    }

    /// Asks `count` helped sessions to return to the server's own port: the sessions, their carriers, and the *drain* to
    /// send there. Sessions that were asked least often on their present carrier come first.
    pub fn return_home(&mut self, count: usize) -> Vec<(SessionHandle, C, Control)> {
        if count == 0 {
            return Vec::new();
        }
        let helped = self.carried().filter(|(_, role, _)| *role == Role::Helper);
        let asked = |session| self.record(session).map_or(0, |record| record.asked_home);
        let mut helped: Vec<_> =
            helped.map(|(session, _, carrier)| (asked(session), session, carrier)).collect();
        helped.sort_by_key(|(asked, ..)| *asked);
        helped.truncate(count);
        for (_, session, _) in &helped {
            if let Some(record) = self.record_mut(*session) {
                record.asked_home += 1;
            }
        }
        let drain = Control::Drain { deadline_ms: 0 };
        helped.into_iter().map(|(_, session, carrier)| (session, carrier, drain)).collect()
    }

    /// The number of sessions on links of this role.
    pub fn carried_by(&self, role: Role) -> usize {
        self.carried().filter(|(_, by, _)| *by == role).count()
    }

    // Time.

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_expired`](Self::poll_expired) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.owing.next().into_iter().chain(self.table.poll_timeout()).min()
    }

    /// Makes sessions [dirty](Self::poll_dirty) whose acknowledgements are due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(session) = self.owing.pop_due(now) {
            match self.table.poll_transmit_timeout(session) {
                Some(at) if at <= now => self.mark(session),
                // An acknowledgement was sent meanwhile; one for later bytes is due at `at`.
                Some(at) => self.owing.owe(at, session),
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
        self.forget_if_over(session);
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

    /// See [`Sessions::knows`].
    pub fn knows(&self, id: SessionId) -> bool {
        self.table.knows(id)
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

    fn carried(&self) -> impl Iterator<Item = (SessionHandle, Role, C)> + '_ {
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
    fn mark(&mut self, session: SessionHandle) {
        if self.table.carrier(session).is_some() {
            self.owing.mark(session);
        }
    }

    /// Schedules the session's acknowledgement, in case no data goes along with it before.
    fn owe(&mut self, session: SessionHandle) {
        if let Some(at) = self.table.poll_transmit_timeout(session) {
            self.owing.owe(at, session);
        }
    }

    fn forget_if_over(&mut self, session: SessionHandle) -> bool {
        let is_over = !self.table.contains(session);
        if is_over && self.record(session).is_some() {
            self.records[session.slot() as usize] = None;
            self.owing.clean(session);
        }
        is_over
    }
}
