//! One client with a session: its application, clock and socket, and the driver that the client library ships.

use std::time::Duration;

use spillway_auth::LinkRandomness;
use spillway_batch::{Control, OpenerEvent, Scratch};
use spillway_session::{CarrierLoss, Driver, Observer, Patience, SessionEvent};
use spillway_transport::{Conn, LostReason, Time, Transport};
use spillway_wire::session::SessionId;

use super::books::Shared;
use super::canary::Canary;
use super::check::Check;
use super::client_app::ClientApp;
use super::copies;
use crate::clock::Clock;
use crate::rng::Rng;

/// Longer than any stall, so that after the storm no client leaves a working carrier.
const PATIENCE_CALM: Duration = Duration::from_secs(5);

pub(crate) struct Client {
    pub(crate) driver: Driver<LostReason>,
    pub(crate) app: ClientApp,
    pub(crate) socket: Option<Socket>,
    pub(crate) clock: Clock,
    /// When the client's timers are due, in the world's time.
    pub(crate) wake_at: Time,
}

/// The socket of the present carrier.
pub(crate) struct Socket {
    pub(crate) conn: Conn,
    pub(crate) is_connected: bool,
    /// Bytes received and not granted again yet.
    pub(crate) ungranted: u32,
}

/// The state that the clients of a world share, borrowed for one client's turn.
pub(crate) struct Environment<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) books: &'a Shared,
    /// Copies of control messages, for replays.
    pub(crate) copies: Option<&'a copies::Shared>,
    pub(crate) canary: Option<Canary>,
}

/// An attacker between a client and its server: records control messages and replays copies.
struct Tap<'a, 'b> {
    session: SessionId,
    environment: &'a mut Environment<'b>,
}

impl Observer for Tap<'_, '_> {
    fn hears(&mut self, control: &Control) {
        let epoch = match control {
            Control::Reconnect(reconnect) => Some(reconnect.opening.epoch),
            Control::Connect(connect) => Some(connect.session.map_or(0, |opening| opening.epoch)),
            _ => None,
        };
        if let Some(epoch) = epoch {
            self.environment.books.borrow_mut().client_opens(self.session, epoch);
        }
        match self.environment.copies {
            Some(copies) if epoch.is_some() => copies.borrow_mut().keep_opening(self.session, *control),
            Some(copies) => copies.borrow_mut().keep_from_client(self.session, *control),
            None => {}
        }
    }

    fn repeats(&mut self) -> Option<Control> {
        let copies = self.environment.copies?.borrow();
        let is_replayed = self.environment.rng.chance(1, 32);
        is_replayed.then(|| copies.client_copy(self.session, self.environment.rng)).flatten()
    }
}

impl Client {
    pub(crate) fn time(&self, now: Time) -> Time {
        self.clock.read(now)
    }

    pub(crate) fn calm_down(&mut self, now: Time) {
        let patience = Patience { floor: PATIENCE_CALM, ceiling: PATIENCE_CALM, idle: PATIENCE_CALM };
        self.driver.set_patience(self.time(now), patience, PATIENCE_CALM);
        self.app.calm_down();
        self.wake_at = now;
    }

    pub(crate) fn receives(&mut self, client_now: Time, bytes: &[u8], environment: &mut Environment<'_>) {
        let mut scratch = Scratch::new();
        let mut input = self.driver.unseal(client_now, bytes, &mut scratch);
        while let Some(event) = self.driver.decompose(client_now, &mut input) {
            match event {
                OpenerEvent::RelayedControl { control, .. } => {
                    self.receive_control(client_now, event, control, environment)
                }
                OpenerEvent::Established { .. }
                | OpenerEvent::RelayedData { .. }
                | OpenerEvent::Drain { .. } => {
                    if let Some(bytes) = self.driver.handle(client_now, event) {
                        self.app.receives(bytes, environment.books);
                    }
                }
                other => {
                    environment
                        .books
                        .borrow_mut()
                        .violation(Check::Rules, format!("a client receives {other:?}"));
                }
            }
            self.note_events(environment);
        }
        self.note_events(environment);
        if let Some(socket) = &mut self.socket {
            socket.ungranted += bytes.len() as u32; // at most what was granted
        }
    }

