//! A server's port with sessions, without sockets: the table of sessions, and what a server owes each of them. Which sessions
//! have something for their carriers, when acknowledgements are due that nothing goes along with, which sessions are on the
//! wrong carrier under the operator's override, and which return to the server first.
//!
//! The driver moves bytes: it gives events of links to [`Port::handle_data`] and [`Port::handle_control`], and sends what
//! [`Port::transmit`] puts on a carrier, for each session that [`Port::poll_dirty`] names.

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
use crate::table::{FirstWords, SessionInfo, Sessions, TableLimits};

/// What a control message of a session means to the driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Heard {
    /// For the application.
    pub event: Option<StreamEvent>,
    /// The session may have something for its carrier: it is [dirty](Port::poll_dirty).
    pub gives: bool,
    /// The client has closed this carrier, and its session goes on without it or is over: close the carrier, as
    /// [moved](CloseReason::Moved).
    pub leaves: bool,
}

/// A server's sessions. `C` names a carrier: a link and a virtual connection on it.
#[derive(Debug)]
pub struct Port<C> {
    table: Sessions<C>,
    /// By slot.
    records: Vec<Option<Record>>,
    owing: Owing,
}

/// What a port knows of a session besides its stream.
#[derive(Debug)]
struct Record {
    session: SessionHandle,
    /// The client's address when it made the session.
    client: SocketAddr,
    /// Whose link carries it, or carried it last.
    role: Role,
    /// How often it was asked to return to the server since it was attached to this carrier.
    asked_home: u32,
}

impl<C: Copy + PartialEq> Port<C> {
    /// A port without sessions. `random`: not the same in two lives of a server.
    pub fn new(limits: TableLimits, random: u64) -> Port<C> {
        Port { table: Sessions::new(limits, random), records: Vec::new(), owing: Owing::default() }
    }

    // What links bring.

    /// A session begins, or continues, on a carrier on a link of this role: see [`Sessions::open`]. A session that goes on has
    /// something for its carrier after that.
    pub fn open(&mut self, now: Time, ring: &KeyRing, words: &FirstWords<C>, role: Role) -> Opened<C> {
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
        // Such an acknowledgement comes with nearly every request and makes room in memory; only an end waits for that.
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

    /// The carrier has room again for what the session has for it.
    pub fn has_room(&mut self, session: SessionHandle) {
        self.mark(session);
    }

    /// A carrier is lost. Its session waits for another.
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
    /// More than were received; nothing has changed, then.
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

    // What carriers are given.

    /// A session that may have something for its carrier, which [`transmit`](Self::transmit) gives it. Ask until `None`, at
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

    /// Whether [`poll_dirty`](Self::poll_dirty) has to be asked.
    pub fn is_dirty(&self) -> bool {
        self.owing.is_dirty()
    }

    /// Gives a session's carrier what it is to have now. Whether the session is over, and the carrier's connection free.
    pub fn transmit(&mut self, now: Time, session: SessionHandle, on: &mut impl Carrier) -> bool {
        self.owing.clean(session);
        self.table.transmit(now, session, on);
        self.forget_if_over(session)
    }

    // Where clients are wanted.

    /// What to say on a session's carrier once it is accepted there, if that is the wrong carrier.
    pub fn drains(&self, session: SessionHandle, placement: Placement) -> Option<Control> {
        placement.drains(self.role(session)?)
    }

    /// The sessions that are on the wrong carriers, these, and what to say on them.
    pub fn misplaced(&self, placement: Placement) -> Vec<(SessionHandle, C, Control)> {
        let of = |(session, role, carrier)| Some((session, carrier, placement.drains(role)?));
        self.carried().filter_map(of).collect()
    }

    /// This number of helped sessions is to return to the server's own port: which, on which carriers, and what to say there.
    /// Those that were asked least since they came by their carrier are asked first.
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

    /// How many sessions are on links of this role now.
    pub fn carried_by(&self, role: Role) -> usize {
        self.carried().filter(|(_, by, _)| *by == role).count()
    }

    // Time.

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_expired`](Self::poll_expired) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.owing.next().into_iter().chain(self.table.poll_timeout()).min()
    }

    /// Sessions whose acknowledgements are due are [dirty](Self::poll_dirty) after this.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(session) = self.owing.pop_due(now) {
            match self.table.poll_transmit_timeout(session) {
                Some(at) if at <= now => self.mark(session),
                // It was told meanwhile, and what came since is owed later.
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

    // What is known.

    /// See [`Sessions::info`].
    pub fn info(&self, session: SessionHandle) -> Option<SessionInfo<C>> {
        self.table.info(session)
    }

    /// What carries a session now.
    pub fn carrier(&self, session: SessionHandle) -> Option<C> {
        self.table.carrier(session)
    }

    /// Whose link carries a session, or carried it last.
    pub fn role(&self, session: SessionHandle) -> Option<Role> {
        self.record(session).map(|record| record.role)
    }

    /// The client's address when it made the session.
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

    /// How many sessions there are, closed ones that linger included.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
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

    /// Without a carrier there is nothing to give to; a session that gets one is marked then.
    fn mark(&mut self, session: SessionHandle) {
        if self.table.carrier(session).is_some() {
            self.owing.mark(session);
        }
    }

    /// Notes when the client is to be told what it is owed, if nothing goes along with it.
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
