//! Tests that read like packet traces: one stack, scripted peers, virtual time.
//!
//! Every segment of the stack is checked against the rules that always hold: checksums, the peer's MSS, the application's
//! bytes, acknowledgements that only rise, a right edge that does not move left, the gate. A test adds one rule.

pub mod frame;
pub mod peer;
pub mod segment;

use std::collections::VecDeque;
use std::fmt::Write;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use spillway_tcp::isn::Key;
use spillway_tcp::{Counters, Listener, Settings, Stack, StackEvent};
use spillway_transport::{LostReason, Time, Transport};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::{checksum, ethernet, ipv4, tcp};
use spillway_wire::state::ConnectionState;

pub use frame::{PEER_IP, PEER_MAC, STACK_IP, STACK_MAC};
pub use peer::{PEER_CLOCK, Peer};
pub use segment::*;

/// Ports of the listeners without and with a gate.
pub const PLAIN: u16 = 80;
pub const GATED: u16 = 81;
/// Port of the first peer.
pub const PEER_PORT: u16 = 4000;

pub fn ms(many: u64) -> Duration {
    Duration::from_millis(many)
}

pub fn secs(many: u64) -> Duration {
    Duration::from_secs(many)
}

/// Windows of up to 65,535 bytes, so that window fields count bytes unless the peer scales them.
pub fn settings() -> Settings {
    let listener = |port, is_gated| Listener { address: SocketAddrV4::new(STACK_IP, port), is_gated };
    Settings {
        listeners: vec![listener(PLAIN, false), listener(GATED, true)],
        receive_window_max: 65_535,
        ..Settings::new(STACK_MAC, STACK_IP, 24, Key([7; 16]))
    }
}

pub struct Trace {
    pub stack: Stack,
    pub now: Time,
    pub peers: Vec<Peer>,
    current: usize,
    /// Frames that are not segments to one of the peers.
    pub others: VecDeque<Vec<u8>>,
    /// The last frame that the stack has sent, and the Ethernet address to which it sent its last segment.
    pub last_frame: Vec<u8>,
    pub last_segment_to: Mac,
    log: String,
}

impl Trace {
    /// A stack that listens, and one peer.
    pub fn new(change: impl FnOnce(&mut Settings)) -> Trace {
        let mut settings = settings();
        change(&mut settings);
        let now = Time::ZERO + secs(10);
        let listeners = settings.listeners.len() as u16;
        let mut stack = Stack::new(now, settings).expect("settings that can be");
        (0..listeners).for_each(|listener| stack.set_listening(listener, true));
        let peers = vec![Peer::new(PEER_PORT, PLAIN)];
        Trace {
            stack,
            now,
            peers,
            current: 0,
            others: VecDeque::new(),
            last_frame: vec![],
            last_segment_to: Mac::ZERO,
            log: String::new(),
        }
    }

    /// The usual beginning: established by a peer without options but MSS, with a window of 65,535 granted.
    pub fn open() -> Trace {
        Trace::opened_by(|_| {}, syn().mss(1460))
    }

    /// The same with SACK.
    pub fn open_sack() -> Trace {
        Trace::opened_by(|_| {}, syn().mss(1460).sack_ok(true))
    }

    /// The same with SACK and timestamps.
    pub fn open_stamps() -> Trace {
        Trace::opened_by(|_| {}, syn().mss(1460).sack_ok(true).stamp(PEER_CLOCK))
    }

    /// Established by a peer with this SYN.
    pub fn opened_by(change: impl FnOnce(&mut Settings), syn: Seg) -> Trace {
        let mut t = Trace::new(change);
        t.establish(syn);
        t.grant(65_535);
        t
    }

    /// Established at the gated listener; the gate is closed.
    pub fn open_gated(syn: Seg) -> Trace {
        let mut t = Trace::new(|_| {});
        t.peers[0].stack_port = GATED;
        t.peers[0].gate = Some(1);
        t.establish(syn);
        t.grant(65_535);
        t
    }

    /// The present peer opens a connection with this SYN.
    pub fn establish(&mut self, syn: Seg) {
        let window = syn.window.unwrap_or(u16::MAX);
        self.recv(syn);
        self.expect(syn_ack().ack(1));
        self.recv(ack(1).seq(1).window(window));
        self.opened();
    }

