//! A server's sessions.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::ConsumedTooMuch;
use spillway_parts::TimerQueue;
use spillway_transport::Time;
use spillway_wire::preamble::{KeyId, Role};
use spillway_wire::session::{Opening, SessionId};
use spillway_wire::{CloseReason, Control, Kind, RefuseReason};

use crate::identity::Identity;
use crate::opened::Opened;
use crate::remembered_end::RememberedEnd;
use crate::slots::{IdState, Identified, SessionHandle, SessionSlots};
use crate::stream::{Carrier, Stream, StreamEvent, StreamLimits};

/// Bounds of a server's sessions. The table needs at most `memory_bytes_max` for the bytes of sessions, about 450 bytes
/// more for each session, and about 150 bytes for each ended session that is remembered, at most `sessions_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// Sessions at a time, including closed ones that linger.
    pub sessions_max: usize,
    /// Bounds of each session's two directions.
    pub stream: StreamLimits,
    /// Bytes of memory that hold unacknowledged and unread bytes of all sessions. Above this bound, the sessions that
    /// hold most memory and whose clients do not read are ended.
    pub memory_bytes_max: usize,
    /// How long a session without a carrier waits for its client.
    pub detached_max: Duration,
    /// How long a closed session waits for its client to acknowledge the rest, and how long an ended one is remembered.
    pub linger: Duration,
}

impl Default for TableLimits {
    fn default() -> TableLimits {
        TableLimits {
            sessions_max: 65_536,
            stream: StreamLimits::default(),
            memory_bytes_max: 256 << 20,
            detached_max: Duration::from_secs(60),
            linger: Duration::from_secs(30),
        }
    }
}

/// Information about a session: the paper's *get_info*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo<C> {
    /// The session's id.
    pub id: SessionId,
    /// The session's carrier, if any.
    pub carrier: Option<C>,
    /// The number of the session's present carrier, counted by its client.
    pub epoch: u32,
    /// Bytes received from the client.
    pub bytes_received: u64,
    /// Bytes that the application has written.
    pub bytes_sent: u64,
    /// Written bytes that the client has not acknowledged, which are kept in memory.
    pub bytes_kept: usize,
}

/// A server's table of sessions. `C` identifies a carrier: a link and a virtual connection on it.
#[derive(Debug)]
pub struct Sessions<C> {
    pub(crate) limits: TableLimits,
    /// The life of the latest session.
    latest_life: u64,
    pub(crate) slots: SessionSlots<Session<C>>,
    /// Time of the latest call with a `now` argument.
    pub(crate) now: Time,
    /// Detached sessions, each with the epoch of the carrier that it lost, so that no entry occurs twice.
    pub(crate) detached: TimerQueue<(SessionHandle, u32)>,
    pub(crate) lingering: TimerQueue<SessionHandle>,
    /// Bytes of memory that all sessions hold.
    pub(crate) held: usize,
    /// Sessions that must end because memory is used up; the last one ends first.
    pub(crate) overflowing: Vec<SessionHandle>,
}

#[derive(Debug)]
pub(crate) struct Session<C> {
    identity: Identity,
    /// The client key that the session's key is derived from.
    key: KeyId,
    epoch: u32,
    life: u64,
    pub(crate) carrier: Option<C>,
    is_accepted: bool,
    pub(crate) stream: Stream,
    /// Bytes of the session's memory that are included in the table's `held`.
    pub(crate) counted: usize,
    /// When the client acknowledges this offset, it has received all bytes that were written at `unread_since`.
    pub(crate) unread_mark: u64,
    pub(crate) unread_since: Time,
}

impl<C> Identified for Session<C> {
    fn id(&self) -> SessionId {
        self.identity.id
    }
}

impl<C> Session<C> {
    /// The answer to an opening message.
    fn answer(&mut self, now: Time) -> Control {
        let position = self.stream.position(now);
        Control::Resumed(self.identity.resumed((self.epoch, self.life), position))
    }

