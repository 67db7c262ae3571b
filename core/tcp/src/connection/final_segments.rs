//! Segments that are sent after the end of a connection, and reactions to ICMP errors.

use spillway_transport::{LostReason, Time};
use spillway_wire::packet::tcp::{self, Flags};

use super::{Connection, State};
use crate::settings::IPV6_MTU_MIN;

/// The smallest MTU accepted from a router for IPv4 (RFC 1191 §3 allows 68, but options need room; the same as in
/// Linux).
const MTU_MIN: u16 = 552;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FinalSegments {
    /// Acknowledges everything received.
    pub(crate) acknowledgement: tcp::Header,
    /// The acknowledgement is still owed to the peer.
    pub(crate) is_due: bool,
    pub(crate) reset: tcp::Header,
    /// TS.Recent, if timestamps were negotiated and it is known.
    pub(crate) ts_recent: Option<u32>,
}

impl Connection {
    pub(crate) fn final_segments(&self, now: Time) -> FinalSegments {
        let mut acknowledgement =
            self.header(now, self.recovery.nxt(), tcp::Flags::NONE, self.receiving.to_advertise());
        acknowledgement.options.sack = tcp::SackBlocks::default();
        let flags = Flags::RST | Flags::ACK;
        // RFC 7323 §3.2: a reset should have timestamps if they were negotiated; some hosts drop resets without them.
        let options =
            tcp::Options { timestamps: acknowledgement.options.timestamps, ..tcp::Options::default() };
        FinalSegments {
            acknowledgement,
            is_due: self.acking.is_due,
            reset: tcp::Header { flags, window: 0, options, ..acknowledgement },
            ts_recent: self.agreed.timestamps.and_then(|ours| ours.recent),
        }
    }

    /// Whether the peer has sent a valid segment of this connection.
    pub(crate) fn is_begun(&self) -> bool {
        self.state != State::SynSent
    }

    /// Whether this end has opened the connection and it is not established yet.
    pub(crate) fn is_opening(&self) -> bool {
        self.listener.is_none() && !self.is_opened
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.lost
    }

    /// Ends the connection because of an ICMP error, or because the peer cannot be reached.
    pub(crate) fn fail(&mut self, reason: LostReason) {
        self.lose(reason);
    }

    /// Counts our SYN as sent, because the stack has sent it as a cookie.
    pub(crate) fn count_cookie_as_syn(&mut self, now: Time) {
        self.recovery.on_sent(now, crate::seq::FIRST + 1, &mut self.timers);
    }

    /// Both initial sequence numbers, ours first.
    pub(crate) fn initial_sequence_numbers(&self) -> (u32, u32) {
        (self.base.initial(), self.receiving.base.initial())
    }

    /// Whether this sequence number was sent and is not acknowledged (RFC 5927 §4.1).
    pub(crate) fn is_in_flight(&self, seq: u32) -> bool {
        let seq = self.base.expand(seq, self.recovery.una());
        (self.recovery.una()..self.recovery.nxt()).contains(&seq)
    }

    /// Reduces the segment size to an MTU that a router has reported (RFC 1191, RFC 8201). For an IPv6 connection `mtu`
    /// must be at least the minimum of IPv6.
    pub(crate) fn lower_mtu(&mut self, mtu: u16) {
        debug_assert!(
            !self.flow.is_ipv6() || mtu >= IPV6_MTU_MIN,
            "an MTU of {mtu} bytes should be ignored for IPv6"
        );
        let mss = mtu.max(MTU_MIN) - self.flow.headers_bytes();
        if mss < self.agreed.mss {
            self.agreed.mss = mss;
            self.recovery.set_mss(self.payload_max());
        }
    }
}
