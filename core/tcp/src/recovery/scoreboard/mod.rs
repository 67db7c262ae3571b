//! The segments that were sent and are not acknowledged, each with its state.
//!
//! The sums over segments are those of RFC 6675. They are updated when segments change, so that reading them is cheap.

#[cfg(test)]
mod check;
mod lost;
mod sacked;

use alloc::collections::VecDeque;

use spillway_transport::Time;

use crate::seq::Seq;

pub(super) const SEGMENTS_MAX: usize = 4096;

/// At this number of segments new bytes extend the last segment, so that room remains for dividing segments.
const SEGMENTS_SENT_MAX: usize = SEGMENTS_MAX - 512;

/// Capacity, in segments, that an empty queue keeps.
const SEGMENTS_KEPT: usize = 16;

/// SACK blocks kept of the last acknowledgement: as many as a segment without timestamps carries.
const BLOCKS_KEPT: usize = 4;

/// A segment; it begins where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub end: Seq,
    /// Time of the last transmission.
    pub sent_at: Time,
    pub transmissions: u8,
    /// The peer has reported the segment by SACK.
    pub sacked: bool,
    /// The segment was SACKed before a timeout; the peer may have discarded it since (RFC 2018 §8).
    pub was_sacked: bool,
    pub lost: bool,
    /// Retransmitted after it was marked as lost.
    pub retransmitted: bool,
}

/// What an acknowledgement has revealed about segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delivered {
    /// Bytes newly known to have arrived.
    pub bytes: u64,
    /// Send time of the first acknowledged segment, if it is unambiguous (Karn).
    pub sent_at: Option<Time>,
    /// Whether any acknowledged segment was sent more than once.
    pub repeated: bool,
    /// Whether a segment arrived that was sent only once, before the last timeout, and had not been SACKed before.
    pub original: bool,
    /// The latest transmission that arrived: its send time, and the end of the segment, because several segments may
    /// have one send time.
    pub latest: (Time, Seq),
    /// End of the highest bytes SACKed before this acknowledgement.
    pub highest_sacked: Seq,
    /// A segment sent more than once, and last after this time, may have arrived by an earlier transmission.
    pub ambiguous_after: Time,
    /// Largest number of segments by which a segment that was sent once arrived out of order.
    pub reordering: u32,
    /// `reordering` of segments sent more than once.
    pub reordering_repeated: u32,
}

/// The segments of one connection, with their sums.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    una: Seq,
    nxt: Seq,
    pub(super) segments: VecDeque<Segment>,
    sacked: u64,
    sacked_segments: u32,
    lost: u64,
    /// Retransmitted bytes among the lost ones.
    retransmitted: u64,
    highest_sacked: Seq,
    /// All segments below this number are SACKed or marked as lost.
    lost_below: Seq,
    /// No segment that is to be retransmitted begins below this number.
    next_lost_from: Seq,
    /// All retransmissions in flight were sent at this time or later.
    retransmitted_first: Time,
    /// End of the last segment that was sent twice, or was SACKed before a timeout.
    repeated_to: Seq,
    /// SND.NXT at the last timeout.
    timeout_point: Seq,
    /// SACK blocks of the last acknowledgement.
    blocks: [(Seq, Seq); BLOCKS_KEPT],
}

impl Scoreboard {
    pub(super) fn new(first: Seq) -> Scoreboard {
        Scoreboard {
            una: first,
            nxt: first,
            segments: VecDeque::new(),
            sacked: 0,
            sacked_segments: 0,
            lost: 0,
            retransmitted: 0,
            highest_sacked: first,
            lost_below: first,
            next_lost_from: Seq::MAX,
            retransmitted_first: Time(u64::MAX),
            repeated_to: first,
            timeout_point: first,
            blocks: [(0, 0); BLOCKS_KEPT],
        }
    }

    /// Restores segments, the first beginning at `una`; `None` if they are out of order, contradictory or too many.
    pub(super) fn from_segments(una: Seq, segments: VecDeque<Segment>) -> Option<Scoreboard> {
        let mut scoreboard = Scoreboard::new(una);
        if segments.len() > SEGMENTS_MAX {
            return None;
        }
        for segment in &segments {
            let length = segment.end.checked_sub(scoreboard.nxt).filter(|&length| length > 0)?;
            let is_possible = segment.transmissions > 0
                && !(segment.sacked && segment.lost)
                && (segment.lost || !segment.retransmitted);
            if !is_possible {
                return None;
            }
            if segment.sacked {
                scoreboard.sacked += length;
                scoreboard.sacked_segments += 1;
                scoreboard.highest_sacked = segment.end;
            }
            if segment.lost {
                scoreboard.lost += length;
            }
            if segment.retransmitted {
                scoreboard.retransmitted += length;
                scoreboard.retransmitted_first = scoreboard.retransmitted_first.min(segment.sent_at);
            } else if segment.lost {
                scoreboard.next_lost_from = scoreboard.next_lost_from.min(scoreboard.nxt);
            }
            if segment.transmissions > 1 || segment.was_sacked {
                scoreboard.repeated_to = segment.end;
            }
            scoreboard.nxt = segment.end;
        }
        scoreboard.segments = segments;
        Some(scoreboard)
    }

    /// For an imported connection: sets SND.NXT at its last timeout.
    pub(super) fn set_timeout_point(&mut self, nxt: Seq) {
        self.timeout_point = nxt;
    }

    pub(super) fn una(&self) -> Seq {
        self.una
    }

    pub(super) fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Bytes sent and not cumulatively acknowledged: RFC 5681's FlightSize.
    pub(super) fn in_flight(&self) -> u64 {
        self.nxt - self.una
    }

