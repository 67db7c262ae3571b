//! One connection of a peer without a stack: it opens as usual, and then breaks rules.

use std::net::SocketAddr;

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{Flags, Header, Options};

use super::frames::{Ends, segment};
use super::sniffer::Sniffed;
use crate::rng::Rng;

/// The rule that a puppet breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trick {
    /// Shrinks its window and widens it again.
    ShrinkWindow,
    /// Keeps its window closed for long, and answers all window probes.
    ZeroWindow,
    AckUnsent,
    /// Sends impossible SACK blocks, and takes others back.
    SackNonsense,
    /// Sends its end first, then the bytes before it in any order, some beyond it, and a second end.
    EndFirst,
    /// Sends nothing after the handshake.
    Silent,
    /// Resets with the exact sequence number.
    Reset,
    /// Sends random flags, and numbers near the right ones.
    AnyHeader,
}

impl Trick {
    const ALL: [Trick; 8] = [
        Trick::ShrinkWindow,
        Trick::ZeroWindow,
        Trick::AckUnsent,
        Trick::SackNonsense,
        Trick::EndFirst,
        Trick::Silent,
        Trick::Reset,
        Trick::AnyHeader,
    ];
}

/// Maximum length of its stream.
const STREAM_BYTES_MAX: u64 = 20_000;
const STEPS_MAX: u64 = 200;

#[derive(Debug)]
pub(crate) struct Puppet {
    ends: Ends,
    trick: Trick,
    rng: Rng,
    initial: u32,
    /// Bytes of its stream sent in order.
    sent: u32,
    length: u32,
    /// Next expected sequence number; `None` before the SYN-ACK.
    next: Option<u32>,
    steps: u64,
    is_over: bool,
}

impl Puppet {
    /// A puppet that will connect from `source` to `target`.
    pub(crate) fn new(source: SocketAddr, target: (SocketAddr, Mac), mut rng: Rng) -> Puppet {
        let mut ends = Ends::between(source, target.0);
        ends.target_mac = target.1;
        Puppet {
            ends,
            trick: rng.pick(&Trick::ALL),
            initial: rng.word() as u32, // any
            sent: 0,
            length: rng.scale(1, STREAM_BYTES_MAX) as u32, // small
            next: None,
            steps: rng.scale(3, STEPS_MAX),
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

    /// Handles a segment; returns the answers.
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
            self.next = Some(header.seq.wrapping_add(1));
            return vec![self.segment_of(Flags::ACK, self.at(self.sent), &[])];
        }
        let Some(next) = &mut self.next else { return Vec::new() };
        if header.seq == *next {
            let fin = u32::from(flags.contains(Flags::FIN));
            *next = next.wrapping_add(seen.payload.len() as u32 + fin); // of one frame
        }
        let is_question = seen.payload.is_empty() && !flags.contains(Flags::FIN);
        match self.trick {
            Trick::Silent => Vec::new(),
            Trick::ZeroWindow => vec![self.segment_of(Flags::ACK, self.at(self.sent), &[])],
            _ if is_question => Vec::new(),
            _ => vec![self.segment_of(Flags::ACK, self.at(self.sent), &[])],
        }
    }

    /// Returns the frames of the puppet's next action.
    pub(crate) fn act(&mut self) -> Vec<Vec<u8>> {
        if self.is_over {
            return Vec::new();
        }
        if self.next.is_none() {
            return vec![self.syn()];
        }
        self.steps = self.steps.saturating_sub(1);
        if self.steps == 0 {
            return self.end();
        }
        let at = self.at(self.sent);
        match self.trick {
            Trick::Silent => Vec::new(),
            Trick::Reset => self.end(),
            Trick::EndFirst => self.end_first(),
            Trick::AnyHeader => vec![self.any_header()],
            _ if self.rng.chance(1, 2) => vec![self.next_bytes()],
            _ => vec![self.segment_of(Flags::ACK, at, &[])],
        }
    }

