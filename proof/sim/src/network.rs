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
use crate::conditions::NetworkConditions;
use crate::rng::{Rng, mix};
use crate::socket::{HostId, Segment, Socket, SocketEvent};

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
    /// By listener index: the port, and whether it is open.
    pub(crate) listeners: Vec<(u16, bool)>,
    pub(crate) slots: Vec<Slot>,
    next_port: u16,
    addresses: AddressBook,
    pub(crate) ready: Vec<Conn>,
    /// Connections with new output in this turn.
    pub(crate) dirty: Vec<Conn>,
    pub(crate) turn_due: bool,
    /// `wake`: the application's next timeout; `armed`: time of the queued `Wake` event. In the world's time.
    pub(crate) wake: Option<Time>,
    pub(crate) armed: Option<Time>,
    pub(crate) clock: Clock,
    /// By target host: segments to that host arrive after this time, as if retransmitted; resets are lost.
    pub(crate) silent_until: Vec<Time>,
    pub(crate) off_until: Time,
    pub(crate) reusable_chunks: Vec<spillway_transport::Chunk>,
}

/// All hosts, and the segments between them.
pub struct Network {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) conditions: NetworkConditions,
    agenda: Agenda<NetworkEvent>,
    pub(crate) hosts: Vec<Host>,
    /// Trace hash over all events delivered to applications: equal seeds give equal hashes.
    pub(crate) hash: u64,
    pub(crate) events_delivered: u64,
    /// Violations of the transport's contract by applications.
    pub(crate) misuse: Vec<String>,
    /// Planted fault: a bit flips in each of the next segments between two hosts (source, target, segments left).
    pub(crate) flip: Option<(HostId, HostId, u32)>,
    /// Planted fault: every connection reports queued bytes, and every host reports 1 TiB of them.
    pub(crate) reports_full_memory: bool,
    /// Planted fault: all sent bytes are reported as acknowledged.
    pub(crate) acknowledges_early: bool,
    /// Planted fault: accepted connections deliver all received bytes, even bytes that the application has not granted.
    pub(crate) grants_everything: bool,
    pub(crate) alterer: Option<Alterer>,
}