    /// The end to remember; `None` until this end has closed.
    fn end_to_remember(&mut self, now: Time) -> Option<RememberedEnd> {
        let (key, life, epoch) = (self.key, self.life, self.epoch);
        let reason = self.stream.closed_here()?;
        Some(RememberedEnd { key, life, epoch, position: self.stream.position(now), reason })
    }

    /// Whether the session has had no carrier since it lost the one of this epoch.
    pub(crate) fn is_detached_since(&self, epoch: u32) -> bool {
        self.carrier.is_none() && self.epoch == epoch
    }
}

/// An opening message with its carrier and kind of frame.
#[derive(Clone, Copy, Debug)]
pub struct OpeningMessage<C> {
    /// The carrier.
    pub carrier: C,
    /// *connect* or *reconnect*.
    pub kind: Kind,
    /// The client's address on the carrier.
    pub client: SocketAddr,
    /// The session fields of the message.
    pub opening: Opening,
}

impl<C: Copy + PartialEq> Sessions<C> {
    /// An empty table. `random`: a number that differs between two starts of a server.
    pub fn new(limits: TableLimits, random: u64) -> Sessions<C> {
        Sessions {
            latest_life: random,
            slots: SessionSlots::new(limits.sessions_max, limits.linger),
            now: Time::ZERO,
            detached: TimerQueue::new(limits.detached_max),
            lingering: TimerQueue::new(limits.linger),
            held: 0,
            overflowing: Vec::new(),
            limits,
        }
    }

    /// A session begins or continues on a carrier. The caller has checked that the link may carry this client's
    /// address.
    pub fn open(&mut self, now: Time, ring: &KeyRing, message: &OpeningMessage<C>) -> Opened<C> {
        self.advance_time(now);
        let Some(key) = ring.find(Role::Client, message.opening.key) else {
            return Opened::Refused(RefuseReason::Forbidden);
        };
        match self.slots.id_state(message.opening.session) {
            Some(IdState::Live(session)) => self.resume(now, session, message),
            Some(IdState::Ended(_)) => self.repeat_end(key, message),
            None => self.begin(now, key, message),
        }
    }

    fn begin(&mut self, now: Time, key: &Key, message: &OpeningMessage<C>) -> Opened<C> {
        let opening = &message.opening;
        let identity = Identity::new(key, opening.session);
        if !identity.is_proven_by_opening(opening, message.kind, message.client) {
            return Opened::Refused(RefuseReason::Forbidden);
        }
        // A session that has sent or received data began before this server was restarted.
        if message.kind == Kind::Reconnect || opening.position.sent > 0 || opening.position.received > 0 {
            return Opened::Refused(RefuseReason::Gone);
        }
        self.latest_life = self.latest_life.checked_add(1).unwrap_or(1);
        let mut session = Session {
            identity,
            key: opening.key,
            epoch: opening.epoch,
            life: self.latest_life,
            carrier: Some(message.carrier),
            is_accepted: false,
            stream: Stream::new(self.limits.stream, opening.position.credit),
            counted: 0,
            unread_mark: 0,
            unread_since: now,
        };
        let answer = session.answer(now);
        match self.slots.insert(session) {
            Some(session) => Opened::New { session, answer },
            None => Opened::Refused(RefuseReason::Full),
        }
    }

    fn repeat_end(&mut self, key: &Key, message: &OpeningMessage<C>) -> Opened<C> {
        let Some(remembered_end) = self.slots.remembered_end_mut(message.opening.session) else {
            return Opened::Refused(RefuseReason::Gone);
        };
        match remembered_end.answer(key, (message.kind, message.client, &message.opening)) {
            Ok(answer) => Opened::AlreadyClosed { answer, reason: remembered_end.reason },
            Err(reason) => Opened::Refused(reason),
        }
    }

