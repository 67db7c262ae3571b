//! A test harness: a relay, a transport that records its calls, and a real server's end of the link.
#![allow(dead_code, reason = "each test file uses only some of these items")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{
    AddressRules, Control, Encryption, Kind, Limits, LinkRandomness, PolicyKind, Role, Scratch, ServerConfig,
    ServerEvent, ServerLink,
};
use spillway_relay::{Config, Relay, ServiceConfig};
use spillway_transport::{Application, Chunk, Conn, Event, Full, Time, Transport};

/// The transport's state of one connection, as a result of the relay's calls.
#[derive(Debug, Default)]
pub struct ConnRecord {
    pub sent: Vec<u8>,
    pub room: usize,
    pub granted: u64,
    pub finished: bool,
    pub aborted: bool,
    pub watched: bool,
    /// Sent bytes stay in the transport's queue, because the host takes none.
    pub stuck: bool,
    /// The relay has requested a `Room` event.
    pub wants_room: bool,
    /// Offset up to which the gate lets TCP acknowledge the client's bytes.
    pub released: u64,
}

#[derive(Debug, Default)]
pub struct RecordingTransport {
    pub records: BTreeMap<Conn, ConnRecord>,
    pub connects: Vec<(Conn, SocketAddr)>,
    pub listening: BTreeMap<u16, bool>,
    next_slot: u32,
}

impl RecordingTransport {
    pub fn accept(&mut self) -> Conn {
        let conn = Conn { slot: self.next_slot, generation: 7 };
        self.next_slot += 1;
        self.records.insert(conn, ConnRecord { room: 1 << 20, ..ConnRecord::default() });
        conn
    }

    pub fn record(&mut self, conn: Conn) -> &mut ConnRecord {
        self.records.get_mut(&conn).expect("the connection should have been opened")
    }

    /// Removes and returns the sent bytes, and frees their room.
    pub fn take(&mut self, conn: Conn) -> Vec<u8> {
        let record = self.record(conn);
        record.room += record.sent.len();
        std::mem::take(&mut record.sent)
    }
}

impl Transport for RecordingTransport {
    fn connect(&mut self, _: Time, target: SocketAddr) -> Result<Conn, Full> {
        let conn = self.accept();
        self.connects.push((conn, target));
        Ok(conn)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        self.listening.insert(listener, open);
    }

    fn room(&self, conn: Conn) -> usize {
        self.records[&conn].room
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let record = self.record(conn);
        assert!(
            !record.aborted && !record.finished,
            "the relay should send nothing after it has ended the connection"
        );
        let accepted = bytes.len().min(record.room);
        record.room -= accepted;
        record.sent.extend_from_slice(&bytes[..accepted]);
        accepted
    }

    fn want_room(&mut self, conn: Conn) {
        self.record(conn).wants_room = true;
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        if self.room(conn) < chunk.len() {
            return Err(chunk);
        }
        self.send(conn, chunk.as_slice());
        Ok(())
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        None
    }

    fn queued(&self, conn: Conn) -> usize {
        let record = &self.records[&conn];
        if record.stuck { record.sent.len() } else { 0 }
    }

    fn held_by_all(&self) -> usize {
        self.records
            .values()
            .filter(|record| record.stuck && !record.aborted)
            .map(|record| record.sent.len())
            .sum()
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        self.record(conn).granted += u64::from(bytes);
    }

    fn release(&mut self, conn: Conn, through: u64) {
        let record = self.record(conn);
        record.released = record.released.max(through);
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        self.record(conn).watched = on;
    }

    fn finish(&mut self, conn: Conn) {
        self.record(conn).finished = true;
    }

    fn abort(&mut self, conn: Conn) {
        self.record(conn).aborted = true;
    }
}

pub fn helper_key() -> Key {
    Key::from_secret([1; 32])
}

pub fn client_key() -> Key {
    Key::from_secret([2; 32])
}

pub fn client_ring() -> KeyRing {
    let mut ring = KeyRing::new();
    ring.accept(Role::Client, client_key());
    ring
}

pub const SERVER: &str = "10.0.0.5:11411";

/// Listener 0: plain clients; 1: library clients. Batches leave at the end of each turn.
pub fn config() -> Config {
    let service = ServiceConfig {
        plain_listeners: vec![0],
        link_listeners: vec![1],
        keys: vec![helper_key()],
        client_keys: Some(client_ring()),
        policy: PolicyKind::Fixed { interval: core::time::Duration::ZERO, size_bytes: 0 },
        ..ServiceConfig::new("cache", SERVER.parse().expect("valid address"))
    };
    Config::new(vec![service])
}

/// A relay with one service, and its server.
pub struct Harness {
    pub relay: Relay,
    pub transport: RecordingTransport,
    pub now: Time,
    pub link: Conn,
    /// The server's end of `link`.
    pub server: ServerLink,
}

impl Harness {
    pub fn new(config: Config) -> Harness {
        Harness::with_server(config, Limits::default())
    }

