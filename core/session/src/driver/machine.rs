//! The driver of one session: connects the session, its carrier, the schedule and the monitor.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::LinkRandomness;
use spillway_batch::{CloseReason, ConsumedTooMuch, OpenerEvent, RefuseReason, Scratch};
use spillway_transport::Time;
use spillway_wire::session::SessionId;

use super::carrier::{LinkCarrier, Observer};
use super::event::{CarrierLoss, Events, Gone, SessionEnd, SessionEvent};
use super::schedule::{GiveUp, Leaving, Schedule};
use super::settings::SessionSettings;
use super::target::LinkTarget;
use crate::client::{ClientEvent, ClientSession};
use crate::monitor::{CarrierMonitor, CarrierTimeouts, SilenceAction};
use crate::stream::StreamEvent;

/// An action of the driver's host on its one socket.
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// Close the socket: the session has left its carrier.
    Close,
    /// Begin to connect to this link port. Report the outcome by [`Driver::handle_connected`],
    /// [`Driver::handle_failed`] or [`Driver::handle_closed`].
    Open(&'a LinkTarget),
}

/// One session and its present carrier. `E` is the error type of the host's sockets.
///
/// The host owns at most one socket at a time. After each call it writes the bytes of
/// [`poll_transmit`](Self::poll_transmit) to the socket, and then carries out [`poll_action`](Self::poll_action). It
/// calls [`handle_timeout`](Self::handle_timeout) at [`poll_timeout`](Self::poll_timeout), and for received bytes
/// [`unseal`](Self::unseal) once, then [`decompose`](Self::decompose) and [`handle`](Self::handle) alternately.
#[derive(Debug)]
pub struct Driver<E> {
    session: ClientSession,
    schedule: Schedule,
    monitor: CarrierMonitor,
    attach_timeout: Duration,
    carrier: Option<LinkCarrier>,
    /// The host's socket belongs to a carrier that the session has left, and must be closed.
    must_close_socket: bool,
    end: Option<SessionEnd>,
    /// The driver tries no further carrier.
    is_given_up: bool,
    is_finished: bool,
    /// The last [`write`](Self::write) took fewer bytes than it was given.
    wants_room: bool,
    events: Events<E>,
}

impl<E> Driver<E> {
    /// A session that the first [`handle_timeout`](Self::handle_timeout), which is due at once, opens at the first of
    /// these link ports. The driver tries the others after failures. All must lead to the same server, which must
    /// accept the first target's client key. `id`: fresh random bytes, never used before. `seed`: for the random delays
    /// that spread clients in time; should differ between clients.
    ///
    /// `None` if `targets` is empty.
    pub fn new(
        now: Time,
        targets: Vec<LinkTarget>,
        settings: &SessionSettings,
        id: SessionId,
        seed: u64,
    ) -> Option<Driver<E>> {
        let key = targets.first()?.key.clone();
        Some(Driver {
            session: ClientSession::new(key, id, settings.stream),
            schedule: Schedule::new(now, targets, settings, seed),
            monitor: CarrierMonitor::new(settings.carrier_timeouts, now),
            attach_timeout: settings.attach_timeout,
            carrier: None,
            must_close_socket: false,
            end: None,
            is_given_up: false,
            is_finished: false,
            wants_room: false,
            events: Events::new(),
        })
    }

    // Called for the application.

    /// Takes a prefix of `bytes` and returns its length; if it is shorter than `bytes`, [`SessionEvent::Room`] follows.
    /// The session keeps these bytes, and sends them on any carrier, until the server has acknowledged them.
    ///
    /// # Errors
    /// How the session has ended; [`SessionEnd::InOrder`] also after [`finish`](Self::finish).
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, SessionEnd> {
        match self.end {
            None | Some(SessionEnd::InOrder) if self.is_finished => return Err(SessionEnd::InOrder),
            None | Some(SessionEnd::InOrder) => {}
            Some(end) => return Err(end),
        }
        let taken = self.session.write(bytes);
        self.wants_room = taken < bytes.len();
        Ok(taken)
    }