    /// Makes another peer, with a port of its own, the present one; adds it if it is new.
    pub fn at(&mut self, index: usize) -> &mut Trace {
        while self.peers.len() <= index {
            let many = self.peers.len();
            let mut peer = Peer::new(PEER_PORT + many as u16, PLAIN);
            peer.initial = (many as u32).wrapping_mul(0x9e37_79b9);
            self.peers.push(peer);
        }
        self.current = index;
        self
    }

    pub fn peer(&mut self) -> &mut Peer {
        &mut self.peers[self.current]
    }

    /// The first 16 segments of a connection are acknowledged at once: the present peer sends these, a byte each. Its next
    /// byte is 17.
    pub fn past_quick_acks(&mut self) {
        (1..17).for_each(|at| self.recv(many(at, 1)));
        self.forget();
    }

    /// Discards the segments and events of the present peer, and other frames.
    pub fn forget(&mut self) {
        self.peer().segments.clear();
        self.peer().events.clear();
        self.others.clear();
    }

    pub fn log(&self) -> &str {
        &self.log
    }

    fn milliseconds(&self) -> u32 {
        (self.now.since(Time::ZERO + secs(10)).as_millis()) as u32
    }

    /// The frame of a segment of the present peer, for tests that change it.
    pub fn frame_of(&mut self, seg: Seg) -> Vec<u8> {
        let milliseconds = self.milliseconds();
        self.peer().frame(&seg, milliseconds)
    }

    /// A segment arrives, alone in its turn.
    pub fn recv(&mut self, seg: Seg) {
        self.recv_all([seg]);
    }

    /// Segments arrive in one turn.
    pub fn recv_all(&mut self, segs: impl IntoIterator<Item = Seg>) {
        for seg in segs {
            self.note('>', &format!("{seg}"));
            let frame = self.frame_of(seg);
            self.handle(&frame);
        }
        self.transmit();
    }

    /// A frame arrives, alone in its turn.
    pub fn recv_frame(&mut self, frame: &[u8]) {
        self.note('>', &format!("a frame of {} bytes", frame.len()));
        self.handle(frame);
        self.transmit();
    }

    fn handle(&mut self, frame: &[u8]) {
        if let Some(delivery) = self.stack.handle_frame(self.now, frame) {
            let bytes = frame[delivery.range].to_vec();
            let event = StackEvent::Data { end: delivery.end, bytes };
            self.happened(delivery.conn, event);
        }
        self.poll_events();
    }

    fn poll_events(&mut self) {
        while let Some((conn, event)) = self.stack.poll_event() {
            self.happened(conn, event);
        }
    }

    fn happened(&mut self, conn: spillway_transport::Conn, event: StackEvent) {
        self.note('!', &format!("{event:?}"));
        let is_its = |peer: &Peer| match &event {
            StackEvent::Opened { peer: address, .. } => *address == SocketAddr::from((peer.ip, peer.port)),
            _ => peer.conn == Some(conn),
        };
        let Some(index) = self.peers.iter().position(is_its) else { return };
        let peer = &mut self.peers[index];
        if matches!(event, StackEvent::Opened { .. }) {
            peer.conn = Some(conn);
        }
        peer.hear(event);
    }

    /// Ends a turn: sends whatever the stack has to send.
    pub fn transmit(&mut self) {
        self.poll_events();
        let mut slot = vec![0; self.stack.frame_bytes_max()];
        while let Some(length) = self.stack.poll_transmit(self.now, &mut slot) {
            let frame = slot[..length].to_vec();
            self.sent(frame);
        }
    }