impl Network {
    /// A network without hosts.
    pub fn new(seed: u64, conditions: NetworkConditions) -> Network {
        Network {
            now: Time(1),
            rng: Rng::new(seed),
            conditions,
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

    /// The address book of a host; it is updated when a connection opens.
    pub fn addresses(&self, host: HostId) -> AddressBook {
        self.hosts[host].addresses.clone()
    }

    /// Queues an event, `delay` from now.
    pub fn queue_after(&mut self, delay: Duration, event: NetworkEvent) {
        self.queue_at(self.now + delay, event);
    }

    pub(crate) fn queue_at(&mut self, at: Time, event: NetworkEvent) {
        self.agenda.add(at, event);
    }

    /// Takes the next event and advances the time to it.
    pub fn pop(&mut self) -> Option<NetworkEvent> {
        let (at, event) = self.agenda.take()?;
        self.now = self.now.max(at);
        Some(event)
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Time> {
        self.agenda.next_at()
    }

    fn add_to_hash(&mut self, value: u64) {
        self.hash = mix(self.hash ^ value);
    }

    /// The next event of a connection, if any. [`SocketEvent::Lost`] frees the connection.
    pub(crate) fn next_event(&mut self, host: HostId, conn: Conn) -> Option<SocketEvent> {
        let bytes_max = self.rng.log_uniform(1, self.conditions.event_bytes_max);
        let acknowledges_early = self.acknowledges_early;
        let socket = self.socket_mut(host, conn)?;
        let reads_altered = socket.altered_at.is_some_and(|at| socket.delivered > at + UNNOTICED_BYTES_MAX);
        let mut event = socket.poll_event(bytes_max)?;
        if reads_altered && matches!(event, SocketEvent::Data { .. }) {
            self.misuse.push(format!(
                "host {host} has read more than {UNNOTICED_BYTES_MAX} bytes after an altered byte"
            ));
        }
        let socket = self.socket_mut(host, conn)?;
        if let (SocketEvent::Acknowledged { through }, true) = (&mut event, acknowledges_early) {
            *through = socket.sent;
        }
        self.events_delivered += 1;
        self.add_to_hash(
            (host as u64) << 48 ^ u64::from(conn.slot) << 24 ^ u64::from(conn.generation) ^ self.now.0,
        );
        match &event {
            SocketEvent::Data { end, bytes } => {
                self.add_to_hash(checksum(*end, bytes));
                self.advertise_window(host, conn);
            }
            SocketEvent::Lost(reason) => {
                self.add_to_hash(0x105 + *reason as u64);
                self.hosts[host].slots[conn.slot as usize].socket = None;
            }
            SocketEvent::Opened { .. } => self.add_to_hash(1),
            SocketEvent::Acknowledged { through } => self.add_to_hash(*through),
            SocketEvent::Room => self.add_to_hash(2),
            SocketEvent::Finished => self.add_to_hash(3),
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

    /// Remote addresses of the connections that a host's program has accepted.
    pub(crate) fn accepted_remotes(&self, host: HostId) -> impl Iterator<Item = SocketAddr> + '_ {
        let sockets = self.hosts[host].slots.iter().filter_map(|slot| slot.socket.as_ref());
        sockets.filter(|socket| socket.listener.is_some() && !socket.opened_due).map(|socket| socket.remote)
    }

    fn insert(&mut self, host: HostId, socket: Socket) -> Option<Conn> {
        let slots = &mut self.hosts[host].slots;
        let index = slots.iter().position(|slot| slot.socket.is_none()).unwrap_or(slots.len());
        if index >= self.conditions.connections_max {
            return None;
        }
        if index == slots.len() {
            slots.push(Slot::default());
        }
        let slot = &mut slots[index];
        slot.generation += 1;
        slot.socket = Some(socket);
        Some(Conn { slot: index as u32, generation: slot.generation })
    }

    fn host_of(&self, ip: IpAddr) -> Option<HostId> {
        self.hosts.iter().position(|host| host.ip == ip)
    }

    fn off_until(&self, host: HostId) -> Option<Time> {
        Some(self.hosts[host].off_until).filter(|until| *until > self.now)
    }

    /// Removes a socket; its peer receives no segment.
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
        if self.conditions.full_per_1000 > 0 && self.rng.chance(self.conditions.full_per_1000, 1000) {
            return None;
        }
        let port = self.hosts[host].next_port;
        self.hosts[host].next_port = if port == u16::MAX { 1024 } else { port + 1 };
        let source = SocketAddr::new(self.hosts[host].ip, port);
        let conn = self.insert(host, Socket::new(target, None, self.conditions.window_bytes))?;
        self.hosts[host].addresses.borrow_mut().insert(conn, source);
        let delay = self.delay();
        let silent_until = self.host_of(target.ip()).and_then(|to| self.silent_until(host, to));
        self.queue_at(
            silent_until.unwrap_or(self.now) + delay,
            NetworkEvent::Syn { from: (host, conn), source, target },
        );
        Some(conn)
    }

    fn delay(&mut self) -> Duration {
        let (low, high) = self.conditions.delay_ns;
        Duration::from_nanos(self.rng.range(low, high))
    }

    /// Sends a reset from a host that has no socket for the connection. A lost reset is not retransmitted:
    /// the peer's connection then ends by its keep-alive timeout.
    fn reset(&mut self, from: HostId, to: (HostId, Conn), reason: LostReason) {
        if self.silent_until(from, to.0).is_some() {
            return self.time_out_peer(to);
        }
        let delay = self.delay();
        let segment = Segment::Lost(reason);
        self.queue_after(delay, NetworkEvent::Segment { at: to.0, conn: to.1, from: None, segment });
    }

    /// Sends a segment to the socket's peer. Segments of one direction arrive in order.
    pub(crate) fn emit(&mut self, host: HostId, conn: Conn, segment: Segment) {
        let delay = self.delay();
        let Some((at, peer)) = self.socket(host, conn).filter(|socket| !socket.cut).and_then(|s| s.peer)
        else {
            return;
        };
        let mut sent_at = self.now;
        if let Some(until) = self.silent_until(host, at) {
            if matches!(segment, Segment::Lost(_)) {
                return self.time_out_peer((at, peer));
            }
            sent_at = until;
        }
        let Some(socket) = self.socket_mut(host, conn) else { return };
        let arrival = (sent_at + delay).max(socket.arrival);
        socket.arrival = arrival;
        self.queue_at(arrival, NetworkEvent::Segment { at, conn: peer, from: Some((host, conn)), segment });
    }

    /// Sends as many bytes as the peer's window allows, in segments of random size.
    pub(crate) fn flush(&mut self, host: HostId, conn: Conn) {
        loop {
            let segment_bytes_max = self.rng.log_uniform(1, self.conditions.segment_bytes_max);
            let queue_max = self.conditions.queue_bytes_max;
            let Some(socket) = self.socket_mut(host, conn) else { return };
            if socket.peer.is_none() || socket.lost.is_some() {
                return;
            }
            let length = (socket.send_queue.len() as u64)
                .min(socket.window_end.saturating_sub(socket.sent))
                .min(segment_bytes_max);
            if length == 0 {
                if socket.send_queue.is_empty() && socket.finishing && !socket.fin_sent {
                    socket.fin_sent = true;
                    self.emit(host, conn, Segment::Fin);
                }
                break;
            }
            let mut bytes: Vec<u8> = socket.send_queue.drain(..length as usize).collect();
            socket.sent += length;
            socket.room_due |= socket.wants_room && socket.send_queue.len() < queue_max;
            socket.wants_room &= !socket.room_due;
            let peer_host = socket.peer.map(|(host, _)| host);
            if let Some((from, target, left)) = &mut self.flip
                && *left > 0
                && (*from, Some(*target)) == (host, peer_host)
                && let Some(last) = bytes.last_mut()
            {
                *last ^= 1;
                *left -= 1;
            }
            self.emit(host, conn, Segment::Bytes(bytes));
        }
        self.mark_ready(host, conn);
    }

    /// Advertises the window when its end has advanced by a quarter of the window.
    pub(crate) fn advertise_window(&mut self, host: HostId, conn: Conn) {
        let window = self.conditions.window_bytes;
        let Some(socket) = self.socket_mut(host, conn) else { return };
        let window_end = socket.delivered + window;
        if window_end - socket.window_end_advertised >= window / 4 {
            self.acknowledge(host, conn);
        }
    }

    fn acknowledge(&mut self, host: HostId, conn: Conn) {
        let window = self.conditions.window_bytes;
        let Some(socket) = self.socket_mut(host, conn) else { return };
        let window_end = socket.delivered + window;
        socket.window_end_advertised = window_end;
        let (received, fin) = (socket.received, socket.fin_received);
        self.emit(host, conn, Segment::Ack { received, window_end, fin });
    }

    pub(crate) fn arrive_syn(&mut self, from: (HostId, Conn), source: SocketAddr, target: SocketAddr) {
        let host = self.host_of(target.ip());
        if let Some(until) = host.and_then(|host| self.off_until(host)) {
            let delay = self.delay();
            return self.queue_at(until + delay, NetworkEvent::Syn { from, source, target });
        }
        let accepted = host.and_then(|host| {
            let listeners = &self.hosts[host].listeners;
            let index = listeners.iter().position(|(port, is_open)| *is_open && *port == target.port())?;
            let mut socket = Socket::new(source, Some(index as u16), self.conditions.window_bytes);
            socket.peer = Some(from);
            socket.opened_due = true;
            if self.grants_everything {
                socket.granted = 1 << 60;
            }
            Some((host, self.insert(host, socket)?))
        });
        let Some((host, conn)) = accepted else {
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
            // This delivery represents a retransmission that arrives when the host has power again.
            let delay = self.delay();
            return self.queue_at(until + delay, NetworkEvent::Segment { at: host, conn, from, segment });
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
                socket.receive_queue.extend(bytes);
                self.acknowledge(host, conn);
            }
            Segment::Fin => {
                socket.fin_received = true;
                self.acknowledge(host, conn);
            }
            Segment::Ack { received, window_end, fin } => {
                socket.acknowledged = socket.acknowledged.max(received);
                socket.window_end = socket.window_end.max(window_end);
                socket.fin_acknowledged |= fin && socket.fin_sent;
                self.flush(host, conn);
            }
            Segment::Lost(reason) => {
                socket.lost = Some(reason);
                socket.receive_queue.clear();
            }
        }
        self.mark_ready(host, conn);
    }
}

/// A checksum that changes with high probability if any byte changes.
fn checksum(start: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let add = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = words.iter().fold(start, |hash, word| add(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(hash, |hash, byte| add(hash, u64::from(*byte)))
}
