//! Acknowledgements: the times at which they are sent (RFC 9293 §3.8.6.3, RFC 5681 §4.2, RFC 2883), and the handling of
//! received ones.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::tcp;

use super::duplicates::Duplicates;
use super::{Connection, Context};
use crate::dropped::Dropped;
use crate::recovery;
use crate::seq::Seq;
use crate::timer::{Timer, Timers};

/// Number of segments at the beginning of a connection that are acknowledged at once, as in Linux: the sender is in
/// slow start, or, with Nagle's algorithm, waits for the acknowledgement of the first part of its message. Small
/// segments are acknowledged at once only until this end has replied: from then on, replies mostly carry the
/// acknowledgements.
const QUICK_ACKS: u8 = 16;
/// Segments of this size count as full until a longer one has arrived: it is the smallest default segment size (RFC
/// 9293 §3.7.1, MUST-15).
const FULL_BYTES_FIRST: u16 = 536;
/// The longest delay for a single full segment. The sender may have more to send and wait for this acknowledgement,
/// because its window allows only one segment or the segment is a probe. RFC 9293 §3.8.6.3 permits short delays.
const DELAY_FULL: Duration = Duration::from_millis(2);
/// Silence after which the last acknowledgement is repeated, once, while packets are lost or reordered. One
/// acknowledgement answers all frames of a turn. If that one is lost, a peer with nothing more to send waits for its
/// retransmission timeout: during recovery Linux sends no tail loss probe. RFC 5681 §4.2 allows one *immediate*
/// acknowledgement per segment; the repetition is a delayed one.
const REPEAT_AFTER: Duration = Duration::from_millis(2);
/// Time after a gap or a duplicate during which acknowledgements are repeated.
const DISORDER_TIME: Duration = Duration::from_secs(1);
/// Minimum time between two challenge acknowledgements of a connection (RFC 5961 §7).
const CHALLENGE_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// The acknowledgements owed to the peer.
#[derive(Debug)]
pub(super) struct Acking {
    /// An acknowledgement must be sent at once.
    pub(super) is_due: bool,
    /// The next acknowledgement is to be repeated.
    must_repeat: bool,
    /// Time until which packets count as recently lost or reordered.
    disordered_until: Time,
    /// The acknowledgement field sent last: Last.ACK.sent (RFC 7323 §4.3).
    pub(super) last_sent: Seq,
    /// The acknowledgement field of our first FIN. A peer that acknowledges the FIN has received this field as well.
    pub(super) sent_with_fin: Seq,
    /// Bytes received since a segment was last sent.
    bytes_since_sent: u64,
    /// The peer's largest segment so far, in bytes: segments of this size count as full.
    full_bytes: u64,
    quick_acks_left: u8,
    /// This end has sent bytes after it had received some.
    has_replied: bool,
    /// Duplicates to be reported by D-SACK.
    pub(super) duplicates: Duplicates,
    challenge_after: Time,
}

impl Acking {
    pub(super) fn new(last_sent: Seq) -> Acking {
        Acking {
            is_due: false,
            must_repeat: false,
            disordered_until: Time::ZERO,
            last_sent,
            sent_with_fin: 0,
            bytes_since_sent: 0,
            full_bytes: u64::from(FULL_BYTES_FIRST),
            quick_acks_left: QUICK_ACKS,
            has_replied: false,
            duplicates: Duplicates::default(),
            challenge_after: Time::ZERO,
        }
    }

    /// For an imported connection, whose first segments arrived at another stack. Unreported duplicates and a pending
    /// repetition are not part of the exported state.
    pub(super) fn imported(last_sent: Seq, is_due: bool) -> Acking {
        Acking { is_due, quick_acks_left: 0, ..Acking::new(last_sent) }
    }

