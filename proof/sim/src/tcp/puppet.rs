//! A puppet: one connection of the rogue host, which opens as TCP requires and then violates the protocol.

use std::net::SocketAddr;

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{Flags, Header, Options};

use super::frames::{Ends, segment};
use super::sniffer::Sniffed;
use crate::rng::Rng;

/// The way in which a puppet violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misbehaviour {
    /// Shrinks its window and widens it again.
    ShrinkWindow,
    /// Keeps its window closed for a long time, and answers all window probes.
    ZeroWindow,
    AcknowledgeUnsent,
    /// Sends random SACK blocks, and does not repeat them.
    ImpossibleSack,
    /// Sends its FIN first, then bytes before and beyond the FIN in any order, and perhaps a second FIN.
    FinFirst,
    /// Sends nothing after the handshake.
    Silent,
    /// Resets the connection with the exact sequence number.
    Reset,
    /// Sends random flags, and sequence numbers near the right ones.
    RandomHeader,
}

impl Misbehaviour {
    const ALL: [Misbehaviour; 8] = [
        Misbehaviour::ShrinkWindow,
        Misbehaviour::ZeroWindow,
        Misbehaviour::AcknowledgeUnsent,
        Misbehaviour::ImpossibleSack,
        Misbehaviour::FinFirst,
        Misbehaviour::Silent,
        Misbehaviour::Reset,
        Misbehaviour::RandomHeader,
    ];
}

const STREAM_BYTES_MAX: u64 = 20_000;
const STEPS_MAX: u64 = 200;

#[derive(Debug)]
pub(crate) struct Puppet {
    ends: Ends,
    misbehaviour: Misbehaviour,
    rng: Rng,
    initial_seq: u32,
    /// Bytes of the puppet's stream that were sent in order.
    sent: u32,
    stream_bytes: u32,
    /// Next expected sequence number; `None` before the SYN-ACK.
    next_expected: Option<u32>,
    steps: u64,
    is_over: bool,
}

impl Puppet {
    pub(crate) fn new(source: SocketAddr, target: (SocketAddr, Mac), mut rng: Rng) -> Puppet {
        let mut ends = Ends::between(source, target.0);
        ends.target_mac = target.1;
        Puppet {
            ends,
            misbehaviour: rng.pick(&Misbehaviour::ALL),
            initial_seq: rng.word() as u32, // fits: any value
            sent: 0,
            stream_bytes: rng.log_uniform(1, STREAM_BYTES_MAX) as u32, // fits: at most `STREAM_BYTES_MAX`
            next_expected: None,
            steps: rng.log_uniform(3, STEPS_MAX),
            is_over: false,
            rng,
        }
    }

    pub(crate) fn source(&self) -> SocketAddr {
        self.ends.source
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) fn handle_frame(&mut self, seen: &Sniffed<'_>) -> Vec<Vec<u8>> {
        let (header, flags) = (&seen.header, seen.header.flags);
        if self.is_over {
            return Vec::new();
        }
        if flags.contains(Flags::RST) {
            self.is_over = true;
            return Vec::new();
        }
        if flags.contains(Flags::SYN) {
            self.next_expected = Some(header.seq.wrapping_add(1));
            return vec![self.segment_with(Flags::ACK, self.seq_at(self.sent), &[])];
        }
        let Some(next) = &mut self.next_expected else { return Vec::new() };
        if header.seq == *next {
            let fin = u32::from(flags.contains(Flags::FIN));
            *next = next.wrapping_add(seen.payload.len() as u32 + fin); // fits: one frame
        }
        let is_bare_ack = seen.payload.is_empty() && !flags.contains(Flags::FIN);
        match self.misbehaviour {
            Misbehaviour::Silent => Vec::new(),
            Misbehaviour::ZeroWindow => vec![self.segment_with(Flags::ACK, self.seq_at(self.sent), &[])],
            _ if is_bare_ack => Vec::new(),
            _ => vec![self.segment_with(Flags::ACK, self.seq_at(self.sent), &[])],
        }
    }

    pub(crate) fn act(&mut self) -> Vec<Vec<u8>> {
        if self.is_over {
            return Vec::new();
        }
        if self.next_expected.is_none() {
            return vec![self.syn()];
        }
        self.steps = self.steps.saturating_sub(1);
        if self.steps == 0 {
            return self.end();
        }
        let at = self.seq_at(self.sent);
        match self.misbehaviour {
            Misbehaviour::Silent => Vec::new(),
            Misbehaviour::Reset => self.end(),
            Misbehaviour::FinFirst => self.fin_first(),
            Misbehaviour::RandomHeader => vec![self.random_header()],
            _ if self.rng.chance(1, 2) => vec![self.data_segment()],
            _ => vec![self.segment_with(Flags::ACK, at, &[])],
        }
    }

