//! Validates segments: from the peer, in the window, not old (RFC 9293 §3.10.7.4, RFC 5961, RFC 7323 §5).

use core::time::Duration;

use spillway_transport::{LostReason, Time};
use spillway_wire::packet::tcp::{self, Flags, Timestamps};

use super::{Connection, Context, State};
use crate::dropped::Dropped;
use crate::narrow::low_half;
use crate::seq::Seq;

/// An older TS.Recent is not compared: the peer's clock may have wrapped (RFC 7323 §5.5).
const TIMESTAMP_VALID: Duration = Duration::from_secs(24 * 24 * 3600);

/// Negotiated timestamps (RFC 7323 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    /// This end's clock at time zero, in milliseconds: different for each peer, so that none learns the uptime.
    pub(super) offset: u32,
    /// TS.Recent.
    pub(super) recent: u32,
    /// When TS.Recent was received.
    pub(super) recent_at: Time,
}

impl Stamps {
    /// This end's timestamp clock, in milliseconds.
    pub(super) fn now(&self, now: Time) -> u32 {
        Stamps::clock(now).wrapping_add(self.offset)
    }

    /// The same clock without the offset.
    pub(super) fn clock(now: Time) -> u32 {
        low_half(now.as_nanos() / 1_000_000) // wraps
    }

    /// Whether TS.Recent is newer than a segment's `value`; always `false` if TS.Recent is too old (RFC 7323 §5.5).
    fn is_newer_than(&self, now: Time, value: u32) -> bool {
        value.wrapping_sub(self.recent).cast_signed() < 0 && now.since(self.recent_at) <= TIMESTAMP_VALID
    }

    /// The time since this end sent the echoed timestamp (RFC 7323 §4.1), in whole milliseconds.
    pub(super) fn since(&self, now: Time, told: Timestamps) -> Option<Duration> {
        let elapsed_ms = self.now(now).wrapping_sub(told.echo).cast_signed();
        u64::try_from(elapsed_ms).ok().map(Duration::from_millis) // none if the echo is in the future
    }
}

impl Connection {
    /// Checks a segment before its contents are used. `false`: nothing more is to be done with it.
    pub(super) fn is_acceptable(
        &mut self,
        cx: &mut Context<'_>,
        seq: Seq,
        header: &tcp::Header,
        payload: &[u8],
    ) -> bool {
        let flags = header.flags;
        let has = |flag| flags.contains(flag);
        // A SYN is challenged whatever its timestamp: a peer that has restarted may have another clock, or none.
        if !flags.intersects(Flags::RST | Flags::SYN) && !self.is_timely(cx, seq, header) {
            return false;
        }
        let end = seq + payload.len() as u64 + u64::from(has(Flags::SYN)) + u64::from(has(Flags::FIN));
        if has(Flags::RST) {
            self.take_reset(cx, seq);
            return false;
        }
        if has(Flags::SYN) && !self.is_repeated_syn(seq, flags) {
            // A peer that has restarted answers the challenge with an exact reset (RFC 5961 §4).
            cx.drop(Dropped::SynInConnection);
            self.challenge(cx);
            return false;
        }
        if has(Flags::SYN | Flags::ACK) {
            // Simultaneous open, and the peer has received our SYN (RFC 9293 §3.5, figure 7). Another SYN of ours would make
            // it answer with another, endlessly.
            return true;
        }
        let is_bare_fin = payload.is_empty() && has(Flags::FIN);
        if !self.receiving.is_acceptable(seq, end, is_bare_fin) {
            let is_old = end <= self.receiving.received();
            cx.drop(if is_old { Dropped::Duplicate } else { Dropped::OutOfWindow });
            self.answer_unacceptable(cx, seq, header, payload.len());
            // Its acknowledgement is valid nevertheless: RFC 9293 §3.10.7.4 accepts it when only the window is closed
            // (MUST-66). In a retransmission it may be the only acknowledgement of our FIN, whose receiver may soon be gone.
            // In SYN-RECEIVED an acknowledgement would also have to establish the connection.
            let is_shut = self.receiving.offered <= self.receiving.received();
            let is_repeated = seq < end && end == self.receiving.received();
            let is_opening = self.state == State::SynReceived;
            if (is_shut || is_repeated) && !is_opening && has(Flags::ACK) && !has(Flags::SYN) {
                self.take_ack(cx, seq, header, payload.len());
            }
            return false;
        }
        if !has(Flags::ACK) {
            cx.drop(Dropped::WithoutAck);
        }
        has(Flags::ACK)
    }

