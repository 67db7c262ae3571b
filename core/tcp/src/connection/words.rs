//! What is said when a connection is over, and what others say about it.

use spillway_transport::{LostReason, Time};
use spillway_wire::packet::tcp::{self, Flags};

use super::{Connection, State};
use crate::settings::HEADERS_BYTES;

/// A router that tells less is not believed (RFC 1191 §3 gives 68; what carries options needs more, as Linux has it).
const MTU_MIN: u16 = 552;

/// Segments for the time after a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastWords {
    /// Everything has come.
    pub(crate) acknowledgement: tcp::Header,
    /// The peer does not know that yet.
    pub(crate) is_due: bool,
    /// It is over.
    pub(crate) reset: tcp::Header,
    /// TS.Recent, if there were timestamps.
    pub(crate) stamps: Option<u32>,
}

impl Connection {
    pub(crate) fn last_words(&self, now: Time) -> LastWords {
        let mut acknowledgement =
            self.header(now, self.recovery.nxt(), tcp::Flags::NONE, self.receiving.told());
        acknowledgement.options.sack = tcp::SackBlocks::default();
        let flags = Flags::RST | Flags::ACK;
        // RFC 7323 §3.2: a reset, too, has timestamps where they were agreed on; some hosts drop those without.
        let options =
            tcp::Options { timestamps: acknowledgement.options.timestamps, ..tcp::Options::default() };
        LastWords {
            acknowledgement,
            is_due: self.acking.is_due,
            reset: tcp::Header { flags, window: 0, options, ..acknowledgement },
            stamps: self.agreed.stamps.map(|stamps| stamps.recent),
        }
    }

    /// The peer knows of it.
    pub(crate) fn is_begun(&self) -> bool {
        self.state != State::SynSent
    }

    /// We have begun it, and it is not established.
    pub(crate) fn is_opening(&self) -> bool {
        self.listener.is_none() && !self.is_opened
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.lost
    }

    /// It is over, for a reason that the stack knows.
    pub(crate) fn fail(&mut self, reason: LostReason) {
        self.lose(reason);
    }

    /// Our SYN was a cookie: it has been sent.
    pub(crate) fn answered_by_cookie(&mut self, now: Time) {
        self.recovery.on_sent(now, crate::seq::FIRST + 1, &mut self.timers);
    }

    /// Both initial sequence numbers, ours first.
    pub(crate) fn initials(&self) -> (u32, u32) {
        (self.base.initial(), self.receiving.base.initial())
    }

    /// Whether this is the sequence number of something that was sent and not acknowledged (RFC 5927 §4.1).
    pub(crate) fn is_on_its_way(&self, seq: u32) -> bool {
        let seq = self.base.expand(seq, self.recovery.una());
        (self.recovery.una()..self.recovery.nxt()).contains(&seq)
    }

    /// A router does not take packets as large as ours (RFC 1191).
    pub(crate) fn lower_mtu(&mut self, mtu: u16) {
        let mss = mtu.max(MTU_MIN) - HEADERS_BYTES;
        if mss < self.agreed.mss {
            self.agreed.mss = mss;
            self.recovery.set_mss(self.payload_max());
        }
    }
}
