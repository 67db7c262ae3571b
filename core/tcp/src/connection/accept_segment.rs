//! Checks of segments: from the peer, in the window, not old (RFC 9293 §3.10.7.4, RFC 5961, RFC 7323 §5).

use core::time::Duration;

use spillway_transport::{LostReason, Time};
use spillway_wire::packet::tcp::{self, Flags, Timestamps};

use super::{Connection, Context, State};
use crate::dropped::Dropped;
use crate::narrow::low_half;
use crate::seq::Seq;

/// A TS.Recent older than this is not compared: the peer's clock may have wrapped (RFC 7323 §5.5).
const TIMESTAMP_VALID: Duration = Duration::from_secs(24 * 24 * 3600);

/// Negotiated timestamps (RFC 7323 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimestampState {
    /// This end's clock at time zero, in milliseconds. It differs for each peer, which hides the uptime.
    pub(super) offset: u32,
    /// TS.Recent. `None` before the first segment, also after an import from a stack that does not reveal it.
    pub(super) recent: Option<u32>,
    /// Arrival time of TS.Recent.
    pub(super) recent_at: Time,
}

impl TimestampState {
    /// This end's timestamp clock, in milliseconds.
    pub(super) fn value_at(&self, now: Time) -> u32 {
        TimestampState::clock(now).wrapping_add(self.offset)
    }

    /// The same clock without the offset.
    pub(super) fn clock(now: Time) -> u32 {
        low_half(now.as_nanos() / 1_000_000) // wraps
    }

    /// What segments echo (RFC 7323 §3.2): TS.Recent; 0 if it is not known, which peers do not use.
    pub(super) fn echo(&self) -> u32 {
        self.recent.unwrap_or(0)
    }

    /// Whether TS.Recent is at most a segment's `value`, or not known.
    #[inline]
    pub(super) fn is_at_most(&self, value: u32) -> bool {
        self.recent.is_none_or(|recent| value.wrapping_sub(recent).cast_signed() >= 0)
    }

    /// Whether TS.Recent is newer than a segment's `value`; always `false` if TS.Recent is too old (RFC 7323 §5.5).
    fn is_newer_than(&self, now: Time, value: u32) -> bool {
        !self.is_at_most(value) && now.since(self.recent_at) <= TIMESTAMP_VALID
    }

    /// The time since this end sent the echoed timestamp (RFC 7323 §4.1), in whole milliseconds. `None` for an echo of 0,
    /// which a peer sends that knows no timestamp to echo, and for one of the future.
    pub(super) fn since_echo(&self, now: Time, theirs: Timestamps) -> Option<Duration> {
        if theirs.echo == 0 {
            return None;
        }
        let elapsed_ms = self.value_at(now).wrapping_sub(theirs.echo).cast_signed();
        u64::try_from(elapsed_ms).ok().map(Duration::from_millis)
    }
}

impl Connection {
    /// Checks a segment before its contents are used. `false`: the segment was dropped or answered.
    pub(super) fn accept_segment(
        &mut self,
        cx: &mut Context<'_>,
        seq: Seq,
        header: &tcp::Header,
        payload: &[u8],
    ) -> bool {
        let flags = header.flags;
        let has = |flag| flags.contains(flag);
        // A SYN is challenged regardless of its timestamp: a restarted peer may have another clock, or no timestamps.
        if !flags.intersects(Flags::RST | Flags::SYN) && !self.accept_timestamp(cx, seq, header) {
            return false;
        }
        let end = seq + payload.len() as u64 + u64::from(has(Flags::SYN)) + u64::from(has(Flags::FIN));
        if has(Flags::RST) {
            self.handle_reset(cx, seq);
            return false;
        }
        if has(Flags::SYN) && !self.is_repeated_syn(seq, flags) {
            // A restarted peer answers the challenge with an exact reset (RFC 5961 §4).
            cx.drop(Dropped::SynInConnection);
            self.challenge(cx);
            return false;
        }
        if has(Flags::SYN | Flags::ACK) {
            // Simultaneous open, and the peer has received our SYN (RFC 9293 §3.5, figure 7). The segment must not be
            // answered by another SYN: the peer would answer that one in the same way, endlessly.
            return true;
        }
        let is_bare_fin = payload.is_empty() && has(Flags::FIN);
        if !self.receiving.is_acceptable(seq, end, is_bare_fin) {
            let is_old = end <= self.receiving.received();
            cx.drop(if is_old { Dropped::Duplicate } else { Dropped::OutOfWindow });
            self.answer_unacceptable(cx, seq, header, payload.len());
            // The segment's acknowledgement counts if only the window is closed (RFC 9293 §3.10.7.4), or if the segment is
            // a retransmission, which may be the peer's last segment and the only acknowledgement of our FIN. It does not
            // count in SYN-RECEIVED, where an acknowledgement would also have to establish the connection.
            let is_closed = self.receiving.offered <= self.receiving.received();
            let is_repeated = seq < end && end == self.receiving.received();
            let is_opening = self.state == State::SynReceived;
            if (is_closed || is_repeated) && !is_opening && has(Flags::ACK) && !has(Flags::SYN) {
                self.handle_ack(cx, seq, header, payload.len());
            }
            return false;
        }
        if !has(Flags::ACK) {
            cx.drop(Dropped::WithoutAck);
        }
        has(Flags::ACK)
    }

