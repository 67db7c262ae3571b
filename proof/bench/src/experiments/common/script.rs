//! Frames in memory, and scripted TCP clients: their frames do not depend on the stack's answers, except for sequence
//! numbers and timestamps, so they can be written before the clock starts.

use std::net::{Ipv4Addr, SocketAddrV4};

use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::tcp::{self, Flags, Options, Timestamps};
use spillway_wire::packet::{checksum, ipv4};

pub const MESSAGE_BYTES: usize = 64;
/// Largest IP packet of all stacks, in bytes.
pub const MTU: u16 = 1500;
pub const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const STACK_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const STACK_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const PORT: u16 = 7000;

/// Memory for one frame: a multiple of a cache line.
const SLOT_BYTES: usize = 1536;
const TCP_OFFSET: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;

/// A queue of frames in reusable slots, in place of a network card.
#[derive(Debug)]
pub struct Frames {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
    capacity: usize,
}

impl Frames {
    pub fn new(capacity: usize) -> Frames {
        Frames { bytes: vec![0; capacity * SLOT_BYTES], lengths: Vec::with_capacity(capacity), capacity }
    }

    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// The frame at an index; panics if the index is out of range.
    pub fn get(&self, index: usize) -> &[u8] {
        &self.bytes[index * SLOT_BYTES..][..self.lengths[index]]
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }

    pub fn clear(&mut self) {
        self.lengths.clear();
    }

    /// Adds the frame that `write` puts into its slot; `write` returns its length, or `None` for no frame. Returns
    /// whether a frame was added; `false` without a call of `write` if the queue is full.
    pub fn push(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        if self.len() == self.capacity {
            return false;
        }
        let offset = self.len() * SLOT_BYTES;
        let Some(length) = write(&mut self.bytes[offset..offset + SLOT_BYTES]) else { return false };
        self.lengths.push(length);
        true
    }
}

#[derive(Clone, Debug)]
pub struct Client {
    port: u16,
    /// Sequence number of the next byte to send.
    seq: u32,
    /// Acknowledgement of all answers to messages written so far.
    ack: u32,
    /// Sequence number of the next answer to check.
    checked: u32,
    /// The stack's last timestamp, which the next segment echoes (RFC 7323).
    echo: u32,
}

