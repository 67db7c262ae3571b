//! A client with a session: its application, clock and socket, and the shipped driver of the client library.

use std::time::Duration;

use spillway_auth::LinkRandomness;
use spillway_batch::{Control, OpenerEvent, Scratch};
use spillway_session::{CarrierLoss, CarrierTimeouts, Driver, Observer, SessionEvent};
use spillway_transport::{Conn, LostReason, Time, Transport};
use spillway_wire::session::SessionId;

use super::check::Check;
use super::checker::SharedChecker;
use super::client_app::ClientApp;
use super::copies;
use super::planted_fault::PlantedFault;
use crate::clock::Clock;
use crate::rng::Rng;

/// Longer than any stall: in the calm phase, clients leave only carriers that have failed.
const CALM_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Client {
    pub(crate) driver: Driver<LostReason>,
    pub(crate) app: ClientApp,
    pub(crate) socket: Option<Socket>,
    pub(crate) clock: Clock,
    /// Time at which the client's timers are due, on the world's clock.
    pub(crate) wake_at: Time,
}

/// The socket of the present carrier.
pub(crate) struct Socket {
    pub(crate) conn: Conn,
    pub(crate) is_connected: bool,
    /// Bytes received and not yet granted again.
    pub(crate) ungranted: u32,
}

/// State shared by the clients of a world, borrowed for one client's turn.
pub(crate) struct Environment<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) checker: &'a SharedChecker,
    pub(crate) copies: Option<&'a copies::SharedCopies>,
    pub(crate) planted: Option<PlantedFault>,
}

/// Reports a client's control messages to the checker and to an attacker, who keeps copies and replays them.
struct Tap<'a, 'b> {
    session: SessionId,
    environment: &'a mut Environment<'b>,
}

impl Observer for Tap<'_, '_> {
    fn observe(&mut self, control: &Control) {
        let epoch = match control {
            Control::Reconnect(reconnect) => Some(reconnect.opening.epoch),
            Control::Connect(connect) => Some(connect.session.map_or(0, |opening| opening.epoch)),
            _ => None,
        };
        if let Some(epoch) = epoch {
            self.environment.checker.borrow_mut().client_opens(self.session, epoch);
        }
        match self.environment.copies {
            Some(copies) if epoch.is_some() => copies.borrow_mut().keep_opening(self.session, *control),
            Some(copies) => copies.borrow_mut().keep_from_client(self.session, *control),
            None => {}
        }
    }

    fn poll_replay(&mut self) -> Option<Control> {
        let copies = self.environment.copies?.borrow();
        let is_replayed = self.environment.rng.chance(1, 32);
        is_replayed.then(|| copies.client_copy(self.session, self.environment.rng)).flatten()
    }
}

impl Client {
    pub(crate) fn local_time(&self, now: Time) -> Time {
        self.clock.read(now)
    }

    pub(crate) fn begin_calm_phase(&mut self, now: Time) {
        let timeouts = CarrierTimeouts { floor: CALM_TIMEOUT, ceiling: CALM_TIMEOUT, idle: CALM_TIMEOUT };
        self.driver.set_carrier_timeouts(self.local_time(now), timeouts, CALM_TIMEOUT);
        self.app.begin_calm_phase();
        self.wake_at = now;
    }

