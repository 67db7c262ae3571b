//! Connections of a stack as streams: the application that the stack serves.
//!
//! Received bytes wait here until the worker takes them. Each wait reports all streams that are ready for what the
//! worker requested, as level-triggered epoll does.

use std::io;

use spillway_moving_client::Ready;
use spillway_parts::{SlotKey, Slots};
use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};

use crate::engine::{Interest, Readiness};

/// Bytes of a stream that may wait for the worker: the receive window.
const WINDOW_BYTES: u32 = 256 * 1024;
/// Capacity that a stream without waiting bytes keeps.
const IDLE_BYTES: usize = 4096;
/// More than a generator can need: 60,000 connections, each with a direct stream and two links.
const STREAMS_MAX: usize = 1 << 18;

#[derive(Debug)]
pub(super) struct Streams {
    streams: Slots<Stream>,
    /// The stream of each connection, by the connection's slot.
    by_slot: Vec<Option<SlotKey>>,
    /// Streams that may be ready.
    listed: Vec<SlotKey>,
    /// Empty, except while `collect` examines the streams of `listed`. Kept, so that `collect` does not allocate.
    examined: Vec<SlotKey>,
}

#[derive(Debug)]
struct Stream {
    conn: Conn,
    phase: Phase,
    /// The peer sends no more bytes than those in `received`.
    has_finished: bool,
    /// The worker has dropped the stream. The stack still sends the last bytes and the FIN.
    is_dropped: bool,
    received: Vec<u8>,
    /// Bytes at the start of `received` that the worker has taken.
    taken: usize,
    interest: Option<Interest>,
    is_listed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Open,
    Lost(LostReason),
}

impl Streams {
    pub(super) fn new() -> Streams {
        let streams = Slots::new(STREAMS_MAX);
        Streams { streams, by_slot: Vec::new(), listed: Vec::new(), examined: Vec::new() }
    }

    /// Adds the stream of a connection that is being opened; `None` at the bound.
    pub(super) fn add(&mut self, conn: Conn) -> Option<SlotKey> {
        let key = self.streams.insert(Stream {
            conn,
            phase: Phase::Opening,
            has_finished: false,
            is_dropped: false,
            received: Vec::new(),
            taken: 0,
            interest: None,
            is_listed: false,
        })?;
        let slot = conn.slot as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize(slot + 1, None);
        }
        self.by_slot[slot] = Some(key);
        Some(key)
    }

    pub(super) fn conn(&self, key: SlotKey) -> io::Result<Conn> {
        self.streams.get(key).map(|stream| stream.conn).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(super) fn is_connected(&self, key: SlotKey) -> io::Result<bool> {
        match self.streams.get(key).map(|stream| stream.phase) {
            Some(Phase::Opening) => Ok(false),
            Some(Phase::Open) => Ok(true),
            Some(Phase::Lost(reason)) => Err(error_of(reason)),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    pub(super) fn watch(&mut self, key: SlotKey, interest: Interest) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.interest = Some(interest);
        }
        self.list(key);
    }

    pub(super) fn send(
        &mut self,
        key: SlotKey,
        bytes: &[u8],
        transport: &mut impl Transport,
    ) -> io::Result<usize> {
        if !self.is_connected(key)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match transport.send(self.conn(key)?, bytes) {
            0 if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            sent => Ok(sent),
        }
    }

    /// The stream, if bytes or its end can be received; otherwise the error that a socket returns.
    fn waiting(&mut self, key: SlotKey) -> io::Result<&mut Stream> {
        let Some(stream) = self.streams.get_mut(key) else { return Err(io::ErrorKind::NotConnected.into()) };
        if stream.taken < stream.received.len() || stream.has_finished {
            return Ok(stream);
        }
        match stream.phase {
            Phase::Opening | Phase::Open => Err(io::ErrorKind::WouldBlock.into()),
            Phase::Lost(LostReason::Closed) => Ok(stream),
            Phase::Lost(reason) => Err(error_of(reason)),
        }
    }

    /// Passes at most `length_max` waiting bytes to `take` and returns their number; 0 is the end of the stream.
    pub(super) fn receive(
        &mut self,
        key: SlotKey,
        length_max: usize,
        transport: &mut impl Transport,
        take: impl FnOnce(&[u8]),
    ) -> io::Result<usize> {
        let stream = self.waiting(key)?;
        let waiting = &stream.received[stream.taken..];
        let length = waiting.len().min(length_max);
        take(&waiting[..length]);
        stream.taken += length;
        if stream.taken == stream.received.len() {
            stream.taken = 0;
            stream.received.clear();
            stream.received.shrink_to(IDLE_BYTES);
        }
        if let Ok(granted) = u32::try_from(length) {
            transport.grant(stream.conn, granted);
        }
        Ok(length)
    }

    /// The number of waiting bytes; 0 at the end of the stream.
    pub(super) fn peek(&mut self, key: SlotKey) -> io::Result<usize> {
        self.waiting(key).map(|stream| stream.received.len() - stream.taken)
    }

    /// Closes a stream as the kernel closes a socket: with a reset if bytes were not taken.
    pub(super) fn close(&mut self, key: SlotKey, transport: &mut impl Transport) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        match stream.phase {
            Phase::Open if stream.taken == stream.received.len() => {
                stream.is_dropped = true;
                transport.finish(stream.conn);
            }
            Phase::Opening | Phase::Open => {
                transport.abort(stream.conn);
                self.remove(key);
            }
            Phase::Lost(_) => self.remove(key),
        }
    }

    pub(super) fn abort_all(&mut self, transport: &mut impl Transport) {
        for (_, stream) in self.streams.iter() {
            transport.abort(stream.conn);
        }
        *self = Streams::new();
    }

    /// The number of streams, dropped ones that have not ended included.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Appends reports of all streams that are ready.
    pub(super) fn collect(&mut self, transport: &impl Transport, ready: &mut Vec<Readiness>) {
        std::mem::swap(&mut self.listed, &mut self.examined);
        for key in self.examined.drain(..) {
            let Some(stream) = self.streams.get_mut(key) else { continue };
            let report = stream.report(transport);
            stream.is_listed = report.is_some();
            if let Some(report) = report {
                ready.push(report);
                self.listed.push(key);
            }
        }
    }

    fn list(&mut self, key: SlotKey) {
        if let Some(stream) = self.streams.get_mut(key)
            && !std::mem::replace(&mut stream.is_listed, true)
        {
            self.listed.push(key);
        }
    }

    fn remove(&mut self, key: SlotKey) {
        if let Some(stream) = self.streams.remove(key)
            && let Some(entry) = self.by_slot.get_mut(stream.conn.slot as usize)
            && *entry == Some(key)
        {
            *entry = None;
        }
    }

    fn key_of(&self, conn: Conn) -> Option<SlotKey> {
        let key = self.by_slot.get(conn.slot as usize).copied().flatten()?;
        self.streams.get(key).filter(|stream| stream.conn == conn).map(|_| key)
    }
}

