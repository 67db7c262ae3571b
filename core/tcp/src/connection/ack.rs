//! When to acknowledge (RFC 9293 §3.8.6.3, RFC 5681 §4.2, RFC 2883), and what was acknowledged to us.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::tcp;

use super::duplicates::Duplicates;
use super::handshake::MSS_DEFAULT;
use super::{Connection, Context};
use crate::dropped::Dropped;
use crate::recovery;
use crate::seq::Seq;
use crate::timer::{Timer, Timers};

/// Segments at the beginning of a connection that are acknowledged at once, as Linux does: its sender is in slow start, or
/// writes its first message in two parts and, with Nagle's algorithm, waits for the acknowledgement of the first. Small ones
/// only until this end has answered: from then on an answer mostly takes the acknowledgement with it.
const QUICK_ACKS: u8 = 16;
/// How long a full segment waits for a second one at most. Whoever sends such has more to send, and a single one is all
/// that its window, or a probe, allows: it would wait as long (RFC 9293 §3.8.6.3 has no lower bound).
const DELAY_FULL: Duration = Duration::from_millis(2);
/// How long a peer that has sent bytes is silent before the last acknowledgement is repeated, once, while packets are lost
/// or reordered. One acknowledgement answers a whole turn's frames. If that one is lost, the peer may have nothing more to
/// send and hears nothing until its retransmission timeout: in a recovery Linux sends no tail loss probe. RFC 5681 §4.2
/// allows one *immediate* acknowledgement per segment; this one comes later.
const REPEAT_AFTER: Duration = Duration::from_millis(2);
/// How long after a gap or a duplicate the last acknowledgement is repeated.
const TROUBLE_LASTS: Duration = Duration::from_secs(1);
/// Answers to segments that nobody should have sent, per connection (RFC 5961 §7).
const CHALLENGE_EVERY: Duration = Duration::from_millis(500);

/// What is owed to the peer.
#[derive(Debug)]
pub(super) struct Acking {
    /// At once.
    pub(super) is_due: bool,
    /// The next acknowledgement is to be repeated.
    repeats: bool,
    /// Until then packets count as lost or reordered recently.
    trouble_until: Time,
    /// The acknowledgement field sent last: Last.ACK.sent (RFC 7323 §4.3).
    pub(super) last_sent: Seq,
    /// The field that our FIN had when it was first sent: whoever acknowledges the FIN has heard at least that.
    pub(super) with_fin: Seq,
    /// Bytes that came since something was sent.
    bytes: u64,
    /// The largest segment of the peer's so far: a full one.
    full: u64,
    quick_left: u8,
    /// This end has sent bytes after some had come.
    has_answered: bool,
    /// What came twice and is to be told by D-SACK.
    pub(super) duplicates: Duplicates,
    challenge_after: Time,
}

impl Acking {
    pub(super) fn new(last_sent: Seq) -> Acking {
        Acking {
            is_due: false,
            repeats: false,
            trouble_until: Time::ZERO,
            last_sent,
            with_fin: 0,
            bytes: 0,
            full: u64::from(MSS_DEFAULT),
            quick_left: QUICK_ACKS,
            has_answered: false,
            duplicates: Duplicates::default(),
            challenge_after: Time::ZERO,
        }
    }

    /// Of a connection that comes from another stack. Its first segments were elsewhere. What is not told any more: what came
    /// twice, and what was to be repeated.
    pub(super) fn of_moved(last_sent: Seq, is_due: bool) -> Acking {
        Acking { is_due, quick_left: 0, ..Acking::new(last_sent) }
    }

    /// Something was sent, with this field. `is_held`: a gate holds back bytes that have come. A repetition would be a
    /// duplicate acknowledgement then, of a head that is not lost.
    #[inline]
    pub(super) fn sent(
        &mut self,
        now: Time,
        field: Seq,
        is_held: impl FnOnce() -> bool,
        timers: &mut Timers,
    ) {
        timers.stop(Timer::Acknowledge);
        timers.stop(Timer::Repeat);
        (self.is_due, self.last_sent, self.bytes) = (false, field, 0);
        if core::mem::take(&mut self.repeats) && !is_held() {
            timers.set(Timer::Repeat, now + REPEAT_AFTER);
        }
    }

