//! The simulated network: hosts and the TCP connections between them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use spillway_transport::{Conn, LostReason, Time};

use crate::agenda::{Agenda, NetworkEvent};
use crate::alterer::{Alterer, UNNOTICED_BYTES_MAX};
use crate::clock::Clock;
use crate::rng::{Rng, mix};
use crate::socket::{HostId, Segment, Socket, SocketEvent};
use crate::weather::Weather;

/// Local addresses of the connections that a host has opened, as `getsockname` returns them.
pub type AddressBook = Rc<RefCell<BTreeMap<Conn, SocketAddr>>>;

#[derive(Debug, Default)]
pub(crate) struct Slot {
    generation: u32,
    pub(crate) socket: Option<Socket>,
}

/// One host with its listeners and connections.
#[derive(Debug)]
pub struct Host {
    ip: IpAddr,
    /// Port and whether it is open, by listener index.
    pub(crate) listeners: Vec<(u16, bool)>,
    pub(crate) slots: Vec<Slot>,
    next_port: u16,
    addresses: AddressBook,
    pub(crate) ready: Vec<Conn>,
    /// Connections with new output in this turn.
    pub(crate) dirty: Vec<Conn>,
    pub(crate) turn_due: bool,
    /// `wake`: when the application asked for a timeout; `armed`: time of the queued event, at or before `wake`.
    pub(crate) wake: Option<Time>,
    pub(crate) armed: Option<Time>,
    pub(crate) clock: Clock,
    /// By target host: until when nothing that this host sends arrives there.
    pub(crate) silent_until: Vec<Time>,
    /// Without power until then.
    pub(crate) off_until: Time,
    pub(crate) reusable_chunks: Vec<spillway_transport::Chunk>,
}

/// All hosts, and the segments between them.
pub struct Network {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) weather: Weather,
    agenda: Agenda<NetworkEvent>,
    pub(crate) hosts: Vec<Host>,
    /// Trace hash over all events delivered to applications: equal seeds give equal hashes.
    pub(crate) hash: u64,
    /// Events delivered to applications.
    pub(crate) events_delivered: u64,
    /// Violations of the transport's contract by applications.
    pub(crate) misuse: Vec<String>,
    /// For canaries: flip a bit in each of the next segments between two hosts (source, target, segments left).
    pub(crate) flip: Option<(HostId, HostId, u32)>,
    /// For canaries: report queued bytes on every connection, and used-up memory.
    pub(crate) reports_full_memory: bool,
    /// For canaries: report all sent bytes as acknowledged.
    pub(crate) acknowledges_early: bool,
    /// For canaries: accepted connections deliver all received bytes, whatever the application grants.
    pub(crate) grants_everything: bool,
    pub(crate) alterer: Option<Alterer>,
}

impl Network {
    /// A network without hosts.
    pub fn new(seed: u64, weather: Weather) -> Network {
        Network {
            now: Time(1),
            rng: Rng::new(seed),
            weather,
            agenda: Agenda::default(),
            hosts: Vec::new(),
            hash: seed,
            events_delivered: 0,
            misuse: Vec::new(),
            flip: None,
            reports_full_memory: false,
            acknowledges_early: false,
            grants_everything: false,
            alterer: None,
        }
    }

    /// The world's time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Adds a host with listeners on these ports; they are closed until its application opens them.
    pub fn add_host(&mut self, ip: IpAddr, ports: &[u16]) -> HostId {
        self.hosts.push(Host {
            ip,
            listeners: ports.iter().map(|port| (*port, false)).collect(),
            slots: Vec::new(),
            next_port: 1024,
            addresses: AddressBook::default(),
            ready: Vec::new(),
            dirty: Vec::new(),
            turn_due: false,
            wake: None,
            armed: None,
            clock: Clock::TRUE,
            silent_until: Vec::new(),
            off_until: Time::ZERO,
            reusable_chunks: Vec::new(),
        });
        self.hosts.len() - 1
    }

    /// The addresses of the connections that a host opens; the book is updated as connections open.
    pub fn addresses(&self, host: HostId) -> AddressBook {
        self.hosts[host].addresses.clone()
    }

    /// Queues an event, `delay` from now.
    pub fn after(&mut self, delay: Duration, what: NetworkEvent) {
        self.at(self.now + delay, what);
    }

    pub(crate) fn at(&mut self, at: Time, what: NetworkEvent) {
        self.agenda.add(at, what);
    }