    /// Ends the puppet: with an exact reset, or silently.
    pub(crate) fn end(&mut self) -> Vec<Vec<u8>> {
        self.is_over = true;
        if self.trick == Trick::Silent || self.next.is_none() {
            return Vec::new();
        }
        vec![self.segment_of(Flags::RST, self.at(self.sent), &[])]
    }

    fn at(&self, offset: u32) -> u32 {
        self.initial.wrapping_add(1).wrapping_add(offset)
    }

    fn syn(&mut self) -> Vec<u8> {
        let options = Options {
            mss: Some(self.rng.pick(&[1, 536, 1460, 65_535])),
            window_scale: self.rng.chance(1, 2).then(|| self.rng.below(16) as u8), // below 16
            sack_permitted: true,
            ..Options::default()
        };
        let header =
            Header { seq: self.initial, flags: Flags::SYN, window: 1000, options, ..Header::default() };
        segment(self.ends, header, &[])
    }

    fn next_bytes(&mut self) -> Vec<u8> {
        let length = (self.length - self.sent).min(1 + self.rng.below(1400) as u32); // one frame's
        let at = self.at(self.sent);
        self.sent += length;
        self.segment_of(Flags::ACK, at, &vec![7; length as usize])
    }

    fn end_first(&mut self) -> Vec<Vec<u8>> {
        let fin = self.at(self.length);
        let mut segments = vec![self.segment_of(Flags::FIN | Flags::ACK, fin, &[])];
        for _ in 0..self.rng.below(5) {
            let from = self.rng.below(u64::from(self.length)) as u32; // below it
            let length = 1 + self.rng.below(1400) as u32; // one frame's, some beyond the end
            segments.push(self.segment_of(Flags::ACK, self.at(from), &vec![7; length as usize]));
        }
        if self.rng.chance(1, 4) {
            let offset = self.rng.below(2 * u64::from(self.length)) as u32; // near it
            let other = self.at(offset);
            segments.push(self.segment_of(Flags::FIN | Flags::ACK, other, &[]));
        }
        segments
    }

    fn any_header(&mut self) -> Vec<u8> {
        // A reset could be exact.
        let flags = Flags(self.rng.word() as u8 & !Flags::RST.0);
        let near =
            |rng: &mut Rng, number: u32| number.wrapping_add(rng.scale(1, 1 << 20) as u32).wrapping_sub(1000);
        let (seq, ack) = (self.at(self.sent), self.next.unwrap_or(0));
        let header = Header {
            seq: near(&mut self.rng, seq),
            ack: near(&mut self.rng, ack),
            flags,
            window: self.rng.word() as u16, // any
            urgent: self.rng.word() as u16, // any
            ..Header::default()
        };
        let length = self.rng.below(100) as usize; // few
        segment(self.ends, header, &vec![9; length])
    }

    /// A segment as a stack would send it, altered by the trick.
    fn segment_of(&mut self, flags: Flags, seq: u32, payload: &[u8]) -> Vec<u8> {
        let mut header =
            Header { seq, ack: self.next.unwrap_or(0), flags, window: 1000, ..Header::default() };
        let rng = &mut self.rng;
        match self.trick {
            Trick::ShrinkWindow => header.window = rng.pick(&[0, 1, 10, 100, 1000, 20_000]),
            Trick::ZeroWindow => {
                header.window = if rng.chance(1, 50) { 1 + rng.below(3000) as u16 } else { 0 }
            }
            Trick::AckUnsent if rng.chance(1, 2) => {
                header.ack = header.ack.wrapping_add(rng.scale(1, 1 << 31) as u32); // up to half of all
            }
            Trick::SackNonsense => {
                for _ in 0..rng.below(5) {
                    let left = header.ack.wrapping_add(rng.scale(1, 1 << 17) as u32).wrapping_sub(3000);
                    header
                        .options
                        .sack
                        .push(left, left.wrapping_add(rng.scale(1, 1 << 14) as u32).wrapping_sub(10));
                }
                if rng.chance(1, 20) {
                    header.options.sack.push(rng.word() as u32, rng.word() as u32); // any
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