    /// How many bytes [`write`](Self::write) would take now.
    pub fn room(&self) -> usize {
        self.session.room()
    }

    /// The application has read this many bytes.
    ///
    /// # Errors
    /// `bytes` exceeds the unread bytes; nothing has changed.
    pub fn consumed(&mut self, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.session.consumed(bytes)
    }

    /// Ends the outgoing direction; replies still arrive.
    pub fn finish(&mut self) {
        self.is_finished = true;
        self.session.finish();
    }

    /// Closes the session. With [`CloseReason::Normal`] written bytes still reach the server if the driver is kept
    /// until the session [is over](Self::is_over); other reasons drop them. A closed session stays on a carrier that
    /// drains, because a move would race with the server's answer.
    pub fn close(&mut self, reason: CloseReason) {
        self.is_finished = true;
        self.schedule.stay();
        self.session.close(reason);
    }

    /// Moves to the link port with this index at once. Returns whether the index is valid.
    pub fn move_to(&mut self, now: Time, route: usize) -> bool {
        if route >= self.schedule.route_count() {
            return false;
        }
        self.leave(now, CarrierLoss::LeftOnRequest);
        self.schedule.choose(now, route);
        self.handle_timeout(now);
        true
    }

    /// Replaces the link ports, in the order in which to try them; the present carrier stays in use, even if it is not
    /// among them. Returns false, and changes nothing, if `targets` is empty.
    pub fn set_targets(&mut self, targets: Vec<LinkTarget>) -> bool {
        if targets.is_empty() {
            return false;
        }
        self.schedule.replace(targets, self.carrier.as_ref().map(LinkCarrier::address));
        true
    }

    /// Changes the timeouts. The present carrier is watched anew with `carrier_timeouts`; `attach_timeout`
    /// applies from the next carrier on.
    pub fn set_carrier_timeouts(
        &mut self,
        now: Time,
        carrier_timeouts: CarrierTimeouts,
        attach_timeout: Duration,
    ) {
        self.monitor = CarrierMonitor::new(carrier_timeouts, now);
        self.attach_timeout = attach_timeout;
    }

    // Called by the host.