    /// Bytes considered to be in the network (RFC 6675 §4).
    pub(super) fn pipe(&self) -> u64 {
        self.in_flight() - self.sacked - (self.lost - self.retransmitted)
    }

    pub(super) fn sacked(&self) -> u64 {
        self.sacked
    }

    pub(super) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn has_lost_to_send(&self) -> bool {
        self.lost > self.retransmitted
    }

    pub(super) fn highest_sacked(&self) -> Seq {
        self.highest_sacked
    }

    #[inline]
    pub(super) fn send(&mut self, now: Time, to: Seq) {
        if self.segments.len() >= SEGMENTS_SENT_MAX
            && let Some(last) = self.segments.back_mut()
            && !(last.sacked || last.lost || last.transmissions > 1)
        {
            (last.end, last.sent_at) = (to, now);
        } else if self.segments.len() < SEGMENTS_MAX {
            let (sacked, was_sacked, lost, retransmitted) = (false, false, false, false);
            let segment =
                Segment { end: to, sent_at: now, transmissions: 1, sacked, was_sacked, lost, retransmitted };
            self.segments.push_back(segment);
        } else if let Some(last) = self.segments.len().checked_sub(1) {
            // The queue is full and its last segment is marked: the new bytes extend it, and its marks are removed.
            self.lost_below = self.lost_below.min(self.start_of(last));
            self.unmark(last);
            let last = &mut self.segments[last];
            (last.end, last.sent_at, last.transmissions) = (to, now, 2);
            self.repeated_to = to;
        }
        self.nxt = to;
    }

    /// Whether no segment is marked or was sent twice.
    pub(super) fn is_plain(&self) -> bool {
        self.sacked == 0 && self.lost == 0 && self.repeated_to <= self.una
    }

    /// Removes all bytes below `una`, which have arrived. All segments must be [plain](Self::is_plain). Returns the
    /// send time of the first segment if it is acknowledged as a whole.
    #[inline]
    pub(super) fn acknowledge_plain(&mut self, una: Seq) -> Option<Time> {
        let first = *self.segments.front()?;
        self.una = una;
        if una == self.nxt {
            self.segments.clear();
            if self.segments.capacity() > SEGMENTS_KEPT {
                self.segments.shrink_to(SEGMENTS_KEPT);
            }
            return Some(first.sent_at);
        }
        while self.segments.front().is_some_and(|segment| segment.end <= una) {
            self.segments.pop_front();
        }
        (first.end <= una).then_some(first.sent_at)
    }

    /// Removes all bytes below `una`, which have arrived; `una` is at most SND.NXT.
    pub(super) fn acknowledge(&mut self, una: Seq, mss: u32, delivered: &mut Delivered) {
        while let Some(&segment) = self.segments.front() {
            let end = segment.end.min(una);
            let length = end - self.una;
            if length == 0 {
                break;
            }
            if segment.sacked {
                self.sacked -= length;
            } else {
                delivered.bytes += length;
                if segment.lost {
                    self.lost -= length;
                    self.retransmitted -= if segment.retransmitted { length } else { 0 };
                }
            }
            self.una = end;
            if segment.end > end {
                self.forget_retransmission_of_part(mss);
                break;
            }
            if segment.sacked {
                self.sacked_segments -= 1;
            } else {
                self.on_arrival(0, segment, delivered);
            }
            delivered.repeated |= segment.transmissions > 1;
            self.segments.pop_front();
        }
        if self.segments.is_empty() && self.segments.capacity() > SEGMENTS_KEPT {
            self.segments.shrink_to(SEGMENTS_KEPT);
        }
    }

    /// The first segment is acknowledged in part. If the scoreboard had no room to divide it when its first part was
    /// retransmitted, the whole segment is marked as retransmitted: the rest still has to be retransmitted.
    fn forget_retransmission_of_part(&mut self, mss: u32) {
        let una = self.una;
        let Some(first) = self.segments.front_mut() else { return };
        let length = first.end - una;
        if first.retransmitted && length > u64::from(mss) {
            first.retransmitted = false;
            self.retransmitted -= length;
            self.next_lost_from = self.next_lost_from.min(una);
        }
    }

    fn on_arrival(&self, index: usize, segment: Segment, delivered: &mut Delivered) {
        let is_repeated = segment.transmissions > 1;
        if !is_repeated || segment.sent_at <= delivered.ambiguous_after {
            delivered.latest = delivered.latest.max((segment.sent_at, segment.end));
        }
        if segment.end < delivered.highest_sacked && !segment.was_sacked {
            let distance = self.index_of(delivered.highest_sacked - 1).saturating_sub(index);
            let distance = u32::try_from(distance).unwrap_or(u32::MAX);
            let largest =
                if is_repeated { &mut delivered.reordering_repeated } else { &mut delivered.reordering };
            *largest = distance.max(*largest);
        }
        if is_repeated {
            delivered.repeated = true;
        } else if !segment.was_sacked {
            delivered.original |= segment.end <= self.timeout_point;
            delivered.sent_at.get_or_insert(segment.sent_at);
        }
    }

    /// Divides a segment in two; returns whether there was room.
    fn divide(&mut self, index: usize, at: Seq) -> bool {
        if self.segments.len() >= SEGMENTS_MAX {
            return false;
        }
        let first = Segment { end: at, ..self.segments[index] };
        self.sacked_segments += u32::from(first.sacked);
        self.segments.insert(index, first);
        true
    }

    /// The index of the segment that holds this byte.
    fn index_of(&self, seq: Seq) -> usize {
        self.segments.partition_point(|segment| segment.end <= seq)
    }

    fn start_of(&self, index: usize) -> Seq {
        match index.checked_sub(1) {
            Some(before) => self.segments[before].end,
            None => self.una,
        }
    }
}
