//! Tests that read like packet traces: one stack, scripted peers, virtual time.
//!
//! [`Peer`] checks each segment of the stack: its size (by the peer's MSS), its bytes (the application's),
//! its acknowledgement (never lower than before, nor beyond the gate), its right edge (never further left).

pub mod frame;
pub mod peer;
pub mod segment;
mod setup;

use std::collections::VecDeque;
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_tcp::{Counters, Settings, Stack, StackEvent};
use spillway_transport::{LostReason, Time, Transport};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::{ethernet, ipv4, tcp};
use spillway_wire::state::ConnectionState;

pub use frame::{PEER_IP, PEER_IP6, PEER_MAC, STACK_IP, STACK_IP6, STACK_MAC};
pub use peer::{PEER_CLOCK, Peer};
pub use segment::*;
pub use setup::*;

pub struct Trace {
    pub stack: Stack,
    pub now: Time,
    pub peers: Vec<Peer>,
    current: usize,
    /// Frames of the stack that are not segments to one of the peers.
    pub other_frames: VecDeque<Vec<u8>>,
    /// The stack's last frame of any kind, and the Ethernet address to which its last segment went.
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
        let mut stack = Stack::new(now, settings).expect("valid settings");
        (0..listeners).for_each(|listener| stack.set_listening(listener, true));
        let peers = vec![Peer::new(PEER_PORT, UNGATED_PORT)];
        Trace {
            stack,
            now,
            peers,
            current: 0,
            other_frames: VecDeque::new(),
            last_frame: vec![],
            last_segment_to: Mac::ZERO,
            log: String::new(),
        }
    }

    /// A connection that a peer has established with the MSS as its only option, and 65,535 granted bytes.
    pub fn open() -> Trace {
        Trace::open_with(|_| {}, syn().mss(1460))
    }

    /// [`open`](Self::open) with SACK.
    pub fn open_sack() -> Trace {
        Trace::open_with(|_| {}, syn().mss(1460).sack_ok(true))
    }

    /// [`open`](Self::open) with SACK and timestamps.
    pub fn open_timestamps() -> Trace {
        Trace::open_with(|_| {}, syn().mss(1460).sack_ok(true).timestamp(PEER_CLOCK))
    }

    /// A connection established by a peer with this SYN, to a stack with changed settings.
    pub fn open_with(change: impl FnOnce(&mut Settings), syn: Seg) -> Trace {
        let mut t = Trace::new(change);
        t.establish(syn);
        t.grant(65_535);
        t
    }

    /// A connection established at the gated listener; its gate is closed.
    pub fn open_gated(syn: Seg) -> Trace {
        let mut t = Trace::new(|_| {});
        t.peers[0].stack_port = GATED_PORT;
        t.peers[0].gate = Some(1);
        t.establish(syn);
        t.grant(65_535);
        t
    }

    /// The selected peer opens a connection with this SYN.
    pub fn establish(&mut self, syn: Seg) {
        let window = syn.window.unwrap_or(u16::MAX);
        self.recv(syn);
        self.expect(syn_ack().ack(1));
        self.recv(ack(1).seq(1).window(window));
        self.expect_opened();
    }

    /// Selects the peer that sends and receives from now on. A new peer gets a port of its own.
    pub fn select_peer(&mut self, index: usize) -> &mut Trace {
        while self.peers.len() <= index {
            let number = self.peers.len();
            let mut peer = Peer::new(PEER_PORT + number as u16, UNGATED_PORT);
            peer.initial = (number as u32).wrapping_mul(0x9e37_79b9);
            peer.ip = self.peers[0].ip;
            self.peers.push(peer);
        }
        self.current = index;
        self
    }

    pub fn peer(&mut self) -> &mut Peer {
        &mut self.peers[self.current]
    }

    /// The selected peer sends 16 segments of a byte each, which the stack acknowledges at once; later segments are
    /// acknowledged after a delay. The peer's next byte is 17.
    pub fn use_up_quick_acks(&mut self) {
        (1..17).for_each(|at| self.recv(data(at, 1)));
        self.discard();
    }

    /// Discards the segments and events of the selected peer, and other frames.
    pub fn discard(&mut self) {
        self.peer().segments.clear();
        self.peer().events.clear();
        self.other_frames.clear();
    }

    pub fn log(&self) -> &str {
        &self.log
    }

    fn milliseconds(&self) -> u32 {
        (self.now.since(Time::ZERO + secs(10)).as_millis()) as u32
    }

    /// The frame of a segment of the selected peer, for tests that change the frame.
    pub fn frame_of(&mut self, seg: Seg) -> Vec<u8> {
        let milliseconds = self.milliseconds();
        self.peer().build_frame(&seg, milliseconds)
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
            self.on_event(delivery.conn, event);
        }
        self.poll_events();
    }

    fn poll_events(&mut self) {
        while let Some((conn, event)) = self.stack.poll_event() {
            self.on_event(conn, event);
        }
    }

    fn on_event(&mut self, conn: spillway_transport::Conn, event: StackEvent) {
        self.note('!', &format!("{event:?}"));
        let belongs = |peer: &Peer| match &event {
            StackEvent::Opened { peer: address, .. } => *address == SocketAddr::from((peer.ip, peer.port)),
            _ => peer.conn == Some(conn),
        };
        let Some(index) = self.peers.iter().position(belongs) else { return };
        let peer = &mut self.peers[index];
        if matches!(event, StackEvent::Opened { .. }) {
            peer.conn = Some(conn);
        }
        peer.on_event(event);
    }

    /// Ends a turn: the stack sends all its frames, and next hops are resolved.
    pub fn transmit(&mut self) {
        self.poll_events();
        let mut slot = vec![0; self.stack.frame_bytes_max()];
        loop {
            while let Some(length) = self.stack.poll_transmit(self.now, &mut slot) {
                let frame = slot[..length].to_vec();
                self.on_frame(frame);
            }
            let Some(target) = self.stack.poll_next_hop_request() else { return };
            self.stack.set_next_hop(self.now, target, Some(PEER_MAC));
        }
    }

    fn on_frame(&mut self, frame: Vec<u8>) {
        self.last_frame.clone_from(&frame);
        let (ethernet, packet) = ethernet::Header::parse(&frame).expect("a valid Ethernet header");
        let Some((target, protocol, payload, pseudo)) = frame::sent_packet(ethernet.kind, packet) else {
            self.note('<', &format!("a frame of kind {:#x}", ethernet.kind));
            return self.other_frames.push_back(frame);
        };
        if protocol != ipv4::PROTOCOL_TCP {
            self.note('<', &format!("a packet of protocol {protocol}"));
            return self.other_frames.push_back(frame);
        }
        let (header, _, payload) = tcp::Header::parse(payload, pseudo).expect("a valid segment");
        let belongs = |peer: &Peer| peer.ip == target && peer.port == header.target;
        let Some(index) = self.peers.iter().position(belongs) else {
            return self.other_frames.push_back(frame);
        };
        self.last_segment_to = ethernet.target;
        assert!(
            ethernet.target == PEER_MAC || !self.peers[index].is_checked,
            "the frame should go to the peer"
        );
        match self.peers[index].take(&header, payload, &frame) {
            Ok(seg) => {
                self.note('<', &format!("{seg}"));
                self.peers[index].segments.push_back(seg);
            }
            Err(violation) => self.fail(&format!("{violation}: {header:?}")),
        }
    }

    fn note(&mut self, direction: char, text: &str) {
        let at = self.now.since(Time::ZERO + secs(10)).as_secs_f64();
        let peer = if self.peers.len() > 1 { format!(" [{}]", self.current) } else { String::new() };
        writeln!(self.log, "{at:>10.4}{peer} {direction} {text}").unwrap();
    }

    /// Fails the test and prints the trace.
    #[track_caller]
    pub fn fail(&self, text: &str) -> ! {
        panic!("{text}\nthe trace so far (> to the stack, < from it, ! to the application):\n{}", self.log)
    }

    /// Checks that the stack's next segment agrees with this one.
    #[track_caller]
    pub fn expect(&mut self, expected: Seg) {
        match self.peer().segments.pop_front() {
            Some(seg) if expected.agrees_with(&seg) => {}
            Some(seg) => self.fail(&format!("expected: {expected}\n     sent: {seg}")),
            None => self.fail(&format!("expected: {expected}\n     sent: nothing")),
        }
    }

    /// Removes and returns the stack's next segment.
    #[track_caller]
    pub fn next(&mut self) -> Seg {
        match self.peer().segments.pop_front() {
            Some(seg) => seg,
            None => self.fail("the stack has sent nothing"),
        }
    }

    /// Discards the segments that the stack has sent to the selected peer: at least one.
    #[track_caller]
    pub fn discard_segments(&mut self) {
        self.take_last();
    }

    /// Returns the last segment that the stack has sent, and discards those before it.
    #[track_caller]
    pub fn take_last(&mut self) -> Seg {
        let last = self.peer().segments.pop_back();
        self.peer().segments.clear();
        match last {
            Some(seg) => seg,
            None => self.fail("the stack has sent nothing"),
        }
    }

    /// Checks that the stack has sent no further segment to the selected peer.
    #[track_caller]
    pub fn expect_nothing_sent(&mut self) {
        if let Some(seg) = self.peer().segments.front().cloned() {
            self.fail(&format!("expected: nothing\n     sent: {seg}"));
        }
    }

    /// Checks that there is no further segment to the selected peer, and no further event of its connection.
    #[track_caller]
    pub fn expect_nothing(&mut self) {
        self.expect_nothing_sent();
        self.expect_no_event();
    }

    /// Checks that the stack has sent no further segment, and sends none for a day.
    #[track_caller]
    pub fn expect_nothing_sent_later(&mut self) {
        self.expect_nothing_sent();
        self.advance(secs(86_400));
        self.expect_nothing_sent();
    }

    #[track_caller]
    pub fn expect_no_event(&mut self) {
        if let Some(event) = self.peer().events.front().cloned() {
            self.fail(&format!("expected: no event\n     was: {event:?}"));
        }
    }

    #[track_caller]
    pub fn expect_event(&mut self, expected: StackEvent) {
        match self.peer().events.pop_front() {
            Some(event) if event == expected => {}
            event => self.fail(&format!("expected: {expected:?}\n     was: {event:?}")),
        }
    }

    #[track_caller]
    pub fn expect_opened(&mut self) {
        match self.peer().events.pop_front() {
            Some(StackEvent::Opened { .. }) => {}
            event => self.fail(&format!("expected: Opened\n     was: {event:?}")),
        }
    }

    #[track_caller]
    pub fn expect_data(&mut self, bytes: impl AsRef<[u8]>) {
        match self.peer().events.pop_front() {
            Some(StackEvent::Data { bytes: received, .. }) if received == bytes.as_ref() => {}
            event => {
                self.fail(&format!("expected: {:?}\n     was: {event:?}", bytes.as_ref().escape_ascii()))
            }
        }
    }

    #[track_caller]
    pub fn expect_finished(&mut self) {
        self.expect_event(StackEvent::Finished);
    }

    #[track_caller]
    pub fn expect_lost(&mut self, reason: LostReason) {
        self.expect_event(StackEvent::Lost(reason));
    }

    /// Advances the time, and handles timeouts when they are due.
    pub fn advance(&mut self, time: Duration) {
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
        self.fail("the stack should not be due without end")
    }

    /// Advances the time until the stack sends something, for a day at most. Returns the time that passed.
    #[track_caller]
    pub fn until_sent(&mut self) -> Duration {
        let begun = self.now;
        while self.peer().segments.is_empty() {
            let next = self.stack.poll_timeout();
            let Some(at) = next.filter(|at| at.since(begun) < secs(86_400)) else {
                self.fail("the stack should send within a day")
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

    /// Announces the peers' Ethernet address to the stack: over IPv4 by an ARP request; over IPv6 by a
    /// connection attempt, for which the stack requests the address from its driver.
    pub fn announce_mac(&mut self) {
        if self.peer().ip.is_ipv6() {
            let target = SocketAddr::from((self.peer().ip, 9));
            let conn = self.stack.connect(self.now, target).expect("room for a connection");
            self.transmit();
            self.stack.abort(conn);
            self.transmit();
            return self.other_frames.clear();
        }
        let request =
            frame::arp(spillway_wire::packet::arp::Operation::Request, (PEER_MAC, PEER_IP), STACK_IP);
        self.handle(&request);
        self.transmit();
        self.other_frames.clear();
    }

    /// The application connects to the selected peer, whose Ethernet address is known.
    pub fn connect(&mut self) {
        self.note('!', "connect");
        if self.peer().ip.is_ipv4() {
            self.announce_mac();
        }
        let (ip, port) = (self.peer().ip, self.peer().port);
        let conn = self.stack.connect(self.now, SocketAddr::from((ip, port))).expect("room for a connection");
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

    /// The application sends `count` more bytes of its [`pattern`]; the stack must accept all of them.
    pub fn send_pattern(&mut self, count: usize) {
        let from = self.peer().sent.len() as i64 + 1;
        self.send(pattern(from, count));
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.note('!', &format!("send {}", bytes.len()));
        self.peer().sent.extend_from_slice(bytes);
        let accepted = self.stack.send(self.conn(), bytes);
        assert_eq!(accepted, bytes.len(), "the send buffer should have room for all bytes");
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

    /// Exports the connection, changes its state, encodes and decodes the state, and imports it again.
    pub fn export_and_import(&mut self, change: impl FnOnce(&mut ConnectionState)) {
        self.announce_mac();
        let mut state = self.stack.export(self.now, self.conn()).expect("an established connection");
        change(&mut state);
        self.import_state(&state);
    }

    /// [`export_and_import`](Self::export_and_import), if the connection can be exported now.
    pub fn try_export_and_import(&mut self) {
        if let Ok(state) = self.stack.export(self.now, self.conn()) {
            self.import_state(&state);
        }
    }

    fn import_state(&mut self, state: &ConnectionState) {
        self.note('!', "import");
        let mut bytes = Vec::new();
        state.emit(&mut bytes);
        let state = ConnectionState::parse(&bytes).expect("a valid encoded state");
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
