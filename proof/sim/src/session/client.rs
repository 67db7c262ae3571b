//! One client with a session: its application, its clock, its socket, and the driver that the client library ships.

use std::time::Duration;

use spillway_auth::Fresh;
use spillway_batch::{Control, OpenerEvent, Scratch};
use spillway_session::{CarrierLoss, Driver, Eavesdropper, Patience, SessionEvent};
use spillway_transport::{Conn, LostReason, Time, Transport};
use spillway_wire::session::SessionId;

use super::books::Shared;
use super::canary::Canary;
use super::check::Check;
use super::client_app::ClientApp;
use super::copies;
use crate::clock::Clock;
use crate::rng::Rng;

/// When the weather is calm nobody is impatient without reason: longer than any stall.
const PATIENCE_CALM: Duration = Duration::from_secs(5);

/// One client.
pub(crate) struct Client {
    pub(crate) driver: Driver<LostReason>,
    pub(crate) app: ClientApp,
    pub(crate) socket: Option<Socket>,
    pub(crate) clock: Clock,
    /// When it looks after its session, by the world's time.
    pub(crate) wake_at: Time,
}

/// The socket of the present carrier.
pub(crate) struct Socket {
    pub(crate) conn: Conn,
    pub(crate) is_connected: bool,
    /// Bytes received that the socket has not been told of.
    pub(crate) ungranted: u32,
}

/// What is common to the clients of a world, while one of them has its turn.
pub(crate) struct Around<'a> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) books: &'a Shared,
    /// Somebody on the way keeps copies, and says them again.
    pub(crate) copies: Option<&'a copies::Shared>,
    pub(crate) canary: Option<Canary>,
}

/// Somebody between a client and its server: writes down what the client says, and says copies of it again.
struct Ear<'a, 'b> {
    session: SessionId,
    around: &'a mut Around<'b>,
}

impl Eavesdropper for Ear<'_, '_> {
    fn hears(&mut self, said: &Control) {
        let epoch = match said {
            Control::Reconnect(reconnect) => Some(reconnect.opening.epoch),
            Control::Connect(connect) => Some(connect.session.map_or(0, |opening| opening.epoch)),
            _ => None,
        };
        if let Some(epoch) = epoch {
            self.around.books.borrow_mut().client_opens(self.session, epoch);
        }
        match self.around.copies {
            Some(copies) if epoch.is_some() => copies.borrow_mut().of_words(self.session, *said),
            Some(copies) => copies.borrow_mut().of_client(self.session, *said),
            None => {}
        }
    }

    fn repeats(&mut self) -> Option<Control> {
        let copies = self.around.copies?.borrow();
        let says_again = self.around.rng.chance(1, 32);
        says_again.then(|| copies.said_by_client(self.session, self.around.rng)).flatten()
    }
}

impl Client {
    /// Its own time.
    pub(crate) fn time(&self, now: Time) -> Time {
        self.clock.read(now)
    }

    /// It is no longer slow or impatient without reason.
    pub(crate) fn calm_down(&mut self, now: Time) {
        let patience = Patience { floor: PATIENCE_CALM, ceiling: PATIENCE_CALM, idle: PATIENCE_CALM };
        self.driver.set_patience(self.time(now), patience, PATIENCE_CALM);
        self.app.calm_down();
        self.wake_at = now;
    }

    /// Takes what the socket brings.
    pub(crate) fn receives(&mut self, here: Time, bytes: &[u8], around: &mut Around<'_>) {
        let mut scratch = Scratch::new();
        let mut input = self.driver.unseal(here, bytes, &mut scratch);
        while let Some(event) = self.driver.decompose(here, &mut input) {
            match event {
                OpenerEvent::RelayedControl { control, .. } => self.hears(here, event, control, around),
                OpenerEvent::Established { .. }
                | OpenerEvent::RelayedData { .. }
                | OpenerEvent::Drain { .. } => {
                    if let Some(bytes) = self.driver.handle(here, event) {
                        self.app.receives(bytes, around.books);
                    }
                }
                other => {
                    around.books.borrow_mut().violation(Check::Rules, format!("a client hears {other:?}"));
                }
            }
            self.note_events(around);
        }
        self.note_events(around);
        if let Some(socket) = &mut self.socket {
            socket.ungranted += bytes.len() as u32; // at most what was granted
        }
    }

