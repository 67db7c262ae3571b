//! An attacker with a helper's key who replays opening messages: before the original, after it, twice, in any order.
//! Sessions must not be disturbed, because a server accepts from a helper only what is authenticated end to end.

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

use super::books::Shared;
use super::check::Check;
use super::copies;
use crate::rng::Rng;

/// Bound of connections on the attacker's link.
const CONNECTIONS_MAX: usize = 10;

pub(crate) struct Replayer {
    target: SocketAddr,
    key: Key,
    rng: Rng,
    copies: copies::Shared,
    books: Shared,
    link: Option<Link>,
    next_at: Time,
    is_calm: bool,
}

struct Link {
    conn: Conn,
    end: Option<OpenerLink>,
    unsent: Unsent,
    replays: VecDeque<Replay>,
}

/// A connection on which an opening message was replayed.
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
        copies: copies::Shared,
        books: Shared,
    ) -> Replayer {
        Replayer { target, key, rng, copies, books, link: None, next_at: Time::ZERO, is_calm: false }
    }

    pub(crate) fn calm_down(&mut self) {
        self.is_calm = true;
        self.next_at = Time::ZERO;
    }

    /// The link and its connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.link.as_ref().map_or(0, |link| 1 + link.replays.len())
    }

    fn work<T: Transport>(&mut self, now: Time, out: &mut T) {
        let Some(link) = &mut self.link else {
            if !self.is_calm
                && let Ok(conn) = out.connect(now, self.target)
            {
                self.link =
                    Some(Link { conn, end: None, unsent: Unsent::default(), replays: VecDeque::new() });
            }
            return;
        };
        if self.is_calm {
            out.abort(link.conn);
            self.link = None;
            return;
        }
        let Some(end) = link.end.as_mut().filter(|end| end.is_established()) else { return };
        let copies = self.copies.borrow();
        match self.rng.below(4) {
            // A control message behind the replayed opening message, which may have been refused.
            0 if !link.replays.is_empty() => {
                let replay = &link.replays[self.rng.below(link.replays.len() as u64) as usize];
                if let Some(control) = copies.client_copy(replay.session, &mut self.rng)
                    && !replay.is_closing
                {
                    end.relay_control(replay.id, control);
                }
            }
            1 => {
                if let Some(replay) = link.replays.iter_mut().find(|replay| !replay.is_closing) {
                    replay.is_closing = true;
                    end.relay_control(replay.id, Control::Close(CloseReason::Lost));
                }
            }
            _ => {
                if link.replays.len() < CONNECTIONS_MAX
                    && let Some((session, opening)) = copies.opening(&mut self.rng)
                    && let Ok(id) = end.open_relayed(opening)
                {
                    link.replays.push_back(Replay { id, session, is_closing: false });
                }
            }
        }
    }

    fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        let Some(Link { conn, end: Some(end), unsent, .. }) = &mut self.link else { return };
        let next = |spent| {
            end.recycle(spent);
            end.flush(now)
        };
        unsent.send_all_to(next, |bytes| out.send(*conn, bytes));
    }

    fn data<T: Transport>(&mut self, now: Time, bytes: &[u8], out: &mut T) {
        let Some(Link { conn, end: Some(end), replays, .. }) = &mut self.link else { return };
        let mut scratch = Scratch::new();
        let mut input = end.unseal(now, bytes, &mut scratch);
        loop {
            let (id, control) = match end.decompose(now, &mut input) {
                Ok(Some(OpenerEvent::RelayedControl { id, control })) => (id, control),
                Ok(Some(_)) => continue,
                Ok(None) => return,
                Err(error) => {
                    if error != LinkError::HandshakeTimeout {
                        let what = format!("the replayer's link: {error}");
                        self.books.borrow_mut().violation(Check::Rules, what);
                    }
                    out.abort(*conn);
                    self.link = None;
                    return;
                }
            };
            match control {
                Control::Refused(_) => {
                    self.books.borrow_mut().copies_refused += 1;
                    replays.retain(|replay| replay.id != id);
                    end.release_relayed(id);
                }
                Control::Close(_) => {
                    if replays.iter().any(|replay| replay.id == id && !replay.is_closing) {
                        end.relay_control(id, Control::Close(CloseReason::Lost));
                    }
                    replays.retain(|replay| replay.id != id);
                    end.release_relayed(id);
                }
                Control::Resumed(answer) => {
                    self.books.borrow_mut().copies_taken += 1;
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
                let fresh = LinkRandomness::filled(|bytes| self.rng.fill(bytes));
                let config = OpenerConfig {
                    role: Role::Helper,
                    key: self.key.clone(),
                    limits: Limits::default(),
                    policy: PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 },
                    encryption: Encryption::Preferred,
                };
                if let Some(link) = &mut self.link {
                    link.end = Some(OpenerLink::new(&config, now, fresh));
                }
                out.grant(conn, 1 << 20);
            }
            Event::Data { bytes, .. } => {
                self.data(now, bytes, out);
                out.grant(conn, bytes.len() as u32); // at most what was granted
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
            let soon = if self.is_calm { 1_000_000_000 } else { self.rng.scale(20_000, 20_000_000) };
            self.next_at = now + Duration::from_nanos(soon);
            self.work(now, out);
        }
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.transmit(now, out);
    }

    fn poll_timeout(&self) -> Option<Time> {
        (!self.is_calm || self.link.is_some()).then_some(self.next_at)
    }
}