    /// Takes the next event and moves the time to it.
    pub fn pop(&mut self) -> Option<NetworkEvent> {
        let (at, what) = self.agenda.take()?;
        self.now = self.now.max(at);
        Some(what)
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Time> {
        self.agenda.next_at()
    }

    pub(crate) fn note(&mut self, value: u64) {
        self.hash = mix(self.hash ^ value);
    }

    /// The next event of a connection, if any. [`SocketEvent::Lost`] frees the connection.
    pub(crate) fn next_event(&mut self, host: HostId, conn: Conn) -> Option<SocketEvent> {
        let piece = self.rng.scale(1, self.weather.piece_bytes_max);
        let acknowledges_early = self.acknowledges_early;
        let socket = self.socket_mut(host, conn)?;
        let reads_altered = socket.altered_at.is_some_and(|at| socket.delivered > at + UNNOTICED_BYTES_MAX);
        let mut event = socket.poll_event(piece)?;
        if reads_altered && matches!(event, SocketEvent::Data { .. }) {
            self.misuse.push(format!("host {host} reads on behind altered bytes"));
        }
        let socket = self.socket_mut(host, conn)?;
        if let (SocketEvent::Acknowledged { through }, true) = (&mut event, acknowledges_early) {
            *through = socket.sent;
        }
        self.events_delivered += 1;
        self.note((host as u64) << 48 ^ u64::from(conn.slot) << 24 ^ u64::from(conn.generation) ^ self.now.0);
        match &event {
            SocketEvent::Data { end, bytes } => {
                self.note(sum(*end, bytes));
                self.advertise_window(host, conn);
            }
            SocketEvent::Lost(reason) => {
                self.note(0x105 + *reason as u64);
                self.hosts[host].slots[conn.slot as usize].socket = None;
            }
            SocketEvent::Opened { .. } => self.note(1),
            SocketEvent::Acknowledged { through } => self.note(*through),
            SocketEvent::Room => self.note(2),
            SocketEvent::Finished => self.note(3),
        }
        Some(event)
    }

    pub(crate) fn socket(&self, host: HostId, conn: Conn) -> Option<&Socket> {
        let slot = self.hosts[host].slots.get(conn.slot as usize)?;
        slot.socket.as_ref().filter(|_| slot.generation == conn.generation)
    }

    pub(crate) fn socket_mut(&mut self, host: HostId, conn: Conn) -> Option<&mut Socket> {
        let slot = self.hosts[host].slots.get_mut(conn.slot as usize)?;
        slot.socket.as_mut().filter(|_| slot.generation == conn.generation)
    }

    /// All open connections of a host.
    pub fn connections(&self, host: HostId) -> Vec<Conn> {
        let slots = (0_u32..).zip(&self.hosts[host].slots);
        slots
            .filter(|(_, slot)| slot.socket.is_some())
            .map(|(index, slot)| Conn { slot: index, generation: slot.generation })
            .collect()
    }

    /// Bytes that a host's TCP has received, by local address of the connection.
    pub(crate) fn received_by(&self, host: HostId) -> BTreeMap<SocketAddr, u64> {
        let addresses = self.hosts[host].addresses.borrow();
        let open = self.connections(host).into_iter();
        open.filter_map(|conn| Some((*addresses.get(&conn)?, self.socket(host, conn)?.received))).collect()
    }

    /// Remote addresses of the connections that a host has accepted and its program knows of.
    pub(crate) fn remotes(&self, host: HostId) -> impl Iterator<Item = SocketAddr> + '_ {
        let sockets = self.hosts[host].slots.iter().filter_map(|slot| slot.socket.as_ref());
        sockets.filter(|socket| socket.listener.is_some() && !socket.opened_due).map(|socket| socket.remote)
    }

    fn insert(&mut self, host: HostId, socket: Socket) -> Option<Conn> {
        let slots = &mut self.hosts[host].slots;
        let free = slots.iter().position(|slot| slot.socket.is_none()).unwrap_or(slots.len());
        if free >= self.weather.connections_max {
            return None;
        }
        if free == slots.len() {
            slots.push(Slot::default());
        }
        let slot = &mut slots[free];
        slot.generation += 1;
        slot.socket = Some(socket);
        Some(Conn { slot: free as u32, generation: slot.generation })
    }

