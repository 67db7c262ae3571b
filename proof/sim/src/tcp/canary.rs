//! Planted faults: each is a mistake that the code under test could make, and that a run must find.

use std::mem;

use spillway_transport::{Application, Conn, Event, Time, Transport};
use spillway_wire::packet::checksum;

use super::program::Program;

/// One planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A byte is altered after the checksum was looked at.
    FlipByte,
    /// The bytes of a segment are delivered twice.
    RepeatSegment,
    /// And those of another not at all.
    DropSegment,
    /// The end of a stream is told before its last bytes.
    EarlyEnd,
    /// More is acknowledged than the gate lets through.
    HastyAcknowledgement,
    /// A window is taken back.
    ShrinkWindow,
    /// What was read is never granted again.
    ForgetCredit,
    /// A frame that is damaged is taken as it is.
    TakeDamaged,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 8] = [
        Canary::FlipByte,
        Canary::RepeatSegment,
        Canary::DropSegment,
        Canary::EarlyEnd,
        Canary::HastyAcknowledgement,
        Canary::ShrinkWindow,
        Canary::ForgetCredit,
        Canary::TakeDamaged,
    ];

    /// For command lines.
    pub fn name(self) -> &'static str {
        match self {
            Canary::FlipByte => "flip-byte",
            Canary::RepeatSegment => "repeat-segment",
            Canary::DropSegment => "drop-segment",
            Canary::EarlyEnd => "early-end",
            Canary::HastyAcknowledgement => "hasty-acknowledgement",
            Canary::ShrinkWindow => "shrink-window",
            Canary::ForgetCredit => "forget-credit",
            Canary::TakeDamaged => "take-damaged",
        }
    }

    /// What is said by the check that is there for it.
    pub fn is_told_as(self) -> &'static str {
        match self {
            Canary::FlipByte | Canary::RepeatSegment | Canary::DropSegment => "wrong byte",
            Canary::EarlyEnd => "ended in good order",
            Canary::HastyAcknowledgement => "where the gate is",
            Canary::ShrinkWindow => "edge goes back",
            Canary::ForgetCredit => "has not ended",
            Canary::TakeDamaged => "damaged frames were taken",
        }
    }
}

/// A program, and what may stand between it and its stack.
pub(crate) struct Meddled {
    pub(crate) program: Program,
    canary: Option<Canary>,
    /// Things that go by before the fault is there.
    until: u32,
}

impl Meddled {
    pub(crate) fn new(program: Program, canary: Option<Canary>, until: u32) -> Meddled {
        Meddled { program, canary, until }
    }

    /// Whether it is time, for this fault.
    fn strikes(&mut self, canary: Canary) -> bool {
        if self.canary != Some(canary) {
            return false;
        }
        self.until = self.until.saturating_sub(1);
        self.until == 0 && mem::take(&mut self.canary).is_some()
    }

    /// A frame leaves. Where the fault shows only at some, it waits for one.
    pub(crate) fn meddle_with_frame(&mut self, frame: &mut [u8]) {
        // Ethernet 14, IPv4 20, and in TCP: the acknowledgement at 8, flags at 13, window at 14, checksum at 16.
        const ACK: usize = 42;
        const FLAGS: usize = 47;
        const WINDOW: usize = 48;
        const CHECK: usize = 50;
        if frame.len() < 54 || frame[12..14] != [8, 0] || frame[FLAGS] & 0x17 != 0x10 {
            return;
        }
        let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (at, from, to) = match self.canary {
            Some(Canary::HastyAcknowledgement) => {
                let low = word(frame, ACK + 2);
                (ACK + 2, low, low.wrapping_add(4))
            }
            Some(Canary::ShrinkWindow) => (WINDOW, word(frame, WINDOW), word(frame, WINDOW) / 2),
            _ => return,
        };
        // Each time from then on: it must be in a connection at a gate, or at one whose window was open.
        self.until = self.until.saturating_sub(1);
        if self.until == 0 && to != from {
            let check = checksum::adjust_u16(word(frame, CHECK), from, to);
            frame[at..at + 2].copy_from_slice(&to.to_be_bytes());
            frame[CHECK..CHECK + 2].copy_from_slice(&check.to_be_bytes());
        }
    }

    /// A damaged frame has come: whether it is not to be seen that it was one.
    pub(crate) fn hides_damage(&mut self) -> bool {
        self.strikes(Canary::TakeDamaged)
    }
}

impl Application for Meddled {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        if let Event::Data { end, bytes } = event {
            if self.strikes(Canary::FlipByte) {
                let mut bytes = bytes.to_vec();
                bytes[0] ^= 0x20; // never empty
                return self.program.handle(now, conn, Event::Data { end, bytes: &bytes }, out);
            }
            if self.strikes(Canary::DropSegment) {
                return;
            }
            if self.strikes(Canary::RepeatSegment) {
                self.program.handle(now, conn, event, out);
            }
            if self.strikes(Canary::EarlyEnd) {
                self.program.handle(now, conn, Event::Finished, out);
            }
            if self.strikes(Canary::ForgetCredit) {
                self.program.is_stingy = true;
            }
        }
        self.program.handle(now, conn, event, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.program.handle_timeout(now, out);
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.program.end_of_turn(now, out);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.program.poll_timeout()
    }
}
