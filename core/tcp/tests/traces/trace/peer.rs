//! A scripted peer: the initial numbers for relative ones in traces, and the checks of all segments to it.

use std::collections::VecDeque;
use std::net::IpAddr;

use spillway_tcp::StackEvent;
use spillway_transport::Conn;
use spillway_wire::packet::tcp::{Flags, Header, Options, SackBlocks, Timestamps};

use super::PEER;
use super::frame::{self, TCP_AT, TCP_AT6};
use super::segment::Seg;

/// The peer's first timestamp.
pub const PEER_CLOCK: u32 = 1000;

pub struct Peer {
    pub ip: IpAddr,
    pub port: u16,
    pub stack_port: u16,
    pub initial: u32,
    stack_initial: Option<u32>,
    pub conn: Option<Conn>,
    /// The next sequence number of this peer, and of the stack.
    pub nxt: i64,
    pub stack_nxt: i64,
    /// Whether both SYNs had the timestamps option.
    pub has_timestamps: bool,
    offers_timestamps: bool,
    clock: u32,
    pub mss: Option<u16>,
    scales: [Option<u8>; 2],
    stack_clock_first: Option<u32>,
    stack_clock: u32,
    /// The stack's last acknowledgement number, and the right edge of its window.
    acknowledged: i64,
    right_edge: i64,
    /// Segments for the peer and events for the application that the test has not checked yet.
    pub segments: VecDeque<Seg>,
    pub events: VecDeque<StackEvent>,
    /// Bytes that the application has received from this peer, and those that it has sent.
    pub received: Vec<u8>,
    pub sent: Vec<u8>,
    /// Number of bytes that the application received before those in `received`.
    pub received_before: u64,
    /// The highest number that the stack may acknowledge, if the connection has a gate.
    pub gate: Option<i64>,
    /// Whether the stack's segments are checked. Tests that forge frames switch this off.
    pub is_checked: bool,
}

impl Peer {
    pub fn new(port: u16, stack_port: u16) -> Peer {
        Peer {
            ip: PEER,
            port,
            stack_port,
            initial: 0xffff_ff00, // wraps soon
            stack_initial: None,
            conn: None,
            nxt: 0,
            stack_nxt: 0,
            has_timestamps: false,
            offers_timestamps: false,
            clock: PEER_CLOCK,
            mss: None,
            scales: [None; 2],
            stack_clock_first: None,
            stack_clock: 0,
            acknowledged: i64::MIN,
            right_edge: i64::MIN,
            segments: VecDeque::new(),
            events: VecDeque::new(),
            received: Vec::new(),
            sent: Vec::new(),
            received_before: 0,
            gate: None,
            is_checked: true,
        }
    }

    /// The stack's initial sequence number; 0 before its SYN.
    pub fn stack_initial(&self) -> u32 {
        self.stack_initial.unwrap_or(0)
    }

    /// The stack's last timestamp.
    pub fn stack_clock(&self) -> u32 {
        self.stack_clock
    }

    /// The frame of a segment of this peer; fields that the test has not set are filled in.
    pub fn build_frame(&mut self, seg: &Seg, milliseconds: u32) -> Vec<u8> {
        let low = |initial: u32, number: i64| initial.wrapping_add(number as u32);
        let flags = seg.flags.unwrap_or(Flags::ACK);
        let payload = seg.payload.clone().unwrap_or_default();
        let seq = seg.seq.unwrap_or(self.nxt);
        let has_ack = flags.contains(Flags::ACK);
        let acked = if has_ack { low(self.stack_initial(), seg.ack.unwrap_or(self.stack_nxt)) } else { 0 };
        let timestamp = seg
            .timestamp
            .unwrap_or_else(|| self.has_timestamps.then_some(self.clock.wrapping_add(milliseconds)));
        let echo = seg.echo.map(|echo| self.stack_clock_first.unwrap_or(0).wrapping_add(echo));
        let echo = echo.unwrap_or(if has_ack { self.stack_clock } else { 0 });
        let mut sack = SackBlocks::default();
        for (from, to) in seg.sack.iter().flatten() {
            sack.push(low(self.stack_initial(), *from), low(self.stack_initial(), *to));
        }
        let options = Options {
            mss: seg.mss.flatten(),
            window_scale: seg.scale.flatten(),
            sack_permitted: seg.sack_permitted.unwrap_or(false),
            timestamps: timestamp.map(|value| Timestamps { value, echo }),
            sack,
        };
        let options = seg.raw_options.as_deref().map_or(options, Options::parse);
        if flags.contains(Flags::SYN) {
            self.clock = timestamp.map_or(PEER_CLOCK, |timestamp| timestamp.wrapping_sub(milliseconds));
            (self.offers_timestamps, self.mss) =
                (options.timestamps.is_some(), options.mss.filter(|mss| *mss > 0));
            self.scales[0] = options.window_scale;
        }
        let header = Header {
            source: self.port,
            target: self.stack_port,
            seq: low(self.initial, seq),
            ack: acked,
            flags: if seg.is_pushed == Some(true) { flags | Flags::PSH } else { flags },
            window: seg.window.unwrap_or(u16::MAX),
            urgent: seg.urgent.unwrap_or(0),
            options,
        };
        let controls = i64::from(flags.contains(Flags::SYN)) + i64::from(flags.contains(Flags::FIN));
        if !flags.contains(Flags::RST) {
            self.nxt = self.nxt.max(seq + payload.len() as i64 + controls);
        }
        frame::segment(self.ip, &header, &payload, seg.raw_options.as_deref())
    }

