//! A server's sessions.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::{Key, KeyRing};
use spillway_batch::ConsumedTooMuch;
use spillway_parts::Delays;
use spillway_transport::Time;
use spillway_wire::preamble::{KeyId, Role};
use spillway_wire::session::{Opening, SessionId};
use spillway_wire::{CloseReason, Control, Kind, RefuseReason};

use crate::identity::Identity;
use crate::last::Last;
use crate::opened::Opened;
use crate::slots::{Identified, Place, Places, SessionHandle};
use crate::stream::{Carrier, Stream, StreamEvent, StreamLimits};

/// Bounds of a server's sessions. The table needs at most `memory_bytes_max`, about 450 bytes for each session, and about
/// 150 bytes for each remembered ended session, of which there are at most `sessions_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// Sessions at a time, including closed ones that linger.
    pub sessions_max: usize,
    /// Bounds of each session's two directions.
    pub stream: StreamLimits,
    /// Bytes of memory that hold unacknowledged and unread bytes of all sessions. Beyond this bound the sessions end that
    /// hold most and do not read.
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

/// What is known about a session: the paper's *get_info*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo<C> {
    /// The session's id.
    pub id: SessionId,
    /// The session's carrier, if any.
    pub carrier: Option<C>,
    /// The number of the session's present carrier, as its client counts.
    pub epoch: u32,
    /// Bytes received from the client.
    pub bytes_received: u64,
    /// Bytes that the application has written.
    pub bytes_sent: u64,
    /// Written bytes that the client has not acknowledged; they are in memory.
    pub bytes_kept: usize,
}

/// A server's table of sessions. `C` names a carrier: a link and a virtual connection on it.
#[derive(Debug)]
pub struct Sessions<C> {
    pub(crate) limits: TableLimits,
    /// The life of the latest session.
    next_life: u64,
    pub(crate) slots: Places<Session<C>>,
    /// Time of the latest call that passed the time.
    pub(crate) now: Time,
    /// Detached sessions, each with the epoch of the carrier that it lost, so that no entry occurs twice.
    pub(crate) detached: Delays<(SessionHandle, u32)>,
    pub(crate) closed: Delays<SessionHandle>,
    /// Bytes of memory that all sessions hold.
    pub(crate) held: usize,
    /// Sessions that must end because memory is used up, in reverse order.
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