    /// A relay whose link to a server with these limits is up.
    pub fn with_server(config: Config, limits: Limits) -> Harness {
        let mut count = 0_u8;
        let random = Box::new(move |bytes: &mut [u8]| {
            count = count.wrapping_add(1);
            bytes.fill(count);
        });
        let relay = Relay::new(config, random).expect("the configuration should be valid");
        let link = Conn { slot: 0, generation: 7 };
        let server = new_server(limits);
        let mut harness =
            Harness { relay, transport: RecordingTransport::default(), now: Time(1_000), link, server };
        harness.bring_link_up(limits);
        harness
    }

    /// Waits until the relay connects, and completes the link to a new server.
    pub fn bring_link_up(&mut self, limits: Limits) {
        while self.transport.connects.is_empty() {
            self.now = self.now.max(self.relay.poll_timeout().expect("an attempt to connect should be due"));
            self.relay.handle_timeout(self.now, &mut self.transport);
            self.relay.end_of_turn(self.now, &mut self.transport);
        }
        let (link, target) = self.transport.connects.remove(0);
        assert_eq!(target, SERVER.parse().expect("valid address"));
        self.link = link;
        self.server = new_server(limits);
        self.event(link, Event::Opened { peer: target, listener: None });
        let events = self.exchange();
        assert!(
            matches!(events[..], [Observed::Established(Role::Helper)]),
            "the link should be established with a helper: {events:?}"
        );
        assert_eq!(
            self.transport.listening.get(&0),
            Some(&true),
            "the relay should listen when a link is up"
        );
    }

    /// Handles one event in a turn of its own.
    pub fn event(&mut self, conn: Conn, event: Event<'_>) {
        self.relay.handle(self.now, conn, event, &mut self.transport);
        self.relay.end_of_turn(self.now, &mut self.transport);
    }

    pub fn data(&mut self, conn: Conn, bytes: &[u8]) {
        self.event(conn, Event::Data { end: 0, bytes });
    }

    /// Opens a client's connection.
    pub fn client(&mut self, listener: u16, peer: &str) -> Conn {
        let conn = self.transport.accept();
        let peer = peer.parse().expect("valid address");
        self.event(conn, Event::Opened { peer, listener: Some(listener) });
        conn
    }

    /// Advances the time, and handles each timeout of the relay when it is due.
    pub fn advance(&mut self, time: core::time::Duration) {
        let until = self.now + time;
        while let Some(at) = self.relay.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.relay.handle_timeout(self.now, &mut self.transport);
            self.relay.end_of_turn(self.now, &mut self.transport);
        }
        self.now = until;
    }

    /// Exchanges bytes between the relay and the server until neither has output. Returns the server's events.
    pub fn exchange(&mut self) -> Vec<Observed> {
        let mut observed = Vec::new();
        loop {
            let bytes = self.transport.take(self.link);
            let mut scratch = Scratch::new();
            let mut input = self.server.unseal(self.now, &bytes, &mut scratch);
            while let Some(event) =
                self.server.decompose(self.now, &mut input).expect("the relay should send valid frames")
            {
                observed.push(Observed::of(event));
            }
            let Some(batch) = self.server.flush(self.now) else {
                if bytes.is_empty() {
                    return observed;
                }
                continue;
            };
            self.data(self.link, batch.as_slice());
        }
    }
}

pub fn new_server(limits: Limits) -> ServerLink {
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, helper_key());
    let config =
        ServerConfig { ring, rules: AddressRules::default(), limits, encryption: Encryption::Preferred };
    let (peer, local) = ("10.0.0.2:40000", SERVER);
    let address = |text: &str| text.parse().expect("valid address");
    ServerLink::new(
        Arc::new(config),
        Time(0),
        address(peer),
        address(local),
        LinkRandomness::from_random([9; LinkRandomness::BYTES]),
    )
}

/// An owned copy of a server's event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    Established(Role),
    Connect(u32, SocketAddr),
    Data(u32, Vec<u8>),
    Finished(u32),
    Closed(u32, spillway_batch::CloseReason),
    Session(u32, Kind, SocketAddr),
    Control(u32, Control),
    Other,
}

impl Observed {
    fn of(event: ServerEvent<'_>) -> Observed {
        match event {
            ServerEvent::Established { role, .. } => Observed::Established(role),
            ServerEvent::Connect { id, client, .. } => Observed::Connect(id.0, client),
            ServerEvent::Data { id, bytes } => Observed::Data(id.0, bytes.to_vec()),
            ServerEvent::Finished { id } => Observed::Finished(id.0),
            ServerEvent::Closed { id, reason } => Observed::Closed(id.0, reason),
            ServerEvent::Session { id, kind, client, .. } => Observed::Session(id.0, kind, client),
            ServerEvent::Carried { id, bytes } => Observed::Data(id.0, bytes.to_vec()),
            ServerEvent::CarriedControl { id, control } => Observed::Control(id.0, control),
            ServerEvent::Drain { .. } | ServerEvent::Forbidden { .. } => Observed::Other,
        }
    }
}