    fn resume(&mut self, now: Time, session: SessionHandle, message: &OpeningMessage<C>) -> Opened<C> {
        let Some(entry) = self.slots.get_mut(session) else { return Opened::Refused(RefuseReason::Gone) };
        let opening = &message.opening;
        if !entry.identity.is_proven_by_opening(opening, message.kind, message.client) {
            return Opened::Refused(RefuseReason::Forbidden);
        }
        if message.kind == Kind::Reconnect && opening.life != entry.life {
            return Opened::Refused(RefuseReason::Gone);
        }
        if opening.epoch <= entry.epoch {
            return Opened::Refused(RefuseReason::Stale);
        }
        let Ok(room) = entry.stream.resume(&opening.position) else {
            return Opened::Refused(RefuseReason::Mismatch);
        };
        entry.epoch = opening.epoch;
        let replaced = entry.carrier.replace(message.carrier);
        let is_accepted = entry.is_accepted;
        let answer = entry.answer(now);
        self.count(session);
        Opened::Resumed { session, answer, is_accepted, room, replaced }
    }

    /// The application accepts a session. Returns the carrier on which to send *accepted*, if any.
    pub fn accept(&mut self, session: SessionHandle) -> Option<C> {
        let entry = self.slots.get_mut(session)?;
        entry.is_accepted = true;
        entry.carrier
    }

    /// The application refuses a session that it has not accepted, which ends it. Returns the carrier on which to send
    /// *refused*, if any.
    pub fn refuse(&mut self, session: SessionHandle) -> Option<C> {
        let carrier = self.slots.get(session)?.carrier;
        self.end(self.now, session, None);
        carrier
    }

    /// Removes a session that has just begun and whose answer is not sent: send *refused* on its carrier instead.
    /// Unlike an ended session it is not remembered: its client's next *connect* may begin it again when there is room.
    pub fn withdraw(&mut self, session: SessionHandle) {
        self.uncount(session);
        self.slots.withdraw(session);
    }

    /// Handles data of a carrier. Returns whether to pass the bytes to the application: those of a replaced carrier are
    /// dropped. Call [`consumed`](Self::consumed) after the application has read them.
    pub fn handle_data(
        &mut self,
        now: Time,
        session: SessionHandle,
        carrier: C,
        bytes: usize,
    ) -> Result<bool, StreamEvent> {
        self.now = now;
        let received = match self.session_on(session, carrier) {
            Some(entry) => entry.stream.receive(now, bytes),
            None => Ok(false),
        };
        self.count(session);
        received
    }

    /// Handles a control message of a carrier. A *close* with [`CloseReason::Lost`], by which a helper reports the loss
    /// of its client, detaches the session.
    pub fn handle_control(
        &mut self,
        now: Time,
        session: SessionHandle,
        carrier: C,
        control: &Control,
    ) -> Option<StreamEvent> {
        if matches!(control, Control::Close(CloseReason::Lost)) {
            self.detach(now, session, carrier);
            return None;
        }
        self.now = now;
        let event = self.session_on(session, carrier)?.stream.handle(now, control);
        self.count(session);
        self.end_if_over(now, session);
        event
    }

    /// A carrier is lost. Its session waits for another one.
    pub fn detach(&mut self, now: Time, session: SessionHandle, carrier: C) {
        if let Some(entry) = self.session_on(session, carrier) {
            entry.carrier = None;
            let epoch = entry.epoch;
            let slots = &self.slots;
            self.detached.start(now, (session, epoch), |(session, epoch)| {
                slots.get(*session).is_some_and(|entry| entry.is_detached_since(*epoch))
            });
        }
    }

    /// Takes a prefix of `bytes` and returns its length. If it took fewer bytes than it was given,
    /// [`StreamEvent::Room`] follows when there is room again.
    pub fn write(&mut self, session: SessionHandle, bytes: &[u8]) -> usize {
        let taken = self.slots.get_mut(session).map_or(0, |entry| entry.stream.write(bytes));
        self.count(session);
        taken
    }

    /// Whether the sessions hold more than [`TableLimits::memory_bytes_max`]: the next
    /// [`poll_expired`](Self::poll_expired) ends some.
    pub fn is_overflowing(&self) -> bool {
        self.held > self.limits.memory_bytes_max || !self.overflowing.is_empty()
    }

    /// Bytes of memory that all sessions hold.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// How many bytes [`write`](Self::write) would take now.
    pub fn room(&self, session: SessionHandle) -> usize {
        self.slots.get(session).map_or(0, |entry| entry.stream.room())
    }