    /// Ends the puppet with an exact reset, or without a frame.
    pub(crate) fn end(&mut self) -> Vec<Vec<u8>> {
        self.is_over = true;
        if self.misbehaviour == Misbehaviour::Silent || self.next_expected.is_none() {
            return Vec::new();
        }
        vec![self.segment_with(Flags::RST, self.seq_at(self.sent), &[])]
    }

    fn seq_at(&self, offset: u32) -> u32 {
        self.initial_seq.wrapping_add(1).wrapping_add(offset)
    }

    fn syn(&mut self) -> Vec<u8> {
        let options = Options {
            mss: Some(self.rng.pick(&[1, 536, 1460, 65_535])),
            window_scale: self.rng.chance(1, 2).then(|| self.rng.below(16) as u8), // fits: below 16
            sack_permitted: true,
            ..Options::default()
        };
        let header =
            Header { seq: self.initial_seq, flags: Flags::SYN, window: 1000, options, ..Header::default() };
        segment(self.ends, header, &[])
    }

    fn data_segment(&mut self) -> Vec<u8> {
        let length = (self.stream_bytes - self.sent).min(1 + self.rng.below(1400) as u32); // fits one frame
        let at = self.seq_at(self.sent);
        self.sent += length;
        self.segment_with(Flags::ACK, at, &vec![7; length as usize])
    }

    fn fin_first(&mut self) -> Vec<Vec<u8>> {
        let fin = self.seq_at(self.stream_bytes);
        let mut segments = vec![self.segment_with(Flags::FIN | Flags::ACK, fin, &[])];
        for _ in 0..self.rng.below(5) {
            let from = self.rng.below(u64::from(self.stream_bytes)) as u32; // fits: below `stream_bytes`
            let length = 1 + self.rng.below(1400) as u32; // fits one frame; may reach beyond the FIN
            segments.push(self.segment_with(Flags::ACK, self.seq_at(from), &vec![7; length as usize]));
        }
        if self.rng.chance(1, 4) {
            let offset = self.rng.below(2 * u64::from(self.stream_bytes)) as u32; // fits: below twice `stream_bytes`
            let second_fin = self.seq_at(offset);
            segments.push(self.segment_with(Flags::FIN | Flags::ACK, second_fin, &[]));
        }
        segments
    }

    fn random_header(&mut self) -> Vec<u8> {
        // Random flags except RST, because a random reset could be exact.
        let flags = Flags(self.rng.word() as u8 & !Flags::RST.0);
        let near = |rng: &mut Rng, number: u32| {
            number.wrapping_add(rng.log_uniform(1, 1 << 20) as u32).wrapping_sub(1000)
        };
        let (seq, ack) = (self.seq_at(self.sent), self.next_expected.unwrap_or(0));
        let header = Header {
            seq: near(&mut self.rng, seq),
            ack: near(&mut self.rng, ack),
            flags,
            window: self.rng.word() as u16, // fits: any value
            urgent: self.rng.word() as u16, // fits: any value
            ..Header::default()
        };
        let length = self.rng.below(100) as usize; // fits: few
        segment(self.ends, header, &vec![9; length])
    }

    /// A segment as a stack would send it, except for what the misbehaviour alters.
    fn segment_with(&mut self, flags: Flags, seq: u32, payload: &[u8]) -> Vec<u8> {
        let mut header =
            Header { seq, ack: self.next_expected.unwrap_or(0), flags, window: 1000, ..Header::default() };
        let rng = &mut self.rng;
        match self.misbehaviour {
            Misbehaviour::ShrinkWindow => header.window = rng.pick(&[0, 1, 10, 100, 1000, 20_000]),
            Misbehaviour::ZeroWindow => {
                header.window = if rng.chance(1, 50) { 1 + rng.below(3000) as u16 } else { 0 }
            }
            Misbehaviour::AcknowledgeUnsent if rng.chance(1, 2) => {
                header.ack = header.ack.wrapping_add(rng.log_uniform(1, 1 << 31) as u32); // half of all numbers
            }
            Misbehaviour::ImpossibleSack => {
                for _ in 0..rng.below(5) {
                    let left = header.ack.wrapping_add(rng.log_uniform(1, 1 << 17) as u32).wrapping_sub(3000);
                    header
                        .options
                        .sack
                        .push(left, left.wrapping_add(rng.log_uniform(1, 1 << 14) as u32).wrapping_sub(10));
                }
                if rng.chance(1, 20) {
                    header.options.sack.push(rng.word() as u32, rng.word() as u32); // fits: any value
                }
            }
            _ => {}
        }
        if flags.contains(Flags::RST) {
            header.window = 0;
        }
        segment(self.ends, header, payload)
    }
}
