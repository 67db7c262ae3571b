//! A transport that records, a server's end that answers, and the relay between them: all bytes by hand.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use spillway_auth::{Key, KeyRing};
use spillway_batch::{
    AddressRules, Control, Encryption, Fresh, Kind, Limits, PolicyKind, Role, Scratch, ServerConfig,
    ServerEvent, ServerLink,
};
use spillway_relay::{Config, Relay, ServiceConfig};
use spillway_transport::{Application, Chunk, Conn, Event, Full, Time, Transport};

/// What the relay did with one connection.
#[derive(Debug, Default)]
pub struct Line {
    pub sent: Vec<u8>,
    pub room: usize,
    pub granted: u64,
    pub finished: bool,
    pub aborted: bool,
    pub watched: bool,
    /// What was sent stays with the transport: its host takes nothing.
    pub stuck: bool,
    /// The relay wants to hear when some of what is queued has gone.
    pub wants_room: bool,
    /// How far its gate is open.
    pub released: u64,
}

#[derive(Debug, Default)]
pub struct Wires {
    pub lines: BTreeMap<Conn, Line>,
    pub connects: Vec<(Conn, SocketAddr)>,
    pub listening: BTreeMap<u16, bool>,
    next: u32,
}

impl Wires {
    pub fn accept(&mut self) -> Conn {
        let conn = Conn { slot: self.next, generation: 7 };
        self.next += 1;
        self.lines.insert(conn, Line { room: 1 << 20, ..Line::default() });
        conn
    }

    pub fn line(&mut self, conn: Conn) -> &mut Line {
        self.lines.get_mut(&conn).expect("a connection of this test")
    }

    /// Takes what was sent; its room is free again.
    pub fn take(&mut self, conn: Conn) -> Vec<u8> {
        let line = self.line(conn);
        line.room += line.sent.len();
        std::mem::take(&mut line.sent)
    }
}

impl Transport for Wires {
    fn connect(&mut self, _: Time, target: SocketAddr) -> Result<Conn, Full> {
        let conn = self.accept();
        self.connects.push((conn, target));
        Ok(conn)
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        self.listening.insert(listener, open);
    }

