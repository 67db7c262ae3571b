//! An attacker with a helper's key who replays opening messages: before the originals, after them, twice, in
//! any order. This must not disturb sessions, because opening messages are authenticated end to end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Control, Encryption, Id, Limits, LinkError, LinkRandomness, OpenerConfig, OpenerEvent,
    OpenerLink, PolicyKind, Role, Scratch,
};
use spillway_transport::{Application, Conn, Event, Time, Transport, Unsent};
use spillway_wire::session::SessionId;

use super::check::Check;
use super::checker::SharedChecker;
use super::copies;
use crate::rng::Rng;

const CONNECTIONS_MAX: usize = 10;

pub(crate) struct Replayer {
    target: SocketAddr,
    key: Key,
    rng: Rng,
    copies: copies::SharedCopies,
    checker: SharedChecker,
    link: Option<Link>,
    next_at: Time,
    in_calm_phase: bool,
}

struct Link {
    conn: Conn,
    protocol: Option<OpenerLink>,
    unsent: Unsent,
    replays: VecDeque<Replay>,
}

/// A virtual connection on which an opening message was replayed.
struct Replay {
    id: Id,
    session: SessionId,
    is_closing: bool,
}

impl Replayer {
    pub(crate) fn new(
        target: SocketAddr,
        key: Key,
        rng: Rng,
        copies: copies::SharedCopies,
        checker: SharedChecker,
    ) -> Replayer {
        Replayer { target, key, rng, copies, checker, link: None, next_at: Time::ZERO, in_calm_phase: false }
    }

    pub(crate) fn begin_calm_phase(&mut self) {
        self.in_calm_phase = true;
        self.next_at = Time::ZERO;
    }

    /// Number of open connections: the link, and the virtual connections on it.
    pub(crate) fn open(&self) -> usize {
        self.link.as_ref().map_or(0, |link| 1 + link.replays.len())
    }

    fn work<T: Transport>(&mut self, now: Time, out: &mut T) {
        let Some(link) = &mut self.link else {
            if !self.in_calm_phase
                && let Ok(conn) = out.connect(now, self.target)
            {
                self.link =
                    Some(Link { conn, protocol: None, unsent: Unsent::default(), replays: VecDeque::new() });
            }
            return;
        };
        if self.in_calm_phase {
            out.abort(link.conn);
            self.link = None;
            return;
        }
        let Some(protocol) = link.protocol.as_mut().filter(|protocol| protocol.is_established()) else {
            return;
        };
        let copies = self.copies.borrow();
        match self.rng.below(4) {
            // Replays a control message after an opening message, which the server may have refused.
            0 if !link.replays.is_empty() => {
                let replay = &link.replays[self.rng.below(link.replays.len() as u64) as usize];
                if let Some(control) = copies.client_copy(replay.session, &mut self.rng)
                    && !replay.is_closing
                {
                    protocol.relay_control(replay.id, control);
                }
            }
            1 => {
                if let Some(replay) = link.replays.iter_mut().find(|replay| !replay.is_closing) {
                    replay.is_closing = true;
                    protocol.relay_control(replay.id, Control::Close(CloseReason::Lost));
                }
            }
            _ => {
                if link.replays.len() < CONNECTIONS_MAX
                    && let Some((session, opening)) = copies.opening(&mut self.rng)
                    && let Ok(id) = protocol.open_with_message(opening)
                {
                    link.replays.push_back(Replay { id, session, is_closing: false });
                }
            }
        }
    }

    fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        let Some(Link { conn, protocol: Some(protocol), unsent, .. }) = &mut self.link else { return };
        let next = |spent| {
            protocol.recycle(spent);
            protocol.flush(now)
        };
        unsent.send_all_to(next, |bytes| out.send(*conn, bytes));
    }

    fn handle_data<T: Transport>(&mut self, now: Time, bytes: &[u8], out: &mut T) {
        let Some(Link { conn, protocol: Some(protocol), replays, .. }) = &mut self.link else { return };
        let mut scratch = Scratch::new();
        let mut input = protocol.unseal(now, bytes, &mut scratch);
        loop {
            let (id, control) = match protocol.decompose(now, &mut input) {
                Ok(Some(OpenerEvent::RelayedControl { id, control })) => (id, control),
                Ok(Some(_)) => continue,
                Ok(None) => return,
                Err(error) => {
                    if error != LinkError::HandshakeTimeout {
                        let what = format!("the replayer's link failed: {error}");
                        self.checker.borrow_mut().violation(Check::Rules, what);
                    }
                    out.abort(*conn);
                    self.link = None;
                    return;
                }
            };
            match control {
                Control::Refused(_) => {
                    self.checker.borrow_mut().copies_refused += 1;
                    replays.retain(|replay| replay.id != id);
                    protocol.release_relayed(id);
                }
                Control::Close(_) => {
                    if replays.iter().any(|replay| replay.id == id && !replay.is_closing) {
                        protocol.relay_control(id, Control::Close(CloseReason::Lost));
                    }
                    replays.retain(|replay| replay.id != id);
                    protocol.release_relayed(id);
                }
                Control::Resumed(answer) => {
                    self.checker.borrow_mut().copies_accepted += 1;
                    if let Some(replay) = replays.iter().find(|replay| replay.id == id) {
                        self.copies.borrow_mut().keep_from_server(replay.session, Control::Resumed(answer));
                    }
                }
                _ => {}
            }
        }
    }
}

impl Application for Replayer {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                let randomness = LinkRandomness::generate(|bytes| self.rng.fill(bytes));
                let config = OpenerConfig {
                    role: Role::Helper,
                    key: self.key.clone(),
                    limits: Limits::default(),
                    policy: PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 },
                    encryption: Encryption::Preferred,
                };
                if let Some(link) = &mut self.link {
                    link.protocol = Some(OpenerLink::new(&config, now, randomness));
                }
                out.grant(conn, 1 << 20);
            }
            Event::Data { bytes, .. } => {
                self.handle_data(now, bytes, out);
                out.grant(conn, bytes.len() as u32); // fits: at most the granted bytes
            }
            Event::Finished | Event::Lost(_) => {
                self.link = None;
                if matches!(event, Event::Finished) {
                    out.finish(conn);
                }
            }
            Event::Room | Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next_at <= now {
            let delay_ns =
                if self.in_calm_phase { 1_000_000_000 } else { self.rng.log_uniform(20_000, 20_000_000) };
            self.next_at = now + Duration::from_nanos(delay_ns);
            self.work(now, out);
        }
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.transmit(now, out);
    }

    fn poll_timeout(&self) -> Option<Time> {
        (!self.in_calm_phase || self.link.is_some()).then_some(self.next_at)
    }
}