    /// The application has read this many bytes.
    ///
    /// # Errors
    /// `bytes` exceeds the unread bytes; nothing has changed.
    pub fn consumed(&mut self, session: SessionHandle, bytes: usize) -> Result<(), ConsumedTooMuch> {
        if let Some(entry) = self.slots.get_mut(session) {
            entry.stream.consume(bytes)?;
            self.count(session);
        }
        Ok(())
    }

    /// The application sends no more, but still reads.
    pub fn finish(&mut self, session: SessionHandle) {
        if let Some(entry) = self.slots.get_mut(session) {
            entry.stream.finish();
        }
    }

    /// The application has closed. The session lingers until its client has closed, too, for at most
    /// [`TableLimits::linger`].
    pub fn close(&mut self, now: Time, session: SessionHandle, reason: CloseReason) {
        if let Some(entry) = self.slots.get_mut(session).filter(|entry| !entry.stream.is_closed_here()) {
            entry.stream.close(reason);
            self.count(session);
            let slots = &self.slots;
            self.lingering.start(now, session, |session| slots.get(*session).is_some());
        }
    }

    /// Sends all due data and messages on a session's carrier.
    pub fn transmit(&mut self, now: Time, session: SessionHandle, carrier: &mut impl Carrier) {
        if let Some(entry) = self.slots.get_mut(session) {
            entry.stream.transmit(now, carrier);
        }
        self.end_if_over(now, session);
    }

    /// Information about a session.
    pub fn info(&self, session: SessionHandle) -> Option<SessionInfo<C>> {
        let entry = self.slots.get(session)?;
        Some(SessionInfo {
            id: entry.identity.id,
            carrier: entry.carrier,
            epoch: entry.epoch,
            bytes_received: entry.stream.received(),
            bytes_sent: entry.stream.written(),
            bytes_kept: entry.stream.unacknowledged_bytes(),
        })
    }

    /// The session's present carrier.
    pub fn carrier(&self, session: SessionHandle) -> Option<C> {
        self.slots.get(session)?.carrier
    }

    /// Whether the session still exists.
    pub fn contains(&self, session: SessionHandle) -> bool {
        self.slots.get(session).is_some()
    }

    /// Whether this end sends no more: the application has finished or closed.
    pub fn is_ending(&self, session: SessionHandle) -> bool {
        self.slots.get(session).is_some_and(|entry| entry.stream.is_ending())
    }

    /// When [`transmit`](Self::transmit) has an acknowledgement to send for this session, if it is not called before.
    /// `None` while the session has no carrier.
    #[must_use]
    pub fn poll_transmit_timeout(&self, session: SessionHandle) -> Option<Time> {
        self.slots.get(session).filter(|entry| entry.carrier.is_some())?.stream.poll_timeout()
    }

    /// Whether a session with this id exists, or has ended and is remembered.
    pub fn has_id(&self, id: SessionId) -> bool {
        self.slots.id_state(id).is_some()
    }

    /// The number of sessions, including closed ones that linger.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn advance_time(&mut self, now: Time) {
        self.now = now;
        self.slots.forget_ended(now);
    }

    /// Ends a session that both ends have closed, once our *close* is sent on its carrier.
    fn end_if_over(&mut self, now: Time, session: SessionHandle) {
        self.now = now;
        if let Some(entry) = self.slots.get_mut(session).filter(|entry| entry.stream.is_over_and_close_sent())
        {
            let remembered_end = entry.end_to_remember(now);
            self.end(now, session, remembered_end);
        }
    }

    pub(crate) fn end(&mut self, now: Time, session: SessionHandle, remembered_end: Option<RememberedEnd>) {
        self.uncount(session);
        self.slots.end(now, session, remembered_end);
    }

    /// The session, if this is its present carrier.
    fn session_on(&mut self, session: SessionHandle, carrier: C) -> Option<&mut Session<C>> {
        self.slots.get_mut(session).filter(|entry| entry.carrier == Some(carrier))
    }
}