    /// Records that a segment was sent. `is_held`: the gate holds back received bytes. The acknowledgement is then not
    /// repeated: the repetition would indicate the loss of a segment that has arrived.
    #[inline]
    pub(super) fn on_sent(
        &mut self,
        now: Time,
        acknowledged: Seq,
        is_held: impl FnOnce() -> bool,
        timers: &mut Timers,
    ) {
        timers.stop(Timer::Acknowledge);
        timers.stop(Timer::Repeat);
        (self.is_due, self.last_sent, self.bytes_since_sent) = (false, acknowledged, 0);
        if core::mem::take(&mut self.must_repeat) && !is_held() {
            timers.set(Timer::Repeat, now + REPEAT_AFTER);
        }
    }

    #[inline]
    pub(super) fn on_bytes_sent(&mut self) {
        self.has_replied |= self.quick_acks_left < QUICK_ACKS;
    }

    /// The acknowledgement can rise by `bytes`, after a segment of `segment_bytes` payload bytes in order.
    #[inline]
    pub(super) fn on_bytes(
        &mut self,
        now: Time,
        bytes: u64,
        segment_bytes: u64,
        delay: Duration,
        timers: &mut Timers,
    ) {
        let is_full = segment_bytes >= self.full_bytes;
        self.full_bytes = self.full_bytes.max(segment_bytes);
        self.bytes_since_sent += bytes;
        self.must_repeat |= now < self.disordered_until;
        let is_quick = self.quick_acks_left > 0 && (is_full || !self.has_replied);
        if is_quick || self.bytes_since_sent >= 2 * self.full_bytes {
            self.quick_acks_left = self.quick_acks_left.saturating_sub(1);
            self.is_due = true;
        } else {
            self.owe_within(now, if is_full { delay.min(DELAY_FULL) } else { delay }, timers);
        }
    }

    /// Bytes arrived out of order, filled a gap or arrived twice. `is_disordered`: packets were lost or reordered;
    /// otherwise the bytes only wait for a grant.
    pub(super) fn on_out_of_order(&mut self, now: Time, is_disordered: bool) {
        self.is_due = true;
        if is_disordered {
            self.disordered_until = now + DISORDER_TIME;
        }
        self.must_repeat |= now < self.disordered_until;
    }

    /// Owes an acknowledgement within `delay`. If a repetition is pending, the acknowledgement replaces it, and is due
    /// at the time of the repetition.
    pub(super) fn owe_within(&mut self, now: Time, delay: Duration, timers: &mut Timers) {
        if !timers.is_set(Timer::Acknowledge) {
            timers.set(Timer::Acknowledge, timers.get(Timer::Repeat).unwrap_or(now + delay));
            timers.stop(Timer::Repeat);
        }
    }

    /// Whether an acknowledgement is owed; a repetition is not.
    pub(super) fn owes(&self, timers: &Timers) -> bool {
        self.is_due || timers.is_set(Timer::Acknowledge)
    }

    /// [`Timer::Acknowledge`] has expired: the delayed acknowledgement is due.
    pub(super) fn on_delayed(&mut self, timers: &mut Timers) {
        timers.stop(Timer::Acknowledge);
        self.is_due = true;
    }

    /// [`Timer::Repeat`] has expired. `is_held`: the gate holds back bytes, which may have arrived since
    /// [`on_sent`](Self::on_sent).
    pub(super) fn on_repeat(&mut self, is_held: bool, timers: &mut Timers) {
        timers.stop(Timer::Repeat);
        self.is_due |= !is_held;
    }

    /// Whether the rate limit permits a challenge now; if so, counts one.
    pub(super) fn may_challenge(&mut self, now: Time) -> bool {
        let is_permitted = now >= self.challenge_after;
        if is_permitted {
            self.challenge_after = now + CHALLENGE_INTERVAL_MIN;
        }
        is_permitted
    }
}