impl Client {
    /// A client whose port and first sequence number follow from `number`, at most 55,535.
    pub fn new(number: usize) -> Client {
        let number = number as u32; // at most 55,535
        let seq = number.wrapping_mul(2_654_435_761);
        Client { port: 10_000 + number as u16, seq, ack: 0, checked: 0, echo: 0 }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn syn(&mut self, slot: &mut [u8]) -> usize {
        let options = Options {
            mss: Some(MTU - 40),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 0 }),
            ..Options::default()
        };
        let length = self.write(Flags::SYN, options, &[], slot);
        self.seq = self.seq.wrapping_add(1);
        length
    }

    /// Checks the SYN-ACK and adopts its sequence number and timestamp.
    pub fn accept_syn_ack(&mut self, frame: &[u8]) -> Result<(), String> {
        let (header, payload) = parse(frame)?;
        let is_right =
            header.flags == Flags::SYN | Flags::ACK && header.ack == self.seq && payload.is_empty();
        let timestamps = header.options.timestamps;
        match timestamps {
            Some(timestamps)
                if is_right && header.options.sack_permitted && header.options.window_scale.is_some() =>
            {
                (self.ack, self.echo) = (header.seq.wrapping_add(1), timestamps.value);
                self.checked = self.ack;
                Ok(())
            }
            _ => Err(format!("an unexpected answer to a SYN: {header:?}")),
        }
    }

    pub fn acknowledgement(&self, slot: &mut [u8]) -> usize {
        self.write(Flags::ACK, self.timestamps(), &[], slot)
    }

    /// Writes the next message, with an acknowledgement of the answers to all earlier messages.
    pub fn message(&mut self, slot: &mut [u8]) -> usize {
        let mut message = [0; MESSAGE_BYTES];
        fill(self.ack, &mut message);
        let length = self.write(Flags::ACK | Flags::PSH, self.timestamps(), &message, slot);
        self.seq = self.seq.wrapping_add(MESSAGE_BYTES as u32);
        self.ack = self.ack.wrapping_add(MESSAGE_BYTES as u32);
        length
    }

    /// Writes a segment that leaves a gap of `skipped` bytes after the data sent so far.
    pub fn after_gap(&self, skipped: u32, bytes: &[u8], slot: &mut [u8]) -> usize {
        let mut later = self.clone();
        later.seq = later.seq.wrapping_add(skipped);
        later.write(Flags::ACK, self.timestamps(), bytes, slot)
    }

    /// Checks an answer: the same bytes as the message, once and in order. Returns `false` for a bare acknowledgement.
    pub fn check(&mut self, frame: &[u8]) -> Result<bool, String> {
        let (header, payload) = parse(frame)?;
        if payload.is_empty() && !header.flags.intersects(Flags::SYN | Flags::FIN | Flags::RST) {
            return Ok(false);
        }
        let mut message = [0; MESSAGE_BYTES];
        fill(self.checked, &mut message);
        if header.seq != self.checked || payload != message || header.target != self.port {
            return Err(format!("a wrong answer: {header:?} with {} bytes", payload.len()));
        }
        self.checked = self.checked.wrapping_add(MESSAGE_BYTES as u32);
        self.echo = header.options.timestamps.map_or(self.echo, |timestamps| timestamps.value);
        Ok(true)
    }

    /// Whether a frame that [`check`](Self::check) refused is a retransmission of a checked answer.
    pub fn is_repeated(&self, frame: &[u8]) -> bool {
        parse(frame).is_ok_and(|(header, payload)| {
            let is_before = self.checked.wrapping_sub(header.seq).wrapping_sub(1) < 1 << 31;
            is_before && !payload.is_empty() && header.target == self.port
        })
    }

    fn timestamps(&self) -> Options {
        Options { timestamps: Some(Timestamps { value: 1, echo: self.echo }), ..Options::default() }
    }

    fn write(&self, flags: Flags, options: Options, payload: &[u8], slot: &mut [u8]) -> usize {
        let header = tcp::Header {
            source: self.port,
            target: PORT,
            seq: self.seq,
            ack: if flags.contains(Flags::ACK) { self.ack } else { 0 },
            flags,
            window: if flags.contains(Flags::SYN) { u16::MAX } else { 8192 },
            urgent: 0,
            options,
        };
        let (payload_offset, bytes) =
            (TCP_OFFSET + header.header_bytes(), header.header_bytes() + payload.len());
        slot[payload_offset..payload_offset + payload.len()].copy_from_slice(payload);
        let pseudo = checksum::pseudo_v4(CLIENT_IP, STACK_IP, ipv4::PROTOCOL_TCP, bytes as u32);
        header.emit(&mut slot[TCP_OFFSET..], payload.len(), pseudo);
        // The length fits: at most the size of a slot.
        let packet = ipv4::Header::new(CLIENT_IP, STACK_IP, ipv4::PROTOCOL_TCP, bytes as u16);
        let frame = ethernet::Header { target: STACK_MAC, source: CLIENT_MAC, kind: ethernet::KIND_IPV4 };
        if let Some(head) = slot.first_chunk_mut() {
            frame.emit(head);
        }
        if let Some(head) = slot[ethernet::HEADER_BYTES..].first_chunk_mut() {
            packet.emit(head);
        }
        TCP_OFFSET + bytes
    }
}

/// Fills a message with bytes that follow from their sequence numbers, so that [`Client::check`] finds misplaced ones.
fn fill(first_seq: u32, message: &mut [u8]) {
    for (byte, seq) in message.iter_mut().zip(first_seq..) {
        *byte = (seq ^ (seq >> 7)) as u8;
    }
}

/// The destination MAC address of a frame.
pub fn target_of(frame: &[u8]) -> Option<Mac> {
    ethernet::Header::parse(frame).ok().map(|(header, _)| header.target)
}

/// The destination port of a frame.
pub fn port_of(frame: &[u8]) -> Option<u16> {
    frame.get(TCP_OFFSET + 2..TCP_OFFSET + 4).map(|port| u16::from_be_bytes([port[0], port[1]]))
}

pub fn listener() -> SocketAddrV4 {
    SocketAddrV4::new(STACK_IP, PORT)
}

fn parse(frame: &[u8]) -> Result<(tcp::Header, &[u8]), String> {
    let wrong = |error| format!("an invalid frame: {error}");
    let (_, packet) = ethernet::Header::parse(frame).map_err(wrong)?;
    let (header, _, segment) = ipv4::Header::parse(packet).map_err(wrong)?;
    let pseudo = checksum::pseudo_v4(header.source, header.target, ipv4::PROTOCOL_TCP, segment.len() as u32);
    let (header, _, payload) = tcp::Header::parse(segment, pseudo).map_err(wrong)?;
    Ok((header, payload))
}