    fn host_of(&self, ip: IpAddr) -> Option<HostId> {
        self.hosts.iter().position(|host| host.ip == ip)
    }

    fn off_until(&self, host: HostId) -> Option<Time> {
        Some(self.hosts[host].off_until).filter(|until| *until > self.now)
    }

    /// Removes a socket without a notice to its peer.
    pub(crate) fn remove(&mut self, host: HostId, conn: Conn) -> Option<Socket> {
        self.socket(host, conn)?;
        self.hosts[host].slots[conn.slot as usize].socket.take()
    }

    pub(crate) fn mark_ready(&mut self, host: HostId, conn: Conn) {
        if let Some(socket) = self.socket_mut(host, conn)
            && !socket.ready
            && socket.has_event()
        {
            socket.ready = true;
            self.hosts[host].ready.push(conn);
            self.turn_soon(host);
        }
    }

    pub(crate) fn connect(&mut self, host: HostId, target: SocketAddr) -> Option<Conn> {
        if self.weather.full_in_1000 > 0 && self.rng.chance(self.weather.full_in_1000, 1000) {
            return None;
        }
        let port = self.hosts[host].next_port;
        self.hosts[host].next_port = if port == u16::MAX { 1024 } else { port + 1 };
        let source = SocketAddr::new(self.hosts[host].ip, port);
        let conn = self.insert(host, Socket::new(target, None, self.weather.window_bytes))?;
        self.hosts[host].addresses.borrow_mut().insert(conn, source);
        let delay = self.delay();
        let silent_until = self.host_of(target.ip()).and_then(|to| self.silent_until(host, to));
        self.at(
            silent_until.unwrap_or(self.now) + delay,
            NetworkEvent::Syn { from: (host, conn), source, target },
        );
        Some(conn)
    }

    fn delay(&mut self) -> Duration {
        let (low, high) = self.weather.delay_ns;
        Duration::from_nanos(self.rng.range(low, high))
    }

    /// Sends a reset from a host without a socket. A lost reset is not repeated.
    fn reset(&mut self, from: HostId, to: (HostId, Conn), reason: LostReason) {
        if self.silent_until(from, to.0).is_some() {
            return self.time_out_peer(to);
        }
        let delay = self.delay();
        let segment = Segment::Lost(reason);
        self.after(delay, NetworkEvent::Segment { at: to.0, conn: to.1, from: None, segment });
    }

    /// Sends a segment to the socket's peer, behind all earlier ones.
    pub(crate) fn emit(&mut self, host: HostId, conn: Conn, segment: Segment) {
        let delay = self.delay();
        let Some((at, peer)) = self.socket(host, conn).filter(|socket| !socket.cut).and_then(|s| s.peer)
        else {
            return;
        };
        let mut from = self.now;
        if let Some(until) = self.silent_until(host, at) {
            if matches!(segment, Segment::Lost(_)) {
                return self.time_out_peer((at, peer));
            }
            from = until;
        }
        let Some(socket) = self.socket_mut(host, conn) else { return };
        let arrival = (from + delay).max(socket.arrival);
        socket.arrival = arrival;
        self.at(arrival, NetworkEvent::Segment { at, conn: peer, from: Some((host, conn)), segment });
    }

    /// Sends what the peer's window allows, in segments of random size.
    pub(crate) fn flush(&mut self, host: HostId, conn: Conn) {
        loop {
            let longest = self.rng.scale(1, self.weather.segment_bytes_max);
            let queue_max = self.weather.queue_bytes_max;
            let Some(socket) = self.socket_mut(host, conn) else { return };
            if socket.peer.is_none() || socket.lost.is_some() {
                return;
            }
            let length = (socket.out.len() as u64).min(socket.edge.saturating_sub(socket.sent)).min(longest);
            if length == 0 {
                if socket.out.is_empty() && socket.finishing && !socket.fin_sent {
                    socket.fin_sent = true;
                    self.emit(host, conn, Segment::Fin);
                }
                break;
            }
            let mut bytes: Vec<u8> = socket.out.drain(..length as usize).collect();
            socket.sent += length;
            socket.room_due |= socket.wants_room && socket.out.len() < queue_max;
            socket.wants_room &= !socket.room_due;
            let to = socket.peer.map(|(to, _)| to);
            if let Some((from, target, left)) = &mut self.flip
                && *left > 0
                && (*from, Some(*target)) == (host, to)
                && let Some(last) = bytes.last_mut()
            {
                *last ^= 1;
                *left -= 1;
            }
            self.emit(host, conn, Segment::Bytes(bytes));
        }
        self.mark_ready(host, conn);
    }