    /// PAWS: protection against wrapped sequence numbers (RFC 7323 §5.3).
    fn is_timely(&mut self, cx: &mut Context<'_>, seq: Seq, header: &tcp::Header) -> bool {
        let Some(stamps) = &self.agreed.stamps else { return true };
        let Some(told) = header.options.timestamps else {
            cx.drop(Dropped::WithoutTimestamp);
            return false; // §3.2: no answer
        };
        if !stamps.is_newer_than(cx.now, told.value) {
            return true;
        }
        cx.drop(Dropped::OldTimestamp);
        self.answer_unacceptable(cx, seq, header, 0);
        false
    }

    /// Updates TS.Recent (RFC 7323 §4.3): only from a segment that begins at or before the last acknowledgement sent, so
    /// that a delayed acknowledgement echoes the first segment that it covers. Call it only after the acknowledgement was
    /// validated, as Linux does: a forged timestamp would make PAWS reject the peer's segments.
    pub(super) fn remember_timestamp(&mut self, now: Time, seq: Seq, header: &tcp::Header) {
        if let (Some(stamps), Some(told)) = (&mut self.agreed.stamps, header.options.timestamps)
            && seq <= self.acking.last_sent
            && !stamps.is_newer_than(now, told.value)
        {
            (stamps.recent, stamps.recent_at) = (told.value, now);
        }
    }

    /// RFC 5961 §3.2: only a reset at exactly RCV.NXT ends the connection. Behind a closed gate a peer that answers our
    /// segments knows only the gate's position, so a reset there counts, too.
    fn take_reset(&mut self, cx: &mut Context<'_>, seq: Seq) {
        let is_exact = seq == self.receiving.received() || seq == self.receiving.acknowledged();
        if is_exact {
            cx.counters.resets_received += 1;
            let is_opening = self.state == State::SynReceived;
            self.lose(if is_opening { LostReason::Refused } else { LostReason::Reset });
        } else if (self.receiving.next..self.receiving.edge).contains(&seq) {
            cx.drop(Dropped::ResetNotExact);
            self.challenge(cx);
        } else {
            cx.drop(Dropped::ResetOutOfWindow);
        }
    }

    /// Whether this is a SYN again, from a peer that has not received our answer. It occupies the number before RCV.NXT.
    fn is_repeated_syn(&self, seq: Seq, flags: Flags) -> bool {
        self.state == State::SynReceived && seq + 1 == self.receiving.next && !flags.contains(Flags::RST)
    }

    /// Answers a duplicate segment, or one outside the window, with an acknowledgement.
    fn answer_unacceptable(&mut self, cx: &mut Context<'_>, seq: Seq, header: &tcp::Header, bytes: usize) {
        if self.is_repeated_syn(seq, header.flags) && header.flags.contains(Flags::SYN) {
            self.repeat_syn = true;
            return;
        }
        let end = seq + bytes as u64;
        if bytes > 0 && end <= self.receiving.next && self.agreed.has_sack {
            self.acking.duplicates.add(seq, end);
        }
        if bytes > 0 || header.flags.contains(Flags::FIN) {
            self.acking.is_due = true;
        } else if seq + 1 == self.receiving.next || seq + 1 == self.receiving.acknowledged() {
            self.acking.is_due = true; // a keep-alive, or a window probe
        } else {
            self.challenge(cx);
        }
    }
}