    fn sent(&mut self, frame: Vec<u8>) {
        self.last_frame.clone_from(&frame);
        let (ethernet, packet) = ethernet::Header::parse(&frame).expect("a frame");
        if ethernet.kind != ethernet::KIND_IPV4 {
            self.note('<', &format!("a frame of kind {:#x}", ethernet.kind));
            return self.others.push_back(frame);
        }
        let (ip, _, payload) = ipv4::Header::parse(packet).expect("a packet with the right checksum");
        assert_eq!(ip.source, STACK_IP);
        if ip.protocol != ipv4::PROTOCOL_TCP {
            self.note('<', &format!("a packet of protocol {}", ip.protocol));
            return self.others.push_back(frame);
        }
        let pseudo = checksum::pseudo_v4(ip.source, ip.target, ip.protocol, payload.len() as u32);
        let (header, _, payload) = tcp::Header::parse(payload, pseudo).expect("with the right checksum");
        let is_its = |peer: &Peer| peer.ip == ip.target && peer.port == header.target;
        let Some(index) = self.peers.iter().position(is_its) else {
            return self.others.push_back(frame);
        };
        self.last_segment_to = ethernet.target;
        assert!(ethernet.target == PEER_MAC || !self.peers[index].is_trusted);
        match self.peers[index].take(&header, payload, &frame) {
            Ok(seg) => {
                self.note('<', &format!("{seg}"));
                self.peers[index].segments.push_back(seg);
            }
            Err(what) => self.fail(&format!("{what}: {header:?}")),
        }
    }

    fn note(&mut self, direction: char, what: &str) {
        let at = self.now.since(Time::ZERO + secs(10)).as_secs_f64();
        let peer = if self.peers.len() > 1 { format!(" [{}]", self.current) } else { String::new() };
        writeln!(self.log, "{at:>10.4}{peer} {direction} {what}").expect("a string");
    }

    /// Fails the test and prints the trace.
    #[track_caller]
    pub fn fail(&self, what: &str) -> ! {
        panic!("{what}\nthe trace so far (> to the stack, < from it, ! to the application):\n{}", self.log)
    }

    /// The stack's next segment is this one.
    #[track_caller]
    pub fn expect(&mut self, wanted: Seg) {
        match self.peer().segments.pop_front() {
            Some(seg) if wanted.agrees_with(&seg) => {}
            Some(seg) => self.fail(&format!("wanted: {wanted}\n   was: {seg}")),
            None => self.fail(&format!("wanted: {wanted}\n   was: nothing")),
        }
    }

    /// The stack's next segment, whatever it is.
    #[track_caller]
    pub fn next(&mut self) -> Seg {
        match self.peer().segments.pop_front() {
            Some(seg) => seg,
            None => self.fail("the stack has sent nothing"),
        }
    }

    /// The last segment that the stack has sent; discards those before it.
    #[track_caller]
    pub fn last(&mut self) -> Seg {
        let last = self.peer().segments.pop_back();
        self.peer().segments.clear();
        match last {
            Some(seg) => seg,
            None => self.fail("the stack has sent nothing"),
        }
    }

    /// The stack has sent nothing more to the present peer.
    #[track_caller]
    pub fn quiet(&mut self) {
        if let Some(seg) = self.peer().segments.front().cloned() {
            self.fail(&format!("wanted: nothing\n   was: {seg}"));
        }
    }

    /// Nothing was sent, and nothing has happened.
    #[track_caller]
    pub fn nothing(&mut self) {
        self.quiet();
        self.nothing_happens();
    }

    /// The stack has sent nothing more, and sends nothing for a day.
    #[track_caller]
    pub fn nothing_sent_later(&mut self) {
        self.quiet();
        self.pass(secs(86_400));
        self.quiet();
    }

    #[track_caller]
    pub fn nothing_happens(&mut self) {
        if let Some(event) = self.peer().events.front().cloned() {
            self.fail(&format!("wanted: nothing\n   was: {event:?}"));
        }
    }

    #[track_caller]
    pub fn event(&mut self, wanted: StackEvent) {
        match self.peer().events.pop_front() {
            Some(event) if event == wanted => {}
            event => self.fail(&format!("wanted: {wanted:?}\n   was: {event:?}")),
        }
    }

    #[track_caller]
    pub fn opened(&mut self) {
        match self.peer().events.pop_front() {
            Some(StackEvent::Opened { .. }) => {}
            event => self.fail(&format!("wanted: that it is established\n   was: {event:?}")),
        }
    }

    #[track_caller]
    pub fn hears(&mut self, bytes: impl AsRef<[u8]>) {
        match self.peer().events.pop_front() {
            Some(StackEvent::Data { bytes: heard, .. }) if heard == bytes.as_ref() => {}
            event => self.fail(&format!("wanted: {:?}\n   was: {event:?}", bytes.as_ref().escape_ascii())),
        }
    }