    /// The end to remember, once this end has closed.
    fn last(&mut self, now: Time) -> Option<Last> {
        let (key, life, epoch) = (self.key, self.life, self.epoch);
        let reason = self.stream.closed_here()?;
        Some(Last { key, life, epoch, position: self.stream.position(now), reason })
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
            next_life: random,
            slots: Places::new(limits.sessions_max, limits.linger),
            now: Time::ZERO,
            detached: Delays::new(limits.detached_max),
            closed: Delays::new(limits.linger),
            held: 0,
            overflowing: Vec::new(),
            limits,
        }
    }

    /// A session begins or continues on a carrier. The caller has checked that the link may carry this client's address.
    pub fn open(&mut self, now: Time, ring: &KeyRing, words: &OpeningMessage<C>) -> Opened<C> {
        self.pass(now);
        let Some(key) = ring.find(Role::Client, words.opening.key) else {
            return Opened::Refused(RefuseReason::Forbidden);
        };
        match self.slots.place(words.opening.session) {
            Some(Place::Here(session)) => self.resume(now, session, words),
            Some(Place::Ended(_)) => self.repeat_end(key, words),
            None => self.begin(now, key, words),
        }
    }

    fn begin(&mut self, now: Time, key: &Key, words: &OpeningMessage<C>) -> Opened<C> {
        let opening = &words.opening;
        let identity = Identity::new(key, opening.session);
        if !identity.proves(opening, words.kind, words.client) {
            return Opened::Refused(RefuseReason::Forbidden);
        }
        // A session that has sent or received data began in an earlier life of this server.
        if words.kind == Kind::Reconnect || opening.position.sent > 0 || opening.position.received > 0 {
            return Opened::Refused(RefuseReason::Gone);
        }
        self.next_life = self.next_life.checked_add(1).unwrap_or(1);
        let mut session = Session {
            identity,
            key: opening.key,
            epoch: opening.epoch,
            life: self.next_life,
            carrier: Some(words.carrier),
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

    fn repeat_end(&mut self, key: &Key, words: &OpeningMessage<C>) -> Opened<C> {
        let Some(last) = self.slots.last_mut(words.opening.session) else {
            return Opened::Refused(RefuseReason::Gone);
        };
        match last.answer(key, (words.kind, words.client, &words.opening)) {
            Ok(answer) => Opened::Over { answer, reason: last.reason },
            Err(reason) => Opened::Refused(reason),
        }
    }

    fn resume(&mut self, now: Time, session: SessionHandle, words: &OpeningMessage<C>) -> Opened<C> {
        let Some(known) = self.slots.get_mut(session) else { return Opened::Refused(RefuseReason::Gone) };
        let opening = &words.opening;
        if !known.identity.proves(opening, words.kind, words.client) {
            return Opened::Refused(RefuseReason::Forbidden);
        }
        if words.kind == Kind::Reconnect && opening.life != known.life {
            return Opened::Refused(RefuseReason::Gone);
        }
        if opening.epoch <= known.epoch {
            return Opened::Refused(RefuseReason::Stale);
        }
        let Ok(room) = known.stream.resume(&opening.position) else {
            return Opened::Refused(RefuseReason::Mismatch);
        };
        known.epoch = opening.epoch;
        let replaced = known.carrier.replace(words.carrier);
        let is_accepted = known.is_accepted;
        let answer = known.answer(now);
        self.count(session);
        Opened::Resumed { session, answer, is_accepted, room, replaced }
    }

    /// The application accepts a session. Returns the carrier on which to send *accepted*, if any.
    pub fn accept(&mut self, session: SessionHandle) -> Option<C> {
        let known = self.slots.get_mut(session)?;
        known.is_accepted = true;
        known.carrier
    }

    /// The application refuses a session that it has not accepted, which ends it. Returns the carrier on which to send
    /// *refused*, if any.
    pub fn refuse(&mut self, session: SessionHandle) -> Option<C> {
        let carrier = self.slots.get(session)?.carrier;
        self.end(self.now, session, None);
        carrier
    }

    /// Removes a session that has just begun and whose answer is not sent: send *refused* on its carrier instead. Unlike an
    /// ended session it is not remembered: its client's next *connect* may begin it again when there is room.
    pub fn take_back(&mut self, session: SessionHandle) {
        self.uncount(session);
        self.slots.take_back(session);
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
        let received = match self.on(session, carrier) {
            Some(known) => known.stream.receive(now, bytes),
            None => Ok(false),
        };
        self.count(session);
        received
    }

    /// Handles a control message of a carrier. A *close* with [`CloseReason::Lost`], by which a helper reports the loss of
    /// its client, detaches the session.
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
        let event = self.on(session, carrier)?.stream.handle(now, control);
        self.count(session);
        self.reap(now, session);
        event
    }

    /// A carrier is lost. Its session waits for another one.
    pub fn detach(&mut self, now: Time, session: SessionHandle, carrier: C) {
        if let Some(known) = self.on(session, carrier) {
            known.carrier = None;
            let epoch = known.epoch;
            let slots = &self.slots;
            self.detached.start(now, (session, epoch), |(session, epoch)| {
                slots.get(*session).is_some_and(|known| known.is_detached_since(*epoch))
            });
        }
    }

    /// Takes a prefix of `bytes` and returns its length. After a length of less than all, [`StreamEvent::Room`] follows when
    /// there is room again.
    pub fn write(&mut self, session: SessionHandle, bytes: &[u8]) -> usize {
        let taken = self.slots.get_mut(session).map_or(0, |known| known.stream.write(bytes));
        self.count(session);
        taken
    }

    /// Whether the sessions hold more than [`TableLimits::memory_bytes_max`]: the next [`poll_expired`](Self::poll_expired)
    /// ends some.
    pub fn is_overflowing(&self) -> bool {
        self.held > self.limits.memory_bytes_max || !self.overflowing.is_empty()
    }

    /// Bytes of memory that all sessions hold.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// How many bytes [`write`](Self::write) would take now.
    pub fn room(&self, session: SessionHandle) -> usize {
        self.slots.get(session).map_or(0, |known| known.stream.room())
    }

    /// The application has read this many bytes.
    ///
    /// # Errors
    /// `bytes` exceeds the unread bytes; nothing has changed.
    pub fn consumed(&mut self, session: SessionHandle, bytes: usize) -> Result<(), ConsumedTooMuch> {
        if let Some(known) = self.slots.get_mut(session) {
            known.stream.consume(bytes)?;
            self.count(session);
        }
        Ok(())
    }

    /// The application sends no more, but still reads.
    pub fn finish(&mut self, session: SessionHandle) {
        if let Some(known) = self.slots.get_mut(session) {
            known.stream.finish();
        }
    }

    /// The application has closed. The session lingers until its client has closed, too, for at most
    /// [`TableLimits::linger`].
    pub fn close(&mut self, now: Time, session: SessionHandle, reason: CloseReason) {
        if let Some(known) = self.slots.get_mut(session).filter(|known| !known.stream.is_closed_here()) {
            known.stream.close(reason);
            self.count(session);
            let slots = &self.slots;
            self.closed.start(now, session, |session| slots.get(*session).is_some());
        }
    }

    /// Sends on a session's carrier what is due.
    pub fn transmit(&mut self, now: Time, session: SessionHandle, carrier: &mut impl Carrier) {
        if let Some(known) = self.slots.get_mut(session) {
            known.stream.transmit(now, carrier);
        }
        self.reap(now, session);
    }

    /// Information about a session.
    pub fn info(&self, session: SessionHandle) -> Option<SessionInfo<C>> {
        let known = self.slots.get(session)?;
        Some(SessionInfo {
            id: known.identity.id,
            carrier: known.carrier,
            epoch: known.epoch,
            bytes_received: known.stream.received(),
            bytes_sent: known.stream.written(),
            bytes_kept: known.stream.kept(),
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
        self.slots.get(session).is_some_and(|known| known.stream.is_ending())
    }

    /// When [`transmit`](Self::transmit) has an acknowledgement to send for this session unless something happens before.
    /// `None` while the session has no carrier.
    #[must_use]
    pub fn poll_transmit_timeout(&self, session: SessionHandle) -> Option<Time> {
        self.slots.get(session).filter(|known| known.carrier.is_some())?.stream.poll_timeout()
    }

    /// Whether a session with this id exists, or has ended and is remembered.
    pub fn knows(&self, id: SessionId) -> bool {
        self.slots.place(id).is_some()
    }

    /// The number of sessions, including closed ones that linger.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn pass(&mut self, now: Time) {
        self.now = now;
        self.slots.forget(now);
    }

    /// Ends a session that both ends have closed, once our *close* is sent on its carrier.
    fn reap(&mut self, now: Time, session: SessionHandle) {
        self.now = now;
        if let Some(known) = self.slots.get_mut(session).filter(|known| known.stream.is_said_and_done()) {
            let last = known.last(now);
            self.end(now, session, last);
        }
    }

    pub(crate) fn end(&mut self, now: Time, session: SessionHandle, last: Option<Last>) {
        self.uncount(session);
        self.slots.end(now, session, last);
    }

    /// The session, if this is its present carrier.
    fn on(&mut self, session: SessionHandle, carrier: C) -> Option<&mut Session<C>> {
        self.slots.get_mut(session).filter(|known| known.carrier == Some(carrier))
    }
}