impl Stream {
    /// The report that a wait makes of this stream; `None` if it is not ready.
    fn report(&self, transport: &impl Transport) -> Option<Readiness> {
        let interest = self.interest.filter(|_| !self.is_dropped)?;
        let is_lost = matches!(self.phase, Phase::Lost(_));
        let is_readable = || self.taken < self.received.len() || self.has_finished;
        let is_writable = || self.phase == Phase::Open && transport.room(self.conn) > 0;
        let ready = Ready {
            readable: is_lost || (interest.readable && is_readable()),
            writable: is_lost || (interest.writable && is_writable()),
        };
        (ready.readable || ready.writable).then_some(Readiness { token: interest.token, ready })
    }
}

impl Application for Streams {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        let Some(key) = self.key_of(conn) else {
            debug_assert!(false, "every connection has a stream until its end");
            return;
        };
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.is_dropped {
            match event {
                // As the kernel does for a closed socket.
                Event::Data { .. } => {
                    out.abort(conn);
                    self.remove(key);
                }
                Event::Lost(_) => self.remove(key),
                _ => {}
            }
            return;
        }
        match event {
            Event::Opened { .. } => {
                stream.phase = Phase::Open;
                out.grant(conn, WINDOW_BYTES);
            }
            Event::Data { bytes, .. } => stream.received.extend_from_slice(bytes),
            Event::Finished => stream.has_finished = true,
            Event::Lost(reason) => stream.phase = Phase::Lost(reason),
            Event::Room | Event::Acknowledged { .. } => {}
        }
        self.list(key);
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

/// The error that a socket returns.
fn error_of(reason: LostReason) -> io::Error {
    let kind = match reason {
        LostReason::Closed => io::ErrorKind::NotConnected,
        LostReason::Reset => io::ErrorKind::ConnectionReset,
        LostReason::Refused => io::ErrorKind::ConnectionRefused,
        LostReason::TimedOut => io::ErrorKind::TimedOut,
        LostReason::Failed => io::ErrorKind::HostUnreachable,
    };
    kind.into()
}