impl Connection {
    /// Handles the acknowledgement of an acceptable segment. `false`: the rest of the segment is to be dropped.
    pub(super) fn handle_ack(
        &mut self,
        cx: &mut Context<'_>,
        seq: Seq,
        header: &tcp::Header,
        payload_bytes: usize,
    ) -> bool {
        let (una, nxt) = (self.recovery.una(), self.recovery.nxt());
        let ack = self.base.expand(header.ack, una);
        // RFC 5961 §5: rejects acknowledgements of bytes never sent, and those older than the peer's largest window.
        if ack > nxt || ack + self.peer_window.largest.max(u64::from(u16::MAX)) < una {
            cx.drop(Dropped::BadAck);
            self.challenge(cx);
            return false;
        }
        let is_window_changed = self.update_peer_window(cx.now, seq, ack, header);
        if ack < una {
            self.handle_overtaken_ack(cx, header, ack);
            return true;
        }
        let is_bare = payload_bytes == 0 && !header.flags.contains(tcp::Flags::FIN);
        let mut sack = [(0, 0); 4];
        let (count, dsack) = self.sack_blocks_of(header, ack, &mut sack);
        let echoed = || {
            let (ours, theirs) = self.agreed.timestamps.zip(header.options.timestamps)?;
            ours.since_echo(cx.now, theirs)
        };
        let rtt = if ack > una { echoed() } else { None };
        self.recovery.on_ack(
            cx.now,
            &recovery::Ack {
                una: ack,
                sack: &sack[..count],
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
            self.persist.on_progress();
        }
        true
    }

    /// Handles an acknowledgement that was overtaken by a later one: its SACK blocks may still be new (RFC 6675 §5:
    /// "upon the receipt of any ACK containing SACK information").
    #[cold]
    fn handle_overtaken_ack(&mut self, cx: &Context<'_>, header: &tcp::Header, ack: Seq) {
        let mut sack = [(0, 0); 4];
        let (count, dsack) = self.sack_blocks_of(header, ack, &mut sack);
        if count == 0 && dsack.is_none() {
            return;
        }
        self.recovery.on_ack(
            cx.now,
            &recovery::Ack {
                una: self.recovery.una(),
                sack: &sack[..count],
                dsack,
                is_duplicate: false,
                has_sack: self.agreed.has_sack,
                rtt: None,
                peer_window: self.peer_window.size,
            },
            &mut self.timers,
        );
    }

    /// Takes over the window of an acknowledgement; returns whether the window has changed.
    #[inline]
    pub(super) fn update_peer_window(&mut self, now: Time, seq: Seq, ack: Seq, header: &tcp::Header) -> bool {
        let una = self.recovery.una();
        let is_changed = ack >= una && self.peer_window.update(seq, ack, header.window, false);
        if una.max(ack) + self.peer_window.size < self.recovery.nxt() || self.peer_window.size == 0 {
            self.persist.closed_at = Some(now);
        }
        is_changed
    }

    /// Writes a segment's valid SACK blocks to `out`. Returns their number, and the D-SACK block (RFC 2883 §4).
    fn sack_blocks_of(
        &self,
        header: &tcp::Header,
        ack: Seq,
        out: &mut [(Seq, Seq); 4],
    ) -> (usize, Option<(Seq, Seq)>) {
        if !self.agreed.has_sack {
            return (0, None);
        }
        let (mut count, mut dsack, nxt) = (0, None, self.recovery.nxt());
        let blocks = header.options.sack.as_slice();
        let expand = |block: &(u32, u32)| {
            let left = self.base.expand(block.0, ack);
            (left, self.base.expand(block.1, left))
        };
        for (index, block) in blocks.iter().map(expand).enumerate() {
            let is_within = |outer: (Seq, Seq)| block.0 >= outer.0 && block.1 <= outer.1;
            let is_duplicate = block.1 <= ack || blocks.get(1).map(expand).is_some_and(is_within);
            if block.0 >= block.1 || block.1 > nxt {
                continue; // invalid
            } else if index == 0 && is_duplicate {
                dsack = Some(block);
            } else if block.0 > ack {
                out[count] = block;
                count += 1;
            }
        }
        (count, dsack)
    }

    /// Owes a challenge acknowledgement to the sender of an unacceptable segment (RFC 5961), within the rate limit.
    pub(super) fn challenge(&mut self, cx: &mut Context<'_>) {
        if self.acking.may_challenge(cx.now) {
            cx.counters.challenges += 1;
            self.acking.is_due = true;
        } else {
            cx.drop(Dropped::ChallengeLimited);
        }
    }
}
