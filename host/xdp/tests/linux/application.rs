//! The application on the stack in these tests: each listener and each opened connection has a role.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};

/// Window in bytes that the application grants to a connection.
const GRANT_BYTES: u32 = 256 * 1024;
/// Bytes that a sender passes to the transport in one call.
const OFFER_BYTES: usize = 16 * 1024;
pub const MESSAGE_BYTES: usize = 64;

/// The pattern's byte at an offset. Each group of eight bytes is the SplitMix64 hash of its number, so that
/// tests detect lost, repeated and swapped bytes.
pub fn pattern(offset: u64) -> u8 {
    let z = (offset / 8).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z.to_le_bytes()[(offset % 8) as usize]
}

pub fn fill(offset: u64, bytes: &mut [u8]) {
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern(offset + place as u64);
    }
}

pub fn is_right(offset: u64, bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(place, byte)| *byte == pattern(offset + place as u64))
}

/// The behaviour of the stack's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends received bytes back, and finishes after the peer.
    Echo,
    /// Sends this many bytes of the pattern, then finishes.
    Source(u64),
    /// Receives the pattern, and finishes after the peer.
    Sink,
    /// Resets the connection when the first byte arrives.
    Abort,
    /// Sends this many messages of the pattern, waits for the peer to return each, then finishes.
    Ask(u64),
    /// Like `Sink`, but grants only this many bytes each [`TICK`].
    Slow(u32),
    /// Like `Echo`, but opens the acknowledgement gate only after this time.
    Gated(Duration),
}

pub const TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
enum Due {
    /// Grants this many bytes, and again after each [`TICK`].
    Grant(u32),
    /// Opens the gate up to this offset.
    Release(u64),
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub opened: u64,
    pub lost: BTreeMap<String, u64>,
    pub received: u64,
    /// Number of received chunks that differ from the pattern.
    pub wrong: u64,
}

impl Tally {
    pub fn lost_by(&self, reason: LostReason) -> u64 {
        self.lost.get(&format!("{reason:?}")).copied().unwrap_or(0)
    }
}

#[derive(Debug)]
pub struct Roles {
    listeners: Vec<Role>,
    to_open: Vec<(SocketAddr, Role)>,
    is_listening: bool,
    served: BTreeMap<Conn, Served>,
    due: BTreeMap<(Time, u64), (Conn, Due)>,
    due_count: u64,
    count: Arc<AtomicUsize>,
    pub tally: Tally,
}

impl Roles {
    /// `listeners`: roles by index of the listener. The first turn opens the connections `to_open`.
    pub fn new(listeners: Vec<Role>, to_open: Vec<(SocketAddr, Role)>) -> Roles {
        Roles {
            listeners,
            to_open,
            is_listening: false,
            served: BTreeMap::new(),
            due: BTreeMap::new(),
            due_count: 0,
            count: Arc::new(AtomicUsize::new(usize::MAX)),
            tally: Tally::default(),
        }
    }

    fn later(&mut self, at: Time, conn: Conn, due: Due) {
        self.due_count += 1;
        self.due.insert((at, self.due_count), (conn, due));
    }

    /// Number of connections after the last turn; `usize::MAX` before the first turn.
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
            Role::Echo | Role::Gated(_) => {
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
            Role::Sink | Role::Slow(_) if self.is_finished => self.finish(conn, out),
            Role::Sink | Role::Slow(_) | Role::Abort => {}
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
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        if let Event::Opened { listener, .. } = event {
            self.tally.opened += 1;
            if let Some(listener) = listener {
                self.served.insert(conn, Served::new(self.listeners[usize::from(listener)]));
            }
            match self.served.get(&conn).map(|served| served.role) {
                Some(Role::Slow(bytes)) => self.later(now + TICK, conn, Due::Grant(bytes)),
                _ => out.grant(conn, GRANT_BYTES),
            }
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
                    Role::Echo | Role::Gated(_) => served.waiting.extend(bytes),
                    Role::Slow(_) => {}
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
        if let Role::Gated(delay) = served.role
            && matches!(event, Event::Data { .. } | Event::Finished)
        {
            let through = served.received + u64::from(served.is_finished);
            self.later(now + delay, conn, Due::Release(through));
        }
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
        while let Some(first) = self.due.first_entry().filter(|first| first.key().0 <= now) {
            let (conn, due) = first.remove();
            match due {
                Due::Release(through) => out.release(conn, through),
                Due::Grant(bytes) if self.served.contains_key(&conn) => {
                    out.grant(conn, bytes);
                    self.later(now + TICK, conn, due);
                }
                Due::Grant(_) => {}
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {
        self.count.store(self.served.len(), Ordering::Relaxed);
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.is_listening {
            return Some(Time::ZERO);
        }
        self.due.first_key_value().map(|((at, _), _)| *at)
    }
}
