//! What the stack serves in these tests: a role for each listener, and connections of its own.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};

/// Bytes that one connection is granted ahead.
const GRANT_BYTES: u32 = 256 * 1024;
/// Bytes that a sender offers at once.
const OFFER_BYTES: usize = 16 * 1024;
/// Of one message of ping-pong.
pub const MESSAGE_BYTES: usize = 64;

/// What a stream has at an offset. Its period is no power of two, so bytes at a wrong place are wrong bytes.
pub fn pattern(offset: u64) -> u8 {
    (offset % 65_521 % 251) as u8 ^ (offset / 65_521) as u8 // either is meant to be cut
}

/// The next bytes of the pattern.
pub fn fill(offset: u64, bytes: &mut [u8]) {
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern(offset + place as u64);
    }
}

/// Whether these bytes are the pattern's.
pub fn is_right(offset: u64, bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(place, byte)| *byte == pattern(offset + place as u64))
}

/// What the stack's end of a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends back what comes, and finishes after the peer has.
    Echo,
    /// Sends so many bytes of the pattern, then finishes.
    Source(u64),
    /// Takes the pattern, and finishes after the peer has.
    Sink,
    /// Resets the connection at its first byte.
    Abort,
    /// Sends messages of the pattern and waits for each to come back, so many times; then finishes.
    Ask(u64),
}

#[derive(Debug)]
struct Served {
    role: Role,
    received: u64,
    taken: u64,
    waiting: VecDeque<u8>,
    is_finished: bool,
    has_finished: bool,
}

/// What happened, for the test to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Connections opened.
    pub opened: u64,
    /// Connections lost, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Bytes that came.
    pub received: u64,
    /// Chunks with a byte that is not the pattern's.
    pub wrong: u64,
}

impl Tally {
    /// Connections lost for this reason.
    pub fn lost_by(&self, reason: LostReason) -> u64 {
        self.lost.get(&format!("{reason:?}")).copied().unwrap_or(0)
    }
}

/// The application.
#[derive(Debug)]
pub struct Roles {
    listeners: Vec<Role>,
    /// Connections of our own that are still to be opened: where, and what to do.
    to_open: Vec<(SocketAddr, Role)>,
    is_listening: bool,
    served: BTreeMap<Conn, Served>,
    /// How many there are, for another thread to see after each turn. Not 0 before the first one.
    count: Arc<AtomicUsize>,
    pub tally: Tally,
}

impl Roles {
    /// A role for each listener, and connections to open at the first turn.
    pub fn new(listeners: Vec<Role>, to_open: Vec<(SocketAddr, Role)>) -> Roles {
        Roles {
            listeners,
            to_open,
            is_listening: false,
            served: BTreeMap::new(),
            count: Arc::new(AtomicUsize::new(usize::MAX)),
            tally: Tally::default(),
        }
    }

    /// Connections that are there, as another thread may see it.
    pub fn count(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.count)
    }
}

impl Served {
    fn new(role: Role) -> Served {
        Served {
            role,
            received: 0,
            taken: 0,
            waiting: VecDeque::new(),
            is_finished: false,
            has_finished: false,
        }
    }

    fn pump<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        match self.role {
            Role::Echo => {
                while !self.waiting.is_empty() {
                    let taken = out.send(conn, self.waiting.as_slices().0);
                    self.waiting.drain(..taken);
                    out.grant(conn, taken as u32);
                    if taken == 0 {
                        return;
                    }
                }
                if self.is_finished {
                    self.finish(conn, out);
                }
            }
            Role::Source(bytes) | Role::Ask(bytes) => {
                let messages = self.received / MESSAGE_BYTES as u64 + 1;
                let end = match self.role {
                    Role::Source(_) => bytes,
                    _ => messages.min(bytes) * MESSAGE_BYTES as u64,
                };
                let mut chunk = [0; OFFER_BYTES];
                while self.taken < end {
                    let chunk = &mut chunk[..OFFER_BYTES.min((end - self.taken) as usize)];
                    fill(self.taken, chunk);
                    let taken = out.send(conn, chunk);
                    self.taken += taken as u64;
                    if taken < chunk.len() {
                        return;
                    }
                }
                if matches!(self.role, Role::Source(_)) || messages > bytes {
                    self.finish(conn, out);
                }
            }
            Role::Sink if self.is_finished => self.finish(conn, out),
            Role::Sink | Role::Abort => {}
        }
    }

    fn finish<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if !self.has_finished {
            self.has_finished = true;
            out.finish(conn);
        }
    }
}

impl Application for Roles {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        if let Event::Opened { listener, .. } = event {
            self.tally.opened += 1;
            if let Some(listener) = listener {
                self.served.insert(conn, Served::new(self.listeners[usize::from(listener)]));
            }
            out.grant(conn, GRANT_BYTES);
        }
        let Some(served) = self.served.get_mut(&conn) else {
            panic!("{event:?} of a connection that is not there");
        };
        match event {
            Event::Opened { .. } | Event::Room | Event::Acknowledged { .. } => {}
            Event::Data { end, bytes } => {
                assert_eq!(served.received + bytes.len() as u64, end, "no byte is lost, none comes twice");
                self.tally.received += bytes.len() as u64;
                if served.role == Role::Abort {
                    self.served.remove(&conn);
                    return out.abort(conn);
                }
                if !is_right(served.received, bytes) {
                    self.tally.wrong += 1;
                }
                served.received = end;
                match served.role {
                    Role::Echo => served.waiting.extend(bytes),
                    _ => out.grant(conn, bytes.len() as u32),
                }
            }
            Event::Finished => served.is_finished = true,
            Event::Lost(reason) => {
                *self.tally.lost.entry(format!("{reason:?}")).or_default() += 1;
                self.served.remove(&conn);
                return;
            }
        }
        served.pump(conn, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if !self.is_listening {
            self.is_listening = true;
            for listener in 0..self.listeners.len() {
                out.set_listening(listener as u16, true);
            }
            for (target, role) in self.to_open.drain(..) {
                let conn = out.connect(now, target).expect("room for another connection");
                self.served.insert(conn, Served::new(role));
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {
        self.count.store(self.served.len(), Ordering::Relaxed);
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.is_listening { None } else { Some(Time::ZERO) }
    }
}
