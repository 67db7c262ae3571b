//! Planted faults: each is a mistake that the code under test could make, and that a run must detect.

use std::mem;

use spillway_transport::{Application, Conn, Event, Time, Transport};
use spillway_wire::packet::checksum;
use spillway_wire::state::ConnectionState;

use super::program::Program;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A byte is altered after the checksum was verified.
    FlipByte,
    /// The bytes of a segment are delivered twice.
    RepeatSegment,
    /// The bytes of a segment are not delivered.
    DropSegment,
    /// The end of a stream is delivered before the last bytes.
    EarlyEnd,
    /// A gated stack acknowledges bytes that were not released.
    HastyAcknowledgement,
    /// The end of a window moves back.
    ShrinkWindow,
    /// The credit for read bytes is never granted again.
    ForgetCredit,
    /// A damaged frame is accepted.
    TakeDamaged,
    /// A move alters a byte in the send queue.
    AlterQueue,
    /// A move loses the peer's SACK information.
    ForgetSack,
    /// A move loses the bytes that were received out of order.
    ForgetLate,
    /// A move counts one byte as received that was not.
    SkipByte,
    /// A move removes the gate.
    ForgetGate,
    /// Forged resets carry exactly RCV.NXT.
    ExactReset,
    /// A source continues a connection that it has exported.
    KeepSource,
    /// The switch lets frames of servers pass that do not own the flow.
    PassStranger,
    /// A target forgets the packets that have waited for the connection.
    ForgetBuffer,
    /// A target takes a state that it has opened before for a new one: its seal forgets which datagrams were opened.
    ReplaySeal,
    /// A target moves each connection back as soon as it has imported it.
    Bounce,
}

impl PlantedFault {
    /// All planted faults.
    pub const ALL: [PlantedFault; 19] = [
        PlantedFault::FlipByte,
        PlantedFault::RepeatSegment,
        PlantedFault::DropSegment,
        PlantedFault::EarlyEnd,
        PlantedFault::HastyAcknowledgement,
        PlantedFault::ShrinkWindow,
        PlantedFault::ForgetCredit,
        PlantedFault::TakeDamaged,
        PlantedFault::AlterQueue,
        PlantedFault::ForgetSack,
        PlantedFault::ForgetLate,
        PlantedFault::SkipByte,
        PlantedFault::ForgetGate,
        PlantedFault::ExactReset,
        PlantedFault::KeepSource,
        PlantedFault::PassStranger,
        PlantedFault::ForgetBuffer,
        PlantedFault::ReplaySeal,
        PlantedFault::Bounce,
    ];

    /// The planted faults that concern the protocol of moves: the worlds of [`scenario`](super::scenario) detect them.
    pub const OF_MOVES: [PlantedFault; 4] = [
        PlantedFault::KeepSource,
        PlantedFault::ForgetBuffer,
        PlantedFault::ReplaySeal,
        PlantedFault::Bounce,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            PlantedFault::FlipByte => "flip-byte",
            PlantedFault::RepeatSegment => "repeat-segment",
            PlantedFault::DropSegment => "drop-segment",
            PlantedFault::EarlyEnd => "early-end",
            PlantedFault::HastyAcknowledgement => "hasty-acknowledgement",
            PlantedFault::ShrinkWindow => "shrink-window",
            PlantedFault::ForgetCredit => "forget-credit",
            PlantedFault::TakeDamaged => "take-damaged",
            PlantedFault::AlterQueue => "alter-queue",
            PlantedFault::ForgetSack => "forget-sack",
            PlantedFault::ForgetLate => "forget-late",
            PlantedFault::SkipByte => "skip-byte",
            PlantedFault::ForgetGate => "forget-gate",
            PlantedFault::ExactReset => "exact-reset",
            PlantedFault::KeepSource => "keep-source",
            PlantedFault::PassStranger => "pass-stranger",
            PlantedFault::ForgetBuffer => "forget-buffer",
            PlantedFault::ReplaySeal => "replay-seal",
            PlantedFault::Bounce => "bounce",
        }
    }

    /// Part of the violation's text by which a test recognises that the right check has found the fault.
    pub fn violation_text(self) -> &'static str {
        match self {
            PlantedFault::FlipByte
            | PlantedFault::RepeatSegment
            | PlantedFault::DropSegment
            | PlantedFault::AlterQueue => "wrong byte",
            PlantedFault::EarlyEnd => "ended in good order",
            PlantedFault::HastyAcknowledgement | PlantedFault::ForgetGate => "where the gate is",
            PlantedFault::ShrinkWindow => "window's end goes back",
            PlantedFault::ForgetCredit => "has not ended",
            PlantedFault::TakeDamaged => "damaged frames were taken",
            PlantedFault::ForgetSack => "another state has arrived",
            PlantedFault::ForgetLate => "after SACK",
            PlantedFault::SkipByte => "of 1 that were sent",
            PlantedFault::ExactReset => "broken, but no fault of this world may break it",
            PlantedFault::KeepSource => "two servers transmit",
            PlantedFault::PassStranger => "the switch lets a frame of",
            PlantedFault::ForgetBuffer => "has waited because of a move",
            PlantedFault::ReplaySeal => "which is not on its way",
            PlantedFault::Bounce => "bounces",
        }
    }

    pub(crate) fn strikes_in_moves(self) -> bool {
        use PlantedFault::{
            AlterQueue, ForgetGate, ForgetLate, ForgetSack, KeepSource, PassStranger, SkipByte,
        };
        matches!(
            self,
            AlterQueue | ForgetSack | ForgetLate | SkipByte | ForgetGate | KeepSource | PassStranger
        )
    }

    /// Plants the fault in the state of a moving connection, if the state has what the fault concerns.
    pub(crate) fn alter(self, state: &mut ConnectionState) {
        let sending = &mut state.sending;
        let receiving = &mut state.receiving;
        match self {
            PlantedFault::AlterQueue => {
                let sent_bytes = (sending.nxt - sending.una) as usize; // fits: at most one window
                let mut queue = sending.queue.to_vec();
                if let Some(byte) = queue.get_mut(sent_bytes..).and_then(<[u8]>::last_mut) {
                    *byte ^= 0x20;
                    sending.queue = queue.into();
                }
            }
            PlantedFault::ForgetSack => {
                let segments = state.recovery.iter_mut().flat_map(|recovery| &mut recovery.segments);
                segments.for_each(|segment| segment.sacked = false);
            }
            // If no acknowledgement is owed, SACK blocks have reported the bytes. Otherwise the peer would
            // retransmit them, and the fault would have no effect.
            PlantedFault::ForgetLate if !receiving.owes => receiving.late.clear(),
            PlantedFault::SkipByte if receiving.next == 1 => {
                receiving.next = 2;
                receiving.owes = true;
            }
            PlantedFault::ForgetGate => receiving.gate = None,
            _ => {}
        }
    }
}