    /// Receives a segment of the stack. Returns it with relative numbers, or the rule that was broken.
    pub fn take(&mut self, header: &Header, payload: &[u8], frame: &[u8]) -> Result<Seg, String> {
        let has = |flag| header.flags.contains(flag);
        if has(Flags::SYN) {
            let initial = *self.stack_initial.get_or_insert(header.seq);
            if initial != header.seq {
                // The SYN begins a new connection with the same ports.
                (self.stack_initial, self.stack_nxt) = (Some(header.seq), 0);
                (self.acknowledged, self.right_edge) = (i64::MIN, i64::MIN);
            }
            self.stack_port = header.source;
            self.scales[1] = header.options.window_scale;
            self.has_timestamps = self.offers_timestamps && header.options.timestamps.is_some();
        }
        if let Some(timestamps) = header.options.timestamps {
            self.stack_clock = timestamps.value;
            self.stack_clock_first.get_or_insert(timestamps.value);
        }
        let relative = |initial: u32, number: u32| i64::from(number.wrapping_sub(initial).cast_signed());
        let of_stack = |number| relative(self.stack_initial(), number);
        let of_peer = |number| relative(self.initial, number);
        let clock =
            |timestamps: Timestamps| timestamps.value.wrapping_sub(self.stack_clock_first.unwrap_or(0));
        let mut seg = Seg::of(header, payload);
        seg.seq = Some(of_stack(header.seq));
        seg.ack = has(Flags::ACK).then(|| of_peer(header.ack));
        seg.timestamp = Some(header.options.timestamps.map(clock));
        seg.echo = header.options.timestamps.map(|timestamps| timestamps.echo);
        let blocks = header.options.sack.as_slice().iter();
        seg.sack = Some(blocks.map(|(from, to)| (of_peer(*from), of_peer(*to))).collect());
        if self.is_checked {
            let tcp_at = if self.ip.is_ipv4() { TCP_AT } else { TCP_AT6 };
            self.check(&seg, header, frame.len() - tcp_at)?;
        } else {
            self.stack_nxt = seg.seq.unwrap_or(0) + payload.len() as i64;
        }
        Ok(seg)
    }

    fn check(&mut self, seg: &Seg, header: &Header, tcp_bytes: usize) -> Result<(), String> {
        let has = |flag| header.flags.contains(flag);
        let ensure = |is_right: bool, violation: &str| is_right.then_some(()).ok_or(violation.to_owned());
        let (seq, bytes) = (seg.seq.unwrap_or(0), seg.payload.as_deref().unwrap_or_default());
        let mss_default = if self.ip.is_ipv4() { 536 } else { 1220 };
        let mss = usize::from(self.mss.unwrap_or(mss_default).max(88)) + 20;
        ensure(bytes.is_empty() || tcp_bytes <= mss, "larger than the peer's MSS (MUST-16)")?;
        if !bytes.is_empty() {
            let sent = usize::try_from(seq - 1).ok().and_then(|at| self.sent.get(at..at + bytes.len()));
            ensure(sent == Some(bytes), "bytes differ from the application's")?;
        }
        if has(Flags::RST) {
            return Ok(());
        }
        let is_opening =
            seg.mss.flatten().is_some() || seg.scale.flatten().is_some() || header.options.sack_permitted;
        ensure(has(Flags::SYN) || !is_opening, "options of a SYN without a SYN (MUST-65)")?;
        let controls = i64::from(has(Flags::SYN)) + i64::from(has(Flags::FIN));
        self.stack_nxt = self.stack_nxt.max(seq + bytes.len() as i64 + controls);
        let Some(ack) = seg.ack else { return ensure(has(Flags::SYN), "without ACK (§3.10.7.4)") };
        ensure(ack <= self.nxt, "acknowledges bytes never sent")?;
        ensure(ack >= self.acknowledged, "acknowledges less than before")?;
        if let Some(gate) = self.gate {
            ensure(ack <= gate.max(1), "acknowledges beyond the gate")?;
            let is_held = |(_, to): &(i64, i64)| *to > gate.max(1) && *to <= self.received.len() as i64 + 1;
            ensure(!seg.sack.iter().flatten().any(is_held), "reports bytes behind the gate by SACK")?;
        }
        let both = self.scales[0].and(self.scales[1]).unwrap_or(0);
        let shift = if has(Flags::SYN) { 0 } else { both };
        let edge = ack + (i64::from(header.window) << shift);
        // RFC 7323 §2.4: the edge may move left by less than a unit of the scale.
        ensure(edge + (1 << shift) > self.right_edge, "the window's right edge moves left (§3.8.6.2.1)")?;
        (self.acknowledged, self.right_edge) = (ack, edge);
        Ok(())
    }

    /// Keeps an event of this peer's connection for the test, and appends its bytes to `received`.
    pub fn on_event(&mut self, event: StackEvent) {
        if let StackEvent::Data { end, bytes } = &event {
            self.received.extend_from_slice(bytes);
            let offset = self.received_before + self.received.len() as u64;
            assert!(!self.is_checked || *end == offset, "the stream offset after the bytes should be theirs");
        }
        self.events.push_back(event);
    }
}