    fn room(&self, conn: Conn) -> usize {
        self.lines[&conn].room
    }

    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let line = self.line(conn);
        assert!(!line.aborted && !line.finished, "send after the end");
        let taken = bytes.len().min(line.room);
        line.room -= taken;
        line.sent.extend_from_slice(&bytes[..taken]);
        taken
    }

    fn want_room(&mut self, conn: Conn) {
        self.line(conn).wants_room = true;
    }

    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk> {
        if self.room(conn) < chunk.len() {
            return Err(chunk);
        }
        self.send(conn, chunk.as_slice());
        Ok(())
    }

    fn spent_chunk(&mut self) -> Option<Chunk> {
        None
    }

    fn queued(&self, conn: Conn) -> usize {
        let line = &self.lines[&conn];
        if line.stuck { line.sent.len() } else { 0 }
    }

    fn held_by_all(&self) -> usize {
        self.lines.values().filter(|line| line.stuck && !line.aborted).map(|line| line.sent.len()).sum()
    }

    fn grant(&mut self, conn: Conn, bytes: u32) {
        self.line(conn).granted += u64::from(bytes);
    }

    fn release(&mut self, conn: Conn, through: u64) {
        let line = self.line(conn);
        line.released = line.released.max(through);
    }

    fn watch_acknowledged(&mut self, conn: Conn, on: bool) {
        self.line(conn).watched = on;
    }

    fn finish(&mut self, conn: Conn) {
        self.line(conn).finished = true;
    }

    fn abort(&mut self, conn: Conn) {
        self.line(conn).aborted = true;
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

/// Listener 0: plain clients; 1: library clients. Batches go at each turn's end.
pub fn config() -> Config {
    let service = ServiceConfig {
        raw_listeners: vec![0],
        link_listeners: vec![1],
        keys: vec![helper_key()],
        client_keys: Some(client_ring()),
        policy: PolicyKind::Fixed { delay: core::time::Duration::ZERO, bytes: 0 },
        ..ServiceConfig::new("cache", SERVER.parse().expect("an address"))
    };
    Config::new(vec![service])
}

pub struct World {
    pub relay: Relay,
    pub wires: Wires,
    pub now: Time,
    /// The relay's link, and its other end.
    pub link: Conn,
    pub server: ServerLink,
}

impl World {
    pub fn new(config: Config) -> World {
        World::with_server(config, Limits::default())
    }

    /// A world whose link is up.
    pub fn with_server(config: Config, limits: Limits) -> World {
        let mut count = 0_u8;
        let random = Box::new(move |bytes: &mut [u8]| {
            count = count.wrapping_add(1);
            bytes.fill(count);
        });
        let relay = Relay::new(config, random).expect("a valid configuration");
        let link = Conn { slot: 0, generation: 7 };
        let server = new_server(limits);
        let mut world = World { relay, wires: Wires::default(), now: Time(1_000), link, server };
        world.link_comes_up(limits);
        world
    }

    /// Lets the relay connect, and a new server answer.
    pub fn link_comes_up(&mut self, limits: Limits) {
        while self.wires.connects.is_empty() {
            self.now = self.now.max(self.relay.poll_timeout().expect("it wants to connect"));
            self.relay.handle_timeout(self.now, &mut self.wires);
            self.relay.end_of_turn(self.now, &mut self.wires);
        }
        let (link, target) = self.wires.connects.remove(0);
        assert_eq!(target, SERVER.parse().expect("an address"));
        self.link = link;
        self.server = new_server(limits);
        self.event(link, Event::Opened { peer: target, listener: None });
        let events = self.exchange();
        assert!(matches!(events[..], [Heard::Established(Role::Helper)]), "{events:?}");
        assert_eq!(self.wires.listening.get(&0), Some(&true), "a link is up: listening");
    }

    /// One event in a turn of its own.
    pub fn event(&mut self, conn: Conn, event: Event<'_>) {
        self.relay.handle(self.now, conn, event, &mut self.wires);
        self.relay.end_of_turn(self.now, &mut self.wires);
    }

    pub fn data(&mut self, conn: Conn, bytes: &[u8]) {
        self.event(conn, Event::Data { end: 0, bytes });
    }

    /// A client comes in.
    pub fn client(&mut self, listener: u16, peer: &str) -> Conn {
        let conn = self.wires.accept();
        let peer = peer.parse().expect("an address");
        self.event(conn, Event::Opened { peer, listener: Some(listener) });
        conn
    }

    /// Time passes, and the relay's timeouts are handled as they come.
    pub fn pass(&mut self, time: core::time::Duration) {
        let until = self.now + time;
        while let Some(at) = self.relay.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.relay.handle_timeout(self.now, &mut self.wires);
            self.relay.end_of_turn(self.now, &mut self.wires);
        }
        self.now = until;
    }

    /// What was sent over the link reaches the server, and its answers the relay, until nobody has more to say.
    pub fn exchange(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        loop {
            let bytes = self.wires.take(self.link);
            let mut scratch = Scratch::new();
            let mut input = self.server.unseal(self.now, &bytes, &mut scratch);
            while let Some(event) = self.server.decompose(self.now, &mut input).expect("a healthy link") {
                heard.push(Heard::of(event));
            }
            let Some(batch) = self.server.flush(self.now) else {
                if bytes.is_empty() {
                    return heard;
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
    let address = |text: &str| text.parse().expect("an address");
    ServerLink::new(
        Arc::new(config),
        Time(0),
        address(peer),
        address(local),
        Fresh::from_random([9; Fresh::BYTES]),
    )
}

/// A server's event, with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Established(Role),
    Connect(u32, SocketAddr),
    Data(u32, Vec<u8>),
    Finished(u32),
    Closed(u32, spillway_batch::CloseReason),
    Session(u32, Kind, SocketAddr),
    Control(u32, Control),
    Other,
}

impl Heard {
    fn of(event: ServerEvent<'_>) -> Heard {
        match event {
            ServerEvent::Established { role, .. } => Heard::Established(role),
            ServerEvent::Connect { id, client, .. } => Heard::Connect(id.0, client),
            ServerEvent::Data { id, bytes } => Heard::Data(id.0, bytes.to_vec()),
            ServerEvent::Finished { id } => Heard::Finished(id.0),
            ServerEvent::Closed { id, reason } => Heard::Closed(id.0, reason),
            ServerEvent::Session { id, kind, client, .. } => Heard::Session(id.0, kind, client),
            ServerEvent::Carried { id, bytes } => Heard::Data(id.0, bytes.to_vec()),
            ServerEvent::CarriedControl { id, control } => Heard::Control(id.0, control),
            ServerEvent::Drain { .. } | ServerEvent::Forbidden { .. } => Heard::Other,
        }
    }
}