/// A program with a planted fault between program and stack.
pub(crate) struct FaultyProgram {
    pub(crate) inner: Program,
    planted: Option<PlantedFault>,
    /// Number of opportunities to skip before the fault strikes.
    opportunities_left: u32,
}

impl FaultyProgram {
    pub(crate) fn new(
        inner: Program,
        planted: Option<PlantedFault>,
        opportunities_left: u32,
    ) -> FaultyProgram {
        FaultyProgram { inner, planted, opportunities_left }
    }

    fn strikes(&mut self, planted: PlantedFault) -> bool {
        if self.planted != Some(planted) {
            return false;
        }
        self.opportunities_left = self.opportunities_left.saturating_sub(1);
        self.opportunities_left == 0 && mem::take(&mut self.planted).is_some()
    }

    /// Alters an outgoing bare acknowledgement or data segment, if the planted fault concerns frames.
    pub(crate) fn alter_frame(&mut self, frame: &mut [u8]) {
        // Offsets in a frame: Ethernet 14, IPv4 20, then TCP's acknowledgement at 8, flags at 13, window at 14,
        // checksum at 16.
        const ACK: usize = 42;
        const FLAGS: usize = 47;
        const WINDOW: usize = 48;
        const CHECKSUM: usize = 50;
        if frame.len() < 54 || frame[12..14] != [8, 0] || frame[FLAGS] & 0x17 != 0x10 {
            return;
        }
        let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (at, from, to) = match self.planted {
            Some(PlantedFault::HastyAcknowledgement) => {
                let low = word(frame, ACK + 2);
                (ACK + 2, low, low.wrapping_add(4))
            }
            Some(PlantedFault::ShrinkWindow) => (WINDOW, word(frame, WINDOW), word(frame, WINDOW) / 2),
            _ => return,
        };
        // The fault is repeated, because only gated connections, or those with an open window, show it.
        self.opportunities_left = self.opportunities_left.saturating_sub(1);
        if self.opportunities_left == 0 && to != from {
            let checksum = checksum::adjust_u16(word(frame, CHECKSUM), from, to);
            frame[at..at + 2].copy_from_slice(&to.to_be_bytes());
            frame[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    pub(crate) fn counts_as_undamaged(&mut self) -> bool {
        self.strikes(PlantedFault::TakeDamaged)
    }
}

impl Application for FaultyProgram {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        if let Event::Data { end, bytes } = event {
            if self.strikes(PlantedFault::FlipByte) {
                let mut bytes = bytes.to_vec();
                bytes[0] ^= 0x20; // data events are never empty
                return self.inner.handle(now, conn, Event::Data { end, bytes: &bytes }, out);
            }
            if self.strikes(PlantedFault::DropSegment) {
                return;
            }
            if self.strikes(PlantedFault::RepeatSegment) {
                self.inner.handle(now, conn, event, out);
            }
            if self.strikes(PlantedFault::EarlyEnd) {
                self.inner.handle(now, conn, Event::Finished, out);
            }
            if self.strikes(PlantedFault::ForgetCredit) {
                self.inner.withholds_grants = true;
            }
        }
        self.inner.handle(now, conn, event, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.inner.handle_timeout(now, out);
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.inner.end_of_turn(now, out);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.inner.poll_timeout()
    }
}