    pub(crate) fn receive(&mut self, client_now: Time, bytes: &[u8], environment: &mut Environment<'_>) {
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
                        self.app.receive(bytes, environment.checker);
                    }
                }
                other => {
                    environment.checker.borrow_mut().violation(
                        Check::Rules,
                        format!("a client's link returned an unexpected event: {other:?}"),
                    );
                }
            }
            self.handle_events(environment);
        }
        self.handle_events(environment);
        if let Some(socket) = &mut self.socket {
            socket.ungranted += bytes.len() as u32; // fits: at most the granted bytes
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
            if let Control::Resumed(original) = &control
                && environment.rng.chance(1, 8)
                && let Some(copy) = copies.borrow().answer(session, environment.rng)
                && copy != *original
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
        let mut checker = environment.checker.borrow_mut();
        match &control {
            Control::Acknowledge(acknowledge) if was_attached => {
                checker.client_sees_acknowledged(session, acknowledge.received);
            }
            Control::Resumed(answer) if !was_attached && self.driver.carrier().is_some() => {
                checker.client_attaches(session, answer);
            }
            _ => {}
        }
    }

    /// Handles a replayed answer that arrives before the server's own answer.
    fn receive_replayed_answer(
        &mut self,
        client_now: Time,
        event: OpenerEvent<'_>,
        environment: &mut Environment<'_>,
    ) {
        let _ = self.driver.handle(client_now, event);
        let mut checker = environment.checker.borrow_mut();
        match event {
            OpenerEvent::RelayedControl { control: Control::Resumed(copy), .. }
                if self.driver.carrier().is_some() =>
            {
                checker.client_attaches(self.driver.id(), &copy);
            }
            _ => checker.copies_refused += 1,
        }
        // A replayed answer may make the client leave the carrier: `CarrierLost` is no violation here.
        while let Some(event) = self.driver.poll_event() {
            if let SessionEvent::Room = event {
                self.app.has_room();
            }
        }
    }

    /// Handles the replay of a control message of the server's from another carrier. It must have no effect.
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
                .checker
                .borrow_mut()
                .violation(Check::Rules, format!("a replayed message had an effect: {event:?}"));
        }
    }

    pub(crate) fn handle_events(&mut self, environment: &mut Environment<'_>) {
        let mut has_moved = false;
        while let Some(event) = self.driver.poll_event() {
            let error_text = match event {
                SessionEvent::Moved(_) => {
                    has_moved = true;
                    continue;
                }
                SessionEvent::Room => {
                    if !has_moved || environment.planted != Some(PlantedFault::ForgetRoom) {
                        self.app.has_room();
                    }
                    continue;
                }
                SessionEvent::CarrierLost { why: CarrierLoss::Link(error), .. } => error.to_string(),
                SessionEvent::CarrierLost { why: CarrierLoss::Carrier(error), .. } => error.to_string(),
                SessionEvent::CarrierLost { why: CarrierLoss::TooOld, .. } => {
                    "the server does not support sessions".into()
                }
                SessionEvent::CarrierLost { .. } | SessionEvent::Accepted => continue,
            };
            environment
                .checker
                .borrow_mut()
                .violation(Check::Rules, format!("a client's carrier failed: {error_text}"));
        }
        self.app.record_end(&self.driver, environment.planted, environment.checker);
    }

    /// Grants received bytes again: all, or only a part if the application is slow.
    pub(crate) fn grant<T: Transport>(&mut self, rng: &mut Rng, out: &mut T) {
        let Some(socket) = self.socket.as_mut().filter(|socket| socket.ungranted > 0) else { return };
        let ungranted = u64::from(socket.ungranted);
        let part = if self.app.is_slow() { ungranted.min(rng.log_uniform(100, 10_000)) } else { ungranted };
        socket.ungranted -= part as u32; // fits: at most `ungranted`
        out.grant(socket.conn, part as u32);
    }

    pub(crate) fn has_work(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.ungranted > 0) || self.app.has_work()
    }

    pub(crate) fn handle_connected(
        &mut self,
        client_now: Time,
        address: std::net::SocketAddr,
        rng: &mut Rng,
    ) {
        if let Some(socket) = &mut self.socket {
            socket.is_connected = true;
            self.driver.handle_connected(
                client_now,
                address,
                LinkRandomness::generate(|bytes| rng.fill(bytes)),
            );
        }
    }

    /// Sends as much of the driver's output as the socket accepts.
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
            let length = bytes.len();
            let accepted = out.send(conn, bytes);
            self.driver.sent(accepted);
            if accepted < length {
                break;
            }
        }
    }
}