    /// Bytes of ours were sent.
    #[inline]
    pub(super) fn sent_bytes(&mut self) {
        self.has_answered |= self.quick_left < QUICK_ACKS;
    }

    /// Bytes came in order, in a segment of so many.
    #[inline]
    pub(super) fn came(&mut self, now: Time, bytes: u64, segment: u64, delay: Duration, timers: &mut Timers) {
        let is_full = segment >= self.full;
        self.full = self.full.max(segment);
        self.bytes += bytes;
        self.repeats |= now < self.trouble_until;
        let is_quick = self.quick_left > 0 && (is_full || !self.has_answered);
        if is_quick || self.bytes >= 2 * self.full {
            self.quick_left = self.quick_left.saturating_sub(1);
            self.is_due = true;
        } else {
            self.owe_within(now, if is_full { delay.min(DELAY_FULL) } else { delay }, timers);
        }
    }

    /// Bytes came out of order, or filled a gap, or came twice. `is_trouble`: packets were lost or reordered; otherwise they
    /// only wait for a grant.
    pub(super) fn came_out_of_order(&mut self, now: Time, is_trouble: bool) {
        self.is_due = true;
        if is_trouble {
            self.trouble_until = now + TROUBLE_LASTS;
        }
        self.repeats |= now < self.trouble_until;
    }

    /// Something is to be told, if nothing goes there before that; when an acknowledgement is to be repeated before, then.
    pub(super) fn owe_within(&mut self, now: Time, delay: Duration, timers: &mut Timers) {
        if !timers.is_set(Timer::Acknowledge) {
            timers.set(Timer::Acknowledge, timers.get(Timer::Repeat).unwrap_or(now + delay));
            timers.stop(Timer::Repeat);
        }
    }

    /// The peer waits for something: a repetition is not that.
    pub(super) fn owes(&self, timers: &Timers) -> bool {
        self.is_due || timers.is_set(Timer::Acknowledge)
    }

    /// [`Timer::Acknowledge`] has expired: what could wait may not wait any longer.
    pub(super) fn on_delayed(&mut self, timers: &mut Timers) {
        timers.stop(Timer::Acknowledge);
        self.is_due = true;
    }

    /// [`Timer::Repeat`] has expired. `is_held` as for [`sent`](Self::sent): bytes may have come to the gate since.
    pub(super) fn on_repeat(&mut self, is_held: bool, timers: &mut Timers) {
        timers.stop(Timer::Repeat);
        self.is_due |= !is_held;
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
            cx.drop(Dropped::BadAck);
            self.challenge(cx);
            return false;
        }
        let is_window_changed = self.take_window(cx.now, seq, ack, header);
        if ack < una {
            self.take_overtaken(cx, header, ack);
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
            &mut self.timers,
        );
        if ack > una {
            self.queue.acknowledge(ack, cx.spent);
            self.persist.heard();
        }
        true
    }

    /// An acknowledgement that was overtaken by a later one: its blocks are news all the same (RFC 6675 §5: "upon the receipt
    /// of any ACK containing SACK information").
    #[cold]
    fn take_overtaken(&mut self, cx: &Context<'_>, header: &tcp::Header, ack: Seq) {
        let mut sack = [(0, 0); 4];
        let (many, dsack) = self.sack_of(header, ack, &mut sack);
        if many == 0 && dsack.is_none() {
            return;
        }
        self.recovery.on_ack(
            cx.now,
            &recovery::Ack {
                una: self.recovery.una(),
                sack: &sack[..many],
                dsack,
                is_duplicate: false,
                has_sack: self.agreed.has_sack,
                rtt: None,
                peer_window: self.peer_window.size,
            },
            &mut self.timers,
        );
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
        } else {
            cx.drop(Dropped::ChallengeLimited);
        }
    }
}