    /// Advertises a wider window when it has grown by a quarter.
    pub(crate) fn advertise_window(&mut self, host: HostId, conn: Conn) {
        let window = self.weather.window_bytes;
        let Some(socket) = self.socket_mut(host, conn) else { return };
        let edge = socket.delivered + window;
        if edge - socket.edge_advertised >= window / 4 {
            self.acknowledge(host, conn);
        }
    }

    fn acknowledge(&mut self, host: HostId, conn: Conn) {
        let window = self.weather.window_bytes;
        let Some(socket) = self.socket_mut(host, conn) else { return };
        let edge = socket.delivered + window;
        socket.edge_advertised = edge;
        let (received, fin) = (socket.received, socket.fin_received);
        self.emit(host, conn, Segment::Ack { received, edge, fin });
    }

    /// A connection attempt arrives at the host with the address `target`.
    pub(crate) fn arrive_syn(&mut self, from: (HostId, Conn), source: SocketAddr, target: SocketAddr) {
        let host = self.host_of(target.ip());
        if let Some(until) = host.and_then(|host| self.off_until(host)) {
            let delay = self.delay();
            return self.at(until + delay, NetworkEvent::Syn { from, source, target });
        }
        let open = host.and_then(|host| {
            let listeners = &self.hosts[host].listeners;
            let index = listeners.iter().position(|(port, open)| *open && *port == target.port())?;
            let mut socket = Socket::new(source, Some(index as u16), self.weather.window_bytes);
            socket.peer = Some(from);
            socket.opened_due = true;
            if self.grants_everything {
                socket.granted = 1 << 60;
            }
            Some((host, self.insert(host, socket)?))
        });
        let Some((host, conn)) = open else {
            return self.reset(host.unwrap_or(from.0), from, LostReason::Refused);
        };
        self.emit(host, conn, Segment::SynAck(conn));
        self.mark_ready(host, conn);
    }

    pub(crate) fn arrive(
        &mut self,
        host: HostId,
        conn: Conn,
        from: Option<(HostId, Conn)>,
        segment: Segment,
    ) {
        if let Some(until) = self.off_until(host) {
            // Stands for retransmissions until the host is back.
            let delay = self.delay();
            return self.at(until + delay, NetworkEvent::Segment { at: host, conn, from, segment });
        }
        let Some(socket) = self.socket_mut(host, conn) else {
            // A segment for a closed connection is answered with a reset.
            if let (Segment::SynAck(_) | Segment::Bytes(_) | Segment::Fin, Some(sender)) = (segment, from) {
                self.reset(host, sender, LostReason::Reset);
            }
            return;
        };
        if socket.cut && !matches!(segment, Segment::Lost(_)) {
            return;
        }
        let mut segment = segment;
        let mut first_altered = None;
        if let (Segment::Bytes(bytes), Some(alterer), Some((source, _))) =
            (&mut segment, &mut self.alterer, from)
        {
            first_altered = alterer.pass(source, host, bytes);
        }
        let Some(socket) = self.socket_mut(host, conn) else { return };
        match segment {
            Segment::SynAck(peer) => {
                socket.peer = from.map(|(host, _)| (host, peer));
                socket.opened_due = true;
            }
            Segment::Bytes(bytes) => {
                if let Some(first) = first_altered {
                    socket.altered_at.get_or_insert(socket.received + first as u64);
                }
                socket.received += bytes.len() as u64;
                socket.rx.extend(bytes);
                self.acknowledge(host, conn);
            }
            Segment::Fin => {
                socket.fin_received = true;
                self.acknowledge(host, conn);
            }
            Segment::Ack { received, edge, fin } => {
                socket.acknowledged = socket.acknowledged.max(received);
                socket.edge = socket.edge.max(edge);
                socket.fin_acknowledged |= fin && socket.fin_sent;
                self.flush(host, conn);
            }
            Segment::Lost(reason) => {
                socket.lost = Some(reason);
                socket.rx.clear();
            }
        }
        self.mark_ready(host, conn);
    }
}

/// A checksum that changes, with high probability, with any byte.
fn sum(start: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let add = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let sum = words.iter().fold(start, |sum, word| add(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| add(sum, u64::from(*byte)))
}