    /// PAWS: protection against wrapped sequence numbers (RFC 7323 §5.3). `false`: the segment was dropped or
    /// answered.
    fn accept_timestamp(&mut self, cx: &mut Context<'_>, seq: Seq, header: &tcp::Header) -> bool {
        let Some(ours) = &self.agreed.timestamps else { return true };
        let Some(theirs) = header.options.timestamps else {
            cx.drop(Dropped::WithoutTimestamp);
            return false; // no answer (§3.2)
        };
        if !ours.is_newer_than(cx.now, theirs.value) {
            return true;
        }
        cx.drop(Dropped::OldTimestamp);
        self.answer_unacceptable(cx, seq, header, 0);
        false
    }

    /// Updates TS.Recent (RFC 7323 §4.3): only from a segment that begins at or before the last acknowledgement sent,
    /// so that a delayed acknowledgement echoes the first segment that it covers. Call it only after the
    /// acknowledgement was validated, as Linux does: a forged timestamp would make PAWS reject the peer's segments.
    pub(super) fn remember_timestamp(&mut self, now: Time, seq: Seq, header: &tcp::Header) {
        if let (Some(ours), Some(theirs)) = (&mut self.agreed.timestamps, header.options.timestamps)
            && seq <= self.acking.last_sent
            && !ours.is_newer_than(now, theirs.value)
        {
            (ours.recent, ours.recent_at) = (Some(theirs.value), now);
        }
    }

    /// RFC 5961 §3.2: only a reset at exactly RCV.NXT ends the connection. A reset at the gate ends it as well: a reset
    /// that answers our segment has the number in the segment's acknowledgement field.
    fn handle_reset(&mut self, cx: &mut Context<'_>, seq: Seq) {
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

    /// Whether this is a retransmitted SYN of a peer that has not received our SYN-ACK. Such a SYN has the number
    /// before RCV.NXT.
    fn is_repeated_syn(&self, seq: Seq, flags: Flags) -> bool {
        self.state == State::SynReceived && seq + 1 == self.receiving.next && !flags.contains(Flags::RST)
    }

    /// Answers a duplicate segment, or one outside the window, with an acknowledgement.
    fn answer_unacceptable(&mut self, cx: &mut Context<'_>, seq: Seq, header: &tcp::Header, bytes: usize) {
        if self.is_repeated_syn(seq, header.flags) && header.flags.contains(Flags::SYN) {
            self.must_repeat_syn = true;
            return;
        }
        let end = seq + bytes as u64;
        if bytes > 0 && end <= self.receiving.next && self.agreed.has_sack {
            self.acking.duplicates.add(seq, end);
        }
        if bytes > 0 || header.flags.contains(Flags::FIN) {
            self.acking.is_due = true;
        } else if seq + 1 == self.receiving.next || seq + 1 == self.receiving.acknowledged() {
            self.acking.is_due = true; // the segment is a keep-alive or a window probe
        } else {
            self.challenge(cx);
        }
    }
}
