//! Planted faults: each is a mistake that the code under test could make, and that a run must find.

use std::mem;

use spillway_transport::{Application, Conn, Event, Time, Transport};
use spillway_wire::packet::checksum;
use spillway_wire::state::ConnectionState;

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
    /// Of a connection that moves: a byte that is still to be sent is altered.
    AlterQueue,
    /// What the peer said that it has is forgotten.
    ForgetSack,
    /// What has come out of order is forgotten.
    ForgetLate,
    /// The next byte counts as received.
    SkipByte,
    /// The gate is open.
    ForgetGate,
    /// Whoever forges resets knows where RCV.NXT is.
    ExactReset,
}

impl Canary {
    /// All of them.
    pub const ALL: [Canary; 14] = [
        Canary::FlipByte,
        Canary::RepeatSegment,
        Canary::DropSegment,
        Canary::EarlyEnd,
        Canary::HastyAcknowledgement,
        Canary::ShrinkWindow,
        Canary::ForgetCredit,
        Canary::TakeDamaged,
        Canary::AlterQueue,
        Canary::ForgetSack,
        Canary::ForgetLate,
        Canary::SkipByte,
        Canary::ForgetGate,
        Canary::ExactReset,
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
            Canary::AlterQueue => "alter-queue",
            Canary::ForgetSack => "forget-sack",
            Canary::ForgetLate => "forget-late",
            Canary::SkipByte => "skip-byte",
            Canary::ForgetGate => "forget-gate",
            Canary::ExactReset => "exact-reset",
        }
    }

    /// What is said by the check that is there for it.
    pub fn is_told_as(self) -> &'static str {
        match self {
            Canary::FlipByte | Canary::RepeatSegment | Canary::DropSegment | Canary::AlterQueue => {
                "wrong byte"
            }
            Canary::EarlyEnd => "ended in good order",
            Canary::HastyAcknowledgement | Canary::ForgetGate => "where the gate is",
            Canary::ShrinkWindow => "edge goes back",
            Canary::ForgetCredit => "has not ended",
            Canary::TakeDamaged => "damaged frames were taken",
            Canary::ForgetSack => "another state has arrived",
            Canary::ForgetLate => "said that it had",
            Canary::SkipByte => "of 1 that were sent",
            Canary::ExactReset => "broken although nothing was wrong",
        }
    }

    /// Whether it is one of connections that move.
    pub(crate) fn is_of_moves(self) -> bool {
        use Canary::{AlterQueue, ForgetGate, ForgetLate, ForgetSack, SkipByte};
        matches!(self, AlterQueue | ForgetSack | ForgetLate | SkipByte | ForgetGate)
    }

    /// Alters a connection's state on its way, if there is anything to alter.
    pub(crate) fn alter(self, state: &mut ConnectionState) {
        let sending = &mut state.sending;
        let receiving = &mut state.receiving;
        match self {
            Canary::AlterQueue => {
                let is_sent = (sending.nxt - sending.una) as usize; // of one window
                if let Some(byte) = sending.queue.get_mut(is_sent..).and_then(<[u8]>::last_mut) {
                    *byte ^= 0x20;
                }
            }
            Canary::ForgetSack => {
                let segments = state.recovery.iter_mut().flat_map(|recovery| &mut recovery.segments);
                segments.for_each(|segment| segment.sacked = false);
            }
            // What was not told yet is merely lost.
            Canary::ForgetLate if !receiving.owes => receiving.late.clear(),
            Canary::SkipByte if receiving.next == 1 => {
                receiving.next = 2;
                receiving.owes = true;
            }
            Canary::ForgetGate => receiving.gate = None,
            _ => {}
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