    fn receive_control(
        &mut self,
        client_now: Time,
        event: OpenerEvent<'_>,
        control: Control,
        environment: &mut Environment<'_>,
    ) {
        let OpenerEvent::RelayedControl { id, .. } = event else { return };
        let session = self.driver.id();
        if let Some(copies) = environment.copies {
            if let Control::Resumed(right) = &control
                && environment.rng.chance(1, 8)
                && let Some(copy) = copies.borrow().answer(session, environment.rng)
                && copy != *right
            {
                let event = OpenerEvent::RelayedControl { id, control: Control::Resumed(copy) };
                return self.receive_replayed_answer(client_now, event, environment);
            }
            if environment.rng.chance(1, 16)
                && let Some(copy) = copies.borrow().server_copy(session, environment.rng)
            {
                let event = OpenerEvent::RelayedControl { id, control: copy };
                self.receive_replay(client_now, event, environment);
            }
            copies.borrow_mut().keep_from_server(session, control);
        }
        let was_attached = self.driver.carrier().is_some();
        let _ = self.driver.handle(client_now, event);
        let mut books = environment.books.borrow_mut();
        match &control {
            Control::Acknowledge(acknowledge) if was_attached => {
                books.client_sees_acknowledged(session, acknowledge.received);
            }
            Control::Resumed(answer) if !was_attached && self.driver.carrier().is_some() => {
                books.client_attaches(session, answer);
            }
            _ => {}
        }
    }

    /// A replayed answer arrives before the server's own.
    fn receive_replayed_answer(
        &mut self,
        client_now: Time,
        event: OpenerEvent<'_>,
        environment: &mut Environment<'_>,
    ) {
        let _ = self.driver.handle(client_now, event);
        let mut books = environment.books.borrow_mut();
        match event {
            OpenerEvent::RelayedControl { control: Control::Resumed(copy), .. }
                if self.driver.carrier().is_some() =>
            {
                books.client_attaches(self.driver.id(), &copy);
            }
            _ => books.copies_refused += 1,
        }
        // To leave the carrier because of a copy breaks no rule.
        while let Some(event) = self.driver.poll_event() {
            if let SessionEvent::Room = event {
                self.app.has_room();
            }
        }
    }

    /// A control message that the server sent on another carrier is replayed.
    fn receive_replay(
        &mut self,
        client_now: Time,
        event: OpenerEvent<'_>,
        environment: &mut Environment<'_>,
    ) {
        if self.driver.carrier().is_none() {
            return;
        }
        let end = self.driver.end();
        let _ = self.driver.handle(client_now, event);
        if self.driver.poll_event().is_some() || self.driver.end() != end {
            environment
                .books
                .borrow_mut()
                .violation(Check::Rules, format!("a replayed message had an effect: {event:?}"));
        }
    }

    pub(crate) fn note_events(&mut self, environment: &mut Environment<'_>) {
        let mut has_moved = false;
        while let Some(event) = self.driver.poll_event() {
            let broken = match event {
                SessionEvent::Moved(_) => {
                    has_moved = true;
                    continue;
                }
                SessionEvent::Room => {
                    if !has_moved || environment.canary != Some(Canary::ForgetRoom) {
                        self.app.has_room();
                    }
                    continue;
                }
                SessionEvent::CarrierLost { why: CarrierLoss::Link(error), .. } => error.to_string(),
                SessionEvent::CarrierLost { why: CarrierLoss::Carrier(error), .. } => error.to_string(),
                SessionEvent::CarrierLost { why: CarrierLoss::TooOld, .. } => "no sessions".into(),
                SessionEvent::CarrierLost { .. } | SessionEvent::Accepted => continue,
            };
            environment
                .books
                .borrow_mut()
                .violation(Check::Rules, format!("a client's carrier failed: {broken}"));
        }
        self.app.note_end(&self.driver, environment.canary, environment.books);
    }

    /// Grants received bytes again: all of them, or a part if the application is slow.
    pub(crate) fn grant<T: Transport>(&mut self, rng: &mut Rng, out: &mut T) {
        let Some(socket) = self.socket.as_mut().filter(|socket| socket.ungranted > 0) else { return };
        let all = u64::from(socket.ungranted);
        let part = if self.app.is_slow() { all.min(rng.scale(100, 10_000)) } else { all };
        socket.ungranted -= part as u32; // at most `ungranted`
        out.grant(socket.conn, part as u32);
    }

    pub(crate) fn has_work(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.ungranted > 0) || self.app.has_work()
    }

    pub(crate) fn connected(&mut self, client_now: Time, address: std::net::SocketAddr, rng: &mut Rng) {
        if let Some(socket) = &mut self.socket {
            socket.is_connected = true;
            self.driver.handle_connected(
                client_now,
                address,
                LinkRandomness::filled(|bytes| rng.fill(bytes)),
            );
        }
    }

    /// Sends the driver's output as far as the socket takes it.
    pub(crate) fn transmit<T: Transport>(
        &mut self,
        client_now: Time,
        environment: &mut Environment<'_>,
        out: &mut T,
    ) {
        let Some(conn) = self.socket.as_ref().filter(|socket| socket.is_connected).map(|socket| socket.conn)
        else {
            return;
        };
        let mut tap = Tap { session: self.driver.id(), environment };
        while let Some(bytes) = self.driver.poll_transmit_observed(client_now, &mut tap) {
            let wanted = bytes.len();
            let taken = out.send(conn, bytes);
            self.driver.sent(taken);
            if taken < wanted {
                break;
            }
        }
    }
}