    #[track_caller]
    pub fn finished(&mut self) {
        self.event(StackEvent::Finished);
    }

    #[track_caller]
    pub fn lost(&mut self, reason: LostReason) {
        self.event(StackEvent::Lost(reason));
    }

    /// Advances the time, and handles timeouts when they are due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..100_000 {
            let Some(at) = self.stack.poll_timeout().filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            self.stack.handle_timeout(self.now);
            self.transmit();
        }
        self.fail("the stack wants to be called for ever")
    }

    /// Advances the time until the stack sends something, for a day at most; returns how long that took.
    #[track_caller]
    pub fn until_sent(&mut self) -> Duration {
        let begun = self.now;
        while self.peer().segments.is_empty() {
            let next = self.stack.poll_timeout();
            let Some(at) = next.filter(|at| at.since(begun) < secs(86_400)) else {
                self.fail("the stack will never send anything")
            };
            self.now = self.now.max(at);
            self.stack.handle_timeout(self.now);
            self.transmit();
        }
        self.now.since(begun)
    }

    pub fn conn(&self) -> spillway_transport::Conn {
        self.peers[self.current].conn.unwrap_or_else(|| self.fail("there is no connection"))
    }

    /// The stack learns the peers' Ethernet address.
    pub fn introduce(&mut self) {
        let known = frame::arp(spillway_wire::packet::arp::Operation::Request, (PEER_MAC, PEER_IP), STACK_IP);
        self.handle(&known);
        self.transmit();
        self.others.clear();
    }

    /// The application connects to the present peer, whose Ethernet address is known.
    pub fn connect(&mut self) {
        self.note('!', "connect");
        self.introduce();
        let (ip, port) = (self.peer().ip, self.peer().port);
        let conn = self.stack.connect(self.now, SocketAddr::from((ip, port))).expect("room for it");
        self.peer().conn = Some(conn);
        self.transmit();
    }

    pub fn grant(&mut self, bytes: u32) {
        self.note('!', &format!("grant {bytes}"));
        self.stack.grant(self.conn(), bytes);
        self.transmit();
    }

    pub fn release(&mut self, through: u64) {
        self.note('!', &format!("release {through}"));
        let peer = self.peer();
        peer.gate = peer.gate.map(|gate| gate.max(through as i64 + 1));
        self.stack.release(self.conn(), through);
        self.transmit();
    }

    /// The application sends `count` more bytes of its pattern; all must be taken.
    pub fn say(&mut self, count: usize) {
        let from = self.peer().said.len() as i64 + 1;
        self.send(pattern(from, count));
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.note('!', &format!("send {}", bytes.len()));
        self.peer().said.extend_from_slice(bytes);
        let taken = self.stack.send(self.conn(), bytes);
        assert_eq!(taken, bytes.len(), "there is room for all of it");
        self.transmit();
    }

    pub fn finish(&mut self) {
        self.note('!', "finish");
        self.stack.finish(self.conn());
        self.transmit();
    }

    pub fn abort(&mut self) {
        self.note('!', "abort");
        self.stack.abort(self.conn());
        self.transmit();
    }

    /// Exports the connection and imports it again, as bytes; `change` may alter its state.
    pub fn moves(&mut self, change: impl FnOnce(&mut ConnectionState)) {
        self.introduce();
        let mut state = self.stack.export(self.now, self.conn()).expect("one that can move");
        change(&mut state);
        self.comes(&state);
    }

    /// The same, if the connection can be exported now.
    pub fn moves_if_it_can(&mut self) {
        if let Ok(state) = self.stack.export(self.now, self.conn()) {
            self.comes(&state);
        }
    }

    fn comes(&mut self, state: &ConnectionState) {
        self.note('!', "moves");
        let mut bytes = Vec::new();
        state.emit(&mut bytes);
        let state = ConnectionState::parse(&bytes).expect("what was written is read");
        match self.stack.import(self.now, &state) {
            Ok(moved) => self.peer().conn = Some(moved),
            Err(error) => self.fail(&format!("{error}: {state:?}")),
        }
        self.transmit();
    }

    pub fn watch(&mut self) {
        self.stack.watch_acknowledged(self.conn(), true);
    }

    pub fn counters(&self) -> Counters {
        *self.stack.counters()
    }
}
