//! Whether a segment is the peer's, and of now (RFC 9293 §3.10.7.4, RFC 5961, RFC 7323 §5).

use core::time::Duration;

use spillway_transport::{LostReason, Time};
use spillway_wire::packet::tcp::{self, Flags, Timestamps};

use super::{Connection, Context, State};
use crate::dropped::Dropped;
use crate::narrow::low_half;
use crate::seq::Seq;

/// A timestamp older than this says nothing: the clock may have wrapped (RFC 7323 §5.5).
const TIMESTAMP_VALID: Duration = Duration::from_secs(24 * 24 * 3600);

/// Timestamps as both ends agreed on (RFC 7323 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    /// What our clock shows at time zero, in milliseconds: another for each peer, so that nobody learns how long we run.
    pub(super) offset: u32,
    /// TS.Recent,
    pub(super) recent: u32,
    /// and when it came.
    pub(super) recent_at: Time,
}

impl Stamps {
    /// Our clock, milliseconds.
    pub(super) fn now(&self, now: Time) -> u32 {
        Stamps::clock(now).wrapping_add(self.offset)
    }

    /// The same without an offset.
    pub(super) fn clock(now: Time) -> u32 {
        low_half(now.as_nanos() / 1_000_000) // wraps
    }

    /// Whether a segment with this is older than what came before. What came long ago says nothing (RFC 7323 §5.5).
    fn is_newer_than(&self, now: Time, value: u32) -> bool {
        value.wrapping_sub(self.recent).cast_signed() < 0 && now.since(self.recent_at) <= TIMESTAMP_VALID
    }

    /// How long ago the peer heard what it echoes (RFC 7323 §4.1), in whole milliseconds.
    pub(super) fn since(&self, now: Time, told: Timestamps) -> Option<Duration> {
        let elapsed_ms = self.now(now).wrapping_sub(told.echo).cast_signed();
        u64::try_from(elapsed_ms).ok().map(Duration::from_millis) // none in the future
    }
}

impl Connection {
    /// The checks before anything is taken from a segment. `false`: nothing more is to be done with it.
    pub(super) fn is_acceptable(
        &mut self,
        cx: &mut Context<'_>,
        seq: Seq,
        header: &tcp::Header,
        payload: &[u8],
    ) -> bool {
        let flags = header.flags;
        let has = |flag| flags.contains(flag);
        // A SYN is challenged whatever its clock: whoever has restarted may have another, or none.
        if !flags.intersects(Flags::RST | Flags::SYN) && !self.is_timely(cx, seq, header) {
            return false;
        }
        let end = seq + payload.len() as u64 + u64::from(has(Flags::SYN)) + u64::from(has(Flags::FIN));
        if has(Flags::RST) {
            self.take_reset(cx, seq);
            return false;
        }
        if has(Flags::SYN) && !self.is_repeated_syn(seq, flags) {
            // Whoever has restarted will answer a challenge with a reset that is exact (RFC 5961 §4).
            cx.drop(Dropped::SynInConnection);
            self.challenge(cx);
            return false;
        }
        if has(Flags::SYN | Flags::ACK) {
            // Both ends have begun at once, and the peer has seen our SYN (RFC 9293 §3.5, figure 7). Another SYN of ours
            // would make it answer with another, for ever.
            return true;
        }
        let is_bare_fin = payload.is_empty() && has(Flags::FIN);
        if !self.receiving.is_acceptable(seq, end, is_bare_fin) {
            let is_old = end <= self.receiving.received();
            cx.drop(if is_old { Dropped::Duplicate } else { Dropped::OutOfWindow });
            self.answer_unacceptable(cx, seq, header, payload.len());
            // An acknowledgement in it is right all the same: RFC 9293 §3.10.7.4 lets it be taken when only the window is
            // shut (MUST-66). In what came last, and comes again, it may be the only one of our FIN: its sender may be gone
            // when we ask. Before the connection is established there is more to do with one.
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

    /// Protection against wrapped sequence numbers (RFC 7323 §5.3).
    fn is_timely(&mut self, cx: &mut Context<'_>, seq: Seq, header: &tcp::Header) -> bool {
        let Some(stamps) = &self.agreed.stamps else { return true };
        let Some(told) = header.options.timestamps else {
            cx.drop(Dropped::WithoutTimestamp);
            return false; // §3.2: in silence
        };
        if !stamps.is_newer_than(cx.now, told.value) {
            return true;
        }
        cx.drop(Dropped::OldTimestamp);
        self.answer_unacceptable(cx, seq, header, 0);
        false
    }

    /// RFC 7323 §4.3: only from a segment that spans what was acknowledged last, so that a delayed acknowledgement echoes
    /// the first it covers. Nor before its acknowledgement was found to be right, as Linux: a clock that somebody makes up
    /// would shut the peer out.
    pub(super) fn remember_timestamp(&mut self, now: Time, seq: Seq, header: &tcp::Header) {
        if let (Some(stamps), Some(told)) = (&mut self.agreed.stamps, header.options.timestamps)
            && seq <= self.acking.last_sent
            && !stamps.is_newer_than(now, told.value)
        {
            (stamps.recent, stamps.recent_at) = (told.value, now);
        }
    }

    /// RFC 5961 §3.2: only one who knows exactly where we are may reset. Behind a closed gate a peer that answers our
    /// segments knows the gate instead.
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

    /// A SYN that came before, from somebody to whom our answer was lost. It occupies a sequence number before RCV.NXT.
    fn is_repeated_syn(&self, seq: Seq, flags: Flags) -> bool {
        self.state == State::SynReceived && seq + 1 == self.receiving.next && !flags.contains(Flags::RST)
    }

    /// What was received already, or is outside the window: the peer is told where we are.
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
            self.acking.is_due = true; // a keep-alive, or a probe of our window
        } else {
            self.challenge(cx);
        }
    }
}
