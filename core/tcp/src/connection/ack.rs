//! When to acknowledge (RFC 9293 §3.8.6.3, RFC 5681 §4.2, RFC 2883), and what was acknowledged to us.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::tcp;

use super::handshake::MSS_DEFAULT;
use super::{Connection, Context};
use crate::recovery;
use crate::seq::Seq;

/// Full segments at the beginning of a connection that are acknowledged at once: its sender is in slow start.
const QUICK_ACKS: u8 = 16;
/// How long a full segment waits for a second one at most. Whoever sends such has more to send, and a single one is all
/// that its window, or a probe, allows: it would wait as long (RFC 9293 §3.8.6.3 has no lower bound).
const DELAY_FULL: Duration = Duration::from_millis(2);
/// Answers to segments that nobody should have sent, per connection (RFC 5961 §7).
const CHALLENGE_EVERY: Duration = Duration::from_millis(500);

/// What is owed to the peer.
#[derive(Debug)]
pub(super) struct Acking {
    /// At once.
    pub(super) is_due: bool,
    /// At this time, if nothing goes there before.
    pub(super) at: Option<Time>,
    /// The acknowledgement field sent last: Last.ACK.sent (RFC 7323 §4.3).
    pub(super) last_sent: Seq,
    /// The field that our FIN had when it was first sent: whoever acknowledges the FIN has heard at least that.
    pub(super) with_fin: Seq,
    /// Bytes that came since something was sent.
    bytes: u64,
    /// The largest segment of the peer's so far: a full one.
    full: u64,
    quick_left: u8,
    /// Came again: to be told once (RFC 2883), when it is below what may be acknowledged.
    pub(super) duplicate: Option<(Seq, Seq)>,
    challenge_after: Time,
}

impl Acking {
    pub(super) fn new(last_sent: Seq) -> Acking {
        Acking {
            is_due: false,
            at: None,
            last_sent,
            with_fin: 0,
            bytes: 0,
            full: u64::from(MSS_DEFAULT),
            quick_left: QUICK_ACKS,
            duplicate: None,
            challenge_after: Time::ZERO,
        }
    }

    /// Something was sent, with this field.
    #[inline]
    pub(super) fn sent(&mut self, field: Seq) {
        (self.is_due, self.at, self.last_sent, self.bytes) = (false, None, field, 0);
        if self.duplicate.is_some_and(|(_, end)| end <= field) {
            self.duplicate = None;
        }
    }

    /// Bytes came in order, in a segment of so many.
    #[inline]
    pub(super) fn came(&mut self, now: Time, bytes: u64, segment: u64, delay: Duration) {
        let is_full = segment >= self.full;
        self.full = self.full.max(segment);
        self.bytes += bytes;
        if self.bytes >= 2 * self.full || (is_full && self.quick_left > 0) {
            self.quick_left -= u8::from(is_full && self.quick_left > 0);
            self.is_due = true;
        } else if self.at.is_none() {
            self.at = Some(now + if is_full { delay.min(DELAY_FULL) } else { delay });
        }
    }

    /// Whether one more answer to a segment that should not have been sent is due.
    pub(super) fn may_challenge(&mut self, now: Time) -> bool {
        let may = now >= self.challenge_after;
        if may {
            self.challenge_after = now + CHALLENGE_EVERY;
        }
        may
    }
}

impl Connection {
    /// The acknowledgement of an acceptable segment: whether the segment is to be looked at further.
    pub(super) fn take_ack(
        &mut self,
        cx: &mut Context<'_>,
        seq: Seq,
        header: &tcp::Header,
        payload_bytes: usize,
    ) -> bool {
        let (una, nxt) = (self.recovery.una(), self.recovery.nxt());
        let ack = self.base.expand(header.ack, una);
        // RFC 5961 §5: neither what was never sent nor what is older than any window.
        if ack > nxt || ack + self.peer_window.largest.max(u64::from(u16::MAX)) < una {
            cx.counters.unacceptable_acks += 1;
            self.challenge(cx);
            return false;
        }
        let is_window_changed = self.take_window(cx.now, seq, ack, header);
        if ack < una {
            return true;
        }
        let is_bare = payload_bytes == 0 && !header.flags.contains(tcp::Flags::FIN);
        let mut sack = [(0, 0); 4];
        let (many, dsack) = self.sack_of(header, ack, &mut sack);
        let echoed = || {
            let (stamps, told) = self.agreed.stamps.zip(header.options.timestamps)?;
            stamps.since(cx.now, told)
        };
        let rtt = if ack > una { echoed() } else { None };
        self.recovery.on_ack(
            cx.now,
            &recovery::Ack {
                una: ack,
                sack: &sack[..many],
                dsack,
                is_duplicate: is_bare && ack == una && nxt > una && !is_window_changed,
                has_sack: self.agreed.has_sack,
                rtt,
                peer_window: self.peer_window.size,
            },
        );
        if ack > una {
            self.queue.acknowledge(ack, cx.spent);
            self.persist.heard();
        }
        true
    }

    /// The window that an acknowledgement tells. Whether it has changed.
    #[inline]
    pub(super) fn take_window(&mut self, now: Time, seq: Seq, ack: Seq, header: &tcp::Header) -> bool {
        let una = self.recovery.una();
        let is_changed = ack >= una && self.peer_window.update(seq, ack, header.window, false);
        if una.max(ack) + self.peer_window.size < self.recovery.nxt() || self.peer_window.size == 0 {
            self.persist.shut_at = Some(now);
        }
        is_changed
    }

    /// What the peer holds beyond its acknowledgement, as far as it can be; and what it got twice (RFC 2883 §4).
    fn sack_of(
        &self,
        header: &tcp::Header,
        ack: Seq,
        out: &mut [(Seq, Seq); 4],
    ) -> (usize, Option<(Seq, Seq)>) {
        if !self.agreed.has_sack {
            return (0, None);
        }
        let (mut many, mut dsack, nxt) = (0, None, self.recovery.nxt());
        let blocks = header.options.sack.as_slice();
        let expand = |block: &(u32, u32)| {
            let left = self.base.expand(block.0, ack);
            (left, self.base.expand(block.1, left))
        };
        for (index, block) in blocks.iter().map(expand).enumerate() {
            let is_within = |outer: (Seq, Seq)| block.0 >= outer.0 && block.1 <= outer.1;
            let is_again = block.1 <= ack || blocks.get(1).map(expand).is_some_and(is_within);
            if block.0 >= block.1 || block.1 > nxt {
                continue; // nonsense
            } else if index == 0 && is_again {
                dsack = Some(block);
            } else if block.0 > ack {
                out[many] = block;
                many += 1;
            }
        }
        (many, dsack)
    }

    /// Says where we are to whoever sent what cannot be (RFC 5961), not too often.
    pub(super) fn challenge(&mut self, cx: &mut Context<'_>) {
        if self.acking.may_challenge(cx.now) {
            cx.counters.challenges += 1;
            self.acking.is_due = true;
        }
    }
}