    /// What to do with the socket. Call until `None`.
    #[must_use]
    pub fn poll_action(&mut self) -> Option<Action<'_>> {
        if core::mem::take(&mut self.must_close_socket) {
            return Some(Action::Close);
        }
        self.carrier.as_mut()?.poll_open().map(Action::Open)
    }

    /// The socket is connected. `client`: the socket's local address; `fresh`: randomness for the link's handshake.
    pub fn handle_connected(&mut self, now: Time, client: SocketAddr, fresh: LinkRandomness) {
        if let Some(carrier) = &mut self.carrier {
            carrier.handle_connected(now, client, fresh);
        }
    }

    /// The socket failed, or could not be created. `is_refused`: the link port's host refused the connection.
    pub fn handle_failed(&mut self, now: Time, error: E, is_refused: bool) {
        self.lose_carrier(now, CarrierLoss::Socket(error), is_refused);
    }

    /// The other side has closed the socket.
    pub fn handle_closed(&mut self, now: Time) {
        self.lose(now, CarrierLoss::Closed);
    }

    /// Decrypts bytes that the socket received into input for [`decompose`](Self::decompose).
    pub fn unseal<'a>(&mut self, now: Time, wire: &'a [u8], scratch: &'a mut Scratch) -> &'a [u8] {
        match &mut self.carrier {
            Some(carrier) => carrier.unseal(now, wire, scratch),
            None => &[],
        }
    }

    /// Takes the next event off the front of `input`; pass it to [`handle`](Self::handle). `None` when all of `input`
    /// is used up, or the carrier is lost.
    #[must_use]
    pub fn decompose<'a>(&mut self, now: Time, input: &mut &'a [u8]) -> Option<OpenerEvent<'a>> {
        match self.carrier.as_mut()?.decompose(now, input) {
            Ok(Some(event)) => return Some(event),
            Ok(None) if self.session.is_attached() => self.monitor.heard(now, self.session.awaits_answer()),
            Ok(None) => {}
            Err(error) => self.lose(now, CarrierLoss::Link(error)),
        }
        None
    }

    /// Handles an event of the carrier. Returns bytes for the application; call [`consumed`](Self::consumed)
    /// after the application has read them.
    pub fn handle<'a>(&mut self, now: Time, event: OpenerEvent<'a>) -> Option<&'a [u8]> {
        let outcome = match event {
            OpenerEvent::Established { connections_max } => self.handle_established(connections_max),
            OpenerEvent::RelayedData { bytes, .. } => match self.session.handle_data(now, bytes.len()) {
                Ok(true) => return Some(bytes),
                Ok(false) => Ok(()),
                Err(event) => self.handle_session_event(now, event),
            },
            OpenerEvent::RelayedControl { control, .. } => match self.session.handle_control(now, &control) {
                Ok(Some(event)) => self.handle_session_event(now, event),
                Ok(None) => Ok(()),
                Err(error) => Err(CarrierLoss::Carrier(error)),
            },
            OpenerEvent::Drain { deadline_ms } => self.handle_drain(now, deadline_ms),
            // Events of connections that are not relayed; this link has only a relayed one.
            OpenerEvent::Accepted { .. }
            | OpenerEvent::Refused { .. }
            | OpenerEvent::Data { .. }
            | OpenerEvent::Acknowledged { .. }
            | OpenerEvent::Finished { .. }
            | OpenerEvent::Closed { .. } => Ok(()),
        };
        if let Err(why) = outcome {
            self.lose(now, why);
        }
        None
    }

    /// The next bytes for the socket; report by [`sent`](Self::sent) how many it took. Call until `None`, or until the
    /// socket takes only a part.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Time) -> Option<&[u8]> {
        self.poll_transmit_observed(now, &mut ())
    }

    /// As [`poll_transmit`](Self::poll_transmit), with an [`Observer`].
    #[must_use]
    pub fn poll_transmit_observed(&mut self, now: Time, observer: &mut impl Observer) -> Option<&[u8]> {
        let carrier = self.carrier.as_mut()?;
        carrier.fill(now, &mut self.session, observer);
        if self.session.is_attached() && self.session.awaits_answer() {
            self.monitor.expect_answer(now);
        }
        if !carrier.has_unsent() && self.session.is_over() {
            self.drop_carrier();
        }
        self.carrier.as_ref()?.unsent()
    }

    /// The socket took this many of the bytes that [`poll_transmit`](Self::poll_transmit) returned.
    pub fn sent(&mut self, bytes: usize) {
        if let Some(carrier) = &mut self.carrier {
            carrier.advance_unsent(bytes);
        }
    }

    /// Whether bytes wait for the socket to become writable.
    pub fn has_unsent(&self) -> bool {
        self.carrier.as_ref().is_some_and(LinkCarrier::has_unsent)
    }

    /// The next event. Call until `None`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<SessionEvent<E>> {
        self.events.pop()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_over() {
            return None;
        }
        let is_attached = self.session.is_attached();
        let carrier = self.carrier.as_ref().map(|carrier| match is_attached {
            true => self.monitor.poll_timeout(),
            false => carrier.deadline(),
        });
        let owed = self.session.poll_timeout();
        [self.schedule.poll_timeout(is_attached), carrier, owed].into_iter().flatten().min()
    }

    /// Handles expired timers, and tries the next link port if an attempt is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.is_over() {
            return;
        }
        if let Some(reason) = self.schedule.poll_give_up(now) {
            return self.give_up(now, reason);
        }
        match self.schedule.poll_leave(now) {
            Some(Leaving::Drain) => self.lose(now, CarrierLoss::Drain),
            Some(Leaving::AskedToMove) => self.leave(now, CarrierLoss::AskedToMove),
            None => {}
        }
        if !self.session.is_attached() && self.schedule.take_return(now) {
            self.leave_for_return(now);
        }
        if let Some(target) = self.schedule.poll_target(now) {
            debug_assert!(
                self.carrier.is_none(),
                "the present carrier should be left before the next attempt"
            );
            self.carrier = Some(LinkCarrier::new(target, now, self.attach_timeout));
        }
        self.check_carrier(now);
    }

    // State.

    /// The link port that carries the session now.
    pub fn carrier(&self) -> Option<SocketAddr> {
        self.carrier.as_ref().filter(|_| self.session.is_attached()).map(LinkCarrier::address)
    }

    /// How the incoming direction has ended. Bytes that [`handle`](Self::handle) returned precede the end.
    pub fn end(&self) -> Option<SessionEnd> {
        self.end
    }

    /// Whether this end has closed the session: the application, or the driver in answer to the server.
    pub fn is_closed_here(&self) -> bool {
        self.session.is_closed_here()
    }

    /// Whether the session has ended and the driver can be dropped.
    pub fn is_over(&self) -> bool {
        self.session.is_over() || self.is_given_up
    }

    /// The session's id.
    pub fn id(&self) -> SessionId {
        self.session.id()
    }

    /// Bytes written and not acknowledged.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.session.unacknowledged_bytes()
    }

    /// Bytes of memory that hold [unacknowledged](Self::unacknowledged_bytes) bytes and bytes that the socket has not
    /// taken. Empty buffers do not count: they take a few KiB at most.
    pub fn held_bytes(&self) -> usize {
        self.session.kept_held() + self.carrier.as_ref().map_or(0, LinkCarrier::held_bytes)
    }

    // Procedures that involve several parts.

    fn handle_established(&mut self, connections_max: u32) -> Result<(), CarrierLoss<E>> {
        let carries = self.carrier.as_ref().is_some_and(LinkCarrier::carries_sessions);
        if carries && connections_max > 0 { Ok(()) } else { Err(CarrierLoss::TooOld) }
    }

    /// Handles an event of the session. On an error the caller leaves the carrier.
    fn handle_session_event(&mut self, now: Time, event: ClientEvent) -> Result<(), CarrierLoss<E>> {
        match event {
            ClientEvent::Attached { room } => {
                if let Some(carrier) = &self.carrier {
                    self.monitor.restart(now, carrier.age(now));
                    self.schedule.note_attached(carrier.address());
                    self.events.push(SessionEvent::Moved(carrier.address()));
                }
                if room {
                    self.report_room();
                }
            }
            ClientEvent::Accepted => self.events.push(SessionEvent::Accepted),
            ClientEvent::Refused(reason) => {
                if self.session.is_over() {
                    self.end = Some(SessionEnd::Refused);
                }
                return Err(CarrierLoss::Refused(reason));
            }
            ClientEvent::Gone { acknowledged } => {
                self.end = Some(SessionEnd::Gone(Gone { acknowledged, written: self.session.written() }));
                return Err(CarrierLoss::Refused(RefuseReason::Gone));
            }
            ClientEvent::Drain { deadline_ms } => self.handle_move_request(now, deadline_ms),
            ClientEvent::Stream(StreamEvent::Room) => self.report_room(),
            ClientEvent::Stream(StreamEvent::Finished) => self.end = Some(SessionEnd::InOrder),
            ClientEvent::Stream(StreamEvent::Closed(reason)) => {
                let is_normal = reason == CloseReason::Normal;
                self.end = Some(if is_normal { SessionEnd::InOrder } else { SessionEnd::Reset(reason) });
                self.is_finished = true;
                self.session.close(CloseReason::Normal);
            }
        }
        Ok(())
    }

    fn report_room(&mut self) {
        if core::mem::take(&mut self.wants_room) {
            self.events.push(SessionEvent::Room);
        }
    }

    /// The carrier drains and ends within this time.
    fn handle_drain(&mut self, now: Time, deadline_ms: u32) -> Result<(), CarrierLoss<E>> {
        let deadline = Duration::from_millis(deadline_ms.into());
        let may_stay =
            self.stays_until_end() || self.schedule.schedule_drain(now, deadline, self.session.is_attached());
        if may_stay { Ok(()) } else { Err(CarrierLoss::Drain) }
    }

    /// The carrier's other end asks the session to move to another carrier within this time.
    fn handle_move_request(&mut self, now: Time, deadline_ms: u32) {
        if !self.stays_until_end() {
            self.schedule.schedule_move(now, Duration::from_millis(deadline_ms.into()));
        }
    }

    /// Whether the session stays until its end: it has closed, and the server's answer arrives on this carrier.
    fn stays_until_end(&self) -> bool {
        self.session.is_closed_here() && self.session.is_attached()
    }

    /// Leaves the carrier and schedules the next attempt.
    fn lose(&mut self, now: Time, why: CarrierLoss<E>) {
        self.lose_carrier(now, why, false);
    }

    fn lose_carrier(&mut self, now: Time, why: CarrierLoss<E>, is_refused: bool) {
        let Some(address) = self.carrier.as_ref().map(LinkCarrier::address) else { return };
        self.schedule.note_lost(now, address, is_refused);
        self.leave(now, why);
        if !self.session.is_over() {
            self.schedule.retry(now);
        }
    }

    /// Leaves the carrier, if any, without scheduling an attempt.
    fn leave(&mut self, now: Time, why: CarrierLoss<E>) {
        if let Some(address) = self.drop_carrier() {
            self.events.push(SessionEvent::CarrierLost { address, why });
        }
        self.session.detach();
        self.schedule.note_detached(now);
    }

    fn drop_carrier(&mut self) -> Option<SocketAddr> {
        let carrier = self.carrier.take()?;
        self.must_close_socket |= carrier.is_opened();
        Some(carrier.address())
    }

    /// Leaves a carrier on which the server has not answered, because the session may return to the server's own port
    /// now.
    fn leave_for_return(&mut self, now: Time) {
        if let Some(carrier) = &self.carrier {
            let silent = carrier.age(now);
            self.leave(now, CarrierLoss::Silent(silent));
        }
    }

    /// Leaves a carrier that missed its attach deadline, probes a silent one, and leaves it if the probe has no answer.
    fn check_carrier(&mut self, now: Time) {
        let Some(carrier) = &mut self.carrier else { return };
        if !self.session.is_attached() {
            if carrier.deadline() <= now {
                self.lose(now, CarrierLoss::Silent(self.attach_timeout));
            }
            return;
        }
        let silent = self.monitor.timeout();
        match self.monitor.poll(now) {
            Some(SilenceAction::Probe) => carrier.probe(&mut self.session),
            Some(SilenceAction::Leave) => self.lose(now, CarrierLoss::Silent(silent)),
            None => {}
        }
    }

    fn give_up(&mut self, now: Time, reason: GiveUp) {
        let gone = Gone { acknowledged: self.session.acknowledged(), written: self.session.written() };
        self.end = Some(match reason {
            // The server has acknowledged everything; only its *close* is missing.
            _ if self.session.has_closed_complete() => SessionEnd::InOrder,
            GiveUp::Silent => SessionEnd::GivenUp,
            GiveUp::Absent { was_attached } => SessionEnd::Absent(was_attached.then_some(gone)),
        });
        self.is_given_up = true;
        self.leave(now, CarrierLoss::LeftOnRequest);
        self.schedule.stop();
    }
}