    fn hears(&mut self, here: Time, event: OpenerEvent<'_>, control: Control, around: &mut Around<'_>) {
        let OpenerEvent::RelayedControl { id, .. } = event else { return };
        let session = self.driver.id();
        if let Some(copies) = around.copies {
            if let Control::Resumed(right) = &control
                && around.rng.chance(1, 8)
                && let Some(copy) = copies.borrow().answer(session, around.rng)
                && copy != *right
            {
                let event = OpenerEvent::RelayedControl { id, control: Control::Resumed(copy) };
                return self.hears_copy(here, event, around);
            }
            if around.rng.chance(1, 16)
                && let Some(copy) = copies.borrow().said_by_server(session, around.rng)
            {
                let event = OpenerEvent::RelayedControl { id, control: copy };
                self.hears_again(here, event, around);
            }
            copies.borrow_mut().of_server(session, control);
        }
        let was_attached = self.driver.carrier().is_some();
        let _ = self.driver.handle(here, event);
        let mut books = around.books.borrow_mut();
        match &control {
            Control::Acknowledge(acknowledge) if was_attached => {
                books.client_hears_acknowledged(session, acknowledge.received);
            }
            Control::Resumed(answer) if !was_attached && self.driver.carrier().is_some() => {
                books.client_attaches(session, answer);
            }
            _ => {}
        }
    }

    /// Somebody answers the first words before the server does, with what was said on another carrier.
    fn hears_copy(&mut self, here: Time, event: OpenerEvent<'_>, around: &mut Around<'_>) {
        let _ = self.driver.handle(here, event);
        let mut books = around.books.borrow_mut();
        match event {
            OpenerEvent::RelayedControl { control: Control::Resumed(copy), .. }
                if self.driver.carrier().is_some() =>
            {
                books.client_attaches(self.driver.id(), &copy);
            }
            _ => books.copies_refused += 1,
        }
        // That the carrier is left for a copy breaks no rule.
        while let Some(event) = self.driver.poll_event() {
            if let SessionEvent::Room = event {
                self.app.has_room();
            }
        }
    }

    /// Somebody says again what the server said on another carrier.
    fn hears_again(&mut self, here: Time, event: OpenerEvent<'_>, around: &mut Around<'_>) {
        if self.driver.carrier().is_none() {
            return;
        }
        let end = self.driver.end();
        let _ = self.driver.handle(here, event);
        if self.driver.poll_event().is_some() || self.driver.end() != end {
            around.books.borrow_mut().violation(Check::Rules, format!("a copy does harm: {event:?}"));
        }
    }

    /// What the driver tells.
    pub(crate) fn note_events(&mut self, around: &mut Around<'_>) {
        let mut has_moved = false;
        while let Some(event) = self.driver.poll_event() {
            let broken = match event {
                SessionEvent::Moved(_) => {
                    has_moved = true;
                    continue;
                }
                SessionEvent::Room => {
                    if !has_moved || around.canary != Some(Canary::ForgetRoom) {
                        self.app.has_room();
                    }
                    continue;
                }
                SessionEvent::CarrierLost { why: CarrierLoss::Link(error), .. } => error.to_string(),
                SessionEvent::CarrierLost { why: CarrierLoss::Carrier(error), .. } => error.to_string(),
                SessionEvent::CarrierLost { why: CarrierLoss::TooOld, .. } => "no sessions".into(),
                SessionEvent::CarrierLost { .. } | SessionEvent::Accepted => continue,
            };
            around.books.borrow_mut().violation(Check::Rules, format!("a client's carrier failed: {broken}"));
        }
        self.app.looks(&self.driver, around.canary, around.books);
    }

    /// Lets the socket have what was received, as far as the client likes.
    pub(crate) fn grant<T: Transport>(&mut self, rng: &mut Rng, out: &mut T) {
        let Some(socket) = self.socket.as_mut().filter(|socket| socket.ungranted > 0) else { return };
        let all = u64::from(socket.ungranted);
        let part = if self.app.is_slow() { all.min(rng.scale(100, 10_000)) } else { all };
        socket.ungranted -= part as u32; // at most as much
        out.grant(socket.conn, part as u32);
    }

    /// Whether there is something to do soon.
    pub(crate) fn has_work(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.ungranted > 0) || self.app.has_work()
    }

    /// The socket is connected: a link begins.
    pub(crate) fn connected(&mut self, here: Time, address: std::net::SocketAddr, rng: &mut Rng) {
        if let Some(socket) = &mut self.socket {
            socket.is_connected = true;
            self.driver.handle_connected(here, address, Fresh::filled(|bytes| rng.fill(bytes)));
        }
    }

    /// Sends what there is.
    pub(crate) fn transmit<T: Transport>(&mut self, here: Time, around: &mut Around<'_>, out: &mut T) {
        let Some(conn) = self.socket.as_ref().filter(|socket| socket.is_connected).map(|socket| socket.conn)
        else {
            return;
        };
        let mut ear = Ear { session: self.driver.id(), around };
        while let Some(bytes) = self.driver.poll_transmit_heard(here, &mut ear) {
            let wanted = bytes.len();
            let taken = out.send(conn, bytes);
            self.driver.sent(taken);
            if taken < wanted {
                break;
            }
        }
    }
}
